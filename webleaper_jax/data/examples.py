"""Trajectory -> SFT example: token ids and an explicit loss mask.

A trajectory sampled by a policy with this tokenizer keeps the very ids that were sampled; one that was made as text (by
the scripted searcher, or by a model with another tokenizer) is rendered once. Which tokens are trained on is always a
mask that came with the ids, never a guess from their values: the padding id of some models is an end token of others.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Message, Segment, Trajectory

# What the launcher passes in (this package does not know the chat format): messages -> (ids, mask).
Render = Callable[[Sequence[Message]], tuple[Sequence[int], Sequence[int]]]

DropReason = Literal["infrastructure_error", "no_trainable_token", "too_long"]


class Example(NamedTuple):
    """One training sequence. `loss_mask[t]` says whether token t is learnt, that is predicted from those before it."""

    ids: Int[np.ndarray, " L"]
    loss_mask: Bool[np.ndarray, " L"]
    trajectory_id: str


class Drop(NamedTuple):
    """A segment of a trajectory that is not trained on, and why. `tokens` is its length (0 where not rendered)."""

    trajectory_id: str
    segment: int
    reason: DropReason
    tokens: int


class Built(NamedTuple):
    """The examples of a training set, what was left out, and how many examples had to be rendered from text."""

    examples: list[Example]
    drops: list[Drop]
    rendered: int


def build_examples(
    trajectories: Iterable[Trajectory], render: Render, tokenizer: str, *, max_length: int, vocab_size: int
) -> Built:
    """Makes one example per segment of each trajectory, in order.

    Args:
      render: messages -> (ids, mask), used where the trajectory holds no ids of this tokenizer.
      tokenizer: fingerprint of the tokenizer that `render` uses and that the model knows.
      max_length: the longest example kept, in tokens; a longer one is dropped, since a cut one would end in the middle.
      vocab_size: ids must lie below it.

    Raises:
      DataError: the token fields of a segment differ in length or hold an id outside the vocabulary, or its messages
        cannot be rendered.
    """
    examples: list[Example] = []
    drops: list[Drop] = []
    rendered = 0
    for trajectory in trajectories:
        if trajectory.infrastructure_error:
            drops.append(Drop(trajectory.id, 0, "infrastructure_error", 0))
            continue
        for number, (ids, mask, from_text) in enumerate(_token_streams(trajectory, render, tokenizer)):
            _check(trajectory.id, number, ids, mask, vocab_size)
            # The first token of a sequence has nothing before it to be predicted from, so it can never be learnt.
            if not mask[1:].any():
                drops.append(Drop(trajectory.id, number, "no_trainable_token", len(ids)))
            elif len(ids) > max_length:
                drops.append(Drop(trajectory.id, number, "too_long", len(ids)))
            else:
                examples.append(Example(ids, mask, trajectory.id))
                rendered += from_text
    return Built(examples, drops, rendered)


def _token_streams(
    trajectory: Trajectory, render: Render, tokenizer: str
) -> Iterator[tuple[Int[np.ndarray, " L"], Bool[np.ndarray, " L"], bool]]:
    """Yields (ids, mask, rendered) of each segment."""
    for segment in trajectory.segments:
        own = bool(segment.token_ids) and trajectory.fingerprints.tokenizer == tokenizer
        try:
            ids, mask = _stored(trajectory.id, segment) if own else render(segment.messages)
        except ValueError as error:
            raise DataError(f"trajectory {trajectory.id}: field `messages` cannot be rendered: {error}") from None
        yield np.asarray(ids, np.int32).reshape(-1), np.asarray(mask, np.bool_).reshape(-1), not own


def _stored(trajectory_id: str, segment: Segment) -> tuple[Sequence[int], Sequence[int]]:
    if len(segment.token_ids) != len(segment.loss_mask):
        raise DataError(
            f"trajectory {trajectory_id}: field `loss_mask` has {len(segment.loss_mask)} entries for "
            f"{len(segment.token_ids)} `token_ids`: collect it again"
        )
    return segment.token_ids, segment.loss_mask


def _check(
    trajectory_id: str, number: int, ids: Int[np.ndarray, " L"], mask: Bool[np.ndarray, " M"], vocab_size: int
) -> None:
    if len(ids) != len(mask):
        raise DataError(f"trajectory {trajectory_id}: segment {number} has {len(ids)} ids but {len(mask)} mask entries")
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
        raise DataError(
            f"trajectory {trajectory_id}: field `token_ids` of segment {number} holds {ids.min()} to {ids.max()}, the "
            f"model knows 0 to {vocab_size - 1}: use the tokenizer that belongs to the model"
        )
