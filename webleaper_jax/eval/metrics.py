"""`metrics.json`: what a run found, for programs; and the same as a small table, for people."""

import json
import math
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from webleaper_jax.eval.aggregate import METRICS, BootstrapConfig, Interval, paired_difference, summarise
from webleaper_jax.records import Score, Task

POLICIES = ("scripted", "untrained", "sft", "sft_more", "grpo", "no_tools", "other_observations", "visit_once")


def collect_metrics(
    tasks: Sequence[Task],
    scores: Mapping[str, Sequence[Score]],
    *,
    wall_seconds: Mapping[str, float],
    peak_rss_gb: float,
    seed: int,
    bootstrap: BootstrapConfig | None = None,
) -> dict[str, Any]:
    """Returns the content of `metrics.json`.

    Args:
      tasks: all tasks of the run; counted by variant and split, and looked up for their families.
      scores: the scores of each of `POLICIES` that was built, over all seeds; the others are absent from the result.
      wall_seconds: by stage.

    Returns:
      One entry per policy, `{metric: {mean, low, high}}`; `paired` = `{"f": {mean, low, high}}`, GRPO minus SFT, where
      both are there; `tasks`, `{variant: {split: count}}`; `wall_seconds`, `peak_rss_gb`, `seed`.

    Raises:
      ValueError: a name that is not one of `POLICIES`, or GRPO and SFT scored on different tasks.
    """
    unknown = sorted(set(scores) - set(POLICIES))
    if unknown:
        raise ValueError(f"unknown policy {unknown[0]!r}; known are {', '.join(POLICIES)}")
    metrics: dict[str, Any] = {}
    for policy in POLICIES:
        if scores.get(policy):
            metrics[policy] = {k: plain(v) for k, v in summarise(tasks, scores[policy], bootstrap).items()}
    if scores.get("grpo") and scores.get("sft"):
        difference = paired_difference(tasks, scores["grpo"], scores["sft"], bootstrap)
        metrics["paired"] = {"f": plain(difference["f"])}
    metrics["tasks"] = count_tasks(tasks)
    metrics["wall_seconds"] = {stage: round(float(seconds), 2) for stage, seconds in wall_seconds.items()}
    metrics["peak_rss_gb"] = round(float(peak_rss_gb), 3)
    metrics["seed"] = int(seed)
    return metrics


def count_tasks(tasks: Iterable[Task]) -> dict[str, dict[str, int]]:
    """Returns the number of tasks by variant and split (`unsplit` where a task has none)."""
    counts: dict[str, dict[str, int]] = {}
    for task in tasks:
        splits = counts.setdefault(task.variant, {})
        splits[task.split or "unsplit"] = splits.get(task.split or "unsplit", 0) + 1
    return {variant: dict(sorted(counts[variant].items())) for variant in sorted(counts)}


def write_metrics(path: str | os.PathLike[str], metrics: Mapping[str, Any]) -> None:
    """Writes `metrics.json` at once (temporary name, then rename)."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # allow_nan=False: `NaN` is no JSON, an interval that cannot be had is null
    temporary.write_text(json.dumps(metrics, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def summary_table(metrics: Mapping[str, Any]) -> str:
    """Returns the policies and their means as an aligned text table, F with its interval."""
    header = ["policy", "F", "95 %", *(name.replace("valid_action_rate", "valid") for name in METRICS if name != "f")]
    rows = [header]
    for policy in POLICIES:
        if policy in metrics:
            found = metrics[policy]
            others = [_number(found[name]["mean"], name) for name in METRICS if name != "f"]
            rows.append([policy, _number(found["f"]["mean"], "f"), _range(found["f"]), *others])
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if "paired" in metrics:
        f = metrics["paired"]["f"]
        lines.append(f"GRPO - SFT, F: {f['mean']:+.3f} {_range(f)}")
    return "\n".join(lines)


def plain(interval: Interval) -> dict[str, float | None]:
    """Returns an interval for JSON, which has no NaN: null where a bound cannot be had (a single family)."""
    return {
        name: None if math.isnan(value) else value
        for name, value in (("mean", interval.mean), ("low", interval.low), ("high", interval.high))
    }


def _number(value: float, name: str) -> str:
    return f"{value:.1f}" if name in ("rounds", "searches", "visits") else f"{value:.3f}"


def _range(interval: Mapping[str, float | None]) -> str:
    if interval["low"] is None or interval["high"] is None:
        return "[-, -]"
    return f"[{interval['low']:.3f}, {interval['high']:.3f}]"
