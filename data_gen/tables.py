"""Cleaning tables by the rules of the paper's appendix A.4, with a reason for every table, column and row that goes.

1. Size: 10 to 200 rows and 3 to 20 columns, counted after cleaning.
2. Semantics and structure: serial numbers, notes, references and images go, so do rows of totals, repeated headers and
   legends; tables with serious formatting errors (ragged rows, repeated headers, many merged cells) go as a whole.
3. Isomorphism (groups of tables that share their headers) is left to the trees: here nothing is dropped for it.

Cells are tidied: one line, no footnote signs, dashes that stand for "nothing" emptied. What a cell says is not changed
but in two places: an opponent's column loses `at`, `vs.` and rankings (`at #4 Georgia Tech`), and a column of names
loses running counts (`Joanne Mills (7)`), so that an entity has one name. Cleaning what is clean changes nothing.
"""

import dataclasses
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from webleaper_jax.records import AtLeast0, Cell, Share, Table

Row = tuple[Cell, ...]
Reason = Literal[
    "too_few_rows", "too_many_rows", "too_few_columns", "too_many_columns", "ragged", "duplicate_header",
    "merged_cells", "duplicate_table", "serial", "notes", "reference", "image", "empty", "prose", "no_header",
    "duplicate_column", "total", "legend", "repeated_header", "one_cell", "duplicate_row", "no_key", "vacant_key",
]  # fmt: skip


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """Something left out: of which table (its id as it came in, its title), what (`table`, `column 3 (Notes)`,
    `row 12`, counted from 0 in the table as it came in), and why."""

    id: str
    title: str
    what: str
    reason: Reason

    @property
    def kind(self) -> str:
        """`table`, `column`, `row` or `key`."""
        return self.what.split(" ", 1)[0]


class Cleaned(msgspec.Struct, frozen=True):
    """The tables that are left, in the order in which they came, and everything that was dropped."""

    tables: list[Table]
    drops: list[Drop]

    def counts(self) -> dict[str, int]:
        """Returns how often each kind and reason occurs, as `column: serial`, sorted, for a report of the yield."""
        return dict(sorted(Counter(f"{drop.kind}: {drop.reason}" for drop in self.drops).items()))


@dataclasses.dataclass(frozen=True)
class TableRules:
    """Limits of A.4 (sizes after cleaning) and what counts as empty, as prose, and as many merged cells."""

    min_rows: AtLeast0 = 10
    max_rows: AtLeast0 = 200
    min_columns: AtLeast0 = 3
    max_columns: AtLeast0 = 20
    empty_share: Share = 0.9  # a column is empty when at least this share of its cells is
    prose_length: AtLeast0 = 80  # median characters from which a column is prose
    merged_share: Share = 0.3  # share of rows with a run of three equal texts that makes a table garbled


def clean_tables(tables: Iterable[Table], rules: TableRules = TableRules()) -> Cleaned:
    """Cleans tables; each comes back under a new id (its content has changed) or is dropped with a reason.

    Titles of the tables that are left are unique: the caption becomes the shortest label that tells the tables of one
    page apart, numbered where the page itself gives nothing to tell them apart.
    """
    kept: list[Table] = []
    drops: list[Drop] = []
    seen: set[_Signature] = set()
    for table in tables:
        cleaned, gone = _clean_table(table, rules)
        drops.extend(Drop(id=table.id, title=table.title, what=what, reason=reason) for what, reason in gone)
        if cleaned is None:
            continue
        signature = _signature(cleaned)
        if signature in seen:
            drops.append(Drop(id=table.id, title=table.title, what="table", reason="duplicate_table"))
            continue
        seen.add(signature)
        kept.append(cleaned)
    return Cleaned(_with_unique_titles(kept), drops)


def _clean_table(table: Table, rules: TableRules) -> tuple[Table | None, list[tuple[str, Reason]]]:
    gone: list[tuple[str, Reason]] = []
    width = len(table.columns)
    rows: dict[int, Row] = {i: tuple(map(_tidy, row)) for i, row in enumerate(table.rows)}
    for i, row in list(rows.items()):
        if len(row) == 1 and width > 1:  # a legend across the table
            gone.append((f"row {i}", "legend"))
            del rows[i]
    if any(len(row) != width for row in rows.values()):
        return None, [*gone, ("table", "ragged")]
    header = tuple(_one_line(text) for text in table.columns)
    columns = list(range(width))
    while True:  # a row that goes may leave a column empty, and the other way round
        rows = dict(zip(rows, _tidy_columns(header, list(rows.values())), strict=True))
        bad_rows = _bad_rows(header, rows, columns)
        for i, row_reason in bad_rows:
            gone.append((f"row {i}", row_reason))
            del rows[i]
        bad_columns = _bad_columns(header, list(rows.values()), columns, rules)
        for c, column_reason in bad_columns:
            gone.append((f"column {c} ({header[c]})", column_reason))
            columns.remove(c)
        if not bad_rows and not bad_columns:
            break
    names = tuple(header[c] for c in columns)
    body = [tuple(row[c] for c in columns) for row in rows.values()]
    reason = _table_fault(names, body, rules)
    if reason:
        return None, [*gone, ("table", reason)]
    return msgspec.structs.replace(table, id="", columns=names, rows=tuple(body)), gone


def _table_fault(header: Sequence[str], rows: Sequence[Row], rules: TableRules) -> Reason | None:
    if len({name.casefold() for name in header}) < len(header):
        return "duplicate_header"
    if len(rows) < rules.min_rows:
        return "too_few_rows"
    if len(rows) > rules.max_rows:
        return "too_many_rows"
    if len(header) < rules.min_columns:
        return "too_few_columns"
    if len(header) > rules.max_columns:
        return "too_many_columns"
    if sum(map(_has_merged_run, rows)) > rules.merged_share * len(rows):
        return "merged_cells"
    return None


# ------------------------------------------------------------------------------------------------------------- rows


def _bad_rows(header: Sequence[str], rows: dict[int, Row], columns: Sequence[int]) -> list[tuple[int, Reason]]:
    bad: list[tuple[int, Reason]] = []
    seen: set[tuple[str, ...]] = set()
    for i, row in rows.items():
        texts = tuple(row[c].text for c in columns)
        reason = _row_fault([header[c] for c in columns], texts)
        if reason is None and texts in seen:
            reason = "duplicate_row"
        if reason:
            bad.append((i, reason))
        seen.add(texts)
    return bad


def _row_fault(header: Sequence[str], texts: Sequence[str]) -> Reason | None:
    filled = [text for text in texts if text]
    if not filled:
        return "empty"
    if len(texts) >= 3 and len(filled) >= 3 and len(set(filled)) == 1 and not filled[0].replace(".", "").isdigit():
        return "legend"  # one text across the table
    equal = sum(bool(t) and t.casefold() == h.casefold() for t, h in zip(texts, header, strict=True))
    if equal >= max(2, 0.6 * len(texts)):
        return "repeated_header"
    if any(re.fullmatch(r"(grand |overall )?totals?( \(\d+ .*\))?:?", text, re.I) for text in texts[:2]):
        return "total"
    if len(filled) == 1 and len(texts) >= 3:
        return "one_cell"
    return None


def _has_merged_run(row: Row) -> bool:
    """Whether three neighbours hold one same text of letters, as a cell merged across columns leaves behind."""
    texts = [cell.text for cell in row]
    return any(
        a == b == c and len(a) > 3 and any(ch.isalpha() for ch in a)
        for a, b, c in zip(texts, texts[1:], texts[2:], strict=False)
    )


# ---------------------------------------------------------------------------------------------------------- columns

_SERIAL = re.compile(r"(#|№|nos?|nr|num|number|s\.? ?no|s/n|sl\.? no|serial( no)?)?\.?", re.I)
_NAMED: tuple[tuple[Reason, re.Pattern[str]], ...] = (
    ("notes", re.compile(r"(foot)?notes?( ?\(s\))?|remarks?|comments?|note \(s\)", re.I)),
    ("reference", re.compile(r"refs?\.?|references?|sources?|citations?|cite|reference and .*", re.I)),
    (
        "image",
        re.compile(r"images?|photos?|photographs?|pictures?|flag|logo|portrait|coat of arms|map( \(.*\))?", re.I),
    ),
)


def _bad_columns(
    header: Sequence[str], rows: Sequence[Row], columns: Sequence[int], rules: TableRules
) -> list[tuple[int, Reason]]:
    bad: list[tuple[int, Reason]] = []
    seen: set[tuple[str, ...]] = set()
    for c in columns:
        texts = [row[c].text for row in rows]
        reason = _column_fault(header[c], texts, rules)
        signature = (header[c].casefold(), *texts)
        if reason is None and signature in seen:
            reason = "duplicate_column"
        seen.add(signature)
        if reason:
            bad.append((c, reason))
    return bad


def _column_fault(header: str, texts: Sequence[str], rules: TableRules) -> Reason | None:
    for reason, pattern in _NAMED:
        if pattern.fullmatch(header):
            return reason
    filled = [text for text in texts if text]
    if texts and len(texts) - len(filled) >= rules.empty_share * len(texts):
        return "empty"
    if _SERIAL.fullmatch(header) and _counts_up(filled):
        return "serial"
    if not header.strip(" #"):
        return "no_header"
    if filled and sorted(map(len, filled))[len(filled) // 2] >= rules.prose_length:
        return "prose"
    return None


def _counts_up(texts: Sequence[str]) -> bool:
    """Whether the texts, in whatever order, number the rows: whole numbers without gaps of more than ties make."""
    numbers = [re.fullmatch(r"[#=T]?(\d{1,4})(\.|st|nd|rd|th|=)?", text) for text in texts]
    values = sorted(int(match[1]) for match in numbers if match)
    if len(values) < len(texts) or not values:
        return False
    if len(set(values)) == len(values):
        return values[-1] - values[0] == len(values) - 1
    # ranks with ties: 1, 2, 2, 4
    return values[0] == 1 and all(value <= 1 + i for i, value in enumerate(values))


# ------------------------------------------------------------------------------------------------------------ cells

_EMPTY = re.compile(r"[-–—−―‐.·•?]{1,3}|n/?a|tb[ad]|nil|none", re.I)
_SIGNS = re.compile(r"(?<=[\w.)\]!?’'\"])\s*[*†‡§^¤↑¶~]+$|^[*†‡§^¤¶]+\s*(?=\w)|(?<=\w\w\w\w)#$")
_CITATION = re.compile(r"\s*\[(\d{1,3}|[a-z]|n(ote)? ?\d{1,2}|citation needed)\]", re.I)
_AT = re.compile(r"^(at |vs?\.? |@ ?|# ?\d{1,2} |no\. ?\d{1,2} |\(?\d{1,2}\)? (?=[A-Z]))+", re.I)
_COUNT = re.compile(r"(\s*\((\d{1,2}|n/a|a)\))+$")


def _tidy(cell: Cell) -> Cell:
    text = _one_line(cell.text)
    while True:  # signs may stand one after the other
        shorter = _SIGNS.sub("", _CITATION.sub("", text)).strip()
        shorter = re.sub(r'^"([^"]+)"$', r"\1", shorter).strip()  # titles of songs and episodes
        if shorter == text:
            break
        text = shorter
    if _EMPTY.fullmatch(text) or not text:
        return Cell("", ())
    return Cell(text, tuple(_one_line(link) for link in cell.links))


def _tidy_columns(header: Sequence[str], rows: list[Row]) -> list[Row]:
    """Takes `at #4` from opponents and running counts from names (columns where a third of the cells have one)."""
    for c, name in enumerate(header):
        texts = [row[c].text for row in rows]
        if re.fullmatch(r"(opponents?|opposing team)\W*", name, re.I):
            rows = [_replace(row, c, _AT.sub("", row[c].text) or row[c].text) for row in rows]
        elif sum(bool(_COUNT.search(t)) and not t[0].isdigit() for t in texts if t) >= len(texts) / 3:
            rows = [_replace(row, c, _COUNT.sub("", row[c].text) or row[c].text) for row in rows]
    return rows


def _replace(row: Row, column: int, text: str) -> Row:
    return (*row[:column], _tidy(Cell(text, row[column].links)), *row[column + 1 :])


def _one_line(text: str) -> str:
    text = unicodedata.normalize("NFC", text).translate(_INVISIBLE)
    return " ".join(text.split())


_INVISIBLE = dict.fromkeys(map(ord, "\ufeff\u200b\u200c\u200d\u200e\u200f\u00ad\u2060"))


# ------------------------------------------------------------------------------------------------------ whole tables


_Signature = tuple[frozenset[str], tuple[tuple[str, ...], ...]]


def _signature(table: Table) -> _Signature:
    """What is equal for two copies of a table, whatever the order of rows and columns."""
    order = sorted(range(len(table.columns)), key=lambda c: table.columns[c])
    return frozenset(table.columns), tuple(sorted(tuple(row[c].text for c in order) for row in table.rows))


def _with_unique_titles(tables: Sequence[Table]) -> list[Table]:
    """Gives each table a caption that tells it from the others of its page."""
    pages: dict[str, list[int]] = defaultdict(list)
    for i, table in enumerate(tables):
        pages[table.page_title].append(i)
    captions: list[str | None] = [None] * len(tables)
    for page in pages.values():
        for labels in (_short_label, _full_label):
            named: dict[str, list[int]] = defaultdict(list)
            for i in page:
                if captions[i] is None:
                    named[labels(tables[i])].append(i)
            for label, those in named.items():
                if len(those) == 1:
                    captions[those[0]] = label
        for label, those in named.items():  # nothing on the page tells these apart
            for number, i in enumerate(sorted(those, key=lambda i: (tables[i].source, tables[i].id)), start=1):
                if captions[i] is None:
                    captions[i] = f"{label} (table {number})".strip()
    return [msgspec.structs.replace(t, id="", caption=c or "") for t, c in zip(tables, captions, strict=True)]


def _short_label(table: Table) -> str:
    label = table.caption or re.split(r" > | -- ", table.section_title)[-1]
    return _one_line(label)


def _full_label(table: Table) -> str:
    section = re.sub(r" > | -- ", ", ", table.section_title)
    parts = [section] if not table.caption or table.caption in section else [section, table.caption]
    return _one_line(": ".join(filter(None, parts)))
