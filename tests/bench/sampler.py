"""Tokens per second of the embedded engine: `python -m tests.bench.sampler [--quick]`.

Multi-turn episodes with made-up tool results, a random 1M-parameter Qwen3-like model of 2 layers, 1,024 tokens of
context. Also how much faster continuous batching is than one episode at a time.
"""

import argparse
import asyncio
import json
import time

import numpy as np

from tests.tiny_policy import tiny_decoder, tiny_tokenizer
from webleaper_jax.agent.engine import Request
from webleaper_jax.records import Sampling
from webleaper_jax.sampling.engine import EmbeddedEngine, EngineStats


async def episode(engine: EmbeddedEngine, number: int, turns: int) -> None:
    """Turns of 20 to 50 tokens, with 80 tokens of results between them, after a prompt of 200."""
    rng = np.random.default_rng(number)
    ids = rng.integers(0, 256, 200).tolist()
    for turn in range(turns):
        sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=int(rng.integers(20, 50)))
        request = Request(messages=(), ids=tuple(ids), sampling=sampling, seed=number * 100 + turn, session=str(number))
        completion = await engine.generate(request)
        ids += [*(completion.ids or ()), *rng.integers(0, 256, 80).tolist()]
    engine.close_session(str(number))


def measure(slots: int, episodes: int, turns: int) -> tuple[float, EngineStats]:
    """Returns sampled tokens per second (prefill and waiting included) and the engine's counts."""
    decoder = tiny_decoder(
        vocab_size=512, hidden_size=192, intermediate_size=512, num_heads=6, num_kv_heads=2, head_dim=32
    )
    engine = EmbeddedEngine(decoder, tiny_tokenizer(), slots=slots, max_len=1024)

    async def all_episodes() -> None:
        await asyncio.gather(*(episode(engine, n, turns) for n in range(episodes)))

    started = time.monotonic()
    asyncio.run(all_episodes())
    return engine.stats.sampled / (time.monotonic() - started), engine.stats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute")
    quick = parser.parse_args().quick
    rate, stats = measure(64, 64 if quick else 256, 3 if quick else 6)
    one, _ = measure(1, 1, 6)
    lines = [
        ("sampler/sampled_per_second_64_slots", rate, "tokens/s", None, None),
        ("sampler/decode_only", stats.sampled / stats.decode_seconds, "tokens/s", None, None),
        ("sampler/prefill", stats.prefilled / stats.prefill_seconds, "tokens/s", None, None),
        ("sampler/slots_busy", stats.busy_rows / stats.step_rows, "share", None, None),
        ("sampler/one_episode_at_a_time", one, "tokens/s", None, None),
        ("sampler/continuous_batching", rate / one, "ratio", one, 5.0),
    ]
    for name, value, unit, peer, limit in lines:
        ratio = None if peer is None else value
        line = {"name": name, "value": round(value, 3), "unit": unit, "peer": peer, "ratio": ratio, "limit": limit}
        print(json.dumps(line | {"ok": limit is None or value >= limit}))


if __name__ == "__main__":
    main()
