"""The commands that the engine is given, and what it answers beside events, as JSON lines.

Every command is numbered; every line that answers one carries its number as `re`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from localspec.protocol import events
from localspec.protocol.parts import made, opened

PROTOCOL = 1
"""Raised when an older side would misunderstand a newer one."""

LONGEST_LINE = 4 * 1024 * 1024
"""Bytes of an answer's line: far more than any event, far less than a flood."""

VerifyMode = Literal["coupled", "rejection", "block", "match"]
KvType = Literal["f32", "bf16", "f16", "q8_0", "q4_0"]
FlashAttention = Literal["auto", "on", "off"]
Split = Literal["none", "layer", "row"]

DRAFT_MAX = 16
"""The longest draft ever verified: fixes n_outputs_max and n_rs_seq when a pair is loaded."""

DRAFT_LENGTH = 5
"""Draft length where nobody asked for another."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn; llama.cpp's defaults.  `top_k` 0 and `repeat_penalty` 1 are off."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """One llama.cpp model and context, in llama.cpp's words.  None: what suits this machine."""

    n_gpu_layers: int = -1
    """-1: all of them."""
    main_gpu: int = 0
    split_mode: Split = "layer"
    tensor_split: tuple[float, ...] = ()
    kv_type: KvType = "f16"
    flash_attn: FlashAttention = "auto"
    n_ctx: int | None = None
    n_ubatch: int = 512
    n_threads: int | None = None
    cpu_moe: bool = False
    """Keep the experts of a mixture in the computer's memory, wherever its layer is."""
    swa_full: bool = True
    """Keep all tokens of a sliding window's layers, not only those it sees; never for a draft.

    Without, a guess that is taken back may move tokens to other places of the memory.  Attention
    then sums in another order: the same law but for its last bits, so a greedy answer may differ.
    A text that shares its beginning with the last one is read again if that is out of the window.
    """


@dataclass(frozen=True, slots=True)
class Measured:
    """What this machine has shown of a pair: kept by the parent, sent with `load`.

    `t1_ms` is one target pass of one token, host time included; `curve` the verify curve v, by
    width; `c` one draft pass in units of t1, None without a draft model; `difference` the largest
    change of a logit from one width to another, None until measured; `survival` the controller's
    counts.
    """

    t1_ms: float
    curve: dict[str, float]
    c: float | None = None
    threads: int | None = None
    difference: float | None = None
    survival: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Load:
    """Load a target, and a draft model if there is one."""

    target: str
    draft: str | None = None
    target_settings: ContextSettings = field(default_factory=ContextSettings)
    draft_settings: ContextSettings = field(default_factory=ContextSettings)
    draft_max: int = DRAFT_MAX
    measured: Measured | None = None
    """What earlier runs of this pair have shown."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat; the roles are `system`, `user` and `assistant`."""

    role: str
    content: str
    tokens: tuple[int, ...] = ()
    """Of an answer: the ids it was written as, so that they are found in memory again."""


@dataclass(frozen=True, slots=True)
class Generate:
    """Answer a chat, or complete a text where there are no `messages`."""

    text: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    verify: VerifyMode = "coupled"
    spec: str = "auto"
    """`auto`, `off`, or a drafter's name: one of `speculation.SPECS`."""
    draft_length: int | None = None
    """The most guesses a round where `spec` is `auto`, as many each round where it names a drafter.

    None: as many as pay, or DRAFT_LENGTH.
    """
    exact: bool = False
    """Compute a token alone where a wide pass's last bits might decide it."""
    why: str = ""
    """Why this way of speculating, when whoever asked knows better than the engine."""
    messages: tuple[Message, ...] = ()
    said: tuple[Message, ...] = ()
    """Without `messages`: parts of `text`, in order, answers among them with their tokens."""
    begun: tuple[int, ...] = ()
    """What is written of the answer; it goes on after these, as if it had never stopped.

    They count towards `max_tokens`, and their text is not told again.
    """
    template: str | None = None
    """A fallback's name, to use it whatever the model brings; None: the model's own, if any."""
    think: bool | None = None
    """Given to templates that ask; None: as the template wants."""
    think_budget: int | None = None
    """Tokens of thinking, after which it is ended as the template ends it."""
    probabilities: bool = False
    """Whether every token comes with its probabilities, rank and alternatives."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Measure what passes cost on this machine; answered with `Measured`.

    `difference`: also how far widths disagree.
    """

    seconds: float = 2.0
    difference: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """Feed an answer to the target alone, without drafting; answered with `Replayed`.

    The prompt is `text`, and its last batch gives the first token.  Each later pass reads as many
    tokens as its width, starting with the newest known one, and `emitted` of them count: so the
    passes of an earlier answer can be made again, or one token at a time.  The memory is empty
    before and after; without tokens nothing else happens.
    """

    text: str
    tokens: tuple[int, ...]
    widths: tuple[int, ...]
    emitted: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, slots=True)
class Render:
    """Make a chat the text that `Generate` would read; answered with `Rendered`."""

    messages: tuple[Message, ...]
    template: str | None = None
    think: bool | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """Count the tokens of a text, or of a chat's prompt; answered with `Counted`."""

    text: str = ""
    messages: tuple[Message, ...] = ()
    template: str | None = None
    think: bool | None = None
    said: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Inspect:
    """Say what the target gives to each token of an answer; answered with `Inspected` lines.

    For answers that were written without `probabilities`.  The prompt is made as for `Generate`;
    the memory ends as after writing the answer.
    """

    tokens: tuple[int, ...]
    text: str = ""
    messages: tuple[Message, ...] = ()
    template: str | None = None
    think: bool | None = None
    said: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """End the answer in progress; overtakes what waits."""


@dataclass(frozen=True, slots=True)
class Bye:
    """End."""


Command = Load | Generate | Probe | Replay | Render | Count | Inspect | Stop | Bye


@dataclass(frozen=True, slots=True)
class Hello:
    """The child's first line."""

    protocol: int
    pid: int


@dataclass(frozen=True, slots=True)
class Alive:
    """Sent every second: seconds since the child last got anywhere with its command."""

    stuck: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A command ended in an error that a person can act on."""

    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Done:
    """A command ended."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """For each token of a replayed answer, what the target says there.

    `best` is the token that the seed's noise picks, as `coupled` does; at temperature 0 the argmax.
    `margin` is how many logits another one is from being picked: at temperature 0 the gap between
    the two largest.  `probability` is the token's own in the law of `sampling`; `below` that of
    all tokens of the law with smaller ids, `above` that of all likelier ones.
    """

    best: tuple[int, ...]
    margin: tuple[float, ...]
    probability: tuple[float, ...]
    below: tuple[float, ...]
    above: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A chat as text: by which template (`own`, or a fallback's name), and what is to be told."""

    text: str
    notices: tuple[events.Notice, ...] = ()
    template: str = "own"


@dataclass(frozen=True, slots=True)
class Counted:
    """How many tokens."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Inspected:
    """The next tokens of an inspected answer; together all of them, unless it was stopped."""

    places: tuple[events.Place, ...]


Control = Hello | Alive | Failed | Done | Measured | Replayed | Rendered | Counted | Inspected
Answer = Control | events.Event

_COMMANDS: dict[str, type[Command]] = {kind.__name__.lower(): kind for kind in get_args(Command)}
_ANSWERS: dict[str, type[Control]] = {kind.__name__.lower(): kind for kind in get_args(Control)}


def encode_command(number: int, command: Command) -> bytes:
    """One line of JSON, with its line feed."""
    body = {"v": PROTOCOL, "id": number, "cmd": type(command).__name__.lower()}
    return json.dumps(body | asdict(command), separators=(",", ":")).encode() + b"\n"


def decode_command(line: bytes) -> tuple[int, Command]:
    """The number and the command.  Raises ValueError where the line is none."""
    body = opened(line)
    kind = _COMMANDS.get(str(body.get("cmd")))
    if kind is None or not isinstance(body.get("id"), int):
        raise ValueError("not a command")
    return body["id"], made(kind, body)


def encode_answer(number: int, answer: Answer) -> bytes:
    """One line of JSON, with its line feed."""
    if isinstance(answer, Control):
        body: dict[str, Any] = {"v": PROTOCOL, "ev": type(answer).__name__.lower()}
        line = json.dumps(body | asdict(answer), separators=(",", ":"))
    else:
        line = events.encode(answer)
    return f'{{"re":{number},{line[1:]}\n'.encode()


def decode_answer(line: bytes) -> tuple[int, Answer | None]:
    """The command's number and the answer, None where this version does not know it.

    Raises ValueError where the line is none.
    """
    body = opened(line)
    number = body.get("re")
    if not isinstance(number, int):
        raise ValueError("not an answer")
    kind = _ANSWERS.get(str(body.get("ev")))
    return number, events.from_body(body) if kind is None else made(kind, body)
