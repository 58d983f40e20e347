"""Small random decoders for the tests of the model."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from webleaper_jax.model.config import ModelConfig
from webleaper_jax.model.decoder import Decoder

Rows = tuple[jax.Array, jax.Array, jax.Array]


@pytest.fixture
def small_decoder() -> Callable[..., Decoder]:
    """Makes a decoder with grouped queries, a head_dim that is not hidden_size / num_heads, and norm gains that are not
    1 (so that a gain that is left out is noticed)."""

    def make(seed: int = 0, **changes: Any) -> Decoder:
        fields: dict[str, Any] = {
            "vocab_size": 97,
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_layers": 3,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 16,
            "rope_theta": 5e5,
        }
        decoder = Decoder(ModelConfig(**fields | changes), rngs=nnx.Rngs(seed))
        keys = iter(jax.random.split(jax.random.key(seed + 1), 100))
        state = nnx.state(decoder, nnx.Param)
        nnx.update(decoder, jax.tree.map(lambda x: x + 0.2 * jax.random.normal(next(keys), x.shape), state))
        return decoder

    return make


@pytest.fixture
def rows() -> Callable[..., Rows]:
    """Makes tokens, positions and segment ids of unpacked rows."""

    def make(length: int, batch: int = 2, seed: int = 0) -> Rows:
        tokens = jnp.asarray(np.random.default_rng(seed).integers(0, 97, (batch, length)))
        positions = jnp.broadcast_to(jnp.arange(length), (batch, length))
        return tokens, positions, jnp.zeros((batch, length), jnp.int32)

    return make
