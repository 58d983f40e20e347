"""Wall time and memory of the quickstart: `python -m tests.bench.quickstart [--quick] [--workdir=DIR]`.

Runs the default preset (`--quick`: the smoke preset) and prints its wall time, by stage and in all, and peak memory.
With the folder of a finished run, reports that run.
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
    parser.add_argument("--quick", action="store_true", help="the smoke preset instead of the default one")
    parser.add_argument("--workdir", type=pathlib.Path, help="a finished run to report")
    arguments = parser.parse_args()
    preset = "smoke" if arguments.quick else "default"
    whole = 0.0
    with tempfile.TemporaryDirectory() as folder:
        workdir = arguments.workdir or pathlib.Path(folder) / "run"
        if not (workdir / "metrics.json").exists():
            config = f"--config=configs/quickstart.py:{preset}"
            start = time.monotonic()
            subprocess.run([sys.executable, "-m", "launch.quickstart", f"--workdir={workdir}", config], check=True)
            whole = time.monotonic() - start  # start-up and report are in it
        metrics = json.loads((workdir / "metrics.json").read_text())
    seconds, memory = LIMITS[preset]
    for stage, value in metrics["wall_seconds"].items():
        report(f"quickstart/{preset}/{stage}", value, "s", None)
    report(f"quickstart/{preset}", round(whole or sum(metrics["wall_seconds"].values()), 1), "s", seconds)
    report(f"quickstart/{preset}/peak_rss", metrics["peak_rss_gb"], "GB", memory)


def report(name: str, value: float, unit: str, limit: float | None) -> None:
    """One JSON line; `ok` is null without a limit."""
    ok = None if limit is None else value <= limit
    print(
        json.dumps({"name": name, "value": value, "unit": unit, "peer": None, "ratio": None, "limit": limit, "ok": ok})
    )


if __name__ == "__main__":
    main()
