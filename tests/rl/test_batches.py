import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webleaper_jax.records import Sampling, Segment, Trajectory
from webleaper_jax.rl.advantages import trajectory_advantages
from webleaper_jax.rl.batches import (
    TrainSequence,
    bucket_lengths,
    build_sequences,
    loss_masks,
    micro_batches,
    predicted,
)


def segment(mask: list[int], logprobs: list[float] | None = None, first: int = 10) -> Segment:
    logprobs = logprobs or [-0.5 * m for m in mask]
    return Segment(
        messages=(),
        steps=(),
        token_ids=tuple(range(first, first + len(mask))),
        loss_mask=tuple(mask),
        logprobs=tuple(logprobs),
        policy_versions=tuple(0 if m else -1 for m in mask),
    )


def trajectory(rollout: int, *segments: Segment) -> Trajectory:
    return Trajectory(
        task_id="t", rollout=rollout, policy="p", segments=segments, sampling=Sampling(), termination="answer"
    )


def group(*rollouts: Trajectory, rewards: list[float]) -> tuple:
    return rollouts, trajectory_advantages(np.array(rewards, float), [loss_masks(t) for t in rollouts])


def test_each_position_knows_of_the_token_it_predicts() -> None:
    rollouts, advantages = group(
        trajectory(0, segment([0, 0, 1, 1, 0, 1])), trajectory(1, segment([0, 1])), rewards=[1.0, 0.0]
    )
    first = build_sequences([(rollouts, advantages)]).sequences[0]
    assert first.tokens.tolist() == [10, 11, 12, 13, 14]
    assert first.targets.tolist() == [11, 12, 13, 14, 15]
    assert first.mask.tolist() == [False, True, True, False, True]
    assert first.old.tolist() == [0.0, -0.5, -0.5, 0.0, -0.5]
    np.testing.assert_array_equal(first.advantages, advantages.values[0] * first.mask)
    np.testing.assert_allclose(first.weights, first.mask / (1 * 2 * 3))


def test_weights_are_those_of_the_papers_means() -> None:
    """Mean over groups, over the group's rollouts, over a rollout's sampled tokens: over all its segments together."""
    groups = [
        group(
            trajectory(0, segment([0, 1, 1]), segment([0, 0, 1, 1, 1])),
            trajectory(1, segment([0, 1])),
            rewards=[1, 0],
        ),
        group(*(trajectory(i, segment([0] + [1] * (i + 1))) for i in range(4)), rewards=[0, 0.1, 0.2, 1]),
    ]
    sequences = build_sequences(groups).sequences
    assert sum(s.weights.sum() for s in sequences) == pytest.approx(1.0)
    assert sum(s.weights.sum() for s in sequences[:2]) == pytest.approx(1 / 4)  # one rollout in two segments
    assert [s.weights.sum() for s in sequences[3:]] == pytest.approx([1 / 8] * 4)


def test_logprobs_that_are_no_numbers_leave_the_loss_and_are_counted() -> None:
    """T9; and a rollout that loses all its tokens still counts in k, so the others do not gain weight."""
    nan = float("nan")
    groups = [
        group(
            trajectory(0, segment([0, 1, 1, 1], [0, -1, nan, -1])),
            trajectory(1, segment([0, 1], [0, nan])),
            rewards=[1, 0],
        )
    ]
    built = build_sequences(groups)
    assert built.nonfinite == 2
    assert len(built.sequences) == 1
    only = built.sequences[0]
    assert only.mask.tolist() == [True, False, True]
    assert np.isfinite(only.old).all()
    np.testing.assert_allclose(only.weights, [1 / 4, 0, 1 / 4])


@given(st.lists(st.integers(1, 700), max_size=40), st.integers(1, 4), st.sampled_from([1, 2, 3]))
@settings(max_examples=50, deadline=None)
def test_every_token_is_in_exactly_one_row(lengths: list[int], micro: int, multiple: int) -> None:
    buckets = bucket_lengths(700)
    sequences = []
    for number, n in enumerate(lengths):
        ids = np.arange(n) + 1000 * number
        sequences.append(TrainSequence("g", ids, ids + 1, ids * 0.1, ids * 1.0, ids * 0.5, np.ones(n, bool)))
    batches = micro_batches(sequences, buckets, micro * buckets[-1], multiple)
    assert {b.tokens.shape[1] for b in batches} <= set(buckets)
    assert all(b.tokens.shape[0] % multiple == 0 for b in batches)
    assert len({b.tokens.shape for b in batches}) <= len(buckets)  # one shape a length
    found = []
    for batch in batches:
        for row in range(len(batch.tokens)):
            n = int(batch.segment_ids[row].sum())
            assert not batch.mask[row, n:].any()
            assert not batch.weights[row, n:].any()
            if n:
                np.testing.assert_array_equal(batch.targets[row, :n], batch.tokens[row, :n] + 1)
                np.testing.assert_allclose(batch.old[row, :n], batch.tokens[row, :n] * 0.1, rtol=1e-6)
                found.append(batch.tokens[row, :n].tolist())
    assert sorted(found) == sorted(s.tokens.tolist() for s in sequences)


def test_a_sequence_that_fits_nowhere_is_refused() -> None:
    ids = np.zeros(300, np.int32)
    sequence = TrainSequence("g", ids, ids, ids * 0.0, ids * 0.0, ids * 0.0, ids > 0)
    with pytest.raises(ValueError, match="300 tokens"):
        micro_batches([sequence], (256,), 256)


def test_the_shift_is_one() -> None:
    assert predicted(np.array([1, 2, 3])).tolist() == [2, 3]
