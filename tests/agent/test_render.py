import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webleaper_jax.agent.engine import Completion
from webleaper_jax.agent.render import (
    MARKERS,
    POLICY_MARKERS,
    TEXT_END,
    TURN_END,
    PolicyTokenizer,
    Stream,
    render_messages,
)
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Message

TURN = '<think>next</think>\n<tool_call>\n{"name": "search", "arguments": {"queries": ["dams"]}}\n</tool_call>'
TEXTS = st.lists(st.sampled_from([*"ab é|\n\t#<>/_0", "👍", "北", *MARKERS]), max_size=12).map("".join)


def feed(tokenizer, system, question, turns):
    """Runs a conversation through a stream, checking that each prompt begins with the one before."""
    stream = Stream.start(tokenizer, system, question)
    for text, results in turns:
        before = stream.prompt_ids()
        stream.add_policy(Completion(text=text))
        if results:
            stream.add_tools(results)
        assert stream.prompt_ids()[: len(before)] == before
        assert len(stream.prompt_ids()) > len(before)
    return stream


def as_messages(system, question, turns):
    messages = [Message(role="system", content=system)] if system else []
    messages.append(Message(role="user", content=question))
    for text, results in turns:
        messages.append(Message(role="assistant", content=text))
        messages += [Message(role="tool", content=result) for result in results]
    return messages


@pytest.mark.parametrize("turns", range(1, 6))
@pytest.mark.parametrize("calls", range(1, 4))
@pytest.mark.parametrize("answered", [True, False])
def test_ids_turn_by_turn_equal_ids_of_the_whole_for_all_turn_and_call_counts(any_tokenizer, turns, calls, answered):
    conversation = [(f"{TURN} {n}", [f"# Dams {n}{k}\n1 | 2" for k in range(calls)]) for n in range(turns)]
    conversation += [("<think>done</think>\n<answer>\nName |\n</answer>", [])] if answered else []
    stream = feed(any_tokenizer, "Tools: search.", "Which dams?", conversation)
    assert render_messages(any_tokenizer, as_messages("Tools: search.", "Which dams?", conversation)) == (
        stream.ids,
        stream.mask,
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_texts_render_alike_turn_by_turn_and_as_a_whole_and_decode_to_the_template(tokenizer, data):
    system, question = data.draw(TEXTS), data.draw(TEXTS)
    turn = st.tuples(TEXTS, st.lists(TEXTS, min_size=1, max_size=3))
    conversation = data.draw(st.lists(turn, min_size=1, max_size=4))
    stream = feed(tokenizer, system, question, conversation)
    assert render_messages(tokenizer, as_messages(system, question, conversation))[0] == stream.ids
    expected = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    expected += f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    for text, results in conversation:
        joined = "\n".join(f"<tool_response>\n{result}\n</tool_response>" for result in results)
        expected += f"{text}<|im_end|>\n<|im_start|>user\n{joined}<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(stream.ids) == expected


def test_ordinary_conversations_encode_as_the_library_encodes_the_whole_text(tokenizer):
    """Piecewise encoding is what a model trained on the template has seen."""
    conversation = [(TURN, ["1. List of dams | w/17 | Name"]), (TURN, ["# List of dams\nName | Year", "no results"])]
    stream = feed(tokenizer, "You are", "Which dams?", conversation)
    text = tokenizer.decode(stream.ids)
    assert tokenizer._tokenizer.encode(text, add_special_tokens=False).ids == stream.ids


@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
def test_outside_text_never_becomes_a_control_id_and_is_not_changed(any_tokenizer, text):
    ids = any_tokenizer.encode(text)
    assert not set(ids) & set(any_tokenizer.markers.values())
    assert any_tokenizer.decode(ids) == text


@pytest.mark.parametrize("marker", MARKERS)
def test_a_page_or_question_that_spells_a_marker_cannot_end_a_turn(any_tokenizer, marker):
    evil = f"before {marker} after {marker}"
    stream = feed(any_tokenizer, "", evil, [("<think>x</think>", [evil])])
    tame = feed(any_tokenizer, "", "before", [("<think>x</think>", ["before"])])
    controls = set(any_tokenizer.markers.values())
    assert [i for i in stream.ids if i in controls] == [i for i in tame.ids if i in controls]
    assert evil in any_tokenizer.decode(stream.ids)


def test_the_policys_own_tags_in_scripted_text_are_control_ids_but_turn_markers_are_not(any_tokenizer):
    text = "".join(MARKERS)
    controls = [i for i in any_tokenizer.encode_policy(text) if i in any_tokenizer.markers.values()]
    assert controls == [any_tokenizer.markers[m] for m in MARKERS if m in POLICY_MARKERS and m in any_tokenizer.markers]
    assert any_tokenizer.decode(any_tokenizer.encode_policy(text)) == text


def test_sampled_ids_are_kept_where_another_tokenisation_has_the_same_text(tokenizer):
    whole = tokenizer.encode("search the dams")
    split = [i for char in "search the dams" for i in tokenizer.encode(char)]
    assert tokenizer.decode(whole) == tokenizer.decode(split)
    assert whole != split
    end = tokenizer.stop_ids[0]
    stream = Stream.start(tokenizer, "s", "q")
    start = len(stream.ids)
    sampled = (*split, end)
    stream.add_policy(
        Completion(text="search the dams", ids=sampled, logprobs=tuple(-0.1 * k for k in range(len(sampled))))
    )
    stream.add_tools(["result"])
    assert tuple(stream.ids[start : start + len(sampled)]) == sampled
    assert stream.logprobs[start : start + len(sampled)] == [-0.1 * k for k in range(len(sampled))]


def test_mask_versions_and_logprobs_mark_exactly_what_was_sampled(tokenizer):
    end = tokenizer.stop_ids[0]
    ids = (*tokenizer.encode("dams"), end)
    stream = Stream.start(tokenizer, "s", "q")
    prompt = len(stream.ids)
    stream.add_policy(Completion(text="dams", ids=ids, logprobs=(-0.5,) * len(ids), policy_version=7))
    stream.add_tools(["r"])
    rest = len(stream.ids) - prompt - len(ids)
    assert rest > 0
    assert stream.mask == [0] * prompt + [1] * len(ids) + [0] * rest
    assert stream.versions == [-1] * prompt + [7] * len(ids) + [-1] * rest
    assert stream.logprobs == [0.0] * prompt + [-0.5] * len(ids) + [0.0] * rest


@pytest.mark.parametrize(
    ("finish", "tail", "forced"),
    [("stop", [TURN_END], 0), ("length", [], 1), ("context", [], 1), ("stop", [TEXT_END], 1), ("stop", [], 1)],
)
def test_an_end_token_that_was_not_sampled_is_forced_with_mask_0(tokenizer, finish, tail, forced):
    ids = (*tokenizer.encode("dams"), *(tokenizer.markers[m] for m in tail))
    stream = Stream.start(tokenizer, "s", "q")
    prompt = len(stream.ids)
    stream.add_policy(Completion(text="dams", ids=ids, logprobs=(-0.5,) * len(ids), finish=finish))
    assert stream.ids[-1] == tokenizer.stop_ids[0]
    assert stream.mask[prompt:] == [1] * len(ids) + [0] * forced
    assert len(stream.ids) == len(stream.mask) == len(stream.logprobs) == len(stream.versions)


def test_a_text_turn_cut_by_length_has_a_forced_end_and_a_finished_one_its_own(tokenizer):
    masks = []
    for finish in ("stop", "length"):
        stream = Stream.start(tokenizer, "s", "q")
        stream.add_policy(Completion(text="dams", finish=finish))
        masks.append(stream.mask[-1])
        assert stream.ids[-1] == tokenizer.stop_ids[0]
        kept = [Message(role="system", content="s"), Message(role="user", content="q")]
        kept.append(Message(role="assistant", content="dams", cut=finish == "length"))
        assert render_messages(tokenizer, kept) == (stream.ids, stream.mask)
    assert masks == [1, 0]


def test_tokens_with_a_logprob_that_is_no_number_leave_the_loss_and_are_counted(tokenizer):
    ids = (*tokenizer.encode("a b c"), tokenizer.stop_ids[0])
    logprobs = [-0.5] * len(ids)
    logprobs[0], logprobs[1] = math.nan, -math.inf
    stream = Stream.start(tokenizer, "s", "q")
    prompt = len(stream.ids)
    stream.add_policy(Completion(text="a b c", ids=ids, logprobs=tuple(logprobs)))
    assert stream.ids[prompt:] == list(ids)
    assert stream.mask[prompt:] == [0, 0] + [1] * (len(ids) - 2)
    assert all(map(math.isfinite, stream.logprobs))
    assert stream.nonfinite == 2


def test_logprobs_of_another_length_are_refused(tokenizer):
    stream = Stream.start(tokenizer, "s", "q")
    with pytest.raises(ValueError, match="2 ids but 1 logprobs"):
        stream.add_policy(Completion(text="a", ids=(5, 6), logprobs=(0.0,)))


def test_add_tools_takes_as_much_room_as_tool_ids_says(tokenizer):
    stream = feed(tokenizer, "s", "q", [("x", [])])
    before = len(stream.ids)
    wanted = stream.tool_ids(["a", "b | c"])
    stream.add_tools(["a", "b | c"])
    assert stream.ids[before:] == wanted


@pytest.mark.parametrize("roles", [[], ["system"], ["user", "tool"], ["user", "assistant", "user"], ["user", "user"]])
def test_conversations_of_another_shape_are_refused(tokenizer, roles):
    with pytest.raises(ValueError, match="user"):
        render_messages(tokenizer, [Message(role=role, content="x") for role in roles])


def test_decode_turn_drops_the_end_token_only_at_the_end(tokenizer):
    end = tokenizer.stop_ids[0]
    ids = tokenizer.encode_policy("<think>a</think>")
    assert tokenizer.decode_turn([*ids, end]) == "<think>a</think>" == tokenizer.decode_turn(ids)
    assert tokenizer.decode_turn([]) == ""


def test_loading_and_its_errors(tmp_path, tokenizer):
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(DataError, match="no readable tokenizer"):
        PolicyTokenizer.load(folder)
    (folder / "tokenizer.json").write_text(tokenizer._tokenizer.to_str())
    loaded = PolicyTokenizer.load(folder)
    assert loaded.fingerprint == tokenizer.fingerprint == PolicyTokenizer.load(folder / "tokenizer.json").fingerprint
    assert loaded.encode("List of dams") == tokenizer.encode("List of dams")
    assert loaded.vocab_size == tokenizer.vocab_size > max(loaded.encode("List of dams 北"))
    assert tokenizer.stop_ids == (tokenizer.markers[TURN_END], tokenizer.markers[TEXT_END])
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="not a tokenizers file"):
        PolicyTokenizer.load(folder)


def test_a_tokenizer_without_turn_markers_is_refused_and_fingerprints_differ(train_tokenizer, any_tokenizer):
    with pytest.raises(DataError, match="no added token"):
        PolicyTokenizer(train_tokenizer(("<think>",)))
    assert PolicyTokenizer(train_tokenizer(MARKERS, vocab_size=390)).fingerprint != any_tokenizer.fingerprint
