"""A visit shows the columns that the goal names, and never hides one that was asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webleaper_jax.agent.reader import relevant_columns

PAGE = "# X (page 1 of 4)\nTeam | City | Stadium\nA | B | C\nD |  | F\nnext: w/1?p=2"


def columns(goal: str) -> str:
    return relevant_columns(PAGE, goal).splitlines()[1]


def test_columns_named_outside_of_quotes_are_shown():
    assert relevant_columns(PAGE, 'All teams in "City X". Columns: team | stadium.') == (
        "# X (page 1 of 4)\nTeam | Stadium\nA | C\nD | F\nnext: w/1?p=2"
    )
    assert columns('List each team in "X". Columns: team.') == "Team"


def test_a_column_of_a_condition_is_shown_too():
    assert columns('Give team for all in "X" whose stadium is C.') == "Team | Stadium"


def test_listed_columns_are_shown_in_the_order_of_the_goal():
    assert columns('For all in "X", give stadium | team.') == "Stadium | Team"
    assert columns('For all in "X" whose city is B, give stadium | team.') == "Stadium | Team | City"


def test_nothing_that_was_asked_for_is_hidden():
    whole = "Team | City | Stadium"
    assert columns('In "X": name | stadium') == whole  # which column is the name?
    assert columns('In "X": team | capacity') == whole
    assert columns("Two lists share a team. Give team | stadium.") == whole  # no title: the columns of which table?
    assert columns("") == whole


def test_a_label_in_brackets_belongs_to_the_column():
    assert columns('Both in "X" and "Y": team | stadium (X) | stadium (Y)') == "Team | Stadium"


def test_columns_that_differ_by_signs_only_are_told_apart():
    page = "# X\nCounty | Won% | Won# | Name(s)\nA | 1% | 1 | B"
    assert relevant_columns(page, 'In "X": county | won#').splitlines()[1] == "County | Won# | Won%"
    assert relevant_columns(page, 'In "X": give won% | name(s)').splitlines()[1].startswith("Won% | Name(s)")


@pytest.mark.parametrize(
    ("header", "goal"),
    [
        ("Team | Season | Division", 'In "A" and "B". Columns: team | year (First Division) | year (Second Division).'),
        ("Name | Pos. | Nation", 'List "A". Columns: name | pos. | country.'),
        ("Team | Last season | Position", 'List "A". Columns: team | previous position.'),
        ("City, State | Church | Dates", 'List "A". Columns: city, state | town.'),
    ],
)
def test_a_page_that_lacks_a_column_asked_for_is_shown_whole(header, goal):
    page = f"# A\n{header}\n1 | 2 | 3"
    assert relevant_columns(page, goal) == page


def test_pages_without_a_table_are_shown_as_they_are():
    for text in ("", "# Entity\nX | Team: A", "1. X | w/1 | Team; 10 rows", "no lines"):
        assert relevant_columns(text, 'In "X": team') == text


names = st.text("abcde", min_size=1, max_size=3)


@given(st.lists(names, min_size=2, max_size=5, unique=True), st.data())
def test_every_listed_column_survives_whatever_the_table(header, data):
    asked = data.draw(st.lists(st.sampled_from(header), min_size=1, unique=True))
    row = " | ".join(f"{name}-value" for name in header)
    text = f"# T\n{' | '.join(header)}\n{row}\n"
    shown = relevant_columns(text, f'In "T": {" | ".join(asked)}')
    for name in asked:
        assert f"{name}-value" in shown
    cells = shown.splitlines()[2].split(" | ")
    assert cells[: len(asked)] == [f"{name}-value" for name in asked]
    assert len(set(cells)) == len(cells)
