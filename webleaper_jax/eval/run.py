"""Evaluating a policy: its episodes on a set of tasks, and their scores. The policy is any engine."""

import os
from collections.abc import Sequence

from webleaper_jax.agent.batch import Batch, BatchConfig, ToolsFor, run_episodes
from webleaper_jax.agent.engine import Engine
from webleaper_jax.agent.loop import LoopConfig
from webleaper_jax.agent.tools import Tools
from webleaper_jax.records import Sampling, Task


def evaluate(
    tasks: Sequence[Task],
    engine: Engine,
    tools: Tools | ToolsFor,
    out: str | os.PathLike[str],
    *,
    loop: LoopConfig,
    sampling: Sampling,
    batch: BatchConfig | None = None,
    label: str = "evaluate",
) -> Batch:
    """Returns the trajectories of a policy on `tasks` and their scores, sorted by task id and rollout.

    Episodes whose infrastructure failed are in `failed` and have no score: they are neither right nor wrong.

    Args:
      tools: the tools, or a control of `eval.controls` (a function of task and rollout).
      out: where the trajectories go; an interrupted evaluation goes on there.

    Raises:
      DataError: as `agent.batch.run_episodes`.
    """
    return run_episodes(tasks, engine, tools, out, loop=loop, sampling=sampling, batch=batch, label=label)
