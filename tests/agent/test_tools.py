import itertools
import sys
import types

import pytest

from webleaper_jax.agent.engine import InfrastructureError
from webleaper_jax.agent.reader import relevant_columns
from webleaper_jax.agent.tools import ToolLimits, Tools
from webleaper_jax.agent.web import Hit, Page, PageNotFound


class SmallWeb:
    """Finds `{query}1`, `{query}2`, ... and has the pages `p1`, `p2`, `long`."""

    fingerprint = "small"

    def search(self, query, filter_year=None, k=10):
        if query == "down":
            raise InfrastructureError("rate limit")
        if filter_year == 1000 or query == "nothing":
            return []
        return [Hit(f"{query}{n}", f"u/{query}{n}", "snippet " * 30) for n in range(1, k + 1)]

    def visit(self, url):
        if url not in ("p1", "p2", "long"):
            raise PageNotFound(url)
        text = "# long\n" + "\n".join(f"row {n}" for n in range(200)) if url == "long" else f"# {url}\ntext"
        return Page(url, url, text, url)


def test_results_are_numbered_lines_shared_by_the_queries_in_turn():
    tools = Tools(SmallWeb(), ToolLimits(max_results=5, max_snippet=20))
    seen = tools.run("search", {"queries": ["a", "b", "a"]})
    assert seen.urls == ("u/a1", "u/b1", "u/a2", "u/b2", "u/a3")
    lines = seen.text.split("\n")
    assert lines[0] == "1. a1 | u/a1 | snippet snippet s..."
    assert [line.split(".")[0] for line in lines] == ["1", "2", "3", "4", "5"]
    assert (seen.tool, seen.error) == ("search", "")


@pytest.mark.parametrize("queries", range(1, 6))
@pytest.mark.parametrize("limit", range(1, 6))
def test_limits_hold_over_all_queries_of_a_call(queries, limit):
    tools = Tools(SmallWeb(), ToolLimits(max_results=limit, max_queries=3))
    seen = tools.run("search", {"queries": [f"q{n}" for n in range(queries)]})
    assert len(seen.urls) == limit
    assert ("only the first 3 queries were run" in seen.text) == (queries > 3)


def test_no_results_are_said_without_repeating_the_query():
    seen = Tools(SmallWeb()).run("search", {"queries": ["nothing"]})
    assert seen.text == "no results; try other words"
    assert "filter_year" in Tools(SmallWeb()).run("search", {"queries": ["x"], "filter_year": 1000}).text


def test_a_failing_web_is_no_observation():
    with pytest.raises(InfrastructureError):
        Tools(SmallWeb()).run("search", {"queries": ["down"]})


def test_pages_over_the_limit_are_named_as_not_opened():
    seen = Tools(SmallWeb(), ToolLimits(max_urls=1)).run("visit", {"urls": ["p1", "p2"]})
    assert seen.text == "# p1\ntext\nonly 1 of 2 pages were opened; open the others in further calls"
    assert seen.urls == ("p1",)
    both = Tools(SmallWeb(), ToolLimits(max_urls=2)).run("visit", {"urls": ["p1", "p2"]})
    assert (both.text, both.urls) == ("# p1\ntext\n# p2\ntext", ("p1", "p2"))


def test_missing_pages_are_told_and_block_no_others():
    seen = Tools(SmallWeb()).run("visit", {"urls": ["Nurek Dam"]})
    assert seen.text == "error: no such page; use an address from a search or a page"
    assert (seen.error, seen.urls) == ("page not found", ())
    mixed = Tools(SmallWeb(), ToolLimits(max_urls=2)).run("visit", {"urls": ["w/9", "p2"]})
    assert (mixed.error, mixed.urls) == ("", ("p2",))
    assert mixed.text == "error: no such page; use an address from a search or a page\n# p2\ntext"


@pytest.mark.parametrize("limit", [30, 100, 500])
def test_observations_are_cut_at_a_lines_end(limit):
    full = SmallWeb().visit("long").text
    text = Tools(SmallWeb(), ToolLimits(max_chars=limit)).run("visit", {"urls": ["long"]}).text
    assert text.endswith("\n(cut)")
    assert len(text) <= limit + len("\n(cut)")
    assert full.startswith(text.removesuffix("(cut)"))


def test_a_reader_gets_the_goal_of_the_call_or_of_the_episode():
    tools = Tools(SmallWeb(), reader=lambda text, goal: f"{goal}: {text.splitlines()[0]}")
    assert tools.run("visit", {"urls": ["p1"], "goal": "own"}, "task").text == "own: # p1"
    assert tools.run("visit", {"urls": ["p1"]}, "task").text == "task: # p1"


def test_fingerprints_and_hashes_tell_what_differs(monkeypatch):
    def with_reader(module, name, version):
        """Of tools whose reader is a function of this name, in a module of this version."""
        monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(VERSION=version))

        def reader(text, goal):
            return text

        reader.__module__, reader.__qualname__ = module, name
        return Tools(SmallWeb(), reader=reader).fingerprint

    every_limits = (None, ToolLimits(max_urls=2), ToolLimits(max_chars=9))
    prints = [Tools(SmallWeb(), limits).fingerprint for limits in every_limits]
    prints += [with_reader(*which) for which in itertools.product(("a", "b"), ("first", "second"), (1, 2))]
    prints += [Tools(SmallWeb(), reader=relevant_columns).fingerprint]
    assert len(set(prints)) == len(prints) == 12
    assert Tools(SmallWeb()).fingerprint in prints
    assert with_reader("b", "second", 2) in prints
    tools = Tools(SmallWeb())
    one, two = tools.run("visit", {"urls": ["p1"]}), tools.run("visit", {"urls": ["p2"]})
    assert one.content_hash == tools.run("visit", {"urls": ["p1"]}).content_hash != two.content_hash


def test_an_unknown_tool_is_a_mistake_of_the_caller():
    with pytest.raises(KeyError):
        Tools(SmallWeb()).run("python", {})
