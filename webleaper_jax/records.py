"""Every record that crosses a stage, as msgspec structs, and their JSONL files.

The records are the walls of the project: a stage reads one kind of record and writes another, and nothing else passes
between stages. Each has an `id` derived from its content (so the same content has the same id on every machine) and a
schema version, written into each line; reading and writing is in `webleaper_jax.jsonl`.
"""

import hashlib
from typing import Annotated, ClassVar, Literal

import msgspec

SCHEMA_VERSION = 1

Variant = Literal["basic", "union", "reverse_union", "legacy"]
Split = Literal["", "train", "rl", "validation", "heldout"]
# Ranges, checked where settings or records are read.
AtLeast0 = Annotated[int, msgspec.Meta(ge=0)]
AtLeast1 = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag=str.lower):
    """Base of the records that have a file of their own.

    `id` is filled in from the content when it is left empty, and checked against the content when it is given (so that
    an edited line is noticed). Fields named in `_not_identity` (times, say) do not enter the id.

    Raises:
      ValueError: the id given is not that of the content, or the schema is not the one this code writes.
    """

    _not_identity: ClassVar[frozenset[str]] = frozenset()

    id: str = ""
    schema: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.schema != SCHEMA_VERSION:
            raise ValueError(
                f"field `schema` is {self.schema}, this version reads {SCHEMA_VERSION}: make the file again"
            )
        content = content_id(self, skip={"id", "schema", *self._not_identity})
        if not self.id:
            msgspec.structs.force_setattr(self, "id", content)
        elif self.id != content:
            raise ValueError(
                f"field `id` is {self.id!r} but the content gives {content!r}: delete the id to have it set again"
            )


def content_id(record: msgspec.Struct, skip: set[str] | frozenset[str] = frozenset()) -> str:
    """Returns `<kind>-<16 hex digits>`, a BLAKE2b hash of the record's fields (but `skip`) in canonical JSON."""
    fields = {f: getattr(record, f) for f in record.__struct_fields__ if f not in skip}
    digest = hashlib.blake2b(msgspec.json.encode(fields, order="sorted"), digest_size=8).hexdigest()
    return f"{type(record).__name__.lower()}-{digest}"


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the structs that only live inside a record."""


# ---------------------------------------------------------------------------------------------------------- tables


class Cell(msgspec.Struct, frozen=True, array_like=True):
    """A table cell: its text, and the titles of the pages it links to. Stored as `[text, [title, ...]]`."""

    text: str
    links: tuple[str, ...] = ()


class Table(Record, frozen=True, kw_only=True):
    """A table as found on a page, before cleaning.

    `family` groups tables that speak of the same kind of thing (Alpine peaks, Olympic medals); splits never cut one.
    """

    page_title: str
    section_title: str = ""
    caption: str = ""
    url: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    family: str = ""
    source: str = ""

    @property
    def title(self) -> str:
        """The page title, with the caption or the section title where there is one."""
        extra = self.caption or self.section_title
        return f"{self.page_title}: {extra}" if extra else self.page_title


# ----------------------------------------------------------------------------------------------------------- trees


class Relation(Part, frozen=True, kw_only=True, order=True):
    """An edge of a tree: standardised name, data type, and domain of the column's entities (paper A.5).

    `column` is the table column it comes from (not part of the triple that unions compare).
    """

    name: str
    type: str
    domain: str = ""
    column: int = -1

    @property
    def triple(self) -> tuple[str, str, str]:
        return (self.name, self.type, self.domain)


class Value(Part, frozen=True, kw_only=True):
    """A layer-3 node: what `relation` (an index into `Tree.relations`) says of a member."""

    relation: int
    text: str
    entity: str


class Member(Part, frozen=True, kw_only=True):
    """A layer-2 node: one entity of the key column, with the rows that speak of it and its layer-3 values."""

    entity: str
    name: str
    rows: tuple[int, ...]
    values: tuple[Value, ...]


class Tree(Record, frozen=True, kw_only=True):
    """A table as a tree: question entities (layer 1), key column (layer 2), values (layer 3); paper A.4.

    `relations` are the layer-3 edges; the key's own is `key`, whose name is `name`.
    `entity` fields hold canonical forms: the linked page where there is one, else the normalised text.
    """

    table_id: str
    family: str
    title: str
    root: tuple[str, ...]
    key: Relation
    relations: tuple[Relation, ...]
    members: tuple[Member, ...]


# ----------------------------------------------------------------------------------------------------------- tasks


class Target(Part, frozen=True, kw_only=True):
    """One target: a cell `(owner, relation, value)`; a layer-2 target is `(root, "name", member)`.

    `final` marks R_final, what the question asks for; all targets together are R_all.
    """

    form: str
    type: str
    layer: Literal[2, 3]
    owner: str
    relation: str
    final: bool
    aliases: tuple[str, ...] = ()
    owner_aliases: tuple[str, ...] = ()


class Answer(Part, frozen=True, kw_only=True):
    """An answer as a table; the first column holds the key entity of each row."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


class Triple(msgspec.Struct, frozen=True, array_like=True):
    """A knowledge projection `[subject, relation, object]`: `V@x` variables, `C@x` constants, `?x` what is asked."""

    subject: str
    relation: str
    object: str


class Provenance(Part, frozen=True, kw_only=True):
    """Where a task comes from: its tables, their trees, the families that decide its split, and notes for readers."""

    tables: tuple[str, ...] = ()
    trees: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    anchor: str = ""
    notes: tuple[str, ...] = ()


class Task(Record, frozen=True, kw_only=True):
    """A task `T = <q, R>`. Legacy tasks (outside QA) have no targets and are rewarded by `gold`."""

    question: str
    variant: Variant
    origin: Literal["webleaper", "legacy"] = "webleaper"
    reward: Literal["soft_f", "exact", "judge"] = "soft_f"
    gold: str = ""
    targets: tuple[Target, ...] = ()
    answer: Answer = Answer()
    formalization: tuple[Triple, ...] = ()
    provenance: Provenance = Provenance()
    split: Split = ""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.origin == "webleaper" and not any(t.final for t in self.targets):
            raise ValueError("field `targets` holds no final target: a task without gold cannot be rewarded")
        if self.origin == "legacy" and not self.gold.strip():
            raise ValueError("field `gold` is empty: a legacy task needs its answer")


# ---------------------------------------------------------------------------------------------------- trajectories


class Message(Part, frozen=True, kw_only=True):
    """A turn as text, for people. The text of `tool` turns is what was appended to the policy's context.

    `cut`: the turn was ended by a limit on tokens and not by the policy.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    cut: bool = False


class Step(Part, frozen=True, kw_only=True):
    """One tool call attempted. A malformed call is a step of class `malformed` that finds nothing.

    `shown` are indices into `Task.targets` that this observation shows and none before did (over all calls);
    `visible` are all that it shows. `urls` are in the order in which they were listed or opened.
    """

    turn: int
    tool: Literal["search", "visit", "malformed"]
    arguments: str
    observation: str
    urls: tuple[str, ...] = ()
    content_hash: str = ""
    shown: tuple[int, ...] = ()
    visible: tuple[int, ...] = ()
    error: str = ""


class Segment(Part, frozen=True, kw_only=True):
    """One ReAct run (agents that rebuild their workspace have one per round).

    The token fields are empty for engines that deal in text; else all have one entry per token. `loss_mask` is 1 for
    what the policy sampled, 0 for prompts, tool output, and forced or truncated tokens; `logprobs` and
    `policy_versions` hold 0.0 and -1 where the mask is 0.
    """

    messages: tuple[Message, ...]
    steps: tuple[Step, ...]
    token_ids: tuple[int, ...] = ()
    loss_mask: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    policy_versions: tuple[int, ...] = ()
    routed_experts: bytes = b""


class Sampling(Part, frozen=True, kw_only=True):
    """Sampling parameters; `seed` and the rollout index make a rollout repeatable."""

    temperature: Annotated[float, msgspec.Meta(ge=0.0)] = 0.6
    top_p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.95
    max_tokens: AtLeast1 = 1024
    seed: int = 0


class Ledger(Part, frozen=True, kw_only=True):
    """What a trajectory cost. Tokens are counted as the engine reports them; money in US dollars."""

    searches: int = 0
    pages: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    money: float = 0.0


class Fingerprints(Part, frozen=True, kw_only=True):
    """What must be equal for two trajectories to be comparable; `prompts` counts in the limits of the loop."""

    tokenizer: str = ""
    web: str = ""
    tools: str = ""
    prompts: str = ""


Termination = Literal[
    "answer", "step_limit", "context_limit", "format_errors", "turn_limit", "time_limit", "infrastructure"
]


class Trajectory(Record, frozen=True, kw_only=True):
    """One rollout of one task. `infrastructure_error` non-empty: it is never scored, trained on or counted."""

    _not_identity: ClassVar[frozenset[str]] = frozenset({"ledger"})

    task_id: str
    rollout: int
    policy: str
    segments: tuple[Segment, ...]
    sampling: Sampling
    answer: Answer = Answer()
    answer_text: str = ""
    termination: Termination
    infrastructure_error: str = ""
    ledger: Ledger = Ledger()
    fingerprints: Fingerprints = Fingerprints()

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(step for segment in self.segments for step in segment.steps)

    @property
    def rounds(self) -> int:
        """Assistant turns, the answer turn included."""
        return sum(m.role == "assistant" for segment in self.segments for m in segment.messages)


# ----------------------------------------------------------------------------------------------------------- scores


class Match(Part, frozen=True, kw_only=True):
    """How well target `target` (an index into `Task.targets`) was matched by the answer, in [0, 1], and by what."""

    target: int
    score: float
    by: str = ""


class Score(Record, frozen=True, kw_only=True):
    """A trajectory's scores: coverage and efficiency against R_all, precision, recall and F of the answer against
    R_final. `scored` is False where a judge failed: such a score is neither right nor wrong."""

    task_id: str
    trajectory_id: str
    rollout: int
    isr: float
    ise: float
    ise_literal: float
    ise_visits: float
    valid_action_rate: float
    precision: float
    recall: float
    f: float
    n: int
    rounds: int
    searches: int
    visits: int
    matches: tuple[Match, ...] = ()
    scored: bool = True
    judge_version: str = "rules"
