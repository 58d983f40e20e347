"""Where the targets that an observation shows stand in its text, for marking them in the report.

Which targets are shown was decided by the scoring; this only finds places to colour.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from webleaper_jax.records import Target


class Span(NamedTuple):
    """Characters `start` to `end` (exclusive) of a text show target `target`."""

    start: int
    end: int
    target: int


def entity_spans(text: str, targets: Sequence[Target], visible: Iterable[int]) -> list[Span]:
    """Returns the places of the `visible` targets in `text`, in order and without overlaps (the longer one wins).

    A value (layer 3) is looked for only in lines that name its owner, or below a `# ` line that does.
    """
    shown = sorted(set(visible))
    forms = {index: _pattern((targets[index].form, *targets[index].aliases)) for index in shown}
    owners = {index: _pattern((targets[index].owner, *targets[index].owner_aliases)) for index in shown}
    found: list[Span] = []
    subject, offset = "", 0
    for line in text.splitlines(keepends=True):
        if line.startswith("# "):
            subject = line
        for index in shown:
            if targets[index].layer == 3 and not (owners[index].search(line) or owners[index].search(subject)):
                continue
            found += [Span(offset + m.start(), offset + m.end(), index) for m in forms[index].finditer(line)]
        offset += len(line)
    taken: list[Span] = []
    for span in sorted(found, key=lambda s: (s.start - s.end, s.start, s.target)):
        if all(span.end <= other.start or span.start >= other.end for other in taken):
            taken.append(span)
    return sorted(taken)


def _pattern(forms: Sequence[str]) -> re.Pattern[str]:
    """Any of the forms as whole words, in any case; forms without text match nothing."""
    written = sorted({form for form in forms if form.strip()}, key=lambda form: (-len(form), form))
    if not written:
        return re.compile(r"(?!)")
    # not inside a number: the 8 of `5-8` or `8,500` is another value
    either = "|".join(map(re.escape, written))
    return re.compile(rf"(?<![\w-])(?<!\d[.,])(?:{either})(?![\w-]|[.,]\d)", re.IGNORECASE)
