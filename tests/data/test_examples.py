"""Trajectory -> SFT example: which ids, which mask, what is left out (cases T5, T6, T7)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webleaper_jax.data.examples import build_examples
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Fingerprints, Message, Sampling, Segment, Trajectory

EOS = PAD = 9  # the padding id of some tokenizers is an end token
MESSAGES = (Message(role="user", content="q"), Message(role="assistant", content="a"))


def trajectory(*segments: Segment, tokenizer: str = "tok", error: str = "", rollout: int = 0) -> Trajectory:
    return Trajectory(
        task_id="task-1",
        rollout=rollout,
        policy="p",
        segments=segments,
        sampling=Sampling(),
        termination="infrastructure" if error else "answer",
        infrastructure_error=error,
        fingerprints=Fingerprints(tokenizer=tokenizer),
    )


def sampled(ids: list[int], mask: list[int]) -> Segment:
    return Segment(messages=MESSAGES, steps=(), token_ids=tuple(ids), loss_mask=tuple(mask))


def render(messages):
    """Stands for the chat format: one id per message, the assistant's followed by an end token, both trained on."""
    ids, mask = [], []
    for message in messages:
        policy = message.role == "assistant"
        ids += [5, EOS] if policy else [4]
        mask += [1, 1] if policy else [0]
    return ids, mask


def build(*trajectories: Trajectory, max_length: int = 16):
    return build_examples(trajectories, render, "tok", max_length=max_length, vocab_size=10)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=2, max_size=16))
def test_sampled_ids_and_mask_are_kept_as_they_are(tokens):
    ids, mask = zip(*tokens, strict=True)
    built = build(trajectory(sampled(list(ids), [int(m) for m in mask])))
    if any(mask[1:]):
        assert built.examples[0].ids.tolist() == list(ids)
        assert built.examples[0].loss_mask.tolist() == list(mask)
        assert not built.drops
        assert built.rendered == 0
    else:
        assert not built.examples


def test_the_mask_says_which_end_tokens_are_learnt_not_their_id():
    # T5 and T6: a sampled end token is learnt, a forced one is not, though both have the id that pads.
    (example,) = build(trajectory(sampled([1, 2, EOS, 3, EOS], [0, 1, 1, 1, 0]))).examples
    assert example.loss_mask.tolist() == [False, True, True, True, False]


def test_text_and_another_tokenizers_ids_are_rendered():
    text = trajectory(Segment(messages=MESSAGES, steps=()))
    other = trajectory(sampled([1, 2, 3], [0, 1, 1]), tokenizer="another")
    built = build(text, other)
    assert [example.ids.tolist() for example in built.examples] == [[4, 5, EOS]] * 2
    assert [example.loss_mask.tolist() for example in built.examples] == [[False, True, True]] * 2
    assert built.rendered == 2


@pytest.mark.parametrize("mask", [[0, 0, 0], [1, 0, 0]], ids=["nothing", "only the first token"])
def test_what_holds_no_trainable_token_is_dropped_and_counted(mask):
    # T7. The first token has nothing before it, so it cannot be learnt either.
    built = build(trajectory(sampled([1, 2, 3], mask)))
    assert not built.examples
    assert [(drop.reason, drop.tokens) for drop in built.drops] == [("no_trainable_token", 3)]


def test_too_long_and_broken_rollouts_are_dropped_and_counted():
    long = sampled([1] * 17, [1] * 17)
    fits = sampled([1] * 16, [1] * 16)
    built = build(trajectory(long), trajectory(fits), trajectory(fits, error="timeout", rollout=1))
    assert len(built.examples) == 1
    assert [drop.reason for drop in built.drops] == ["too_long", "infrastructure_error"]


def test_every_segment_is_an_example_of_its_own():
    built = build(trajectory(sampled([1, 2], [0, 1]), sampled([3, 4], [0, 0]), sampled([5, 6], [0, 1])))
    assert [example.ids.tolist() for example in built.examples] == [[1, 2], [5, 6]]
    assert [(drop.segment, drop.reason) for drop in built.drops] == [(1, "no_trainable_token")]


@pytest.mark.parametrize(
    ("segment", "says"),
    [
        (sampled([1, 2, 3], [1, 1]), "loss_mask"),
        (sampled([1, 10], [0, 1]), "0 to 9"),
        (sampled([-1, 2], [0, 1]), "0 to 9"),
    ],
)
def test_wrong_token_fields_are_refused_by_name(segment, says):
    with pytest.raises(DataError, match=says):
        build(trajectory(segment))


def test_example_arrays_have_the_types_of_rows():
    (example,) = build(trajectory(sampled([1, 2], [0, 1]))).examples
    assert example.ids.dtype == np.int32
    assert example.loss_mask.dtype == np.bool_
