"""GRPO on the offline web: rollouts, rewards, advantages, update, sync, again. `train_grpo` reads top to bottom.

Strictly on-policy: the rollouts of a step come from the weights that the step updates. Everything random is a pure
function of (seed, step), so a run that was interrupted goes on from its last checkpoint, redoes the step it was in, and
ends with the same weights.

Left out: several updates with fresh old log-probs, refilling of dropped groups, asynchronous rollouts, more than one
process.
"""

import dataclasses
import functools
import math
import os
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import optax
import tqdm
from flax import nnx
from jaxtyping import Array, Float

from webleaper_jax.agent.engine import derive_seed
from webleaper_jax.agent.loop import LoopConfig
from webleaper_jax.agent.render import PolicyTokenizer
from webleaper_jax.agent.tools import Tools
from webleaper_jax.jsonl import DataError
from webleaper_jax.model import hf
from webleaper_jax.parallel.mesh import batch_sharding, make_mesh, shard_state
from webleaper_jax.records import Sampling, Task
from webleaper_jax.rl import advantages, batches, checks, losses, report, rollouts
from webleaper_jax.rl.batches import MicroBatch
from webleaper_jax.rl.losses import LossConfig, LossSums
from webleaper_jax.rl.sync import sync_weights
from webleaper_jax.sampling.engine import EmbeddedEngine
from webleaper_jax.train import sft
from webleaper_jax.train.checkpoint import Checkpoints
from webleaper_jax.train.metrics import Metrics, read_metrics
from webleaper_jax.train.state import OptimizerConfig, Params, TrainState, create_state, make_optimizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class GRPOConfig(OptimizerConfig):
    """Settings of a run, on top of the optimizer's. The paper gives none of them but the shape of the loss.

    Attributes:
      steps: rounds of rollouts and updates.
      tasks_per_step, group_size: G tasks a step, k rollouts of each.
      epochs_per_batch: updates from the rollouts of one step; 1 is strictly on-policy.
      clip_low, clip_high, kl: see `losses.LossConfig`; `kl` is towards the initial checkpoint, 0 is off.
      temperature, max_tokens: of sampling (top-p is 1); the loss uses the same temperature. Tokens are those of a turn.
      micro_batch: rows of full context that are worked through at once; shorter rows come in greater number.
      slots, decode_length, prefill_rows, prefill_chunk: of the embedded engine.
      mesh: sizes of the mesh axes; -1 takes what devices are left.
      checkpoint_every, export_steps: in steps; the last step is always saved and exported.
      max_gap: largest difference of a token's log-prob between trainer and sampler.
      min_entropy, min_reward: the run stops when the mean over the last `floor_steps` steps falls below (0: off).
    """

    schedule: Literal["constant", "cosine", "linear"] = "constant"
    learning_rate: float = 1e-5
    tasks_per_step: int = 8
    group_size: int = 8
    epochs_per_batch: int = 1
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl: float = 0.0
    temperature: float = 1.0
    max_tokens: int = 512
    micro_batch: int = 4
    slots: int = 64
    decode_length: int = 16
    prefill_rows: int = 8
    prefill_chunk: int = 64
    logprob_chunk: int = 512
    mesh: dict[str, int] = dataclasses.field(default_factory=lambda: {"data": 1, "fsdp": -1, "tensor": 1})
    seed: int = 0
    checkpoint_every: int = 10
    export_steps: tuple[int, ...] = ()
    max_gap: float = 1e-3
    min_entropy: float = 0.0
    min_reward: float = 0.0
    floor_steps: int = 5

    SECTION: ClassVar[str] = "config.grpo"
    AT_LEAST_1: ClassVar[tuple[str, ...]] = (
        "steps", "tasks_per_step", "epochs_per_batch", "micro_batch", "slots", "max_tokens", "decode_length",
        "prefill_rows", "prefill_chunk", "logprob_chunk", "floor_steps",
    )  # fmt: skip

    @classmethod
    def from_mapping(cls, fields: Mapping[str, Any]) -> "GRPOConfig":
        """Reads plain fields (`config.grpo.to_dict()`). Raises `DataError` on an unknown, missing or bad one."""
        config = super().from_mapping(fields)
        if config.group_size < 2:
            raise DataError(
                f"config.grpo.group_size is {config.group_size}: advantages need at least 2 rollouts of a task"
            )
        if config.temperature <= 0:
            raise DataError(f"config.grpo.temperature is {config.temperature}: exploring needs one above 0")
        return config


class GRPOResult(NamedTuple):
    """The run's Hugging Face checkpoints by step (0 is not among them)."""

    exports: dict[int, pathlib.Path]

    @property
    def final(self) -> pathlib.Path:
        return self.exports[max(self.exports)]


class RunStopped(DataError):
    """The run should not go on: a number that is not finite, or a floor that was reached."""


def train_grpo(
    config: GRPOConfig,
    tasks: Sequence[Task],
    tools: Tools,
    loop: LoopConfig,
    init_dir: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
) -> GRPOResult:
    """Trains the checkpoint in `init_dir` on tasks; called again, goes on where it was.

    Writes `checkpoints/`, `metrics.jsonl`, `tensorboard/`, `rollouts/step_N/` (every rollout, and its score) and
    `exports/step_N/` (Hugging Face form with the tokenizer; for `export_steps` and the last step) under `out_dir`.

    Raises:
      DataError: settings that do not fit the tasks, the model, the devices or the checkpoints of this folder.
      CheckFailed: one of the checks of `rl.checks` failed; nothing was updated.
      RunStopped: loss or gradient are not finite, or a floor was reached; the last checkpoint is kept.
    """
    out_dir = pathlib.Path(out_dir)
    rollouts.choose_tasks(tasks, config.tasks_per_step, config.seed, 0)  # too few tasks show before anything is loaded

    # ---- Model, optimizer and state, sharded over the mesh.
    mesh = make_mesh(config.mesh)
    tokenizer = PolicyTokenizer.load(init_dir)
    decoder = hf.load_checkpoint(init_dir)
    graph, weights = nnx.split(decoder)
    initial: Params = shard_state(nnx.to_pure_dict(weights), mesh)
    updates = config.steps * config.epochs_per_batch
    optimizer = make_optimizer(dataclasses.replace(config, steps=updates))
    # A copy, since the state's own arrays are given up at each update.
    reference = jax.tree.map(jnp.copy, initial) if config.kl else None
    trainer = _Trainer(config, graph, optimizer, mesh, loop.max_context, reference)
    state = create_state(initial, optimizer, mesh)

    # ---- Where an earlier run of the same command came to.
    checkpoints = Checkpoints(out_dir / "checkpoints", _fingerprints(config, tasks, tools, loop, tokenizer, init_dir))
    restored = checkpoints.restore(state)
    first = checkpoints.steps()[0] if restored else 0
    state = restored or state
    if first:
        print(f"grpo: going on from step {first} of {config.steps}", flush=True)
    if first >= config.steps:
        if not _export_dir(out_dir, first).exists():
            export(nnx.merge(graph, state.params), init_dir, _export_dir(out_dir, first))
        return _result(config, out_dir)

    # ---- The sampler, with the trainer's weights before the first rollout.
    engine = EmbeddedEngine(
        decoder,
        tokenizer,
        slots=config.slots,
        max_len=loop.max_context,
        decode_length=config.decode_length,
        prefill_rows=config.prefill_rows,
        prefill_chunk=config.prefill_chunk,
    )
    del decoder, weights
    sync_weights(engine, state.params, first, functools.partial(trainer.rescore, state.params), config.max_gap)

    metrics = Metrics(out_dir, first)
    interval = 1.0 if sys.stderr.isatty() else 15.0
    bar = tqdm.tqdm(total=config.steps, initial=first, desc="grpo", unit="step", mininterval=interval)
    with metrics, bar:
        for step in range(first, config.steps):
            engine.stats = type(engine.stats)()

            # ---- Rollouts and rewards.
            done = rollouts.collect(
                rollouts.choose_tasks(tasks, config.tasks_per_step, config.seed, step),
                engine,
                tools,
                out_dir / "rollouts" / f"step_{step + 1:06d}",
                size=config.group_size,
                loop=loop,
                sampling=Sampling(
                    temperature=config.temperature,
                    top_p=1.0,
                    max_tokens=config.max_tokens,
                    seed=derive_seed(config.seed, "grpo", step),
                ),
                label=f"grpo step {step + 1}",
            )
            for group in done.groups:
                checks.check_group(group.task, group.trajectories, group.scores, config.group_size)
                for trajectory in group.trajectories:
                    checks.check_tokens(trajectory, tokenizer, step)
                    checks.check_prompt(group.task, trajectory, tokenizer, loop.system)

            # ---- Advantages. Groups of equal rewards teach nothing and are left out.
            started = time.monotonic()
            trainable = []
            for group in done.groups:
                masks = [batches.loss_masks(trajectory) for trajectory in group.trajectories]
                of_group = advantages.trajectory_advantages(group.rewards, masks)
                checks.check_advantages(group.rewards, of_group)
                if not of_group.zero_variance:
                    trainable.append((group.trajectories, of_group))
            values = report.of_rollouts(done, len(trainable), engine.stats)

            # ---- Update, and sync.
            if trainable:
                built = batches.build_sequences(trainable)
                state, values_of_update = trainer.update(state, built.sequences, step + 1)
                values |= values_of_update | {"tokens/nonfinite": built.nonfinite + engine.stats.nonfinite}
                values["time/train"] = round(time.monotonic() - started, 3)
                started = time.monotonic()
                rescore = functools.partial(trainer.rescore, state.params)
                sync_weights(engine, state.params, step + 1, rescore, config.max_gap)
                values["time/sync"] = round(time.monotonic() - started, 3)
            else:
                engine.version = step + 1
                bar.write(f"grpo: step {step + 1} skipped: {report.why_nothing(done)}; the weights stay as they are")
            values["train/skipped"] = float(not trainable)
            metrics.write(step + 1, values)
            bar.set_postfix(report.shown(values), refresh=False)
            bar.update()

            # ---- Checkpoint last, so that nothing before it can be missing.
            if step + 1 in {*config.export_steps, config.steps}:
                export(nnx.merge(graph, state.params), init_dir, _export_dir(out_dir, step + 1))
            if step + 1 == config.steps or (config.checkpoint_every and (step + 1) % config.checkpoint_every == 0):
                checkpoints.save(state, step + 1)
            _check_floors(config, out_dir)
    return _result(config, out_dir)


class _Trainer:
    """The update of one step, in micro-batches of a few fixed shapes."""

    def __init__(
        self,
        config: GRPOConfig,
        graph: nnx.GraphDef,
        optimizer: optax.GradientTransformation,
        mesh: jax.sharding.Mesh,
        longest: int,
        reference: Params | None,
    ):
        self._config = config
        self._optimizer = optimizer
        self._sharding = batch_sharding(mesh)
        self._rows_multiple = mesh.shape["data"] * mesh.shape["fsdp"]
        self._lengths = batches.bucket_lengths(longest)
        self._tokens = config.micro_batch * self._lengths[-1]
        self._reference = reference
        loss = LossConfig(config.clip_low, config.clip_high, config.kl)
        fixed = {"graph": graph, "chunk": config.logprob_chunk}
        self._add_gradient = functools.partial(add_gradient, **fixed, loss=loss, temperature=config.temperature)
        self._logprobs = functools.partial(token_logprobs, **fixed)

    def update(
        self, state: TrainState, sequences: Sequence[batches.TrainSequence], step: int
    ) -> tuple[TrainState, dict[str, float | int]]:
        """Makes the updates of one step from its sequences; returns the new state and what to log.

        Raises:
          CheckFailed: the log-probs are not the sampler's.
          RunStopped: the loss or the gradient is not finite; the state given is then of no more use.
        """
        micro = batches.micro_batches(sequences, self._lengths, self._tokens, self._rows_multiple)
        placed = [MicroBatch(*(jax.device_put(x, self._sharding) for x in batch)) for batch in micro]
        references = [
            self._logprobs(self._reference, batch, temperature=self._config.temperature)[0] if self._reference else None
            for batch in placed
        ]
        values: dict[str, float | int] = {}
        for epoch in range(self._config.epochs_per_batch):
            gradient, sums = jax.tree.map(jnp.zeros_like, state.params), LossSums.zero()
            for batch, reference in zip(placed, references, strict=True):
                gradient, sums = self._add_gradient(state.params, (gradient, sums), batch, reference)
            seen = jax.device_get(sums)
            if epoch == 0:
                checks.check_logprobs(float(seen.gap / seen.tokens), float(seen.gap_max), self._config.max_gap)
            state, norm, size = apply_gradient(state, gradient, optimizer=self._optimizer)
            if not (math.isfinite(seen.loss) and math.isfinite(norm) and math.isfinite(size)):
                raise RunStopped(
                    f"grpo: step {step} has loss {seen.loss}, gradient norm {norm} and gives weights of norm {size}: "
                    f"lower learning_rate ({self._config.learning_rate}); the last checkpoint is kept"
                )
            values |= report.of_update(seen, float(norm), epoch)
        filled = sum(int(batch.segment_ids.sum()) for batch in micro)
        values["train/padding"] = round(1 - filled / sum(batch.tokens.size for batch in micro), 4)
        values["train/micro_batches"] = len(micro)
        return state, values

    def rescore(self, params: Params, ids: list[int]) -> Float[np.ndarray, " T"]:
        """Log-probs of `ids[1:]` at temperature 1, computed as in training."""
        length = next(n for n in self._lengths if n >= len(ids) - 1)
        zeros = np.zeros(len(ids) - 1)
        array = np.array(ids, np.int32)
        sequence = batches.TrainSequence("", array[:-1], array[1:], zeros, zeros, zeros, zeros.astype(bool))
        batch = batches.micro_batches([sequence], (length,), length, self._rows_multiple)[0]
        placed = MicroBatch(*(jax.device_put(x, self._sharding) for x in batch))
        return np.asarray(self._logprobs(params, placed, temperature=1.0)[0])[0, : len(ids) - 1]


# ------------------------------------------------------------------------------------------------- what is compiled


@functools.partial(jax.jit, static_argnames=("graph", "chunk", "temperature"))
def token_logprobs(
    params: Params, batch: MicroBatch, *, graph: nnx.GraphDef, chunk: int, temperature: float
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Log-probs of the targets and entropies of the policy, at the sampling temperature."""
    model = nnx.merge(graph, params)
    hidden = model(batch.tokens, batch.positions, batch.segment_ids)
    return model.token_logprobs(hidden, batch.targets, chunk, temperature)


@functools.partial(jax.jit, static_argnames=("graph", "loss", "chunk", "temperature"), donate_argnames="total")
def add_gradient(
    params: Params,
    total: tuple[Params, LossSums],
    batch: MicroBatch,
    reference: Float[Array, "B T"] | None,
    *,
    graph: nnx.GraphDef,
    loss: LossConfig,
    chunk: int,
    temperature: float,
) -> tuple[Params, LossSums]:
    """Adds the gradient and the metrics of a micro-batch to those of the ones before it."""

    def of(params: Params) -> tuple[Float[Array, ""], LossSums]:
        logprobs, entropy = token_logprobs(params, batch, graph=graph, chunk=chunk, temperature=temperature)
        return losses.policy_loss(logprobs, entropy, batch.loss_targets, loss, reference)

    gradient, sums = jax.grad(of, has_aux=True)(params)
    return jax.tree.map(jnp.add, total[0], gradient), total[1].add(sums)


@functools.partial(jax.jit, static_argnames="optimizer", donate_argnames="state")
def apply_gradient(
    state: TrainState, gradient: Params, *, optimizer: optax.GradientTransformation
) -> tuple[TrainState, Float[Array, ""], Float[Array, ""]]:
    """One update; also returns the global norms of the gradient and of the new weights."""
    change, opt_state = optimizer.update(gradient, state.opt_state, state.params)
    params = optax.apply_updates(state.params, change)
    return TrainState(params, opt_state, state.step + 1), optax.global_norm(gradient), optax.global_norm(params)


# ------------------------------------------------------------------------------------------------------------- parts


def export(decoder: Any, init_dir: str | os.PathLike[str], directory: pathlib.Path) -> None:
    """Writes a Hugging Face checkpoint with the tokenizer of `init_dir`; whole or absent."""
    sft.export(decoder, init_dir, directory)


def _export_dir(out_dir: pathlib.Path, step: int) -> pathlib.Path:
    return out_dir / "exports" / f"step_{step:06d}"


def _result(config: GRPOConfig, out_dir: pathlib.Path) -> GRPOResult:
    paths = {step: _export_dir(out_dir, step) for step in sorted({*config.export_steps, config.steps})}
    return GRPOResult({step: path for step, path in paths.items() if path.exists()})


def _check_floors(config: GRPOConfig, out_dir: pathlib.Path) -> None:
    """Stops a run that has collapsed."""
    lines = [line for line in read_metrics(out_dir) if "reward/mean" in line][-config.floor_steps :]
    if len(lines) < config.floor_steps:
        return
    for name, floor in (("train/entropy", config.min_entropy), ("reward/mean", config.min_reward)):
        seen = [line[name] for line in lines if name in line]
        if floor and seen and sum(seen) / len(seen) < floor:
            raise RunStopped(
                f"grpo: step {lines[-1]['step']}: {name} was {sum(seen) / len(seen):.4f} over the last {len(lines)} "
                f"steps, below {floor}; the last checkpoint is kept"
            )


# Settings that may change between two runs of a folder: they do not change what is learnt.
_FREE = {"mesh", "checkpoint_every", "export_steps", "slots", "min_entropy", "min_reward", "floor_steps", "max_gap"}


def _fingerprints(
    config: GRPOConfig,
    tasks: Sequence[Task],
    tools: Tools,
    loop: LoopConfig,
    tokenizer: PolicyTokenizer,
    init_dir: str | os.PathLike[str],
) -> dict[str, str]:
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name not in _FREE}
    return {
        "tokenizer": tokenizer.fingerprint,
        "tasks": str(derive_seed(*sorted(task.id for task in tasks))),
        "web": tools.web.fingerprint,
        "tools": tools.fingerprint,
        "initial checkpoint": hf.fingerprint(init_dir),
        **{f"config.loop.{name}": str(value) for name, value in msgspec.structs.asdict(loop).items()},
        **{f"config.grpo.{name}": str(value) for name, value in settings.items()},
    }
