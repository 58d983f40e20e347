"""Reverse-Union tasks: an anchor known by clues, and what shares its pivot in the same two tables (paper, 2.4).

The question says neither who the anchor is, nor which tables are meant, nor what the pivot's value is. It is fair only
if all three follow from it, closed-world over the trees of the anchor's type and domain: the clues fit exactly one
entity whatever the table, the anchor has one pivot value, and every pair of tables that fits the description in the
place of the sources gives the same answer.

R_all is the members of each source that share the pivot (all members of a source that does not say it), and the
answers with their attributes; R_final is the latter. The paper gives no R for this family.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice, product
from typing import NamedTuple

from data_gen.bicliques import RelationTriple
from data_gen.drafts import Candidate, Draft, Source, Wanted, askable, asked, in_turn, listed, rank, subsets
from data_gen.expressions import LISTED, NAME, EvaluationError, Ref, UnfitError, evaluate, relation_name
from data_gen.questions import reverse_union_question
from data_gen.splits import normal
from data_gen.tasks_union import union_columns, union_size
from webleaper_jax.records import Tree, Triple, Value

LISTS = ("first list", "second list")
_MAX_CLUE = 40  # characters
_UNIQUE = frozenset({"date", "score", "range"})  # types whose values are shared by chance only
_NO_READING: dict[str, list[frozenset[str]]] = {"": []}
_STOP = frozenset(
    ("list", "of", "the", "and", "in", "by", "for", "at", "on", "from", "to", "with", "les", "des", "der")
)


class Clue(NamedTuple):
    """What source `source` (0 or 1) says of the anchor."""

    source: int
    relation: str
    value: Value


class Pivot(NamedTuple):
    """The relation that anchor and answers share, the sources that say it, and how the question puts it."""

    relation: str
    sources: tuple[Source, ...]
    words: str


class Neighbourhood:
    """All trees of one layer-2 (type, domain): whom clues fit, and which tables an entity stands in."""

    def __init__(self, sources: Sequence[Source]):
        self.trees = {source.title: source.tree for source in sources}
        self._fits: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._stands_in: dict[str, list[Source]] = defaultdict(list)
        for source in sources:
            for entity, facts in source.facts.items():
                self._stands_in[entity].append(source)
                for name, values in facts.items():
                    for value in values:
                        self._fits[name, value.entity].add(entity)

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
    wanted: Wanted,
    drops: Counter[str],
    *,
    max_attributes: int,
) -> Iterator[Draft]:
    """Yields drafts for one pair.

    Args:
      relations: the triples that both have; their names may be asked for.
      around: all trees of the pair's type and domain.
      drops: counts, by reason, the groups for which no fair question was found.
    """
    candidates = []
    for pivot, group in _pivot_groups(a, b):
        shared = {name for name, _, _ in relations} - {NAME, pivot.relation}
        names = [n for n in askable(a, group) if n in shared and n in askable(b, group)]
        of_group = rank(wanted.seed, pivot.relation, *sorted(group))
        for attributes in subsets(names, max_attributes, 1, of_group) or [(pivot.relation,)]:
            columns = union_columns(a, b, attributes, group, LISTS)
            left = [_sharing(source, pivot, min(group)) for source in (a, b)]
            size, shown = union_size(a, b, left, columns)
            name = f"{pivot.words} {sorted(group)} {attributes}"
            candidates.append(Candidate(size, shown, name, (pivot, group, columns)))
    for pivot, group, columns in in_turn(candidates, wanted, a.title, b.title, small_first=2, most_small=99):
        draft, reason = _fair_draft(a, b, around, pivot, group, columns, rank(wanted.seed, *columns.values()))
        if draft is None:
            drops[reason] += 1
        else:
            yield draft


def _pivot_groups(a: Source, b: Source) -> Iterator[tuple[Pivot, frozenset[str]]]:
    """Yields pivots and the entities of the intersection that share a value of it: at least two and not all of them.

    Where both tables have the relation and agree on all that they share, the pivot is one of both; else of one table.
    """
    common = [entity for entity in a.facts if entity in b.facts]
    pivots = []
    for name in dict.fromkeys(r.name for source in (a, b) for r in source.tree.relations if r.type not in _UNIQUE):
        holders = tuple(source for source in (a, b) if source.has(name))
        if len(holders) == 2 and all(a.said(entity, name) == b.said(entity, name) for entity in common):
            pivots.append(Pivot(name, holders, name))
        else:
            pivots += [Pivot(name, (s,), f"{name} in the {LISTS[s is b]}") for s in holders]
    for pivot in pivots:
        groups: dict[str, list[str]] = defaultdict(list)
        for entity in common:
            said = pivot.sources[0].said(entity, pivot.relation)
            if len(said) == 1:
                groups[said.pop()].append(entity)
        yield from ((pivot, frozenset(group)) for group in groups.values() if 2 <= len(group) < len(common))


def _sharing(source: Source, pivot: Pivot, entity: str) -> frozenset[str]:
    """The members of a source that share the entity's pivot; all of them where the source does not say it."""
    if source not in pivot.sources:
        return frozenset(source.facts)
    value = source.said(entity, pivot.relation)
    return frozenset(other for other in source.facts if source.said(other, pivot.relation) == value)


def _fair_draft(
    a: Source,
    b: Source,
    around: Neighbourhood,
    pivot: Pivot,
    group: frozenset[str],
    columns: Mapping[Ref, str],
    seed: int,
) -> tuple[Draft | None, str]:
    """Returns the first fair draft over anchors and clues in a seeded order, or why the last one was not."""
    reason = "no clues"
    for anchor in sorted(group, key=lambda entity: rank(seed, pivot.words, entity))[:4]:
        for clues in islice(_clue_sets(a, b, anchor, pivot, seed), 24):
            reason = _unfair(a, b, around, anchor, clues, pivot, group)
            if not reason:
                draft = _draft(a, b, anchor, clues, pivot, columns, seed)
                if same_answer_everywhere(draft, clues, around):
                    return draft, ""
                reason = "another pair of tables fits"
    return None, reason


def _clue_sets(a: Source, b: Source, anchor: str, pivot: Pivot, seed: int) -> Iterator[tuple[Clue, ...]]:
    """Two to four clues, at least one from each source, fewer first; only what a source says once and shortly."""
    clues = []
    for position, source in enumerate((a, b)):
        for name, values in source.facts[anchor].items():
            if (
                name != pivot.relation
                and len(values) == 1
                and len(values[0].text) <= _MAX_CLUE
                and "|" not in values[0].text
            ):
                clues.append(Clue(position, name, values[0]))
    clues.sort(key=lambda clue: rank(seed, anchor, *clue[:2]))
    for size in (2, 3, 4):
        for chosen in combinations(clues, size):
            if {clue.source for clue in chosen} == {0, 1}:
                yield tuple(sorted(chosen, key=lambda clue: clue.source))


def _unfair(
    a: Source, b: Source, around: Neighbourhood, anchor: str, clues: Sequence[Clue], pivot: Pivot, group: frozenset[str]
) -> str:
    """Why these clues will not do, or an empty string."""
    if around.fitting(clues) != {anchor}:
        return "the clues fit several"
    members = [source.members[entity] for source in (a, b) for entity in group]
    names = [name for member in members for name in (member.name, member.entity)]
    names += [value.text for source in (a, b) for value in source.values(anchor, pivot.relation)]
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
        [
            s.title
            for s in around.tables_of(draft.anchor)
            if _says(s, draft.anchor, [c for c in clues if c.source == position])
        ]
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
    return all(any(v.entity == clue.value.entity for v in source.values(entity, clue.relation)) for clue in clues)


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
    a: Source, b: Source, anchor: str, clues: Sequence[Clue], pivot: Pivot, columns: Mapping[Ref, str], seed: int
) -> Draft:
    titles = [a.title, b.title]
    pivots = [Ref(pivot.relation, source.title) for source in pivot.sources]
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
            pivot.words,
            [NAME, *columns.values()],
            seed,
        ),
        anchor=anchor,
    )


def _words(text: str) -> set[str]:
    """The telling words of a text: of three letters or more, years among them, without a plural s."""
    return {word.removesuffix("s") for word in normal(text).split() if len(word) > 2 and word not in _STOP}
