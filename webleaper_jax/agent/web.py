"""Webs that can be searched and read; the offline one is an index over generated pages.

A web deals in pages of several parts: a visit shows one part, and its text says where the next one is. `OfflineWeb`
ranks with BM25 (tantivy) over title and text; a query that is the very title of a page puts that page first, and equal
scores keep the order of the pages, so that results never depend on threads or on the machine.
"""

import contextlib
import functools
import hashlib
import itertools
import os
import pathlib
import re
import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, runtime_checkable

import msgspec
import tantivy

from webleaper_jax.jsonl import DataError

WEB_VERSION = 2
TITLE_BOOST = 3.0
PAIR_SCORE = 20.0
MAX_QUERY_TOKENS = 32
_FETCHED = 16  # results looked at beyond those asked for, to order equal scores


class WebPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page as it is indexed. Part k > 1 has the address `{url}?p={k}`.

    `snippet` is what search results show of it. `years` are those that `filter_year` finds it by.
    """

    url: str
    title: str
    kind: Literal["table", "entity", "distractor"]
    parts: tuple[str, ...]
    snippet: str
    years: tuple[int, ...] = ()


class Hit(msgspec.Struct, frozen=True):
    """A search result."""

    title: str
    url: str
    snippet: str


class Page(msgspec.Struct, frozen=True):
    """One part of a page, as a visit shows it. `subject` is what the page is about."""

    title: str
    url: str
    text: str
    subject: str


class PageNotFound(Exception):
    """There is no page at this address: a permanent failure, which a policy may be told."""


@runtime_checkable
class Web(Protocol):
    """A web. Failures that are not the policy's (a rate limit, a dead server) raise `InfrastructureError`."""

    fingerprint: str

    def search(self, query: str, filter_year: int | None = None, k: int = 10) -> list[Hit]: ...

    def visit(self, url: str) -> Page: ...


def tokens(text: str) -> list[str]:
    """Splits text for the index: letters and digits, without case and accents (`Beyoncé` = `beyonce`)."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    return re.findall(r"[^\W_]+", "".join(char for char in plain if not unicodedata.combining(char)))


class OfflineWeb:
    """Pages in an index on disk, opened read-only: deterministic, free, and the same for every process.

    Attributes:
      fingerprint: hash of the pages and of the ranking; equal webs give equal results.
      pages: the pages by address, in the order in which they were given.
    """

    def __init__(self, pages: Sequence[WebPage], index: tantivy.Index):
        """Use `build` or `open`."""
        self.fingerprint = web_fingerprint(pages)
        self.pages = {page.url: page for page in pages}
        self._order = {page.url: number for number, page in enumerate(pages)}
        self._exact: dict[str, list[str]] = {}
        for page in sorted(pages, key=lambda page: page.kind != "table"):
            self._exact.setdefault(" ".join(tokens(page.title)), []).append(page.url)
        self._schema = index.schema
        self._searcher = index.searcher()

    @classmethod
    def build(cls, pages: Iterable[WebPage], directory: str | os.PathLike[str]) -> "OfflineWeb":
        """Builds the index under a temporary name, renames it to `directory`, and opens it.

        An index of the very same pages that is already there is kept; another one, or a damaged one, is replaced.

        Raises:
          ValueError: two pages have one address.
        """
        pages = list(pages)
        if len({page.url for page in pages}) < len(pages):
            raise ValueError("two pages have the same address")
        directory = pathlib.Path(directory)
        mark = directory / "fingerprint"
        if mark.exists() and mark.read_bytes() == web_fingerprint(pages).encode():
            with contextlib.suppress(DataError):
                return cls.open(directory)
        temporary = directory.with_name(f".{directory.name}.{os.getpid()}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        (temporary / "index").mkdir(parents=True)
        _write_index(pages, temporary / "index")
        (temporary / "pages.json").write_bytes(msgspec.json.encode(pages))
        (temporary / "fingerprint").write_text(web_fingerprint(pages))
        shutil.rmtree(directory, ignore_errors=True)
        try:
            os.rename(temporary, directory)
        except OSError:  # another process was faster
            shutil.rmtree(temporary, ignore_errors=True)
        return cls.open(directory)

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> "OfflineWeb":
        """Opens an index. Raises `DataError` when it is missing, damaged, or was made by another version."""
        directory = pathlib.Path(directory)
        try:
            pages = msgspec.json.decode((directory / "pages.json").read_bytes(), type=list[WebPage])
            index = tantivy.Index.open(str(directory / "index"))
            web = cls(pages, index)
            known = (directory / "fingerprint").read_text()
        except (OSError, ValueError, msgspec.DecodeError) as error:
            raise DataError(f"{directory}: no web index here ({error}); build it again from the tables") from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # what tantivy raises on files that are no index
                raise
            raise DataError(f"{directory}: the web index is damaged ({error}); delete it and build it again") from None
        if known != web.fingerprint:
            raise DataError(
                f"{directory}: field `fingerprint` is {known}, the pages give {web.fingerprint}; build it again"
            )
        return web

    def search(self, query: str, filter_year: int | None = None, k: int = 10) -> list[Hit]:
        """Returns the `k` best pages for a query; any text is a query, no character in it is special.

        Pages are found by the words of their title and of all their parts. With `filter_year`, only pages whose title
        or text holds that year; pages without any year are left out then.
        """
        words = list(dict.fromkeys(tokens(query)))[:MAX_QUERY_TOKENS]
        if not words or k < 1:
            return []
        exact = self._exact.get(" ".join(tokens(query)), [])
        # A title stands on the pages of all that its table names: as a query it asks for none of them.
        pairs = [] if exact else list(dict.fromkeys(itertools.pairwise(tokens(query)[:MAX_QUERY_TOKENS])))
        scores = {url: score for score, url in self._ranked(words, pairs, filter_year, k + _FETCHED)}
        for url in exact:
            if filter_year is None or filter_year in self.pages[url].years:
                scores[url] = float("inf") if self.pages[url].kind == "table" else 1e9
        best = sorted(scores, key=lambda url: (-scores[url], self._order[url]))[:k]
        return [Hit(page.title, page.url, page.snippet) for page in map(self.pages.__getitem__, best)]

    def visit(self, url: str) -> Page:
        """Returns one part of a page. Raises `PageNotFound`."""
        address, _, part = url.strip().partition("?p=")
        page = self.pages.get(address)
        number = int(part) if re.fullmatch("[1-9][0-9]{0,5}", part) else 1 if not part else 0
        if page is None or not 1 <= number <= len(page.parts):
            raise PageNotFound(url)
        return Page(page.title, url.strip(), page.parts[number - 1], page.title)

    def _ranked(
        self, words: Sequence[str], pairs: Sequence[tuple[str, str]], filter_year: int | None, limit: int
    ) -> list[tuple[float, str]]:
        """(score, address) of the best pages, scores rounded so that equal ones are equal everywhere.

        Neighbouring words of the query that stand together in a page ("rank 14") count by a constant, whatever the
        page's length: as single words such pairs stand on hundreds of pages.
        """
        should = tantivy.Occur.Should
        clauses = [(should, clause) for word in words for clause in self._word(word)]
        for pair in pairs:
            phrase = tantivy.Query.phrase_query(self._schema, "body", list(pair))
            clauses.append((should, tantivy.Query.const_score_query(phrase, PAIR_SCORE)))
        query = tantivy.Query.boolean_query(clauses)
        if filter_year is not None:
            year = tantivy.Query.const_score_query(
                tantivy.Query.term_query(self._schema, "years", str(filter_year)), 0.0
            )
            query = tantivy.Query.boolean_query([(tantivy.Occur.Must, query), (tantivy.Occur.Must, year)])
        hits = self._searcher.search(query, limit, count=False).hits
        return [(round(float(score), 4), self._searcher.doc(address)["url"][0]) for score, address in hits]

    def _word(self, word: str) -> tuple[tantivy.Query, tantivy.Query]:
        title = tantivy.Query.term_query(self._schema, "title", word)
        return tantivy.Query.boost_query(title, TITLE_BOOST), tantivy.Query.term_query(self._schema, "body", word)


def part_url(url: str, part: int) -> str:
    """The address of part `part` (from 1) of a page."""
    return url if part == 1 else f"{url}?p={part}"


def web_fingerprint(pages: Iterable[WebPage]) -> str:
    """Hash of the pages (texts, hence paging limits, included) and of how they are ranked."""
    digest = hashlib.blake2b(f"{WEB_VERSION} {TITLE_BOOST} {PAIR_SCORE} {MAX_QUERY_TOKENS}".encode(), digest_size=8)
    for page in pages:
        digest.update(msgspec.json.encode(page))
    return digest.hexdigest()


@functools.cache
def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("url", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("title", tokenizer_name="whitespace", index_option="freq")
    builder.add_text_field("body", tokenizer_name="whitespace", index_option="position")
    builder.add_text_field("years", tokenizer_name="whitespace", index_option="basic")
    return builder.build()


def _write_index(pages: Sequence[WebPage], directory: pathlib.Path) -> None:
    """One thread and one commit: one segment, so that document order is page order."""
    writer = tantivy.Index(_schema(), path=str(directory)).writer(heap_size=64_000_000, num_threads=1)
    for page in pages:
        text = " ".join(word for part in page.parts for word in tokens(part))
        document = {"url": page.url, "title": " ".join(tokens(page.title)), "body": text}
        writer.add_document(tantivy.Document(**document, years=" ".join(map(str, page.years))))
    writer.commit()
    writer.wait_merging_threads()
