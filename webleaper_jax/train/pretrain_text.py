"""Stage (b) of the tiny base's pre-training: made-up tables, and requests whose answers stand in them.

A document is a few tables, cut into pages, mixed with numbered lists and other tables, then requests, each followed by
its answer. Names are put together from cells of the tables given (those of the training families) and from made-up
syllables, so that no answer can be known but by reading. Only answers count in the loss.

What the text never holds: trajectories, tool calls, chat markers, or answers in the policy's form. Answers here are
written with separators of their own, drawn anew for each request.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

SEPARATORS = ("; ", " / ", " - ", ": ", ", ", " = ", " > ", " & ")
_ONSETS = [
    "b",
    "br",
    "c",
    "ch",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "kl",
    "l",
    "m",
    "n",
    "p",
    "pr",
    "qu",
    "r",
    "s",
    "sh",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "y",
    "z",
]
_VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "ou", "é", "ö"]
_CODAS = ["", "", "l", "n", "r", "s", "t", "ck", "nd", "rt"]


@dataclasses.dataclass(frozen=True)
class Words:
    """What names, values and titles are made of: the cells, column names and titles of the training families."""

    cells: tuple[str, ...]
    columns: tuple[str, ...]
    titles: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class MadeTable:
    """A made-up table; the first column is the key."""

    title: str
    address: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


# What an answer does; 0 stands for text that is no answer.
KINDS = ("restate", "where", "both", "cell", "address", "same")


@dataclasses.dataclass(frozen=True)
class Piece:
    """Text, and what kind of answer it is (empty: none, it does not count in the loss)."""

    text: str
    kind: str = ""


class TextMaker:
    """Draws documents. `size` grows with the context: about how many cells the tables of a document hold."""

    def __init__(self, words: Words, rng: np.random.Generator):
        self.words = words
        self.rng = rng
        self.bar = " | "  # what stands between the cells of a row, drawn anew for each document
        self.overlap = 0  # how many rows of the page before a page begins with, drawn anew for each document

    def document(self, cells: int) -> tuple[str, Iterator[list[Piece]]]:
        """Returns a context with tables of about that many cells, and endless requests about it with their answers.

        In half of the documents a request stands before the tables, and is answered first after them.
        """
        self.bar = " | " if self._chance(0.25) else self._pick(SEPARATORS)
        self.overlap = int(self._chance(0.75))
        tables = self._tables(cells)
        context = "\n".join(self._blocks(tables)) + "\n"
        requests = (self._request(tables) for _ in itertools.count())
        if self._chance(0.5):
            asked, answer = self._request(tables, whole_rows=True)
            return f"Asked: {asked.text}{context}", itertools.chain([[Piece("To what was asked:\n"), answer]], requests)
        return context, requests

    # ------------------------------------------------------------------------------------------------------- names

    def _chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def _pick(self, items: Sequence[str]) -> str:
        return items[int(self.rng.integers(len(items)))]

    def _word(self) -> str:
        """A made-up word of one to three syllables."""
        syllables = [
            self._pick(_ONSETS) + self._pick(_VOWELS) + self._pick(_CODAS)
            for _ in range(int(self.rng.choice([1, 1, 2, 2, 3])))
        ]
        word = "".join(syllables)
        return word.capitalize() if self._chance(0.85) else word

    def _name(self) -> str:
        """A name of one to four words, real, made up or mixed, so that no two of them go together by habit."""
        kind = self.rng.random()
        if kind < 0.4:
            return self._pick(self.words.cells)[:32].strip() or self._word()
        words = []
        for _ in range(int(self.rng.choice([1, 1, 2, 2, 2, 3]))):
            real = self._pick(self.words.cells).split() if self._chance(0.55) else []
            words.append(self._pick(real)[:14] if real else self._word())
        return " ".join(words)

    def _title(self) -> str:
        kind = self.rng.random()
        if kind < 0.35:
            return self._pick(self.words.titles)[:70]
        if kind < 0.6:
            a, b = (self._pick(self.words.titles).split(": ")[0] for _ in range(2))
            return f"{a[:30].strip()}: {b[:30].strip()}"
        if kind < 0.8:
            return f"{self._pick(('List of', 'Table of', 'All', 'History of'))} {self._name()}"
        return f"{self.rng.integers(1900, 2024)} {self._name()}"

    def _column_values(self, name: str, rows: int) -> list[str]:
        """The values of one column: years, numbers, dates, a few repeated names, or names."""
        kind = int(self.rng.integers(6))
        if kind <= 1:
            first = int(self.rng.integers(1880, 2000))
            years = first + self.rng.integers(0, 60, rows)
            return [str(min(int(y), 2023)) for y in (np.sort(years) if self._chance(0.4) else years)]
        if kind == 2:
            top = int(self.rng.choice([30, 1000, 100_000]))
            return [f"{n:,}" if self._chance(0.5) else str(n) for n in self.rng.integers(0, top, rows)]
        if kind == 3:
            few = [self._name() for _ in range(max(2, rows // 3))]
            return [self._pick(few) for _ in range(rows)]
        empty = 0.3 if self._chance(0.15) else 0.0
        return ["" if self._chance(empty) else self._name() for _ in range(rows)]

    # ------------------------------------------------------------------------------------------------------ tables

    def _tables(self, cells: int) -> list[MadeTable]:
        """One to four tables; when there are several, the second shares some keys with the first."""
        number = int(self.rng.integers(1, 5)) if cells > 24 else int(self.rng.integers(1, 3))
        tables: list[MadeTable] = []
        taken: set[str] = set()
        for index in range(number):
            columns_n = int(self.rng.choice([1, 2, 2, 2, 3, 3, 4, 5]))
            rows_n = max(2, min(24, int(cells / number / columns_n * self.rng.uniform(0.7, 1.3))))
            keys = self._keys(rows_n)
            if index == 1:
                shared = [row[0] for row in tables[0].rows if self._chance(0.5)]
                keys = list(dict.fromkeys([*shared, *keys]))[: max(rows_n, len(shared))]
                keys = [keys[i] for i in self.rng.permutation(len(keys))]
            columns = list(dict.fromkeys(self._column() for _ in range(columns_n)))
            values = [self._column_values(name, len(keys)) for name in columns[1:]]
            title = self._title()
            if title in taken:
                continue
            taken.add(title)
            address = f"{self._pick('wwed')}/{self.rng.integers(1, 900)}"
            tables.append(MadeTable(title, address, tuple(columns), tuple(zip(keys, *values, strict=True))))
        return tables

    def _keys(self, number: int) -> list[str]:
        """Names that differ; now and then those of one table begin or end in the same words, as real ones do."""
        shared = self._name()[:16].strip() if self._chance(0.3) else ""
        names = [self._name() for _ in range(number)]
        if shared and self._chance(0.6):
            names = [f"{name} {shared}" if self._chance(0.7) else name for name in names]
        elif shared:
            names = [f"{shared} {name}" if self._chance(0.7) else name for name in names]
        return list(dict.fromkeys(names))

    def _column(self) -> str:
        return self._pick(self.words.columns)[:24] if self._chance(0.85) else self._word()

    def _blocks(self, tables: Sequence[MadeTable]) -> list[str]:
        """Pages of the tables in their order, the tables' pages mixed, and now and then a numbered list of titles.

        In half of the documents lines of a few words stand between them, as they do between the pages that one reads.
        """
        queues = [self._pages(table) for table in tables]
        if self._chance(0.5):
            queues.append([self._numbered(tables)])
        between = self._chance(0.5)
        blocks: list[str] = []
        while any(queues):
            if between and blocks:
                blocks.append(self._between(tables))
            weights = np.array([len(queue) for queue in queues], float)
            blocks.append(queues[int(self.rng.choice(len(queues), p=weights / weights.sum()))].pop(0))
        return blocks

    def _between(self, tables: Sequence[MadeTable]) -> str:
        address = f"{tables[int(self.rng.integers(len(tables)))].address}?p={self.rng.integers(2, 6)}"
        words = [self._word() for _ in range(int(self.rng.integers(1, 6)))]
        words.insert(int(self.rng.integers(len(words) + 1)), address)
        return "\n".join([" ".join(words), *(self._word() for _ in range(int(self.rng.integers(0, 3))))])

    def _pages(self, table: MadeTable) -> list[str]:
        rows, per = table.rows, max(1, int(len(table.rows) * self.rng.choice([0.34, 0.34, 0.5, 1.0])))
        step = max(1, per - self.overlap)
        starts = range(0, max(1, len(rows) - (per - step)), step)
        parts = [rows[start : start + per] for start in starts]
        pages = []
        for number, part in enumerate(parts, start=1):
            of = f" (page {number} of {len(parts)})" if len(parts) > 1 or self._chance(0.5) else ""
            lines = [f"# {table.title}{of}", self.bar.join(table.columns), *(self.bar.join(row) for row in part)]
            if number < len(parts):
                lines.append(f"next: {table.address}?p={number + 1}")
            pages.append("\n".join(lines))
        return pages

    def _numbered(self, tables: Sequence[MadeTable]) -> str:
        lines = [(t.title, t.address, f"{', '.join(t.columns)}; {len(t.rows)} rows") for t in tables]
        lines += [
            (self._title(), f"{self._pick('wed')}/{self.rng.integers(1, 900)}", self._name())
            for _ in range(int(self.rng.integers(0, 4)))
        ]
        order = self.rng.permutation(len(lines))
        return "\n".join(f"{n}. {' | '.join(lines[i])}" for n, i in enumerate(order, start=1))

    # ---------------------------------------------------------------------------------------------------- requests

    def _request(self, tables: Sequence[MadeTable], whole_rows: bool = False) -> list[Piece]:
        """A request and its answer; with `whole_rows` one whose answer is rows."""
        table = tables[int(self.rng.integers(len(tables)))]
        kinds: list[tuple[float, Callable[[], list[Piece]]]] = [
            (4.0, lambda: self._restate(table)),
            (1.5, lambda: self._where(table)),
            (1.0, lambda: self._same(table)),
        ]
        if not whole_rows:
            kinds += [(1.0, lambda: self._cell(table)), (0.7, lambda: self._address(table))]
        if len(tables) > 1:
            kinds.append((3.0, lambda: self._both(tables[0], tables[1])))
        weights = np.array([w for w, _ in kinds])
        return kinds[int(self.rng.choice(len(kinds), p=weights / weights.sum()))][1]()

    def _columns_wanted(self, table: MadeTable) -> list[int]:
        """All columns as they stand, some from the first on, or the first and up to two others; now and then another
        column leads."""
        if self._chance(0.65):
            number = len(table.columns) if self._chance(0.7) else int(self.rng.integers(1, 4))
            return list(range(min(number, len(table.columns))))
        lead = 0 if self._chance(0.7) else int(self.rng.integers(len(table.columns)))
        others = [int(i) for i in self.rng.permutation(len(table.columns)) if i != lead]
        return [lead, *sorted(others[: int(self.rng.integers(0, 3))])]

    def _answer(
        self, kind: str, table: MadeTable, rows: Sequence[tuple[str, ...]], wanted: Sequence[int], request: str
    ) -> list[Piece]:
        """The request lists the columns with the answer's separator: often that of the pages, but never a bar."""
        separator = self.bar if self.bar != " | " and self._chance(0.85) else self._pick(SEPARATORS)
        header = separator.join(table.columns[i] for i in wanted)
        header = header.lower() if self._chance(0.6) else header
        lines = [separator.join(row[i] for i in wanted) for row in rows]
        head = [f"columns: {header}"] if self._chance(0.6) else []
        return [Piece(f"{request} {header}\n"), Piece("\n".join([*head, *lines, "end"]) + "\n", kind)]

    def _restate(self, table: MadeTable) -> list[Piece]:
        request = self._pick(
            (
                'All rows of "{}":', 'Copy out "{}":', 'Everything in "{}":', 'List all in "{}". Columns wanted:',
                'What is in "{}"? Give', 'Go through "{}":',
            )
        ).format(table.title)  # fmt: skip
        return self._answer("restate", table, table.rows, self._columns_wanted(table), request)

    def _where(self, table: MadeTable) -> list[Piece]:
        """Rows where a column has a value, or a year in a range."""
        if len(table.columns) < 2:
            return self._restate(table)
        column = int(self.rng.integers(1, len(table.columns)))
        values = [row[column] for row in table.rows]
        name, title = table.columns[column], table.title
        if all(len(v) == 4 and v.isdigit() for v in values) and self._chance(0.7):
            low, high = sorted(int(y) for y in self.rng.choice([int(v) for v in values], 2))
            rows = [row for row in table.rows if low <= int(row[column]) <= high]
            condition = f"{name} is {low} to {high}"
        else:
            value = max(set(values), key=lambda v: (values.count(v), v)) if self._chance(0.7) else self._pick(values)
            rows = [row for row in table.rows if row[column] == value]
            condition = f"{name} is {value}"
        request = self._pick(('Rows of "{}" whose {}:', 'From "{}" only where {}:', 'In "{}" whose {}. Columns:'))
        return self._answer("where", table, rows, self._columns_wanted(table), request.format(title, condition))

    def _both(self, a: MadeTable, b: MadeTable) -> list[Piece]:
        """Keys that stand in both tables, in the order of the first, with columns of the first or the second."""
        if self._chance(0.5):
            a, b = b, a
        keys = {row[0] for row in b.rows}
        rows = [row for row in a.rows if row[0] in keys]
        request = self._pick(
            (
                'Both in "{}" and in "{}":', 'Shared by "{}" and "{}":', 'Which of "{}" are also in "{}"? Give',
                'Common to "{}" and "{}":', 'Compare "{}" with "{}": in both:',
            )
        ).format(a.title, b.title)  # fmt: skip
        wanted = self._columns_wanted(a)
        if len(b.columns) > 1 and self._chance(0.5):
            column = int(self.rng.integers(1, len(b.columns)))
            second = {row[0]: row[column] for row in b.rows}
            joined_rows = tuple((*row, second.get(row[0], "")) for row in a.rows)
            joined = MadeTable("", "", (*a.columns, b.columns[column]), joined_rows)
            rows = [row for row in joined.rows if row[0] in keys]
            return self._answer("both", joined, rows, [*wanted[:2], len(a.columns)], request)
        return self._answer("both", a, rows, wanted, request)

    def _same(self, table: MadeTable) -> list[Piece]:
        """Rows that have the same value as a row that is told by its key or by another of its values."""
        if len(table.columns) < 2:
            return self._restate(table)
        column = int(self.rng.integers(1, len(table.columns)))
        values = [row[column] for row in table.rows]
        # A value that several rows have, where there is one.
        often = [i for i, value in enumerate(values) if values.count(value) > 1] or list(range(len(values)))
        row = table.rows[often[int(self.rng.integers(len(often)))]]
        clue = int(self.rng.choice([i for i in range(len(row)) if i != column]))
        row = next(r for r in table.rows if r[clue] == row[clue])
        name = table.columns[column]
        request = self._pick(('Rows of "{}" with the same {} as {} {}:', 'In "{}" all whose {} equals that of {} {}:'))
        request = request.format(table.title, name, table.columns[clue], row[clue])
        rows = [r for r in table.rows if r[column] == row[column]]
        return self._answer("same", table, rows, self._columns_wanted(table), request)

    def _cell(self, table: MadeTable) -> list[Piece]:
        """Several single lookups, key to value or value to key, in random order of rows."""
        pieces = []
        for index in self.rng.permutation(len(table.rows))[:4]:
            row = table.rows[index]
            column = int(self.rng.integers(0, len(row)))
            question = f'{table.columns[column]} of "{row[0]}" in "{table.title}": '
            if column == 0:
                column = int(self.rng.integers(0, len(row)))
                question = f'In "{table.title}" {table.columns[column]} {row[column]} is of: '
                row = next(r for r in table.rows if r[column] == row[column])
                pieces += [Piece(question), Piece(row[0] + "\n", "cell")]
            else:
                pieces += [Piece(question), Piece(row[column] + "\n", "cell")]
        return pieces

    def _address(self, table: MadeTable) -> list[Piece]:
        """A numbered list, the line of a title in it, and the address in that line; or the page that follows."""
        if self._chance(0.3):
            number = int(self.rng.integers(2, 5))
            ask = f"# {table.title} (page {number - 1} of 4)\nnext: {table.address}?p={number}\nGo on: "
            return [Piece(ask), Piece(f"{table.address}?p={number}\n", "address")]
        listing = self._numbered([table])
        ask = self._pick(('Address of "{}": ', 'Where is "{}"? ', 'Open "{}": ')).format(table.title)
        return [Piece(f"{listing}\n{ask}"), Piece(f"{table.address}\n", "address")]


def text_batch(
    maker: TextMaker, encode: Callable[[list[str]], list[list[int]]], rows: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens [rows, length + 1] and, for each of the last `length`, its kind of answer (1 + index in KINDS).

    One document a row: a context of 20 to 60 % of the row, then requests until the row is full; the last is cut.
    """
    tokens = np.zeros((rows, length + 1), np.int32)
    kinds = np.zeros((rows, length + 1), np.int8)
    for row in range(rows):
        room = int(length * maker.rng.uniform(0.3, 0.6))
        cells = room / 9.0
        for _ in range(20):
            context, requests = maker.document(max(4, int(cells)))
            ids = encode([context])[0]
            if len(ids) <= room:
                break
            cells = min(cells * 0.8, cells * room / len(ids))
        ids = ids[-room:]  # rows too short for any document hold the end of one
        tokens[row, : len(ids)] = ids
        at = len(ids)
        while at <= length:
            pieces = next(requests)
            for piece, ids in zip(pieces, encode([piece.text for piece in pieces]), strict=True):
                ids = ids[: length + 1 - at]
                tokens[row, at : at + len(ids)] = ids
                kinds[row, at : at + len(ids)] = KINDS.index(piece.kind) + 1 if piece.kind else 0
                at += len(ids)
    return tokens, kinds[:, 1:]
