"""A small byte-level BPE tokenizer, tables, and a scripted engine for the agent's tests."""

from collections.abc import Callable, Sequence

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from webleaper_jax.agent.engine import Completion, Request
from webleaper_jax.agent.render import MARKERS, TEXT_END, TURN_END, TURN_START, PolicyTokenizer
from webleaper_jax.records import Cell, Table

TEXT = [
    "Tools: search, visit. End with a table in the answer.",
    '{"name": "search", "arguments": {"queries": ["List of dams in Norway"]}}',
    '{"name": "visit", "arguments": {"urls": ["w/17?p=2"]}}',
    "1. List of dams in Norway | w/17 | table of 24 rows: Name, River, Year, Height (m)",
    "# List of dams in Norway (page 1 of 3)\nName | River | Year | Height (m)\nnext: w/17?p=2",
    "system\nYou are\nuser\nWhich dams\nassistant\nFirst open it, then answer. <|im_end|> </tool_response> <think>",
]


@pytest.fixture(scope="session", name="train_tokenizer")
def train_tokenizer_fixture() -> Callable[..., str]:
    return train_tokenizer


def train_tokenizer(markers: Sequence[str], special: bool = True, vocab_size: int = 400) -> str:
    """Returns the text of a `tokenizer.json` as Hugging Face writes it."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(markers) if special else [],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    if not special:  # Qwen3 marks its tags as added tokens that are not special
        tokenizer.add_tokens([tokenizers.AddedToken(marker, special=False, normalized=False) for marker in markers])
    return tokenizer.to_str()


@pytest.fixture(scope="session")
def tokenizer() -> PolicyTokenizer:
    """All markers as special tokens, as in the tiny policy."""
    return PolicyTokenizer(train_tokenizer(MARKERS))


@pytest.fixture(scope="session", params=["tiny", "qwen", "smollm"])
def any_tokenizer(request: pytest.FixtureRequest) -> PolicyTokenizer:
    """The kinds of tokenizer: all markers special; all added but not special; only the turn markers."""
    if request.param == "smollm":
        return PolicyTokenizer(train_tokenizer((TURN_START, TURN_END, TEXT_END)))
    return PolicyTokenizer(train_tokenizer(MARKERS, special=request.param == "tiny"))


class ScriptedEngine:
    """Gives the turns of a list, one a request; keeps the requests. With a tokenizer, turns come as ids."""

    def __init__(self, turns: Sequence[str | Completion | Exception], tokenizer: PolicyTokenizer | None = None):
        self.name = "scripted"
        self.tokenizer = tokenizer
        self.turns = list(turns)
        self.requests: list[Request] = []
        self.closed: list[str] = []

    async def generate(self, request: Request) -> Completion:
        turn = self.turns[len(self.requests)]
        self.requests.append(request)
        if isinstance(turn, Exception):
            raise turn
        return turn if isinstance(turn, Completion) else completion(turn, self.tokenizer)

    def close_session(self, session: str) -> None:
        self.closed.append(session)


def completion(text: str, tokenizer: PolicyTokenizer | None) -> Completion:
    """A turn that ended by itself, sampled at version 3 with log-prob -0.5 for each id."""
    if tokenizer is None:
        return Completion(text=text, completion_tokens=len(text) // 4)
    ids = (*tokenizer.encode_policy(text), tokenizer.stop_ids[0])
    return Completion(text=text, ids=ids, logprobs=(-0.5,) * len(ids), policy_version=3, completion_tokens=len(ids))


@pytest.fixture(scope="session")
def scripted() -> type[ScriptedEngine]:
    return ScriptedEngine


@pytest.fixture(scope="session")
def make_table() -> Callable[..., Table]:
    def make(title: str, rows: int = 24, family: str = "dams", first: int = 0, **fields: object) -> Table:
        """A table of dams; cells are distinct, each first cell links to its own page."""
        body = tuple(
            (
                Cell(f"Dam {chr(65 + n % 26)}{n}", (f"Dam {chr(65 + n % 26)}{n}",)),
                Cell(f"River {n % 5}", (f"River {n % 5}",)),
                Cell(str(1900 + n)),
                Cell(f"{100 + 3 * n}.{n % 10}"),
            )
            for n in range(first, first + rows)
        )
        columns = ("Name", "River", "Year", "Height (m)")
        return Table(page_title=title, url=f"https://x/{title}", columns=columns, rows=body, family=family, **fields)

    return make
