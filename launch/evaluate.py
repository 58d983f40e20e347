"""Stage 7: a policy on tasks it has not seen, with intervals.

  python -m launch.evaluate --tables=DIR/tables --tasks=DIR/tasks/heldout.jsonl.gz --policy=POLICY --out=DIR/eval/grpo
  python -m launch.evaluate ... --policy=scripted                         # the scripted searcher
  python -m launch.evaluate ... --policy=http://127.0.0.1:8000/v1         # an OpenAI-compatible server
  python -m launch.evaluate ... --policy=DIR --control=no_tools           # or other_observations, visit_once

A policy is a Hugging Face folder (config.json, model.safetensors, tokenizer.json), which the embedded sampler runs.
Writes trajectories.jsonl.gz, their scores, and summary.json; prints means with 95 % intervals (bootstrap over table
families).
"""

import pathlib
from collections.abc import Sequence

from absl import flags
from ml_collections import ConfigDict

from launch import collect, common, tables
from webleaper_jax.agent.batch import Batch, BatchConfig, ToolsFor
from webleaper_jax.agent.engine import Engine
from webleaper_jax.agent.loop import LoopConfig
from webleaper_jax.agent.tools import Tools
from webleaper_jax.eval.aggregate import BootstrapConfig, summarise
from webleaper_jax.eval.controls import no_tools, other_observations, visit_once
from webleaper_jax.eval.metrics import plain
from webleaper_jax.eval.run import evaluate
from webleaper_jax.jsonl import DataError, load_records
from webleaper_jax.records import Sampling, Task, Trajectory

FLAGS = flags.FLAGS
CONTROLS = ("", "no_tools", "other_observations", "visit_once")


def run(
    config: ConfigDict,
    tools: Tools | ToolsFor,
    tasks: Sequence[Task],
    engine: Engine,
    out: pathlib.Path,
    label: str = "",
) -> Batch:
    """Evaluates an engine; goes on where an interrupted one stopped. Raises `DataError` when nothing came out."""
    done = evaluate(
        tasks,
        engine,
        tools,
        out / "trajectories.jsonl.gz",
        loop=common.struct(LoopConfig, config.loop),
        sampling=common.struct(Sampling, config.evaluate.sampling),
        batch=common.struct(BatchConfig, config.evaluate.batch),
        label=label or f"evaluate {engine.name}",
    )
    collect.require_scores(done, out)
    return done


def embedded_engine(config: ConfigDict, folder: pathlib.Path, name: str) -> Engine:
    """Loads a Hugging Face folder into the embedded sampler; its name ends in a hash of the weights."""
    from webleaper_jax.agent.render import PolicyTokenizer
    from webleaper_jax.model.hf import fingerprint, load_checkpoint
    from webleaper_jax.sampling.engine import EmbeddedEngine

    if not (folder / "config.json").exists():
        raise DataError(
            f"{folder}: holds no config.json; a policy is a Hugging Face folder, `scripted`, or a server's URL"
        )
    return EmbeddedEngine(
        load_checkpoint(folder),
        PolicyTokenizer.load(folder),
        max_len=config.loop.max_context,
        name=f"{name}:{fingerprint(folder)[:8]}",
        **config.evaluate.engine,
    )


def controlled(control: str, tools: Tools, tasks: Sequence[Task], recorded: Sequence[Trajectory]) -> Tools | ToolsFor:
    """The tools of a control experiment. `recorded`: episodes of these tasks with the real tools."""
    if control == "no_tools":
        return no_tools(tools)
    if control == "visit_once":
        return visit_once(tools)
    if control == "other_observations":
        return other_observations(tools, tasks, recorded)
    return tools


def main(_: Sequence[str]) -> None:
    config = FLAGS.config
    tasks = load_records(common.require_file(FLAGS.tasks, "tasks", "python -m launch.synthesize"), Task)
    folder = pathlib.Path(common.require_file(FLAGS.tables, "tables", "python -m launch.tables"))
    out = common.output_folder(FLAGS.out)
    if FLAGS.policy == "scripted":
        engine: Engine = collect.scripted_searcher(config, folder, tasks)
    elif FLAGS.policy.startswith(("http://", "https://")):
        engine = collect.server_engine(config, FLAGS.policy, FLAGS.model, FLAGS.api_key_env)
    else:
        engine = embedded_engine(config, pathlib.Path(FLAGS.policy), pathlib.Path(FLAGS.policy).name)
    recorded: list[Trajectory] = []
    if FLAGS.control == "other_observations":
        made_by = "python -m launch.evaluate without --control"
        recorded = load_records(common.require_file(FLAGS.recorded, "recorded", made_by), Trajectory)
    tools = controlled(FLAGS.control, tables.load_tools(config, folder), tasks, recorded)
    batch = run(config, tools, tasks, engine, out)
    summary = summarise(tasks, batch.scores, BootstrapConfig(seed=config.seed))
    common.write_json(out / "summary.json", {name: plain(interval) for name, interval in summary.items()})
    for name, interval in summary.items():
        print(f"{name:18} {interval.mean:8.4f}  [{interval.low:.4f}, {interval.high:.4f}]")
    print(f"{len(batch.scores)} episodes scored, {len(batch.failed)} infrastructure errors left out")
    another = out.parent / "POLICY"
    common.finish(out, "python -m launch.evaluate", tables=folder, tasks=FLAGS.tasks, policy="POLICY", out=another)


if __name__ == "__main__":
    common.define_config()
    flags.DEFINE_string("tables", "", "Folder written by launch.tables (the offline web is in it).")
    flags.DEFINE_string("tasks", "", "A file of Task records.")
    flags.DEFINE_string("policy", "scripted", "A Hugging Face folder, `scripted`, or a server's base URL.")
    flags.DEFINE_string("model", "policy", "The model's name on that server.")
    flags.DEFINE_string("api_key_env", "", "Environment variable that holds the server's key, if it wants one.")
    flags.DEFINE_enum("control", "", CONTROLS, "A control experiment instead of the real tools.")
    flags.DEFINE_string("recorded", "", "For other_observations: trajectories.jsonl.gz of these tasks with real tools.")
    flags.DEFINE_string("out", None, "Folder to write.", required=True)
    common.run(main)
