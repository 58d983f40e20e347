"""A tiny policy for tests: a byte-level tokenizer with the chat markers, and a random decoder."""

import json
import pathlib

from flax import nnx

from webleaper_jax.agent.render import MARKERS, PolicyTokenizer
from webleaper_jax.model.config import ModelConfig
from webleaper_jax.model.decoder import Decoder


def tokenizer_json() -> str:
    """One token per byte (the byte-level alphabet), then the markers."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in MARKERS])
    return tokenizer.to_str()


def tiny_tokenizer() -> PolicyTokenizer:
    return PolicyTokenizer(tokenizer_json())


def tiny_config(**changes: object) -> ModelConfig:
    fields: dict = {
        "vocab_size": 288,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "tie_embeddings": True,
    }
    return ModelConfig(**(fields | changes))


def tiny_decoder(seed: int = 0, scale: float = 1.0, **changes: object) -> Decoder:
    """A random decoder; `scale` > 1 sharpens its distribution."""
    decoder = Decoder(tiny_config(**changes), rngs=nnx.Rngs(seed))
    decoder.embed[...] = decoder.embed[...] * scale
    return decoder


def save_tokenizer(directory: str | pathlib.Path) -> None:
    (pathlib.Path(directory) / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer_json())))
