"""What the scripted searcher is told of a task before it starts, and how it turns what it has seen into an answer.

It is told which tables hold the answer, which columns are asked for, and which spellings mean one entity. It is never
told the answer: rows come from `SeenRow`s, that is from observations, and a cell that was not seen is left empty.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from data_gen.expressions import NAME, EvaluationError, Expression, Ref, parse, satisfies
from data_gen.reading import SeenRow
from webleaper_jax.agent.corpus import page_columns, unique_titles
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Answer, Table, Task, Tree, Value


class Source(NamedTuple):
    """A table that a task is about: its tree, and its columns as its page names them, by relation."""

    title: str
    tree: Tree
    columns: Mapping[str, str]

    def named(self, row: SeenRow) -> str:
        """The name that a row gives to its key entity."""
        return row.get(self.columns[NAME])

    def entity(self, name: str) -> str:
        """The entity that a name means; a name that the table does not know means itself."""
        for member in self.tree.members:
            if name in (member.name, member.entity):
                return member.entity
        return name

    def value(self, relation: str, text: str) -> Value:
        """A cell's text as a value, with the entity that this spelling stands for."""
        index = next(i for i, known in enumerate(self.tree.relations) if known.name == relation)
        for member in self.tree.members:
            for value in member.values:
                if value.relation == index and value.text == text:
                    return value
        return Value(relation=index, text=text, entity=text)


class Pivot(NamedTuple):
    """What was seen of the anchor's pivot: the relation, the text of its cell, and the entity that this means."""

    relation: str
    text: str
    entity: str


class Known(NamedTuple):
    """The sources of a task in the order in which its expression names them, and the expression."""

    task: Task
    sources: tuple[Source, ...]
    expression: Expression


class Library:
    """The tables and trees that tasks are made from."""

    def __init__(self, tables: Iterable[Table], trees: Iterable[Tree]):
        tables = list(tables)
        self._tables = {table.id: table for table in tables}
        self._titles = unique_titles(tables)
        self._trees = {tree.id: tree for tree in trees}

    def known(self, task: Task) -> Known:
        """What is known of a task.

        Raises:
          DataError: the task was made from other tables or trees, or says in no expression what its answer is.
        """
        try:
            expression = parse(task.formalization)
        except EvaluationError as error:
            raise DataError(f"task {task.id}, field `formalization`: {error}; make the tasks again") from None
        titles = titles_of(expression)
        if len(titles) != len(task.provenance.trees):
            raise DataError(
                f"task {task.id}, field `provenance.trees`: {len(task.provenance.trees)} trees, but its expression "
                f"names {len(titles)} tables; make the tasks again"
            )
        pairs = zip(titles, task.provenance.trees, strict=True)
        return Known(task, tuple(self._source(task, title, tree_id) for title, tree_id in pairs), expression)

    def _source(self, task: Task, title: str, tree_id: str) -> Source:
        tree = self._trees.get(tree_id)
        table = self._tables.get(tree.table_id) if tree else None
        if tree is None or table is None:
            raise DataError(
                f"task {task.id}, field `provenance.trees`: {tree_id} is not among the trees and tables given; "
                "give those that the tasks were made from"
            )
        names = page_columns(table)
        columns = {relation.name: names[relation.column] for relation in tree.relations}
        return Source(self._titles[table.id], tree, columns | {NAME: names[tree.key.column]})


# ---------------------------------------------------------------------------------------------------------- answers


def answer_from(known: Known, rows: Sequence[SeenRow], pivot: str | None = None) -> Answer:
    """The answer that the rows seen allow.

    An entity is answered when every source shows it and what was seen of it meets the conditions. Rows stand in the
    order in which the first source showed them.

    Args:
      pivot: for Reverse-Union, the entity of the anchor's pivot value; None (not seen) gives no answer.
    """
    expression = known.expression
    titles = expression.sources[expression.variable]
    sources = [_source_called(known, title) for title in titles]
    groups = [_by_entity(known, title, source, rows, pivot) for title, source in zip(titles, sources, strict=True)]
    found = [entity for entity in groups[0] if all(entity in group for group in groups[1:])]
    said_by = dict(zip(titles, groups, strict=True))
    answer_rows: list[tuple[str, ...]] = []
    for entity in found:
        said = [_texts(_source_called(known, ref.title), said_by[ref.title][entity], ref) for ref in expression.asked]
        name = sources[0].named(groups[0][entity][0])
        height = max((len(texts) for texts in said), default=0) or 1
        answer_rows += [(name, *(texts[i] if i < len(texts) else "" for texts in said)) for i in range(height)]
    return Answer(columns=known.task.answer.columns, rows=tuple(answer_rows)) if answer_rows else Answer()


def pivot_of(known: Known, anchor: str, rows: Sequence[SeenRow]) -> Pivot | None:
    """The anchor's pivot value as far as rows about it were seen; None where none was."""
    expression = known.expression
    for variable, conditions in expression.conditions.items():
        for ref in [ref for ref, obj in conditions if variable != expression.variable and obj.startswith("V@")]:
            source = _source_called(known, ref.title)
            for row in rows:
                text = row.get(source.columns[ref.relation])
                if text and row.table == source.title and source.entity(source.named(row)) == anchor:
                    return Pivot(ref.relation, text, source.value(ref.relation, text).entity)
    return None


def shared_names(known: Known, answer: Answer) -> list[str]:
    """The names of an answer's rows, each once, in order."""
    return list(dict.fromkeys(row[0] for row in answer.rows))


def titles_of(expression: Expression) -> list[str]:
    """What an expression calls its tables, each once, in the order in which it names them."""
    return list(dict.fromkeys(title for titles in expression.sources.values() for title in titles))


def _source_called(known: Known, title: str) -> Source:
    return known.sources[titles_of(known.expression).index(title)]


def _by_entity(
    known: Known, title: str, source: Source, rows: Sequence[SeenRow], pivot: str | None
) -> dict[str, list[SeenRow]]:
    """The rows seen of a source by entity, those that meet its conditions, in reading order."""
    groups: dict[str, list[SeenRow]] = {}
    for row in rows:
        if row.table == source.title and source.named(row):
            groups.setdefault(source.entity(source.named(row)), []).append(row)
    conditions = known.expression.conditions[known.expression.variable]
    for ref, obj in conditions:
        if ref.title == title:
            constant = obj.removeprefix("C@") if obj.startswith("C@") else pivot
            groups = {entity: own for entity, own in groups.items() if _meets(source, own, ref, constant)}
    return groups


def _meets(source: Source, rows: Sequence[SeenRow], ref: Ref, constant: str | None) -> bool:
    values = [source.value(ref.relation, text) for text in _texts(source, rows, ref)]
    return constant is not None and any(satisfies(value, constant) for value in values)


def _texts(source: Source, rows: Sequence[SeenRow], ref: Ref) -> list[str]:
    """What the rows say under a relation, each text once."""
    texts = (row.get(source.columns[ref.relation]) for row in rows)
    return list(dict.fromkeys(text for text in texts if text))
