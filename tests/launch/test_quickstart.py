"""The quickstart's smoke preset from end to end: killed once on the way, resumed, and looked at."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from data_gen.splits import split_of_family
from webleaper_jax.eval.metrics import POLICIES
from webleaper_jax.jsonl import load_records
from webleaper_jax.records import Table, Task, Trajectory
from webleaper_jax.scoring.observations import TargetFinder


def start(repository: pathlib.Path, workdir: pathlib.Path, log: pathlib.Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "launch.quickstart",
        f"--workdir={workdir}",
        "--config=configs/quickstart.py:smoke",
    ]
    environment = {**os.environ, "PYTHONPATH": str(repository), "JAX_PLATFORMS": "cpu"}
    with open(log, "ab") as out:
        return subprocess.Popen(command, cwd=repository, env=environment, stdout=out, stderr=subprocess.STDOUT)


@pytest.fixture(scope="module")
def finished(repository, tmp_path_factory) -> tuple[pathlib.Path, str]:
    """A finished run that was killed while SFT was under way, and its output."""
    folder = tmp_path_factory.mktemp("quickstart")
    workdir, log = folder / "run", folder / "log.txt"
    process = start(repository, workdir, log)
    deadline = time.monotonic() + 600
    while not (workdir / "sft" / "dataset").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.2)
    time.sleep(2.0)
    assert process.poll() is None, log.read_text()[-3000:]
    process.send_signal(signal.SIGKILL)
    process.wait()
    log.write_bytes(b"")
    assert start(repository, workdir, log).wait(timeout=1200) == 0, log.read_text()[-3000:]
    return workdir, log.read_text()


def test_it_goes_on_where_it_was(finished):
    _, output = finished
    for stage in ("tables", "tasks", "collect", "evaluate_scripted", "evaluate_untrained"):
        assert f"[{stage}] done before" in output
    assert "[sft] done before" not in output


def test_metrics_hold_every_policy(finished):
    workdir, output = finished
    metrics = json.loads((workdir / "metrics.json").read_text())
    names = {"precision", "recall", "f", "isr", "ise", "valid_action_rate", "rounds", "searches", "visits"}
    for policy in POLICIES:
        assert set(metrics[policy]) == names
        assert set(metrics[policy]["f"]) == {"mean", "low", "high"}
        assert policy in output
    assert set(metrics["paired"]["f"]) == {"mean", "low", "high"}
    assert metrics["untrained"]["f"]["mean"] < 0.05
    assert metrics["seed"] == 0
    assert 0 < metrics["peak_rss_gb"] < 6
    assert set(metrics["wall_seconds"]) >= {"tables", "tasks", "collect", "sft", "grpo", "evaluate_grpo"}
    assert sum(metrics["tasks"]["union"].values()) > 100


def test_no_observation_shows_more_than_two_fifths_of_a_chosen_task(finished):
    """Read from the trajectories themselves: what each step of the scripted searcher showed, and no more."""
    workdir, _ = finished
    tasks = {task.id: task for task in load_records(workdir / "tasks" / "tasks.jsonl.gz", Task)}
    checked = 0
    for trajectory in load_records(workdir / "collect" / "train" / "trajectories.jsonl.gz", Trajectory):
        finder = TargetFinder(tasks[trajectory.task_id])
        for message in trajectory.segments[0].messages:
            if message.role == "tool":
                assert len(finder.find(message.content)) <= 0.4 * len(tasks[trajectory.task_id].targets)
                checked += 1
    assert checked > 100


def test_the_report_is_one_file(finished):
    workdir, _ = finished
    html = (workdir / "report" / "report.html").read_text()
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert html.count("data:image/png;base64") >= 6
    assert len(list((workdir / "report").glob("*.png"))) >= 6


def test_nothing_of_the_held_out_tables_is_in_the_training_files(finished, repository):
    """No held-out table, question or list of entities; and the base's text came from training families alone."""
    workdir, _ = finished
    tables_of = load_records(workdir / "tables" / "tables.jsonl.gz", Table)
    tasks = load_records(workdir / "tasks" / "tasks.jsonl.gz", Task)
    held_out = {task.question for task in tasks if task.split == "heldout"}
    titles = {table.title for table in tables_of if split_of_family(table.family) == "heldout"}
    assert held_out
    assert titles
    known = "\n".join(table.title for table in tables_of if table.title not in titles)
    telling = [title for title in titles if title not in known]
    assert len(telling) > 0.9 * len(titles)
    seen = ""
    files = ["collect/train/kept.jsonl.gz", "collect/train/trajectories.jsonl.gz", "collect/validation/kept.jsonl.gz"]
    files += [str(path.relative_to(workdir)) for path in workdir.glob("grpo/rollouts/*/*.log.jsonl")]
    assert len(files) > 3
    for file in files:
        for trajectory in load_records(workdir / file, Trajectory):
            own = trajectory.segments[0].messages
            assert own[1].content not in held_out
            seen += "\n".join(message.content for message in own)  # what was observed, too
    assert not [title for title in telling if title in seen]
    train_tables = {i for task in tasks if task.split == "train" for i in task.provenance.tables}
    heldout_tables = {i for task in tasks if task.split == "heldout" for i in task.provenance.tables}
    assert not train_tables & heldout_tables
    families = json.loads((repository / "data_gen/sample/tiny_base/metadata.json").read_text())["families"]
    assert {split_of_family(family) for family in families} == {"train"}


def test_finished_stages_are_not_done_again(finished, repository, tmp_path):
    workdir, _ = finished
    before = (workdir / "metrics.json").read_bytes()
    log = tmp_path / "again.txt"
    assert start(repository, workdir, log).wait(timeout=300) == 0
    assert log.read_text().count("skipped") >= 15
    assert (workdir / "metrics.json").read_bytes() == before
