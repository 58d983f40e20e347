"""What every launcher shares: errors as one line, the workdir and its settings, stages that are done once."""

import json
import os
import pathlib
import re
import shlex
import signal
import sys
import time
import traceback
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
    except Exception as error:  # a config file is a program: anything can go wrong in it
        words = _one_line(error)
        unknown = re.match(r"'?(\w+)'?(?: Did you|$)", words) if isinstance(error, AttributeError | KeyError) else None
        given = [word for word in sys.argv if re.match(r"--?config\.", word)]
        flag = next((word for word in given if unknown and unknown[1] in re.split(r"[.=]", word)), "--config")
        _fail(f"{flag}: no such setting: {words}" if unknown else f"{flag}: {words}")


def run(main: Callable[[Sequence[str]], None]) -> NoReturn:
    """Runs an absl main; a user's mistake is printed as one line and exits with 2, an interrupt or SIGTERM with 130."""

    def guarded(argv: Sequence[str]) -> None:
        logging.set_verbosity(logging.WARNING)  # Orbax and TFDS narrate every file
        signal.signal(signal.SIGTERM, _interrupt)  # how a machine that is taken away says so
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


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def require_file(path: str, flag: str, made_by: str) -> str:
    """Returns `path` if it is a file. Raises `DataError` that says which command makes it."""
    if not path:
        raise DataError(f"--{flag} is needed: a file written by `{made_by}`")
    if not pathlib.Path(path).exists():
        raise DataError(f"--{flag}={path}: no such file; `{made_by}` writes it")
    return path


def output_folder(path: str, flag: str = "out") -> pathlib.Path:
    """Makes the folder to write into. Raises `DataError` when something else stands there or it cannot be made."""
    folder = pathlib.Path(path)
    try:
        if folder.exists() and not folder.is_dir():
            raise DataError(f"--{flag}={folder}: is a file; give a folder")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"--{flag}={folder}: cannot be made ({error})") from None
    return folder


def finish(out: pathlib.Path, next_command: str, /, **values: object) -> None:
    """The last lines of a stage: where its output is, and what to run next (see `command`)."""
    print(f"written to {out}")
    print(f"next: {command(next_command, **values)}")


def command(start: str, /, **values: object) -> str:
    """Returns `start --name=value ...`, quoted for a shell, with the settings (`--config...`) that this command had."""
    words = [f"--{name}={value}" for name, value in values.items()] + _settings_given(sys.argv[1:])
    return " ".join([start, *map(shlex.quote, words)])


def _settings_given(argv: Sequence[str]) -> list[str]:
    """The words of a command line that choose or override the config, `--config.x y` as `--config.x=y`."""
    given, words = [], iter(argv)
    for word in words:
        name = word.partition("=")[0].lstrip("-").removeprefix("no")
        if word.startswith("-") and (name == "config" or name.startswith("config.")):
            alone = "=" in word or word.lstrip("-").startswith("no")
            given.append(word if alone else f"{word}={next(words, '')}")
    return given


def struct(kind: type[T], section: ml_collections.ConfigDict, name: str = "config") -> T:
    """Returns a section of the config as a typed struct. Raises `DataError` that names a field of the wrong kind."""
    try:
        return msgspec.convert(section.to_dict(), kind, strict=False)
    except msgspec.ValidationError as error:
        raise DataError(f"{name}, for {kind.__name__}: {error}") from None


class Workdir:
    """The place of one run: its settings, its stages' outputs, and which stages are done.

    Raises:
      DataError: the folder was made with another config or holds other things, which are not touched; or it cannot be
        made or written.
    """

    def __init__(self, path: str, config: ml_collections.ConfigDict):
        self.path = output_folder(path, "workdir")
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
        elif any(not file.match(".*.tmp") for file in self.path.iterdir()):  # those are of a run killed at its start
            raise DataError(f"{self.path}: is not empty and holds no run (no config.json); give another --workdir")
        else:
            try:
                write_json(settings, wanted)
            except OSError as error:
                raise DataError(f"--workdir={self.path}: cannot be written ({error})") from None
        self.seconds: dict[str, float] = _read_json(self._stages) if self._stages.exists() else {}
        self._partial = self.path / "seconds_partial.json"

    def stage(self, name: str, function: Callable[[], None]) -> None:
        """Runs a stage unless it is done; its wall time is kept over interruptions (but not that of a kill -9)."""
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
    temporary.write_text(json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")
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
    except Exception as error:  # of the config file, too
        _fail(f"{_one_line(error)} (see --help)")
    if "config" in flags.FLAGS and not isinstance(flags.FLAGS.config, ml_collections.ConfigDict):
        given = next((word for word in argv if word.startswith("--config=")), "--config")
        _fail(f"{given}: no such config file; give FILE.py or FILE.py:PRESET, as in configs/quickstart.py:smoke")
    return rest


def _one_line(error: BaseException) -> str:
    """The words of an error; of a whole traceback inside them (a config file that failed) the last line.

    An error that no flag raises by itself is one of the config file: its kind and place are told as well.
    """
    text = str(error).replace("\\n", "\n").replace("\\'", "'").strip()
    if text[:1] in ("'", '"') and text[-1] == text[0]:  # a KeyError gives its words as a literal
        text = text[1:-1]
    lines = text.splitlines()
    if "Traceback" in text:
        return f"{lines[0]} {lines[-1].strip()}"
    words = " ".join(text.split())
    if isinstance(error, _FLAG_ERRORS):
        return words
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if isinstance(error, SyntaxError) else f" ({last.filename}, line {last.lineno})"  # it says so itself
    return f"the config file failed with {type(error).__name__}: {words}{place}"


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
