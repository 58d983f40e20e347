"""Checkpoints in Hugging Face form: bit-exact round trips, several files, and one clear error for what is wrong."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.flax import load_file, save_file

from webleaper_jax.jsonl import DataError
from webleaper_jax.model.hf import fingerprint, load_checkpoint, save_checkpoint


def arrays(decoder):
    return nnx.to_pure_dict(nnx.state(decoder, nnx.Param))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": True}, {"architecture": "llama"}])
def test_round_trip_is_bit_exact(dtype, changes, small_decoder, tmp_path):
    decoder = small_decoder(**changes)
    save_checkpoint(decoder, tmp_path, dtype)
    loaded = load_checkpoint(tmp_path, dtype=dtype)
    expected = jax.tree.map(lambda x: x.astype(dtype), arrays(decoder))
    jax.tree.map(np.testing.assert_array_equal, arrays(loaded), expected)
    assert loaded.config == decoder.config
    save_checkpoint(loaded, tmp_path / "again")
    first, second = (
        path.read_bytes() for path in (tmp_path / "model.safetensors", tmp_path / "again/model.safetensors")
    )
    assert first == second


def test_several_files_with_an_index(small_decoder, tmp_path):
    decoder = small_decoder()
    save_checkpoint(decoder, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found, expected = arrays(load_checkpoint(tmp_path)), arrays(decoder)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def change(path, edit):
    tensors = load_file(path / "model.safetensors")
    edit(tensors)
    save_file(tensors, path / "model.safetensors")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop("model.layers.1.self_attn.k_norm.weight"), "k_norm.weight` is missing"),
        (lambda t: t.update({"model.norm.weight": jnp.ones(7)}), r"model.norm.weight` has shape \(7,\)"),
        (lambda t: t.update({"model.layers.3.extra.weight": jnp.ones(7)}), "extra.weight` is not part"),
    ],
)
def test_wrong_tensors_are_named(edit, message, small_decoder, tmp_path):
    save_checkpoint(small_decoder(), tmp_path)
    change(tmp_path, edit)
    with pytest.raises(DataError, match=message):
        load_checkpoint(tmp_path)


def test_a_tied_checkpoint_may_repeat_its_head(small_decoder, tmp_path):
    save_checkpoint(small_decoder(tie_embeddings=True), tmp_path)
    change(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}))
    assert load_checkpoint(tmp_path).config.tie_embeddings


def test_missing_and_broken_files(small_decoder, tmp_path):
    with pytest.raises(DataError, match=r"config\.json: no such file"):
        load_checkpoint(tmp_path)
    save_checkpoint(small_decoder(), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 40)
    with pytest.raises(DataError, match=r"model\.safetensors: cannot be read"):
        load_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"model\.safetensors: no such file"):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"config\.json: no valid JSON"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1]", "is no JSON object"),
        (b"\xff\xfe", "no valid JSON"),
        (b'{"model_type": "qwen3", "vocab_size": "x"}', "`vocab_size` = 'x' is no whole number"),
    ],
)
def test_a_damaged_config_is_one_clear_line(content, message, tmp_path):
    (tmp_path / "config.json").write_bytes(content)
    for read in (load_checkpoint, fingerprint):
        with pytest.raises(DataError, match=message) as error:
            read(tmp_path)
        assert str(tmp_path) in str(error.value)


def test_an_index_without_its_list_is_named(small_decoder, tmp_path):
    save_checkpoint(small_decoder(), tmp_path)
    for content in ("{}", '{"weight_map": [1]}', '{"weight_map": {"a": 1}}'):
        (tmp_path / "model.safetensors.index.json").write_text(content)
        with pytest.raises(DataError, match="weight_map"):
            load_checkpoint(tmp_path)


def test_another_architecture_has_another_fingerprint(small_decoder, tmp_path):
    for name, theta in (("a", 1e6), ("b", 5e5)):
        save_checkpoint(small_decoder(rope_theta=theta), tmp_path / name)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]
    assert fingerprint(tmp_path / "a") != fingerprint(tmp_path / "b")


@pytest.mark.parametrize("place", [0.0, 0.37, 0.5, 1.0])
def test_any_byte_of_the_weights_changes_the_fingerprint(place, small_decoder, tmp_path):
    save_checkpoint(small_decoder(), tmp_path)
    before = fingerprint(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert fingerprint(str(tmp_path)) == before
    file = tmp_path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    file.write_bytes(bytes(content))
    assert fingerprint(tmp_path) != before
