"""A trajectory's Score record: put together from coverage and soft F, and refused where it must not exist."""

import pytest

from webleaper_jax.records import Answer, Message, Sampling, Segment, Step, Target, Task, Trajectory
from webleaper_jax.scoring.efficiency import coverage
from webleaper_jax.scoring.score import score_trajectory
from webleaper_jax.scoring.soft_f import score_answer

TASK = Task(
    question="Who won the Booker Prize, and when?",
    variant="basic",
    targets=(
        Target(form="William Golding", type="person", layer=2, owner="Booker Prize", relation="name", final=True),
        Target(form="Iris Murdoch", type="person", layer=2, owner="Booker Prize", relation="name", final=False),
        Target(form="1980", type="year", layer=3, owner="William Golding", relation="year", final=True),
    ),
)
LEGACY = Task(question="Capital of France?", variant="legacy", origin="legacy", reward="exact", gold="Paris")


def make_trajectory(task, answer=(), text="", infrastructure_error=""):
    steps = (
        Step(turn=0, tool="search", arguments="{}", observation="", visible=(0,)),
        Step(turn=1, tool="visit", arguments="{}", observation="", visible=(0, 2)),
        Step(turn=1, tool="malformed", arguments="{", observation=""),
    )
    return Trajectory(
        task_id=task.id,
        rollout=3,
        policy="p",
        segments=(
            Segment(
                messages=tuple(Message(role="assistant", content="") for _ in range(3)),
                steps=steps if task.targets else (),
            ),
        ),
        sampling=Sampling(),
        answer=Answer(columns=("Name", "year"), rows=answer),
        answer_text=text,
        termination="answer",
        infrastructure_error=infrastructure_error,
    )


def test_score_holds_coverage_and_soft_f():
    trajectory = make_trajectory(TASK, (("William Golding", "1980"), ("Kingsley Amis", "1986")))
    score = score_trajectory(TASK, trajectory, w=2.0)
    answer = score_answer(TASK, trajectory.answer, w=2.0)
    assert (score.isr, score.ise, score.ise_literal, score.ise_visits, score.valid_action_rate) == coverage(
        TASK, trajectory
    )
    assert (score.precision, score.recall, score.f, score.matches) == answer
    assert (score.precision, score.recall) == (0.5, 1.0)
    assert score.f == pytest.approx(5 * 0.5 / (4 * 0.5 + 1))
    assert (score.n, score.rounds, score.searches, score.visits, score.rollout) == (3, 3, 1, 1, 3)
    assert (score.task_id, score.trajectory_id, score.scored) == (TASK.id, trajectory.id, True)


def test_an_infrastructure_error_is_never_scored():
    with pytest.raises(ValueError, match="never scored"):
        score_trajectory(TASK, make_trajectory(TASK, infrastructure_error="server down"))


def test_another_task_is_refused():
    with pytest.raises(ValueError, match="not of"):
        score_trajectory(LEGACY, make_trajectory(TASK))


@pytest.mark.parametrize(
    ("text", "f"), [("paris", 1.0), ("Paris.", 1.0), ("Paris or London", 0.0), ("", 0.0), ("London", 0.0)]
)
def test_legacy_tasks_are_right_or_wrong(text, f):
    score = score_trajectory(LEGACY, make_trajectory(LEGACY, text=text))
    assert (score.f, score.isr, score.n, score.scored) == (f, 0.0, 0, True)


def test_without_a_judge_a_judged_task_is_unscored():
    task = Task(question="q", variant="legacy", origin="legacy", reward="judge", gold="because")
    assert score_trajectory(task, make_trajectory(task, text="because")).scored is False
