import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webleaper_jax.agent.tolerant import load, read_objects, unfenced

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
OBJECTS = st.dictionaries(
    st.text(max_size=6),
    st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner), max_leaves=6
    ),
    max_size=4,
)


@given(OBJECTS)
def test_valid_objects_are_read_as_they_are(value):
    assert read_objects(json.dumps(value), repair=True) == [value]
    assert read_objects(f"```json\n{json.dumps(value)}\n```", repair=False) == [value]
    assert read_objects(json.dumps(value) * 3, repair=False) == [value]


@given(OBJECTS, st.text(st.sampled_from("}]) ,\n\"'"), max_size=4))
def test_closers_left_over_are_ignored(value, rest):
    assert read_objects(json.dumps(value) + rest, repair=False) == [value]


@given(OBJECTS.filter(bool), st.data())
def test_a_cut_object_is_read_whole_or_not_at_all_never_with_a_string_changed(value, data):
    text = json.dumps(value)
    cut = text[: data.draw(st.integers(1, len(text) - 1))]
    got = read_objects(cut, repair=True)
    assert read_objects(cut, repair=False) is None
    if got is not None:
        kept = json.dumps(got[0])
        assert all(string in text for string in _strings(got[0])), kept


def _strings(value):
    if isinstance(value, dict):
        return [json.dumps(key) for key in value] + [s for item in value.values() for s in _strings(item)]
    if isinstance(value, list):
        return [s for item in value for s in _strings(item)]
    return [json.dumps(value)] if isinstance(value, str) else []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': 'b c'}", {"a": "b c"}),
        ("{'a': \"it's\"}", {"a": "it's"}),
        ('{"a": ["b", "c",]}', {"a": ["b", "c"]}),
        ('{"a": {"b": ["c"]', {"a": {"b": ["c"]}}),
        ('{"a": True, "b": None}', {"a": True, "b": None}),
        ('{"a": "line\nbreak"}', {"a": "line\nbreak"}),
    ],
)
def test_repaired_where_only_one_reading_is_possible(text, value):
    assert read_objects(text, repair=True) == [value]


@pytest.mark.parametrize(
    "text",
    [
        '{"city": "Par',
        "",
        "   ",
        '"foo"',
        "[1]",
        "12",
        "null",
        "{",
        "{}{",
        '{"a" "b"}',
        "{'a': 'it's'}",
        '{"a": ["b" "c"]}',
        '{"a": b c}',
        "name: search",
        '{"a": "say "hi" now"}',
    ],
)
def test_refused_where_it_would_be_a_guess(text):
    got = read_objects(text, repair=True)
    assert got is None or got == [{}]


def test_deep_nesting_and_huge_numbers_are_refused_not_crashed_on():
    for deep in ("[" * 5000, '{"a":' * 5000, "{" + "(" * 5000, '{"a": ' + "-" * 5000 + "1}"):
        assert read_objects(deep, repair=True) is None
        assert load(deep) is None
    assert load("9" * 5000) is None


@pytest.mark.parametrize("text", ['{{"a": 1}}', "{[1]: 2}", "{{}: 1}", "{1: {[]: 2}}", "{{1}}", "{...: 1}"])
def test_python_that_cannot_be_evaluated_is_refused_not_crashed_on(text):
    read_objects(text, repair=True)
    assert read_objects(text, repair=False) is None


@given(st.text(st.sampled_from("{}[]():,'\"\\a1. -+*\n"), max_size=12))
def test_any_brackets_are_read_or_refused(text):
    read_objects("{" + text, repair=True)


@given(st.text())
def test_any_text_is_read_or_refused(text):
    for given_text in (text, "{" + text):
        found = read_objects(given_text, repair=True)
        assert found is None or all(isinstance(item, dict) for item in found)
    load(text)


@pytest.mark.parametrize("text", ["```\nx\n```", "```json\nx\n```", "```x```", "x", "  x "])
def test_fences_are_taken_off(text):
    assert unfenced(text) == "x"
