"""What a searcher has read: search results, table pages and entity pages, as they stand in observations.

Everything here is taken from observation text; a cell that no observation showed is not in it.
"""

import re
from typing import NamedTuple

_HIT = re.compile(r"\d+\. (?P<title>.+?) \| (?P<url>\S+) \|")
_HEADING = re.compile(r"# (?P<title>.+?)(?: \(page (?P<part>\d+) of (?P<parts>\d+)\))?")
_SEPARATOR = " | "


class Hit(NamedTuple):
    """A search result."""

    title: str
    url: str


class PagePart(NamedTuple):
    """One part of a page: its lines below the heading, without the `next:` line, whose address is `following`."""

    title: str
    part: int
    parts: int
    lines: tuple[str, ...]
    following: str


class SeenRow(NamedTuple):
    """The cells of one table row, by column name."""

    table: str
    cells: tuple[tuple[str, str], ...]

    def get(self, column: str) -> str:
        """The text under a column; empty where the page showed none."""
        return next((text for name, text in self.cells if name == column), "")


def read_hits(text: str) -> list[Hit]:
    """Returns the results that a search observation lists, in order."""
    matches = (_HIT.match(line) for line in text.splitlines())
    return [Hit(match["title"], match["url"]) for match in matches if match]


def read_pages(text: str) -> list[PagePart]:
    """Returns the page parts that a visit observation shows, in order."""
    pages: list[PagePart] = []
    for line in text.splitlines():
        heading = _HEADING.fullmatch(line)
        if heading:
            part, parts = int(heading["part"] or 1), int(heading["parts"] or 1)
            pages.append(PagePart(heading["title"], part, parts, (), ""))
        elif pages and line.startswith("next: "):
            pages[-1] = pages[-1]._replace(following=line.removeprefix("next: ").strip())
        elif pages:
            pages[-1] = pages[-1]._replace(lines=(*pages[-1].lines, line))
    return pages


def read_table_rows(page: PagePart) -> list[SeenRow]:
    """Returns the rows of a table page; its first line names the columns. Rows that were cut short are left out."""
    if not page.lines:
        return []
    columns = _split(page.lines[0])
    rows = []
    for line in page.lines[1:]:
        cells = _split(line)
        if len(cells) == len(columns):
            rows.append(SeenRow(page.title, tuple(zip(columns, cells, strict=True))))
    return rows


def read_entity_rows(page: PagePart) -> list[SeenRow]:
    """Returns the rows of an entity page, `{table title} | {column}: {text} | ...` a line."""
    rows = []
    for line in page.lines:
        table, *facts = line.split(_SEPARATOR)
        cells = tuple((name, text) for name, colon, text in (fact.partition(": ") for fact in facts) if colon)
        if cells:
            rows.append(SeenRow(table, cells))
    return rows


def _split(line: str) -> list[str]:
    """The cells of a line; a first cell `#` stands as `#|`, since `# ` would begin a heading."""
    line = f"# {line[1:]}" if line.startswith("#|") else line
    return [cell.strip() for cell in line.split(_SEPARATOR)]
