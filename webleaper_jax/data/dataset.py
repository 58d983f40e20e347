"""The training set on disk: a TFDS dataset of packed rows in ArrayRecord shards, made and read without tensorflow.

A set lies in `DIR/sft_rows/1.0.0` and can be opened by any TFDS code (`tfds.builder_from_directory`). What it was made
from is in its metadata, so that a trainer can refuse a set made for another tokenizer.
"""

import collections
import contextlib
import hashlib
import io
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import tensorflow_datasets as tfds

from webleaper_jax.data.examples import Render, build_examples
from webleaper_jax.data.integrity import seal, verify
from webleaper_jax.data.packing import Rows, fill, pack
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Trajectory

_NAME = "sft_rows"
_VERSION = "1.0.0"
_FIELDS = Rows._fields


class SplitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What one split holds. `drops` counts, by reason, the segments that were left out of it."""

    examples: int
    rows: int
    tokens: int
    trained_tokens: int
    fill: float
    drops: dict[str, int] = {}


class SetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a training set was made from. `source` is a fingerprint of what went in, `content` one of the rows."""

    tokenizer: str
    row_length: int
    pad_id: int
    source: str
    content: str = ""
    splits: dict[str, SplitInfo] = {}


def write_set(directory: str | os.PathLike[str], splits: Mapping[str, Rows], info: SetInfo) -> SetInfo:
    """Writes a training set, replacing one that is there, and returns its info with `content` filled in.

    The set is made under a temporary name and renamed, so a reader never sees half of it.

    Raises:
      DataError: the training split has no rows.
    """
    directory = pathlib.Path(directory)
    if not len(splits["train"].tokens):
        raise DataError(f"{directory}: no training rows: every trajectory was left out, see the counts by reason")
    splits = {name: rows for name, rows in splits.items() if len(rows.tokens)}
    info = msgspec.structs.replace(info, content=_content(splits, info))
    temporary = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        builder = _RowsBuilder(splits, info, data_dir=temporary, file_format="array_record")
        tfds.disable_progress_bar()
        # TFDS prints where it writes, which is not where the set ends up.
        with contextlib.redirect_stdout(io.StringIO()):
            builder.download_and_prepare()
        seal(temporary)
        shutil.rmtree(directory, ignore_errors=True)
        os.replace(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return info


def make_set(
    directory: str | os.PathLike[str],
    trajectories: Mapping[str, Sequence[Trajectory]],
    render: Render,
    *,
    tokenizer: str,
    pad_id: int,
    row_length: int,
    vocab_size: int,
    replace: bool = True,
) -> SetInfo:
    """Makes a training set from the trajectories of each split (`train`, and `validation` where there is one).

    A set already there and made from the same trajectories with the same settings is kept. Arguments as in
    `examples.build_examples`.

    Args:
      replace: whether a set made from something else may be replaced.

    Raises:
      DataError: a trajectory's token fields are wrong, or none of them can be trained on; or another set is there and
        must stay.
    """
    settings = [tokenizer, pad_id, row_length, vocab_size]
    ids = {name: [trajectory.id for trajectory in members] for name, members in trajectories.items()}
    source = hashlib.blake2b(msgspec.json.encode([settings, ids], order="sorted"), digest_size=8).hexdigest()
    found = ""
    with contextlib.suppress(DataError):
        info = read_info(directory)
        if info.source == source:
            return info
        found = info.source
    if found and not replace:
        raise DataError(
            f"{directory}: was made from other trajectories or settings, and trained on; give another folder"
        )
    splits, packed = {}, {}
    for name, members in trajectories.items():
        built = build_examples(members, render, tokenizer, max_length=row_length, vocab_size=vocab_size)
        packed[name] = pack(built.examples, row_length, pad_id)
        splits[name] = SplitInfo(
            examples=len(built.examples),
            rows=len(packed[name].tokens),
            tokens=int((packed[name].segment_ids > 0).sum()),
            trained_tokens=int(packed[name].loss_mask.sum()),
            fill=round(fill(packed[name]), 4),
            drops=dict(sorted(collections.Counter(drop.reason for drop in built.drops).items())),
        )
    info = SetInfo(tokenizer=tokenizer, row_length=row_length, pad_id=pad_id, source=source, splits=splits)
    return write_set(directory, packed, info)


def read_info(directory: str | os.PathLike[str]) -> SetInfo:
    """Reads what a set was made from. Raises `DataError` where there is none."""
    return _info_of(_open(pathlib.Path(directory)), pathlib.Path(directory))


class RowSource:
    """The rows of one split in their stored order, read at random: `source[n]` is a `Rows` of arrays of T entries.

    Raises:
      DataError: there is no such set or split, or a shard is missing or damaged.
    """

    def __init__(self, directory: str | os.PathLike[str], split: str):
        self._directory = pathlib.Path(directory)
        builder = _open(self._directory)
        self.info = _info_of(builder, self._directory)
        if split not in builder.info.splits:
            raise DataError(f"{directory}: has no split {split!r} (it has {', '.join(sorted(builder.info.splits))})")
        with _damage_named(self._directory):
            self._records = builder.as_data_source(split)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Rows:
        with _damage_named(self._directory):
            record = self._records[int(index)]
        return Rows(*(record[field] for field in _FIELDS))


class _RowsBuilder(tfds.core.GeneratorBasedBuilder):
    """Hands the rows to TFDS, which writes the shards and their description."""

    VERSION = tfds.core.Version(_VERSION)
    name = _NAME
    url_infos: Mapping[str, Any] = {}  # nothing is downloaded (looking for a list of checksums needs one more package)

    def __init__(self, rows: Mapping[str, Rows], set_info: SetInfo, **kwargs: Any):
        self._rows = rows
        self._set_info = set_info
        super().__init__(**kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        shape = (self._set_info.row_length,)
        dtypes = {field: np.bool_ if field == "loss_mask" else np.int32 for field in _FIELDS}
        return tfds.core.DatasetInfo(
            builder=self,
            description="Packed rows for supervised fine-tuning on search trajectories.",
            features=tfds.features.FeaturesDict(
                {field: tfds.features.Tensor(shape=shape, dtype=dtype) for field, dtype in dtypes.items()}
            ),
            metadata=tfds.core.MetadataDict({"set": msgspec.to_builtins(self._set_info)}),
            disable_shuffling=True,  # rows stay in the order of packing; the pipeline shuffles, by seed
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        return {name: self._generate_examples(rows) for name, rows in self._rows.items()}

    def _generate_examples(self, rows: Rows) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        for n, row in enumerate(zip(*rows, strict=True)):
            yield n, dict(zip(_FIELDS, row, strict=True))


def _open(directory: pathlib.Path) -> Any:
    path = directory / _NAME / _VERSION
    if not path.is_dir():
        raise DataError(f"{directory}: holds no training set ({_NAME}/{_VERSION}): make it from trajectories first")
    with _damage_named(directory):
        verify(directory)
        return tfds.builder_from_directory(path)


def _info_of(builder: Any, directory: pathlib.Path) -> SetInfo:
    with _damage_named(directory):
        return msgspec.convert(builder.info.metadata["set"], SetInfo)


@contextlib.contextmanager
def _damage_named(directory: pathlib.Path) -> Iterator[None]:
    """Turns whatever the readers raise on a damaged or missing file into one clear line."""
    try:
        yield
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{directory}: the training set is damaged ({reason}): delete it, it is made again") from error


def _content(splits: Mapping[str, Rows], info: SetInfo) -> str:
    digest = hashlib.blake2b(msgspec.json.encode([info.tokenizer, info.row_length, info.pad_id]), digest_size=8)
    for name in sorted(splits):
        digest.update(name.encode())
        for part in splits[name]:
            digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()
