import itertools
import random
import time

import msgspec
import pytest

from webleaper_jax.agent.corpus import CorpusConfig, build_pages, shares, unique_titles
from webleaper_jax.agent.tools import ToolLimits, Tools
from webleaper_jax.agent.web import OfflineWeb, part_url, tokens
from webleaper_jax.jsonl import DataError, load_records
from webleaper_jax.records import Cell, Table, Target, Task
from webleaper_jax.scoring.observations import TargetFinder

CONFIG = CorpusConfig(rows_per_part=6, chars_per_part=600)


@pytest.fixture(scope="module")
def tables(make_table):
    return [
        make_table("List of dams in Norway", 24),
        make_table("List of dams in Sweden", 11, first=100),
        make_table("Dams", 12, first=200, section_title="Oslo"),
        make_table("Dams", 12, first=300, section_title="Oslo"),
        make_table("Dams", 10, first=20, caption="Tall ones"),
    ]


@pytest.fixture(scope="module")
def pages(tables):
    return {page.url: page for page in build_pages(tables, CONFIG)}


@pytest.fixture(scope="module")
def tools(tables, tmp_path_factory):
    web = OfflineWeb.build(build_pages(tables, CONFIG), tmp_path_factory.mktemp("corpus") / "web")
    return Tools(web, ToolLimits())


def table_task(table, title, rows=None):
    """All cells of a table (or of some of its rows) as targets."""
    targets = []
    for row in table.rows[slice(rows)]:
        name = row[0].text
        targets.append(Target(form=name, type="work", layer=2, owner=title, relation="name", final=True))
        for column, cell in zip(table.columns[1:], row[1:], strict=True):
            targets.append(Target(form=cell.text, type="text", layer=3, owner=name, relation=column, final=True))
    return Task(question=title, variant="basic", targets=tuple(targets))


def test_pages_do_not_depend_on_the_order_of_tables(tables, pages):
    for seed in range(3):
        shuffled = random.Random(seed).sample(tables, len(tables))
        assert {page.url: page for page in build_pages(shuffled, CONFIG)} == pages


def test_every_row_stands_once_on_its_tables_page_and_parts_are_bounded(tables, pages):
    titles = unique_titles(tables)
    for table in tables:
        page = next(p for p in pages.values() if p.kind == "table" and p.title == titles[table.id])
        lines = [part.split("\n") for part in page.parts]
        rows = [" | ".join(cell.text for cell in row) for row in table.rows]
        assert [line for part in lines for line in part if line in rows] == rows
        for number, part in enumerate(lines, start=1):
            assert part[0] == f"# {page.title} (page {number} of {len(lines)})"
            assert part[1] == " | ".join(table.columns)
            assert sum(line in rows for line in part) <= min(6, 0.34 * len(rows))
            assert len("\n".join(part)) < CONFIG.chars_per_part + 60
            assert (part[-1] == f"next: {page.url}?p={number + 1}") == (number < len(lines))


@pytest.mark.parametrize("overlap", [0, 1, 2])
def test_parts_begin_with_the_last_rows_of_the_part_before(tables, overlap):
    config = msgspec.structs.replace(CONFIG, overlap=overlap)
    titles = unique_titles(tables)
    pages = {page.title: page for page in build_pages(tables, config) if page.kind == "table"}
    for table in tables:
        rows = [" | ".join(cell.text for cell in row) for row in table.rows]
        shown = [[line for line in part.split("\n") if line in rows] for part in pages[titles[table.id]].parts]
        kept = min(overlap, max(1, min(6, int(0.34 * len(rows)))) - 1)
        read = shown[0]
        for before, part in itertools.pairwise(shown):
            assert part[:kept] == before[len(before) - kept :]
            assert len(part) > kept
            read = read + part[kept:]
        assert read == rows
        assert all(len(part) <= max(1, 0.34 * len(rows)) for part in shown)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("rows_per_part", [0, -1]),
        ("overlap", [-1]),
        ("chars_per_part", [0, -5]),
        ("distractors", [-1]),
        ("table_share", [0.0, -0.1, 1.01, float("nan")]),
        ("entity_share", [0.0, -0.1, 1.01, float("nan")]),
    ],
)
def test_a_config_out_of_range_is_refused_by_name(tables, field, values):
    for value in values:
        with pytest.raises(DataError, match=f"field `{field}` is {value}; give"):
            build_pages(tables, msgspec.structs.replace(CONFIG, **{field: value}))
    assert build_pages(tables, CorpusConfig(rows_per_part=1, table_share=1.0, entity_share=1.0, distractors=0))


def test_entity_pages_say_what_all_tables_say_and_never_most_of_one(tables, pages):
    entities = {page.title: page for page in pages.values() if page.kind == "entity"}
    assert {f"River {n}" for n in range(5)} <= set(entities)
    river = entities["River 3"]
    text = "\n".join(river.parts)
    for table in tables:
        rows = [row for row in table.rows if row[1].text == "River 3"]
        assert all(f"Name: {row[0].text} | River: River 3 | Year: {row[2].text}" in text for row in rows)
        for part in river.parts:
            assert sum(row[0].text in part for row in table.rows) <= max(1, 0.3 * len(table.rows))
    shared = entities["Dam U20"]
    assert "List of dams in Norway | Name: Dam U20" in shared.parts[0]
    assert "Dams: Tall ones | Name: Dam U20" in shared.parts[0]
    assert shared.parts[0].startswith("# Dam U20\n")


def test_key_cells_without_links_have_pages_too(make_table):
    table = make_table("Plain", 12)
    rows = tuple(tuple(Cell(cell.text) for cell in row) for row in table.rows)
    pages = build_pages(
        [make_table("Plain", 12).__class__(page_title="Plain", url="u", columns=table.columns, rows=rows)]
    )
    assert {page.title for page in pages if page.kind == "entity"} == {row[0].text for row in rows}


def test_snippets_and_distractors_show_no_cells(tables, pages):
    cells = {cell.text for table in tables for row in table.rows for cell in row}
    for page in pages.values():
        assert not any(cell in page.snippet for cell in cells)
        if page.kind == "distractor":
            assert not any(cell in text for cell in cells for text in (page.title, *page.parts))
    assert sum(page.kind == "distractor" for page in pages.values()) == len(tables)


def test_years_are_those_of_all_rows(pages, tables):
    page = next(p for p in pages.values() if p.title == "List of dams in Norway" and p.kind == "table")
    assert page.years == tuple(range(1900, 1924))


def test_titles_are_unique_to_a_search_and_keep_to_the_tables_own(tables):
    titles = unique_titles(tables)
    assert sorted(titles) == sorted(table.id for table in tables)
    assert len({" ".join(tokens(title)) for title in titles.values()}) == len(tables)
    assert titles[tables[0].id] == tables[0].title
    assert titles == unique_titles(tables[::-1])
    assert sorted(titles[table.id] for table in tables[2:4]) == ["Dams: Oslo", "Dams: Oslo (2)"]
    with pytest.raises(ValueError, match="two tables have the id"):
        unique_titles([tables[0], tables[0]])


def test_a_number_added_to_a_title_takes_no_other_tables_title(make_table):
    tables = [make_table("Dams", 10, first=n) for n in (0, 10, 20)] + [
        make_table("Dams (2)", 10),
        make_table("dams 3!", 10),
    ]
    titles = unique_titles(tables)
    assert titles[tables[3].id] == "Dams (2)"
    assert titles[tables[4].id] == "dams 3!"
    assert len({" ".join(tokens(title)) for title in titles.values()}) == 5
    sections = [make_table("A", 10, caption="c", section_title=s) for s in ("x", "y")]
    assert set(unique_titles(sections).values()) == {
        "A: c",
        "A: c, " + sorted(sections, key=lambda t: t.id)[1].section_title,
    }


def test_cells_cannot_break_lines_cells_or_headings(make_table):
    table = make_table("Odd", 10)
    rows = ((Cell("# a | b\nc"), Cell("x"), Cell(" 1  9 "), Cell("")), *table.rows[1:])
    odd = table.__class__(page_title="O|d\nd", url="u", columns=("# ", *table.columns[1:]), rows=rows)
    pages = build_pages([odd])
    text = next(page for page in pages if page.kind == "table").parts[0]
    assert text.split("\n")[:3] == ["# O/d d (page 1 of 4)", "#| River | Year | Height (m)", "#a / b c | x | 1 9 | "]
    for page in pages:
        for part in page.parts:
            assert [line.startswith("# ") for line in part.split("\n")].count(True) == 1


def test_a_title_query_finds_its_table_then_its_distractor_or_siblings(tables, tools):
    titles = unique_titles(tables)
    for table in tables:
        hits = tools.web.search(titles[table.id], None, 3)
        assert (hits[0].title, hits[0].url[0]) == (titles[table.id], "w")
        assert all(hit.url[0] in "wd" for hit in hits[1:])


@pytest.mark.parametrize("rows", [3, 5, 12, None])
def test_shares_equal_those_of_every_part_read(tables, tools, rows):
    titles = unique_titles(tables)
    for table in tables[:3]:
        task = table_task(table, titles[table.id], rows)
        finder = TargetFinder(task)
        texts = [part for page in tools.web.pages.values() for part in page.parts]
        texts.append(tools.run("search", {"queries": [titles[table.id]]}).text)
        brute = max(len(finder.find(text)) for text in texts) / len(task.targets)
        assert shares(task, tools, [titles[table.id]]) == brute
        assert brute > 0.9 if rows == 3 else True


@pytest.mark.parametrize("max_urls", [2, 3])
def test_shares_bound_what_visits_to_several_pages_show(tables, tools, max_urls):
    """No two (or three) of the richest parts show more together, and the bound is no worse than their sum."""
    titles = unique_titles(tables)
    table = tables[0]
    for rows in (12, None):
        task = table_task(table, titles[table.id], rows)
        finder = TargetFinder(task)
        several = Tools(tools.web, ToolLimits(max_urls=max_urls, max_chars=10**6))
        addresses = [part_url(page.url, n) for page in tools.web.pages.values() for n in range(1, len(page.parts) + 1)]
        single = {url: len(finder.find(several.run("visit", {"urls": [url]}).text)) for url in addresses}
        richest = sorted((url for url in addresses if single[url]), key=lambda url: -single[url])
        bound = shares(task, several, [titles[table.id]])
        for urls in itertools.combinations(richest[:12], max_urls):
            shown = len(finder.find(several.run("visit", {"urls": list(urls)}).text))
            assert shown / len(task.targets) <= bound
        assert bound == min(1.0, sum(single[url] for url in richest[:max_urls]) / len(task.targets))
        assert bound > shares(task, tools, [titles[table.id]])


def test_no_observation_shows_more_than_two_fifths_of_a_table(tables, tools):
    titles = unique_titles(tables)
    for table in tables:
        assert 0 < shares(table_task(table, titles[table.id]), tools, [titles[table.id]]) <= 0.4


def test_shares_need_pages_that_can_be_enumerated(tables, tools):
    class Live:
        fingerprint = "live"

    task = table_task(tables[0], "t")
    with pytest.raises(TypeError, match="offline"):
        shares(task, Tools(Live()), [])
    legacy = Task(question="q", variant="legacy", origin="legacy", gold="x")
    assert shares(legacy, tools, ["List of dams in Norway"]) == 0.0


def test_addresses_of_parts():
    assert [part_url("w/1", n) for n in (1, 2)] == ["w/1", "w/1?p=2"]


def test_in_the_bundled_samples_web_each_title_finds_its_table_first_and_fast(repository, tmp_path):
    tables = load_records(repository / "data_gen" / "sample" / "tables.jsonl.gz", Table)
    web = OfflineWeb.build(build_pages(tables, CONFIG), tmp_path / "web")
    titles = unique_titles(tables)
    started = time.process_time()
    first = {title: web.search(title, None, 3) for title in titles.values()}
    assert (time.process_time() - started) / len(first) < 0.005
    assert [hits[0].title for hits in first.values()] == list(first)
    assert all(hits[0].url.startswith("w/") for hits in first.values())
    assert not [page.url for page in web.pages.values() for part in page.parts if "\n# " in part]
