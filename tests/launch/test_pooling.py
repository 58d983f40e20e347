"""`launch.report` over several runs: pooled task by task, and only where they differ by nothing but their seed."""

import json
import os
import pathlib
import shutil

import pytest

from launch.pool import describe, pool
from tests.launch.test_launchers import assert_one_clear_line
from tests.launch.test_launchers import run as launch
from webleaper_jax.jsonl import DataError, write_records
from webleaper_jax.records import Provenance, Score, Target, Task

TARGET = Target(form="x", type="text", layer=2, owner="t", relation="name", final=True)


def task(number: int) -> Task:
    return Task(
        question=f"q{number}",
        variant="basic",
        targets=(TARGET,),
        split="heldout",
        provenance=Provenance(families=(f"family {number % 3}",)),
    )


def score(number: int, f: float) -> Score:
    return Score(
        task_id=task(number).id, trajectory_id=f"t{number}", rollout=0, isr=f, ise=f, ise_literal=f, ise_visits=f,
        valid_action_rate=f, precision=f, recall=f, f=f, n=9, rounds=4, searches=1, visits=2,
    )  # fmt: skip


def run(folder: pathlib.Path, seed: int, sft: list[float], grpo: list[float], steps: int = 8) -> pathlib.Path:
    write_records(folder / "tasks" / "tasks.jsonl.gz", [task(i) for i in range(len(sft) + 2)])
    for policy, values in (("sft", sft), ("grpo", grpo)):
        write_records(
            folder / "eval" / policy / "trajectories.scores.jsonl", [score(i, f) for i, f in enumerate(values)]
        )
    paired = {"f": {"mean": sum(grpo) / len(grpo) - sum(sft) / len(sft), "low": None, "high": None}}
    metrics = {"seed": seed, "paired": paired, "wall_seconds": {}, "peak_rss_gb": 1.0}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    config = {"seed": seed, "sft": {"seed": seed, "steps": 9}, "grpo": {"seed": seed, "steps": steps}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_runs_are_pooled_task_by_task(tmp_path):
    a = run(tmp_path / "a", 0, sft=[0.1, 0.2, 0.3], grpo=[0.3, 0.2, 0.4])
    b = run(tmp_path / "b", 1, sft=[0.3, 0.4, 0.5], grpo=[0.5, 0.6, 0.4])
    pooled = pool([a, b])
    assert pooled["sft"]["f"]["mean"] == pytest.approx((0.1 + 0.2 + 0.3 + 0.3 + 0.4 + 0.5) / 6)
    assert pooled["paired"]["f"]["mean"] == pytest.approx(0.1)
    # task by task: 0.2, 0.1, 0.0, each of a family of its own
    assert -1e-9 <= pooled["paired"]["f"]["low"] < 0.09
    assert 0.11 < pooled["paired"]["f"]["high"] <= 0.2 + 1e-9
    assert pooled["heldout"] == {"tasks": 3, "families": 3}
    assert [one["seed"] for one in pooled["seeds"]] == [0, 1]


def test_other_tasks_or_an_unfinished_run_are_refused(tmp_path):
    a = run(tmp_path / "a", 0, sft=[0.1, 0.2], grpo=[0.3, 0.2])
    b = run(tmp_path / "b", 1, sft=[0.3, 0.4, 0.5], grpo=[0.5, 0.6, 0.4])
    with pytest.raises(DataError, match="other tasks than"):
        pool([a, b])
    (b / "metrics.json").unlink()
    with pytest.raises(DataError, match="no finished run"):
        pool([a, b])


def test_runs_that_differ_by_more_than_their_seed_are_refused(tmp_path):
    """Each would be counted as a run of its own, or hide that two things were compared."""
    a = run(tmp_path / "a", 0, sft=[0.1, 0.2], grpo=[0.3, 0.2])
    b = run(tmp_path / "b", 1, sft=[0.1, 0.2], grpo=[0.3, 0.2])
    assert len(pool([a, b])["seeds"]) == 2
    with pytest.raises(DataError, match="given twice"):
        pool([a, b, tmp_path / "b" / ".." / "a"])
    os.symlink(a, tmp_path / "link")
    with pytest.raises(DataError, match="given twice"):
        pool([a, tmp_path / "link"])
    shutil.copytree(a, tmp_path / "copy")
    with pytest.raises(DataError, match=r"copy: has the seed of .*/a \(0\)"):
        pool([a, b, tmp_path / "copy"])
    longer = run(tmp_path / "longer", 2, sft=[0.1, 0.2], grpo=[0.3, 0.2], steps=9)
    with pytest.raises(
        DataError, match=r"longer: differs .* by more than its seed .config\.grpo\.steps: 8 there, 9 here"
    ):
        pool([a, b, longer])


def test_every_policy_must_have_been_evaluated_on_the_same_tasks_in_every_run(tmp_path):
    a = run(tmp_path / "a", 0, sft=[0.1, 0.2], grpo=[0.3, 0.2])
    b = run(tmp_path / "b", 1, sft=[0.1, 0.2], grpo=[0.3, 0.2])
    scores = b / "eval" / "grpo" / "trajectories.scores.jsonl"
    write_records(scores, [score(0, 0.3)])  # the union over policies is the same
    with pytest.raises(DataError, match=r"b: `grpo` was evaluated on other tasks than in .*/a"):
        pool([a, b])
    scores.unlink()
    for runs, named in (([a, b], "b"), ([b, a], "a")):
        with pytest.raises(DataError, match=rf"{named}: its policies .* `grpo` is missing in .*/b"):
            pool(runs)
    for folder in (a, b):
        write_records(folder / "eval" / "grpo" / "trajectories.scores.jsonl", [score(0, 0.3)])
    with pytest.raises(DataError, match=str(a)):  # GRPO and SFT on different tasks
        pool([a, b])


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"seed": 0}', "\xff"])
@pytest.mark.parametrize("name", ["metrics.json", "config.json"])
def test_a_damaged_file_is_named(tmp_path, name, content):
    a = run(tmp_path / "a", 0, sft=[0.1, 0.2], grpo=[0.3, 0.2])
    b = run(tmp_path / "b", 1, sft=[0.1, 0.2], grpo=[0.3, 0.2])
    (b / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=f"{b}"):
        pool([a, b])


def test_the_command_says_in_words_what_each_run_found(repository, tmp_path):
    a = run(tmp_path / "a", 0, sft=[0.1, 0.2], grpo=[0.3, 0.2])
    b = run(tmp_path / "b", 1, sft=[0.1, 0.2], grpo=[0.3, 0.2])
    done = launch(repository, "launch.report", f"--workdir={a},{b}", f"--out={tmp_path / 'pooled.json'}")
    assert f"{a}: seed 0, GRPO - SFT, F: +0.100\n" in done.stdout
    assert "{" not in done.stdout
    assert json.loads((tmp_path / "pooled.json").read_text())["heldout"]["tasks"] == 2
    paired = {"f": {"mean": 0.1, "low": -0.02, "high": 0.2}}
    line = describe({"workdir": "w", "seed": 3, "paired": paired})
    assert line == "w: seed 3, GRPO - SFT, F: +0.100, 95 % interval -0.020 to +0.200"
    assert "not evaluated" in describe({"workdir": "w", "seed": 3, "paired": None})

    alone = launch(repository, "launch.report", f"--workdir={a}", f"--out={tmp_path / 'one.json'}")
    assert_one_clear_line(alone, "--out", "several runs")
    folder = launch(repository, "launch.report", f"--workdir={a},{b}", f"--out={tmp_path}")
    assert_one_clear_line(folder, f"--out={tmp_path}", "folder")
    below = launch(repository, "launch.report", f"--workdir={a},{b}", f"--out={a / 'config.json' / 'x'}")
    assert_one_clear_line(below, "--out=", "cannot be written")
