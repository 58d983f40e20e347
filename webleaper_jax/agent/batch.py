"""Runs many episodes at once, and goes on where it was interrupted.

Every finished trajectory is on disk before the next one of its worker starts, in the order in which they finished
(`<name>.log.jsonl`); a run that is started again does the missing (task id, rollout) pairs only. When all are there
they are written to the file asked for, sorted by task and rollout, so that the file does not depend on speed,
concurrency or interruptions; their scores stand beside it (`<name>.scores.jsonl`). Infrastructure errors are tried
again, and what still fails goes to `<name>.errors.jsonl`, never among the trajectories.
"""

import asyncio
import os
import pathlib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec
from tqdm import tqdm

from webleaper_jax.agent.engine import Engine
from webleaper_jax.agent.loop import LoopConfig, fingerprints, run_episode
from webleaper_jax.agent.tools import Tools
from webleaper_jax.jsonl import DataError, RecordLog, write_records
from webleaper_jax.records import AtLeast0, AtLeast1, Sampling, Score, Seconds, Task, Trajectory
from webleaper_jax.scoring.score import score_trajectory

ToolsFor = Callable[[Task, int], Tools]


class BatchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`rollouts` episodes of every task, at most `concurrency` at a time.

    An episode that ends in an infrastructure error is tried `retries` more times, after `retry_seconds`, then twice
    that, and so on. After `give_up_after` failed episodes in a row the run stops: the server is down, not unlucky.
    """

    rollouts: AtLeast1 = 1
    concurrency: AtLeast1 = 8
    retries: AtLeast0 = 2
    retry_seconds: Seconds = 1.0
    give_up_after: AtLeast1 = 20


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """`trajectories` sorted by task id and rollout, and the score of each; `failed` are the infrastructure errors;
    `resumed` of the trajectories were on disk before."""

    trajectories: list[Trajectory]
    scores: list[Score]
    failed: list[Trajectory]
    resumed: int


def run_episodes(
    tasks: Sequence[Task],
    engine: Engine,
    tools: Tools | ToolsFor,
    out: str | os.PathLike[str],
    *,
    loop: LoopConfig,
    sampling: Sampling,
    batch: BatchConfig | None = None,
    label: str = "episodes",
) -> Batch:
    """Runs `batch.rollouts` episodes of each task and writes them to `out` (`.jsonl` or `.jsonl.gz`).

    Args:
      tools: used for every episode; or a function of (task, rollout) that gives an episode its own.
      label: what the progress bar is called.

    Raises:
      DataError: two tasks have one id; the log on disk was made by another policy, with other sampling parameters, or
        in another web, with other tools, limits or prompts; or too many episodes in a row failed for reasons of
        infrastructure.
    """
    batch = batch or BatchConfig()
    tools_for: ToolsFor = tools if callable(tools) else lambda task, rollout: tools
    wanted = [(task, rollout) for task in tasks for rollout in range(batch.rollouts)]
    if len({(task.id, rollout) for task, rollout in wanted}) < len(wanted):
        raise DataError(f"{out}: the tasks given hold one task twice; remove the duplicates from the task file")

    out = pathlib.Path(out)
    log_path, errors_path, scores_path = side_files(out)
    with RecordLog(log_path, Trajectory) as log:
        run = _Run(engine, tools_for, loop, sampling, batch, log, errors_path)
        done = run.done_before(wanted)
        resumed = len(done)
        missing = deque(pair for pair in wanted if (pair[0].id, pair[1]) not in done)
        if resumed and missing:
            print(f"{label}: {resumed} of {len(wanted)} are on disk, {len(missing)} to do", file=sys.stderr, flush=True)
        if missing:
            asyncio.run(run.all(missing, label, resumed))

    done |= run.finished
    trajectories = [_timeless(done[key]) for key in sorted(done)]
    failed = [run.failed[key] for key in sorted(run.failed)]
    task_of = {task.id: task for task in tasks}
    scores = [score_trajectory(task_of[t.task_id], t) for t in trajectories]
    write_records(out, trajectories)
    write_records(scores_path, scores)
    if failed:
        write_records(errors_path, failed)
    else:
        errors_path.unlink(missing_ok=True)
    return Batch(trajectories=trajectories, scores=scores, failed=failed, resumed=resumed)


def side_files(out: str | os.PathLike[str]) -> tuple[pathlib.Path, pathlib.Path, pathlib.Path]:
    """Returns the paths of the log, the errors and the scores that belong to an output file."""
    out = pathlib.Path(out)
    stem = out.name.removesuffix(".gz").removesuffix(".jsonl")
    log, errors, scores = (out.with_name(f"{stem}.{kind}.jsonl") for kind in ("log", "errors", "scores"))
    return log, errors, scores


class _Run:
    """The workers of one call; `finished` and `failed` by (task id, rollout)."""

    def __init__(
        self,
        engine: Engine,
        tools_for: ToolsFor,
        loop: LoopConfig,
        sampling: Sampling,
        batch: BatchConfig,
        log: RecordLog[Trajectory],
        errors_path: pathlib.Path,
    ):
        self.engine, self.tools_for, self.loop, self.sampling, self.batch = engine, tools_for, loop, sampling, batch
        self.log, self.errors_path = log, errors_path
        self.finished: dict[tuple[str, int], Trajectory] = {}
        self.failed: dict[tuple[str, int], Trajectory] = {}
        self.failed_in_a_row = 0

    def done_before(self, wanted: Iterable[tuple[Task, int]]) -> dict[tuple[str, int], Trajectory]:
        """The trajectories in the log that this run wants, by (task id, rollout).

        Raises:
          DataError: they were made otherwise than this run would make them, so that mixing them would be wrong.
        """
        found: dict[tuple[str, int], Trajectory] = {}
        for trajectory in self.log.records:
            found.setdefault((trajectory.task_id, trajectory.rollout), trajectory)
        pairs = [(task, rollout) for task, rollout in wanted if (task.id, rollout) in found]
        for task, rollout in pairs:
            self._check_made_alike(found[task.id, rollout], self.tools_for(task, rollout))
        return {(task.id, rollout): found[task.id, rollout] for task, rollout in pairs}

    def _check_made_alike(self, trajectory: Trajectory, tools: Tools) -> None:
        """Raises `DataError` where a trajectory is of another policy, sampling, web, tools, limits or prompts."""
        there, now = trajectory.fingerprints, fingerprints(self.engine, tools, self.loop)
        compared: dict[str, tuple[object, object]] = {
            "policy": (trajectory.policy, self.engine.name),
            "sampling": (trajectory.sampling, self.sampling),
            **{f"fingerprints.{name}": (getattr(there, name), getattr(now, name)) for name in now.__struct_fields__},
        }
        for field, (found, wanted) in compared.items():
            if found != wanted:
                raise DataError(
                    f"{self.log.path}: record {trajectory.id}, field `{field}`: {found!r} there, {wanted!r} now; "
                    "delete the file or write to another place"
                )

    async def all(self, missing: deque[tuple[Task, int]], label: str, resumed: int) -> None:
        """Works through `missing`; the first exception of a worker stops the others and is raised."""
        total = resumed + len(missing)
        interval = 0.5 if sys.stderr.isatty() else 20.0  # a log file wants few lines
        with (
            tqdm(total=total, initial=resumed, desc=label, unit="ep", mininterval=interval, smoothing=0.05) as bar,
            RecordLog(self.errors_path, Trajectory) as errors,
        ):
            workers = [
                asyncio.create_task(self._work(missing, bar, errors))
                for _ in range(min(self.batch.concurrency, len(missing)))
            ]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, missing: deque[tuple[Task, int]], bar: tqdm, errors: RecordLog[Trajectory]) -> None:
        while missing:
            task, rollout = missing.popleft()
            trajectory = await self._episode(task, rollout)
            if trajectory.infrastructure_error:
                errors.append(trajectory)
                self.failed[task.id, rollout] = trajectory
                self.failed_in_a_row += 1
                if self.failed_in_a_row >= self.batch.give_up_after:
                    raise DataError(
                        f"{self.log.path}: {self.failed_in_a_row} episodes in a row failed, the last with "
                        f"{trajectory.infrastructure_error!r}; see {self.errors_path}, mend the engine, and run the "
                        "same command again: it goes on from here"
                    )
            else:
                self.log.append(trajectory)
                self.finished[task.id, rollout] = trajectory
                self.failed_in_a_row = 0
            bar.update()

    async def _episode(self, task: Task, rollout: int) -> Trajectory:
        """One episode, tried again while its failure is one of infrastructure."""
        for attempt in range(self.batch.retries + 1):
            if attempt:
                await asyncio.sleep(self.batch.retry_seconds * 2 ** (attempt - 1))
            trajectory = await run_episode(
                task, rollout, self.engine, self.tools_for(task, rollout), self.loop, self.sampling
            )
            if not trajectory.infrastructure_error:
                break
        return trajectory


def _timeless(trajectory: Trajectory) -> Trajectory:
    """The trajectory without its wall time, which differs between equal runs; the log keeps it."""
    return msgspec.structs.replace(trajectory, ledger=msgspec.structs.replace(trajectory.ledger, seconds=0.0))
