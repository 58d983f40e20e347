"""Soft F against a slow version written from the equations, and the properties that keep it from being gamed."""

import json
import math
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webleaper_jax.records import Answer, Target, Task
from webleaper_jax.scoring.normalize import is_blank, normalize
from webleaper_jax.scoring.similarity import SAME, similarity
from webleaper_jax.scoring.soft_f import score_answer

BOOKER, NOBEL, YEAR_B, YEAR_N = "Booker Prize", "Nobel Prize", "year (Booker Prize)", "year (Nobel Prize)"


def name(form, root=BOOKER, final=True, aliases=()):
    return Target(form=form, type="person", layer=2, owner=root, relation="name", final=final, aliases=aliases)


def value(owner, relation, form, type="year", final=True, aliases=(), owner_aliases=()):
    return Target(
        form=form,
        type=type,
        layer=3,
        owner=owner,
        relation=relation,
        final=final,
        aliases=aliases,
        owner_aliases=owner_aliases,
    )


def make_task(*targets):
    return Task(question="q", variant="union", targets=targets)


def f_of(task, rows, columns=(), **options):
    return score_answer(task, Answer(columns=tuple(columns), rows=tuple(map(tuple, rows))), **options).f


# A small Union task: two prizes, a winner of one of them twice, a value that two relations share, names with aliases.
UNION = make_task(
    name("William Golding"),
    name("J. M. Coetzee", aliases=("John Maxwell Coetzee",)),
    name("Nadine Gordimer"),
    name("William Golding", NOBEL, final=False),
    name("J.M. Coetzee", NOBEL, final=False),
    name("Toni Morrison", NOBEL, final=False),
    name("Iris Murdoch", final=False),
    value("William Golding", YEAR_B, "1980"),
    value("William Golding", YEAR_N, "1983"),
    value("William Golding", "country", "United Kingdom", "country"),
    value("J. M. Coetzee", YEAR_B, "1983", owner_aliases=("John Maxwell Coetzee",)),
    value("J. M. Coetzee", YEAR_B, "1999", owner_aliases=("John Maxwell Coetzee",)),
    value("J. M. Coetzee", YEAR_N, "2003", owner_aliases=("John Maxwell Coetzee",)),
    value("J. M. Coetzee", "country", "South Africa", "country"),
    value("Nadine Gordimer", YEAR_B, "1974"),
    value("Nadine Gordimer", YEAR_N, "1991"),
    value("Nadine Gordimer", "country", "South Africa", "country"),
)
COLUMNS = ("name", YEAR_B, YEAR_N, "country")
EXACT = (
    ("William Golding", "1980", "1983", "United Kingdom"),
    ("J. M. Coetzee", "1983", "2003", "South Africa"),
    ("J. M. Coetzee", "1999", "", ""),
    ("Nadine Gordimer", "1974", "1991", "South Africa"),
)
# What each header of the tests may stand for: written down, not computed.
HEADERS = {
    YEAR_B: {YEAR_B},
    "Booker year": {YEAR_B},
    "YEAR  (booker prize)": {YEAR_B},
    YEAR_N: {YEAR_N},
    "year": {YEAR_B, YEAR_N},
    "country": {"country"},
    "Country": {"country"},
    "notes": None,
    "": None,
    "nobel": None,
}


# ------------------------------------------------------------------------------------------------- brute force


def s(text, target):
    return max(similarity(text, form, target.type) for form in (target.form, *target.aliases))


def names_of(target):
    return (target.form, *target.aliases) if target.layer == 2 else (target.owner, *target.owner_aliases)


def components(targets):
    """Target -> smallest target that is linked to it by names of one normal form."""
    group = list(range(len(targets)))
    forms = [{normalize(n) for n in names_of(t)} for t in targets]
    for _ in targets:
        for i in range(len(targets)):
            group[i] = min(group[j] for j in range(len(targets)) if forms[i] & forms[j])
    return group


def slow_precision_recall(task, answer, match, over, w):
    gold = [i for i, t in enumerate(task.targets) if t.final or over == "all"]
    if match == "flat":
        texts = sorted({text for row in answer.rows for text in row if not is_blank(text)})
        cells = [("", value_id(task, text, gold), None, {i: s(text, task.targets[i]) for i in gold}) for text in texts]
        return precision_recall(cells, gold)
    width = max((len(row) for row in answer.rows), default=0)
    rows = [row + ("",) * (width - len(row)) for row in answer.rows]
    group = components(task.targets)
    named = {text: named_by(task, text, group) for row in rows for text in row}
    useful = {group[i] for i in gold}
    counts = [len({g for row in rows for g in named[row[c]]} & useful) for c in range(width)]
    best = max(counts, default=0)
    keys = [c for c in range(width) if counts[c] == best] if best else [0]
    results = [precision_recall(bound_cells(task, answer, rows, key, named, group, gold), gold) for key in keys]
    return max(results, key=lambda pr: (round(f_value(*pr, w), 12), pr))


def named_by(task, text, group):
    """The groups whose names the text is most like."""
    alike = [max(similarity(text, n, "person") for n in names_of(t)) for t in task.targets]
    return sorted({group[i] for i, a in enumerate(alike) if a == max(alike) and a >= SAME})


def value_id(task, text, indices):
    best = max(indices, key=lambda i: (s(text, task.targets[i]), -i), default=None)
    return normalize(task.targets[best].form if best is not None and s(text, task.targets[best]) >= SAME else text)


def bound_cells(task, answer, rows, key, named, group, gold):
    cells = []
    for row in rows:
        owners = named[row[key]]
        row_id = owners[0] if owners else normalize(row[key])
        if not is_blank(row[key]):
            cells.append(
                (
                    ("key", row_id),
                    "",
                    None,
                    {i: s(row[key], task.targets[i]) for i in gold if task.targets[i].layer == 2},
                )
            )
        own = [i for i in gold if task.targets[i].layer == 3 and group[i] in owners]
        for column, text in enumerate(row):
            if column == key or is_blank(text):
                continue
            allowed = HEADERS.get(answer.columns[column]) if column < len(answer.columns) else None
            met = [i for i in own if allowed is None or task.targets[i].relation in allowed]
            parts = [p.strip() for p in text.replace(" or ", ";").split(";")]
            whole_fits = any(s(text, task.targets[i]) >= SAME for i in met)
            if whole_fits or not any(s(p, task.targets[i]) >= SAME for p in parts for i in met):
                parts = [text]
            for part in parts:
                cells.append(
                    (("value", row_id), value_id(task, part, own), allowed, {i: s(part, task.targets[i]) for i in met})
                )
    return cells


def precision_recall(cells, gold):
    def top(cell):
        return max(cell[3].values(), default=0.0)

    def repeats(cell, other):
        if cell[:2] != other[:2]:
            return False
        closer = other[2] is not None and (cell[2] is None or other[2] < cell[2])
        if closer:
            return top(other) >= top(cell)
        return cell[2] == other[2] and (top(other), -cells.index(other)) > (top(cell), -cells.index(cell))

    unique = [cell for i, cell in enumerate(cells) if cells.index(cell) == i]
    distinct = [cell for cell in unique if not any(repeats(cell, other) for other in unique)]
    precision = sum(map(top, distinct)) / len(distinct) if distinct else 0.0
    recall = sum(max((cell[3].get(i, 0.0) for cell in cells), default=0.0) for i in gold) / len(gold) if gold else 0.0
    return precision, recall


def f_value(precision, recall, w):
    return (1 + w * w) * precision * recall / (w * w * precision + recall) if precision * recall else 0.0


KEYS = st.sampled_from(
    [
        "William Golding",
        "Golding, William",
        "J.M. Coetzee",
        "John Maxwell Coetzee",
        "Nadine Gordimer",
        "Iris Murdoch",
        "Victor Hugo",
        "N. Gordimer",
        "Toni Morrison",
        "",
    ]
)
VALUES = st.sampled_from(
    [
        "1980",
        "1983",
        "1999",
        "2003",
        "1974",
        "1983; 1999",
        "1980 or 1983",
        "2019",
        "UK",
        "United Kingdom",
        "South Africa",
        "RSA",
        "1999-2003",
        "",
        "–",
        "William Golding",
    ]
)


@st.composite
def answers(draw):
    width = draw(st.integers(1, 4))
    rows = draw(st.lists(st.tuples(KEYS, *[VALUES] * (width - 1)), max_size=6))
    columns = draw(
        st.sampled_from([(), ("name",)]) | st.tuples(st.just("name"), *[st.sampled_from(sorted(HEADERS))] * (width - 1))
    )
    return Answer(columns=columns, rows=tuple(rows))


@settings(max_examples=200, deadline=None)
@given(
    answers(),
    st.sampled_from(["bound", "flat"]),
    st.sampled_from(["final", "all"]),
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
)
def test_soft_f_equals_the_equations(answer, match, over, w):
    score = score_answer(UNION, answer, match=match, over=over, w=w)
    precision, recall = slow_precision_recall(UNION, answer, match, over, w)
    assert (score.precision, score.recall) == pytest.approx((precision, recall), abs=1e-12)
    assert score.f == pytest.approx(f_value(precision, recall, w), abs=1e-12)
    assert score.recall == pytest.approx(math.fsum(m.score for m in score.matches) / len(score.matches))
    for m in score.matches:
        assert m.score == (s(m.by, UNION.targets[m.target]) if m.by else 0.0)


# ---------------------------------------------------------------------------------------------------- properties


@pytest.mark.parametrize("match", ["bound", "flat"])
@pytest.mark.parametrize("columns", [COLUMNS, (), ("Author", "a", "b", "c")])
def test_the_exact_answer_scores_one(match, columns):
    score = score_answer(UNION, Answer(columns=columns, rows=EXACT), match=match)
    assert (score.precision, score.recall, score.f) == (1.0, 1.0, 1.0)
    assert all(m.score == 1.0 for m in score.matches)


TEXT = st.text(alphabet="abcdefgh éß-’(),.0123456789北京", min_size=1, max_size=10)
SAYING = TEXT.filter(lambda text: not is_blank(text))
TYPE = st.sampled_from(["person", "place", "country", "work", "date", "year", "number", "text", "score", "rank"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SAYING, st.lists(TEXT, min_size=2, max_size=2)), min_size=1, max_size=6), TYPE, TYPE, TYPE)
def test_the_exact_answer_scores_one_whatever_the_cells(table, key_type, first_type, second_type):
    targets = []
    for key, cells in table:
        targets.append(Target(form=key, type=key_type, layer=2, owner="T", relation="name", final=True))
        targets += [
            Target(form=cell, type=type, layer=3, owner=key, relation=relation, final=True)
            for cell, type, relation in zip(cells, (first_type, second_type), ("a", "b"), strict=True)
        ]
    rows = tuple((key, *cells) for key, cells in table)
    score = score_answer(make_task(*targets), Answer(columns=("name", "a", "b"), rows=rows))
    assert (score.precision, score.recall, score.f) == (1.0, 1.0, 1.0)


def prize_lists(common=4, nobel=111, booker=50):
    """The shape of Nobel ∩ Booker: two lists of authors with their years, a few on both."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    people = [
        f"{('Ada', 'Ben', 'Cid', 'Dora')[i % 4]} {letters[i % 26].upper()}{letters[i // 26]}{letters[(7 * i) % 26]}ur"
        for i in range(nobel + booker - common)
    ]
    lists = {NOBEL: people[:nobel], BOOKER: people[nobel - common :]}
    targets = [name(person, root, final=False) for person in lists[NOBEL] for root in [NOBEL]]
    targets += [name(person, BOOKER, final=person in lists[NOBEL]) for person in lists[BOOKER]]
    years = {
        NOBEL: {p: str(1901 + i) for i, p in enumerate(lists[NOBEL])},
        BOOKER: {p: str(1969 + i) for i, p in enumerate(lists[BOOKER])},
    }
    both = people[nobel - common : nobel]
    targets += [value(p, f"year ({root})", years[root][p]) for p in both for root in (NOBEL, BOOKER)]
    return make_task(*targets), people, years, both


def test_dumping_both_lists_scores_next_to_nothing():
    task, people, years, both = prize_lists()
    assert (sum(t.layer == 2 for t in task.targets), len(both)) == (161, 4)
    exact = [(p, years[NOBEL][p], years[BOOKER][p]) for p in both]
    assert f_of(task, exact, ("name", YEAR_N, YEAR_B)) == 1.0
    full = [(p, years[NOBEL].get(p, ""), years[BOOKER].get(p, "")) for p in people]
    for rows in (
        full,
        [row[:1] for row in full],
        [(p, y) for p in people for root in years for y in [years[root].get(p, "")]],
    ):
        assert f_of(task, rows) < 0.2
        assert f_of(task, rows, match="flat") < 0.2


@pytest.mark.shared
def test_dumping_the_real_lists_scores_next_to_nothing(shared):
    tables = {t["id"]: t for t in json.loads((shared / "data" / "theme_tables.json").read_text("utf-8"))}
    lists = []
    for table in tables.values():
        if (
            "literature" in table["page_title"].lower()
            or "winners" in table["page_title"].lower() + table["section_title"].lower()
        ):
            column = next(i for i, h in enumerate(table["header"]) if h in ("Laureate", "Author", "Winner"))
            lists.append(list(dict.fromkeys(row[column][0] for row in table["rows"])))
    both = [n for n in lists[0] if any(similarity(n, other, "person") >= SAME for other in lists[1])]
    assert len(both) == 4
    task = make_task(*(name(n, str(i), final=i == 0 and n in both) for i, names in enumerate(lists) for n in names))
    assert f_of(task, [(n,) for n in both]) == 1.0
    assert f_of(task, [(n,) for names in lists for n in names]) < 0.2


def test_common_values_without_keys_score_nothing():
    values = ["South Africa", "United Kingdom", "1983", "1999"]
    for rows in (
        [(v,) for v in values],
        [("", v) for v in values],
        [tuple(values)],
        [("Victor Hugo", *values)],
        [(v, v) for v in values],
    ):
        assert f_of(UNION, rows) == 0.0
        assert f_of(UNION, rows, match="flat") > 0.0


@given(
    st.randoms(use_true_random=False),
    st.permutations(range(4)),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
    st.booleans(),
)
def test_order_copies_and_aliases_change_nothing(rng, order, again, headed):
    wrong = [("Victor Hugo", "1862", "", "France"), ("Nadine Gordimer", "1974", "1901", "France")]
    rows = [*EXACT[1:], *wrong]
    columns = COLUMNS if headed else ()
    score = score_answer(UNION, Answer(columns=columns, rows=tuple(rows)))
    other = {
        "J. M. Coetzee": "Coetzee, J. M.",
        "South Africa": "RSA",
        "Nadine Gordimer": "nadine  GORDIMER",
        "1974": "１９７４",
    }
    copies = [rows[i] for i in again] + [tuple(other.get(cell, cell) for cell in rows[i]) for i in again]
    table = [*rows, *copies]
    rng.shuffle(table)
    table = [tuple(row[c] for c in order) for row in table]
    shuffled = tuple(columns[c] for c in order) if headed else ()
    assert score_answer(UNION, Answer(columns=shuffled, rows=tuple(table))).f == score.f
    doubled = [(*row, row[order.index(3)], row[order.index(1)]) for row in table]
    assert (
        score_answer(UNION, Answer(columns=(*shuffled, "notes", "") if headed else (), rows=tuple(doubled))).f
        == score.f
    )


@given(st.integers(1, 30), st.integers(0, 4), st.sampled_from(["bound", "flat"]))
def test_wrong_rows_lower_precision(count, right, match):
    wrong = [(f"Zed Q{'abcdefghij'[i % 10]}{'xyz'[i // 10]}", str(1500 + i), "", "Atlantis") for i in range(count)]
    before = score_answer(UNION, Answer(rows=(*EXACT[:right], *wrong[:-1])), match=match)
    after = score_answer(UNION, Answer(rows=(*EXACT[:right], *wrong)), match=match)
    assert after.recall == before.recall
    assert after.precision < before.precision or before.precision == after.precision == 0.0
    assert after.f <= before.f


@given(
    st.lists(st.sampled_from(["Paris", "London", "Rome", "Nairobi", "Quito"]), min_size=2, max_size=5, unique=True),
    st.sampled_from([" or ", "; ", ", ", " / ", " and "]),
)
def test_r1_alternatives_lower_precision_as_key_and_as_value(names, separator):
    listed = separator.join(names)
    task = make_task(
        Target(form="France", type="country", layer=2, owner="T", relation="name", final=True),
        value("France", "capital", names[0], "place"),
    )
    score = score_answer(task, Answer(rows=(("France", listed),)))
    assert score.precision <= 2 / (1 + len(names)) + 1e-12
    keys = make_task(Target(form=names[0], type="place", layer=2, owner="T", relation="name", final=True))
    assert f_of(keys, [(listed,)]) == 0.0
    assert score_answer(keys, Answer(rows=tuple((n,) for n in names))).precision == pytest.approx(1 / len(names))


@given(st.integers(1, 50), st.integers(1, 3), st.sampled_from(["bound", "flat"]))
def test_r2_a_right_entity_said_many_times_counts_once(copies, wrong, match):
    task = make_task(name("Beyoncé", aliases=("Beyoncé Knowles",)), name("Adele Adkins"))
    rows = [(text,) for text in ("Beyoncé", "Beyonce", "BEYONCÉ KNOWLES") for _ in range(copies)]
    rows += [(f"Nobody No{'xyz'[i]}",) for i in range(wrong)]
    score = score_answer(task, Answer(rows=tuple(rows)), match=match)
    assert (score.precision, score.recall) == (pytest.approx(1 / (1 + wrong)), 0.5)
    assert f_of(task, [(" ".join(["Beyoncé"] * 3),)], match=match) == 0.0


@pytest.mark.parametrize("rows", [[], [()], [("",)], [("", "–"), (" ",)]])
@pytest.mark.parametrize("match", ["bound", "flat"])
def test_r3_an_empty_answer_scores_nothing(rows, match):
    score = score_answer(UNION, Answer(columns=COLUMNS, rows=tuple(rows)), match=match)
    assert (score.precision, score.recall, score.f) == (0.0, 0.0, 0.0)


def test_r3_an_empty_gold_is_refused_or_scores_nothing():
    with pytest.raises(ValueError, match="without gold"):
        make_task(name("William Golding", final=False))
    assert f_of(make_task(name("–"), name(" ")), [("–",), ("x",), ("",)]) == 0.0


# ----------------------------------------------------------------------------------------------------- headers


def test_a_value_in_the_column_of_another_relation_scores_nothing_and_any_other_header_does_not_matter():
    swapped = [("William Golding", "1983", "1980")]
    right = score_answer(UNION, Answer(rows=tuple(swapped)))
    assert score_answer(UNION, Answer(columns=("name", "x", "y"), rows=tuple(swapped))) == right
    assert score_answer(UNION, Answer(columns=("name", "year", "Year"), rows=tuple(swapped))) == right
    wrong = score_answer(UNION, Answer(columns=("name", YEAR_B, YEAR_N), rows=tuple(swapped)))
    assert (right.precision, wrong.precision) == (1.0, pytest.approx(1 / 3))


def test_a_qualified_column_also_holds_the_values_on_which_all_sources_agree():
    task = make_task(
        name("A B"),
        value("A B", "year", "1980"),
        name("C D"),
        value("C D", YEAR_B, "1981"),
        value("C D", YEAR_N, "1982"),
    )
    assert f_of(task, [("A B", "1980", ""), ("C D", "1981", "1982")], ("name", YEAR_B, YEAR_N)) == 1.0
    assert f_of(task, [("A B", "1980", ""), ("C D", "1982", "1981")], ("name", YEAR_B, YEAR_N)) < 1.0


def test_qualifiers_may_hold_brackets_and_contain_each_other():
    one, two = "page (Rules (1984) (table 1))", "page (Rules (1984) (table 1) again)"
    task = make_task(
        name("A B"), value("A B", one, "29"), value("A B", two, "31"), name("C D"), value("C D", "page", "30")
    )
    rows = [("A B", "29", "31"), ("C D", "30", "")]
    assert f_of(task, rows, ("name", one, two)) == f_of(task, rows, ("name", "page", "page")) == 1.0
    assert f_of(task, [("A B", "31", "29"), ("C D", "30", "")], ("name", one, two)) == pytest.approx(0.6)


def test_a_text_may_be_a_key_and_a_value():
    task = make_task(
        name("Ann Lee"),
        name("Bob Ray"),
        value("Ann Lee", "successor", "Bob Ray", "person"),
        value("Bob Ray", "successor", "Ann Lee", "person"),
    )
    assert f_of(task, [("Ann Lee", "Bob Ray"), ("Bob Ray", "Ann Lee")]) == 1.0
    alone = score_answer(task, Answer(rows=(("Ann Lee", "Ann Lee"),)))
    assert (alone.precision, alone.recall) == (0.5, 0.25)


def test_an_owner_that_is_not_asked_for_binds_its_row_and_claims_nothing():
    task = make_task(name("Ann Lee", final=False), value("Ann Lee", "year", "1980"))
    assert f_of(task, [("Ann Lee", "1980")]) == 1.0
    assert f_of(task, [("Bob Ray", "1980")]) == 0.0


@pytest.mark.parametrize("options", [{"w": -1.0}, {"w": math.nan}, {"match": "loose"}, {"over": "some"}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=r"w is|use bound"):
        f_of(UNION, EXACT, **options)


def test_a_large_answer_is_scored_quickly():
    rng = random.Random(0)
    task, people, years, _ = prize_lists(common=100, nobel=300, booker=300)
    rows = [(p, years[NOBEL].get(p, ""), years[BOOKER].get(p, "")) for p in people]
    rng.shuffle(rows)
    start = time.process_time()
    f_of(task, rows)
    assert time.process_time() - start < 2.0
