"""The independent checker: every answer once more, in SQL (sqlite3) over the raw rows of the tables.

It shares nothing with the evaluator but the triples that it reads: it has its own parser, its own idea of when two
cells mean the same, and works on rows where the evaluator works on merged subtrees. From the trees it takes only which
column is the key and which column a relation name stands for (`Layout`). A task that it does not confirm to the last
cell is not written.
"""

import re
import sqlite3
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from webleaper_jax.records import Cell, Table, Target, Task


class Layout(NamedTuple):
    """How a table is read under one title: the columns of key and relations, and the types and headers of all columns.

    `group` is the (type, domain) of the key column.
    """

    title: str
    table_id: str
    group: tuple[str, str]
    key: int
    relations: Mapping[str, int]
    types: Mapping[int, str]
    headers: Sequence[str]


class _Refuted(Exception):
    """What does not agree, in a few words."""


class _Query(NamedTuple):
    """The triples of a task, with sources by position so that other tables can be put in their place."""

    sources: dict[str, list[str]]
    tests: list[tuple[str, int, str, str]]  # variable, source, relation, C@constant or V@join
    asked: list[tuple[int, str]]
    subject: str


# A constant is a page's title or a plain value; facts of both kinds may bear the relation's name.
_IS = "value IN ('page ' || fold(?), 'plain ' || plain(?))"
Said = dict[str, set[str]]  # value -> the texts that stand for it


class Checker:
    """Holds the rows of all tables in memory; `check` says what is wrong with a task, or nothing."""

    def __init__(self, tables: Iterable[Table], layouts: Sequence[Layout]):
        self._db = sqlite3.connect(":memory:")
        for function in (_fold, _word, _plain):
            self._db.create_function(function.__name__.strip("_"), 1, function, deterministic=True)
        self._db.executescript(
            """
            CREATE TABLE cell (title TEXT, row INTEGER, relation TEXT, family TEXT, kind TEXT, page TEXT, text TEXT);
            CREATE TABLE list (title TEXT PRIMARY KEY, kind TEXT, domain TEXT);
            CREATE TABLE knows (title TEXT, relation TEXT);
            """
        )
        by_id = {table.id: table for table in tables}
        self._labels: dict[tuple[str, str], set[str]] = {}  # title and relation ('': the key) -> what it may be called
        for layout in layouts:
            self._load(by_id[layout.table_id], layout)
        # A text that is linked here and plain there means the linked page, if all links of its family agree on it.
        self._db.executescript(
            """
            CREATE TABLE known AS
                SELECT family, kind, word, min(page) AS page
                FROM (SELECT family, kind, page, word(text) AS word FROM cell WHERE page <> '' AND kind <> 'plain'
                      UNION SELECT family, kind, page, word(page) FROM cell WHERE page <> '' AND kind <> 'plain')
                GROUP BY family, kind, word HAVING count(DISTINCT page) = 1;
            CREATE INDEX known_word ON known (family, kind, word);
            CREATE TABLE fact AS
                SELECT title, row, relation, text,
                       CASE WHEN kind = 'plain' THEN 'plain ' || plain(text)
                            ELSE 'page ' || coalesce(
                                (SELECT fold(known.page) FROM known WHERE known.family = cell.family
                                 AND known.kind = cell.kind AND known.word = word(text)),
                                nullif(fold(page), ''), word(text)) END AS value
                FROM cell;
            CREATE TABLE listed AS
                SELECT title, row, value AS entity, text, list.kind, list.domain
                FROM fact JOIN list USING (title) WHERE relation = '';
            CREATE INDEX listed_by_title ON listed (title, row);
            CREATE INDEX listed_by_entity ON listed (entity, kind, domain);
            CREATE INDEX fact_by_row ON fact (title, row, relation);
            CREATE INDEX fact_by_value ON fact (relation, value);
            CREATE INDEX knows_title ON knows (title);
            """
        )

    def _load(self, table: Table, layout: Layout) -> None:
        """Copies the cells that are not empty; the key's relation is ''. Rows that name nobody are left out."""
        columns = {"": layout.key, **layout.relations}
        family = table.family or table.id  # a table without a family is one of its own
        for relation, column in columns.items():
            self._labels[layout.title, relation] = {relation or "name", layout.headers[column].casefold()}
        for number, row in enumerate(table.rows):
            if not row[layout.key].text.strip() or _NOBODY.fullmatch(row[layout.key].text.strip()):
                continue
            for relation, column in columns.items():
                cell = row[column]
                kind = "plain" if layout.types[column] in _PLAIN else layout.types[column]
                if cell.text.strip():
                    self._db.execute(
                        "INSERT INTO cell VALUES (?, ?, ?, ?, ?, ?, ?)",
                        (layout.title, number, relation, family, kind, _page(cell), cell.text),
                    )
        self._db.execute("INSERT INTO list VALUES (?, ?, ?)", (layout.title, *layout.group))
        self._db.executemany("INSERT INTO knows VALUES (?, ?)", [(layout.title, name) for name in layout.relations])

    def check(self, task: Task) -> str:
        """Returns why the task is refuted, or an empty string where every target and answer cell is confirmed."""
        try:
            query = _read(task)
            joins = self._joins(query) if task.variant == "reverse_union" else {}
            operands = [self._rows(query, query.subject, s, joins) for s in range(len(query.sources[query.subject]))]
            answer = set.intersection(*(set(rows) for rows in operands))
            if not answer:
                raise _Refuted("the answer is empty")
            self._check_members(task, query, operands, answer)
            self._check_cells(task, query, operands, answer)
            if task.variant == "reverse_union":
                self._check_one_reading(query, joins)
        except _Refuted as refuted:
            return str(refuted)
        return ""

    # ------------------------------------------------------------------------------------------------------ queries

    def _rows(self, query: _Query, variable: str, source: int, joins: Mapping[str, str]) -> dict[str, list[int]]:
        """entity -> the rows of one source that satisfy every condition on it."""
        sql = "SELECT entity, row FROM listed WHERE title = ?"
        bound: list[str | int] = [query.sources[variable][source]]
        for owner, position, relation, obj in query.tests:
            if (owner, position) != (variable, source) or (obj not in joins and obj.startswith("V@")):
                continue
            test, constants = _test(obj, joins)
            sql += (
                " AND EXISTS (SELECT 1 FROM fact WHERE fact.title = listed.title AND fact.row = listed.row"
                f" AND relation = ? AND {test})"
            )
            bound += [relation, *constants]
        found: dict[str, list[int]] = {}
        for entity, row in self._db.execute(sql + " ORDER BY row", bound):
            found.setdefault(entity, []).append(row)
        return found

    def _said(self, title: str, rows: Iterable[int], relation: str) -> Said:
        said: Said = {}
        for row in rows:
            for value, text in self._db.execute(
                "SELECT value, text FROM fact WHERE title = ? AND row = ? AND relation = ?", (title, row, relation)
            ):
                said.setdefault(value, set()).add(text)
        return said

    def _joins(self, query: _Query) -> dict[str, str]:
        """The value of the pivot; the anchor must be one entity, also among all tables of its type and domain."""
        anchors = [variable for variable in query.sources if variable != query.subject]
        if len(anchors) != 1:
            raise _Refuted("not one anchor")
        anchor = anchors[0]
        found = [self._rows(query, anchor, s, {}) for s in range(len(query.sources[anchor]))]
        common = set.intersection(*(set(rows) for rows in found))
        if len(common) != 1 or self._fitting(query, anchor) != common:
            raise _Refuted("the clues do not name one entity")
        (entity,) = common
        pivots = {
            frozenset(self._said(query.sources[anchor][s], found[s][entity], relation))
            for variable, s, relation, obj in query.tests
            if variable == anchor and obj.startswith("V@")
        }
        joins = {obj for variable, _, _, obj in query.tests if variable == anchor and obj.startswith("V@")}
        if len(pivots) != 1 or len(joins) != 1 or len(min(pivots)) != 1:
            raise _Refuted("the pivot is not one value")
        return {joins.pop(): next(iter(min(pivots)))}

    def _fitting(self, query: _Query, anchor: str) -> set[str]:
        """Every entity of the anchor's type and domain that satisfies the clues, whatever the tables."""
        group = self._db.execute(
            "SELECT kind, domain FROM listed WHERE title = ? LIMIT 1", (query.sources[anchor][0],)
        ).fetchone()
        clues = [
            (relation, obj[2:]) for variable, _, relation, obj in query.tests if variable == anchor and obj[:2] == "C@"
        ]
        if len(clues) < 2:
            raise _Refuted("fewer than two clues")
        fits = f"FROM listed JOIN fact USING (title, row) WHERE relation = ? AND {_IS} AND kind = ? AND domain = ?"
        sql = " INTERSECT ".join([f"SELECT entity {fits}"] * len(clues))
        bound = [part for relation, value in clues for part in (relation, value, value, *group)]
        return {entity for (entity,) in self._db.execute(sql, bound)}

    def _check_one_reading(self, query: _Query, joins: Mapping[str, str]) -> None:
        """Puts every pair of tables that fits the description in the place of the sources: the answer must stay."""
        anchor = next(variable for variable in query.sources if variable != query.subject)
        (entity,) = self._fitting(query, anchor)
        titles = query.sources[query.subject]
        needed = [
            {relation for v, s, relation, _ in query.tests if s == source} | {r for s, r in query.asked if s == source}
            for source in range(len(titles))
        ]
        group = self._db.execute("SELECT kind, domain FROM listed WHERE title = ? LIMIT 1", (titles[0],)).fetchone()
        candidates = self._db.execute(
            "SELECT DISTINCT title FROM listed WHERE entity = ? AND kind = ? AND domain = ? ORDER BY title",
            (entity, *group),
        ).fetchall()
        fitting: list[list[str]] = [[] for _ in titles]
        for (title,) in candidates:
            known = {
                relation for (relation,) in self._db.execute("SELECT relation FROM knows WHERE title = ?", (title,))
            }
            put = query._replace(sources={variable: [title] * len(titles) for variable in query.sources})
            for source in range(len(titles)):
                if needed[source] <= known and entity in self._rows(put, anchor, source, {}):
                    fitting[source].append(title)
        expected = self._reading(query, joins)
        for pair in product(*fitting):
            if len(set(pair)) == len(pair) and list(pair) != titles:
                other = query._replace(sources={variable: list(pair) for variable in query.sources})
                if self._reading(other, self._joins(other)) != expected:
                    raise _Refuted("another pair of tables fits and gives another answer")

    def _reading(self, query: _Query, joins: Mapping[str, str]) -> dict[str, list[set[str]]]:
        """answer entity -> for each asked attribute, its values."""
        operands = [self._rows(query, query.subject, s, joins) for s in range(len(query.sources[query.subject]))]
        return {
            entity: [
                set(self._said(query.sources[query.subject][s], operands[s][entity], relation))
                for s, relation in query.asked
            ]
            for entity in set.intersection(*(set(rows) for rows in operands))
        }

    # --------------------------------------------------------------------------------------------------- comparison

    def _check_members(
        self, task: Task, query: _Query, operands: Sequence[dict[str, list[int]]], answer: set[str]
    ) -> None:
        """Layer 2: of every source exactly its members, and final exactly those of the answer."""
        names = [target for target in task.targets if target.layer == 2]
        for title, operand in zip(query.sources[query.subject], operands, strict=True):
            own = {target.form: target for target in names if target.owner == title}
            if len(own) != len(operand) or len(own) != sum(target.owner == title for target in names):
                raise _Refuted("another number of members")
            for entity, rows in operand.items():
                fitting = own.keys() & self._names(title, rows)
                if len(fitting) != 1:
                    raise _Refuted("a member is missing")
                final = own[fitting.pop()].final
                if final != (entity in answer and title == query.sources[query.subject][0]):
                    raise _Refuted("a member is final and not in the answer, or the reverse")
        if {target.owner for target in names} != set(query.sources[query.subject]):
            raise _Refuted("a member of no source")
        if {target.relation for target in names} != {"name"}:
            raise _Refuted("a member is not called one")

    def _names(self, title: str, rows: Iterable[int]) -> set[str]:
        return {
            text
            for row in rows
            for (text,) in self._db.execute("SELECT text FROM listed WHERE title = ? AND row = ?", (title, row))
        }

    def _check_cells(
        self, task: Task, query: _Query, operands: Sequence[dict[str, list[int]]], answer: set[str]
    ) -> None:
        """Layer 3 and the answer rows: of every answer exactly what the sources say, equal values once."""
        titles = query.sources[query.subject]
        labels = self._check_labels(task, query)
        cells: dict[str, list[Target]] = {}
        for target in task.targets:
            if target.layer == 3:
                cells.setdefault(target.owner, []).append(target)
        rows: dict[str, list[tuple[str, ...]]] = {}
        for row in task.answer.rows:
            rows.setdefault(row[0], []).append(row)
        if len(rows) != len(answer):
            raise _Refuted("another number of answers")
        for entity in answer:
            said = [self._said(titles[s], operands[s][entity], relation) for s, relation in query.asked]
            names = self._names(titles[0], operands[0][entity]) & set(rows)
            if len(names) != 1:
                raise _Refuted("an answer has no row")
            name = names.pop()
            _check_row(said, rows[name])
            _check_targets(query, labels, said, cells.pop(name, []))
        if cells:
            raise _Refuted("cells of no answer")

    def _check_labels(self, task: Task, query: _Query) -> list[tuple[str, str]]:
        """The label of each asked column, with its source and without; each must be a name of that very column."""
        titles = query.sources[query.subject]
        if len(task.answer.columns) != 1 + len(query.asked):
            raise _Refuted("another number of columns")
        key, *columns = task.answer.columns
        if not all(key in self._labels.get((title, ""), ()) for title in titles):
            raise _Refuted("the key has another label")
        found = []
        for (source, relation), label in zip(query.asked, columns, strict=True):
            known = set.intersection(*(self._labels.get((title, relation), set()) for title in titles))
            bare = [name for name in known if label == name or _qualified(task, titles, source, name, label)]
            if not bare:
                raise _Refuted("a column has another label")
            found.append((label, max(bare, key=len)))
        return found


def _test(obj: str, joins: Mapping[str, str]) -> tuple[str, list[str | int]]:
    """The SQL that a fact's value must satisfy, and what it is compared with."""
    if obj in joins:
        return "value = ?", [joins[obj]]
    years = re.fullmatch(r"C@(\d{4})\.\.(\d{4})", obj)
    if years:
        bare = "trim(text) GLOB '[0-9][0-9][0-9][0-9]'"
        return f"{bare} AND CAST(text AS INTEGER) BETWEEN ? AND ?", [int(years[1]), int(years[2])]
    return _IS, [obj[2:], obj[2:]]


def _check_row(said: Sequence[Said], rows: Sequence[tuple[str, ...]]) -> None:
    for column, values in enumerate(said, start=1):
        texts = [row[column] for row in rows if row[column]]
        if len(texts) != len(values) or any(len(given & set(texts)) != 1 for given in values.values()):
            raise _Refuted("an answer row differs")


def _qualified(task: Task, titles: Sequence[str], source: int, name: str, label: str) -> bool:
    """Whether a label is the name with its source behind it: a part of that one's title, or its place."""
    said = label[len(name) + 2 : -1]
    if len(titles) < 2 or not said or label != f"{name} ({said})":
        return False
    return said == ("first", "second")[source] + " list" if task.variant == "reverse_union" else said in titles[source]


def _check_targets(
    query: _Query, labels: Sequence[tuple[str, str]], said: Sequence[Said], targets: Sequence[Target]
) -> None:
    expected: dict[tuple[str, str], tuple[set[str], set[tuple[str, str]]]] = {}
    for (_, relation), label, values in zip(query.asked, labels, said, strict=True):
        for value, texts in values.items():
            known = expected.setdefault((relation, value), (set(), set()))
            known[0].update(texts)
            known[1].add(label)
    if len(expected) != len(targets) or not all(target.final for target in targets):
        raise _Refuted("another number of cells")
    for texts, under in expected.values():
        # what several sources say alike is one cell, under the columns' common name without their sources
        names = {bare for _, bare in under} if len(under) > 1 else {label for label, _ in under}
        found = [t for t in targets if t.form in texts and {t.relation} == names]
        if len(found) != 1:
            raise _Refuted("a cell differs")


def _read(task: Task) -> _Query:
    """Reads the triples of a task anew."""
    sources: dict[str, list[str]] = {}
    for triple in task.formalization:
        if triple.relation == "is listed in":
            sources.setdefault(triple.subject, []).append(triple.object[2:])
    tests: list[tuple[str, int, str, str]] = []
    asked: list[tuple[int, str]] = []
    subjects = set()
    for triple in task.formalization:
        if triple.relation == "is listed in":
            continue
        if triple.object[0] == "?":
            subjects.add(triple.subject)
        if triple.relation == "name":
            continue
        titles = sources.get(triple.subject, [])
        ends = [s for s, title in enumerate(titles) if len(titles) > 1 and triple.relation.endswith(f" ({title})")]
        if len(titles) != 1 and len(ends) != 1:
            raise _Refuted("a relation of no source")
        source = ends[0] if ends else 0
        relation = triple.relation[: -len(titles[source]) - 3] if ends else triple.relation
        if triple.object[0] == "?":
            asked.append((source, relation))
        else:
            tests.append((triple.subject, source, relation, triple.object))
    if len(subjects) != 1:
        raise _Refuted("not one asked variable")
    return _Query(sources, tests, asked, subjects.pop())


# --------------------------------------------------------------------------------------------------- what cells mean

_PLAIN = frozenset({"date", "year", "range", "number", "rank", "score", "text"})
_NOBODY = re.compile(
    r"vacant|vacated|bye|unknown|various|none|no award|not awarded|open date|tbd|n/a|total|not held|.*\bdid not\b.*",
    re.IGNORECASE,
)
_SPORTS = {"football", "basketball", "baseball", "hockey"}
_LETTERS = str.maketrans({"ø": "o", "đ": "d", "ł": "l", "ß": "ss", "æ": "ae", "ı": "i", "’": "'", "&": " and "})


def _fold(text: str) -> str:
    """The text without case, accents, and punctuation other than that of numbers and names."""
    letters = unicodedata.normalize("NFKD", text.lower().translate(_LETTERS))
    letters = "".join(c for c in letters if not unicodedata.combining(c))
    return " ".join("".join(c if c.isalnum() or c in "+#%/'$€£*=<>@^~°" else " " for c in letters).split())


def _word(text: str) -> str:
    """The folded text of a name, without a bracket at its end."""
    return _fold(re.sub(r"\s*\([^()]*\)\s*$", "", text)) or _fold(text)


def _plain(text: str) -> str:
    """A year, number, result or word: its text without case, kinds of dashes and runs of spaces."""
    return " ".join(re.sub("[‐-―−]", "-", unicodedata.normalize("NFKC", text).lower()).split())


def _page(cell: Cell) -> str:
    """The page that the cell's thing has of its own: not a list, a year's season or event of it, nor one of several."""
    pages = list(dict.fromkeys(cell.links))
    if len(pages) > 1:
        pages = [page for page in pages if _word(page) == _word(cell.text)]
    if len(pages) != 1:
        return ""
    words = pages[0].split(" ")
    if len(words) > 1 and re.fullmatch(r"(19|20)\d\d([–-]\d{2,4})?", words[0]):
        words = words[1:]
    if len(words) > 1 and words[-1] in ("team", "season"):
        words.pop()
    if len(words) > 1 and words[-1] in _SPORTS:
        words.pop()
        if len(words) > 1 and words[-1] in ("men's", "women's"):
            words.pop()
    page = " ".join(words)
    other = re.search(r"\b(1\d|20)\d\d\b| at the | in the \d| in athletics| – |#", page)
    return "" if other or page.startswith(("List of ", "Category:", "File:")) else page
