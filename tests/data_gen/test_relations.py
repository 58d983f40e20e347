"""Headers to relation names, values to types, titles to domains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_gen.relations import (
    TYPES,
    column_relations,
    is_country,
    load_synonyms,
    looks_like_person,
    normalize_header,
    value_type,
)
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Cell, Table


def table_of(columns: dict[str, list[str]], title: str = "Some list", section: str = "") -> Table:
    rows = tuple(tuple(map(Cell, row)) for row in zip(*columns.values(), strict=True))
    return Table(page_title=title, section_title=section, url="https://x", columns=tuple(columns), rows=rows)


@pytest.mark.parametrize(
    ("headers", "values", "name"),
    [
        (["Nation", "Country", "Nationality", "NOC", "Country:"], ["France", "Kenya", "Soviet Union"], "country"),
        (["Player", "Athlete", "Driver", "Rider", "Players"], ["Ada King", "Bo Li", "Cy Young"], "athlete"),
        (["Film", "Title", "Movie"], ["Alien", "Heat", "Ran"], "title"),
        (["Stadium", "Venue", "Ground", "Arena", "Home ground"], ["Old Park", "New Park", "Dell"], "stadium"),
        (["Director", "Directors", "Director (s)", "Directed by"], ["Ada King", "Bo Li", "Cy Young"], "director"),
        (["Runner-up", "Runners-up", "Silver"], ["Ada King", "Bo Li", "Cy Young"], "runner-up"),
        (["Capacity", "Capacity (seats)", "Capacity[1]", "capacity"], ["1,000", "25 000", "300"], "capacity"),
        (["Position in 1995", "Position in 2012", "2011 season"], ["1st", "2nd", "3rd"], "previous position"),
        (["Authors", "Writers", "Writer (s)"], ["Ada King", "Bo Li", "Cy Young"], "author"),
    ],
)
def test_synonyms_become_one_relation(headers: list[str], values: list[str], name: str) -> None:
    relations = [column_relations(table_of({header: values}))[0] for header in headers]
    assert {r.name for r in relations} == {name}
    assert len({r.triple for r in relations}) == 1


def test_values_decide_what_a_header_means() -> None:
    by_values = {
        "Place": {"rank": ["1", "2", "3"], "text": ["Paris", "Rome", "Kiev"]},
        "Gold": {"number": ["7", "12"], "person": ["Ada King", "Bo Li"], "country": ["Italy", "Chile"]},
        "Year": {"year": ["1990", "1991", "c. 1992"], "range": ["1990–91", "1991-1992", "1992–"]},
        "Winners": {"number": ["3", "2", "1"], "person": ["Ada King", "Bo Li", "Cy Young"]},
    }  # fmt: skip
    for header, cases in by_values.items():
        for type_, values in cases.items():
            assert column_relations(table_of({header: values}))[0].type == type_, (header, values)


def test_a_count_and_a_winner_are_two_relations() -> None:
    count = column_relations(table_of({"Gold": ["7", "12", "0"]}))[0]
    winner = column_relations(table_of({"Gold": ["Ada King", "Bo Li", "Cy Young"]}))[0]
    assert (count.name, winner.name) == ("gold", "winner")


@pytest.mark.parametrize(
    ("texts", "type_"),
    [
        (["1901", "1999", "2014"], "year"),
        (["1,901", "19", "3.5", "−5", "$1.2 million", "12%", ".482"], "number"),
        (["3 May 1991", "May 3, 1991", "1991-05-03", "Jan 8-9"], "date"),
        (["3–0", "3 - 0", "W 24–17", "2−1 (a.e.t.)"], "score"),
        (["1st", "2nd", "T3", "23rd"], "rank"),
        (["1990–1995", "2004–", "1990-91"], "range"),
        (["a", "b", "1991"], "text"),
        ([], "text"),
    ],
)
def test_value_types(texts: list[str], type_: str) -> None:
    assert value_type(texts) == type_
    assert value_type([*texts, "", " "]) == type_, "empty cells say nothing"


def test_domains_are_of_the_entities_not_of_the_topic() -> None:
    people = ["Ada King", "Bo Li", "Cy Young"]
    nobel = table_of({"Laureate": people}, "Nobel Prize laureates: Literature")
    booker = table_of({"Author": people}, "Booker Prize")
    physics = table_of({"Laureate": people}, "Nobel Prize laureates: Physics")
    medals = table_of({"Name": people}, "France at the 2002 Winter Olympics", "Medalists")
    assert [column_relations(t)[0].domain for t in (nobel, booker, physics, medals)] == [
        "writer", "writer", "scientist", "athlete",
    ]  # fmt: skip


def test_names_are_unique_within_a_table() -> None:
    values = ["1,000", "2,000", "3,000"]
    table = table_of(
        {"Population 2001": values, "Population 2011": values, "City": ["A", "B", "C"], "Town": ["A", "B", "C"]}
    )
    names = [r.name for r in column_relations(table)]
    assert names == ["population 2001", "population 2011", "city", "town"]


@given(st.lists(st.text(max_size=12), min_size=1, max_size=6, unique=True), st.data())
def test_any_table_has_relations(headers: list[str], data: st.DataObject) -> None:
    cells = st.lists(st.text(max_size=12), min_size=len(headers), max_size=len(headers))
    rows = data.draw(st.lists(cells, max_size=5))
    table = Table(
        page_title="x", url="https://x", columns=tuple(headers), rows=tuple(tuple(map(Cell, row)) for row in rows)
    )
    relations = column_relations(table)
    assert [r.column for r in relations] == list(range(len(headers)))
    assert len({r.name for r in relations}) == len(headers)
    assert all(r.type in TYPES - {"auto"} and r.name for r in relations)


@given(st.text(max_size=30))
def test_normalizing_a_header_twice_changes_nothing(header: str) -> None:
    once = normalize_header(header)
    assert normalize_header(once) == once


def test_countries_by_name_code_and_history() -> None:
    for text in ("France", "Côte d'Ivoire", "Cote d'Ivoire", "Soviet Union", "USA", "GER", "Great Britain", "Viet Nam"):
        assert is_country(text), text
    for text in ("Paris", "Real Madrid", "Georgia Tech", ""):
        assert not is_country(text), text


def test_shapes_of_names() -> None:
    for text in ("V. S. Naipaul", "Ludwig van Beethoven", "Gabriel García Márquez", "Jean-Claude Killy"):
        assert looks_like_person(text), text
    for text in ("Rice Stadium", "FC Minsk", "1990", "Pelé", "Goal of the year", "A/B Team", "Round 1"):
        assert not looks_like_person(text), text


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("relation = [", "no valid TOML"),
        ('relation = [{name="a", type="colour", headers=["a"]}]', "'colour'"),
        (
            'relation = [{name="a", type="text", headers=["x"]}, {name="b", type="text", headers=["x"]}]',
            "'x' stands under",
        ),
        ("relation = 3", "`relation` is 3"),
        ("relation = [3]", "`relation`, entry 1"),
        ('relation = [{name="a", type="text", headers=["a"]}, {name="b", type="text"}]', "entry 2 .*`headers`"),
        ('relation = [{name="a", type="text", headers="a"}]', r"entry 1 .*`\$.headers`"),
        ('relation = [{name="a", type=1, headers=["a"]}]', r"entry 1 .*`\$.type`"),
        ('relation = [{name="a", type="text", headers=["a"], domains="b"}]', "entry 1 .*`domains`"),
        ('domain = [{when="person", domain="a", pattern="("}]', r"`domain`, pattern '\('"),
        ('listed = [{type="person", domain="a", pattern="[z-a]"}]', r"`listed`, pattern '\[z-a\]'"),
        ('domain = [{when="person", domain="a"}]', "`domain`, entry 1 .*`pattern`"),
        ('listed = [{domain="a", pattern="b"}]', "`listed`, entry 1 .*`type`"),
        ("domain = {}", "`domain` is {}"),
        ("generic = [1]", "`generic`, entry 1"),
        ('countries = "France"', "`countries` is 'France'"),
        ("# caf\xe9", "no valid TOML"),
    ],
)
def test_a_bad_synonym_file_gives_one_line(tmp_path, toml: str, message: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(toml, encoding="latin-1")
    with pytest.raises(DataError, match=message) as error:
        load_synonyms(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value) or "TOML" in message
    with pytest.raises(DataError, match="no such file"):
        load_synonyms(tmp_path / "absent.toml")


def test_own_synonyms_are_used(tmp_path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('relation = [{name="hue", type="text", headers=["colour", "color"]}]')
    table = table_of({"Color": ["red", "blue"], "Player": ["Ada King", "Bo Li"]})
    assert [r.name for r in column_relations(table, load_synonyms(path))] == ["hue", "player"]
