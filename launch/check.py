"""Looks at the settings before anything is run: what a stage would refuse after hours is refused now."""

import functools

from ml_collections import ConfigDict

from data_gen.filter import FilterConfig
from data_gen.searcher import SearcherConfig
from data_gen.synthesize import SynthesisConfig
from data_gen.tables import TableRules
from data_gen.trees import TreeRules
from launch import common
from webleaper_jax.agent.batch import BatchConfig
from webleaper_jax.agent.corpus import CorpusConfig
from webleaper_jax.agent.loop import LoopConfig
from webleaper_jax.agent.tools import ToolLimits
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Sampling

# Sections of the config that are read as a struct.
SECTIONS: dict[str, type] = {
    "tables.rules": TableRules,
    "tables.trees": TreeRules,
    "web.corpus": CorpusConfig,
    "web.limits": ToolLimits,
    "tasks.synthesis": SynthesisConfig,
    "loop": LoopConfig,
    "collect.sampling": Sampling,
    "collect.batch": BatchConfig,
    "collect.searcher": SearcherConfig,
    "collect.filter": FilterConfig,
    "evaluate.sampling": Sampling,
    "evaluate.batch": BatchConfig,
}


def check_settings(config: ConfigDict) -> None:
    """Builds the settings of every stage, those of training with their optimizers, and looks for the first policy.

    Raises:
      DataError: an unknown, missing or bad field, a warm-up as long as its run, fewer tasks than a step of GRPO takes,
        a policy that is not there or takes fewer tokens than an episode may have, or an installation without JAX.
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
    for path, kind in SECTIONS.items():
        common.struct(kind, functools.reduce(getattr, path.split("."), config), f"config.{path}")
    for name, number in config.tasks.select.most.items():
        if number < 0:
            raise DataError(f"config.tasks.select.most.{name} is {number}, it must be at least 0")
    if config.tasks.select.most.rl < grpo.tasks_per_step:
        raise DataError(
            f"config.grpo.tasks_per_step is {grpo.tasks_per_step}, but config.tasks.select.most.rl is "
            f"{config.tasks.select.most.rl}: lower it"
        )
    for name, value in config.evaluate.engine.items():
        if value < 1:
            raise DataError(f"config.evaluate.engine.{name} is {value}, it must be at least 1")
    check_init(config)
