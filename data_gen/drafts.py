"""What the three task families share: sources, conditions on them, attributes to ask for, and the draft of a task.

A draft is an expression in words and in triples; nothing in it is an answer. Drafts are put in order by hashes of what
they say, never by a running random generator: a change in one table leaves the choices made for others as they are.
"""

import dataclasses
import functools
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from data_gen.expressions import LISTED, NAME, Ref, relation_name, satisfies, year_range
from webleaper_jax.records import Member, Table, Tree, Triple, Value

_YEAR = re.compile(r"1[0-9]{3}|20[0-9]{2}")
_MAX_VALUE = 40  # characters of a value that a question states


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """A tree, its names, and what is looked up in it again and again.

    `page` is the unique title of its table, which questions quote. `title` is what triples and targets call it: the
    same, but for a table with two trees, whose second one adds its key column (`Winners [Title]`). `column` is the
    key's header where a question must name it, else empty. `parts` is, for each row of the table, the parts of its page
    in the offline web that show it (empty where that is not known). `headers` are the table's.
    """

    tree: Tree
    title: str
    page: str
    column: str = ""
    parts: tuple[tuple[int, ...], ...] = ()
    headers: tuple[str, ...] = ()

    @functools.cached_property
    def labels(self) -> dict[str, str]:
        """What a question about this tree alone calls its key (`name`) and its relations: the table's own headers, in
        small letters, where they are usable and tell the columns apart."""
        columns = {NAME: self.tree.key.column, **{r.name: r.column for r in self.tree.relations}}
        labels = {name: self.headers[column].casefold() if self.headers else name for name, column in columns.items()}
        usable = all(label.strip() and "|" not in label for label in labels.values())
        return labels if usable and len(set(labels.values())) == len(labels) else {name: name for name in columns}

    @property
    def quoted(self) -> str:
        return f'"{self.page}"' + (f" (column {self.column})" if self.column else "")

    @functools.cached_property
    def facts(self) -> dict[str, dict[str, list[Value]]]:
        """entity -> relation name -> values."""
        found: dict[str, dict[str, list[Value]]] = {}
        for member in self.tree.members:
            own = found[member.entity] = defaultdict(list)
            for value in member.values:
                own[self.tree.relations[value.relation].name].append(value)
        return {entity: dict(own) for entity, own in found.items()}

    @functools.cached_property
    def members(self) -> dict[str, Member]:
        return {member.entity: member for member in self.tree.members}

    @functools.cached_property
    def conditions(self) -> "list[Condition]":
        return conditions(self)

    def has(self, relation: str) -> bool:
        return any(known.name == relation for known in self.tree.relations)

    def values(self, entity: str, relation: str) -> list[Value]:
        return self.facts[entity].get(relation, [])

    def said(self, entity: str, relation: str) -> set[str]:
        """The canonical values, without case: links to one page are written in several ways."""
        return {value.entity.casefold() for value in self.values(entity, relation)}

    def busiest_part(self, cells: Mapping[str, int]) -> int:
        """How many cells at least stand on one part of the table's page.

        Args:
          cells: entity -> its cells, the name among them; only those of entities with a single row are counted in full.
        """
        shown: Counter[int] = Counter()
        for entity, count in cells.items():
            rows = self.members[entity].rows if self.parts else ()
            for part in {part for row in rows for part in self.parts[row]}:
                shown[part] += count if len(rows) == 1 else 1
        return max(shown.values(), default=0)


def make_sources(
    tables: Iterable[Table],
    trees: Iterable[Tree],
    titles: Mapping[str, str],
    parts: Mapping[str, tuple[tuple[int, ...], ...]] | None = None,
) -> list[Source]:
    """Names the trees.

    Args:
      titles: table id -> its unique title.
      parts: unique title -> for each row, the parts of its page that show it.
    """
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
            named = column if len(own) > 1 else ""
            sources.append(Source(tree, title, page, named, (parts or {}).get(page, ()), headers[table_id]))
    return sources


class Condition(NamedTuple):
    """A stated limit on a source: `relation` equals `constant` (a canonical entity) or lies in a range of years."""

    relation: str
    constant: str
    text: str
    members: frozenset[str]

    def __str__(self) -> str:
        return f"{self.relation}: {self.constant}"


class Draft(NamedTuple):
    """A task not yet evaluated. `columns` is what the question calls each relation asked for; `key`, the members."""

    variant: Literal["basic", "union", "reverse_union"]
    sources: tuple[Source, ...]
    triples: tuple[Triple, ...]
    columns: Mapping[Ref, str]
    question: str
    anchor: str = ""
    key: str = NAME

    @property
    def unqualified(self) -> dict[str, str]:
        """What the question calls each relation asked for when no source is named: `year` of `year (Booker Prize)`."""
        if len(self.sources) == 1:
            return {ref.relation: label for ref, label in self.columns.items()}
        a, b = self.sources
        return {ref.relation: shared_label(a, b, ref.relation) for ref in self.columns}


def shared_label(a: Source, b: Source, relation: str) -> str:
    """What both tables call a relation in their headers; its standard name where they differ."""
    label = a.labels.get(relation, relation)
    return label if b.labels.get(relation, relation) == label else relation


def rank(seed: int, *parts: object) -> int:
    """A number in [0, 2^64) that depends on nothing but its arguments; sorts candidates in a seeded order."""
    return int.from_bytes(hashlib.blake2b(repr((seed, parts)).encode(), digest_size=8).digest(), "big")


class Wanted(NamedTuple):
    """What drafts are looked for: `small` sizes (cells of R_all, from and to) and larger ones in turn, and of none may
    one part of a page show more than `max_share`; `seed` orders them."""

    small: tuple[int, int] = (9, 30)
    max_share: float = 0.4
    seed: int = 0


class Candidate(NamedTuple):
    """A draft not yet written: its R_all in cells, how many of them one page part shows at least, and what it is.

    `name` says what it is in words, for a seeded order that is the same on every machine.
    """

    size: int
    shown: int
    name: str
    what: tuple[Any, ...]


def in_turn(
    candidates: Iterable[Candidate], wanted: Wanted, *names: str, small_first: int, most_small: int
) -> Iterator[tuple[Any, ...]]:
    """Yields what the candidates are, `small_first` small ones before each larger one, at most `most_small` of them.

    The largest of all comes first of the larger ones, the rest in a seeded order that favours size. Tinier ones are
    left out, and so are those of which one part of a page shows more than `wanted.max_share`.
    """
    fair = [c for c in candidates if c.shown <= wanted.max_share * c.size and c.size >= wanted.small[0]]
    order = {c.name: rank(wanted.seed, *names, c.name) for c in fair}
    fair.sort(key=lambda c: order[c.name])
    fits = [c.what for c in fair if c.size <= wanted.small[1]][:most_small]
    larger = [c for c in fair if c.size > wanted.small[1]]
    largest = max((c.size for c in larger), default=0)
    larger.sort(key=lambda c: (c.size != largest, order[c.name] / c.size**2))
    for turn in range(max(len(fits), len(larger))):
        yield from fits[turn * small_first : (turn + 1) * small_first]
        yield from (c.what for c in larger[turn : turn + 1])


# -------------------------------------------------------------------------------------------------------- attributes


def askable(source: Source, entities: frozenset[str], fill: float = 0.5) -> list[str]:
    """The relations that are filled in for at least a share `fill` of the entities, in column order."""
    filled: Counter[str] = Counter()
    for entity in entities:
        filled.update(source.facts[entity].keys())
    return [r.name for r in source.tree.relations if filled[r.name] >= max(1, fill * len(entities))]


def subsets(names: Sequence[str], most: int, few: int, seed: int) -> list[tuple[str, ...]]:
    """Attribute sets to choose from: all (at most `most`), and `few` of each size up to three, in the order given."""
    by_rank = sorted(names, key=lambda name: rank(seed, name))
    sets = [frozenset(by_rank[:most])]
    for size in range(1, min(3, most, len(names)) + 1):
        sets += [frozenset((by_rank * 2)[start : start + size]) for start in range(min(few, len(names)))]
    return [tuple(name for name in names if name in chosen) for chosen in dict.fromkeys(sets) if chosen]


# -------------------------------------------------------------------------------------------------------- conditions


def conditions(source: Source, least: int = 4, most_share: float = 0.8) -> list[Condition]:
    """The stated limits that leave at least `least` members and at most a share of all, in column order.

    Values that several members have, and windows of 10, 20 and 40 years over relations of bare years. Members with
    some values inside and some outside a limit rule it out: it would not be clear which of their rows are meant.
    """
    found = []
    for relation in source.tree.relations:
        values = {entity: source.values(entity, relation.name) for entity in source.facts}
        for constant, text in _constants(relation.type, [v for said in values.values() for v in said]):
            fits = {entity: [satisfies(v, constant) for v in said] for entity, said in values.items()}
            members = frozenset(entity for entity, flags in fits.items() if any(flags))
            clear = all(all(flags) for flags in fits.values() if any(flags))
            if clear and least <= len(members) <= most_share * len(source.facts):
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


def short_labels(titles: Sequence[str]) -> tuple[str, str]:
    """Short names for two titles: the first part in which they differ, without the words that it begins or ends alike.

    "2009 Tippeligaen: Teams" and "2013 Tippeligaen: Stadiums" are `2009` and `2013`.
    """
    parts = [[p.strip() for p in re.split(r": | -- | > ", title) if p.strip()] for title in titles]
    firsts = [next((part for part in own if part not in other), "") for own, other in (parts, parts[::-1])]
    words = [re.sub(r"^List of (the )?", "", first).split() for first in firsts]
    for end in (0, -1):
        shorter = [list(own) for own in words]
        while min(map(len, shorter)) > 1 and shorter[0][end] == shorter[1][end]:
            shorter = [own[1:] if end == 0 else own[:-1] for own in shorter]
        if min(len(" ".join(own)) for own in shorter) > 2:  # "Round 1" and "Round 12" say more than "1" and "12"
            words = shorter
    a, b = (" ".join(own).strip(" ,") for own in words)
    return (a, b) if a and b and a != b else (titles[0], titles[1])
