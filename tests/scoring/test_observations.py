"""Finding targets in observations: against a regular expression for each target, and the rules one by one."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webleaper_jax.records import Target, Task
from webleaper_jax.scoring.observations import TargetFinder, heading_forms, line_words, owner_forms, pad, surface_forms


def layer2(form, *aliases, owner="Booker Prize", type="person"):
    return Target(form=form, type=type, layer=2, owner=owner, relation="name", final=True, aliases=aliases)


def layer3(owner, value, *owner_aliases, relation="year", type="year"):
    return Target(
        form=value, type=type, layer=3, owner=owner, relation=relation, final=True, owner_aliases=owner_aliases
    )


def make_task(*targets):
    return Task(question="q", variant="basic", targets=targets)


BOOKER = make_task(
    layer2("William Golding"),
    layer2("J. M. Coetzee", "John Maxwell Coetzee"),
    layer3("William Golding", "1980"),
    layer3("J. M. Coetzee", "1983", "John Maxwell Coetzee"),
    layer3("J. M. Coetzee", "1999"),
    layer3("William Golding", "September 19, 1911", relation="born", type="date"),
)


def find(text, *echo, task=BOOKER):
    return set(TargetFinder(task).find(text, echo))


# ------------------------------------------------------------------------------------------------- brute force

WORDS = [
    "Golding",
    "Coetzee",
    "Paris",
    "France",
    "1983",
    "1999",
    "3.14",
    "314",
    "2-1",
    "Éa",
    "b",
    "C++",
    "北京",
    "Tour",
    "de",
]
FORMS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join)
TARGETS = st.lists(
    st.builds(lambda form, alias: layer2(form, alias), FORMS, FORMS)
    | st.builds(lambda owner, value, alias: layer3(owner, value, alias), FORMS, FORMS, FORMS),
    min_size=1,
    max_size=8,
)
LINES = st.lists(
    st.builds(
        lambda head, words, glue: head + glue.join(words),
        st.sampled_from(["", "", "# ", "## ", "| "]),
        st.lists(st.sampled_from([*WORDS, "William", "of", "x (page 2)"]), max_size=6),
        st.sampled_from([" ", " | ", ", ", "-"]),
    ),
    max_size=6,
)


def places(form, line):
    """Half-open spans of a form in a line of normal words, overlapping ones too."""
    form = form.strip()
    return [(m.start(), m.start() + len(form)) for m in re.finditer(rf"(?<!\S)(?={re.escape(form)}(?!\S))", line)]


def brute_force(task, text):
    found = set()
    for index, target in enumerate(task.targets):
        subject = False
        for line in text.splitlines():
            words = line_words(line)
            values = [span for form in surface_forms(target) for span in places(form, words)]
            if target.layer == 2:
                if values:
                    found.add(index)
                continue
            owners = [span for form in owner_forms(target) for span in places(form, words)]
            if line.startswith("# "):
                subject = bool(set(owner_forms(target)) & {pad(form) for form in heading_forms(line)})
                below = False
            else:
                below = subject
            apart = any(v[1] <= o[0] or o[1] <= v[0] for v in values for o in owners)
            own = any(all(v[0] < o[0] or o[1] < v[1] for o in owners) for v in values)
            if apart or (below and own):
                found.add(index)
    return found


@settings(max_examples=200, deadline=None)
@given(TARGETS, LINES)
def test_finder_equals_a_search_for_each_target(targets, lines):
    task = make_task(*targets)
    text = "\n".join(lines)
    assert set(TargetFinder(task).find(text)) == brute_force(task, text)


# ------------------------------------------------------------------------------------------------------- rules


def test_a_row_shows_the_name_and_the_value_beside_it():
    assert find("Name | year\nWilliam Golding | 1980\nKingsley Amis | 1983") == {0, 2}


def test_a_value_in_another_line_is_not_shown():
    assert find("William Golding | Rites of Passage\nIris Murdoch | 1980") == {0}


def test_a_heading_is_the_subject_of_the_lines_below_it_until_the_next():
    page = "# William Golding (page 1 of 2)\nBooker Prize | year: 1980\n# Iris Murdoch\nBooker Prize | year: 1983"
    assert find(page) == {0, 2}
    assert find("Booker | 1980\n# William Golding") == {0}
    assert find("# William Golding - Encyclopedia\nwon in 1980") == {0, 2}
    assert find("# Friends of William Golding\nwon in 1980") == {0}


@pytest.mark.parametrize(
    "text",
    [
        "william golding, 1980",
        "WILLIAM  GOLDING — 1980",
        "William Golding’s prize (1980)",
        "| William Golding | 1980 |",
    ],
)
def test_case_punctuation_and_possessives_do_not_matter(text):
    assert find(text) == {0, 2}


@pytest.mark.parametrize(
    "text",
    [
        "William Goldings 1980s",
        "William | Golding 1980",
        "William\nGolding",
        "Fitzwilliam Golding",
        "1980-81",
        "11980",
        "19.80",
    ],
)
def test_parts_of_words_and_of_numbers_are_not_shown(text):
    assert find(text) == set()


def test_aliases_of_names_and_owners():
    assert find("John Maxwell Coetzee | 1983") == {1, 3}
    assert find("J.M. Coetzee | 1999 and 1983") >= {1, 4}


@pytest.mark.parametrize("date", ["19 September 1911", "1911-09-19", "Sep 19, 1911", "September 19, 1911"])
def test_dates_are_found_however_they_are_written(date):
    assert 5 in find(f"William Golding | {date}")


def test_the_owner_itself_is_not_the_value():
    task = make_task(layer3("Tour de France", "France", relation="country"), layer3("1984 Games", "1984"))
    assert find("Tour de France | 1903", task=task) == set()
    assert find("# Tour de France\nTour de France was first held in 1903", task=task) == set()
    assert find("Tour de France | France", task=task) == {0}
    assert find("# Tour de France\nheld in France", task=task) == {0}
    assert find("1984 Games | 1984", task=task) == {1}


def test_two_targets_of_one_form_are_both_found():
    task = make_task(
        layer2("Paris", owner="A"), layer2("PARIS", owner="B"), layer3("France", "Paris", relation="capital")
    )
    assert find("France | Paris", task=task) == {0, 1, 2}


def test_chinese_needs_no_spaces():
    task = make_task(layer2("北京市", type="place"))
    assert find("中国的首都是北京。", task=task) == {0}


# ------------------------------------------------------------------------------------------------------ echoes


@pytest.mark.parametrize(
    "notice",
    [
        "results for 'William Golding'",
        "No results for william golding.",
        "William Golding",
        'query: "William Golding"',
        "# results for William Golding",
        "Nothing at all was found in this web for the query “William Golding”",
    ],
)
def test_repeated_arguments_show_nothing(notice):
    assert find(notice, "William Golding") == set()
    assert find(notice) == {0}
    page = f"{notice}\n1. William Golding | e/1 | Booker Prize"
    assert find(page, "William Golding") == {0}


def test_an_argument_cannot_pass_for_a_page():
    forged = "# William Golding\n1980 | won\nJ. M. Coetzee | 1983"
    assert find(f"no results for {forged}", forged) == set()
    assert find(f"results for: {' '.join(forged.splitlines())}", " ".join(forged.splitlines())) == set()


def test_the_page_counts_whatever_was_asked():
    page = "# William Golding\nBooker Prize | 1980\nWilliam Golding | born: 19 September 1911"
    assert find(page, "William Golding", "1980", "e/1") == {0, 2, 5}
    assert find("In that year William Golding won the prize, in 1980", "William Golding") == {0, 2}


# ------------------------------------------------------------------------------------------------------- speed


def test_a_page_takes_milliseconds():
    targets = [layer2(f"Person Number{i}") for i in range(1500)]
    targets += [layer3(f"Person Number{i}", str(1900 + i % 100)) for i in range(1500)]
    finder = TargetFinder(make_task(*targets))
    page = "# Prize\n" + "\n".join(f"Person Number{i} | {1900 + i % 100} | Paris | some more words" for i in range(300))
    start = time.process_time()
    assert len(finder.find(page)) == 600
    assert time.process_time() - start < 0.5  # about 10 ms on an idle core
