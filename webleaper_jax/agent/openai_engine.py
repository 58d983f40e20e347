"""Any server that speaks the OpenAI chat API as a policy (vLLM, SGLang, llama.cpp, a hosted model).

It deals in text: trajectories made with it have no token ids, and are encoded once when they are trained on. Tool
results are sent as a user turn in `<tool_response>`, the same text that the renderer makes of them.
"""

import asyncio
import datetime
import email.utils
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import msgspec
import tenacity

from webleaper_jax.agent.engine import Completion, InfrastructureError, Request
from webleaper_jax.agent.render import RESULT, RESULT_END, THINK, THINK_END, TURN_END, PolicyTokenizer
from webleaper_jax.agent.tolerant import valid
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Message

_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to speak to a server.

    Attributes:
      url: base address, ending in `/v1`.
      context: tokens that the model can hold; the completion limit is clamped to what a prompt leaves of it.
      timeout: seconds for one attempt as a whole.
      attempts: tries of one request; between them the wait doubles from `min_wait` to `max_wait` seconds, or is longer
        where the server asks for it (`Retry-After`, at most `max_retry_after`).
      chars_per_token: a low estimate, for a first guess of a prompt's length.
      extra: fields added to each request (`{"chat_template_kwargs": {...}}`, say).

    Raises:
      DataError: `url` is no address, or `api_key` cannot be sent in a header.
    """

    url: str
    model: str
    api_key: str = ""
    context: int = 32_768
    timeout: float = 600.0
    attempts: int = 6
    min_wait: float = 1.0
    max_wait: float = 30.0
    max_retry_after: float = 120.0
    chars_per_token: float = 2.5
    send_seed: bool = True
    extra: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        _check_address(self.url)
        if not re.fullmatch("[!-~]*", self.api_key):
            raise DataError(
                "the server's key holds a space, a line break or a letter that is not ASCII, which no header can "
                "carry; copy the key anew"
            )


def _check_address(url: str) -> None:
    try:
        parts = httpx.URL(url)
        usable = parts.scheme in ("http", "https") and bool(parts.host) and 0 < (parts.port or 80) < 1 << 16
        reason = "it takes http:// or https://, a host, and a port below 65536 if any"
    except (httpx.InvalidURL, UnicodeError) as error:
        usable, reason = False, str(error)
    if not usable:
        raise DataError(f"{url}: no server's address ({reason}); give one as http://127.0.0.1:8000/v1")


class _Transient(Exception):
    """A failure that may pass. `retry_after`: seconds that the server asks to wait, 0 where it does not."""

    def __init__(self, message: str, retry_after: float = 0.0):
        super().__init__(message)
        self.retry_after = retry_after


class _ContextExceeded(Exception):
    """The server says that prompt plus completion limit is too long; in tokens, where it names them."""

    def __init__(self, context: int | None, prompt: int | None):
        super().__init__("context exceeded")
        self.context = context
        self.prompt = prompt


class OpenAIEngine:
    """An `Engine` over `/chat/completions`.

    What a server does wrong is never a turn: errors, hangs, unreadable and empty replies are tried again, and raise
    `InfrastructureError` when they stay; errors that cannot pass (a wrong key, an unknown model) raise it at once.
    """

    tokenizer: PolicyTokenizer | None = None

    def __init__(self, config: ServerConfig):
        self.config = config
        # Fields added to the requests may change the answers (thinking on or off), so they are part of the name.
        extra = f":{json.dumps(config.extra, sort_keys=True)}" if config.extra else ""
        self.name = f"openai:{config.model}{extra}"
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def generate(self, request: Request) -> Completion:
        """Returns the next turn; `finish="context"` with an empty text when the prompt leaves no room for one.

        Raises:
          InfrastructureError: the server gives no usable reply.
        """
        messages = chat_messages(request.messages)
        prompt = int(sum(len(message["content"]) for message in messages) / self.config.chars_per_token)
        # the estimate is high: it must not end an episode, only keep the limit from being absurd
        limit = max(1, min(request.sampling.max_tokens, max(self.config.context - prompt, self.config.context // 8)))
        for _ in range(4):
            try:
                return await self._with_retries(self._body(request, messages, limit))
            except _ContextExceeded as exceeded:
                if exceeded.prompt is not None:
                    room = (exceeded.context or self.config.context) - exceeded.prompt
                    limit = min(limit - 1, room)
                else:
                    limit //= 2
                if limit < 1:
                    break
        return Completion(text="", finish="context")

    def close_session(self, session: str) -> None:
        """Nothing is kept for a session."""

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await self._client.aclose()
        self._client = None

    def _body(self, request: Request, messages: Sequence[Mapping[str, str]], limit: int) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.config.model,
            "messages": messages,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": limit,
            "stop": [RESULT],  # a policy that goes on to write its own tool results is stopped there
        }
        if self.config.send_seed:
            body["seed"] = request.seed
        return body | dict(self.config.extra)

    async def _with_retries(self, body: Mapping[str, Any]) -> Completion:
        config = self.config
        exponential = tenacity.wait_exponential(multiplier=config.min_wait, min=config.min_wait, max=config.max_wait)

        def wait(state: tenacity.RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            asked = error.retry_after if isinstance(error, _Transient) else 0.0
            return max(exponential(state), min(asked, config.max_retry_after)) if asked else exponential(state)

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(_Transient),
            stop=tenacity.stop_after_attempt(config.attempts),
            wait=wait,
            reraise=True,
        )
        try:
            return await retrying(self._attempt, body)
        except _Transient as error:
            raise InfrastructureError(f"{config.url}: {error} ({config.attempts} attempts)") from None

    async def _attempt(self, body: Mapping[str, Any]) -> Completion:
        headers = {"Authorization": f"Bearer {self.config.api_key}"} if self.config.api_key else {}
        try:
            # httpx's timeouts are per read: a server that trickles would never run into them
            async with asyncio.timeout(self.config.timeout):
                reply = await self._connected().post("chat/completions", json=body, headers=headers)
        except TimeoutError:
            raise _Transient(f"no reply in {self.config.timeout:g} s") from None
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise InfrastructureError(f"{self.config.url}: {error}", "address") from None
        except httpx.HTTPError as error:
            raise _Transient(f"{type(error).__name__}: {error}") from None
        if reply.status_code in _TRANSIENT:
            raise _Transient(f"status {reply.status_code}", retry_after(reply.headers.get("retry-after", "")))
        if reply.status_code != 200:
            if reply.status_code in (400, 413, 422):
                _raise_if_context(reply.text)
            raise InfrastructureError(f"{self.config.url}: status {reply.status_code}: {reply.text[:200]}", "refused")
        return read_completion(reply.content)

    def _connected(self) -> httpx.AsyncClient:
        """The client of the running event loop (connections cannot outlive the loop that made them)."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            # certificates are read from disk, which takes a second: not for a local server
            secure = not self.config.url.startswith("http://")
            self._client = httpx.AsyncClient(base_url=self.config.url, timeout=None, limits=limits, verify=secure)
            self._loop = loop
        return self._client


def chat_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Messages as the chat API takes them: the results of one turn become one user message."""
    sent: list[dict[str, str]] = []
    previous = ""
    for message in messages:
        if message.role != "tool":
            sent.append({"role": message.role, "content": message.content})
        else:
            result = f"{RESULT}\n{message.content}\n{RESULT_END}"
            if previous == "tool":
                sent[-1]["content"] += f"\n{result}"
            else:
                sent.append({"role": "user", "content": result})
        previous = message.role
    return sent


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _ReplyMessage(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    message: _ReplyMessage
    finish_reason: str | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


def read_completion(body: bytes) -> Completion:
    """Reads a reply. A thought that the server split off is put back in front of the text.

    Raises:
      InfrastructureError: the server withheld the text (a content filter).
      Exception: a transient failure (retried by the engine) for a body that is no reply, or an empty one.
    """
    try:
        reply = msgspec.convert(json.loads(body), type=_Reply)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise _Transient(f"unreadable reply ({error})") from None
    if not reply.choices:
        raise _Transient("a reply without choices")
    choice = reply.choices[0]
    if choice.finish_reason == "content_filter":
        raise InfrastructureError("the server's content filter withheld the turn", "content_filter")
    text = choice.message.content or ""
    thought = choice.message.reasoning_content or choice.message.reasoning or ""
    if thought.strip() and THINK not in text:
        text = f"{THINK}{thought}{THINK_END}\n{text}" if text.strip() else f"{THINK}{thought}"
    text = valid(text).partition(RESULT)[0].rstrip().removesuffix(TURN_END).rstrip()
    if not text.strip():
        raise _Transient("an empty reply")
    usage = reply.usage or _Usage()
    return Completion(
        text=text,
        finish="length" if choice.finish_reason == "length" else "stop",
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
    )


def retry_after(header: str) -> float:
    """Seconds that a `Retry-After` header (a number, or a date) asks to wait; 0 where it says nothing readable."""
    header = header.strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", header):
        return float(header)
    try:
        date = email.utils.parsedate_to_datetime(header)
    except (ValueError, TypeError):
        return 0.0
    if date.tzinfo is None:
        date = date.replace(tzinfo=datetime.UTC)
    return max(0.0, (date - datetime.datetime.now(datetime.UTC)).total_seconds())


def _raise_if_context(text: str) -> None:
    """Raises `_ContextExceeded` when an error message speaks of the context's length."""
    if not re.search(r"context[ _]length|maximum context|max_model_len|context window", text, re.IGNORECASE):
        return
    context = re.search(r"(?:maximum )?context (?:length|window)[^0-9]{0,20}([0-9]+)", text)
    prompt = re.search(r"([0-9]+) in the messages|has ([0-9]+) input tokens|resulted in ([0-9]+) tokens", text)
    raise _ContextExceeded(
        int(context.group(1)) if context else None, int(next(filter(None, prompt.groups()))) if prompt else None
    )
