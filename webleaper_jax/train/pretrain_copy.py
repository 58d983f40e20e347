"""Stage (a) of the tiny base's pre-training: random spans of tokens, parts of which are repeated."""

import numpy as np


def copy_batch(rng: np.random.Generator, rows: int, length: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens [rows, length + 1] and, for each of the last `length`, whether those before it tell it.

    A row is a span of tokens drawn uniformly over the vocabulary, then sub-spans of it until the row is full. The first
    token of a sub-span cannot be predicted, and neither can the span: only the others count in the loss, for the
    gradient of what cannot be known is noise.
    """
    tokens = np.empty((rows, length + 1), np.int32)
    known = np.zeros((rows, length + 1), bool)
    for row in range(rows):
        span = rng.integers(0, vocab_size, int(rng.integers(8, max(9, length // 2))))
        tokens[row, : len(span)] = span[: length + 1]
        at = len(span)
        while at <= length:
            start = int(rng.integers(0, len(span) - 4))
            part = span[start : start + int(rng.integers(4, 64))][: length + 1 - at]
            tokens[row, at : at + len(part)] = part
            known[row, at + 1 : at + len(part)] = True
            at += len(part)
    return tokens, known[:, 1:]
