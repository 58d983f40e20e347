"""The forward pass over the cache against the decoder's own over whole rows."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tests.tiny_policy import tiny_decoder
from webleaper_jax.sampling.cache import BLOCK, forward, init_cache

WHOLE = nnx.jit(lambda decoder, tokens, positions, segments: decoder(tokens, positions, segments))
CACHED = nnx.jit(forward)


def test_chunks_and_single_tokens_equal_the_whole_row() -> None:
    """Rows of different lengths: prefilled in chunks whose tails are not valid, then token by token."""
    decoder = tiny_decoder()
    length = BLOCK + 40
    tokens = jax.random.randint(jax.random.key(0), (3, length), 0, decoder.config.vocab_size)
    positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
    expected = WHOLE(decoder, tokens, positions, jnp.zeros(tokens.shape, jnp.int32))
    lengths, rows = np.array([BLOCK + 22, 100, 20]), jnp.array([3, 0, 1])
    cache, found = init_cache(decoder.config, 4, length, jnp.float32), np.zeros(expected.shape)
    for start in range(0, BLOCK + 22, 50):
        chunk = np.broadcast_to(np.arange(start, start + 50), (3, 50))
        valid = chunk < lengths[:, None]
        hidden, cache = CACHED(
            decoder, cache, tokens[:, start : start + 50], jnp.asarray(chunk), jnp.asarray(valid), rows
        )
        found[:, start : start + 50] = np.where(valid[..., None], hidden, found[:, start : start + 50])
    for extra in range(18):
        at = lengths + extra
        new = tokens[np.arange(3), at][:, None]
        hidden, cache = CACHED(decoder, cache, new, jnp.asarray(at)[:, None], jnp.ones((3, 1), bool), rows)
        found[np.arange(3), at] = hidden[:, 0]
    for row, end in enumerate(lengths + 18):
        np.testing.assert_allclose(found[row, :end], expected[row, :end], atol=1e-5, rtol=1e-5)


def test_a_token_that_is_not_valid_and_a_row_past_the_last_leave_the_cache_alone() -> None:
    decoder = tiny_decoder()
    tokens, positions = jnp.array([[5, 6, 7], [8, 9, 10]]), jnp.broadcast_to(jnp.arange(3), (2, 3))
    empty = init_cache(decoder.config, 2, 8, jnp.float32)
    _, filled = CACHED(decoder, empty, tokens, positions, jnp.ones((2, 3), bool), jnp.arange(2))
    one = jnp.array([[3], [3]])
    valid = jnp.array([[True], [False]])
    for rows in (jnp.array([0, 1]), jnp.array([0, 2])):
        _, after = CACHED(decoder, filled, tokens[:, :1], one, valid, rows)
        for old, new in zip(jax.tree.leaves(filled), jax.tree.leaves(after), strict=True):
            np.testing.assert_array_equal(old[1], new[1])
            assert not np.array_equal(old[0, :, 3], new[0, :, 3])
