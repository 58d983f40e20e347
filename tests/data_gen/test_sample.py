"""The bundled sample: its size, that it is whole and plain, and that its tables really share entities."""

import gzip
import itertools
from collections import Counter

import pytest

from data_gen.sample import choose, sample_tables
from data_gen.sample.families import FAMILIES
from data_gen.tables import Cleaned, clean_tables
from data_gen.trees import build_trees
from webleaper_jax.jsonl import load_records
from webleaper_jax.records import Table, Tree


@pytest.fixture(scope="module")
def tables() -> list[Table]:
    return load_records(sample_tables(), Table)


@pytest.fixture(scope="module")
def cleaned(tables: list[Table]) -> Cleaned:
    return clean_tables(tables)


@pytest.fixture(scope="module")
def trees(cleaned: Cleaned) -> list[Tree]:
    return build_trees(cleaned.tables)[0]


def sharing_pairs(trees: list[Tree], least: int, most_members: int = 10**6) -> set[tuple[str, str]]:
    """Pairs of tables with trees of one type and domain that share `least` members or more (the brute-force way)."""
    keys = [(t, {m.entity for m in t.members}) for t in trees if len(t.members) <= most_members]
    return {
        tuple(sorted((a.table_id, b.table_id)))
        for (a, x), (b, y) in itertools.combinations(keys, 2)
        if a.table_id != b.table_id and a.key.triple == b.key.triple and len(x & y) >= least
    }


def test_size(tables: list[Table], trees: list[Tree]) -> None:
    assert len(tables) >= 150
    assert len({t.family for t in tables}) >= 25
    assert len({t.family for t in trees}) >= 100
    assert sample_tables().stat().st_size < 2_000_000
    small = [t for t in tables if len(t.rows) <= 20 and len(t.columns) <= 6]
    assert len(small) >= 300, "the quickstart lives on small tables"


def test_every_table_says_where_it_comes_from(tables: list[Table]) -> None:
    for table in tables:
        assert table.url.startswith("https://")
        assert all((table.page_title, table.source, table.family))
    licence = sample_tables().with_name("README.md").read_text(encoding="utf-8")
    assert "CC BY-SA" in licence
    assert all(f"`{t.source.split('-')[0]}-" in licence for t in tables)


def test_holds_facts_not_prose(tables: list[Table]) -> None:
    assert max(len(cell.text) for t in tables for row in t.rows for cell in row) <= 120
    assert all(len(row) == len(t.columns) for t in tables for row in t.rows)
    assert not any("&amp;" in cell.text or "\n" in cell.text for t in tables for row in t.rows for cell in row)


def test_no_table_was_cut(tables: list[Table]) -> None:
    """OTT-QA cut long tables at 20 rows, so a table of exactly 20 rows from there cannot be trusted."""
    assert not [t.title for t in tables if t.source.startswith("ott-") and len(t.rows) >= 20]


def test_enough_pairs_share_keys(trees: list[Tree]) -> None:
    family = {t.table_id: t.family for t in trees}
    pairs = sharing_pairs(trees, 3)
    inside = {pair for pair in pairs if family[pair[0]] == family[pair[1]]}
    print(f"pairs that share 3 keys or more: {len(pairs)}, {len(inside)} of them inside a family")
    assert len(inside) >= 40
    small = Counter(family[a] for a, b in sharing_pairs(trees, 2, most_members=16) if family[a] == family[b])
    print(f"pairs of small trees that share 2 keys or more: {small.most_common()}")
    assert len(small) >= 12


def test_nobel_and_booker_share_four_authors(trees: list[Tree]) -> None:
    nobel = next(t for t in trees if t.title == "Nobel Prize laureates: Literature")
    booker = next(t for t in trees if "Booker" in t.title and t.key.type == "person")
    assert nobel.key.triple == booker.key.triple == ("name", "person", "writer")
    both = {m.entity for m in nobel.members} & {m.entity for m in booker.members}
    assert both == {"V. S. Naipaul", "William Golding", "J. M. Coetzee", "Nadine Gordimer"}
    assert {r.triple for r in nobel.relations} & {r.triple for r in booker.relations} == {("year", "year", "")}


def test_families_share_columns(tables: list[Table], cleaned: Cleaned, trees: list[Tree]) -> None:
    families: dict[str, set[str]] = {}
    for tree in trees:
        for relation in tree.relations:
            families.setdefault(relation.name, set()).add(tree.family)
    assert sum(len(f) >= 10 for f in families.values()) >= 8


def test_basic_tasks_can_be_large_enough(trees: list[Tree]) -> None:
    cells = sorted(sum(1 + len(m.values) for m in t.members) for t in trees)
    assert cells[len(cells) // 2] >= 40


def test_families_are_used_and_named_plainly() -> None:
    slugs = [family for family, _ in FAMILIES]
    assert all(slug.isascii() and slug == slug.lower() and " " not in slug for slug in slugs)


@pytest.mark.shared
def test_sample_is_what_its_builder_makes(shared, tmp_path) -> None:
    assert choose.main([str(shared / "data"), str(tmp_path / "again.jsonl.gz")]) == 0
    again, bundled = (gzip.decompress(p.read_bytes()) for p in (tmp_path / "again.jsonl.gz", sample_tables()))
    assert again == bundled


def test_builder_says_what_is_missing(tmp_path, capsys) -> None:
    assert choose.main([str(tmp_path)]) == 1
    assert "tables.jsonl.gz: no such file" in capsys.readouterr().err
