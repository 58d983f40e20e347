"""A server that does not answer: no figures, no empty file that passes for a result, and a clear error."""

import pytest

from configs.quickstart import get_config
from launch import collect, evaluate, tables
from tests import rl_world
from webleaper_jax.jsonl import DataError

DEAD = "http://127.0.0.1:9/v1"  # the discard port: nothing listens there


@pytest.fixture
def config():
    config = get_config("smoke")
    for stage in (config.collect, config.evaluate):
        stage.batch.update({"rollouts": 1, "retries": 0})
    config.server.update({"attempts": 2, "min_wait": 0.01, "max_wait": 0.01})
    return config


def test_nothing_is_evaluated(config, tmp_path):
    engine = collect.server_engine(config, DEAD, "policy", "")
    with pytest.raises(DataError, match="not one episode was scored, 2 failed, the last with"):
        evaluate.run(config, rl_world.tools(), rl_world.tasks()[:2], engine, tmp_path)


def test_nothing_is_collected(config, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "load_tools", lambda *_, **__: rl_world.tools())
    engine = collect.server_engine(config, DEAD, "policy", "")
    with pytest.raises(DataError, match="not one episode was scored, 2 failed, the last with"):
        collect.run(config, tmp_path, rl_world.tasks()[:2], tmp_path / "out", engine)
