"""Controls: tools that show a policy less than it should need, to see what its score rests on.

Each is a function of (task, rollout) that gives an episode its own tools, as `eval.run.evaluate` takes them. A policy
that scores without tools, or with another task's observations, knows the answers already; one that scores as well after
a single visit has no need to search.
"""

import hashlib
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from webleaper_jax.agent.batch import ToolsFor
from webleaper_jax.agent.tools import Observation, Tools
from webleaper_jax.eval.aggregate import task_families
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Step, Task, Trajectory

UNAVAILABLE = "error: the tools are not available; answer now"
NO_MORE_VISITS = "error: no more visits; answer now"


class NoTools(Tools):
    """Every call is told that tools are not available."""

    def __init__(self, tools: Tools):
        super().__init__(tools.web, tools.limits, tools.reader)

    @property
    def fingerprint(self) -> str:
        return f"{super().fingerprint}-no-tools"

    def run(self, name: str, arguments: Mapping[str, Any], goal: str = "") -> Observation:
        return _refusal(name, UNAVAILABLE)


class VisitOnce(Tools):
    """Runs calls until one visit has shown a page; later visits are refused. One instance serves one episode."""

    def __init__(self, tools: Tools):
        super().__init__(tools.web, tools.limits, tools.reader)
        self._visited = False
        self._lock = threading.Lock()  # calls of one turn run in threads

    @property
    def fingerprint(self) -> str:
        return f"{super().fingerprint}-visit-once"

    def run(self, name: str, arguments: Mapping[str, Any], goal: str = "") -> Observation:
        with self._lock:
            if name == "visit" and self._visited:
                return _refusal(name, NO_MORE_VISITS)
            observation = super().run(name, arguments, goal)
            self._visited |= name == "visit" and bool(observation.urls)
        return observation


class OtherObservations(Tools):
    """Answers every call with what another task's episode was shown: its searches for searches, its visits for visits,
    in their order, the last one again when there are no more. One instance serves one episode."""

    def __init__(self, tools: Tools, recorded: Sequence[Step]):
        super().__init__(tools.web, tools.limits, tools.reader)
        self._recorded = {name: [step for step in recorded if step.tool == name] for name in ("search", "visit")}
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()  # calls of one turn run in threads

    @property
    def fingerprint(self) -> str:
        shown = msgspec.json.encode(self._recorded)
        return f"{super().fingerprint}-other-observations-{hashlib.blake2b(shown, digest_size=8).hexdigest()}"

    def run(self, name: str, arguments: Mapping[str, Any], goal: str = "") -> Observation:
        steps = self._recorded[name] or self._recorded["search"] or self._recorded["visit"]
        with self._lock:
            step = steps[min(self._calls[name], len(steps) - 1)]
            self._calls[name] += 1
        return Observation(text=step.observation, tool=_tool(name), urls=step.urls, error=step.error)


def no_tools(tools: Tools) -> ToolsFor:
    """Returns the control without tools."""
    return lambda task, rollout: NoTools(tools)


def visit_once(tools: Tools) -> ToolsFor:
    """Returns the control that lets an episode see one page."""
    return lambda task, rollout: VisitOnce(tools)


def other_observations(tools: Tools, tasks: Sequence[Task], trajectories: Iterable[Trajectory]) -> ToolsFor:
    """Returns the control that shows every task what another one's recorded episode was shown (`swap_tasks`).

    Args:
      trajectories: episodes of these tasks with the real tools; of each task the one of the lowest rollout that called
        a tool is used.

    Raises:
      DataError: no other task has a usable episode.
    """
    recorded: dict[str, Trajectory] = {}
    for trajectory in sorted(trajectories, key=lambda t: (t.task_id, t.rollout)):
        if any(step.tool != "malformed" for step in trajectory.steps):
            recorded.setdefault(trajectory.task_id, trajectory)
    partner = swap_tasks(tasks, set(recorded))
    return lambda task, rollout: OtherObservations(tools, recorded[partner[task.id]].steps)


def swap_tasks(tasks: Sequence[Task], usable: set[str]) -> dict[str, str]:
    """Returns, for each task id, the id of another task: the next usable one, in the order of ids, of other tables.

    Other families are preferred, since tables of one family repeat each other's cells; no task is given itself.

    Raises:
      DataError: a task has no usable partner.
    """
    ordered = sorted(tasks, key=lambda task: task.id)
    partner: dict[str, str] = {}
    for place, task in enumerate(ordered):
        ring = [other for other in ordered[place + 1 :] + ordered[:place] if other.id in usable]
        strangers = [other for other in ring if not set(task_families(task)) & set(task_families(other))]
        others = [other for other in ring if not set(task.provenance.tables) & set(other.provenance.tables)]
        if not strangers and not others:
            raise DataError(f"task {task.id}: no other task has recorded observations of other tables; give more tasks")
        partner[task.id] = (strangers or others)[0].id
    return partner


def _refusal(name: str, text: str) -> Observation:
    return Observation(text=text, tool=_tool(name), error=text)


def _tool(name: str) -> Literal["search", "visit"]:
    return "visit" if name == "visit" else "search"
