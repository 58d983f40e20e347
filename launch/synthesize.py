"""Stage 2: tables and trees -> tasks whose answers are proven.

  python -m launch.synthesize --tables=DIR/tables --out=DIR/tasks

Writes tasks.jsonl.gz (all), one file for each split (train, rl, validation, heldout) with the tasks chosen by
`config.tasks.select`, and report.json.
"""

import pathlib
import random
from collections import Counter
from collections.abc import Sequence

import msgspec
from absl import flags
from ml_collections import ConfigDict

from data_gen.synthesize import VARIANTS, SynthesisConfig, select_small, synthesize
from launch import common, tables
from webleaper_jax.jsonl import DataError, load_records, write_records
from webleaper_jax.records import Table, Task

FLAGS = flags.FLAGS
SPLITS = ("train", "rl", "validation", "heldout")


def run(config: ConfigDict, table_folder: pathlib.Path, out: pathlib.Path) -> None:
    """Makes all tasks, and chooses those of each split."""
    clean, trees = tables.load(table_folder)
    tools = tables.load_tools(config, table_folder)
    settings = common.struct(SynthesisConfig, config.tasks.synthesis)
    tasks, report = synthesize(clean, trees, settings, tools=tools)
    write_records(out / "tasks.jsonl.gz", tasks)
    (out / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    print("\n".join(report.lines()))
    select = config.tasks.select
    for split in SPLITS:
        own = [task for task in tasks if task.split == split]
        chosen = choose(own, clean, select.to_dict(), select.most[split], settings.seed)
        write_records(out / f"{split}.jsonl.gz", chosen)
        print(f"chosen for {split}: {describe(chosen)}")


def choose(tasks: Sequence[Task], clean: Sequence[Table], select: dict, most: int, seed: int) -> list[Task]:
    """The tasks of one split that fit a policy's context, at most `most`, variants in the shares of `select`.

    `max_reading` bounds the characters of a task's source tables, by variant: they must be read whole. Within a
    variant, families take turns, so that a family with many tables does not crowd out the others.
    """
    reading = {table.id: sum(len(cell.text) + 3 for row in table.rows for cell in row) for table in clean}
    fitting = select_small(
        tasks, select["n_min"], select["n_max"], max_question=select["max_question"], max_answer=select["max_answer"]
    )
    chosen: list[Task] = []
    for variant in VARIANTS:
        longest = select["max_reading"][variant]
        own = [t for t in fitting if t.variant == variant and sum(reading[i] for i in t.provenance.tables) <= longest]
        random.Random(f"{seed}:{variant}").shuffle(own)
        turns: Counter[tuple[str, ...]] = Counter()
        order: list[tuple[int, int, Task]] = []
        for task in own:
            order.append((turns[task.provenance.families], len(order), task))
            turns[task.provenance.families] += 1
        chosen += [task for *_, task in sorted(order, key=lambda o: o[:2])][: round(most * select["shares"][variant])]
    return chosen


def describe(tasks: Sequence[Task]) -> str:
    """Counts by variant, families and cells, for a line of output."""
    counts = Counter(task.variant for task in tasks)
    families = {family for task in tasks for family in task.provenance.families}
    cells = sorted(len(task.targets) for task in tasks)
    spread = f"n {cells[0]}..{cells[-1]}, median {cells[len(cells) // 2]}" if cells else "no tasks"
    return f"{len(tasks)} ({', '.join(f'{n} {v}' for v, n in counts.items())}), {len(families)} families, {spread}"


def load(folder: pathlib.Path, split: str) -> list[Task]:
    """Reads the chosen tasks of a split. Raises `DataError` when there are none."""
    return load_records(folder / f"{split}.jsonl.gz", Task)


def main(_: Sequence[str]) -> None:
    out = common.output_folder(FLAGS.out)
    folder = pathlib.Path(common.require_file(FLAGS.tables, "tables", "python -m launch.tables"))
    if not folder.is_dir():
        raise DataError(f"--tables={folder}: is no folder; give the one that `python -m launch.tables` wrote")
    run(FLAGS.config, folder, out)
    common.finish(
        out, "python -m launch.collect", tables=folder, tasks=out / "train.jsonl.gz", out=out.parent / "collect"
    )


if __name__ == "__main__":
    common.define_config()
    flags.DEFINE_string("tables", "", "Folder written by launch.tables.")
    flags.DEFINE_string("out", None, "Folder to write.", required=True)
    common.run(main)
