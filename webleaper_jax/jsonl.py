"""Reading and writing records as JSONL (`.jsonl`, or `.jsonl.gz` by name).

A whole file is written to a temporary name and renamed, so a reader never sees half of it. Files that grow while a
stage runs (one trajectory at a time) are appended to a line at a time; a half-written last line, left by a process that
died, is noticed and redone.
"""

import contextlib
import gzip
import os
import pathlib
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Generic, Literal, TypeVar

import msgspec

from webleaper_jax.errors import DataError
from webleaper_jax.records import Record

R = TypeVar("R", bound=Record)
_encoder = msgspec.json.Encoder()


def read_records(path: str | os.PathLike[str], kind: type[R]) -> Iterator[R]:
    """Streams the records of one file.

    Raises:
      DataError: the file is missing, or a line is no record of this kind; names file, line, field and mend.
    """
    path = pathlib.Path(path)
    decoder = msgspec.json.Decoder(kind)
    try:
        with _open(path, "rb", gz=path.suffix == ".gz") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _decode(decoder, line, path, number, kind)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file (it should hold {kind.__name__} records)") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder, a file of {kind.__name__} records is needed") from None
    except (EOFError, OSError, zlib.error) as error:  # gzip.BadGzipFile is an OSError
        raise DataError(f"{path}: cannot be read ({error}); make the file again") from None


def load_records(path: str | os.PathLike[str], kind: type[R]) -> list[R]:
    """Reads a whole file. Raises `DataError` as `read_records`, and when the file holds no record."""
    records = list(read_records(path, kind))
    if not records:
        raise DataError(f"{path}: holds no {kind.__name__} records; the stage before it wrote nothing, run it again")
    return records


def write_records(path: str | os.PathLike[str], records: Iterable[Record]) -> int:
    """Writes a file at once (temporary name, then rename) and returns the number of records."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    count = 0
    try:
        with _open(temporary, "wb", gz=path.suffix == ".gz") as out:
            for record in records:
                out.write(_encoder.encode(record) + b"\n")
                count += 1
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return count


class RecordLog(Generic[R]):
    """An append-only JSONL file: one record a line, handed to the operating system when `append` returns.

    So it outlives the process (kill -9); to outlive the machine it is synced to disk once a second, and when closed.
    Opening it cuts off a half-written last line, so that just that record is redone.
    """

    def __init__(self, path: str | os.PathLike[str], kind: type[R]):
        self.path = pathlib.Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.recovered = _drop_partial_line(self.path)
        self.records: list[R] = list(read_records(self.path, kind)) if self.path.exists() else []
        self._file = open(self.path, "ab")  # noqa: SIM115 (closed by __exit__)
        self._synced = time.monotonic()

    def append(self, record: R) -> None:
        self._file.write(_encoder.encode(record) + b"\n")
        self._file.flush()
        if time.monotonic() - self._synced > 1.0:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def __enter__(self) -> "RecordLog[R]":
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync(self._file.fileno())
        self._file.close()


@contextlib.contextmanager
def _open(path: pathlib.Path, mode: Literal["rb", "wb"], gz: bool) -> Iterator[IO[bytes]]:
    with open(path, mode) as file:
        if not gz:
            yield file
            return
        # No name and no time in the header: the same records give the same bytes.
        with gzip.GzipFile(filename="", mode=mode, fileobj=file, mtime=0) as compressed:
            yield compressed  # type: ignore[misc]  # has all of IO[bytes] that is used here


def _decode(decoder: msgspec.json.Decoder[R], line: bytes, path: pathlib.Path, number: int, kind: type[R]) -> R:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        reason = str(error)
        if not line.endswith(b"\n") and isinstance(error, msgspec.DecodeError):
            reason += "; the last line is cut off, make the file again or delete that line"
        raise DataError(f"{path}:{number}: no valid {kind.__name__} record: {reason}") from None


def _drop_partial_line(path: pathlib.Path) -> bool:
    """Truncates a file after its last newline; returns whether anything was cut."""
    if not path.exists():
        return False
    with open(path, "rb+") as file:
        end = file.seek(0, os.SEEK_END)
        position = end
        while position > 0:
            start = max(0, position - 65536)
            file.seek(start)
            newline = file.read(position - start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position == end:
            return False
        file.truncate(position)
        return True
