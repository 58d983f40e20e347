"""s(a, b) over all types: labelled pairs, and the properties that every type must have; cases R4, R5 and R6."""

import collections
import json
import pathlib

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from webleaper_jax.scoring.normalize import is_blank, normalize, parse_date
from webleaper_jax.scoring.similarity import SAME, index_words, similarity

TYPES = [
    "person",
    "organisation",
    "place",
    "country",
    "work",
    "event",
    "thing",
    "date",
    "year",
    "range",
    "number",
    "rank",
    "score",
    "text",
    "unheard-of",
]
PAIRS = [json.loads(line) for line in pathlib.Path(__file__).with_name("pairs.jsonl").read_text("utf-8").splitlines()]
SNIPPETS = st.sampled_from(sorted({pair[side] for pair in PAIRS for side in "ab"}))
WORDS = st.text(alphabet="abcdeJMé .,'-–0123459()&", min_size=1, max_size=16)
TEXTS = SNIPPETS | WORDS | st.text(max_size=12)


def test_labelled_pairs():
    assert len(PAIRS) >= 150
    assert {pair["type"] for pair in PAIRS} >= set(TYPES[:-1])
    wrong = [p for p in PAIRS if (similarity(p["a"], p["b"], p["type"]) >= SAME) != p["same"]]
    assert 1 - len(wrong) / len(PAIRS) >= 0.97, wrong
    by_type = collections.Counter(p["type"] for p in wrong)
    assert all(count <= 0.1 * sum(p["type"] == type for p in PAIRS) for type, count in by_type.items()), wrong


@settings(max_examples=300, deadline=None)
@given(TEXTS, TEXTS, st.sampled_from(TYPES))
def test_symmetric_bounded_and_indexed(a, b, type):
    s = similarity(a, b, type)
    assert 0.0 <= s <= 1.0
    assert s == similarity(b, a, type)
    if s > 0.0:
        assert index_words(a, type) & index_words(b, type)


@given(TEXTS, st.sampled_from(TYPES))
def test_a_text_is_itself_and_a_blank_is_nothing(text, type):
    assert similarity(text, text, type) == (0.0 if is_blank(text) else 1.0)
    assert similarity(text, "", type) == similarity(text, " – ", type) == 0.0


@given(SNIPPETS, st.sampled_from(TYPES))
def test_case_width_and_spaces_change_nothing(text, type):
    wide = "".join(chr(ord(c) + 0xFEE0) if "0" <= c <= "9" else c for c in text)
    assert similarity(wide.replace(" ", "\u00a0"), text, type) == 1.0
    if normalize(text.upper()) == normalize(text):
        assert similarity(text.upper(), text, type) == 1.0


GIVEN = st.sampled_from(["William", "John", "Maria", "Nadine", "Kazuo", "Toni", "Svetlana", "Gabriela"])
FAMILY = st.sampled_from(["Golding", "Coetzee", "Gordimer", "Ishiguro", "Morrison", "Alexievich", "Mistral"])


@given(GIVEN, GIVEN, FAMILY, st.sampled_from(["Sir", "Dr.", "Prof.", "Dame"]))
def test_persons_in_their_usual_forms(first, middle, family, title):
    assume(first != middle)
    full = f"{first} {middle} {family}"
    same = [
        f"{family}, {first} {middle}",
        f"{first[0]}. {middle[0]}. {family}",
        f"{first[0]}{middle[0]} {family}",
        f"{title} {full}",
        f"{first} {family}",
        f"{first} {middle[0]}. {family}",
        f"{full} (novelist)",
        f"{family} {first} {middle}",
    ]
    for form in same:
        assert similarity(full, form, "person") >= SAME, form
    for other in (
        family,
        first,
        f"{full} Jr.",
        f"Zadie {family}",
        f"{first} {middle} Smith",
        f"{full} and Zadie Smith",
    ):
        assert similarity(full, other, "person") < SAME, other


ALTERNATIVES = st.lists(
    st.sampled_from(["Paris", "London", "Rome", "Nairobi", "Quito", "Hanoi"]), min_size=2, max_size=5, unique=True
)


@given(
    ALTERNATIVES,
    st.sampled_from([" or ", ", ", "; ", " / ", " and ", " "]),
    st.sampled_from(["place", "person", "work", "organisation", "country", "text", "thing"]),
)
def test_r1_a_list_of_alternatives_is_none_of_them(names, separator, type):
    assert similarity(separator.join(names), names[0], type) < SAME


UNREADABLE = st.sampled_from(
    ["spring", "early 1990s", "3/5/1991", "unknown", "15th century", "Michaelmas", "12/11/2003"]
)


@given(UNREADABLE, UNREADABLE | st.just("3 May 1991"))
def test_r6_dates_that_cannot_be_read_are_compared_as_text(a, b):
    assert parse_date(a) is None
    assert similarity(a, b, "date") == float(normalize(a) == normalize(b))


@pytest.mark.parametrize(
    ("a", "b", "s"), [("May 1991", "3 May 1991", 0.5), ("1991", "3 May 1991", 0.25), ("3 May 1991", "3 June 1991", 0.0)]
)
def test_a_coarser_date_is_worth_a_part(a, b, s):
    assert similarity(a, b, "date") == s
