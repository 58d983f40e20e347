"""The text protocol of a turn (thought, tool calls, answer): reading what a policy wrote, writing what a script says.

A turn is `<think>..</think>` and then either calls, `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, or the
end of the episode, `<answer>..</answer>` with a table. Rules of reading:

- Inside a thought nothing counts. A thought that is not closed swallows what follows; calls in it are errors.
- The first answer outside a thought ends the episode; calls of the same turn, before or after it, are not run: the
  policy answered without waiting for them. An answer that is not closed counts if the policy ended its turn itself.
- Calls are kept in order, good ones beside bad ones. A bad call is repaired where only one reading is possible, else it
  becomes an error that says how to do it right.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from webleaper_jax.agent.render import ANSWER, ANSWER_END, CALL, CALL_END, MARKERS, THINK, THINK_END
from webleaper_jax.agent.tolerant import load, read_objects, unfenced, valid
from webleaper_jax.records import Answer

PROTOCOL_VERSION = 1  # counts changes of what a policy is told when a turn is wrong or cut, or calls run out
MAX_CALL_CHARS = 8_000
YEARS = range(1000, 2101)


class Param(msgspec.Struct, frozen=True):
    """A parameter of a tool. `aliases` are accepted in place of its name."""

    name: str
    kind: Literal["texts", "text", "year"]
    required: bool
    about: str
    aliases: tuple[str, ...] = ()


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as the policy sees it."""

    name: str
    about: str
    params: tuple[Param, ...]


SEARCH = ToolSpec(
    "search",
    "Searches the web. Gives titles, addresses and short snippets.",
    (
        Param("queries", "texts", True, "what to search for, one or more queries", ("query", "q")),
        Param("filter_year", "year", False, "only pages that mention this year", ("year",)),
    ),
)
VISIT = ToolSpec(
    "visit",
    "Opens pages and shows their text.",
    (
        Param("urls", "texts", True, "addresses to open", ("url", "link", "links")),
        Param("goal", "text", False, "what you want to learn from them"),
    ),
)
TOOLS = (SEARCH, VISIT)


class ParsedCall(msgspec.Struct, frozen=True):
    """A call that can be run: `arguments` hold the tool's own parameter names, required ones never empty."""

    name: str
    arguments: dict[str, Any]
    raw: str


class CallError(msgspec.Struct, frozen=True):
    """A call that cannot be run; `message` is the observation that says why, and how to do it right."""

    message: str
    raw: str


class Turn(msgspec.Struct, frozen=True):
    """What a turn says. `answer` is None without one, and then `error` is non-empty if there is no call either."""

    thought: str
    calls: tuple[ParsedCall | CallError, ...]
    answer: str | None
    error: str = ""


NO_ACTION = f"error: no call and no answer; write {CALL} with a call, or {ANSWER} with your table"
UNCLOSED_THOUGHT = f"error: {THINK} was not closed; write {THINK_END} before a call or an answer"
CUT_CALL = f"error: the call was cut off; write a shorter one and close it with {CALL_END}"
CUT_TURN = f"error: the turn was cut off before a call or an answer; think less, then write {CALL} or {ANSWER}"
CUT_ANSWER = f"error: the answer was cut off; write a shorter one and close it with {ANSWER_END}"


# ---------------------------------------------------------------------------------------------------------- prompts


def system_prompt(tools: Sequence[ToolSpec] = TOOLS, style: Literal["full", "short"] = "full") -> str:
    """Returns the system prompt: `full` explains tools and formats, `short` names them, for a policy trained on it."""
    if style == "short":
        names = ", ".join(tool.name for tool in tools)
        return f"Tools: {names or 'none'}. End with a table in {ANSWER}."
    example = format_call("search", {"queries": ["first query", "second query"]})
    parts = ["You answer questions that ask for many facts at once, and you collect them from the web."]
    if tools:
        parts.append(
            f"In each turn, first think inside {THINK}{THINK_END}. Then call one or more tools. A call is a JSON "
            f"object between {CALL} and {CALL_END}:\n{example}\n"
            "The results come back in the next turn, in the order of your calls. The tools:"
        )
        parts += [json.dumps(_schema(tool)) for tool in tools]
    parts.append(
        f"When you have everything, or can get no more, end with {ANSWER}{ANSWER_END} instead of a call. It holds one "
        "table: the first line names the columns, each further line is a row, cells are separated by |, and the first "
        f"column holds the name of the thing that the row is about:\n{ANSWER}\nName | year\n"
        f"some name | 1999\n{ANSWER_END}\n"
        "Write cells as the pages write them. Leave a cell empty rather than guess."
    )
    return "\n".join(parts)


def _schema(tool: ToolSpec) -> dict[str, Any]:
    """The tool as a JSON schema in the form that chat templates use."""
    text: dict[str, Any] = {"type": "string"}
    shapes: dict[str, dict[str, Any]] = {
        "texts": {"type": "array", "items": text},
        "text": text,
        "year": {"type": "integer"},
    }
    properties = {param.name: {**shapes[param.kind], "description": param.about} for param in tool.params}
    required = [param.name for param in tool.params if param.required]
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"name": tool.name, "description": tool.about, "parameters": parameters}


def format_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Writes a call. A marker spelled in an argument is escaped, so that it neither ends the call nor becomes an id."""
    body = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    for marker in MARKERS:
        body = body.replace(marker, "\\u003c" + marker[1:])
    return f"{CALL}\n{body}\n{CALL_END}"


# ------------------------------------------------------------------------------------------------------------ turns


def parse_turn(text: str, tools: Sequence[ToolSpec] = TOOLS, *, cut: bool = False) -> Turn:
    """Reads one turn of a policy; never raises, whatever the text.

    Args:
      text: the turn, without its end token.
      tools: the tools that can be called.
      cut: the turn was cut by a limit, so that what is not closed is incomplete.
    """
    thoughts: list[str] = []
    calls: list[ParsedCall | CallError] = []
    answer: str | None = None
    error = ""
    position = 0
    # a turn may begin inside a thought that the prompt opened
    if (end := text.find(THINK_END)) >= 0 and THINK not in text[:end]:
        thoughts.append(text[:end])
        position = end + len(THINK_END)
    while (marker := _next_marker(text, position)) and answer is None:
        kind, start, inside = marker
        if kind == THINK:
            content, position, closed = _until(text, inside, THINK_END, ())
            thoughts.append(content)
            if not closed and CALL in content:
                calls.append(CallError(UNCLOSED_THOUGHT, text[start:]))
            elif not closed and ANSWER in content:
                error = UNCLOSED_THOUGHT
        elif kind == ANSWER:
            content, position, closed = _until(text, inside, ANSWER_END, ())
            if closed or not cut:
                answer = content.strip()
            else:
                error = CUT_ANSWER
        else:
            content, position, closed = _until(text, inside, CALL_END, (CALL, ANSWER, THINK))
            calls += _read_calls(content, closed, tools)
    thought = "\n".join(t.strip() for t in thoughts if t.strip())
    if answer is not None:
        return Turn(thought, (), answer)
    return Turn(thought, tuple(calls), None, "" if calls else (error or (CUT_TURN if cut else NO_ACTION)))


_OPENINGS = re.compile("|".join(map(re.escape, (THINK, CALL, ANSWER))))


def _next_marker(text: str, position: int) -> tuple[str, int, int] | None:
    """The next opening marker: which, where it starts, and where its content starts."""
    found = _OPENINGS.search(text, position)
    return (found.group(), found.start(), found.end()) if found else None


def _until(text: str, start: int, closing: str, openings: Sequence[str]) -> tuple[str, int, bool]:
    """Content from `start` to `closing`; if that is missing, to the first of `openings` or the end.

    A second opening of the same kind before `closing` (`openings[0]`) means that the first was not closed either.
    Returns content, the position after it, and whether it was closed.
    """
    end = text.find(closing, start)
    again = text.find(openings[0], start, end if end >= 0 else len(text)) if openings else -1
    if end >= 0 and again < 0:
        return text[start:end], end + len(closing), True
    stops = [found for opening in openings if (found := text.find(opening, start)) >= 0]
    stop = min(stops, default=len(text))
    return text[start:stop], stop, False


# ------------------------------------------------------------------------------------------------------------ calls


def _read_calls(content: str, closed: bool, tools: Sequence[ToolSpec]) -> list[ParsedCall | CallError]:
    """Reads what stands between call markers: one call, or several objects in a row."""
    if len(content) > MAX_CALL_CHARS:
        return [CallError("error: the call is too long; write a shorter one", content[:MAX_CALL_CHARS])]
    objects = read_objects(content, repair=closed)
    if objects is None:
        return [CallError(CUT_CALL if not closed else _wrong("the call is not a JSON object", tools), content)]
    return [_read_call(item, content, tools) for item in objects]


def _read_call(item: dict[str, Any], raw: str, tools: Sequence[ToolSpec]) -> ParsedCall | CallError:
    if isinstance(item.get("function"), dict):
        item = item["function"]
    name = item["name"].strip() if isinstance(item.get("name"), str) else ""
    tool = next((t for t in tools if t.name == name.lower()), None)
    if tool is None and name and tools:
        return CallError(f"error: there is no tool {name[:40]!r}; use {' or '.join(t.name for t in tools)}", raw)
    if tool is None:
        return CallError(_wrong("the call has no name", tools), raw)
    arguments = next((item[key] for key in ("arguments", "parameters") if key in item), None)
    if arguments is None:  # written flat, beside the name
        arguments = {key: value for key, value in item.items() if key != "name"}
    if isinstance(arguments, str):  # JSON inside JSON, as some servers give it
        inner = read_objects(arguments, repair=True)
        arguments = inner[0] if inner and len(inner) == 1 else arguments
    if not isinstance(arguments, dict):
        return CallError(_wrong("arguments must be an object", (tool,)), raw)
    values: dict[str, Any] = {}
    for param in tool.params:
        given = [arguments[key] for key in (param.name, *param.aliases) if key in arguments]
        try:
            value = _read_value(given, param)
        except ValueError as error:
            return CallError(_wrong(str(error), (tool,)), raw)
        if value is not None:
            values[param.name] = value
    return ParsedCall(tool.name, values, raw)


def _read_value(given: Sequence[Any], param: Param) -> list[str] | str | int | None:
    """The value of a parameter, None where an optional one is absent. Raises ValueError with what is wrong."""
    if len(given) > 1 and any(value != given[0] for value in given):
        raise ValueError(f"{param.name} is given twice")
    value = given[0] if given else None
    if param.kind == "texts":
        return _read_texts(value, param.name)
    if param.kind == "text":
        return valid(value).strip() or None if isinstance(value, str) else None
    if value in (None, "", "null", "None") or value is False:
        return None
    number = value[0] if isinstance(value, list) and len(value) == 1 else value
    text = str(int(number)) if isinstance(number, float) and number.is_integer() else str(number).strip()
    if not re.fullmatch("[0-9]{4}", text) or int(text) not in YEARS:
        raise ValueError(f"{param.name} must be a year, such as 1999")
    return int(text)


def _read_texts(value: Any, name: str) -> list[str]:
    if isinstance(value, str) and value.strip().startswith("["):
        inner = load(value.strip())
        value = inner if isinstance(inner, list) else value
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, bool) or not isinstance(item, str | int | float | None) for item in items):
        raise ValueError(f"{name} must be a list of strings")
    texts = [valid(str(item)).strip() for item in items if item is not None]
    texts = list(dict.fromkeys(text for text in texts if text))
    if not texts:
        raise ValueError(f"{name} is empty")
    return texts


def _wrong(what: str, tools: Sequence[ToolSpec]) -> str:
    """An error observation: what is wrong, and a call written right."""
    if not tools:
        return f"error: {what}; there are no tools, write {ANSWER} with your table"
    right = {"name": tools[0].name, "arguments": {p.name: ["..."] for p in tools[0].params if p.required}}
    return f"error: {what}; write {json.dumps(right)}"


# ---------------------------------------------------------------------------------------------------------- answers


def format_answer(answer: Answer) -> str:
    """Writes an answer as it stands between the answer markers: a line of column names, a line per row, cells by ` | `.

    Raises:
      ValueError: there are rows but no column names, so the first row would be read as them.
    """
    if answer.rows and not answer.columns:
        raise ValueError("an answer with rows needs column names")
    return "\n".join(_format_row(row) for row in (answer.columns, *answer.rows) if row)


def _format_row(cells: Sequence[str]) -> str:
    line = " | ".join(" ".join(cell.split()).replace("\\", "\\\\").replace("|", "\\|") for cell in cells)
    # a bar at either end of a line is a border, so empty cells there (and a lone cell) need one
    return ("| " if not cells[0].strip() else "") + line + (" |" if len(cells) == 1 or not cells[-1].strip() else "")


def parse_answer(text: str) -> Answer:
    """Reads the answer of a policy: a table (Markdown or bare `a | b` lines), JSON, or a list; never raises.

    The first line of a table holds its column names, with or without a Markdown separator below it. A table of one line
    is a row. Text around a table is ignored. A list, or plain lines, give one cell per line and no column names.
    """
    text = unfenced(text)
    if text[:1] in ("[", "{") and (read := _answer_from_json(load(text))) is not None:
        return read
    lines = [line.strip() for line in text.splitlines()]
    table = [cells for line in lines if "|" in line and (cells := _split_row(line))]
    if table:
        return _answer_from_table(table)
    cells = [_clean_cell(re.sub(r"^([-*•+]|[0-9]{1,3}[.)])\s+", "", line)) for line in lines]
    return Answer(rows=tuple((cell,) for cell in cells if cell))


def _answer_from_table(table: list[list[str]]) -> Answer:
    separators = [
        number for number, cells in enumerate(table) if all(re.fullmatch(":?-{2,}:?", cell) for cell in cells)
    ]
    first = 0 if len(table) > 1 else -1
    header = separators[0] - 1 if separators else first
    # a later separator starts a further table: its line of names is no row
    dropped = {number - offset for number in separators for offset in (0, 1)}
    rows = [tuple(table[n]) for n in range(header + 1, len(table)) if n not in dropped and any(table[n])]
    return Answer(columns=tuple(table[header]) if header >= 0 else (), rows=tuple(rows))


def _split_row(line: str) -> list[str]:
    """The cells of a line; a bar at either end is a border, an escaped bar belongs to its cell."""
    cells = [""]
    escaped = False
    for char in line:
        if escaped:
            cells[-1] += char if char in "|\\" else "\\" + char
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "|":
            cells.append("")
        else:
            cells[-1] += char
    cells[-1] += "\\" if escaped else ""
    if len(cells) > 1 and not cells[0].strip():
        cells = cells[1:]
    if len(cells) > 1 and not cells[-1].strip():
        cells = cells[:-1]
    return [_clean_cell(cell) for cell in cells]


def _clean_cell(cell: str) -> str:
    """A cell without Markdown around it: emphasis, code, the address of a link."""
    cell = re.sub(r"\[([^\[\]]*)\]\([^()\s]*\)", r"\1", " ".join(cell.split()))
    for mark in ("**", "*", "`"):
        if len(cell) > 2 * len(mark) and cell.startswith(mark) and cell.endswith(mark):
            cell = cell[len(mark) : -len(mark)].strip()
    return cell


def _answer_from_json(value: Any) -> Answer | None:
    """A list of objects (their keys are the columns), of lists (the first is the column names) or of values."""
    if isinstance(value, dict):
        if isinstance(value.get("columns"), list) and isinstance(value.get("rows"), list):
            value = [value["columns"], *value["rows"]]
        elif len(value) == 1 and isinstance(inner := next(iter(value.values())), list):
            value = inner
        else:
            value = [value]
    if not isinstance(value, list):
        return None
    if value and all(isinstance(item, dict) for item in value):
        columns = list(dict.fromkeys(key for item in value for key in item))
        rows = [tuple(_json_cell(item.get(column)) for column in columns) for item in value]
        return Answer(columns=tuple(map(_json_cell, columns)), rows=tuple(row for row in rows if any(row)))
    if value and all(isinstance(item, list) for item in value):
        table = [tuple(map(_json_cell, item)) for item in value if item]
        return Answer(columns=table[0] if len(table) > 1 else (), rows=tuple(table[1:] if len(table) > 1 else table))
    return Answer(rows=tuple((cell,) for item in value if (cell := _json_cell(item))))


def _json_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(_json_cell, value))
    return " ".join(valid(value).split()) if isinstance(value, str) else valid(json.dumps(value, ensure_ascii=False))
