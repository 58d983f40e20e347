"""The wheel holds the sample, and the bare package runs the data stage without jax."""

import pathlib
import shutil
import subprocess
import sys
import venv
import zipfile

import pytest

CHECK = """
import sys
import data_gen.synthesize, data_gen.collect, data_gen.searcher, webleaper_jax.eval.report, webleaper_jax.eval.run
import webleaper_jax.agent.openai_engine
from data_gen.sample import sample_tables
from webleaper_jax.jsonl import load_records
from webleaper_jax.records import Table
assert len(load_records(sample_tables(), Table)) >= 150
heavy = {"jax", "jaxlib", "flax", "optax", "orbax", "grain", "tensorflow_datasets"} & set(sys.modules)
assert not heavy, heavy
try:
    import jax
except ImportError:
    print("no jax here")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, repository) -> pathlib.Path:
    out = tmp_path_factory.mktemp("wheel")
    source = out / "source"  # a copy: building leaves files in its tree
    for name in ("webleaper_jax", "data_gen", "configs", "launch"):
        shutil.copytree(repository / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, source)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", f"--outdir={out}", str(source)],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    return next(out.glob("*.whl"))


def test_the_wheel_holds_what_is_needed(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "webleaper_jax/py.typed",
        "configs/quickstart.py",
        "launch/quickstart.py",
        "data_gen/sample/tables.jsonl.gz",
        "data_gen/sample/splits.toml",
        "data_gen/synonyms.toml",
        "data_gen/sample/tiny_base/model.safetensors",
        "data_gen/sample/tiny_base/tokenizer.json",
    ):
        assert name in names
    assert not any(name.startswith("tests/") for name in names)
    assert wheel.stat().st_size < 12e6


def test_the_bare_package_runs_without_jax(wheel, tmp_path, repository):
    """Installed into an environment of its own, with the base dependencies and nothing else."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    constraints = repository / "constraints.txt"
    subprocess.run(
        [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(constraints), str(wheel)],
        check=True, timeout=600,
    )  # fmt: skip
    done = subprocess.run(
        [str(python), "-c", CHECK], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "no jax here" in done.stdout
