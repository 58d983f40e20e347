"""The inputs of a tiny SFT run, made once."""

import pathlib

import pytest

from tests.train import tiny


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with `set` and `init`."""
    directory = tmp_path_factory.mktemp("sft")
    tiny.make_inputs(directory)
    return directory
