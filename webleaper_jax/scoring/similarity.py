"""How alike two cells are, by the type of the ground truth: the paper's s(e_o, e_r) in [0, 1] (section 3.3).

Near-exact for names, normalised comparison for numbers, dates, years, ranges, ranks and scores, word overlap for free
text. Rules only; abstract concepts that need a judge are compared as text here. Symmetric; 1 for a text and
itself; 0 for a blank, whatever it is compared with.
"""

import math
import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

from webleaper_jax.scoring import names
from webleaper_jax.scoring.countries import country_code
from webleaper_jax.scoring.names import SAME
from webleaper_jax.scoring.normalize import (
    UNITS,
    Date,
    Quantity,
    fold,
    is_blank,
    normalize,
    parse_date,
    parse_quantity,
    parse_range,
    strip_notes,
    word_set,
)

__all__ = ["SAME", "index_words", "similarity"]

_STOP_WORDS = word_set("the a an of and or in on at for to by with")
_NEGATIONS = word_set("not no non never without neither nor dont isnt wasnt cannot un")
_TEXT_OVERLAP = 0.75  # word overlap (F1) below which two texts have nothing to do with each other
_RANK_WORDS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8}
_RANK_WORDS |= {"ninth": 9, "tenth": 10, "winner": 1, "champion": 1, "champions": 1, "runner up": 2, "runners up": 2}


def similarity(a: str, b: str, type: str) -> float:
    """Returns how alike two cell texts are as values of `type`, in [0, 1]; from `SAME` on they count as one.

    Args:
      type: person, organisation, place, country, work, event, thing, date, year, range, number, rank, score or text;
        a type that is not known is compared as text.
    """
    if is_blank(a) or is_blank(b):
        return 0.0
    if a == b or normalize(a) == normalize(b):
        return 1.0
    compare = _BY_TYPE.get(type, _text)
    return _compared(compare, *sorted((a, b)))


@lru_cache(maxsize=1 << 17)
def _compared(compare: Callable[[str, str], float], a: str, b: str) -> float:
    bare_a, bare_b = strip_notes(a), strip_notes(b)
    if normalize(bare_a) == normalize(bare_b) and not is_blank(bare_a):
        return 1.0
    return compare(a, b)


# ------------------------------------------------------------------------------------------- numbers, dates, ranks


def _number(a: str, b: str) -> float:
    x, y = parse_quantity(a), parse_quantity(b)
    return _same_quantity(x, y) if x and y else 0.0


def _same_quantity(x: Quantity, y: Quantity) -> float:
    """Equal numbers, with equal units where both have one; 0.1 % apart at most where units of one dimension differ."""
    if not x.unit or not y.unit or x.unit == y.unit:
        return float(math.isclose(x.value, y.value, rel_tol=1e-9))
    if x.unit not in UNITS or y.unit not in UNITS or UNITS[x.unit][0] != UNITS[y.unit][0]:
        return 0.0
    x_base, y_base = x.value * UNITS[x.unit][1], y.value * UNITS[y.unit][1]
    return 0.95 if math.isclose(x_base, y_base, rel_tol=1e-3) else 0.0


def _date(a: str, b: str) -> float:
    x, y = parse_date(a), parse_date(b)
    return _same_date(x, y) if x and y else 0.0


def _same_date(x: Date, y: Date) -> float:
    """1 for the same date; half, or a quarter, where one leaves out the day, or day and month; else 0."""
    if x == y:
        return 1.0
    if (
        any(p is not None and q is not None and p != q for p, q in zip(x, y, strict=True))
        or x.year is None
        or y.year is None
    ):
        return 0.0
    return 0.5 if x.month and y.month else 0.25


def _year(a: str, b: str) -> float:
    """Years as numbers; a full date stands for its year, a range does not, and two ranges compare as ranges."""
    x, y = (parse_date(re.sub(r"^(?:c\.|ca\.|circa) ?", "", fold(text))) for text in (a, b))
    if x and y:
        return float(x.year == y.year and x.year is not None)
    return _range(a, b)


def _range(a: str, b: str) -> float:
    x, y = parse_range(a), parse_range(b)
    return float(x == y) if x and y else _number(a, b)


def _rank(a: str, b: str) -> float:
    x, y = _rank_of(a), _rank_of(b)
    return float(x == y) if x is not None and y is not None else 0.0


def _rank_of(text: str) -> float | None:
    """`1`, `1st`, `#1`, `T1`, `=1`, `1=`, `first` and `winner` are all 1."""
    words = normalize(strip_notes(text))
    if words in _RANK_WORDS:
        return _RANK_WORDS[words]
    quantity = parse_quantity(re.sub(r"^\s*(?:t-?|=)(?=\d)|(?<=\d)\s*(?:=|t)\s*$", "", fold(text)))
    return quantity.value if quantity and not quantity.unit else None


def _score(a: str, b: str) -> float:
    """Results such as `2-1`: sides in order, `:` and `-` alike; notes (after extra time) may be left out of one."""
    (x, note_x), (y, note_y) = _score_of(a), _score_of(b)
    if x != y or not x:
        return _number(a, b)
    return 1.0 if note_x == note_y else 0.9 if not note_x or not note_y else 0.0


@lru_cache(maxsize=1 << 13)
def _score_of(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"([wldt]?),? ?(\d+)\s*[-:]\s*(\d+)((?:\s*[-:]\s*\d+)*)\W*(.*?)\W*", fold(text))
    if match is None:
        return "", ""
    rest = re.sub(r"\D+", "-", match[4])
    return f"{int(match[2])}-{int(match[3])}{rest}", normalize(f"{match[1]} {match[5]}")


# ------------------------------------------------------------------------------------------------- names and texts


def _country(a: str, b: str) -> float:
    """By code where either text names a country: a list of countries is none of them. Other states as places."""
    x, y = country_code(a), country_code(b)
    return float(x == y) if x or y else names.place(a, b)


def _text(a: str, b: str) -> float:
    """Word overlap (F1) of at least three quarters, with the same numbers, negations and number of listed items.

    Texts that are numbers or dates compare as such.
    """
    if (x := parse_quantity(a)) and (y := parse_quantity(b)):
        return _same_quantity(x, y)
    if (p := parse_date(a)) and (q := parse_date(b)):
        return float(p == q)
    words_a, words_b = _text_words(a), _text_words(b)
    if "".join(words_a.elements()) == "".join(words_b.elements()):
        return 0.95
    for kept in (_has_digit, _NEGATIONS.__contains__):
        if Counter(filter(kept, words_a.elements())) != Counter(filter(kept, words_b.elements())):
            return 0.0
    overlap = 2 * (words_a & words_b).total() / max(1, words_a.total() + words_b.total())
    if overlap < 1.0 and _items(a) != _items(b):
        return 0.0
    return 0.95 * overlap if overlap >= _TEXT_OVERLAP else 0.0


@lru_cache(maxsize=1 << 14)
def _text_words(text: str) -> Counter[str]:
    words = normalize(strip_notes(text)).split()
    kept = [word for word in words if word not in _STOP_WORDS] or words
    return Counter(word[:-1] if len(word) > 4 and word[-1] == "s" and word[-2] != "s" else word for word in kept)


def _has_digit(word: str) -> bool:
    return any(character.isdigit() for character in word)


def _items(text: str) -> int:
    """How many items a text lists."""
    return len([item for item in re.split(r"[,;/&\n]|\b(?:and|or)\b", fold(text)) if item.strip()])


_BY_TYPE: dict[str, Callable[[str, str], float]] = {
    "person": names.person,
    "organisation": names.organisation,
    "place": _country,
    "country": _country,
    "work": names.work,
    "event": names.event,
    "thing": names.work,
    "date": _date,
    "year": _year,
    "range": _range,
    "number": _number,
    "rank": _rank,
    "score": _score,
}
_NAME_TYPES = frozenset({"person", "organisation", "place", "country", "work", "event", "thing"})
_ANY = frozenset({""})


def index_words(text: str, type: str) -> frozenset[str]:
    """Words under which to look a text up among others of its type: a pair that is alike at all shares one of them."""
    if type not in _NAME_TYPES:
        return _ANY
    words = names.person_index(text) if type == "person" else names.title_index(text)
    code = country_code(text) if type in ("country", "place") else None
    return words | {normalize(text), normalize(strip_notes(text))} | ({code} if code else set())
