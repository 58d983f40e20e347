"""The report of a run: report.html, the figures as PNG, metrics.json, and the small table printed at the end.

python -m launch.report --workdir=RUN                                  # writes a run's report again, from its files
python -m launch.report --workdir=SEED0,SEED1,SEED2 --out=pooled.json  # runs that differ by seed, taken together

Several runs of the same held-out tasks are pooled task by task; each run's GRPO minus SFT is printed, then the pooled
table with intervals over table families, which --out holds for programs.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from absl import flags
from ml_collections import ConfigDict

from data_gen.filter import FilterReport
from launch import common
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
    scores = {p: load_records(_scores(path, p), Score) for p in POLICIES if _scores(path, p).exists()}
    collected = load_records(path / "collect" / "train" / "trajectories.scores.jsonl", Score)
    filtered = msgspec.json.decode((path / "collect" / "train" / "filter.json").read_bytes(), type=FilterReport)
    bootstrap = BootstrapConfig(seed=config.seed)
    metrics = collect_metrics(
        tasks, scores, wall_seconds=seconds, peak_rss_gb=peak_rss_gb, seed=config.seed, bootstrap=bootstrap
    )
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


def _scores(path: pathlib.Path, policy: str) -> pathlib.Path:
    return path / "eval" / policy / "trajectories.scores.jsonl"


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


def pool(paths: Sequence[pathlib.Path]) -> dict[str, Any]:
    """Returns the metrics of several runs taken together, and under `seeds` each run's GRPO minus SFT.

    Raises:
      DataError: a run is not finished, or was made on other tasks than the first.
    """
    scores: dict[str, list[Score]] = {}
    tasks: dict[str, Task] = {}
    evaluated: set[str] = set()
    seeds = []
    for path in paths:
        metrics = _finished(path)
        own = {p: load_records(_scores(path, p), Score) for p in POLICIES if _scores(path, p).exists()}
        ids = {score.task_id for policy in own for score in own[policy]}
        if evaluated and ids != evaluated:
            raise DataError(f"{path}: was evaluated on other tasks than {paths[0]}; give runs that differ by seed only")
        evaluated = ids
        tasks |= {task.id: task for task in load_records(path / "tasks" / "tasks.jsonl.gz", Task)}
        for policy, of_policy in own.items():
            scores.setdefault(policy, []).extend(of_policy)
        seeds.append({"workdir": str(path), "seed": metrics["seed"], "paired": metrics.get("paired")})
    pooled = collect_metrics(list(tasks.values()), scores, wall_seconds={}, peak_rss_gb=0.0, seed=seeds[0]["seed"])
    held_out = [tasks[i] for i in evaluated]
    families = {family for task in held_out for family in task.provenance.families}
    unneeded = ("wall_seconds", "peak_rss_gb", "seed", "tasks")
    return {name: value for name, value in pooled.items() if name not in unneeded} | {
        "heldout": {"tasks": len(held_out), "families": len(families)},
        "seeds": seeds,
    }


def _finished(path: pathlib.Path) -> dict[str, Any]:
    metrics = path / "metrics.json"
    if not metrics.exists():
        raise DataError(
            f"--workdir={path}: holds no finished run; `python -m launch.quickstart --workdir={path}` goes on"
        )
    return json.loads(metrics.read_text())


def main(_: Sequence[str]) -> None:
    paths = [pathlib.Path(workdir) for workdir in FLAGS.workdir]
    if len(paths) > 1:
        metrics = pool(paths)
        for run in metrics["seeds"]:
            print(f"{run['workdir']}: seed {run['seed']}, GRPO - SFT {run['paired']['f'] if run['paired'] else '-'}")
        print(f"{len(paths)} runs of {metrics['heldout']['tasks']} held-out tasks")
        print(summary_table(metrics))
        if FLAGS.out:
            write_metrics(FLAGS.out, metrics)
            print(f"written to {FLAGS.out}")
        return
    before = _finished(paths[0])
    config = ConfigDict(json.loads((paths[0] / "config.json").read_text()))
    write(config, paths[0], before["wall_seconds"], before["peak_rss_gb"])
    common.finish(paths[0] / "report" / "report.html", "open it in a browser")


if __name__ == "__main__":
    flags.DEFINE_list("workdir", None, "Folder of a finished run, or several with commas.", required=True)
    flags.DEFINE_string("out", None, "Where the metrics of several runs are written, as JSON.")
    common.run(main)
