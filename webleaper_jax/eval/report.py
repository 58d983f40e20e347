"""`report.html`: what a run found, as one file that opens without a server or a network.

Images are embedded as data URIs and styles are inline; there is no script. Every text that comes from tasks, pages or
policies is escaped, and a content security policy forbids scripts and outside addresses in case one were not.
"""

import base64
import html
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from matplotlib.figure import Figure

from webleaper_jax.eval.aggregate import METRICS
from webleaper_jax.eval.marking import Span, entity_spans
from webleaper_jax.eval.metrics import POLICIES
from webleaper_jax.eval.plots import png_bytes
from webleaper_jax.records import Answer, Score, Segment, Step, Target, Task, Trajectory

_escape = html.escape


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory to show step by step. `note` says what it is an example of."""

    task: Task
    trajectory: Trajectory
    score: Score
    note: str = ""


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """A figure and the sentence below it."""

    figure: Figure
    caption: str


class ReportData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the report shows.

    `metrics` is the content of `metrics.json`; `cells` are the filter's four cells with their counts; `notes` are short
    facts (thresholds used, context length, what was dropped), one line each.
    """

    title: str
    metrics: Mapping[str, Any]
    cells: Mapping[str, int]
    plots: Sequence[Plot]
    examples: Sequence[Example]
    notes: Sequence[str] = ()


def write_report(path: str | os.PathLike[str], data: ReportData) -> pathlib.Path:
    """Writes the report at once (temporary name, then rename) and returns its path."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(render_report(data), encoding="utf-8", errors="replace")
    os.replace(temporary, path)
    return path


def pick_examples(
    tasks: Iterable[Task], trajectories: Iterable[Trajectory], scores: Iterable[Score], count: int = 3
) -> list[Example]:
    """Picks trajectories to show: of each variant in turn the one whose F is nearest to its variant's median.

    Neither the best nor the worst, so that the reader sees what is usual. Ties go to the smaller task id and rollout.
    """
    task_of = {task.id: task for task in tasks}
    trajectory_of = {trajectory.id: trajectory for trajectory in trajectories}
    groups: dict[str, list[Score]] = {}
    for score in scores:
        if score.scored and score.trajectory_id in trajectory_of and score.task_id in task_of:
            groups.setdefault(task_of[score.task_id].variant, []).append(score)
    for variant, group in groups.items():
        group.sort(key=lambda s: s.f)
        median = group[len(group) // 2].f
        groups[variant] = sorted(group, key=lambda s: (abs(s.f - median), s.task_id, s.rollout))
    picked: list[Example] = []
    for place in range(count):
        for variant in sorted(groups):
            if len(picked) < count and place < len(groups[variant]):
                score = groups[variant][place]
                picked.append(
                    Example(
                        task=task_of[score.task_id],
                        trajectory=trajectory_of[score.trajectory_id],
                        score=score,
                        note=f"{variant}: F nearest to the median of its variant",
                    )
                )
    return picked


def render_report(data: ReportData) -> str:
    """Returns the whole HTML document."""
    sections = [
        f"<h1>{_escape(data.title)}</h1>",
        "<h2>Held-out tasks</h2>",
        _policies_table(data.metrics),
        _paired(data.metrics),
        "<h2>Tasks and filter</h2>",
        _counts(data.metrics, data.cells),
        _list(data.notes),
        "<h2>Figures</h2>",
        '<div class="plots">' + "".join(map(_plot, data.plots)) + "</div>",
        "<h2>Whole trajectories</h2>",
        _legend(),
        *[_example(number, example) for number, example in enumerate(data.examples, start=1)],
    ]
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{_escape(data.title)}</title>\n<style>\n{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main>\n</body>\n</html>\n"
    )


# ----------------------------------------------------------------------------------------------------------- tables


def _policies_table(metrics: Mapping[str, Any]) -> str:
    header = "".join(f'<th scope="col">{_escape(name.replace("_", " "))}</th>' for name in ("policy", *METRICS))
    rows = []
    for policy in POLICIES:
        if policy in metrics:
            cells = "".join(_metric_cell(name, metrics[policy][name]) for name in METRICS)
            rows.append(f'<tr><th scope="row">{_escape(policy)}</th>{cells}</tr>')
    if not rows:
        return "<p>No policy has been evaluated yet.</p>"
    caption = "Means with 95 % intervals (bootstrap over table families)."
    return _table(f"<caption>{caption}</caption><thead><tr>{header}</tr></thead><tbody>{''.join(rows)}</tbody>")


def _metric_cell(name: str, value: Mapping[str, float | None]) -> str:
    digits = 1 if name in ("rounds", "searches", "visits") else 2 if name == "ise" else 3
    return f"<td>{value['mean']:.{digits}f}<small>{_interval(value, digits)}</small></td>"


def _interval(value: Mapping[str, float | None], digits: int) -> str:
    if value["low"] is None or value["high"] is None:
        return "no interval"
    return f"{value['low']:.{digits}f} to {value['high']:.{digits}f}"


def _paired(metrics: Mapping[str, Any]) -> str:
    if "paired" not in metrics:
        return ""
    f = metrics["paired"]["f"]
    return f"<p>GRPO minus SFT on the same tasks, F: <strong>{f['mean']:+.3f}</strong> ({_interval(f, 3)}).</p>"


def _counts(metrics: Mapping[str, Any], cells: Mapping[str, int]) -> str:
    by_variant: Mapping[str, Mapping[str, int]] = metrics.get("tasks", {})
    splits = sorted({split for counts in by_variant.values() for split in counts})
    header = "".join(f'<th scope="col">{_escape(name)}</th>' for name in ("tasks", *splits, "all"))
    rows = "".join(
        f'<tr><th scope="row">{_escape(variant)}</th>'
        + "".join(f"<td>{counts.get(split, 0)}</td>" for split in splits)
        + f"<td>{sum(counts.values())}</td></tr>"
        for variant, counts in by_variant.items()
    )
    tables = _table(f"<thead><tr>{header}</tr></thead><tbody>{rows}</tbody>") if rows else ""
    total = sum(cells.values())
    if total:
        rows = "".join(
            f'<tr><th scope="row">{_escape(cell)}</th><td>{n}</td><td>{n / total:.1%}</td></tr>'
            for cell, n in cells.items()
        )
        header = '<th scope="col">collected trajectories</th><th scope="col">number</th><th scope="col">share</th>'
        tables += _table(f"<thead><tr>{header}</tr></thead><tbody>{rows}</tbody>")
    return f'<div class="side">{tables}</div>'


def _table(inner: str) -> str:
    return f'<div class="scroll"><table>{inner}</table></div>'


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{_escape(item)}</li>" for item in items) + "</ul>" if items else ""


def _plot(plot: Plot) -> str:
    data = base64.b64encode(png_bytes(plot.figure)).decode()
    text = _escape(plot.caption)
    width, height = plot.figure.get_size_inches()
    shape = ' class="wide"' if width > 2 * height else ""
    return (
        f'<figure{shape}><img src="data:image/png;base64,{data}" alt="{text}"><figcaption>{text}</figcaption></figure>'
    )


# ----------------------------------------------------------------------------------------------------- trajectories


def _legend() -> str:
    return (
        '<p class="legend"><mark class="new">shown for the first time</mark> <mark class="seen">shown before</mark> '
        '<span class="chip found">found</span> <span class="chip missed">missed</span></p>'
    )


def _example(number: int, example: Example) -> str:
    task, trajectory, score = example.task, example.trajectory, example.score
    facts = (
        f"{trajectory.policy} · ended by {trajectory.termination.replace('_', ' ')} · F {score.f:.3f} · "
        f"precision {score.precision:.3f} · recall {score.recall:.3f} · ISR {score.isr:.3f} · ISE {score.ise:.2f} · "
        f"valid actions {score.valid_action_rate:.2f} · {score.rounds} rounds"
    )
    turns = "".join(_segment(task, segment) for segment in trajectory.segments)
    parts = [
        f"<h3>{number}. {_escape(example.note or task.variant)}</h3>",
        f'<p class="question">{_escape(task.question)}</p>',
        f'<p class="facts">{_escape(facts)}</p>',
        f"<ol>{turns}</ol>",
        _answer(trajectory.answer),
        _entities(task, trajectory, score),
    ]
    return f"<article>{''.join(parts)}</article>"


def _segment(task: Task, segment: Segment) -> str:
    """The assistant turns of a segment, each with the calls it made and what they showed."""
    replies = [message.content for message in segment.messages if message.role == "assistant"]
    turns = sorted({step.turn for step in segment.steps} | set(range(len(replies))))
    parts = []
    for turn in turns:
        said = f'<pre class="said">{_escape(replies[turn])}</pre>' if turn < len(replies) else ""
        steps = "".join(_step(task, step) for step in segment.steps if step.turn == turn)
        parts.append(f"<li>{said}{steps}</li>")
    return "".join(parts)


def _step(task: Task, step: Step) -> str:
    if step.error:
        status = f"error: {step.error}"
    elif step.shown:
        status = f"{len(step.shown)} new of {len(step.visible)} shown"
    else:
        status = f"nothing new ({len(step.visible)} shown)" if step.visible else "shows no target"
    marked = _marked(step.observation, entity_spans(step.observation, task.targets, step.visible), set(step.shown))
    return (
        f'<div class="step"><p class="status">{_escape(step.tool)} · {_escape(status)}</p>'
        f'<pre class="observation">{marked}</pre></div>'
    )


def _marked(text: str, spans: Sequence[Span], new: set[int]) -> str:
    """The text, escaped piece by piece, with its spans in `<mark>`."""
    pieces, position = [], 0
    for span in spans:
        name = "new" if span.target in new else "seen"
        pieces.append(_escape(text[position : span.start]))
        pieces.append(f'<mark class="{name}">{_escape(text[span.start : span.end])}</mark>')
        position = span.end
    return "".join(pieces) + _escape(text[position:])


def _answer(answer: Answer) -> str:
    if not answer.rows:
        return "<p>The answer holds no rows.</p>"
    header = "".join(f'<th scope="col">{_escape(column)}</th>' for column in answer.columns)
    rows = "".join("<tr>" + "".join(f"<td>{_escape(cell)}</td>" for cell in row) + "</tr>" for row in answer.rows)
    head = f"<thead><tr>{header}</tr></thead>" if header else ""
    return (
        f"<details><summary>Answer: {len(answer.rows)} rows</summary>{_table(f'{head}<tbody>{rows}</tbody>')}</details>"
    )


def _entities(task: Task, trajectory: Trajectory, score: Score) -> str:
    """All targets: found by an observation or not, and for those asked for, how well the answer has them."""
    seen = {index for step in trajectory.steps for index in step.visible}
    answered = {match.target: match.score for match in score.matches}
    parts = []
    for title, final in (("Asked for", True), ("On the way", False)):
        chips = [
            _chip(target, index in seen, answered.get(index, 0.0) if final else None)
            for index, target in enumerate(task.targets)
            if target.final == final
        ]
        if chips:
            found = sum(index in seen for index, target in enumerate(task.targets) if target.final == final)
            parts.append(f"<p><strong>{title}</strong>, {found} of {len(chips)} found: {' '.join(chips)}</p>")
    return f"<details open><summary>Entities found and missed</summary>{''.join(parts)}</details>"


def _chip(target: Target, found: bool, answered: float | None) -> str:
    name = target.form if target.layer == 2 else f"{target.owner} · {target.relation}: {target.form}"
    sign = "✓" if found else "✗"
    tail = "" if answered is None else f" <small>answer {answered:.2f}</small>"
    return f'<span class="chip {"found" if found else "missed"}">{sign} {_escape(name)}{tail}</span>'


_STYLE = """
:root { color-scheme: light dark; --ink: #1d1f21; --soft: #5b6066; --page: #ffffff; --card: #f5f6f7; --line: #d9dcdf;
  --new: #bfe8cf; --seen: #e6e2c4; --good: #1a6b3c; --bad: #a8321f; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e7e8; --soft: #a4a9ae; --page: #16181a; --card: #202326; --line: #3a3e42;
    --new: #1f5a3a; --seen: #55502a; --good: #7fd6a3; --bad: #f0917f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.5rem; font-size: 1.25rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 0 0 .5rem; }
.scroll { overflow-x: auto; } .side { display: flex; flex-wrap: wrap; gap: 1.5rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0; }
caption { text-align: left; color: var(--soft); padding-bottom: .3rem; }
th, td { text-align: right; padding: .3rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, details td, details th { text-align: left; }
td small { display: block; color: var(--soft); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); gap: 1rem; }
.wide { grid-column: 1 / -1; }
figure { margin: 0; } figure img { width: 100%; background: #fff; border: 1px solid var(--line); border-radius: 6px; }
figcaption, .facts, .status { color: var(--soft); font-size: .9rem; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 1rem; margin: 1rem 0; }
.question { font-weight: 600; } ol { padding-left: 1.5rem; } li { margin-bottom: .8rem; }
pre { margin: .2rem 0; padding: .5rem .7rem; white-space: pre-wrap; overflow-wrap: anywhere; border-radius: 6px;
  font: 13px/1.45 ui-monospace, monospace; border: 1px solid var(--line); background: var(--page); }
.said { border-left: 3px solid var(--soft); } .step { margin-left: 1rem; } .status { margin: .4rem 0 0; }
mark { color: inherit; border-radius: 3px; } mark.new { background: var(--new); } mark.seen { background: var(--seen); }
.chip { display: inline-block; border: 1px solid currentColor; border-radius: 4px; padding: 0 .4rem; margin: .1rem 0;
  font-size: .85rem; } .found { color: var(--good); } .missed { color: var(--bad); } .chip small { color: var(--soft); }
summary { cursor: pointer; }
"""
