"""Trees: key columns, merged members, canonical entities; the order of rows and columns does not matter."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_gen.entities import EntityIndex, linked_entity, normalize
from data_gen.relations import column_relations
from data_gen.sample import sample_tables
from data_gen.tables import clean_tables
from data_gen.trees import TreeRules, build_trees, root_entities
from webleaper_jax.jsonl import load_records
from webleaper_jax.records import Cell, Table, Tree

ALL_KEYS = TreeRules(max_keys=99, attributes=frozenset())  # which two keys are taken goes by column order


@pytest.fixture(scope="module")
def tables() -> list[Table]:
    return clean_tables(load_records(sample_tables(), Table)).tables


def book_table(authors: list[str], links: bool = True, family: str = "") -> Table:
    rows = tuple(
        (
            Cell(str(1970 + i)),
            Cell(a, (a,) if links else ()),
            Cell(f"Book {chr(65 + i)}"),
            Cell("Faber" if i % 2 else "Cape"),
        )
        for i, a in enumerate(authors)
    )
    columns = ("Year", "Author", "Title", "Publisher")
    return Table(page_title="Booker Prize", url="https://x", columns=columns, rows=rows, family=family)


AUTHORS = ["Ada King", "Bo Li", "Cy Young", "Di Fry", "Ed Poe", "Flo Ray", "Gus Orr", "Hal Kay", "Ida Lee", "Jo Orton"]


def contents(tree: Tree) -> dict[str, tuple[str, set[tuple[str, str]]]]:
    """A tree without its order: member -> name and values by relation name."""
    return {m.entity: (m.name, {(tree.relations[v.relation].name, v.entity) for v in m.values}) for m in tree.members}


def test_a_table_of_books_gives_authors_and_books() -> None:
    (authors, books), drops = build_trees([book_table(AUTHORS)])
    assert drops == []
    assert (authors.key.name, authors.key.type, authors.key.domain) == ("name", "person", "writer")
    assert (books.key.type, books.key.domain) == ("work", "book")
    assert [m.name for m in authors.members] == AUTHORS
    assert [r.name for r in authors.relations] == ["year", "title", "publisher"]
    assert [v.text for v in authors.members[0].values] == ["1970", "Book A", "Cape"]
    assert authors.root == ("Booker Prize",)


def test_a_column_of_names_beside_the_key_has_a_name_of_its_own() -> None:
    """`name` means the key: a second column of that name was read as it, and its cells were asked for and left out."""
    rows = tuple(
        (Cell(f"{a} Ames"), Cell(f"{a} College"), Cell(f"Coach {a}"), Cell(str(1950 + i)))
        for i, a in enumerate(AUTHORS)
    )
    table = Table(page_title="Coaches", url="u", columns=("Name", "Alma mater", "Other name", "Year"), rows=rows)
    trees, _ = build_trees([table], rules=ALL_KEYS)
    by_key = {tree.key.column: [relation.name for relation in tree.relations] for tree in trees}
    assert all("name" not in names for names in by_key.values())
    assert {"other name", "other name 2"} <= set(by_key[1])
    assert all(len(set(names)) == len(names) for names in by_key.values())


def test_an_author_who_won_twice_is_one_member_with_several_values() -> None:
    (authors, _), _ = build_trees([book_table([*AUTHORS, "Ada King", "Ada King"])])
    ada = authors.members[0]
    assert ada.rows == (0, 10, 11)
    assert [v.text for v in ada.values] == ["1970", "1980", "1981", "Book A", "Book K", "Book L", "Cape", "Faber"]


@pytest.mark.parametrize(("repeats", "fits"), [(2, True), (3, False)])
def test_a_fifth_of_repeats_is_the_limit(repeats: int, fits: bool) -> None:
    """Of 10 cells, 2 that repeat an earlier one are 20 %."""
    trees, _ = build_trees([book_table(AUTHORS[: 10 - repeats] + ["Ada King"] * repeats)], TreeRules(min_members=5))
    assert any(t.key.domain == "writer" for t in trees) == fits


def test_two_churches_of_one_name_are_not_merged() -> None:
    names = [
        f"{n} Church" for n in ("Old", "New", "First", "Grace", "Trinity", "Christ", "Zion", "Holy", "Olive", "First")
    ]
    rows = tuple((Cell(n), Cell(f"Town {chr(65 + i)}"), Cell(str(1800 + i))) for i, n in enumerate(names))
    table = Table(page_title="Churches", url="https://x", columns=("Church", "City", "Built"), rows=rows)
    trees, _ = build_trees([table])
    assert [t.key.domain for t in trees] == ["settlement"]


def test_two_people_of_one_name_make_no_key() -> None:
    rows = list(book_table([*AUTHORS, "Ada King"]).rows)
    rows[10] = (rows[10][0], Cell("Ada King", ("Ada King (poet)",)), *rows[10][2:])
    table = Table(
        page_title="Booker", url="https://x", columns=("Year", "Author", "Title", "Publisher"), rows=tuple(rows)
    )
    assert [t.key.type for t in build_trees([table])[0]] == ["work"]


def test_a_table_without_a_key_is_dropped_with_a_reason() -> None:
    rows = tuple((Cell(str(1990 + i)), Cell(str(i % 3)), Cell("yes" if i % 2 else "no")) for i in range(10))
    table = Table(page_title="x", url="https://x", columns=("Year", "Count", "Held"), rows=rows)
    trees, drops = build_trees([table])
    assert trees == []
    assert [(d.id, d.reason) for d in drops] == [(table.id, "no_key")]


def test_vacant_keys_are_no_members_and_are_reported() -> None:
    (authors, _), drops = build_trees([book_table([*AUTHORS, "Vacated"], links=False)])
    assert "vacated" not in {m.entity for m in authors.members}
    assert ("key 10", "vacant_key") in {(d.what, d.reason) for d in drops}


def test_empty_cells_are_no_values() -> None:
    rows = tuple((*row[:3], Cell("")) if i == 0 else row for i, row in enumerate(book_table(AUTHORS).rows))
    table = Table(page_title="Booker", url="https://x", columns=("Year", "Author", "Title", "Publisher"), rows=rows)
    (authors, _), _ = build_trees([table])
    assert [v.text for v in authors.members[0].values] == ["1970", "Book A"]


@pytest.mark.parametrize(
    ("text", "links", "entity"),
    [
        ("Clemson", ("1990 Clemson Tigers football team",), "Clemson Tigers"),
        ("Clemson", ("Clemson Tigers football",), "Clemson Tigers"),
        ("Dallas Cowboys", ("1998 Dallas Cowboys season",), "Dallas Cowboys"),
        ("Naipaul", ("V. S. Naipaul",), "V. S. Naipaul"),
        ("Soviet Union", ("Soviet Union at the 1956 Winter Olympics",), ""),  # an event, not the country
        ("Ada King", ("France", "Ada King"), "Ada King"),  # a flag beside the name
        ("Ada King Bo Li", ("Ada King", "Bo Li"), ""),
        ("Ada King", (), ""),
    ],
)
def test_what_a_link_means(text: str, links: tuple[str, ...], entity: str) -> None:
    assert linked_entity(Cell(text, links)) == entity


def test_plain_text_means_the_page_that_the_family_links_it_to() -> None:
    bare = book_table([a.upper() for a in AUTHORS], links=False, family="books")
    for family, entity in (("books", "Ada King"), ("plays", "ada king"), ("", "ada king")):
        tables = [book_table(AUTHORS, family=family), bare]
        relations = [column_relations(t) for t in tables]
        assert EntityIndex(tables, relations).entity(bare.rows[0][1], relations[1][1], bare) == entity


def test_tables_without_a_family_are_of_no_common_one() -> None:
    linked, bare = book_table(AUTHORS), book_table([a.upper() for a in AUTHORS], links=False)
    relations = [column_relations(t) for t in (linked, bare)]
    index = EntityIndex([linked, bare], relations)
    assert index.entity(linked.rows[0][1], relations[0][1], linked) == "Ada King"
    assert index.entity(bare.rows[0][1], relations[1][1], bare) == "ada king"


def test_folding_keeps_apart_what_differs() -> None:
    same = [
        ("Beyoncé", "Beyonce"),
        ("Bjørn", "Bjorn"),
        ("don’t", "don't"),
        ("A & B", "a and b"),
        ("J.M. Coetzee", "J. M. Coetzee"),
    ]
    for a, b in same:
        assert normalize(a) == normalize(b), (a, b)
    for a, b in [("Spartak Minsk", "Spartak Brest"), ("Jordan", "Jordán II"), ("1000", "100")]:
        assert normalize(a) != normalize(b), (a, b)


def test_question_entities_come_from_the_title() -> None:
    table = Table(page_title="List of dams (Peru)", caption="Largest", url="https://x", columns=(), rows=())
    assert root_entities(table) == ("Dams", "Largest")


def test_trees_of_the_sample_are_sound(tables: list[Table]) -> None:
    trees, drops = build_trees(tables)
    rows = {t.id: t for t in tables}
    assert {t.table_id for t in trees} | {d.id for d in drops if d.reason == "no_key"} == set(rows)
    for tree in trees:
        table = rows[tree.table_id]
        said = [i for m in tree.members for i in m.rows]
        vacant = [d for d in drops if d.id == table.id and d.reason == "vacant_key"]
        assert len(said) == len(set(said)), "a row speaks of one member"
        assert len(table.rows) - len(said) <= len(vacant)
        assert len({m.entity for m in tree.members}) == len(tree.members)
        assert len({normalize(m.name) for m in tree.members}) == len(tree.members), tree.title
        for member in tree.members:
            texts = {(c, table.rows[i][c].text) for i in member.rows for c in range(len(table.columns))}
            assert all((tree.relations[v.relation].column, v.text) in texts for v in member.values)
            assert (tree.key.column, member.name) in texts
        assert sum(len(m.values) for m in tree.members) <= sum(bool(c.text) for row in table.rows for c in row)


def test_order_of_rows_and_columns_does_not_matter(tables: list[Table]) -> None:
    """Shuffled, each table of a sample of them gives the same trees, members, names and values."""
    shuffler = random.Random(7)
    picked = shuffler.sample(tables, 60)
    straight, _ = build_trees(picked, ALL_KEYS)
    shuffled = []
    for table in picked:
        rows = shuffler.sample(range(len(table.rows)), len(table.rows))
        columns = shuffler.sample(range(len(table.columns)), len(table.columns))
        shuffled.append(
            Table(
                page_title=table.page_title, section_title=table.section_title, caption=table.caption, url=table.url,
                family=table.family, source=table.source, columns=tuple(table.columns[c] for c in columns),
                rows=tuple(tuple(table.rows[i][c] for c in columns) for i in rows),
            )
        )  # fmt: skip
    mixed, _ = build_trees(shuffled, ALL_KEYS)
    assert len(mixed) == len(straight) > 40

    def by_key(trees: list[Tree], of: list[Table]) -> dict[tuple[str, str], object]:
        tables = {t.id: t for t in of}
        words = {t.id: {r.column for r in column_relations(t) if r.type == "text"} for t in of}
        return {
            (t.title, tables[t.table_id].columns[t.key.column]): contents(t)
            for t in trees
            if t.key.column not in words[t.table_id]  # of columns of words, the leftmost is taken
        }

    assert by_key(mixed, shuffled) == by_key(straight, picked)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(AUTHORS), min_size=10, max_size=14), st.randoms(use_true_random=False))
def test_shuffled_rows_give_the_same_tree(authors: list[str], shuffler: random.Random) -> None:
    table = book_table(authors)
    rows = list(table.rows)
    shuffler.shuffle(rows)
    mixed = Table(page_title=table.page_title, url=table.url, columns=table.columns, rows=tuple(rows))
    a, _ = build_trees([table])
    b, _ = build_trees([mixed])
    assert [contents(t) for t in a] == [contents(t) for t in b]
