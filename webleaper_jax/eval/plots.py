"""The figures of a run, as matplotlib figures that are saved as PNG or put into the report.

Every function takes records or plain series and returns a figure; nothing here keeps global state (no pyplot), so
figures can be drawn in any thread and in any order. Colours are Okabe and Ito's, told apart by colour-blind readers.
"""

import io
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from webleaper_jax.eval.aggregate import Interval
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Score, Task

Series = Sequence[tuple[float, float]]

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#666666")
POLICY_COLOURS = {
    "scripted": "#666666",
    "untrained": "#999999",
    "sft": "#0072B2",
    "sft_more": "#56B4E9",
    "grpo": "#D55E00",
    "no_tools": "#E69F00",
    "other_observations": "#CC79A7",
    "visit_once": "#009E73",
}
_INK = "#333333"


def entities_per_task(tasks: Sequence[Task]) -> Figure:
    """How many targets (cells) the tasks have, by variant; logarithmic where they span more than a factor of 20."""
    figure, axes = _figure("Entities per task", "targets n = |R_all|", "tasks")
    sizes = {
        variant: [len(t.targets) for t in tasks if t.variant == variant and t.targets]
        for variant in sorted({t.variant for t in tasks})
    }
    sizes = {variant: found for variant, found in sizes.items() if found}
    everything = [n for found in sizes.values() for n in found]
    if everything:
        low, high = min(everything), max(everything)
        if high > 20 * low:
            bins = np.geomspace(low, high + 1, 25)
            axes.set_xscale("log")
        else:
            bins = np.linspace(low, high + 1, min(25, high - low + 2))
        labels = [f"{variant} ({len(found)}, median {int(np.median(found))})" for variant, found in sizes.items()]
        axes.hist(list(sizes.values()), bins=list(bins), stacked=True, label=labels, color=list(COLOURS[: len(sizes)]))
        axes.legend(frameon=False)
    return figure


def valid_action_distribution(scores: Mapping[str, Sequence[Score]]) -> Figure:
    """The share of actions that showed a new target, per trajectory, by policy (the paper's figure 2)."""
    figure, axes = _figure("Valid actions", "valid-action rate of a trajectory", "share of trajectories")
    for policy, found in scores.items():
        rates = [s.valid_action_rate for s in found]
        if rates:
            weights = np.full(len(rates), 1 / len(rates))
            axes.hist(
                rates,
                bins=list(np.linspace(0, 1, 21)),
                weights=weights,
                histtype="step",
                linewidth=1.8,
                label=f"{policy} (mean {np.mean(rates):.2f})",
                color=_colour(policy),
            )
    _legend(axes)
    return figure


def tool_calls(scores: Mapping[str, Sequence[Score]]) -> Figure:
    """Searches, visits and both together per trajectory, by policy."""
    kinds: dict[str, Callable[[Score], int]] = {
        "searches": lambda s: s.searches,
        "visits": lambda s: s.visits,
        "all calls": lambda s: s.searches + s.visits,
    }
    figure = Figure(figsize=(9.0, 3.2), dpi=110, layout="constrained")
    highest = max((s.searches + s.visits for found in scores.values() for s in found), default=0)
    width = max(1, (highest + 1) // 25)
    bins = np.arange(-0.5, highest + 0.5 + width, width)  # the last edge lies above the highest
    for position, (title, count) in enumerate(kinds.items(), start=1):
        axes = figure.add_subplot(1, 3, position)
        _dress(axes, title, "calls", "share of trajectories" if position == 1 else "")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for policy, found in scores.items():
            if found:
                weights = np.full(len(found), 1 / len(found))
                axes.hist(
                    [count(s) for s in found],
                    bins=list(bins),
                    weights=weights,
                    histtype="step",
                    linewidth=1.8,
                    label=policy,
                    color=_colour(policy),
                )
        if position == 3:
            _legend(axes)
    return figure


def training_loss(curves: Mapping[str, Series], title: str = "SFT loss") -> Figure:
    """Losses by step, one curve a name (`train`, `validation`)."""
    figure, axes = _figure(title, "step", "loss per token (nats)")
    for colour, (name, points) in zip(COLOURS, curves.items(), strict=False):
        if points:
            steps, losses = np.array(points, dtype=float).T
            axes.plot(steps, losses, label=name, color=colour, marker="o" if len(points) < 30 else "", markersize=3)
    axes.set_ylim(bottom=0)
    _legend(axes)
    return figure


def reward_curve(curves: Mapping[str, Series], window: int = 10) -> Figure:
    """Mean reward by RL step, one curve a name (a seed, say), raw in pale and smoothed over `window` steps."""
    figure, axes = _figure("RL reward", "step", "mean reward of the batch")
    for colour, (name, points) in zip(COLOURS, curves.items(), strict=False):
        if points:
            steps, rewards = np.array(points, dtype=float).T
            axes.plot(steps, rewards, color=colour, alpha=0.3, linewidth=1)
            axes.plot(steps, smooth(rewards, window), color=colour, linewidth=2, label=f"{name} (mean of {window})")
    _legend(axes)
    return figure


def smooth(values: Float[np.ndarray, "S"], window: int) -> Float[np.ndarray, "S"]:
    """The mean of the last `window` values at each place (of those there are, at the start)."""
    total = np.cumsum(np.insert(np.asarray(values, dtype=float), 0, 0.0))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return (total[ends] - total[starts]) / (ends - starts)


def score_against_rounds(summaries: Mapping[str, Mapping[str, Interval]]) -> Figure:
    """Mean F against mean rounds, a point a policy with its 95 % intervals (the paper's figure 5)."""
    figure, axes = _figure("Score against rounds", "rounds (assistant turns)", "F of the answer")
    for policy, summary in summaries.items():
        rounds, f = summary["rounds"], summary["f"]
        axes.errorbar(
            rounds.mean,
            f.mean,
            xerr=_bars(rounds),
            yerr=_bars(f),
            fmt="o",
            color=_colour(policy),
            elinewidth=1,
            capsize=2,
            label=policy,
        )
    axes.set_ylim(0, 1.02)
    axes.set_xlim(left=0)
    _legend(axes)
    return figure


def isr_ise_plane(scores: Sequence[Score], alpha: float, beta: float, ise: str = "ise") -> Figure:
    """Every trajectory by ISR and ISE, with the filter's two thresholds; the upper right is kept."""
    figure, axes = _figure("ISR and ISE of the collected trajectories", "ISR", f"{ise} (targets per step)")
    if scores:
        isr = np.array([s.isr for s in scores])
        efficiency = np.array([float(getattr(s, ise)) for s in scores])
        kept = (isr > alpha) & (efficiency > beta)
        for chosen, colour, label in ((kept, COLOURS[0], "pass"), (~kept, COLOURS[5], "fail")):
            # pale dots: many trajectories of one task share a place
            axes.scatter(
                isr[chosen], efficiency[chosen], s=14, alpha=0.35, color=colour, label=f"{label} ({int(chosen.sum())})"
            )
    axes.axvline(alpha, color=_INK, linewidth=1, linestyle="--")
    axes.axhline(beta, color=_INK, linewidth=1, linestyle="--")
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(bottom=0)
    _legend(axes)
    return figure


# ------------------------------------------------------------------------------------------------------------- files


def png_bytes(figure: Figure) -> bytes:
    """Draws a figure as PNG; the same figure gives the same bytes."""
    canvas = FigureCanvasAgg(figure)
    out = io.BytesIO()
    canvas.print_png(out, metadata={"Software": None})  # no version of the drawing library in the file
    return out.getvalue()


def save_figures(figures: Mapping[str, Figure], folder: str | os.PathLike[str]) -> list[pathlib.Path]:
    """Writes `<folder>/<name>.png` for each figure and returns the paths."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        path.write_bytes(png_bytes(figure))
        paths.append(path)
    return paths


def read_series(path: str | os.PathLike[str], key: str, step: str = "step") -> list[tuple[float, float]]:
    """Reads (step, value) pairs from a JSONL file of metrics; lines without `key` are other metrics and are skipped.

    A step that was logged twice (a run that was interrupted and went on) keeps its last value.

    Raises:
      DataError: no such file, or a line that is no JSON object; a half-written last line is skipped.
    """
    path = pathlib.Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); run the stage that writes it") from None
    points: dict[float, float] = {}
    for number, line in enumerate(lines, start=1):
        if not line.endswith("\n") or not line.strip():
            continue
        try:
            entry = json.loads(line)
            if key in entry and step in entry:
                points[float(entry[step])] = float(entry[key])
        except (ValueError, TypeError) as error:
            raise DataError(f"{path}:{number}: no metrics line ({error}); delete the line") from None
    return sorted(points.items())


def _figure(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.0, 3.6), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    _dress(axes, title, x, y)
    return figure, axes


def _dress(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=11, color=_INK, loc="left")
    axes.set_xlabel(x, color=_INK)
    axes.set_ylabel(y, color=_INK)
    axes.tick_params(colors=_INK, labelsize=9)
    axes.grid(True, color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=8)


def _colour(policy: str) -> str:
    return POLICY_COLOURS.get(policy, COLOURS[sum(map(ord, policy)) % len(COLOURS)])


def _bars(interval: Interval) -> list[list[float]] | None:
    """Error bars of an interval as matplotlib wants them; none where the interval cannot be had."""
    if not (np.isfinite(interval.low) and np.isfinite(interval.high)):
        return None
    # a percentile interval need not hold its own mean
    return [[max(0.0, interval.mean - interval.low)], [max(0.0, interval.high - interval.mean)]]
