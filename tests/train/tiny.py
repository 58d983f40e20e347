"""A minute model, a small training set, and a run of the SFT trainer over them, also as a process of its own.

python -m tests.train.tiny INPUTS OUT [name=value ...]     (values in JSON; names are those of `SFTConfig`)
"""

import json
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import nnx

from webleaper_jax.data.dataset import SetInfo, SplitInfo, write_set
from webleaper_jax.data.examples import Example
from webleaper_jax.data.packing import pack
from webleaper_jax.model import hf
from webleaper_jax.model.config import ModelConfig
from webleaper_jax.model.decoder import Decoder
from webleaper_jax.train.sft import Evaluate, SFTConfig, SFTResult, train_sft

VOCABULARY, LENGTH, TOKENIZER = 32, 32, "tiny"
MODEL = ModelConfig(
    vocab_size=VOCABULARY,
    hidden_size=16,
    intermediate_size=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=2,
    head_dim=8,
    tie_embeddings=True,
    max_positions=64,
)


def examples(count: int, seed: int = 0) -> list[Example]:
    """Sequences that count upwards from a random start: easily learnt. The first third of each is a prompt."""
    rng = np.random.default_rng(seed)
    made = []
    for n in rng.integers(6, LENGTH + 1, count):
        ids = (rng.integers(VOCABULARY) + np.arange(n)) % VOCABULARY
        made.append(Example(ids.astype(np.int32), np.arange(n) >= n // 3, "t"))
    return made


def decoder(seed: int = 0) -> Decoder:
    return Decoder(MODEL, rngs=nnx.Rngs(seed))


def make_inputs(directory: pathlib.Path) -> None:
    """Writes `set` (train and validation) and `init` (a Hugging Face checkpoint with a tokenizer file)."""
    splits = {"train": pack(examples(60), LENGTH), "validation": pack(examples(9, seed=1), LENGTH)}
    counts = {
        name: SplitInfo(examples=0, rows=len(rows.tokens), tokens=0, trained_tokens=0, fill=0.0)
        for name, rows in splits.items()
    }
    info = SetInfo(tokenizer=TOKENIZER, row_length=LENGTH, pad_id=0, source="test", splits=counts)
    write_set(directory / "set", splits, info)
    hf.save_checkpoint(decoder(), directory / "init")
    (directory / "init" / "tokenizer.json").write_text("{}")
    (directory / "init" / "metadata.json").write_text("{}")


def run(
    inputs: pathlib.Path, out: pathlib.Path, settings: Mapping[str, Any], evaluate: Evaluate | None = None
) -> SFTResult:
    """Trains with small defaults, which `settings` override."""
    defaults = {"steps": 20, "batch_size": 8, "seq_len": LENGTH, "learning_rate": 0.01, "log_every": 1}
    config = SFTConfig.from_mapping(defaults | dict(settings))
    return train_sft(config, inputs / "set", inputs / "init", out, tokenizer=TOKENIZER, evaluate=evaluate)


def main(argv: list[str]) -> None:
    settings = {name: json.loads(value) for name, value in (argument.split("=", 1) for argument in argv[2:])}
    run(pathlib.Path(argv[0]), pathlib.Path(argv[1]), settings)


if __name__ == "__main__":
    main(sys.argv[1:])
