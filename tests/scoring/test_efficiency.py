"""ISR, the readings of ISE and the valid-action rate against sums over steps written out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webleaper_jax.records import Sampling, Segment, Step, Target, Task, Trajectory
from webleaper_jax.scoring.efficiency import Coverage, coverage


def make_task(n):
    targets = tuple(
        Target(form=f"name {i}", type="person", layer=2, owner="list", relation="name", final=True) for i in range(n)
    )
    return Task(question="q", variant="basic", targets=targets)


def make_trajectory(task, steps, cut=None):
    parts = [steps] if cut is None else [steps[:cut], steps[cut:]]
    segments = tuple(Segment(messages=(), steps=tuple(part)) for part in parts)
    return Trajectory(
        task_id=task.id, rollout=0, policy="p", segments=segments, sampling=Sampling(), termination="answer"
    )


def make_step(tool, visible, shown=()):
    return Step(turn=0, tool=tool, arguments="", observation="", visible=tuple(visible), shown=tuple(shown))


N = 7
STEPS = st.lists(
    st.tuples(st.sampled_from(["search", "visit", "malformed"]), st.sets(st.integers(0, N - 1), max_size=4)), max_size=8
)


@given(STEPS, st.integers(0, 8))
def test_against_the_definitions(plan, cut):
    task = make_task(N)
    steps = [make_step(tool, () if tool == "malformed" else sorted(seen)) for tool, seen in plan]
    found = [(tool, set() if tool == "malformed" else seen) for tool, seen in plan]
    t, visits = len(plan), sum(tool == "visit" for tool, _ in plan)
    everything = set().union(*(seen for _, seen in found))
    visited = set().union(*(seen for tool, seen in found if tool == "visit"))
    new = sum(bool(seen - set().union(*(s for _, s in found[:i]))) for i, (_, seen) in enumerate(found))
    expected = Coverage(
        len(everything) / N,
        len(visited) / t if t else 0,
        N / t if t else 0,
        N / visits if visits else 0,
        new / t if t else 0,
    )
    assert coverage(task, make_trajectory(task, steps, cut)) == pytest.approx(expected)


def test_only_visits_count_for_ise_and_malformed_steps_count_in_t():
    task = make_task(4)
    steps = [
        make_step("search", [0, 1]),
        make_step("malformed", [2, 3]),
        make_step("visit", [1]),
        make_step("visit", [1]),
    ]
    assert coverage(task, make_trajectory(task, steps)) == Coverage(0.5, 0.25, 1.0, 2.0, 0.25)


def test_shown_alone_counts_too():
    task = make_task(4)
    assert coverage(task, make_trajectory(task, [make_step("visit", (), [2])])).isr == 0.25


def test_a_target_of_another_task_is_refused():
    task = make_task(2)
    with pytest.raises(ValueError, match="another task"):
        coverage(task, make_trajectory(task, [make_step("visit", [2])]))


def test_legacy_tasks_have_no_coverage():
    task = Task(question="q", variant="legacy", origin="legacy", reward="exact", gold="Paris")
    assert coverage(task, make_trajectory(task, [make_step("visit", [])])) == Coverage(0.0, 0.0, 0.0, 0.0, 0.0)
