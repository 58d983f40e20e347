"""Supervised fine-tuning on packed trajectories. `train_sft` reads top to bottom.

The loss is the mean negative log-likelihood of the tokens that the policy wrote (mask 1), over all rows of the global
batch: one numerator and one denominator, divided once, whatever the packing, the mesh or the number of micro-batches.

Left out: mixed precision, LoRA, several sources, saving in the background.
"""

import collections
import dataclasses
import functools
import math
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
import tqdm
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from webleaper_jax.data.dataset import RowSource
from webleaper_jax.data.packing import Rows
from webleaper_jax.data.pipeline import Batches, in_order
from webleaper_jax.jsonl import DataError
from webleaper_jax.model import hf
from webleaper_jax.model.decoder import Decoder
from webleaper_jax.parallel.mesh import batch_sharding, check_heads, make_mesh, shard_state
from webleaper_jax.train.checkpoint import Checkpoints
from webleaper_jax.train.metrics import Metrics, read_metrics
from webleaper_jax.train.state import OptimizerConfig, Params, TrainState, create_state, make_optimizer, make_schedule

# Called at evaluation steps with the number of updates made and the model; what it returns is logged. The model's
# arrays are given up to the next update: use them, do not keep them.
Evaluate = Callable[[int, Decoder], Mapping[str, float]]

_IN_FLIGHT = 2  # steps handed to the device before the oldest one's loss is looked at


@dataclasses.dataclass(frozen=True, kw_only=True)
class SFTConfig(OptimizerConfig):
    """Settings of a run, on top of the optimizer's.

    Attributes:
      batch_size: rows of `seq_len` tokens a step, over all devices and micro-batches.
      micro_batches: parts that a batch is worked through in, one after the other; the result is the same.
      mesh: sizes of the mesh axes; -1 takes what devices are left.
      checkpoint_every, eval_every: in steps; 0 means at the end only. export_steps: as Hugging Face checkpoints.
      logprob_chunk: positions whose logits exist at a time.
    """

    batch_size: int
    seq_len: int
    seed: int = 0
    micro_batches: int = 1
    mesh: dict[str, int] = dataclasses.field(default_factory=lambda: {"data": 1, "fsdp": -1, "tensor": 1})
    checkpoint_every: int = 100
    eval_every: int = 0
    export_steps: tuple[int, ...] = ()
    log_every: int = 10
    logprob_chunk: int = 512

    SECTION: ClassVar[str] = "config.sft"
    AT_LEAST_1: ClassVar[tuple[str, ...]] = (
        "steps", "batch_size", "seq_len", "micro_batches", "log_every", "logprob_chunk",
    )  # fmt: skip


class Batch(NamedTuple):
    """`data.packing.Rows` on the devices."""

    tokens: Int[Array, "B T"]
    positions: Int[Array, "B T"]
    segment_ids: Int[Array, "B T"]
    loss_mask: Bool[Array, "B T"]


class StepMetrics(NamedTuple):
    """What one update reports: loss in nats a trained token, global gradient norm (before clipping), learning rate of
    AdamW, and counts of tokens."""

    loss: Float[Array, ""]
    grad_norm: Float[Array, ""]
    learning_rate: Float[Array, ""]
    trained_tokens: Int[Array, ""]
    tokens: Int[Array, ""]


class SFTResult(NamedTuple):
    """Where the run's Hugging Face checkpoints are, by step, and what was measured at evaluation steps."""

    exports: dict[int, pathlib.Path]
    evaluations: dict[int, dict[str, float]]

    @property
    def final(self) -> pathlib.Path:
        return self.exports[max(self.exports)]


class DivergedError(DataError):
    """The loss or the gradient is no longer a finite number."""


def train_sft(
    config: SFTConfig,
    dataset_dir: str | os.PathLike[str],
    init_dir: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    *,
    tokenizer: str,
    evaluate: Evaluate | None = None,
) -> SFTResult:
    """Fine-tunes the checkpoint in `init_dir` on a training set; called again, goes on where it was.

    Writes `checkpoints/`, `metrics.jsonl`, `tensorboard/` and `exports/step_N/` (Hugging Face form, with the tokenizer
    of `init_dir`; for each of `export_steps` and for the last step) under `out_dir`.

    Args:
      tokenizer: fingerprint of the tokenizer in `init_dir`; the set must have been made with it.
      evaluate: called after the validation loss at every evaluation step.

    Raises:
      DataError: settings that do not fit the set, the model, the devices or the checkpoints of this folder.
      DivergedError: the loss is not finite; the last checkpoint is kept.
    """
    out_dir = pathlib.Path(out_dir)

    # ---- Data: which rows a step sees is a pure function of (seed, step).
    source = RowSource(dataset_dir, "train")
    _check_settings(config, source, tokenizer, pathlib.Path(dataset_dir))
    batches = Batches(
        source,
        batch_size=config.batch_size,
        seed=config.seed,
        process=jax.process_index(),
        processes=jax.process_count(),
    )
    some = "validation" in source.info.splits and source.info.splits["validation"].rows
    validation = RowSource(dataset_dir, "validation") if some else None

    # ---- Model and optimizer, sharded over the mesh.
    mesh = make_mesh(config.mesh)
    _check_mesh(config, mesh)
    optimizer = make_optimizer(config)
    model = hf.load_checkpoint(init_dir)
    if config.seq_len > model.config.max_positions:
        raise DataError(
            f"{init_dir}: the model takes {model.config.max_positions} tokens, config.sft.seq_len is {config.seq_len}"
        )
    check_heads(mesh, model.config.num_kv_heads)
    graph, weights = nnx.split(model)
    state = create_state(shard_state(nnx.to_pure_dict(weights), mesh), optimizer, mesh)
    del model, weights

    # ---- Where an earlier run of the same command came to.
    checkpoints = Checkpoints(out_dir / "checkpoints", _fingerprints(config, source, init_dir))
    state = checkpoints.restore(state) or state
    first = int(state.step)
    if first:
        print(f"sft: going on from step {first} of {config.steps}", flush=True)

    if first == config.steps:
        print(f"sft: all {config.steps} steps done before", flush=True)
        if not _export_dir(out_dir, first).exists():
            export(nnx.merge(graph, state.params), init_dir, _export_dir(out_dir, first))
        return _result(config, out_dir)

    # ---- Compile: once, ahead of the first step.
    put = functools.partial(_put, mesh)
    started = time.monotonic()
    like = put(batches[first])
    step_fn = jax.jit(
        functools.partial(train_step, graph, optimizer, config),
        donate_argnums=0,
        out_shardings=(jax.tree.map(lambda x: x.sharding, state), None),
    )
    update = step_fn.lower(state, like).compile()
    sums = jax.jit(functools.partial(loss_sums, graph, chunk=config.logprob_chunk))
    validate = sums.lower(state.params, like).compile() if validation else None
    print(f"sft: compiled in {time.monotonic() - started:.1f} s", flush=True)

    # ---- The loop. The device is kept `_IN_FLIGHT` steps ahead of the loss that is looked at.
    metrics = Metrics(out_dir, first)
    log = _Log(metrics, config)
    in_flight: collections.deque[tuple[int, StepMetrics]] = collections.deque()
    bar = tqdm.tqdm(
        total=config.steps, initial=first, desc="sft", unit="step", mininterval=1.0 if sys.stderr.isatty() else 15.0
    )
    with metrics, bar:
        for step in range(first + 1, config.steps + 1):
            with jax.transfer_guard("disallow"):  # nothing but the batch and the loss moves between host and device
                state, reported = update(state, put(batches[step - 1]))
            in_flight.append((step, reported))
            saves, evaluates, exports = (_due(step, config, what) for what in ("checkpoint", "eval", "export"))
            pause = saves or evaluates or exports
            while len(in_flight) > (0 if pause else _IN_FLIGHT):
                bar.set_postfix(log.add(*in_flight.popleft()), refresh=False)
                bar.update()
            if evaluates:
                found: dict[str, float] = {}
                if validation and validate:
                    found["validation/loss"] = _validation_loss(validate, state.params, validation, config, put)
                found |= evaluate(step, nnx.merge(graph, state.params)) if evaluate else {}
            if evaluates and found:
                metrics.write(step, found)
                bar.write(f"sft: step {step}: " + ", ".join(f"{name} {value:.4f}" for name, value in found.items()))
            if exports:
                export(nnx.merge(graph, state.params), init_dir, _export_dir(out_dir, step))
            if saves:
                checkpoints.save(state, step)  # last, so that nothing before it can be missing
            if pause:
                log.restart_clock()

    return _result(config, out_dir)


# ------------------------------------------------------------------------------------------------- what is compiled


def train_step(
    graph: Any, optimizer: optax.GradientTransformation, config: SFTConfig, state: TrainState, batch: Batch
) -> tuple[TrainState, StepMetrics]:
    """One update from one global batch."""
    sums = functools.partial(loss_sums, graph, chunk=config.logprob_chunk)
    (numerator, denominator), grads = _summed_gradients(sums, state.params, batch, config.micro_batches)
    divisor = jnp.maximum(denominator, 1).astype(jnp.float32)
    grads = jax.tree.map(lambda g: g / divisor, grads)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    reported = StepMetrics(
        loss=numerator / divisor,
        grad_norm=optax.global_norm(grads),
        learning_rate=jnp.float32(make_schedule(config, config.learning_rate)(state.step)),
        trained_tokens=denominator,
        tokens=jnp.sum(batch.segment_ids > 0, dtype=jnp.int32),
    )
    return TrainState(optax.apply_updates(state.params, updates), opt_state, state.step + 1), reported


def loss_sums(graph: Any, params: Params, batch: Batch, *, chunk: int = 512) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """Returns the summed negative log-likelihood (nats, float32) of the trained tokens, and how many they are."""
    model = nnx.merge(graph, params)
    targets, trained = next_tokens(batch)
    hidden = model(batch.tokens, batch.positions, batch.segment_ids)
    logprobs, _ = model.token_logprobs(hidden, targets, chunk)
    # `where`, not a product: whatever stands at an untrained token (inf, NaN) has no part in the sum.
    return -jnp.sum(jnp.where(trained, logprobs, 0.0)), jnp.sum(trained, dtype=jnp.int32)


def next_tokens(batch: Batch) -> tuple[Int[Array, "B T"], Bool[Array, "B T"]]:
    """What each position predicts, and whether that is trained on: the next token, of the same example, with mask 1."""

    def left(x: Array) -> Array:
        return jnp.concatenate([x[:, 1:], jnp.zeros_like(x[:, :1])], axis=1)

    same = (left(batch.segment_ids) == batch.segment_ids) & (batch.segment_ids > 0)
    return left(batch.tokens), left(batch.loss_mask) & same


def _summed_gradients(
    sums: Callable[[Params, Batch], tuple[Float[Array, ""], Int[Array, ""]]], params: Params, batch: Batch, parts: int
) -> tuple[tuple[Float[Array, ""], Int[Array, ""]], Params]:
    """The sums over a batch and the gradient of the first, worked through in `parts` micro-batches."""
    gradient = jax.value_and_grad(sums, has_aux=True)
    if parts == 1:
        return gradient(params, batch)
    # Row b goes to micro-batch b % parts: every device then holds an equal share of every micro-batch.
    split = jax.tree.map(lambda x: x.reshape(-1, parts, x.shape[1]).swapaxes(0, 1), batch)
    zero = jax.tree.map(jnp.zeros_like, ((jnp.float32(0), jnp.int32(0)), params))
    total, _ = jax.lax.scan(
        lambda total, part: (jax.tree.map(jnp.add, total, gradient(params, part)), None), zero, split
    )
    return total


# ------------------------------------------------------------------------------------------------------------- parts


class _Log:
    """Takes the reports of finished steps and writes one line every `log_every` of them."""

    def __init__(self, metrics: Metrics, config: SFTConfig):
        self._metrics = metrics
        self._config = config
        self._reports: list[StepMetrics] = []
        self.restart_clock()

    def restart_clock(self) -> None:
        """Leaves what happened since the last report (evaluating, saving) out of the rate."""
        self._since = time.monotonic()
        self._timed = 0
        self._shown: dict[str, str] = {}

    def add(self, step: int, reported: StepMetrics) -> dict[str, str]:
        """Takes one report and returns what a progress bar should show."""
        report = jax.device_get(reported)
        if not (math.isfinite(report.loss) and math.isfinite(report.grad_norm)):
            raise DivergedError(
                f"sft: step {step} has loss {report.loss} and gradient norm {report.grad_norm}: lower "
                f"learning_rate ({self._config.learning_rate}) or set clip_norm; the last checkpoint is kept"
            )
        self._reports.append(report)
        self._timed += int(report.tokens)
        rate = self._timed / max(time.monotonic() - self._since, 1e-9)
        # A line ends where a checkpoint is made, so that a run that goes on from it writes the same lines.
        if step % self._config.log_every == 0 or _due(step, self._config, "checkpoint"):
            trained = sum(int(r.trained_tokens) for r in self._reports)
            summed = sum(float(r.loss) * int(r.trained_tokens) for r in self._reports)
            rows = self._config.batch_size * self._config.seq_len * len(self._reports)
            values = {
                "train/loss": summed / max(trained, 1),
                "train/grad_norm": float(report.grad_norm),
                "train/learning_rate": float(report.learning_rate),
                "train/trained_tokens": trained,
                "train/padding": round(1 - sum(int(r.tokens) for r in self._reports) / rows, 4),
                "speed/tokens_per_second": round(rate, 1),
            }
            self._metrics.write(step, values)
            self._reports.clear()
        return {"loss": f"{report.loss:.3f}", "tokens/s": f"{rate:.0f}"}


def _validation_loss(
    validate: Callable[[Params, Batch], tuple[Float[Array, ""], Int[Array, ""]]],
    params: Params,
    source: RowSource,
    config: SFTConfig,
    put: Callable[[Rows], Batch],
) -> float:
    """Mean loss in nats over all trained tokens of a split."""
    batches = in_order(source, config.batch_size, jax.process_index(), jax.process_count())
    sums = jax.device_get([validate(params, put(rows)) for rows in batches])
    return sum(float(n) for n, _ in sums) / max(sum(int(d) for _, d in sums), 1)


def _put(mesh: Mesh, rows: Rows) -> Batch:
    """Places this process's rows on its devices, divided over the axes that hold different rows."""
    return Batch(*(jax.make_array_from_process_local_data(batch_sharding(mesh), part) for part in rows))


def _due(step: int, config: SFTConfig, what: str) -> bool:
    if step == config.steps:
        return True
    if what == "export":
        return step in config.export_steps
    every = config.checkpoint_every if what == "checkpoint" else config.eval_every
    return bool(every) and step % every == 0


def _export_dir(out_dir: pathlib.Path, step: int) -> pathlib.Path:
    return out_dir / "exports" / f"step_{step:06d}"


def export(model: Decoder, init_dir: str | os.PathLike[str], directory: pathlib.Path) -> None:
    """Writes a Hugging Face checkpoint with the tokenizer of `init_dir`; whole or absent."""
    temporary = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    hf.save_checkpoint(model, temporary)
    written = {path.name for path in temporary.iterdir()}
    for path in sorted(pathlib.Path(init_dir).iterdir()):
        # The tokenizer's files, the chat template, the generation settings: all that is no weight and no new config,
        # and not metadata.json, which tells how the base was made.
        if (
            path.suffix in (".json", ".jinja", ".txt", ".model")
            and path.name not in {*written, "metadata.json"}
            and "index" not in path.name
        ):
            shutil.copy(path, temporary / path.name)
    shutil.rmtree(directory, ignore_errors=True)
    os.replace(temporary, directory)


def _result(config: SFTConfig, out_dir: pathlib.Path) -> SFTResult:
    """What is in the folder, made by this run of the command and by earlier ones."""
    steps = sorted({*config.export_steps, config.steps})
    evaluations: dict[int, dict[str, float]] = {}
    for line in read_metrics(out_dir):
        if not any(name.startswith("train/") for name in line):
            evaluations[line["step"]] = {name: value for name, value in line.items() if name != "step"}
    exports = {step: _export_dir(out_dir, step) for step in steps}
    return SFTResult({step: path for step, path in exports.items() if path.exists()}, evaluations)


# Settings that may change between two runs of a folder: they do not change what is learnt.
_FREE = {"mesh", "checkpoint_every", "eval_every", "export_steps", "log_every"}


def _fingerprints(config: SFTConfig, source: RowSource, init_dir: str | os.PathLike[str]) -> dict[str, str]:
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name not in _FREE}
    return {
        "tokenizer": source.info.tokenizer,
        "training set": source.info.content,
        "initial checkpoint": hf.fingerprint(init_dir),
        **{f"config.sft.{name}": str(value) for name, value in settings.items()},
    }


def _check_settings(config: SFTConfig, source: RowSource, tokenizer: str, dataset_dir: pathlib.Path) -> None:
    if source.info.tokenizer != tokenizer:
        raise DataError(
            f"{dataset_dir}: was made with tokenizer {source.info.tokenizer}, the model to train has {tokenizer}: make "
            "the set again with the model's tokenizer"
        )
    if source.info.row_length != config.seq_len:
        raise DataError(
            f"{dataset_dir}: has rows of {source.info.row_length} tokens, config.sft.seq_len is {config.seq_len}: make "
            "the set again, or change seq_len"
        )


def _check_mesh(config: SFTConfig, mesh: Mesh) -> None:
    shares = mesh.shape["data"] * mesh.shape["fsdp"] * config.micro_batches
    if config.batch_size % shares:
        raise DataError(
            f"config.sft: batch_size {config.batch_size} is no multiple of data x fsdp x micro_batches = {shares}"
        )
