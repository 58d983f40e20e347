import html.parser
import re

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webleaper_jax.eval import plots
from webleaper_jax.eval.aggregate import Interval
from webleaper_jax.eval.marking import entity_spans
from webleaper_jax.eval.metrics import collect_metrics
from webleaper_jax.eval.report import Example, Plot, ReportData, pick_examples, render_report, write_report
from webleaper_jax.records import (
    Answer,
    Match,
    Message,
    Provenance,
    Sampling,
    Score,
    Segment,
    Step,
    Target,
    Task,
    Trajectory,
)

NASTY = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'&amp;</pre></article><!--"


def target(form: str, layer=2, owner="Dams", relation="name", final=True) -> Target:
    return Target(form=form, type="text", layer=layer, owner=owner, relation=relation, final=final)


def make_task(question="Which dams?", forms=("Alta", "Sima"), variant="basic", family="dams") -> Task:
    targets = (*map(target, forms), target("1987", 3, "Alta", "year"))
    return Task(question=question, variant=variant, targets=targets, provenance=Provenance(families=(family,)))


def make_run(
    task: Task, observation="# Dams\nName | year\nAlta | 1987", rollout=0, thought="open", cells=("Alta", "1987")
):
    messages = (
        Message(role="system", content="system"),
        Message(role="user", content=task.question),
        Message(role="assistant", content=f"<think>{thought}</think>\n<tool_call>\n{{}}\n</tool_call>"),
        Message(role="tool", content=observation),
        Message(role="assistant", content="<think>done</think>\n<answer>\nName | year\nAlta | 1987\n</answer>"),
    )
    step = Step(turn=0, tool="visit", arguments="{}", observation=observation, shown=(0, 2), visible=(0, 2))
    return Trajectory(
        task_id=task.id,
        rollout=rollout,
        policy="sft",
        segments=(Segment(messages=messages, steps=(step,)),),
        sampling=Sampling(),
        answer=Answer(columns=("Name", "year"), rows=(cells,)),
        termination="answer",
    )


def make_score(task: Task, run: Trajectory, f=0.7) -> Score:
    return Score(
        task_id=task.id,
        trajectory_id=run.id,
        rollout=run.rollout,
        isr=0.6,
        ise=2.0,
        ise_literal=3.0,
        ise_visits=2.0,
        valid_action_rate=1.0,
        precision=f,
        recall=f,
        f=f,
        n=3,
        rounds=2,
        searches=0,
        visits=1,
        matches=(Match(target=0, score=1.0),),
    )


def render(example: Example, **fields) -> str:
    data = {"title": "Run", "metrics": {}, "cells": {}, "plots": (), "examples": (example,), **fields}
    return render_report(ReportData(**data))


class Reader(html.parser.HTMLParser):
    """Collects tags, text, and whether every tag that opens is closed in order."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.tags, self.texts, self.attributes = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def handle_comment(self, data):
        raise AssertionError("a comment got in")


@pytest.mark.parametrize(
    "place", ["observation", "question", "thought", "answer", "form", "note", "title", "cell", "caption"]
)
def test_markup_in_any_text_stays_text(place):
    task = make_task(
        **({"question": NASTY} if place == "question" else {"forms": (NASTY, "Sima")} if place == "form" else {})
    )
    observation = f"# Dams\nAlta | {NASTY}" if place in ("observation", "form") else "# Dams\nAlta | 1987"
    cells = (NASTY, "1987") if place == "answer" else ("Alta", "1987")
    run = make_run(task, observation, thought=NASTY if place == "thought" else "open", cells=cells)
    example = Example(task=task, trajectory=run, score=make_score(task, run), note=NASTY if place == "note" else "")
    plot = Plot(figure=plots.isr_ise_plane([], 0.3, 0.1), caption=NASTY if place == "caption" else "plane")
    text = render(
        example,
        title=NASTY if place == "title" else "Run",
        cells={NASTY if place == "cell" else "cell": 3},
        plots=(plot,),
    )
    reader = Reader(text)
    assert reader.open == []
    assert "script" not in reader.tags
    assert not any(name.startswith("on") for name, _ in reader.attributes)
    assert all(value.startswith("data:image/png;base64,") for name, value in reader.attributes if name == "src")
    if place not in ("title", "caption", "cell"):
        assert NASTY in "".join(reader.texts)


@settings(deadline=None, max_examples=60)
@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=60), st.text("<>&\"' x!-/", max_size=60))
def test_any_observation_comes_out_as_it_went_in(text, markup):
    observation = text + markup
    task = make_task()
    run = make_run(task, observation)
    page = render(Example(task=task, trajectory=run, score=make_score(task, run)))
    found = re.search(r'<pre class="observation">(.*?)</pre>', page, re.DOTALL)
    assert found
    assert "".join(Reader(found[1].replace("\r", "&#13;")).texts) == observation
    assert "script" not in Reader(page).tags


def test_found_and_missed_entities_are_marked():
    task = make_task()
    run = make_run(task)
    page = render(Example(task=task, trajectory=run, score=make_score(task, run)))
    assert '<mark class="new">Alta</mark> | <mark class="new">1987</mark>' in page
    assert re.search(r'class="chip found">✓ Alta <small>answer 1.00', page)
    assert re.search(r'class="chip missed">✗ Sima <small>answer 0.00', page)
    assert "2 of 3 found" in page


def test_what_was_shown_before_is_marked_as_such():
    task = make_task()
    run = make_run(task)
    step = run.segments[0].steps[0]
    again = msgspec.structs.replace(step, shown=(), turn=0)
    segment = msgspec.structs.replace(run.segments[0], steps=(step, again))
    run = msgspec.structs.replace(run, id="", segments=(segment,))
    page = render(Example(task=task, trajectory=run, score=make_score(task, run)))
    assert page.count('<mark class="new">Alta') == 1
    assert page.count('<mark class="seen">Alta') == 1
    assert "nothing new (2 shown)" in page


def test_spans_bind_values_to_their_owner():
    targets = [target("Alta"), target("1987", 3, "Alta", "year"), target("1987", 3, "Sima", "year")]
    text = "Alta | 1987\nOther | 1987\nSima | 1987 | 1987-88 | 21,987 | 1987,5\nAltar"
    spans = [
        (text[s.start : s.end], text[: s.start].count("\n"), s.target) for s in entity_spans(text, targets, (0, 1, 2))
    ]
    assert spans == [("Alta", 0, 0), ("1987", 0, 1), ("1987", 2, 2)]
    below = "# Alta\nyear: 1987"
    assert [s.target for s in entity_spans(below, targets, (0, 1))] == [0, 1]
    assert entity_spans(text, targets, ()) == []


@given(
    st.text("ab |\n#", max_size=40),
    st.lists(st.tuples(st.text("ab ", max_size=3), st.sampled_from([2, 3])), max_size=4),
)
def test_spans_never_overlap_and_hold_their_form(text, forms):
    targets = [target(form, layer, owner="a") for form, layer in forms]
    end = 0
    for span in entity_spans(text, targets, range(len(targets))):
        assert end <= span.start < span.end <= len(text)
        assert text[span.start : span.end].casefold() == targets[span.target].form.casefold()
        end = span.end


def test_examples_are_the_usual_ones_of_each_variant():
    tasks, runs, scores = [], [], []
    for variant in ("union", "basic"):
        for number, f in enumerate((0.0, 0.5, 1.0)):
            tasks.append(make_task(question=f"{variant} {number}", variant=variant))
            runs.append(make_run(tasks[-1]))
            scores.append(make_score(tasks[-1], runs[-1], f))
    picked = pick_examples(tasks, runs, scores)
    assert [(e.task.variant, e.score.f) for e in picked[:2]] == [("basic", 0.5), ("union", 0.5)]
    assert len(picked) == 3
    assert [e.task.id for e in picked] == [e.task.id for e in pick_examples(tasks[::-1], runs[::-1], scores[::-1])]
    assert pick_examples([], [], []) == []


def test_the_whole_report_is_one_file_without_outside_parts(tmp_path):
    tasks = [make_task(question=f"q{i}", family=f"f{i}") for i in range(4)]
    runs = [make_run(task) for task in tasks]
    scores = [make_score(task, run, 0.2 * i) for i, (task, run) in enumerate(zip(tasks, runs, strict=True))]
    metrics = collect_metrics(
        tasks, {"sft": scores, "grpo": scores}, wall_seconds={"sft": 1.0}, peak_rss_gb=1.0, seed=0
    )
    data = ReportData(
        title="Quickstart",
        metrics=metrics,
        cells={"isr pass, ise pass": 3, "isr fail, ise fail": 1},
        plots=[Plot(figure=plots.entities_per_task(tasks), caption="Entities per task")],
        examples=pick_examples(tasks, runs, scores),
        notes=["beta is a quantile"],
    )
    path = write_report(tmp_path / "report.html", data)
    text = path.read_text(encoding="utf-8")
    reader = Reader(text)
    assert reader.open == []
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text
    for words in ("grpo", "GRPO minus SFT", "isr pass, ise pass", "75.0%", "beta is a quantile", "Entities per task"):
        assert words in text
    assert text.count("<article>") == 3
    assert render_report(data) == text
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


# ---------------------------------------------------------------------------------------------------------- figures


def figures() -> dict[str, plots.Figure]:
    tasks = [make_task(question=f"q{i}", forms=tuple(f"d{j}" for j in range(3 * i + 1))) for i in range(6)]
    runs = [make_run(task) for task in tasks]
    scores = [make_score(task, run, 0.1 * i) for i, (task, run) in enumerate(zip(tasks, runs, strict=True))]
    point = Interval(mean=0.4, low=0.3, high=0.5)
    alone = Interval(mean=0.6, low=float("nan"), high=float("nan"))
    return {
        "entities": plots.entities_per_task(tasks),
        "valid": plots.valid_action_distribution({"sft": scores, "grpo": scores}),
        "calls": plots.tool_calls({"sft": scores, "other policy": scores}),
        "loss": plots.training_loss({"train": [(i, 3 / (i + 1)) for i in range(50)], "validation": [(10, 1.0)]}),
        "reward": plots.reward_curve({"seed 0": [(i, 0.01 * i) for i in range(40)]}),
        "rounds": plots.score_against_rounds(
            {"sft": {"rounds": point, "f": point}, "grpo": {"rounds": alone, "f": alone}}
        ),
        "plane": plots.isr_ise_plane(scores, 0.3, 0.1),
    }


def test_figures_are_png_files_and_the_same_bytes_every_time(tmp_path):
    paths = plots.save_figures(figures(), tmp_path)
    assert [p.name for p in paths] == [f"{name}.png" for name in figures()]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    again = figures()
    for path in paths[::3]:
        assert path.read_bytes() == plots.png_bytes(again[path.stem])


@pytest.mark.parametrize("most", [0, 1, 24, 25, 50, 99, 100])
def test_every_trajectory_is_in_the_histogram_of_calls(most):
    task = make_task()
    score = msgspec.structs.replace(make_score(task, make_run(task)), id="", searches=0, visits=most)
    for axes in plots.tool_calls({"sft": [score]}).axes:
        assert sum(patch.get_xy()[:, 1].max() for patch in axes.patches) == pytest.approx(1.0)


def test_figures_of_nothing_can_be_drawn():
    empty = [
        plots.entities_per_task([]),
        plots.valid_action_distribution({"sft": []}),
        plots.tool_calls({}),
        plots.training_loss({"train": []}),
        plots.reward_curve({}),
        plots.score_against_rounds({}),
        plots.isr_ise_plane([], 0.3, 0.1),
    ]
    assert all(plots.png_bytes(figure).startswith(b"\x89PNG") for figure in empty)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.integers(1, 12))
def test_smoothing_is_the_mean_of_the_last_values(values, window):
    expected = [np.mean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))]
    np.testing.assert_allclose(plots.smooth(np.array(values), window), expected, atol=1e-9)


def test_series_come_from_metric_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "f": 0.1}\n\n{"step": 1, "loss": 1.5}\n{"step": 3, "lo')
    assert plots.read_series(path, "loss") == [(1.0, 1.5)]
    assert plots.read_series(path, "f") == [(2.0, 0.1)]
    path.write_text("nonsense\n")
    with pytest.raises(plots.DataError, match=r"metrics.jsonl:1: no metrics line"):
        plots.read_series(path, "loss")
    with pytest.raises(plots.DataError, match="cannot be read"):
        plots.read_series(tmp_path / "absent.jsonl", "loss")
