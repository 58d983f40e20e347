import shutil
import string
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webleaper_jax.agent.web import OfflineWeb, PageNotFound, WebPage, tokens
from webleaper_jax.jsonl import DataError

QUERY = st.text(max_size=30) | st.text(st.sampled_from('ab "()[]{}:+-^~*?\\/!&|<>ANDORNOT title: 1999'), max_size=40)


def page(url, title, *parts, kind="entity", years=()):
    return WebPage(url=url, title=title, kind=kind, parts=parts or (f"# {title}",), snippet=f"about {url}", years=years)


PAGES = [
    page(
        "w/1",
        "List of dams in Norway",
        "# dams\nAlta | 1987\nnext",
        "# dams\nVirdnejavri | 1990",
        kind="table",
        years=(1987, 1990),
    ),
    page("w/2", "List of dams in Sweden", "# dams\nTrängslet | 1960", kind="table", years=(1960,)),
    page("e/1", "Alta", "# Alta\nList of dams in Norway | Alta\nList of dams in Norway | dams dams dams"),
    page("e/2", "List of dams in Norway", "an entity of the same name"),
    page("e/3", "Beyoncé", "# Beyoncé"),
    page("d/1", "About List of dams in Norway", "no rows"),
    *(page(f"x/{n}", "same title", "the very same text") for n in range(40)),
]


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    return OfflineWeb.build(PAGES, tmp_path_factory.mktemp("web") / "web")


def test_the_title_of_a_page_finds_it_first_and_tables_before_others(web):
    assert [hit.url for hit in web.search("List of dams in Norway", k=4)][:2] == ["w/1", "e/2"]
    assert web.search("list of DAMS, in norway!", k=1)[0].url == "w/1"
    assert web.search("list of dams in sweden", k=1)[0].url == "w/2"
    assert web.search("dams norway", k=1)[0].url in ("w/1", "e/2")
    assert web.search("beyonce", k=3)[0].title == "Beyoncé" == web.search("BEYONCÉ", k=1)[0].title


def test_pages_are_found_by_the_text_of_any_part(web):
    assert [hit.url for hit in web.search("Virdnejavri")] == ["w/1"]
    assert [hit.snippet for hit in web.search("trangslet")] == ["about w/2"]


def test_equal_scores_keep_page_order_and_results_repeat(web):
    assert [hit.url for hit in web.search("same title", k=12)] == [f"x/{n}" for n in range(12)]
    assert web.search("dams alta norway") == web.search("dams alta norway")
    assert [h.url for h in web.search("dams", k=3)] == [h.url for h in web.search("dams", k=10)][:3]


def test_filter_year_keeps_pages_that_hold_the_year(web):
    assert {hit.url for hit in web.search("dams", 1990)} == {"w/1"}
    assert {hit.url for hit in web.search("List of dams in Norway", 1960)} == {"w/2"}
    assert web.search("dams", 2001) == []
    by_year = web.search("dams in sweden", 1987, 2)
    assert [hit.url for hit in by_year] == ["w/1"]


@settings(max_examples=200, deadline=None)
@given(query=QUERY, year=st.none() | st.integers(1000, 2100), k=st.integers(0, 5))
def test_any_text_is_a_query(web, query, year, k):
    hits = web.search(query, year, k)
    assert len(hits) <= k
    assert len({hit.url for hit in hits}) == len(hits)


def test_queries_without_words_find_nothing_and_long_ones_are_bounded(web):
    assert web.search("") == web.search('":*?()') == web.search("dams", k=0) == []
    assert web.search(" ".join(["dams", *string.ascii_letters * 500]), k=1)


def test_visits_show_one_part_and_unknown_addresses_are_not_found(web):
    assert web.visit("w/1").text == PAGES[0].parts[0] == web.visit(" w/1?p=1 ").text
    assert web.visit("w/1?p=2").text == PAGES[0].parts[1]
    assert web.visit("w/1?p=2").url == "w/1?p=2"
    assert web.visit("w/1").subject == "List of dams in Norway"
    for url in (
        "w/9",
        "",
        "w/1?p=3",
        "w/1?p=0",
        "w/1?p=x",
        "w/1?p=-1",
        "w/1?p=" + "9" * 400,
        "http://x",
        "../pages.json",
    ):
        with pytest.raises(PageNotFound):
            web.visit(url)


def test_an_index_is_built_once_and_opened_again_as_it_was(web, tmp_path):
    first = OfflineWeb.build(PAGES, tmp_path / "web")
    files = {f: f.stat().st_mtime_ns for f in (tmp_path / "web").rglob("*")}
    again = OfflineWeb.build(PAGES, tmp_path / "web")
    assert {f: f.stat().st_mtime_ns for f in (tmp_path / "web").rglob("*")} == files
    assert first.fingerprint == again.fingerprint == OfflineWeb.open(tmp_path / "web").fingerprint == web.fingerprint
    assert again.search("dams") == web.search("dams")
    other = OfflineWeb.build(PAGES[:-1], tmp_path / "web")
    assert other.fingerprint != first.fingerprint
    assert "x/39" not in other.pages
    assert [f.name for f in tmp_path.iterdir()] == ["web"]


def test_the_fingerprint_depends_on_every_field_of_a_page(tmp_path):
    base = page("a", "b", "c")
    others = [
        page("b", "b", "c"),
        page("a", "c", "c"),
        page("a", "b", "d"),
        page("a", "b", "c", "c"),
        page("a", "b", "c", years=(1999,)),
    ]
    prints = {OfflineWeb.build([one], tmp_path / "web").fingerprint for one in [base, *others]}
    assert len(prints) == 1 + len(others)


def test_missing_and_damaged_indexes_are_one_clear_error(tmp_path):
    with pytest.raises(DataError, match="no web index here"):
        OfflineWeb.open(tmp_path / "none")
    OfflineWeb.build(PAGES, tmp_path / "web")
    (tmp_path / "web" / "fingerprint").write_text("other")
    with pytest.raises(DataError, match="build it again"):
        OfflineWeb.open(tmp_path / "web")
    (tmp_path / "web" / "pages.json").write_text("[{")
    with pytest.raises(DataError, match="no web index here"):
        OfflineWeb.open(tmp_path / "web")
    with pytest.raises(ValueError, match="same address"):
        OfflineWeb.build([PAGES[0], PAGES[0]], tmp_path / "two")


@pytest.mark.parametrize("damage", ["cut", "missing", "junk"])
def test_a_damaged_index_is_built_anew(web, tmp_path, damage):
    """The mark says that it is the index of these pages, and it cannot be opened: whichever of its files it is."""
    OfflineWeb.build(PAGES, tmp_path / "whole")
    refused = 0
    for file in [path for path in (tmp_path / "whole").rglob("*") if path.is_file()]:
        folder = tmp_path / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", folder)
        copy = folder / file.relative_to(tmp_path / "whole")
        copy.write_bytes(copy.read_bytes()[: copy.stat().st_size // 2])
        if damage == "missing":
            copy.unlink()
        if damage == "junk":  # as long as it was
            copy.write_bytes(b"\xa5" * (tmp_path / "whole" / file).stat().st_size)
        try:
            OfflineWeb.open(folder)
        except DataError:
            refused += 1
            assert OfflineWeb.build(PAGES, folder).search("dams alta norway") == web.search("dams alta norway")
            assert OfflineWeb.open(folder).fingerprint == web.fingerprint
    assert refused >= 4


def test_threads_get_the_same_results(web):
    queries = ["dams", "alta", "same title", "norway list"] * 10
    results: dict[int, list] = {}

    def work(number):
        results[number] = [web.search(query) for query in queries]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(result == results[0] for result in results.values())


def test_tokens_ignore_case_accents_and_signs():
    assert tokens("Beyoncé's  “Löve”, 3–4!") == ["beyonce", "s", "love", "3", "4"] == tokens("beyonce s LOVE 3 4")
