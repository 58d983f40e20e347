"""Writes `splits.toml` of the bundled sample again: `python -m data_gen.sample.assign_splits [SEED]`.

Families are balanced by number, by tables, and by the small Union and Reverse-Union tasks that they give when all of
them are in one split: the number of such tasks, and the number of families (or pairs of families) that give any; see
`data_gen.splits.assign_families`. The file is committed and read as it is: run this only to start over, since tasks
made before then belong to other splits. It takes a minute.
"""

import sys
from collections import Counter

from data_gen.sample import sample_tables
from data_gen.splits import SAMPLE_SPLITS, SPLITS, assign_families, family_of, format_splits
from data_gen.synthesize import select_small, synthesize
from data_gen.tables import clean_tables
from data_gen.trees import build_trees
from webleaper_jax.jsonl import load_records
from webleaper_jax.records import Split, Table


def main(arguments: list[str]) -> None:
    raw = load_records(sample_tables(), Table)
    tables = clean_tables(raw).tables
    trees, _ = build_trees(tables)
    together: dict[str, Split] = dict.fromkeys(map(family_of, tables), "train")
    small = select_small(synthesize(tables, trees, splits=together)[0])
    of_tables: Counter[tuple[str, ...]] = Counter((family_of(table),) for table in raw)
    by_variant = [
        Counter(task.provenance.families for task in small if task.variant == variant)
        for variant in ("union", "reverse_union")
    ]
    loads = [of_tables, *by_variant]
    sources = [dict.fromkeys(load, 1) for load in loads]
    splits = assign_families([*loads, *sources], seed=int(arguments[0]) if arguments else 0)
    SAMPLE_SPLITS.write_text(format_splits(splits), encoding="utf-8")
    for split in SPLITS:
        own = {family for family in splits if splits[family] == split}
        found = [{f: n for f, n in counts.items() if own.issuperset(f)} for counts in by_variant]
        unions, reverse = (f"{sum(counts.values())} from {len(counts)}" for counts in found)
        sizes = f"{len(own)} families, {sum(of_tables[(family,)] for family in own)} tables"
        print(f"{split}: {sizes}; small tasks: {unions} (union), {reverse} (reverse_union)")


if __name__ == "__main__":
    main(sys.argv[1:])
