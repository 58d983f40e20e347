import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_gen.filter import CELLS, REASONS, FilterConfig, choose_beta, filter_trajectories
from webleaper_jax.records import Message, Sampling, Score, Segment, Target, Task, Trajectory

TARGET = Target(form="x", type="text", layer=2, owner="t", relation="name", final=True)


def make_task(number: int = 0, legacy: bool = False) -> Task:
    if legacy:
        return Task(question=f"q{number}", variant="legacy", origin="legacy", reward="exact", gold="42")
    return Task(question=f"q{number}", variant="basic", targets=(TARGET,))


def make_run(task: Task, rollout: int, text: str = "", termination="answer", infrastructure="") -> Trajectory:
    return Trajectory(
        task_id=task.id,
        rollout=rollout,
        policy="p",
        segments=(Segment(messages=(Message(role="assistant", content=text),), steps=()),),
        sampling=Sampling(),
        termination="infrastructure" if infrastructure else termination,
        infrastructure_error=infrastructure,
    )


def make_score(run: Trajectory, isr=1.0, ise=5.0, f=1.0, scored=True, **other) -> Score:
    values = {"ise_literal": 9.0, "ise_visits": 7.0, **other}
    return Score(
        task_id=run.task_id,
        trajectory_id=run.id,
        rollout=run.rollout,
        isr=isr,
        ise=ise,
        valid_action_rate=0.5,
        precision=f,
        recall=f,
        f=f,
        n=10,
        rounds=3,
        searches=1,
        visits=1,
        scored=scored,
        **values,
    )


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.3, 0.30001, 0.9]), st.sampled_from([0.0, 0.1, 0.1001, 4.0])), max_size=20
    )
)
def test_cells_and_reasons_are_the_two_strict_comparisons(pairs):
    task = make_task()
    runs = [make_run(task, i) for i in range(len(pairs))]
    scores = [make_score(run, isr, ise) for run, (isr, ise) in zip(runs, pairs, strict=True)]
    kept, report = filter_trajectories([task], runs, scores, FilterConfig(beta_quantile=0.0))
    assert [run.rollout for run in kept] == [i for i, (isr, ise) in enumerate(pairs) if isr > 0.3 and ise > 0.1]
    cells = dict.fromkeys(CELLS, 0)
    for isr, ise in pairs:
        cells[f"isr {'pass' if isr > 0.3 else 'fail'}, ise {'pass' if ise > 0.1 else 'fail'}"] += 1
    assert report.cells == cells
    assert sum(report.reasons.values()) == len(pairs)
    assert report.reasons["kept"] == len(kept)


@pytest.mark.parametrize("reading", ["ise", "ise_literal", "ise_visits"])
def test_the_reading_of_ise_is_the_one_chosen(reading):
    task = make_task()
    run = make_run(task, 0)
    readings = {"ise": 0.0, "ise_literal": 0.0, "ise_visits": 0.0, reading: 1.0}
    score = make_score(run, **readings)
    for config_reading in readings:
        kept, _ = filter_trajectories([task], [run], [score], FilterConfig(ise=config_reading, beta_quantile=0.0))
        assert bool(kept) == (config_reading == reading)


@given(st.lists(st.floats(0.2, 50), min_size=1, max_size=60), st.floats(0.05, 0.6))
def test_a_beta_that_would_not_bite_becomes_a_quantile_that_does(values, quantile):
    beta, source = choose_beta(values, FilterConfig(beta=0.1, beta_quantile=quantile))
    assert source == "quantile"
    assert beta in values
    below = sum(value <= beta for value in values)
    assert below >= max(1, math.floor(quantile * (len(values) - 1)))
    assert sum(value < beta for value in values) <= quantile * len(values)


def test_a_beta_that_bites_stays():
    assert choose_beta([0.05] * 6 + [3.0] * 94, FilterConfig()) == (0.1, "config")
    assert choose_beta([0.05] * 4 + [3.0] * 96, FilterConfig(beta_quantile=0.5)) == (3.0, "quantile")
    assert choose_beta([3.0] * 9, FilterConfig(beta_quantile=0.0)) == (0.1, "config")
    assert choose_beta([], FilterConfig()) == (0.1, "config")


def test_the_report_says_where_beta_comes_from():
    task = make_task()
    runs = [make_run(task, i) for i in range(10)]
    scores = [make_score(run, ise=1.0 + i) for i, run in enumerate(runs)]
    _, by_quantile = filter_trajectories([task], runs, scores, FilterConfig())
    _, by_config = filter_trajectories([task], runs, scores, FilterConfig(beta=5.0))
    assert (by_quantile.beta_from, by_quantile.beta_given) == ("quantile", 0.1)
    assert "a quantile: the configured 0.1" in by_quantile.text()
    assert (by_config.beta_from, by_config.beta) == ("config", 5.0)
    assert "as configured" in by_config.text()


def test_best_k_keeps_the_best_of_each_task_and_of_equals_the_shortest():
    one, two = make_task(1), make_task(2)
    runs = [make_run(one, 0, "long long"), make_run(one, 1, "short"), make_run(one, 2, "x"), make_run(two, 0, "y")]
    scores = [
        make_score(runs[0], f=0.9),
        make_score(runs[1], f=0.9),
        make_score(runs[2], f=0.2),
        make_score(runs[3], f=0.1),
    ]
    kept, report = filter_trajectories([one, two], runs, scores, FilterConfig(best_k=1, beta_quantile=0.0))
    assert kept == [runs[1], runs[3]]
    assert report.reasons["not among the best"] == 2
    assert report.mean_f == pytest.approx(0.5)
    assert (report.tasks_in, report.tasks_kept) == (2, 2)


def test_legacy_tasks_skip_isr_and_ise_and_are_kept_by_outcome():
    task = make_task(legacy=True)
    right, wrong = make_run(task, 0), make_run(task, 1)
    scores = [make_score(right, isr=0.0, ise=0.0, f=1.0), make_score(wrong, isr=1.0, ise=9.0, f=0.0)]
    kept, report = filter_trajectories([task], [right, wrong], scores)
    assert kept == [right]
    assert report.reasons["outcome"] == 1
    assert sum(report.cells.values()) == 0


def test_what_is_no_data_is_counted_apart():
    task = make_task()
    outage = make_run(task, 0, infrastructure="timeout")
    unscored, stopped, good = make_run(task, 1), make_run(task, 2, termination="step_limit"), make_run(task, 3)
    scores = [make_score(unscored, scored=False), make_score(stopped), make_score(good)]
    kept, report = filter_trajectories(
        [task], [outage, unscored, stopped, good], scores, FilterConfig(beta_quantile=0.0)
    )
    assert kept == [good]
    assert {r: n for r, n in report.reasons.items() if n} == {
        "kept": 1, "no answer": 1, "unscored": 1, "infrastructure": 1,
    }  # fmt: skip
    assert sum(report.cells.values()) == 2
    assert set(report.reasons) == set(REASONS)
    kept, _ = filter_trajectories(
        [task], [outage, unscored, stopped, good], scores, FilterConfig(need_answer=False, beta_quantile=0.0)
    )
    assert kept == [stopped, good]


def test_a_trajectory_without_a_score_or_a_task_is_refused():
    task, run = make_task(), make_run(make_task(), 0)
    with pytest.raises(ValueError, match="has no score"):
        filter_trajectories([task], [run], [])
    with pytest.raises(ValueError, match="was not given"):
        filter_trajectories([make_task(9)], [run], [make_score(run)])


def test_smallest_cell_is_a_share():
    task = make_task()
    runs = [make_run(task, i) for i in range(4)]
    scores = [make_score(run, isr, ise) for run, (isr, ise) in zip(runs, [(1, 1), (1, 0), (0, 1), (0, 0)], strict=True)]
    _, report = filter_trajectories([task], runs, scores)
    assert report.smallest_cell == pytest.approx(0.25)
    _, empty = filter_trajectories([task], [], [])
    assert empty.smallest_cell == 0.0
