"""The three families on a small world: what a task holds, what it is fair to ask, and what depends on what."""

import random
import re
import unicodedata

import msgspec
import pytest

from data_gen.drafts import Source, Wanted, conditions, make_sources, short_labels, subsets
from data_gen.expressions import EvaluationError, Ref, evaluate, parse
from data_gen.questions import BASIC, REVERSE_UNION, UNION, basic_question
from data_gen.synthesize import select_small, synthesize
from data_gen.targets import TargetError, make_targets
from data_gen.tasks_reverse_union import leaks
from data_gen.tasks_union import overlapping_pairs, union_drafts
from webleaper_jax.agent.corpus import unique_titles
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Cell, Table, Task

SPLIT = {"quills": "train"}


def of(tasks, variant):
    return [task for task in tasks if task.variant == variant]


def test_each_variant_has_six_templates_with_what_it_needs():
    for templates, needed in (
        (BASIC, {"title", "where", "columns"}),
        (UNION, {"a", "b", "where_a", "where_b", "columns"}),
        (REVERSE_UNION, {"clues_a", "clues_b", "pivot", "columns"}),
    ):
        assert len(set(templates)) >= 6
        for template in templates:
            fields = set(re.findall(r"{(\w+)}", template))
            assert needed <= fields
            assert fields & {"noun", "nouns"}


def test_basic_tasks_ask_for_all_they_target(world_tasks):
    for task in of(world_tasks, "basic"):
        assert all(target.final for target in task.targets)
        assert {t.relation for t in task.targets if t.layer == 3} == set(task.answer.columns[1:])
        assert f'"{task.targets[0].owner}"' in task.question
        assert all(column in task.question for column in task.answer.columns)


def test_union_tasks_target_both_lists_and_finally_the_intersection(world, world_tasks):
    members = {s.title: {m.name for m in s.tree.members} for s in world.sources}
    for task in of(world_tasks, "union"):
        titles = list(dict.fromkeys(t.owner for t in task.targets if t.layer == 2))
        listed = [{t.form for t in task.targets if t.layer == 2 and t.owner == title} for title in titles]
        final = {t.form for t in task.targets if t.layer == 2 and t.final}
        assert len(titles) == 2
        assert final == listed[0] & listed[1] == {row[0] for row in task.answer.rows}
        assert all(own <= members[title] for own, title in zip(listed, titles, strict=True))
        if "only" not in task.question:
            assert listed == [members[title] for title in titles]
        assert all(f'"{title}"' in task.question for title in titles)
        assert {t.owner for t in task.targets if t.layer == 3} <= final
        # A relation on which the two differ is asked of each by its root, one on which they agree without.
        for column in task.answer.columns[1:]:
            assert column in task.question
            assert re.fullmatch(r"country|publisher|(year|publisher) \((Golden|Silver|Copper|Marble)\)", column)


def test_reverse_union_tasks_hold_the_anchor_and_its_pivot(world, world_tasks):
    for task in of(world_tasks, "reverse_union"):
        found = evaluate(task.formalization, world.by_title)
        assert found.anchors == {"V@anchor": task.provenance.anchor}
        assert task.provenance.anchor in found.answer
        assert len(found.answer) >= 2
        clues = [t for t in task.formalization if t.subject == "V@anchor" and re.match(r"C@", t.object)]
        assert len([t for t in clues if t.relation != "is listed in"]) >= 2


def plain(text):
    text = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if not unicodedata.combining(c))
    return re.findall(r"[a-z0-9]+", text)


def test_reverse_union_questions_leak_no_name_and_no_title(world_tasks):
    """By another route than the generator's: words, initials and plurals of every name, and of the titles."""
    for task in of(world_tasks, "reverse_union"):
        words = set(plain(task.question))
        for row in task.answer.rows:
            first, last = plain(row[0])
            assert not {first, last, f"{last}s", first[0] + last[0]} & words
        for title in {t.owner for t in task.targets if t.layer == 2}:
            assert not set(plain(title)) & words - {"for"}


def test_anchors_are_unique_by_brute_force_over_all_rows(world, world_tasks):
    for task in of(world_tasks, "reverse_union"):
        clues = [t for t in task.formalization if t.subject == "V@anchor" and t.object.startswith("C@")]
        fitting = set()
        rows = [(table, row) for table in world.tables for row in table.rows]
        for name in {row[1].text for _, row in rows}:
            own = [
                {column.lower(): cell.text.lower() for column, cell in zip(table.columns, row, strict=True)}
                for table, row in rows
                if row[1].text == name
            ]
            wanted = [(t.relation.split(" (")[0], t.object[2:].lower()) for t in clues if t.relation != "is listed in"]
            if all(any(facts[relation] == value for facts in own) for relation, value in wanted):
                fitting.add(name)
        assert fitting == {task.provenance.anchor}


@pytest.mark.parametrize(
    ("clue", "name", "title", "expected"),
    [
        ("Gödel's proof", "Kurt Godel", "Logicians", True),
        ("proofs", "The Proof", "Logicians", True),
        ("1971", "Ann", "Winners of 1971", True),
        ("1971", "Ann", "Winners of 1972", False),
        ("the list of it", "Of the", "List of the", False),
    ],
)
def test_leaks(clue, name, title, expected):
    assert leaks([clue], [name], [title]) is expected


# ---------------------------------------------------------------------------------------------------- determinism


def gist(tasks):
    """What a task asks and answers, without the ids of its tables (any changed cell changes those)."""
    return {
        task.question: (task.variant, frozenset(task.targets), frozenset(task.answer.rows), task.answer.columns)
        for task in tasks
    }


def test_the_same_input_gives_the_same_tasks(world, world_tasks, config):
    again, report = synthesize(world.tables, world.trees, config, splits=SPLIT)
    assert again == world_tasks
    assert sum(sum(counts.values()) for counts in report.counts.values()) == len(world_tasks)
    other, _ = synthesize(world.tables, world.trees, msgspec.structs.replace(config, seed=1), splits=SPLIT)
    assert gist(other).keys() != gist(world_tasks).keys()


@pytest.mark.parametrize("seed", range(4))
def test_shuffled_rows_and_columns_change_no_answer(world, world_tasks, build_world, seed):
    rng = random.Random(seed)
    shuffled = []
    for table in world.tables:
        columns = rng.sample(range(len(table.columns)), len(table.columns))
        rows = [tuple(row[c] for c in columns) for row in rng.sample(table.rows, len(table.rows))]
        named = tuple(table.columns[c] for c in columns)
        shuffled.append(msgspec.structs.replace(table, id="", columns=named, rows=tuple(rows)))
    other = build_world(shuffled)
    for task in world_tasks:
        assert other.checker.check(task) == ""
        found = again(task, other)
        assert set(found.targets) == set(task.targets)
        # An entity with several values of two relations may pair them in another order, but says the same.
        for column in range(len(task.answer.columns)):
            cells = [{(row[0], row[column]) for row in a.rows} for a in (found.answer, task.answer)]
            assert cells[0] == cells[1]


def again(task: Task, world):
    """Evaluates a task's triples over another world."""
    key, *names = task.answer.columns
    columns = dict(zip(parse(task.formalization).asked, names, strict=True))
    return make_targets(evaluate(task.formalization, world.by_title), world.by_title, columns, key)


# ---------------------------------------------------------------------------------------------------- metamorphic


def depends(task: Task, table: Table, title: str, row: int, column: int) -> bool:
    """Whether a task's answer may change when one cell becomes something that stands nowhere else; by the triples.

    A name matters where its row passes the conditions of its list; an attribute where it is asked of an answer, or
    where it is what a condition or pivot looks at and lets the row pass.
    """
    expression = parse(task.formalization)
    name, relation = table.rows[row][1].text, ("year", "name", "country", "publisher")[column]
    if title not in expression.sources[expression.variable]:
        return False
    members = {t.form for t in task.targets if t.layer == 2 and t.owner == title}
    anchor = task.provenance.anchor
    if column == 1:
        return name in members or name == anchor
    looked_at = [
        variable for variable, own in expression.conditions.items() for ref, _ in own if ref == (relation, title)
    ]
    if expression.variable in looked_at and name in members:
        return True
    if "V@anchor" in looked_at and name == anchor:
        return True
    return Ref(relation, title) in expression.asked and name in {row[0] for row in task.answer.rows}


@pytest.mark.parametrize("seed", range(12))
def test_a_changed_cell_changes_or_breaks_just_the_tasks_that_depend_on_it(world, world_tasks, build_world, seed):
    rng = random.Random(seed)
    at = rng.randrange(len(world.tables))
    table = world.tables[at]
    # Not one of the double winners: which of their rows a merged value comes from is another question.
    row, column = rng.randrange(1, len(table.rows) - 1), rng.randrange(4)
    new = ("2999", "Zed Zephyr", "Atlantis", "Nowhere Press")[column]
    cells = list(table.rows[row])
    cells[column] = Cell(new, (new,) if column in (1, 2) else ())
    rows = (*table.rows[:row], tuple(cells), *table.rows[row + 1 :])
    tables = list(world.tables)
    tables[at] = msgspec.structs.replace(table, id="", rows=rows)
    other = build_world(tables)
    title = unique_titles(world.tables)[table.id]
    assert title == unique_titles(tables)[tables[at].id]
    affected = 0
    for task in world_tasks:
        try:
            found = again(task, other)
            same = set(found.targets) == set(task.targets) and found.answer == task.answer
        except (EvaluationError, TargetError):
            same = False
        expected = depends(task, table, title, row, column)
        assert same is not expected, task.question
        if task.variant != "reverse_union":
            assert (other.checker.check(task) == "") is same
        affected += expected
    assert affected or column == 3


def test_synthesis_after_a_change_keeps_every_task_that_does_not_depend_on_it(world, world_tasks, build_world, config):
    """A publisher changes: what is asked of other cells comes out word for word, though ids of tables differ."""
    table = world.tables[0]
    cells = (*table.rows[3][:3], Cell("Nowhere Press"))
    tables = [msgspec.structs.replace(table, id="", rows=(*table.rows[:3], cells, *table.rows[4:])), *world.tables[1:]]
    other = build_world(tables)
    tasks, _ = synthesize(tables, other.trees, config, splits=SPLIT)
    title = unique_titles(world.tables)[table.id]
    before, after = gist(world_tasks), gist(tasks)
    untouched = [
        task.question
        for task in world_tasks
        if task.variant != "reverse_union"
        and all(f"publisher ({title})" not in t.relation for t in task.formalization)
        and not (task.variant == "basic" and title in task.question)
    ]
    assert len(untouched) > 10
    assert [question for question in untouched if after.get(question) != before[question]] == []


# ---------------------------------------------------------------------------------------------------- small parts


def test_pairs_share_entities_and_belong_to_one_biclique(world):
    pairs = list(overlapping_pairs(world.trees, k_min=2, m_min=2, least=1))
    assert len(pairs) == len({(p.a, p.b) for p in pairs}) == 6
    for pair in pairs:
        a, b = ({m.entity for m in world.trees[i].members} for i in (pair.a, pair.b))
        assert (pair.common, pair.jaccard) == (len(a & b), len(a & b) / len(a | b))
    assert list(overlapping_pairs(world.trees, k_min=2, m_min=2, least=99)) == []


def test_conditions_say_just_what_they_leave(world):
    for source in world.sources:
        found = conditions(source)
        assert any(".." in c.constant for c in found)
        for condition in found:
            for member in source.tree.members:
                years = [int(v.text) for v in source.values(member.entity, "year")]
                said = source.said(member.entity, condition.relation)
                low, _, high = condition.constant.partition("..")
                fits = [int(low) <= y <= int(high) for y in years] if high else [s == low.casefold() for s in said]
                assert set(fits) == {member.entity in condition.members}


def test_short_labels_tell_sources_apart():
    assert short_labels(["A: Round 1", "A: Round 12"]) == ("Round 1", "Round 12")
    assert short_labels(["2009 Tippeligaen: Teams", "2013 Tippeligaen: Stadiums"]) == ("2009", "2013")
    assert short_labels(["Olympics: Medals -- 1976 Montreal", "Olympics: Medals -- 1984 Seoul"]) == (
        "1976 Montreal",
        "1984 Seoul",
    )
    assert short_labels(["List of lakes", "List of lakes: Big"]) == ("List of lakes", "List of lakes: Big")


def test_subsets_are_distinct_and_in_order():
    names = ["a", "b", "c", "d", "e"]
    found = subsets(names, 4, 3, seed=0)
    assert len(found) == len(set(found)) >= 8
    assert max(map(len, found)) == 4
    assert all(list(chosen) == [n for n in names if n in chosen] for chosen in found)
    assert subsets([], 4, 3, seed=0) == []


def test_a_table_with_two_trees_is_asked_by_its_column(build_world):
    rows = tuple(
        (Cell(f"Book {chr(65 + i)}"), Cell(f"Writer {chr(65 + i)} Ames"), Cell(str(1970 + i))) for i in range(12)
    )
    table = Table(page_title="Prize", url="u", columns=("Title", "Author", "Year"), rows=rows)
    world = build_world([table])
    assert len(world.trees) == 2
    assert [s.title for s in world.sources] == ["Prize", f"Prize [{world.sources[1].column}]"]
    tasks, _ = synthesize([table], world.trees, splits={"Prize": "train"})
    assert {re.search(r"\(column (\w+)\)", task.question)[1] for task in tasks} == {"Title", "Author"}


def test_small_tasks_fit_a_small_context(world_tasks):
    small = select_small(world_tasks, 9, 40, max_question=250, max_answer=200)
    assert small
    assert all(9 <= len(t.targets) <= 40 and len(t.question) <= 250 for t in small)
    assert select_small(world_tasks, 1, 8) == []


def test_nothing_to_work_with_is_said(world):
    for tables, trees in (([], []), (world.tables, [])):
        with pytest.raises(DataError, match="no tables with a key column"):
            synthesize(tables, trees)


def test_one_value_for_all_makes_no_pivot_and_no_condition(build_world):
    """A pivot that all share, and a condition that all satisfy, would ask nothing."""
    tables = []
    for number in range(2):
        rows = tuple(
            (Cell(f"Writer {chr(65 + i + 4 * number)} Ames"), Cell("Norway"), Cell(str(1950 + 3 * i + number)))
            for i in range(12)
        )
        tables.append(Table(page_title=f"Prize {number}", url="u", columns=("Author", "Country", "Year"), rows=rows))
    world = build_world(tables)
    assert all(c.relation == "year" for source in world.sources for c in source.conditions)
    tasks, _ = synthesize(tables, world.trees, splits={"Prize 0": "train", "Prize 1": "train"})
    assert of(tasks, "union")
    assert not any("country" in t.relation and t.object.startswith("V@") for task in tasks for t in task.formalization)


def test_pairs_across_splits_give_no_task_and_are_counted(world, config):
    tables = [msgspec.structs.replace(t, id="", family=f"family {i}") for i, t in enumerate(world.tables)]
    from data_gen.trees import build_trees

    trees, _ = build_trees(tables)
    splits = {f"family {i}": ("train", "heldout")[i % 2] for i in range(4)}
    tasks, report = synthesize(tables, trees, config, splits=splits)
    assert report.drops["union"]["pair in different splits"] == 4
    for task in tasks:
        assert {splits[family] for family in task.provenance.families} == {task.split}


def test_basic_questions_state_their_condition():
    question = basic_question("person", "writer", '"T"', ("year", "1980 to 1989"), ["name", "title"], 0)
    assert "whose year is 1980 to 1989" in question
    assert "name | title" in question


def test_drafts_of_a_pair_without_overlap_are_none(build_world, make_prizes):
    tables = make_prizes(prizes=1) + [
        msgspec.structs.replace(t, id="", page_title="Else") for t in make_prizes(seed=9, prizes=1, winners=12)
    ]
    world = build_world(tables)
    a, b = world.sources
    assert isinstance(a, Source)
    relations = frozenset(r.triple for r in a.tree.relations)
    few = list(union_drafts(a, b, relations, Wanted(), max_attributes=3, least=999))
    assert few == []
    assert make_sources([], [], {}) == []
