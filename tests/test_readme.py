"""Every command of the README is run: the stages here, the tests by `.ci/run`, the whole quickstart nightly."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).parent.parent
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = [block.strip() for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)]
QUICKSTART, TESTS, STAGES = BLOCKS


def test_no_command_is_left_out():
    assert QUICKSTART.endswith("-m launch.quickstart --workdir=runs/quickstart")
    assert TESTS.split(" && ")[-1].startswith(".venv/bin/pytest")
    assert "n == 2" in (REPOSITORY / ".ci" / "run").read_text()  # it takes the second block, and runs it
    assert [line.split()[2] for line in STAGES.splitlines()] == [
        f"launch.{name}" for name in ("tables", "synthesize", "collect", "sft", "grpo", "evaluate")
    ]


def test_what_is_named_in_the_text_is_there():
    for preset in re.findall(r"`(?:--config=configs/quickstart\.py)?:(\w+)`", README):
        assert f"_{preset}(config" in (REPOSITORY / "configs" / "quickstart.py").read_text()
    modules = set(re.findall(r"`(launch\.\w+|tests\.bench\.[a-z]\w*)", README))
    assert modules >= {"launch.collect", "launch.serve", "launch.pretrain_tiny"}
    for module in modules:
        assert (REPOSITORY / f"{module.replace('.', '/')}.py").exists(), module


def test_each_stage_takes_the_files_of_the_one_before(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu"}
    policy = ""
    for line in STAGES.splitlines():
        command = line.split("#")[0].replace("runs/mine", str(tmp_path)).replace("POLICY", policy)
        words = [*command.split()[1:], "--config=configs/quickstart.py:smoke"]
        done = subprocess.run(
            [sys.executable, *words], cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr[-3000:]}"
        assert "written to " in done.stdout, command
        assert_can_be_pasted(re.search(r"^next: (.*)$", done.stdout, re.MULTILINE).group(1))
        printed = re.search(r"written to (\S+/exports/\S+)", done.stdout)
        policy = printed.group(1) if printed else policy
    assert json.loads((tmp_path / "eval" / "summary.json").read_text())


def assert_can_be_pasted(command: str) -> None:
    """A printed next command runs a launcher, with flags that it has and the settings that were given before."""
    python, _, module, *flags = shlex.split(command)
    assert python == "python"
    source = (REPOSITORY / f"{module.replace('.', '/')}.py").read_text()
    names = [flag.removeprefix("--").partition("=")[0] for flag in flags]
    assert "--config=configs/quickstart.py:smoke" in flags, command
    for name in set(names) - {"config"}:
        assert re.search(rf'DEFINE_\w+\(\s*"{name}"', source), command
    for name in re.findall(r"require_file\(FLAGS\.(tables|tasks|policy|trajectories),", source):
        assert name in names, command


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_the_first_command_reaches_the_bars(tmp_path):
    """From a fresh clone, in the README's words; what it claims must hold (its time is `tests.bench.quickstart`'s)."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(REPOSITORY), str(clone)], check=True)
    subprocess.run(["bash", "-euo", "pipefail", "-c", QUICKSTART], cwd=clone, check=True, timeout=5400)
    metrics = json.loads((clone / "runs" / "quickstart" / "metrics.json").read_text())
    assert metrics["sft"]["f"]["mean"] >= 0.35
    assert metrics["visit_once"]["f"]["mean"] < 0.35
    for control in ("untrained", "no_tools", "other_observations"):
        assert metrics[control]["f"]["mean"] < 0.05
    assert metrics["peak_rss_gb"] < 6
    assert metrics["paired"]["f"]["low"] is not None
