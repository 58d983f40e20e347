"""Normal forms, numbers and dates; cases R4 and R5 as whole kinds."""

import datetime
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from webleaper_jax.scoring.normalize import (
    DASHES,
    MONTHS,
    Date,
    Quantity,
    Range,
    is_blank,
    normalize,
    parse_date,
    parse_number,
    parse_quantity,
    parse_range,
)

WORD = st.text(alphabet="abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8)
TEXTS = st.text(max_size=30) | st.text(alphabet="aZé'’.,-–−0123456789 &/:(北市", max_size=20)


@given(TEXTS)
@example("北京市市")
@example("J. R. R. 1,000,000 - 2 'n' ǅ")
def test_normal_form_is_idempotent_and_blind_to_case(text):
    once = normalize(text)
    assert normalize(once) == once
    assert normalize(unicodedata.normalize("NFD", text)) == normalize(unicodedata.normalize("NFC", text))


@given(st.text(max_size=20))
def test_what_has_a_letter_a_digit_or_ascii_punctuation_has_a_form_and_white_space_has_none(text):
    says = any((unicodedata.category(c)[0] in "LN" and c not in "ªº") or c in "!?*#-" for c in text)
    assert normalize(text) or not says
    assert normalize(" \t\n\u00a0") == ""


@given(WORD, WORD, st.sampled_from("’‘`´ʼ'"), st.sampled_from("–—‐‑-"))
def test_quotes_and_dashes_of_all_kinds_are_one(left, right, quote, dash):
    assert normalize(f"{left}{quote}{right}") == normalize(f"{left}'{right}")
    assert normalize(f"{left}{dash}{right}") == normalize(f"{left}-{right}") == normalize(f"{left} {right}")


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(DASHES))
def test_minus_and_dash_between_numbers_stay(a, b, dash):
    assert normalize(f"{dash}{a}") == f"-{a}" != normalize(str(a))
    assert normalize(f"{a}{dash}{b}") == normalize(f"{a} {dash} {b}") == f"{a}-{b}"


@given(st.integers(0, 10**12), st.integers(0, 99))
def test_thousands_separators_and_digits_of_any_script_are_one_and_points_stay(whole, part):
    assert normalize(f"{whole:,}.{part:02}") == f"{whole}.{part:02}" != normalize(f"{whole}{part:02}")
    for zero in ("０", "٠", "०"):
        written = "".join(chr(ord(zero) + int(digit)) for digit in str(whole))
        assert normalize(written) == str(whole)


@given(WORD)
def test_accents_fold(word):
    accented = unicodedata.normalize("NFC", "".join(c + "\u0301" for c in word))
    assert normalize(accented) == normalize(word.upper()) == word


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("北京市", "北京"),
        ("東京都", "東京"),
        ("J.R.R. Tolkien", "J. R. R. Tolkien"),
        ("U.S.A.", "USA"),
        ("Simon & Schuster", "Simon and Schuster"),
        ("Søren Łódź Æon ß", "Soren Lodz AEon ss"),
        ("don’t", "dont"),
    ],
)
def test_same_form(a, b):
    assert normalize(a) == normalize(b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("3.14", "314"),
        (".300", "300"),
        ("10⁹", "109"),
        ("2¾", "23/4"),
        ("C++", "C"),
        ("-5", "5"),
        ("京都", "京"),
        ("#1", "1"),
    ],
)
def test_different_form(a, b):
    assert normalize(a) != normalize(b)


@pytest.mark.parametrize(
    ("text", "blank"), [("", True), (" — ", True), ("…", True), ("?", False), ("0", False), ("−", True)]
)
def test_blank(text, blank):
    assert is_blank(text) is blank


@given(st.floats(-1e9, 1e9, allow_nan=False).map(lambda x: round(x, 3)))
def test_numbers_are_read_back(value):
    assert parse_number(f"{value:,.3f}") == pytest.approx(value)
    assert parse_number(f"{value:.3f}".replace("-", "−")) == pytest.approx(value)
    assert parse_number(f"{abs(value):,.3f} km") == pytest.approx(abs(value))


@given(
    st.integers(1, 999),
    st.sampled_from(
        [("thousand", 1e3), ("million", 1e6), ("billion", 1e9), ("bn", 1e9), ("lakh", 1e5), ("万", 1e4), ("億", 1e8)]
    ),
    st.sampled_from(["$", "€", "£", "US$", "₹", ""]),
)
def test_scale_words_and_currencies(count, scale, currency):
    word, factor = scale
    assert parse_number(f"{currency}{count}.5 {word}") == pytest.approx((count + 0.5) * factor)


@given(st.integers(1000, 2030), st.integers(0, 60), st.sampled_from(DASHES + "/"))
def test_a_range_is_no_number_and_no_date(start, length, dash):
    text = f"{start}{dash}{start + length}"
    assert parse_number(text) is None
    assert parse_date(text) is None
    assert parse_range(text) == Range(start, start + length)
    if length:
        assert parse_range(f"{start}{dash}{(start + length) % 100:02}") == Range(start, start + length)


@pytest.mark.parametrize(
    "text",
    ["5:00", "1/2", "2-1", "10 of 12", "3 Idiots", "20th century", "17 September", "", "abc", "1e999", "v2", "1,23,4"],
)
def test_what_is_no_number(text):
    assert parse_number(text) is None


@pytest.mark.parametrize(
    ("text", "quantity"),
    [
        ("$1.2 billion", Quantity(1.2e9, "$")),
        ("£5m", Quantity(5e6, "£")),
        ("5 m", Quantity(5, "m")),
        ("5 km", Quantity(5, "km")),
        ("8,848 m (29,029 ft)", Quantity(8848, "m")),
        ("1.234,56", Quantity(1234.56, "")),
        ("1.2×10⁹", Quantity(1.2e9, "")),
        ("2½", Quantity(2.5, "")),
        ("12.5 %", Quantity(12.5, "%")),
        ("about 40[1]", Quantity(40, "")),
        ("1,326 votes", Quantity(1326, "count")),
        ("21st", Quantity(21, "")),
    ],
)
def test_quantities(text, quantity):
    assert parse_quantity(text) == quantity


# ------------------------------------------------------------------------------------------------------------ dates


@given(st.dates(min_value=datetime.date(1000, 1, 1), max_value=datetime.date(2999, 12, 31)))
def test_every_way_to_write_a_date_is_read_and_two_readings_are_none(day):
    expected = Date(day.year, day.month, day.day)
    for form in (
        "{d} {B} {Y}",
        "{B} {d}, {Y}",
        "{b}. {d}, {Y}",
        "{d}th of {B}, {Y}",
        "{Y}-{m:02}-{d:02}",
        "{Y} {B} {d}",
        "{Y}年{m}月{d}日",
    ):
        names = {number: name for name, number in reversed(MONTHS.items())}
        text = form.format(
            d=day.day, m=day.month, Y=day.year, B=names[day.month].title(), b=names[day.month][:3].title()
        )
        assert parse_date(text) == expected, text
    numeric = parse_date(f"{day.day}/{day.month}/{day.year}")
    ambiguous = day.day <= 12 and day.day != day.month
    assert numeric == (None if ambiguous else expected)


@pytest.mark.parametrize(
    "text",
    [
        "30 February 2001",
        "31/4/1999",
        "2004-05",
        "Sep 28 - Oct 1, 2017",
        "3/5/91",
        "15th century",
        "1990s",
        "May",
        "8848",
        "3–5 May 1991",
        "",
    ],
)
def test_what_is_no_date(text):
    assert parse_date(text) is None


@given(st.integers(1000, 2999))
def test_a_bare_year_stays_a_year(year):
    assert parse_date(str(year)) == Date(year, None, None)


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("May 1991", Date(1991, 5)),
        ("17 September", Date(None, 9, 17)),
        ("44 B.C.", Date(-44)),
        ("AD 79", Date(79)),
        ("3 de mayo de 1991", Date(1991, 5, 3)),
        ("Friday, May 3, 1991 (age 22)", Date(1991, 5, 3)),
    ],
)
def test_partial_and_foreign_dates(text, date):
    assert parse_date(text) == date


@pytest.mark.parametrize(
    ("text", "range_"),
    [
        ("1998–99", Range(1998, 1999)),
        ("1999-00", Range(1999, 2000)),
        ("1939–present", Range(1939, None)),
        ("1998 to 2003", Range(1998, 2003)),
        ("1998", None),
    ],
)
def test_ranges(text, range_):
    assert parse_range(text) == range_
