"""The offline web's pages, generated from tables: one page per table, one per entity, and distractors.

Pages are templates around facts: titles, column names, cells. Nothing else is written into them, so that the web is
free, deterministic, and says what the tables say. Pages are cut into parts so that no part gives a table away.

Table page, address `w/<number>`:

    # {title} (page 1 of 4)
    {column} | {column} | ...
    {cell} | {cell} | ...
    next: w/17?p=2

Entity page, address `e/<number>`, a line per table row that the entity stands in:

    # {entity}
    {table title} | {column}: {cell} | {column}: {cell} | ...

Distractor, address `d/<number>`: speaks of a table and gives none of its cells.
"""

import functools
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from webleaper_jax.agent.tools import Tools
from webleaper_jax.agent.web import OfflineWeb, WebPage, part_url, tokens
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Table, Target, Task
from webleaper_jax.scoring.observations import TargetFinder, line_words, owner_forms, surface_forms

_YEAR = re.compile(r"(?<![0-9])(1[0-9]{3}|20[0-9]{2}|2100)(?![0-9])")

_DISTRACTORS = (
    (
        "About {title}",
        "Where the table {title} comes from and how it is kept. Columns: {columns}. The rows are not here.",
    ),
    (
        "Talk: {title}",
        "Readers discuss the table {title}: its order, its columns ({columns}) and its notes. No rows here.",
    ),
    ("History of {title}", "How the table {title} grew to {rows} rows. Its columns are {columns}. No rows here."),
    (
        "{title} (disambiguation)",
        "{title} may mean a table with the columns {columns}, or the subject itself. No rows here.",
    ),
)


class CorpusConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How tables become pages.

    A part of a table page holds at most `rows_per_part` rows, at most `table_share` of the table's rows (but one row at
    least), and about `chars_per_part` characters. A part of an entity page holds at most `entity_share` of one table's
    rows. The shares keep one observation from showing more than 40 % of what a task asks for.

    A part of a table page begins with the last `overlap` rows of the part before it, as chunks of a text do: a reader
    sees where it left off.
    """

    rows_per_part: int = 8
    table_share: float = 0.34
    overlap: int = 0
    entity_share: float = 0.3
    chars_per_part: int = 900
    distractors: int = 1


def build_pages(tables: Sequence[Table], config: CorpusConfig | None = None) -> list[WebPage]:
    """Returns the pages of a web over `tables`: tables first, then entities, then distractors.

    Addresses are numbered by title, so that they depend on the set of tables and not on their order.

    Raises:
      DataError: a field of the config is out of range.
      ValueError: two tables have the same id.
    """
    config = config or CorpusConfig()
    _check(config)
    titles = unique_titles(tables)
    ordered = sorted(tables, key=lambda table: (titles[table.id], table.id))
    pages = [_table_page(f"w/{n}", titles[table.id], table, config) for n, table in enumerate(ordered, start=1)]
    entities = _entities(ordered)
    for number, name in enumerate(sorted(entities), start=1):
        pages.append(_entity_page(f"e/{number}", name, entities[name], titles, config))
    number = 0
    for position, table in enumerate(ordered):
        for copy in range(min(config.distractors, len(_DISTRACTORS))):
            number += 1
            template = _DISTRACTORS[(position + copy) % len(_DISTRACTORS)]
            pages.append(_distractor(f"d/{number}", titles[table.id], table, template))
    return pages


def _check(config: CorpusConfig) -> None:
    least = {"rows_per_part": 1, "overlap": 0, "chars_per_part": 1, "distractors": 0}
    for field, low in least.items():
        if getattr(config, field) < low:
            raise DataError(f"CorpusConfig, field `{field}` is {getattr(config, field)}; give {low} or more")
    for field in ("table_share", "entity_share"):
        if not 0 < getattr(config, field) <= 1:
            raise DataError(f"CorpusConfig, field `{field}` is {getattr(config, field)}; give a share in (0, 1]")


def unique_titles(tables: Iterable[Table]) -> dict[str, str]:
    """Returns a title for each table id, no two of them alike to a search: questions quote these.

    A table keeps its own title (on one line, without bars) unless an earlier id has it; then its section, else a
    number, is added.

    Raises:
      ValueError: two tables have the same id.
    """
    ordered = sorted(tables, key=lambda table: table.id)
    own = Counter(" ".join(tokens(table.title)) for table in ordered)
    titles: dict[str, str] = {}
    taken: set[str] = set()
    # titles that stand alone first: a number added to a shared one must not take them
    for table in sorted(ordered, key=lambda table: own[" ".join(tokens(table.title))] > 1):
        if table.id in titles:
            raise ValueError(f"two tables have the id {table.id}")
        candidates = _title_candidates(table)
        title = next(title for title in candidates if " ".join(tokens(title)) not in taken)
        taken.add(" ".join(tokens(title)))
        titles[table.id] = title
    return titles


def _title_candidates(table: Table) -> Iterator[str]:
    title = _cell(table.title) or "Table"
    yield title
    if table.section_title and table.section_title not in table.title:
        yield f"{title}, {_cell(table.section_title)}"
    number = 2
    while True:
        yield f"{title} ({number})"
        number += 1


# ------------------------------------------------------------------------------------------------------------ pages


def _table_page(url: str, title: str, table: Table, config: CorpusConfig) -> WebPage:
    columns = _line(page_columns(table))
    rows = [_line(cell.text for cell in row) for row in table.rows]
    limit = max(1, min(config.rows_per_part, int(config.table_share * len(rows))))
    overlap = min(config.overlap, limit - 1)
    room = config.chars_per_part - len(title) - len(columns) - overlap * max(map(len, rows), default=0)
    fresh = _groups([(row, 0) for row in rows[overlap:]], {0: limit - overlap}, room) or [[]]
    ends = list(itertools.accumulate(map(len, fresh), initial=overlap))
    groups = [rows[start - overlap : end] for start, end in itertools.pairwise(ends)]
    parts = _parts(url, title, [[columns, *group] for group in groups])
    snippet = f"{columns.replace(' | ', ', ')}; {len(rows)} rows"
    return WebPage(url=url, title=title, kind="table", parts=parts, snippet=snippet, years=_years([title, *rows]))


def _entity_page(
    url: str, name: str, rows: Sequence[tuple[Table, int]], titles: dict[str, str], config: CorpusConfig
) -> WebPage:
    """`rows` are (table, row number) pairs that the entity stands in."""
    order = {table.id: number for number, (table, _) in enumerate(rows)}
    limits = {order[table.id]: max(1, int(config.entity_share * len(table.rows))) for table, _ in rows}
    lines = [(_fact(titles[table.id], table, row), order[table.id]) for table, row in rows]
    parts = _parts(url, name, _groups(lines, limits, config.chars_per_part - len(name)))
    about = list(dict.fromkeys(titles[table.id] for table, _ in rows))
    more = f" and {len(about) - 3} more" if len(about) > 3 else ""
    snippet = f"in: {'; '.join(about[:3])}{more}"
    return WebPage(
        url=url,
        title=name,
        kind="entity",
        parts=parts,
        snippet=snippet,
        years=_years([name, *(line for line, _ in lines)]),
    )


def _distractor(url: str, title: str, table: Table, template: tuple[str, str]) -> WebPage:
    facts = {"title": title, "columns": ", ".join(map(_cell, table.columns)), "rows": str(len(table.rows))}
    name, text = (part.format(**facts) for part in template)
    return WebPage(
        url=url,
        title=name,
        kind="distractor",
        parts=(f"# {name}\n{text}",),
        snippet=text.split(". ")[0],
        years=_years([name]),
    )


def _parts(url: str, title: str, bodies: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The texts of a page's parts: heading, lines, and where the next part is."""
    parts = []
    for number, lines in enumerate(bodies, start=1):
        page = f" (page {number} of {len(bodies)})" if len(bodies) > 1 else ""
        following = [f"next: {part_url(url, number + 1)}"] if number < len(bodies) else []
        parts.append("\n".join([f"# {title}{page}", *lines, *following]))
    return tuple(parts)


def _groups(lines: Sequence[tuple[str, int]], limits: dict[int, int], room: int) -> list[list[str]]:
    """Splits (line, owner) pairs in order: at most `limits[owner]` lines of an owner and `room` characters a group.

    A group has one line at least, however long.
    """
    groups: list[list[str]] = []
    counts: Counter[int] = Counter()
    used = 0
    for line, owner in lines:
        if not groups or counts[owner] >= limits[owner] or used + len(line) + 1 > room:
            groups.append([])
            counts.clear()
            used = 0
        groups[-1].append(line)
        counts[owner] += 1
        used += len(line) + 1
    return groups


def _entities(tables: Sequence[Table]) -> dict[str, list[tuple[Table, int]]]:
    """Entities by name, each with the (table, row number) pairs that it stands in: linked pages and key cells."""
    found: dict[str, list[tuple[Table, int]]] = defaultdict(list)
    for table in tables:
        key = _key_column(table)
        for number, row in enumerate(table.rows):
            names = [link for cell in row for link in cell.links]
            names += [row[key].text] if key is not None and not row[key].links else []
            for name in dict.fromkeys(filter(None, map(_cell, names))):
                found[name].append((table, number))
    return found


def _key_column(table: Table) -> int | None:
    """The first column of distinct names (not numbers), None where there is none."""
    for column in range(len(table.columns)):
        texts = [row[column].text.strip() for row in table.rows if column < len(row)]
        named = [text for text in texts if text and not re.match(r"[\W\d_]*$", text)]
        if texts and len(named) >= 0.9 * len(texts) and len(set(texts)) == len(texts):
            return column
    return None


def _fact(title: str, table: Table, row: int) -> str:
    cells = zip(page_columns(table), table.rows[row], strict=False)
    return _line([title, *(f"{column}: {cell.text}" for column, cell in cells if cell.text.strip())])


def page_columns(table: Table) -> list[str]:
    """What the pages of a table call its columns."""
    columns = [_cell(column) for column in table.columns]
    return [_no_heading(columns[0]), *columns[1:]] if columns else []


def _line(cells: Iterable[str]) -> str:
    """Cells in one line."""
    return _no_heading(" | ".join(map(_cell, cells)))


def _no_heading(text: str) -> str:
    """A line that begins with `# ` (a column of numbers) would look like a heading."""
    return f"#{text[1:].lstrip()}" if text.startswith("# ") else text


def _cell(text: str) -> str:
    """Text on one line, without bars, which would split the cell."""
    return " ".join(text.replace("|", "/").split())


def _years(texts: Iterable[str]) -> tuple[int, ...]:
    return tuple(sorted({int(year) for text in texts for year in _YEAR.findall(text)}))


# ----------------------------------------------------------------------------------------------------------- shares


def shares(task: Task, tools: Tools, titles: Sequence[str]) -> float:
    """Returns the largest share of the task's targets that one observation shows.

    Looked at are a visit to any part of any page, and a search for each of `titles` (those of the task's tables).
    Where a visit may open several pages (`ToolLimits.max_urls`), the share is an upper bound: what the richest parts,
    as many as that, show together if no two show the same, and no more than all. Tasks above 0.4 are solved too fast to
    teach anything.

    Raises:
      TypeError: the web of `tools` is not an `OfflineWeb`, so its pages cannot be enumerated.
    """
    if not isinstance(tools.web, OfflineWeb):
        raise TypeError("shares are computed over an offline web")
    if not task.targets:
        return 0.0
    finder = TargetFinder(task)
    most = max((len(finder.find(_search_text(tools, title), [title])) for title in titles), default=0)
    # a part shows no more targets than have their words on it: richest parts first, stop when none can be better
    bounds = Counter(part for target in task.targets for part in _parts_naming(target, tools.web))
    richest = [0] * tools.limits.max_urls  # what each of them shows, most first
    for address, bound in sorted(bounds.items(), key=lambda item: (-item[1], item[0])):
        if not richest or bound <= richest[-1]:
            break
        text = tools.run("visit", {"urls": [address]}).text
        richest = sorted([*richest, len(finder.find(text, [address]))], reverse=True)[: len(richest)]
    return min(len(task.targets), max(most, sum(richest))) / len(task.targets)


@functools.lru_cache(maxsize=256)
def _search_text(tools: Tools, title: str) -> str:
    return tools.run("search", {"queries": [title]}).text


@functools.lru_cache(maxsize=1 << 15)
def _parts_naming(target: Target, web: OfflineWeb) -> frozenset[str]:
    """Addresses of the parts that hold all words of one of the target's forms; of its owner's too, in layer 3."""
    found = _parts_holding(surface_forms(target), _index(web))
    return found & _parts_holding(owner_forms(target), _index(web)) if target.layer == 3 else found


def _parts_holding(forms: Iterable[str], index: dict[str, frozenset[str]]) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for form in forms:
        postings = sorted((index.get(word, frozenset()) for word in set(form.split())), key=len)
        found |= frozenset.intersection(*postings) if postings else frozenset()
    return found


@functools.lru_cache(maxsize=2)
def _index(web: OfflineWeb) -> dict[str, frozenset[str]]:
    """Addresses of parts by the words that they hold, normalised as the target finder does."""
    postings: dict[str, set[str]] = defaultdict(set)
    for page in web.pages.values():
        for number, text in enumerate(page.parts, start=1):
            for word in {word for line in text.splitlines() for word in line_words(line).split()}:
                postings[word].add(part_url(page.url, number))
    return {word: frozenset(parts) for word, parts in postings.items()}
