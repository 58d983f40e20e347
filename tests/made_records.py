"""Made-up records that tests of evaluation share."""

from webleaper_jax.records import Score, Target, Task

TARGET = Target(form="x", type="text", layer=2, owner="t", relation="name", final=True)


def make_score(task: Task, f: float, rollout: int = 0, scored: bool = True, policy: str = "") -> Score:
    """A score whose measures are told apart by a factor: `isr` is f / 2, `ise` 3 f, the others f."""
    return Score(
        task_id=task.id, trajectory_id=f"trajectory-{task.id}-{rollout}-{policy}", rollout=rollout, isr=f / 2,
        ise=3 * f, ise_literal=f, ise_visits=f, valid_action_rate=f, precision=f, recall=f, f=f, n=10, rounds=4,
        searches=1, visits=2, scored=scored,
    )  # fmt: skip
