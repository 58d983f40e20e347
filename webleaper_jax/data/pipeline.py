"""Which rows make up the batch of a step: a pure function of (seed, step), so a checkpoint stores just the step."""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import grain
import numpy as np

from webleaper_jax.data.packing import Rows


@runtime_checkable
class Source(Protocol):
    """Rows read at random, as `dataset.RowSource` or a list of them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Rows: ...


class Batches:
    """`batches[step]` is the batch of that step, a `Rows` of `batch_size` rows of T tokens.

    Every epoch is shuffled anew; a batch may begin in one epoch and end in the next. With several processes, process
    `process` of `processes` gets its slice of the global batch, and together they get the same rows for any count.

    Raises:
      ValueError: the batch cannot be divided evenly among the processes.
    """

    def __init__(self, source: Source, *, batch_size: int, seed: int, process: int = 0, processes: int = 1):
        if batch_size % processes:
            raise ValueError(f"batch_size {batch_size} cannot be divided among {processes} processes")
        self._rows = grain.MapDataset.source(source).seed(seed).shuffle().repeat()
        self._batch_size = batch_size
        share = batch_size // processes
        self._mine = range(process * share, (process + 1) * share)

    def __getitem__(self, step: int) -> Rows:
        start = step * self._batch_size
        return stack([self._rows[start + offset] for offset in self._mine])


def in_order(source: Source, batch_size: int, process: int = 0, processes: int = 1) -> Iterator[Rows]:
    """Yields every row once, in the stored order; the last batch is filled up with empty rows, which train nothing.

    With several processes, each gets its slice of every global batch, as in `Batches`.
    """
    share = batch_size // processes
    for start in range(0, len(source), batch_size):
        rows = [source[n] for n in range(start, min(start + batch_size, len(source)))]
        empty = Rows(*(np.zeros_like(part) for part in rows[0]))
        rows += [empty] * (batch_size - len(rows))
        yield stack(rows[process * share : (process + 1) * share])


def stack(rows: Sequence[Rows]) -> Rows:
    """Stacks single rows into a batch."""
    return Rows(*(np.stack(parts) for parts in zip(*rows, strict=True)))
