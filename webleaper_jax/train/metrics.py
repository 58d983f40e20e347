"""Metrics of a run: one JSON line a step for programs, TensorBoard for people."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import tensorboardX


class Metrics:
    """Writes `DIR/metrics.jsonl` and TensorBoard events under `DIR/tensorboard`.

    A run that goes on from step `step` drops the lines after it: they are about to be made again.
    """

    def __init__(self, directory: str | os.PathLike[str], step: int = 0):
        directory = pathlib.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._path = path = directory / "metrics.jsonl"
        kept = [line for line in read_metrics(directory) if line["step"] <= step]
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
        os.replace(temporary, path)
        self._board = tensorboardX.SummaryWriter(str(directory / "tensorboard"), purge_step=step + 1, flush_secs=30)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Adds a line `{"step": step, **values}`; slashes in names group curves in TensorBoard."""
        with open(self._path, "a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def close(self) -> None:
        self._board.close()

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(directory: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads the lines of a run in order; a half-written last line (the process died) is left out."""
    path = pathlib.Path(directory) / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1] if line]
