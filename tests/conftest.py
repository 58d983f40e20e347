"""Shared fixtures: where the research data are, and JAX on the CPU with few threads."""

import os
import pathlib

import pytest
from jaxtyping import install_import_hook

# Shapes and types in signatures are checked whenever a test calls one of these packages; an int may stand for a float.
install_import_hook(
    [f"webleaper_jax.{name}" for name in ("model", "parallel", "data", "sampling", "train", "rl", "eval")],
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",
)

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Workers and the commands that tests start compile the same steps: each is compiled once.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(REPOSITORY / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")


@pytest.fixture(scope="session")
def repository() -> pathlib.Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """The shared research data (real tables and pages); the test is skipped where they are absent."""
    folder = pathlib.Path(os.environ.get("WEBLEAPER_SHARED", REPOSITORY.parent / "shared"))
    if not (folder / "data" / "tables.jsonl.gz").exists():
        pytest.skip(f"no shared research data at {folder}")
    return folder
