"""The whole loop on a laptop: tables -> tasks -> trajectories -> SFT -> GRPO -> evaluation, on 2 CPU cores.

  python -m launch.quickstart --workdir=DIR                                        # default: 15 minutes
  python -m launch.quickstart --workdir=DIR --config=configs/quickstart.py:smoke   # 3 minutes, claims nothing
  python -m launch.quickstart --workdir=DIR --config=configs/quickstart.py:full    # an hour for each seed
  python -m launch.quickstart --workdir=DIR --config=configs/quickstart.py:smollm2 # a real 135M model

Every stage has its section here; the stage launchers (`launch/tables.py` and so on) read the same file.
"""

from ml_collections import ConfigDict

PRESETS = ("default", "smoke", "full", "smollm2")


def get_config(preset: str = "default") -> ConfigDict:
    """Returns the settings of a preset; every field can be overridden by `--config.section.field=value`."""
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r} of configs/quickstart.py; there are {', '.join(PRESETS)}")
    config = ConfigDict()
    config.preset = preset
    config.seed = 0

    config.tables = ConfigDict()
    config.tables.rules = ConfigDict({"min_rows": 10, "max_rows": 200, "min_columns": 3, "max_columns": 20})
    config.tables.trees = ConfigDict({"max_keys": 2, "max_repeats": 0.2, "min_group": 1})

    # No observation may show more than 40 % of a task's targets: tables are paged by a third, one page a visit.
    config.web = ConfigDict()
    config.web.corpus = ConfigDict(
        {"rows_per_part": 8, "table_share": 0.34, "entity_share": 0.3, "chars_per_part": 900}
    )
    config.web.limits = ConfigDict({"max_queries": 3, "max_results": 3, "max_urls": 1, "max_chars": 2000})

    config.tasks = ConfigDict()
    config.tasks.synthesis = ConfigDict({"seed": config.get_ref("seed"), "k_min": 2, "m_min": 2, "max_share": 0.4})
    config.tasks.select = ConfigDict({"n_min": 9, "n_max": 30, "max_question": 240, "max_answer": 500})
    config.tasks.select.shares = ConfigDict({"basic": 0.6, "union": 0.25, "reverse_union": 0.15})
    config.tasks.select.most = ConfigDict({"train": 600, "rl": 150, "validation": 40, "heldout": 160})

    config.loop = ConfigDict(
        {"max_steps": 12, "max_turns": 14, "max_context": 1536, "max_format_errors": 2, "prompt": "short"}
    )

    config.collect = ConfigDict()
    config.collect.sampling = ConfigDict({"temperature": 0.6, "top_p": 0.95, "seed": config.get_ref("seed")})
    config.collect.batch = ConfigDict({"rollouts": 3, "concurrency": 64})
    config.collect.searcher = ConfigDict({"early_stop": 0.25})
    config.collect.filter = ConfigDict({"alpha": 0.3, "beta": 0.1, "ise": "ise", "beta_quantile": 0.2})

    config.evaluate = ConfigDict()
    config.evaluate.sampling = ConfigDict({"temperature": 0.6, "top_p": 0.95, "seed": config.get_ref("seed")})
    config.evaluate.sampling.max_tokens = 640
    config.evaluate.batch = ConfigDict({"rollouts": 1, "concurrency": 256})
    config.evaluate.engine = ConfigDict({"slots": 64, "decode_length": 16, "prefill_rows": 8, "prefill_chunk": 64})
    return config
