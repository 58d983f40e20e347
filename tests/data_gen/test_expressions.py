"""The evaluator against plain set algebra over rows, and its refusals."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_gen.expressions import EvaluationError, Ref, UnfitError, evaluate, parse, year_range
from webleaper_jax.records import Member, Relation, Tree, Triple, Value

RELATIONS = (Relation(name="year", type="year", column=1), Relation(name="country", type="country", column=2))
NAMES = [f"n{i}" for i in range(8)]
rows = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(1980, 1985), st.sampled_from("ABC")), min_size=1, max_size=14
)


def tree(title, facts):
    """Rows of one name merge into one member, as in a table."""
    by_name = {}
    for name, year, country in facts:
        by_name.setdefault(name, []).append((year, country))
    members = []
    for name, own in by_name.items():
        years = dict.fromkeys(str(year) for year, _ in own)
        countries = dict.fromkeys(country for _, country in own)
        values = [Value(relation=0, text=y, entity=y) for y in years] + [
            Value(relation=1, text=c, entity=c) for c in countries
        ]
        members.append(Member(entity=name, name=name.upper(), rows=(0,), values=tuple(values)))
    key = Relation(name="name", type="person", domain="writer")
    return Tree(
        table_id=title, family="f", title=title, root=(title,), key=key, relations=RELATIONS, members=tuple(members)
    )


def triples(*lines):
    return tuple(Triple(*(part.strip() for part in line.split(","))) for line in lines)


UNION = triples("V@x, is listed in, C@P", "V@x, is listed in, C@Q", "V@x, name, ?name", "V@x, year (Q), ?year (Q)")


@given(rows, rows)
def test_union_is_the_intersection_of_names(p, q):
    found = evaluate(UNION, {"P": tree("P", p), "Q": tree("Q", q)})
    assert set(found.answer) == {n for n, *_ in p} & {n for n, *_ in q}
    assert len(found.answer) == len(set(found.answer))
    for name in found.answer:
        said = {value.text for value in found.cells[name, Ref("year", "Q")]}
        assert said == {str(year) for n, year, _ in q if n == name}
    assert [{m.entity for m in o.members} for o in found.operands] == [{n for n, *_ in p}, {n for n, *_ in q}]


@settings(max_examples=200)
@given(rows, st.integers(1979, 1986), st.integers(0, 4), st.sampled_from("ABC"))
def test_conditions_hold_for_all_rows_of_an_entity_or_there_is_no_answer(p, low, width, country):
    asked = triples(
        "V@x, is listed in, C@P",
        f"V@x, year, C@{year_range(low, low + width)}",
        f"V@x, country, C@{country}",
        "V@x, name, ?name",
    )
    by_name = {name: [(y, c) for n, y, c in p if n == name] for name, *_ in p}
    in_range = {name: {low <= y <= low + width for y, _ in own} for name, own in by_name.items()}
    left = {name for name, flags in in_range.items() if flags == {True}}
    right = {name: {c == country for _, c in by_name[name]} for name in left}
    if {True, False} in in_range.values() or {True, False} in right.values():
        with pytest.raises(EvaluationError, match="only some"):
            evaluate(asked, {"P": tree("P", p)})
    else:
        expected = {name for name, flags in right.items() if flags == {True}}
        assert set(evaluate(asked, {"P": tree("P", p)}).answer) == expected


REVERSE = triples(
    "V@a, is listed in, C@P",
    "V@a, is listed in, C@Q",
    "V@a, year (P), C@1981",
    "V@a, year (Q), C@1984",
    "V@a, country (P), V@pivot",
    "V@x, is listed in, C@P",
    "V@x, is listed in, C@Q",
    "V@x, country (P), V@pivot",
    "V@x, name, ?name",
)
one_row_each = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(1980, 1985), st.sampled_from("ABC")),
    min_size=2,
    max_size=8,
    unique_by=lambda row: row[0],
)


@settings(max_examples=300)
@given(one_row_each, one_row_each)
def test_reverse_union_needs_exactly_one_anchor(p, q):
    in_p, in_q = ({name: (year, country) for name, year, country in facts} for facts in (p, q))
    both = in_p.keys() & in_q.keys()
    anchors = [name for name in both if in_p[name][0] == 1981 and in_q[name][0] == 1984]
    trees = {"P": tree("P", p), "Q": tree("Q", q)}
    if len(anchors) != 1:
        with pytest.raises(UnfitError, match="anchor"):
            evaluate(REVERSE, trees)
        return
    found = evaluate(REVERSE, trees)
    pivot = in_p[anchors[0]][1]
    assert dict(found.anchors) == {"V@a": anchors[0]}
    assert set(found.answer) == {name for name in both if in_p[name][1] == pivot}
    assert {m.entity for m in found.operands[0].members} == {n for n, (_, c) in in_p.items() if c == pivot}
    assert {m.entity for m in found.operands[1].members} == set(in_q)


def test_sources_that_disagree_on_the_pivot_are_refused():
    both = (*REVERSE[:5], Triple("V@a", "country (Q)", "V@pivot"), *REVERSE[5:])
    p, q = [("n0", 1981, "A"), ("n1", 1982, "A")], [("n0", 1984, "B"), ("n1", 1985, "B")]
    with pytest.raises(EvaluationError, match="agree"):
        evaluate(both, {"P": tree("P", p), "Q": tree("Q", q)})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["x, is listed in, C@P", "V@x, name, ?name"], "no variable"),
        (["V@x, is listed in, C@P", "V@y, name, ?name"], "nowhere"),
        (["V@x, is listed in, C@P"], "exactly one"),
        (["V@x, is listed in, C@P", "V@x, is listed in, C@Q", "V@x, year, ?year"], "no source"),
    ],
)
def test_what_cannot_be_read_is_said(lines, message):
    with pytest.raises(EvaluationError, match=message):
        parse(triples(*lines))


def test_a_relation_that_a_tree_lacks_does_not_fit():
    asked = triples("V@x, is listed in, C@P", "V@x, height, ?height")
    with pytest.raises(UnfitError, match="height"):
        evaluate(asked, {"P": tree("P", [("n0", 1980, "A")])})
