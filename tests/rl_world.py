"""A small web, tasks, and a policy trained on a few episodes, so that its rollouts are real and rewards differ."""

import asyncio
import functools
import pathlib
import random
import tempfile
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.tiny_policy import tiny_decoder
from webleaper_jax.agent.corpus import build_pages
from webleaper_jax.agent.engine import Completion, Request
from webleaper_jax.agent.loop import LoopConfig, run_episode
from webleaper_jax.agent.protocol import format_answer, format_call
from webleaper_jax.agent.render import MARKERS, PolicyTokenizer, render_messages
from webleaper_jax.agent.tools import ToolLimits, Tools
from webleaper_jax.agent.web import OfflineWeb
from webleaper_jax.model import hf
from webleaper_jax.records import Answer, Cell, Sampling, Table, Target, Task

TOPICS = ("lakes", "towers", "operas")
LOOP = LoopConfig(max_steps=3, max_turns=4, max_context=224, prompt="short")
GRPO = {
    "steps": 4,
    "learning_rate": 3e-3,
    "tasks_per_step": 2,
    "group_size": 6,
    "slots": 8,
    "decode_length": 8,
    "prefill_rows": 2,
    "prefill_chunk": 32,
    "max_tokens": 80,
    "micro_batch": 4,
    "seed": 1,
}


def tables() -> list[Table]:
    made = []
    for topic in TOPICS:
        rng = random.Random(topic)
        rows = tuple(
            (
                Cell(f"{topic[:2].title()}{rng.choice('aeiou')}{rng.choice('lmnr')}o{n}"),
                Cell(str(rng.randint(1800, 1999))),
            )
            for n in range(10)
        )
        columns = ("Name", "Year")
        made.append(Table(page_title=topic.title(), url=f"x/{topic}", columns=columns, rows=rows, family=topic))
    return made


def tasks() -> list[Task]:
    """Asks for the first three rows of each table (those that its page's first part shows)."""
    made = []
    for table in tables():
        rows = [[cell.text for cell in row] for row in table.rows[:3]]
        targets = [
            Target(form=name, type="work", layer=2, owner=table.page_title, relation="name", final=True)
            for name, _ in rows
        ]
        targets += [
            Target(form=year, type="year", layer=3, owner=name, relation="year", final=True) for name, year in rows
        ]
        answer = Answer(columns=("Name", "year"), rows=tuple(map(tuple, rows)))
        question = f"Name and year of three {table.family}?"
        made.append(Task(question=question, variant="basic", targets=tuple(targets), answer=answer, split="rl"))
    return made


@functools.cache
def tools() -> Tools:
    web = OfflineWeb.build(build_pages(tables()), pathlib.Path(tempfile.mkdtemp()) / "web")
    return Tools(web, ToolLimits(max_results=1))


class Script:
    """An engine that says the turns it is given."""

    name = "script"
    tokenizer = None

    def __init__(self, turns: Sequence[str]):
        self.turns = list(turns)

    async def generate(self, request: Request) -> Completion:
        return Completion(text=self.turns.pop(0))

    def close_session(self, session: str) -> None: ...


def demonstrations() -> list[tuple]:
    """Messages of short episodes: a search, a visit (or none), then all, one or none of the rows asked for."""
    made = []
    for number, task in enumerate(tasks()):
        search = format_call("search", {"queries": [TOPICS[number]]})
        visit = format_call("visit", {"urls": [f"w/{sorted(TOPICS).index(TOPICS[number]) + 1}"]})
        wrong = Answer(columns=("Name", "year"), rows=(("Nobody", "1"),))
        some = Answer(columns=("Name", "year"), rows=task.answer.rows[:1])
        for calls, answer in (([search, visit], task.answer), ([search, visit], some), ([search], wrong)):
            turns = [*calls, f"<answer>\n{format_answer(answer)}\n</answer>"]
            episode = asyncio.run(run_episode(task, 0, Script(turns), tools(), LOOP, Sampling()))
            assert episode.termination == "answer"
            made.append(episode.segments[0].messages)
    return made


def train_tokenizer(texts: Sequence[str]) -> PolicyTokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=640, special_tokens=list(MARKERS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(list(texts) * 4, trainer)
    return PolicyTokenizer(tokenizer.to_str())


@functools.cache
def policy_dir() -> pathlib.Path:
    """A checkpoint that has half learnt the demonstrations: sampled at temperature 1, it does well now and then."""
    directory = pathlib.Path(tempfile.mkdtemp()) / "policy"
    directory.mkdir()
    conversations = demonstrations()
    tokenizer = train_tokenizer([message.content for messages in conversations for message in messages])
    rendered = [render_messages(tokenizer, messages) for messages in conversations]
    length = max(len(ids) for ids, _ in rendered)
    ids = np.array([row + [0] * (length - len(row)) for row, _ in rendered], np.int32)
    mask = np.array([row + [0] * (length - len(row)) for _, row in rendered], np.float32)
    decoder = tiny_decoder(vocab_size=tokenizer.vocab_size, hidden_size=64, intermediate_size=128)
    graph, params = nnx.split(decoder)
    optimizer = optax.adam(1e-2)

    def loss(params: nnx.State) -> jax.Array:
        model = nnx.merge(graph, params)
        positions = jnp.broadcast_to(jnp.arange(length - 1), (len(ids), length - 1))
        hidden = model(ids[:, :-1], positions, jnp.ones_like(ids[:, :-1]))
        return -(model.token_logprobs(hidden, ids[:, 1:])[0] * mask[:, 1:]).sum() / mask.sum()

    @jax.jit
    def train(params: nnx.State) -> tuple[nnx.State, jax.Array]:
        def step(_: int, carry: tuple) -> tuple:
            params, state, _ = carry
            value, gradient = jax.value_and_grad(loss)(params)
            change, state = optimizer.update(gradient, state)
            return optax.apply_updates(params, change), state, value

        return jax.lax.fori_loop(0, 110, step, (params, optimizer.init(params), jnp.float32(0)))[::2]

    params, _ = train(params)
    hf.save_checkpoint(nnx.merge(graph, params), directory)
    (directory / "tokenizer.json").write_text(tokenizer._tokenizer.to_str())
    return directory
