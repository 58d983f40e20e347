"""The long runs: a quickstart killed again and again ends like one that was left alone, and GRPO improves on SFT."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from launch.pool import pool
from tests.launch.test_interrupt import take_sigint

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(6 * 3600)]


def command(workdir: pathlib.Path, preset: str, seed: int = 0) -> list[str]:
    config = [f"--config=configs/quickstart.py:{preset}", f"--config.seed={seed}"]
    return [sys.executable, "-m", "launch.quickstart", f"--workdir={workdir}", *config]


def start(repository: pathlib.Path, workdir: pathlib.Path, preset: str, log: pathlib.Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(repository), "JAX_PLATFORMS": "cpu"}
    with open(log, "ab") as out:
        return subprocess.Popen(
            command(workdir, preset), cwd=repository, env=environment, stdout=out, stderr=subprocess.STDOUT,
            preexec_fn=take_sigint,
        )  # fmt: skip


def learned(workdir: pathlib.Path) -> dict:
    """The metrics of a run, to 4 digits, without its times and memory."""
    metrics = json.loads((workdir / "metrics.json").read_text())
    for name in ("wall_seconds", "peak_rss_gb"):
        del metrics[name]
    return json.loads(json.dumps(metrics), parse_float=lambda text: round(float(text), 4))


def test_a_run_killed_at_random_moments_ends_like_one_left_alone(repository, tmp_path):
    alone, killed, log = tmp_path / "alone", tmp_path / "killed", tmp_path / "log.txt"
    assert start(repository, alone, "smoke", log).wait(timeout=1800) == 0, log.read_text()[-3000:]
    rng = random.Random(0)
    kills = 0
    for _ in range(40):
        process = start(repository, killed, "smoke", log)
        try:
            # longer as it goes on, so that a stage that takes a minute is passed in the end
            code = process.wait(timeout=rng.uniform(8, 25 + 5 * kills))
        except subprocess.TimeoutExpired:
            how = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)[kills % 3]
            process.send_signal(how)
            code = process.wait(timeout=120)
            assert code == (-signal.SIGKILL if how == signal.SIGKILL else 130), log.read_text()[-3000:]
            assert "Traceback" not in log.read_text()
            kills += 1
            time.sleep(0.2)
            continue
        assert code == 0, log.read_text()[-3000:]
        break
    assert (killed / "metrics.json").exists()
    assert kills >= 3
    assert learned(killed) == learned(alone)


def test_grpo_improves_on_sft_over_three_seeds(repository, tmp_path):
    """Hours; `WEBLEAPER_FULL_RUNS=DIR` keeps the runs there (DIR/seed0 and so on) and goes on where they were."""
    environment = {**os.environ, "PYTHONPATH": str(repository), "JAX_PLATFORMS": "cpu"}
    folder = pathlib.Path(os.environ.get("WEBLEAPER_FULL_RUNS", tmp_path))
    runs = [folder / f"seed{seed}" for seed in range(3)]
    for seed, run in enumerate(runs):
        subprocess.run(command(run, "full", seed), cwd=repository, env=environment, check=True)
    pooled = pool(runs)
    assert pooled["heldout"]["tasks"] >= 150
    assert pooled["heldout"]["families"] >= 10
    assert pooled["paired"]["f"]["low"] > 0
    assert all(run["paired"]["f"]["mean"] > 0 for run in pooled["seeds"])
