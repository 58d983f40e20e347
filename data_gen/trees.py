"""Tables as trees (paper A.4): question entities, a key column of entities, and what the other columns say of them.

Layer 1 is what the title and caption name. Layer 2 is a key column: one whose values are unique, or a column of
entities with few repeats, whose rows merge into one member with several values (Booker authors who won twice). Layer 3
holds the other cells. Where the paper asks a language model for the key column, rules choose here: what a table is
about before what it says of it, entities before words, the leftmost before others. A table with two fitting columns
(author and book) gives two trees.
"""

import dataclasses
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

import msgspec

from data_gen.entities import EntityIndex, is_vacant, names_of, normalize
from data_gen.relations import ENTITY_TYPES, Synonyms, column_relations, load_synonyms
from data_gen.tables import Drop
from webleaper_jax.records import AtLeast0, Member, Relation, Share, Table, Tree, Value

# A league's table speaks of clubs, not of their towns, and a filmography of films, not of their directors.
_ATTRIBUTES = (
    "location", "hometown", "state", "place of birth", "country of birth", "country", "capital", "headquarters",
    "kit manufacturer", "shirt sponsor", "party", "network", "manager", "captain", "trainer", "owner", "publisher",
    "studio", "builder", "developer", "league", "partner", "director", "screenwriter", "producer", "transferred from",
    "transferred to", "appointed by", "successor", "runner-up", "third place",
)  # fmt: skip
_NAME_LIKE = re.compile(r"(?=.*[^\W\d_]{3})\D*")  # a word, and no digits


@dataclasses.dataclass(frozen=True)
class TreeRules:
    """How key columns are chosen and how small a tree may be."""

    max_keys: AtLeast0 = 2  # trees a table
    max_repeats: Share = 0.2  # share of an entity column's cells that may repeat an earlier one
    min_filled: Share = 0.9  # share of the key column's cells that name somebody
    max_name: AtLeast0 = 60  # characters; a twentieth of a key column's names may be longer
    min_members: AtLeast0 = 8
    attributes: frozenset[str] = frozenset(_ATTRIBUTES)  # relations that are layer 2 only where no other column fits
    min_group: AtLeast0 = 1  # tables that must share their headers (A.4 rule 3); the paper's groups are of 2 or more


def build_trees(
    tables: Sequence[Table], rules: TreeRules = TreeRules(), synonyms: Synonyms | None = None
) -> tuple[list[Tree], list[Drop]]:
    """Builds the trees of cleaned tables, in table order, the better key first.

    Returns:
      The trees, and a `Drop` for each table without a key column and for each key cell that names nobody.
    """
    relations = [column_relations(table, synonyms or load_synonyms()) for table in tables]
    index = EntityIndex(tables, relations)
    groups = Counter(_headers(columns) for columns in relations)
    trees: list[Tree] = []
    drops: list[Drop] = []
    for table, columns in zip(tables, relations, strict=True):
        keys = _key_columns(table, columns, index, rules) if groups[_headers(columns)] >= rules.min_group else []
        if not keys:
            drops.append(Drop(id=table.id, title=table.title, what="table", reason="no_key"))
        for key in keys:
            trees.append(_tree(table, columns, key, index))
            vacant = [i for i, row in enumerate(table.rows) if is_vacant(row[key].text)]
            drops.extend(Drop(id=table.id, title=table.title, what=f"key {i}", reason="vacant_key") for i in vacant)
    return trees, drops


def root_entities(table: Table) -> tuple[str, ...]:
    """Returns the question entities of a table: what its page is about, then what caption or section add to it."""
    page = re.sub(r"\s*\([^)]*\)$", "", table.page_title) or table.page_title
    page = re.sub(r"^Lists? of ", "", page)
    page = page[:1].upper() + page[1:]
    detail = table.caption or table.section_title
    return (page, detail) if detail and detail.casefold() != page.casefold() else (page,)


def _headers(columns: Sequence[Relation]) -> tuple[tuple[str, str, str], ...]:
    return tuple(sorted(relation.triple for relation in columns))


def _key_columns(table: Table, columns: Sequence[Relation], index: EntityIndex, rules: TreeRules) -> list[int]:
    """Returns the columns to be layer 2, the better first: entities of a kind of their own, then places and firms that
    go with them, then words without repeats."""
    fitting = [c for c in range(len(columns)) if _fits_as_key(table, columns[c], index, rules)]
    entities = [c for c in fitting if columns[c].type in ENTITY_TYPES]
    subjects = [c for c in entities if columns[c].name not in rules.attributes]
    return subjects[: rules.max_keys] or entities[:1] or fitting[:1]


def _fits_as_key(table: Table, relation: Relation, index: EntityIndex, rules: TreeRules) -> bool:
    """Whether a column can be layer 2: filled, of short names of one entity each, (nearly) without repeats.

    Repeats are rows about one entity only for people, organisations, works and the like: places, and words that are
    no known kind of entity, fit only without any; years, numbers, ranks, dates and scores never do.
    """
    cells = [row[relation.column] for row in table.rows if not is_vacant(row[relation.column].text)]
    if len(cells) < max(rules.min_members, rules.min_filled * len(table.rows)):
        return False
    long = sum(len(cell.text) > rules.max_name for cell in cells)
    if relation.type not in ENTITY_TYPES | {"text"} or long > 0.05 * len(cells):
        return False
    entities = [index.entity(cell, relation, table) for cell in cells]
    names = [normalize(cell.text) for cell in cells]
    if len(set(names)) < len(set(zip(names, entities, strict=True))):
        return False  # two entities of one name: an answer could not tell them apart
    repeats = 1 - len(set(entities)) / len(cells)
    if relation.type == "text":
        return repeats == 0 and sum(bool(_NAME_LIKE.fullmatch(name)) for name in names) >= 0.8 * len(names)
    if relation.type == "place" and repeats > 0:
        return False  # two churches of one name in two towns are two churches
    several = sum(len(set(cell.links)) > 1 for cell in cells)
    return repeats <= rules.max_repeats and several <= 0.2 * len(cells) and len(set(entities)) >= rules.min_members


def _tree(table: Table, columns: Sequence[Relation], key: int, index: EntityIndex) -> Tree:
    names = {relation.name for relation in columns}
    others = tuple(_other_relation(relation, names) for relation in columns if relation.column != key)
    rows_of: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(table.rows):
        if not is_vacant(row[key].text):
            rows_of[index.entity(row[key], columns[key], table)].append(i)
    members = []
    for entity, rows in rows_of.items():
        values: dict[tuple[int, str], Value] = {}
        for r, relation in enumerate(others):
            for i in rows:
                cell = table.rows[i][relation.column]
                if cell.text:
                    value = Value(relation=r, text=cell.text, entity=index.entity(cell, relation, table))
                    values.setdefault((r, value.entity), value)
        name = names_of(table.rows[i][key] for i in rows)
        members.append(Member(entity=entity, name=name, rows=tuple(rows), values=tuple(values.values())))
    return Tree(
        table_id=table.id,
        family=table.family,
        title=table.title,
        root=root_entities(table),
        key=_key_relation(columns[key]),
        relations=others,
        members=tuple(members),
    )


def _other_relation(column: Relation, taken: Collection[str]) -> Relation:
    """Returns a column beside the key. `name` means the key: another column of names is called otherwise."""
    if column.name != "name":
        return column
    numbered = (f"other name {n}" for n in itertools.count(2))
    return msgspec.structs.replace(
        column, name=next(n for n in itertools.chain(["other name"], numbered) if n not in taken)
    )


def _key_relation(column: Relation) -> Relation:
    """Returns the key's relation, `name`; words of no known kind are things of the kind that their header says."""
    if column.type == "text":
        return Relation(name="name", type="thing", domain=column.name, column=column.column)
    return Relation(name="name", type=column.type, domain=column.domain, column=column.column)
