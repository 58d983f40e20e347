"""The report of a run: report.html, the figures as PNG, metrics.json, and the small table printed at the end.

python -m launch.report --workdir=RUN                                  # writes a run's report again, from its files
python -m launch.report --workdir=SEED0,SEED1,SEED2 --out=pooled.json  # runs that differ by seed, taken together

Several runs that differ by nothing but their seed are pooled task by task; each run's GRPO minus SFT is printed, then
the pooled table with intervals over table families, which --out holds for programs. These intervals resample families
and leave the variance between seeds out: the lines of the single runs show it.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence

import msgspec
from absl import flags
from ml_collections import ConfigDict

from data_gen.filter import FilterReport
from launch import common
from launch.pool import describe, finished_run, json_object, pool, scores_file
from webleaper_jax.eval import plots
from webleaper_jax.eval.aggregate import BootstrapConfig, summarise
from webleaper_jax.eval.metrics import POLICIES, collect_metrics, summary_table, write_metrics
from webleaper_jax.eval.report import Plot, ReportData, pick_examples, write_report
from webleaper_jax.jsonl import DataError, load_records
from webleaper_jax.records import Score, Task, Trajectory

FLAGS = flags.FLAGS


def write(config: ConfigDict, path: pathlib.Path, seconds: Mapping[str, float], peak_rss_gb: float) -> None:
    """Writes `metrics.json`, `summary.txt` and `report/` of a run from the files of its stages."""
    tasks = load_records(path / "tasks" / "tasks.jsonl.gz", Task)
    scores = {p: load_records(scores_file(path, p), Score) for p in POLICIES if scores_file(path, p).exists()}
    collected = load_records(path / "collect" / "train" / "trajectories.scores.jsonl", Score)
    filter_file = path / "collect" / "train" / "filter.json"
    bootstrap = BootstrapConfig(seed=config.seed)
    try:
        filtered = msgspec.json.decode(filter_file.read_bytes(), type=FilterReport)
        metrics = collect_metrics(
            tasks, scores, wall_seconds=seconds, peak_rss_gb=peak_rss_gb, seed=config.seed, bootstrap=bootstrap
        )
    except (OSError, msgspec.MsgspecError) as error:
        raise DataError(f"{filter_file}: cannot be read ({error}); `python -m launch.collect` writes it") from None
    except ValueError as error:
        raise DataError(f"{path}: {error}; evaluate all policies on the same tasks") from None
    write_metrics(path / "metrics.json", metrics)
    summary = summary_table(metrics)
    (path / "summary.txt").write_text(summary + "\n")

    figures = {
        "entities_per_task": (plots.entities_per_task(tasks), "Targets (cells) of all tasks made, by variant."),
        "valid_actions": (plots.valid_action_distribution(scores), "Share of actions that showed a new target."),
        "tool_calls": (plots.tool_calls(scores), "Tool calls of each held-out trajectory."),
        "sft_loss": (plots.training_loss(_losses(path)), "SFT loss, nats per trained token."),
        "rl_reward": (
            plots.reward_curve({f"seed {config.seed}": _series(path / "grpo", "reward/mean")}, window=5),
            "Mean reward (soft F) of the rollouts of each GRPO step.",
        ),
        "score_rounds": (
            plots.score_against_rounds({p: summarise(tasks, s, bootstrap) for p, s in scores.items()}),
            "Mean F against mean rounds on held-out tasks, with 95 % intervals.",
        ),
        "isr_ise": (
            plots.isr_ise_plane(collected, filtered.alpha, filtered.beta, filtered.ise),
            "Collected trajectories and the filter's thresholds; the upper right is kept.",
        ),
    }
    plots.save_figures({name: figure for name, (figure, _) in figures.items()}, path / "report")
    shown = next((p for p in ("grpo", "sft", "scripted") if p in scores), "")
    trajectories = load_records(path / "eval" / shown / "trajectories.jsonl.gz", Trajectory)
    write_report(
        path / "report" / "report.html",
        ReportData(
            title=f"WebLeaper quickstart, preset {config.preset}, seed {config.seed}",
            metrics=metrics,
            cells=filtered.cells,
            plots=[Plot(figure=figure, caption=caption) for figure, caption in figures.values()],
            examples=pick_examples(tasks, trajectories, scores[shown]),
            notes=[*filtered.text().splitlines(), *_notes(config, path)],
        ),
    )


def _series(folder: pathlib.Path, key: str) -> list[tuple[float, float]]:
    file = folder / "metrics.jsonl"
    return plots.read_series(file, key) if file.exists() else []


def _losses(path: pathlib.Path) -> dict[str, list[tuple[float, float]]]:
    return {
        "train": _series(path / "sft", "train/loss"),
        "validation": _series(path / "sft", "validation/loss"),
        "train (more)": _series(path / "sft_more", "train/loss"),
    }


def _notes(config: ConfigDict, path: pathlib.Path) -> list[str]:
    """Facts that a reader needs to judge the figures."""
    lines = [
        f"context: {config.loop.max_context} tokens; at most {config.loop.max_steps} tool calls",
        "the scripted searcher is a script with detours, not a model; it makes the SFT data",
        "untrained is the checkpoint that SFT starts from; the controls run the SFT policy",
    ]
    chosen = path / "chosen.json"
    if chosen.exists():
        found = json.loads(chosen.read_text())
        values = ", ".join(f"{name} {value:.3f}" for name, value in found["validation_f"].items())
        lines.append(f"SFT checkpoint chosen by validation F: {found['chosen']} ({values})")
    return lines


def main(_: Sequence[str]) -> None:
    paths = [pathlib.Path(workdir) for workdir in FLAGS.workdir]
    if not paths:
        raise DataError("--workdir= is empty; give the folder of a finished run")
    if len(paths) > 1:
        if FLAGS.out and pathlib.Path(FLAGS.out).is_dir():
            raise DataError(f"--out={FLAGS.out}: is a folder; give the name of a file")
        metrics = pool(paths)
        for run in metrics["seeds"]:
            print(describe(run))
        print(f"{len(paths)} runs of {metrics['heldout']['tasks']} held-out tasks")
        print(summary_table(metrics))
        if FLAGS.out:
            try:
                write_metrics(FLAGS.out, metrics)
            except OSError as error:
                raise DataError(f"--out={FLAGS.out}: cannot be written ({error})") from None
            print(f"written to {FLAGS.out}")
        return
    if FLAGS.out:
        raise DataError("--out is for several runs; the report of one is written into its own --workdir")
    before = finished_run(paths[0])
    config = ConfigDict(json_object(paths[0] / "config.json"))
    write(config, paths[0], before["wall_seconds"], before["peak_rss_gb"])
    common.finish(paths[0] / "report" / "report.html", "open it in a browser")


if __name__ == "__main__":
    flags.DEFINE_list("workdir", None, "Folder of a finished run, or several with commas.", required=True)
    flags.DEFINE_string("out", None, "Where the metrics of several runs are written, as JSON.")
    common.run(main)
