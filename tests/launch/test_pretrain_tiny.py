"""Pre-training of the tiny base: what its text holds, that it repeats and goes on, what the shipped base was fed."""

import dataclasses
import itertools
import json
import re

import jax
import numpy as np
import pytest
from flax import nnx

from data_gen.sample import sample_tables
from data_gen.splits import split_of_family
from launch.pretrain_tiny import PHRASES, parse_stages, training_words
from tests.launch.test_launchers import assert_one_clear_line, run
from webleaper_jax.jsonl import DataError, load_records, write_records
from webleaper_jax.model.config import ModelConfig
from webleaper_jax.model.decoder import Decoder
from webleaper_jax.model.hf import load_checkpoint
from webleaper_jax.records import Table
from webleaper_jax.train.induction import plant_induction
from webleaper_jax.train.pretrain import PretrainConfig, Stage, make_batch, pretrain
from webleaper_jax.train.pretrain_copy import copy_batch
from webleaper_jax.train.pretrain_text import KINDS, SEPARATORS, TextMaker
from webleaper_jax.train.tiny_tokenizer import SPECIAL_TOKENS, save_tokenizer, tokenizer_text, train_tokenizer

TINY = PretrainConfig(
    stages=(Stage(64, 2, 3), Stage(96, 2, 3)), num_layers=2, num_heads=3, intermediate_size=64, warmup_steps=2
)


@pytest.fixture(scope="module")
def words():
    return training_words(sample_tables())[0]


@pytest.fixture(scope="module")
def tokenizer(words):
    return train_tokenizer(tokenizer_text(words.cells, words.columns + words.titles, PHRASES), 1024)


@pytest.fixture(scope="module")
def documents(words):
    """Two hundred contexts with six requests each: (context, pieces)."""
    maker = TextMaker(words, np.random.default_rng(7))
    found = []
    for _ in range(200):
        context, requests = maker.document(30)
        found.append((context, [piece for _ in range(6) for piece in next(requests)]))
    return found


def test_text_holds_no_marker_call_or_answer_form(documents):
    for context, pieces in documents:
        text = context + "".join(piece.text for piece in pieces)
        assert not [marker for marker in SPECIAL_TOKENS if marker in text]
        assert "<|" not in text
        assert not re.search(r'"arguments"|"queries"|"urls"|tool_call|<answer|\| ---', text)
    assert not [separator for separator in SEPARATORS if "|" in separator]


def test_answers_can_be_read_in_their_document(documents):
    seen = set()
    for context, pieces in documents:
        text = context
        for piece in pieces:
            if piece.kind:
                seen.add(piece.kind)
                for line in piece.text.removesuffix("end\n").splitlines():
                    if line.startswith("columns: "):
                        continue
                    first = re.split("|".join(map(re.escape, SEPARATORS)), line)[0]
                    assert first in text
            text += piece.text
    assert seen == set(KINDS)


def test_pages_give_the_whole_table_and_overlap_by_a_row_in_most_documents(words):
    maker = TextMaker(words, np.random.default_rng(3))
    overlaps = []
    for _ in range(300):
        maker.document(40)
        for table in maker._tables(40):
            pages = [page.splitlines()[2:] for page in maker._pages(table)]
            bodies = [lines[:-1] for lines in pages[:-1]] + pages[-1:]  # without `next:`
            rows = [maker.bar.join(row) for row in table.rows]
            shared = maker.overlap if min(map(len, bodies[:-1]), default=0) > 1 else 0
            if len(bodies) > 1:
                overlaps.append(shared)
                assert all(b[:shared] == a[len(a) - shared :] for a, b in itertools.pairwise(bodies))
            assert bodies[0] + [row for body in bodies[1:] for row in body[shared:]] == rows
    assert 0.4 < np.mean(overlaps) < 0.9


def test_only_training_families_are_read(tmp_path):
    tables = load_records(sample_tables(), Table)
    marked = []
    for table in tables:
        secret = split_of_family(table.family) != "train"
        title = f"Zqx {table.page_title}" if secret else table.page_title
        columns = tuple(f"Zqx {c}" for c in table.columns) if secret else table.columns
        marked.append(Table(page_title=title, url=table.url, columns=columns, rows=table.rows, family=table.family))
    assert sum("Zqx" in table.title for table in marked) > 50
    write_records(tmp_path / "t.jsonl", marked)
    words, families = training_words(tmp_path / "t.jsonl")
    assert not [text for text in (*words.columns, *words.titles) if "Zqx" in text]
    assert {split_of_family(family) for family in families} == {"train"}
    train_rows = sum(len(t.rows) for t in tables if split_of_family(t.family) == "train")
    assert len(words.cells) <= train_rows * max(len(t.columns) for t in tables)


def test_tokens_do_not_depend_on_where_a_name_stands(tokenizer, words):
    names = [name for name in words.cells if re.fullmatch(r"\w[\w' .,-]*\w", name)][:200]
    assert len(names) == 200
    for name in names:
        alone = tokenizer.encode(name).ids
        for before, after in (("\n", " | 1"), ("1 | ", "\n"), ('"', '"'), ("x: ", ", y"), ("# ", " (page 1 of 2)")):
            ids = tokenizer.encode(before + name + after).ids
            assert any(ids[i : i + len(alone)] == alone for i in range(len(ids))), (before, name)


@pytest.mark.parametrize(
    "text", ['a |  | "b" | c\n\n', "naïve — 北京 🙂\t\r\n  x", '{"a": ["b", "c"]}', "<think>x</think>"]
)
def test_tokenizer_loses_nothing(text, tokenizer):
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_special_tokens_are_single_and_digit_pairs_too(tokenizer):
    assert [tokenizer.encode(token).ids for token in SPECIAL_TOKENS] == [[i] for i in range(len(SPECIAL_TOKENS))]
    assert all(len(tokenizer.encode(f"{pair:02d}").ids) == 1 for pair in range(100))


def test_transformers_reads_the_tokenizer(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    save_tokenizer(tokenizer, tmp_path)
    text = "<|im_start|>user\nGo | 1987<|im_end|>"
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"] == tokenizer.encode(text).ids


def test_copied_tokens_follow_from_those_before():
    tokens, known = copy_batch(np.random.default_rng(0), 20, 200, 1024)
    for row, marks in zip(tokens, known, strict=True):
        pairs = set()
        for at in range(1, len(row)):
            if marks[at - 1]:
                assert (row[at - 1], row[at]) in pairs
            pairs.add((row[at - 1], row[at]))
    assert 0.3 < known.mean() < 0.9


def test_the_planted_circuit_copies_before_any_training():
    config = ModelConfig(
        vocab_size=1024, hidden_size=192, intermediate_size=64, num_layers=2, num_heads=3, num_kv_heads=3, head_dim=64,
        rope_theta=1e6, tie_embeddings=True,
    )  # fmt: skip
    decoder = Decoder(config, rngs=nnx.Rngs(0))
    with pytest.raises(DataError, match="three heads"):
        plant_induction(Decoder(dataclasses.replace(config, num_heads=2, num_kv_heads=2), rngs=nnx.Rngs(0)), 0)
    tokens, known = copy_batch(np.random.default_rng(1), 4, 256, 1024)
    positions = np.broadcast_to(np.arange(256), (4, 256))

    def accuracy():
        hidden = decoder(tokens[:, :-1], positions, np.zeros_like(positions))
        return float((np.asarray(decoder.logits(hidden)).argmax(-1) == tokens[:, 1:])[known].mean())

    assert accuracy() < 0.05
    plant_induction(decoder, 0)
    assert accuracy() > 0.95


def test_batches_depend_on_seed_and_step_alone(words, tokenizer):
    first, again = (make_batch(TINY, words, tokenizer, 4) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert first.tokens.shape == (2, 97)
    others = [make_batch(TINY, words, tokenizer, 5), make_batch(TINY, words, tokenizer, 4, held_out=True)]
    assert not any(np.array_equal(first.tokens, other.tokens) for other in others)


def test_an_interrupted_run_gives_the_same_base(words, tokenizer, tmp_path):
    quiet = {"say": lambda _: None, "eval_steps": 1000, "log_steps": 1000}
    pretrain(TINY, words, tokenizer, tmp_path / "whole", **quiet)
    pretrain(TINY, words, tokenizer, tmp_path / "halves", stop_after=2, **quiet)
    lines: list[str] = []
    pretrain(TINY, words, tokenizer, tmp_path / "halves", notes={"a": "b"}, **quiet | {"say": lines.append})
    assert "step 2 of 6" in lines[0]
    whole, halves = (tmp_path / name / "base" for name in ("whole", "halves"))
    assert (whole / "model.safetensors").read_bytes() == (halves / "model.safetensors").read_bytes()
    notes = json.loads((halves / "metadata.json").read_text())
    assert (notes["step"], notes["tokens"], notes["a"]) == (6, 960, "b")
    other = PretrainConfig(**{**vars(TINY), "seed": 1})
    with pytest.raises(DataError, match="settings"):
        pretrain(other, words, tokenizer, tmp_path / "halves", **quiet)


def test_settings_that_cannot_work_are_one_clear_line(words, tokenizer, tmp_path, repository):
    for size in (100, 10**6):
        with pytest.raises(DataError, match=f"not of {size}"):
            train_tokenizer(["a few words"], size)
    quiet = {"say": lambda _: None, "eval_steps": 1000, "log_steps": 1}
    with pytest.raises(DataError, match="lower the learning rates"):
        pretrain(dataclasses.replace(TINY, learning_rate=1e30), words, tokenizer, tmp_path / "diverged", **quiet)
    done = run(repository, "launch.pretrain_tiny", f"--workdir={tmp_path / 'one'}", "--layers=1", "--stages=64x1x1")
    assert_one_clear_line(done, "two layers")
    (tmp_path / "file").write_text("x")
    done = run(repository, "launch.pretrain_tiny", f"--workdir={tmp_path / 'file'}", "--stages=64x1x1")
    assert_one_clear_line(done, "--workdir", "is a file")


def test_no_stage_at_all_is_refused():
    with pytest.raises(DataError, match="--stages"):
        parse_stages([])


@pytest.mark.parametrize("text", ["512x8", "axbxc", "512x0x3", ""])
def test_bad_stages_are_refused(text):
    with pytest.raises(DataError, match="--stages"):
        parse_stages([text])


def test_the_shipped_base_never_saw_the_other_families(tokenizer):
    base = sample_tables().parent / "tiny_base"
    metadata = json.loads((base / "metadata.json").read_text())
    assert {split_of_family(family) for family in metadata["families"]} == {"train"}
    assert json.loads((base / "tokenizer.json").read_text()) == json.loads(tokenizer.to_str())
    assert metadata["held_out_accuracy"]["answers"] > 0.8
    assert sum(path.stat().st_size for path in base.iterdir()) < 8 * 2**20
    assert load_checkpoint(base).config.vocab_size == tokenizer.get_vocab_size()
