import dataclasses
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import rl_world
from webleaper_jax.agent.render import PolicyTokenizer
from webleaper_jax.agent.tools import Tools
from webleaper_jax.jsonl import DataError, load_records
from webleaper_jax.model import hf
from webleaper_jax.parallel.mesh import make_mesh, shard_state
from webleaper_jax.records import Score, Task, Trajectory
from webleaper_jax.rl import batches, grpo
from webleaper_jax.rl.advantages import trajectory_advantages
from webleaper_jax.rl.grpo import GRPOConfig, RunStopped, train_grpo
from webleaper_jax.train.metrics import read_metrics
from webleaper_jax.train.state import create_state, make_optimizer

CONFIG = GRPOConfig.from_mapping(rl_world.GRPO | {"checkpoint_every": 2})


def run(out: pathlib.Path, tools: Tools | None = None, tasks: list[Task] | None = None, **changes: object):
    config = dataclasses.replace(CONFIG, **changes)
    return train_grpo(
        config, tasks or rl_world.tasks(), tools or rl_world.tools(), rl_world.LOOP, rl_world.policy_dir(), out
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An uninterrupted run."""
    out = tmp_path_factory.mktemp("grpo")
    run(out)
    return out


def weights(directory: pathlib.Path) -> dict:
    return jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(hf.load_checkpoint(directory), nnx.Param)))


def same(a: dict, b: dict) -> bool:
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


def rollouts_of(out: pathlib.Path) -> dict[str, list[Trajectory]]:
    found = {}
    for file in sorted((out / "rollouts").glob("step_*/*.jsonl")):
        if file.name.count(".") == 1:
            found[file.parent.name] = load_records(file, Trajectory)
    return found


def test_it_trains_on_real_rollouts_and_leaves_them_on_disk(whole: pathlib.Path) -> None:
    lines = read_metrics(whole)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert any(not line["train/skipped"] for line in lines)
    rollouts = rollouts_of(whole)
    assert list(rollouts) == [f"step_{n:06d}" for n in (1, 2, 3, 4)]
    for step, trajectories in enumerate(rollouts.values()):
        assert len(trajectories) == 12
        assert {v for t in trajectories for s in t.segments for v in s.policy_versions} == {-1, step}
        assert {t.sampling.top_p for t in trajectories} == {1.0}
    assert any(t.rounds >= 3 for ts in rollouts.values() for t in ts)
    scores = [load_records(f, Score) for f in sorted((whole / "rollouts").glob("step_*/*.scores.jsonl"))]
    for line, of_step in zip(lines, scores, strict=True):
        assert line["reward/mean"] == pytest.approx(np.mean([s.f for s in of_step]))
    assert not same(weights(rl_world.policy_dir()), weights(whole / "exports" / "step_000004"))
    assert PolicyTokenizer.load(whole / "exports" / "step_000004").fingerprint


def test_trainer_and_sampler_agree_on_every_sampled_token(whole: pathlib.Path) -> None:
    """Over all multi-turn rollouts of the first step (those that train and those that do not), to 1e-4."""
    decoder = hf.load_checkpoint(rl_world.policy_dir())
    trajectories = rollouts_of(whole)["step_000001"]

    @jax.jit
    def score(tokens: jax.Array) -> jax.Array:
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1] - 1), tokens[:, 1:].shape)
        hidden = decoder(tokens[:, :-1], positions, jnp.ones_like(tokens[:, 1:]))
        return decoder.token_logprobs(hidden, tokens[:, 1:])[0]

    segments = [segment for t in trajectories for segment in t.segments]
    ids = np.zeros((len(segments), rl_world.LOOP.max_context), np.int32)
    for row, segment in enumerate(segments):
        ids[row, : len(segment.token_ids)] = segment.token_ids
    expected = np.array(score(jnp.array(ids)))
    compared = 0
    for row, segment in enumerate(segments):
        sampled = np.flatnonzero(segment.loss_mask)
        np.testing.assert_allclose(np.array(segment.logprobs)[sampled], expected[row, sampled - 1], atol=1e-4)
        compared += len(sampled)
    assert compared > 400
    gaps = [line["sampler/gap_max"] for line in read_metrics(whole) if "sampler/gap_max" in line]
    assert gaps
    assert max(gaps) <= 1e-4


class Dies(Tools):
    """Tools whose process dies at the n-th call."""

    calls = 0

    def __init__(self, after: int):
        super().__init__(rl_world.tools().web, rl_world.tools().limits)
        self.after = after

    def run(self, *args, **kwargs):
        self.calls += 1
        if self.calls > self.after:
            raise KeyboardInterrupt
        return super().run(*args, **kwargs)


def test_an_interrupted_run_ends_with_the_same_weights_and_rollouts(
    whole: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Cut off in step 1 (no checkpoint), then after the checkpoint of step 2, each in the middle of the rollouts."""
    for after in (10, 50):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, tools=Dies(after))
    run(tmp_path)
    assert same(weights(tmp_path / "exports" / "step_000004"), weights(whole / "exports" / "step_000004"))
    assert rollouts_of(tmp_path) == rollouts_of(whole)
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    for line, expected in zip(lines, read_metrics(whole), strict=True):
        for name in ("reward/mean", "train/grad_norm", "train/entropy", "groups/trained"):
            assert line.get(name) == expected.get(name)
    assert any(line["rollouts/resumed"] for line in lines)  # U6: what was on disk is not paid for again


def test_a_finished_run_is_left_alone(whole: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    before = (whole / "metrics.jsonl").read_bytes()
    result = run(whole)
    assert result.final == whole / "exports" / "step_000004"
    assert (whole / "metrics.jsonl").read_bytes() == before


def test_a_finished_run_whose_export_is_gone_writes_it_again(whole: pathlib.Path) -> None:
    export = whole / "exports" / "step_000004"
    before = weights(export)
    shutil.rmtree(export)
    assert run(whole).final == export
    assert same(weights(export), before)
    assert PolicyTokenizer.load(export).fingerprint == PolicyTokenizer.load(rl_world.policy_dir()).fingerprint


def test_other_settings_do_not_go_on_with_this_run(whole: pathlib.Path) -> None:
    with pytest.raises(DataError, match=r"another config\.grpo\.clip_low"):
        run(whole, clip_low=0.1)


def test_a_step_without_variance_is_skipped_and_says_so(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    """G4: tasks that nothing can solve give equal rewards; the weights stay, bit for bit."""
    impossible = [
        Task(question=task.question, variant="legacy", origin="legacy", reward="exact", gold="what nobody says")
        for task in rl_world.tasks()
    ]
    run(tmp_path, tasks=impossible, steps=1)
    line = read_metrics(tmp_path)[0]
    assert (line["train/skipped"], line["groups/zero_variance"], line["groups/trained"]) == (1.0, 2, 0)
    assert "train/loss" not in line
    assert same(weights(tmp_path / "exports" / "step_000001"), weights(rl_world.policy_dir()))
    captured = capsys.readouterr()
    assert "step 1 skipped: all 2 whole groups have equal rewards (0.0)" in captured.out + captured.err


def test_weights_that_explode_stop_the_run(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RunStopped, match="lower learning_rate"):
        run(tmp_path, learning_rate=1e30)
    assert not (tmp_path / "exports").exists()


def test_a_reward_floor_stops_the_run(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RunStopped, match=r"reward/mean was .* below 1\.5"):
        run(tmp_path, min_reward=1.5, floor_steps=1)


def test_micro_batches_and_order_change_nothing(whole: pathlib.Path) -> None:
    """T11: one step from one row at a time, and from all at once in another order."""
    trajectories = rollouts_of(whole)["step_000001"]
    rng = np.random.default_rng(0)
    groups = []
    for task in sorted({t.task_id for t in trajectories}):
        members = [t for t in trajectories if t.task_id == task]
        masks = [batches.loss_masks(t) for t in members]
        groups.append((members, trajectory_advantages(rng.random(len(members)), masks)))
    sequences = batches.build_sequences(groups).sequences
    shuffled = [sequences[i] for i in rng.permutation(len(sequences))]
    results = []
    for order, micro_batch in ((sequences, 1), (shuffled, 12)):
        config = dataclasses.replace(CONFIG, micro_batch=micro_batch, optimizer="adamw", kl=0.1)
        mesh = make_mesh(config.mesh)
        graph, state = nnx.split(hf.load_checkpoint(rl_world.policy_dir()))
        params = shard_state(nnx.to_pure_dict(state), mesh)
        reference = jax.tree.map(lambda x: x * 1.2, params)
        optimizer = make_optimizer(config)
        trainer = grpo._Trainer(config, graph, optimizer, mesh, rl_world.LOOP.max_context, reference)
        _, values = trainer.update(create_state(params, optimizer, mesh), order, 1)
        results.append(values)
    assert results[0]["train/micro_batches"] == 12
    assert results[1]["train/micro_batches"] == 1
    for name in ("train/loss", "train/grad_norm", "train/entropy", "train/kl_reference"):
        for other in results[1:]:
            assert other[name] == pytest.approx(results[0][name], rel=1e-4, abs=1e-6)
    assert results[0]["train/kl_reference"] > 1e-3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stepz": 3}, "unknown field `stepz`"),
        ({"steps": "many"}, "steps"),
        ({"steps": 3, "group_size": 1}, "at least 2 rollouts"),
        ({"steps": 0}, "must be at least 1"),
        *(
            ({"steps": 3, name: 0}, f"{name} is 0, it must be at least 1")
            for name in ("slots", "decode_length", "prefill_rows", "prefill_chunk", "max_tokens", "logprob_chunk")
        ),
        ({"steps": 3, "temperature": 0.0}, "temperature"),
        ({"learning_rate": 1.0}, "steps"),
    ],
)
def test_bad_settings_are_one_line(fields: dict, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        GRPOConfig.from_mapping(fields)
    assert "\n" not in str(caught.value)


def test_metrics_are_plain_numbers(whole: pathlib.Path) -> None:
    for line in (whole / "metrics.jsonl").read_text().splitlines():
        assert all(isinstance(value, int | float) for value in json.loads(line).values())
