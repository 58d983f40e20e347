"""The controls, run through the loop with a policy that reads pages and copies what it sees."""

import asyncio
import json
import re

import pytest

from webleaper_jax.agent.batch import BatchConfig
from webleaper_jax.agent.engine import Completion, Request
from webleaper_jax.agent.loop import LoopConfig
from webleaper_jax.agent.tools import Tools
from webleaper_jax.agent.web import OfflineWeb, WebPage
from webleaper_jax.eval.controls import no_tools, other_observations, swap_tasks, visit_once
from webleaper_jax.eval.run import evaluate
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Answer, Provenance, Sampling, Target, Task

PARTS = 3


class Reader:
    """Searches the question, opens the first result, follows `next:`, and answers with every line of a name it saw."""

    name = "reader"
    tokenizer = None

    async def generate(self, request: Request) -> Completion:
        observations = [m.content for m in request.messages if m.role == "tool"]
        await asyncio.sleep(0)
        last = observations[-1] if observations else ""
        if not observations:
            return self._call("search", "queries", request.messages[1].content)
        if found := re.search(r"(?:^1\. .*? \| |^next: )(\S+)", last, re.MULTILINE):
            return self._call("visit", "urls", found[1])
        names = sorted(set(re.findall(r"^name\d+-\d+$", "\n".join(observations), re.MULTILINE)))
        return Completion(text="<answer>\n" + "\n".join(f"- {name}" for name in names) + "\n</answer>")

    def close_session(self, session: str) -> None: ...

    def _call(self, tool: str, key: str, value: str) -> Completion:
        call = json.dumps({"name": tool, "arguments": {key: [value]}})
        return Completion(text=f"<tool_call>\n{call}\n</tool_call>")


def page(number: int) -> WebPage:
    def part(p: int) -> str:
        following = f"\nnext: w/{number}?p={p + 1}" if p < PARTS else ""
        return f"# table{number}\nName\nname{number}-{2 * p}\nname{number}-{2 * p + 1}{following}"

    parts = tuple(part(p) for p in range(1, PARTS + 1))
    return WebPage(url=f"w/{number}", title=f"table{number}", kind="table", parts=parts, snippet="Name; 6 rows")


def make_task(number: int, family: str = "") -> Task:
    names = [f"name{number}-{i}" for i in range(2, 2 * PARTS + 2)]
    targets = [
        Target(form=name, type="text", layer=2, owner=f"table{number}", relation="name", final=True) for name in names
    ]
    return Task(
        question=f"table{number}",
        variant="basic",
        targets=tuple(targets),
        answer=Answer(columns=("Name",), rows=tuple((name,) for name in names)),
        provenance=Provenance(tables=(f"t{number}",), families=(family or f"family {number}",)),
    )


TASKS = [make_task(n) for n in range(5)]


@pytest.fixture
def tools(tmp_path) -> Tools:
    return Tools(OfflineWeb.build([page(n) for n in range(5)], tmp_path / "web"))


def run(tools, out, tasks=TASKS):
    loop = LoopConfig(max_steps=8, prompt="short")
    return evaluate(tasks, Reader(), tools, out, loop=loop, sampling=Sampling(), batch=BatchConfig(concurrency=5))


def test_with_the_real_tools_the_reader_finds_everything(tools, tmp_path):
    done = run(tools, tmp_path / "t.jsonl")
    assert [score.f for score in done.scores] == [1.0] * 5
    assert [score.visits for score in done.scores] == [PARTS] * 5


def test_without_tools_nothing_is_shown(tools, tmp_path):
    done = run(no_tools(tools), tmp_path / "t.jsonl")
    assert [score.f for score in done.scores] == [0.0] * 5
    assert [score.isr for score in done.scores] == [0.0] * 5
    assert all("not available" in step.observation for t in done.trajectories for step in t.steps)
    assert all(step.tool == "search" for t in done.trajectories for step in t.steps)


def test_a_single_visit_shows_one_part(tools, tmp_path):
    done = run(visit_once(tools), tmp_path / "t.jsonl")
    for trajectory, score in zip(done.trajectories, done.scores, strict=True):
        assert score.isr == pytest.approx(1 / PARTS)
        assert 0 < score.f < 1
        pages = [step for step in trajectory.steps if step.urls and step.tool == "visit"]
        assert len(pages) == 1
        assert "no more visits" in trajectory.steps[-1].observation


def test_a_visit_that_failed_does_not_count_as_the_one(tools):
    once = visit_once(tools)(TASKS[0], 0)
    assert once.run("visit", {"urls": ["w/99"]}).error
    assert "name0-2" in once.run("visit", {"urls": ["w/0"]}).text
    assert "no more visits" in once.run("visit", {"urls": ["w/0"]}).text
    assert once.run("search", {"queries": ["table0"]}).urls


def test_each_episode_has_a_visit_of_its_own(tools):
    tools_for = visit_once(tools)
    for rollout in range(2):
        assert "name0-2" in tools_for(TASKS[0], rollout).run("visit", {"urls": ["w/0"]}).text


def test_the_observations_of_another_task_help_nobody(tools, tmp_path):
    recorded = run(tools, tmp_path / "real" / "t.jsonl").trajectories
    done = run(other_observations(tools, TASKS, recorded), tmp_path / "other" / "t.jsonl")
    partner = swap_tasks(TASKS, {t.id for t in TASKS})
    shown = {t.task_id: [step.observation for step in t.steps] for t in recorded}
    for trajectory, score in zip(done.trajectories, done.scores, strict=True):
        assert (score.f, score.isr) == (0.0, 0.0)
        assert [step.observation for step in trajectory.steps] == shown[partner[trajectory.task_id]]
        # the policy works as it did: it answers with what it was shown
        assert len(trajectory.answer.rows) == 2 * PARTS


def test_nobody_is_given_his_own_observations_nor_those_of_his_family():
    tasks = [make_task(n, family=f"family {n % 3}") for n in range(9)]
    partner = swap_tasks(tasks, {t.id for t in tasks})
    by_id = {t.id: t for t in tasks}
    assert set(partner) == set(by_id)
    for task_id, other_id in partner.items():
        assert by_id[task_id].provenance.families != by_id[other_id].provenance.families
    assert swap_tasks(tasks[::-1], {t.id for t in tasks}) == partner


def test_where_there_is_one_family_another_table_will_do():
    tasks = [make_task(n, family="one") for n in range(3)]
    assert all(task_id != other for task_id, other in swap_tasks(tasks, {t.id for t in tasks}).items())
    with pytest.raises(DataError, match="give more tasks"):
        swap_tasks(tasks[:1], {tasks[0].id})


def test_controls_have_fingerprints_of_their_own(tools, tmp_path):
    recorded = run(tools, tmp_path / "t.jsonl").trajectories
    controls = [no_tools(tools), visit_once(tools), other_observations(tools, TASKS, recorded)]
    controls += [other_observations(tools, TASKS, recorded[1:])]  # the last task's partner is missing
    last = max(TASKS, key=lambda task: task.id)
    prints = {control(last, 0).fingerprint for control in controls} | {tools.fingerprint}
    assert len(prints) == 5


def test_no_control_goes_on_with_the_episodes_of_another(tools, tmp_path):
    recorded = run(tools, tmp_path / "recorded" / "t.jsonl").trajectories
    kinds = {
        "real": tools,
        "no_tools": no_tools(tools),
        "visit_once": visit_once(tools),
        "other_observations": other_observations(tools, TASKS, recorded),
    }
    for first, made_with in kinds.items():
        out = tmp_path / first / "t.jsonl"
        run(made_with, out)
        before = out.read_bytes()
        assert run(made_with, out).resumed == len(TASKS)
        for other in kinds.keys() - {first}:
            with pytest.raises(DataError, match=r"field `fingerprints\.tools`"):
                run(kinds[other], out)
        assert out.read_bytes() == before
