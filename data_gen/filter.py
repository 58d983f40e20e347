"""Which trajectories become training data: ISR > alpha and ISE > beta, both strictly (paper, section 2.4).

Three readings of ISE are stored with every score and `ise` chooses one. With the literal reading (n over all steps) and
the paper's beta of 0.1 the filter hardly ever bites: steps are capped near 100 and n is mostly above 30. Where the
given beta would drop less than the share `bite` of the trajectories that pass ISR, beta is set to a quantile of their
ISE, and the report says so. Legacy tasks have no targets: they skip ISR and ISE and are kept by outcome.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np

from webleaper_jax.records import AtLeast0, Score, Share, Task, Trajectory

IseReading = Literal["ise", "ise_literal", "ise_visits"]
CELLS = ("isr pass, ise pass", "isr pass, ise fail", "isr fail, ise pass", "isr fail, ise fail")
REASONS = (
    "kept",
    "isr",
    "ise",
    "isr and ise",
    "no answer",
    "outcome",
    "not among the best",
    "unscored",
    "infrastructure",
)


class FilterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds of the filter.

    `beta_quantile` replaces `beta` where `beta` would drop less than the share `bite`; 0 never replaces it.
    `best_k` keeps at most so many trajectories of a task, the best by F, then ISR, then ISE, then the shortest (0 keeps
    all). `need_answer` drops trajectories that ended otherwise than by an answer. `min_outcome` is what the outcome of
    a legacy task must exceed.
    """

    alpha: float = 0.3
    beta: float = 0.1
    ise: IseReading = "ise"
    bite: Share = 0.05
    beta_quantile: Share = 0.15
    best_k: AtLeast0 = 0
    need_answer: bool = True
    min_outcome: float = 0.5


class FilterReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the filter did: the beta it used and why, the four cells of ISR and ISE, and the yield by reason.

    `cells` counts every scored trajectory of a WebLeaper task; `reasons` counts every trajectory given, once, under the
    first reason that applied. `mean_f` is over the kept ones.
    """

    alpha: float
    beta_given: float
    beta: float
    beta_from: Literal["config", "quantile"]
    ise: IseReading
    cells: dict[str, int]
    reasons: dict[str, int]
    mean_f: float
    tasks_in: int
    tasks_kept: int

    @property
    def smallest_cell(self) -> float:
        """The smallest share that one of the four cells holds."""
        total = sum(self.cells.values())
        return min(self.cells.values()) / total if total else 0.0

    def text(self) -> str:
        """The report as lines for people."""
        source = "as configured"
        if self.beta_from == "quantile":
            source = f"a quantile: the configured {self.beta_given:g} would hardly have dropped anything"
        total = sum(self.cells.values())
        lines = [f"filter: ISR > {self.alpha:g}, {self.ise} > {self.beta:.4g} ({source})"]
        lines += [f"  {cell}: {n} ({n / total:.1%})" for cell, n in self.cells.items() if total]
        lines += [f"  {reason}: {n}" for reason, n in self.reasons.items() if n]
        lines.append(
            f"  tasks with one kept: {self.tasks_kept} of {self.tasks_in}; mean F of the kept: {self.mean_f:.3f}"
        )
        return "\n".join(lines)


def filter_trajectories(
    tasks: Iterable[Task],
    trajectories: Sequence[Trajectory],
    scores: Iterable[Score],
    config: FilterConfig | None = None,
) -> tuple[list[Trajectory], FilterReport]:
    """Returns the trajectories to train on, in the order given, and what happened to the others.

    Raises:
      ValueError: a trajectory of an unknown task, or one without a score (only infrastructure errors have none).
    """
    config = config or FilterConfig()
    tasks_by_id = {task.id: task for task in tasks}
    score_of = {score.trajectory_id: score for score in scores}
    for trajectory in trajectories:
        if trajectory.task_id not in tasks_by_id:
            raise ValueError(f"trajectory {trajectory.id} is of task {trajectory.task_id}, which was not given")
        if trajectory.id not in score_of and not trajectory.infrastructure_error:
            raise ValueError(f"trajectory {trajectory.id} has no score")

    planned = [
        score_of[t.id]
        for t in trajectories
        if not t.infrastructure_error and tasks_by_id[t.task_id].origin == "webleaper" and score_of[t.id].scored
    ]
    beta, beta_from = choose_beta([getattr(s, config.ise) for s in planned if s.isr > config.alpha], config)
    cells = dict.fromkeys(CELLS, 0)
    for score in planned:
        cells[CELLS[2 * (score.isr <= config.alpha) + (getattr(score, config.ise) <= beta)]] += 1

    reason_of: dict[str, str] = {}
    for trajectory in trajectories:
        score_or_none = score_of.get(trajectory.id)
        reason_of[trajectory.id] = _reason(tasks_by_id[trajectory.task_id], trajectory, score_or_none, beta, config)
    if config.best_k:
        kept = [t for t in trajectories if reason_of[t.id] == "kept"]
        for loser in _beyond_best(kept, score_of, config):
            reason_of[loser.id] = "not among the best"

    kept = [t for t in trajectories if reason_of[t.id] == "kept"]
    reasons = {reason: sum(reason_of[t.id] == reason for t in trajectories) for reason in REASONS}
    report = FilterReport(
        alpha=config.alpha,
        beta_given=config.beta,
        beta=beta,
        beta_from=beta_from,
        ise=config.ise,
        cells=cells,
        reasons=reasons,
        mean_f=float(np.mean([score_of[t.id].f for t in kept])) if kept else 0.0,
        tasks_in=len({t.task_id for t in trajectories}),
        tasks_kept=len({t.task_id for t in kept}),
    )
    return kept, report


def choose_beta(values: Sequence[float], config: FilterConfig) -> tuple[float, Literal["config", "quantile"]]:
    """Returns the beta to use where these are the ISE values of what passes ISR: the configured one if it bites."""
    if not values or not config.beta_quantile:
        return config.beta, "config"
    if sum(value <= config.beta for value in values) >= config.bite * len(values):
        return config.beta, "config"
    # "lower": an observed value, so that strict > drops the trajectories that stand on it
    return float(np.quantile(np.array(values), config.beta_quantile, method="lower")), "quantile"


def _reason(task: Task, trajectory: Trajectory, score: Score | None, beta: float, config: FilterConfig) -> str:
    if score is None or trajectory.infrastructure_error:
        return "infrastructure"
    if not score.scored:
        return "unscored"
    if task.origin == "legacy":
        return "kept" if score.f > config.min_outcome else "outcome"
    isr_fails, ise_fails = score.isr <= config.alpha, getattr(score, config.ise) <= beta
    if isr_fails and ise_fails:
        return "isr and ise"
    if isr_fails:
        return "isr"
    if ise_fails:
        return "ise"
    if config.need_answer and trajectory.termination != "answer":
        return "no answer"
    return "kept"


def _beyond_best(kept: Sequence[Trajectory], score_of: dict[str, Score], config: FilterConfig) -> list[Trajectory]:
    """The trajectories that are not among the `best_k` of their task."""

    def rank(trajectory: Trajectory) -> tuple[float, float, float, int, int]:
        score = score_of[trajectory.id]
        return (-score.f, -score.isr, -getattr(score, config.ise), _characters(trajectory), trajectory.rollout)

    of_task: dict[str, list[Trajectory]] = {}
    for trajectory in kept:
        of_task.setdefault(trajectory.task_id, []).append(trajectory)
    return [loser for group in of_task.values() for loser in sorted(group, key=rank)[config.best_k :]]


def _characters(trajectory: Trajectory) -> int:
    return sum(len(m.content) for segment in trajectory.segments for m in segment.messages)
