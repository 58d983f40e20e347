"""Looks at the training settings before anything is run: what the trainers would refuse after hours is refused now."""

from ml_collections import ConfigDict

from webleaper_jax.jsonl import DataError


def check_settings(config: ConfigDict) -> None:
    """Builds the settings of SFT, of further SFT and of GRPO with their optimizers, and looks for the first policy.

    Raises:
      DataError: an unknown, missing or bad field, a warm-up as long as its run, fewer tasks than a step of GRPO takes,
        a policy that is not there, or an installation without JAX.
    """
    try:
        from launch.sft import check_init
        from webleaper_jax.rl.grpo import GRPOConfig
        from webleaper_jax.train.sft import SFTConfig
        from webleaper_jax.train.state import OptimizerConfig, make_optimizer
    except ImportError as error:
        raise DataError(f"training needs JAX ({error}): pip install 'webleaper-jax[cpu]', or [tpu] or [cuda]") from None

    sft = config.sft.to_dict()
    grpo = GRPOConfig.from_mapping(config.grpo.to_dict())
    found: dict[str, OptimizerConfig] = {
        "sft": SFTConfig.from_mapping(sft),
        "sft_more": SFTConfig.from_mapping(sft | config.sft_more.to_dict()),
        "grpo": grpo,
    }
    for section, settings in found.items():
        try:
            make_optimizer(settings)
        except DataError as error:
            raise DataError(f"config.{section}: {error}") from None
    if config.tasks.select.most.rl < grpo.tasks_per_step:
        raise DataError(
            f"config.grpo.tasks_per_step is {grpo.tasks_per_step}, but config.tasks.select.most.rl is "
            f"{config.tasks.select.most.rl}: lower it"
        )
    for name, value in config.evaluate.engine.items():
        if value < 1:
            raise DataError(f"config.evaluate.engine.{name} is {value}, it must be at least 1")
    check_init(config)
