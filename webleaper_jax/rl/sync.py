"""Bringing the trainer's weights to the sampler, and making sure that they arrived.

Two independent checks after each sync: a checksum of all parameters, bit for bit; and a probe, a few tokens sampled by
the engine whose log-probs the trainer computes again (it catches what a checksum cannot: weights that are right but
used wrongly).
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from webleaper_jax.agent.engine import Request
from webleaper_jax.records import Sampling
from webleaper_jax.rl.checks import check_logprobs, check_weights
from webleaper_jax.sampling.engine import EmbeddedEngine

Params = Mapping[str, Any]

# Log-probs of `ids[1:]`, float32 [len(ids) - 1], under the trainer's weights.
Rescore = Callable[[list[int]], Float[np.ndarray, " T"]]

PROBE_SESSION = "weight-probe"


def fingerprint(params: Params) -> str:
    """Hash of all parameters: names, shapes, types and, per parameter, a 64-bit checksum of its bits.

    The checksums are integer sums computed where the arrays lie, so the value depends neither on the mesh nor on the
    order of summation.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    sums = jax.device_get([_checksum(leaf) for _, leaf in leaves])
    digest = hashlib.blake2b(digest_size=8)
    for (path, leaf), checksum in zip(leaves, sums, strict=True):
        digest.update(f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype} {checksum.tolist()}\n".encode())
    return digest.hexdigest()


def sync_weights(engine: EmbeddedEngine, params: Params, version: int, rescore: Rescore, tolerance: float) -> str:
    """Gives the engine new weights, checks that it has them, and names its policy after them.

    Args:
      rescore: the trainer's log-probs at temperature 1.
      tolerance: largest difference of log-probs in the probe.

    Returns:
      The fingerprint of the weights, cast to the engine's type.

    Raises:
      CheckFailed: the engine's weights are not the trainer's, or its log-probs differ.
    """
    engine.set_weights(params, version)
    expected = fingerprint(jax.tree.map(lambda x: x.astype(engine.dtype), params))
    check_weights(expected, fingerprint(engine.params))
    ids, sampled = probe(engine)
    gap = np.abs(rescore(ids)[-len(sampled) :] - np.array(sampled))
    check_logprobs(float(gap.mean()), float(gap.max()), tolerance)
    engine.name = f"embedded:{expected}"
    return expected


def probe(engine: EmbeddedEngine, prompt: int = 48, length: int = 8) -> tuple[list[int], tuple[float, ...]]:
    """Samples a few tokens after a fixed prompt of made-up ids; returns all ids, and the log-probs of those sampled."""
    ids = np.random.default_rng(0).integers(0, engine.vocabulary, min(prompt, engine.max_len - length)).tolist()
    request = Request(
        messages=(),
        ids=tuple(ids),
        sampling=Sampling(temperature=1.0, top_p=1.0, max_tokens=length),
        seed=0,
        session=PROBE_SESSION,
    )
    try:
        completion = asyncio.run(engine.generate(request))
    finally:
        engine.close_session(PROBE_SESSION)
    return [*ids, *(completion.ids or ())], completion.logprobs or ()


@jax.jit
def _checksum(leaf: Array) -> UInt32[Array, "2"]:
    """Two sums, modulo 2**32, of the bits times numbers that depend on the place, so that exchanged values show."""
    words = {2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(leaf, words).reshape(-1).astype(jnp.uint32)
    place = jax.lax.iota(jnp.uint32, bits.size)
    factors = [(place * jnp.uint32(m) + jnp.uint32(a)) | jnp.uint32(1) for m, a in ((2654435761, 1), (2246822519, 97))]
    return jnp.stack([jnp.sum(_mix(bits) * factor) for factor in factors])


def _mix(x: UInt32[Array, " N"]) -> UInt32[Array, " N"]:
    """Spreads each word's bits (the finaliser of MurmurHash3), so that small changes do not cancel."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
