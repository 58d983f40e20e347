"""What the three task families share: sources, conditions on them, attributes to ask for, and the draft of a task.

A draft is an expression in words and in triples; nothing in it is an answer. Drafts are put in order by hashes of what
they say, never by a running random generator: a change in one table leaves the choices made for others as they are.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Literal, NamedTuple, TypeVar

from data_gen.expressions import LISTED, NAME, Ref, relation_name, satisfies, year_range
from webleaper_jax.records import Member, Table, Tree, Triple, Value

_YEAR = re.compile(r"1[0-9]{3}|20[0-9]{2}")
_MAX_VALUE = 40  # characters of a value that a question states
T = TypeVar("T")


class Source(NamedTuple):
    """A tree and its names.

    `page` is the unique title of its table, which questions quote. `title` is what triples and targets call it: the
    same, but for a table with two trees, whose second one adds its key column (`Winners [Title]`). `column` is the
    key's header where a question must name it, else empty.
    """

    tree: Tree
    title: str
    page: str
    column: str = ""

    @property
    def quoted(self) -> str:
        return f'"{self.page}"' + (f" (column {self.column})" if self.column else "")


def make_sources(tables: Iterable[Table], trees: Iterable[Tree], titles: Mapping[str, str]) -> list[Source]:
    """Names the trees; `titles` gives each table id its unique title."""
    headers = {table.id: table.columns for table in tables}
    trees_of: dict[str, list[Tree]] = defaultdict(list)
    for tree in trees:
        trees_of[tree.table_id].append(tree)
    sources = []
    for table_id, own in trees_of.items():
        page = titles[table_id]
        for position, tree in enumerate(own):
            column = headers[table_id][tree.key.column]
            title = f"{page} [{column}]" if position else page
            sources.append(Source(tree, title, page, column if len(own) > 1 else ""))
    return sources


class Condition(NamedTuple):
    """A stated limit on a source: `relation` equals `constant` (a canonical entity) or lies in a range of years."""

    relation: str
    constant: str
    text: str
    members: frozenset[str]


class Draft(NamedTuple):
    """A task before it is evaluated. `size` is the number of cells that R_all should come to."""

    variant: Literal["basic", "union", "reverse_union"]
    sources: tuple[Source, ...]
    triples: tuple[Triple, ...]
    columns: Mapping[Ref, str]
    question: str
    size: int
    anchor: str = ""
    notes: tuple[str, ...] = ()


def rank(seed: int, *parts: object) -> int:
    """A number in [0, 2^64) that depends on nothing but its arguments; sorts candidates in a seeded order."""
    return int.from_bytes(hashlib.blake2b(repr((seed, parts)).encode(), digest_size=8).digest(), "big")


def in_turn(drafts: Iterable[Draft], small: tuple[int, int], seed: int) -> Iterator[Draft]:
    """Yields the drafts, those of a size within `small` and the others in turn, the largest of all first."""
    ordered = sorted(drafts, key=lambda d: rank(seed, d.question))
    fits = [d for d in ordered if small[0] <= d.size <= small[1]]
    others = sorted((d for d in ordered if not small[0] <= d.size <= small[1]), key=lambda d: -d.size)
    others[1:] = sorted(others[1:], key=lambda d: rank(seed, d.question))
    for pair in zip_longest(others, fits):
        yield from (draft for draft in pair if draft is not None)


# -------------------------------------------------------------------------------------------------------- attributes


def values_by_relation(member: Member, tree: Tree) -> dict[str, list[Value]]:
    """relation name -> what the member has of it."""
    found: dict[str, list[Value]] = defaultdict(list)
    for value in member.values:
        found[tree.relations[value.relation].name].append(value)
    return found


def askable(tree: Tree, entities: frozenset[str], fill: float = 0.5) -> list[str]:
    """The relations that are filled in for at least a share `fill` of the entities, in column order."""
    filled: Counter[str] = Counter()
    for member in tree.members:
        if member.entity in entities:
            filled.update(values_by_relation(member, tree).keys())
    return [r.name for r in tree.relations if filled[r.name] >= max(1, fill * len(entities))]


def subsets(names: Sequence[str], most: int, few: int, seed: int) -> list[tuple[str, ...]]:
    """Attribute sets to choose from: all (at most `most`), and `few` of each size up to three, in the order given."""
    by_rank = sorted(names, key=lambda name: rank(seed, name))
    sets = [frozenset(by_rank[:most])]
    for size in range(1, min(3, most, len(names)) + 1):
        sets += [frozenset((by_rank * 2)[start : start + size]) for start in range(min(few, len(names)))]
    return [tuple(name for name in names if name in chosen) for chosen in dict.fromkeys(sets) if chosen]


# -------------------------------------------------------------------------------------------------------- conditions


def conditions(tree: Tree, least: int = 4, most_share: float = 0.8) -> list[Condition]:
    """The stated limits that leave at least `least` members and at most a share of all, in column order.

    Values that several members have, and windows of 10, 20 and 40 years over relations of bare years. Members with
    some values inside and some outside a limit rule it out: it would not be clear which of their rows are meant.
    """
    found = []
    for relation in tree.relations:
        values = {m.entity: values_by_relation(m, tree).get(relation.name, []) for m in tree.members}
        for constant, text in _constants(relation.type, [v for said in values.values() for v in said]):
            fits = {entity: [satisfies(v, constant) for v in said] for entity, said in values.items()}
            members = frozenset(entity for entity, flags in fits.items() if any(flags))
            clear = all(all(flags) for flags in fits.values() if any(flags))
            if clear and least <= len(members) <= most_share * len(tree.members):
                found.append(Condition(relation.name, constant, text, members))
    return found


def _constants(kind: str, values: Sequence[Value]) -> Iterator[tuple[str, str]]:
    years = sorted({int(v.text) for v in values if _YEAR.fullmatch(v.text)})
    if kind == "year" and years and all(_YEAR.fullmatch(v.text) for v in values):
        for width in (10, 20, 40):
            for low in range(years[0] // 10 * 10, years[-1] + 1, 10):
                yield year_range(low, low + width - 1), f"{low} to {low + width - 1}"
    texts: dict[str, Counter[str]] = defaultdict(Counter)
    for value in values:
        texts[value.entity][value.text] += 1
    for entity, counts in sorted(texts.items()):
        text = min(counts, key=lambda t: (-counts[t], t))
        if len(text) <= _MAX_VALUE and "|" not in text and ".." not in entity:
            yield entity, text


# ----------------------------------------------------------------------------------------------------------- triples


def listed(variable: str, titles: Sequence[str]) -> list[Triple]:
    """`variable` is listed in every title."""
    return [Triple(variable, LISTED, f"C@{title}") for title in titles]


def condition_triple(variable: str, condition: Condition, title: str, titles: Sequence[str]) -> Triple:
    return Triple(variable, relation_name(Ref(condition.relation, title), titles), f"C@{condition.constant}")


def asked(variable: str, refs: Iterable[Ref], titles: Sequence[str]) -> list[Triple]:
    """The name and the attributes of `variable` are asked for."""
    names = [NAME, *(relation_name(ref, titles) for ref in refs)]
    return [Triple(variable, name, f"?{name}") for name in names]


def short_labels(titles: Sequence[str]) -> list[str]:
    """Short names for sources: the first part of their titles in which they differ, else the whole titles."""
    parts = [[p.strip() for p in re.split(r": | -- | > ", title)] for title in titles]
    labels = []
    for position, own in enumerate(parts):
        others = [set(other) for other_position, other in enumerate(parts) if other_position != position]
        differing = [part for part in own if part and not any(part in other for other in others)]
        label = re.sub(r"^List of (the )?", "", differing[0]) if differing else titles[position]
        labels.append(label if not any(label in other for other in others) else titles[position])
    return labels
