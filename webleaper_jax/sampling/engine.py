"""The embedded engine: a KV-cache sampler in the trainer's process, with continuous batching over many episodes.

Each episode (session) holds a slot of a preallocated cache from its first turn until it is closed, so that turn k+1
prefills only the tokens that came since turn k. Requests of sessions without a slot wait. Busy slots decode a
few tokens at a time, in calls of a fixed number of rows (those that have come about as far together, since attention
costs what the longest needs); between calls finished rows are handed back, new ones are prefilled and join. An episode
that waits for its tools keeps its slot and costs nothing else.

What a request samples depends on its ids, its seed and the weights only. Token p is computed in a step whose shape does
not depend on who else is there: prompts in chunks aligned to absolute positions, sampled tokens one by one; and the
random number of position p is a function of (seed, p). Arrival order, tool latency and neighbours change nothing.

Left out: more than one device, evicting idle sessions, sharing the prompt between the members of a group, top-k, min-p,
stop strings.
"""

import asyncio
import dataclasses
import math
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from webleaper_jax.agent.engine import Completion, Request
from webleaper_jax.agent.render import PolicyTokenizer
from webleaper_jax.jsonl import DataError
from webleaper_jax.model.decoder import Decoder
from webleaper_jax.sampling import steps
from webleaper_jax.sampling.cache import Cache, init_cache
from webleaper_jax.sampling.steps import Params


@dataclasses.dataclass
class EngineStats:
    """Counts since the engine was made. Times are seconds of wall clock.

    `prefilled` tokens were computed, `reused` ones were in the cache from the turn before. `busy_rows` / `step_rows` is
    the share of decode work that belonged to a request.
    """

    requests: int = 0
    sampled: int = 0
    prefilled: int = 0
    reused: int = 0
    nonfinite: int = 0
    prefill_calls: int = 0
    decode_calls: int = 0
    busy_rows: int = 0
    step_rows: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


@dataclasses.dataclass
class _Pending:
    """A request and who waits for it."""

    request: Request
    ids: tuple[int, ...]
    room: int
    future: asyncio.Future[Completion]


@dataclasses.dataclass
class _Slot:
    """A row of the cache: the session that holds it, the tokens whose keys and values it holds, and its request."""

    session: str | None = None
    cached: list[int] = dataclasses.field(default_factory=list)
    job: _Pending | None = None
    prompt: deque[int] = dataclasses.field(default_factory=deque)  # to prefill, the last prompt token not among them
    token: int = 0  # the newest token, whose keys and values are not in the cache yet
    sampled: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    stopped: bool = False

    @property
    def remaining(self) -> int:
        return self.job.room - len(self.sampled) if self.job and not self.stopped else 0


class EmbeddedEngine:
    """An `agent.engine.Engine` over a `Decoder`.

    Args:
      decoder: the policy; its weights are copied.
      tokenizer: its tokenizer; gives the stop ids, and the ids that can be sampled at all.
      slots: rows of the cache: how many episodes are under way at once (more may wait).
      max_len: tokens of context, prompt and sample together.
      decode_rows, decode_length: the shape of a decode call; it samples at most `decode_length` tokens of each row. Few
        rows waste less when few episodes are left; on an accelerator, take as many as there are slots.
      prefill_rows, prefill_chunk: the shape of a prefill call.
      patience: seconds to wait for episodes that are about to come back with their next request, before the others go
        on without them: a decode call costs the same for one row as for all.
      dtype: of the weights and of the cache.
      name: goes into the trajectories' `policy`.

    Raises:
      DataError: the model takes fewer than `max_len` tokens, or knows fewer ids than the tokenizer.
    """

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: PolicyTokenizer,
        *,
        slots: int = 64,
        max_len: int = 1024,
        decode_rows: int = 16,
        decode_length: int = 16,
        prefill_rows: int = 8,
        prefill_chunk: int = 64,
        patience: float = 0.05,
        dtype: jax.typing.DTypeLike = jnp.float32,
        name: str = "embedded",
    ):
        if max_len > decoder.config.max_positions:
            raise DataError(
                f"the model takes {decoder.config.max_positions} tokens, a context of {max_len} was asked for"
            )
        if tokenizer.vocab_size > decoder.config.vocab_size:
            raise DataError(
                f"the tokenizer has {tokenizer.vocab_size} ids, the model knows {decoder.config.vocab_size}: use the "
                "tokenizer that belongs to the model"
            )
        self.name = name
        self.tokenizer: PolicyTokenizer | None = tokenizer
        self._tokenizer = tokenizer
        self.version = 0
        self.stats = EngineStats()
        self.max_len = max_len
        self._decode_shape = (min(decode_rows, slots), decode_length)
        self._prefill_shape = (min(prefill_rows, slots), prefill_chunk)
        self._patience = patience
        self.dtype = dtype
        self._graph, weights = nnx.split(decoder)
        self.params: Params = self._own(nnx.to_pure_dict(weights))
        # Whole prefill chunks, since the last one may end past `max_len`.
        positions = -(-max_len // prefill_chunk) * prefill_chunk
        self._cache = init_cache(decoder.config, slots, positions, dtype)
        self._slots = [_Slot() for _ in range(slots)]
        self._by_session: dict[str, _Slot] = {}
        self._waiting: deque[_Pending] = deque()
        self._away: set[str] = set()  # sessions between two turns: their tools run
        self._driver: asyncio.Task[None] | None = None
        # A thread of its own: slow tools may hold all threads of the loop's pool.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sampler")
        self._warm_up()

    @property
    def slots(self) -> int:
        """Rows of the cache."""
        return len(self._slots)

    @property
    def vocabulary(self) -> int:
        """How many ids there are to sample from."""
        return self._tokenizer.vocab_size

    # ------------------------------------------------------------------------------------------- the engine interface

    async def generate(self, request: Request) -> Completion:
        """Samples one turn. Waits for a slot when other sessions hold them all.

        A prompt that fills the context gives an empty completion with finish `context`.

        Raises:
          ValueError: the request has no ids, or an id that the model does not know.
        """
        ids = request.ids
        if not ids or not all(0 <= i < self._tokenizer.vocab_size for i in ids):
            raise ValueError(f"session {request.session}: the embedded engine needs ids of its tokenizer")
        self.stats.requests += 1
        self._away.discard(request.session)
        room = min(request.sampling.max_tokens, self.max_len - len(ids))
        if room <= 0:
            finish: Literal["context", "length"] = "context" if len(ids) >= self.max_len else "length"
            return self._completion(len(ids), [], [], finish)
        job = _Pending(request, ids, room, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._wake()
        return await job.future

    def close_session(self, session: str) -> None:
        """Frees the session's slot for those that wait. Unknown sessions are ignored."""
        self._away.discard(session)
        slot = self._by_session.pop(session, None)
        if slot is not None:
            slot.session = None
            if slot.job is None:
                slot.cached.clear()
            self._wake()

    def set_weights(self, params: Params, version: int) -> None:
        """Takes new weights (copied, cast to the engine's type). What was cached for the old ones is of no use.

        Raises:
          RuntimeError: a session is open; its turns would come from two policies.
          ValueError: the weights are not those of this model.
        """
        if self._by_session:
            raise RuntimeError("weights change between episodes only: close all sessions first")
        shapes = jax.tree.map(lambda x: x.shape, (self.params, params))
        if shapes[0] != shapes[1]:
            raise ValueError("the weights have other names or shapes than the engine's model")
        self.params = self._own(params)
        self.version = version
        # Zeros, since a NaN left by bad weights would outlive them: 0 * NaN is NaN in positions that are masked.
        self._cache = jax.tree.map(jnp.zeros_like, self._cache)

    # ------------------------------------------------------------------------------------------------------ the driver

    def _wake(self) -> None:
        """Starts the driver if there is work for it and it is not running (in this event loop)."""
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        if self._driver is None or self._driver.done() or self._driver.get_loop() is not loop:
            self._driver = loop.create_task(self._drive())

    async def _drive(self) -> None:
        """Works until nothing is left to do, or all who wait need a slot that somebody holds between two turns."""
        try:
            while True:
                await self._gather()
                self._admit()
                busy = [(row, slot) for row, slot in enumerate(self._slots) if slot.job is not None]
                if not busy:
                    return
                await self._in_thread(busy)
                for _, slot in busy:
                    if slot.remaining == 0 or (slot.job and slot.job.future.done()):
                        self._hand_back(slot)
        except BaseException as error:
            self._fail(error)
            raise

    async def _gather(self) -> None:
        """Lets episodes whose turn is done run their tools and ask for the next one."""
        deadline = time.monotonic() + self._patience
        await asyncio.sleep(0)
        while 4 * len(self._away) > len(self._by_session) and time.monotonic() < deadline:
            await asyncio.sleep(0.001)

    async def _in_thread(self, busy: list[tuple[int, "_Slot"]]) -> None:
        """Runs a step in a thread, so that slow tools and servers go on while the device works.

        When cancelled it still waits for the step's end: nothing else may touch the slots before.
        """
        step = asyncio.get_running_loop().run_in_executor(self._thread, self._step, busy)
        try:
            await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait([step])
            raise

    def _admit(self) -> None:
        """Gives each waiting request its session's slot, or a free one; those that get none go on waiting, in order."""
        free = deque(slot for slot in self._slots if slot.session is None and slot.job is None)
        waiting = [job for job in self._waiting if not job.future.done()]
        self._waiting.clear()
        for job in waiting:
            slot = self._by_session.get(job.request.session)
            if slot is None and free:
                slot = free.popleft()
                slot.session = job.request.session
                slot.cached.clear()
                self._by_session[job.request.session] = slot
            if slot is None or slot.job is not None:
                self._waiting.append(job)
            else:
                self._begin(slot, job)

    def _begin(self, slot: _Slot, job: _Pending) -> None:
        """Finds out what is new in the prompt; a session that starts over (a new segment) computes it all again."""
        prompt = list(job.ids[:-1])
        if prompt[: len(slot.cached)] != slot.cached:
            slot.cached.clear()
        self.stats.reused += len(slot.cached)
        slot.job = job
        slot.prompt = deque(prompt[len(slot.cached) :])
        slot.token = job.ids[-1]
        slot.sampled, slot.logprobs, slot.stopped = [], [], False

    def _hand_back(self, slot: _Slot) -> None:
        job = slot.job
        assert job is not None
        slot.job = None
        finish: Literal["stop", "context", "length"] = "length"
        if slot.stopped:
            finish = "stop"
        elif len(job.ids) + len(slot.sampled) >= self.max_len:
            finish = "context"
        self.stats.nonfinite += sum(not math.isfinite(x) for x in slot.logprobs)
        if slot.session is not None:
            self._away.add(slot.session)
        if not job.future.done():
            job.future.set_result(self._completion(len(job.ids), slot.sampled, slot.logprobs, finish))

    def _fail(self, error: BaseException) -> None:
        """Nobody waits for ever: the error of a step goes to all whose request is open."""
        jobs = [slot.job for slot in self._slots if slot.job is not None] + list(self._waiting)
        for slot in self._slots:
            slot.job = None
            slot.cached.clear()
        self._waiting.clear()
        self._away.clear()
        for job in jobs:
            if not job.future.done():
                if isinstance(error, asyncio.CancelledError):
                    job.future.cancel()
                else:
                    job.future.set_exception(error)

    def _completion(
        self, prompt_tokens: int, ids: list[int], logprobs: list[float], finish: Literal["stop", "length", "context"]
    ) -> Completion:
        return Completion(
            text=self._tokenizer.decode_turn(ids),
            ids=tuple(ids),
            logprobs=tuple(logprobs),
            finish=finish,
            policy_version=self.version,
            prompt_tokens=prompt_tokens,
            completion_tokens=len(ids),
        )

    # ------------------------------------------------------------------------------------------------- device steps

    def _step(self, busy: list[tuple[int, _Slot]]) -> None:
        """Prefills what is new, then samples a few tokens of all busy rows."""
        started = time.monotonic()
        while new := [(row, slot) for row, slot in busy if slot.prompt]:
            self._prefill(new[: self._prefill_shape[0]])
        jax.block_until_ready(self._cache)
        prefilled = time.monotonic()
        by_length = sorted(busy, key=lambda item: len(item[1].cached))
        count = self._decode_shape[0]
        for first in range(0, len(by_length), count):
            self._decode(by_length[first : first + count])
        self.stats.prefill_seconds += prefilled - started
        self.stats.decode_seconds += time.monotonic() - prefilled

    def _prefill(self, some: list[tuple[int, _Slot]]) -> None:
        """Prefills the next chunk of a few rows: the positions c * C to (c + 1) * C - 1, as far as they are new."""
        count, length = self._prefill_shape
        rows = np.full(count, len(self._slots), np.int32)  # past the last: ignored
        tokens = np.full((count, length), self._tokenizer.pad_id, np.int32)
        positions = np.tile(np.arange(length, dtype=np.int32), (count, 1))
        valid = np.zeros((count, length), bool)
        for i, (row, slot) in enumerate(some):
            start = len(slot.cached) // length * length
            first = len(slot.cached) - start
            new = [slot.prompt.popleft() for _ in range(min(length - first, len(slot.prompt)))]
            rows[i] = row
            tokens[i, first : first + len(new)] = new
            positions[i] += start
            valid[i, first : first + len(new)] = True
            slot.cached += new
            self.stats.prefilled += len(new)
        self.stats.prefill_calls += 1
        self._cache = steps.prefill(self._graph, self.params, self._cache, rows, tokens, positions, valid)

    def _decode(self, some: list[tuple[int, _Slot]]) -> None:
        """Samples up to `decode_length` tokens of a few busy rows."""
        rows = self._idle_rows()
        for i, (row, slot) in enumerate(some):
            assert slot.job is not None
            sampling = slot.job.request.sampling
            rows.row[i] = row
            rows.token[i] = slot.token
            rows.position[i] = len(slot.cached)
            rows.remaining[i] = slot.remaining
            rows.seed[i] = divmod(slot.job.request.seed % 2**64, 2**32)
            rows.temperature[i] = sampling.temperature
            rows.top_p[i] = sampling.top_p
        self._cache, out = self._sample(rows)
        tokens, logprobs, counts = (np.asarray(field) for field in out)
        for i, (_, slot) in enumerate(some):
            new = tokens[i, : counts[i]].tolist()
            slot.cached += [slot.token, *new[:-1]]
            slot.token = new[-1]
            slot.sampled += new
            slot.logprobs += logprobs[i, : counts[i]].tolist()
            slot.stopped = new[-1] in self._tokenizer.stop_ids
        self.stats.decode_calls += 1
        self.stats.sampled += int(counts.sum())
        self.stats.busy_rows += int(counts.sum())
        self.stats.step_rows += int(counts.max()) * self._decode_shape[0]

    def _sample(self, rows: steps.Rows) -> tuple[Cache, steps.Sampled]:
        return steps.decode(
            self._graph,
            self.params,
            self._cache,
            rows,
            stop_ids=self._tokenizer.stop_ids,
            vocabulary=self._tokenizer.vocab_size,
            length=self._decode_shape[1],
        )

    def _idle_rows(self) -> steps.Rows:
        """The rows of a decode call, doing nothing, as numpy arrays to fill in."""
        count = self._decode_shape[0]
        fields: dict[str, Any] = {name: np.zeros(count, np.int32) for name in ("token", "position", "remaining")}
        fields |= {name: np.ones(count, np.float32) for name in ("temperature", "top_p")}
        fields["row"] = np.full(count, len(self._slots), np.int32)  # past the last: ignored
        fields["seed"] = np.zeros((count, 2), np.uint32)
        return steps.Rows(**fields)

    def _warm_up(self) -> None:
        """Compiles both steps (by running them on nothing), so that nothing compiles later."""
        count, length = self._prefill_shape
        nothing = np.zeros((count, length), np.int32)
        rows = np.full(count, len(self._slots), np.int32)
        self._cache = steps.prefill(
            self._graph, self.params, self._cache, rows, nothing, nothing, np.zeros((count, length), bool)
        )
        self._cache, _ = self._sample(self._idle_rows())

    def _own(self, params: Params) -> Params:
        """Copies and casts weights, so that a trainer that gives its buffers away does not take the engine's."""
        device = jax.local_devices()[0]
        return jax.tree.map(lambda x: jnp.array(jax.device_put(x, device), self.dtype, copy=True), params)
