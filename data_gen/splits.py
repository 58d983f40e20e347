"""Which table family belongs to which split, and which tables may not stand beside each other.

A split is decided per family, never per task, so that nothing of a held-out table is seen in training. The families of
the bundled sample are listed in `sample/splits.toml`, to be read and changed by people (`assign_families` wrote it);
any other family falls by a hash of its name. Near-identical tables in families of different splits are found by
`find_twins`; the one that stands nearer to training is left out.
"""

import functools
import hashlib
import pathlib
import random
import re
import tomllib
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Split, Table, Tree

SPLITS: tuple[Split, ...] = ("train", "rl", "validation", "heldout")
SHARES: dict[Split, float] = {"train": 0.45, "rl": 0.18, "validation": 0.10, "heldout": 0.27}
SAMPLE_SPLITS = pathlib.Path(__file__).parent / "sample" / "splits.toml"


def split_of_family(family: str, listed: Mapping[str, Split] | None = None) -> Split:
    """Returns the split of a family: as listed (default: the sample's file), else by a hash of its name.

    It depends on nothing else: every stage must see the same tables as held out.
    """
    listed = sample_splits() if listed is None else listed
    if family in listed:
        return listed[family]
    digest = hashlib.blake2b(f"0:{family}".encode(), digest_size=8).digest()
    point = int.from_bytes(digest, "big") / 2**64
    for split in SPLITS[:-1]:
        point -= SHARES[split]
        if point < 0:
            return split
    return SPLITS[-1]


def family_of(table: Table) -> str:
    """The family of a table; a table without one is a family of its own, named after its page."""
    return table.family or table.page_title


@functools.cache
def sample_splits() -> Mapping[str, Split]:
    """Returns family -> split as committed beside the sample (empty when there is no such file)."""
    return read_splits(SAMPLE_SPLITS) if SAMPLE_SPLITS.exists() else {}


def read_splits(path: pathlib.Path) -> dict[str, Split]:
    """Reads a file of the form `heldout = ["Bridges", ...]`, one list per split.

    Raises:
      DataError: no TOML, an unknown split, a family that is no text, or one in two splits.
    """
    try:
        lists = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file (it should list the families of each split)") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not readable as TOML ({error}); mend that line") from None
    splits: dict[str, Split] = {}
    for name, families in lists.items():
        split = next((known for known in SPLITS if known == name), None)
        if split is None or not isinstance(families, list):
            raise DataError(f"{path}: field `{name}` is no list under one of {', '.join(SPLITS)}; rename or remove it")
        for family in families:
            if not isinstance(family, str):
                raise DataError(f"{path}: field `{name}`: {family!r} is no family's name; write it in quotes")
            if family in splits:
                raise DataError(f"{path}: field `{name}`: family {family!r} is in {splits[family]} already; keep one")
            splits[family] = split
    return splits


def format_splits(splits: Mapping[str, Split]) -> str:
    """Writes `read_splits`'s form, families sorted, one per line."""
    lines = ["# The split of each family of the bundled sample (data_gen.splits.assign_families; edit freely)."]
    for split in SPLITS:
        families = sorted(f for f, s in splits.items() if s == split)
        quoted = [f'  "{family}",' for family in (f.replace("\\", "\\\\").replace('"', '\\"') for f in families)]
        lines += [f"{split} = [", *quoted, "]"]
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------------------------- assignment


Load = Mapping[tuple[str, ...], int]


def assign_families(
    loads: Sequence[Load], *, seed: int = 0, min_heldout: int = 12, restarts: int = 6, proposals: int = 12_000
) -> dict[str, Split]:
    """Chooses a split for every family by seeded hill climbing: a family moves, or two swap, where the cost falls.

    The cost is, summed over the loads, the squared distance of each split's share from `SHARES`, the share lost
    because its families are in different splits, and 1 for each split that has none of it; and 1 for each held-out
    family short of `min_heldout`.

    Args:
      loads: what is to be shared out, as families -> amount: tables of one family, pairs of tables of two, tasks, ...
        Families are those of the first load.

    Raises:
      ValueError: fewer families than needed for four splits.
    """
    families = sorted({family for key in loads[0] for family in key})
    if len(families) < min_heldout + 3:
        raise ValueError(f"{len(families)} families are too few for {len(SPLITS)} splits with {min_heldout} held out")
    rng = random.Random(seed)
    best: tuple[float, dict[str, Split]] | None = None
    for _ in range(restarts):
        splits = {f: rng.choices(SPLITS, [SHARES[s] for s in SPLITS])[0] for f in families}
        cost = _cost(splits, loads, min_heldout)
        for _ in range(proposals):
            first, second = rng.sample(families, 2)
            moved = (
                {first: splits[second], second: splits[first]} if rng.random() < 0.5 else {first: rng.choice(SPLITS)}
            )
            new = _cost({**splits, **moved}, loads, min_heldout)
            if new < cost - 1e-12:
                splits, cost = {**splits, **moved}, new
        if best is None or cost < best[0] - 1e-12:
            best = cost, splits
    assert best is not None
    return best[1]


def _cost(splits: Mapping[str, Split], loads: Sequence[Load], min_heldout: int) -> float:
    cost = 1.0 * max(0, min_heldout - sum(split == "heldout" for split in splits.values()))
    for load in loads:
        kept = dict.fromkeys(SPLITS, 0)
        total = 0
        for families, amount in load.items():
            total += amount
            split = splits[families[0]]
            if all(splits[family] == split for family in families[1:]):
                kept[split] += amount
        found = max(1, sum(kept.values()))
        cost += sum((kept[split] / found - SHARES[split]) ** 2 + (kept[split] == 0) for split in SPLITS)
        cost += 1 - found / max(1, total)
    return cost


# ------------------------------------------------------------------------------------------------------------ twins


class Twins(NamedTuple):
    """Two tables in different splits that say the same; `dropped` is the id of the one that is left out."""

    dropped: str
    kept: str
    overlap: float


def find_twins(tables: Sequence[Table], trees: Iterable[Tree], split_of: Mapping[str, Split]) -> list[Twins]:
    """Finds tables of different splits that share their rows or their list of entities.

    Args:
      split_of: table id -> split. Order of protection: heldout, validation, rl, train.
    """
    twins = []
    for a, b, overlap in near_identical(tables, trees):
        if split_of[a] != split_of[b]:
            low, high = sorted((a, b), key=lambda i: SPLITS.index(split_of[i]))
            twins.append(Twins(low, high, overlap))
    return twins


def near_identical(
    tables: Sequence[Table], trees: Iterable[Tree], *, rows: float = 0.5, entities: float = 0.75
) -> list[tuple[str, str, float]]:
    """Returns pairs of table ids that say the same, with how far they do, in the order of their ids.

    Two readings, either is enough. Rows: the pairs of cell texts that stand together in a row, shared by the two
    tables, over the smaller number of such pairs (so column order, dropped columns and extra rows do not hide a twin);
    3 shared at least. Entities: members shared by the two tables' trees over the members of the smaller; 5 at least.

    Args:
      rows, entities: the share from which each reading calls two tables twins.
    """
    members: dict[str, set[object]] = defaultdict(set)
    for tree in trees:
        members[tree.table_id].update((tree.key.type, m.entity) for m in tree.members)
    bonds = {table.id: _row_bonds(table) for table in tables}
    found: dict[tuple[str, str], float] = {}
    for marks, least, threshold in ((bonds, 3, rows), (members, 5, entities)):
        for (a, b), common in _common_counts(marks).items():
            overlap = common / min(len(marks[a]), len(marks[b]))
            if common >= least and overlap >= threshold:
                found[a, b] = max(overlap, found.get((a, b), 0.0))
    return [(a, b, overlap) for (a, b), overlap in sorted(found.items())]


def _common_counts(marks: Mapping[str, set[object]]) -> Counter[tuple[str, str]]:
    """How many marks two tables have in common, by an inverted index: tables that share none are never compared."""
    holders: dict[object, list[str]] = defaultdict(list)
    for table in sorted(marks):
        for mark in marks[table]:
            holders[mark].append(table)
    return Counter(pair for those in holders.values() for pair in combinations(those, 2))


def _row_bonds(table: Table) -> set[object]:
    """The unordered pairs of distinct cell texts of each row; texts of one character say too little."""
    bonds: set[object] = set()
    for row in table.rows:
        texts = sorted({text for cell in row if len(text := normal(cell.text)) > 1})
        bonds.update(combinations(texts, 2))
    return bonds


def normal(text: str) -> str:
    """Text without case, accents and punctuation, for comparing tables (not for scoring)."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return re.sub(r"[\W_]+", " ", plain.casefold()).strip()
