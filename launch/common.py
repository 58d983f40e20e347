"""What every launcher shares: errors as one line, the workdir and its settings, stages that are done once."""

import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import ml_collections
import msgspec
from absl import app, flags, logging
from ml_collections import config_flags

from webleaper_jax.jsonl import DataError

T = TypeVar("T")
_FLAG_ERRORS = (AttributeError, KeyError, TypeError, ValueError, OSError, flags.Error)


def define_config(default: str = "configs/quickstart.py") -> Any:
    """Defines `--config=FILE.py[:PRESET]`, whose fields `--config.x.y=` override (unknown ones are refused)."""
    if not pathlib.Path(default).exists():  # run from elsewhere: the installed file
        default = str(pathlib.Path(__file__).parent.parent / default)
    try:  # overrides are applied as soon as the flag is defined
        return config_flags.DEFINE_config_file(
            "config", default, "Settings: FILE.py or FILE.py:PRESET.", lock_config=True
        )
    except _FLAG_ERRORS as error:
        _fail(f"--config: {_one_line(error)}")


def run(main: Callable[[Sequence[str]], None]) -> NoReturn:
    """Runs an absl main; a user's mistake is printed as one line and exits with 2, an interrupt with 130."""

    def guarded(argv: Sequence[str]) -> None:
        logging.set_verbosity(logging.WARNING)  # Orbax and TFDS narrate every file
        if len(argv) > 1:
            _fail(f"unexpected argument {argv[1]!r}: every setting is a flag, --name=value (see --help)")
        try:
            main(argv)
        except DataError as error:
            _fail(str(error))
        except KeyboardInterrupt:
            print("\ninterrupted; the same command goes on from here", file=sys.stderr)
            sys.exit(130)

    app.run(guarded, flags_parser=_parse_flags)
    raise AssertionError("absl's run does not return")


def require_file(path: str, flag: str, made_by: str) -> str:
    """Returns `path` if it is a file. Raises `DataError` that says which command makes it."""
    if not path:
        raise DataError(f"--{flag} is needed: a file written by `{made_by}`")
    if not pathlib.Path(path).exists():
        raise DataError(f"--{flag}={path}: no such file; `{made_by}` writes it")
    return path


def output_folder(path: str) -> pathlib.Path:
    """Makes the folder to write into. Raises `DataError` when something else stands there."""
    folder = pathlib.Path(path)
    if folder.exists() and not folder.is_dir():
        raise DataError(f"--out={folder}: is a file; give a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"--out={folder}: cannot be made ({error})") from None
    return folder


def finish(out: pathlib.Path, next_command: str) -> None:
    """The last lines of a stage: where its output is, and what to run next."""
    print(f"written to {out}")
    print(f"next: {next_command}")


def struct(kind: type[T], section: ml_collections.ConfigDict) -> T:
    """Returns a section of the config as a typed struct. Raises `DataError` that names a field of the wrong kind."""
    try:
        return msgspec.convert(section.to_dict(), kind, strict=False)
    except msgspec.ValidationError as error:
        raise DataError(f"config, for {kind.__name__}: {error}") from None


class Workdir:
    """The place of one run: its settings, its stages' outputs, and which stages are done.

    Raises:
      DataError: the folder was made with another config; nothing in it is touched.
    """

    def __init__(self, path: str, config: ml_collections.ConfigDict):
        self.path = pathlib.Path(path)
        self._stages = self.path / "stages.json"
        settings = self.path / "config.json"
        wanted = json.loads(config.to_json_best_effort())
        if settings.exists():
            found = _read_json(settings)
            if found != wanted:
                where = first_difference(found, wanted)
                raise DataError(
                    f"{self.path}: was made with another config ({where}); give another --workdir, or the same settings"
                )
        elif self.path.exists() and any(self.path.iterdir()):
            raise DataError(f"{self.path}: is not empty and holds no run (no config.json); give another --workdir")
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(settings, wanted)
        self.seconds: dict[str, float] = _read_json(self._stages) if self._stages.exists() else {}
        self._partial = self.path / "seconds_partial.json"

    def stage(self, name: str, function: Callable[[], None]) -> None:
        """Runs a stage unless it is done; its wall time is kept over interruptions."""
        if name in self.seconds:
            print(f"[{name}] done before ({self.seconds[name]:.0f} s), skipped", flush=True)
            return
        print(f"[{name}]", flush=True)
        before = _read_json(self._partial).get(name, 0.0) if self._partial.exists() else 0.0
        start = time.monotonic()
        try:
            function()
        except BaseException:
            write_json(self._partial, {name: before + time.monotonic() - start})
            raise
        self.seconds[name] = round(before + time.monotonic() - start, 2)
        write_json(self._stages, self.seconds)
        print(f"[{name}] {self.seconds[name]:.0f} s", flush=True)


def first_difference(a: Any, b: Any, where: str = "config") -> str:
    """Says where two nested settings first differ, as `config.sft.steps: 10 there, 20 here`."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            if a.get(key) != b.get(key):
                return first_difference(a.get(key), b.get(key), f"{where}.{key}")
    return f"{where}: {a} there, {b} here"


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes JSON through a temporary name, so that it is whole or absent."""
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    os.replace(temporary, path)


def _read_json(path: pathlib.Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); delete it or give another --workdir") from None


def _parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses flags; a wrong one (or an unknown config field) is one line, not a traceback."""
    try:
        rest = flags.FLAGS(list(argv))
    except _FLAG_ERRORS as error:
        _fail(f"{_one_line(error)} (see --help)")
    if "config" in flags.FLAGS and not isinstance(flags.FLAGS.config, ml_collections.ConfigDict):
        given = next((word for word in argv if word.startswith("--config=")), "--config")
        _fail(f"{given}: no such config file; give FILE.py or FILE.py:PRESET, as in configs/quickstart.py:smoke")
    return rest


def _one_line(error: BaseException) -> str:
    """The words of an error; of a whole traceback inside them (a config file that failed) the last line."""
    text = str(error).strip("'\"").replace("\\n", "\n").replace("\\'", "'").strip()
    lines = text.splitlines()
    return f"{lines[0]} {lines[-1].strip()}" if "Traceback" in text else " ".join(text.split())


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
