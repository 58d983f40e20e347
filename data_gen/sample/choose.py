"""Makes the bundled sample again: `python -m data_gen.sample.choose SOURCE_FOLDER [OUTPUT]`.

The source folder holds `tables.jsonl.gz` (Wikipedia tables from OTT-QA and WikiTableQuestions) and `theme_tables.json`
(Nobel and Booker laureates), a JSON object a table: `id, source, page_title, section_title, caption, header, rows, url,
flags`. A table is taken when

1. it is complete (none that OTT-QA cut at 20 rows), has no nested, ragged or headless parts, and a plain header;
2. at most a fifth of its body cells come from merged cells (their text stands in every row that they span);
3. it still has 10 to 207 rows and 3 to 20 columns when columns of prose are left out: facts only, no sentences;
4. a rule of `families.py` names its family, and it is no copy of a table taken before.

The same folder always gives the same records: tables are sorted by family, title and source id.
"""

import gzip
import html
import json
import pathlib
import re
import sys
from typing import Any

from data_gen.sample.families import FAMILIES, SKIP
from webleaper_jax.jsonl import DataError, write_records
from webleaper_jax.records import Cell, Table

_RULES = tuple((family, re.compile(pattern)) for family, pattern in FAMILIES)
_MAX_CELL = 120  # characters; longer cells are prose or lists of lists
_MAX_ROWS = 207  # one table of more than 200 rows, so that the size rule of A.4 has something to drop
_MAX_HEADER = 60
_PROSE_HEADER = re.compile(
    r"^(notes?|description|comments?|citation|details|plot.*|summary|other info.*|remarks)$", re.I
)


def choose(folder: pathlib.Path) -> tuple[list[Table], dict[str, int]]:
    """Returns the chosen tables, and how many of the folder's were left out for each reason."""
    chosen: dict[tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]], Table] = {}
    left_out: dict[str, int] = {}
    for source in sorted(_read_sources(folder), key=lambda t: (t["page_title"], t["section_title"], t["id"])):
        table, reason = _take(source)
        if table is None:
            left_out[reason] = left_out.get(reason, 0) + 1
        elif (table.columns, table.rows) in chosen:
            left_out["copy"] = left_out.get("copy", 0) + 1
        else:
            chosen[(table.columns, table.rows)] = table
    return sorted(chosen.values(), key=lambda t: (t.family, t.title, t.source)), dict(sorted(left_out.items()))


def _read_sources(folder: pathlib.Path) -> list[dict[str, Any]]:
    try:
        with gzip.open(folder / "tables.jsonl.gz", "rt", encoding="utf-8") as lines:
            tables: list[dict[str, Any]] = [json.loads(line) for line in lines]
        tables.extend(json.loads((folder / "theme_tables.json").read_text(encoding="utf-8")))
        return tables
    except FileNotFoundError as error:
        raise DataError(f"{error.filename}: no such file (name the folder that holds the source tables)") from None


def _take(source: dict[str, Any]) -> tuple[Table | None, str]:
    """Returns the table, or None and why it is left out."""
    flags = source.get("flags", {})
    header = [_plain(text) for text in source["header"]]
    if flags.get("maybe_truncated_20"):
        return None, "maybe cut at 20 rows"
    if source["id"] in SKIP or flags.get("nested_tables") or flags.get("ragged_rows"):
        return None, "garbled"
    if max(map(len, header)) > _MAX_HEADER or header.count("") > 1 or len(set(header)) < len(header):
        return None, "header missing, repeated or too long"
    if flags.get("merged_body_cells", 0) > 0.2 * len(header) * len(source["rows"]):
        return None, "many merged cells"
    columns = _fact_columns(header, source["rows"])
    rows = [tuple(_cell(*row[c]) for c in columns) for row in source["rows"]]
    rows = [row for row in rows if max(len(cell.text) for cell in row) <= _MAX_CELL]  # long legends
    if not (10 <= len(rows) <= _MAX_ROWS and 3 <= len(columns) <= 20):
        return None, "fewer than 10 rows or 3 columns, or too many"
    where = [_detokenized(html.unescape(source[field])) for field in ("page_title", "section_title", "caption")]
    family = _family(" | ".join([*where, "|".join(header)]))
    if not family:
        return None, "no family"
    return Table(
        page_title=where[0],
        section_title=where[1],
        caption=where[2],
        url=html.unescape(source["url"]),
        columns=tuple(header[c] for c in columns),
        rows=tuple(rows),
        family=family,
        source=source["id"],
    ), ""


def _fact_columns(header: list[str], rows: list[list[Any]]) -> list[int]:
    """Returns the columns that are no prose (legend rows, one text across the table, do not make a column prose)."""
    body = [row for row in rows if len({cell[0] for cell in row}) > 1]

    def is_prose(c: int) -> bool:
        longest = max((len(_plain(row[c][0])) for row in body), default=0)
        return longest > (40 if _PROSE_HEADER.match(header[c]) else _MAX_CELL)

    return [c for c in range(len(header)) if not is_prose(c)]


def _family(text: str) -> str:
    return next((family for family, pattern in _RULES if pattern.search(text)), "")


def _cell(text: str, links: list[str]) -> Cell:
    text = re.sub(r" PB$", "", _plain(text)) if text.endswith(" PB") else _plain(text)  # the mark of a Peakbagger link
    return Cell(text, tuple(html.unescape(title) for title in links))


def _plain(text: str) -> str:
    """Returns the text on one line, with HTML entities resolved."""
    return " ".join(html.unescape(text).replace("\ufeff", "").split())


def _detokenized(title: str) -> str:
    """Undoes the tokenisation of OTT-QA's titles: ``Season 's bests`` -> `Season's bests`, `( s )` -> `(s)`."""
    title = re.sub(r"`` ?| ?''", '"', title)
    title = re.sub(r"([(\[]) ", r"\1", re.sub(r" ([)\],;:]|'s\b)", r"\1", title))
    return re.sub(r"\s*(\[\d+\]\s*)+$", "", title)


def main(arguments: list[str]) -> int:
    if not 1 <= len(arguments) <= 2:
        print("usage: python -m data_gen.sample.choose SOURCE_FOLDER [OUTPUT.jsonl.gz]", file=sys.stderr)
        return 2
    output = pathlib.Path(arguments[1]) if len(arguments) == 2 else pathlib.Path(__file__).with_name("tables.jsonl.gz")
    try:
        tables, left_out = choose(pathlib.Path(arguments[0]))
    except DataError as error:
        print(error, file=sys.stderr)
        return 1
    write_records(output, tables)
    print(
        f"{output}: {len(tables)} tables in {len({t.family for t in tables})} families, {output.stat().st_size} bytes"
    )
    for reason, count in left_out.items():
        print(f"  left out, {reason}: {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
