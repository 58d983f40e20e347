"""Groups of rollouts: k episodes of each task of a step, scored, keyed by task."""

import os
import pathlib
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from webleaper_jax.agent.batch import BatchConfig, run_episodes
from webleaper_jax.agent.loop import LoopConfig
from webleaper_jax.agent.tools import Tools
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Sampling, Score, Task, Trajectory
from webleaper_jax.sampling.engine import EmbeddedEngine


class Group(NamedTuple):
    """All rollouts of one task in one step, by rollout number, and their scores."""

    task: Task
    trajectories: tuple[Trajectory, ...]
    scores: tuple[Score, ...]

    @property
    def rewards(self) -> Float[np.ndarray, " K"]:
        return np.array([score.f for score in self.scores])


class Rollouts(NamedTuple):
    """The whole groups of a step; task ids of the partial ones, which never train; rollouts that failed for reasons of
    infrastructure; rollouts that were on disk before; seconds it took."""

    groups: list[Group]
    partial: list[str]
    failed: int
    resumed: int
    seconds: float


def choose_tasks(tasks: Sequence[Task], count: int, seed: int, step: int) -> list[Task]:
    """The tasks of step `step` (from 0): a pure function of the tasks, the seed and the step.

    Each pass over the tasks is a new permutation; what is left over at its end, too few for a step, is not used.

    Raises:
      DataError: there are fewer tasks than a step needs.
    """
    per_pass = len(tasks) // count
    if not per_pass:
        raise DataError(f"config.grpo.tasks_per_step is {count}, but there are {len(tasks)} tasks: lower it")
    number, place = divmod(step, per_pass)
    order = np.random.default_rng([seed, number]).permutation(len(tasks))
    by_id = sorted(tasks, key=lambda task: task.id)
    return [by_id[i] for i in order[place * count : (place + 1) * count]]


def collect(
    tasks: Sequence[Task],
    engine: EmbeddedEngine,
    tools: Tools,
    directory: str | os.PathLike[str],
    *,
    size: int,
    loop: LoopConfig,
    sampling: Sampling,
    label: str,
) -> Rollouts:
    """Rolls out `size` episodes of each task and scores them.

    Every finished rollout is on disk at once, in a file named after the weights: a step that was interrupted goes on
    with those that its own policy made, and never with another's.
    """
    started = time.monotonic()
    out = pathlib.Path(directory) / f"{engine.name.rpartition(':')[2]}.jsonl"
    # As many episodes as there are slots, and some to take the place of those that end.
    batch = BatchConfig(rollouts=size, concurrency=2 * engine.slots)
    done = run_episodes(tasks, engine, tools, out, loop=loop, sampling=sampling, batch=batch, label=label)
    groups, partial = form_groups(tasks, done.trajectories, done.scores, size)
    return Rollouts(groups, partial, len(done.failed), done.resumed, time.monotonic() - started)


def form_groups(
    tasks: Sequence[Task], trajectories: Sequence[Trajectory], scores: Sequence[Score], size: int
) -> tuple[list[Group], list[str]]:
    """Puts rollouts into groups by task id, in the order of `tasks`, whatever the order they come in.

    Left out: infrastructure errors and rollouts that could not be scored; then groups that are not whole.

    Returns:
      The whole groups, and the ids of the tasks whose group is not.
    """
    score_of = {score.trajectory_id: score for score in scores if score.scored}
    groups, partial = [], []
    for task in tasks:
        members = sorted(
            (t for t in trajectories if t.task_id == task.id and not t.infrastructure_error and t.id in score_of),
            key=lambda t: t.rollout,
        )
        if len(members) == size:
            groups.append(Group(task, tuple(members), tuple(score_of[t.id] for t in members)))
        else:
            partial.append(task.id)
    return groups, partial
