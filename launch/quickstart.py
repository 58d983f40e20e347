"""The whole of WebLeaper on a laptop: from real Wikipedia tables to a better policy, in one command.

  python -m launch.quickstart --workdir=runs/quickstart                                        # 15 minutes
  python -m launch.quickstart --workdir=runs/smoke --config=configs/quickstart.py:smoke        # 3 minutes
  python -m launch.quickstart --workdir=runs/q --config.grpo.steps=30                          # any setting

Stages: tables, tasks, collect, sft, grpo, evaluation of every policy on held-out tasks, report. Each is skipped when
it is done, and goes on where it was when it was interrupted (also by kill -9): run the same command again. The end
prints a table; WORKDIR/metrics.json holds it for programs, WORKDIR/report/report.html for people.
"""

import json
import os
import pathlib
import resource
import sys
from collections.abc import Callable, Sequence

from absl import flags
from ml_collections import ConfigDict

from launch import collect, common, evaluate, report, synthesize, tables
from launch.check import check_settings
from webleaper_jax.agent.engine import Engine
from webleaper_jax.jsonl import load_records, read_records
from webleaper_jax.parallel.host import keep_freed_memory
from webleaper_jax.records import Task, Trajectory

FLAGS = flags.FLAGS


class Quickstart:
    """One run in a workdir: each method is a stage that reads and writes files under it."""

    def __init__(self, config: ConfigDict, workdir: common.Workdir):
        self.config = config
        self.workdir = workdir
        self.path = workdir.path

    def run(self) -> None:
        """Runs every stage that is not done."""

        def stage(name: str, function: Callable[[], None]) -> None:
            self.workdir.stage(name, function)
            peak_rss_gb(self.path)

        stage("tables", lambda: tables.run(self.config, self.path / "tables"))
        stage("tasks", lambda: synthesize.run(self.config, self.path / "tables", self.path / "tasks"))
        stage("collect", self.collect)
        stage("evaluate_scripted", lambda: self.evaluate("scripted"))
        stage("evaluate_untrained", lambda: self.evaluate("untrained"))
        stage("sft", self.sft)
        stage("choose", self.choose)
        stage("evaluate_sft", lambda: self.evaluate("sft"))
        stage("grpo", self.grpo)
        stage("evaluate_grpo", lambda: self.evaluate("grpo"))
        stage("sft_more", self.sft_more)
        stage("evaluate_sft_more", lambda: self.evaluate("sft_more"))
        stage("evaluate_no_tools", lambda: self.evaluate("no_tools"))
        stage("evaluate_other_observations", lambda: self.evaluate("other_observations"))
        stage("evaluate_visit_once", lambda: self.evaluate("visit_once"))
        stage("report", self.report)
        print((self.path / "summary.txt").read_text().rstrip())
        print(f"metrics: {self.path / 'metrics.json'}")
        print(f"report: {self.path / 'report' / 'report.html'} (open it in a browser)")

    # ---------------------------------------------------------------------------------------------------- data

    def collect(self) -> None:
        """Trajectories of the scripted searcher: on train tasks to learn from, on validation tasks for the loss."""
        for split in ("train", "validation"):
            tasks = self.tasks(split)
            engine = collect.scripted_searcher(self.config, self.path / "tables", tasks)
            collect.run(self.config, self.path / "tables", tasks, self.path / "collect" / split, engine)

    def tasks(self, split: str) -> list[Task]:
        return synthesize.load(self.path / "tasks", split)

    # ---------------------------------------------------------------------------------------------------- training

    def sft(self) -> None:
        from launch import sft

        # of few validation trajectories the filter may keep none
        files = {split: self.path / "collect" / split / "kept.jsonl.gz" for split in ("train", "validation")}
        kept = {split: list(read_records(file, Trajectory)) for split, file in files.items()}
        sft.run(self.config, kept["train"], kept["validation"], self.init(), self.path / "sft")

    def choose(self) -> None:
        """GRPO starts from the SFT checkpoint with the best mean F on validation tasks."""
        found: dict[str, float] = {}
        for folder in sorted((self.path / "sft" / "exports").iterdir()):
            out = self.path / "validation" / folder.name
            engine = evaluate.embedded_engine(self.config, folder, f"sft {folder.name}")
            tasks = self.tasks("validation")
            tools = tables.load_tools(self.config, self.path / "tables", tasks)
            batch = evaluate.run(self.config, tools, tasks, engine, out)
            found[folder.name] = sum(score.f for score in batch.scores) / max(1, len(batch.scores))
            print(f"{folder.name}: mean F {found[folder.name]:.3f} on {len(batch.scores)} validation tasks")
        best = max(found, key=lambda name: (found[name], name))  # the later one of equals
        common.write_json(self.path / "chosen.json", {"chosen": best, "validation_f": found})
        print(f"chosen: {best}")

    def grpo(self) -> None:
        from launch import grpo

        tasks = self.tasks("rl")
        tools = tables.load_tools(self.config, self.path / "tables", tasks)
        grpo.run(self.config, tools, tasks, self.chosen(), self.path / "grpo")

    def sft_more(self) -> None:
        """Further SFT for a fixed number of steps (about GRPO's time), the comparison that GRPO has to beat."""
        from launch import sft

        config = self.config.copy_and_resolve_references()
        config.unlock()
        config.sft.update(config.sft_more)
        kept = load_records(self.path / "collect" / "train" / "kept.jsonl.gz", Trajectory)
        sft.run(config, kept, [], self.chosen(), self.path / "sft_more")

    def init(self) -> pathlib.Path:
        """The policy that SFT starts from, the very checkpoint that `untrained` means."""
        from launch import sft

        return sft.initial_policy(self.config, self.path)

    def chosen(self) -> pathlib.Path:
        return self.path / "sft" / "exports" / json.loads((self.path / "chosen.json").read_text())["chosen"]

    # ---------------------------------------------------------------------------------------------------- evaluation

    def evaluate(self, name: str) -> None:
        """One policy, or a control on the SFT policy, on the held-out tasks."""
        tasks, table_folder = self.tasks("heldout"), self.path / "tables"
        tools = tables.load_tools(self.config, table_folder)
        if name == "scripted":
            engine: Engine = collect.scripted_searcher(self.config, table_folder, tasks)
        else:
            engine = evaluate.embedded_engine(self.config, self.policy(name), name)
        recorded: list[Trajectory] = []
        if name == "other_observations":
            recorded = load_records(self.path / "eval" / "scripted" / "trajectories.jsonl.gz", Trajectory)
        controlled = evaluate.controlled(name, tools, tasks, recorded)
        batch = evaluate.run(
            self.config, controlled, tasks, engine, self.path / "eval" / name, label=f"evaluate {name}"
        )
        mean = sum(score.f for score in batch.scores) / max(1, len(batch.scores))
        print(f"{name}: mean F {mean:.3f} on {len(batch.scores)} tasks")

    def policy(self, name: str) -> pathlib.Path:
        """The checkpoint of a policy; the controls run the SFT policy."""
        if name == "untrained":
            return self.init()
        if name in ("grpo", "sft_more"):
            return max((self.path / name / "exports").iterdir(), key=lambda p: int(p.name.rpartition("_")[2]))
        return self.chosen()

    def report(self) -> None:
        report.write(self.config, self.path, self.workdir.seconds, peak_rss_gb(self.path))


def peak_rss_gb(path: pathlib.Path) -> float:
    """The most memory that this run held, over all its processes so far, in GB."""
    file = path / "peak_rss_gb.json"
    before = json.loads(file.read_text()) if file.exists() else 0.0
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    peak = max(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9)
    common.write_json(file, peak)
    return peak


def main(_: Sequence[str]) -> None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu") if FLAGS.cpu else None
    keep_freed_memory()
    check_settings(FLAGS.config)
    workdir = common.Workdir(FLAGS.workdir, FLAGS.config)
    Quickstart(FLAGS.config, workdir).run()


if __name__ == "__main__":
    common.define_config()
    flags.DEFINE_string("workdir", None, "Folder of the run; the same command goes on where it was.", required=True)
    flags.DEFINE_bool("cpu", True, "Run JAX on the CPU even where an accelerator is found.")
    common.run(main)
