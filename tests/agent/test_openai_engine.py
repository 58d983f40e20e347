import asyncio
import email.utils
import http.server
import json
import threading
import time

import pytest

from webleaper_jax.agent.engine import InfrastructureError, Request
from webleaper_jax.agent.loop import LoopConfig, run_episode
from webleaper_jax.agent.openai_engine import OpenAIEngine, ServerConfig, chat_messages, retry_after
from webleaper_jax.agent.protocol import format_call
from webleaper_jax.agent.render import Stream
from webleaper_jax.agent.tools import Observation, Tools
from webleaper_jax.jsonl import DataError
from webleaper_jax.records import Message, Sampling, Target, Task

GOOD = "<think>x</think>\n<answer>\nName |\nA |\n</answer>"
ASK = Request(
    messages=(Message(role="system", content="s"), Message(role="user", content="q")),
    ids=None,
    sampling=Sampling(max_tokens=100, temperature=0.7, top_p=0.9),
    seed=7,
    session="e",
)


def reply(content=GOOD, finish="stop", **message):
    usage = {"prompt_tokens": 11, "completion_tokens": 5}
    body = {
        "choices": [{"message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}],
        "usage": usage,
    }
    return (200, json.dumps(body).encode(), {})


def failure(status, text="Bad Gateway", **headers):
    return (status, text.encode(), {key.replace("_", "-"): value for key, value in headers.items()})


HANG, DROP, TRICKLE = "hang", "drop", "trickle"


class Server:
    """A chat server that gives the replies of a list in turn (the last one for ever), and keeps what it was asked."""

    def __init__(self):
        self.replies = []
        self.asked = []
        self.times = []
        self.keys = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                outer.times.append(time.monotonic())
                outer.keys.append(self.headers.get("Authorization"))
                outer.asked.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
                said = outer.replies.pop(0) if len(outer.replies) > 1 else outer.replies[0]
                if said == DROP:
                    self.close_connection = True
                    return
                if said in (HANG, TRICKLE):
                    self._stall(said)
                    return
                status, body, headers = said
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _stall(self, kind):
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                for _ in range(20):
                    if outer.stopped.wait(0.05):
                        return
                    if kind == TRICKLE:
                        try:
                            self.wfile.write(b" ")
                            self.wfile.flush()
                        except OSError:
                            return
                self.close_connection = True

            def log_message(self, *_):
                pass

        self.stopped = threading.Event()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def close(self):
        self.stopped.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Server()
    yield server
    server.close()


def ask(server, *replies, request=ASK, **config):
    server.replies = list(replies)
    engine = make(server, **config)

    async def go():
        try:
            return await engine.generate(request)
        finally:
            await engine.aclose()

    return asyncio.run(go())


def make(server, **config):
    defaults = {"attempts": 4, "min_wait": 0.01, "max_wait": 0.02, "timeout": 5.0, "context": 1000}
    return OpenAIEngine(ServerConfig(url=server.url, model="m", **(defaults | config)))


def test_a_good_reply_is_a_turn_and_the_request_says_all(server):
    got = ask(server, reply(), api_key="k", extra={"top_k": 5})
    assert (got.text, got.finish, got.ids, got.prompt_tokens, got.completion_tokens) == (GOOD, "stop", None, 11, 5)
    path, body = server.asked[0]
    assert path == "/v1/chat/completions"
    assert server.keys == ["Bearer k"]
    assert body == {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 100,
        "seed": 7,
        "stop": ["<tool_response>"],
        "top_k": 5,
    }
    ask(server, reply(), send_seed=False)
    assert "seed" not in server.asked[1][1]
    assert server.keys[1] is None


@pytest.mark.parametrize(
    "bad",
    [
        failure(429),
        failure(500),
        failure(502),
        failure(503),
        failure(408),
        failure(529),
        DROP,
        (200, b"Bad Gateway", {}),
        (200, b"", {}),
        (200, b'{"choices": []}', {}),
        (200, b'{"error": "overloaded"}', {}),
        (200, b"\xff\xfe", {}),
        reply(""),
        reply(None),
        reply(" \n"),
        (200, b'{"choices": [{"message": {"content": 3}}]}', {}),
    ],
)
def test_what_may_pass_is_tried_again_and_never_a_turn(server, bad):
    assert ask(server, bad, bad, reply()).text == GOOD
    assert len(server.asked) == 3
    with pytest.raises(InfrastructureError, match="4 attempts"):
        ask(server, bad)
    assert len(server.asked) == 7


@pytest.mark.parametrize("stall", [HANG, TRICKLE])
def test_a_hanging_or_trickling_server_runs_into_the_deadline(server, stall):
    assert ask(server, stall, reply(), timeout=0.3).text == GOOD
    with pytest.raises(InfrastructureError, match=r"no reply in 0\.3 s"):
        ask(server, stall, timeout=0.3, attempts=2)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 422])
def test_permanent_errors_are_not_tried_again(server, status):
    with pytest.raises(InfrastructureError, match=f"status {status}: no such model"):
        ask(server, failure(status, "no such model"))
    assert len(server.asked) == 1


def test_a_withheld_turn_is_permanent_and_no_turn(server):
    with pytest.raises(InfrastructureError, match="content filter"):
        ask(server, reply("I cannot", "content_filter"))
    assert len(server.asked) == 1


def test_a_server_that_is_not_there_is_an_infrastructure_error(server):
    url = server.url
    server.close()
    engine = OpenAIEngine(ServerConfig(url=url, model="m", attempts=2, min_wait=0.01, max_wait=0.01))
    with pytest.raises(InfrastructureError, match="ConnectError"):
        asyncio.run(engine.generate(ASK))
    server.__init__()  # the fixture closes it again


def test_retry_after_is_honoured_up_to_its_bound(server):
    ask(server, failure(429, Retry_After="0.4"), reply())
    assert server.times[1] - server.times[0] >= 0.4
    ask(server, failure(503, Retry_After="3600"), reply(), max_retry_after=0.2)
    assert 0.2 <= server.times[3] - server.times[2] < 60


def test_retry_after_is_read_as_number_or_date():
    assert retry_after("7") == 7.0
    assert retry_after(" 1.5 ") == 1.5
    assert [retry_after(text) for text in ("", "soon", "-3", "1e9", "99999999999999")] == [0.0] * 5
    assert 50 < retry_after(email.utils.formatdate(time.time() + 60, usegmt=True)) <= 60
    assert retry_after(email.utils.formatdate(time.time() - 60)) == 0.0


TOO_LONG = [
    "This model's maximum context length is 1000 tokens. However, you requested 1100 tokens (960 in the messages, 100 "
    "in the completion). Please reduce the length.",
    "'max_tokens' or 'max_completion_tokens' is too large: 100. This model's maximum context length is 1000 tokens and "
    "your request has 960 input tokens (100 > 1000 - 960).",
]


@pytest.mark.parametrize("message", TOO_LONG)
def test_the_limit_is_clamped_to_what_the_server_says_is_left(server, message):
    got = ask(server, failure(400, json.dumps({"error": {"message": message}})), reply(), context=5000)
    assert got.text == GOOD
    assert [body["max_tokens"] for _, body in server.asked] == [100, 40]


def test_a_prompt_that_fills_the_context_ends_it_without_a_turn(server):
    message = TOO_LONG[0].replace("960", "1000")
    got = ask(server, failure(400, message))
    assert (got.text, got.finish) == ("", "context")
    assert len(server.asked) == 1
    got = ask(server, failure(400, '{"code": "context_length_exceeded"}'))
    assert (got.text, got.finish) == ("", "context")
    assert [body["max_tokens"] for _, body in server.asked[1:]] == [100, 50, 25, 12]


def test_long_prompts_lower_the_limit_before_the_server_complains(server):
    long = Request(
        messages=(Message(role="user", content="x" * 2000),),
        ids=None,
        sampling=Sampling(max_tokens=900),
        seed=0,
        session="",
    )
    ask(server, reply(), request=long, context=1000)
    assert server.asked[0][1]["max_tokens"] == 200


def test_cut_replies_thoughts_and_stray_ends(server):
    assert ask(server, reply("<think>half", "length")).finish == "length"
    assert ask(server, reply("answer", reasoning_content="why")).text == "<think>why</think>\nanswer"
    assert ask(server, reply(None, "length", reasoning="why")).text == "<think>why"
    assert ask(server, reply("<think>a</think>b", reasoning="a")).text == "<think>a</think>b"
    assert ask(server, reply("a<|im_end|>\n<tool_response>made up")).text == "a"
    assert ask(server, reply("a<|im_end|>")).text == "a"
    assert ask(server, (200, reply("b")[1].replace(b'"b"', b'"b\\ud83d"'), {})).text == "b?"


def test_tool_results_are_sent_as_the_renderer_writes_them(tokenizer):
    messages = [
        Message(role="system", content="s"),
        Message(role="user", content="q"),
        Message(role="assistant", content="c"),
    ]
    messages += [
        Message(role="tool", content="r1"),
        Message(role="tool", content="r2"),
        Message(role="assistant", content="d"),
    ]
    messages += [Message(role="tool", content="r3")]
    sent = chat_messages(messages)
    assert [m["role"] for m in sent] == ["system", "user", "assistant", "user", "assistant", "user"]
    stream = Stream.start(tokenizer, "s", "q")
    text = tokenizer.decode(stream.tool_ids(["r1", "r2"]))
    assert f"<|im_start|>user\n{sent[3]['content']}<|im_end|>" in text


def test_one_engine_serves_several_event_loops_and_many_requests_at_once(server):
    server.replies = [reply()]
    engine = make(server)

    async def many():
        return await asyncio.gather(*(engine.generate(ASK) for _ in range(8)))

    for _ in range(2):
        assert [got.text for got in asyncio.run(many())] == [GOOD] * 8


@pytest.mark.parametrize("key", ["clé", "key\n", "two words", " sk-1", "key\x7f", "ключ"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key):
    with pytest.raises(DataError, match="key holds") as error:
        ServerConfig(url="http://127.0.0.1:1/v1", model="m", api_key=key)
    assert key not in str(error.value)
    assert ServerConfig(url="http://127.0.0.1:1/v1", model="m", api_key="sk-aZ09_~!").api_key


@pytest.mark.parametrize(
    "url",
    ["", "x", "localhost:8000/v1", "ftp://x/v1", "http://", "http://x:port/v1", "http://[::1/v1", "http://-é-/v1"]
    + [f"http://127.0.0.1:{port}/v1" for port in (-1, 65536, 99999)],
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(DataError, match="no server's address"):
        ServerConfig(url=url, model="m")


def test_an_episode_over_http_and_an_outage_in_the_middle_of_one(server):
    task = Task(
        question="q",
        variant="basic",
        targets=(Target(form="A", type="text", layer=2, owner="q", relation="name", final=True),),
    )

    class Fixed(Tools):
        def __init__(self):
            self.web = self
            self.fingerprint = ""

        fingerprint = ""

        def run(self, name, arguments, goal=""):
            return Observation(text="# q\nA", tool="search")

    call = reply(format_call("search", {"queries": ["q"]}))
    config = LoopConfig(max_context=1000)

    def episode(*replies):
        server.replies = list(replies)
        engine = make(server)
        assert engine.name == "openai:m"
        other = OpenAIEngine(ServerConfig(url=engine.config.url, model="m", extra={"top_k": 20}))
        assert other.name != engine.name
        return asyncio.run(run_episode(task, 0, engine, Fixed(), config, Sampling(max_tokens=100)))

    got = episode(call, failure(500), reply())
    assert (got.termination, got.answer.rows, got.ledger.prompt_tokens) == ("answer", (("A",),), 22)
    assert got.steps[0].shown == (0,)
    down = episode(call, failure(502, "<html>502 Bad Gateway</html>"))
    assert down.termination == "infrastructure"
    assert "status 502" in down.infrastructure_error
    assert not any("Gateway" in message.content for message in down.segments[0].messages)
