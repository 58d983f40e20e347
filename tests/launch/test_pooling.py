"""`launch.report` over several runs: pooled task by task, and only where the tasks are the same."""

import json
import pathlib

import pytest

from launch.report import pool
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


def run(folder: pathlib.Path, seed: int, sft: list[float], grpo: list[float]) -> pathlib.Path:
    write_records(folder / "tasks" / "tasks.jsonl.gz", [task(i) for i in range(len(sft) + 2)])
    for policy, values in (("sft", sft), ("grpo", grpo)):
        write_records(
            folder / "eval" / policy / "trajectories.scores.jsonl", [score(i, f) for i, f in enumerate(values)]
        )
    paired = {"f": {"mean": sum(grpo) / len(grpo) - sum(sft) / len(sft), "low": None, "high": None}}
    (folder / "metrics.json").write_text(json.dumps({"seed": seed, "paired": paired}))
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
