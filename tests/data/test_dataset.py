"""The TFDS set: what is written is read, other code can open it, and damage is told in one line."""

import pathlib
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from webleaper_jax.data.dataset import RowSource, SetInfo, make_set, read_info, write_set
from webleaper_jax.data.examples import Example
from webleaper_jax.data.packing import Rows, pack
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Message, Sampling, Segment, Trajectory

INFO = SetInfo(tokenizer="tok", row_length=16, pad_id=3, source="made in a test")


def rows(seed: int = 0, count: int = 40) -> Rows:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, 17, count)
    return pack([Example(rng.integers(0, 9, n).astype(np.int32), rng.random(n) < 0.5, "t") for n in lengths], 16, 3)


def equal(a: Rows, b: Rows) -> bool:
    return all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(a, b, strict=True))


def test_rows_come_back_bit_for_bit_in_their_order(tmp_path):
    train, validation = rows(0), rows(1, count=5)
    info = write_set(tmp_path / "set", {"train": train, "validation": validation}, INFO)
    for name, wanted in (("train", train), ("validation", validation)):
        source = RowSource(tmp_path / "set", name)
        assert len(source) == len(wanted.tokens)
        assert all(equal(source[n], Rows(*(part[n] for part in wanted))) for n in range(len(source)))
        assert source.info == info == read_info(tmp_path / "set")
    assert not list(tmp_path.glob(".*"))  # nothing temporary is left


def test_any_tfds_code_opens_it_and_tensorflow_is_never_imported(tmp_path):
    wanted = rows()
    write_set(tmp_path / "set", {"train": wanted}, INFO)
    script = f"""
import sys
import tensorflow_datasets as tfds
builder = tfds.builder_from_directory({str(tmp_path / "set" / "sft_rows" / "1.0.0")!r})
source = builder.as_data_source("train")
import webleaper_jax.data.dataset, webleaper_jax.data.pipeline
assert "tensorflow" not in sys.modules
print(len(source), source[0]["tokens"].tolist())
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip().splitlines()[-1] == f"{len(wanted.tokens)} {wanted.tokens[0].tolist()}"


def test_the_content_fingerprint_follows_the_rows_and_nothing_else(tmp_path):
    first = write_set(tmp_path / "a", {"train": rows(0)}, INFO)
    same = write_set(tmp_path / "b", {"train": rows(0)}, INFO)
    other_tokenizer = write_set(tmp_path / "d", {"train": rows(0)}, msgspec.structs.replace(INFO, tokenizer="x"))
    changed = rows(0)
    changed.loss_mask[0, 0] ^= True
    other_mask = write_set(tmp_path / "c", {"train": changed}, INFO)
    assert first.content == same.content
    assert len({first.content, other_mask.content, other_tokenizer.content}) == 3


def test_writing_again_replaces_the_set(tmp_path):
    write_set(tmp_path / "set", {"train": rows(0), "validation": rows(1)}, INFO)
    write_set(tmp_path / "set", {"train": rows(2, count=7)}, INFO)
    assert len(RowSource(tmp_path / "set", "train")) == len(rows(2, count=7).tokens)
    with pytest.raises(DataError, match="no split 'validation'"):
        RowSource(tmp_path / "set", "validation")


def test_a_set_without_training_rows_is_refused_and_leaves_the_old_one(tmp_path):
    write_set(tmp_path / "set", {"train": rows(0)}, INFO)
    with pytest.raises(DataError, match="no training rows"):
        write_set(tmp_path / "set", {"train": pack([], 16)}, INFO)
    assert len(RowSource(tmp_path / "set", "train"))


def _read_all(directory: pathlib.Path) -> None:
    source = RowSource(directory, "train")
    for n in range(len(source)):
        source[n]


def test_damage_is_one_clear_line(tmp_path):
    with pytest.raises(DataError, match="holds no training set"):
        RowSource(tmp_path / "nowhere", "train")
    directory = tmp_path / "set"
    write_set(directory, {"train": rows()}, INFO)
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    assert any("array_record" in path.name for path in files)
    for path in files:
        whole = path.read_bytes()
        middle = len(whole) // 2
        for broken in (whole[:middle], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], None):
            path.unlink() if broken is None else path.write_bytes(broken)
            with pytest.raises(DataError) as error:
                _read_all(directory)
            assert str(directory) in str(error.value)
            assert "\n" not in str(error.value)
            path.write_bytes(whole)
    _read_all(directory)


def trajectories(count: int) -> list[Trajectory]:
    messages = (Message(role="user", content="q"), Message(role="assistant", content="a"))
    return [
        Trajectory(
            task_id=f"task-{n}",
            rollout=0,
            policy="scripted",
            segments=(Segment(messages=messages, steps=()),),
            sampling=Sampling(),
            termination="answer",
            infrastructure_error="timeout" if n == 0 else "",
        )
        for n in range(count)
    ]


def test_a_set_is_made_from_trajectories_once(tmp_path):
    rendered = []

    def render(messages):
        rendered.append(messages)
        return [1, 2, 3], [0, 1, 1]

    def make(count: int, row_length: int = 8) -> SetInfo:
        splits = {"train": trajectories(count), "validation": trajectories(3)}
        return make_set(
            tmp_path / "set", splits, render, tokenizer="tok", pad_id=0, row_length=row_length, vocab_size=10
        )

    info = make(5)
    assert info.splits["train"].examples == 4
    assert info.splits["train"].rows == 2
    assert info.splits["train"].tokens == 12
    assert info.splits["train"].trained_tokens == 8
    assert info.splits["train"].drops == {"infrastructure_error": 1}
    assert info.splits["validation"].examples == 2
    calls = len(rendered)
    assert make(5) == info
    assert len(rendered) == calls  # kept, not made again
    assert make(6).source != info.source
    assert make(6, row_length=9).row_length == 9
    assert len(rendered) > calls
