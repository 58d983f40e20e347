"""Cleaning by A.4: each rule drops what it should, says so, and nothing else; cleaning twice changes nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_gen.sample import sample_tables
from data_gen.tables import Cleaned, clean_tables
from webleaper_jax.jsonl import load_records
from webleaper_jax.records import Cell, Table

NAMES = ("Ada", "Bo", "Cy", "Dee", "Eve", "Flo", "Gus", "Hal", "Ida", "Joe", "Kim", "Lou")


def table_of(columns: dict[str, list[str]], title: str = "Some list", **where: str) -> Table:
    rows = tuple(tuple(map(Cell, row)) for row in zip(*columns.values(), strict=True))
    return Table(page_title=title, url="https://x", columns=tuple(columns), rows=rows, **where)


def plain(n: int = 12, **more: list[str]) -> dict[str, list[str]]:
    """Columns of a table that nothing is wrong with."""
    return {
        "Name": [f"{NAMES[i % 12]} {i // 12}".removesuffix(" 0") for i in range(n)],
        "Town": [f"Town {chr(97 + i % 3)}" for i in range(n)],
        "Points": [str(100 - i * 3) for i in range(n)],
        **more,
    }


def reasons(cleaned: Cleaned) -> list[str]:
    return [f"{d.kind}: {d.reason}" for d in cleaned.drops]


def test_a_plain_table_passes_whole() -> None:
    table = table_of(plain())
    cleaned = clean_tables([table])
    assert cleaned.drops == []
    assert cleaned.tables == [table]


@pytest.mark.parametrize(
    ("header", "values", "reason"),
    [
        ("#", [str(i + 1) for i in range(12)], "serial"),
        ("No.", [str(i + 41) for i in range(12)], "serial"),
        ("", [f"{i + 1}." for i in range(12)], "serial"),
        ("Notes", ["won twice"] * 12, "notes"),
        ("Ref", ["x"] * 12, "reference"),
        ("Image", [""] * 12, "image"),
        ("Extra", [""] * 11 + ["x"], "empty"),
        ("Extra", ["—"] * 12, "empty"),
        ("", [f"word {n}" for n in NAMES], "no_header"),
        ("Plot", ["a long sentence that goes on and on " * 3] * 12, "prose"),
    ],
)
def test_columns_that_go(header: str, values: list[str], reason: str) -> None:
    cleaned = clean_tables([table_of({header: values, **plain()})])
    assert reasons(cleaned) == [f"column: {reason}"]
    assert cleaned.tables[0].columns == ("Name", "Town", "Points")


@pytest.mark.parametrize(
    ("header", "values"),
    [
        ("Rank", [str(i + 1) for i in range(12)]),  # a rank is a fact
        ("No.", ["7", "10", "9", "1", "99", "4", "3", "8", "11", "23", "5", "6"]),  # shirt numbers have gaps
        ("Extra", [""] * 10 + ["x", "y"]),
    ],
)
def test_columns_that_stay(header: str, values: list[str]) -> None:
    cleaned = clean_tables([table_of({header: values, **plain()})])
    assert cleaned.drops == []
    assert header in cleaned.tables[0].columns


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (("Total", "", "1,000"), "total"),
        (("", "Total:", "1,000"), "total"),
        (("Total (12 nations)", "", "99"), "total"),
        (("Name", "Town", "Points"), "repeated_header"),
        (("* Non-conference game", "* Non-conference game", "* Non-conference game"), "legend"),
        (("Bye", "Bye", "Bye"), "legend"),
        (("", "—", ""), "empty"),
        (("Defenders", "", ""), "one_cell"),
        (("Ada", "Town a", "100"), "duplicate_row"),
        (("a legend of its own",), "legend"),
    ],
)
def test_rows_that_go(row: tuple[str, ...], reason: str) -> None:
    good = table_of(plain())
    table = Table(
        page_title="x", url="https://x", columns=good.columns, rows=(*good.rows, tuple(Cell(text) for text in row))
    )
    cleaned = clean_tables([table])
    assert reasons(cleaned) == [f"row: {reason}"]
    assert cleaned.drops[0].what == "row 12"
    assert cleaned.tables[0].rows == good.rows


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (table_of(plain(9)), "too_few_rows"),
        (table_of(plain(201)), "too_many_rows"),
        (table_of({k: v for k, v in plain().items() if k != "Town"}), "too_few_columns"),
        (table_of(plain(12, **{f"C{i}": [f"w{j}" for j in NAMES] for i in range(18)})), "too_many_columns"),
        (Table(page_title="x", url="https://x", columns=tuple("ABC"), rows=((Cell("a"), Cell("b")),) * 12), "ragged"),
        (table_of(plain(12, NAME=[f"x{n}" for n in NAMES])), "duplicate_header"),
        (table_of(plain(12, C=list(NAMES), D=list(NAMES), E=list(NAMES[::-1]))), ""),
    ],
)  # fmt: skip
def test_tables_that_go(table: Table, reason: str) -> None:
    cleaned = clean_tables([table])
    assert reasons(cleaned) == ([f"table: {reason}"] if reason else [])
    assert len(cleaned.tables) == (0 if reason else 1)


def test_sizes_at_the_limits_stay_and_are_counted_after_cleaning() -> None:
    assert len(clean_tables([table_of(plain(10))]).tables) == 1
    assert len(clean_tables([table_of(plain(200))]).tables) == 1
    with_total = plain(10)
    with_total = {k: [*v, total] for (k, v), total in zip(with_total.items(), ("Total", "", "1"), strict=True)}
    assert len(clean_tables([table_of(with_total)]).tables) == 1
    nine = {k: [*v[:9], v[10]] for k, v in with_total.items()}
    assert reasons(clean_tables([table_of(nine)])) == ["row: total", "table: too_few_rows"]


def test_many_merged_cells() -> None:
    merged = plain(12, **{c: ["Regular season"] * 6 + list(NAMES[:6]) for c in ("A1", "A2", "A3")})
    assert reasons(clean_tables([table_of(merged)])) == ["table: merged_cells"]


def test_a_copy_goes_whatever_its_order_and_title() -> None:
    first = table_of(plain())
    order = [2, 0, 1]
    copy = Table(
        page_title="Another page",
        url="https://y",
        columns=tuple(first.columns[c] for c in order),
        rows=tuple(tuple(row[c] for c in order) for row in reversed(first.rows)),
    )
    cleaned = clean_tables([first, copy])
    assert [(d.id, d.what, d.reason) for d in cleaned.drops] == [(copy.id, "table", "duplicate_table")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Georgetown‡†", "Georgetown"), ("7*", "7"), ("Naipaul[1]", "Naipaul"), ("Naipaul [note 2]", "Naipaul"),
        ("*Ada", "Ada"), ("Syracuse#", "Syracuse"), ("C#", "C#"), ("—", ""), ("N/A", ""), ("a\xa0b\ufeff", "a b"),
        ("-5", "-5"), ("3–0", "3–0"), ("What?", "What?"), ("Tom & Co.", "Tom & Co."),
        ('"Likwit"', "Likwit"), ('"A" and "B"', '"A" and "B"'),
    ],
)  # fmt: skip
def test_cells_are_tidied(before: str, after: str) -> None:
    table = table_of(plain(12, Extra=[before, *[f"w{n}" for n in NAMES[1:]]]))
    assert clean_tables([table]).tables[0].rows[0][3].text == after


def test_opponents_lose_place_and_rank() -> None:
    texts = [
        "at #4 Georgia Tech",
        "#1 Virginia",
        "vs. Navy*",
        "Army",
        "at No. 9 UCLA",
        *[f"{n} State" for n in NAMES[5:]],
    ]
    table = table_of({"Opponent#": texts, **plain()})
    found = [row[0].text for row in clean_tables([table]).tables[0].rows[:5]]
    assert found == ["Georgia Tech", "Virginia", "Navy", "Army", "UCLA"]


def test_running_counts_go_from_names_but_years_stay() -> None:
    counted = [f"{n} Mills ({i})" for i, n in enumerate(NAMES)]
    dated = [f"{n} House ({1900 + i})" for i, n in enumerate(NAMES)]
    rows = clean_tables([table_of({"Winner": counted, "House": dated, **plain()})]).tables[0].rows
    assert (rows[3][0].text, rows[3][1].text) == ("Dee Mills", "Dee House (1903)")


def test_titles_become_unique_on_a_page() -> None:
    sections = ["Results > Men", "Results > Women", "Heats > Final", "Semi > Final", "Same", "Same"]
    tables = [
        table_of(plain(12 + i), "Games", section_title=section, source=f"s{i}") for i, section in enumerate(sections)
    ]
    titles = [t.title for t in clean_tables(tables).tables]
    assert titles == [
        "Games: Men", "Games: Women", "Games: Heats, Final", "Games: Semi, Final",
        "Games: Same (table 1)", "Games: Same (table 2)",
    ]  # fmt: skip


def test_cleaning_the_sample_twice_changes_nothing() -> None:
    first = clean_tables(load_records(sample_tables(), Table))
    second = clean_tables(first.tables)
    assert second.tables == first.tables
    assert second.drops == []
    assert len({t.title for t in first.tables}) == len(first.tables)


def test_every_row_and_column_is_kept_or_has_a_reason() -> None:
    raw = load_records(sample_tables(), Table)
    cleaned = clean_tables(raw)
    gone = {d.id for d in cleaned.drops if d.kind == "table"}
    assert len(cleaned.tables) + len(gone) == len(raw)
    by_source = {t.source: t for t in cleaned.tables}
    for table in raw:
        if table.id in gone:
            continue
        drops = [d for d in cleaned.drops if d.id == table.id]
        left = by_source[table.source]
        assert len(left.rows) + sum(d.kind == "row" for d in drops) == len(table.rows)
        assert len(left.columns) + sum(d.kind == "column" for d in drops) == len(table.columns)


words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=8) | st.sampled_from(
    [
        "",
        "—",
        "Total",
        "1",
        "2",
        "3",
        "7*",
        "Ada[1]",
        "at #4 Tech",
        "Ada (2)",
        "x" * 90,
        "Name",
        "Bye",
        "1990",
        '"7*"',
        "at *Navy",
        "@",
        "Bo (1) (2)",
    ]
)
headers = st.sampled_from(["Name", "#", "", "Notes", "Opponent", "Town", "Image", "A", "B", "C", "D"]) | words


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_cleaning_is_idempotent_and_accounts_for_everything(data: st.DataObject) -> None:
    width = data.draw(st.integers(3, 6))
    columns = tuple(data.draw(st.lists(headers, min_size=width, max_size=width)))
    filler = [tuple(Cell(f"{chr(97 + i)}{chr(97 + c)}") for c in range(width)) for i in range(10)]
    rows = data.draw(st.lists(st.lists(words, min_size=width, max_size=width), max_size=4))
    table = Table(
        page_title="x", url="https://x", columns=columns, rows=(*filler, *(tuple(map(Cell, r)) for r in rows))
    )
    cleaned = clean_tables([table])
    again = clean_tables(cleaned.tables)
    assert again.tables == cleaned.tables
    assert again.drops == []
    assert sum(cleaned.counts().values()) == len(cleaned.drops)
    if cleaned.tables:
        assert len(cleaned.tables[0].rows) + sum(d.kind == "row" for d in cleaned.drops) == len(table.rows)
    else:
        assert [d.kind for d in cleaned.drops].count("table") == 1
