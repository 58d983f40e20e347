"""Stage 4: tasks -> trajectories worth training on (stage 3 is the agent in its web, which this runs).

  python -m launch.collect --tables=DIR/tables --tasks=DIR/tasks/train.jsonl.gz --out=DIR/collect
  python -m launch.collect --engine=http://127.0.0.1:8000/v1 --model=policy ...   # any OpenAI-compatible server

By default a scripted searcher, not a model, plays the policy: it uses the tools for real and makes detours at the rates
of `config.collect.searcher`. Every finished trajectory is on disk at once; the same command goes on after an
interruption. Writes trajectories.jsonl.gz with their scores, kept.jsonl.gz (ISR > alpha and ISE > beta), filter.json.
"""

import os
import pathlib
from collections.abc import Sequence

from absl import flags
from ml_collections import ConfigDict

from data_gen.collect import collect
from data_gen.filter import FilterConfig
from data_gen.searcher import ScriptedSearcher, SearcherConfig
from launch import common, tables
from webleaper_jax.agent.batch import Batch, BatchConfig
from webleaper_jax.agent.engine import Engine
from webleaper_jax.agent.loop import LoopConfig
from webleaper_jax.agent.openai_engine import OpenAIEngine, ServerConfig
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Sampling, Task, Trajectory

FLAGS = flags.FLAGS


def run(config: ConfigDict, table_folder: pathlib.Path, tasks: list[Task], out: pathlib.Path, engine: Engine) -> None:
    """Collects and filters the trajectories of `tasks`. Raises `DataError` when not one of them was finished."""
    collected = collect(
        tasks,
        engine,
        tables.load_tools(config, table_folder, tasks),
        out,
        loop=common.struct(LoopConfig, config.loop),
        sampling=common.struct(Sampling, config.collect.sampling),
        batch=common.struct(BatchConfig, config.collect.batch),
        keep=common.struct(FilterConfig, config.collect.filter),
    )
    require_scores(collected.batch, out)
    print(collected.report.text())
    print(describe_observations(tasks, collected.batch.trajectories))
    if collected.batch.failed:
        print(f"{len(collected.batch.failed)} episodes failed for reasons of infrastructure and are left out")


def describe_observations(tasks: Sequence[Task], trajectories: Sequence[Trajectory]) -> str:
    """How long episodes are and how many of a task's targets one observation shows, a line for each variant."""
    task_of = {task.id: task for task in tasks}
    lines = []
    for variant in sorted({task_of[t.task_id].variant for t in trajectories}):
        own = [t for t in trajectories if task_of[t.task_id].variant == variant]
        characters = sorted(sum(len(m.content) for m in t.segments[-1].messages) for t in own)
        steps = [(task_of[t.task_id], step) for t in own for segment in t.segments for step in segment.steps]
        shown = sorted(len(step.visible) for _, step in steps if step.visible) or [0]
        most = max((len(step.visible) / len(task.targets) for task, step in steps if task.targets), default=0.0)
        lines.append(
            f"{variant}: episodes of {characters[len(characters) // 2]:,} characters (median; the longest "
            f"{characters[-1]:,}); an observation that shows targets shows {shown[len(shown) // 2]} (median), and "
            f"never more than {most:.0%} of a task's"
        )
    return "\n".join(lines)


def require_scores(batch: Batch, out: pathlib.Path) -> None:
    """Raises `DataError` when no episode was scored: the server was down, or there was no task."""
    if not any(score.scored for score in batch.scores):
        last = f", the last with {batch.failed[-1].infrastructure_error!r}" if batch.failed else ""
        raise DataError(
            f"{out}: not one episode was scored, {len(batch.failed)} failed{last}; mend the engine and run the same "
            "command again"
        )


def scripted_searcher(config: ConfigDict, table_folder: pathlib.Path, tasks: Sequence[Task]) -> ScriptedSearcher:
    """The scripted searcher for these tasks, with the detours of the config.

    Raises:
      DataError: a task that was not made from tables: no script can play it.
    """
    for task in tasks:
        if task.origin != "webleaper":
            raise DataError(
                f"task {task.id}, field `origin`: {task.origin}; the scripted searcher plays only tasks made from "
                "tables; give a server by --engine (launch.collect) or a policy (launch.evaluate)"
            )
    clean, trees = tables.load(table_folder)
    return ScriptedSearcher(tasks, clean, trees, common.struct(SearcherConfig, config.collect.searcher))


def server_engine(config: ConfigDict, url: str, model: str, api_key_env: str) -> OpenAIEngine:
    """An OpenAI-compatible server, spoken to as `config.server` says.

    Raises:
      DataError: the variable that should hold its key is not set, or a setting is of the wrong kind.
    """
    if api_key_env and not os.environ.get(api_key_env):
        raise DataError(
            f"--api_key_env={api_key_env}: this environment variable is not set; export the server's key in it"
        )
    address = {"url": url, "model": model, "api_key": os.environ.get(api_key_env, "")}
    return OpenAIEngine(common.struct(ServerConfig, ConfigDict(config.server.to_dict() | address), "config.server"))


def main(_: Sequence[str]) -> None:
    config = FLAGS.config
    tasks = tables.training_tasks(common.require_file(FLAGS.tasks, "tasks", "python -m launch.synthesize"))
    folder = pathlib.Path(common.require_file(FLAGS.tables, "tables", "python -m launch.tables"))
    out = common.output_folder(FLAGS.out)
    if FLAGS.engine == "scripted":
        engine: Engine = scripted_searcher(config, folder, tasks)
    else:
        engine = server_engine(config, FLAGS.engine, FLAGS.model, FLAGS.api_key_env)
    run(config, folder, tasks, out, engine)
    common.finish(out, "python -m launch.sft", trajectories=out / "kept.jsonl.gz", out=out.parent / "sft")


if __name__ == "__main__":
    common.define_config()
    flags.DEFINE_string("tables", "", "Folder written by launch.tables (the offline web is in it).")
    flags.DEFINE_string("tasks", "", "A file of Task records.")
    flags.DEFINE_string("engine", "scripted", "`scripted`, or the base URL of an OpenAI-compatible server.")
    flags.DEFINE_string("model", "policy", "The model's name on that server.")
    flags.DEFINE_string("api_key_env", "", "Environment variable that holds the server's key, if it wants one.")
    flags.DEFINE_string("out", None, "Folder to write.", required=True)
    common.run(main)
