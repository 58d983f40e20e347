"""A trajectory's scores: coverage of R_all by its observations, and soft F of its answer against R_final."""

from typing import Literal

from webleaper_jax.records import Score, Task, Trajectory
from webleaper_jax.scoring.efficiency import coverage
from webleaper_jax.scoring.similarity import SAME, similarity
from webleaper_jax.scoring.soft_f import AnswerScore, score_answer


def score_trajectory(
    task: Task, trajectory: Trajectory, *, w: float = 1.0, match: Literal["bound", "flat"] = "bound"
) -> Score:
    """Scores one trajectory of one task.

    WebLeaper tasks get soft F over R_final. Legacy tasks have no targets: those with reward `exact` get 1 or 0 by their
    gold answer (and no coverage), those with reward `judge` are returned with `scored` False.

    Args:
      w: weight of recall in F_w.
      match: how answer cells meet targets, see `soft_f`.

    Raises:
      ValueError: the trajectory ended in an infrastructure error (it is never scored) or is of another task.
    """
    if trajectory.infrastructure_error:
        raise ValueError(f"trajectory {trajectory.id} ended in an infrastructure error: it is never scored")
    if trajectory.task_id != task.id:
        raise ValueError(f"trajectory {trajectory.id} is of task {trajectory.task_id}, not of {task.id}")
    seen = coverage(task, trajectory)
    answer = _answer_score(task, trajectory, w, match)
    tools = [step.tool for step in trajectory.steps]
    return Score(
        task_id=task.id,
        trajectory_id=trajectory.id,
        rollout=trajectory.rollout,
        isr=seen.isr,
        ise=seen.ise,
        ise_literal=seen.ise_literal,
        ise_visits=seen.ise_visits,
        valid_action_rate=seen.valid_action_rate,
        precision=answer.precision,
        recall=answer.recall,
        f=answer.f,
        n=len(task.targets),
        rounds=trajectory.rounds,
        searches=tools.count("search"),
        visits=tools.count("visit"),
        matches=answer.matches,
        scored=task.reward != "judge",
    )


def _answer_score(task: Task, trajectory: Trajectory, w: float, match: Literal["bound", "flat"]) -> AnswerScore:
    if task.reward == "soft_f":
        return score_answer(task, trajectory.answer, w=w, match=match)
    right = task.reward == "exact" and similarity(trajectory.answer_text, task.gold, "text") >= SAME
    return AnswerScore(float(right), float(right), float(right), ())
