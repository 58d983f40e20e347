"""Checkpoints: Orbax arrays under a manifest, committed by one rename, and checked before they are read.

A folder `checkpoints/00000200` is whole or absent. Its `manifest.json` holds the fingerprints of what it depends on and
the size and CRC of every file: a damaged checkpoint (Orbax restores a flipped bit silently) is passed over for the one
before it.
"""

import os
import pathlib
import shutil
from collections.abc import Mapping

import jax
import orbax.checkpoint as ocp

from webleaper_jax.data.integrity import seal, verify
from webleaper_jax.jsonl import DataError
from webleaper_jax.train.state import TrainState


class Checkpoints:
    """The checkpoints of one run, newest first.

    Args:
      fingerprints: what a restored state must have been trained with: name -> value.
      keep: how many are kept; at least 2, so that a damaged newest one has one before it.
    """

    def __init__(self, directory: str | os.PathLike[str], fingerprints: Mapping[str, str], keep: int = 2):
        self._directory = pathlib.Path(directory).absolute()
        self._fingerprints = dict(fingerprints)
        self._keep = max(keep, 2)
        self._orbax = ocp.StandardCheckpointer()
        self._directory.mkdir(parents=True, exist_ok=True)
        for partial in self._directory.glob(".*.tmp*"):
            shutil.rmtree(partial, ignore_errors=True)  # left by a process that died while saving

    def steps(self) -> list[int]:
        """Steps of the checkpoints there are, newest first, damaged ones among them."""
        return sorted((int(path.name) for path in self._directory.iterdir() if path.name.isdigit()), reverse=True)

    def save(self, state: TrainState, step: int) -> int:
        """Saves a state and returns its size in bytes. It is on disk when this returns."""
        final = self._path(step)
        temporary = final.with_name(f".{final.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        self._orbax.save(temporary / "state", state)
        self._orbax.wait_until_finished()
        manifest = seal(temporary, self._fingerprints)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
        for old in self.steps()[self._keep :]:
            shutil.rmtree(self._path(old), ignore_errors=True)
        return sum(size for size, _ in manifest.files.values())

    def restore(self, like: TrainState) -> TrainState | None:
        """Restores the newest checkpoint that is undamaged, or returns None where there is none at all.

        Damaged ones are named on standard output and deleted once an older one was found to be whole.

        Args:
          like: a state with the wanted shapes, types and shardings (its values are not read).

        Raises:
          DataError: the checkpoint was trained with something else, or all of them are damaged.
        """
        damaged: list[int] = []
        for step in self.steps():
            try:
                manifest = verify(self._path(step))
            except ValueError:
                damaged.append(step)
                continue
            self._check_fingerprints(step, manifest.notes)
            for bad in damaged:
                print(f"checkpoint of step {bad} is damaged; going on from step {step}", flush=True)
                shutil.rmtree(self._path(bad), ignore_errors=True)
            return self._orbax.restore(self._path(step) / "state", _abstract(like))
        if damaged:
            raise DataError(f"{self._directory}: every checkpoint is damaged; delete this folder to begin again")
        return None

    def _path(self, step: int) -> pathlib.Path:
        return self._directory / f"{step:08d}"

    def _check_fingerprints(self, step: int, there: Mapping[str, str]) -> None:
        here = self._fingerprints
        for name in sorted(there.keys() | here.keys()):
            if there.get(name) != here.get(name):
                raise DataError(
                    f"{self._directory}: step {step} was trained with another {name} "
                    f"({there.get(name)} there, {here.get(name)} here); give another workdir, or the same settings"
                )


def _abstract(state: TrainState) -> TrainState:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
