"""The whole loop on a laptop: tables -> tasks -> trajectories -> SFT -> GRPO -> evaluation, on 2 CPU cores.

  python -m launch.quickstart --workdir=DIR                                        # default: 15 minutes
  python -m launch.quickstart --workdir=DIR --config=configs/quickstart.py:smoke   # 3 minutes, claims nothing
  python -m launch.quickstart --workdir=DIR --config=configs/quickstart.py:full    # an hour for each seed
  python -m launch.quickstart --workdir=DIR --config=configs/quickstart.py:smollm2 # a real 135M model

Every stage has its section here; the stage launchers (`launch/tables.py` and so on) read the same file.
"""

from ml_collections import ConfigDict

PRESETS = ("default", "smoke", "full", "smollm2")
MESH = {"data": 1, "fsdp": -1, "tensor": 1}  # -1: what devices are left
OPTIMIZER = {"clip_norm": 1.0, "weight_decay": 0.0, "b1": 0.9, "b2": 0.95}
ENGINE = {"slots": 64, "decode_length": 16, "prefill_rows": 8, "prefill_chunk": 64}
RETRIES = {"retries": 2, "retry_seconds": 1.0, "give_up_after": 20}  # of episodes that failed by infrastructure


def get_config(preset: str = "default") -> ConfigDict:
    """Returns the settings of a preset; every field can be overridden by `--config.section.field=value`."""
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r} of configs/quickstart.py; there are {', '.join(PRESETS)}")
    config = ConfigDict()
    config.preset = preset
    config.seed = 0
    config.init = "tiny_base"  # the policy to start from: the bundled base, `smollm2`, or a Hugging Face folder

    config.tables = ConfigDict()
    config.tables.rules = ConfigDict({"min_rows": 10, "max_rows": 200, "min_columns": 3, "max_columns": 20})
    config.tables.rules.update({"empty_share": 0.9, "prose_length": 80, "merged_share": 0.3})
    config.tables.trees = ConfigDict({"max_keys": 2, "max_repeats": 0.2, "min_filled": 0.9, "max_name": 60})
    config.tables.trees.update({"min_members": 8, "min_group": 1})

    # No observation may show more than 40 % of a task's targets: tables are paged by a third, one page a visit.
    config.web = ConfigDict()
    config.web.corpus = ConfigDict({"rows_per_part": 8, "table_share": 0.34, "overlap": 1, "entity_share": 0.3})
    config.web.corpus.update({"chars_per_part": 900, "distractors": 1})
    config.web.goal_columns = True  # a visit shows the columns that the question names
    config.web.limits = ConfigDict({"max_queries": 3, "max_results": 3, "max_urls": 1, "max_chars": 2000})
    config.web.limits.max_snippet = 48

    # The tasks do not depend on config.seed, so that runs of several seeds can be pooled task by task.
    config.tasks = ConfigDict()
    config.tasks.synthesis = ConfigDict({"seed": 0, "k_min": 2, "m_min": 2, "max_share": 0.4, "small": (9, 30)})
    config.tasks.synthesis.update({"per_tree": 8, "per_pair": 6, "per_reverse_pair": 6, "per_families": 24})
    config.tasks.synthesis.update({"min_common": 2, "max_jaccard": 0.7, "min_answers": 2, "tries": 6})
    config.tasks.synthesis.update({"max_attributes": 8, "max_pair_attributes": 3})
    config.tasks.select = ConfigDict({"n_min": 9, "n_max": 30, "max_question": 280, "max_answer": 400})
    config.tasks.select.max_reading = ConfigDict({"basic": 1000, "union": 1500, "reverse_union": 1500})
    config.tasks.select.shares = ConfigDict({"basic": 0.8, "union": 0.1, "reverse_union": 0.1})
    config.tasks.select.most = ConfigDict({"train": 600, "rl": 150, "validation": 40, "heldout": 120})

    config.loop = ConfigDict({"max_steps": 14, "max_turns": 16, "max_context": 1536, "max_format_errors": 2})
    config.loop.update({"notice_at": 0, "prompt": "short", "max_seconds": 0.0})

    config.collect = ConfigDict()
    config.collect.sampling = ConfigDict({"temperature": 0.6, "top_p": 0.95, "max_tokens": 1024})
    config.collect.sampling.seed = config.get_ref("seed")
    config.collect.batch = ConfigDict({"rollouts": 4, "concurrency": 64} | RETRIES)
    # How often the scripted searcher makes which detour.
    config.collect.searcher = ConfigDict({"early_stop": 0.25, "give_up": 0.06, "skip_page": 0.08, "poor_query": 0.12})
    config.collect.searcher.update({"repeated_search": 0.06, "useless_visit": 0.12, "wander": 0.12})
    config.collect.searcher.update({"wander_again": 0.8, "list_shared": False, "max_calls": 12})
    config.collect.filter = ConfigDict({"alpha": 0.3, "beta": 0.1, "ise": "ise", "beta_quantile": 0.2, "best_k": 3})
    config.collect.filter.update({"bite": 0.05, "need_answer": True, "min_outcome": 0.5})

    # How an OpenAI-compatible server is spoken to, where one plays the policy (its address is a flag).
    config.server = ConfigDict({"context": 32_768, "chars_per_token": 2.5, "send_seed": True, "extra": {}})
    config.server.update({"timeout": 600.0, "attempts": 6, "min_wait": 1.0, "max_wait": 30.0, "max_retry_after": 120.0})

    config.sft = ConfigDict({"steps": 120, "batch_size": 5, "seq_len": config.loop.get_ref("max_context")})
    config.sft.update({"optimizer": "muon", "learning_rate": 2e-3, "muon_learning_rate": 0.01, "warmup_steps": 10})
    config.sft.update({"schedule": "linear", "final_scale": 0.05} | OPTIMIZER)
    config.sft.update({"seed": config.get_ref("seed"), "checkpoint_every": 40, "eval_every": 60, "export_steps": (60,)})
    config.sft.update({"micro_batches": 1, "mesh": MESH, "log_every": 10, "logprob_chunk": 512})

    # Further SFT for about as long as GRPO takes: what GRPO has to beat.
    config.sft_more = ConfigDict({"steps": 100, "eval_every": 0, "export_steps": ()})

    # Rollouts are sampled as the policy is evaluated: at temperature 1 a small policy's rewards differ by slips of the
    # pen more than by what it does, and nothing that counts is learnt.
    config.grpo = ConfigDict({"steps": 7, "tasks_per_step": 6, "group_size": 8, "temperature": 0.6, "max_tokens": 320})
    config.grpo.update({"epochs_per_batch": 1, "clip_low": 0.2, "clip_high": 0.28, "kl": 0.0})
    config.grpo.update({"optimizer": "adamw", "learning_rate": 1e-4, "muon_learning_rate": 5e-4, "warmup_steps": 1})
    config.grpo.update({"schedule": "constant", "final_scale": 0.1} | OPTIMIZER)
    config.grpo.update({"seed": config.get_ref("seed"), "checkpoint_every": 4, "export_steps": ()})
    config.grpo.update({"micro_batch": 4, "mesh": MESH, "logprob_chunk": 512} | ENGINE)
    config.grpo.update({"max_gap": 1e-3, "min_entropy": 0.0, "min_reward": 0.0, "floor_steps": 5})

    config.evaluate = ConfigDict()
    config.evaluate.sampling = ConfigDict({"temperature": 0.6, "top_p": 0.95, "max_tokens": 320})
    config.evaluate.sampling.seed = config.get_ref("seed")
    config.evaluate.batch = ConfigDict({"rollouts": 1, "concurrency": 256} | RETRIES)
    config.evaluate.engine = ConfigDict(ENGINE)

    if preset != "default":
        globals()[f"_{preset}"](config)
    return config


def _smoke(config: ConfigDict) -> None:
    """Every stage for real, on little: what CI runs. It claims nothing about learning."""
    config.tasks.select.most.update({"train": 40, "rl": 12, "validation": 6, "heldout": 12})
    config.collect.batch.rollouts = 2
    config.sft.update({"steps": 6, "batch_size": 2, "warmup_steps": 2, "eval_every": 3, "export_steps": (3,)})
    config.sft_more.update({"steps": 2, "warmup_steps": 0})
    config.grpo.update(
        {"steps": 2, "tasks_per_step": 2, "group_size": 4, "slots": 8, "checkpoint_every": 1, "warmup_steps": 0}
    )
    config.evaluate.engine.slots = 16


def _full(config: ConfigDict) -> None:
    """An hour a seed: what the default does, with seven times its GRPO, and two rollouts of more held-out tasks."""
    config.tasks.select.most.heldout = 160
    config.evaluate.batch.rollouts = 2
    config.grpo.update({"steps": 48, "checkpoint_every": 8, "export_steps": (24,)})
    config.sft_more.steps = 600


def _smollm2(config: ConfigDict) -> None:
    """SmolLM2-135M-Instruct, a real language model, on few tasks (some 100 training tokens a second on 2 cores)."""
    config.init = "smollm2"
    config.tasks.select.most.update({"train": 120, "rl": 24, "validation": 6, "heldout": 20})
    config.sft.update({"steps": 80, "batch_size": 1, "optimizer": "adamw", "learning_rate": 1e-4})
    config.sft.update({"eval_every": 40, "export_steps": (40,), "checkpoint_every": 20})
    config.sft_more.steps = 30
    config.grpo.update({"steps": 4, "tasks_per_step": 2, "group_size": 4, "learning_rate": 1e-5})
    config.grpo.update({"micro_batch": 1, "slots": 8, "checkpoint_every": 2})
    config.evaluate.engine.slots = 8
