"""Initial weights that already copy: an induction circuit planted in the first two layers of a small Qwen3.

Copying from context ("induction", Olsson et al. 2022) appears in training suddenly and late: after some six million
tokens for a model of one million parameters, which is an hour on two laptop cores. The circuit it ends in is known, so
it is written into the initial weights instead, and training starts behind that wait. Two layers work together:

1. In the first layer, head 0 looks one token back, head 1 two tokens back, and head 2 at all of one to eight tokens
   back (by position alone: the embedding has one constant dimension, and RoPE turns a constant query and key into a
   score that depends on the distance only). They write a projection of what they see into channels of the residual
   stream that the embedding leaves empty.
2. In the second layer, head 0 looks for a token whose predecessor is the current token, head 1 for one whose two
   predecessors are the current token and the one before it, and head 2 for one whose predecessor is the current token
   and that follows on much the same words: rows of a table often end alike, but seldom for eight tokens. All three add
   the embedding of what they find to the output.

Everything else starts small and random, and all of it is trained.
"""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from webleaper_jax.jsonl import DataError
from webleaper_jax.model.decoder import Decoder

_EMBED_SCALE = 0.08
_CONSTANT = 0.3
_NOISE = 0.3  # of the usual scale, for all weights that are not part of the circuit
# Weights of the frequencies under which a score is high one to eight tokens back and nowhere else (by linear
# programming, for a rope_theta of 1e6): the share of frequency i in the score is the square.
_WIDE = np.sqrt(np.array([0, 0, 0, 0, 0.2, 0.22, 0.095, 0.09, 0.12, 0.055, 0, 0, 0.11, 0, 0.11] + [0] * 17))
_GAIN = 1.5  # of the q and k norms: attention sharp enough to point at one token among a thousand


def plant_induction(decoder: Decoder, seed: int) -> None:
    """Overwrites the decoder's weights, in place.

    Raises:
      DataError: the shape has no room for the circuit (two layers, three heads of 64 without grouping, q/k norm).
    """
    c = decoder.config
    if c.num_layers < 2 or c.num_heads < 3 or c.head_dim != 64 or c.num_kv_heads != c.num_heads or not c.qk_norm:
        raise DataError("the induction circuit needs two layers, q/k norm, and at least three heads of 64, not grouped")
    if not c.tie_embeddings or c.hidden_size < 192:
        raise DataError("the induction circuit needs tied embeddings and a hidden size of 192 or more")
    rng = np.random.default_rng(seed)
    content = c.hidden_size - 65  # dimensions of the embedding; then the constant, then 64 of channels
    slow = _slow_dimensions(c.rope_theta)
    one_back, two_back, words = slice(content + 1, content + 29), slice(content + 29, content + 45), slice(-20, None)
    look = _orthonormal(rng, content, 36)

    embed = np.zeros((c.vocab_size, c.hidden_size))
    embed[:, :content] = _EMBED_SCALE * rng.standard_normal((c.vocab_size, content))
    embed[:, content] = _CONSTANT
    layers = {name: np.array(value) for name, value in nnx.to_pure_dict(nnx.state(decoder.layers, nnx.Param)).items()}
    for name in ("wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down"):
        layers[name] *= _NOISE
    layers["q_norm"][:], layers["k_norm"][:] = _GAIN, _GAIN
    head = [slice(64 * h, 64 * h + 64) for h in range(3)]

    # Layer 0: the score of a key at distance t is the sum over frequencies f of weight^2 * cos(f * (t - back)).
    frequencies = c.rope_theta ** -(np.arange(32) / 32)
    sharp = np.where(np.arange(32) < 12, np.linspace(2.0, 0.7, 32), 0.0)
    for h, (back, weight, channel) in enumerate([(1, sharp, one_back), (2, sharp, two_back), (4.5, _WIDE, words)]):
        turn, width = back * frequencies, len(range(*channel.indices(c.hidden_size)))
        for name in ("wq", "wk", "wv"):
            layers[name][0][:, head[h]] = 0.0
        layers["wo"][0][head[h]] = 0.0
        layers["wq"][0][content, head[h]] = np.concatenate([weight, 0 * weight])
        layers["wk"][0][content, head[h]] = np.concatenate([weight * np.cos(turn), weight * np.sin(turn)])
        layers["wv"][0][:content, head[h]][:, :width] = look[:, :width]
        # the mean of some six words is shorter than one of them
        layers["wo"][0][head[h]][:width, channel] = _EMBED_SCALE * (1.0 if h < 2 else 1.5) * np.eye(width)

    # Layer 1: each head compares parts of what stands at the query with channels of the key, dimension by dimension.
    now = np.zeros((c.hidden_size, 28))
    now[:content] = look[:, :28]
    channels = np.eye(c.hidden_size)
    compared = [
        [(now, channels[:, one_back])],
        [(now[:, :18], channels[:, one_back][:, :18]), (channels[:, one_back][:, :16], channels[:, two_back])],
        [(now[:, :14], channels[:, one_back][:, :14]), (channels[:, words], channels[:, words])],
    ]
    copied = _orthonormal(rng, content, min(content, 128))
    parts = [copied[:, :64], copied[:, 64:], _orthonormal(rng, content, 64)]
    for h, pairs in enumerate(compared):
        for name in ("wq", "wk", "wv"):
            layers[name][1][:, head[h]] = 0.0
        layers["wo"][1][head[h]] = 0.0
        at = 0
        for query, key in pairs:
            own = slow[at : at + query.shape[1]]
            layers["wq"][1][:, head[h]][:, own] = query
            layers["wk"][1][:, head[h]][:, own] = key
            at += query.shape[1]
        width = parts[h].shape[1]
        layers["wv"][1][:content, head[h]][:, :width] = parts[h]
        layers["wo"][1][head[h]][:width, :content] = (3.0 if h < 2 else 6.0) * _EMBED_SCALE * parts[h].T

    decoder.embed[...] = jnp.asarray(embed, decoder.embed.dtype)
    for name, value in layers.items():
        parameter = getattr(decoder.layers, name)
        parameter[...] = jnp.asarray(value, parameter.dtype)


def _slow_dimensions(theta: float) -> np.ndarray:
    """Head dimensions that RoPE turns by less than a radian over some 400 tokens: content can be matched there."""
    frequencies = theta ** -(np.arange(32) / 32)
    slow = np.flatnonzero(frequencies < 2.5e-3)
    if len(slow) < 16:
        raise DataError(f"rope_theta {theta} is too small for the induction circuit (1e6 is right)")
    slow = slow[-18:]
    return np.stack([slow, slow + 32], axis=1).reshape(-1)


def _orthonormal(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """A random rows x columns matrix with orthonormal columns."""
    q, _ = np.linalg.qr(rng.standard_normal((rows, columns)))
    return q
