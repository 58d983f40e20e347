"""The command that a launcher prints for what to do next can be pasted into a shell and is understood."""

import ast
import pathlib
import re
import shlex

import pytest

from launch import common

LAUNCH = pathlib.Path(common.__file__).parent


def printed_commands() -> list[tuple[str, str, list[str]]]:
    """(file, launcher, flags) of each next command in the sources of the launchers."""
    found = []
    for file in sorted(LAUNCH.glob("*.py")):
        text = file.read_text()
        for call in ast.walk(ast.parse(text)):
            name = getattr(call.func, "attr", "") if isinstance(call, ast.Call) else ""
            if name not in ("finish", "command") or file.name == "common.py":
                continue
            source = ast.get_source_segment(text, call) or ""
            start = re.search(r"python -m launch\.(\w+)", source)
            if start is None:
                assert "open it in a browser" in source or not call.args, source
                continue
            flags = [keyword.arg for keyword in call.keywords if keyword.arg] + re.findall(r"--(\w+)", source)
            if "**after" in source:
                flags += re.findall(r'"(\w+)":', text.partition("after = {")[2].partition("}")[0])
            found.append((file.name, start.group(1), flags))
    return found


def test_each_flag_of_a_next_command_is_one_of_its_launcher():
    found = printed_commands()
    assert {file for file, *_ in found} >= {
        "tables.py", "synthesize.py", "collect.py", "sft.py", "grpo.py", "evaluate.py", "serve.py", "pretrain_tiny.py",
    }  # fmt: skip
    for file, launcher, flags in found:
        source = (LAUNCH / f"{launcher}.py").read_text()
        required = set(re.findall(r'DEFINE_\w+\(\s*"(\w+)", None,[^)]*required=True', source))
        assert required <= set(flags), (file, launcher)
        for needed in set(re.findall(r'require_file\(FLAGS\.(\w+), "', source)) - {"recorded", "validation"}:
            assert needed in flags, (file, launcher, needed)
        for flag in set(flags) - {"config"}:
            assert re.search(rf'DEFINE_\w+\(\s*"{flag}"', source), (file, launcher, flag)


@pytest.mark.parametrize(
    ("argv", "repeated"),
    [
        ([], []),
        (["--out=x", "--config=a b.py:smoke"], ["--config=a b.py:smoke"]),
        (["--config", "c.py", "--out", "x"], ["--config=c.py"]),
        (["--config.sft.steps=3", "-config.seed", "-1"], ["--config.sft.steps=3", "-config.seed=-1"]),
        (["--noconfig.web.goal_columns", "--tables=t"], ["--noconfig.web.goal_columns"]),
        (["--configuration=x", "--tables=--config"], []),
    ],
)
def test_the_settings_given_are_repeated_and_everything_is_quoted(monkeypatch, capsys, argv, repeated):
    monkeypatch.setattr("sys.argv", ["launch.x", *argv])
    common.finish(pathlib.Path("done"), "python -m launch.sft", out="my runs/$HOME")
    first, second = capsys.readouterr().out.splitlines()
    assert first == "written to done"
    line = second.removeprefix("next: ")
    assert shlex.split(line) == ["python", "-m", "launch.sft", "--out=my runs/$HOME", *repeated]
