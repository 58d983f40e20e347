"""Coverage and efficiency of a trajectory against R_all: ISR, three readings of ISE, valid-action rate (paper 3.2).

A step is one tool call attempted. A malformed call is a step that finds nothing; the answer turn is no step. Targets
found are counted over the whole trajectory, whatever its segments, and each once.
"""

from typing import NamedTuple

from webleaper_jax.records import Step, Task, Trajectory


class Coverage(NamedTuple):
    """How much of R_all a trajectory saw and at what cost. T = steps, n = |R_all|, O = targets shown.

    Attributes:
      isr: |R_all ∩ O| / n over all steps, in [0, 1].
      ise: targets shown by visits / T, targets a step (the default reading of the filter).
      ise_literal: n / T, Eq. 3 to the letter, targets a step.
      ise_visits: n / (number of visits), targets a visit; 0 without a visit.
      valid_action_rate: share of the steps that show a target not seen before, in [0, 1].
    """

    isr: float
    ise: float
    ise_literal: float
    ise_visits: float
    valid_action_rate: float


def coverage(task: Task, trajectory: Trajectory) -> Coverage:
    """Returns a trajectory's coverage; every ratio over nothing is 0 (no step taken, a legacy task without targets).

    Raises:
      ValueError: a step shows a target that the task does not have (the trajectory is of another task).
    """
    n = len(task.targets)
    seen: set[int] = set()
    seen_in_visits: set[int] = set()
    valid = 0
    for step in trajectory.steps:
        shown = _shown(step, n)
        valid += not shown <= seen
        seen |= shown
        if step.tool == "visit":
            seen_in_visits |= shown
    steps = len(trajectory.steps)
    visits = sum(step.tool == "visit" for step in trajectory.steps)
    return Coverage(
        isr=_ratio(len(seen), n),
        ise=_ratio(len(seen_in_visits), steps),
        ise_literal=_ratio(n, steps),
        ise_visits=_ratio(n, visits),
        valid_action_rate=_ratio(valid, steps),
    )


def _shown(step: Step, n: int) -> frozenset[int]:
    """What a step's observation shows: `visible`, to which `shown` belongs."""
    if step.tool == "malformed":
        return frozenset()
    shown = frozenset(step.visible).union(step.shown)
    if any(not 0 <= target < n for target in shown):
        raise ValueError(f"a step shows target {max(shown)}, the task has {n}: the trajectory is of another task")
    return shown


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
