import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webleaper_jax.sampling import steps

VOCABULARY = 12


def rows_of(seed: np.ndarray, temperature: float, top_p: float) -> steps.Rows:
    n = len(seed)
    words = np.stack([np.zeros(n), seed], -1).astype(np.uint32)
    zeros = jnp.zeros(n, jnp.int32)
    return steps.Rows(zeros, zeros, zeros, zeros, jnp.array(words), jnp.full(n, temperature), jnp.full(n, top_p))


def slow_nucleus(p: np.ndarray, top_p: float) -> set[int]:
    """Sorts, adds up until enough; tokens as likely as the last one stay."""
    order = np.argsort(-p, kind="stable")
    mass, last = 0.0, p[order[0]]
    for i in order:
        mass, last = mass + p[i], p[i]
        if mass >= top_p * p.sum():
            break
    return set(np.flatnonzero(p >= last))


@given(st.integers(0, 10_000), st.sampled_from([0.1, 0.5, 0.8, 0.95, 0.999]))
@settings(max_examples=60, deadline=None)
def test_nucleus_equals_sorting(seed: int, top_p: float) -> None:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(VOCABULARY, 0.5)).astype(np.float32)[None]
    kept = np.array(jax.jit(steps.keep_nucleus)(jnp.array(p), jnp.full(1, top_p)))[0]
    assert set(np.flatnonzero(kept)) == slow_nucleus(p[0].astype(np.float64), top_p)
    np.testing.assert_array_equal(kept[kept > 0], p[0][kept > 0])


def test_top_p_of_one_keeps_everything() -> None:
    p = np.float32([[0.5, 0.5, 0.0, 1e-30]])
    np.testing.assert_array_equal(steps.keep_nucleus(jnp.array(p), jnp.ones(1)), p)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0), (0.7, 0.9)])
def test_draws_follow_the_distribution_and_logprobs_are_those_before_top_p(temperature: float, top_p: float) -> None:
    """T10: the log-probs are those at the sampling temperature, whatever top-p cuts off."""
    n = 20_000
    logits = np.random.default_rng(1).normal(0, 1.5, VOCABULARY + 3).astype(np.float32)
    token, logprob = jax.jit(steps.sample, static_argnums=3)(
        jnp.tile(logits, (n, 1)), jnp.zeros(n, jnp.int32), rows_of(np.arange(n), temperature, top_p), VOCABULARY
    )
    token, logprob = np.array(token), np.array(logprob)
    expected = np.array(jax.nn.log_softmax(logits.astype(np.float64) / temperature))
    np.testing.assert_allclose(logprob, expected[token], atol=1e-5)
    p = np.exp(expected[:VOCABULARY])  # ids of the padding are never drawn
    inside = list(slow_nucleus(p, top_p)) if top_p < 1 else list(range(VOCABULARY))
    assert set(token) <= set(inside)
    share = np.bincount(token, minlength=VOCABULARY)[inside] / n
    wanted = p[inside] / p[inside].sum()
    assert (np.abs(share - wanted) < 5 * np.sqrt(wanted / n) + 1e-3).all()


def test_temperature_zero_takes_the_likeliest() -> None:
    logits = jnp.array([[0.0, 2.0, 1.0], [5.0, 2.0, 9.0]])
    token, logprob = steps.sample(logits, jnp.zeros(2, jnp.int32), rows_of(np.arange(2), 0.0, 0.5), 2)
    assert token.tolist() == [1, 0]  # id 2 is padding
    np.testing.assert_allclose(logprob, np.array(jax.nn.log_softmax(logits))[[0, 1], [1, 0]], rtol=1e-6)


def test_draws_depend_on_seed_and_position_only() -> None:
    logits = jnp.zeros((64, 512))
    position = jnp.arange(64, dtype=jnp.int32) % 8
    seeds = np.arange(64) // 8
    first, _ = steps.sample(logits, position, rows_of(seeds, 1.0, 1.0), 512)
    order = np.random.default_rng(0).permutation(64)
    shuffled, _ = steps.sample(logits, position[order], rows_of(seeds[order], 1.0, 1.0), 512)
    np.testing.assert_array_equal(np.array(first)[order], shuffled)
    assert len(set(np.array(first).tolist())) > 40  # 64 different (seed, position)


def test_a_token_without_probability_is_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniform numbers are put where the parallel cumulative sum rises by rounding at tokens cut off, and at the end."""
    vocabulary, rng = 16_384, np.random.default_rng(0)
    logits = jnp.array(rng.normal(0, 2.5, (24, vocabulary + 267)).astype(np.float32))
    p = jnp.where(jnp.arange(logits.shape[1]) < vocabulary, jax.nn.softmax(logits), 0.0)
    kept = steps.keep_nucleus(p, jnp.full(24, 0.95))
    total = np.array(jnp.cumsum(kept, axis=-1), np.float64)
    rises = (np.diff(total, axis=1) > 0) & (np.array(kept)[:, 1:] == 0)
    assert rises.any(axis=1).sum() > 10  # else this test shows nothing
    uniform = np.full(24, 1 - 2.0**-23, np.float32)
    for row in np.flatnonzero(rises.any(axis=1)):
        at = int(np.flatnonzero(rises[row])[-1])
        uniform[row] = min(uniform[row], (total[row, at] + total[row, at + 1]) / 2 / total[row, -1])
    draws = iter([jnp.array(uniform)])
    monkeypatch.setattr(jax, "vmap", lambda function: lambda *_: next(draws))
    token, _ = steps.sample(logits, jnp.zeros(24, jnp.int32), rows_of(np.arange(24), 1.0, 0.95), vocabulary)
    assert (np.array(kept)[np.arange(24), np.array(token)] > 0).all()
