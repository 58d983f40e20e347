"""What a column says: its header as a standardised relation name, the type of its values, the domain of its entities.

The three make the triple `(name, type, domain)` that unions compare (paper A.5). Names come from `synonyms.toml`, which
people may edit; types come from the values first (a `Place` column may hold ranks or towns) and from the header next;
domains from the header, else from the title of the table. Rules only: no model is asked.
"""

import dataclasses
import functools
import pathlib
import re
import tomllib
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import pycountry

from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Cell, Relation, Table

T = TypeVar("T")

SYNONYMS = pathlib.Path(__file__).with_name("synonyms.toml")

ENTITY_TYPES = frozenset({"person", "organisation", "place", "country", "work", "event", "thing"})
TYPES = ENTITY_TYPES | {"date", "year", "range", "number", "rank", "score", "text"}

_MOST = 0.8  # share of a column's non-empty cells that must look alike
_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_MONTH = rf"\b({_MONTHS}|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)\b\.?"
_DASH = r"\s?[-–—−/]\s?"
_SHAPES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("year", re.compile(r"(c\. ?)?(1[0-9]|20)\d\d( ?\(.*\))?")),
    ("range", re.compile(rf"(c\. ?)?(1[0-9]|20)\d\d{_DASH}((1[0-9]|20)?\d\d|present|now|date)?( ?\(.*\))?", re.I)),
    (
        "date",
        re.compile(
            rf".{{0,12}}{_MONTH}.{{0,3}}\d.{{0,24}}|.{{0,12}}\d.{{0,5}}{_MONTH}.{{0,24}}|\d{{4}}-\d\d-\d\d|\d\d?[./]\d\d?[./]\d{{2,4}}",
            re.I,
        ),
    ),
    ("rank", re.compile(r"=?T?\d{1,3}(st|nd|rd|th)=?( \(.*\))?|T\d{1,3}|DN[FS]|\d{1,3}=", re.I)),
    ("score", re.compile(rf"([WLDT],? ?)?\d{{1,3}}{_DASH}\d{{1,3}}({_DASH}\d{{1,3}})?( ?\(.*\))?([,;] .*)?", re.I)),
    (
        "number",
        re.compile(
            r"[<>~≈+−–-]? ?[$£€¥#]? ?\.?\d[\d,. ]*(%|°)?( ?(million|billion|m|k|km²?|ft|kg|lb|cm|mm|mi|s))?"
            r"( ?\(.*\))?( [\d,.]+ (ft|mi))?",
            re.I,
        ),
    ),
)
_NUMERIC = frozenset({"year", "range", "date", "rank", "score", "number"})
_PARTICLES = frozenset(
    ["de", "da", "do", "dos", "du", "van", "von", "der", "den", "la", "le", "el", "al", "bin", "y", "di", "of"]
)
_ORGANISATION = re.compile(
    r"\b(F\.?C\.?|A\.?C\.?|S\.?C\.?|B\.?C\.?|club|team|university|college|school|institute|party|union|company|inc|ltd|"
    r"corporation|records|league|association|federation|football|basketball|united|city|rovers|athletic)\b",
    re.I,
)
_PLACE = re.compile(
    r"\b(stadium|arena|park|river|lake|mount|mountain|city|county|airport|bridge|church|island|islands|province|"
    r"building|house|hall|castle|station|road|street|valley|tower)\b",
    re.I,
)


@dataclasses.dataclass(frozen=True)
class Synonyms:
    """The contents of a synonym file, ready for look-ups."""

    relations: dict[str, tuple[str, str, str]]  # normalised header -> name, type, domain
    domains: tuple[tuple[str, str, re.Pattern[str]], ...]  # type, domain, pattern over the title
    listed: tuple[tuple[str, str, re.Pattern[str]], ...]  # type, domain, pattern over the title
    generic: frozenset[str]
    countries: frozenset[str]


class _Entry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An entry of a synonym file."""


class _Named(_Entry):
    """A relation, and the normalised headers that mean it."""

    name: str
    type: str
    headers: list[str]
    domain: str = ""


class _DomainRule(_Entry):
    """The domain of a column of type `when` whose table's title fits the pattern."""

    when: str
    domain: str
    pattern: str


class _ListedRule(_Entry):
    """Type and domain of a column with a generic header whose table's title fits the pattern."""

    type: str
    domain: str
    pattern: str


@functools.cache
def load_synonyms(path: pathlib.Path = SYNONYMS) -> Synonyms:
    """Reads a synonym file.

    Raises:
      DataError: no such file, no TOML, or an entry that is wrong: a field missing, unknown or of another kind, a type
        that is none, a bad pattern, or a header that two relations list.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file (it should hold the header synonyms)") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: no valid TOML: {error}") from None
    relations: dict[str, tuple[str, str, str]] = {}
    for entry in _entries(path, data, "relation", _Named):
        if entry.type not in TYPES | {"auto"}:
            raise DataError(
                f"{path}: relation {entry.name!r}, field `type` is {entry.type!r}; use one of {sorted(TYPES)}"
            )
        for header in entry.headers:
            if relations.setdefault(header, (entry.name, entry.type, entry.domain))[0] != entry.name:
                raise DataError(f"{path}: header {header!r} stands under two relations; leave it under one")
    domains, listed = _entries(path, data, "domain", _DomainRule), _entries(path, data, "listed", _ListedRule)
    return Synonyms(
        relations=relations,
        domains=tuple((rule.when, rule.domain, _pattern(path, "domain", rule.pattern)) for rule in domains),
        listed=tuple((rule.type, rule.domain, _pattern(path, "listed", rule.pattern)) for rule in listed),
        generic=frozenset(_entries(path, data, "generic", str)),
        countries=_country_names() | {_fold(name) for name in _entries(path, data, "countries", str)},
    )


def column_relations(table: Table, synonyms: Synonyms | None = None) -> tuple[Relation, ...]:
    """Returns one relation a column, in column order, with names that are unique within the table.

    Where two columns would share a name (two `Population` columns of different years), all of them keep their own
    header in lower case instead, numbered if even those are equal.
    """
    synonyms = synonyms or load_synonyms()
    found = [_relation(table, c, synonyms) for c in range(len(table.columns))]
    names = [r.name for r in found]
    own = [r.name if names.count(r.name) == 1 else _own_name(table.columns[r.column]) for r in found]
    unique = [name if own.count(name) == 1 else f"{name} {own[: i + 1].count(name)}" for i, name in enumerate(own)]
    return tuple(
        Relation(name=name, type=r.type, domain=r.domain, column=r.column)
        for name, r in zip(unique, found, strict=True)
    )


def normalize_header(header: str) -> str:
    """Returns the header in lower case, without brackets, footnote signs and outer punctuation; years become `{y}`."""
    text = unicodedata.normalize("NFKC", header).lower()
    text = re.sub(r"\s*\([^)]*\)?|\s*\[[^\]]*\]?", "", text)
    text = re.sub(r"\b(1[0-9]|20)\d\d([-–/]\d{2,4})?\b", "{y}", text)
    return re.sub(r"\s+", " ", text).strip(" :;.,*†‡#") or text.strip()


def value_type(texts: Sequence[str]) -> str:
    """Returns the type that most of the non-empty texts have by their shape, `text` if none does."""
    texts = [text.strip() for text in texts if text.strip()]
    if not texts:
        return "text"
    counts = {shape: sum(bool(pattern.fullmatch(text)) for text in texts) for shape, pattern in _SHAPES}
    for shape, count in counts.items():
        if count >= _MOST * len(texts):
            return shape
    if counts["year"] + counts["range"] >= _MOST * len(texts):
        return "range"
    return "text"


def is_country(text: str, synonyms: Synonyms | None = None) -> bool:
    """Whether the text names a country, by ISO 3166 name or code or by the synonym file."""
    return _fold(text) in (synonyms or load_synonyms()).countries


def looks_like_person(text: str) -> bool:
    """Whether the text has the shape of a person's name: two to five capitalised words, no digits, no club or place."""
    words = text.replace("-", " ").split()
    if not 2 <= len(words) <= 5 or re.search(r"[\d/:;&@()]", text) or _ORGANISATION.search(text) or _PLACE.search(text):
        return False
    return words[0][0].isupper() and all(w[0].isupper() or w.lower() in _PARTICLES for w in words)


def _relation(table: Table, column: int, synonyms: Synonyms) -> Relation:
    header = normalize_header(table.columns[column])
    cells = [row[column] for row in table.rows if row[column].text]
    name, declared, domain = _look_up(header, synonyms)
    shape = value_type([cell.text for cell in cells])
    if shape in _NUMERIC and not (shape == "score" and declared in ENTITY_TYPES):
        # a `Winners` column of numbers counts wins; `Year` holding `1990-91` is still a year's range
        return Relation(
            name=_numeric_name(name, declared, shape, header), type=_numeric_type(declared, shape), column=column
        )
    type_ = declared
    title = " ".join((table.page_title, table.section_title, table.caption))
    if header in synonyms.generic:
        listed = next(((t, d) for t, d, pattern in synonyms.listed if pattern.search(title)), None)
        type_, domain = listed or ("auto", "")
    if type_ == "auto":
        type_ = "text" if name in ("position", "previous position") else _entity_type(cells, synonyms)
        if name == "opponent" and type_ == "thing":
            type_ = "organisation"
    if type_ == "country" and not _mostly(cells, lambda c: _names_country(c, synonyms), 0.5):
        type_, domain = "text", ""  # a header says country, the cells do not
    if type_ in _NUMERIC:
        type_ = "text"  # the header says number or date, the values do not
    if type_ in ENTITY_TYPES and not domain:
        domain = next((d for when, d, pattern in synonyms.domains if when == type_ and pattern.search(title)), type_)
    return Relation(name=name, type=type_, domain=domain, column=column)


def _look_up(header: str, synonyms: Synonyms) -> tuple[str, str, str]:
    """Returns name, declared type and domain; a header that no relation lists is its own name, of type text."""
    for form in (header, header.removesuffix("s"), header.replace("{y}", "").strip()):
        if form in synonyms.relations:
            return synonyms.relations[form]
    return (header.replace("{y}", "").strip() or "value", "text", "")


def _numeric_name(name: str, declared: str, shape: str, header: str) -> str:
    """Returns the name of a column of numbers or dates: an entity's name does not fit it, its own header does."""
    if name == "position":
        return "rank" if shape in ("rank", "number") else name
    return name if declared in _NUMERIC or name == "previous position" else header or name


def _numeric_type(declared: str, shape: str) -> str:
    if declared == "rank" and shape == "number":
        return "rank"
    if declared == "number" and shape in ("score", "year", "rank"):
        return "number"
    return shape


def _entity_type(cells: Sequence[Cell], synonyms: Synonyms) -> str:
    """Returns country, person, organisation, place or thing, whichever most cells look like."""
    if _mostly(cells, lambda c: is_country(c.text, synonyms), 0.6):
        return "country"
    if _mostly(cells, lambda c: looks_like_person(_without_brackets(c.text)), 0.6):
        return "person"
    if _mostly(cells, lambda c: bool(_ORGANISATION.search(" ".join((c.text, *c.links)))), 0.5):
        return "organisation"
    if _mostly(cells, lambda c: bool(_PLACE.search(" ".join((c.text, *c.links)))), 0.5):
        return "place"
    return "thing"


def _mostly(cells: Sequence[Cell], test: Callable[[Cell], bool], share: float) -> bool:
    return bool(cells) and sum(map(test, cells)) >= share * len(cells)


def _names_country(cell: Cell, synonyms: Synonyms) -> bool:
    parts = re.split(r",|/| and ", cell.text)
    return any(is_country(part, synonyms) for part in (*parts, *cell.links))


def _own_name(header: str) -> str:
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", header).lower()).strip(" :;.,*†‡") or "value"


def _without_brackets(text: str) -> str:
    return re.sub(r"\s*[(\[][^)\]]*[)\]]", "", text).strip()


def _entries(path: pathlib.Path, data: Mapping[str, Any], field: str, kind: type[T]) -> list[T]:
    """The entries of a list in a synonym file. Raises `DataError` that names the one that is wrong."""
    listed = data.get(field, [])
    if not isinstance(listed, list):
        raise DataError(f"{path}: `{field}` is {listed!r}; a list of entries is needed")
    entries = []
    for number, entry in enumerate(listed, start=1):
        try:
            entries.append(msgspec.convert(entry, kind))
        except msgspec.ValidationError as error:
            raise DataError(f"{path}: `{field}`, entry {number} ({str(entry)[:60]}): {error}") from None
    return entries


def _pattern(path: pathlib.Path, field: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.I)
    except re.error as error:
        raise DataError(f"{path}: `{field}`, pattern {pattern!r} is no regular expression: {error}") from None


def _fold(text: str) -> str:
    text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return re.sub(r"\s+", " ", _without_brackets(text)).strip(" .*†").casefold()


def _country_names() -> frozenset[str]:
    fields = ("name", "common_name", "official_name", "alpha_3")
    return frozenset(_fold(getattr(c, f)) for c in pycountry.countries for f in fields if hasattr(c, f))
