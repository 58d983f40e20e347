import jax
import jax.numpy as jnp
import numpy as np
import pytest

from webleaper_jax.rl.sync import fingerprint


def params(seed: int = 0, dtype=jnp.float32) -> dict:
    keys = jax.random.split(jax.random.key(seed), 2)
    return {"a": jax.random.normal(keys[0], (7, 5), dtype), "b": {"c": jax.random.normal(keys[1], (300,), dtype)}}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_equal_weights_have_equal_fingerprints_and_any_bit_changes_it(dtype) -> None:
    same = fingerprint(params(dtype=dtype))
    assert fingerprint(params(dtype=dtype)) == same
    assert fingerprint(params(1, dtype)) != same
    rng = np.random.default_rng(0)
    for _ in range(30):
        changed = jax.tree.map(np.array, params(dtype=dtype))
        leaf = changed["a"] if rng.random() < 0.5 else changed["b"]["c"]
        bits = leaf.reshape(-1).view(np.uint32 if dtype == jnp.float32 else np.uint16)
        bits[rng.integers(bits.size)] ^= np.array(1 << rng.integers(bits.itemsize * 8)).astype(bits.dtype)
        assert fingerprint(jax.tree.map(jnp.asarray, changed)) != same


def test_exchanged_values_names_shapes_and_types_show() -> None:
    same, weights = fingerprint(params()), params()
    swapped = weights["b"]["c"].at[jnp.array([3, 4])].set(weights["b"]["c"][jnp.array([4, 3])])
    variants = [
        {"a": weights["a"], "b": {"c": swapped}},
        {"a": weights["a"], "b": {"d": weights["b"]["c"]}},
        {"a": weights["a"].reshape(5, 7), "b": weights["b"]},
        jax.tree.map(lambda x: x.astype(jnp.bfloat16), weights),
    ]
    assert len({same, *map(fingerprint, variants)}) == 5
