"""The checks that the trainer runs at every step: mistakes that look like success until the curves are compared.

Each raises `CheckFailed` under its own name. None is a statistic that may be off by chance: a correct run passes all of
them always.
"""

import re
from collections.abc import Sequence

import numpy as np

from webleaper_jax.agent.render import PolicyTokenizer
from webleaper_jax.records import Score, Task, Trajectory
from webleaper_jax.rl.advantages import GroupAdvantages


class CheckFailed(Exception):
    """A step must not train. `check` is the name of the check that failed."""

    def __init__(self, check: str, message: str):
        super().__init__(f"check `{check}`: {message}")
        self.check = check


def check_weights(trainer: str, sampler: str) -> None:
    """`weights`: the sampler holds the trainer's weights (fingerprints are equal)."""
    if trainer != sampler:
        raise CheckFailed("weights", f"the sampler has weights {sampler}, the trainer {trainer}: they were not synced")


def check_logprobs(mean: float, largest: float, tolerance: float) -> None:
    """`logprobs`: trainer and sampler agree on the log-probs of sampled tokens, before the first update of a step.

    Fails for a mask or a target that is off by one, for weights that differ, for another temperature or a log-prob
    taken after top-p, and for ids that were encoded again.
    """
    if not largest <= tolerance:  # NaN fails
        raise CheckFailed(
            "logprobs",
            f"trainer and sampler differ by {largest:.2g} (mean {mean:.2g}) in the log-probs of sampled tokens; "
            f"{tolerance:.2g} is allowed",
        )


def check_tokens(trajectory: Trajectory, tokenizer: PolicyTokenizer, version: int) -> None:
    """`tokens`: a rollout's token fields fit together; what was sampled comes from this version of the policy."""
    if trajectory.fingerprints.tokenizer != tokenizer.fingerprint:
        raise CheckFailed("tokens", f"rollout {trajectory.id} was made with another tokenizer")
    for segment in trajectory.segments:
        n = len(segment.token_ids)
        fields = (segment.loss_mask, segment.logprobs, segment.policy_versions)
        if any(len(field) != n for field in fields):
            raise CheckFailed("tokens", f"rollout {trajectory.id}: token fields of different lengths")
        mask, logprobs, versions = map(np.array, fields)
        if not np.isin(mask, (0, 1)).all() or (n and mask[0]):
            raise CheckFailed(
                "tokens", f"rollout {trajectory.id}: the loss mask is not 0 or 1, or holds the first token"
            )
        if not np.array_equal(mask == 1, versions != -1) or (logprobs[mask == 0] != 0).any():
            raise CheckFailed("tokens", f"rollout {trajectory.id}: loss mask, log-probs and versions are not aligned")
        if (versions[mask == 1] != version).any():
            raise CheckFailed("tokens", f"rollout {trajectory.id}: tokens of another policy than version {version}")


def check_group(task: Task, trajectories: Sequence[Trajectory], scores: Sequence[Score], size: int) -> None:
    """`groups`: a group is `size` different rollouts of one task, each with its own score and the task's question."""
    rollouts = [trajectory.rollout for trajectory in trajectories]
    if len(set(rollouts)) != size or len(rollouts) != size or len(scores) != size:
        raise CheckFailed(
            "groups", f"task {task.id}: rollouts {rollouts} and {len(scores)} scores for a group of {size}"
        )
    for trajectory, score in zip(trajectories, scores, strict=True):
        if trajectory.infrastructure_error:
            raise CheckFailed("groups", f"rollout {trajectory.id} ended in an infrastructure error")
        if trajectory.task_id != task.id or score.task_id != task.id:
            raise CheckFailed("groups", f"a rollout or score of {trajectory.task_id} is in the group of task {task.id}")
        if score.trajectory_id != trajectory.id:
            raise CheckFailed("groups", f"rollout {trajectory.id} carries the score of {score.trajectory_id}")
        for segment in trajectory.segments:
            if not any(task.question in message.content for message in segment.messages if message.role == "user"):
                raise CheckFailed("groups", f"rollout {trajectory.id} was not asked the question of task {task.id}")


def check_advantages(rewards: np.ndarray, advantages: GroupAdvantages) -> None:
    """`advantages`: above 0 where the reward is above the group's mean, and below, and rising with the reward."""
    centred = rewards - rewards.mean()
    if advantages.zero_variance:
        if np.abs(centred).max() > 1e-5 or advantages.values.any():
            raise CheckFailed("advantages", f"rewards {rewards.tolist()} were taken to be equal")
        return
    clear = np.abs(centred) > 1e-6
    same_sign = np.sign(centred[clear]) == np.sign(advantages.values[clear])
    if not same_sign.all() or not np.corrcoef(rewards, advantages.values)[0, 1] > 0.999:
        raise CheckFailed(
            "advantages", f"advantages {advantages.values.tolist()} do not rise with rewards {rewards.tolist()}"
        )
    for value, segments in zip(advantages.values, advantages.tokens, strict=True):
        if any(not np.isin(tokens, (0.0, value)).all() for tokens in segments):
            raise CheckFailed("advantages", "tokens carry another advantage than their rollout")


def check_prompt(task: Task, trajectory: Trajectory, tokenizer: PolicyTokenizer, system: str) -> None:
    """`prompt`: nothing that the question asks for stands in the prompt, beyond what system prompt and question say.

    Looks at the ids that the policy really was given before its first token.
    """
    for segment in trajectory.segments:
        mask = list(segment.loss_mask)
        text = tokenizer.decode(segment.token_ids[: mask.index(1) if 1 in mask else len(mask)])
        for known in (system, task.question):
            text = text.replace(known, " ", 1)
        text = re.sub(r"<\|im_start\|>\w*", " ", text)
        for target in task.targets:
            if target.final and _stands_in(target.form, text):
                raise CheckFailed("prompt", f"task {task.id}: the prompt gives away {target.form!r}")


def _stands_in(form: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(form)}(?!\w)", text) is not None
