"""From what an expression comes to, to a task's targets and answer rows.

R_all is every cell: the members of each narrowed source (layer 2), and what is asked of the answers (layer 3). R_final
is the rows and attributes asked for. An answer's name is a cell of each source; the first source's is the final one.
Values that two sources give alike are one target.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from data_gen.expressions import NAME, Evaluation, Ref
from webleaper_jax.records import Answer, Member, Target, Tree, Value


class TargetError(Exception):
    """The targets cannot be told apart or written down; the text is a short reason that synthesis counts."""


class Targets(NamedTuple):
    """A task's R and its answer as a table."""

    targets: tuple[Target, ...]
    answer: Answer


def make_targets(
    evaluation: Evaluation,
    trees: Mapping[str, Tree],
    columns: Mapping[Ref, str],
    key: str = NAME,
    unqualified: Mapping[str, str] | None = None,
) -> Targets:
    """Lists the targets, layer 2 first, and the answer rows.

    An answer with several values of a relation takes several rows, its name repeated.

    Args:
      trees: title -> tree.
      columns: what the question calls each asked relation; these are the answer's columns.
      key: what it calls the members: the answer's first column.
      unqualified: what it calls a relation without naming a source (default: its standard name); the relation of a
        target that several sources give.

    Raises:
      TargetError: no answer, nothing asked is filled in, two entities of one name, or a cell with a line break or `|`.
    """
    if not evaluation.answer:
        raise TargetError("the answer is empty")
    names = _names(evaluation)
    targets = [
        Target(
            form=member.name,
            type=trees[operand.title].key.type,
            layer=2,
            owner=operand.title,
            relation=NAME,
            final=position == 0 and member.entity in evaluation.answer,
            aliases=_aliases(member.name, names[member.entity]),
        )
        for position, operand in enumerate(evaluation.operands)
        for member in operand.members
    ]
    first = {m.entity: m for m in evaluation.operands[0].members}
    rows: list[tuple[str, ...]] = []
    for entity in evaluation.answer:
        targets += _cells(evaluation, trees, columns, unqualified or {}, first[entity], names[entity])
        rows += _rows(evaluation, first[entity])
    if not any(target.layer == 3 for target in targets) and evaluation.asked:
        raise TargetError("nothing that is asked is filled in")
    if any(mark in target.form for target in targets for mark in "|\n"):
        raise TargetError("a cell holds the column separator")
    return Targets(tuple(targets), Answer(columns=(key, *(columns[ref] for ref in evaluation.asked)), rows=tuple(rows)))


def _names(evaluation: Evaluation) -> dict[str, tuple[str, ...]]:
    """entity -> the names that the sources give it, the first source's first; no two entities share one."""
    names: dict[str, list[str]] = {}
    for operand in evaluation.operands:
        for member in operand.members:
            names.setdefault(member.entity, []).append(member.name)
    owners: dict[str, str] = {}
    for entity, given in names.items():
        for name in given:
            if owners.setdefault(name.casefold(), entity) != entity:
                raise TargetError("two entities have one name")
    return {entity: tuple(dict.fromkeys(given)) for entity, given in names.items()}


def _cells(
    evaluation: Evaluation,
    trees: Mapping[str, Tree],
    columns: Mapping[Ref, str],
    unqualified: Mapping[str, str],
    owner: Member,
    names: tuple[str, ...],
) -> list[Target]:
    """The layer-3 targets of one answer, equal values of one relation merged over the sources."""
    merged: dict[tuple[str, str], list[tuple[Ref, Value]]] = {}
    for ref in evaluation.asked:
        for value in evaluation.cells[owner.entity, ref]:
            merged.setdefault((ref.relation, value.entity.casefold()), []).append((ref, value))
    targets = []
    for (relation, _), said in merged.items():
        ref, value = said[0]
        sources = {other.title for other, _ in said}
        targets.append(
            Target(
                form=value.text,
                type=trees[ref.title].relations[value.relation].type,
                layer=3,
                owner=owner.name,
                relation=columns[ref] if len(sources) == 1 else unqualified.get(relation, relation),
                final=True,
                aliases=_aliases(value.text, [v.text for _, v in said] + [value.entity]),
                owner_aliases=_aliases(owner.name, names),
            )
        )
    return targets


def _rows(evaluation: Evaluation, owner: Member) -> list[tuple[str, ...]]:
    said = [[value.text for value in evaluation.cells[owner.entity, ref]] for ref in evaluation.asked]
    height = max((len(texts) for texts in said), default=0) or 1
    return [(owner.name, *(texts[i] if i < len(texts) else "" for texts in said)) for i in range(height)]


def _aliases(form: str, others: Iterable[str]) -> tuple[str, ...]:
    """The other ways to write it; a canonical form that differs by case only is none."""
    seen = {form.casefold()}
    aliases = []
    for other in others:
        if other.casefold() not in seen:
            seen.add(other.casefold())
            aliases.append(other)
    return tuple(aliases)
