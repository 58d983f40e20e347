"""The decoder against Hugging Face's, and its forms against one another: packed, blockwise, scanned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from webleaper_jax.model.attention import causal_attention
from webleaper_jax.model.decoder import linear
from webleaper_jax.model.hf import load_checkpoint, save_checkpoint

# Compiled: op by op, each operation would be compiled on its own.
forward = nnx.jit(lambda decoder, tokens, positions, segments: decoder(tokens, positions, segments))


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_logits_equal_hugging_face(architecture, tied, small_decoder, rows, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    save_checkpoint(small_decoder(architecture=architecture, tie_embeddings=tied), tmp_path)
    tokens, positions, segments = rows(530)
    decoder = load_checkpoint(tmp_path)
    ours = decoder.logits(forward(decoder, tokens, positions, segments))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor(np.asarray(tokens))).logits.numpy()
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(ours, expected, atol=1e-4, rtol=1e-4)


def test_packed_rows_equal_separate_rows(small_decoder, rows):
    decoder = small_decoder()
    a, b = rows(33, batch=1, seed=1), rows(20, batch=1, seed=2)
    separate = [forward(decoder, *a), forward(decoder, *b)]
    tokens, positions = (jnp.concatenate([x, y], axis=1) for x, y in zip(a[:2], b[:2], strict=True))
    segments = jnp.concatenate([jnp.full((1, 33), 1), jnp.full((1, 20), 2)], axis=1)
    packed = forward(decoder, tokens, positions, segments)
    np.testing.assert_allclose(packed, jnp.concatenate(separate, axis=1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [64, 100])
def test_blockwise_attention_equals_plain_and_so_do_its_gradients(length):
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.standard_normal((2, length, heads, 8)), jnp.float32) for heads in (4, 2, 2))
    segments = jnp.asarray(np.sort(rng.integers(0, 4, (2, length)), axis=1))

    def value_and_gradients(block, plain_up_to):
        def loss(q, k, v):
            return jnp.sum(jnp.sin(causal_attention(q, k, v, segments, block, plain_up_to)))

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(q, k, v)

    expected = value_and_gradients(length, length)
    for other in (value_and_gradients(16, length), value_and_gradients(16, 0)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5, rtol=1e-5), expected, other)


def test_blockwise_attention_holds_no_square_of_scores():
    shape = jax.ShapeDtypeStruct((1, 1024, 2, 8), jnp.float32)
    segments = jax.ShapeDtypeStruct((1, 1024), jnp.int32)

    def text(plain_up_to):
        function = jax.grad(lambda q, k, v, s: causal_attention(q, k, v, s, 64, plain_up_to).sum(), argnums=(0, 1, 2))
        return jax.jit(function).lower(shape, shape, shape, segments).as_text()

    assert "1024x1024" in jax.jit(lambda x: x @ x.T).lower(jax.ShapeDtypeStruct((1024, 8), jnp.float32)).as_text()
    assert "64x1024xf32" in text(1024)  # the plain form: a block of queries against all keys
    assert "64x1024xf32" not in text(0)
    assert "1024x1024" not in text(0)


@pytest.mark.parametrize("changes", [{"remat": True}, {"unroll_layers": False}, {"attention_block": 17}])
def test_ways_to_compute_give_the_same_loss_and_gradients(changes, small_decoder, rows):
    tokens, positions, segments = rows(40)

    def gradients(decoder):
        def loss(decoder):
            return decoder.token_logprobs(decoder(tokens, positions, segments), jnp.roll(tokens, -1, 1))[0].mean()

        value, found = nnx.jit(nnx.value_and_grad(loss))(decoder)
        return value, nnx.to_pure_dict(found)

    expected, found = gradients(small_decoder()), gradients(small_decoder(**changes))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5, rtol=1e-4), expected, found)


@pytest.mark.parametrize("chunk", [5, 12, 64])
@pytest.mark.parametrize("tied", [True, False])
def test_token_logprobs_equal_log_softmax(chunk, tied, small_decoder, rows):
    decoder = small_decoder(tie_embeddings=tied)
    tokens, positions, segments = rows(12)
    hidden = forward(decoder, tokens, positions, segments)
    head = (decoder.embed if tied else decoder.lm_head)[...]

    def reference(hidden, head):
        logp = jax.nn.log_softmax(hidden @ head.T / 0.7, axis=-1)
        chosen = jnp.take_along_axis(logp, tokens[..., None], axis=-1)[..., 0]
        return chosen, -(jnp.exp(logp) * logp).sum(-1)

    def ours(hidden, head):
        changed = nnx.clone(decoder)
        (changed.embed if tied else changed.lm_head)[...] = head
        return changed.token_logprobs(hidden, tokens, chunk=chunk, temperature=0.7)

    for x, y in zip(jax.jit(ours)(hidden, head), jax.jit(reference)(hidden, head), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5, rtol=1e-5)
    total = [
        jax.jit(jax.grad(lambda h, w, f=f: sum(x.sum() for x in f(h, w)), argnums=(0, 1)))(hidden, head)
        for f in (ours, reference)
    ]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5, rtol=1e-4), *total)


def test_chunked_logprobs_hold_no_array_of_all_logits(small_decoder):
    decoder = small_decoder(vocab_size=1009)
    hidden = jax.ShapeDtypeStruct((2, 256, 48), jnp.float32)
    targets = jax.ShapeDtypeStruct((2, 256), jnp.int32)

    def text(chunk):
        function = jax.grad(lambda h, t: decoder.token_logprobs(h, t, chunk=chunk)[0].sum())
        return jax.jit(function).lower(hidden, targets).as_text()

    assert "2x256x1009" in text(256)
    assert "2x32x1009" in text(32)
    assert "2x256x1009" not in text(32)
    assert "8x2x32x1009" not in text(32)


def test_linear_has_the_gradients_of_a_product():
    rng = np.random.default_rng(0)
    x, w, weight = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((2, 3, 5), (5, 7), (2, 3, 7)))
    found = jax.grad(lambda x, w: (linear(x, w) * weight).sum(), argnums=(0, 1))(x, w)
    expected = jax.grad(lambda x, w: ((x @ w) * weight).sum(), argnums=(0, 1))(x, w)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)
