"""Set expressions over trees: the triples that formalise a task, and the evaluator that computes its answer.

The notation is WebShaper's knowledge projections: `[subject, relation, object]` with variables `V@x`, constants `C@c`
and `?what` for what is asked. Five forms are used; `T` is a source's title, written behind a relation only where the
variable has several sources:

    [V@x, is listed in, C@T]               x is a member of the table T
    [V@x, country (T), C@Norway]           T gives x that value (a canonical entity)
    [V@x, year (T), C@1980..1989]          T gives x a year of that range, both ends included
    [V@x, country (T), V@p]                a join: the values that several variables have in common
    [V@x, year (T), ?year (T)]             asked; every answer also asks [V@x, name, ?name]

A variable is the intersection of the tables that it is listed in, each narrowed by its conditions. Basic is one table,
Union two, and Reverse-Union an intersection that is joined (`V@p`, the pivot) to a second variable, the anchor, which
must come out as exactly one entity.

Conditions are strict: where an entity has several values of a relation and only some of them satisfy the condition, it
cannot be said which rows are meant, and there is no answer (`EvaluationError`) rather than a guess.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from webleaper_jax.records import Member, Tree, Triple, Value

LISTED = "is listed in"
NAME = "name"
_RANGE = re.compile(r"(\d{4})\.\.(\d{4})")
_YEAR = re.compile(r"\d{4}")


class EvaluationError(Exception):
    """The expression has no single answer; the text is a short reason that synthesis counts."""


class UnfitError(EvaluationError):
    """The tables are not what the expression speaks of: a relation is missing, or the anchor is."""


class Ref(NamedTuple):
    """A relation of one source."""

    relation: str
    title: str


class Operand(NamedTuple):
    """One source of the asked variable, narrowed by its conditions."""

    title: str
    members: tuple[Member, ...]


class Evaluation(NamedTuple):
    """What an expression comes to.

    `operands` are the narrowed sources, `answer` the entities in all of them (in the order of the first source),
    `cells` what each source says of each answer, in the order asked, and `anchors` the entity of every variable that
    the asked one is joined to.
    """

    operands: tuple[Operand, ...]
    answer: tuple[str, ...]
    asked: tuple[Ref, ...]
    cells: Mapping[tuple[str, Ref], tuple[Value, ...]]
    anchors: Mapping[str, str]


class Expression(NamedTuple):
    """Parsed triples: per variable its sources and its conditions `(ref, object)`, and what is asked of which."""

    sources: Mapping[str, tuple[str, ...]]
    conditions: Mapping[str, tuple[tuple[Ref, str], ...]]
    variable: str
    asked: tuple[Ref, ...]


def year_range(low: int, high: int) -> str:
    """The constant of a range condition."""
    return f"{low}..{high}"


def relation_name(ref: Ref, sources: Sequence[str]) -> str:
    """The relation as a triple writes it: qualified by its title where the variable has several sources."""
    return ref.relation if len(sources) == 1 else f"{ref.relation} ({ref.title})"


def parse(triples: Sequence[Triple]) -> Expression:
    """Reads the triples.

    Raises:
      EvaluationError: a subject that is no variable, a relation of no source, or not exactly one asked variable.
    """
    sources: dict[str, tuple[str, ...]] = {}
    for subject, relation, obj in map(_parts, triples):
        if not subject.startswith("V@"):
            raise EvaluationError(f"subject is no variable: {subject}")
        if relation == LISTED:
            sources[subject] = (*sources.get(subject, ()), obj.removeprefix("C@"))
    conditions: dict[str, tuple[tuple[Ref, str], ...]] = dict.fromkeys(sources, ())
    asked: list[Ref] = []
    variables: list[str] = []
    for subject, relation, obj in map(_parts, triples):
        if subject not in sources:
            raise EvaluationError(f"variable is listed nowhere: {subject}")
        if obj.startswith("?"):
            variables.append(subject)
            if relation != NAME:
                asked.append(_ref(relation, sources[subject]))
        elif relation != LISTED:
            conditions[subject] += ((_ref(relation, sources[subject]), obj),)
    if len(set(variables)) != 1:
        raise EvaluationError("not exactly one variable is asked for")
    return Expression(sources, conditions, variables[0], tuple(asked))


def evaluate(triples: Sequence[Triple], trees: Mapping[str, Tree]) -> Evaluation:
    """Computes what the triples ask for.

    Args:
      trees: title -> tree; must hold every title that the triples name.

    Raises:
      EvaluationError: the expression has no single answer.
    """
    expression = parse(triples)
    anchors: dict[str, str] = {}
    operands = tuple(
        Operand(title, _narrow(expression, expression.variable, title, trees, anchors))
        for title in expression.sources[expression.variable]
    )
    answer = _common(operands)
    cells = {}
    for ref in expression.asked:
        members = {m.entity: m for m in trees[ref.title].members}
        for entity in answer:
            cells[entity, ref] = values_of(trees[ref.title], members[entity], ref.relation)
    return Evaluation(operands, answer, expression.asked, cells, anchors)


def values_of(tree: Tree, member: Member, relation: str) -> tuple[Value, ...]:
    """What the tree says of a member under a relation name; empty where it says nothing."""
    wanted = _relation_index(tree, relation)
    return tuple(value for value in member.values if value.relation == wanted)


def satisfies(value: Value, constant: str) -> bool:
    """Whether a value is the constant (an entity), or a bare year inside it (a range)."""
    bounds = _RANGE.fullmatch(constant)
    if bounds is None:
        return value.entity == constant
    text = value.text.strip()
    return bool(_YEAR.fullmatch(text)) and int(bounds[1]) <= int(text) <= int(bounds[2])


def _narrow(
    expression: Expression, variable: str, title: str, trees: Mapping[str, Tree], anchors: dict[str, str]
) -> tuple[Member, ...]:
    """The members of one source that satisfy every condition that the variable has on it."""
    tree = trees[title]
    members = tree.members
    for ref, obj in expression.conditions[variable]:
        if ref.title != title:
            continue
        if obj.startswith("C@"):
            constants = frozenset({obj.removeprefix("C@")})
        elif variable == expression.variable:
            constants = _joined(expression, obj, trees, anchors)
        else:
            continue  # an anchor binds its pivot, the pivot does not narrow the anchor
        members = tuple(m for m in members if _holds(values_of(tree, m, ref.relation), constants))
    return members


def _holds(values: Sequence[Value], constants: frozenset[str]) -> bool:
    fits = [any(satisfies(value, constant) for constant in constants) for value in values]
    if any(fits) and not all(fits):
        raise EvaluationError("a condition holds for only some values of an entity")
    return any(fits)


def _joined(expression: Expression, join: str, trees: Mapping[str, Tree], anchors: dict[str, str]) -> frozenset[str]:
    """The values that a join variable takes from the anchors, each of which must be one entity."""
    found: set[frozenset[str]] = set()
    for variable, sources in expression.sources.items():
        refs = [ref for ref, obj in expression.conditions[variable] if obj == join]
        if variable == expression.variable or not refs:
            continue
        operands = [Operand(title, _narrow(expression, variable, title, trees, anchors)) for title in sources]
        entities = _common(operands)
        if len(entities) != 1:
            raise UnfitError("the anchor is not exactly one entity")
        anchors[variable] = entities[0]
        for ref in refs:
            member = next(m for m in trees[ref.title].members if m.entity == entities[0])
            found.add(frozenset(value.entity for value in values_of(trees[ref.title], member, ref.relation)))
    if len(found) != 1 or not all(found):
        raise EvaluationError("the sources do not agree on the anchor's pivot")
    return found.pop()


def _common(operands: Sequence[Operand]) -> tuple[str, ...]:
    rest = [{m.entity for m in operand.members} for operand in operands[1:]]
    return tuple(m.entity for m in operands[0].members if all(m.entity in other for other in rest))


def _ref(relation: str, titles: Sequence[str]) -> Ref:
    if len(titles) == 1:
        return Ref(relation, titles[0])
    for title in titles:
        if relation.endswith(f" ({title})"):
            return Ref(relation.removesuffix(f" ({title})"), title)
    raise EvaluationError(f"relation of no source: {relation}")


def _relation_index(tree: Tree, relation: str) -> int:
    for index, known in enumerate(tree.relations):
        if known.name == relation:
            return index
    raise UnfitError(f"no relation {relation} in {tree.title}")


def _parts(triple: Triple) -> tuple[str, str, str]:
    return triple.subject, triple.relation, triple.object
