import asyncio
import json
import threading
import time
from typing import ClassVar

import pytest

from webleaper_jax.agent import protocol
from webleaper_jax.agent.corpus import CorpusConfig, build_pages
from webleaper_jax.agent.engine import Completion, InfrastructureError
from webleaper_jax.agent.loop import LoopConfig, run_episode
from webleaper_jax.agent.protocol import format_answer, format_call
from webleaper_jax.agent.render import render_messages
from webleaper_jax.agent.tools import Observation, ToolLimits, Tools
from webleaper_jax.agent.web import OfflineWeb
from webleaper_jax.jsonl import load_records, write_records
from webleaper_jax.records import Answer, Sampling, Target, Task, Trajectory

TITLE = "List of dams in Norway"
ANSWER = Answer(columns=("Name", "Year"), rows=(("Dam A0", "1900"), ("Dam B1", "1901")))
CONFIG = LoopConfig(max_steps=6, max_turns=8, max_context=4000, prompt="short")


def said(body: str, thought: str = "next") -> str:
    return f"<think>{thought}</think>\n{body}"


def search(*queries: str) -> str:
    return format_call("search", {"queries": list(queries)})


def visit(*urls: str) -> str:
    return format_call("visit", {"urls": list(urls)})


FINAL = said(f"<answer>\n{format_answer(ANSWER)}\n</answer>", "done")
EPISODE = [said(search(TITLE)), said(visit("w/1")), said(visit("w/1?p=2")), FINAL]


@pytest.fixture(scope="module")
def tools(make_table, tmp_path_factory):
    tables = [make_table(TITLE, 24), make_table("Other", 11, first=100)]
    config = CorpusConfig(rows_per_part=6, chars_per_part=600)
    return Tools(OfflineWeb.build(build_pages(tables, config), tmp_path_factory.mktemp("loop") / "web"), ToolLimits())


@pytest.fixture(scope="module")
def task(make_table):
    targets = []
    for row in make_table(TITLE, 24).rows[:9]:
        name = row[0].text
        targets.append(Target(form=name, type="work", layer=2, owner=TITLE, relation="name", final=True))
        targets.append(Target(form=row[2].text, type="year", layer=3, owner=name, relation="year", final=True))
    return Task(question=f"Give all dams of {TITLE} with their year.", variant="basic", targets=tuple(targets))


@pytest.fixture
def run(tools, task, scripted, tokenizer):
    def go(turns, config=CONFIG, with_tokens=True, tools=tools, sampling=None, rollout=0):
        engine = scripted(turns, tokenizer if with_tokens else None)
        got = asyncio.run(run_episode(task, rollout, engine, tools, config, sampling or Sampling(max_tokens=500)))
        assert engine.closed == [engine.closed[0]]
        check(got, config, tokenizer if with_tokens else None)
        return got, engine

    return go


def check(trajectory, config, tokenizer):
    """What holds for every trajectory."""
    (segment,) = trajectory.segments
    lengths = {
        len(field) for field in (segment.token_ids, segment.loss_mask, segment.logprobs, segment.policy_versions)
    }
    assert len(lengths) == 1
    assert len(segment.token_ids) <= config.max_context
    assert (tokenizer is None) == (not segment.token_ids)
    assert len(segment.steps) <= config.max_steps
    assert trajectory.rounds <= config.max_turns
    shown = [index for step in segment.steps for index in step.shown]
    assert len(shown) == len(set(shown))
    assert all(set(step.shown) <= set(step.visible) for step in segment.steps)
    observed = [m.content for m in segment.messages if m.role == "tool"]
    assert all(step.observation in observed for step in segment.steps if step.observation)
    for bit, logprob, version in zip(segment.loss_mask, segment.logprobs, segment.policy_versions, strict=True):
        assert bit or (logprob, version) == (0.0, -1)


def test_an_episode_ends_with_the_answer_and_records_what_it_saw(run, task):
    got, _ = run(EPISODE)
    assert (got.termination, got.answer, got.infrastructure_error) == ("answer", ANSWER, "")
    assert [step.tool for step in got.steps] == ["search", "visit", "visit"]
    assert [step.turn for step in got.steps] == [0, 1, 2]
    assert got.steps[0].urls[0] == "w/1"
    assert [step.urls for step in got.steps[1:]] == [("w/1",), ("w/1?p=2",)]
    assert json.loads(got.steps[1].arguments) == {"urls": ["w/1"]}
    assert got.steps[0].shown == ()
    assert len(got.steps[1].shown) == 12
    assert sorted([*got.steps[1].shown, *got.steps[2].shown]) == list(range(18))
    assert (got.ledger.searches, got.ledger.pages, got.rounds) == (1, 2, 4)
    assert got.policy == "scripted"
    assert got.task_id == task.id
    assert got.ledger.completion_tokens == sum(got.segments[0].loss_mask)


def test_stored_ids_are_the_prompts_the_engine_saw_and_the_rendering_of_the_text(run, tokenizer):
    got, engine = run(EPISODE)
    segment = got.segments[0]
    for before, after in zip(engine.requests, engine.requests[1:], strict=False):
        assert after.ids[: len(before.ids)] == before.ids
        assert after.messages[: len(before.messages)] == before.messages
    assert segment.token_ids[: len(engine.requests[-1].ids)] == engine.requests[-1].ids
    ids, mask = render_messages(tokenizer, segment.messages)
    assert (tuple(ids), tuple(mask)) == (segment.token_ids, segment.loss_mask)
    assert {v for v, m in zip(segment.policy_versions, segment.loss_mask, strict=True) if m} == {3}


def test_sampled_ids_are_stored_even_where_they_are_not_the_usual_ones(run, tokenizer):
    ids = [i for char in FINAL for i in tokenizer.encode(char)] + [tokenizer.stop_ids[0]]
    odd = Completion(text=FINAL, ids=tuple(ids), logprobs=(-1.0,) * len(ids))
    got, _ = run([odd])
    assert got.segments[0].token_ids[-len(ids) :] == tuple(ids)
    assert ids != render_messages(tokenizer, got.segments[0].messages)[0][-len(ids) :]
    assert got.answer == ANSWER


def test_the_same_rollout_is_the_same_record_and_seeds_differ_by_turn_rollout_and_seed(run):
    first, engine = run(EPISODE)
    again, _ = run(EPISODE)
    assert first.id == again.id
    seeds = [r.seed for r in engine.requests]
    for other in (run(EPISODE, rollout=1)[1], run(EPISODE, sampling=Sampling(seed=5, max_tokens=500))[1]):
        seeds += [r.seed for r in other.requests]
    assert len(set(seeds)) == len(seeds)


def test_a_trajectory_survives_a_file(run, tmp_path):
    got, _ = run(EPISODE)
    write_records(tmp_path / "t.jsonl.gz", [got])
    assert load_records(tmp_path / "t.jsonl.gz", Trajectory) == [got]


def test_text_engines_have_no_token_fields_but_the_same_messages(run, tokenizer):
    text, engine = run(EPISODE, with_tokens=False)
    tokens, _ = run(EPISODE)
    assert text.segments[0].messages == tokens.segments[0].messages
    assert all(request.ids is None for request in engine.requests)
    assert text.fingerprints.tokenizer == ""
    assert tokens.fingerprints.tokenizer == tokenizer.fingerprint
    assert text.fingerprints.web == tokens.fingerprints.web != ""
    assert text.fingerprints.prompts == tokens.fingerprints.prompts != LoopConfig(prompt="full").fingerprint


def test_what_was_seen_before_is_not_shown_again_but_visible(run):
    got, _ = run([said(visit("w/1")), said(visit("w/1")), FINAL])
    assert got.steps[1].shown == ()
    assert got.steps[1].visible == got.steps[0].visible != ()


def test_results_of_fast_and_slow_calls_come_in_call_order(run, tools):
    class Slow(Tools):
        """A slow search ends only after a fast one has."""

        fast_is_done = threading.Event()
        done: ClassVar[list[str]] = []

        def run(self, name, arguments, goal=""):
            query = arguments["queries"][0]
            if query == "slow":
                self.fast_is_done.wait(10)
            self.done.append(query)
            self.fast_is_done.set()
            return Observation(text=f"result of {query}", tool="search")

    calls = search("slow") + search("fast") + search("slow") + search("fast")
    got, _ = run([said(calls), FINAL], tools=Slow(tools.web))
    assert [step.observation for step in got.steps] == [f"result of {word}" for word in ("slow", "fast") * 2]
    assert Slow.done[0] == "fast"


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_parallel_calls_are_steps_of_one_turn(run, calls):
    got, _ = run([said(search("dams") * calls), FINAL])
    assert [step.turn for step in got.steps] == [0] * calls
    assert got.rounds == 2
    assert sum(m.role == "tool" for m in got.segments[0].messages) == calls


def test_a_malformed_call_is_a_step_that_finds_nothing_and_blocks_no_other(run):
    bad = "<tool_call>\n{Dam A0 1900}\n</tool_call>"
    got, _ = run([said(bad + visit("w/1")), FINAL])
    assert [step.tool for step in got.steps] == ["malformed", "visit"]
    assert got.steps[0].visible == () != got.steps[1].visible
    assert got.steps[0].error.startswith("error:")
    assert got.steps[0].arguments == "{Dam A0 1900}"
    assert got.steps[0].observation == got.segments[0].messages[3].content


def test_a_call_inside_a_thought_is_not_run(run):
    got, _ = run([f"<think>{visit('w/1')}</think>", FINAL])
    assert got.steps == ()
    assert got.segments[0].messages[3].content == protocol.NO_ACTION
    got, _ = run([f"<think>{visit('w/1')}", FINAL])
    assert [step.tool for step in got.steps] == ["malformed"]
    assert got.steps[0].observation == protocol.UNCLOSED_THOUGHT


def test_calls_beside_an_answer_are_not_run(run):
    for turn in (FINAL + visit("w/1"), said(visit("w/1")) + FINAL):
        got, _ = run([turn])
        assert (got.termination, got.steps, got.answer) == ("answer", (), ANSWER)


def test_echoes_find_nothing(run):
    got, _ = run([said(visit("Dam A0")), said(visit("Dam A0 | 1900")), said(format_call("Dam A0", {})), FINAL])
    assert [step.error for step in got.steps[:2]] == ["page not found"] * 2
    assert [step.visible for step in got.steps] == [()] * 3


# ------------------------------------------------------------------------------------------------------ terminations


def test_the_step_limit_leaves_one_turn_to_answer_in(run):
    config = LoopConfig(max_steps=2, max_turns=9, max_context=4000, prompt="short")
    turns = [said(visit("w/1") * 3), said(visit("w/1")), FINAL]
    got, engine = run(turns, config)
    assert (got.termination, len(got.steps), len(engine.requests)) == ("step_limit", 2, 2)
    got, _ = run([turns[0], FINAL], config)
    assert (got.termination, got.answer) == ("answer", ANSWER)
    got, _ = run([turns[0], "<think>hm</think>"], config)
    assert got.termination == "step_limit"
    assert got.answer == Answer()


def test_without_steps_only_an_answer_is_possible(run):
    config = LoopConfig(max_steps=0, max_context=4000)
    assert run([FINAL], config)[0].termination == "answer"
    got, _ = run([said(visit("w/1"))], config)
    assert (got.termination, got.steps) == ("step_limit", ())
    assert "visit" not in got.segments[0].messages[0].content


@pytest.mark.parametrize("with_tokens", [True, False])
def test_the_notice_is_appended_and_overwrites_nothing(run, with_tokens):
    config = LoopConfig(max_steps=3, max_turns=9, max_context=4000, prompt="short", notice_at=2)
    turns = [said(visit("w/1")), said(visit("w/1") * 2), FINAL]
    told = [m.content for m in run(turns, config, with_tokens)[0].segments[0].messages if m.role == "tool"]
    plain = [m.content for m in run(turns, CONFIG, with_tokens)[0].segments[0].messages if m.role == "tool"]
    assert told == [plain[0] + "\n[2 calls left]", plain[1], plain[2] + "\n[no calls left: answer now]"]


def test_format_errors_in_a_row_end_the_episode_and_a_good_turn_resets_them(run):
    config = LoopConfig(max_steps=9, max_turns=20, max_context=4000, max_format_errors=2, prompt="short")
    bad, cut = "nothing", said("<tool_call>{")
    assert run([bad, cut], config)[0].termination == "format_errors"
    got, _ = run([bad, said(visit("w/1")), cut, said(search("x") + "<tool_call>{}</tool_call>"), bad, bad], config)
    assert got.termination == "format_errors"
    assert [step.tool for step in got.steps] == ["visit", "malformed", "search", "malformed"]


def test_a_truncated_call_is_told_and_repeated_failures_have_a_named_end(run, tokenizer):
    ids = tuple(tokenizer.encode_policy(said(visit("w/1"))[:-30]))
    cut = Completion(text=tokenizer.decode(ids), ids=ids, logprobs=(-0.1,) * len(ids), finish="length")
    got, _ = run([cut, cut, cut], sampling=Sampling(max_tokens=len(ids)))
    assert got.termination == "format_errors"
    assert {step.observation for step in got.steps} == {protocol.CUT_CALL}
    ends = [k for k, i in enumerate(got.segments[0].token_ids) if i == tokenizer.stop_ids[0]]
    assert not any(got.segments[0].loss_mask[k] for k in ends)


def test_the_turn_limit(run):
    config = LoopConfig(max_steps=50, max_turns=3, max_context=4000, prompt="short")
    got, engine = run([said(search("dams"))] * 3 + [FINAL], config)
    assert (got.termination, got.rounds, len(engine.requests)) == ("turn_limit", 3, 3)


def test_completion_limits_are_clamped_and_the_end_of_the_context_is_named(run, tokenizer):
    start = len(run([FINAL])[1].requests[0].ids)
    config = LoopConfig(max_context=start + 40, prompt="short")
    cut = Completion(text="a" * 39, ids=tuple(tokenizer.encode("a"))[:1] * 39, logprobs=(-0.1,) * 39, finish="length")
    got, engine = run([cut], config)
    assert engine.requests[0].sampling.max_tokens == 39
    assert got.termination == "context_limit"
    assert len(got.segments[0].token_ids) == config.max_context
    assert got.segments[0].loss_mask[-2:] == (1, 0)
    got, engine = run([], LoopConfig(max_context=start + 1, prompt="short"))
    assert (got.termination, engine.requests) == ("context_limit", [])
    got, _ = run([Completion(text="", finish="context")], with_tokens=False)
    assert (got.termination, got.rounds) == ("context_limit", 0)
    got, _ = run([Completion(text=FINAL, finish="context")], with_tokens=False)
    assert got.termination == "answer"


@pytest.mark.parametrize("with_tokens", [True, False])
def test_results_that_do_not_fit_are_not_shown_and_find_nothing(run, with_tokens):
    _, engine = run([said(visit("w/1")), FINAL], with_tokens=with_tokens)
    size = len(engine.requests[1].ids) if with_tokens else sum(len(m.content) for m in engine.requests[1].messages) // 4
    config = LoopConfig(max_context=size - 1, prompt="short")
    got, _ = run([said(visit("w/1")), FINAL], config, with_tokens)
    assert got.termination == "context_limit"
    assert [m.role for m in got.segments[0].messages] == ["system", "user", "assistant"]
    (step,) = got.steps
    assert (step.tool, step.observation, step.visible) == ("visit", "", ())
    assert "context full" in step.error


def test_a_failing_engine_or_web_is_an_infrastructure_error_and_no_turn(run, tools):
    got, _ = run([said(visit("w/1")), InfrastructureError("status 502: Bad Gateway", "server")])
    assert (got.termination, got.infrastructure_error) == ("infrastructure", "server: status 502: Bad Gateway")
    assert got.rounds == 1
    assert not any("502" in message.content for message in got.segments[0].messages)

    class Down(Tools):
        def run(self, name, arguments, goal=""):
            raise InfrastructureError("rate limit", "web")

    got, _ = run([said(search("x") * 2)], tools=Down(tools.web))
    assert (got.termination, got.steps) == ("infrastructure", ())


def test_other_mistakes_are_not_swallowed_and_the_session_is_closed(tools, task, scripted):
    engine = scripted([ZeroDivisionError("bug")])
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_episode(task, 0, engine, tools, CONFIG, Sampling()))
    assert engine.closed


def test_the_time_limit(run, tools):
    class Slow(Tools):
        def run(self, name, arguments, goal=""):
            time.sleep(0.06)
            return super().run(name, arguments, goal)

    config = LoopConfig(max_context=4000, prompt="short", max_seconds=0.05)
    assert run([said(search("x")), FINAL], config, tools=Slow(tools.web))[0].termination == "time_limit"


def test_legacy_tasks_without_targets_run_too(tools, scripted):
    legacy = Task(question="q", variant="legacy", origin="legacy", gold="x", reward="exact")
    got = asyncio.run(run_episode(legacy, 0, scripted([EPISODE[1], "<answer>x</answer>"]), tools, CONFIG, Sampling()))
    assert (got.answer_text, got.steps[0].visible) == ("x", ())
