"""What training changes: parameters, optimizer state, step; and how it is made, sharded from the start."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import msgspec
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Int

from webleaper_jax.jsonl import DataError
from webleaper_jax.parallel.mesh import state_shardings

# A nested dict of arrays (`nnx.to_pure_dict`); anything of the same structure that describes them.
Params = Mapping[str, Any]
_Config = TypeVar("_Config", bound="OptimizerConfig")


class TrainState(NamedTuple):
    """A pytree. `step` counts the updates made so far."""

    params: Params
    opt_state: optax.OptState
    step: Int[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """An optimizer with its schedule.

    Attributes:
      optimizer: `adamw`, or `muon` for the weight matrices of the layers and AdamW (in Nesterov form) for all else:
        embeddings, norm gains.
      learning_rate: the peak one of AdamW. `muon_learning_rate`: that of the matrices under Muon, same schedule.
      schedule: after `warmup_steps` of linear growth from 0: `constant`, or `cosine` or `linear` decay that reaches
        `final_scale` times the peak at `steps`.
      weight_decay: decoupled; never on norm gains, and under Muon on the layers' matrices only.
      clip_norm: gradients are scaled down to this global norm; 0 is off.
    """

    steps: int
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = 1e-3
    muon_learning_rate: float = 0.02
    schedule: Literal["constant", "cosine", "linear"] = "cosine"
    warmup_steps: int = 0
    final_scale: float = 0.1
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    b1: float = 0.9
    b2: float = 0.95

    SECTION: ClassVar[str] = "config"  # what errors call these settings
    AT_LEAST_1: ClassVar[tuple[str, ...]] = ("steps",)

    @classmethod
    def from_mapping(cls: type[_Config], fields: Mapping[str, Any]) -> _Config:
        """Reads plain fields (`config.sft.to_dict()`). Raises `DataError` on an unknown, missing or bad one."""
        unknown = sorted(set(fields) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise DataError(f"{cls.SECTION}: unknown field `{unknown[0]}`")
        try:
            config = msgspec.convert(dict(fields), cls)
        except msgspec.ValidationError as error:
            raise DataError(f"{cls.SECTION}: {error}") from None
        for name in cls.AT_LEAST_1:
            if getattr(config, name) < 1:
                raise DataError(f"{cls.SECTION}.{name} is {getattr(config, name)}, it must be at least 1")
        return config


def make_schedule(config: OptimizerConfig, peak: float) -> optax.Schedule:
    """Learning rate as a function of the update's number (0 for the first).

    Raises:
      DataError: an unknown schedule, or a warm-up as long as the whole run.
    """
    if config.warmup_steps and config.warmup_steps >= config.steps:
        raise DataError(f"warmup_steps {config.warmup_steps} leaves nothing of steps {config.steps}: lower it")
    decay = max(config.steps - config.warmup_steps, 1)
    match config.schedule:
        case "constant":
            after: optax.Schedule = optax.constant_schedule(peak)
        case "cosine":
            after = optax.cosine_decay_schedule(peak, decay, alpha=config.final_scale)
        case "linear":
            after = optax.linear_schedule(peak, peak * config.final_scale, decay)
        case _:
            raise DataError(f"schedule {config.schedule!r} is unknown: constant, cosine or linear")
    # The first update of a warm-up already moves: (step + 1) / warmup_steps of the peak.
    warmup = optax.linear_schedule(peak / max(config.warmup_steps, 1), peak, max(config.warmup_steps - 1, 1))
    return optax.join_schedules([warmup, after], [config.warmup_steps]) if config.warmup_steps else after


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Clipping, then AdamW or Muon (arXiv 2502.16982; matrices keep their layer axis as a batch axis).

    Raises:
      DataError: an unknown optimizer or schedule.
    """
    adam_rate = make_schedule(config, config.learning_rate)
    match config.optimizer:
        case "adamw":
            update = optax.adamw(
                adam_rate, b1=config.b1, b2=config.b2, weight_decay=config.weight_decay, mask=_is_decayed
            )
        case "muon":
            update = optax.contrib.muon(
                make_schedule(config, config.muon_learning_rate),
                weight_decay=config.weight_decay,
                adam_b1=config.b1,
                adam_b2=config.b2,
                adam_learning_rate=adam_rate,
                muon_weight_dimension_numbers=_matrices,
            )
        case _:
            raise DataError(f"optimizer {config.optimizer!r} is unknown: adamw or muon")
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), update) if config.clip_norm else update


def create_state(params: Params, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """Makes the state of step 0 with every array born where it belongs.

    Args:
      params: the parameters, placed on `mesh`. They become part of the state.
    """

    def rest(params: Params) -> tuple[optax.OptState, Int[Array, ""]]:
        return optimizer.init(params), jnp.zeros((), jnp.int32)

    shardings = state_shardings(jax.eval_shape(rest, params), mesh)
    return TrainState(params, *jax.jit(rest, out_shardings=shardings)(params))


def _matrices(params: Params) -> Any:
    """Muon's axes for the layers' matrices (stacked, so of rank 3 or more: the last two axes), None for the others."""
    axes = optax.contrib.MuonDimensionNumbers
    return jax.tree.map(lambda p: axes(p.ndim - 2, p.ndim - 1) if p.ndim >= 3 else None, params)


def _is_decayed(params: Params) -> Any:
    return jax.tree.map_with_path(lambda path, _: "norm" not in jax.tree_util.keystr(path[-1:]), params)
