"""A decoder-only transformer (Qwen3 dense, Llama) in Flax NNX: training, log-probabilities, decoding with a cache.

The weights of all layers are stacked along a first axis, so that layers are scanned, sharded and saved as one array
each. Left out: dropout, biases, sliding windows, RoPE scaling (refused by `ModelConfig`).
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from webleaper_jax.model.attention import causal_attention, rope_angles, rotate
from webleaper_jax.model.config import ModelConfig


class Layers(nnx.Module):
    """The weights of all layers, each with the layer as its first axis; matrices map the second axis to the last."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32):
        n, d, f = config.num_layers, config.hidden_size, config.intermediate_size
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

        def matrix(rows: int, columns: int, depth: int = 1) -> nnx.Param:
            # Scaled by fan-in; the two matrices that write to the residual stream also by the number of writes.
            scale = (rows * depth) ** -0.5
            return nnx.Param(scale * jax.random.normal(rngs.params(), (n, rows, columns), dtype))

        self.wq, self.wk, self.wv = matrix(d, queries), matrix(d, keys), matrix(d, keys)
        self.wo = matrix(queries, d, 2 * n)
        self.w_gate, self.w_up, self.w_down = matrix(d, f), matrix(d, f), matrix(f, d, 2 * n)
        self.attention_norm = nnx.Param(jnp.ones((n, d), dtype))
        self.mlp_norm = nnx.Param(jnp.ones((n, d), dtype))
        if config.qk_norm:
            self.q_norm = nnx.Param(jnp.ones((n, config.head_dim), dtype))
            self.k_norm = nnx.Param(jnp.ones((n, config.head_dim), dtype))


class Decoder(nnx.Module):
    """The model. Weights are created from `rngs`; `model.hf.load_checkpoint` fills them from a checkpoint."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32):
        self.config = config
        shape = (config.vocab_size, config.hidden_size)
        self.embed = nnx.Param(0.02 * jax.random.normal(rngs.params(), shape, dtype))
        self.layers = Layers(config, rngs=rngs, dtype=dtype)
        self.final_norm = nnx.Param(jnp.ones(config.hidden_size, dtype))
        if not config.tie_embeddings:
            self.lm_head = nnx.Param(0.02 * jax.random.normal(rngs.params(), shape, dtype))

    def __call__(
        self,
        tokens: Int[Array | np.ndarray, "B T"],
        positions: Int[Array | np.ndarray, "B T"],
        segment_ids: Int[Array | np.ndarray, "B T"],
    ) -> Float[Array, "B T D"]:
        """Returns the last hidden states (after the final norm) of packed rows.

        A token sees the tokens before it that have its segment id; padding has a segment id of its own.
        """
        config = self.config
        positions, segment_ids = jnp.asarray(positions), jnp.asarray(segment_ids)
        cos, sin = rope_angles(positions, config.head_dim, config.rope_theta)

        def layer(x: Float[Array, "B T D"], weights: dict[str, Array]) -> tuple[Float[Array, "B T D"], None]:
            with jax.named_scope("attention"):
                q, k, v = qkv(config, weights, x, cos, sin)
                out = causal_attention(q, k, v, segment_ids, config.attention_block, config.plain_attention_up_to)
                x = x + linear(out.reshape(*x.shape[:2], -1), weights["wo"])
            return mlp(config, weights, x), None

        if config.remat:
            layer = jax.checkpoint(layer)
        x = self.embed[...][tokens]
        x, _ = jax.lax.scan(layer, x, self._stacked(), unroll=config.num_layers if config.unroll_layers else 1)
        return rms_norm(x, self.final_norm[...], config.rms_norm_eps)

    def logits(self, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Returns float32 logits."""
        return jnp.einsum("...d,vd->...v", hidden, self._head(), preferred_element_type=jnp.float32)

    def token_logprobs(
        self,
        hidden: Float[Array, "B T D"],
        targets: Int[Array | np.ndarray, "B T"],
        chunk: int = 512,
        temperature: float | Float[Array, ""] = 1.0,
    ) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
        """Returns log p(target) and the entropy of p = softmax(logits / temperature) at each position (nats, float32).

        Works through the sequence `chunk` positions at a time, in the backward pass too, so that no [B, T, V] array
        exists when T > chunk.
        """
        head = self._head()

        @jax.checkpoint
        def part(
            hidden: Float[Array, "B C D"], targets: Int[Array, "B C"]
        ) -> tuple[Float[Array, "B C"], Float[Array, "B C"]]:
            logits = linear(hidden, head.T).astype(jnp.float32) / temperature
            total = jax.nn.logsumexp(logits, axis=-1)
            # A comparison instead of a gather: its gradient is no scatter, which is slow on CPU and TPU.
            chosen = jnp.arange(logits.shape[-1]) == targets[..., None]
            logprob = jnp.where(chosen, logits, 0.0).sum(-1) - total
            entropy = total - (jnp.exp(logits - total[..., None]) * logits).sum(-1)
            return logprob, entropy

        b, t, d = hidden.shape
        if t <= chunk:
            return part(hidden, targets)
        n = -(-t // chunk)
        hidden = jnp.pad(hidden, ((0, 0), (0, n * chunk - t), (0, 0))).reshape(b, n, chunk, d).swapaxes(0, 1)
        targets = jnp.pad(targets, ((0, 0), (0, n * chunk - t))).reshape(b, n, chunk).swapaxes(0, 1)
        logprob, entropy = jax.lax.map(lambda xs: part(*xs), (hidden, targets))
        return tuple(y.swapaxes(0, 1).reshape(b, n * chunk)[:, :t] for y in (logprob, entropy))

    def _head(self) -> Float[Array, "V D"]:
        return self.embed[...] if self.config.tie_embeddings else self.lm_head[...]

    def _stacked(self) -> dict[str, Float[Array, "L ..."]]:
        return dict(nnx.to_pure_dict(nnx.state(self.layers, nnx.Param)))


@jax.custom_vjp
def linear(x: Float[Array, "B T D"], w: Float[Array, "D F"]) -> Float[Array, "B T F"]:
    """x @ w, whose weight gradient is one plain product.

    JAX's own gradient comes out transposed, and XLA for CPU then writes the activations out transposed, element by
    element, which took a third of a training step (measured; jax 0.10.2).
    """
    return x @ w


def _linear_forward(x: Float[Array, "B T D"], w: Float[Array, "D F"]) -> tuple[Array, tuple[Array, Array]]:
    return x @ w, (x, w)


def _linear_backward(saved: tuple[Array, Array], g: Float[Array, "B T F"]) -> tuple[Array, Array]:
    x, w = saved
    rows = x.reshape(-1, x.shape[-1])
    gradient = jax.lax.dot_general(rows, g.reshape(-1, g.shape[-1]), (((0,), (0,)), ((), ())))
    return g @ w.T, gradient.astype(w.dtype)


linear.defvjp(_linear_forward, _linear_backward)


def rms_norm(x: Float[Array, "... D"], gain: Float[Array, " D"], eps: float) -> Float[Array, "... D"]:
    """Root-mean-square norm, computed in float32 and returned in x's type."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps)
    return gain * y.astype(x.dtype)


def qkv(
    config: ModelConfig,
    weights: dict[str, Array],
    x: Float[Array, "B T D"],
    cos: Float[Array, "B T K"],
    sin: Float[Array, "B T K"],
) -> tuple[Float[Array, "B T H K"], Float[Array, "B T G K"], Float[Array, "B T G K"]]:
    """Queries and keys (normalised where the architecture does, then turned by RoPE) and values of one layer."""
    x = rms_norm(x, weights["attention_norm"], config.rms_norm_eps)
    q, k, v = (linear(x, weights[w]).reshape(*x.shape[:2], -1, config.head_dim) for w in ("wq", "wk", "wv"))
    if config.qk_norm:
        q = rms_norm(q, weights["q_norm"], config.rms_norm_eps)
        k = rms_norm(k, weights["k_norm"], config.rms_norm_eps)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def mlp(config: ModelConfig, weights: dict[str, Array], x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Adds the gated feed-forward layer (SwiGLU) to the residual stream."""
    with jax.named_scope("mlp"):
        y = rms_norm(x, weights["mlp_norm"], config.rms_norm_eps)
        inner = jax.nn.silu(linear(y, weights["w_gate"])) * linear(y, weights["w_up"])
        return x + linear(inner, weights["w_down"])
