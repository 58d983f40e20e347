"""Basic tasks: one table, one to eight of its attributes, and perhaps a stated condition (paper, section 2.2).

R_all = R_final: every member that the condition leaves, and what is asked of it.
"""

from collections.abc import Iterator

from data_gen.drafts import (
    Candidate,
    Condition,
    Draft,
    Source,
    Wanted,
    askable,
    asked,
    condition_triple,
    in_turn,
    listed,
    subsets,
)
from data_gen.expressions import NAME, Ref
from data_gen.questions import basic_question


def basic_drafts(source: Source, wanted: Wanted, *, max_attributes: int) -> Iterator[Draft]:
    """Yields drafts for one table."""
    candidates = []
    for condition in (None, *source.conditions):
        members = frozenset(source.facts) if condition is None else condition.members
        names = [n for n in askable(source, members) if condition is None or n != condition.relation]
        for attributes in subsets(names, max_attributes, 3, wanted.seed):
            cells = {entity: 1 + sum(len(source.values(entity, name)) for name in attributes) for entity in members}
            candidates.append(
                Candidate(
                    sum(cells.values()),
                    source.busiest_part(cells),
                    f"{condition} {attributes}",
                    (condition, attributes),
                )
            )
    for condition, attributes in in_turn(candidates, wanted, source.title, small_first=1, most_small=2):
        yield _draft(source, condition, attributes, wanted.seed)


def _draft(source: Source, condition: Condition | None, attributes: tuple[str, ...], seed: int) -> Draft:
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
        columns={ref: source.labels[ref.relation] for ref in refs},
        question=basic_question(
            key.type,
            key.domain,
            source.quoted,
            (source.labels[condition.relation], condition.text) if condition else None,
            [source.labels[NAME], *(source.labels[name] for name in attributes)],
            seed,
        ),
        key=source.labels[NAME],
    )
