"""The scripted searcher in the web of four real tables (Faroese football), with tasks of all three families."""

import asyncio
import collections
import json
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_gen.collect import collect
from data_gen.filter import FilterConfig
from data_gen.reading import read_entity_rows, read_hits, read_pages, read_table_rows
from data_gen.sample import sample_tables
from data_gen.searcher import ScriptedSearcher, SearcherConfig
from data_gen.synthesize import SynthesisConfig, synthesize
from data_gen.tables import clean_tables
from data_gen.trees import build_trees
from webleaper_jax.agent.batch import BatchConfig
from webleaper_jax.agent.corpus import CorpusConfig, build_pages, unique_titles
from webleaper_jax.agent.engine import Request
from webleaper_jax.agent.loop import LoopConfig, run_episode
from webleaper_jax.agent.protocol import parse_answer, parse_turn
from webleaper_jax.agent.tools import Tools
from webleaper_jax.agent.web import OfflineWeb
from webleaper_jax.jsonl import DataError, read_records
from webleaper_jax.records import Cell, Message, Sampling, Table, Task, Trajectory, Tree
from webleaper_jax.scoring.score import score_trajectory

STRAIGHT = SearcherConfig(
    poor_query=0, repeated_search=0, useless_visit=0, skip_page=0, early_stop=0, give_up=0, wander=0, max_calls=40
)
LOOP = LoopConfig(max_steps=40, max_turns=60, max_context=10**6, prompt="short")


class World:
    """Tables, trees, tasks and tools that belong together."""

    def __init__(self, folder, raw=None):
        """Of the given tables, else of the sample's Faroese ones."""
        raw = raw or [t for t in read_records(sample_tables(), Table) if t.family == "football_faroe_islands"]
        self.tables: list[Table] = clean_tables(raw).tables
        self.titles = unique_titles(self.tables)
        self.trees: list[Tree] = build_trees(self.tables)[0]
        self.tools = Tools(OfflineWeb.build(build_pages(self.tables), folder))
        config = SynthesisConfig(per_tree=2, per_pair=1, per_reverse_pair=1)
        self.tasks: list[Task] = synthesize(self.tables, self.trees, config, tools=self.tools)[0]

    def searcher(self, config: SearcherConfig) -> ScriptedSearcher:
        return ScriptedSearcher(self.tasks, self.tables, self.trees, config)

    def run(self, config: SearcherConfig, rollout: int = 0, tasks=None, seed: int = 0) -> list[Trajectory]:
        """The trajectories of all tasks, all episodes at once by one engine."""
        engine = self.searcher(config)

        async def together() -> list[Trajectory]:
            episodes = [
                run_episode(t, rollout, engine, self.tools, LOOP, Sampling(seed=seed)) for t in tasks or self.tasks
            ]
            return list(await asyncio.gather(*episodes))

        return asyncio.run(together())


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    return World(tmp_path_factory.mktemp("web") / "web")


def calls(trajectory: Trajectory, tool: str) -> list[list[str]]:
    key = {"search": "queries", "visit": "urls"}[tool]
    return [json.loads(step.arguments)[key] for step in trajectory.steps if step.tool == tool]


def test_without_detours_every_task_of_every_variant_is_solved(world):
    """Found through the tools alone; the answer is exact, and all that is asked for was shown."""
    assert {task.variant for task in world.tasks} == {"basic", "union", "reverse_union"}
    for task, run in zip(world.tasks, world.run(STRAIGHT), strict=True):
        score = score_trajectory(task, run)
        assert (run.termination, score.f, score.isr) == ("answer", 1.0, 1.0), task.question
        assert run.answer.columns == task.answer.columns
        assert all(not step.error for step in run.steps)
        assert score.searches <= 3


def test_only_cells_that_were_seen_are_answered(world):
    """Whatever the detours: every cell of every answer stands in an observation before it."""
    config = SearcherConfig(poor_query=0.5, useless_visit=0.5, skip_page=0.5, early_stop=0.4, give_up=0.1, wander=0.5)
    answered = 0
    for rollout in range(4):
        for task, run in zip(world.tasks, world.run(config, rollout), strict=True):
            seen = {cell for step in run.steps for line in step.observation.splitlines() for cell in line.split(" | ")}
            seen |= {cell.partition(": ")[2] for cell in seen}
            seen |= {re.sub(r"^# | \(page .*", "", cell) for cell in seen}
            assert {cell for row in run.answer.rows for cell in row if cell} <= seen, task.question
            answered += len(run.answer.rows)
    assert answered > 100


def test_what_was_not_seen_is_not_answered(world):
    """A searcher that stops after one part knows no more than that part shows."""
    for task, run in zip(world.tasks, world.run(msgspec.structs.replace(STRAIGHT, early_stop=1.0)), strict=True):
        assert len([u for urls in calls(run, "visit") for u in urls if u.startswith("w/")]) == 1
        if task.variant != "reverse_union":  # there the anchor's page shows a row of each table, too
            assert all(row[0] in run.steps[-1].observation for row in run.answer.rows)
            assert score_trajectory(task, run).isr < 0.5


@pytest.mark.parametrize("variant", ["basic", "union", "reverse_union"])
def test_addresses_come_from_observations(world, variant):
    tasks = [task for task in world.tasks if task.variant == variant]
    for run in world.run(SearcherConfig(skip_page=0), tasks=tasks, rollout=1):
        known = ""
        for step in run.steps:
            if step.tool == "visit":
                (url,) = json.loads(step.arguments)["urls"]
                assert re.search(rf"(^|\s){re.escape(url)}($|\s)", known), url
            known += "\n" + step.observation


def one_detour(world: World, name: str) -> list[tuple[Trajectory, Trajectory]]:
    """Pairs of a straight run and the same with one detour."""
    detour = msgspec.structs.replace(STRAIGHT, **{name: 1.0})
    return list(zip(world.run(STRAIGHT), world.run(detour), strict=True))


def test_a_poor_query_comes_first_and_the_rest_is_as_before(world):
    for straight, detour in one_detour(world, "poor_query"):
        assert len(calls(detour, "search")[0]) == 1
        assert calls(detour, "search")[1:] == calls(straight, "search")
        assert detour.answer == straight.answer


def test_a_search_is_repeated(world):
    for straight, detour in one_detour(world, "repeated_search"):
        counts = collections.Counter(map(tuple, calls(detour, "search")))
        assert max(counts.values()) == 2
        assert len(calls(detour, "search")) == len(calls(straight, "search")) + 1
        assert detour.answer == straight.answer


def test_a_useless_page_is_opened(world):
    tasks = {task.id: task for task in world.tasks}
    for straight, detour in one_detour(world, "useless_visit"):
        before, after = (
            collections.Counter(u for urls in calls(run, "visit") for u in urls) for run in (straight, detour)
        )
        more = after - before
        assert more.total() <= 1
        sources = {world.titles[table_id] for table_id in tasks[detour.task_id].provenance.tables}
        assert not {world.tools.web.visit(url).title for url in more} & sources
        assert sorted(detour.answer.rows) == sorted(straight.answer.rows)  # an entity page may tell of a row earlier
    assert any(len(d.steps) > len(s.steps) for s, d in one_detour(world, "useless_visit"))


def test_a_part_is_skipped(world):
    less = 0
    for straight, detour in one_detour(world, "skip_page"):
        before, after = ([u for urls in calls(run, "visit") for u in urls] for run in (straight, detour))
        assert [url for url in before if url in after] == after
        less += len(after) < len(before)
    assert less > len(world.tasks) / 2


def test_a_searcher_that_gives_up_reads_nothing_and_answers_nothing(world):
    for _, detour in one_detour(world, "give_up"):
        assert not [u for urls in calls(detour, "visit") for u in urls if u.startswith("w/")]
        # in Reverse-Union the pages about the anchor may show an answer already
        assert not detour.answer.rows or any("e/" in urls[0] for urls in calls(detour, "visit"))


def test_a_wanderer_makes_more_calls_for_the_same_answer(world):
    pairs = one_detour(world, "wander")
    assert all(sorted(detour.answer.rows) == sorted(straight.answer.rows) for straight, detour in pairs)
    assert sum(len(d.steps) for _, d in pairs) > 1.3 * sum(len(s.steps) for s, _ in pairs)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_it_answers_when_its_calls_are_used_up(world, most):
    config = msgspec.structs.replace(STRAIGHT, max_calls=most, wander=0.5, poor_query=0.5)
    for run in world.run(config):
        assert len(run.steps) <= most
        assert run.termination == "answer"


def test_the_same_seed_gives_the_same_rollout_and_others_differ(world):
    config = SearcherConfig()
    first, again = world.run(config), world.run(config)
    assert [run.id for run in first] == [run.id for run in again]
    alone = world.run(config, tasks=world.tasks[:1]) + world.run(config, tasks=world.tasks[1:3])
    assert [run.id for run in alone] == [run.id for run in first[:3]]
    for other in (world.run(config, 1), world.run(config, seed=1)):
        differing = [a.segments[0].messages != b.segments[0].messages for a, b in zip(first, other, strict=True)]
        assert sum(differing) > 0.3 * len(differing)


def test_thoughts_are_short_and_turns_well_formed(world):
    for run in world.run(SearcherConfig()):
        turns = [parse_turn(m.content) for m in run.segments[0].messages if m.role == "assistant"]
        assert all(not turn.error and 0 < len(turn.thought) <= 60 for turn in turns)
        assert all(len(turn.calls) == 1 for turn in turns[:-1])
        assert parse_answer(turns[-1].answer or "") == run.answer


def test_shared_names_can_be_listed_before_the_answer(world):
    tasks = [task for task in world.tasks if task.variant == "union"]
    for run in world.run(msgspec.structs.replace(STRAIGHT, list_shared=True), tasks=tasks):
        turn = parse_turn(run.segments[0].messages[-1].content)
        names = list(dict.fromkeys(row[0] for row in run.answer.rows))
        assert turn.thought == "both: " + ", ".join(names)


def test_reverse_union_says_the_pivot_that_it_read(world):
    """The thought of its last search is the pivot's relation and the cell of it in a row of the anchor."""
    tasks = [task for task in world.tasks if task.variant == "reverse_union"]
    tables, trees = {table.id: table for table in world.tables}, {tree.id: tree for tree in world.trees}
    for task, run in zip(tasks, world.run(STRAIGHT, tasks=tasks), strict=True):
        pivots = {triple.relation for triple in task.formalization if triple.object == "V@pivot"}
        cells = set()
        for tree in map(trees.__getitem__, task.provenance.trees):
            (anchor,) = [member for member in tree.members if member.entity == task.provenance.anchor]
            for relation in tree.relations:
                if f"{relation.name} ({world.titles[tree.table_id]})" in pivots:
                    row_cells = {tables[tree.table_id].rows[row][relation.column].text for row in anchor.rows}
                    cells |= {f"{relation.name} {text}" for text in row_cells}
        steps = [index for index, step in enumerate(run.steps) if step.tool == "search"]
        turn = parse_turn([m.content for m in run.segments[0].messages if m.role == "assistant"][steps[-1]])
        assert turn.thought in cells


def test_searchers_are_named_after_their_detours(world):
    changed = [{}] + [{name: value + 1} for name, value in msgspec.structs.asdict(SearcherConfig()).items()]
    names = [world.searcher(SearcherConfig(**fields)).name for fields in changed]
    assert len(set(names)) == len(names)
    assert names[0] == ScriptedSearcher([], [], []).name


def test_a_session_starts_anew_when_its_episode_does(world):
    """An episode that was tried again after an outage begins from the start, whatever was played before."""
    engine = world.searcher(STRAIGHT)
    task = world.tasks[0]
    opening = (Message(role="system", content="s"), Message(role="user", content=task.question))
    request = Request(messages=opening, ids=None, sampling=Sampling(), seed=5, session="x", task_id=task.id)

    async def play() -> list[str]:
        first = (await engine.generate(request)).text
        seen = (*opening, Message(role="assistant", content=first), Message(role="tool", content="no results"))
        await engine.generate(msgspec.structs.replace(request, messages=seen))
        return [first, (await engine.generate(request)).text]

    first, again = asyncio.run(play())
    assert first == again
    engine.close_session("x")
    engine.close_session("never opened")
    later = msgspec.structs.replace(request, messages=(*opening, Message(role="assistant", content=first)))
    with pytest.raises(ValueError, match="was not started"):
        asyncio.run(engine.generate(later))
    with pytest.raises(ValueError, match="was not given task"):
        asyncio.run(engine.generate(msgspec.structs.replace(request, task_id="task-0")))


def test_an_entity_of_a_tables_title_is_not_opened_for_it(tmp_path, make_prizes):
    """Cells that link to the list that they stand in give it an entity page of the same title."""
    tables = [
        msgspec.structs.replace(
            table,
            id="",
            rows=tuple((Cell(row[0].text, (table.page_title,)), *row[1:]) for row in table.rows),
        )
        for table in make_prizes()
    ]
    world = World(tmp_path / "web", tables)
    addresses = {page.url for page in world.tools.web.pages.values() if page.title in world.titles.values()}
    assert any(url.startswith("e/") for url in addresses)
    assert {task.variant for task in world.tasks} >= {"basic", "union"}
    for config in (STRAIGHT, msgspec.structs.replace(STRAIGHT, repeated_search=1.0)):
        for task, run in zip(world.tasks, world.run(config), strict=True):
            opened = {url.partition("?")[0] for urls in calls(run, "visit") for url in urls}
            if task.variant != "reverse_union":  # there pages about the anchor are opened, too
                assert all(url.startswith("w/") for url in opened)
            assert len([url for url in opened & addresses if url.startswith("w/")]) == len(task.provenance.tables)


@pytest.mark.parametrize("author", ["# Author", "#  Author (pen | name)", "#Author", "Author (pen | name)"])
def test_columns_are_known_as_pages_write_them(tmp_path, make_prizes, author):
    """A first column that begins with `# ` stands on pages without the space: its rows were read as of no one."""
    tables = [
        msgspec.structs.replace(
            table,
            id="",
            columns=(author, "Year | won", " Country ", "Publisher"),
            rows=tuple((row[1], row[0], *row[2:]) for row in table.rows),
        )
        for table in make_prizes()
    ]
    world = World(tmp_path / "web", tables)
    assert {task.variant for task in world.tasks} >= {"basic", "union"}
    for task, run in zip(world.tasks, world.run(STRAIGHT), strict=True):
        assert score_trajectory(task, run).f == 1.0, task.question


def test_tasks_of_other_tables_are_refused(world):
    with pytest.raises(DataError, match=r"field `provenance.trees`"):
        ScriptedSearcher(world.tasks, world.tables, world.trees[1:])
    silent = msgspec.structs.replace(world.tasks[0], id="", formalization="")
    with pytest.raises(DataError, match=r"field `formalization`"):
        ScriptedSearcher([silent], world.tables, world.trees)
    legacy = Task(question="q", variant="legacy", origin="legacy", gold="a", reward="exact")
    ScriptedSearcher([legacy], world.tables, world.trees)


def test_collect_writes_what_it_returns(world, tmp_path):
    def run(config):
        searcher, batch = world.searcher(config), BatchConfig(rollouts=6)
        settings = {"loop": LOOP, "sampling": Sampling(), "batch": batch, "keep": FilterConfig(best_k=2)}
        return collect(world.tasks, searcher, world.tools, tmp_path, **settings)

    found = run(SearcherConfig())
    kept = list(read_records(tmp_path / "kept.jsonl.gz", Trajectory))
    assert kept == found.kept
    assert 0 < len(kept) <= 2 * len(world.tasks)
    assert json.loads((tmp_path / "filter.json").read_text())["cells"] == found.report.cells
    with pytest.raises(DataError, match="field `policy`"):  # a searcher of other detours
        run(SearcherConfig(early_stop=0.3))
    # the detours fill all four cells, and what is kept answers well
    assert found.report.smallest_cell > 0.02
    assert found.report.mean_f > 0.9


# ---------------------------------------------------------------------------------------------------------- reading

cell = st.text("abc 1|é#:", min_size=1, max_size=6).map(lambda s: " ".join(s.split())).filter(bool)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_table_is_read_back_from_its_pages(data):
    """Every cell of every row, in order, over all parts of the page, and the links from part to part."""
    width = data.draw(st.integers(2, 4))
    columns = data.draw(st.lists(cell, min_size=width, max_size=width, unique_by=lambda c: c.replace("|", "/")))
    rows = data.draw(st.lists(st.lists(cell, min_size=width, max_size=width), min_size=1, max_size=12))
    table = Table(page_title="T", url="u", columns=tuple(columns), rows=tuple(tuple(map(Cell, row)) for row in rows))
    overlap = data.draw(st.integers(0, 2))
    config = CorpusConfig(rows_per_part=3, table_share=1.0, overlap=overlap)
    (page,) = [p for p in build_pages([table], config) if p.kind == "table"]
    read, following = [], page.url
    for number, text in enumerate(page.parts, start=1):
        (part,) = read_pages(text)
        assert (part.title, part.part, part.parts) == ("T", number, len(page.parts))
        assert following == (page.url if number == 1 else f"{page.url}?p={number}")
        following = part.following
        read += read_table_rows(part)[min(overlap, len(rows) - 1) if number > 1 else 0 :]
    assert following == ""
    expected = [[text.replace("|", "/") for text in row] for row in rows]
    assert [[text for _, text in row.cells] for row in read] == [
        [re.sub(r"^#\s*", "#", t) if i == 0 and t.startswith("# ") else t for i, t in enumerate(row)]
        for row in expected
    ]


def test_an_entity_page_gives_rows_by_column():
    (part,) = read_pages("# Alta\nDams | Name: Alta | Year: 1987: opened\nno facts here")
    (row,) = read_entity_rows(part)
    assert (row.table, row.get("Name"), row.get("Year"), row.get("Height")) == ("Dams", "Alta", "1987: opened", "")


def test_results_are_read_as_listed():
    text = "1. List: of | w/1 | a, b; 3 rows\n2. Alta | e/12 | in: List\nonly the first 3 queries were run"
    assert read_hits(text) == [("List: of", "w/1"), ("Alta", "e/12")]
    assert read_hits("no results; try other words") == []
    assert read_pages("error: no page w/99; use an address") == []
