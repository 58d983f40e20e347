"""The checker: independent by its imports, confirms what is right, and refutes every tampering and planted fault."""

import ast
import pathlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import data_gen.checker
import data_gen.expressions as expressions
from data_gen.targets import TargetError, make_targets
from webleaper_jax.records import Answer, Cell, Table, Task, Triple


def test_it_shares_no_code_with_what_it_checks():
    source = pathlib.Path(data_gen.checker.__file__).read_text(encoding="utf-8")
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module)
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    assert {name for name in imported if name.split(".")[0] not in ("webleaper_jax",)} <= {
        "re",
        "sqlite3",
        "unicodedata",
        "collections.abc",
        "itertools",
        "typing",
    }
    assert {name for name in imported if name.startswith("webleaper_jax")} == {"webleaper_jax.records"}


def test_it_confirms_every_task(world, world_tasks):
    assert [world.checker.check(task) for task in world_tasks] == [""] * len(world_tasks)


# ------------------------------------------------------------------------------------------------------- tampering


def changed(task: Task, **fields) -> Task:
    return msgspec.structs.replace(task, id="", **fields)


def drop_target(task, draw):
    at = draw(st.integers(0, len(task.targets) - 1))
    return changed(task, targets=task.targets[:at] + task.targets[at + 1 :])


def rename_target(task, draw):
    at = draw(st.integers(0, len(task.targets) - 1))
    other = msgspec.structs.replace(task.targets[at], form="Nobody Known")
    return changed(task, targets=(*task.targets[:at], other, *task.targets[at + 1 :]))


def flip_final(task, draw):
    at = draw(st.integers(0, len(task.targets) - 1))
    other = msgspec.structs.replace(task.targets[at], final=not task.targets[at].final)
    return changed(task, targets=(*task.targets[:at], other, *task.targets[at + 1 :]))


def move_cell(task, draw):
    """Gives a layer-3 target to another owner."""
    cells = [i for i, target in enumerate(task.targets) if target.layer == 3]
    at = draw(st.sampled_from(cells))
    owners = sorted({task.targets[i].owner for i in cells} - {task.targets[at].owner}) or ["Nobody Known"]
    other = msgspec.structs.replace(task.targets[at], owner=draw(st.sampled_from(owners)))
    return changed(task, targets=(*task.targets[:at], other, *task.targets[at + 1 :]))


def swap_labels(task, draw):
    """Calls two columns by each other's name, in the answer and in the targets."""
    columns = list(task.answer.columns)
    a, b = draw(st.lists(st.integers(0, len(columns) - 1), min_size=2, max_size=2, unique=True))
    columns[a], columns[b] = columns[b], columns[a]
    new = dict(zip(task.answer.columns, columns, strict=True))
    targets = tuple(
        msgspec.structs.replace(target, relation=new.get(target.relation, target.relation))
        if target.layer == 3
        else target
        for target in task.targets
    )
    return changed(task, targets=targets, answer=Answer(columns=tuple(columns), rows=task.answer.rows))


def rename_column(task, draw):
    """Calls a column by a name of none, or puts the name of no source behind its own."""
    columns = list(task.answer.columns)
    at = draw(st.integers(0, len(columns) - 1))
    old = columns[at]
    columns[at] = draw(st.sampled_from(["prize", f"{old} (prize)", f"{old})", ""]))
    targets = tuple(
        msgspec.structs.replace(t, relation=columns[at]) if t.layer == 3 and t.relation == old else t
        for t in task.targets
    )
    return changed(task, targets=targets, answer=Answer(columns=tuple(columns), rows=task.answer.rows))


def rename_relation(task, draw):
    """Calls a target otherwise than its column."""
    at = draw(st.integers(0, len(task.targets) - 1))
    other = msgspec.structs.replace(task.targets[at], relation="prize")
    return changed(task, targets=(*task.targets[:at], other, *task.targets[at + 1 :]))


def drop_row(task, draw):
    at = draw(st.integers(0, len(task.answer.rows) - 1))
    rows = task.answer.rows[:at] + task.answer.rows[at + 1 :]
    return changed(task, answer=Answer(columns=task.answer.columns, rows=rows))


def change_answer_cell(task, draw):
    at = draw(st.integers(0, len(task.answer.rows) - 1))
    row = list(task.answer.rows[at])
    row[draw(st.integers(0, len(row) - 1))] = "1066"
    rows = (*task.answer.rows[:at], tuple(row), *task.answer.rows[at + 1 :])
    return changed(task, answer=Answer(columns=task.answer.columns, rows=rows))


@settings(max_examples=300, deadline=None)
@given(st.data())
@pytest.mark.parametrize(
    "tamper",
    [
        drop_target,
        rename_target,
        flip_final,
        move_cell,
        swap_labels,
        rename_column,
        rename_relation,
        drop_row,
        change_answer_cell,
    ],
)
def test_no_tampering_goes_unnoticed(world, world_tasks, tamper, data):
    task = tamper(data.draw(st.sampled_from(world_tasks)), data.draw)
    assert world.checker.check(task) != ""


# -------------------------------------------------------------------------------------------------- planted faults


def drop_last_member(fault):
    narrow = expressions._narrow
    fault.setattr(expressions, "_narrow", lambda *a: narrow(*a)[:-1])


def forget_conditions(fault):
    fault.setattr(expressions, "_holds", lambda values, constants: True)


def year_range_without_its_end(fault):
    satisfies = expressions.satisfies

    def off_by_one(value, constant):
        low, dots, high = constant.partition("..")
        return satisfies(value, f"{low}..{int(high) - 1}") if dots else satisfies(value, constant)

    fault.setattr(expressions, "satisfies", off_by_one)


def unite_instead_of_intersect(fault):
    def anywhere(operands):
        entities = dict.fromkeys(m.entity for operand in operands for m in operand.members)
        first = {m.entity for m in operands[0].members}
        return tuple(entity for entity in entities if entity in first)

    fault.setattr(expressions, "_common", anywhere)


def join_on_first_names(fault):
    def namesakes(operands):
        rest = [{m.name.split()[0] for m in operand.members} for operand in operands[1:]]
        return tuple(m.entity for m in operands[0].members if all(m.name.split()[0] in other for other in rest))

    fault.setattr(expressions, "_common", namesakes)


def first_value_only(fault):
    values_of = expressions.values_of
    fault.setattr(expressions, "values_of", lambda *a: values_of(*a)[:1])


def relation_beside_the_right_one(fault):
    index = expressions._relation_index
    fault.setattr(expressions, "_relation_index", lambda tree, name: (index(tree, name) + 1) % len(tree.relations))


def values_of_the_neighbour(fault):
    values_of = expressions.values_of

    def neighbour(tree, member, relation):
        return values_of(tree, tree.members[tree.members.index(member) - 1], relation)

    fault.setattr(expressions, "values_of", neighbour)


def case_of_the_first_source(fault):
    """Every relation is read from the first source."""
    ref = expressions._ref
    fault.setattr(expressions, "_ref", lambda relation, titles: ref(relation, titles)._replace(title=titles[0]))


@pytest.mark.parametrize(
    "plant",
    [
        drop_last_member,
        forget_conditions,
        year_range_without_its_end,
        unite_instead_of_intersect,
        join_on_first_names,
        first_value_only,
        relation_beside_the_right_one,
        values_of_the_neighbour,
        case_of_the_first_source,
    ],
)
def test_a_fault_in_the_evaluator_is_caught(world, world_tasks, plant, monkeypatch):
    """Each task is computed once more with the fault: it comes out the same, breaks, or is refuted."""
    plant(monkeypatch)
    caught = 0
    for task in world_tasks:
        key, *names = task.answer.columns
        columns = dict(zip(expressions.parse(task.formalization).asked, names, strict=True))
        try:
            found = make_targets(expressions.evaluate(task.formalization, world.by_title), world.by_title, columns, key)
        except (expressions.EvaluationError, TargetError, KeyError):
            caught += 1
            continue
        wrong = set(found.targets) != set(task.targets) or found.answer != task.answer
        refuted = world.checker.check(changed(task, targets=found.targets, answer=found.answer))
        assert bool(refuted) == wrong
        caught += wrong
    assert caught


def test_tables_without_a_family_are_of_no_common_one(build_world, make_prizes):
    """Authors by a short name, linked in one table, every other one plain in the second: within a family they are the
    same authors, else only the linked ones are. Evaluator and checker must read it alike."""
    (prize,) = make_prizes(prizes=1)
    full = [row[1].text for row in prize.rows[:-1]]
    short = [f"{name.split()[0]} {name.split()[1][0]}" for name in full]
    linked = [Cell(f"{text}.", (page,)) for text, page in zip(short, full, strict=True)]
    mixed = [cell if i % 2 else Cell(short[i]) for i, cell in enumerate(linked)]
    triples = (
        Triple("V@x", "is listed in", "C@Golden Quill"),
        Triple("V@x", "is listed in", "C@Silver Quill"),
        Triple("V@x", "name", "?name"),
        Triple("V@x", "country (Silver Quill)", "?country (Silver Quill)"),
    )
    for family, answers in (("quills", len(full)), ("", len(full) // 2)):
        tables = []
        for title, authors in (("Golden Quill", linked), ("Silver Quill", mixed)):
            rows = tuple((row[0], author, *row[2:]) for row, author in zip(prize.rows, authors, strict=False))
            tables.append(Table(page_title=title, url="u", columns=prize.columns, rows=rows, family=family))
        world = build_world(tables)
        columns = {expressions.Ref("country", "Silver Quill"): "country (Silver)"}
        found = make_targets(expressions.evaluate(triples, world.by_title), world.by_title, columns)
        assert len(found.answer.rows) == answers
        task = Task(question="?", variant="union", targets=found.targets, answer=found.answer, formalization=triples)
        assert world.checker.check(task) == ""


def test_trees_that_merge_namesakes_are_caught(build_world, make_prizes, config):
    """Two authors of one name, told apart by their links, made one by a fault in the trees."""
    world = build_world(make_prizes(seed=5, prizes=1, winners=12))
    (tree,) = world.trees
    first, second, *others = tree.members
    merged = msgspec.structs.replace(first, rows=first.rows + second.rows, values=first.values + second.values)
    fault = msgspec.structs.replace(tree, id="", members=(merged, *others))
    asked = (
        Triple("V@x", "is listed in", f"C@{world.sources[0].title}"),
        Triple("V@x", "name", "?name"),
        Triple("V@x", "publisher", "?publisher"),
    )
    for trees, expected in ((tree, ""), (fault, "another number of members")):
        by_title = {world.sources[0].title: trees}
        columns = {expressions.Ref("publisher", world.sources[0].title): "publisher"}
        found = make_targets(expressions.evaluate(asked, by_title), by_title, columns)
        task = Task(question="?", variant="basic", targets=found.targets, answer=found.answer, formalization=asked)
        assert world.checker.check(task) == expected
