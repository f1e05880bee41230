"""Commands to the engine process and its replies, as JSON lines.

Commands are numbered; every reply line carries the number of its command as `re`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from localspec.protocol import events
from localspec.protocol.json_dataclasses import from_json, parse_object

PROTOCOL_VERSION = 1
"""Incremented by changes that an older version would misunderstand."""

MAX_LINE_BYTES = 4 * 1024 * 1024
"""Maximum length of a reply line, far longer than any event."""

VerifyMode = Literal["coupled", "rejection", "block", "match"]
KvType = Literal["f32", "bf16", "f16", "q8_0", "q4_0"]
FlashAttention = Literal["auto", "on", "off"]
SplitMode = Literal["none", "layer", "row"]

DRAFT_MAX = 16
"""Maximum draft length; determines n_outputs_max and n_rs_seq when a pair is loaded."""

DEFAULT_DRAFT_LENGTH = 5
"""Draft length of a drafter selected by name, if no other is requested."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters with llama.cpp's defaults. `top_k` 0 and `repeat_penalty` 1 are off."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """llama.cpp's parameters of a model and its context. None: chosen for this machine."""

    n_gpu_layers: int = -1
    """-1: all layers."""
    main_gpu: int = 0
    split_mode: SplitMode = "layer"
    tensor_split: tuple[float, ...] = ()
    kv_type: KvType = "f16"
    flash_attn: FlashAttention = "auto"
    n_ctx: int | None = None
    n_ubatch: int = 512
    n_threads: int | None = None
    cpu_moe: bool = False
    """Keep the expert weights of a mixture-of-experts model in RAM."""
    swa_full: bool = True
    """Keep all tokens of sliding-window layers in the KV cache; not used for a draft model.

    Without it a rollback may move tokens to other cells of the KV cache. Attention then sums in
    another order, so logits differ in the last bits and a greedy answer may change. A prompt that
    shares its beginning with the last one is decoded again if that has left the window.
    """


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """Measurements of a pair on this machine; stored by the parent, sent with `load`.

    `t1_ms` is a target pass of one token, host time included; `curve` the verify curve by width, in
    units of t1; `c` a draft pass in units of t1, None without a draft model; `difference` the
    largest difference of a logit between widths, None until measured; `survival` the controller's
    acceptance counts.
    """

    t1_ms: float
    curve: dict[str, float]
    c: float | None = None
    threads: int | None = None
    difference: float | None = None
    survival: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadCommand:
    """Load a target, and a draft model or head if one is given."""

    target: str
    draft: str | None = None
    target_settings: ContextSettings = field(default_factory=ContextSettings)
    draft_settings: ContextSettings = field(default_factory=ContextSettings)
    draft_max: int = DRAFT_MAX
    measured: MeasuredCosts | None = None
    """Measurements of earlier runs of this pair."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a chat; the roles are `system`, `user` and `assistant`."""

    role: str
    content: str
    tokens: tuple[int, ...] = ()
    """Of an answer: the generated tokens, so that they match the KV cache."""


@dataclass(frozen=True, slots=True)
class GenerateCommand:
    """Answer a chat, or complete `text` if there are no `messages`."""

    text: str = ""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    verify: VerifyMode = "coupled"
    spec: str = "auto"
    """`auto`, `off`, or a drafter's name: one of `speculation.SPECS`."""
    draft_length: int | None = None
    """Max draft tokens per round if `spec` is `auto`; the draft length if it names a drafter.

    None: adaptive, or DEFAULT_DRAFT_LENGTH.
    """
    exact: bool = False
    """Exact mode: recompute near-ties in a pass of one token."""
    why: str = ""
    """The caller's reason for `spec`, reported as `SpeculationPlan.why`."""
    messages: tuple[ChatMessage, ...] = ()
    said: tuple[ChatMessage, ...] = ()
    """Without `messages`: parts of `text` in order; answers carry their tokens."""
    begun: tuple[int, ...] = ()
    """Tokens of the answer so far; generation continues after them.

    They count towards `max_tokens`, and their text is not sent again.
    """
    template: str | None = None
    """Name of a built-in template; None for the model's own, if any."""
    think: bool | None = None
    """Passed to the template; None for the template's default."""
    think_budget: int | None = None
    """Maximum thinking tokens; then the thinking part is closed."""
    probabilities: bool = False
    """Whether tokens carry their probabilities, rank and alternatives."""


@dataclass(frozen=True, slots=True)
class ProbeCommand:
    """Measure pass costs on this machine; answered with `MeasuredCosts`.

    `difference`: also measure the logit difference between pass widths.
    """

    seconds: float = 2.0
    difference: bool = False


@dataclass(frozen=True, slots=True)
class ReplayCommand:
    """Decode an answer with the target alone, without drafting; answered with `ReplayResult`.

    The prompt is `text`; its last batch gives the first token. Each later pass decodes `width`
    tokens, starting with the newest, and emits `emitted` of them. So the passes of an earlier
    answer can be repeated, or replaced by passes of one token. The memory is emptied
    before and after.
    """

    text: str
    tokens: tuple[int, ...]
    widths: tuple[int, ...]
    emitted: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True, slots=True)
class RenderCommand:
    """Render a chat to its prompt text; answered with `RenderResult`."""

    messages: tuple[ChatMessage, ...]
    template: str | None = None
    think: bool | None = None


@dataclass(frozen=True, slots=True)
class CountCommand:
    """Count the tokens of a text, or of a chat's prompt; answered with `CountResult`."""

    text: str = ""
    messages: tuple[ChatMessage, ...] = ()
    template: str | None = None
    think: bool | None = None
    said: tuple[ChatMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class InspectCommand:
    """Score each token of a finished answer; answered with `InspectResult` lines.

    For answers generated without `probabilities`. The prompt is built as for `GenerateCommand`; the
    memory ends as after generating the answer.
    """

    tokens: tuple[int, ...]
    text: str = ""
    messages: tuple[ChatMessage, ...] = ()
    template: str | None = None
    think: bool | None = None
    said: tuple[ChatMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class StopCommand:
    """Stop all commands sent so far; handled before queued commands."""


@dataclass(frozen=True, slots=True)
class ByeCommand:
    """Exit."""


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
    """The engine process's first line."""

    protocol: int
    pid: int


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """Sent every second during a command: seconds since the last progress."""

    stuck: float


@dataclass(frozen=True, slots=True)
class FailureReply:
    """A command failed with an error for the user."""

    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class DoneReply:
    """A command completed."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """For each token of a replayed answer, the target's choice and probabilities.

    `best` is the token that the seed's Gumbel noise samples, as in `coupled`; at temperature 0 the
    argmax. `margin` is the change of logits by which another token would be chosen; at temperature
    0 the gap between the two largest. `probability` is the token's own after truncation and
    temperature; `below` that of all tokens with smaller ids, `above` that of all likelier ones.
    """

    best: tuple[int, ...]
    margin: tuple[float, ...]
    probability: tuple[float, ...]
    below: tuple[float, ...]
    above: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RenderResult:
    """A chat's prompt text, notices, and the template: `own` or a built-in's name."""

    text: str
    notices: tuple[events.Notice, ...] = ()
    template: str = "own"


@dataclass(frozen=True, slots=True)
class CountResult:
    tokens: int


@dataclass(frozen=True, slots=True)
class InspectResult:
    """Scores of the next tokens of an answer; all lines together cover it, unless stopped."""

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
    """One line of JSON, with a line feed."""
    body = {"v": PROTOCOL_VERSION, "id": number, "cmd": _COMMAND_NAMES[type(command)]}
    return json.dumps(body | asdict(command), separators=(",", ":")).encode() + b"\n"


def decode_command(line: bytes) -> tuple[int, EngineCommand]:
    """The number and the command of a line. Raises ValueError if it is not a command."""
    body = parse_object(line)
    kind = _COMMAND_TYPES.get(str(body.get("cmd")))
    if kind is None or not isinstance(body.get("id"), int):
        raise ValueError("not a command")
    return body["id"], from_json(kind, body)


def encode_output(number: int, output: EngineOutput) -> bytes:
    """One line of JSON, with a line feed."""
    if isinstance(output, CommandReply):
        body: dict[str, Any] = {"v": PROTOCOL_VERSION, "ev": _REPLY_NAMES[type(output)]}
        line = json.dumps(body | asdict(output), separators=(",", ":"))
    else:
        line = events.encode(output)
    return f'{{"re":{number},{line[1:]}\n'.encode()


def decode_output(line: bytes) -> tuple[int, EngineOutput | None]:
    """The command's number and the reply or event; None if its type is unknown to this version.

    Raises ValueError if the line is not a reply.
    """
    body = parse_object(line)
    number = body.get("re")
    if not isinstance(number, int):
        raise ValueError("not an answer")
    kind = _REPLY_TYPES.get(str(body.get("ev")))
    return number, events.from_json(body) if kind is None else from_json(kind, body)
