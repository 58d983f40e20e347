"""Stage 1: tables -> clean tables, typed trees, and the offline web that is made of them.

  python -m launch.tables --out=DIR/tables                          # the bundled sample
  python -m launch.tables --out=DIR/tables --source=MY.jsonl.gz     # any file of Table records

Writes tables.jsonl.gz, trees.jsonl.gz, web/ (pages and their index), the same without
the held-out families, and yield.json (a reason for every drop).
"""

import pathlib
from collections import Counter
from collections.abc import Sequence

import msgspec
from absl import flags
from ml_collections import ConfigDict

from data_gen.sample import sample_tables
from data_gen.splits import family_of, find_twins, split_of_family
from data_gen.tables import TableRules, clean_tables
from data_gen.trees import TreeRules, build_trees
from launch import common
from webleaper_jax.agent.corpus import CorpusConfig, build_pages
from webleaper_jax.agent.reader import relevant_columns
from webleaper_jax.agent.tools import ToolLimits, Tools
from webleaper_jax.agent.web import OfflineWeb
from webleaper_jax.jsonl import DataError, load_records, write_records
from webleaper_jax.records import Table, Task, Tree

FLAGS = flags.FLAGS


def run(config: ConfigDict, out: pathlib.Path, source: str = "") -> None:
    """Cleans the tables of `source` (default: the bundled sample), builds trees and the offline web."""
    raw = load_records(source or sample_tables(), Table)
    cleaned = clean_tables(raw, common.struct(TableRules, config.tables.rules))
    trees, tree_drops = build_trees(cleaned.tables, common.struct(TreeRules, config.tables.trees))
    if not trees:
        raise DataError(f"{source}: no table is left with a key column; reasons: {cleaned.counts()}")
    write_records(out / "tables.jsonl.gz", cleaned.tables)
    write_records(out / "trees.jsonl.gz", trees)
    corpus = common.struct(CorpusConfig, config.web.corpus)
    OfflineWeb.build(build_pages(cleaned.tables, corpus), out / "web")
    OfflineWeb.build(build_pages(_without_heldout(cleaned.tables, trees), corpus), out / "web_without_heldout")
    drops = [*cleaned.drops, *tree_drops]
    counts = Counter(f"{drop.what.split(' ', 1)[0]}: {drop.reason}" for drop in drops)
    common.write_json(
        out / "yield.json", {"counts": dict(counts), "drops": [msgspec.structs.asdict(drop) for drop in drops]}
    )
    families = len({table.family or table.page_title for table in cleaned.tables})
    print(f"{len(raw)} tables in, {len(cleaned.tables)} clean, {len(trees)} trees, {families} families")
    print("dropped: " + ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items())))


def _without_heldout(clean: Sequence[Table], trees: Sequence[Tree]) -> list[Table]:
    """The tables that training may see: neither those of held-out families nor twins of theirs in other families."""
    split_of = {table.id: split_of_family(family_of(table)) for table in clean}
    twins = {pair.dropped for pair in find_twins(clean, trees, split_of) if split_of[pair.kept] == "heldout"}
    return [table for table in clean if split_of[table.id] != "heldout" and table.id not in twins]


def load(folder: pathlib.Path) -> tuple[list[Table], list[Tree]]:
    """Reads what this stage wrote."""
    return load_records(folder / "tables.jsonl.gz", Table), load_records(folder / "trees.jsonl.gz", Tree)


def load_tools(config: ConfigDict, folder: pathlib.Path, tasks: Sequence[Task] = ()) -> Tools:
    """Opens the offline web that this stage built, behind the tools' limits.

    Args:
      tasks: what the tools are for. Where none of them is held out, the web holds nothing of the held-out tables, so
        that no observation of a training trajectory can show them.
    """
    reader = relevant_columns if config.web.goal_columns else None
    without = bool(tasks) and all(task.split not in ("heldout", "") for task in tasks)
    web = OfflineWeb.open(folder / ("web_without_heldout" if without else "web"))
    return Tools(web, common.struct(ToolLimits, config.web.limits), reader)


def training_tasks(path: str) -> list[Task]:
    """Reads tasks to learn from. Raises `DataError` where one of them is held out."""
    tasks = load_records(path, Task)
    for task in tasks:
        if task.split == "heldout":
            raise DataError(
                f"{path}: record {task.id}, field `split`: heldout; nothing may learn from it: give the file of "
                "another split, or run `python -m launch.evaluate`"
            )
    return tasks


def main(_: Sequence[str]) -> None:
    out = common.output_folder(FLAGS.out)
    run(FLAGS.config, out, FLAGS.source)
    common.finish(out, "python -m launch.synthesize", tables=out, out=out.parent / "tasks")


if __name__ == "__main__":
    common.define_config()
    flags.DEFINE_string("source", "", "A file of Table records (.jsonl or .jsonl.gz); empty: the bundled sample.")
    flags.DEFINE_string("out", None, "Folder to write.", required=True)
    common.run(main)
