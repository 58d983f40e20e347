"""Device meshes, and where each array lies on them: one table of logical axes, one of rules.

A parameter's last path element names it (`wq`, `embed`, ...), whether it stands in a model or in an optimizer's
moments, so one function places both.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from webleaper_jax.errors import DataError

Tree = TypeVar("Tree")

AXES = ("data", "fsdp", "tensor")

# Logical axis -> mesh axes. Batches are split over data and fsdp alike; weights over fsdp along the hidden size and
# over tensor along heads, feed-forward and vocabulary.
RULES: Mapping[str, str | tuple[str, ...] | None] = {
    "batch": ("data", "fsdp"),
    "length": None,
    "layer": None,
    "hidden": "fsdp",
    "heads": "tensor",
    "mlp": "tensor",
    "vocab": "tensor",
    "norm": None,
}

# Parameter -> logical axes, in the order of its dimensions.
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "embed": ("vocab", "hidden"),
    "lm_head": ("vocab", "hidden"),
    "final_norm": ("norm",),
    "attention_norm": ("layer", "norm"),
    "mlp_norm": ("layer", "norm"),
    "q_norm": ("layer", "norm"),
    "k_norm": ("layer", "norm"),
    "wq": ("layer", "hidden", "heads"),
    "wk": ("layer", "hidden", "heads"),
    "wv": ("layer", "hidden", "heads"),
    "wo": ("layer", "heads", "hidden"),
    "w_gate": ("layer", "hidden", "mlp"),
    "w_up": ("layer", "hidden", "mlp"),
    "w_down": ("layer", "mlp", "hidden"),
}


def make_mesh(shape: Mapping[str, int] | None = None, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Makes a mesh with the axes data, fsdp and tensor, in this order.

    Args:
      shape: size of each axis; absent: 1, -1 (once): whatever is left. Default: all devices along fsdp.
      devices: default: all of them.

    Raises:
      DataError: an unknown axis, more than one -1, or sizes whose product is not the number of devices.
    """
    shape = dict({"fsdp": -1} if shape is None else shape)
    devices = list(jax.devices() if devices is None else devices)
    unknown = [axis for axis in shape if axis not in AXES]
    if unknown:
        raise DataError(f"mesh axis `{unknown[0]}` is unknown: the axes are {', '.join(AXES)}")
    sizes = {axis: int(shape.get(axis, 1)) for axis in AXES}
    free = [axis for axis, size in sizes.items() if size == -1]
    bad = [axis for axis, size in sizes.items() if size < 1 and size != -1]
    if len(free) > 1 or bad:
        raise DataError(f"mesh axis `{(bad or free)[-1]}`: sizes are positive, and one of them may be -1")
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if free:
        if len(devices) % fixed:
            raise DataError(f"mesh axis `{free[0]}`: {len(devices)} devices cannot be divided by {fixed}")
        sizes[free[0]] = len(devices) // fixed
    elif fixed != len(devices):
        raise DataError(f"mesh {sizes} needs {fixed} devices, there are {len(devices)}; set one axis to -1")
    grid = np.asarray(devices, dtype=object).reshape([sizes[axis] for axis in AXES])
    return Mesh(grid, AXES)


def spec(mesh: Mesh, logical: Sequence[str], shape: Sequence[int], name: str) -> PartitionSpec:
    """Returns how an array with these logical axes lies on the mesh.

    Raises:
      DataError: a dimension that its mesh axes do not divide; names both.
    """
    parts = []
    for axis, size in zip(logical, shape, strict=True):
        rule = RULES[axis]
        over = (rule,) if isinstance(rule, str) else rule or ()
        number = math.prod(mesh.shape[a] for a in over)
        if size % number:
            raise DataError(
                f"mesh axis `{'` x `'.join(over)}` of {number} does not divide the {axis} axis of `{name}` ({size}); "
                "choose another mesh shape"
            )
        parts.append(rule if number > 1 else None)
    return PartitionSpec(*parts)


def state_shardings(state: Any, mesh: Mesh) -> Any:
    """Returns the sharding of each leaf of a state (parameters, optimizer state; arrays or shapes).

    A leaf that is named like a parameter and has its number of dimensions lies as that parameter does; all others
    (counts, scalars, optimizer placeholders) are replicated.

    Raises:
      DataError: a dimension that its mesh axis does not divide.
    """

    def sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        name = _name(path)
        logical = PARAMETERS.get(name, ())
        if len(logical) != len(leaf.shape):
            return NamedSharding(mesh, PartitionSpec())
        return NamedSharding(mesh, spec(mesh, logical, leaf.shape, name))

    return jax.tree_util.tree_map_with_path(sharding, state)


def shard_state(state: Tree, mesh: Mesh) -> Tree:
    """Places a state on the mesh (see `state_shardings`)."""
    return jax.device_put(state, state_shardings(state, mesh))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of arrays whose first axis is the batch."""
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def check_heads(mesh: Mesh, num_kv_heads: int) -> None:
    """Raises DataError when the tensor axis would cut a key head in two."""
    if num_kv_heads % mesh.shape["tensor"]:
        raise DataError(
            f"mesh axis `tensor` of {mesh.shape['tensor']} does not divide num_key_value_heads ({num_kv_heads}); "
            "choose another mesh shape"
        )


def _name(path: tuple[Any, ...]) -> str:
    """The last path element that is a name (Flax states end in `.value` or a type)."""
    for element in reversed(path):
        name = getattr(element, "key", None) or getattr(element, "name", None)
        if isinstance(name, str) and name in PARAMETERS:
            return name
    return ""
