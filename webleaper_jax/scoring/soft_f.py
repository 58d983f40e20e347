"""Soft precision, recall and F of an answer: the reward of WebLeaper tasks (paper section 3.4).

    Rc = mean over targets t of max over cells o of s(o, t)
    P  = mean over cells o of max over targets t of s(o, t)
    F  = (1 + w²) P Rc / (w² P + Rc)

O are the cells of the answer table, R the targets (R_final for the reward). How a cell may meet a target is `match`:

- `bound` (default): a key cell meets layer-2 targets. Any other cell meets the layer-3 targets of the owner that its
  row's key names best; in a column named after a relation, those of that relation only. Without the right key a value
  scores nothing.
- `flat`: the paper's formula to the letter, every cell meets every target.

O is a set. Rows whose keys name one entity are one row, and within it a value that is said again, in other words or in
another column without a known name, is one cell. A cell that lists several values (`1983; 1999`) is taken apart where
that helps, and then each of its values counts as a cell. Blank cells are none. Nothing depends on the order of rows or
of columns: the key column is the one that names the most owners (the first if none does).
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from webleaper_jax.records import Answer, Match, Target, Task
from webleaper_jax.scoring.normalize import is_blank, normalize, word_set
from webleaper_jax.scoring.similarity import SAME, index_words, similarity

_LIST = re.compile(r"\s*(?:;|\n|<br */?>|,\s|\s/\s|(?<=[^\W\d])/(?=[^\W\d])|&|\band\b|\bor\b)\s*", re.IGNORECASE)
_QUALIFIED = re.compile(r"^(.*?\S)\s*\((.+)\)\s*$")
_NO_MEANING = word_set("of the in for a an")

Rows = Sequence[Sequence[str]]


class AnswerScore(NamedTuple):
    """Precision, recall and F in [0, 1], and for each target of R its best score and the text that earned it."""

    precision: float
    recall: float
    f: float
    matches: tuple[Match, ...]


def score_answer(
    task: Task,
    answer: Answer,
    *,
    w: float = 1.0,
    match: Literal["bound", "flat"] = "bound",
    over: Literal["final", "all"] = "final",
) -> AnswerScore:
    """Scores an answer against a task's targets.

    Args:
      w: weight of recall against precision in F_w; 1 weighs them alike.
      match: how cells meet targets, see the module.
      over: R_final (what the question asks for) or R_all.

    Raises:
      ValueError: w is negative or not finite, or `match` or `over` is none of the above.
    """
    if not (math.isfinite(w) and w >= 0.0):
        raise ValueError(f"w is {w}; it must be a number from 0 up")
    if match not in ("bound", "flat") or over not in ("final", "all"):
        raise ValueError(f"match={match!r}, over={over!r}; use bound or flat, final or all")
    gold = _Gold(task, over)
    width = max((len(row) for row in answer.rows), default=0)
    if width == 0:
        return _summary([], [], gold, w)
    rows = [[*row, *[""] * (width - len(row))] for row in answer.rows]
    if match == "flat":
        return _summary(*_flat(gold, rows), gold, w)
    scores = [_summary(*_bound(gold, rows, answer.columns, key), gold, w) for key in _key_columns(gold, rows)]
    return max(scores, key=lambda score: (score.f, score.precision, score.recall))


# ------------------------------------------------------------------------------------------------------------- gold


class _Gold:
    """R, ready for look-ups: the entities that keys may name, and the targets of each.

    The entities are those of R_all: a key that names some other member exactly is not taken for a final one that it
    resembles. Names that share a normal form are names of one entity.
    """

    def __init__(self, task: Task, over: str):
        self.targets = {i: t for i, t in enumerate(task.targets) if (t.final or over == "all") and not is_blank(t.form)}
        self.relations = list(dict.fromkeys(t.relation for t in task.targets if t.layer == 3))
        names, entity_of = _entities(task.targets)
        self.keys: dict[int, list[int]] = defaultdict(list)  # entity -> its layer-2 targets
        self.values: dict[int, list[int]] = defaultdict(list)  # entity -> its layer-3 targets
        for index, target in self.targets.items():
            (self.keys if target.layer == 2 else self.values)[entity_of[index]].append(index)
        self._names = names
        self._types = sorted({type for by_name in names.values() for type in by_name.values()})
        self._index: dict[tuple[str, str], dict[int, None]] = defaultdict(dict)
        for entity, by_name in names.items():
            for name, type in by_name.items():
                for word in index_words(name, type):
                    self._index[type, word][entity] = None
        self._resembling: dict[str, dict[int, float]] = {}

    def resembling(self, key: str) -> dict[int, float]:
        """Entity -> how alike the key is to its names, for the entities to which it is alike at all."""
        if key not in self._resembling:
            near = {
                e for type in self._types for word in index_words(key, type) for e in self._index.get((type, word), ())
            }
            alike = {e: max(similarity(key, n, type) for n, type in self._names[e].items()) for e in sorted(near)}
            self._resembling[key] = {entity: s for entity, s in alike.items() if s > 0.0}
        return self._resembling[key]

    def named(self, key: str) -> list[int]:
        """The entities that a key names: those it is most like, if it is like enough."""
        alike = self.resembling(key)
        best = max(alike.values(), default=0.0)
        return [entity for entity, s in alike.items() if s == best] if best >= SAME else []

    def alike(self, text: str, index: int) -> float:
        """s(text, target): the best over the target's form and aliases."""
        target = self.targets[index]
        return max(similarity(text, form, target.type) for form in (target.form, *target.aliases))


def _entities(targets: Sequence[Target]) -> tuple[dict[int, dict[str, str]], list[int]]:
    """Returns entity -> its names -> their type, and the entity of each target: the member, or the value's owner."""
    key_type = next((t.type for t in targets if t.layer == 2), "text")
    names: dict[int, dict[str, str]] = {}
    of_form: dict[str, int] = {}
    firsts = []
    for number, target in enumerate(targets):
        is_key = target.layer == 2
        said = (target.form, *target.aliases) if is_key else (target.owner, *target.owner_aliases)
        forms = [normalize(name) for name in said]
        known = sorted({of_form[form] for form in forms if form in of_form})
        entity = known[0] if known else number
        mine = names.setdefault(entity, {})
        for other in known[1:]:
            mine |= names.pop(other)
            of_form |= {form: entity for form, e in of_form.items() if e == other}
        of_form |= dict.fromkeys(forms, entity)
        for name in said:
            mine[name] = target.type if is_key else mine.get(name, key_type)
        firsts.append(forms[0])
    return names, [of_form[form] for form in firsts]


# ------------------------------------------------------------------------------------------------------------ cells


class _Cell(NamedTuple):
    """A cell of O: the targets it meets with their scores, and what makes it the same cell as another."""

    text: str
    met: dict[int, float]
    row: str
    value: str
    relations: frozenset[str] | None  # None: a column without a known name

    @property
    def score(self) -> float:
        return max(self.met.values(), default=0.0)


def _flat(gold: _Gold, rows: Rows) -> tuple[list[_Cell], list[_Cell]]:
    """All cells, and the distinct ones among them; every cell meets every target."""
    by_word: dict[tuple[str, str], dict[int, None]] = defaultdict(dict)
    for index, target in gold.targets.items():
        for form in (target.form, *target.aliases):
            for word in index_words(form, target.type):
                by_word[target.type, word][index] = None
    types = sorted({target.type for target in gold.targets.values()})
    cells = []
    for text in dict.fromkeys(text for row in rows for text in row if not is_blank(text)):
        near = {i for type in types for word in index_words(text, type) for i in by_word.get((type, word), ())}
        met = {i: gold.alike(text, i) for i in sorted(near)}
        cells.append(_Cell(text, met, "", _value(gold, text, met), None))
    return cells, _distinct(cells)


def _bound(gold: _Gold, rows: Rows, columns: Sequence[str], key: int) -> tuple[list[_Cell], list[_Cell]]:
    """All cells, and the distinct ones among them; cells meet the targets of their column and of their row's owner."""
    named_by = [_relations(gold, columns[c]) if c < len(columns) else None for c in range(len(rows[0]))]
    keys, values = [], []
    for row in rows:
        owners = gold.named(row[key])
        name = f"#{owners[0]}" if owners else normalize(row[key])
        if not is_blank(row[key]) and not _only_owner(gold, owners):
            met = {i: gold.alike(row[key], i) for e in gold.resembling(row[key]) for i in gold.keys.get(e, ())}
            keys.append(_Cell(row[key], met, name, "", None))
        own = [i for owner in owners for i in gold.values.get(owner, ())]
        for column, text in enumerate(row):
            if column != key and not is_blank(text):
                values += _value_cells(gold, text, own, name, named_by[column])
    return keys + values, _distinct(keys) + _distinct(values)


def _only_owner(gold: _Gold, owners: list[int]) -> bool:
    """Whether a key names an owner whose name is not asked for: needed to bind the row, but no claim of its own."""
    return any(gold.values.get(e) for e in owners) and not any(gold.keys.get(e) for e in owners)


def _value_cells(gold: _Gold, text: str, own: list[int], row: str, relations: frozenset[str] | None) -> list[_Cell]:
    """One cell, or one for each value that it lists if the whole is no target's value and one of its parts is."""
    whole = _value_cell(gold, text, own, row, relations)
    if whole.score >= SAME:
        return [whole]
    parts = [part for part in _LIST.split(text) if not is_blank(part)]
    cells = [_value_cell(gold, part, own, row, relations) for part in parts]
    return cells if len(cells) > 1 and any(cell.score >= SAME for cell in cells) else [whole]


def _value_cell(gold: _Gold, text: str, own: list[int], row: str, relations: frozenset[str] | None) -> _Cell:
    alike = {i: gold.alike(text, i) for i in own}
    met = {i: s for i, s in alike.items() if relations is None or gold.targets[i].relation in relations}
    return _Cell(text, met, row, _value(gold, text, alike), relations)


def _value(gold: _Gold, text: str, alike: dict[int, float]) -> str:
    """What a text says: the form of the target that it is alike to, or, where there is none, itself."""
    best = max(alike, key=lambda i: (alike[i], -i), default=None)
    return normalize(gold.targets[best].form if best is not None and alike[best] >= SAME else text)


def _distinct(cells: Iterable[_Cell]) -> list[_Cell]:
    """One cell for each thing said: of a row's cells with one value in one column, the best.

    A cell in a column that is named less closely (or not at all) repeats one in a column named more closely, unless it
    scores more there.
    """
    said: dict[tuple[str, str], dict[frozenset[str] | None, _Cell]] = defaultdict(dict)
    for cell in cells:
        there = said[cell.row, cell.value]
        if cell.relations not in there or there[cell.relations].score < cell.score:
            there[cell.relations] = cell
    return [
        cell
        for there in said.values()
        for cell in there.values()
        if not any(_closer(other, cell) and other.score >= cell.score for other in there.values())
    ]


def _closer(a: _Cell, b: _Cell) -> bool:
    return a.relations is not None and (b.relations is None or a.relations < b.relations)


# ---------------------------------------------------------------------------------------------------------- columns


def _key_columns(gold: _Gold, rows: Rows) -> list[int]:
    """The columns that may hold the keys: those that name the most entities with targets (the first if none does)."""
    counts = []
    for column in range(len(rows[0])):
        entities = {entity for row in rows for entity in gold.named(row[column])}
        counts.append(sum(bool(gold.keys.get(e) or gold.values.get(e)) for e in entities))
    most = max(counts)
    return [column for column, count in enumerate(counts) if count == most] if most else [0]


def _relations(gold: _Gold, header: str) -> frozenset[str] | None:
    """The relations that a header names, None if it names none: then its cells may be of any.

    `year (Booker Prize)` and `Booker year` name the relation `year (Booker Prize)`; `year` names all years, whatever
    their qualifier, and a qualified header also the relation `year` without one.
    """
    base, qualifier = _parts(header)
    exact, unqualified, close = set(), set(), set()
    for relation in gold.relations:
        own_base, own_qualifier = _parts(relation)
        if normalize(header) == normalize(relation):
            exact.add(relation)
        if base == own_base and not own_qualifier:
            unqualified.add(relation)
        # Words in another order count only where they name the qualifier too.
        mixed = not qualifier and own_base < base and (base - own_base) <= own_qualifier
        if mixed or (base == own_base and qualifier <= own_qualifier):
            close.add(relation)
    # `year (Prize)` is not `year (Prize for Poetry)` where both are columns.
    named = exact | unqualified if exact and qualifier else close | unqualified | exact
    return frozenset(named) or None


def _parts(relation: str) -> tuple[frozenset[str], frozenset[str]]:
    """The words of a relation's name and those of its qualifier in brackets."""
    match = _QUALIFIED.match(relation)
    base, qualifier = match.groups() if match else (relation, "")
    words = normalize(base.replace("_", " ")).removeprefix("has ").split()
    return frozenset(words) - _NO_MEANING, frozenset(normalize(qualifier).split()) - _NO_MEANING


# ---------------------------------------------------------------------------------------------------------- summary


def _summary(cells: list[_Cell], distinct: list[_Cell], gold: _Gold, w: float) -> AnswerScore:
    best: dict[int, tuple[float, str]] = {}
    for cell in cells:
        for index, score in cell.met.items():
            if score > 0.0:
                # the better cell, and of equal ones the first in alphabetical order
                best[index] = min(best.get(index, (0.0, "")), (score, cell.text), key=lambda b: (-b[0], b[1]))
    matches = tuple(
        Match(target=i, score=best.get(i, (0.0, ""))[0], by=best.get(i, (0.0, ""))[1]) for i in gold.targets
    )
    recall = _mean([match.score for match in matches])
    precision = _mean([cell.score for cell in distinct])
    weighted = w * w * precision + recall
    f = (1.0 + w * w) * precision * recall / weighted if weighted > 0.0 else 0.0
    return AnswerScore(precision, recall, f, matches)


def _mean(scores: list[float]) -> float:
    """The mean, 0 of nothing; the same whatever the order."""
    return math.fsum(scores) / len(scores) if scores else 0.0
