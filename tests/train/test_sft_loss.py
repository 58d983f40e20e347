"""The SFT loss: which tokens it counts, and that packing and micro-batches leave it and its gradient alone."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.train import tiny
from webleaper_jax.data.packing import Rows, one_per_row, pack
from webleaper_jax.model.decoder import Decoder
from webleaper_jax.train.sft import Batch, SFTConfig, loss_sums, next_tokens, train_step
from webleaper_jax.train.state import TrainState, make_optimizer

# One layer, and always the same number of rows, so that little is compiled.
GRAPH, STATE = nnx.split(Decoder(dataclasses.replace(tiny.MODEL, num_layers=1), rngs=nnx.Rngs(0)))
PARAMS = nnx.to_pure_dict(STATE)
SUMS = functools.partial(loss_sums, GRAPH, chunk=16)
ROWS = 16


def batch(rows: Rows) -> Batch:
    return Batch(*map(jnp.asarray, rows))


def filled(rows: Rows) -> Batch:
    """The rows, and empty ones up to `ROWS`."""
    missing = ROWS - len(rows.tokens)
    return batch(Rows(*(np.pad(part, ((0, missing), (0, 0))) for part in rows)))


@jax.jit
@jax.value_and_grad
def loss_and_gradient(params, rows):
    numerator, denominator = SUMS(params, rows)
    return numerator / denominator


def largest_difference(a, b) -> float:
    return max(float(jnp.abs(x - y).max()) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_the_loss_is_the_mean_over_trained_tokens_written_out():
    examples = tiny.examples(12)

    @jax.jit
    def over_the_vocabulary(ids):
        model = nnx.merge(GRAPH, PARAMS)
        return jax.nn.log_softmax(model.logits(model(ids, jnp.arange(tiny.LENGTH)[None], jnp.ones_like(ids))))

    total, count = 0.0, 0
    for example in examples:  # one at a time, unpacked; a causal model does not see what pads the end
        length = len(example.ids)
        logprobs = over_the_vocabulary(np.pad(example.ids, (0, tiny.LENGTH - length))[None])[0]
        for t in range(1, length):
            if example.loss_mask[t]:
                total -= float(logprobs[t - 1, example.ids[t]])
                count += 1
    numerator, denominator = jax.jit(SUMS)(PARAMS, batch(pack(examples, tiny.LENGTH)))
    assert int(denominator) == count
    assert float(numerator) == pytest.approx(total, rel=1e-5)


def test_packed_and_unpacked_batches_give_the_same_loss_and_gradient():
    examples = tiny.examples(ROWS)
    packed, unpacked = pack(examples, tiny.LENGTH), one_per_row(examples, tiny.LENGTH)
    assert len(packed.tokens) < len(unpacked.tokens) == ROWS
    loss, gradient = loss_and_gradient(PARAMS, filled(packed))
    other_loss, other_gradient = loss_and_gradient(PARAMS, filled(unpacked))
    assert float(loss) == pytest.approx(float(other_loss), abs=1e-5)
    assert largest_difference(gradient, other_gradient) <= 1e-5
    assert largest_difference(gradient, jax.tree.map(jnp.zeros_like, gradient)) > 1e-3


def test_a_position_has_a_gradient_exactly_where_the_next_token_is_trained():
    rows = pack(tiny.examples(10), tiny.LENGTH)
    targets, trained = next_tokens(batch(rows))
    model = nnx.merge(GRAPH, PARAMS)
    hidden = jax.random.normal(jax.random.key(0), (*rows.tokens.shape, tiny.MODEL.hidden_size))

    def loss(hidden):
        logprobs, _ = model.token_logprobs(hidden, targets, 16)
        return -jnp.sum(jnp.where(trained, logprobs, 0.0))

    moved = np.abs(jax.jit(jax.grad(loss))(hidden)).max(-1) > 0
    wanted = np.zeros_like(moved)
    for n in range(len(rows.tokens)):
        for t in range(tiny.LENGTH - 1):
            inside = rows.segment_ids[n, t] == rows.segment_ids[n, t + 1] > 0
            wanted[n, t] = inside and rows.loss_mask[n, t + 1]
    assert np.array_equal(moved, wanted)
    assert wanted.any()
    assert not wanted.all()


def test_an_example_with_mask_0_changes_nothing():
    examples = tiny.examples(6)
    silent = [example._replace(loss_mask=np.zeros_like(example.loss_mask)) for example in tiny.examples(4, seed=5)]
    loss, gradient = loss_and_gradient(PARAMS, filled(one_per_row(examples, tiny.LENGTH)))
    other_loss, other_gradient = loss_and_gradient(PARAMS, filled(one_per_row(examples + silent, tiny.LENGTH)))
    assert float(loss) == pytest.approx(float(other_loss), abs=1e-6)
    assert largest_difference(gradient, other_gradient) <= 1e-6


def test_the_mask_is_never_read_from_the_ids():
    # T6: padding has the id of an end token; a sampled one is trained on, padding and a forced one are not.
    end = 7
    example = tiny.Example(np.array([1, 2, end, 3, end], np.int32), np.array([0, 1, 1, 1, 0], np.bool_), "t")
    rows = pack([example], 8, pad_id=end)
    targets, trained = next_tokens(batch(rows))
    assert trained[0].tolist() == [True, True, True, False, False, False, False, False]
    assert targets[0, :4].tolist() == [2, end, 3, end]


class Bigram(nnx.Module):
    """The least model with the decoder's interface: the next token's log-probs depend on the token alone."""

    def __init__(self, table):
        self.table = nnx.Param(table)

    def __call__(self, tokens, positions, segment_ids):
        return self.table[...][tokens]

    def token_logprobs(self, hidden, targets, chunk):
        return jnp.take_along_axis(hidden, targets[..., None], -1)[..., 0], jnp.zeros(targets.shape)


@pytest.mark.parametrize("poison", [np.inf, -np.inf, np.nan])
def test_whatever_stands_at_an_untrained_token_has_no_part_in_the_loss(poison):
    # T8: a product with the mask would turn inf * 0 into NaN.
    table = np.full((8, 8), -2.0, np.float32)
    table[5] = poison
    example = tiny.Example(np.array([1, 5, 2, 3], np.int32), np.array([0, 1, 0, 1], np.bool_), "t")
    graph, state = nnx.split(Bigram(jnp.asarray(table)))
    sums = functools.partial(loss_sums, graph)
    rows = batch(pack([example], 6, pad_id=5))
    (numerator, denominator), gradient = jax.value_and_grad(sums, has_aux=True)(nnx.to_pure_dict(state), rows)
    assert (float(numerator), int(denominator)) == (4.0, 2)
    wanted = np.zeros((8, 8))
    wanted[1, 5] = wanted[2, 3] = -1
    assert np.array_equal(gradient["table"], wanted)


def test_micro_batches_equal_the_whole_batch_though_their_token_counts_differ():
    # T11: means of micro-batches weighted equally would differ, since the rows hold unequal numbers of trained tokens.
    rows = one_per_row(tiny.examples(8), tiny.LENGTH)
    counts = rows.loss_mask.sum(1)
    assert len(set(counts.tolist())) > 1
    after = {}
    for micro_batches in (1, 4):
        config = SFTConfig(
            steps=5, batch_size=8, seq_len=tiny.LENGTH, micro_batches=micro_batches, schedule="constant", clip_norm=0.1
        )
        optimizer = make_optimizer(config)
        state = TrainState(PARAMS, optimizer.init(PARAMS), jnp.int32(0))
        step = jax.jit(functools.partial(train_step, GRAPH, optimizer, config))
        after[micro_batches] = step(state, batch(rows))
    (whole, reported), (split, split_reported) = after[1], after[4]
    for name, a, b in zip(reported._fields, reported, split_reported, strict=True):
        assert float(a) == pytest.approx(float(b), rel=1e-5), name
    moments = [
        jax.tree.leaves(state.opt_state) for state in (whole, split)
    ]  # Adam's moments are the gradient, before Adam's division makes small ones large
    assert all(np.allclose(a, b, rtol=1e-4, atol=1e-8) for a, b in zip(*moments, strict=True))
