"""Meshes and placement on eight forced CPU devices, in a process of its own (the flag counts at JAX's start only)."""

import os
import subprocess
import sys

import jax
import pytest

from webleaper_jax.jsonl import DataError
from webleaper_jax.parallel.mesh import PARAMETERS, RULES, make_mesh

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from webleaper_jax.jsonl import DataError
from webleaper_jax.model.config import ModelConfig
from webleaper_jax.model.decoder import Decoder
from webleaper_jax.parallel.mesh import batch_sharding, check_heads, make_mesh, shard_state

decoder = Decoder(ModelConfig(vocab_size=96, hidden_size=48, intermediate_size=80, num_layers=2, num_heads=4,
                              num_kv_heads=2, head_dim=16), rngs=nnx.Rngs(0))
graph, state = nnx.split(decoder)
params = nnx.to_pure_dict(state)
tokens = jnp.asarray(np.random.default_rng(0).integers(0, 96, (8, 24)))
positions = jnp.broadcast_to(jnp.arange(24), (8, 24))

def loss(params, tokens):
    shaped = jax.tree.map(lambda x: x, state)
    nnx.replace_by_pure_dict(shaped, params)
    model = nnx.merge(graph, shaped)
    return -model.token_logprobs(model(tokens, positions, positions * 0), jnp.roll(tokens, -1, 1))[0].mean()

expected = jax.jit(jax.value_and_grad(loss))(params, tokens)
for shape in ({"fsdp": 8}, {"data": 2, "fsdp": 2, "tensor": 2}):
    mesh = make_mesh(shape)
    placed = shard_state(params, mesh)
    moments = shard_state({"mu": params, "count": jnp.zeros((), jnp.int32)}, mesh)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y), placed, params)
    for tree in (placed, moments["mu"]):
        part = tree["layers"]["wq"].addressable_shards[0].data.shape
        assert part == (2, 48 // mesh.shape["fsdp"], 64 // mesh.shape["tensor"]), part
    assert moments["count"].sharding.is_fully_replicated
    found = jax.jit(jax.value_and_grad(loss))(placed, jax.device_put(tokens, batch_sharding(mesh)))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), found, expected)

for wrong, words in (({"fsdp": 1, "tensor": 8}, "tensor"), ({"data": 3}, "data"), ({"fsdp": 16}, "fsdp")):
    try:
        mesh = make_mesh(wrong)
        check_heads(mesh, 2)
    except DataError as error:
        assert words in str(error), error
    else:
        raise AssertionError(wrong)
odd = {"embed": jnp.zeros((95, 48)), "wq": jnp.zeros((2, 47, 64))}
for name, shape in (("embed", {"tensor": 8}), ("wq", {"fsdp": 8})):
    try:
        shard_state({name: odd[name]}, make_mesh(shape))
    except DataError as error:
        assert f"`{name}`" in str(error) and f"`{next(iter(shape))}`" in str(error), error
    else:
        raise AssertionError(name)
print("fine")
"""


def test_placement_and_errors_on_eight_devices(repository):
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=repository, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "fine", done.stderr[-2000:]


def test_all_axes_of_parameters_have_a_rule():
    assert {axis for axes in PARAMETERS.values() for axis in axes} <= RULES.keys()


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"model": 1}, "`model` is unknown"),
        ({"data": -1, "fsdp": -1}, "one of them may be -1"),
        ({"tensor": 0}, "`tensor`"),
        ({"data": 2}, "needs 2 devices, there are 1"),
        ({"data": -1, "tensor": 2}, "1 devices cannot be divided by 2"),
    ],
)
def test_bad_shapes_are_named(shape, message):
    with pytest.raises(DataError, match=message):
        make_mesh(shape, jax.devices()[:1])
