"""Reverse-Union tasks: an anchor known by clues, and what shares its pivot in the same two tables (paper, 2.4).

The question says neither who the anchor is, nor which tables are meant, nor what the pivot's value is. It is fair only
if all three follow from it, closed-world over the trees of the anchor's type and domain: the clues fit exactly one
entity whatever the table, the anchor has one pivot value, and every pair of tables that fits the description in the
place of the sources gives the same answer.

R_all is the members of each source that share the pivot (all members of a source that does not say it), and the
answers with their attributes; R_final is the latter. The paper gives no R for this family.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice, product
from typing import NamedTuple

from data_gen.bicliques import RelationTriple
from data_gen.drafts import Draft, Source, asked, askable, in_turn, listed, rank, subsets, values_by_relation
from data_gen.expressions import LISTED, NAME, EvaluationError, Ref, UnfitError, evaluate, relation_name
from data_gen.questions import reverse_union_question
from data_gen.splits import normal
from data_gen.tasks_union import union_columns
from webleaper_jax.records import Member, Tree, Triple, Value

LISTS = ("first list", "second list")
_MAX_CLUE = 40  # characters
_NO_READING: dict[str, list[frozenset[str]]] = {"": []}
_STOP = frozenset("list of the and in by for at on from to with les des der die das von".split())


class Clue(NamedTuple):
    """What source `source` (0 or 1) says of the anchor."""

    source: int
    relation: str
    value: Value


class Neighbourhood:
    """All trees of one layer-2 (type, domain): whom clues fit, and which tables an entity stands in."""

    def __init__(self, sources: Iterable[Source]):
        self.sources = {source.title: source for source in sources}
        self.trees = {title: source.tree for title, source in self.sources.items()}
        self._fits: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._stands_in: dict[str, list[Source]] = defaultdict(list)
        for source in self.sources.values():
            for member in source.tree.members:
                self._stands_in[member.entity].append(source)
                for name, values in values_by_relation(member, source.tree).items():
                    for value in values:
                        self._fits[name, value.entity].add(member.entity)

    def fitting(self, clues: Sequence[Clue]) -> set[str]:
        """Every entity that satisfies all clues, each in any table."""
        return set.intersection(*(self._fits[clue.relation, clue.value.entity] for clue in clues))

    def tables_of(self, entity: str) -> list[Source]:
        return self._stands_in[entity]


def reverse_union_drafts(
    a: Source,
    b: Source,
    relations: frozenset[RelationTriple],
    around: Neighbourhood,
    drops: dict[str, int],
    *,
    max_attributes: int,
    small: tuple[int, int],
    seed: int,
) -> Iterator[Draft]:
    """Yields drafts for one pair: tasks of a size within `small` and others in turn.

    Args:
      relations: the triples that both have; their names may be asked for.
      around: all trees of the pair's type and domain.
      drops: counts, by reason, the groups for which no fair question was found.
    """
    drafts = []
    for pivot, group in _pivot_groups(a, b):
        shared = {name for name, _, _ in relations} - {NAME, pivot}
        names = [n for n in askable(a.tree, group) if n in shared and n in askable(b.tree, group)]
        for attributes in subsets(names, max_attributes, 1, rank(seed, pivot, *sorted(group))) or [(pivot,)]:
            columns = union_columns(a, b, attributes, group, LISTS)
            draft, reason = _fair_draft(a, b, around, pivot, group, columns, rank(seed, attributes))
            if draft is None:
                drops[reason] = drops.get(reason, 0) + 1
            else:
                drafts.append(draft)
    return in_turn(drafts, small, seed)


def _pivot_groups(a: Source, b: Source) -> Iterator[tuple[str, frozenset[str]]]:
    """Yields (relation, entities): those of the intersection that share one value, at least two and not all of them.

    A relation that both tables have must say the same in both, entity by entity.
    """
    members = [{m.entity: values_by_relation(m, s.tree) for m in s.tree.members} for s in (a, b)]
    common = [entity for entity in members[0] if entity in members[1]]
    for name in dict.fromkeys(r.name for s in (a, b) for r in s.tree.relations):
        holders = [own for own, s in zip(members, (a, b), strict=True) if _has(s.tree, name)]
        groups: dict[str, list[str]] = defaultdict(list)
        for entity in common:
            said = {frozenset(v.entity for v in own[entity].get(name, ())) for own in holders}
            value = min(said)
            if len(said) == len(value) == 1:
                groups[next(iter(value))].append(entity)
        yield from ((name, frozenset(group)) for group in groups.values() if 2 <= len(group) < len(common))


def _fair_draft(
    a: Source,
    b: Source,
    around: Neighbourhood,
    pivot: str,
    group: frozenset[str],
    columns: Mapping[Ref, str],
    seed: int,
) -> tuple[Draft | None, str]:
    """Returns the first fair draft over anchors and clues in a seeded order, or why the last one was not."""
    reason = "no clues"
    for anchor in sorted(group, key=lambda entity: rank(seed, pivot, entity))[:4]:
        for clues in islice(_clue_sets(a, b, anchor, pivot, seed), 24):
            reason = _unfair(a, b, around, anchor, clues, pivot, group)
            if not reason:
                draft = _draft(a, b, anchor, clues, pivot, columns, seed)
                if same_answer_everywhere(draft, clues, around):
                    return draft, ""
                reason = "another pair of tables fits"
    return None, reason


def _clue_sets(a: Source, b: Source, anchor: str, pivot: str, seed: int) -> Iterator[tuple[Clue, ...]]:
    """Two to four clues, at least one from each source, fewer first; only what a source says once and shortly."""
    clues = []
    for position, source in enumerate((a, b)):
        member = _member(source.tree, anchor)
        for name, values in values_by_relation(member, source.tree).items():
            if name != pivot and len(values) == 1 and len(values[0].text) <= _MAX_CLUE and "|" not in values[0].text:
                clues.append(Clue(position, name, values[0]))
    clues.sort(key=lambda clue: rank(seed, anchor, *clue[:2]))
    for size in (2, 3, 4):
        for chosen in combinations(clues, size):
            if {clue.source for clue in chosen} == {0, 1}:
                yield tuple(sorted(chosen, key=lambda clue: clue.source))


def _unfair(
    a: Source, b: Source, around: Neighbourhood, anchor: str, clues: Sequence[Clue], pivot: str, group: frozenset[str]
) -> str:
    """Why these clues will not do, or an empty string."""
    if around.fitting(clues) != {anchor}:
        return "the clues fit several"
    answers = [_member(s.tree, entity) for s in (a, b) for entity in group]
    pivots = [v for m, s in zip(answers, [a] * len(group) + [b] * len(group), strict=True) for v in _values(s, m, pivot)]
    names = [name for m in answers for name in (m.name, m.entity)] + [v.text for v in pivots]
    if leaks([clue.value.text for clue in clues], names, [a.page, b.page]):
        return "a clue gives away a name or a title"
    return ""


def leaks(clues: Iterable[str], names: Iterable[str], titles: Iterable[str]) -> bool:
    """Whether a clue shares a telling word with a name or a source's title (case, accents and plural s apart)."""
    told = {word for clue in clues for word in _words(clue)}
    return any(told & _words(text) for text in (*names, *titles))


def same_answer_everywhere(draft: Draft, clues: Sequence[Clue], around: Neighbourhood) -> bool:
    """Whether every pair of tables that fits the description gives the answer that the draft's sources give."""
    titles = [source.title for source in draft.sources]
    expected = _answer(draft.triples, around.trees)
    fitting = [
        [s.title for s in around.tables_of(draft.anchor) if _says(s, draft.anchor, [c for c in clues if c.source == position])]
        for position in (0, 1)
    ]
    for pair in product(*fitting):
        if pair[0] != pair[1] and list(pair) != titles:
            other = _answer([_replaced(triple, titles, pair) for triple in draft.triples], around.trees)
            if other not in (_NO_READING, expected):
                return False
    return expected != _NO_READING


def _answer(triples: Sequence[Triple], trees: Mapping[str, Tree]) -> dict[str, list[frozenset[str]]]:
    """Answer entity -> its values for each attribute in order; none where the tables do not fit the description."""
    try:
        found = evaluate(triples, trees)
    except UnfitError:
        return _NO_READING
    except EvaluationError:
        return {}
    return {e: [frozenset(v.entity for v in found.cells[e, ref]) for ref in found.asked] for e in found.answer}


def _says(source: Source, entity: str, clues: Sequence[Clue]) -> bool:
    said = values_by_relation(_member(source.tree, entity), source.tree)
    return all(any(v.entity == clue.value.entity for v in said.get(clue.relation, ())) for clue in clues)


def _replaced(triple: Triple, titles: Sequence[str], others: Sequence[str]) -> Triple:
    """The triple with other tables in the place of the sources."""
    for title, other in zip(titles, others, strict=True):
        if triple.relation == LISTED and triple.object == f"C@{title}":
            return Triple(triple.subject, LISTED, f"C@{other}")
        if triple.relation.endswith(f" ({title})"):
            relation = f"{triple.relation.removesuffix(f' ({title})')} ({other})"
            return Triple(triple.subject, relation, f"?{relation}" if triple.object[0] == "?" else triple.object)
    return triple


def _draft(
    a: Source, b: Source, anchor: str, clues: Sequence[Clue], pivot: str, columns: Mapping[Ref, str], seed: int
) -> Draft:
    titles = [a.title, b.title]
    pivots = [Ref(pivot, s.title) for s in (a, b) if _has(s.tree, pivot)]
    triples = listed("V@anchor", titles)
    for clue in clues:
        ref = Ref(clue.relation, titles[clue.source])
        triples.append(Triple("V@anchor", relation_name(ref, titles), f"C@{clue.value.entity}"))
    triples += [Triple("V@anchor", relation_name(ref, titles), "V@pivot") for ref in pivots]
    triples += listed("V@x", titles)
    triples += [Triple("V@x", relation_name(ref, titles), "V@pivot") for ref in pivots]
    key = a.tree.key
    return Draft(
        variant="reverse_union",
        sources=(a, b),
        triples=(*triples, *asked("V@x", columns, titles)),
        columns=columns,
        question=reverse_union_question(
            key.type,
            key.domain,
            [[(c.relation, c.value.text) for c in clues if c.source == source] for source in (0, 1)],
            pivot,
            [NAME, *columns.values()],
            seed,
        ),
        size=_size(a, b, anchor, pivot, columns),
        anchor=anchor,
    )


def _size(a: Source, b: Source, anchor: str, pivot: str, columns: Mapping[Ref, str]) -> int:
    """Cells of R_all: narrowed members of both sources, and what is asked of those in both."""
    left = []
    for source in (a, b):
        said = {m.entity: {v.entity for v in _values(source, m, pivot)} for m in source.tree.members}
        left.append({e for e in said if not _has(source.tree, pivot) or said[e] == said[anchor]})
    cells = sum(
        len(_values(source, m, ref.relation))
        for source in (a, b)
        for m in source.tree.members
        if m.entity in left[0] & left[1]
        for ref in columns
        if ref.title == source.title
    )
    return len(left[0]) + len(left[1]) + cells


def _has(tree: Tree, name: str) -> bool:
    return any(relation.name == name for relation in tree.relations)


def _values(source: Source, member: Member, relation: str) -> list[Value]:
    return values_by_relation(member, source.tree).get(relation, [])


def _member(tree: Tree, entity: str) -> Member:
    return next(member for member in tree.members if member.entity == entity)


def _words(text: str) -> set[str]:
    """The telling words of a text: of three letters or more, years among them, without a plural s."""
    return {word.removesuffix("s") for word in normal(text).split() if len(word) > 2 and word not in _STOP}
