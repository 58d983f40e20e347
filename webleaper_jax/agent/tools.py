"""The two tools, `search` and `visit`: from a call's arguments to the text that the policy reads.

An observation is made of lines. Search results are `1. {title} | {address} | {snippet}`; a visit shows parts of pages
as they are. What the caller wrote (queries, addresses that do not exist) is never echoed, since a policy could "find"
its own guesses there; what was left out is said in a line of its own.
"""

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from webleaper_jax.agent.web import Hit, PageNotFound, Web
from webleaper_jax.records import AtLeast1

TOOLS_VERSION = 1


class ToolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one call may ask for and show.

    `max_results` counts over all queries of a call. `max_chars` bounds a whole observation (in characters), which is
    cut at a line's end: keep it above the corpus's `chars_per_part`, or rows are shown by no part. `max_snippet` bounds
    each snippet. The default lets one call show one part of one page.
    """

    max_queries: AtLeast1 = 3
    max_results: AtLeast1 = 3
    max_urls: AtLeast1 = 1
    max_chars: AtLeast1 = 2000
    max_snippet: AtLeast1 = 80


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What a call showed. `urls` in the order listed or opened; `error` is empty, or says in short what went wrong."""

    text: str
    tool: Literal["search", "visit"]
    urls: tuple[str, ...] = ()
    error: str = ""

    @property
    def content_hash(self) -> str:
        return hashlib.blake2b(self.text.encode(), digest_size=8).hexdigest()


class Tools:
    """The tools over a web. `run` may be called from several threads.

    Args:
      reader: turns a page's text and a goal into what is shown of it; None shows the page as it is.
    """

    def __init__(self, web: Web, limits: ToolLimits | None = None, reader: Callable[[str, str], str] | None = None):
        self.web = web
        self.limits = limits or ToolLimits()
        self.reader = reader

    @property
    def fingerprint(self) -> str:
        """Equal for tools that show equal things of equal webs.

        A reader counts by its name, its module, and that module's `VERSION` where it has one.
        """
        reader: tuple[object, ...] = ()
        if self.reader:
            name = getattr(self.reader, "__qualname__", type(self.reader).__qualname__)
            module = sys.modules.get(self.reader.__module__)
            reader = (self.reader.__module__, name, getattr(module, "VERSION", 0))
        text = msgspec.json.encode([TOOLS_VERSION, reader, self.limits])
        return hashlib.blake2b(text, digest_size=8).hexdigest()

    def run(self, name: str, arguments: Mapping[str, Any], goal: str = "") -> Observation:
        """Runs one call, its arguments as `protocol.ParsedCall` holds them.

        Args:
          goal: what to look for when a visit names no goal of its own.

        Raises:
          InfrastructureError: the web failed; that is no observation.
          KeyError: there is no tool of this name (the parser lets none through).
        """
        if name == "search":
            return self._search(arguments["queries"], arguments.get("filter_year"))
        if name == "visit":
            return self._visit(arguments["urls"], arguments.get("goal") or goal)
        raise KeyError(name)

    def _search(self, queries: Sequence[str], filter_year: int | None) -> Observation:
        limits = self.limits
        found = [self.web.search(query, filter_year, limits.max_results) for query in queries[: limits.max_queries]]
        hits = _take_turns(found, limits.max_results)
        lines = [
            f"{n}. {hit.title} | {hit.url} | {_short(hit.snippet, limits.max_snippet)}" for n, hit in enumerate(hits, 1)
        ]
        if not hits:
            lines.append("no results; try other words" + (" or leave out filter_year" if filter_year else ""))
        if len(queries) > limits.max_queries:
            lines.append(f"only the first {limits.max_queries} queries were run")
        return self._observation(lines, "search", [hit.url for hit in hits])

    def _visit(self, urls: Sequence[str], goal: str) -> Observation:
        lines: list[str] = []
        opened: list[str] = []
        missing = False
        for url in urls[: self.limits.max_urls]:
            try:
                page = self.web.visit(url)
            except PageNotFound:
                missing = True
                lines.append("error: no such page; use an address from a search or a page")
                continue
            opened.append(page.url)
            lines += (self.reader(page.text, goal) if self.reader else page.text).splitlines()
        if len(urls) > self.limits.max_urls:
            lines.append(
                f"only {self.limits.max_urls} of {len(urls)} pages were opened; open the others in further calls"
            )
        error = "page not found" if missing and not opened else ""
        return self._observation(lines, "visit", opened, error)

    def _observation(
        self, lines: Sequence[str], tool: Literal["search", "visit"], urls: Sequence[str], error: str = ""
    ) -> Observation:
        return Observation(text=_fit(lines, self.limits.max_chars), tool=tool, urls=tuple(urls), error=error)


def _take_turns(found: Sequence[Sequence[Hit]], limit: int) -> list[Hit]:
    """The best hits of several queries: the first of each, then the second of each, no page twice."""
    hits: dict[str, Hit] = {}
    for rank in range(max(map(len, found), default=0)):
        for results in found:
            if rank < len(results):
                hits.setdefault(results[rank].url, results[rank])
    return list(hits.values())[:limit]


def _short(text: str, limit: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3].rstrip() + "..."


def _fit(lines: Sequence[str], limit: int) -> str:
    """Joins lines up to `limit` characters; a first line that is longer than that is cut."""
    text = "\n".join(lines)
    if len(text) <= limit:
        return text
    end = text.rfind("\n", 0, limit)
    return (text[:end] if end > 0 else text[:limit]) + "\n(cut)"
