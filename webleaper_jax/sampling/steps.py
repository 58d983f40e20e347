"""The two device steps of the embedded engine: prefill one chunk of some slots, decode a few tokens of some slots.

Each has one shape and is compiled once. A token's numbers depend on its own row only: neither on which other rows are
busy, nor on how far they have come.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, UInt32

from webleaper_jax.sampling.cache import Cache, forward

# A nested dict of arrays (`nnx.to_pure_dict`).
Params = Mapping[str, Any]


class Rows(NamedTuple):
    """What some cache rows are about to do. One with `remaining` 0 is idle (its `row` may be past the last).

    `token` stands at `position` and is not in the cache yet; the next one is sampled for `position + 1`.
    `seed` is the request's seed as two words, high one first.
    """

    row: Int[Array, " B"]
    token: Int[Array, " B"]
    position: Int[Array, " B"]
    remaining: Int[Array, " B"]
    seed: UInt32[Array, "B 2"]
    temperature: Float[Array, " B"]
    top_p: Float[Array, " B"]


class Sampled(NamedTuple):
    """What a decode chunk sampled: the first `counts[b]` entries of row b are meant, the others mean nothing."""

    tokens: Int[Array, "B N"]
    logprobs: Float[Array, "B N"]
    counts: Int[Array, " B"]


@functools.partial(jax.jit, static_argnames=("graph",), donate_argnames=("cache",))
def prefill(
    graph: nnx.GraphDef,
    params: Params,
    cache: Cache,
    rows: Int[Array, " P"],
    tokens: Int[Array, "P C"],
    positions: Int[Array, "P C"],
    valid: Bool[Array, "P C"],
) -> Cache:
    """Writes keys and values of given tokens into the cache rows `rows` (nothing is valid in rows past the last)."""
    return forward(nnx.merge(graph, params), cache, tokens, positions, valid, rows)[1]


@functools.partial(jax.jit, static_argnames=("graph", "stop_ids", "vocabulary", "length"), donate_argnames=("cache",))
def decode(
    graph: nnx.GraphDef,
    params: Params,
    cache: Cache,
    rows: Rows,
    *,
    stop_ids: tuple[int, ...],
    vocabulary: int,
    length: int,
) -> tuple[Cache, Sampled]:
    """Samples up to `length` tokens of each busy row; a row ends at a stop id or when nothing remains.

    Leaves early once half of the busy rows have ended, so that the engine can give them new work.

    Args:
      stop_ids: ids that end a row; they are part of the sample.
      vocabulary: ids from here on (the model's padding) are never sampled.
      length: the most tokens of one call.
    """
    decoder = nnx.merge(graph, params)
    batch = rows.token.shape[0]
    busy_at_start = jnp.sum(rows.remaining > 0)
    stops = jnp.array(stop_ids, jnp.int32)

    class Loop(NamedTuple):
        step: Int[Array, ""]
        cache: Cache
        token: Int[Array, " B"]
        position: Int[Array, " B"]
        remaining: Int[Array, " B"]
        out: Sampled

    def goes_on(loop: Loop) -> Bool[Array, ""]:
        return (loop.step < length) & (2 * jnp.sum(loop.remaining > 0) > busy_at_start)

    def one_token(loop: Loop) -> Loop:
        busy = loop.remaining > 0
        hidden, cache = forward(
            decoder, loop.cache, loop.token[:, None], loop.position[:, None], busy[:, None], rows.row
        )
        position = loop.position + 1
        token, logprob = sample(decoder.logits(hidden[:, 0]), position, rows, vocabulary)
        ended = jnp.any(token[:, None] == stops, axis=-1)
        out = Sampled(
            tokens=loop.out.tokens.at[:, loop.step].set(token),
            logprobs=loop.out.logprobs.at[:, loop.step].set(logprob),
            counts=loop.out.counts + busy,
        )
        return Loop(
            step=loop.step + 1,
            cache=cache,
            token=jnp.where(busy, token, loop.token),
            position=jnp.where(busy, position, loop.position),
            remaining=jnp.where(busy & ~ended, loop.remaining - 1, 0),
            out=out,
        )

    nothing = Sampled(
        jnp.zeros((batch, length), jnp.int32), jnp.zeros((batch, length), jnp.float32), jnp.zeros(batch, jnp.int32)
    )
    start = Loop(jnp.int32(0), cache, rows.token, rows.position, rows.remaining, nothing)
    end = jax.lax.while_loop(goes_on, one_token, start)
    return end.cache, end.out


def sample(
    logits: Float[Array, "B V"], position: Int[Array, " B"], rows: Rows, vocabulary: int
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """Draws one token of each row by inverting the cumulative distribution at a uniform number.

    The number is a pure function of the row's seed and the absolute position of the token drawn.

    Returns:
      The tokens, and their log-probs in float32 at the sampling temperature, before anything is cut off by top-p (that
      is what the trainer computes). At temperature 0 the likeliest token is taken, and its log-prob is that at 1.
    """
    greedy = rows.temperature <= 0
    logprobs = jax.nn.log_softmax(logits / jnp.where(greedy, 1.0, rows.temperature)[:, None], axis=-1)
    known = jnp.arange(logits.shape[-1]) < vocabulary
    probabilities = jnp.where(known, jnp.exp(logprobs), 0.0)
    probabilities = jax.lax.cond(
        jnp.any(rows.top_p < 1.0), lambda p: keep_nucleus(p, rows.top_p), lambda p: p, probabilities
    )
    keys = jax.random.wrap_key_data(rows.seed, impl="threefry2x32")
    uniform = jax.vmap(lambda key, p: jax.random.uniform(jax.random.fold_in(key, p)))(keys, position)
    total = jnp.cumsum(probabilities, axis=-1)
    # A parallel sum may rise by rounding where nothing was added: only tokens with a probability can be drawn.
    last = jnp.max(jnp.where(probabilities > 0, total, 0.0), axis=-1)
    drawn = jnp.argmax((total > (uniform * last)[:, None]) & (probabilities > 0), axis=-1)
    token = jnp.where(greedy, jnp.argmax(probabilities, axis=-1), drawn).astype(jnp.int32)
    return token, jnp.take_along_axis(logprobs, token[:, None], axis=-1)[:, 0]


def keep_nucleus(probabilities: Float[Array, "B V"], top_p: Float[Array, " B"]) -> Float[Array, "B V"]:
    """Sets to 0 what lies outside the nucleus: the fewest likeliest tokens that hold at least `top_p` of the mass.

    Tokens as likely as the least likely one kept stay too. No sort: the smallest probability kept is found by bisection
    over the bits of the floats, whose order is that of non-negative numbers.
    """
    wanted = top_p * probabilities.sum(-1)

    def halve(_: Int[Array, ""], bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds  # the mass at or above `low` is enough, at or above `high` it is not
        middle = low + (high - low) // 2
        least = jax.lax.bitcast_convert_type(middle, jnp.float32)
        enough = jnp.where(probabilities >= least[:, None], probabilities, 0.0).sum(-1) >= wanted
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    above_one = jax.lax.bitcast_convert_type(jnp.float32(2.0), jnp.int32)
    zeros = jnp.zeros(top_p.shape, jnp.int32)
    low, _ = jax.lax.fori_loop(0, 31, halve, (zeros, zeros + above_one))
    least = jax.lax.bitcast_convert_type(low, jnp.float32)
    kept = (probabilities >= least[:, None]) | (top_p >= 1.0)[:, None]
    return jnp.where(kept, probabilities, 0.0)
