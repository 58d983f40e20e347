"""Collecting training data: k rollouts of every task, their scores, and the filter's choice among them.

The engine is the scripted searcher (`data_gen.searcher`) or any OpenAI-compatible server (`agent.openai_engine`); what
is written depends neither on how many episodes ran at a time nor on interruptions (`agent.batch`).
"""

import os
import pathlib
from collections.abc import Sequence

import msgspec

from data_gen.filter import FilterConfig, FilterReport, filter_trajectories
from webleaper_jax.agent.batch import Batch, BatchConfig, run_episodes
from webleaper_jax.agent.engine import Engine
from webleaper_jax.agent.loop import LoopConfig
from webleaper_jax.agent.tools import Tools
from webleaper_jax.jsonl import write_records
from webleaper_jax.records import Sampling, Task, Trajectory


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was collected, the trajectories to train on, and what the filter did."""

    batch: Batch
    kept: list[Trajectory]
    report: FilterReport


def collect(
    tasks: Sequence[Task],
    engine: Engine,
    tools: Tools,
    folder: str | os.PathLike[str],
    *,
    loop: LoopConfig,
    sampling: Sampling,
    batch: BatchConfig,
    keep: FilterConfig,
    label: str = "collect",
) -> Collected:
    """Runs `batch.rollouts` episodes of each task and filters them.

    Writes into `folder`: `trajectories.jsonl.gz` (all) with its scores, `kept.jsonl.gz` (to train on) and
    `filter.json`. A run that was interrupted goes on where it was.

    Raises:
      DataError: as `agent.batch.run_episodes`.
    """
    folder = pathlib.Path(folder)
    out = folder / "trajectories.jsonl.gz"
    done = run_episodes(tasks, engine, tools, out, loop=loop, sampling=sampling, batch=batch, label=label)
    kept, report = filter_trajectories(tasks, done.trajectories, done.scores, keep)
    write_records(folder / "kept.jsonl.gz", kept)
    (folder / "filter.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    return Collected(batch=done, kept=kept, report=report)
