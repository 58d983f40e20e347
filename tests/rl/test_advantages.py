import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webleaper_jax.rl.advantages import normalise_group, trajectory_advantages

rewards = st.lists(st.floats(0, 1, width=32), min_size=2, max_size=16).map(np.array)


def slow_advantages(values: list[float]) -> list[float]:
    """The equation, term by term."""
    mean = sum(values) / len(values)
    deviation = (sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5
    return [(v - mean) / (deviation + 1e-6) for v in values]


@given(rewards)
@settings(deadline=None)
def test_equals_the_equation(values: np.ndarray) -> None:
    got, zero_variance = normalise_group(values)
    if zero_variance:
        assert values.std() <= 1e-6
        assert (got == 0).all()
    else:
        np.testing.assert_allclose(got, slow_advantages(values.tolist()), rtol=1e-9, atol=1e-12)


@given(rewards, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_permuting_the_group_permutes_the_advantages(values: np.ndarray, random) -> None:
    order = list(range(len(values)))
    random.shuffle(order)
    got, zero = normalise_group(values)
    permuted, permuted_zero = normalise_group(values[order])
    assert zero == permuted_zero
    np.testing.assert_allclose(permuted, got[order], rtol=1e-6, atol=1e-9)


@given(st.floats(0, 1), st.integers(1, 64))
@settings(deadline=None)
def test_equal_rewards_are_zero_variance_whatever_their_value(value: float, k: int) -> None:
    """G1: [0.1] * 3 minus its mean is not exactly zero; rounding must never become an advantage."""
    got, zero_variance = normalise_group(np.full(k, value))
    assert zero_variance
    assert (got == 0).all()


def test_rounding_noise_is_zero_variance_and_a_small_difference_is_not() -> None:
    assert normalise_group(np.array([0.4, 0.4 + 1e-7, 0.4]))[1]
    assert not normalise_group(np.array([0.4, 0.4001, 0.4]))[1]


def test_one_success_keeps_its_group() -> None:
    """G2: the filter looks at the whole group, not at what leave-one-out would see."""
    got, zero_variance = normalise_group(np.array([1.0, 0.0, 0.0, 0.0]))
    assert not zero_variance
    assert got[0] > 0 > got[1]


@pytest.mark.parametrize("bad", [[], [0.5, np.nan], [np.inf, 0.0]])
def test_rewards_that_are_no_numbers_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        normalise_group(np.array(bad))


def test_tokens_carry_the_rollouts_advantage_where_the_policy_sampled() -> None:
    masks = [[np.array([0, 1, 1])], [np.array([0, 1]), np.array([0, 0, 1])]]
    got = trajectory_advantages(np.array([1.0, 0.0]), masks)
    up, down = got.values
    np.testing.assert_array_equal(got.tokens[0][0], [0, up, up])
    np.testing.assert_array_equal(got.tokens[1][0], [0, down])
    np.testing.assert_array_equal(got.tokens[1][1], [0, 0, down])
    with pytest.raises(ValueError, match="2 rewards for 1 rollouts"):
        trajectory_advantages(np.array([1.0, 0.0]), masks[:1])
