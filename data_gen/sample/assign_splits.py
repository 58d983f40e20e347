"""Writes `splits.toml` of the bundled sample again: `python -m data_gen.sample.assign_splits [SEED]`.

Families are balanced by number, by tables, and by pairs of tables that can be united (at most 4 counted for two
families, so that one league does not outweigh the rest); see `data_gen.splits.assign_families`. The file is committed
and read as it is: run this only to start over, since tasks made before then belong to other splits.
"""

import sys
from collections import Counter

from data_gen.sample import sample_tables
from data_gen.splits import SAMPLE_SPLITS, SPLITS, assign_families, family_of, format_splits
from data_gen.tables import clean_tables
from data_gen.tasks_union import overlapping_pairs
from data_gen.trees import build_trees
from webleaper_jax.jsonl import load_records
from webleaper_jax.records import Table

_MOST_PAIRS = 4


def main(arguments: list[str]) -> None:
    seed = int(arguments[0]) if arguments else 0
    raw = load_records(sample_tables(), Table)
    tables = clean_tables(raw).tables
    trees, _ = build_trees(tables)
    family = {table.id: family_of(table) for table in tables}
    pairs = Counter(
        tuple(sorted((family[trees[p.a].table_id], family[trees[p.b].table_id])))
        for p in overlapping_pairs(trees, k_min=2, m_min=2, least=2)
        if p.jaccard <= 0.7 and trees[p.a].table_id != trees[p.b].table_id
    )
    capped = {(a, b): min(count, _MOST_PAIRS) for (a, b), count in pairs.items()}
    counts = Counter(map(family_of, raw))
    splits = assign_families(counts, capped, seed=seed)
    SAMPLE_SPLITS.write_text(format_splits(splits), encoding="utf-8")
    for split in SPLITS:
        own = {f for f in counts if splits[f] == split}
        united = sum(n for (a, b), n in pairs.items() if a in own and b in own)
        paired = len({f for pair in pairs for f in pair if set(pair) <= own})
        print(
            f"{split}: {len(own)} families, {sum(counts[f] for f in own)} tables, {united} pairs in {paired} families"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
