import asyncio
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.tiny_policy import tiny_decoder, tiny_tokenizer
from webleaper_jax.agent.engine import Completion, Request
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Sampling
from webleaper_jax.sampling import steps
from webleaper_jax.sampling.engine import EmbeddedEngine, EngineStats

TOKENIZER = tiny_tokenizer()
DECODER = tiny_decoder(scale=8.0)
MAX_LEN = 400


@pytest.fixture(scope="module")
def shared_engine() -> EmbeddedEngine:
    return EmbeddedEngine(
        DECODER, TOKENIZER, slots=6, max_len=MAX_LEN, decode_rows=4, decode_length=5, prefill_rows=2, prefill_chunk=32
    )


@pytest.fixture
def engine(shared_engine: EmbeddedEngine) -> EmbeddedEngine:
    shared_engine.stats = EngineStats()
    return shared_engine


def request(ids: list[int], session: str, seed: int = 0, **sampling: object) -> Request:
    fields: dict = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 24}
    return Request(
        messages=(), ids=tuple(ids), sampling=Sampling(**(fields | sampling)), seed=seed, session=session, task_id="t"
    )


async def episode(engine: EmbeddedEngine, number: int, delay: random.Random | None = None) -> tuple[list[int], list]:
    """Three turns with made-up tool results; returns all ids and the completions."""
    rng = np.random.default_rng(number)
    ids = rng.integers(0, 256, rng.integers(3, 150)).tolist()
    completions = []
    for turn in range(3):
        if delay:
            await asyncio.sleep(delay.random() * 0.02)
        completion = await engine.generate(
            request(ids, f"e{number}", seed=number * 10 + turn, max_tokens=int(rng.integers(3, 40)))
        )
        completions.append(completion)
        ids = ids + list(completion.ids or ()) + rng.integers(0, 256, rng.integers(1, 50)).tolist()
    engine.close_session(f"e{number}")
    return ids, completions


def run_all(engine: EmbeddedEngine, numbers: list[int], delay: random.Random | None = None) -> dict[int, tuple]:
    async def main() -> list[tuple]:
        return await asyncio.gather(*(episode(engine, n, delay) for n in numbers))

    return dict(zip(numbers, asyncio.run(main()), strict=True))


@jax.jit
def padded_logprobs(tokens: jax.Array, temperature: jax.Array) -> jax.Array:
    hidden = DECODER(tokens[:, :-1], jnp.arange(tokens.shape[1] - 1)[None], jnp.ones_like(tokens[:, :-1]))
    return DECODER.token_logprobs(hidden, tokens[:, 1:], temperature=temperature)[0]


def trainer_logprobs(ids: list[int], temperature: float = 1.0) -> np.ndarray:
    """log p(ids[t] | ids[:t]) by the training forward pass, position 0 left out."""
    padded = jnp.array([ids + [0] * (512 - len(ids))])
    return np.array(padded_logprobs(padded, jnp.float32(temperature)))[0, : len(ids) - 1]


def test_logprobs_are_the_trainers_over_turns(engine: EmbeddedEngine) -> None:
    """T10, T12: every sampled token of multi-turn episodes of some hundred tokens, prefilled and decoded in pieces."""
    compared = 0
    for ids, completions in run_all(engine, list(range(12))).values():
        expected = trainer_logprobs(ids)
        for completion in completions:
            start = completion.prompt_tokens
            assert ids[start : start + len(completion.ids)] == list(completion.ids)
            got = np.array(completion.logprobs)
            np.testing.assert_allclose(got, expected[start - 1 : start - 1 + len(got)], atol=1e-4)
            compared += len(got)
    assert compared > 300


def test_temperature_and_top_p_leave_logprobs_comparable(engine: EmbeddedEngine) -> None:
    completion = asyncio.run(engine.generate(request([1, 2, 3], "s", temperature=0.6, top_p=0.7)))
    engine.close_session("s")
    ids = [1, 2, 3, *completion.ids]
    np.testing.assert_allclose(completion.logprobs, trainer_logprobs(ids, temperature=0.6)[2:], atol=1e-4)


def test_ids_do_not_depend_on_arrival_order_or_neighbours(engine: EmbeddedEngine) -> None:
    """More episodes than slots, shuffled, with random tool delays, or alone: the same ids and the same log-probs."""
    together = run_all(engine, list(range(14)))
    for trial in range(2):
        order = list(range(14))
        random.Random(trial).shuffle(order)
        shuffled = run_all(engine, order, random.Random(trial))
        assert shuffled == together
    for number in (3, 8):
        assert run_all(engine, [number]) == {number: together[number]}


def test_how_far_the_neighbours_have_come_changes_no_bit(engine: EmbeddedEngine) -> None:
    """Attention reads as many blocks as the longest row needs; a short row must not see that."""
    short = request([5, 6, 7], "short", seed=3, max_tokens=60)

    async def main(neighbours: int) -> Completion:
        long = [request([i] * (MAX_LEN - 70), f"long{i}", seed=i, max_tokens=60) for i in range(neighbours)]
        completion, *_ = await asyncio.gather(*(engine.generate(r) for r in [short, *long]))
        for r in [short, *long]:
            engine.close_session(r.session)
        return completion

    alone = asyncio.run(main(0))
    assert asyncio.run(main(3)) == alone
    assert alone.completion_tokens > 10


def test_a_turn_prefills_only_its_new_tokens(engine: EmbeddedEngine) -> None:
    _, completions = run_all(engine, [1])[1]
    prompts = [c.prompt_tokens for c in completions]
    # All tokens but the last sampled one of a turn are in the cache; the prompt's last token goes in by decoding.
    kept = [c.prompt_tokens + c.completion_tokens - 1 for c in completions[:2]]
    assert engine.stats.prefilled == prompts[0] - 1 + sum(p - 1 - k for p, k in zip(prompts[1:], kept, strict=True))
    assert engine.stats.reused == sum(kept)


def test_a_new_segment_of_a_session_starts_over(engine: EmbeddedEngine) -> None:
    async def main() -> tuple[Completion, Completion, Completion]:
        first = await engine.generate(request([1, 2, 3, 4], "a", seed=1))
        other = await engine.generate(request([9, 8, 7], "a", seed=2))
        engine.close_session("a")
        fresh = await engine.generate(request([9, 8, 7], "b", seed=2))
        engine.close_session("b")
        return first, other, fresh

    _, other, fresh = asyncio.run(main())
    assert other == fresh
    assert engine.stats.reused == 0


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "finish", "count"),
    [(3, 7, "length", 7), (MAX_LEN - 4, 50, "context", 4), (MAX_LEN, 50, "context", 0), (MAX_LEN + 9, 5, "context", 0)],
)
def test_finish_names_what_ended_the_turn(
    engine: EmbeddedEngine, prompt: int, max_tokens: int, finish: str, count: int
) -> None:
    """U4: the end of the context is a finish of its own, and no request asks for more than it leaves."""
    for seed in range(50):  # a turn that the policy ends itself says nothing here
        completion = asyncio.run(engine.generate(request([1] * prompt, "f", seed=seed, max_tokens=max_tokens)))
        engine.close_session("f")
        if completion.finish != "stop":
            break
    assert (completion.finish, completion.completion_tokens) == (finish, count)


def test_a_stop_id_ends_the_turn_and_stays_in_the_sample(engine: EmbeddedEngine) -> None:
    """T6: the end token that the policy sampled is its own; the text does not hold it."""
    stopped = []
    for seed in range(60):
        completion = asyncio.run(engine.generate(request([seed], "s", seed=seed, max_tokens=100)))
        engine.close_session("s")
        assert not set(completion.ids[:-1]) & set(TOKENIZER.stop_ids)
        if completion.finish == "stop":
            stopped.append(completion)
    assert stopped
    for completion in stopped:
        assert completion.ids[-1] in TOKENIZER.stop_ids
        assert completion.text == TOKENIZER.decode(completion.ids[:-1])


def test_nothing_compiles_after_the_engine_is_made(engine: EmbeddedEngine) -> None:
    before = steps.prefill._cache_size(), steps.decode._cache_size()
    run_all(engine, list(range(5)))
    asyncio.run(engine.generate(request([1] * 300, "s", temperature=0.3, top_p=0.5)))
    engine.close_session("s")
    assert (steps.prefill._cache_size(), steps.decode._cache_size()) == before


def test_new_weights_are_used_and_copied(engine: EmbeddedEngine) -> None:
    other = nnx.to_pure_dict(nnx.state(tiny_decoder(seed=1, scale=8.0), nnx.Param))
    own = nnx.to_pure_dict(nnx.state(DECODER, nnx.Param))
    before = run_all(engine, [2])
    engine.set_weights(other, version=7)
    jax.tree.map(lambda x: x.delete(), other)  # a trainer may give its buffers away
    after = run_all(engine, [2])
    assert after[2][0] != before[2][0]
    assert {c.policy_version for c in after[2][1]} == {7}
    engine.set_weights(own, version=0)
    assert run_all(engine, [2]) == before


def test_weights_do_not_change_under_an_episode(engine: EmbeddedEngine) -> None:
    asyncio.run(engine.generate(request([1, 2], "open")))
    with pytest.raises(RuntimeError, match="close all sessions"):
        engine.set_weights(engine.params, 1)
    engine.close_session("open")
    with pytest.raises(ValueError, match="other names or shapes"):
        engine.set_weights({"embed": engine.params["embed"]}, 1)


def test_bad_requests_are_refused(engine: EmbeddedEngine) -> None:
    for ids in ([], [TOKENIZER.vocab_size], [-1]):
        with pytest.raises(ValueError, match="needs ids"):
            asyncio.run(engine.generate(request(ids, "x")))
    with pytest.raises(DataError, match="context of 4096"):
        EmbeddedEngine(DECODER, TOKENIZER, max_len=4096)
    with pytest.raises(DataError, match="knows 200"):
        EmbeddedEngine(tiny_decoder(vocab_size=200), TOKENIZER)


def test_a_cancelled_request_leaves_the_engine_usable(engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run_all(engine, [4])
    decode = engine._decode

    async def main() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.create_task(episode(engine, 5))

        def cancelled_meanwhile(*args: object) -> object:
            loop.call_soon_threadsafe(task.cancel)
            return decode(*args)

        with monkeypatch.context() as patch:
            patch.setattr(engine, "_decode", cancelled_meanwhile)
            with pytest.raises(asyncio.CancelledError):
                await task
        engine.close_session("e5")

    asyncio.run(main())
    assert run_all(engine, [4]) == expected


def test_the_error_of_a_step_reaches_all_who_wait(engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run_all(engine, [6])

    def broken(*_: object) -> None:
        raise MemoryError("no room")

    async def main() -> list:
        requests = [request([n], f"m{n}") for n in range(9)]
        return await asyncio.gather(*(engine.generate(r) for r in requests), return_exceptions=True)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_decode", broken)
        results = asyncio.run(main())
    assert all(isinstance(result, MemoryError) for result in results)
    for n in range(9):
        engine.close_session(f"m{n}")
    assert run_all(engine, [6]) == expected
