"""From groups of rollouts to micro-batches of a few fixed shapes.

Every sampled token carries its advantage and its weight in the loss, so that how sequences are put into micro-batches
(which lengths go together, how many fit) changes nothing but the time it takes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from webleaper_jax.records import Trajectory
from webleaper_jax.rl.advantages import GroupAdvantages
from webleaper_jax.rl.losses import TokenTargets, usable_mask


class TrainSequence(NamedTuple):
    """One segment of a rollout, aligned with what each position predicts: `targets[t]` is the token after `tokens[t]`.

    `old`, `advantages`, `weights` and `mask` speak of `targets`; `group` is the task's id.
    """

    group: str
    tokens: Int[np.ndarray, " T"]
    targets: Int[np.ndarray, " T"]
    old: Float[np.ndarray, " T"]
    advantages: Float[np.ndarray, " T"]
    weights: Float[np.ndarray, " T"]
    mask: Bool[np.ndarray, " T"]


class MicroBatch(NamedTuple):
    """Rows of one length. Padding has segment id 0 and mask False; it is never told from the ids."""

    tokens: Int[np.ndarray | jax.Array, "B T"]
    targets: Int[np.ndarray | jax.Array, "B T"]
    positions: Int[np.ndarray | jax.Array, "B T"]
    segment_ids: Int[np.ndarray | jax.Array, "B T"]
    old: Float[np.ndarray | jax.Array, "B T"]
    advantages: Float[np.ndarray | jax.Array, "B T"]
    weights: Float[np.ndarray | jax.Array, "B T"]
    mask: Bool[np.ndarray | jax.Array, "B T"]

    @property
    def loss_targets(self) -> TokenTargets:
        return TokenTargets(self.old, self.advantages, self.weights, self.mask)


class Sequences(NamedTuple):
    """What a step trains on, and how many sampled tokens had to be left out because their log-prob was not finite."""

    sequences: list[TrainSequence]
    nonfinite: int


def loss_masks(trajectory: Trajectory) -> list[Int[np.ndarray, " _T"]]:
    """The loss mask of each segment."""
    return [np.array(segment.loss_mask, np.int32) for segment in trajectory.segments]


def build_sequences(groups: Sequence[tuple[Sequence[Trajectory], GroupAdvantages]]) -> Sequences:
    """Makes one sequence per segment, with the token weights of the paper's loss: `1 / (groups * k * |H_i|)`.

    |H_i| counts the tokens of rollout i that are in the loss. A rollout without any adds nothing but still counts in k.
    """
    sequences: list[TrainSequence] = []
    nonfinite = 0
    for trajectories, advantages in groups:
        for trajectory, of_rollout in zip(trajectories, advantages.tokens, strict=True):
            usable = []
            for segment, mask in zip(trajectory.segments, loss_masks(trajectory), strict=True):
                kept, dropped = usable_mask(mask, np.array(segment.logprobs, np.float64))
                usable.append(kept)
                nonfinite += dropped
            length = sum(int(kept.sum()) for kept in usable)
            if not length:
                continue
            weight = 1.0 / (len(groups) * len(trajectories) * length)
            for segment, kept, advantage in zip(trajectory.segments, usable, of_rollout, strict=True):
                ids = np.array(segment.token_ids, np.int32)
                sequences.append(
                    TrainSequence(
                        group=trajectory.task_id,
                        tokens=ids[:-1],
                        targets=predicted(ids),
                        old=predicted(np.where(kept, np.array(segment.logprobs), 0.0)),
                        advantages=predicted(advantage),
                        weights=predicted(np.where(kept, weight, 0.0)),
                        mask=predicted(kept),
                    )
                )
    return Sequences(sequences, nonfinite)


def predicted(per_token: np.ndarray) -> np.ndarray:
    """What belongs to the token that each position but the last predicts: the value of the token after it."""
    return per_token[1:]


def bucket_lengths(longest: int) -> tuple[int, ...]:
    """The few row lengths that are compiled: 1/2, 3/4 and all of `longest`, in multiples of 128, at least 256."""
    return tuple(sorted({max(-(-longest * part // (4 * 128)) * 128, 256) for part in (2, 3, 4)}))


def micro_batches(
    sequences: Sequence[TrainSequence], lengths: Sequence[int], tokens: int, rows_multiple: int = 1
) -> list[MicroBatch]:
    """Puts each sequence into a row of the shortest length that holds it.

    Args:
      lengths: the row lengths, ascending.
      tokens: about how many tokens a micro-batch has; shorter rows come in greater number, at least `rows_multiple`.
      rows_multiple: number of rows is a multiple of this (devices that rows are divided over).

    Raises:
      ValueError: a sequence is longer than the longest row.
    """
    batches = []
    for shorter, length in zip((0, *lengths), lengths, strict=False):
        fits = [s for s in sequences if shorter < len(s.tokens) <= length]
        rows = max(tokens // (length * rows_multiple), 1) * rows_multiple
        batches += [_stack(fits[i : i + rows], rows, length) for i in range(0, len(fits), rows)]
    longest = max((len(s.tokens) for s in sequences), default=0)
    if longest > lengths[-1]:
        raise ValueError(f"a sequence of {longest} tokens does not fit into rows of {lengths[-1]}")
    return batches


def _stack(sequences: Sequence[TrainSequence], rows: int, length: int) -> MicroBatch:
    def empty(dtype: type) -> np.ndarray:
        return np.zeros((rows, length), dtype)

    batch = MicroBatch(
        tokens=empty(np.int32),
        targets=empty(np.int32),
        positions=np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        segment_ids=empty(np.int32),
        old=empty(np.float32),
        advantages=empty(np.float32),
        weights=empty(np.float32),
        mask=empty(np.bool_),
    )
    for row, sequence in enumerate(sequences):
        end = len(sequence.tokens)
        batch.segment_ids[row, :end] = 1
        for field in ("tokens", "targets", "old", "advantages", "weights", "mask"):
            getattr(batch, field)[row, :end] = getattr(sequence, field)
    return batch
