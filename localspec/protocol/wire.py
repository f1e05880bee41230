"""The commands that the engine is given, and what it answers beside events, as JSON lines.

Every command is numbered; every line that answers one carries its number as `re`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from localspec.protocol import events
from localspec.protocol.json_dataclasses import from_json, parse_object

PROTOCOL_VERSION = 1
"""Raised when an older side would misunderstand a newer one."""

MAX_LINE_BYTES = 4 * 1024 * 1024
"""Bytes of an answer's line: far more than any event, far less than a flood."""

VerifyMode = Literal["coupled", "rejection", "block", "match"]
KvType = Literal["f32", "bf16", "f16", "q8_0", "q4_0"]
FlashAttention = Literal["auto", "on", "off"]
SplitMode = Literal["none", "layer", "row"]

DRAFT_MAX = 16
"""The longest draft ever verified: fixes n_outputs_max and n_rs_seq when a pair is loaded."""

DEFAULT_DRAFT_LENGTH = 5
"""Draft length where nobody asked for another."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
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
    split_mode: SplitMode = "layer"
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
class MeasuredCosts:
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
class LoadCommand:
    """Load a target, and a draft model if there is one."""

    target: str
    draft: str | None = None
    target_settings: ContextSettings = field(default_factory=ContextSettings)
    draft_settings: ContextSettings = field(default_factory=ContextSettings)
    draft_max: int = DRAFT_MAX
    measured: MeasuredCosts | None = None
    """What earlier runs of this pair have shown."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a chat; the roles are `system`, `user` and `assistant`."""

    role: str
    content: str
    tokens: tuple[int, ...] = ()
    """Of an answer: the ids it was written as, so that they are found in memory again."""


@dataclass(frozen=True, slots=True)
class GenerateCommand:
    """Answer a chat, or complete a text where there are no `messages`."""

    text: str = ""
    sampling: SamplingParams = field(default_factory=SamplingParams)
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
    messages: tuple[ChatMessage, ...] = ()
    said: tuple[ChatMessage, ...] = ()
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
class ProbeCommand:
    """Measure what passes cost on this machine; answered with `Measured`.

    `difference`: also how far widths disagree.
    """

    seconds: float = 2.0
    difference: bool = False


@dataclass(frozen=True, slots=True)
class ReplayCommand:
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
    sampling: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True, slots=True)
class RenderCommand:
    """Make a chat the text that `Generate` would read; answered with `Rendered`."""

    messages: tuple[ChatMessage, ...]
    template: str | None = None
    think: bool | None = None


@dataclass(frozen=True, slots=True)
class CountCommand:
    """Count the tokens of a text, or of a chat's prompt; answered with `Counted`."""

    text: str = ""
    messages: tuple[ChatMessage, ...] = ()
    template: str | None = None
    think: bool | None = None
    said: tuple[ChatMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class InspectCommand:
    """Say what the target gives to each token of an answer; answered with `Inspected` lines.

    For answers that were written without `probabilities`.  The prompt is made as for `Generate`;
    the memory ends as after writing the answer.
    """

    tokens: tuple[int, ...]
    text: str = ""
    messages: tuple[ChatMessage, ...] = ()
    template: str | None = None
    think: bool | None = None
    said: tuple[ChatMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class StopCommand:
    """End the answer in progress; overtakes what waits."""


@dataclass(frozen=True, slots=True)
class ByeCommand:
    """End."""


EngineCommand = (
    LoadCommand
    | GenerateCommand
    | ProbeCommand
    | ReplayCommand
    | RenderCommand
    | CountCommand
    | InspectCommand
    | StopCommand
    | ByeCommand
)


@dataclass(frozen=True, slots=True)
class HelloReply:
    """The child's first line."""

    protocol: int
    pid: int


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """Sent every second: seconds since the child last got anywhere with its command."""

    stuck: float


@dataclass(frozen=True, slots=True)
class FailureReply:
    """A command ended in an error that a person can act on."""

    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class DoneReply:
    """A command ended."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
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
class RenderResult:
    """A chat as text: by which template (`own`, or a fallback's name), and what is to be told."""

    text: str
    notices: tuple[events.Notice, ...] = ()
    template: str = "own"


@dataclass(frozen=True, slots=True)
class CountResult:
    """How many tokens."""

    tokens: int


@dataclass(frozen=True, slots=True)
class InspectResult:
    """The next tokens of an inspected answer; together all of them, unless it was stopped."""

    places: tuple[events.TokenScore, ...]


CommandReply = (
    HelloReply
    | HeartbeatReply
    | FailureReply
    | DoneReply
    | MeasuredCosts
    | ReplayResult
    | RenderResult
    | CountResult
    | InspectResult
)
EngineOutput = CommandReply | events.Event

_COMMAND_TYPES: dict[str, type[EngineCommand]] = {
    "load": LoadCommand,
    "generate": GenerateCommand,
    "probe": ProbeCommand,
    "replay": ReplayCommand,
    "render": RenderCommand,
    "count": CountCommand,
    "inspect": InspectCommand,
    "stop": StopCommand,
    "bye": ByeCommand,
}
_COMMAND_NAMES = {kind: name for name, kind in _COMMAND_TYPES.items()}
_REPLY_TYPES: dict[str, type[CommandReply]] = {
    "hello": HelloReply,
    "alive": HeartbeatReply,
    "failed": FailureReply,
    "done": DoneReply,
    "measured": MeasuredCosts,
    "replayed": ReplayResult,
    "rendered": RenderResult,
    "counted": CountResult,
    "inspected": InspectResult,
}
_REPLY_NAMES = {kind: name for name, kind in _REPLY_TYPES.items()}


def encode_command(number: int, command: EngineCommand) -> bytes:
    """One line of JSON, with its line feed."""
    body = {"v": PROTOCOL_VERSION, "id": number, "cmd": _COMMAND_NAMES[type(command)]}
    return json.dumps(body | asdict(command), separators=(",", ":")).encode() + b"\n"


def decode_command(line: bytes) -> tuple[int, EngineCommand]:
    """The number and the command.  Raises ValueError where the line is none."""
    body = parse_object(line)
    kind = _COMMAND_TYPES.get(str(body.get("cmd")))
    if kind is None or not isinstance(body.get("id"), int):
        raise ValueError("not a command")
    return body["id"], from_json(kind, body)


def encode_output(number: int, output: EngineOutput) -> bytes:
    """One line of JSON, with its line feed."""
    if isinstance(output, CommandReply):
        body: dict[str, Any] = {"v": PROTOCOL_VERSION, "ev": _REPLY_NAMES[type(output)]}
        line = json.dumps(body | asdict(output), separators=(",", ":"))
    else:
        line = events.encode(output)
    return f'{{"re":{number},{line[1:]}\n'.encode()


def decode_output(line: bytes) -> tuple[int, EngineOutput | None]:
    """The command's number and the answer, None where this version does not know it.

    Raises ValueError where the line is none.
    """
    body = parse_object(line)
    number = body.get("re")
    if not isinstance(number, int):
        raise ValueError("not an answer")
    kind = _REPLY_TYPES.get(str(body.get("ev")))
    return number, events.from_json(body) if kind is None else from_json(kind, body)
