"""Reads and writes Hugging Face checkpoints: `config.json` and safetensors, one file or several with an index."""

import hashlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array
from safetensors import SafetensorError, safe_open
from safetensors.flax import save_file

from webleaper_jax.errors import DataError
from webleaper_jax.model.config import ModelConfig
from webleaper_jax.model.decoder import Decoder

# Our name -> (theirs under `model.layers.N.`, whether it is a matrix, which they keep transposed).
_LAYER = {
    "wq": ("self_attn.q_proj", True),
    "wk": ("self_attn.k_proj", True),
    "wv": ("self_attn.v_proj", True),
    "wo": ("self_attn.o_proj", True),
    "w_gate": ("mlp.gate_proj", True),
    "w_up": ("mlp.up_proj", True),
    "w_down": ("mlp.down_proj", True),
    "attention_norm": ("input_layernorm", False),
    "mlp_norm": ("post_attention_layernorm", False),
    "q_norm": ("self_attn.q_norm", False),
    "k_norm": ("self_attn.k_norm", False),
}
_TOP = {"embed": "model.embed_tokens", "final_norm": "model.norm", "lm_head": "lm_head"}


def read_config(directory: str | os.PathLike[str], **runtime: Any) -> ModelConfig:
    """Reads `config.json`. Raises `DataError` that names the file where it is absent, damaged or not supported."""
    path = pathlib.Path(directory) / "config.json"
    try:
        return ModelConfig.from_hf(_read_json(path), **runtime)
    except DataError as error:
        raise DataError(f"{directory}: {error}" if str(path) not in str(error) else str(error)) from None


def load_checkpoint(
    directory: str | os.PathLike[str], dtype: DTypeLike | type = jnp.float32, **runtime: Any
) -> Decoder:
    """Reads a checkpoint into a decoder whose weights have type `dtype`.

    Args:
      runtime: fields of `ModelConfig` that `config.json` does not hold (`remat`, `attention_block`, ...).

    Raises:
      DataError: a file or a tensor is missing, a tensor has another shape or is not expected, an unsupported field.
    """
    directory = pathlib.Path(directory)
    config = read_config(directory, **runtime)
    decoder = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))
    tensors = dict(_tensors(directory))
    tensors.pop("lm_head.weight" if config.tie_embeddings else "", None)  # some files repeat the tied matrix

    def take(name: str, shape: tuple[int, ...]) -> Array:
        tensor = tensors.pop(f"{name}.weight", None)
        if tensor is None:
            raise DataError(f"{directory}: tensor `{name}.weight` is missing; is the checkpoint complete?")
        if tensor.shape != shape:
            raise DataError(
                f"{directory}: tensor `{name}.weight` has shape {tensor.shape}, config.json asks for {shape}"
            )
        return tensor

    def stacked(name: str, shape: tuple[int, ...]) -> Array:
        theirs, transposed = _LAYER[name]
        one = shape[:0:-1] if transposed else shape[1:]
        parts = [take(f"model.layers.{i}.{theirs}", one) for i in range(config.num_layers)]
        return jnp.stack([part.T if transposed else part for part in parts]).astype(dtype)

    state = nnx.state(decoder, nnx.Param)
    shapes = nnx.to_pure_dict(state)
    values: dict[str, Any] = {
        name: take(_TOP[name], shape.shape).astype(dtype) for name, shape in shapes.items() if name in _TOP
    }
    values["layers"] = {name: stacked(name, shape.shape) for name, shape in shapes["layers"].items()}
    if tensors:
        raise DataError(f"{directory}: tensor `{sorted(tensors)[0]}` is not part of a {config.architecture} decoder")
    nnx.replace_by_pure_dict(state, values)
    nnx.update(decoder, state)
    return decoder


def save_checkpoint(decoder: Decoder, directory: str | os.PathLike[str], dtype: DTypeLike | type | None = None) -> None:
    """Writes `config.json` and `model.safetensors`, each under a temporary name and then renamed.

    Args:
      dtype: type of the tensors in the file; None: as they are.
    """
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    values = nnx.to_pure_dict(nnx.state(decoder, nnx.Param))
    tensors = {f"{_TOP[name]}.weight": value for name, value in values.items() if name in _TOP}
    for name, value in values["layers"].items():
        theirs, transposed = _LAYER[name]
        for i in range(decoder.config.num_layers):
            tensors[f"model.layers.{i}.{theirs}.weight"] = value[i].T if transposed else value[i]
    saved = {name: jnp.asarray(jax.device_get(value), dtype or value.dtype) for name, value in sorted(tensors.items())}
    temporary = directory / f".model.{os.getpid()}.tmp"
    save_file(saved, str(temporary), metadata={"format": "pt"})
    temporary.chmod(0o644)  # safetensors makes files that only their owner reads
    os.replace(temporary, directory / "model.safetensors")
    config = decoder.config.to_hf() | {"dtype": np.dtype(dtype or decoder.embed.dtype).name}
    temporary.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(temporary, directory / "config.json")


def fingerprint(directory: str | os.PathLike[str]) -> str:
    """A hash of the architecture and of the weight files: of all their bytes up to 1 GiB, of larger ones a MiB in every
    64, and the last.

    Raises:
      DataError: as `read_config`.
    """
    architecture = read_config(directory).to_hf()
    digest = hashlib.blake2b(json.dumps(architecture, sort_keys=True).encode(), digest_size=8)
    mib = 1 << 20
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with open(path, "rb") as file:
            for start in [*range(0, size, mib if size <= 1 << 30 else 64 * mib), max(size - mib, 0)]:
                file.seek(start)
                digest.update(file.read(mib))
    return digest.hexdigest()


def _tensors(directory: pathlib.Path) -> Iterator[tuple[str, Array]]:
    """Yields the tensors of all files of a checkpoint."""
    index = directory / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if index.exists():
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise DataError(f"{index}: field `weight_map` is no list of tensors and their files; fetch it again")
        files = sorted(set(weight_map.values()))
    for name in files:
        path = directory / name
        if not path.exists():
            raise DataError(f"{path}: no such file; a checkpoint needs config.json and its safetensors")
        try:
            with safe_open(path, framework="flax") as file:
                for key in file.keys():  # noqa: SIM118 - not a mapping, it cannot be iterated
                    yield key, file.get_tensor(key)
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path}: cannot be read ({error}); fetch or write it again") from None


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; a checkpoint needs config.json and its safetensors") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: no valid JSON ({error}); fetch or write it again") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: is no JSON object; fetch or write it again")
    return content
