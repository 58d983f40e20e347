"""The rows of a step are a pure function of (seed, step), whoever asks and in whatever order."""

import numpy as np
import pytest

from webleaper_jax.data.packing import Rows
from webleaper_jax.data.pipeline import Batches, in_order

N = 10


def source() -> list[Rows]:
    return [
        Rows(np.full(4, n, np.int32), np.arange(4, dtype=np.int32), np.ones(4, np.int32), np.ones(4, np.bool_))
        for n in range(N)
    ]


def numbers(rows: Rows) -> list[int]:
    return rows.tokens[:, 0].tolist()


def test_order_is_a_pure_function_of_seed_and_step():
    forward = [numbers(Batches(source(), batch_size=4, seed=3)[step]) for step in range(12)]
    again = Batches(source(), batch_size=4, seed=3)
    assert [numbers(again[step]) for step in reversed(range(12))] == forward[::-1]
    assert [numbers(Batches(source(), batch_size=4, seed=4)[step]) for step in range(12)] != forward


def test_every_epoch_holds_every_row_once_in_an_order_of_its_own():
    batches = Batches(source(), batch_size=4, seed=0)
    stream = [n for step in range(10) for n in numbers(batches[step])]
    epochs = [stream[start : start + N] for start in range(0, 40, N)]
    assert all(sorted(epoch) == list(range(N)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_processes_share_the_same_global_batch(processes):
    whole = Batches(source(), batch_size=4, seed=1)
    parts = [Batches(source(), batch_size=4, seed=1, process=p, processes=processes) for p in range(processes)]
    for step in range(6):
        assert [n for part in parts for n in numbers(part[step])] == numbers(whole[step])


def test_a_batch_that_cannot_be_shared_evenly_is_refused():
    with pytest.raises(ValueError, match="batch_size 4"):
        Batches(source(), batch_size=4, seed=0, processes=3)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_in_order_is_shared_by_processes_like_batches(processes):
    whole = list(in_order(source(), 4))
    parts = [list(in_order(source(), 4, process, processes)) for process in range(processes)]
    for step, rows in enumerate(whole):
        shared = [part[step] for part in parts]
        assert all(len(one.tokens) == 4 // processes for one in shared)
        assert [n for one in shared for n in numbers(one)] == numbers(rows)


def test_in_order_reads_each_row_once_and_fills_up_with_rows_that_train_nothing():
    batches = list(in_order(source(), 4))
    assert [n for rows in batches for n in numbers(rows)][:N] == list(range(N))
    assert all(rows.tokens.shape == (4, 4) for rows in batches)
    assert not batches[-1].loss_mask[2:].any()
    assert not batches[-1].segment_ids[2:].any()
