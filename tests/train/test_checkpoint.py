"""Checkpoints: bit for bit, whole or absent, damage passed over, other settings refused."""

import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from webleaper_jax.jsonl import DataError
from webleaper_jax.parallel.mesh import make_mesh, shard_state
from webleaper_jax.train.checkpoint import Checkpoints
from webleaper_jax.train.state import OptimizerConfig, TrainState, create_state, make_optimizer

MESH = make_mesh()
FINGERPRINTS = {"tokenizer": "tok", "config.sft.learning_rate": "0.001"}


def state(seed: int) -> TrainState:
    key = jax.random.key(seed)
    tree = {"embed": jax.random.normal(key, (8, 4)), "layers": {"wq": jax.random.normal(key, (2, 4, 4))}}
    tree = shard_state(tree, MESH)
    made = create_state(tree, make_optimizer(OptimizerConfig(steps=5, optimizer="muon")), MESH)
    return made._replace(step=made.step + seed)


def same(a: TrainState, b: TrainState) -> bool:
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.array_equal(x, y) and x.dtype == y.dtype and x.sharding == y.sharding
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def test_the_newest_comes_back_bit_for_bit_and_old_ones_go(tmp_path):
    checkpoints = Checkpoints(tmp_path, FINGERPRINTS)
    assert checkpoints.restore(state(0)) is None
    for step in (1, 2, 3):
        assert checkpoints.save(state(step), step) > 8 * 4 * 4
    restored = Checkpoints(tmp_path, FINGERPRINTS).restore(state(0))
    assert restored is not None
    assert same(restored, state(3))
    assert checkpoints.steps() == [3, 2]


def test_a_damaged_newest_gives_the_one_before_whatever_file_is_hit(tmp_path, capsys):
    whole = tmp_path / "whole"
    checkpoints = Checkpoints(whole, FINGERPRINTS)
    for step in (1, 2):
        checkpoints.save(state(step), step)
    names = [path.relative_to(whole) for path in sorted((whole / "00000002").rglob("*")) if path.is_file()]
    sizes = {name: (whole / name).stat().st_size for name in names}
    largest = max(names, key=lambda name: sizes[name])

    def broken(kind: str, name: pathlib.Path) -> bytes | None:
        data = (whole / name).read_bytes()
        middle = len(data) // 2
        return {"cut": data[:middle], "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]}.get(
            kind
        )

    for kind, name in [("cut", name) for name in names] + [("flipped", largest), ("gone", largest)]:
        copy = tmp_path / "copy"
        shutil.copytree(whole, copy)
        data = broken(kind, name)
        (copy / name).unlink() if data is None else (copy / name).write_bytes(data)
        restored = Checkpoints(copy, FINGERPRINTS).restore(state(0))
        assert restored is not None, (kind, name)
        assert same(restored, state(1)), (kind, name)
        assert "step 2 is damaged" in capsys.readouterr().out
        assert Checkpoints(copy, FINGERPRINTS).steps() == [1]
        shutil.rmtree(copy)


def test_all_damaged_is_an_error_and_nothing_is_deleted(tmp_path):
    checkpoints = Checkpoints(tmp_path, FINGERPRINTS)
    checkpoints.save(state(1), 1)
    (tmp_path / "00000001" / "manifest.json").unlink()
    with pytest.raises(DataError, match="every checkpoint is damaged"):
        checkpoints.restore(state(0))
    assert checkpoints.steps() == [1]


def test_a_save_that_died_half_way_is_not_seen(tmp_path):
    checkpoints = Checkpoints(tmp_path, FINGERPRINTS)
    checkpoints.save(state(1), 1)
    shutil.copytree(tmp_path / "00000001", tmp_path / ".00000002.tmp")
    again = Checkpoints(tmp_path, FINGERPRINTS)
    assert again.steps() == [1]
    assert not (tmp_path / ".00000002.tmp").exists()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"tokenizer": "another"}, "tokenizer.*tok there, another here"),
        ({"config.sft.learning_rate": "0.002"}, "config.sft.learning_rate.*0.001 there, 0.002 here"),
        ({"config.sft.new_field": "1"}, "new_field"),
    ],
)
def test_other_fingerprints_are_refused_by_name(tmp_path, changed, says):
    Checkpoints(tmp_path, FINGERPRINTS).save(state(1), 1)
    with pytest.raises(DataError, match=says):
        Checkpoints(tmp_path, FINGERPRINTS | changed).restore(state(0))


def test_saving_a_step_again_replaces_it(tmp_path):
    checkpoints = Checkpoints(tmp_path, FINGERPRINTS)
    checkpoints.save(state(1), 1)
    checkpoints.save(state(5), 1)
    restored = checkpoints.restore(state(0))
    assert restored is not None
    assert np.array_equal(restored.params["embed"], state(5).params["embed"])
    assert jnp.asarray(restored.step).dtype == jnp.int32
