"""Reading JSON that a policy wrote: valid, nearly valid, or not at all; never raises, never guesses."""

import ast
import json
import re
import warnings
from typing import Any

import json_repair


def unfenced(text: str) -> str:
    """Text without the code fence (three backticks, a language) around it."""
    text = text.strip()
    if not text.startswith("```"):
        return text
    first, _, rest = text[3:].partition("\n")
    body = rest if first.strip().isalpha() or not first.strip() else text[3:]
    return body.strip().removesuffix("```").strip()


def load(text: str) -> Any:
    """Reads JSON (control characters in strings allowed); None where it is none."""
    try:
        return None if too_deep(text) else json.loads(text, strict=False)
    except ValueError:
        return None


def too_deep(text: str) -> bool:
    """Whether brackets nest deeper than any call or answer does (parsers recurse, and would run out of stack)."""
    depth = 0
    for char in text:
        depth += (char in "[{(") - (char in "]})")
        if depth > 40:
            return True
    return False


def valid(text: str) -> str:
    """Text without lone surrogates, which JSON can spell and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


def read_objects(text: str, *, repair: bool) -> list[dict[str, Any]] | None:
    """Reads one or more JSON objects, None if the text can be read in no way or in several.

    Equal neighbours are one object; closers, commas and empty quotes left over after an object are ignored. With
    `repair`, a single broken object is mended if the mended one holds the very strings that stand in the text.
    """
    text = unfenced(text)
    if too_deep(text):
        return None
    found: list[dict[str, Any]] = []
    rest = text
    while rest.startswith("{"):
        try:
            item, end = json.JSONDecoder(strict=False).raw_decode(rest)
        except ValueError:
            break
        found += [item] if item not in found[-1:] else []
        rest = rest[end:].lstrip(" \t\r\n,}])\"'")
    if found and not rest:
        return found
    whole = load(text)
    if isinstance(whole, list) and whole and all(isinstance(item, dict) for item in whole):
        return whole
    if found or not repair or not text.startswith("{"):
        return None
    mended = _mend(text)
    return [mended] if mended else None


def _mend(text: str) -> dict[str, Any] | None:
    """Mends a broken JSON object (single quotes, missing braces, trailing commas), None where that would be a guess."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # odd escapes in a policy's text are no news
            mended = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):  # TypeError: a key that is a list
        mended = json_repair.loads(text)
    # neither reader may lose, join or complete a string
    if not isinstance(mended, dict) or _strings(mended) != [_unquote(quoted) for quoted in re.findall(_QUOTED, text)]:
        return None
    return mended or None


_QUOTED = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\''


def _unquote(quoted: str) -> str:
    loaded = load('"' + quoted[1:-1].replace('"', '\\"') + '"' if quoted[0] == "'" else quoted)
    return loaded if isinstance(loaded, str) else quoted[1:-1]


def _strings(value: Any) -> list[str]:
    """All strings of a value, keys included, in order."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [s for key, item in value.items() for s in [str(key), *_strings(item)]]
    return [s for item in value for s in _strings(item)] if isinstance(value, list) else []
