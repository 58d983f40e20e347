"""Batches of episodes: complete, each once, whatever happens on the way.

Run as a program (`python tests/agent/test_batch.py OUT DELAY`) this file does a batch that a test can kill.
"""

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections import Counter

import msgspec
import pytest

from webleaper_jax.agent.batch import Batch, BatchConfig, run_episodes, side_files
from webleaper_jax.agent.engine import Completion, InfrastructureError, Request
from webleaper_jax.agent.loop import LoopConfig
from webleaper_jax.agent.reader import relevant_columns
from webleaper_jax.agent.tools import ToolLimits, Tools
from webleaper_jax.agent.web import OfflineWeb, WebPage
from webleaper_jax.jsonl import DataError, load_records
from webleaper_jax.records import Answer, Provenance, Sampling, Target, Task, Trajectory

ROLLOUTS = 3
LOOP = LoopConfig(prompt="short")


class Searcher:
    """Searches, then answers with a number from its seed. Counts the episodes that it runs at a time and in all."""

    tokenizer = None

    def __init__(self, delay: float = 0.0, name: str = "searcher"):
        self.name = name
        self.delay = delay
        self.started: Counter[str] = Counter()
        self.open: set[str] = set()
        self.most_open = 0

    async def generate(self, request: Request) -> Completion:
        self.open.add(request.session)
        self.most_open = max(self.most_open, len(self.open))
        await asyncio.sleep(self.delay * (request.seed % 5))
        if len(request.messages) > 2:
            return Completion(text=f"<think>done</think>\n<answer>\nname | n\nTarget | {request.seed}\n</answer>")
        self.started[request.session] += 1
        call = '{"name": "search", "arguments": {"queries": ["table"]}}'
        return Completion(text=f"<think>search</think>\n<tool_call>\n{call}\n</tool_call>")

    def close_session(self, session: str) -> None:
        self.open.discard(session)


class Failing(Searcher):
    """Fails as the infrastructure does, the first `times` of every session of the given tasks."""

    def __init__(self, times: int, task_ids: set[str]):
        super().__init__()
        self.times, self.task_ids = times, task_ids
        self.failures: Counter[str] = Counter()

    async def generate(self, request: Request) -> Completion:
        if request.task_id in self.task_ids and self.failures[request.session] < self.times:
            self.failures[request.session] += 1
            raise InfrastructureError("server is down", "outage")
        return await super().generate(request)


class Dying(Searcher):
    """Raises an error of the program in the episode after the first `episodes`."""

    def __init__(self, episodes: int):
        super().__init__()
        self.episodes = episodes

    async def generate(self, request: Request) -> Completion:
        if len(self.started) >= self.episodes and request.session not in self.started:
            raise ZeroDivisionError
        return await super().generate(request)


def make_tasks(count: int = 6) -> list[Task]:
    """Tasks of one question, told apart by what they ask for only."""
    return [
        Task(
            question="What is in the table?",
            variant="basic",
            targets=(Target(form="Target", type="text", layer=2, owner=f"table {n}", relation="name", final=True),),
            answer=Answer(columns=("name",), rows=(("Target",),)),
            provenance=Provenance(families=(f"family {n}",)),
            seed=n,
        )
        for n in range(count)
    ]


def make_tools(folder: pathlib.Path, title: str = "Table", **settings) -> Tools:
    page = WebPage(url="w/1", title=title, kind="table", parts=("# Table\nName\nTarget",), snippet="Name; 1 rows")
    return Tools(OfflineWeb.build([page], folder), **settings)


def run(out: pathlib.Path, engine: Searcher, tasks: list[Task] | None = None, **settings) -> Batch:
    seed = settings.pop("seed", 0)
    tools = settings.pop("tools", None) or make_tools(out.parent / "web")
    loop, sampling = settings.pop("loop", LOOP), Sampling(seed=seed)
    batch = BatchConfig(**{"rollouts": ROLLOUTS, "concurrency": 4, "retry_seconds": 0.001, **settings})
    return run_episodes(
        make_tasks() if tasks is None else tasks, engine, tools, out, loop=loop, sampling=sampling, batch=batch
    )


def keys(path: pathlib.Path) -> list[tuple[str, int]]:
    return [(t.task_id, t.rollout) for t in load_records(path, Trajectory)]


@pytest.fixture
def whole(tmp_path) -> pathlib.Path:
    """The files of a run that nothing disturbed."""
    out = tmp_path / "whole" / "t.jsonl"
    run(out, Searcher())
    return out


def test_every_rollout_of_every_task_once_and_sorted(tmp_path):
    out = tmp_path / "t.jsonl"
    done = run(out, Searcher(delay=0.002))
    assert keys(out) == sorted((task.id, rollout) for task in make_tasks() for rollout in range(ROLLOUTS))
    assert [s.trajectory_id for s in done.scores] == [t.id for t in done.trajectories]
    assert (done.failed, done.resumed) == ([], 0)
    # rollouts differ by their seeds, though the question is the same for all
    assert len({t.answer_text for t in done.trajectories}) == len(done.trajectories)


@pytest.mark.parametrize("concurrency", [1, 3, 50])
def test_files_do_not_depend_on_concurrency_or_speed(tmp_path, whole, concurrency):
    out = tmp_path / f"c{concurrency}" / "t.jsonl"
    engine = Searcher(delay=0.001)
    run(out, engine, concurrency=concurrency)
    assert out.read_bytes() == whole.read_bytes()
    assert side_files(out)[2].read_bytes() == side_files(whole)[2].read_bytes()
    assert engine.most_open <= concurrency


def test_killed_at_any_time_the_same_command_goes_on(tmp_path, whole):
    """kill -9 after some episodes: then complete, each once, and the same bytes as without the kill."""
    out = tmp_path / "killed" / "t.jsonl"
    log = side_files(out)[0]
    program = [sys.executable, __file__, str(out), "0.02"]
    root = pathlib.Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen(program, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not log.exists() or log.read_bytes().count(b"\n") < 5):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = log.read_bytes().count(b"\n")
    assert 5 <= before < len(make_tasks()) * ROLLOUTS
    assert not out.exists()
    engine = Searcher()
    done = run(out, engine)
    assert done.resumed == before
    assert sum(engine.started.values()) == len(make_tasks()) * ROLLOUTS - before
    assert len(keys(log)) == len(set(keys(log))) == len(make_tasks()) * ROLLOUTS
    assert out.read_bytes() == whole.read_bytes()
    assert side_files(out)[2].read_bytes() == side_files(whole)[2].read_bytes()


@pytest.mark.parametrize("cut", [1, 40, 300])
def test_a_half_written_line_is_redone_and_nothing_else(tmp_path, whole, cut):
    log = side_files(whole)[0]
    log.write_bytes(log.read_bytes()[:-cut])
    before = whole.read_bytes()
    engine = Searcher()
    run(whole, engine)
    assert sum(engine.started.values()) == 1
    assert whole.read_bytes() == before


def test_what_was_finished_before_a_crash_is_on_disk(tmp_path, whole):
    out = tmp_path / "crash" / "t.jsonl"
    with pytest.raises(ZeroDivisionError):
        run(out, Dying(episodes=7), concurrency=1)
    assert len(keys(side_files(out)[0])) == 7
    engine = Searcher()
    assert run(out, engine).resumed == 7
    assert sum(engine.started.values()) == len(make_tasks()) * ROLLOUTS - 7
    assert out.read_bytes() == whole.read_bytes()


def test_a_finished_run_runs_nothing(whole):
    before = whole.read_bytes()
    engine = Searcher()
    done = run(whole, engine)
    assert (sum(engine.started.values()), done.resumed) == (0, len(make_tasks()) * ROLLOUTS)
    assert whole.read_bytes() == before


def test_more_rollouts_keep_the_old_ones(whole):
    old = load_records(whole, Trajectory)
    engine = Searcher()
    done = run(whole, engine, rollouts=ROLLOUTS + 1)
    assert sum(engine.started.values()) == len(make_tasks())
    assert {t.id for t in old} < {t.id for t in done.trajectories}


def test_infrastructure_errors_are_tried_again(tmp_path, whole):
    out = tmp_path / "flaky" / "t.jsonl"
    done = run(out, Failing(2, {task.id for task in make_tasks()}), retries=2)
    assert done.failed == []
    assert out.read_bytes() == whole.read_bytes()
    assert not side_files(out)[1].exists()


def test_what_still_fails_is_kept_apart_and_done_next_time(tmp_path, whole):
    out = tmp_path / "down" / "t.jsonl"
    bad = make_tasks()[2].id
    done = run(out, Failing(99, {bad}), retries=1)
    assert {t.task_id for t in done.failed} == {bad}
    assert all("outage" in t.infrastructure_error for t in done.failed)
    assert sorted(keys(side_files(out)[1])) == [(bad, rollout) for rollout in range(ROLLOUTS)]
    assert bad not in {task_id for task_id, _ in keys(out)}
    assert len(done.trajectories) == len(done.scores) == (len(make_tasks()) - 1) * ROLLOUTS
    run(out, Searcher())
    assert out.read_bytes() == whole.read_bytes()
    assert not side_files(out)[1].exists()


def test_a_server_that_is_down_stops_the_run_with_one_line(tmp_path):
    out = tmp_path / "t.jsonl"
    tasks = make_tasks()
    with pytest.raises(DataError, match="5 episodes in a row failed") as error:
        run(out, Failing(99, {task.id for task in tasks}), retries=0, give_up_after=5, concurrency=1)
    assert "\n" not in str(error.value)
    assert not out.exists()


class OtherWords(Searcher):
    """A policy with a tokenizer, of which only the fingerprint is asked."""

    class tokenizer:
        fingerprint = "words"


OTHER_LIMITS = {
    **{name: getattr(LOOP, name) + 1 for name in LOOP.__struct_fields__ if name != "prompt"},
    "prompt": "full",
}


@pytest.mark.parametrize(
    ("field", "engine", "settings"),
    [
        ("policy", Searcher(name="other"), {}),
        ("sampling", Searcher(), {"seed": 1}),
        ("fingerprints.tokenizer", OtherWords(), {}),
        ("fingerprints.web", Searcher(), {"tools": {"title": "Another table"}}),
        ("fingerprints.tools", Searcher(), {"tools": {"limits": ToolLimits(max_chars=12)}}),
        ("fingerprints.tools", Searcher(), {"tools": {"reader": relevant_columns}}),
        *(
            ("fingerprints.prompts", Searcher(), {"loop": msgspec.structs.replace(LOOP, **{name: value})})
            for name, value in OTHER_LIMITS.items()
        ),
    ],
)
@pytest.mark.parametrize("more", [0, 1])
def test_what_was_made_otherwise_does_not_go_on_with_this_log(whole, field, engine, settings, more):
    """Neither where episodes are missing nor where all are there."""
    before = whole.read_bytes()
    if "tools" in settings:
        settings = {"tools": make_tools(whole.parent / "other_web", **settings["tools"])}
    with pytest.raises(DataError, match=f"field `{field}`: .*; delete the file or write to another place"):
        run(whole, engine, rollouts=ROLLOUTS + more, **settings)
    assert whole.read_bytes() == before


def test_a_log_goes_on_with_the_tools_of_each_episode(tmp_path):
    """Every episode is compared with the tools that it would be given."""
    tools = make_tools(tmp_path / "web")

    def longer_each_time(task: Task, rollout: int) -> Tools:
        return Tools(tools.web, ToolLimits(max_chars=100 + rollout))

    out = tmp_path / "t.jsonl"
    run(out, Searcher(), tools=longer_each_time)
    assert run(out, Searcher(), tools=longer_each_time, rollouts=ROLLOUTS + 1).resumed == len(make_tasks()) * ROLLOUTS
    with pytest.raises(DataError, match=r"fingerprints\.tools"):
        run(out, Searcher(), tools=lambda task, rollout: longer_each_time(task, min(rollout, 1)))


def test_one_task_given_twice_is_refused(tmp_path):
    with pytest.raises(DataError, match="one task twice"):
        run(tmp_path / "t.jsonl", Searcher(), make_tasks(2) + make_tasks(1))


def test_an_episode_can_have_tools_of_its_own(tmp_path):
    tools = make_tools(tmp_path / "web")
    given: list[tuple[str, int]] = []

    def tools_for(task: Task, rollout: int) -> Tools:
        given.append((task.id, rollout))
        return Tools(tools.web, msgspec.structs.replace(tools.limits, max_chars=12))

    done = run(tmp_path / "t.jsonl", Searcher(), tools=tools_for)
    assert sorted(given) == [(t.task_id, t.rollout) for t in done.trajectories]
    assert all(step.observation.endswith("(cut)") for t in done.trajectories for step in t.steps)


if __name__ == "__main__":
    run(pathlib.Path(sys.argv[1]), Searcher(delay=float(sys.argv[2])))
