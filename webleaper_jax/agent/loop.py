"""The ReAct loop: one episode of a policy in a web, as a trajectory.

Each round is a turn of the policy and, unless it ends the episode, the observations of its calls. When the steps are
used up the policy gets one more turn to answer in; a call in that turn is not run. An episode ends for one named
reason (`Trajectory.termination`). A failure of the engine or the web ends it as `infrastructure`: an outage is neither
a turn nor an observation.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Sequence
from typing import Literal

import msgspec

from webleaper_jax.agent import protocol
from webleaper_jax.agent.engine import Completion, Engine, InfrastructureError, Request, derive_seed
from webleaper_jax.agent.protocol import CallError, ParsedCall, Turn
from webleaper_jax.agent.render import RENDER_VERSION, Stream
from webleaper_jax.agent.tools import Observation, Tools
from webleaper_jax.records import (
    Answer,
    AtLeast0,
    AtLeast1,
    Fingerprints,
    Ledger,
    Message,
    Sampling,
    Seconds,
    Segment,
    Step,
    Task,
    Termination,
    Trajectory,
)
from webleaper_jax.scoring.observations import TargetFinder

MAX_ARGUMENT_CHARS = 2000
CONTEXT_FULL = "context full: the result was not shown"


class LoopConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an episode.

    Attributes:
      max_steps: tool calls attempted; 0 lets the policy answer only.
      max_turns: turns of the policy, the answer turn included.
      max_context: tokens of the whole segment, never exceeded (for engines without a tokenizer: a quarter of the
        characters, about what tokens of a large vocabulary are; a small one needs twice as many). Results that no
        longer fit are not shown.
      max_format_errors: turns in a row without a runnable call or an answer that end the episode.
      notice_at: from this many remaining steps on, a line that says how many remain is appended; 0 for none.
      prompt: style of the system prompt.
      max_seconds: time for an episode, checked between turns; 0 for none. Set it for live servers only: with it,
        results depend on the clock.
    """

    max_steps: AtLeast0 = 12
    max_turns: AtLeast1 = 16
    max_context: AtLeast1 = 2048
    max_format_errors: AtLeast1 = 3
    notice_at: AtLeast0 = 0
    prompt: Literal["full", "short"] = "full"
    max_seconds: Seconds = 0.0

    @property
    def system(self) -> str:
        """The system prompt of an episode under these limits."""
        return protocol.system_prompt(protocol.TOOLS if self.max_steps else (), self.prompt)

    @property
    def fingerprint(self) -> str:
        """Hash of these limits and of everything that the loop itself writes into the context."""
        limits = msgspec.structs.asdict(self)
        parts = [limits, self.system, RENDER_VERSION, protocol.PROTOCOL_VERSION]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


def fingerprints(engine: Engine, tools: Tools, config: LoopConfig) -> Fingerprints:
    """Returns what an episode of this engine with these tools and limits carries."""
    return Fingerprints(
        tokenizer=engine.tokenizer.fingerprint if engine.tokenizer else "",
        web=tools.web.fingerprint,
        tools=tools.fingerprint,
        prompts=config.fingerprint,
    )


async def run_episode(
    task: Task, rollout: int, engine: Engine, tools: Tools, config: LoopConfig, sampling: Sampling
) -> Trajectory:
    """Runs rollout number `rollout` of a task; the same arguments give the same trajectory with a deterministic engine.

    Failures of the engine or the web do not raise: they give a trajectory with `infrastructure_error`, which is never
    scored. Token fields are filled when the engine has a tokenizer.
    """
    episode = _Episode(task, rollout, engine, tools, config, sampling)
    started = time.monotonic()
    error = ""
    try:
        while not episode.termination:
            if config.max_seconds and time.monotonic() - started > config.max_seconds:
                episode.termination = "time_limit"
            else:
                await episode.round()
    except InfrastructureError as failure:
        episode.termination = "infrastructure"
        error = f"{failure.kind}: {failure}"[:500]
    finally:
        engine.close_session(episode.session)
    return episode.trajectory(error, time.monotonic() - started)


class _Episode:
    """The state of one episode. `termination` is empty until it is over."""

    def __init__(
        self, task: Task, rollout: int, engine: Engine, tools: Tools, config: LoopConfig, sampling: Sampling
    ) -> None:
        self.task, self.rollout, self.engine, self.tools = task, rollout, engine, tools
        self.config, self.sampling = config, sampling
        self.session = f"{task.id}/{rollout}/{sampling.seed}"
        self.messages = [Message(role="system", content=config.system), Message(role="user", content=task.question)]
        self.stream = Stream.start(engine.tokenizer, config.system, task.question) if engine.tokenizer else None
        self.finder = TargetFinder(task)
        self.found: frozenset[int] = frozenset()
        self.steps: list[Step] = []
        self.turns = 0
        self.format_errors = 0
        self.answer_text = ""
        self.termination: Termination | Literal[""] = ""
        self.prompt_tokens = self.completion_tokens = 0

    async def round(self) -> None:
        """One turn of the policy, and the observations of its calls."""
        room = self.config.max_context - self._context_tokens() - 1  # a turn that is cut is given its end token
        if room < 1:
            self.termination = "context_limit"
            return
        completion = await self._generate(min(self.sampling.max_tokens, room))
        if completion.finish == "context" and not completion.text:
            self.termination = "context_limit"
            return
        turn = protocol.parse_turn(
            completion.text, protocol.TOOLS if self.config.max_steps else (), cut=completion.finish != "stop"
        )
        self._add_turn(completion)
        if turn.answer is not None:
            self.answer_text = turn.answer
            self.termination = "answer"
        elif completion.finish == "context" or (completion.finish == "length" and room <= self.sampling.max_tokens):
            self.termination = "context_limit"
        elif self._remaining() == 0:
            self.termination = "step_limit"
        else:
            await self._observe(turn)

    async def _generate(self, max_tokens: int) -> Completion:
        request = Request(
            messages=tuple(self.messages),
            ids=self.stream.prompt_ids() if self.stream else None,
            sampling=msgspec.structs.replace(self.sampling, max_tokens=max_tokens),
            seed=derive_seed(self.sampling.seed, self.task.id, self.rollout, self.turns),
            session=self.session,
            task_id=self.task.id,
        )
        completion = await self.engine.generate(request)
        self.prompt_tokens += completion.prompt_tokens
        self.completion_tokens += completion.completion_tokens
        return completion

    def _add_turn(self, completion: Completion) -> None:
        if self.stream:
            self.stream.add_policy(completion)
        self.messages.append(Message(role="assistant", content=completion.text, cut=completion.finish != "stop"))
        self.turns += 1

    async def _observe(self, turn: Turn) -> None:
        """Runs a turn's calls and appends their observations in call order, or appends what was wrong with it."""
        calls = turn.calls[: self._remaining()]
        runnable = any(isinstance(call, ParsedCall) for call in calls)
        self.format_errors = 0 if runnable else self.format_errors + 1
        results = await asyncio.gather(*(self._run(call) for call in calls))
        texts = [result.text if isinstance(result, Observation) else result.message for result in results]
        notice = self._notice(self._remaining() - len(calls))
        texts = texts or [turn.error]
        texts[-1] += f"\n{notice}" if notice else ""
        if self._context_tokens(texts) >= self.config.max_context:
            self.termination = "context_limit"
            for call in calls:
                self._add_step(call, CallError(CONTEXT_FULL, ""), "")
            return
        for call, result, text in zip(calls, results, texts, strict=False):
            self._add_step(call, result, text)
        self.messages += [Message(role="tool", content=text) for text in texts]
        if self.stream:
            self.stream.add_tools(texts)
        if self.format_errors >= self.config.max_format_errors:
            self.termination = "format_errors"
        elif self.turns >= self.config.max_turns:
            self.termination = "turn_limit"

    async def _run(self, call: ParsedCall | CallError) -> Observation | CallError:
        if isinstance(call, CallError):
            return call
        # in a thread: webs may wait for a network, and calls of one turn and of other episodes go on meanwhile
        return await asyncio.to_thread(self.tools.run, call.name, call.arguments, self.task.question)

    def _add_step(self, call: ParsedCall | CallError, result: Observation | CallError, text: str) -> None:
        """Records a call; `text` is what the policy was shown of its result, "" where nothing fitted."""
        turn = self.turns - 1
        if isinstance(call, CallError):
            arguments = call.raw.strip()[:MAX_ARGUMENT_CHARS]
            error = result.message if isinstance(result, CallError) else ""
            self.steps.append(Step(turn=turn, tool="malformed", arguments=arguments, observation=text, error=error))
            return
        tool: Literal["search", "visit"] = "search" if call.name == "search" else "visit"
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        if isinstance(result, CallError):
            self.steps.append(Step(turn=turn, tool=tool, arguments=arguments, observation=text, error=result.message))
            return
        visible = self.finder.find(text, _echo(call))
        step = Step(
            turn=turn,
            tool=tool,
            arguments=arguments,
            observation=text,
            urls=result.urls,
            content_hash=result.content_hash,
            visible=tuple(sorted(visible)),
            shown=tuple(sorted(visible - self.found)),
            error=result.error,
        )
        self.found |= visible
        self.steps.append(step)

    def _remaining(self) -> int:
        return self.config.max_steps - len(self.steps)

    def _notice(self, remaining: int) -> str:
        if remaining > self.config.notice_at or not self.config.notice_at:
            return ""
        return f"[{remaining} call{'s' if remaining > 1 else ''} left]" if remaining else "[no calls left: answer now]"

    def _context_tokens(self, results: Sequence[str] = ()) -> int:
        """Length of the segment so far, with `results` appended if there are any."""
        if self.stream:
            return len(self.stream.ids) + (len(self.stream.tool_ids(results)) if results else 0)
        return (sum(len(message.content) for message in self.messages) + sum(map(len, results))) // 4

    def trajectory(self, error: str, seconds: float) -> Trajectory:
        assert self.termination
        stream = self.stream
        segment = Segment(
            messages=tuple(self.messages),
            steps=tuple(self.steps),
            token_ids=tuple(stream.ids) if stream else (),
            loss_mask=tuple(stream.mask) if stream else (),
            logprobs=tuple(stream.logprobs) if stream else (),
            policy_versions=tuple(stream.versions) if stream else (),
        )
        return Trajectory(
            task_id=self.task.id,
            rollout=self.rollout,
            policy=self.engine.name,
            segments=(segment,),
            sampling=self.sampling,
            answer=protocol.parse_answer(self.answer_text) if self.termination == "answer" else Answer(),
            answer_text=self.answer_text,
            termination=self.termination,
            infrastructure_error=error,
            ledger=_ledger(self.steps, self.prompt_tokens, self.completion_tokens, seconds),
            fingerprints=fingerprints(self.engine, self.tools, self.config),
        )


def _echo(call: ParsedCall) -> list[str]:
    """What the call itself said: an observation that merely repeats it finds nothing."""
    values = [value if isinstance(value, list) else [value] for value in call.arguments.values()]
    return [text for texts in values for text in texts if isinstance(text, str)]


def _ledger(steps: Sequence[Step], prompt_tokens: int, completion_tokens: int, seconds: float) -> Ledger:
    return Ledger(
        searches=sum(step.tool == "search" for step in steps),
        pages=sum(len(step.urls) for step in steps if step.tool == "visit"),
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        seconds=seconds,
    )
