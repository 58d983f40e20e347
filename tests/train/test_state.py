"""Optimizers, schedules and the making of the state."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jaxtyping import TypeCheckError

from webleaper_jax.jsonl import DataError
from webleaper_jax.parallel.mesh import make_mesh, shard_state
from webleaper_jax.train.state import OptimizerConfig, create_state, make_optimizer, make_schedule

MESH = make_mesh()


def params():
    keys = jax.random.split(jax.random.key(0), 3)
    tree = {
        "embed": jax.random.normal(keys[0], (8, 4)),
        "final_norm": jnp.ones(4),
        "layers": {
            "wq": jax.random.normal(keys[1], (2, 4, 6)),
            "wo": jax.random.normal(keys[2], (2, 6, 4)),
            "mlp_norm": jnp.ones((2, 4)),
        },
    }
    return shard_state(tree, MESH)


@pytest.mark.parametrize(("schedule", "last"), [("constant", 1.0), ("cosine", 0.1), ("linear", 0.1)])
def test_schedules_rise_over_the_warm_up_and_end_where_they_should(schedule, last):
    config = OptimizerConfig(steps=20, schedule=schedule, warmup_steps=4, final_scale=0.1)
    rate = make_schedule(config, 2.0)
    rates = [float(rate(step)) for step in range(21)]
    assert rates[:4] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert max(rates) == pytest.approx(2.0)
    assert rates[20] == pytest.approx(2.0 * last)
    assert all(a >= b - 1e-6 for a, b in itertools.pairwise(rates[3:]))


def test_without_warm_up_the_first_update_has_the_peak_rate():
    for schedule in ("constant", "cosine", "linear"):
        assert float(make_schedule(OptimizerConfig(steps=5, schedule=schedule), 0.3)(0)) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"schedule": "cosin"}, "cosin"), ({"optimizer": "sgd"}, "sgd"), ({"warmup_steps": 10}, "warmup_steps")],
)
def test_settings_that_mean_nothing_are_refused(settings, says):
    with pytest.raises((DataError, TypeCheckError), match=says):  # the types forbid it too, where they are checked
        make_optimizer(OptimizerConfig(steps=10, **settings))


def test_muon_moves_each_layers_matrix_by_an_orthogonal_step_and_leaves_the_rest_to_adam():
    config = OptimizerConfig(
        steps=5, optimizer="muon", schedule="constant", muon_learning_rate=0.5, learning_rate=1e-3, clip_norm=0
    )
    tree = params()
    optimizer = make_optimizer(config)
    grads = jax.tree.map(lambda p: jax.random.normal(jax.random.key(7), p.shape), tree)
    updates, _ = jax.jit(optimizer.update)(grads, optimizer.init(tree), tree)
    for layer in range(2):  # singular values near the rate: each layer's matrix is made orthogonal by itself
        assert np.linalg.svd(updates["layers"]["wq"][layer], compute_uv=False) / 0.5 == pytest.approx(1.0, abs=0.7)
    # Adam's first step has one size, whatever the gradient (in Nesterov form: 1.47 times the rate).
    for part in (updates["embed"], updates["layers"]["mlp_norm"], updates["final_norm"]):
        assert np.abs(part) == pytest.approx(1.47e-3, rel=1e-2)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_weight_decay_spares_the_norm_gains(optimizer):
    tree = params()
    moved = {}
    for decay in (0.0, 0.1):
        config = OptimizerConfig(steps=5, optimizer=optimizer, weight_decay=decay, schedule="constant")
        transform = make_optimizer(config)
        grads = jax.tree.map(jnp.ones_like, tree)
        moved[decay], _ = jax.jit(transform.update)(grads, transform.init(tree), tree)
    same = jax.tree.map(lambda a, b: bool(np.allclose(a, b)), moved[0.0], moved[0.1])
    assert same["final_norm"]
    assert same["layers"]["mlp_norm"]
    assert not same["layers"]["wq"]


def test_clipping_bounds_the_global_norm():
    clip, free = (
        make_optimizer(OptimizerConfig(steps=5, clip_norm=norm, optimizer="adamw")).init(params()) for norm in (1.0, 0)
    )
    assert jax.tree.structure(clip) != jax.tree.structure(free)
    grads = jax.tree.map(lambda p: 100 * jnp.ones_like(p), params())
    clipped, _ = optax.clip_by_global_norm(1.0).update(grads, optax.EmptyState())
    assert float(optax.global_norm(clipped)) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_new_state_is_step_0_with_moments_that_lie_as_their_parameters(optimizer):
    tree = params()
    state = create_state(tree, make_optimizer(OptimizerConfig(steps=5, optimizer=optimizer)), MESH)
    assert int(state.step) == 0
    assert all(isinstance(leaf.sharding, NamedSharding) for leaf in jax.tree.leaves(state))
    shapes = sorted(leaf.shape for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim >= 2)
    copies = 2 if optimizer == "adamw" else 1  # Muon keeps one moment of a matrix, Adam two
    wanted = [(2, 4, 6), (2, 6, 4)] * copies + [(8, 4), (2, 4)] * 2
    assert shapes == sorted(wanted)
