"""`config.json` in and out, and refusals by name."""

import pytest

from webleaper_jax.jsonl import DataError
from webleaper_jax.model.config import ModelConfig

BASE = {
    "model_type": "qwen3",
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rope_theta": 5e5,
}


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_round_trip(architecture, tied):
    config = ModelConfig.from_hf(BASE | {"model_type": architecture, "tie_word_embeddings": tied})
    assert ModelConfig.from_hf(config.to_hf()) == config
    assert config.rope_theta == 5e5


def test_both_forms_of_rope_fields_are_read():
    without = {name: value for name, value in BASE.items() if name != "rope_theta"}
    new = without | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7}}
    assert ModelConfig.from_hf(new).rope_theta == 1e7
    assert ModelConfig.from_hf(without).rope_theta == 10_000


def test_defaults_follow_the_heads():
    llama = {"model_type": "llama"} | {n: v for n, v in BASE.items() if n not in ("model_type", "head_dim")}
    del llama["num_key_value_heads"]
    config = ModelConfig.from_hf(llama)
    assert (config.head_dim, config.num_kv_heads) == (12, 4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
        ("rope_parameters", {"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5}),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("use_sliding_window", True),
        ("num_experts", 128),
        ("hidden_act", "gelu"),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("quantization_config", {"bits": 4}),
        ("model_type", "gemma3"),
        ("vocab_size", "many"),
        ("num_attention_heads", 0),
        ("hidden_size", 48.5),
        ("head_dim", [16]),
        ("num_key_value_heads", -2),
        ("rope_theta", "big"),
        ("rope_parameters", 3),
        ("rms_norm_eps", 0),
        ("layer_types", "full_attention"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(field, value):
    with pytest.raises(DataError, match=field):
        ModelConfig.from_hf(BASE | {field: value})


@pytest.mark.parametrize("field", ["vocab_size", "num_hidden_layers", "num_attention_heads"])
def test_a_missing_size_is_named(field):
    with pytest.raises(DataError, match=field):
        ModelConfig.from_hf({name: value for name, value in BASE.items() if name != field})


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(DataError, match="num_key_value_heads"):
        ModelConfig.from_hf(BASE | {"num_key_value_heads": 3})
