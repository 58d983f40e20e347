"""The sampler's KV cache and the decoder's forward pass over it.

Keys and values lie head by head, positions in order (`[rows, heads, positions, head_dim]`, one array a layer): on a CPU
attention over this layout is ten times faster than with the heads inside. Sums over positions are taken in blocks of
128, one after the other by the same code, and only the blocks that some row has reached are read. A block that a row
has not reached adds exact zeros to its sums, so how far the others have come does not change a row's bits.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from webleaper_jax.model import decoder as model
from webleaper_jax.model.attention import rope_angles
from webleaper_jax.model.config import ModelConfig
from webleaper_jax.model.decoder import Decoder, rms_norm

BLOCK = 128
_MASKED = -1e30  # finite, so that a row that may see nothing gives no NaN


class Cache(NamedTuple):
    """Keys and values of each layer; slot s of a row holds position s."""

    k: tuple[Float[Array, "B G S K"], ...]
    v: tuple[Float[Array, "B G S K"], ...]


def init_cache(config: ModelConfig, rows: int, positions: int, dtype: jax.typing.DTypeLike) -> Cache:
    """Returns an empty cache for `rows` sequences; `positions` is rounded up to whole blocks."""
    shape = (rows, config.num_kv_heads, -(-positions // BLOCK) * BLOCK, config.head_dim)
    return Cache(*(tuple(jnp.zeros(shape, dtype) for _ in range(config.num_layers)) for _ in "kv"))


def forward(
    decoder: Decoder,
    cache: Cache,
    tokens: Int[Array, "N C"],
    positions: Int[Array, "N C"],
    valid: Bool[Array, "N C"],
    rows: Int[Array, " N"],
) -> tuple[Float[Array, "N C D"], Cache]:
    """Runs C new tokens of some cache rows (a prompt's chunk, or one sampled token) and writes them into the cache.

    Tokens that are not `valid` are computed and thrown away. Positions below a row's first new one must be filled
    already. Row numbers past the last are allowed where nothing is valid; two equal ones are not.

    Returns:
      The last hidden states (meaningless where not valid), and the cache.
    """
    config = decoder.config
    cos, sin = rope_angles(positions, config.head_dim, config.rope_theta)
    target = jnp.where(valid, rows[:, None], cache.k[0].shape[0])  # out of range = not written
    blocks = jnp.max(jnp.where(valid, positions, 0)) // BLOCK + 1
    x = decoder.embed[...][tokens]
    stacked = nnx.to_pure_dict(nnx.state(decoder.layers, nnx.Param))
    keys, values = list(cache.k), list(cache.v)
    for i in range(config.num_layers):
        weights = jax.tree.map(lambda w, i=i: w[i], stacked)
        with jax.named_scope("attention"):
            q, k, v = model.qkv(config, weights, x, cos, sin)
            keys[i] = keys[i].at[target, :, positions].set(k.astype(keys[i].dtype), mode="drop")
            values[i] = values[i].at[target, :, positions].set(v.astype(values[i].dtype), mode="drop")
            out = attend(q, keys[i], values[i], positions, rows, blocks)
            x = x + out.reshape(*x.shape[:2], -1) @ weights["wo"]
        x = model.mlp(config, weights, x)
    return rms_norm(x, decoder.final_norm[...], config.rms_norm_eps), Cache(tuple(keys), tuple(values))


def attend(
    q: Float[Array, "N C H K"],
    k: Float[Array, "B G S K"],
    v: Float[Array, "B G S K"],
    positions: Int[Array, "N C"],
    rows: Int[Array, " N"],
    blocks: Int[Array, ""],
) -> Float[Array, "N C H K"]:
    """Causal attention of new tokens over the first `blocks` blocks of their cache rows, softmax in float32.

    Online softmax (running maximum, sum and weighted values). For a row that does not reach a block, the block's
    weights are 0, the maximum stays, and all is multiplied by exp(0) = 1.
    """
    n, c, h, d = q.shape
    groups = k.shape[1]
    # The heads of a group are folded into the rows, so that each group is one matrix product.
    q = (q * d**-0.5).reshape(n, c, groups, h // groups, d).transpose(0, 2, 3, 1, 4).reshape(n, groups, -1, d)
    seen = jnp.tile(positions, (1, h // groups))[:, None, :, None]  # the position of each folded row

    def of_block(y: Float[Array, "B G S K"], b: Int[Array, ""]) -> Float[Array, "N G P K"]:
        """Block `b` of the rows asked for, and of no others."""
        size = (1, groups, BLOCK, d)
        return jax.vmap(lambda row: jax.lax.dynamic_slice(y, (row, 0, b * BLOCK, 0), size)[0])(rows).astype(q.dtype)

    def block(b: Int[Array, ""], state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        m, total, summed = state
        k_b, v_b = of_block(k, b), of_block(v, b)
        scores = jnp.einsum("ngxd,ngsd->ngxs", q, k_b, preferred_element_type=jnp.float32)
        scores = jnp.where(b * BLOCK + jnp.arange(BLOCK) <= seen, scores, _MASKED)
        higher = jnp.maximum(m, scores.max(-1, keepdims=True))
        weights = jnp.exp(scores - higher)
        shrink = jnp.exp(m - higher)
        added = jnp.einsum("ngxs,ngsd->ngxd", weights.astype(q.dtype), v_b, preferred_element_type=jnp.float32)
        return higher, total * shrink + weights.sum(-1, keepdims=True), summed * shrink + added

    zeros = jnp.zeros(q.shape, jnp.float32)
    start = (jnp.full_like(zeros[..., :1], _MASKED), zeros[..., :1], zeros)
    _, total, summed = jax.lax.fori_loop(0, blocks, block, start)
    out = (summed / total).astype(q.dtype)
    return out.reshape(n, groups, h // groups, c, d).transpose(0, 3, 1, 2, 4).reshape(n, c, h, d)
