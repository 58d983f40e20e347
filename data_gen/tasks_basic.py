"""Basic tasks: one table, one to eight of its attributes, and perhaps a stated condition (paper, section 2.2).

R_all = R_final: every member that the condition leaves, and what is asked of it.
"""

from collections.abc import Iterator

from data_gen.drafts import (
    Condition,
    Draft,
    Source,
    asked,
    askable,
    condition_triple,
    conditions,
    in_turn,
    listed,
    subsets,
    values_by_relation,
)
from data_gen.expressions import NAME, Ref
from data_gen.questions import basic_question


def basic_drafts(source: Source, *, max_attributes: int, small: tuple[int, int], seed: int) -> Iterator[Draft]:
    """Yields drafts for one table: tasks of a size within `small` and others in turn, the largest first."""
    tree = source.tree
    count = {m.entity: {name: len(v) for name, v in values_by_relation(m, tree).items()} for m in tree.members}
    drafts = []
    for condition in (None, *conditions(tree)):
        members = frozenset(count) if condition is None else condition.members
        names = [n for n in askable(tree, members) if condition is None or n != condition.relation]
        for attributes in subsets(names, max_attributes, 3, seed):
            size = len(members) + sum(count[entity].get(name, 0) for entity in members for name in attributes)
            drafts.append(_draft(source, condition, attributes, size, seed))
    return in_turn(drafts, small, seed)


def _draft(source: Source, condition: Condition | None, attributes: tuple[str, ...], size: int, seed: int) -> Draft:
    titles = [source.title]
    refs = [Ref(name, source.title) for name in attributes]
    triples = listed("V@x", titles)
    if condition is not None:
        triples.append(condition_triple("V@x", condition, source.title, titles))
    key = source.tree.key
    return Draft(
        variant="basic",
        sources=(source,),
        triples=(*triples, *asked("V@x", refs, titles)),
        columns={ref: ref.relation for ref in refs},
        question=basic_question(
            key.type,
            key.domain,
            source.quoted,
            (condition.relation, condition.text) if condition else None,
            [NAME, *attributes],
            seed,
        ),
        size=size,
    )
