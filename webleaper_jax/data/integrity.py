"""Size and CRC of every file of a folder, so that damage is found before the files are read."""

import os
import pathlib
import zlib

import msgspec

_MANIFEST = "manifest.json"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """(size, CRC-32) of each file below the folder, and notes that stand or fall with them."""

    files: dict[str, tuple[int, int]]
    notes: dict[str, str] = {}


def seal(directory: pathlib.Path, notes: dict[str, str] | None = None) -> Manifest:
    """Writes `manifest.json` over what lies in the folder and returns it."""
    manifest = Manifest(files=_checksums(directory), notes=notes or {})
    with open(directory / _MANIFEST, "wb") as file:
        file.write(msgspec.json.encode(manifest))
        file.flush()
        os.fsync(file.fileno())
    return manifest


def verify(directory: pathlib.Path) -> Manifest:
    """Returns the manifest of a folder whose files are all there and as they were written.

    Raises:
      ValueError: they are not; names the first file.
    """
    try:
        manifest = msgspec.json.decode((directory / _MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{_MANIFEST}: {type(error).__name__}") from None
    found = _checksums(directory)
    for name in sorted(found.keys() | manifest.files.keys()):
        if found.get(name) != manifest.files.get(name):
            raise ValueError(
                f"{name}: " + ("changed" if name in found and name in manifest.files else "missing or new")
            )
    return manifest


def _checksums(directory: pathlib.Path) -> dict[str, tuple[int, int]]:
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path != directory / _MANIFEST)
    return {path.relative_to(directory).as_posix(): (path.stat().st_size, _crc(path)) for path in files}


def _crc(path: pathlib.Path) -> int:
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 24):
            crc = zlib.crc32(block, crc)
    return crc
