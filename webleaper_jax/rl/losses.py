"""The clipped policy loss (paper arXiv 2510.24697, policy optimisation), as sums that micro-batches can share.

    loss = mean over groups of mean over the group of (1 / |H_i|) sum over mask-1 tokens of
           -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) + kl * k3(reference, policy)

|H_i| counts the tokens in the loss (mask 1) only; counted over the whole rollout, long observations would dilute the
gradient. The three divisors are known before the first forward pass, so each token carries its weight
`1 / (groups * k * |H_i|)` and the loss of a batch is the plain sum of the losses of its micro-batches, equal or not.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

# exp(20) is far beyond any clip range, and finite in every float type.
MAX_LOG_RATIO = 20.0


class LossConfig(NamedTuple):
    """Clip range of the ratio, `[1 - clip_low, 1 + clip_high]`, and the weight of the KL term (0: off)."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    kl: float = 0.0


class TokenTargets(NamedTuple):
    """What the loss knows of each token, aligned with the token predicted: `old` log-probs, advantages, weights."""

    old: Float[Array | np.ndarray, "B T"]
    advantages: Float[Array | np.ndarray, "B T"]
    weights: Float[Array | np.ndarray, "B T"]
    mask: Bool[Array | np.ndarray, "B T"]


class LossSums(NamedTuple):
    """Sums over mask-1 tokens (largest value for `gap_max`); `add` joins those of two micro-batches.

    `gap` is `log pi_trainer - log pi_old`: before the first update of a step, what separates trainer and sampler.
    `kl_old` is the k3 estimate of KL(old || policy), `kl_reference` that to the reference (0 when off).
    """

    loss: Float[Array, ""]
    tokens: Float[Array, ""]
    entropy: Float[Array, ""]
    clipped_low: Float[Array, ""]
    clipped_high: Float[Array, ""]
    kl_old: Float[Array, ""]
    kl_reference: Float[Array, ""]
    gap: Float[Array, ""]
    gap_max: Float[Array, ""]

    def add(self, other: "LossSums") -> "LossSums":
        largest = jnp.maximum(self.gap_max, other.gap_max)
        return LossSums(*(a + b for a, b in zip(self, other, strict=True)))._replace(gap_max=largest)

    @classmethod
    def zero(cls) -> "LossSums":
        return cls(*(jnp.zeros(()) for _ in cls._fields))


def usable_mask(
    loss_mask: Int[np.ndarray, " T"], logprobs: Float[np.ndarray, " T"]
) -> tuple[Bool[np.ndarray, " T"], int]:
    """Leaves out sampled tokens whose sampler log-prob is not finite.

    Returns:
      The mask of the tokens that stay in the loss, and how many sampled tokens were left out.
    """
    sampled = loss_mask == 1
    usable = sampled & np.isfinite(logprobs)
    return usable, int(sampled.sum() - usable.sum())


def policy_loss(
    logprobs: Float[Array, "B T"],
    entropy: Float[Array, "B T"],
    targets: TokenTargets,
    config: LossConfig,
    reference: Float[Array, "B T"] | None = None,
) -> tuple[Float[Array, ""], LossSums]:
    """The loss of a (micro-)batch and its token metrics.

    Args:
      logprobs: of the tokens under the policy being trained, at the sampling temperature; differentiated.
      entropy: of the policy's distribution at each token, in nats (a metric; no gradient).
      targets: old log-probs, advantages, weights and the mask; whatever stands where the mask is False has no effect,
        NaN and infinity included.
      config: clip range and KL weight.
      reference: log-probs under the reference policy; needed when `config.kl` is not 0.

    Returns:
      The weighted sum of token losses (not a mean: the weights hold the divisors), and the sums for the metrics.
    """
    mask = targets.mask
    weights = jnp.where(mask, targets.weights, 0.0)
    advantages = jnp.where(mask, targets.advantages, 0.0)

    # Masking before exp, not after: inf * 0 is NaN.
    gap = jnp.where(mask, logprobs - jnp.where(mask, targets.old, 0.0), 0.0)
    log_ratio = jnp.clip(gap, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - config.clip_low, 1.0 + config.clip_high)
    token_loss = -jnp.minimum(ratio * advantages, clipped * advantages)

    kl_reference = jnp.zeros_like(token_loss)
    if config.kl:
        if reference is None:
            raise ValueError("a KL term needs the log-probs of a reference policy")
        kl_reference = k3(jnp.where(mask, reference - logprobs, 0.0))
        token_loss = token_loss + config.kl * kl_reference

    loss = jnp.sum(weights * token_loss)
    fixed = jax.lax.stop_gradient
    sums = LossSums(
        loss=fixed(loss),
        tokens=jnp.sum(mask).astype(loss.dtype),
        entropy=fixed(jnp.sum(jnp.where(mask, entropy, 0.0))),
        clipped_low=fixed(jnp.sum(mask & (advantages < 0) & (ratio < 1.0 - config.clip_low)).astype(loss.dtype)),
        clipped_high=fixed(jnp.sum(mask & (advantages > 0) & (ratio > 1.0 + config.clip_high)).astype(loss.dtype)),
        kl_old=fixed(jnp.sum(k3(log_ratio))),
        kl_reference=fixed(jnp.sum(kl_reference)),
        gap=fixed(jnp.sum(jnp.abs(gap))),
        gap_max=fixed(jnp.max(jnp.abs(gap))),
    )
    return loss, sums


def k3(log_ratio: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Schulman's k3 estimate of KL(sampling policy || other) from `log other - log sampling`: `exp(x) - x - 1`."""
    log_ratio = jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    return jnp.expm1(log_ratio) - log_ratio
