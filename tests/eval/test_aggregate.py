import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.made_records import TARGET, make_score
from webleaper_jax.eval.aggregate import (
    METRICS,
    BootstrapConfig,
    bootstrap_weights,
    paired_difference,
    summarise,
    task_families,
    task_means,
)
from webleaper_jax.records import Provenance, Score, Task


def make_task(number: int, families: tuple[str, ...]) -> Task:
    return Task(
        question=f"question {number}", variant="basic", targets=(TARGET,), provenance=Provenance(families=families)
    )


def world(values: list[list[float]]) -> tuple[list[Task], list[Score]]:
    """One family per inner list, one task per value."""
    tasks, scores = [], []
    for family, row in enumerate(values):
        for value in row:
            tasks.append(make_task(len(tasks), (f"family {family}",)))
            scores.append(make_score(tasks[-1], value))
    return tasks, scores


VALUES = [[0.9, 0.8, 0.95], [0.1], [0.4, 0.5], [0.3, 0.2, 0.25, 0.6]]


def test_interval_equals_the_exact_bootstrap_distribution():
    """All 4^4 resamples of four families, enumerated, give the distribution that the replicates are drawn from."""
    tasks, scores = world(VALUES)
    exact = sorted(
        np.mean(np.concatenate([VALUES[family] for family in draw])) for draw in itertools.product(range(4), repeat=4)
    )
    low, high = np.quantile(exact, [0.025, 0.975])
    found = summarise(tasks, scores, BootstrapConfig(replicates=100_000, seed=1))["f"]
    assert found.mean == pytest.approx(np.mean(np.concatenate(VALUES)))
    assert found.low == pytest.approx(low, abs=0.01)
    assert found.high == pytest.approx(high, abs=0.01)
    assert (found.tasks, found.families) == (10, 4)


def test_replicates_equal_a_loop_over_the_drawn_families():
    """The weights do what a naive bootstrap does: draw families, gather their tasks, take the mean."""
    membership = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    values = np.array([0.1, 0.5, 0.3, 0.9, 0.7])
    drawn = np.random.default_rng(7).multinomial(3, np.full(3, 1 / 3), size=50)
    naive = []
    for counts in drawn:
        gathered = [v for f, count in enumerate(counts) for _ in range(count) for v in values[membership[:, f] == 1]]
        naive.append(np.mean(gathered))
    weights = bootstrap_weights(membership, 50, 7)
    np.testing.assert_allclose((weights @ values) / weights.sum(axis=1), naive)


def test_interval_of_many_equal_families_is_the_normal_one():
    """With 400 families of two equal tasks the width is that of the mean of 400 values, not of 800."""
    rng = np.random.default_rng(0)
    draws = rng.uniform(size=400)
    tasks, scores = world([[float(v), float(v)] for v in draws])
    found = summarise(tasks, scores, BootstrapConfig(replicates=4000))["f"]
    assert found.high - found.low == pytest.approx(2 * 1.96 * draws.std() / math.sqrt(400), rel=0.06)


def test_a_task_of_two_families_moves_with_both():
    """Where every task holds both families, a replicate is made of them or of nothing, so there is no spread."""
    tasks = [make_task(i, ("a", "b")) for i in range(4)]
    scores = [make_score(task, 0.2 * i) for i, task in enumerate(tasks)]
    found = summarise(tasks, scores)["f"]
    assert found.low == pytest.approx(found.mean)
    assert found.high == pytest.approx(found.mean)
    np.testing.assert_array_equal(
        bootstrap_weights(np.array([[1, 1], [1, 0], [0, 1]]), 20, 0)[:, 0],
        np.prod(bootstrap_weights(np.array([[1, 0], [0, 1]]), 20, 0), axis=1),
    )


def test_one_family_gives_a_mean_and_no_interval():
    tasks, scores = world([[0.1, 0.9]])
    found = summarise(tasks, scores)["f"]
    assert found.mean == pytest.approx(0.5)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_a_task_without_families_is_one_of_its_own():
    task = make_task(0, ())
    assert task_families(task) == (task.id,)
    assert task_families(make_task(1, ("b", "a", "b"))) == ("a", "b")


def test_rollouts_and_seeds_of_a_task_count_once():
    one, two = make_task(1, ("a",)), make_task(2, ("b",))
    scores = [make_score(one, 1.0, rollout) for rollout in range(9)] + [make_score(two, 0.0)]
    assert summarise([one, two], scores)["f"].mean == pytest.approx(0.5)


def test_scores_that_no_judge_gave_do_not_count():
    one = make_task(1, ("a",))
    scores = [make_score(one, 0.6), make_score(one, 0.0, 1, scored=False)]
    assert summarise([one], scores)["f"].mean == pytest.approx(0.6)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=2, max_size=6), st.randoms())
def test_bounds_lie_among_the_families_and_order_does_not_matter(values, random):
    tasks, scores = world(values)
    config = BootstrapConfig(replicates=300)
    found = summarise(tasks, scores, config)
    assert set(found) == set(METRICS)
    means = [float(np.mean(row)) for row in values]
    assert min(means) - 1e-9 <= found["f"].low <= found["f"].high <= max(means) + 1e-9
    random.shuffle(scores)
    random.shuffle(tasks)
    assert summarise(tasks, scores, config) == found


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=8))
def test_paired_difference_is_the_interval_of_the_differences(pairs):
    tasks = [make_task(i, (f"family {i % 3}",)) for i in range(len(pairs))]
    first = [make_score(t, a, policy="a") for t, (a, _) in zip(tasks, pairs, strict=True)]
    second = [make_score(t, b, policy="b") for t, (_, b) in zip(tasks, pairs, strict=True)]
    config = BootstrapConfig(replicates=200)
    found = paired_difference(tasks, first, second, config)["f"]
    other = paired_difference(tasks, second, first, config)["f"]
    assert found.mean == pytest.approx(np.mean([a - b for a, b in pairs]))
    assert (other.mean, other.low, other.high) == pytest.approx((-found.mean, -found.high, -found.low))
    same = paired_difference(tasks, first, first, config)["f"]
    assert (same.mean, same.low, same.high) == (0.0, 0.0, 0.0)


def test_what_cannot_be_compared_is_refused():
    tasks, scores = world([[0.1], [0.2]])
    with pytest.raises(ValueError, match="one policy only"):
        paired_difference(tasks, scores, scores[:1])
    with pytest.raises(ValueError, match="were not given"):
        summarise(tasks[:1], scores)
    with pytest.raises(ValueError, match="no scores"):
        summarise(tasks, [])


def test_task_means_do_not_depend_on_the_order_of_rollouts():
    task = make_task(1, ("a",))
    scores = [make_score(task, f, i) for i, f in enumerate((0.1, 0.7, 0.30000001))]
    (forward,), (backward,) = task_means(scores).values(), task_means(scores[::-1]).values()
    np.testing.assert_array_equal(forward, backward)
