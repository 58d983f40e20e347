"""Maximal bicliques against brute force and the published counts of reference graphs."""

import pathlib
from collections import defaultdict
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_gen.bicliques import maximal_bicliques, tree_bicliques
from webleaper_jax.records import Member, Relation, Tree

graphs = st.lists(st.frozensets(st.integers(0, 7), max_size=8), max_size=9)


def brute_force(rows, k_min, m_min):
    """Closes every subset of rows; the definition, written down."""
    found = set()
    for size in range(1, len(rows) + 1):
        for chosen in combinations(range(len(rows)), size):
            shared = frozenset.intersection(*(rows[r] for r in chosen))
            if shared:
                found.add((tuple(r for r, row in enumerate(rows) if shared <= row), shared))
    return {(u, v) for u, v in found if len(u) >= k_min and len(v) >= m_min}


@settings(max_examples=2000, deadline=None)
@given(graphs, st.integers(1, 4), st.integers(1, 4))
def test_equals_brute_force_and_meets_each_once(rows, k_min, m_min):
    found = list(maximal_bicliques(rows, k_min, m_min))
    assert len(found) == len(set(found))
    assert set(found) == brute_force(rows, k_min, m_min)


@given(graphs)
def test_both_sides_are_closed(rows):
    for trees, relations in maximal_bicliques(rows, 1, 1):
        assert all((relations <= row) == (r in trees) for r, row in enumerate(rows))
        assert frozenset.intersection(*(rows[r] for r in trees)) == relations


def test_empty_inputs():
    assert list(maximal_bicliques([], 1, 1)) == []
    assert list(maximal_bicliques([frozenset(), frozenset()], 1, 1)) == []
    with pytest.raises(ValueError, match="at least 1"):
        list(maximal_bicliques([frozenset({1})], 0, 1))


@pytest.mark.shared
def test_reference_graph(shared: pathlib.Path):
    """The 209 concepts of a published example context (an edge list)."""
    rows = defaultdict(set)
    for line in (shared / "data" / "graphs" / "example3.el").read_text().splitlines()[1:]:
        row, column = line.split()
        rows[row].add(column)
    assert len(list(maximal_bicliques([frozenset(r) for r in rows.values()], 1, 1))) == 209


def tree(key_domain, *relations):
    return Tree(
        table_id=key_domain + "".join(relations),
        family="f",
        title="t",
        root=("t",),
        key=Relation(name="name", type="person", domain=key_domain),
        relations=tuple(Relation(name=name, type="year") for name in relations),
        members=(Member(entity="a", name="a", rows=(0,), values=()),),
    )


def test_trees_are_parted_by_the_domain_of_layer_2():
    """A group of mixed domain keeps its compatible sub-groups, and the key's name counts as a relation."""
    trees = [tree("writer", "year", "born"), tree("film", "year", "born"), tree("writer", "year"), tree("film", "year")]
    found = {(b.trees, frozenset(name for name, *_ in b.relations)) for b in tree_bicliques(trees)}
    assert found == {((0, 2), frozenset({"name", "year"})), ((1, 3), frozenset({"name", "year"}))}
