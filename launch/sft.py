"""SFT: trajectories -> a fine-tuned policy.

  python -m launch.sft --trajectories=RUN/collect/kept.jsonl.gz --out=RUN/sft

Packs the trajectories once (OUT/dataset), trains, and writes Hugging Face folders under OUT/exports. Interrupted, the
same command goes on from the last checkpoint.
"""

import importlib.util
import pathlib
from collections.abc import Sequence
from functools import partial

from absl import flags
from ml_collections import ConfigDict

from data_gen.sample import sample_tables
from launch import common
from webleaper_jax.agent.render import PolicyTokenizer, render_messages
from webleaper_jax.data.dataset import SetInfo, make_set
from webleaper_jax.jsonl import DataError, load_records
from webleaper_jax.model.hf import read_config
from webleaper_jax.parallel.host import keep_freed_memory
from webleaper_jax.records import Trajectory
from webleaper_jax.train.sft import Evaluate, SFTConfig, SFTResult, train_sft

FLAGS = flags.FLAGS


def run(
    config: ConfigDict,
    train: Sequence[Trajectory],
    validation: Sequence[Trajectory],
    init: pathlib.Path,
    out: pathlib.Path,
    evaluate: Evaluate | None = None,
) -> SFTResult:
    """Fine-tunes the policy in `init` on `train`; `config.sft` holds the fields of `SFTConfig`.

    Args:
      validation: for the validation loss; may be empty.
      evaluate: called with (step, model) at every evaluation step; what it returns is logged.
    """
    settings = SFTConfig.from_mapping(config.sft.to_dict())
    tokenizer = PolicyTokenizer.load(init)
    splits = {"train": train, "validation": validation} if validation else {"train": train}
    info = make_set(
        out / "dataset",
        splits,
        partial(render_messages, tokenizer),
        tokenizer=tokenizer.fingerprint,
        pad_id=tokenizer.pad_id,
        row_length=settings.seq_len,
        vocab_size=read_config(init).vocab_size,
        replace=not any(out.glob("checkpoints/[0-9]*")),
    )
    print(f"context: {settings.seq_len:,} tokens\n{describe(info)}")
    return train_sft(settings, out / "dataset", init, out, tokenizer=tokenizer.fingerprint, evaluate=evaluate)


def describe(info: SetInfo) -> str:
    """What is in a training set, a line for each split."""
    lines = []
    for name, split in info.splits.items():
        left_out = ", ".join(f"{count} {reason}" for reason, count in split.drops.items()) or "none"
        rows = f"{split.rows} rows of {info.row_length} tokens ({split.fill:.1%} full)"
        tokens = f"{split.trained_tokens:,} of {split.tokens:,} tokens trained on"
        lines.append(f"{name}: {split.examples} examples in {rows}, {tokens}; left out: {left_out}")
    return "\n".join(lines)


def bundled_base() -> pathlib.Path:
    """The pre-trained tiny policy that is shipped with the sample."""
    return sample_tables().parent / "tiny_base"


def initial_policy(config: ConfigDict, folder: pathlib.Path) -> pathlib.Path:
    """Returns the policy that `config.init` names; SmolLM2 is converted into `folder` first, unless it is there.

    Raises:
      DataError: SmolLM2 is not installed or cannot be read, or the folder named is no policy.
    """
    check_init(config)
    if config.init == "tiny_base":
        return bundled_base()
    if config.init != "smollm2":
        return pathlib.Path(config.init)
    from webleaper_jax.model.gguf import convert_gguf

    out = folder / "smollm2"
    if not (out / "tokenizer.json").exists():
        try:
            convert_gguf(_find_smollm2(), out)
        except (OSError, ImportError, ValueError) as error:
            raise DataError(f"config.init=smollm2: {error}") from None
    return out


def check_init(config: ConfigDict) -> None:
    """Raises `DataError` where `config.init` names no policy: one that is shipped, an installed SmolLM2, a folder.

    Also where the policy takes fewer tokens than an episode may have.
    """
    if config.init == "smollm2":
        _find_smollm2()
        return
    folder = bundled_base() if config.init == "tiny_base" else pathlib.Path(config.init)
    longest = read_config(folder).max_positions
    if config.loop.max_context > longest:
        raise DataError(f"config.loop.max_context is {config.loop.max_context}, but {folder} takes {longest} tokens")


def _find_smollm2() -> pathlib.Path:
    from webleaper_jax.model.gguf import smollm2_file

    if not importlib.util.find_spec("gguf"):
        raise DataError("config.init=smollm2 needs the package that reads its file: pip install gguf")
    try:
        return smollm2_file()
    except OSError as error:
        raise DataError(f"config.init=smollm2: {error}") from None


def _or(path: pathlib.Path, placeholder: str) -> str:
    """A path for the next command, or a word to be replaced where nothing stands there."""
    return str(path) if path.exists() else placeholder


def main(_: Sequence[str]) -> None:
    keep_freed_memory()
    made_by = "python -m launch.collect"
    train = load_records(common.require_file(FLAGS.trajectories, "trajectories", made_by), Trajectory)
    validation = []
    if FLAGS.validation:
        validation = load_records(common.require_file(FLAGS.validation, "validation", made_by), Trajectory)
    out = common.output_folder(FLAGS.out)
    init = pathlib.Path(FLAGS.init) if FLAGS.init else initial_policy(FLAGS.config, out)
    result = run(FLAGS.config, train, validation, init, out)
    for step, found in result.evaluations.items():
        print(f"step {step}: " + ", ".join(f"{name} {value:.4f}" for name, value in found.items()))
    common.finish(
        result.final,
        "python -m launch.grpo",
        tables=_or(out.parent / "tables", "TABLES"),
        tasks=_or(out.parent / "tasks" / "rl.jsonl.gz", "TASKS"),
        policy=result.final,
        out=out.parent / "grpo",
    )


if __name__ == "__main__":
    common.define_config()
    flags.DEFINE_string("trajectories", "", "A file of Trajectory records to train on.")
    flags.DEFINE_string("validation", "", "A file of Trajectory records for the validation loss.")
    flags.DEFINE_string("init", "", "The policy to start from, a Hugging Face folder (default: that of `config.init`).")
    flags.DEFINE_string("out", None, "Folder to write.", required=True)
    common.run(main)
