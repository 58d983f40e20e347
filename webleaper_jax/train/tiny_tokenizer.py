"""Trains the tiny base's tokenizer: byte-level BPE with a small vocabulary, saved as Hugging Face's tokenizer.json.

A small model copies token by token, so the same name must become the same tokens wherever it stands: at the start of a
line, after a bar, after a comma or a quote. Separators therefore take the space behind them (" | ", ", ", "# "), and
only a word that follows a word carries a space of its own.
"""

import json
import pathlib
from collections.abc import Iterable, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from webleaper_jax.jsonl import DataError

# The first four are those of Qwen's chat form; all are single tokens that a policy can be stopped at or parsed by.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<answer>",
    "</answer>",
)
# A bar; a run of quotes and brackets with its colons, commas and spaces (but not the space before a bar); a mark with
# the space behind it; up to two digits and letters, each with the space before it when that follows a word.
_PIECES = (
    r""" \| | ?["{}\[\]](?:["{}\[\]:,]| (?!\|))*|[.:,;#] | ?\p{N}{1,2}| ?\p{L}(?:\p{L}|\p{M})*"""
    r"""|\n| ?[^\s\p{L}\p{N}"{}\[\]]+|\s"""
)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Returns a tokenizer with exactly `vocab_size` tokens, special ones and all 256 bytes among them.

    Raises:
      DataError: the text has too few different pairs for so many tokens, or they are fewer than the bytes.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        made = tokenizer.get_vocab_size()
        raise DataError(
            f"the text gives a vocabulary of {made} tokens, not of {vocab_size}: change the size or the text"
        )
    return tokenizer


def tokenizer_text(cells: Sequence[str], headers: Sequence[str], phrases: Sequence[str]) -> list[str]:
    """What the tokenizer is trained on: cells as in rows, headers and phrases more than once, all pairs of digits."""
    lines = [" | ".join(cells[start : start + 4]) for start in range(0, len(cells), 4)]
    lines += [" | ".join(headers[start : start + 4]) for start in range(0, len(headers), 4)] * 3
    lines += list(phrases) * 150
    # Every pair of digits is one token, so that a number has one spelling.
    lines += [" | ".join(f"{pair:02d}" for pair in range(100))] * 300
    return lines


def save_tokenizer(tokenizer: Tokenizer, directory: pathlib.Path) -> None:
    """Writes tokenizer.json, and the tokenizer_config.json with which transformers opens it."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
