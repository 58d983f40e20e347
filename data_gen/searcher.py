"""The scripted searcher: an engine that really searches and reads, and makes the detours of a real policy.

It is a script, not a model, and is called so wherever its trajectories are shown. It is told which tables a task is
about (`data_gen.known`), writes its calls as text, and learns everything else from observations: addresses from search
results, the next part of a page from its `next:` line, cells from the pages. What it answers is what it has seen.

Every rollout draws a plan from its seed: which detours it makes and where. Thoughts are short, so that a small policy
can learn them.
"""

import hashlib
import random
from collections.abc import Generator, Iterable, Sequence

import msgspec

from data_gen.expressions import Ref
from data_gen.known import Known, Library, Source, answer_from, pivot_of, shared_names, titles_of
from data_gen.reading import Hit, PagePart, SeenRow, read_entity_rows, read_hits, read_pages, read_table_rows
from webleaper_jax.agent.engine import Completion, Request
from webleaper_jax.agent.protocol import format_answer, format_call
from webleaper_jax.agent.render import ANSWER, ANSWER_END, THINK, THINK_END, PolicyTokenizer
from webleaper_jax.records import Answer, AtLeast0, Share, Table, Task, Tree

# a script says a turn and is sent the observations of its calls, joined by line breaks
Script = Generator[str, str, None]


class SearcherConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How often a rollout makes which detour (probabilities, each drawn once a rollout unless said otherwise).

    Attributes:
      poor_query: the first search is a vague one.
      repeated_search: the first good search is made again.
      useless_visit: a result that holds no rows is opened before the table.
      skip_page: one of a table's parts is left out.
      early_stop: answers after the first part that it reads.
      give_up: answers before it reads any.
      wander: a searcher that cannot decide: before each part it searches or opens something useless, with probability
        `wander_again`.
      list_shared: the last thought lists the names that the tables share, before a Union or Reverse-Union is answered.
      max_calls: answers when so many calls were made.
    """

    poor_query: Share = 0.12
    repeated_search: Share = 0.06
    useless_visit: Share = 0.12
    skip_page: Share = 0.08
    early_stop: Share = 0.2
    give_up: Share = 0.06
    wander: Share = 0.12
    wander_again: Share = 0.8
    list_shared: bool = False
    max_calls: AtLeast0 = 12


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The detours of one rollout. `most_parts` is how many parts of tables are read at most, `skipped` the place of the
    part left out among a table's parts (0: none)."""

    poor_query: bool
    repeated_search: bool
    useless_visit: bool
    wander: bool
    skipped: int
    most_parts: int


class ScriptedSearcher:
    """An engine (see `agent.engine.Engine`) that plays a script for each episode. It deals in text.

    `name` tells searchers of different detours apart.
    """

    tokenizer: PolicyTokenizer | None = None

    def __init__(
        self,
        tasks: Iterable[Task],
        tables: Iterable[Table],
        trees: Iterable[Tree],
        config: SearcherConfig | None = None,
    ):
        """Takes the tasks, and the cleaned tables and the trees that they were made from.

        Raises:
          DataError: a task was made from other tables or trees.
        """
        self.config = config or SearcherConfig()
        detours = hashlib.blake2b(msgspec.json.encode(self.config), digest_size=4).hexdigest()
        self.name = f"scripted:{detours}"
        library = Library(tables, trees)
        self._known = {task.id: library.known(task) for task in tasks if task.origin == "webleaper"}
        self._scripts: dict[str, Script] = {}

    async def generate(self, request: Request) -> Completion:
        """Returns the next turn of an episode; the first request of a session (no assistant turn yet) starts it anew.

        Raises:
          ValueError: the task is not among those given, or a session goes on that was never started.
        """
        if all(message.role != "assistant" for message in request.messages):
            if request.task_id not in self._known:
                raise ValueError(f"the scripted searcher was not given task {request.task_id}")
            script = _Search(self._known[request.task_id], self.config, random.Random(request.seed)).script()
            self._scripts[request.session] = script
            return Completion(text=next(script))
        if request.session not in self._scripts:
            raise ValueError(f"session {request.session} was not started here")
        observations: list[str] = []
        for message in reversed(request.messages):
            if message.role == "assistant":
                break
            observations.insert(0, message.content)
        return Completion(text=self._scripts[request.session].send("\n".join(observations)))

    def close_session(self, session: str) -> None:
        self._scripts.pop(session, None)


class _Search:
    """One episode: what was seen so far, and the script that goes on from it."""

    def __init__(self, known: Known, config: SearcherConfig, rng: random.Random):
        self.known, self.config, self.rng = known, config, rng
        self.plan = draw_plan(config, rng)
        self.rows: list[SeenRow] = []
        self.hits: list[Hit] = []
        self.opened: set[str] = set()
        self.calls = 0
        self.parts_read = 0

    def script(self) -> Script:
        """Finds the tables, reads their parts, and answers."""
        addresses = yield from self._find_tables()
        for number, source in enumerate(self.known.sources):
            if source.title in addresses:
                yield from self._read_table(addresses[source.title], "open" if number == 0 else "other")
        yield self._answer()

    # ------------------------------------------------------------------------------------------------------ finding

    def _find_tables(self) -> Generator[str, str, dict[str, str]]:
        """Searches until every source's page is among the results; returns title -> address of those found."""
        titles = [source.title for source in self.known.sources]
        if self.plan.poor_query:
            yield from self._search("find", [self._poor_query()])
        if self.known.task.variant == "reverse_union":
            titles = yield from self._find_titles()
        found: dict[str, str] = {}
        for attempt in range(3):
            wanted = [title for title in titles if title not in found]
            # after a failure one title at a time: results are shared by the queries of a call
            queries = wanted if attempt == 0 else wanted[:1]
            if not wanted or not self._may_call():
                break
            again = 2 if attempt == 0 and self.plan.repeated_search else 1
            for _ in range(again):
                yield from self._search(self._pivot_thought() or "find", queries)
                for hit in self.hits:
                    if hit.title in wanted and hit.url.startswith("w/"):  # an entity may bear a table's title
                        found.setdefault(hit.title, hit.url)
        if self.plan.useless_visit:
            yield from self._useless_visit()
        return found

    def _find_titles(self) -> Generator[str, str, list[str]]:
        """Reverse-Union: finds the anchor by its clues, and on the pages about it the tables that it stands in.

        The page read is the anchor's own if the search lists it, else those of the clues (a stadium's page says which
        team plays there); a table that these do not name is looked for on the anchor's page, by the name just read.
        """
        clues = self._clues()
        for queries in dict.fromkeys([("; ".join(clues),), tuple(clues)]):
            yield from self._search("clues", queries)
            yield from self._read_about(self._leads())
            if self._anchor_rows():
                break
        named = {source.named(row) for source in self.known.sources for row in self._anchor_rows()} - {""}
        if named and len(self._tables_found()) < len(self.known.sources):
            yield from self._search("who", [min(named)])
            yield from self._read_about([hit for hit in self.hits if self._is_anchor(hit)][:1])
        return self._tables_found()

    def _leads(self) -> list[Hit]:
        """Results that tell about the anchor: its own page, else the pages of the clues' values."""
        values = {obj.removeprefix("C@") for _, conditions in self._clue_conditions() for _, obj in conditions}
        return [hit for hit in self.hits if self._is_anchor(hit)][:1] or [
            hit for hit in self.hits if hit.title in values
        ]

    def _read_about(self, hits: Sequence[Hit]) -> Script:
        """Opens pages, of each a few parts at most, until every source's title was read beside the anchor."""
        for hit in hits:
            url = hit.url
            for _ in range(4 if self._is_anchor(hit) else 2):
                if url and self._may_call() and len(self._tables_found()) < len(self.known.sources):
                    pages = yield from self._visit("who" if url == hit.url else "next", url)
                    url = pages[-1].following if pages else ""

    def _anchor_rows(self) -> list[SeenRow]:
        """The rows seen that speak of the anchor."""
        anchor = self.known.task.provenance.anchor
        sources = {source.title: source for source in self.known.sources}
        return [
            row
            for row in self.rows
            if row.table in sources and sources[row.table].entity(sources[row.table].named(row)) == anchor
        ]

    def _tables_found(self) -> list[str]:
        found = {row.table for row in self._anchor_rows()}
        return [source.title for source in self.known.sources if source.title in found]

    def _is_anchor(self, hit: Hit) -> bool:
        return any(source.entity(hit.title) == self.known.task.provenance.anchor for source in self.known.sources)

    def _pivot_thought(self) -> str:
        """Reverse-Union: what was read of the anchor's pivot, as `silver 0`; empty where nothing was."""
        pivot = pivot_of(self.known, self.known.task.provenance.anchor, self.rows)
        return f"{pivot.relation} {pivot.text}" if pivot else ""

    def _clues(self) -> list[str]:
        """The clues as the question words them, those of each list as one query."""
        question = self.known.task.question
        return [
            " and ".join(
                f"{ref.relation} {_wording(question, source.tree, obj.removeprefix('C@'))}" for ref, obj in clues
            )
            for source, clues in self._clue_conditions()
        ]

    def _clue_conditions(self) -> list[tuple[Source, list[tuple[Ref, str]]]]:
        """What is said of the anchor, by source."""
        expression = self.known.expression
        anchors = [own for variable, own in expression.conditions.items() if variable != expression.variable]
        stated = [(ref, obj) for own in anchors for ref, obj in own if obj.startswith("C@")]
        by_source = zip(titles_of(expression), self.known.sources, strict=True)
        clues = [(source, [(ref, obj) for ref, obj in stated if ref.title == title]) for title, source in by_source]
        return [(source, own) for source, own in clues if own]

    def _poor_query(self) -> str:
        """A vague query: what is asked for, not where it stands."""
        columns = list(self.known.task.answer.columns[1:])
        return self.rng.choice(columns).split(" (")[0] if columns else "list"

    # ------------------------------------------------------------------------------------------------------ reading

    def _read_table(self, url: str, thought: str) -> Script:
        """Opens a table and follows its `next:` lines to the end, unless the plan stops or skips."""
        place = 1
        while url and self.parts_read < self.plan.most_parts and self._may_call():
            if self.plan.wander and self.rng.random() < self.config.wander_again:
                yield from self._wander()
                if not self._may_call():
                    return
            pages = yield from self._visit(thought, url)
            if not pages:
                return
            self.parts_read += 1
            thought, url, place = "next", pages[-1].following, place + 1
            if place == self.plan.skipped and pages[-1].part + 1 < pages[-1].parts:
                url = f"{url.rpartition('=')[0]}={pages[-1].part + 2}"

    def _wander(self) -> Script:
        """Something useless: a search made before, or a page without rows."""
        if self.rng.random() < 0.5:
            yield from self._search("find", [self._poor_query()])
        else:
            yield from self._useless_visit()

    def _useless_visit(self) -> Script:
        """Opens a result that is no source, if there is one."""
        sources = {source.title for source in self.known.sources}
        useless = [hit for hit in self.hits if hit.title not in sources and hit.url not in self.opened]
        if useless and self._may_call():
            yield from self._visit("open", self.rng.choice(useless).url)

    def _search(self, thought: str, queries: Sequence[str]) -> Script:
        if self._may_call():
            self.calls += 1
            observation = yield _turn(thought, format_call("search", {"queries": list(queries)}))
            self.hits = read_hits(observation) or self.hits

    def _visit(self, thought: str, url: str) -> Generator[str, str, list[PagePart]]:
        self.calls += 1
        self.opened.add(url)
        observation = yield _turn(thought, format_call("visit", {"urls": [url]}))
        pages = read_pages(observation)
        for page in pages:
            for row in read_table_rows(page) if url.startswith("w/") else read_entity_rows(page):
                if row not in self.rows:
                    self.rows.append(row)
        return pages

    def _may_call(self) -> bool:
        return self.calls < self.config.max_calls

    # ---------------------------------------------------------------------------------------------------- answering

    def _answer(self) -> str:
        pivot = pivot_of(self.known, self.known.task.provenance.anchor, self.rows)
        answer = answer_from(self.known, self.rows, pivot.entity if pivot else None)
        thought = "done"
        if self.config.list_shared and len(self.known.sources) > 1 and answer.rows:
            thought = "both: " + ", ".join(shared_names(self.known, answer))
        return _turn(thought, f"{ANSWER}\n{_format(answer)}\n{ANSWER_END}")


def draw_plan(config: SearcherConfig, rng: random.Random) -> Plan:
    """Draws the detours of one rollout; always the same number of draws, so that plans depend on the seed alone."""
    poor, repeated, useless, wander, skip, stop = (rng.random() for _ in range(6))
    skipped = rng.choice((2, 3))
    return Plan(
        poor_query=poor < config.poor_query,
        repeated_search=repeated < config.repeated_search,
        useless_visit=useless < config.useless_visit,
        wander=wander < config.wander,
        skipped=skipped if skip < config.skip_page else 0,
        most_parts=0 if stop < config.give_up else 1 if stop < config.give_up + config.early_stop else 10**9,
    )


def _turn(thought: str, action: str) -> str:
    return f"{THINK}{thought}{THINK_END}\n{action}"


def _format(answer: Answer) -> str:
    return format_answer(answer) if answer.rows else ""


def _wording(question: str, tree: Tree, constant: str) -> str:
    """A constant as the question writes it."""
    spellings = {value.text for member in tree.members for value in member.values if value.entity == constant}
    return max((s for s in spellings if s in question), key=lambda s: (len(s), s), default=constant)
