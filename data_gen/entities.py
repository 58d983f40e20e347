"""Canonical entities: one name for a thing, whatever a table calls it.

A cell's entity is the title of the page that it links to, where that page is the thing itself (not a season, a list or
an event of it), else its normalised text. A text that is linked in one place and plain in another means the linked page
in both, as long as the tables of the family agree on the page: Wikipedia links the first mention only. A table without
a family is one of its own.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from data_gen.relations import ENTITY_TYPES
from webleaper_jax.records import Cell, Relation, Table

_SEASON = re.compile(
    r"^(?:(?:19|20)\d\d(?:[–-]\d{2,4})? )?(.+?)"
    r"(?: (?:men's |women's )?(?:football|basketball|baseball|hockey))?(?: team| season)?$"
)

_NOT_THE_THING = re.compile(r"\b(1[0-9]|20)\d\d\b| at the | in the \d| in athletics| – |^List of |^Category:|^File:|#")
_VACANT = re.compile(
    r"vacant|vacated|bye|unknown|various|none|no award|not awarded|open date|tbd|n/a|total|.*\bdid not\b.*|not held",
    re.I,
)


def normalize(text: str, keep_brackets: bool = False) -> str:
    """Returns the text folded for comparison: no accents, case, or punctuation around words; what stands in brackets at
    the end (a nation, a page's disambiguation) goes too, unless it is to be kept."""
    text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    if not keep_brackets:
        text = re.sub(r"\s*\([^)]*\)\s*$", "", text) or text
    text = text.translate(_LETTERS).casefold().replace("’", "'").replace("&", " and ")
    return re.sub(r"[\s.,;:!?\"“”()\[\]_–—-]+", " ", text).strip()


def is_vacant(text: str) -> bool:
    """Whether a key cell says that there was nobody (`Vacated`, `Bye`) rather than who."""
    return not text or bool(_VACANT.fullmatch(text))


def linked_entity(cell: Cell) -> str:
    """Returns the page that the cell's entity is, or `` where no link, several, or one to something else tells it.

    The page of a club's season is read as the club (`1990 Clemson Tigers football team` -> `Clemson Tigers`).
    """
    links = list(dict.fromkeys(cell.links))
    if len(links) > 1:  # flags beside names: the link that the text spells
        links = [link for link in links if normalize(link) == normalize(cell.text)]
    if len(links) != 1:
        return ""
    match = _SEASON.match(links[0])
    title = match[1] if match else links[0]
    if _NOT_THE_THING.search(title):
        return ""
    return title


class EntityIndex:
    """The canonical entities of a set of tables, per column type: as a family agrees on them, else as a table does.

    Args:
      tables: the tables whose links are to be learnt from.
      relations: for each table, one relation a column, as `relations.column_relations` gives them.
    """

    def __init__(self, tables: Sequence[Table], relations: Sequence[Sequence[Relation]]):
        pages: dict[tuple[str, str, str], set[str]] = defaultdict(set)
        for table, columns in zip(tables, relations, strict=True):
            for relation in columns:
                if relation.type in ENTITY_TYPES:
                    for row in table.rows:
                        _learn(pages, table, relation.type, row[relation.column])
        self._pages: Mapping[tuple[str, str, str], str] = {
            key: next(iter(titles)) for key, titles in pages.items() if len(titles) == 1
        }

    def entity(self, cell: Cell, relation: Relation, table: Table) -> str:
        """Returns the canonical form of a cell; plain values (years, numbers, words) are their normalised text."""
        if relation.type not in ENTITY_TYPES:
            return normalize_value(cell.text)
        name = _text_name(cell, relation.type)
        # the family's common page first, so that a text with a link to the season's page meets one with the club's
        for scope in _scopes(table):
            if (scope, relation.type, name) in self._pages:
                return self._pages[scope, relation.type, name]
        return linked_entity(cell) or name


def normalize_value(text: str) -> str:
    """Returns a plain value folded for comparison: case, spaces, kinds of dashes and minus signs."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return re.sub(r"\s+", " ", re.sub(r"[–—−―‐]", "-", text)).strip()


def names_of(cells: Iterable[Cell]) -> str:
    """Returns the name to show for cells of one entity: the commonest text, of these the shortest, then the first."""
    texts = [cell.text for cell in cells]
    return min(texts, key=lambda text: (-texts.count(text), len(text), text))


def _learn(pages: dict[tuple[str, str, str], set[str]], table: Table, type_: str, cell: Cell) -> None:
    title = linked_entity(cell)
    if title:
        for scope in _scopes(table):
            pages[scope, type_, _text_name(cell, type_)].add(title)
            pages[scope, type_, normalize(title)].add(title)


def _scopes(table: Table) -> tuple[str, str]:
    """Within what a text means one page: the family, and the table itself."""
    return table.family or table.id, table.id


def _text_name(cell: Cell, type_: str) -> str:
    # `Yun Ok-hee (KOR)` is Yun Ok-hee, but `Simonis (Elisabeth)` is not `Simonis (Leopold II)`
    return normalize(cell.text, keep_brackets=type_ != "person")


_LETTERS = str.maketrans({"ø": "o", "Ø": "O", "đ": "d", "ł": "l", "Ł": "L", "ß": "ss", "æ": "ae", "Æ": "Ae", "ı": "i"})
