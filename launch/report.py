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

    The intervals resample table families; a task's values are averaged over the seeds first, so the variance between
    seeds is left out.

    Raises:
      DataError: a run is not finished or is damaged, is given twice, has the seed of another, or differs from the first
        by more than its seed: in its settings, its policies, or the tasks that a policy was evaluated on.
    """
    scores: dict[str, list[Score]] = {}
    tasks: dict[str, Task] = {}
    seeds: list[dict[str, Any]] = []
    evaluated: dict[str, set[str]] = {}
    for path in paths:
        metrics = _finished(path)
        _check_differs_by_seed(path, [pathlib.Path(one["workdir"]) for one in seeds])
        own = {p: load_records(_scores(path, p), Score) for p in POLICIES if _scores(path, p).exists()}
        ids = {policy: {score.task_id for score in of_policy} for policy, of_policy in own.items()}
        evaluated = evaluated or ids
        for policy in sorted(evaluated.keys() | ids.keys()):
            if policy not in ids or policy not in evaluated:
                lacks = path if policy not in ids else paths[0]
                raise DataError(f"{path}: its policies are not those of {paths[0]}: `{policy}` is missing in {lacks}")
            if ids[policy] != evaluated[policy]:
                raise DataError(f"{path}: `{policy}` was evaluated on other tasks than in {paths[0]}")
        tasks |= {task.id: task for task in load_records(path / "tasks" / "tasks.jsonl.gz", Task)}
        for policy, of_policy in own.items():
            scores.setdefault(policy, []).extend(of_policy)
        seeds.append({"workdir": str(path), "seed": metrics["seed"], "paired": metrics.get("paired")})
    try:
        pooled = collect_metrics(list(tasks.values()), scores, wall_seconds={}, peak_rss_gb=0.0, seed=seeds[0]["seed"])
    except ValueError as error:  # a score without its task, or GRPO and SFT on different tasks
        raise DataError(f"{paths[0]}: {error}") from None
    held_out = [tasks[i] for i in set().union(*evaluated.values())]
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
    found = _json_object(metrics)
    if not {"seed", "wall_seconds", "peak_rss_gb"} <= found.keys():
        raise DataError(f"{metrics}: holds no metrics of a run; `python -m launch.quickstart` writes them")
    return found


def _json_object(path: pathlib.Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); is this the folder of a run?") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: holds no JSON object; is this the folder of a run?")
    return found


def _check_differs_by_seed(path: pathlib.Path, others: Sequence[pathlib.Path]) -> None:
    """Raises `DataError` where a run is one of the others, has the seed of one, or was made with other settings."""
    config = _json_object(path / "config.json")
    for other in others:
        theirs = _json_object(other / "config.json")
        if path.resolve() == other.resolve():
            raise DataError(f"--workdir: {path} is given twice")
        if config.get("seed") == theirs.get("seed"):
            raise DataError(f"{path}: has the seed of {other} ({config.get('seed')}); give runs of different seeds")
        a, b = _without_seeds(theirs), _without_seeds(config)
        if a != b:
            where = common.first_difference(a, b)
            raise DataError(f"{path}: differs from {other} by more than its seed ({where})")


def _without_seeds(settings: Any) -> Any:
    """Nested settings without the keys named `seed`."""
    if isinstance(settings, dict):
        return {key: _without_seeds(value) for key, value in settings.items() if key != "seed"}
    return settings


def describe(run: Mapping[str, Any]) -> str:
    """One of the `seeds` of `pool`, as a line."""
    f = run["paired"]["f"] if run["paired"] else None
    if f is None:
        return f"{run['workdir']}: seed {run['seed']}, GRPO or SFT was not evaluated"
    line = f"{run['workdir']}: seed {run['seed']}, GRPO - SFT, F: {f['mean']:+.3f}"
    return line if f["low"] is None else f"{line}, 95 % interval {f['low']:+.3f} to {f['high']:+.3f}"


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
    before = _finished(paths[0])
    config = ConfigDict(_json_object(paths[0] / "config.json"))
    write(config, paths[0], before["wall_seconds"], before["peak_rss_gb"])
    common.finish(paths[0] / "report" / "report.html", "open it in a browser")


if __name__ == "__main__":
    flags.DEFINE_list("workdir", None, "Folder of a finished run, or several with commas.", required=True)
    flags.DEFINE_string("out", None, "Where the metrics of several runs are written, as JSON.")
    common.run(main)
