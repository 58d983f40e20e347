"""Several runs of the quickstart that differ by nothing but their seed, taken together (`launch.report`)."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from launch import common
from webleaper_jax.eval.metrics import POLICIES, collect_metrics
from webleaper_jax.jsonl import DataError, load_records
from webleaper_jax.records import Score, Task


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
        metrics = finished_run(path)
        _check_differs_by_seed(path, [pathlib.Path(one["workdir"]) for one in seeds])
        own = {p: load_records(scores_file(path, p), Score) for p in POLICIES if scores_file(path, p).exists()}
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


def scores_file(path: pathlib.Path, policy: str) -> pathlib.Path:
    """Where a run keeps the scores of a policy on the held-out tasks."""
    return path / "eval" / policy / "trajectories.scores.jsonl"


def describe(run: Mapping[str, Any]) -> str:
    """One of the `seeds` of `pool`, as a line."""
    f = run["paired"]["f"] if run["paired"] else None
    if f is None:
        return f"{run['workdir']}: seed {run['seed']}, GRPO or SFT was not evaluated"
    line = f"{run['workdir']}: seed {run['seed']}, GRPO - SFT, F: {f['mean']:+.3f}"
    return line if f["low"] is None else f"{line}, 95 % interval {f['low']:+.3f} to {f['high']:+.3f}"


def finished_run(path: pathlib.Path) -> dict[str, Any]:
    """Returns the metrics of a run's folder. Raises `DataError` when it holds no finished run."""
    metrics = path / "metrics.json"
    if not metrics.exists():
        raise DataError(
            f"--workdir={path}: holds no finished run; `python -m launch.quickstart --workdir={path}` goes on"
        )
    found = json_object(metrics)
    if not {"seed", "wall_seconds", "peak_rss_gb"} <= found.keys():
        raise DataError(f"{metrics}: holds no metrics of a run; `python -m launch.quickstart` writes them")
    return found


def json_object(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON object of a run. Raises `DataError`."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); is this the folder of a run?") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: holds no JSON object; is this the folder of a run?")
    return found


def _check_differs_by_seed(path: pathlib.Path, others: Sequence[pathlib.Path]) -> None:
    """Raises `DataError` where a run is one of the others, has the seed of one, or was made with other settings."""
    config = json_object(path / "config.json")
    for other in others:
        theirs = json_object(other / "config.json")
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
