"""Records: ids from content, schema versions; files: atomic writing, half-written lines, clear errors."""

import contextlib
import pathlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webleaper_jax.jsonl import DataError, RecordLog, load_records, read_records, write_records
from webleaper_jax.records import Cell, Ledger, Sampling, Table, Target, Task, Trajectory

texts = st.text(max_size=20)
cells = st.builds(Cell, text=texts, links=st.tuples(texts))
tables = st.builds(
    Table, page_title=texts, url=texts, columns=st.tuples(texts, texts), rows=st.tuples(st.tuples(cells, cells))
)


def table(name: str = "a") -> Table:
    return Table(page_title=name, url="u", columns=("x",), rows=((Cell("1", ("One",)),),))


def trajectory(seconds: float = 0.0, rollout: int = 0) -> Trajectory:
    return Trajectory(
        task_id="task-1", rollout=rollout, policy="p", segments=(), sampling=Sampling(), termination="answer",
        ledger=Ledger(seconds=seconds),
    )  # fmt: skip


@given(tables, tables)
def test_ids_are_equal_exactly_when_the_content_is(a, b):
    assert (a.id == b.id) == (a == b)
    assert msgspec.json.decode(msgspec.json.encode(a), type=Table) == a


def test_every_record_has_an_id_of_its_own_content():
    """U1: a record without an id must not become "None"."""
    assert trajectory(rollout=0).id != trajectory(rollout=1).id
    assert trajectory().id.startswith("trajectory-")


def test_time_spent_does_not_change_the_id():
    assert trajectory(seconds=1.0).id == trajectory(seconds=2.0).id


def test_an_edited_record_is_noticed():
    line = msgspec.json.encode(table()).replace(b'"page_title":"a"', b'"page_title":"b"')
    with pytest.raises(msgspec.ValidationError, match="field `id`"):
        msgspec.json.decode(line, type=Table)


def test_another_schema_is_refused_by_name():
    line = msgspec.json.encode(table()).replace(b'"schema":1', b'"schema":99')
    with pytest.raises(msgspec.ValidationError, match="`schema` is 99"):
        msgspec.json.decode(line, type=Table)


def test_a_task_without_gold_is_refused():
    """R3: an empty gold is refused when the task is made."""
    intermediate = Target(form="a", type="text", layer=2, owner="r", relation="name", final=False)
    with pytest.raises(ValueError, match="no final target"):
        Task(question="q", variant="basic", targets=(intermediate,))
    with pytest.raises(ValueError, match="`gold` is empty"):
        Task(question="q", variant="legacy", origin="legacy", gold=" ")


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_round_trip(tmp_path: pathlib.Path, name):
    records = [table(str(i)) for i in range(5)]
    assert write_records(tmp_path / name, records) == 5
    assert load_records(tmp_path / name, Table) == records
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_compressed_files_are_equal_byte_for_byte(tmp_path):
    for name in ("a", "b"):
        write_records(tmp_path / f"{name}.jsonl.gz", [table()])
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "t.jsonl"
    write_records(path, [table("old")])

    def broken():
        yield table("new")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_records(path, broken())
    assert load_records(path, Table) == [table("old")]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"not json\n", "JSON"),
        (b'{"kind":"table"}\n', "page_title"),
        (b'{"kind":"task"}\n', "kind"),
        (b'{"kind":"table","page_title":3}\n', "page_title"),
        (b"\xff\xfe\n", "t.jsonl:2"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, words):
    path = tmp_path / "t.jsonl"
    write_records(path, [table()])
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(DataError, match=r"t\.jsonl:2: ") as error:
        load_records(path, Table)
    assert words in str(error.value)


def test_missing_empty_and_corrupt_files(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        list(read_records(tmp_path / "none.jsonl", Table))
    (tmp_path / "empty.jsonl").write_bytes(b"")
    with pytest.raises(DataError, match="holds no Table records"):
        load_records(tmp_path / "empty.jsonl", Table)
    write_records(tmp_path / "t.jsonl.gz", [table()])
    data = (tmp_path / "t.jsonl.gz").read_bytes()
    (tmp_path / "cut.jsonl.gz").write_bytes(data[: len(data) // 2])
    (tmp_path / "junk.jsonl.gz").write_bytes(b"junk")
    for name in ("cut.jsonl.gz", "junk.jsonl.gz"):
        with pytest.raises(DataError, match=name):
            load_records(tmp_path / name, Table)


def test_a_compressed_file_with_a_wrong_byte_anywhere_is_one_clear_error(tmp_path):
    write_records(tmp_path / "t.jsonl.gz", [table(str(n)) for n in range(3)])
    data = (tmp_path / "t.jsonl.gz").read_bytes()
    refused = 0
    for place in range(len(data)):
        (tmp_path / "bad.jsonl.gz").write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        with contextlib.suppress(DataError):
            load_records(tmp_path / "bad.jsonl.gz", Table)
            refused -= 1
        refused += 1
    assert refused > 0.9 * len(data)  # the header's time and system may be anything


@given(st.integers(0, 400))
def test_a_half_written_last_line_is_redone_and_nothing_else(tmp_path_factory, cut):
    """U3: the process died while writing the last line."""
    path = tmp_path_factory.mktemp("log") / "t.jsonl"
    with RecordLog(path, Table) as log:
        for name in "abc":
            log.append(table(name))
    whole = path.read_bytes()
    path.write_bytes(whole[: max(0, len(whole) - cut)])
    with RecordLog(path, Table) as log:
        kept = [r.page_title for r in log.records]
        for name in "abc"[len(kept) :]:
            log.append(table(name))
    assert kept == list("abc")[: len(kept)]
    assert path.read_bytes() == whole
