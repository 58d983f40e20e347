"""From messages to token ids, once: sampled ids are kept as sampled, everything else is encoded piece by piece.

The text form is Qwen's chat template (ChatML; tool results in a user turn, each in `<tool_response>`), with `<think>`
kept in every turn. Each piece (a role header, a message's content) is encoded alone and markers are put in by id, so
that the ids of a conversation are the ids of its parts, whether it is rendered turn by turn or as a whole. Content
that comes from outside (questions, pages) is encoded without any marker: a page that spells `<|im_end|>` or
`</tool_response>` gives ordinary text tokens and cannot end a turn.

Left out: encoding a whole conversation as one string (token merges would cross the pieces, and request k would not be
a prefix of request k+1).
"""

import hashlib
import json
import math
import os
import pathlib
import re
from collections.abc import Sequence

import tokenizers

from webleaper_jax.agent.engine import Completion
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Message

TURN_START, TURN_END, TEXT_END = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
THINK, THINK_END = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
RESULT, RESULT_END = "<tool_response>", "</tool_response>"
ANSWER, ANSWER_END = "<answer>", "</answer>"

# what an assistant turn may hold as control ids; turn and result markers are never the policy's text
POLICY_MARKERS = (THINK, THINK_END, CALL, CALL_END, ANSWER, ANSWER_END)
SYSTEM_MARKERS = (*POLICY_MARKERS, RESULT, RESULT_END)
MARKERS = (TURN_START, TURN_END, TEXT_END, *SYSTEM_MARKERS)

RENDER_VERSION = 1


class PolicyTokenizer:
    """A Hugging Face `tokenizer.json`, with markers put in by id and never found in text by accident.

    Markers that the tokenizer does not know as added tokens (SmolLM2 has only the turn markers) are plain text.

    Attributes:
      stop_ids: ids that end a turn: `<|im_end|>` first, then `<|endoftext|>` where there is one.
      pad_id: an id to fill batches with; masks are explicit, so it may be an end token.
      vocab_size: largest id plus one.
      fingerprint: equal for tokenizers that give the same ids under the same rendering.
    """

    def __init__(self, source: str, name: str = "tokenizer.json"):
        """Reads the text of a `tokenizer.json`; `name` stands in errors.

        Raises:
          DataError: it is no tokenizer, or it lacks the turn markers.
        """
        try:
            spec = json.loads(source)
            if spec["model"].get("type", "BPE") != "BPE":
                raise ValueError(f"its model is {spec['model']['type']}, byte-level BPE is needed")
            self._tokenizer = tokenizers.Tokenizer.from_str(source)
            self._plain = tokenizers.Tokenizer.from_str(json.dumps(_without_markers(spec)))
        except Exception as error:  # tokenizers raises bare Exception
            raise DataError(f"{name}: not a tokenizers file ({error}); save it with save_pretrained") from None
        added = {token["content"]: token["id"] for token in spec.get("added_tokens", [])}
        missing = [marker for marker in (TURN_START, TURN_END) if marker not in added]
        if missing:
            raise DataError(f"{name}: has no added token {missing[0]}; add the ChatML markers to the tokenizer")
        self.markers: dict[str, int] = {marker: added[marker] for marker in MARKERS if marker in added}
        self.stop_ids: tuple[int, ...] = tuple(self.markers[m] for m in (TURN_END, TEXT_END) if m in self.markers)
        self.pad_id: int = self.stop_ids[-1]
        self.vocab_size: int = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        canonical = json.dumps([RENDER_VERSION, spec], sort_keys=True, ensure_ascii=False)
        self.fingerprint: str = hashlib.blake2b(canonical.encode(), digest_size=8).hexdigest()
        self._headers: dict[str, tuple[int, ...]] = {}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "PolicyTokenizer":
        """Reads `tokenizer.json`, or the one in a model directory. Raises `DataError` where there is none."""
        path = pathlib.Path(path)
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            return cls(file.read_text(encoding="utf-8"), str(file))
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file}: no readable tokenizer ({error})") from None

    def encode(self, text: str, markers: Sequence[str] = ()) -> list[int]:
        """Encodes text; only the `markers` named become control ids, any other spelling of one is plain text."""
        known = [marker for marker in markers if marker in self.markers]
        if not known:
            return self._plain.encode(text, add_special_tokens=False).ids
        ids: list[int] = []
        for piece in re.split("(" + "|".join(map(re.escape, known)) + ")", text):
            if piece in known:
                ids.append(self.markers[piece])
            elif piece:
                ids.extend(self._plain.encode(piece, add_special_tokens=False).ids)
        return ids

    def encode_policy(self, text: str) -> list[int]:
        """Encodes an assistant turn written as text (by a script, in a file): its own tags become control ids."""
        return self.encode(text, POLICY_MARKERS)

    def decode(self, ids: Sequence[int]) -> str:
        """Decodes ids; markers stand in the text as they are spelled."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def decode_turn(self, ids: Sequence[int]) -> str:
        """Decodes a sampled turn without the end token that closes it."""
        return self.decode(ids[:-1] if ids and ids[-1] in self.stop_ids else ids)

    def header(self, role: str) -> tuple[int, ...]:
        """The ids of `<|im_start|>{role}\\n`."""
        if role not in self._headers:
            self._headers[role] = (self.markers[TURN_START], *self.encode(f"{role}\n"))
        return self._headers[role]


class Stream:
    """The token ids of one segment as they grow, with what training needs to know of each.

    After `start` and after `add_tools` the stream ends with the generation prompt (`<|im_start|>assistant\\n`); after
    `add_policy` it ends with the end of that turn. Nothing that stands in it is ever changed.

    Attributes:
      ids, mask, logprobs, versions: one entry per token. Mask 1 = sampled by the policy. Where the mask is 0,
        `logprobs` is 0.0 and `versions` is -1.
      nonfinite: sampled tokens whose log-probability was not finite; their mask is 0, so they leave the loss.
    """

    def __init__(self, tokenizer: PolicyTokenizer):
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.nonfinite = 0
        self._end = tokenizer.markers[TURN_END]
        self._newline = tokenizer.encode("\n")

    @classmethod
    def start(cls, tokenizer: PolicyTokenizer, system: str, question: str) -> "Stream":
        """Begins a segment: system prompt (left out when empty), question, generation prompt."""
        stream = cls(tokenizer)
        if system:
            system_ids = tokenizer.encode(system, SYSTEM_MARKERS)
            stream._context([*tokenizer.header("system"), *system_ids, stream._end, *stream._newline])
        stream._context([*tokenizer.header("user"), *tokenizer.encode(question), stream._end, *stream._newline])
        stream._context(tokenizer.header("assistant"))
        return stream

    def prompt_ids(self) -> tuple[int, ...]:
        """All ids so far: the prompt of the next turn."""
        return tuple(self.ids)

    def add_policy(self, completion: Completion) -> None:
        """Appends a turn of the policy. Sampled ids are taken as they are; a turn of text is encoded once.

        A turn that the policy did not end itself (cut, or ended by `<|endoftext|>`) gets its end token by force, with
        mask 0.

        Raises:
          ValueError: `logprobs` and `ids` differ in length.
        """
        if completion.ids is None:
            ids = self.tokenizer.encode_policy(completion.text)
            ids += [self._end] if completion.finish == "stop" else []
        else:
            ids = list(completion.ids)
        logprobs = [0.0] * len(ids) if completion.logprobs is None else list(completion.logprobs)
        if len(logprobs) != len(ids):
            raise ValueError(f"{len(ids)} ids but {len(logprobs)} logprobs")
        sampled = [math.isfinite(logprob) for logprob in logprobs]
        self.ids += ids
        self.mask += [int(finite) for finite in sampled]
        self.logprobs += [x if finite else 0.0 for x, finite in zip(logprobs, sampled, strict=True)]
        self.versions += [completion.policy_version if finite else -1 for finite in sampled]
        self.nonfinite += sampled.count(False)
        if not ids or ids[-1] != self._end:
            self._context([self._end])

    def add_tools(self, texts: Sequence[str]) -> None:
        """Appends the results of one turn's calls, in call order, as one user turn, and the generation prompt."""
        self._context(self.tool_ids(texts))

    def tool_ids(self, texts: Sequence[str]) -> list[int]:
        """The ids that `add_tools` would append: how much room the results take."""
        ids = [*self._newline, *self.tokenizer.header("user")]
        for number, text in enumerate(texts):
            ids += self._newline if number else []
            ids += self.tokenizer.encode(f"{RESULT}\n", (RESULT,))
            ids += self.tokenizer.encode(text)
            ids += self.tokenizer.encode(f"\n{RESULT_END}", (RESULT_END,))
        return [*ids, self._end, *self._newline, *self.tokenizer.header("assistant")]

    def _context(self, ids: Sequence[int]) -> None:
        """Appends ids that the policy did not sample."""
        self.ids += ids
        self.mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)
        self.versions += [-1] * len(ids)


def render_messages(tokenizer: PolicyTokenizer, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
    """Returns ids and loss mask of a conversation kept as text, equal to those of a `Stream` that was fed its turns.

    Every assistant turn counts as written by the policy (mask 1), and as ended by it unless it was cut. Consecutive
    `tool` messages are the results of one turn. A conversation that ends with tool results ends with the generation
    prompt.

    Raises:
      ValueError: the roles are not `[system] user (assistant tool*)*`.
    """
    system, question, rest = _opening(messages)
    stream = Stream.start(tokenizer, system, question)
    results: list[str] = []
    expected = "assistant"
    for message in rest:
        if message.role == "tool" and expected != "assistant":
            results.append(message.content)
            expected = "either"
        elif message.role == "assistant" and expected != "tool":
            if results:
                stream.add_tools(results)
                results = []
            stream.add_policy(Completion(text=message.content, finish="length" if message.cut else "stop"))
            expected = "tool"
        else:
            raise ValueError(f"a {message.role} message cannot stand here: turns are [system] user (assistant tool*)*")
    if results:
        stream.add_tools(results)
    return stream.ids, stream.mask


def _opening(messages: Sequence[Message]) -> tuple[str, str, Sequence[Message]]:
    """Splits off system prompt and question."""
    has_system = bool(messages) and messages[0].role == "system"
    body = messages[1:] if has_system else messages
    if not body or body[0].role != "user":
        raise ValueError("a conversation begins with an optional system message and the question as a user message")
    return (messages[0].content if has_system else ""), body[0].content, body[1:]


def _without_markers(spec: dict) -> dict:
    """The tokenizer without added tokens, so that nothing spelled in a text can become one.

    They also leave the model's vocabulary (models with `ignore_merges` look whole words up there), except the unknown
    token, which the model itself may need.
    """
    added = {token["content"] for token in spec.get("added_tokens", [])}
    model = dict(spec["model"])
    keep = model.get("unk_token")
    model["vocab"] = {text: i for text, i in model["vocab"].items() if text not in added or text == keep}
    return {**spec, "added_tokens": [], "model": model, "post_processor": None}
