r"""GRPO: rollouts of a policy in the offline web -> a better policy.

  python -m launch.grpo --tables=RUN/tables --tasks=RUN/tasks/rl.jsonl.gz --policy=RUN/sft/exports/step_000200 \
      --out=RUN/grpo

Every rollout of every step is kept under OUT/rollouts with its score; metrics.jsonl has a line a step; Hugging Face
folders are under OUT/exports. Interrupted, the same command goes on: it redoes the step it was in, with those of its
rollouts that are on disk.
"""

import pathlib
from collections.abc import Sequence

from absl import flags
from ml_collections import ConfigDict

from launch import common, tables
from webleaper_jax.agent.loop import LoopConfig
from webleaper_jax.agent.tools import Tools
from webleaper_jax.jsonl import DataError
from webleaper_jax.parallel.host import keep_freed_memory
from webleaper_jax.records import Task
from webleaper_jax.rl.checks import CheckFailed
from webleaper_jax.rl.grpo import GRPOConfig, GRPOResult, train_grpo

FLAGS = flags.FLAGS


def run(config: ConfigDict, tools: Tools, tasks: Sequence[Task], init: pathlib.Path, out: pathlib.Path) -> GRPOResult:
    """Trains the policy in `init` on `tasks`; `config.grpo` holds the fields of `GRPOConfig`.

    Raises:
      DataError: settings that do not fit, or a check of the trainer that failed (see `webleaper_jax.rl.checks`).
    """
    settings = GRPOConfig.from_mapping(config.grpo.to_dict())
    try:
        return train_grpo(settings, tasks, tools, common.struct(LoopConfig, config.loop), init, out)
    except CheckFailed as error:
        raise DataError(f"grpo: {error}; nothing was trained on it, the last checkpoint is kept") from error


def main(_: Sequence[str]) -> None:
    keep_freed_memory()
    tasks = tables.training_tasks(common.require_file(FLAGS.tasks, "tasks", "python -m launch.synthesize"))
    folder = pathlib.Path(common.require_file(FLAGS.tables, "tables", "python -m launch.tables"))
    init = pathlib.Path(common.require_file(FLAGS.policy, "policy", "python -m launch.sft"))
    out = common.output_folder(FLAGS.out)
    result = run(FLAGS.config, tables.load_tools(FLAGS.config, folder, tasks), tasks, init, out)
    held_out = pathlib.Path(FLAGS.tasks).with_name("heldout.jsonl.gz")
    common.finish(
        result.final,
        "python -m launch.evaluate",
        tables=folder,
        tasks=held_out,
        policy=result.final,
        out=out.parent / "eval" / "grpo",
    )


if __name__ == "__main__":
    common.define_config()
    flags.DEFINE_string("tables", "", "Folder written by launch.tables (the offline web is in it).")
    flags.DEFINE_string("tasks", "", "A file of Task records: those of the split `rl`.")
    flags.DEFINE_string("policy", "", "The Hugging Face folder to start from.")
    flags.DEFINE_string("out", None, "Folder to write.", required=True)
    common.run(main)
