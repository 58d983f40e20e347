"""What the loop asks of a policy: one turn of text (and, from engines that deal in tokens, its ids).

Three kinds of engine stand behind it: the embedded sampler, an OpenAI-compatible server, and scripted searchers.
"""

import hashlib
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import msgspec

from webleaper_jax.records import Message, Sampling

if TYPE_CHECKING:
    from webleaper_jax.agent.render import PolicyTokenizer


class InfrastructureError(Exception):
    """Something outside the policy failed (a server, a network, a disk): nothing about it is data.

    `kind` is a short name for the trajectory's `infrastructure_error` field.
    """

    def __init__(self, message: str, kind: str = "engine"):
        super().__init__(message)
        self.kind = kind


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One turn to generate.

    `ids` are all token ids of the segment so far, the generation prompt included; they start with all ids of the
    session's request before. They are None for engines without a tokenizer, which read `messages`.
    `sampling.max_tokens` is already clamped to what the context leaves. `seed` differs between turns and rollouts.
    `session` names the episode, so that an engine can keep what it computed for the common prefix.
    """

    messages: tuple[Message, ...]
    ids: tuple[int, ...] | None
    sampling: Sampling
    seed: int
    session: str
    task_id: str = ""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One generated turn.

    `text` never holds the end-of-turn token; `ids` are as sampled and end with it when the policy sampled it.
    `finish`: `stop` (the policy ended its turn), `length` (cut at `max_tokens`), `context` (cut at the context's end).
    `logprobs` has one entry per id: log-probability under the distribution that the id was sampled from.
    """

    text: str
    ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    finish: Literal["stop", "length", "context"] = "stop"
    policy_version: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@runtime_checkable
class Engine(Protocol):
    """A policy. `generate` raises `InfrastructureError` when it cannot give a turn: an outage is never text."""

    name: str
    tokenizer: "PolicyTokenizer | None"

    async def generate(self, request: Request) -> Completion: ...

    def close_session(self, session: str) -> None:
        """The episode is over: what is kept for it can go. Unknown sessions are ignored."""
        ...


def derive_seed(*parts: int | str) -> int:
    """Returns a seed in [0, 2**31) that depends on all parts, in order, and on nothing else."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % 2**31
