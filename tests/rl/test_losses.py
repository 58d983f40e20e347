import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webleaper_jax.rl.losses import LossConfig, LossSums, TokenTargets, k3, policy_loss, usable_mask

CONFIG = LossConfig(clip_low=0.2, clip_high=0.28, kl=0.0)
WITH_KL = CONFIG._replace(kl=0.05)


def slow_loss(groups: list[list[dict]], config: LossConfig) -> float:
    """The paper's objective, loop by loop: `groups[g][i]` holds new, old, reference, advantage, mask of a rollout."""
    total = 0.0
    for group in groups:
        of_group = 0.0
        for rollout in group:
            of_rollout, count = 0.0, 0
            for t, mask in enumerate(rollout["mask"]):
                if not mask:
                    continue
                count += 1
                ratio = math.exp(max(-20.0, min(20.0, rollout["new"][t] - rollout["old"][t])))
                limited = max(1 - config.clip_low, min(1 + config.clip_high, ratio))
                of_rollout -= min(ratio * rollout["advantage"], limited * rollout["advantage"])
                difference = rollout["reference"][t] - rollout["new"][t]
                of_rollout += config.kl * (math.exp(difference) - 1 - difference)
            of_group += of_rollout / count
        total += of_group / len(group)
    return total / len(groups)


def random_groups(seed: int, groups: int = 3, size: int = 4, length: int = 9) -> list[list[dict]]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(groups):
        group = []
        for _ in range(size):
            mask = rng.integers(0, 2, length)
            mask[rng.integers(length)] = 1
            new = rng.normal(-1, 0.5, length)
            group.append(
                {
                    "mask": mask,
                    "new": new,
                    "old": new + rng.normal(0, 0.3, length),
                    "reference": new + rng.normal(0, 0.3, length),
                    "advantage": float(rng.normal()),
                }
            )
        made.append(group)
    return made


def as_batch(groups: list[list[dict]], pad: int = 0) -> tuple[jax.Array, TokenTargets, jax.Array]:
    rows = [(rollout, len(group)) for group in groups for rollout in group]
    length = max(len(r["mask"]) for r, _ in rows) + pad

    def stack(field: str, fill: float) -> np.ndarray:
        out = np.full((len(rows), length), fill)
        for i, (rollout, _) in enumerate(rows):
            out[i, : len(rollout["mask"])] = rollout[field]
        return out

    mask = stack("mask", 0).astype(bool)
    weights = np.zeros_like(mask, dtype=np.float64)
    for i, (rollout, size) in enumerate(rows):
        weights[i] = mask[i] / (len(groups) * size * rollout["mask"].sum())
    targets = TokenTargets(
        old=jnp.array(stack("old", np.nan)),
        advantages=jnp.array(stack("advantage", np.nan)),
        weights=jnp.array(weights),
        mask=jnp.array(mask),
    )
    return jnp.array(stack("new", -5.0)), targets, jnp.array(stack("reference", np.inf))


@pytest.mark.parametrize("config", [CONFIG, WITH_KL])
@pytest.mark.parametrize("pad", [0, 7])
def test_equals_the_equation(config: LossConfig, pad: int) -> None:
    with jax.enable_x64(True):
        for seed in range(5):
            groups = random_groups(seed)
            new, targets, reference = as_batch(groups, pad)
            loss, sums = policy_loss(new, jnp.zeros_like(new), targets, config, reference)
            assert float(loss) == pytest.approx(slow_loss(groups, config), rel=1e-9)
            assert float(sums.tokens) == sum(r["mask"].sum() for g in groups for r in g)


@pytest.mark.parametrize("config", [CONFIG, WITH_KL])
def test_gradient_on_a_toy_policy_equals_finite_differences(config: LossConfig) -> None:
    """A softmax policy over 5 tokens whose logits come from one hidden layer; every parameter is checked."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        groups = random_groups(1)
        new, targets, _ = as_batch(groups)
        features = jnp.array(rng.normal(size=(*new.shape, 3)))
        chosen = jnp.array(rng.integers(0, 5, new.shape))
        parameters = jnp.array(rng.normal(size=3 * 4 + 4 * 5))

        def logprobs(p: jax.Array) -> jax.Array:
            hidden = jnp.tanh(features @ p[:12].reshape(3, 4))
            return jnp.take_along_axis(jax.nn.log_softmax(hidden @ p[12:].reshape(4, 5)), chosen[..., None], -1)[..., 0]

        reference = logprobs(parameters + 0.1)
        old = logprobs(parameters) + jnp.array(rng.normal(0, 0.25, new.shape))
        targets = targets._replace(old=old)

        def loss(p: jax.Array) -> jax.Array:
            return policy_loss(logprobs(p), jnp.zeros_like(new), targets, config, reference)[0]

        gradient = np.array(jax.grad(loss)(parameters))
        step = 1e-5
        numeric = np.array(
            [(loss(parameters.at[i].add(step)) - loss(parameters.at[i].add(-step))) / (2 * step) for i in range(32)]
        )
        assert np.abs(gradient).max() > 1e-3
        np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-6 * np.abs(gradient).max())


def test_a_huge_ratio_outside_the_mask_is_harmless() -> None:
    """T8: exp overflows at a masked token; inf * 0 must not become NaN, in the loss or in the gradient."""
    targets = TokenTargets(
        old=jnp.zeros((1, 3)),
        advantages=jnp.ones((1, 3)),
        weights=jnp.full((1, 3), 0.5),
        mask=jnp.array([[True, True, False]]),
    )
    for outside in (100.0, 1e30, jnp.inf, jnp.nan):
        new = jnp.array([[0.0, 0.0, outside]])
        loss, gradient = jax.value_and_grad(lambda n: policy_loss(n, jnp.zeros((1, 3)), targets, CONFIG)[0])(new)
        assert float(loss) == -1.0
        np.testing.assert_array_equal(gradient, [[-0.5, -0.5, 0.0]])


def test_a_huge_ratio_inside_the_mask_stays_finite() -> None:
    targets = TokenTargets(jnp.array([[-100.0]]), jnp.array([[-1.0]]), jnp.ones((1, 1)), jnp.array([[True]]))
    loss, sums = policy_loss(jnp.zeros((1, 1)), jnp.zeros((1, 1)), targets, CONFIG)
    assert float(loss) == pytest.approx(math.exp(20), rel=1e-5)
    assert float(sums.gap_max) == 100.0


def test_masked_tokens_have_zero_gradient() -> None:
    new, targets, reference = as_batch(random_groups(3))
    gradient = jax.grad(lambda n: policy_loss(n, jnp.zeros_like(n), targets, WITH_KL, reference)[0])(new)
    assert (np.array(gradient)[~np.array(targets.mask)] == 0).all()
    assert (np.array(gradient)[np.array(targets.mask)] != 0).any()


@given(st.integers(0, 10_000), st.sampled_from([1, 5]))
@settings(max_examples=8, deadline=None)
def test_unequal_micro_batches_sum_to_the_big_batch(seed: int, cut: int) -> None:
    """T11: loss, gradient and metrics; the rows of a group may be torn apart at will."""
    with jax.enable_x64(True):
        new, targets, reference = as_batch(random_groups(seed))

        def part(n: jax.Array, rows: slice) -> tuple[jax.Array, LossSums]:
            those = TokenTargets(*(field[rows] for field in targets))
            return policy_loss(n[rows], jnp.ones_like(n[rows]), those, WITH_KL, reference[rows])

        (whole, whole_sums), whole_gradient = jax.value_and_grad(lambda n: part(n, slice(None)), has_aux=True)(new)
        (first, a), g1 = jax.value_and_grad(lambda n: part(n, slice(0, cut)), has_aux=True)(new)
        (second, b), g2 = jax.value_and_grad(lambda n: part(n, slice(cut, None)), has_aux=True)(new)
        np.testing.assert_allclose(first + second, whole, rtol=1e-12)
        np.testing.assert_allclose(g1 + g2, whole_gradient, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(np.array(LossSums.zero().add(a).add(b)), np.array(whole_sums), rtol=1e-12)


def test_clipping_is_counted_on_the_side_where_it_bites() -> None:
    ratios = jnp.log(jnp.array([[1.5, 1.5, 0.5, 0.5, 1.0]]))
    advantages = jnp.array([[1.0, -1.0, 1.0, -1.0, 1.0]])
    targets = TokenTargets(jnp.zeros((1, 5)), advantages, jnp.ones((1, 5)), jnp.ones((1, 5), bool))
    gradient, sums = jax.grad(lambda n: policy_loss(n, jnp.zeros((1, 5)), targets, CONFIG), has_aux=True)(ratios)
    assert (float(sums.clipped_high), float(sums.clipped_low)) == (1.0, 1.0)
    np.testing.assert_array_equal(np.array(gradient)[0] == 0, [True, False, False, True, False])


def test_a_logprob_that_is_no_number_leaves_the_loss_and_is_counted() -> None:
    """T9, on the sampler's side: NaN and infinite log-probs of sampled tokens."""
    logprobs = np.array([0.0, np.nan, -1.0, -np.inf, -2.0, np.nan])
    mask, dropped = usable_mask(np.array([0, 1, 1, 1, 1, 0]), logprobs)
    assert dropped == 2
    np.testing.assert_array_equal(mask, [False, False, True, False, True, False])


@given(st.floats(-19, 19))
@settings(deadline=None)
def test_k3_is_the_formula_and_never_negative(x: float) -> None:
    with jax.enable_x64(True):
        got = float(k3(jnp.array(x)))
    assert got >= 0
    assert got == pytest.approx(math.exp(x) - x - 1, rel=1e-9, abs=1e-12)


def test_a_kl_term_without_a_reference_is_refused() -> None:
    new, targets, _ = as_batch(random_groups(0))
    with pytest.raises(ValueError, match="reference"):
        policy_loss(new, new, targets, WITH_KL)
