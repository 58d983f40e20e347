"""The entry points as a user meets them: help, mistakes (one clear line, no traceback, nothing lost), and the wheel."""

import json
import os
import pathlib
import subprocess
import sys

import msgspec
import pytest

from configs.quickstart import get_config
from data_gen.splits import split_of_family
from data_gen.trees import build_trees
from launch import common, tables
from webleaper_jax.jsonl import DataError, write_records
from webleaper_jax.records import Cell, Split, Table, Task

LAUNCHERS = (
    "tables",
    "synthesize",
    "collect",
    "sft",
    "grpo",
    "evaluate",
    "quickstart",
    "report",
    "serve",
    "pretrain_tiny",
)


def run(repository: pathlib.Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m ...` as a user would, from the root of the checkout."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(repository), "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def assert_one_clear_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode not in (0, 1), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if "rror" in line]
    assert lines, done.stderr
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_help_is_worth_reading(repository, name):
    done = run(repository, f"launch.{name}", "--help")
    assert f"python -m launch.{name}" in done.stdout
    assert len(done.stdout) > 300


def table(name: str, rows: int) -> Table:
    cells = tuple((Cell(f"Name {name} {i}"), Cell(str(1900 + i)), Cell(f"Town {i % 3}")) for i in range(rows))
    return Table(page_title=name, url=f"u/{name}", columns=("Name", "Year", "Town"), rows=cells, family=name)


def test_mistakes_with_files(repository, tmp_path):
    missing = run(repository, "launch.tables", f"--out={tmp_path / 'a'}", f"--source={tmp_path / 'none.jsonl'}")
    assert_one_clear_line(missing, "none.jsonl", "no such file")

    (tmp_path / "empty.jsonl").write_text("")
    empty = run(repository, "launch.tables", f"--out={tmp_path / 'a'}", f"--source={tmp_path / 'empty.jsonl'}")
    assert_one_clear_line(empty, "empty.jsonl", "no Table records")

    bad = tmp_path / "bad.jsonl"
    write_records(bad, [table("A", 12)])
    bad.write_text(bad.read_text() + '{"kind": "table", "page_title": 7}\n')
    malformed = run(repository, "launch.tables", f"--out={tmp_path / 'a'}", f"--source={bad}")
    assert_one_clear_line(malformed, "bad.jsonl:2", "page_title")

    write_records(tmp_path / "short.jsonl", [table("A", 3)])
    short = run(repository, "launch.tables", f"--out={tmp_path / 'a'}", f"--source={tmp_path / 'short.jsonl'}")
    assert_one_clear_line(short, "too_few_rows")
    assert not list((tmp_path / "a").glob("*.gz"))

    no_tasks = run(
        repository, "launch.collect", f"--tables={tmp_path}", "--tasks=nowhere.gz", f"--out={tmp_path / 'c'}"
    )
    assert_one_clear_line(no_tasks, "nowhere.gz", "launch.synthesize")


@pytest.mark.parametrize("name", ["collect", "grpo"])
def test_nothing_learns_from_held_out_tasks(name, repository, tmp_path):
    split: Split
    tasks = []
    for number, split in enumerate(("train", "heldout")):
        tasks.append(Task(question=f"q{number}", variant="legacy", origin="legacy", gold="a", split=split))
    write_records(tmp_path / "tasks.jsonl", tasks)
    flags = [f"--{flag}={tmp_path / 'x'}" for flag in ("tables", "out", *(["policy"] if name == "grpo" else []))]
    (tmp_path / "x").mkdir()
    done = run(repository, f"launch.{name}", f"--tasks={tmp_path / 'tasks.jsonl'}", *flags)
    assert_one_clear_line(done, "tasks.jsonl", tasks[1].id, "`split`", "launch.evaluate")


def test_the_web_of_training_holds_no_heldout_table_and_no_twin_of_one():
    # families "A" ... fall by their hash; the twin of a held-out table is another family's
    held = next(name for name in map(str, range(99)) if split_of_family(name) == "heldout")
    free = [name for name in map(str, range(99)) if split_of_family(name) == "train"][:2]
    clean = [table("Alphas", 12), table("Alphas", 12), table("Betas", 12)]
    clean = [
        msgspec.structs.replace(t, id="", family=family, page_title=f"{t.page_title} {family}")
        for t, family in zip(clean, [held, *free], strict=True)
    ]
    trees, _ = build_trees(clean)
    assert len({tree.table_id for tree in trees}) == 3
    assert [t.family for t in tables._without_heldout(clean, trees)] == [free[1]]


def test_mistakes_with_settings(repository, tmp_path):
    typo = run(repository, "launch.tables", f"--out={tmp_path / 'a'}", "--config.tables.rules.min_row=3")
    assert_one_clear_line(typo, "min_row")
    unknown = run(repository, "launch.tables", f"--out={tmp_path / 'a'}", "--config.grpo.zeal=0.1")
    assert_one_clear_line(unknown, "--config.grpo.zeal=0.1", "no such setting")
    kind = run(repository, "launch.tables", f"--out={tmp_path / 'a'}", "--config.tables.rules.min_rows=many")
    assert_one_clear_line(kind, "min_rows")
    preset = run(repository, "launch.quickstart", f"--workdir={tmp_path / 'w'}", "--config=configs/quickstart.py:tiny")
    assert_one_clear_line(preset, "tiny", "smoke")
    nowhere = run(repository, "launch.tables", f"--out={tmp_path / 'a'}", "--config=nowhere.py")
    assert_one_clear_line(nowhere, "nowhere.py")
    flag = run(repository, "launch.tables", f"--out={tmp_path / 'a'}", "--sorce=x")
    assert "sorce" in flag.stderr
    assert flag.returncode != 0
    argument = run(repository, "launch.tables", f"--out={tmp_path / 'a'}", "sample")
    assert_one_clear_line(argument, "sample")


def test_a_workdir_of_another_config_is_left_alone(repository, tmp_path):
    workdir = tmp_path / "run"
    workdir.mkdir()
    config = {"seed": 1, "preset": "default"}
    (workdir / "config.json").write_text(json.dumps(config))
    (workdir / "metrics.json").write_text("{}")
    done = run(repository, "launch.quickstart", f"--workdir={workdir}")
    assert_one_clear_line(done, "another config", str(workdir))
    assert json.loads((workdir / "config.json").read_text()) == config
    assert sorted(p.name for p in workdir.iterdir()) == ["config.json", "metrics.json"]

    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("x")
    done = run(repository, "launch.quickstart", f"--workdir={foreign}")
    assert_one_clear_line(done, "not empty")
    assert [p.name for p in foreign.iterdir()] == ["thesis.tex"]


def test_a_run_killed_while_it_wrote_its_settings_goes_on(tmp_path):
    """At whatever point: only a half-written file under its temporary name stands there."""
    workdir = tmp_path / "run"
    workdir.mkdir()
    (workdir / ".config.json.123.tmp").write_text('{"half')
    common.Workdir(str(workdir), get_config("smoke"))
    assert json.loads((workdir / "config.json").read_text())["preset"] == "smoke"
    common.Workdir(str(workdir), get_config("smoke"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".hidden").write_text("mine")
    with pytest.raises(DataError, match="not empty"):
        common.Workdir(str(tmp_path / "other"), get_config("smoke"))


def test_a_workdir_that_cannot_be_is_one_clear_line(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    for path in (file, file / "below", "/proc/nope", tmp_path / ("x" * 300)):
        with pytest.raises(DataError, match=f"--workdir={str(path)[:60]}"):
            common.Workdir(str(path), get_config("smoke"))
    assert file.read_text() == "x"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("def get_config(:", ("SyntaxError", "bad.py, line 1")),
        ("import nosuchthing", ("No module named 'nosuchthing'", "bad.py, line 1")),
        ("\ndef get_config():\n    return 1 / 0", ("division by zero", "bad.py, line 3")),
        ("def get_config():\n    return unknown", ("'unknown' is not defined", "bad.py, line 2")),
        ("x = 1", ("get_config",)),
    ],
)
def test_a_config_file_that_fails_is_one_clear_line(repository, tmp_path, content, words):
    (tmp_path / "bad.py").write_text(content)
    for more in ([], ["--config.seed=1"]):
        done = run(repository, "launch.tables", f"--out={tmp_path / 'a'}", f"--config={tmp_path / 'bad.py'}", *more)
        assert done.returncode == 2, done.stderr
        assert_one_clear_line(done, *words)


def test_your_own_tables(repository, tmp_path):
    """Any file of Table records goes through the stages."""
    write_records(tmp_path / "mine.jsonl", [table(name, 20) for name in ("Lakes", "Hills", "Ports")])
    done = run(repository, "launch.tables", f"--out={tmp_path / 'tables'}", f"--source={tmp_path / 'mine.jsonl'}")
    assert done.returncode == 0, done.stderr
    assert "next: python -m launch.synthesize" in done.stdout


def test_serve_prints_its_command(repository):
    done = run(repository, "launch.serve", "--model=some/model", "--port=1234", "--dry_run")
    assert done.stdout.startswith("vllm serve some/model")
    assert "--port 1234" in done.stdout
    missing = run(repository, "launch.serve", "--model=m", "--vllm=/nowhere/vllm")
    assert_one_clear_line(missing, "/nowhere/vllm")


@pytest.mark.parametrize("model", ["Qwen/Qwen3-0.6B", "./nope", "/nowhere/model", "tests"])
def test_serve_takes_names_of_a_hub_and_refuses_folders_that_hold_no_model(repository, model):
    done = run(repository, "launch.serve", f"--model={model}", "--vllm=/bin/false")
    assert_one_clear_line(done, "the server stopped" if model.startswith("Qwen") else f"--model={model}: holds no")
