"""Packing: several examples share a row, each with its own segment id and positions that start at 0.

Done once, when the training set is built, so that a row is the same on every host and in every run.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from webleaper_jax.data.examples import Example


class Rows(NamedTuple):
    """Packed rows: N rows of T tokens. Also a batch of them, as numpy or as jax arrays.

    `segment_ids` are 1, 2, ... for the examples of a row and 0 for padding; `positions` count from 0 in each example.
    `loss_mask[n, t]` says whether token t is learnt (as in `Example`; nothing is shifted here).
    """

    tokens: Int[np.ndarray, "N T"]
    positions: Int[np.ndarray, "N T"]
    segment_ids: Int[np.ndarray, "N T"]
    loss_mask: Bool[np.ndarray, "N T"]


def pack(examples: Sequence[Example], row_length: int, pad_id: int = 0) -> Rows:
    """Packs examples into rows of `row_length` tokens: first fit, longest first (ties in the order given).

    Raises:
      ValueError: an example is longer than a row.
    """
    bins = first_fit([len(example.ids) for example in examples], row_length)
    rows = _empty(len(bins), row_length, pad_id)
    for n, members in enumerate(bins):
        start = 0
        for segment, index in enumerate(members, start=1):
            example = examples[index]
            stop = start + len(example.ids)
            rows.tokens[n, start:stop] = example.ids
            rows.positions[n, start:stop] = np.arange(stop - start)
            rows.segment_ids[n, start:stop] = segment
            rows.loss_mask[n, start:stop] = example.loss_mask
            start = stop
    return rows


def one_per_row(examples: Sequence[Example], row_length: int, pad_id: int = 0) -> Rows:
    """Lays each example in a row of its own: the unpacked batch that a packed one must be equal to.

    Raises:
      ValueError: an example is longer than a row.
    """
    packed = [pack([example], row_length, pad_id) for example in examples]
    return Rows(*(np.concatenate(parts) for parts in zip(*packed, strict=True)))


def first_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """First-fit decreasing: indices of the items of each bin.

    Raises:
      ValueError: an item is longer than the capacity.
    """
    if lengths and max(lengths) > capacity:
        raise ValueError(f"an item of length {max(lengths)} does not fit into {capacity}")
    bins: list[list[int]] = []
    free = np.zeros(len(lengths), np.int64)
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        fits = free[: len(bins)] >= lengths[index]
        chosen = int(fits.argmax()) if fits.any() else len(bins)
        if chosen == len(bins):
            bins.append([])
            free[chosen] = capacity
        bins[chosen].append(index)
        free[chosen] -= lengths[index]
    return bins


def fill(rows: Rows) -> float:
    """The share of the rows' tokens that are not padding."""
    return float((rows.segment_ids > 0).mean()) if rows.segment_ids.size else 0.0


def _empty(count: int, row_length: int, pad_id: int) -> Rows:
    shape = (count, row_length)
    return Rows(
        tokens=np.full(shape, pad_id, np.int32),
        positions=np.zeros(shape, np.int32),
        segment_ids=np.zeros(shape, np.int32),
        loss_mask=np.zeros(shape, np.bool_),
    )
