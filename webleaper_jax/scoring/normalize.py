"""Normal forms of cell texts, and the numbers, dates and ranges that they spell.

Two texts with the same normal form are the same text for every purpose of scoring. The form folds what carries no
meaning (case, accents, width, kinds of dash and quote, thousands separators) and keeps what does: the point in 3.14,
the minus in -5, the dash in 2-1, the colon in 5:00. A number is parsed only from a text that is a number: a range, a
score or a date is none. A date is parsed only where it can be read in one way: 3/5/1991 is not, and a bare 2020 stays a
year.
"""

import datetime
import math
import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

DASHES = "‐‑‒–—―−﹘﹣－⁃"
_QUOTES = "‘’‚‛ʼʹˈ`´′＇"
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_STROKED = {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ħ": "h", "ı": "i", "æ": "ae", "œ": "oe", "ŋ": "n"}
_ORDINAL_SIGNS = {"ª": "", "º": ""}
# Punctuation that is part of a number is parked in the private use area while the rest is thrown out.
_PARKED = {".": "\ue000", ":": "\ue001", "/": "\ue002", "^": "\ue003", "-": "\ue004"}

_DOTTED = re.compile(r"\b([^\W\d_])\.(?=[^\W\d_]\b)|\b([^\W\d_])\. (?=[^\W\d_]\.)")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!,?\d)")
_SPACED_DASH = re.compile(r"(?<=\d) - (?=\d)")
_BARE_DECIMAL = re.compile(r"(?<![\w.])\.(?=\d)")
_IN_NUMBER = re.compile(r"(?<=\d)[.:/^-](?=\d)|(?<![\w)\]-])-(?=\d)")
_POSSESSIVE = re.compile(r"(?<=\w)'s\b")
_INNER_APOSTROPHE = re.compile(r"(?<=\w)'(?=\w)")
_EXPONENT = re.compile(r"(?<=\d)[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_FRACTION = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])")
_MARKS = re.compile("[\u0300-\u036f]")
_HAN_PLACE = re.compile(r"^[\u4e00-\u9fff]{2,}?(?=[市省县縣県区區都府]+$)")


class _Folding(dict[int, str]):
    """Maps single characters to their folded form, filled in as characters turn up."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if character in DASHES:
            folded = "-"
        elif character in _QUOTES:
            folded = "'"
        elif category == "Nd":
            folded = str(unicodedata.decimal(character))
        elif category == "Zs":
            folded = " "
        elif category == "Cf":
            folded = ""
        elif character == "\u2044":  # the slash inside a vulgar fraction
            folded = "/"
        else:
            folded = _STROKED.get(character, character)
        self[code] = folded
        return folded


class _Punctuation(dict[int, str]):
    """Maps single characters to what stays of them: letters and digits, symbols as words of their own, else a space."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if category[0] in "LNM":
            kept = character
        elif character == "&":
            kept = " and "
        elif character in "#%" or (category[0] == "S" and character not in "|~=<>^`¨´"):
            kept = f" {character} "
        else:
            kept = " "
        self[code] = kept
        return kept


_folding = _Folding()
_punctuation = _Punctuation({ord(parked): mark for mark, parked in _PARKED.items()})


def word_set(words: str) -> frozenset[str]:
    """Returns the set of words that stand in a string, separated by spaces."""
    return frozenset(words.split())


def fold(text: str) -> str:
    """Returns the text in lower case with width, accents, digits, dashes, quotes and spaces folded to plain ones.

    Punctuation stays. `10⁹` becomes `10^9` and `2¾` becomes `2 3/4`, where NFKC alone would give 109 and 23/4.
    """
    if text.isascii():
        return text.lower().replace("`", "'")
    text = _EXPONENT.sub(lambda m: "^" + m.group().translate(_SUPERSCRIPTS), text)
    text = _FRACTION.sub(" ", text)
    for sign, replacement in _ORDINAL_SIGNS.items():
        text = text.replace(sign, replacement)
    text = text.translate(_folding)
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    text = _MARKS.sub("", unicodedata.normalize("NFD", text))
    return unicodedata.normalize("NFC", text).translate(_folding)


def normalize(text: str) -> str:
    """Returns the normal form: folded words separated by single spaces, numbers written one way.

    Idempotent. A text of nothing but punctuation keeps it (the song `?`); only a text of white space becomes empty.
    """
    return _normalize_cell(text) if len(text) <= 200 else _normalize(text)


def _normalize(text: str) -> str:
    folded = fold(text)
    words = folded
    if "'" in words:
        words = _INNER_APOSTROPHE.sub("", _POSSESSIVE.sub(" s", words))
    if "." in words:
        words = _BARE_DECIMAL.sub("0.", _DOTTED.sub(lambda m: m.group(1) or m.group(2), words))
    if "," in words:
        words = _THOUSANDS.sub(lambda m: m.group().replace(",", ""), words)
    words = _SPACED_DASH.sub("-", words)
    words = _IN_NUMBER.sub(lambda m: _PARKED[m.group()], words)
    words = " ".join(words.translate(_punctuation).split())
    if not words:
        return " ".join(folded.split())
    if not words.isascii() and (place := _HAN_PLACE.match(words)):
        return place.group()
    return words


_normalize_cell = lru_cache(maxsize=1 << 16)(_normalize)


@lru_cache(maxsize=1 << 15)
def is_blank(text: str) -> bool:
    """Whether a cell says nothing: no text, or only dashes, dots and underscores."""
    return not fold(text).strip(" \t\r\n-._…")


def strip_notes(text: str) -> str:
    """Returns the text without footnote marks: `[1]`, `[a]`, `[note 2]`, and trailing asterisks and daggers."""
    text = re.sub(r"\[(?:\d{1,3}|[a-z]|(?:note|nb|n) ?\d{1,3}|citation needed)\]", "", text, flags=re.IGNORECASE)
    return re.sub(r"[\s*†‡§]+$", "", text)


# --------------------------------------------------------------------------------------------------------- numbers


class Quantity(NamedTuple):
    """A number and its unit: `unit` is a key of the unit table or of the currencies, "" where the text gives none."""

    value: float
    unit: str


# unit: (dimension, factor to the base unit of that dimension)
UNITS: dict[str, tuple[str, float]] = {
    "%": ("share", 1.0),
    "mm": ("length", 0.001),
    "cm": ("length", 0.01),
    "m": ("length", 1.0),
    "km": ("length", 1000.0),
    "in": ("length", 0.0254),
    "ft": ("length", 0.3048),
    "yd": ("length", 0.9144),
    "mi": ("length", 1609.344),
    "g": ("mass", 0.001),
    "kg": ("mass", 1.0),
    "t": ("mass", 1000.0),
    "lb": ("mass", 0.45359237),
    "m2": ("area", 1.0),
    "km2": ("area", 1e6),
    "ha": ("area", 1e4),
    "acre": ("area", 4046.8564224),
    "sq ft": ("area", 0.09290304),
    "sq mi": ("area", 2589988.110336),
    "m3": ("volume", 1.0),
    "l": ("volume", 0.001),
    "s": ("time", 1.0),
    "min": ("time", 60.0),
    "h": ("time", 3600.0),
    "day": ("days", 1.0),
    "year": ("years", 1.0),
    "km/h": ("speed", 1.0),
    "mph": ("speed", 1.609344),
    "kw": ("power", 1.0),
    "mw": ("power", 1000.0),
    "gw": ("power", 1e6),
    "hp": ("power", 0.74569987),
    "count": ("count", 1.0),
}
_UNIT_NAMES = {
    "percent": "%",
    "per cent": "%",
    "millimetre millimeter": "mm",
    "centimetre centimeter": "cm",
    "metre meter": "m",
    "kilometre kilometer": "km",
    "inch inche": "in",
    "foot feet": "ft",
    "yard": "yd",
    "mile": "mi",
    "gram": "g",
    "kilogram kilo": "kg",
    "tonne ton": "t",
    "pound lb": "lb",
    "m^2 sqm": "m2",
    "km^2": "km2",
    "hectare": "ha",
    "acre": "acre",
    "m^3": "m3",
    "litre liter": "l",
    "sec second": "s",
    "minute": "min",
    "hr hour": "h",
    "day": "day",
    "year yr": "year",
    "kph": "km/h",
    "people inhabitant resident vote seat goal point match game cap floor storey story run win medal time "
    "spectator passenger unit copie student member episode": "count",
}
_PHRASES = {"sq km": "km2", "sq m": "m2", "sq ft": "sq ft", "sq mi": "sq mi", "per cent": "%", "square miles": "sq mi"}
_PHRASES |= {"square kilometres": "km2", "square kilometers": "km2", "square feet": "sq ft", "square metres": "m2"}
_UNIT_BY_NAME = {unit: unit for unit in UNITS if unit != "count"} | _PHRASES
for _names, _unit in _UNIT_NAMES.items():
    for _name in [_names] if " " in _names and _names in _PHRASES else _names.split():
        _UNIT_BY_NAME |= {_name: _unit, f"{_name}s": _unit}

_CURRENCIES = {"$": "$", "us$": "$", "usd": "$", "dollars": "$", "dollar": "$", "€": "€", "eur": "€", "euro": "€"}
_CURRENCIES |= {"euros": "€", "£": "£", "gbp": "£", "¥": "¥", "jpy": "¥", "yen": "¥", "cny": "cny", "rmb": "cny"}
_CURRENCIES |= {"yuan": "cny", "₹": "₹", "inr": "₹", "rs": "₹", "rs.": "₹", "a$": "a$", "aud": "a$", "c$": "c$"}
_CURRENCIES |= {"cad": "c$", "nz$": "nz$", "nzd": "nz$", "hk$": "hk$", "chf": "chf", "sek": "sek", "nok": "nok"}
_CURRENCIES |= {"dkk": "dkk", "₽": "₽", "rub": "₽", "₩": "₩", "krw": "₩", "r$": "r$", "brl": "r$"}
_SCALES = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "mln": 1e6, "mio": 1e6, "billion": 1e9, "bn": 1e9}
_SCALES |= {"trillion": 1e12, "lakh": 1e5, "lakhs": 1e5, "crore": 1e7, "crores": 1e7, "k": 1e3}
_SCALES |= {"千": 1e3, "万": 1e4, "萬": 1e4, "百万": 1e6, "亿": 1e8, "億": 1e8, "兆": 1e12}
_MONEY_SCALES = {"m": 1e6, "b": 1e9, "t": 1e12}
_VULGAR = {"1/4": 0.25, "1/2": 0.5, "3/4": 0.75, "1/3": 1 / 3, "2/3": 2 / 3, "1/8": 0.125, "3/8": 0.375, "5/8": 0.625}
_VULGAR |= {"7/8": 0.875, "1/5": 0.2, "2/5": 0.4, "3/5": 0.6, "4/5": 0.8, "1/6": 1 / 6, "5/6": 5 / 6, "1/7": 1 / 7}
_VULGAR |= {"1/9": 1 / 9, "1/10": 0.1}


def _either(words: dict[str, float] | dict[str, str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


_NUMBER = re.compile(
    rf"""(?P<sign>[+-])?\s?(?P<before>{_either(_CURRENCIES)})?\s?(?P<inner>[+-])?
    (?P<digits>\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)? | \d{{1,3}}(?:[ ']\d{{3}})+(?:[.,]\d+)? | \d{{1,3}}(?:\.\d{{3}})+,\d+
      | \d{{1,3}}(?:\.\d{{3}}){{2,}} | \d+,\d{{1,2}} | \d*\.\d+ | 10\^-?\d{{1,3}} | \d+)
    (?:(?P<space>\s?)(?P<fraction>[1-9]/\d{{1,2}}))?
    (?:e(?P<power>[+-]?\d{{1,3}}) | \s?[x×*·]\s?10\^(?P<ten>-?\d{{1,3}}))?
    (?:\s?(?P<scale>(?:{_either(_SCALES)}|[mbt])(?![a-z0-9^])))?
    (?:[\s-]?(?P<after>{_either(_CURRENCIES)}|{_either(_UNIT_BY_NAME)})\.?)?
    (?P<ordinal>st|nd|rd|th|\.)?""",
    re.VERBOSE,
)
_ABOUT = re.compile(r"^(?:~|≈|c\.|ca\.|circa |about |approx\.|approximately |roughly |#|no\. ?|number )\s*")


@lru_cache(maxsize=1 << 15)
def parse_quantity(text: str) -> Quantity | None:
    """Returns the number with its unit or currency that the whole text spells, or None.

    Reads signs, thousands separators, decimal commas of one or two digits, powers of ten, scale words (million, lakh,
    億), currency before or after, the units of `UNITS`, ordinals, and a number followed by a note in brackets. Ranges,
    scores, times, fractions such as 1/2 and dates are no numbers.
    """
    has_vulgar = any("¼" <= c <= "¾" or "⅐" <= c <= "⅞" for c in text)
    plain = _ABOUT.sub("", strip_notes(fold(text)).strip())
    plain = re.sub(r"(?<=[^\s(])\s*\([^()]*\)$", "", plain)
    match = _NUMBER.fullmatch(plain)
    if match is None:
        if has_vulgar and plain in _VULGAR:
            return Quantity(_VULGAR[plain], "")
        return None
    part = match.groupdict()
    if part["fraction"] and not (has_vulgar and part["space"] and part["fraction"] in _VULGAR):
        return None
    value = _digits_value(part["digits"])
    value += _VULGAR[part["fraction"]] if part["fraction"] else 0.0
    value *= float(f"1e{part['power'] or part['ten'] or 0}")
    money = part["before"] or (part["after"] if part["after"] in _CURRENCIES else None)
    scale, unit = part["scale"], part["after"]
    if scale in _SCALES:
        value *= _SCALES[scale]
    elif scale is not None:
        # A lone m, b or t is a scale beside a currency (£5m) and a unit elsewhere (5 m, 5 t).
        if money:
            value *= _MONEY_SCALES[scale]
        elif unit is None and scale in UNITS:
            unit = scale
        else:
            return None
    if "-" in (part["sign"], part["inner"]):
        value = -value
    if not math.isfinite(value):
        return None
    return Quantity(value, _CURRENCIES[money] if money else _UNIT_BY_NAME[unit] if unit else "")


def _digits_value(digits: str) -> float:
    if "^" in digits:
        return float(f"1e{digits[3:]}")
    digits = digits.replace(" ", "").replace("'", "")
    if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", digits):
        return float(digits.replace(",", ""))
    if digits.count(".") > 1 or ("." in digits and "," in digits):
        digits = digits.replace(".", "")
    return float(digits.replace(",", "."))


def parse_number(text: str) -> float | None:
    """Returns the number that the whole text spells, scale words applied and units left as they are, or None."""
    quantity = parse_quantity(text)
    return None if quantity is None else quantity.value


# ----------------------------------------------------------------------------------------------- dates and ranges


class Date(NamedTuple):
    """A date as far as a text gives it: year (negative before Christ), month and day, None where it does not say."""

    year: int | None
    month: int | None = None
    day: int | None = None


_MONTH_NAMES = (
    "january jan januar janvier enero gennaio janeiro januari",
    "february feb februar fevrier febrero febbraio fevereiro februari",
    "march mar marz mars marzo marco maart",
    "april apr avril abril aprile",
    "may mai mayo maggio maio mei",
    "june jun juni juin junio giugno junho",
    "july jul juli juillet julio luglio julho",
    "august aug aout agosto augustus",
    "september sep sept septembre septiembre settembre setembro",
    "october oct oktober octobre octubre ottobre outubro",
    "november nov novembre noviembre novembro",
    "december dec dezember decembre diciembre dicembre dezembro",
)
MONTHS = {name: number for number, names in enumerate(_MONTH_NAMES, start=1) for name in names.split()}
_WEEKDAY = re.compile(r"^(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\.?,? ")
_CLOCK = re.compile(r"(?<=\d)(?:t| )\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?z?$")
_NUMERIC = re.compile(r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4})")
_YEAR_FIRST = re.compile(r"(\d{4})([/.-])(\d{1,2})\2(\d{1,2})")
_CHINESE = re.compile(r"(\d{4})年(?:(\d{1,2})月(?:(\d{1,2})日)?)?")
_ERA = re.compile(r"(?:(ad|ce) )?(\d{1,4})(?: (bc|bce|ad|ce))?")


@lru_cache(maxsize=1 << 15)
def parse_date(text: str) -> Date | None:
    """Returns the date that the whole text spells in one possible way, or None.

    `3 May 1991`, `May 3, 1991`, `1991-05-03`, `13/5/1991`, `May 1991`, `17 September`, `1991年5月3日`, `1991`, `44 BC`.
    None for `3/5/1991` (two readings), two-digit years, `2004-05` (a season), ranges, and days that do not exist.
    """
    plain = strip_notes(fold(text)).strip()
    plain = re.sub(r"(?<=\w)\s*\([^()]*\)$", "", plain)
    plain = _CLOCK.sub("", _WEEKDAY.sub("", plain)).strip()
    if match := _YEAR_FIRST.fullmatch(plain):
        return _date(int(match[1]), int(match[3]), int(match[4]))
    if match := _NUMERIC.fullmatch(plain):
        first, second, year = int(match[1]), int(match[3]), int(match[4])
        if first <= 12 and second <= 12 and first != second:
            return None
        return _date(year, second, first) if second <= 12 else _date(year, first, second)
    if match := _CHINESE.fullmatch(plain):
        return _date(int(match[1]), int(match[2]) if match[2] else None, int(match[3]) if match[3] else None)
    if match := _ERA.fullmatch(plain.replace(".", "")):
        year, era = int(match[2]), match[1] or match[3]
        if era is None and not 1000 <= year <= 2999:
            return None
        return Date(-year if era in ("bc", "bce") else year)
    return _date_in_words(plain)


def _date_in_words(plain: str) -> Date | None:
    """Reads a date with a month name: at most one day, one month and one year, in an order that people use."""
    words = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", plain.replace(",", " ").replace(".", " "))
    if "-" in words:  # 3-May-1991 is a date, 3-5 May is a range
        words = re.sub(r"(?<=\d)-(?=[a-z])|(?<=[a-z])-(?=\d)", " ", words)
    kinds, day, month, year = "", None, None, None
    for word in words.split():
        if word in ("of", "de", "the"):
            continue
        if word in MONTHS:
            kinds, month = kinds + "m", MONTHS[word]
        elif re.fullmatch(r"\d{1,2}", word):
            kinds, day = kinds + "d", int(word)
        elif re.fullmatch(r"[12]\d{3}", word):
            kinds, year = kinds + "y", int(word)
        else:
            return None
    if kinds not in ("dmy", "mdy", "my", "ym", "ymd", "dm", "md"):
        return None
    return _date(year, month, day)


def _date(year: int | None, month: int | None, day: int | None) -> Date | None:
    try:
        # 2000 is a leap year: a day without a year may be 29 February
        datetime.date(year or 2000, month or 1, day or 1)
    except ValueError:
        return None
    return None if day == 0 or month == 0 or year == 0 else Date(year, month, day)


class Range(NamedTuple):
    """A range of years or numbers; `end` is None where it is still open (`2011-present`)."""

    start: float
    end: float | None


_RANGE = re.compile(r"(?:from )?(\d[\d.,]*) ?(?:-|/| to | until |~) ?(\d[\d.,]*|present|now|incumbent)?")


def parse_range(text: str) -> Range | None:
    """Returns the range that the whole text spells (`1998-99`, `1998 to 1999`, `1939-present`), or None."""
    match = _RANGE.fullmatch(strip_notes(fold(text)).strip())
    if match is None or (match[2] is None and len(match[1]) != 4):
        return None
    start = parse_number(match[1])
    if start is None:
        return None
    if match[2] is None or not match[2][0].isdigit():
        return Range(start, None)
    end_text = match[2]
    if re.fullmatch(r"\d{4}", match[1]) and re.fullmatch(r"\d{2}", end_text):
        # 1998-99 ends in 1999, and 1999-00 in 2000
        century = int(match[1]) // 100
        end_text = f"{century + (int(end_text) <= int(match[1]) % 100):d}{end_text}"
    end = parse_number(end_text)
    return None if end is None else Range(start, end)
