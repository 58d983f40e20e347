"""`launch.sft`: from trajectories kept as text to a fine-tuned policy, with the real chat format."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
from ml_collections import ConfigDict

from launch import sft
from tests.tiny_policy import save_tokenizer, tiny_config, tiny_decoder
from webleaper_jax.agent.render import PolicyTokenizer
from webleaper_jax.data.dataset import RowSource
from webleaper_jax.jsonl import DataError, write_records
from webleaper_jax.model import hf
from webleaper_jax.records import Message, Sampling, Segment, Trajectory

TURNS = (
    Message(role="system", content="s"),
    Message(role="user", content="who?"),
    Message(role="assistant", content="<think>t</think>\n<tool_call>\n{}\n</tool_call>"),
    Message(role="tool", content="page"),
    Message(role="assistant", content="<answer>\nA\n</answer>"),
)


def trajectory(number: int, messages: tuple[Message, ...] = TURNS) -> Trajectory:
    return Trajectory(
        task_id=f"task-{number}",
        rollout=0,
        policy="scripted",
        segments=(Segment(messages=messages, steps=()),),
        sampling=Sampling(),
        termination="answer",
    )


LIMITS = {"max_context": 64}


def config(**changes: object) -> ConfigDict:
    fields = {"steps": 2, "batch_size": 2, "seq_len": 96, "learning_rate": 1e-3, "export_steps": (1,)}
    return ConfigDict({"sft": fields | changes})


@pytest.fixture
def policy(tmp_path: pathlib.Path) -> pathlib.Path:
    hf.save_checkpoint(tiny_decoder(), tmp_path / "policy")
    save_tokenizer(tmp_path / "policy")
    return tmp_path / "policy"


def test_a_policy_is_trained_on_its_own_turns_and_exported_with_its_tokenizer(policy, tmp_path, capsys):
    train = [trajectory(n) for n in range(4)] + [trajectory(4, TURNS[:2])]  # the last holds nothing to learn
    result = sft.run(config(), train, [trajectory(9)], policy, tmp_path / "out")
    out = capsys.readouterr().out
    assert "train: 4 examples in 4 rows of 96 tokens" in out
    assert "left out: 1 no_trainable_token" in out
    assert "validation: 1 examples" in out
    assert list(result.exports) == [1, 2]
    assert result.evaluations[2]["validation/loss"] > 0
    for folder in result.exports.values():
        assert hf.load_checkpoint(folder).config == tiny_config()
        assert PolicyTokenizer.load(folder).fingerprint == PolicyTokenizer.load(policy).fingerprint

    # What is learnt is what the policy wrote and the ends of its turns; not the prompt, not the observation.
    tokenizer = PolicyTokenizer.load(policy)
    row = RowSource(tmp_path / "out" / "dataset", "train")[0]
    learnt = tokenizer.decode(row.tokens[row.loss_mask].tolist())
    assert learnt == f"{TURNS[2].content}<|im_end|>{TURNS[4].content}<|im_end|>"
    others = tokenizer.decode(row.tokens[(row.segment_ids > 0) & ~row.loss_mask].tolist())
    assert "page" in others
    assert "who?" in others


def test_trajectories_and_policies_that_cannot_be_used_are_one_clear_line(policy, tmp_path):
    backwards = trajectory(0, TURNS[:1] + TURNS[2:3])
    with pytest.raises(DataError, match="field `messages` cannot be rendered"):
        sft.run(config(), [backwards], [], policy, tmp_path / "out")
    with pytest.raises(DataError, match="no training rows"):
        sft.run(config(seq_len=8), [trajectory(0)], [], policy, tmp_path / "out")
    (policy / "config.json").unlink()
    with pytest.raises(DataError, match=r"config\.json"):
        sft.run(config(), [trajectory(0)], [], policy, tmp_path / "out")


def test_a_validation_set_of_which_nothing_is_left_is_done_without(policy, tmp_path):
    too_long = trajectory(9, (*TURNS[:2], Message(role="assistant", content="<answer>\nA\n</answer>" * 99)))
    result = sft.run(config(), [trajectory(0)], [too_long], policy, tmp_path / "out")
    assert result.evaluations == {}
    assert result.final.exists()


def test_a_run_of_other_trajectories_is_refused_and_its_set_left_alone(policy, tmp_path):
    sft.run(config(), [trajectory(0)], [], policy, tmp_path / "out")
    before = {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    with pytest.raises(DataError, match="dataset: was made from other trajectories or settings"):
        sft.run(config(), [trajectory(1)], [], policy, tmp_path / "out")
    assert {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()} == before


def test_the_command_refuses_an_empty_file_with_one_line(repository, tmp_path):
    write_records(tmp_path / "empty.jsonl", [])
    command = [sys.executable, "-m", "launch.sft"]
    command += [f"--trajectories={tmp_path / 'empty.jsonl'}", f"--out={tmp_path / 'out'}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=repository)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "holds no Trajectory records" in errors[0]
    assert "Traceback" not in done.stderr


def test_the_first_policy_is_the_one_that_the_config_names(policy, tmp_path, monkeypatch):
    """In `launch.sft` as in the quickstart; a conversion that fails leaves nothing that passes for one."""
    from webleaper_jax.model import gguf

    assert sft.initial_policy(ConfigDict({"init": "tiny_base", "loop": LIMITS}), tmp_path) == sft.bundled_base()
    assert sft.initial_policy(ConfigDict({"init": str(policy), "loop": LIMITS}), tmp_path) == policy
    with pytest.raises(DataError, match=r"nowhere/config\.json: no such file"):
        sft.initial_policy(ConfigDict({"init": "nowhere", "loop": LIMITS}), tmp_path)

    smollm2 = ConfigDict({"init": "smollm2"})
    converted = []
    monkeypatch.setattr(gguf, "smollm2_file", lambda: pathlib.Path("x.gguf"))
    for error in (ValueError("other architecture"), ImportError("no gguf"), FileNotFoundError("pip install")):

        def fails(source: pathlib.Path, out: pathlib.Path, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(gguf, "convert_gguf", fails)
        with pytest.raises(DataError, match=str(error)):
            sft.initial_policy(smollm2, tmp_path)

    def converts(source: pathlib.Path, out: pathlib.Path) -> None:
        out.mkdir()
        (out / "tokenizer.json").write_text("{}")
        converted.append(out)

    monkeypatch.setattr(gguf, "convert_gguf", converts)
    assert {sft.initial_policy(smollm2, tmp_path) for _ in range(2)} == {tmp_path / "smollm2"}
    assert converted == [tmp_path / "smollm2"]


def test_the_command_starts_from_the_policy_of_the_config(repository, tmp_path):
    write_records(tmp_path / "some.jsonl", [trajectory(0)])
    command = [sys.executable, "-m", "launch.sft", f"--trajectories={tmp_path / 'some.jsonl'}"]
    command += [f"--out={tmp_path / 'out'}", f"--config.init={tmp_path / 'nowhere'}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=repository)
    assert done.returncode == 2
    assert f"error: {tmp_path / 'nowhere' / 'config.json'}: no such file" in done.stderr


def test_the_bundled_base_is_a_policy():
    base = sft.bundled_base()
    if not (base / "model.safetensors").exists():
        pytest.skip("no base is bundled")
    decoder = hf.load_checkpoint(base)
    assert PolicyTokenizer.load(base).vocab_size <= decoder.config.vocab_size
    assert np.isfinite(np.asarray(decoder.embed[...])).all()
