import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webleaper_jax.agent.protocol import (
    CUT_ANSWER,
    CUT_CALL,
    CUT_TURN,
    NO_ACTION,
    SEARCH,
    TOOLS,
    UNCLOSED_THOUGHT,
    VISIT,
    CallError,
    ParsedCall,
    format_answer,
    format_call,
    parse_answer,
    parse_turn,
    system_prompt,
)
from webleaper_jax.agent.render import ANSWER, CALL, MARKERS, THINK
from webleaper_jax.records import Answer

GOOD = format_call("search", {"queries": ["dams"]})


def wrap(body: str) -> str:
    return f"<think>x</think>\n<tool_call>\n{body}\n</tool_call>"


def only(text, **options):
    turn = parse_turn(text, **options)
    assert turn.answer is None
    assert len(turn.calls) == 1
    return turn.calls[0]


def call(arguments, name="search"):
    return wrap(json.dumps({"name": name, "arguments": arguments}))


# ------------------------------------------------------------------------------------------------------------ turns


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(
            [
                *MARKERS,
                '{"name": "search", "arguments": ',
                '{"queries": [',
                '"a"',
                "]}}",
                "{}",
                '"',
                "'",
                "\\",
                "\n",
                "visit",
                '"urls": ""',
                '"url": [""]',
                "null",
                "}",
                "[",
                ",",
                "é",
                "\ud83d",
            ]
        )
        | st.text(max_size=5),
        max_size=25,
    ).map("".join),
    st.booleans(),
)
def test_no_text_crashes_the_parser_or_yields_a_call_with_empty_arguments(text, cut):
    turn = parse_turn(text, cut=cut)
    for one in turn.calls:
        if isinstance(one, ParsedCall):
            required = "queries" if one.name == "search" else "urls"
            assert one.arguments[required]
            assert all(isinstance(x, str) and x.strip() for x in one.arguments[required])
            assert parse_turn(format_call(one.name, one.arguments)).calls[0].arguments == one.arguments
        else:
            assert one.message.startswith("error: ")
    assert (turn.answer is not None) or bool(turn.calls) != bool(turn.error)
    parse_answer(text)


@given(
    st.lists(st.text(max_size=20).filter(lambda t: t.strip()), min_size=1, max_size=3),
    st.none() | st.integers(1000, 2100),
)
def test_written_calls_are_read_back_whatever_they_hold(queries, year):
    arguments = {"queries": [*queries, f"x {ANSWER}{CALL}</tool_call>{THINK}"]} | (
        {"filter_year": year} if year else {}
    )
    text = format_call("search", arguments)
    assert text.count("</tool_call>") == 1
    read = only(text)
    assert isinstance(read, ParsedCall)
    assert read.arguments == arguments | {"queries": list(dict.fromkeys(q.strip() for q in arguments["queries"]))}


def test_several_calls_keep_their_order_and_a_bad_one_blocks_no_good_one():
    visit = format_call("visit", {"urls": ["w/1"], "goal": "all"})
    calls = parse_turn(
        f"<think>x</think>{GOOD}<tool_call>{{</tool_call>{visit}<tool_call>\n{{}}\n</tool_call>{GOOD}"
    ).calls
    assert [c.name if isinstance(c, ParsedCall) else "bad" for c in calls] == [
        "search",
        "bad",
        "visit",
        "bad",
        "search",
    ]
    assert calls[2].arguments == {"urls": ["w/1"], "goal": "all"}


def test_calls_inside_a_thought_are_not_run():
    assert parse_turn(f"<think>I could {GOOD} now</think>").error == NO_ACTION
    assert parse_turn(f"<think>I could {GOOD} now</think>\n{GOOD}").calls == parse_turn(GOOD).calls
    assert parse_turn(f"the prompt opened this thought {GOOD}</think>{GOOD}").calls == parse_turn(GOOD).calls
    assert parse_turn(f"<think>{ANSWER}no</answer></think>{ANSWER}yes</answer>").answer == "yes"
    assert parse_turn(f"<think>a</think><think>{GOOD}</think>{GOOD}").thought == f"a\n{GOOD}"


def test_an_unclosed_thought_has_its_own_error():
    error = only(f"<think>x\n{GOOD}")
    assert isinstance(error, CallError)
    assert error.message == UNCLOSED_THOUGHT
    assert parse_turn(f"<think>x\n{ANSWER}a</answer>").error == UNCLOSED_THOUGHT
    assert parse_turn(f"<think>x\n{ANSWER}a</answer>").answer is None
    before, after = parse_turn(f"{GOOD}<think>x\n{GOOD}").calls
    assert isinstance(before, ParsedCall)
    assert after.message == UNCLOSED_THOUGHT
    assert parse_turn("<think>just thinking").error == NO_ACTION
    assert parse_turn("<think>just thinking", cut=True).error == CUT_TURN


def test_markers_inside_a_calls_strings_are_text():
    read = only('<tool_call>{"name": "search", "arguments": {"queries": ["<answer>x</answer> <think>"]}}</tool_call>')
    assert read.arguments == {"queries": ["<answer>x</answer> <think>"]}


def test_the_first_answer_ends_the_episode_and_calls_of_its_turn_are_not_run():
    for text in (f"{ANSWER}A</answer>{GOOD}", f"{GOOD}{ANSWER}A</answer>", f"{ANSWER}A</answer>{ANSWER}B</answer>"):
        turn = parse_turn(text)
        assert (turn.answer, turn.calls) == ("A", ())
    assert parse_turn(f"{ANSWER}A</answer>").answer == "A"
    assert parse_turn(f"{ANSWER}</answer>").answer == ""
    assert parse_turn(f"<tool_call>{{ {ANSWER}A</answer>").answer == "A"


def test_an_answer_left_open_counts_only_if_the_policy_ended_its_turn():
    assert parse_turn(f"{ANSWER}\nName | year\nA | 1").answer == "Name | year\nA | 1"
    turn = parse_turn(f"{ANSWER}\nName | year\nA | 1", cut=True)
    assert (turn.answer, turn.error) == (None, CUT_ANSWER)
    assert parse_turn(f"{ANSWER}A</answer> and", cut=True).answer == "A"


@pytest.mark.parametrize("length", range(len("<tool_call>"), len(GOOD) - len("\n</tool_call>") - 1))
def test_a_call_cut_anywhere_is_an_error_that_says_so(length):
    error = only(GOOD[:length], cut=True)
    assert isinstance(error, CallError)
    assert error.message == CUT_CALL


def test_a_complete_call_without_its_closing_marker_counts():
    assert only(GOOD.removesuffix("\n</tool_call>")).arguments == {"queries": ["dams"]}
    first, second = parse_turn(GOOD.removesuffix("</tool_call>") + GOOD).calls
    assert first.arguments == second.arguments
    first, second = parse_turn(GOOD[:30] + GOOD).calls
    assert isinstance(first, CallError)
    assert isinstance(second, ParsedCall)


# ------------------------------------------------------------------------------------------------------------ calls


@pytest.mark.parametrize(
    "body",
    [
        '{"a":1}{"a":1}',
        '"foo"',
        '{"city": "Par',
        '{}""',
        "[1, 2]",
        "",
        "{}",
        '{"name": "search"}',
        '["a"]',
        "null",
        "search",
        '{"name": "search", "arguments": {"queries": ["Par',
        '{"name": "search", "arguments": ["dams"]}',
        '{"name": "search", "arguments": "dams"}',
        '{"name": "search", "arguments": {"queries": "dams", "query": "rivers"}}',
        '{"name": null, "arguments": {"queries": ["a"]}}',
        '{"name": ["search"], "arguments": {"queries": ["a"]}}',
    ],
)
def test_ambiguous_or_empty_calls_are_errors_that_show_a_right_call(body):
    error = only(wrap(body))
    assert isinstance(error, CallError)
    right = error.message.split("write ", 1)[1]
    assert isinstance(only(wrap(right)), ParsedCall)


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "search", "arguments": {"queries": ["dams"]}}}}',
        '{"name": "search", "arguments": {"queries": ["dams"]}',
        "{'name': 'search', 'arguments': {'queries': ['dams']}}",
        '{"name": "search", "arguments": {"queries": ["dams",]}}',
        '{"name": "search", "arguments": {"queries": ["dams"]}}""',
        '```json\n{"name": "search", "queries": ["dams"]}\n```',
        '{"name": "search", "arguments": "{\\"queries\\": [\\"dams\\"]}"}',
        '{"name": " Search ", "parameters": {"query": "dams"}}',
        '{"type": "function", "function": {"name": "search", "arguments": {"q": "dams"}}}',
        '{"name": "search", "query": "dams"}',
        '{"name": "search", "arguments": {"queries": ["dams"], "query": ["dams"], "extra": 1}}',
        '{"name": "search", "arguments": {"queries": "[\\"dams\\"]"}}',
        '{"name": "search", "arguments": {"queries": [" dams ", "dams", "", null]}}',
        '[{"name": "search", "arguments": {"queries": ["dams"]}}]',
    ],
)
def test_calls_with_one_possible_reading_are_repaired(body):
    assert only(wrap(body)).arguments == {"queries": ["dams"]}


@pytest.mark.parametrize("year", [1999, "1999", " 1999 ", 1999.0, [1999], ["1999"]])
def test_a_year_is_taken_as_number_text_or_list_of_one(year):
    assert only(call({"queries": ["a"], "filter_year": year})).arguments == {"queries": ["a"], "filter_year": 1999}


@pytest.mark.parametrize("year", [None, "", "null", False])
def test_no_year_is_no_year(year):
    assert only(call({"queries": ["a"], "filter_year": year})).arguments == {"queries": ["a"]}


@pytest.mark.parametrize(
    "year", ["nineties", 99, 30000, "1999-2000", True, [1999, 2000], {"from": 1999}, 1999.5, -1999]
)
def test_what_is_no_year_is_an_error(year):
    error = only(call({"queries": ["a"], "filter_year": year}))
    assert "filter_year" in error.message


@pytest.mark.parametrize("queries", [[], "", "  ", [""], None, [None], [[]], [["a"]], {"a": 1}, True, [True]])
@pytest.mark.parametrize("key", ["queries", "query"])
def test_queries_without_text_are_errors(queries, key):
    assert isinstance(only(call({key: queries})), CallError)


def test_lone_surrogates_in_arguments_can_be_written_to_a_file():
    read = only(wrap('{"name": "search", "arguments": {"queries": ["a\\ud800b"]}}'))
    assert read.arguments["queries"][0].encode() == b"a?b"


def test_names_route_calls_not_substrings():
    read = only(call({"queries": ["visit Monty Python in a search"]}))
    assert read.name == "search"
    error = only(call({"queries": ["search"]}, name="python_search"))
    assert error.message == "error: there is no tool 'python_search'; use search or visit"
    assert only(call({"url": "w/1"}, name="visit")).arguments == {"urls": ["w/1"]}
    assert isinstance(only(call({"queries": ["w/1"]}, name="visit")), CallError)


def test_without_tools_every_call_is_an_error_and_answers_still_count():
    assert ANSWER in only(GOOD, tools=()).message
    assert isinstance(only(GOOD, tools=(VISIT,)), CallError)
    assert parse_turn(f"{ANSWER}A</answer>", ()).answer == "A"


def test_error_observations_are_short():
    texts = [NO_ACTION, UNCLOSED_THOUGHT, CUT_CALL, CUT_ANSWER, CUT_TURN, only(call({}, name="x" * 999)).message]
    texts += [
        only(call({"queries": []})).message,
        only(call({}, name="visit")).message,
        only(wrap("x" * 10**5)).message,
    ]
    assert max(map(len, texts)) < 150


def test_prompts_name_every_tool_and_the_full_one_is_in_the_protocols_own_words():
    full, short = system_prompt(TOOLS, "full"), system_prompt(TOOLS, "short")
    for tool in TOOLS:
        assert tool.name in short
        assert all(param.name in full for param in tool.params)
    example = full.split("</tool_call>:", 1)[1].split("The results")[0]
    assert isinstance(parse_turn(example).calls[0], ParsedCall)
    assert parse_answer(parse_turn(full.split("about:\n")[1]).answer).columns == ("Name", "year")
    assert len(short) < 70
    assert "search" not in system_prompt((), "short") + system_prompt((), "full")
    assert "visit" not in system_prompt((SEARCH,), "full")


# ---------------------------------------------------------------------------------------------------------- answers

CELLS = st.text(st.sampled_from("ab é|\\1-,:.("), max_size=8).map(lambda t: " ".join(t.split()))


@given(st.integers(1, 4), st.data())
def test_written_answers_are_read_back(width, data):
    row = st.tuples(*[CELLS] * width).filter(any)
    table = data.draw(st.lists(row.filter(lambda r: not all(set(c) <= {"-", ":"} for c in r)), min_size=2, max_size=5))
    answer = Answer(columns=table[0], rows=tuple(table[1:]))
    assert parse_answer(format_answer(answer)) == answer


def test_an_answer_needs_column_names_to_be_written():
    with pytest.raises(ValueError, match="column names"):
        format_answer(Answer(rows=(("a",),)))
    assert format_answer(Answer()) == ""
    assert parse_answer("") == Answer()


ROWS = (("A", "1"), ("B", "2"))
WANTED = Answer(columns=("Name", "year"), rows=ROWS)


@pytest.mark.parametrize(
    "text",
    [
        "Name | year\nA | 1\nB | 2",
        "| Name | year |\n|---|:--:|\n| A | 1 |\n| B | 2 |",
        "Name|year\n--- | ---\nA|1\n\nB|2",
        "Here it is:\n\n| **Name** | `year` |\n| --- | --- |\n| [A](http://x/y) | *1* |\n| B | 2 |\n\nDone.",
        "```markdown\n| Name | year |\n| --- | --- |\n| A | 1 |\n| B | 2 |\n```",
        '[{"Name": "A", "year": 1}, {"Name": "B", "year": "2"}]',
        '{"columns": ["Name", "year"], "rows": [["A", 1], ["B", 2]]}',
        '[["Name", "year"], ["A", "1"], ["B", "2"]]',
        '```json\n{"answer": [{"Name": "A", "year": 1}, {"Name": "B", "year": 2}]}\n```',
        "|Name|year|\n|A|1|\n|B|2|",
        "Name | year\n---- | ----\nA | 1\nName | year\n---- | ----\nB | 2",
    ],
)
def test_tables_in_every_form_are_one_answer(text):
    assert parse_answer(text) == WANTED


@pytest.mark.parametrize(
    "text", ["- A\n- B", "1. A\n2. B", "* A\n\n* B", "A\nB", '["A", "B"]', "• A\n• B", "1) A\n2) B"]
)
def test_lists_give_a_cell_per_line(text):
    assert parse_answer(text) == Answer(rows=(("A",), ("B",)))


def test_odd_answers():
    assert parse_answer("A | 1") == Answer(rows=(("A", "1"),))
    assert parse_answer("| --- |\n| A |") == Answer(rows=(("A",),))
    assert parse_answer("Name | a | b\nX | | 2\nY | 1").rows == (("X", "", "2"), ("Y", "1"))
    assert parse_answer("1999 saw it").rows == (("1999 saw it",),)
    assert parse_answer('{"Name": "A", "years": [1, 2]}').rows == (("A", "1, 2"),)
    assert parse_answer("{not json").rows == (("{not json",),)
    assert parse_answer("[" * 10**4).rows
