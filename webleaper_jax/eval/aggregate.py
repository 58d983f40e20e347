"""Means of scores with 95 % intervals, by a bootstrap over table families.

Tasks of one table family are not independent (they ask for the same cells), so whole families are resampled. A task
built from tables of several families belongs to each of them; its weight in a replicate is the product of how often
each of its families was drawn, the pigeonhole bootstrap (Owen 2007, Annals of Applied Statistics 1(2)), which is mildly
conservative and, for tasks of one family each, is the ordinary cluster bootstrap. Rollouts and seeds of a task are
averaged before anything else, so every task counts once.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from jaxtyping import Float, Int

from webleaper_jax.records import Score, Task

METRICS = ("precision", "recall", "f", "isr", "ise", "valid_action_rate", "rounds", "searches", "visits")


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A mean with the bounds of its 95 % interval; the bounds are NaN (null in JSON) where they cannot be had, that is
    with fewer than two families. `tasks` and `families` say how many stand behind it."""

    mean: float
    low: float
    high: float
    tasks: int = 0
    families: int = 0


class BootstrapConfig(msgspec.Struct, frozen=True, kw_only=True):
    replicates: int = 2000
    confidence: float = 0.95
    seed: int = 0


def task_means(scores: Iterable[Score]) -> dict[str, Float[np.ndarray, "M"]]:
    """Returns, by task id (sorted), the mean of each of `METRICS` over the task's rollouts and seeds.

    Scores that a judge failed to give are left out: they are neither right nor wrong.
    """
    rows: dict[str, list[tuple[float, ...]]] = {}
    for score in scores:
        if score.scored:
            rows.setdefault(score.task_id, []).append(tuple(float(getattr(score, name)) for name in METRICS))
    # sorted rows: the sum does not depend on the order in which rollouts came back
    return {task_id: np.mean(np.array(sorted(rows[task_id])), axis=0) for task_id in sorted(rows)}


def summarise(
    tasks: Iterable[Task], scores: Iterable[Score], config: BootstrapConfig | None = None
) -> dict[str, Interval]:
    """Returns the mean and interval of each of `METRICS`, pooled over the seeds and rollouts that `scores` hold.

    Raises:
      ValueError: no score, or a score of a task that is not in `tasks`.
    """
    means = task_means(scores)
    if not means:
        raise ValueError("no scores to summarise")
    values = np.stack(list(means.values()))
    return _intervals(values, _memberships(tasks, list(means)), config or BootstrapConfig())


def paired_difference(
    tasks: Iterable[Task], first: Iterable[Score], second: Iterable[Score], config: BootstrapConfig | None = None
) -> dict[str, Interval]:
    """Returns mean and interval of `first` minus `second`, task by task, for each of `METRICS`.

    Raises:
      ValueError: the two were not scored on the same tasks (leaving tasks out silently would bias the difference).
    """
    a, b = task_means(first), task_means(second)
    if a.keys() != b.keys():
        missing = sorted(a.keys() ^ b.keys())
        raise ValueError(f"{len(missing)} tasks were scored for one policy only, the first is {missing[0]}")
    if not a:
        raise ValueError("no scores to compare")
    values = np.stack([a[task_id] - b[task_id] for task_id in a])
    return _intervals(values, _memberships(tasks, list(a)), config or BootstrapConfig())


def task_families(task: Task) -> tuple[str, ...]:
    """The families that a task is resampled with; a task that names none is a family of its own."""
    return tuple(sorted(set(task.provenance.families))) or (task.id,)


def bootstrap_weights(membership: Int[np.ndarray, "T F"], replicates: int, seed: int) -> Float[np.ndarray, "R T"]:
    """Returns the weight of each task in each replicate.

    A replicate draws F families with replacement; a task's weight is the product, over its families, of the times that
    each was drawn.
    """
    families = membership.shape[1]
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(families, np.full(families, 1.0 / families), size=replicates)
    weights = np.empty((replicates, membership.shape[0]))
    for task, row in enumerate(membership):
        weights[:, task] = drawn[:, np.flatnonzero(row)].prod(axis=1)
    return weights


def _memberships(tasks: Iterable[Task], task_ids: Sequence[str]) -> Int[np.ndarray, "T F"]:
    by_id: Mapping[str, Task] = {task.id: task for task in tasks}
    unknown = [task_id for task_id in task_ids if task_id not in by_id]
    if unknown:
        raise ValueError(f"{len(unknown)} scores belong to tasks that were not given, the first to {unknown[0]}")
    groups = [task_families(by_id[task_id]) for task_id in task_ids]
    columns = {family: column for column, family in enumerate(sorted({f for group in groups for f in group}))}
    membership = np.zeros((len(groups), len(columns)), dtype=np.int64)
    for row, group in enumerate(groups):
        membership[row, [columns[family] for family in group]] = 1
    return membership


def _intervals(
    values: Float[np.ndarray, "T M"], membership: Int[np.ndarray, "T F"], config: BootstrapConfig
) -> dict[str, Interval]:
    tasks, families = membership.shape
    means = values.mean(axis=0)
    low, high = np.full(len(METRICS), math.nan), np.full(len(METRICS), math.nan)
    if families >= 2:
        weights = bootstrap_weights(membership, config.replicates, config.seed)
        total = weights.sum(axis=1)
        usable = total > 0  # a replicate may draw no family of any task when every task needs two
        if usable.any():
            replicates = (weights[usable] @ values) / total[usable, None]
            tail = (1.0 - config.confidence) / 2.0
            low, high = np.quantile(replicates, [tail, 1.0 - tail], axis=0)
    return {
        name: Interval(mean=float(means[i]), low=float(low[i]), high=float(high[i]), tasks=tasks, families=families)
        for i, name in enumerate(METRICS)
    }
