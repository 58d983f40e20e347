"""Union tasks: what two tables that share relations have in common (paper, section 2.3 and appendix A.5).

Pairs come from the maximal bicliques of trees × relations: a pair belongs to the one biclique whose relations are just
those that the two share. R_all is both narrowed layer-2 sets and the intersection with its requested attributes;
R_final is the latter. Relations that only one of the tables has are not asked for.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from data_gen.bicliques import RelationTriple, relation_triples, tree_bicliques
from data_gen.drafts import (
    Candidate,
    Condition,
    Draft,
    Source,
    Wanted,
    askable,
    asked,
    condition_triple,
    in_turn,
    listed,
    shared_label,
    short_labels,
    subsets,
)
from data_gen.expressions import NAME, Ref
from data_gen.questions import union_question
from webleaper_jax.records import Tree


class Pair(NamedTuple):
    """Two trees (positions) of one biclique, what they share, and how alike they are.

    `common` counts shared entities, `jaccard` is their share of all entities of the two.
    """

    a: int
    b: int
    relations: frozenset[RelationTriple]
    common: int
    jaccard: float


def overlapping_pairs(trees: Sequence[Tree], *, k_min: int, m_min: int, least: int) -> Iterator[Pair]:
    """Yields every pair of a biclique whose layer-2 sets have `least` entities or more in common, once.

    Found by an inverted index over entities, so pairs that share nothing cost nothing.
    """
    entities = [frozenset(m.entity for m in tree.members) for tree in trees]
    for trees_of, relations in tree_bicliques(trees, k_min, m_min):
        holders: dict[str, list[int]] = defaultdict(list)
        for position in trees_of:
            for entity in entities[position]:
                holders[entity].append(position)
        common = Counter(pair for positions in holders.values() for pair in combinations(positions, 2))
        for (a, b), count in sorted(common.items()):
            if count >= least and relation_triples(trees[a]) & relation_triples(trees[b]) == relations:
                yield Pair(a, b, relations, count, count / len(entities[a] | entities[b]))


def union_drafts(
    a: Source,
    b: Source,
    relations: frozenset[RelationTriple],
    wanted: Wanted,
    *,
    max_attributes: int,
    least: int,
) -> Iterator[Draft]:
    """Yields drafts for one pair.

    Args:
      relations: the triples that both have, the key's included.
      max_attributes: of each source.
      least: answers at least.
    """
    if shared_label(a, b, NAME) == NAME and any(s.labels[n] == NAME for s in (a, b) for n in s.labels if n != NAME):
        return  # "name" would be read as that column, not as the key
    shared = {name for name, _, _ in relations}
    candidates = []
    for chosen in _condition_pairs(a, b, shared):
        left = [frozenset(s.facts) if c is None else c.members for s, c in zip((a, b), chosen, strict=True)]
        answer = left[0] & left[1]
        if len(answer) < least:
            continue
        stated = {c.relation for c in chosen if c is not None}
        names = [n for n in askable(a, answer) if n in shared - stated and n in askable(b, answer)]
        for attributes in subsets(names, max_attributes, 2, wanted.seed):
            columns = union_columns(a, b, attributes, answer, (a.title, b.title))
            size, shown = union_size(a, b, left, columns)
            name = f"{chosen[0]} {chosen[1]} {attributes}"
            candidates.append(Candidate(size, shown, name, (chosen, attributes, answer)))
    for chosen, attributes, answer in in_turn(candidates, wanted, a.title, b.title, small_first=2, most_small=99):
        yield _draft(a, b, chosen, attributes, answer, wanted.seed)


def union_size(a: Source, b: Source, left: Sequence[Collection[str]], columns: Iterable[Ref]) -> tuple[int, int]:
    """Returns the cells of R_all (an estimate), and how many of them one part of either page shows at least.

    Args:
      left: the entities of each source that its conditions leave.
      columns: the relations asked for.
    """
    size, shown = 0, 0
    for source, own, other in ((a, left[0], left[1]), (b, left[1], left[0])):
        names = [ref.relation for ref in columns if ref.title == source.title]
        # An answer's name is a cell of both sources, and a page that names it shows both.
        asked_of = {e: sum(len(source.values(e, name)) for name in names) if e in other else 0 for e in own}
        size += len(own) + sum(asked_of.values())
        shown = max(shown, source.busiest_part({e: 1 + (e in other) + asked_of[e] for e in own}))
    return size, shown


def _condition_pairs(a: Source, b: Source, shared: set[str]) -> Iterator[tuple[Condition | None, Condition | None]]:
    """No condition, one on either source, and on both where they limit the same shared relation alike."""
    of_a, of_b = a.conditions, b.conditions
    yield None, None
    yield from ((c, None) for c in of_a)
    yield from ((None, c) for c in of_b)
    for c in of_a:
        for d in of_b:
            if c.relation == d.relation and c.relation in shared and (c.constant == d.constant or ".." in c.constant):
                yield c, d


def _draft(
    a: Source,
    b: Source,
    chosen: tuple[Condition | None, Condition | None],
    attributes: tuple[str, ...],
    answer: Collection[str],
    seed: int,
) -> Draft:
    titles = [a.title, b.title]
    columns = union_columns(a, b, attributes, answer, short_labels([a.page, b.page]))
    triples = listed("V@x", titles)
    for condition, title in zip(chosen, titles, strict=True):
        if condition is not None:
            triples.append(condition_triple("V@x", condition, title, titles))
    key, name = a.tree.key, shared_label(a, b, NAME)
    return Draft(
        variant="union",
        sources=(a, b),
        triples=(*triples, *asked("V@x", columns, titles)),
        columns=columns,
        question=union_question(
            key.type,
            key.domain,
            [a.quoted, b.quoted],
            [(s.labels[c.relation], c.text) if c else None for s, c in zip((a, b), chosen, strict=True)],
            [name, *columns.values()],
            seed,
        ),
        key=name,
    )


def union_columns(
    a: Source, b: Source, attributes: Sequence[str], answer: Collection[str], labels: Sequence[str]
) -> dict[Ref, str]:
    """What to ask of each source, and what to call it: `year (Booker Prize)`, from either source, or as both call it.

    An attribute on which the sources agree for every answer is asked once, without a source: `country`.
    """
    columns = {}
    for name in attributes:
        if all(a.said(entity, name) == b.said(entity, name) for entity in answer):
            columns[Ref(name, a.title)] = shared_label(a, b, name)
        else:
            said = shared_label(a, b, name)
            columns |= {Ref(name, s.title): f"{said} ({label})" for s, label in zip((a, b), labels, strict=True)}
    return columns
