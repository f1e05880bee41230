"""Commands to the engine process and its replies, as JSON lines.

Commands are numbered; every reply line carries the number of its command as `re`.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, field

from localspec.protocol import events
from localspec.protocol.json_values import (
    Number,
    from_json,
    parse_object,
    to_plain,
)

PROTOCOL_VERSION = 1
"""Incremented by changes that an older version would misunderstand."""
MAX_LINE_BYTES = 4 * 1024 * 1024
"""Maximum length of a reply line, far longer than any event."""

VerifyMode = Literal["coupled", "rejection", "block", "match"]
VerifyChoice = Literal["auto", "coupled", "rejection", "block", "match"]
"""`auto` leaves the method to the engine: `block`, which accepts the most draft tokens, or
`coupled` where that costs nothing. A text that a seed is to reproduce needs `coupled`.
"""
KvType = Literal["f32", "bf16", "f16", "q8_0/f16", "q8_0", "q4_0"]
"""Type of keys and values; keys/values if they differ."""
FlashAttention = Literal["auto", "on", "off"]
SplitMode = Literal["none", "layer", "row", "tensor"]
OutputLayer = Literal["local", "remote"]
TemplateArgument = bool | Number | str

ALL_LAYERS = -1
"""A value of `n_gpu_layers` and `cpu_moe`."""
DRAFT_MAX = 62
"""The most draft tokens of a round, and so of a copy.

From 64 rows on llama.cpp's flash attention on a CPU works in tiles (GGML_FA_TILE_Q),
which round otherwise: texts would no longer be plain decoding's. A pass has one row more
than its draft. It determines n_outputs_max when a pair is loaded.
"""
MODEL_DRAFT_MAX = 16
"""The most that a draft model or head drafts."""
DRY_WINDOW = 64
"""DRY searches so many tokens for repeated sequences: llama.cpp's default."""
DEFAULT_DRAFT_LENGTH = 5
"""Draft length of a drafter selected by name, if no other is requested."""


class SamplingParams(Struct, frozen=True):
    """Sampling parameters with llama.cpp's defaults.

    `top_k` 0 and `repeat_penalty` 1 are off. The penalties count the last
    `repeat_last_n` tokens, those of the prompt included.
    """

    temperature: Number = 0.8
    top_k: int = 40
    top_p: Number = 0.95
    min_p: Number = 0.05
    repeat_penalty: Number = 1.0
    repeat_last_n: int = 64
    seed: int = 0
    presence_penalty: Number = 0.0
    frequency_penalty: Number = 0.0
    logit_bias: tuple[tuple[int, Number], ...] = ()
    """Token ids, and what is added to their logits."""
    dry_multiplier: Number = 0.0
    """DRY: the logits of tokens that extend a repeated sequence are reduced.

    By multiplier * base ** (length - allowed), if the sequence is at least as long as
    allowed.
    """
    dry_base: Number = 1.75
    dry_allowed_length: int = 2
    xtc_probability: Number = 0.0
    """XTC: how often all tokens from the threshold up are excluded but the least likely
    of them.
    """
    xtc_threshold: Number = 0.1

    @property
    def has_penalties(self) -> bool:
        """Whether tokens are penalized for occurring in the last `repeat_last_n`."""
        penalties = (
            self.repeat_penalty - 1,
            self.presence_penalty,
            self.frequency_penalty,
        )
        return self.repeat_last_n > 0 and any(penalties)

    @property
    def has_dry(self) -> bool:
        return self.dry_multiplier != 0 and self.dry_base >= 1

    @property
    def history_length(self) -> int:
        """How many earlier tokens the distribution depends on."""
        window = self.repeat_last_n if self.has_penalties else 0
        return max(window, DRY_WINDOW) if self.has_dry else window


class ContextSettings(Struct, frozen=True):
    """llama.cpp's parameters of a model and its context.

    None: chosen for this machine.
    """

    n_gpu_layers: int = -1  # -1: all layers.
    main_gpu: int = 0
    split_mode: SplitMode = "layer"
    tensor_split: tuple[float, ...] = ()
    kv_type: KvType = "f16"
    flash_attn: FlashAttention = "auto"
    n_ctx: int | None = None
    n_ubatch: int = 512
    n_threads: int | None = None
    cpu_moe: int = 0  # The first layers whose experts stay in RAM; -1: all.
    swa_full: bool = True
    """Keep all tokens of sliding-window layers in the KV cache; not used for a draft
    model. Without it a rollback may move tokens to other cells of the KV cache.
    Attention then sums in another order, so logits differ in the last bits and a greedy
    answer may change. A prompt that shares its beginning with the last one is decoded
    again if that has left the window.
    """
    remote_hosts: tuple[str, ...] = field(default=(), name="workers")
    """Addresses of other computers whose devices come before this computer's GPUs.

    Files of events call them `workers`.
    """
    output_layer: OutputLayer = "local"
    """With remote hosts: where logits are computed.

    A remote layer sends 4 bytes x vocabulary a row.
    """


NEW_TIME_WEIGHT = 0.2
"""The weight of a newly timed pass in the costs; earlier times have the rest."""


class PictureSpeed(Struct, frozen=True):
    """How fast a projector reads pictures."""

    projector: str  # Its file, its size and its device: another one is not as fast.
    row_ms: Number  # Of a row, with its share of decoding the picture.


class MeasuredCosts(Struct, frozen=True):
    """Measurements of a pair on this machine; stored by the parent, sent with `load`.

    `t1_ms` is a target pass of one token, host time included; `curve` the verify curve
    by width, in units of t1; `c` a draft pass in units of t1, None without a draft
    model; `threads` are those of one-token passes, `threads_batch` those of wider ones,
    None unless compared with other counts; `survival` the controller's acceptance
    counts; `other_load` the CPU share of other programs meanwhile; `pictures` is None
    until the projector has read one.
    """

    t1_ms: Number
    curve: dict[str, Number]
    c: Number | None = None
    threads: int | None = None
    threads_batch: int | None = None
    survival: dict[str, Any] = field(default_factory=dict)
    other_load: Number | None = None
    pictures: PictureSpeed | None = None


class ProjectorSettings(Struct, frozen=True):
    """A projector (mmproj), by which the target sees or hears, and how it is loaded."""

    path: str
    on_gpu: bool = True  # Without a GPU it is in RAM all the same.
    max_rows: int | None = None
    """The most rows that a picture becomes; None: as many as suit its device."""


class LoadCommand(Struct, frozen=True):
    """Load a target, and a draft model or head if one is given."""

    target: str
    draft: str | None = None
    target_settings: ContextSettings = field(default_factory=ContextSettings)
    draft_settings: ContextSettings = field(default_factory=ContextSettings)
    draft_max: int = DRAFT_MAX
    snapshots: int = MODEL_DRAFT_MAX
    """States of a recurrent memory that are kept for rollback (n_rs_seq).

    Each takes memory, so only a copy may be longer: it begins with a checkpoint.
    """
    measured: MeasuredCosts | None = None  # Measurements of earlier runs of this pair.
    threads: tuple[int, int] | None = None
    """Measured as best for another model of this size: for one-token and for wider
    passes.
    """
    overlap: bool | None = None
    """Draft on while the target verifies.

    None: across devices, where it is worth it.
    """
    measure_when_idle: bool = False
    """Measure threads and costs while no command is pending."""
    expects_tools: bool = False
    """Prepare the grammars of calls while no command is pending, before the first
    request with tools needs them.
    """
    snapshot_bytes: int = 0  # RAM for copies of other conversations' KV caches.
    projector: ProjectorSettings | None = None


class ToolCall(Struct, frozen=True):
    """A call of a tool in an answer; `arguments` is a JSON object, as text."""

    id: str
    name: str
    arguments: str


class PictureRef(Struct, frozen=True):
    """A picture or audio of a message: a file that the engine can read, and its hash.

    The engine reads one that it knows by its hash no second time.
    """

    path: str
    sha256: str
    name: str = ""  # What people know it by, for errors.
    kind: Literal["picture", "audio"] = "picture"
    """For what is said of it before it is read: then its bytes tell."""


class ChatMessage(Struct, frozen=True):
    """One message of a chat; the roles are `system`, `user`, `assistant` and `tool`."""

    role: str
    content: str
    tokens: tuple[int, ...] = ()
    """Of an answer: the generated tokens, so that they match the KV cache."""
    tool_calls: tuple[ToolCall, ...] = ()  # Of an answer.
    tool_call_id: str = ""  # Of a tool's result: the call it belongs to.
    reasoning: str = ""  # Of an answer: thinking that is not part of `content`.
    starts_in_thinking: bool = False
    """Whether the prompt opened the thinking part of this answer, whose `content` has
    no tag.
    """
    images: tuple[PictureRef, ...] = ()
    """Its pictures and audio. Each `pictures.PICTURE_MARK` in `content` is the place of
    the next one; those without a place come before the text.
    """


class GenerateCommand(Struct, frozen=True):
    """Answer a chat, or complete `text` if there are no `messages`."""

    text: str = ""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    verify: VerifyChoice = "coupled"
    spec: str = "auto"
    """`auto`, `off`, or a drafter's name: a row of `localspec/draft_kinds.py`."""
    draft_length: int | None = None
    """Max draft tokens per round if `spec` is `auto`; the draft length if it names a
    drafter. None: adaptive, or DEFAULT_DRAFT_LENGTH.
    """
    overlap: bool | None = None
    """Draft on while the target verifies. None: as the pair was loaded."""
    why: str = ""  # The caller's reason for `spec`, reported as `SpeculationPlan.why`.
    messages: tuple[ChatMessage, ...] = ()
    prior_messages: tuple[ChatMessage, ...] = ()
    """Without `messages`: parts of `text` in order; answers carry their tokens."""
    resumed_tokens: tuple[int, ...] = ()
    """Tokens of the answer so far, which count towards `max_tokens`; generation
    continues after them, and their text is not sent again.
    """
    template: str | None = None
    """Name of a built-in template; None for the model's own, if any."""
    think: bool | None = None
    """Passed to the template; None for the template's default."""
    think_budget: int | None = None
    """Maximum thinking tokens; then the thinking part is closed."""
    effort: str = ""  # How hard to think: one of `thinking_effort.EFFORTS`.
    probabilities: bool = False
    """Whether tokens carry their probabilities, rank and alternatives."""
    grammar: str = ""
    """A GBNF grammar that the answer follows; its thinking part is free."""
    json_schema: str = ""
    """A JSON Schema, as JSON, that the answer satisfies; not together with `grammar`."""
    fallback_schema: str = ""
    """The schema in its place if it cannot be compiled; without it, that is an error."""
    tools: str = ""  # The tools for the chat template: a JSON array, as OpenAI has it.
    callable_tools: tuple[str, ...] = ()
    """The names of the tools that may be called; empty for all."""
    must_call: bool = False
    """Whether the answer is one call of a tool, behind thinking that the prompt has
    begun. With `think_budget` 0, that has ended in the prompt.
    """
    answer_prefix: str = ""
    """Text that the answer begins with, without a thinking part; it is not sent back."""
    prefill: str = ""
    """As `answer_prefix`, but plain text that `grammar` and `json_schema` hold for,
    too. It may begin with a thinking part; if that is open, the answer goes on
    thinking. `resumed_tokens` are its tokens where they have exactly this text.
    """
    n_alternatives: int = 3
    """With `probabilities`: how many of the target's other tokens are reported."""
    prompt_tokens: tuple[int, ...] = ()
    """Without `messages`: the prompt as tokens, instead of `text`."""
    message_fields: tuple[str, ...] = ()
    """What the caller calls the text of each message. With it, a message that the
    template leaves out is an error; without, a notice.
    """
    template_arguments: dict[str, TemplateArgument] = field(default_factory=dict)
    """Variables for the model's own template, such as `preserve_thinking`."""
    prediction: str = ""
    """Text that the answer probably repeats: prompt lookup copies from it."""
    client: str = ""
    """Whose prompt it is. Of the tokens that are reused, only those that this client has
    sent or received are reported. Empty for one that may know all prompts.
    """

    def to_count(self) -> CountCommand:
        """The command that counts the tokens of the same prompt."""
        return CountCommand(
            text=self.text,
            messages=self.messages,
            template=self.template,
            think=self.think,
            prior_messages=self.prior_messages,
            tools=self.tools,
            effort=self.effort,
            message_fields=self.message_fields,
            template_arguments=self.template_arguments,
        )


class ProbeCommand(Struct, frozen=True):
    """Measure pass costs on this machine; answered with `MeasuredCosts`."""

    seconds: float = 2.0


class ReplayCommand(Struct, frozen=True):
    """Decode an answer with the target alone; answered with `ReplayResult`.

    The prompt is `text`, or the chat of `messages`; its last batch gives the first token. Each later pass decodes
    `width` tokens, starting with the newest, and emits `emitted` of them. Empties the
    memory.
    """

    text: str
    tokens: tuple[int, ...]
    widths: tuple[int, ...]
    emitted: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    messages: tuple[ChatMessage, ...] = ()  # A chat, in place of `text`.
    tools: str = ""  # As those of the answer's request, whose calls they limit.
    must_call: bool = False


class CountCommand(Struct, frozen=True):
    """Count the tokens of a text, or of a chat's prompt; answered with `CountResult`."""

    text: str = ""
    messages: tuple[ChatMessage, ...] = ()
    template: str | None = None
    think: bool | None = None
    prior_messages: tuple[ChatMessage, ...] = ()
    tools: str = ""
    effort: str = ""
    message_fields: tuple[str, ...] = ()
    template_arguments: dict[str, TemplateArgument] = field(default_factory=dict)


class TokenizeCommand(Struct, frozen=True):
    """Tokenize a text; answered with `TokenizeResult`."""

    text: str
    add_special: bool = False  # Add the tokens that the model's prompts begin with.
    parse_special: bool = True  # Read the texts of control tokens as these tokens.
    pieces: bool = False


class InspectCommand(CountCommand, frozen=True):
    """Score each token of a finished answer; answered with `InspectResult` lines.

    The answer stays in memory.
    """

    tokens: tuple[int, ...] = ()


class ScoreDraftCommand(Struct, frozen=True):
    """Compare a draft with the answer `tokens`; answered with `DraftScore`."""

    request: GenerateCommand
    tokens: tuple[int, ...]
    drafter: Literal["model", "lookup"] = "model"


class StopCommand(Struct, frozen=True):
    """Stop all commands sent so far; handled before queued commands."""


EngineCommand = (
    LoadCommand
    | GenerateCommand
    | ProbeCommand
    | ReplayCommand
    | CountCommand
    | TokenizeCommand
    | InspectCommand
    | ScoreDraftCommand
    | StopCommand
)


class HelloReply(Struct, frozen=True):
    """The engine process's first line."""

    protocol: int
    pid: int


LoadPhase = Literal["checking", "planning", "starting", "reading", "preparing"]


class LoadProgress(Struct, frozen=True):
    """What a load does now.

    `checking` verifies a checksum, `planning` chooses settings that fit, `starting`
    waits for the engine process. These come from the parent. The engine reports
    `reading` with the share of the file that is loaded, and `preparing` after that, while
    the context is made.
    """

    phase: LoadPhase
    file: str = ""
    share: Annotated[float, Meta(ge=0, le=1)] | None = None


class HeartbeatReply(Struct, frozen=True):
    """Sent every second during a command, or while one waits.

    `stuck` counts the seconds since the last progress.
    """

    stuck: float
    busy: float = 0.0
    """CPU seconds the engine used per second since the heartbeat before."""


class FailureReply(Struct, frozen=True):
    """A command failed with an error for the user."""

    code: str
    message: str
    hint: str
    hint_template: str = ""  # Of an `errors.Hint`.
    param: str = ""  # The field of a request that is wrong.


class DoneReply(Struct, frozen=True):
    """A command completed."""


class ReplayResult(Struct, frozen=True):
    """For each token of a replayed answer, the target's choice and probabilities.

    `best` is the token that the seed's Gumbel noise samples, as in `coupled`; at
    temperature 0 the argmax. `probability` is the token's own after truncation and
    temperature; `below` that of all tokens with smaller ids, `above` that of all
    likelier ones.
    """

    best: tuple[int, ...]
    probability: tuple[float, ...]
    below: tuple[float, ...]
    above: tuple[float, ...]


class CountResult(Struct, frozen=True):
    tokens: int
    picture_seconds: float | None = None
    """About how long the projector reads the pictures of the prompt, without those whose
    rows are in RAM. None: unknown.
    """


class TokenizeResult(Struct, frozen=True):
    tokens: tuple[int, ...]
    pieces: tuple[str, ...] = ()
    """The bytes of each token, one character per byte (Latin-1), if requested."""


class InspectResult(Struct, frozen=True):
    """Scores of the next tokens of an answer."""

    places: tuple[events.TokenScore, ...]


class DraftScore(Struct, frozen=True):
    """For each place of an answer: tokens in a draft, and how many are accepted."""

    drafted: tuple[int, ...]
    accepted: tuple[int, ...]


class LoadedContextSettings(ContextSettings, frozen=True, kw_only=True):
    """Those of a loaded context, whose size is known."""

    n_ctx: int


class LoadedChatSettings(Struct, frozen=True):
    """What the engine found in the target's chat template."""

    template: str | None = None
    thinking: tuple[str, str] | None = None
    tools: str | None = None
    thinking_controls: tuple[str, ...] = ()


class LoadedImageSettings(Struct, frozen=True):
    """What the loaded projector reads."""

    kind: str  # llama.cpp's name of its architecture, such as `gemma3`.
    max_rows: Annotated[int, Meta(ge=0)] | None
    """The most rows of the context that one picture takes; None: unknown."""
    audio: bool  # Whether it also hears.


class LoadedSettings(Struct, frozen=True):
    """The types of `EngineReady.settings`."""

    target: LoadedContextSettings | None = None
    draft: LoadedContextSettings | None = None
    draft_kind: str | None = None
    draft_max: int = DRAFT_MAX
    chat: LoadedChatSettings | None = None
    fim: dict[str, int] | None = None
    images: LoadedImageSettings | None = None


class TimingTotals(Struct, frozen=True):
    prefill_ms: Number
    decode_ms: Number
    first_token_ms: Number | None
    tokens_per_second: Number | None


class ThinkingTotals(Struct, frozen=True):
    tokens: events.TokenCount
    open: bool


class SourceCounts(Struct, frozen=True):
    drafted: events.TokenCount
    accepted: events.TokenCount


class OverlapCounts(Struct, frozen=True):
    rounds: events.TokenCount
    hits: events.TokenCount


class SpeculationTotals(Struct, frozen=True):
    rounds: events.TokenCount
    drafted: events.TokenCount
    accepted: events.TokenCount
    paused_rounds: events.TokenCount
    acceptance_rate: Number | None
    mean_accepted_length: Number | None
    histogram: tuple[events.TokenCount, ...]
    by_source: dict[str, SourceCounts]
    host_ms_per_round: Number | None
    overlap: OverlapCounts | None = None


class AnswerTotals(Struct, frozen=True):
    """The types of `GenerationFinished.totals`, unless it is empty."""

    tokens: events.TokenCount
    prompt_tokens: events.TokenCount
    reused_tokens: events.TokenCount
    timings: TimingTotals
    speculation: SpeculationTotals
    thinking: ThinkingTotals | None = None


CommandReply = (
    HelloReply
    | HeartbeatReply
    | LoadProgress
    | FailureReply
    | DoneReply
    | MeasuredCosts
    | ReplayResult
    | CountResult
    | TokenizeResult
    | InspectResult
    | DraftScore
)
EngineOutput = CommandReply | events.Event
LoadEvent = events.Event | LoadProgress
"""What a load reports."""

_COMMAND_TYPES: dict[str, type[EngineCommand]] = {
    re.sub(r"\B(?=[A-Z])", "_", kind.__name__.removesuffix("Command")).lower(): kind
    for kind in get_args(EngineCommand)
}
"""By their names on the wire."""
_REPLY_TYPES: dict[str, type[CommandReply]] = {
    "hello": HelloReply,
    "alive": HeartbeatReply,
    "loading": LoadProgress,
    "failed": FailureReply,
    "done": DoneReply,
    "measured": MeasuredCosts,
    "replayed": ReplayResult,
    "counted": CountResult,
    "tokenized": TokenizeResult,
    "inspected": InspectResult,
    "draft_score": DraftScore,
}
_COMMAND_NAMES = {kind: name for name, kind in _COMMAND_TYPES.items()}
_REPLY_NAMES = {kind: name for name, kind in _REPLY_TYPES.items()}
_to_compact_json = json.JSONEncoder(separators=(",", ":")).encode


def encode_command(number: int, command: EngineCommand) -> bytes:
    """One line of JSON, with a line feed."""
    head = {"v": PROTOCOL_VERSION, "id": number, "cmd": _COMMAND_NAMES[type(command)]}
    line = _to_compact_json(head | to_plain(command))
    return f"{line}\n".encode()


def decode_command(line: bytes) -> tuple[int, EngineCommand]:
    """The number and the command of a line.

    Raises ValueError if it is not a command.
    """
    body = parse_object(line)
    number = body.get("id")
    kind = _COMMAND_TYPES.get(str(body.get("cmd")))
    if kind is None or not isinstance(number, int):
        raise ValueError("not a command")
    return number, from_json(kind, body)


def encode_output(number: int, output: EngineOutput) -> bytes:
    """As `encode_command`."""
    if isinstance(output, CommandReply):
        head = {"v": PROTOCOL_VERSION, "ev": _REPLY_NAMES[type(output)]}
        line = _to_compact_json(head | to_plain(output))
    else:
        line = events.encode(output)
    return f'{{"re":{number},{line[1:]}\n'.encode()


def decode_output(line: bytes) -> tuple[int, EngineOutput | None]:
    """The command's number, and a reply, an event or None (unknown).

    Raises ValueError if any value is not what this version declares, so that an engine
    that writes wrong ones is at fault where it does, and not where they are used.
    """
    body = parse_object(line)
    number = body.get("re")
    if not isinstance(number, int):
        raise ValueError("not an answer")
    output: EngineOutput | None
    kind = _REPLY_TYPES.get(str(body.get("ev")))
    output = events.parse_event(body) if kind is None else from_json(kind, body)
    _check_details(output)
    return number, output


def _check_details(output: EngineOutput | None) -> None:
    """Check what the types of the outputs leave open. Raises ValueError."""
    if isinstance(output, events.EngineReady):
        from_json(LoadedSettings, output.settings)
    elif isinstance(output, events.GenerationFinished):
        if output.totals:
            speculation = from_json(AnswerTotals, output.totals).speculation
            if speculation.drafted and not speculation.rounds:
                raise ValueError("draft tokens without a round")
    elif isinstance(output, MeasuredCosts):
        if not all(width.isdecimal() for width in output.curve):
            raise ValueError("a width that is no number")
    elif isinstance(output, TokenizeResult):
        if output.pieces and len(output.pieces) != len(output.tokens):
            raise ValueError("pieces of other tokens")
        for piece in output.pieces:
            piece.encode("latin-1")
    elif isinstance(output, DraftScore):
        if len(output.drafted) != len(output.accepted):
            raise ValueError("draft tokens of other places")
    elif isinstance(output, ReplayResult):
        lengths = {len(output.best), len(output.probability)}
        lengths |= {len(output.below), len(output.above)}
        if len(lengths) > 1:
            raise ValueError("probabilities of other tokens")
