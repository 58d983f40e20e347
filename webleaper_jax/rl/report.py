"""The numbers that a GRPO step reports, and the words for a step that could not train."""

import collections
from collections.abc import Mapping, Sequence

from webleaper_jax.records import Score, Trajectory
from webleaper_jax.rl.losses import LossSums
from webleaper_jax.rl.rollouts import Rollouts
from webleaper_jax.sampling.engine import EngineStats


def of_rollouts(done: Rollouts, trainable: int, stats: EngineStats) -> dict[str, float | int]:
    """Rewards, coverage, what the policy did, and what it cost. Means are over all rollouts of whole groups."""
    scores = [score for group in done.groups for score in group.scores]
    rollouts = [trajectory for group in done.groups for trajectory in group.trajectories]
    values: dict[str, float | int] = {
        "groups/whole": len(done.groups),
        "groups/partial": len(done.partial),
        "groups/zero_variance": len(done.groups) - trainable,
        "groups/trained": trainable,
        "rollouts/failed": done.failed,
        "rollouts/resumed": done.resumed,
        "time/rollout": round(done.seconds, 3),
        "tokens/sampled": stats.sampled,
        "tokens/prefilled": stats.prefilled,
        "tokens/reused": stats.reused,
        "speed/sampled_per_second": round(stats.sampled / max(done.seconds, 1e-9), 1),
        "speed/slots_busy": round(stats.busy_rows / max(stats.step_rows, 1), 4),
    }
    if not scores:
        return values
    values |= _of_scores(scores)
    variants = {group.task.variant for group in done.groups}
    for variant in sorted(variants):
        rewards = [score.f for group in done.groups if group.task.variant == variant for score in group.scores]
        values[f"reward/{variant}"] = _mean(rewards)
    return values | _of_trajectories(rollouts)


def of_update(sums: LossSums, norm: float, epoch: int) -> dict[str, float | int]:
    """Token metrics of one update. Those of the first one are with the sampler's own weights (gap, entropy)."""
    tokens = max(float(sums.tokens), 1.0)
    values = {
        "train/loss": float(sums.loss),
        "train/grad_norm": norm,
        "train/clipped_low": float(sums.clipped_low) / tokens,
        "train/clipped_high": float(sums.clipped_high) / tokens,
        "train/kl_old": float(sums.kl_old) / tokens,
        "train/kl_reference": float(sums.kl_reference) / tokens,
    }
    if epoch == 0:
        values |= {
            "train/entropy": float(sums.entropy) / tokens,
            "train/tokens": tokens,
            "sampler/gap_mean": float(sums.gap) / tokens,
            "sampler/gap_max": float(sums.gap_max),
        }
    return values


def why_nothing(done: Rollouts) -> str:
    """Says why no group of a step could be trained on."""
    parts = []
    if done.groups:
        rewards = sorted({round(float(group.rewards.mean()), 4) for group in done.groups})
        parts.append(f"all {len(done.groups)} whole groups have equal rewards ({', '.join(map(str, rewards[:5]))})")
    if done.partial:
        parts.append(f"{len(done.partial)} groups are not whole ({done.failed} rollouts failed)")
    return " and ".join(parts) or "there was no group"


def shown(values: Mapping[str, float | int]) -> dict[str, str]:
    """What a progress bar shows."""
    names = {"reward/mean": "reward", "train/entropy": "entropy", "speed/sampled_per_second": "tokens/s"}
    return {short: f"{values[name]:.3g}" for name, short in names.items() if name in values}


def _of_scores(scores: Sequence[Score]) -> dict[str, float | int]:
    rewards = [score.f for score in scores]
    return {
        "reward/mean": _mean(rewards),
        "reward/min": min(rewards),
        "reward/max": max(rewards),
        **{
            f"score/{name}": _mean([getattr(score, name) for score in scores])
            for name in ("precision", "recall", "isr", "ise", "valid_action_rate", "rounds", "searches", "visits")
        },
    }


def _of_trajectories(rollouts: Sequence[Trajectory]) -> dict[str, float | int]:
    endings = collections.Counter(trajectory.termination for trajectory in rollouts)
    lengths = [sum(len(segment.token_ids) for segment in t.segments) for t in rollouts]
    sampled = [sum(sum(segment.loss_mask) for segment in t.segments) for t in rollouts]
    steps = [step for trajectory in rollouts for step in trajectory.steps]
    return {
        "length/tokens": _mean(lengths),
        "length/sampled": _mean(sampled),
        "length/sampled_per_turn": sum(sampled) / max(sum(t.rounds for t in rollouts), 1),
        "tools/malformed": sum(step.tool == "malformed" for step in steps) / max(len(steps), 1),
        "tools/errors": sum(bool(step.error) for step in steps) / max(len(steps), 1),
        **{f"ended/{name}": count / len(rollouts) for name, count in sorted(endings.items())},
    }


def _mean(values: Sequence[float | int]) -> float:
    return sum(values) / len(values)
