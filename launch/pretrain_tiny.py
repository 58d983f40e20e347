"""Pre-trains the tiny Qwen3 base of the quickstart: a model that can copy names it never saw out of its context.

    python -m launch.pretrain_tiny --workdir=/tmp/tiny_base

Reads the training families of the bundled sample (column names, titles, and cells as material for made-up names),
trains a tokenizer on them, plants an induction circuit in the first two layers (`webleaper_jax.train.induction`), and
trains on made-up tables with requests about them, in contexts that grow from 256 to 1,536 tokens. Nothing of the other
families is read, and the text holds no trajectory, tool call or answer in the policy's form. Everything follows from
`--seed`.

Interrupted, the same command goes on from the last checkpoint (every three minutes). A line every 20 steps says how
fast it goes and how long it will take; every 100 steps the accuracy on made-up documents never trained on is printed
and the base as it stands is written to WORKDIR/base (config.json, model.safetensors in bfloat16, tokenizer.json,
metadata.json).
"""

import pathlib
import shlex
import sys
import time
from collections.abc import Sequence

from absl import flags

from data_gen.sample import sample_tables
from data_gen.splits import split_of_family
from launch import common
from webleaper_jax.jsonl import DataError, load_records
from webleaper_jax.parallel.host import keep_freed_memory
from webleaper_jax.records import Table
from webleaper_jax.train.pretrain import PretrainConfig, Stage, pretrain
from webleaper_jax.train.pretrain_text import Words
from webleaper_jax.train.tiny_tokenizer import tokenizer_text, train_tokenizer

# What pages, questions and calls are made of besides cells: only the tokenizer sees these words.
PHRASES = (
    'Which of "A" are also in "B"? Authors, artists, players, films, awards, mountains, towns: in "A" and in "B".',
    "List all people in every table and find each one listed. Give columns wanted: name | year | place | team | title",
    "Columns: name | year. In both lists? Give all columns. "
    "The first list has a second one with the same, whose year is 1980 to 1989 (only).",
    "# A (page 1 of 2)\nnext: w/1?p=2\n# A (page 2 of 4)\nnext: e/1?p=2\n1. A | w/1 | a; 10 rows\n2. A | e/1 | in: A",
    '{"name": "search", "arguments": {"queries": ["A", "B"]}}\n# search: "A" and 3 more. No rows here.',
    '{"name": "visit", "arguments": {"urls": ["w/1?p=2", "e/1"], "goal": "rows"}}\n{"urls": ["d/1"]}',
    "next page\ndone\nopen\nboth: A, B\nnot this\nsearch\nread\nTools: search, visit. End with a table.",
)

_WORKDIR = flags.DEFINE_string("workdir", None, "Where checkpoints and the base are written.", required=True)
_TABLES = flags.DEFINE_string("tables", None, "Table records; default: the bundled sample.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of weights and text.", lower_bound=0)
_VOCAB = flags.DEFINE_integer("vocab_size", 1024, "Tokens of the tokenizer.", lower_bound=1)
_STAGES = flags.DEFINE_list(
    "stages", ["256x16x100", "512x8x700", "1024x4x1500", "1536x4x500"], "Context x rows x steps of each stage."
)
_MUON = flags.DEFINE_float("muon_learning_rate", PretrainConfig.muon_learning_rate, "Peak rate for matrices.")
_ADAM = flags.DEFINE_float("learning_rate", PretrainConfig.learning_rate, "Peak rate for all other weights.")
_LAYERS = flags.DEFINE_integer("layers", PretrainConfig.num_layers, "Layers of the model.", lower_bound=1)
_HIDDEN = flags.DEFINE_integer("hidden_size", PretrainConfig.hidden_size, "Hidden size.", lower_bound=1)
_MLP = flags.DEFINE_integer(
    "intermediate_size", PretrainConfig.intermediate_size, "Size of the feed-forward layers.", lower_bound=1
)


def training_words(path: str | pathlib.Path) -> tuple[Words, tuple[str, ...]]:
    """Reads what names are made of from the tables of the training families, and from no others; and these families.

    Raises:
      DataError: no such file, or no table of a training family in it.
    """
    tables = [t for t in load_records(path, Table) if split_of_family(t.family or t.page_title) == "train"]
    if not tables:
        raise DataError(f"{path}: no table of a training family; see data_gen/sample/splits.toml")
    cells = [" ".join(cell.text.split()) for t in tables for row in t.rows for cell in row]
    columns = [" ".join(column.split()) for t in tables for column in t.columns]
    words = Words(
        cells=tuple(cell for cell in cells if cell),
        columns=tuple(column for column in columns if column),
        titles=tuple(" ".join(t.title.split()) for t in tables),
    )
    return words, tuple(sorted({t.family or t.page_title for t in tables}))


def parse_stages(texts: list[str]) -> tuple[Stage, ...]:
    """Reads stages such as 512x8x600.

    Raises:
      DataError: no three positive numbers, or no stage at all.
    """
    if not texts:
        raise DataError("--stages: is empty; give CONTEXTxROWSxSTEPS, as in 512x8x600")
    stages = []
    for text in texts:
        numbers = text.split("x")
        if len(numbers) != 3 or not all(n.isdigit() and int(n) for n in numbers):
            raise DataError(f"--stages: {text!r} is no CONTEXTxROWSxSTEPS, as in 512x8x600")
        stages.append(Stage(*map(int, numbers)))
    return tuple(stages)


def main(_: Sequence[str]) -> None:
    keep_freed_memory()
    config = PretrainConfig(
        stages=parse_stages(_STAGES.value),
        seed=_SEED.value,
        num_layers=_LAYERS.value,
        hidden_size=_HIDDEN.value,
        intermediate_size=_MLP.value,
        muon_learning_rate=_MUON.value,
        learning_rate=_ADAM.value,
    )
    words, families = training_words(_TABLES.value or sample_tables())
    tokenizer = train_tokenizer(tokenizer_text(words.cells, words.columns + words.titles, PHRASES), _VOCAB.value)
    workdir = common.output_folder(_WORKDIR.value, "workdir")
    start = time.monotonic()
    # without the place, so that the same command writes the same bytes anywhere
    command = " ".join(["python -m launch.pretrain_tiny", *(a for a in sys.argv[1:] if "workdir=" not in a)])
    pretrain(config, words, tokenizer, workdir, notes={"command": command, "families": families})
    print(f"done in {(time.monotonic() - start) / 60:.0f} minutes")
    base = workdir / "base"
    common.finish(base, f"python -m launch.quickstart --config.init={shlex.quote(str(base))}", workdir="WORKDIR")


if __name__ == "__main__":
    common.run(main)
