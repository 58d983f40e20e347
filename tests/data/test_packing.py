"""Packing: nothing lost, nothing mixed, nothing learnt from padding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webleaper_jax.data.examples import Example
from webleaper_jax.data.packing import fill, first_fit, one_per_row, pack

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=30)


def make(lengths: list[int], seed: int = 0) -> list[Example]:
    rng = np.random.default_rng(seed)
    return [
        Example(rng.integers(0, 9, n).astype(np.int32), rng.random(n) < 0.5, f"trajectory-{i}")
        for i, n in enumerate(lengths)
    ]


def unpack(rows) -> list[tuple[list[int], list[bool]]]:
    found = []
    for n in range(len(rows.tokens)):
        for segment in range(1, rows.segment_ids[n].max() + 1):
            where = np.flatnonzero(rows.segment_ids[n] == segment)
            assert np.array_equal(where, np.arange(where[0], where[0] + len(where)))  # in one piece
            assert rows.positions[n, where].tolist() == list(range(len(where)))
            found.append((rows.tokens[n, where].tolist(), rows.loss_mask[n, where].tolist()))
    return found


@given(LENGTHS)
@settings(max_examples=50, deadline=None)
def test_every_example_comes_back_whole_and_once(lengths):
    examples = make(lengths)
    wanted = sorted((example.ids.tolist(), example.loss_mask.tolist()) for example in examples)
    # pad_id 3 is an ordinary id too: padding is told by its segment id alone.
    for rows in (pack(examples, 12, pad_id=3), one_per_row(examples, 12, pad_id=3)):
        assert sorted(unpack(rows)) == wanted
        padding = rows.segment_ids == 0
        assert not rows.loss_mask[padding].any()
        assert (rows.tokens[padding] == 3).all()
        assert fill(rows) == pytest.approx(sum(lengths) / rows.tokens.size)


@given(LENGTHS)
@settings(max_examples=50, deadline=None)
def test_first_fit_puts_each_item_into_the_first_bin_it_fits(lengths):
    bins = first_fit(lengths, 12)
    assert sorted(index for members in bins for index in members) == list(range(len(lengths)))
    # Replay: the reference looks at the bins one by one.
    reference: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        for members in reference:
            if sum(lengths[i] for i in members) + lengths[index] <= 12:
                members.append(index)
                break
        else:
            reference.append([index])
    assert bins == reference


def test_rows_are_nearly_full_for_lengths_like_those_of_trajectories():
    lengths = np.random.default_rng(0).lognormal(6.0, 0.4, 1000).astype(int).clip(50, 1024)
    assert fill(pack(make(lengths.tolist()), 1024)) >= 0.95


def test_an_example_longer_than_a_row_is_refused():
    with pytest.raises(ValueError, match="length 13"):
        pack(make([5, 13]), 12)


def test_no_examples_give_no_rows():
    rows = pack([], 12)
    assert rows.tokens.shape == (0, 12)
    assert fill(rows) == 0.0
