"""From tables and trees to tasks whose answers are proven: the three families, every check, and a report of it all.

A draft becomes a task when the evaluator computes its answer, the independent checker confirms it to the last cell, no
task like it was taken before, and no single observation of the default web shows too much of it. Everything else is
dropped and counted by reason.
"""

import itertools
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from data_gen.checker import Checker, Layout
from data_gen.drafts import Draft, Source, Wanted, make_sources, rank
from data_gen.expressions import EvaluationError, evaluate
from data_gen.relations import column_relations
from data_gen.splits import SPLITS, Twins, family_of, find_twins, split_of_family
from data_gen.targets import TargetError, make_targets
from data_gen.tasks_basic import basic_drafts
from data_gen.tasks_reverse_union import Neighbourhood, reverse_union_drafts
from data_gen.tasks_union import Pair, overlapping_pairs, union_drafts
from webleaper_jax.agent.corpus import build_pages, shares, unique_titles
from webleaper_jax.agent.tools import Tools
from webleaper_jax.agent.web import OfflineWeb, Web
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import AtLeast0, AtLeast1, Provenance, Share, Split, Table, Task, Tree

VARIANTS = ("basic", "union", "reverse_union")


class SynthesisConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What to make, and how much of it.

    `k_min` and `m_min` are the bicliques' thresholds (trees, relations). `per_tree`, `per_pair` and `per_reverse_pair`
    bound the tasks of one variant from one tree or pair; `per_families` the pairs that two families may give to a
    variant. A pair needs `min_common` shared entities, and at most `max_jaccard` of all its entities shared, else the
    tables are near-identical. `small` are the cells (from, to) of tasks for small policies: they and others are drafted
    in turn. `max_share` is the share of R_all that one observation may show. `tries` bounds the drafts looked at for
    each task wanted.
    """

    seed: int = 0
    k_min: AtLeast1 = 2
    m_min: AtLeast1 = 2
    per_tree: AtLeast0 = 8
    per_pair: AtLeast0 = 6
    per_reverse_pair: AtLeast0 = 6
    per_families: AtLeast0 = 24
    min_common: AtLeast1 = 2
    max_jaccard: Share = 0.7
    max_attributes: AtLeast1 = 8
    max_pair_attributes: AtLeast1 = 3
    min_answers: AtLeast1 = 2
    small: tuple[int, int] = (9, 30)
    max_share: Share = 0.4
    tries: AtLeast1 = 6


class SynthesisReport(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a run: tasks by variant and split, drops by variant and reason, and n (cells) of every task kept."""

    tables: int
    trees: int
    pairs: int
    pairs_used: int
    counts: dict[str, dict[str, int]]
    drops: dict[str, dict[str, int]]
    cells: dict[str, list[int]]
    families: dict[str, int]
    twins: int

    def lines(self) -> list[str]:
        """The report for a terminal."""
        pairs = f"{self.pairs_used} of {self.pairs} pairs, {self.twins} twins left out"
        lines = [f"{self.tables} tables, {self.trees} trees, {pairs}"]
        lines.append(f"{'':14}" + "".join(f"{split:>12}" for split in SPLITS) + f"{'n min/median/max':>20}")
        for variant in VARIANTS:
            counts, cells = self.counts[variant], sorted(self.cells[variant])
            spread = f"{cells[0]}/{cells[len(cells) // 2]}/{cells[-1]}" if cells else "-"
            lines.append(f"{variant:14}" + "".join(f"{counts[split]:12}" for split in SPLITS) + f"{spread:>20}")
        lines.append(f"{'families':14}" + "".join(f"{self.families[split]:12}" for split in SPLITS))
        for variant, reasons in self.drops.items():
            lines += [f"dropped {variant}: {count} {reason}" for reason, count in sorted(reasons.items())]
        return lines


def synthesize(
    tables: Sequence[Table],
    trees: Sequence[Tree],
    config: SynthesisConfig | None = None,
    *,
    tools: Tools | None = None,
    splits: Mapping[str, Split] | None = None,
) -> tuple[list[Task], SynthesisReport]:
    """Makes the tasks of all three families, in the order basic, union, reverse_union.

    Args:
      tables: cleaned tables, the same that the trees were built from.
      tools: tools over the offline web of exactly these tables; built here with default settings when left out.
      splits: family -> split; by default as listed beside the sample, else by a hash.

    Raises:
      DataError: no tables, or no trees.
    """
    if not tables or not trees:
        raise DataError("synthesis: no tables with a key column are left; look at the drops of the tables stage")
    with tempfile.TemporaryDirectory() as folder:
        tools = tools or Tools(OfflineWeb.build(build_pages(tables), folder))
        return _Run(tables, trees, config or SynthesisConfig(), tools, splits).tasks()


class _Run:
    """One synthesis: what is fixed while drafts are tried, and what is counted."""

    def __init__(
        self,
        tables: Sequence[Table],
        trees: Sequence[Tree],
        config: SynthesisConfig,
        tools: Tools,
        splits: Mapping[str, Split] | None,
    ):
        self.config = config
        self.tools = tools
        self.tables = tables
        self.split_of = {table.id: split_of_family(family_of(table), listed=splits) for table in tables}
        self.family = {table.id: family_of(table) for table in tables}
        self.twins: list[Twins] = find_twins(tables, trees, self.split_of)
        out = {twins.dropped for twins in self.twins}
        every = make_sources(tables, trees, unique_titles(tables), parts_of_rows(tools.web))
        # The anchor of a Reverse-Union task is unique over all trees, the twins that give no tasks among them.
        self.trees = {source.title: source.tree for source in every}
        self.sources = [source for source in every if source.tree.table_id not in out]
        self.around = _neighbourhoods(every)
        self.checker = Checker(tables, layouts(tables, every))
        self.wanted = Wanted(config.small, config.max_share, config.seed)
        self.taken: set[object] = set()
        self.drops: dict[str, Counter[str]] = {variant: Counter() for variant in VARIANTS}

    def tasks(self) -> tuple[list[Task], SynthesisReport]:
        config = self.config
        kept: list[Task] = []
        for source in self.sources:
            drafts = basic_drafts(source, self.wanted, max_attributes=config.max_attributes)
            kept += self._take(drafts, config.per_tree)
        pairs = self._pairs()
        used: set[Pair] = set()
        for variant, most in (("union", config.per_pair), ("reverse_union", config.per_reverse_pair)):
            room: Counter[tuple[str, ...]] = Counter()
            for pair in pairs:
                a, b = self.sources[pair.a], self.sources[pair.b]
                families = tuple(sorted({self.family[a.tree.table_id], self.family[b.tree.table_id]}))
                if room[families] < config.per_families:
                    tasks = self._take(self._pair_drafts(variant, a, b, pair), most)
                    room[families] += bool(tasks)
                    used |= {pair} if tasks else set()
                    kept += tasks
        return kept, self._report(kept, len(pairs), len(used))

    def _pairs(self) -> list[Pair]:
        """The pairs of tables of one split that are not near-identical, in a seeded order."""
        config = self.config
        pairs = []
        for pair in overlapping_pairs(
            [s.tree for s in self.sources], k_min=config.k_min, m_min=config.m_min, least=config.min_common
        ):
            a, b = self.sources[pair.a], self.sources[pair.b]
            reason = ""
            if a.tree.table_id == b.tree.table_id:
                reason = "pair of one table"
            elif pair.jaccard > config.max_jaccard:
                reason = "pair of near-identical tables"
            elif self.split_of[a.tree.table_id] != self.split_of[b.tree.table_id]:
                reason = "pair in different splits"
            if reason:
                self.drops["union"][reason] += 1
                self.drops["reverse_union"][reason] += 1
            else:
                pairs.append(pair)
        return sorted(pairs, key=lambda p: rank(config.seed, self.sources[p.a].title, self.sources[p.b].title))

    def _pair_drafts(self, variant: str, a: Source, b: Source, pair: Pair) -> Iterator[Draft]:
        most = self.config.max_pair_attributes
        if variant == "union":
            return union_drafts(a, b, pair.relations, self.wanted, max_attributes=most, least=self.config.min_answers)
        around = self.around[a.tree.key.type, a.tree.key.domain]
        drops = self.drops["reverse_union"]
        return reverse_union_drafts(a, b, pair.relations, around, self.wanted, drops, max_attributes=most)

    def _take(self, drafts: Iterable[Draft], most: int) -> list[Task]:
        """The first `most` drafts that pass every check."""
        tasks: list[Task] = []
        for number, draft in enumerate(drafts):
            if len(tasks) == most or number == most * self.config.tries:
                break
            task, reason = self._task(draft)
            if task is None:
                self.drops[draft.variant][reason] += 1
            else:
                tasks.append(task)
        return tasks

    def _task(self, draft: Draft) -> tuple[Task | None, str]:
        """Returns the task, or None and why it was dropped."""
        try:
            evaluation = evaluate(draft.triples, self.trees)
            targets, answer = make_targets(evaluation, self.trees, draft.columns, draft.key, draft.unqualified)
        except (EvaluationError, TargetError) as error:
            return None, str(error)
        ids = tuple(source.tree.table_id for source in draft.sources)
        task = Task(
            question=draft.question,
            variant=draft.variant,
            targets=targets,
            answer=answer,
            formalization=draft.triples,
            provenance=Provenance(
                tables=ids,
                trees=tuple(source.tree.id for source in draft.sources),
                families=tuple(sorted({self.family[i] for i in ids})),
                anchor=draft.anchor,
            ),
            split=self.split_of[ids[0]],
            seed=self.config.seed,
        )
        marks = {task.question, (task.variant, answer, ids)}
        if marks & self.taken:
            return None, "asked before"
        refuted = self.checker.check(task)
        if refuted:
            return None, f"checker: {refuted}"
        if shares(task, self.tools, [source.page for source in draft.sources]) > self.config.max_share:
            return None, f"one observation shows more than {self.config.max_share:.0%}"
        self.taken |= marks
        return task, ""

    def _report(self, kept: Sequence[Task], pairs: int, used: int) -> SynthesisReport:
        counts = {variant: dict.fromkeys(SPLITS, 0) for variant in VARIANTS}
        cells: dict[str, list[int]] = {variant: [] for variant in VARIANTS}
        families: dict[str, set[str]] = defaultdict(set)
        for task in kept:
            counts[task.variant][task.split] += 1
            cells[task.variant].append(len(task.targets))
            families[task.split].update(task.provenance.families)
        return SynthesisReport(
            tables=len(self.tables),
            trees=len(self.trees),
            pairs=pairs,
            pairs_used=used,
            counts={variant: {str(split): n for split, n in by.items()} for variant, by in counts.items()},
            drops={variant: dict(sorted(reasons.items())) for variant, reasons in self.drops.items()},
            cells=cells,
            families={split: len(families[split]) for split in SPLITS},
            twins=len(self.twins),
        )


def select_small(
    tasks: Iterable[Task], n_min: int = 9, n_max: int = 30, max_question: int = 400, max_answer: int = 700
) -> list[Task]:
    """Returns the tasks that a small policy's context can hold.

    Args:
      n_min, n_max: cells of R_all.
      max_question, max_answer: characters of the question, and of the answer as lines of cells.
    """
    return [
        task
        for task in tasks
        if n_min <= len(task.targets) <= n_max
        and len(task.question) <= max_question
        and sum(len(" | ".join(row)) + 1 for row in (task.answer.columns, *task.answer.rows)) <= max_answer
    ]


def parts_of_rows(web: Web) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Title of a table page -> for each row the parts that show it; a part may begin with the last rows before it."""
    found = {}
    for page in web.pages.values() if isinstance(web, OfflineWeb) else ():
        if page.kind == "table":
            bodies = [text.splitlines()[2 : None if text == page.parts[-1] else -1] for text in page.parts]
            again = min((_repeated(*pair) for pair in itertools.pairwise(bodies)), default=0)  # the same in all parts
            shown: list[list[int]] = []
            for part, rows in enumerate(bodies):
                if part:
                    for row in shown[len(shown) - again :]:
                        row.append(part)
                shown += [[part] for _ in rows[again if part else 0 :]]
            found[page.title] = tuple(map(tuple, shown))
    return found


def _repeated(before: Sequence[str], rows: Sequence[str]) -> int:
    """How many rows at the end of a part begin the next one, which adds one row at least."""
    most = min(len(before), len(rows) - 1)
    return next((n for n in range(most, 0, -1) if before[len(before) - n :] == rows[:n]), 0)


def _neighbourhoods(sources: Sequence[Source]) -> dict[tuple[str, str], Neighbourhood]:
    groups: dict[tuple[str, str], list[Source]] = defaultdict(list)
    for source in sources:
        groups[source.tree.key.type, source.tree.key.domain].append(source)
    return {group: Neighbourhood(own) for group, own in groups.items()}


def layouts(tables: Sequence[Table], sources: Sequence[Source]) -> list[Layout]:
    """What the checker needs to read the raw tables: columns by relation name, and all columns' types and headers."""
    types = {table.id: {r.column: r.type for r in column_relations(table)} for table in tables}
    return [
        Layout(
            title=source.title,
            table_id=source.tree.table_id,
            group=(source.tree.key.type, source.tree.key.domain),
            key=source.tree.key.column,
            relations={relation.name: relation.column for relation in source.tree.relations},
            types=types[source.tree.table_id],
            headers=source.headers,
        )
        for source in sources
    ]
