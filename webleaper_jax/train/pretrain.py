"""Pre-trains the tiny base: a planted induction circuit, then copying and table lookup on growing contexts.

One loop over stages of context length. Each batch depends on the seed and its step alone, so that a run that was
interrupted and goes on gives the same weights as one that was not. Left out: more than one device (the model is too
small for it), and any text but what `pretrain_text` and `pretrain_copy` make.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int
from tokenizers import Tokenizer

from webleaper_jax.jsonl import DataError
from webleaper_jax.model import hf
from webleaper_jax.model.config import ModelConfig
from webleaper_jax.model.decoder import Decoder
from webleaper_jax.parallel.mesh import make_mesh, shard_state
from webleaper_jax.train.checkpoint import Checkpoints
from webleaper_jax.train.induction import plant_induction
from webleaper_jax.train.pretrain_copy import copy_batch
from webleaper_jax.train.pretrain_text import KINDS, TextMaker, Words, text_batch
from webleaper_jax.train.state import OptimizerConfig, Params, TrainState, create_state, make_optimizer
from webleaper_jax.train.tiny_tokenizer import save_tokenizer

_EVAL_SEED = 999_999_937  # far from any step's number: held-out documents are never trained on


@dataclasses.dataclass(frozen=True)
class Stage:
    """`steps` updates on `rows` rows of `length` tokens."""

    length: int
    rows: int
    steps: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Everything that decides the result.

    Attributes:
      copy_every: one row in so many is a random copying row rather than a document.
    """

    stages: tuple[Stage, ...]
    seed: int = 0
    hidden_size: int = 192
    intermediate_size: int = 512
    num_layers: int = 3
    num_heads: int = 3
    rope_theta: float = 1e6
    muon_learning_rate: float = 0.01
    learning_rate: float = 1e-3
    warmup_steps: int = 20
    copy_every: int = 8

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)


class Batch(NamedTuple):
    """`kinds`: 0 where the target counts for nothing, 1 + index in KINDS for answers, -1 for repeated random tokens."""

    tokens: Int[np.ndarray, "B T+1"]
    kinds: Int[np.ndarray, "B T"]


def pretrain(
    config: PretrainConfig,
    words: Words,
    tokenizer: Tokenizer,
    workdir: pathlib.Path,
    *,
    notes: Mapping[str, Any] | None = None,
    checkpoint_seconds: float = 180.0,
    log_steps: int = 20,
    eval_steps: int = 100,
    stop_after: int | None = None,
    say: Callable[[str], None] = print,
) -> Decoder:
    """Trains, or goes on where it was, and writes `workdir/base` (a Hugging Face folder with metadata.json).

    Args:
      notes: written into metadata.json (the command, the families read).
      stop_after: end early after this many steps in all (as if interrupted).

    Raises:
      DataError: the workdir holds checkpoints made with other settings, the shape has no room for the planted circuit,
        or the loss is no longer a finite number.
    """
    mesh = make_mesh({}, jax.devices()[:1])
    decoder = _new_decoder(config, tokenizer.get_vocab_size())
    graph, initial = nnx.split(decoder, nnx.Param)
    optimizer = make_optimizer(
        OptimizerConfig(
            optimizer="muon",
            steps=config.steps,
            learning_rate=config.learning_rate,
            muon_learning_rate=config.muon_learning_rate,
            schedule="linear",
            final_scale=0.02,
            warmup_steps=config.warmup_steps,
        )
    )
    state = create_state(shard_state(nnx.to_pure_dict(initial), mesh), optimizer, mesh)
    checkpoints = Checkpoints(workdir / "checkpoints", {"settings": _fingerprint(config, words, tokenizer)})
    state = checkpoints.restore(state) or state
    step = int(state.step)
    say(f"{sum(p.size for p in jax.tree.leaves(state.params)):,} parameters, step {step} of {config.steps}")
    update, measure = _compiled(graph, initial, optimizer)

    def report(state: TrainState) -> None:
        done = int(state.step)
        scores = evaluate(config, words, tokenizer, measure, state.params, _stage(config, max(done - 1, 0)).length)
        say("  held-out documents: " + " ".join(f"{name} {value:.3f}" for name, value in scores.items()))
        nnx.update(decoder, _state_of(initial, state.params))
        metadata = {
            "settings": dataclasses.asdict(config),
            "step": done,
            "tokens": _tokens(config, 0, done),
            "held_out_accuracy": {name: round(value, 4) for name, value in scores.items()},
            **(notes or {}),
        }
        _export(decoder, tokenizer, workdir / "base", metadata)

    saved, clock, clock_tokens = time.monotonic(), time.monotonic(), 0
    last = min(config.steps, config.steps if stop_after is None else stop_after)
    losses: list[Float[Array, ""]] = []
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(make_batch, config, words, tokenizer, step) if step < last else None
        while ahead is not None:
            batch = ahead.result()
            ahead = pool.submit(make_batch, config, words, tokenizer, step + 1) if step + 1 < last else None
            state, loss = update(state, batch)
            losses.append(loss)
            step, clock_tokens = step + 1, clock_tokens + batch.kinds.size
            if step % log_steps == 0 or step == last:
                mean, losses = float(np.mean(jax.device_get(losses))), []
                if not np.isfinite(mean):
                    raise DataError(
                        f"loss {mean} at step {step}: lower the learning rates; the last checkpoint is kept"
                    )
                rate = clock_tokens / (time.monotonic() - clock)
                left = _tokens(config, step, last) / rate
                say(
                    f"step {step}/{config.steps} length {batch.kinds.shape[1]} loss {mean:.3f} "
                    f"{_tokens(config, 0, step) / 1e6:.2f}M tokens, {rate:.0f} tokens/s, {left / 60:.0f} min left"
                )
                clock, clock_tokens = time.monotonic(), 0
            if time.monotonic() - saved > checkpoint_seconds or step == last:
                checkpoints.save(state, step)
                saved = time.monotonic()
            if step % eval_steps == 0 and step < last:
                report(state)
                clock, clock_tokens = time.monotonic(), 0
    report(state)
    return decoder


def make_batch(config: PretrainConfig, words: Words, tokenizer: Tokenizer, step: int, held_out: bool = False) -> Batch:
    """The batch of a step: documents, and one row in `copy_every` of random copying."""
    stage = _stage(config, step)
    rng = np.random.default_rng([config.seed, _EVAL_SEED if held_out else 0, step])
    # A fraction of a row is a row now and then.
    copies = int(stage.rows / config.copy_every + rng.random()) if config.copy_every else 0
    maker = TextMaker(words, rng)
    encode = lambda texts: [found.ids for found in tokenizer.encode_batch(texts)]  # noqa: E731 - one expression
    tokens, kinds = text_batch(maker, encode, stage.rows - copies, stage.length)
    random_tokens, known = copy_batch(rng, copies, stage.length, tokenizer.get_vocab_size())
    return Batch(np.concatenate([tokens, random_tokens]), np.concatenate([kinds, -known.astype(np.int8)]))


def evaluate(
    config: PretrainConfig,
    words: Words,
    tokenizer: Tokenizer,
    measure: Callable[[Params, Batch], Array],
    params: Params,
    length: int,
    batches: int = 4,
) -> dict[str, float]:
    """Share of answer tokens predicted right (teacher forcing), by kind of answer, on documents never trained on."""
    step = next(i for i in range(config.steps) if _stage(config, i).length == length)
    right, total = np.zeros(len(KINDS) + 1), np.zeros(len(KINDS) + 1)
    for number in range(batches):
        batch = make_batch(config, words, tokenizer, step + number, held_out=True)
        if batch.kinds.shape[1] != length:
            break
        hits = np.asarray(measure(params, batch))
        for kind in range(1, len(KINDS) + 1):
            right[kind] += hits[batch.kinds == kind].sum()
            total[kind] += (batch.kinds == kind).sum()
        right[0] += hits[batch.kinds == -1].sum()
        total[0] += (batch.kinds == -1).sum()
    names = ("copy", *KINDS)
    scores = {name: float(right[i] / total[i]) for i, name in enumerate(names) if total[i]}
    return scores | {"answers": float(right[1:].sum() / max(total[1:].sum(), 1))}


def _compiled(
    graph: nnx.GraphDef[Decoder], initial: nnx.State, optimizer: optax.GradientTransformation
) -> tuple[Callable[[TrainState, Batch], tuple[TrainState, Array]], Callable[[Params, Batch], Array]]:
    """The update, and the function that says which targets are predicted right."""

    def run(params: Params, tokens: ArrayLike) -> tuple[Decoder, Float[Array, "B T D"]]:
        decoder, tokens = nnx.merge(graph, _state_of(initial, params)), jnp.asarray(tokens)
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1] - 1), (tokens.shape[0], tokens.shape[1] - 1))
        return decoder, decoder(tokens[:, :-1], positions, jnp.zeros_like(positions))

    def loss_of(params: Params, batch: Batch) -> Float[Array, ""]:
        decoder, hidden = run(params, batch.tokens)
        logprobs, _ = decoder.token_logprobs(hidden, jnp.asarray(batch.tokens[:, 1:]))
        counts = batch.kinds != 0
        return -jnp.sum(jnp.where(counts, logprobs, 0.0)) / jnp.maximum(counts.sum(), 1)

    def update(state: TrainState, batch: Batch) -> tuple[TrainState, Float[Array, ""]]:
        loss, gradients = jax.value_and_grad(loss_of)(state.params, batch)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        return TrainState(optax.apply_updates(state.params, updates), opt_state, state.step + 1), loss

    def measure(params: Params, batch: Batch) -> Array:
        decoder, hidden = run(params, batch.tokens)
        return decoder.logits(hidden).argmax(-1) == batch.tokens[:, 1:]

    return jax.jit(update, donate_argnums=0), jax.jit(measure)


def _new_decoder(config: PretrainConfig, vocab_size: int) -> Decoder:
    model = ModelConfig(
        vocab_size=vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_heads,
        head_dim=64,
        rope_theta=config.rope_theta,
        tie_embeddings=True,
    )
    decoder = Decoder(model, rngs=nnx.Rngs(config.seed))
    plant_induction(decoder, config.seed)
    return decoder


def _state_of(like: nnx.State, params: Params) -> nnx.State:
    state = jax.tree.map(lambda x: x, like)
    nnx.replace_by_pure_dict(state, dict(params))
    return state


def _stage(config: PretrainConfig, step: int) -> Stage:
    """The stage of a step; the last one goes on for ever."""
    for stage in config.stages:
        if step < stage.steps:
            return stage
        step -= stage.steps
    return config.stages[-1]


def _tokens(config: PretrainConfig, first: int, last: int) -> int:
    """Tokens of the steps from `first` up to, not including, `last`."""
    return sum(_stage(config, step).length * _stage(config, step).rows for step in range(first, last))


def _fingerprint(config: PretrainConfig, words: Words, tokenizer: Tokenizer) -> str:
    content = repr((config, words)) + tokenizer.to_str()
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def _export(decoder: Decoder, tokenizer: Tokenizer, directory: pathlib.Path, metadata: Mapping[str, Any]) -> None:
    """Writes the base; metadata.json comes last, so that its presence says that the rest is there."""
    hf.save_checkpoint(decoder, directory, jnp.bfloat16)
    save_tokenizer(tokenizer, directory)
    temporary = directory / ".metadata.tmp"
    temporary.write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, directory / "metadata.json")
