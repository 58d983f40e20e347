"""The architecture of a decoder, read from and written as a Hugging Face `config.json` (Qwen3 dense, Llama).

The numbers always come from the checkpoint's own file, never from a table of model names (RoPE's theta differs inside
one model name). A field that would change the computation in a way that this code does not know is refused by name.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from webleaper_jax.errors import DataError

# Fields that describe training, saving or generation, and change nothing in the forward pass.
_IRRELEVANT = frozenset(
    [
        "architectures",
        "attention_dropout",
        "bos_token_id",
        "chunk_size_feed_forward",
        "dtype",
        "eos_token_id",
        "id2label",
        "initializer_range",
        "label2id",
        "is_decoder",
        "max_window_layers",
        "name_or_path",
        "_name_or_path",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "return_dict",
        "sliding_window",
        "torch_dtype",
        "transformers_version",
        "unk_token_id",
        "use_cache",
        "vocab_size_padded",
    ]
)
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
}
_ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Architecture (what `config.json` says) and how to compute it (the fields under `attention_block`).

    Attributes:
      head_dim: size of one head; not necessarily `hidden_size / num_heads`.
      attention_block: queries worked on at a time (and keys, in blockwise attention).
      plain_attention_up_to: longer rows use blockwise attention, which never holds a T x T array.
      remat: recompute each layer in the backward pass rather than keep its activations.
      unroll_layers: compile the layers one after the other instead of as one scanned body: faster for a few layers on a
        CPU, slower to compile for many.
    """

    architecture: Literal["qwen3", "llama"] = "qwen3"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    tie_embeddings: bool = False
    max_positions: int = 2048
    attention_block: int = 128
    plain_attention_up_to: int = 2048
    remat: bool = False
    unroll_layers: bool = True

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise DataError(
                f"num_attention_heads {self.num_heads} is no multiple of num_key_value_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise DataError(f"head_dim {self.head_dim} is odd; RoPE turns pairs")

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are RMS-normalised over head_dim before RoPE (Qwen3 does, Llama does not)."""
        return self.architecture == "qwen3"

    @classmethod
    def from_hf(cls, fields: Mapping[str, Any], **runtime: Any) -> "ModelConfig":
        """Reads the content of a `config.json`; `runtime` sets the fields that are not in it (`remat`, ...).

        Raises:
          DataError: an architecture or a field that this code does not compute, or a size that is missing.
        """
        fields = dict(fields)
        kind = fields.pop("model_type", None)
        if kind not in _ARCHITECTURES:
            raise DataError(
                f"config.json: model_type {kind!r} is not supported (supported: {', '.join(_ARCHITECTURES)})"
            )
        sizes: dict[str, Any] = {}
        for name, own in _SIZES.items():
            if name not in fields:
                raise DataError(f"config.json: field `{name}` is missing")
            sizes[own] = _size(name, fields.pop(name))
        heads = sizes["num_heads"]
        config = cls(
            architecture=kind,
            num_kv_heads=_size("num_key_value_heads", fields.pop("num_key_value_heads", None) or heads),
            head_dim=_size("head_dim", fields.pop("head_dim", None) or sizes["hidden_size"] // heads),
            rope_theta=_positive("rope_theta", _rope_theta(fields)),
            rms_norm_eps=_positive("rms_norm_eps", fields.pop("rms_norm_eps", 1e-6)),
            tie_embeddings=bool(fields.pop("tie_word_embeddings", False)),
            max_positions=_size("max_position_embeddings", fields.pop("max_position_embeddings", 2048)),
            **sizes,
            **runtime,
        )
        _refuse_unsupported(fields)
        return config

    def to_hf(self) -> dict[str, Any]:
        """Returns the content of a `config.json` that Hugging Face transformers (4 and 5) and `from_hf` read."""
        return {
            "architectures": [_ARCHITECTURES[self.architecture]],
            "model_type": self.architecture,
            **{name: getattr(self, own) for name, own in _SIZES.items()},
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_embeddings,
            "max_position_embeddings": self.max_positions,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            **({"mlp_bias": False} if self.architecture == "llama" else {"use_sliding_window": False}),
        }


def _size(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DataError(f"config.json: field `{name}` = {value!r} is no whole number of 1 or more")
    return value


def _positive(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise DataError(f"config.json: field `{name}` = {value!r} is no number above 0")
    return float(value)


def _rope_theta(fields: dict[str, Any]) -> Any:
    """Takes RoPE's fields out of `fields` (transformers 4: two fields; 5: one) and returns theta."""
    theta = fields.pop("rope_theta", None)
    for name in ("rope_scaling", "rope_parameters"):
        rope = fields.pop(name, None) or {}
        if not isinstance(rope, dict):
            raise DataError(f"config.json: field `{name}` = {rope!r} is no object")
        rope = dict(rope)
        theta = rope.pop("rope_theta", theta)
        kind = rope.pop("rope_type", rope.pop("type", "default"))
        if kind != "default" or rope:
            raise DataError(
                f"config.json: field `{name}` asks for RoPE of type {kind!r}, only the default is supported"
            )
    return 10_000.0 if theta is None else theta


def _refuse_unsupported(fields: dict[str, Any]) -> None:
    if fields.pop("hidden_act", "silu") != "silu":
        raise DataError("config.json: field `hidden_act` is not `silu`, the only activation supported")
    kinds = fields.pop("layer_types", None) or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise DataError("config.json: field `layer_types` names others than full_attention, the only type supported")
    for name, value in fields.items():
        # A switch that is off, or a number that is not set, asks for nothing.
        if name not in _IRRELEVANT and value not in (None, False, [], {}):
            raise DataError(f"config.json: field `{name}` = {value!r} is not supported")
