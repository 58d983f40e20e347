"""Splits: by family, deterministic, balanced; twins across splits are found."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_gen.sample import sample_tables
from data_gen.splits import (
    SHARES,
    SPLITS,
    assign_families,
    family_of,
    find_twins,
    format_splits,
    near_identical,
    read_splits,
    sample_splits,
    split_of_family,
)
from webleaper_jax.jsonl import DataError, read_records
from webleaper_jax.records import Cell, Table


def table(page, rows, family=""):
    width = len(rows[0])
    cells = tuple(tuple(Cell(text) for text in row) for row in rows)
    return Table(page_title=page, url="u", columns=tuple("abcdefgh"[:width]), rows=cells, family=family)


def test_every_family_of_the_sample_is_listed_and_twelve_are_held_out():
    families = {family_of(t) for t in read_records(sample_tables(), Table)}
    assert families == set(sample_splits())
    assert Counter(sample_splits().values())["heldout"] >= 12
    assert set(sample_splits().values()) == set(SPLITS)


def test_unknown_families_fall_by_hash_near_the_shares():
    counts = Counter(split_of_family(f"family {i}", listed={}) for i in range(4000))
    for split, share in SHARES.items():
        assert abs(counts[split] / 4000 - share) < 0.03


@given(st.dictionaries(st.text(min_size=1).filter(str.isprintable), st.sampled_from(SPLITS), max_size=12))
def test_files_read_back_what_was_written(splits):
    import pathlib
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "splits.toml"
        path.write_text(format_splits(splits), encoding="utf-8")
        assert read_splits(path) == splits


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train = [", "TOML"),
        ('tests = ["a"]', "tests"),
        ('train = "a"', "train"),
        ('train = [["a"]]', r"field `train`: \['a'\] is no family"),
        ("rl = [1]", "field `rl`: 1 is no family"),
        ("rl = [{}]", "field `rl`: {} is no family"),
        ('train = ["a"]\nheldout = ["a"]', "'a' is in train already"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path, text, message):
    path = tmp_path / "splits.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_splits(path)
    with pytest.raises(DataError, match="no such file"):
        read_splits(tmp_path / "absent.toml")


def test_assignment_balances_families_tables_and_pairs():
    tables = {(f"f{i}",): 1 + i % 5 for i in range(40)}
    pairs = {(f"f{i}",): 2 for i in range(0, 40, 2)} | {(f"f{i}", f"f{i + 1}"): 1 for i in range(0, 38, 4)}
    settings = {"seed": 3, "restarts": 2, "proposals": 1500}
    splits = assign_families([tables, pairs], **settings)
    assert splits == assign_families([tables, pairs], **settings)
    assert Counter(splits.values())["heldout"] >= 12
    together = [families for families in pairs if len({splits[f] for f in families}) == 1]
    assert {splits[families[0]] for families in together} == set(SPLITS)
    for split in SPLITS:
        share = sum(n for (f,), n in tables.items() if splits[f] == split) / sum(tables.values())
        assert abs(share - SHARES[split]) < 0.08
    with pytest.raises(ValueError, match="too few"):
        assign_families([{("a",): 1}])


ROWS = [(f"name {i}", f"place {i % 3}", str(1900 + i), f"note {i}") for i in range(12)]


def test_twins_are_found_with_columns_dropped_and_rows_shuffled():
    first = table("First", ROWS, "one")
    twin = table("Twin", [(y, n, p) for n, p, y, _ in reversed(ROWS)], "two")
    other = table("Other", [(f"else {i}", f"place {i % 3}", str(1900 + i)) for i in range(12)], "three")
    assert [(a, b) for a, b, _ in near_identical([first, twin, other], [])] == [tuple(sorted((first.id, twin.id)))]

    split_of = {first.id: "heldout", twin.id: "train", other.id: "train"}
    (twins,) = find_twins([first, twin, other], [], split_of)
    assert (twins.dropped, twins.kept) == (twin.id, first.id)
    split_of[twin.id] = "heldout"
    assert find_twins([first, twin, other], [], split_of) == []
