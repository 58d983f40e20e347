"""Wall time and memory of the quickstart: `python -m tests.bench.quickstart [--quick] [--workdir=DIR]`.

Runs the default preset and prints its wall time, by stage and in all, and peak memory; `--quick` times the data stages
alone, in under a minute. With the folder of a finished run, reports that run.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

LIMITS = {"default": (900.0, 6.0), "smoke": (180.0, 6.0)}  # seconds on 2 cores, GB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the data stages alone")
    parser.add_argument("--workdir", type=pathlib.Path, help="a finished run to report")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.quick:
            data_stages(pathlib.Path(folder))
        else:
            whole_run(arguments.workdir or pathlib.Path(folder) / "run")


def data_stages(folder: pathlib.Path) -> None:
    """Times tables, tasks and collection of the smoke preset, each with its start-up."""
    tables, tasks, collected = (folder / name for name in ("tables", "tasks", "collect"))
    stages = {
        "tables": [f"--out={tables}"],
        "synthesize": [f"--tables={tables}", f"--out={tasks}"],
        "collect": [f"--tables={tables}", f"--tasks={tasks / 'train.jsonl.gz'}", f"--out={collected}"],
    }
    total = 0.0
    for stage, flags in stages.items():
        seconds = timed(f"launch.{stage}", *flags, "--config=configs/quickstart.py:smoke")
        report(f"quickstart/data/{stage}", seconds, "s", None)
        total += seconds
    report("quickstart/data", round(total, 2), "s", 60.0)


def whole_run(workdir: pathlib.Path) -> None:
    """Reports a run of a preset, which is made first where it is not there (the default one)."""
    whole = 0.0
    if not (workdir / "metrics.json").exists():
        whole = timed("launch.quickstart", f"--workdir={workdir}")  # start-up and report are in it
    metrics = json.loads((workdir / "metrics.json").read_text())
    preset = json.loads((workdir / "config.json").read_text())["preset"]
    seconds, memory = LIMITS.get(preset, (None, 6.0))
    for stage, value in metrics["wall_seconds"].items():
        report(f"quickstart/{preset}/{stage}", value, "s", None)
    report(f"quickstart/{preset}", round(whole or sum(metrics["wall_seconds"].values()), 1), "s", seconds)
    report(f"quickstart/{preset}/peak_rss", metrics["peak_rss_gb"], "GB", memory)


def timed(module: str, *flags: str) -> float:
    """Runs `python -m module flags`, its output on standard error, and returns its seconds."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-m", module, *flags], check=True, stdout=sys.stderr)
    return round(time.monotonic() - start, 2)


def report(name: str, value: float, unit: str, limit: float | None) -> None:
    """One JSON line; `ok` is null without a limit."""
    ok = None if limit is None else value <= limit
    print(
        json.dumps({"name": name, "value": value, "unit": unit, "peer": None, "ratio": None, "limit": limit, "ok": ok})
    )


if __name__ == "__main__":
    main()
