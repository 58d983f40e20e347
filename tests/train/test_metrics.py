"""The metrics file: one line a step, and a resumed run writes over what came after its checkpoint."""

from webleaper_jax.train.metrics import Metrics, read_metrics


def test_lines_come_back_in_order_and_tensorboard_has_events(tmp_path):
    with Metrics(tmp_path) as metrics:
        metrics.write(1, {"train/loss": 2.5})
        metrics.write(2, {"train/loss": 2.25, "speed/tokens_per_second": 10.0})
    assert read_metrics(tmp_path) == [
        {"step": 1, "train/loss": 2.5},
        {"step": 2, "train/loss": 2.25, "speed/tokens_per_second": 10.0},
    ]
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))


def test_going_on_drops_the_lines_after_the_checkpoint_and_a_half_written_one(tmp_path):
    with Metrics(tmp_path) as metrics:
        for step in range(1, 6):
            metrics.write(step, {"train/loss": float(step)})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "train/lo')
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3, 4, 5]
    with Metrics(tmp_path, step=3) as metrics:
        metrics.write(4, {"train/loss": 40.0})
    assert [line["train/loss"] for line in read_metrics(tmp_path)] == [1.0, 2.0, 3.0, 40.0]


def test_a_folder_without_metrics_has_none(tmp_path):
    assert read_metrics(tmp_path) == []
