"""Settings that a trainer would refuse, hours into a run, are refused before its workdir is made."""

import dataclasses
import functools

import msgspec
import pytest

from configs.quickstart import PRESETS, get_config
from launch.check import SECTIONS, check_settings
from webleaper_jax.agent.openai_engine import ServerConfig
from webleaper_jax.jsonl import DataError
from webleaper_jax.rl.grpo import GRPOConfig
from webleaper_jax.train.sft import SFTConfig


@pytest.mark.parametrize("preset", PRESETS)
def test_the_presets_pass_and_are_left_as_they_are(preset):
    config = get_config(preset)
    check_settings(config)  # raises on what it refuses
    assert config.to_json() == get_config(preset).to_json()


def test_every_setting_of_a_stage_can_be_given():
    """A field that the config leaves out could not be set: the config is locked."""
    config = get_config()
    for path, kind in SECTIONS.items():
        fields = {field.name for field in msgspec.inspect.type_info(kind).fields}
        assert set(functools.reduce(getattr, path.split("."), config)) == fields - {"attributes"}, path
    server = {field.name for field in msgspec.inspect.type_info(ServerConfig).fields}
    assert set(config.server) == server - {"url", "model", "api_key"}  # these are flags
    for section, trainer in {"sft": SFTConfig, "grpo": GRPOConfig}.items():
        assert set(config[section]) == {field.name for field in dataclasses.fields(trainer)}


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("grpo.steps", 1, "config.grpo: warmup_steps 1 leaves nothing of steps 1"),
        ("sft.steps", 10, "config.sft: warmup_steps 10"),
        ("sft_more.steps", 3, "config.sft_more: warmup_steps 10"),
        ("sft.optimizer", "sgd", "config.sft: .*sgd"),
        ("sft.schedule", "steps", "config.sft: .*schedule"),
        ("sft.batch_size", 0, "config.sft.batch_size is 0"),
        ("grpo.group_size", 1, "at least 2 rollouts"),
        ("grpo.tasks_per_step", 151, "tasks_per_step is 151, but config.tasks.select.most.rl is 150"),
        ("evaluate.engine.slots", 0, "config.evaluate.engine.slots is 0"),
        ("init", "no/such/policy", "no/such/policy/config.json: no such file"),
        ("loop.max_context", 5000, "config.loop.max_context is 5000, but .*tiny_base takes 2048 tokens"),
        ("loop.max_turns", 0, r"config.loop, for LoopConfig: .*>= 1.*max_turns"),
        ("loop.prompt", "long", r"config.loop, for LoopConfig: .*prompt"),
        ("collect.batch.concurrency", 0, r"config.collect.batch, .*concurrency"),
        ("collect.searcher.wander", 1.5, r"config.collect.searcher, .*wander"),
        ("evaluate.sampling.top_p", 0.0, r"config.evaluate.sampling, .*top_p"),
        ("tasks.synthesis.tries", 0, r"config.tasks.synthesis, .*tries"),
        ("tables.trees.max_keys", -1, r"config.tables.trees, .*max_keys"),
        ("tasks.select.most.train", -1, "config.tasks.select.most.train is -1"),
    ],
)
def test_what_would_be_found_bad_later_is_refused_at_once(field, value, says):
    config = get_config()
    config.update_from_flattened_dict({field: value})
    with pytest.raises(DataError, match=says) as error:
        check_settings(config)
    assert "\n" not in str(error.value)
