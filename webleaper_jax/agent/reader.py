"""What a visit shows of a page for a goal, without a language model: the columns that the goal speaks of.

The paper's visit tool returns a summary made for the goal. Here a table's columns are chosen: those that the goal names
outside of quotes (titles stand in quotes). A goal that lists the columns wanted (`team | stadium`) must find every one
of them, else the page is shown as it is: nothing that was asked for is ever hidden. Listed columns come first and in
the goal's order, so that what is shown reads like the table that was asked for. Pages without a table, and goals that
quote no title, change nothing.
"""

import re
import unicodedata
from collections.abc import Sequence

VERSION = 2  # raised when what is shown changes

_QUOTED = re.compile(r'"[^"]*"')
_WORDS = re.compile(r"\w+")
_LISTED = re.compile(r"[^.:;?!,]*\|[^.:;?!]*")  # a list of columns, with what stands before it up to a mark
_BAR = " | "


def relevant_columns(text: str, goal: str) -> str:
    """Returns the page with only the columns that `goal` names.

    Args:
      text: a part of a page, a line for the title (`# ...`), then the table's header and rows, cells between bars.
      goal: a question that quotes a title and names columns.
    """
    lines = text.splitlines()
    if len(lines) < 3 or not lines[0].startswith("# ") or _BAR not in lines[1] or not _QUOTED.search(goal):
        return text
    header = lines[1].split(_BAR)
    said = _QUOTED.sub(" ", goal)
    listed = [_column(item, header, number == 0) for number, item in enumerate(_listed(said))]
    named = [place for place, name in enumerate(header) if _names(said, name)]
    if not named or None in listed:
        return text
    chosen = list(dict.fromkeys([*(place for place in listed if place is not None), *named]))
    shown = [lines[0]]
    for line in lines[1:]:
        cells = line.split(_BAR)
        shown.append(_BAR.join(cells[i] for i in chosen) if len(cells) == len(header) else line)
    return "\n".join(shown)


def _listed(said: str) -> list[str]:
    """The columns that a goal lists between bars, in its order; nothing but an empty item where the list is cut."""
    found = _LISTED.search(said)
    if found and "|" in said[found.end() :]:
        return [""]  # a name with a full stop or a comma: the list goes on behind it
    return [item.strip() for item in found.group().split("|")] if found else []


def _column(item: str, header: Sequence[str], first: bool) -> int | None:
    """The column that a listed item names, with a label in brackets behind it or without; None where there is none.

    Words may stand before the first item of a list ("give team"): it ends in the name of its column. Of several columns
    the one that is spelled alike is meant, then the longest.
    """
    unlabelled = re.sub(r"\s*\([^()]*\)\s*$", "", item)
    found = []
    for place, name in enumerate(header):
        forms = (item, unlabelled) if name.rstrip().endswith(")") or _fold(item) == _fold(name) else (unlabelled,)
        if any(_means(form, name, first) for form in forms):
            alike = item.casefold().strip().endswith(name.casefold())
            found.append((alike, len(_fold(name)), -place))
    return -max(found)[-1] if found else None


def _means(item: str, name: str, first: bool) -> bool:
    words, wanted = _fold(item), _fold(name)
    return bool(wanted) and (words[-len(wanted) :] == wanted if first else words == wanted)


def _names(said: str, name: str) -> bool:
    """Whether the words of a column's name stand in a goal, one after the other."""
    wanted, words = _fold(name), _fold(said)
    return bool(wanted) and any(words[i : i + len(wanted)] == wanted for i in range(len(words) - len(wanted) + 1))


def _fold(text: str) -> list[str]:
    return _WORDS.findall(unicodedata.normalize("NFKC", text).casefold())
