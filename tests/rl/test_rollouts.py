import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Sampling, Score, Task, Trajectory
from webleaper_jax.rl.rollouts import choose_tasks, form_groups

TASKS = [Task(question=f"q{n}", variant="legacy", origin="legacy", reward="exact", gold="x") for n in range(7)]
SIZE = 3


def rollouts(size: int = SIZE) -> tuple[list[Trajectory], list[Score]]:
    trajectories, scores = [], []
    for task in TASKS:
        for rollout in range(size):
            t = Trajectory(
                task_id=task.id, rollout=rollout, policy="p", segments=(), sampling=Sampling(), termination="answer"
            )
            trajectories.append(t)
            scores.append(score(t))
    return trajectories, scores


def score(t: Trajectory, scored: bool = True) -> Score:
    numbers = dict.fromkeys(
        ("isr", "ise", "ise_literal", "ise_visits", "valid_action_rate", "precision", "recall", "f"), 0.5
    )
    counts = dict.fromkeys(("n", "rounds", "searches", "visits"), 1)
    return Score(task_id=t.task_id, trajectory_id=t.id, rollout=t.rollout, scored=scored, **numbers, **counts)


@given(st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=20)
def test_groups_are_keyed_by_task_whatever_the_order(random) -> None:
    """G3."""
    trajectories, scores = rollouts()
    expected = form_groups(TASKS, trajectories, scores, SIZE)
    random.shuffle(trajectories)
    random.shuffle(scores)
    assert form_groups(TASKS, trajectories, scores, SIZE) == expected
    groups, partial = expected
    assert not partial
    for task, group in zip(TASKS, groups, strict=True):
        assert group.task == task
        assert [(t.task_id, t.rollout) for t in group.trajectories] == [(task.id, n) for n in range(SIZE)]
        assert [s.trajectory_id for s in group.scores] == [t.id for t in group.trajectories]


@pytest.mark.parametrize("missing", ["rollout", "score", "unscored", "infrastructure"])
def test_partial_groups_never_train(missing: str) -> None:
    """G3, R8: a rollout that is missing, failed or unscored takes its whole group out of the step, and no other."""
    trajectories, scores = rollouts()
    if missing == "rollout":
        del trajectories[4]
    elif missing == "score":
        del scores[4]
    elif missing == "unscored":
        scores[4] = score(trajectories[4], scored=False)
    else:
        broken = msgspec.structs.replace(trajectories[4], id="", infrastructure_error="engine: down")
        trajectories[4], scores[4] = broken, score(broken)
    groups, partial = form_groups(TASKS, trajectories, scores, SIZE)
    assert partial == [TASKS[1].id]
    assert [group.task.id for group in groups] == [task.id for task in TASKS if task.id != TASKS[1].id]


def test_the_tasks_of_a_step_are_a_pure_function_of_seed_and_step() -> None:
    steps = [choose_tasks(TASKS, 2, 0, step) for step in range(9)]
    shuffled = list(np.random.default_rng(0).permutation(len(TASKS)))
    assert [choose_tasks([TASKS[i] for i in shuffled], 2, 0, step) for step in range(9)] == steps
    assert [choose_tasks(TASKS, 2, 1, step) for step in range(9)] != steps
    for first in (0, 3, 6):  # each pass of three steps takes a task once at most
        ids = [task.id for step in steps[first : first + 3] for task in step]
        assert len(set(ids)) == 6
    assert {task.id for step in steps for task in step} == {task.id for task in TASKS}


def test_too_few_tasks_are_refused() -> None:
    with pytest.raises(DataError, match="tasks_per_step is 8, but there are 7 tasks"):
        choose_tasks(TASKS, 8, 0, 0)
