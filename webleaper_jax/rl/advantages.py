"""Group-relative advantages (paper arXiv 2510.24697, policy optimisation; GRPO, arXiv 2402.03300, section 4.1).

Every estimator ends in per-token arrays, one per segment of each rollout, so that estimators which give different
credit to different turns fit the same trainer. The one here is the paper's: one number per rollout, the same for every
token that the policy sampled.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

# Below this standard deviation a group says nothing: its rewards differ by rounding only ([0.1] * 3 does).
ZERO_VARIANCE = 1e-6


class GroupAdvantages(NamedTuple):
    """The advantages of one group of k rollouts.

    `values` holds one number per rollout, `tokens[i][s]` one per token of segment s of rollout i (0 where the loss mask
    is 0). `zero_variance`: all rewards are equal up to 1e-6; every advantage is then exactly 0 and the group should not
    be trained on.
    """

    values: Float[np.ndarray, " K"]
    tokens: tuple[tuple[Float[np.ndarray, " T"], ...], ...]
    zero_variance: bool


def normalise_group(rewards: Float[np.ndarray, " K"]) -> tuple[Float[np.ndarray, " K"], bool]:
    """`A_i = (R_i - mean) / (std + 1e-6)`, std with ddof 0 over the whole group.

    Returns:
      The advantages, and whether the group has zero variance (then all of them are exactly 0).

    Raises:
      ValueError: no reward at all, or one that is not finite (an unscored rollout must be left out before).
    """
    if rewards.size == 0 or not np.isfinite(rewards).all():
        raise ValueError(f"a group needs finite rewards, got {rewards.tolist()}")
    rewards = rewards.astype(np.float64)
    deviation = rewards.std()
    if deviation <= ZERO_VARIANCE:
        return np.zeros_like(rewards), True
    return (rewards - rewards.mean()) / (deviation + 1e-6), False


def trajectory_advantages(
    rewards: Float[np.ndarray, " K"], loss_masks: Sequence[Sequence[Int[np.ndarray, " _T"]]]
) -> GroupAdvantages:
    """The paper's estimator: the normalised reward of rollout i on each of its sampled tokens.

    Args:
      rewards: one per rollout.
      loss_masks: per rollout, per segment, 1 for tokens that the policy sampled.

    Raises:
      ValueError: as `normalise_group`, or the two arguments speak of different numbers of rollouts.
    """
    if len(loss_masks) != len(rewards):
        raise ValueError(f"{len(rewards)} rewards for {len(loss_masks)} rollouts")
    values, zero_variance = normalise_group(rewards)
    tokens = tuple(
        tuple(np.where(mask == 1, value, 0.0) for mask in segments)
        for value, segments in zip(values, loss_masks, strict=True)
    )
    return GroupAdvantages(values, tokens, zero_variance)
