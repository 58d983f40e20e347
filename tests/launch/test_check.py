"""Settings that a trainer would refuse, hours into a run, are refused before its workdir is made."""

import pytest

from configs.quickstart import PRESETS, get_config
from launch.check import check_settings
from webleaper_jax.jsonl import DataError


@pytest.mark.parametrize("preset", PRESETS)
def test_the_presets_pass_and_are_left_as_they_are(preset):
    config = get_config(preset)
    check_settings(config)  # raises on what it refuses
    assert config.to_json() == get_config(preset).to_json()


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
        ("init", "no/such/policy", "no/such/policy: holds no readable config.json"),
    ],
)
def test_what_would_be_found_bad_later_is_refused_at_once(field, value, says):
    config = get_config()
    config.update_from_flattened_dict({field: value})
    with pytest.raises(DataError, match=says) as error:
        check_settings(config)
    assert "\n" not in str(error.value)
