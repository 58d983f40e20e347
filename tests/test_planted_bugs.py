"""Mistakes planted in a run of the trainer, one at a time: each is caught by the check that is there for it."""

import pathlib

import msgspec
import numpy as np
import pytest

from tests import rl_world
from webleaper_jax.agent import loop
from webleaper_jax.agent.render import Stream
from webleaper_jax.rl import advantages, batches, rollouts
from webleaper_jax.rl.checks import CheckFailed
from webleaper_jax.rl.grpo import GRPOConfig, train_grpo
from webleaper_jax.rl.sync import PROBE_SESSION
from webleaper_jax.sampling.engine import EmbeddedEngine
from webleaper_jax.train.metrics import read_metrics

CONFIG = GRPOConfig.from_mapping(rl_world.GRPO | {"steps": 2})


def run(out: pathlib.Path) -> None:
    train_grpo(CONFIG, rl_world.tasks(), rl_world.tools(), rl_world.LOOP, rl_world.policy_dir(), out)


def mask_shifted(patch: pytest.MonkeyPatch) -> None:
    """The trainer takes the mask (and log-probs) of token t for that of token t + 1."""
    patch.setattr(batches, "predicted", lambda x: x[1:] if np.issubdtype(x.dtype, np.int32) else x[:-1])


def mask_shifted_in_the_stream(patch: pytest.MonkeyPatch) -> None:
    """The loss mask alone slips by one where rollouts are recorded."""
    real = Stream.add_policy

    def shifted(stream: Stream, completion) -> None:
        real(stream, completion)
        stream.mask = [0, *stream.mask[:-1]]

    patch.setattr(Stream, "add_policy", shifted)


def groups_swapped(patch: pytest.MonkeyPatch) -> None:
    """Two groups exchange a rollout, score and all."""
    real = rollouts.form_groups

    def swapped(*args):
        (a, b, *rest), partial = real(*args)
        mixed_a = rollouts.Group(a.task, (*a.trajectories[:-1], b.trajectories[-1]), (*a.scores[:-1], b.scores[-1]))
        mixed_b = rollouts.Group(b.task, (*b.trajectories[:-1], a.trajectories[-1]), (*b.scores[:-1], a.scores[-1]))
        return [mixed_a, mixed_b, *rest], partial

    patch.setattr(rollouts, "form_groups", swapped)


def scores_swapped(patch: pytest.MonkeyPatch) -> None:
    """Inside a group, scores stand beside the wrong rollouts."""
    real = rollouts.form_groups

    def swapped(*args):
        groups, partial = real(*args)
        return [group._replace(scores=group.scores[::-1]) for group in groups], partial

    patch.setattr(rollouts, "form_groups", swapped)


def stale_weights(patch: pytest.MonkeyPatch) -> None:
    """The sampler says that it has the new weights and keeps the old ones."""

    def says_so(engine: EmbeddedEngine, params, version: int) -> None:
        engine.version = version

    patch.setattr(EmbeddedEngine, "set_weights", says_so)


def advantage_flipped(patch: pytest.MonkeyPatch) -> None:
    real = advantages.normalise_group
    patch.setattr(advantages, "normalise_group", lambda rewards: (-real(rewards)[0], real(rewards)[1]))


def answers_leaked(patch: pytest.MonkeyPatch) -> None:
    """The prompt that the policy is given ends with the answer."""
    golds = {task.question: task.answer.rows[0][0] for task in rl_world.tasks()}
    real = Stream.start
    patch.setattr(
        loop.Stream,
        "start",
        lambda tokenizer, system, question: real(tokenizer, system, f"{question} {golds[question]}"),
    )


def other_temperature(patch: pytest.MonkeyPatch) -> None:
    """T10: the sampler's log-probs are those of another temperature than the trainer's."""
    real = EmbeddedEngine._decode

    def warmer(engine: EmbeddedEngine, busy) -> None:
        for _, slot in busy:
            request = slot.job.request
            if slot.session != PROBE_SESSION:
                hot = msgspec.structs.replace(request.sampling, temperature=1.3)
                slot.job.request = msgspec.structs.replace(request, sampling=hot)
        real(engine, busy)

    patch.setattr(EmbeddedEngine, "_decode", warmer)


BUGS = {
    mask_shifted: "logprobs",
    mask_shifted_in_the_stream: "tokens",
    groups_swapped: "groups",
    scores_swapped: "groups",
    stale_weights: "weights",
    advantage_flipped: "advantages",
    answers_leaked: "prompt",
    other_temperature: "logprobs",
}


def test_a_run_without_a_bug_passes_every_check(tmp_path: pathlib.Path) -> None:
    run(tmp_path)
    assert any(not line["train/skipped"] for line in read_metrics(tmp_path))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught_by_its_check(bug, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises(CheckFailed) as caught:
        run(tmp_path)
    assert caught.value.check == BUGS[bug]
    assert not (tmp_path / "exports").exists()
