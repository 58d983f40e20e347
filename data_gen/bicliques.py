"""Maximal bicliques of the graph trees × relations: groups of trees that share relations (paper A.5).

A maximal biclique is a closed set of relations with all the trees that have them, so this is closed-itemset mining
with transaction ids. The algorithm is LCM's prefix-preserving closure extension (Uno et al., 2004), in plain Python
over integers as bitsets; each maximal biclique is met once, and nothing is kept in memory but the path to it. Another
algorithm may stand behind `maximal_bicliques` without a change elsewhere.

Departure from the paper: it rejects a biclique of trees whose layer-2 columns disagree in type or domain whole, and
with it the sub-groups that do agree. `tree_bicliques` parts the trees by (type, domain) of layer 2 first.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from webleaper_jax.records import Tree

T = TypeVar("T", bound=Hashable)
RelationTriple = tuple[str, str, str]


class Biclique(NamedTuple):
    """Trees (positions in the sequence given) and every relation `(name, type, domain)` that all of them have."""

    trees: tuple[int, ...]
    relations: frozenset[RelationTriple]


def maximal_bicliques(
    rows: Sequence[frozenset[T]], k_min: int = 2, m_min: int = 2
) -> Iterator[tuple[tuple[int, ...], frozenset[T]]]:
    """Yields every maximal biclique (U, V) of the graph rows × items with |U| >= k_min and |V| >= m_min, once.

    U are all rows that hold V (positions, ascending), V are all items that the rows of U share.

    Raises:
      ValueError: a threshold below 1 (the empty sides have no meaning as a biclique).
    """
    if k_min < 1 or m_min < 1:
        raise ValueError(f"k_min and m_min are at least 1, not {k_min} and {m_min}")
    merged: dict[frozenset[T], list[int]] = defaultdict(list)
    for position, row in enumerate(rows):
        merged[row].append(position)
    distinct = list(merged)
    weights = [len(merged[row]) for row in distinct]

    count: dict[T, int] = defaultdict(int)
    for row, weight in zip(distinct, weights, strict=True):
        for item in row:
            count[item] += weight
    # Rare items first: their branches are small, and the common ones are settled inside them.
    items = sorted((item for item in count if count[item] >= k_min), key=lambda item: (count[item], repr(item)))
    rank = {item: i for i, item in enumerate(items)}
    row_items = [sum(1 << rank[item] for item in row if item in rank) for row in distinct]
    item_rows = [sum(1 << r for r, mask in enumerate(row_items) if mask >> i & 1) for i in range(len(items))]

    def closure(tids: int) -> int:
        shared = -1
        for r in _bits(tids):
            shared &= row_items[r]
        return shared

    if sum(weights) < k_min:
        return
    everything = (1 << len(distinct)) - 1
    stack = [(everything, closure(everything), -1)]
    while stack:
        tids, closed, core = stack.pop()
        if closed.bit_count() >= m_min:
            trees = sorted(position for r in _bits(tids) for position in merged[distinct[r]])
            yield tuple(trees), frozenset(items[i] for i in _bits(closed))
        for i in range(core + 1, len(items)):
            if closed >> i & 1:
                continue
            narrowed = tids & item_rows[i]
            if sum(weights[r] for r in _bits(narrowed)) < k_min:
                continue
            extended = closure(narrowed)
            before = (1 << i) - 1
            if extended & before == closed & before:  # no earlier item joins: this is the only path to `extended`
                stack.append((narrowed, extended, i))


def tree_bicliques(trees: Sequence[Tree], k_min: int = 2, m_min: int = 2) -> Iterator[Biclique]:
    """Yields the maximal bicliques of trees of one layer-2 (type, domain); the key's `name` counts as a relation."""
    for _, positions in layer2_groups(trees):
        rows = [relation_triples(trees[p]) for p in positions]
        for chosen, relations in maximal_bicliques(rows, k_min, m_min):
            yield Biclique(tuple(positions[c] for c in chosen), relations)


def layer2_groups(trees: Sequence[Tree]) -> list[tuple[tuple[str, str], list[int]]]:
    """Returns the positions of the trees by (type, domain) of their layer 2, in a fixed order."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for position, tree in enumerate(trees):
        groups[tree.key.type, tree.key.domain].append(position)
    return sorted(groups.items())


def relation_triples(tree: Tree) -> frozenset[RelationTriple]:
    """The relation vertices that a tree is joined to."""
    return frozenset({tree.key.triple, *(relation.triple for relation in tree.relations)})


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
