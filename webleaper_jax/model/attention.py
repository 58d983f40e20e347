"""Causal attention over packed rows, in float32 softmax: plain for short rows, blockwise for long ones."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

_MASKED = -1e30  # finite, so that a row that may see nothing gives no NaN


def rope_angles(
    positions: Int[Array, "B T"], head_dim: int, theta: float
) -> tuple[Float[Array, "B T K"], Float[Array, "B T K"]]:
    """Returns cosine and sine of RoPE's angles, float32, for the half-split layout (halves of the head)."""
    frequencies = theta ** -(jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    return tuple(jnp.concatenate([f(angles)] * 2, axis=-1) for f in (jnp.cos, jnp.sin))  # type: ignore[return-value]


def rotate(
    x: Float[Array, "B T H K"], cos: Float[Array, "B T K"], sin: Float[Array, "B T K"]
) -> Float[Array, "B T H K"]:
    """Applies RoPE (half-split: dimension i is paired with i + K/2)."""
    first, second = jnp.split(x, 2, axis=-1)
    turned = jnp.concatenate([-second, first], axis=-1)
    return (x * cos[:, :, None] + turned * sin[:, :, None]).astype(x.dtype)


def masked_attention(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B S G K"],
    v: Float[Array, "B S G K"],
    mask: Bool[Array, "B T S"],
) -> Float[Array, "B T H K"]:
    """Grouped-query attention with the whole T x S score array; query head h reads key head h // (H / G)."""
    b, t, h, d = q.shape
    groups = k.shape[2]
    # The heads of a group are folded into the rows, so that each group is one matrix product.
    q = (q * d**-0.5).reshape(b, t, groups, h // groups, d).transpose(0, 2, 3, 1, 4).reshape(b, groups, -1, d)
    scores = jnp.einsum("bgxd,bsgd->bgxs", q, k, preferred_element_type=jnp.float32)
    scores = scores.reshape(b, groups, h // groups, t, -1)
    scores = jnp.where(mask[:, None, None], scores, _MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype).reshape(b, groups, (h // groups) * t, -1)
    out = jnp.einsum("bgxs,bsgd->bgxd", weights, v)
    return out.reshape(b, groups, h // groups, t, d).transpose(0, 3, 1, 2, 4).reshape(b, t, h, d)


def causal_attention(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B T G K"],
    v: Float[Array, "B T G K"],
    segment_ids: Int[Array, "B T"],
    block: int,
    plain_up_to: int,
) -> Float[Array, "B T H K"]:
    """Each token attends to itself and to the tokens before it in its own segment.

    Rows up to `plain_up_to` long are worked through `block` queries at a time, each over the keys up to its end:
    half the work of the whole square, and the fastest form on a CPU (measured at 512 and 1,024 tokens). Longer rows are
    padded to whole blocks and use an online softmax, which never holds more than a block x block array of scores for
    each head.
    """
    length = q.shape[1]
    if length <= plain_up_to:
        order = jnp.arange(length)
        parts = []
        for start in range(0, length, block):
            end = min(start + block, length)
            mask = order[start:end, None] >= order[:end]
            mask = mask & (segment_ids[:, start:end, None] == segment_ids[:, None, :end])
            parts.append(masked_attention(q[:, start:end], k[:, :end], v[:, :end], mask))
        return jnp.concatenate(parts, axis=1)
    padding = -length % block
    if padding:
        q, k, v = (jnp.pad(x, ((0, 0), (0, padding), (0, 0), (0, 0))) for x in (q, k, v))
        segment_ids = jnp.pad(segment_ids, ((0, 0), (0, padding)), constant_values=-1)
    return _blockwise(q, k, v, segment_ids, block)[:, :length]


def _blockwise(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B T G K"],
    v: Float[Array, "B T G K"],
    segment_ids: Int[Array, "B T"],
    block: int,
) -> Float[Array, "B T H K"]:
    """Online softmax over blocks of keys, one block of queries after the other (Rabe, Staats 2021; Dao et al. 2022).

    Running maximum m, sum l and weighted values are rescaled when a block raises the maximum. The backward pass
    computes a query block's scores again instead of keeping them.
    """
    b, t, h, d = q.shape
    groups, per, n = k.shape[2], h // k.shape[2], t // block
    qs = (q * d**-0.5).reshape(b, n, block, groups, per, d).transpose(1, 0, 3, 4, 2, 5)  # n b g p x d
    ks, vs = (x.reshape(b, n, block, groups, d).transpose(1, 0, 3, 2, 4) for x in (k, v))  # n b g y d
    segments = segment_ids.reshape(b, n, block).transpose(1, 0, 2)
    order = jnp.arange(block)

    @jax.checkpoint
    def query_block(
        i: Int[Array, ""], q_i: Float[Array, "B G P X K"], segment_i: Int[Array, "B X"]
    ) -> Float[Array, "B G P X K"]:
        def key_block(state: tuple[Array, Array, Array], j: Int[Array, ""]) -> tuple[tuple[Array, Array, Array], None]:
            def update(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
                m, total, values = state
                scores = jnp.einsum("bgpxd,bgyd->bgpxy", q_i, ks[j], preferred_element_type=jnp.float32)
                seen = (i * block + order[:, None] >= j * block + order) & (
                    segment_i[:, :, None] == segments[j][:, None, :]
                )
                scores = jnp.where(seen[:, None, None], scores, _MASKED)
                higher = jnp.maximum(m, scores.max(-1))
                weights = jnp.where(seen[:, None, None], jnp.exp(scores - higher[..., None]), 0.0)
                shrink = jnp.exp(m - higher)
                added = jnp.einsum(
                    "bgpxy,bgyd->bgpxd", weights.astype(v.dtype), vs[j], preferred_element_type=jnp.float32
                )
                return higher, total * shrink + weights.sum(-1), values * shrink[..., None] + added

            return jax.lax.cond(j <= i, update, lambda s: s, state), None

        m = jnp.full(q_i.shape[:-1], _MASKED, jnp.float32)
        zeros = jnp.zeros(q_i.shape, jnp.float32)
        (_, total, values), _ = jax.lax.scan(key_block, (m, zeros[..., 0], zeros), jnp.arange(n))
        return (values / total[..., None]).astype(q.dtype)

    out = jax.lax.map(lambda args: query_block(*args), (jnp.arange(n), qs, segments))
    return out.transpose(1, 0, 4, 2, 3, 5).reshape(b, t, h, d)
