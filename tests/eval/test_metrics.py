import json

import pytest

from tests.made_records import TARGET, make_score
from webleaper_jax.eval.aggregate import METRICS, BootstrapConfig
from webleaper_jax.eval.metrics import POLICIES, collect_metrics, count_tasks, summary_table, write_metrics
from webleaper_jax.records import Provenance, Task


def make_task(number: int, variant="basic", split="heldout", families: int = 3) -> Task:
    provenance = Provenance(families=(f"family {number % families}",))
    return Task(question=f"q{number}", variant=variant, targets=(TARGET,), split=split, provenance=provenance)


TASKS = [make_task(i) for i in range(9)]


def metrics_of(scores, tasks=TASKS):
    return collect_metrics(
        tasks,
        scores,
        wall_seconds={"sft": 12.345678},
        peak_rss_gb=2.34567,
        seed=7,
        bootstrap=BootstrapConfig(replicates=200),
    )


def test_the_file_holds_what_programs_look_for(tmp_path):
    scores = {
        "sft": [make_score(task, 0.1 * i) for i, task in enumerate(TASKS)],
        "grpo": [make_score(task, 0.1 * i + 0.05) for i, task in enumerate(TASKS)],
        "no_tools": [],
    }
    write_metrics(tmp_path / "metrics.json", metrics_of(scores))
    found = json.loads((tmp_path / "metrics.json").read_text())
    assert set(found) == {"sft", "grpo", "paired", "tasks", "wall_seconds", "peak_rss_gb", "seed"}
    for policy in ("sft", "grpo"):
        assert set(found[policy]) == set(METRICS)
        for interval in found[policy].values():
            assert interval["low"] <= interval["mean"] + 1e-9
            assert interval["mean"] <= interval["high"] + 1e-9
    assert found["paired"]["f"]["mean"] == pytest.approx(0.05)
    assert found["paired"]["f"]["low"] == pytest.approx(0.05)
    assert found["tasks"] == {"basic": {"heldout": 9}}
    assert (found["wall_seconds"], found["peak_rss_gb"], found["seed"]) == ({"sft": 12.35}, 2.346, 7)
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.json"]


def test_an_interval_that_cannot_be_had_is_null(tmp_path):
    tasks = [make_task(i, families=1) for i in range(3)]
    metrics = metrics_of({"sft": [make_score(task, 0.5) for task in tasks]}, tasks)
    write_metrics(tmp_path / "metrics.json", metrics)
    f = json.loads((tmp_path / "metrics.json").read_text())["sft"]["f"]
    assert f == {"mean": 0.5, "low": None, "high": None}
    assert "[-, -]" in summary_table(metrics)


def test_tasks_are_counted_by_variant_and_split():
    tasks = [make_task(0), make_task(1, "union", "train"), make_task(2, "union", "train"), make_task(3, "union", "")]
    assert count_tasks(tasks) == {"basic": {"heldout": 1}, "union": {"train": 2, "unsplit": 1}}


def test_a_name_that_is_no_policy_is_refused():
    with pytest.raises(ValueError, match="unknown policy 'stf'"):
        metrics_of({"stf": [make_score(TASKS[0], 0.5)]})


def test_grpo_and_sft_must_have_met_the_same_tasks():
    scores = [make_score(task, 0.5) for task in TASKS]
    with pytest.raises(ValueError, match="one policy only"):
        metrics_of({"sft": scores, "grpo": scores[1:]})


def test_the_table_has_a_line_a_policy_in_a_fixed_order():
    scores = {p: [make_score(task, 0.25) for task in TASKS] for p in reversed(POLICIES)}
    lines = summary_table(metrics_of(scores)).splitlines()
    assert [line.split()[0] for line in lines] == ["policy", *POLICIES, "GRPO"]
    assert lines[1].split()[1:4] == ["0.250", "[0.250,", "0.250]"]
    assert "F: +0.000" in lines[-1]
