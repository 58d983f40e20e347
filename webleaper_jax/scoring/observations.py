"""Which targets an observation shows: the O of ISR and ISE, read from the text that the policy got to see.

A layer-2 target is shown where its form stands in the text. A layer-3 target is shown where its value and its owner
stand side by side in one line (a table row, a passage), or where its value stands in a line below a heading `# owner`.
Forms are compared in normal form and as whole words. What merely repeats the call's own arguments shows nothing.

One pass of an Aho-Corasick automaton a line, whatever the number of targets.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import ahocorasick

from webleaper_jax.records import Target, Task
from webleaper_jax.scoring.normalize import MONTHS, is_blank, normalize, parse_date

Span = tuple[int, int]

_CELLS = re.compile(r"(?:^|(?<=\s))\|(?=\s|$)")
_HAN = re.compile(r"([\u3040-\u30ff\u3400-\u9fff])")
_HEADING = "# "
_HEADING_TAIL = re.compile(r"\s+(?:[-–—|·]\s.*|\([^()]*\))$")
# Further words that make a line more than a notice about the call ("no results for X").
_PASSAGE_WORDS = 5
_MONTH_WORDS = [next(name for name, number in MONTHS.items() if number == month) for month in range(1, 13)]


class TargetFinder:
    """Finds a task's targets in observation texts. Build it once a task; `find` keeps no state."""

    def __init__(self, task: Task):
        # Patterns are normal forms with a space at both ends, so that they match whole words only.
        self._names: dict[str, list[int]] = defaultdict(list)  # pattern -> layer-2 targets
        self._values: dict[str, dict[str, list[int]]] = defaultdict(dict)  # pattern -> owner -> layer-3 targets
        self._owners: dict[str, list[str]] = defaultdict(list)  # pattern -> owners it names
        for index, target in enumerate(task.targets):
            if target.layer == 2:
                for form in surface_forms(target):
                    self._names[form].append(index)
                continue
            owner = repr((target.owner, target.owner_aliases))
            for form in surface_forms(target):
                self._values[form].setdefault(owner, []).append(index)
            for form in owner_forms(target):
                if owner not in self._owners[form]:
                    self._owners[form].append(owner)
        self._automaton = ahocorasick.Automaton()
        for pattern in dict.fromkeys([*self._names, *self._values, *self._owners]):
            self._automaton.add_word(pattern, pattern)
        if len(self._automaton):
            self._automaton.make_automaton()

    def find(self, text: str, echo: Sequence[str] = ()) -> frozenset[int]:
        """Returns the indices into `Task.targets` of what a text shows.

        Args:
          text: the observation as appended to the policy's context.
          echo: the call's own arguments. Where a line does no more than repeat one (`results for 'Golding'`), the
            repeated words show nothing; rows, headings and passages of the page itself count, whatever was asked.
        """
        if not len(self._automaton):
            return frozenset()
        found: set[int] = set()
        subject: frozenset[str] = frozenset()
        echoes = _echo_patterns(echo)
        for line in text.splitlines():
            if line.startswith(_HEADING):
                subject = self._subject(line)
            spans = self._spans(line, echoes)
            if spans:
                found.update(self._shown(spans, subject if not line.startswith(_HEADING) else frozenset()))
        return frozenset(found)

    def _spans(self, line: str, echoes: Sequence[str]) -> dict[str, list[Span]]:
        """Pattern -> where it stands in the line, without its spaces; echoes left out."""
        words = line_words(line)
        hidden = _echo_spans(line, words, echoes) if echoes else []
        spans: dict[str, list[Span]] = {}
        for last, pattern in self._automaton.iter(words):
            span = (last + 2 - len(pattern), last)
            if not any(low <= span[0] and span[1] <= high for low, high in hidden):
                spans.setdefault(pattern, []).append(span)
        return spans

    def _subject(self, heading: str) -> frozenset[str]:
        """The owners that a heading names: the whole of it, or all before a note in brackets or a site's name."""
        names = {pad(form) for form in heading_forms(heading)}
        return frozenset(owner for name in names for owner in self._owners.get(name, ()))

    def _shown(self, spans: dict[str, list[Span]], subject: frozenset[str]) -> Iterator[int]:
        present: dict[str, list[Span]] = defaultdict(list)  # owner -> where it stands
        for pattern, places in spans.items():
            for owner in self._owners.get(pattern, ()):
                present[owner] += places
        for pattern, places in spans.items():
            yield from self._names.get(pattern, ())
            by_owner = self._values.get(pattern)
            if not by_owner:
                continue
            for owner in subject.union(present) if len(present) < len(by_owner) else list(by_owner):
                if owner in by_owner and _beside(places, present.get(owner, []), owner in subject):
                    yield from by_owner[owner]


def _beside(values: Sequence[Span], owners: Sequence[Span], is_subject: bool) -> bool:
    """Whether a value stands apart from its owner: the France in `Tour de France` is not the country of that race."""
    if is_subject:
        return any(not any(low <= v[0] and v[1] <= high for low, high in owners) for v in values)
    return any(v[1] <= o[0] or o[1] <= v[0] for v in values for o in owners)


# ----------------------------------------------------------------------------------------------------------- forms


def pad(words: str) -> str:
    """Returns a normal form with spaces around it and around each Han or kana character (which are words there)."""
    if not words.isascii():
        words = " ".join(_HAN.sub(r" \1 ", words).split())
    return f" {words} "


@lru_cache(maxsize=1 << 12)
def line_words(line: str) -> str:
    """Returns a line's words in normal form, padded; cells (` | `) stay apart, so that no form spans two of them."""
    cells = [normalize(cell) for cell in _CELLS.split(line)]
    return pad(" | ".join(cells))


def surface_forms(target: Target) -> list[str]:
    """Returns the padded normal forms under which a target is looked for; a date in its usual ways to be written."""
    texts = [target.form, *target.aliases]
    if target.type == "date":
        texts += [written for text in texts for written in _written_dates(text)]
    return _patterns(texts)


def owner_forms(target: Target) -> list[str]:
    """Returns the padded normal forms of a layer-3 target's owner."""
    return _patterns([target.owner, *target.owner_aliases])


def heading_forms(heading: str) -> list[str]:
    """Returns the normal forms of what a heading line may be about: all of it, and without its tails."""
    title = heading[len(_HEADING) :].strip()
    forms = [normalize(title)]
    while (shorter := _HEADING_TAIL.sub("", title)) != title:
        title = shorter
        forms.append(normalize(title))
    return [form for form in dict.fromkeys(forms) if form]


def _patterns(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(pad(normalize(text)) for text in texts if not is_blank(text)))


def _written_dates(text: str) -> list[str]:
    date = parse_date(text)
    if date is None or not (date.year and date.month and date.day):
        return []
    month = _MONTH_WORDS[date.month - 1]
    days = (f"{date.day} {month} {date.year}", f"{month} {date.day} {date.year}", f"{month[:3]} {date.day} {date.year}")
    return [*days, f"{date.day} {month[:3]} {date.year}", f"{date.year}-{date.month:02}-{date.day:02}"]


# ---------------------------------------------------------------------------------------------------------- echoes


def _echo_patterns(echo: Sequence[str]) -> list[str]:
    """The padded normal forms of the arguments, line by line, the longest first."""
    lines = {line_words(line) for argument in echo for line in argument.splitlines() if line.strip()}
    return sorted((line for line in lines if line.strip()), key=lambda line: (-len(line), line))


def _echo_spans(line: str, words: str, echoes: Sequence[str]) -> list[Span]:
    """Where a line is a mere echo of an argument.

    A row, a heading that starts with the argument, and a passage with enough words of its own are no echoes, except for
    an argument that the passage quotes. `|` counts as the page's own only outside the argument.
    """
    spans: list[Span] = []
    rest = words
    for pattern in echoes:
        start = rest.find(pattern)
        while start >= 0:
            spans.append((start, start + len(pattern)))
            rest = rest[: start + 1] + "\0" * (len(pattern) - 2) + rest[start + len(pattern) - 1 :]
            start = rest.find(pattern, start + len(pattern) - 1)
    if not spans:
        return []
    further = rest.replace("\0", "").split()
    if "|" in further or (line.startswith(_HEADING) and any(start == len(" #") for start, _ in spans)):
        return []
    if len(further) < _PASSAGE_WORDS:
        return spans
    quoted = {pad(normalize(part)) for part in re.findall("[\"'“‘«„](.+?)[\"'”’»“]", line)}
    return [(start, end) for start, end in spans if words[start:end] in quoted]
