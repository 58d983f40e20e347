"""The SFT trainer as a whole: it learns, resumes exactly, is the same on every mesh, and refuses what cannot work."""

import dataclasses
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from tests.train import tiny
from webleaper_jax.jsonl import DataError
from webleaper_jax.model import hf
from webleaper_jax.train.metrics import read_metrics
from webleaper_jax.train.sft import DivergedError, SFTConfig, train_sft


def losses(out: pathlib.Path) -> dict[int, float]:
    return {line["step"]: line["train/loss"] for line in read_metrics(out) if "train/loss" in line}


def weights(directory: pathlib.Path) -> dict[str, np.ndarray]:
    return {name: array for path in sorted(directory.glob("*.safetensors")) for name, array in load_file(path).items()}


def equal_weights(a: pathlib.Path, b: pathlib.Path) -> bool:
    left, right = weights(a), weights(b)
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def start(inputs: pathlib.Path, out: pathlib.Path, devices: int = 1, **settings) -> subprocess.Popen[bytes]:
    arguments = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
    }
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "log.txt", "ab") as log:
        command = [sys.executable, "-m", "tests.train.tiny", str(inputs), str(out), *arguments]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def finish(process: subprocess.Popen[bytes], out: pathlib.Path) -> None:
    assert process.wait(timeout=300) == 0, (out / "log.txt").read_text()


@pytest.fixture(scope="module")
def uninterrupted(inputs, tmp_path_factory) -> pathlib.Path:
    """A run of 20 steps on one device."""
    out = tmp_path_factory.mktemp("one") / "run"
    finish(start(inputs, out, checkpoint_every=4, eval_every=10, export_steps=[10]), out)
    return out


def test_it_learns_and_reports_what_it_did(inputs, tmp_path):
    seen = []

    def evaluate(step, model):
        tokens = np.zeros((1, 4), np.int32)
        assert np.isfinite(np.asarray(model(tokens, tokens, tokens + 1))).all()  # the model can be used
        seen.append(step)
        return {"validation/f": step / 100}

    settings = {"steps": 40, "eval_every": 15, "export_steps": [15], "optimizer": "muon", "warmup_steps": 3}
    result = tiny.run(inputs, tmp_path, settings, evaluate)
    curve = losses(tmp_path)
    assert list(curve) == list(range(1, 41))
    assert curve[1] > 3.0  # about log 32
    assert curve[40] < 0.5 * curve[1]
    assert seen == [15, 30, 40]
    assert list(result.exports) == [15, 40]
    assert result.evaluations[30]["validation/f"] == 0.3
    validation = [result.evaluations[step]["validation/loss"] for step in (15, 30, 40)]
    assert validation[0] > validation[2]
    assert not equal_weights(result.exports[15], result.exports[40])
    assert (result.final / "tokenizer.json").read_text() == "{}"
    assert not (result.final / "metadata.json").exists()  # it is about the base
    assert hf.load_checkpoint(result.final).config == dataclasses.replace(tiny.MODEL)
    line = read_metrics(tmp_path)[0]
    assert line["train/learning_rate"] == pytest.approx(0.01 / 3)
    assert line["speed/tokens_per_second"] > 0
    assert 0 <= line["train/padding"] < 0.2


def test_the_validation_loss_is_that_of_the_exported_model(inputs, uninterrupted):
    from webleaper_jax.data.dataset import RowSource
    from webleaper_jax.data.pipeline import stack
    from webleaper_jax.train.sft import loss_sums

    source = RowSource(inputs / "set", "validation")
    rows = stack([source[n] for n in range(len(source))])
    graph, state = nnx.split(hf.load_checkpoint(uninterrupted / "exports" / "step_000010"))
    numerator, denominator = loss_sums(graph, nnx.to_pure_dict(state), tiny_batch(rows))
    found = [line["validation/loss"] for line in read_metrics(uninterrupted) if "validation/loss" in line]
    assert found[0] == pytest.approx(float(numerator) / int(denominator), rel=1e-5)


def tiny_batch(rows):
    from webleaper_jax.train.sft import Batch

    return Batch(*map(jax.numpy.asarray, rows))


def test_the_same_command_again_does_nothing(inputs, tmp_path, capsys):
    first = tiny.run(inputs, tmp_path, {"steps": 3})
    lines = read_metrics(tmp_path)
    capsys.readouterr()
    assert tiny.run(inputs, tmp_path, {"steps": 3}) == first
    assert "all 3 steps done before" in capsys.readouterr().out
    assert read_metrics(tmp_path) == lines


@pytest.mark.parametrize(
    "mesh", [{"data": 1, "fsdp": 8, "tensor": 1}, {"data": 2, "fsdp": 2, "tensor": 2}], ids=["8fsdp", "2x2x2"]
)
def test_the_first_20_steps_are_the_same_on_8_devices(inputs, uninterrupted, tmp_path, mesh):
    out = tmp_path / "run"
    finish(start(inputs, out, devices=8, mesh=mesh), out)
    one, eight = losses(uninterrupted), losses(out)
    assert list(one) == list(eight) == list(range(1, 21))
    assert one[20] < one[1]
    for step in one:
        assert eight[step] == pytest.approx(one[step], rel=1e-5), step


def kill_and_resume(inputs: pathlib.Path, out: pathlib.Path, kills: list[int]) -> None:
    """Runs to the end, killed as soon as each of the given steps is seen in its metrics."""
    settings = {"checkpoint_every": 4, "eval_every": 10, "export_steps": [10]}
    for at in kills:
        process = start(inputs, out, **settings)
        deadline = time.monotonic() + 120
        while max(losses(out), default=0) < at and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    finish(start(inputs, out, **settings), out)


def assert_same_run(out: pathlib.Path, reference: pathlib.Path) -> None:
    def timeless(directory: pathlib.Path) -> list[dict[str, float]]:
        return [{k: v for k, v in line.items() if not k.startswith("speed/")} for line in read_metrics(directory)]

    assert timeless(out) == timeless(reference)
    for step in (10, 20):
        name = f"step_{step:06d}"
        assert equal_weights(out / "exports" / name, reference / "exports" / name)


def test_killed_and_resumed_is_bit_for_bit_the_uninterrupted_run(inputs, uninterrupted, tmp_path):
    out = tmp_path / "run"
    kill_and_resume(inputs, out, [6])
    log = (out / "log.txt").read_text()
    assert "going on from step" in log, log  # it was killed before its end, and after a checkpoint
    assert_same_run(out, uninterrupted)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
def test_killed_at_random_steps(inputs, uninterrupted, tmp_path, seed):
    rng = random.Random(seed)
    out = tmp_path / "run"
    kill_and_resume(inputs, out, sorted(rng.randint(0, 19) for _ in range(3)))
    assert_same_run(out, uninterrupted)


def test_nothing_compiles_after_the_first_steps(inputs, tmp_path):
    events: list[str] = []
    seen: dict[int, int] = {}

    def listen(name: str, duration: float, **_: object) -> None:
        if "backend_compile" in name:
            events.append(name)

    def evaluate(step, model):
        seen[step] = len(events)
        return {}

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        tiny.run(inputs, tmp_path, {"steps": 12, "eval_every": 2, "checkpoint_every": 100}, evaluate)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert seen[2] > 0  # the listener hears compilations
    assert seen[12] == seen[2]


def test_a_loss_that_is_no_number_stops_the_run_and_saves_nothing_of_it(inputs, tmp_path):
    graph, state = nnx.split(tiny.decoder())
    params = nnx.to_pure_dict(state)
    params["final_norm"] = params["final_norm"].at[0].set(np.nan)
    hf.save_checkpoint(nnx.merge(graph, params), tmp_path / "init")
    config = SFTConfig(steps=6, batch_size=8, seq_len=tiny.LENGTH, checkpoint_every=1)
    with pytest.raises(DivergedError, match="step 1 has loss nan"):
        train_sft(config, inputs / "set", tmp_path / "init", tmp_path / "out", tokenizer=tiny.TOKENIZER)
    assert not any(path.name.isdigit() for path in (tmp_path / "out" / "checkpoints").iterdir())
    assert not (tmp_path / "out" / "exports").exists()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"seq_len": 16}, "rows of 32 tokens"),
        ({"micro_batches": 3}, "batch_size 8 is no multiple"),
        ({"steps": 0}, "steps is 0"),
        ({"log_every": 0}, "log_every is 0"),
        ({"learning_rat": 0.1}, "unknown field `learning_rat`"),
        ({"batch_size": "many"}, "config.sft"),
        ({"optimizer": "sgd"}, "sgd"),
    ],
)
def test_settings_that_do_not_fit_are_one_clear_line(inputs, tmp_path, settings, says):
    with pytest.raises(DataError, match=says) as error:
        tiny.run(inputs, tmp_path, settings)
    assert "\n" not in str(error.value)


def test_another_tokenizer_is_refused(inputs, tmp_path):
    config = SFTConfig(steps=2, batch_size=8, seq_len=tiny.LENGTH)
    with pytest.raises(DataError, match="made with tokenizer tiny, the model to train has other"):
        train_sft(config, inputs / "set", inputs / "init", tmp_path, tokenizer="other")


def test_a_folder_trained_with_other_settings_is_refused_and_left_alone(inputs, tmp_path):
    tiny.run(inputs, tmp_path, {"steps": 2})
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    with pytest.raises(DataError, match=r"config\.sft\.learning_rate"):
        tiny.run(inputs, tmp_path, {"steps": 2, "learning_rate": 0.02})
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == before
