"""The table of options: each is declared here once, and every front end is made of it.

A row (`Option`) says what the values are, what the option does, where it is offered, and
what its key in config.toml is, if it has one. For example, the row `top_k` is
`--top-k N` of `localspec run`, the argument `top_k=` of `LLM`, `/set top_k N` in a chat,
and the field `top_k` of a request. Rows of the group `app` are only in config.toml.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal, get_args

from msgspec.structs import replace

from localspec import draft_kinds, extras
from localspec.config import other_spellings
from localspec.config.option_types import (
    FILE_OR_NONE,
    FOLDER,
    GRAMMAR,
    JSON_SCHEMA,
    MAX_INT,
    SPLIT,
    SWITCH,
    SWITCH_OR_AUTO,
    TEXTS,
    FrontEnd,
    Option,
    RequestRange,
    Setting,
    ValueType,
    choice,
    number,
    text,
    whole,
)
from localspec.protocol.wire import (
    ALL_LAYERS,
    DRAFT_MAX,
    MODEL_DRAFT_MAX,
    FlashAttention,
    KvType,
    SamplingParams,
    VerifyChoice,
)

OptionGroup = Literal["sampling", "answer", "speculation", "load", "app"]
OverflowPolicy = Literal["ask", "stop", "drop", "summarise"]
"""What to do when a chat exceeds its context.

Ask the user, stop, drop the oldest turns, or replace them by a summary.
"""
THEMES = (
    "localspec-dark", "localspec-light", "high-contrast", "monochrome", "ansi",
    "nord", "gruvbox", "dracula", "tokyo-night", "monokai", "flexoki",
    "catppuccin-mocha", "catppuccin-macchiato", "catppuccin-frappe", "catppuccin-latte",
    "rose-pine", "rose-pine-moon", "rose-pine-dawn", "solarized-dark", "solarized-light",
    "atom-one-dark", "atom-one-light",
)  # fmt: skip
"""localspec's own themes, the default first, then well-known ones of Textual."""

_NOT_REQUEST: tuple[FrontEnd, ...] = ("command", "python", "chat")
_PROGRAMS: tuple[FrontEnd, ...] = ("command", "python")
_NEW_CHATS = "for new chats"
_NEXT_LOAD = "when a model is loaded"
_load = partial(Option, offered=_PROGRAMS)


def _sampling(name: str, value_type: ValueType, about: str = "", **more: Any) -> Option:
    """An option whose default is that of `SamplingParams`."""
    default = getattr(SamplingParams(), name)
    return Option(name, value_type, about, default=default, **more)


def _app(
    key: str,
    value_type: ValueType,
    about: str,
    *,
    default: Any = None,
    title: str = "",
    offered: tuple[FrontEnd, ...] = (),
    **setting: Any,
) -> Option:
    """A setting of config.toml that is no option of an answer or a load."""
    return Option(
        name=key.rpartition(".")[2],
        value_type=value_type,
        default=default,
        title=title,
        offered=offered,
        setting=Setting(key, help=about, **setting),
    )


_SAMPLING = (
    Option(
        "temperature",
        number("0 (greedy) or more; 0.8 is common"),
        "Sampling temperature; 0 is greedy.  [default: the pair's own, else its makers', else 0.8]",
        setting=Setting(
            "answers.temperature",
            _NEW_CHATS,
            "0 is greedy. Overrides the pair's own default.",
            unset_label="the pair's default",
        ),
        request=RequestRange(0, 100),
    ),
    _sampling(
        "top_k",
        whole("a whole number; 0 is off"),
        "Sample from the N most probable tokens; 0 turns it off.",
        title="top-k",
        request=RequestRange(-1, MAX_INT, {-1: 0}),
    ),
    _sampling(
        "top_p",
        number("above 0, up to 1; 1 is off", 0, 1, above=True),
        "Sample from the most probable tokens that sum up to X; 1 turns it off.",
        title="top-p",
        request=RequestRange(0, 1, {0: 1e-9}),  # OpenAI's 0 keeps the likeliest token
    ),
    _sampling(
        "min_p",
        number("0 to 1; 0 is off", 0, 1),
        "Skip tokens below X times the highest probability; 0 turns it off.",
        title="min-p",
    ),
    _sampling(
        "repeat_penalty",
        number("above 0; 1 is off", above=True),
        "Penalty for repeated tokens; 1 turns it off.",
        request=RequestRange(0.01, 100),
    ),
    _sampling(
        "repeat_last_n",
        whole("a whole number of tokens; 0 is off"),
        "The repeat penalty looks at the last N tokens; 0 turns it off.",
        title="repeat window",
        request=RequestRange(-1, MAX_INT, {-1: MAX_INT}),
    ),
    _sampling(
        "presence_penalty", number("-2 to 2; 0 is off", -2, 2), offered=("request",)
    ),
    _sampling(
        "frequency_penalty", number("-2 to 2; 0 is off", -2, 2), offered=("request",)
    ),
    _sampling(
        "dry_multiplier",
        number("0 to 100; 0 is off", 0, 100),
        "DRY: penalty for tokens that extend a repeated sequence; 0 turns it off, 0.8 is common.",
        title="DRY multiplier",
    ),
    _sampling(
        "dry_base",
        number("1 to 100", 1, 100),
        "DRY: factor by which each repeated token raises the penalty.",
        title="DRY base",
    ),
    _sampling(
        "dry_allowed_length",
        whole("a whole number of tokens"),
        "DRY: repeated sequences up to N tokens may be extended without a penalty.",
        title="DRY allowed length",
    ),
    _sampling(
        "xtc_probability",
        number("0 to 1; 0 is off", 0, 1),
        "XTC: how often all tokens above the threshold are excluded but the least likely of them.",
        title="XTC probability",
    ),
    _sampling(
        "xtc_threshold",
        number("0 to 1; above 0.5 is off", 0, 1),
        "XTC: the probability from which tokens may be excluded.",
        title="XTC threshold",
    ),
    Option(
        "seed",
        whole("a whole number", high=2**63 - 1, none="auto"),
        "Seed of the sampling.  [default: random; --stats shows it]",
        offered=_NOT_REQUEST,
    ),
)
_ANSWER = (
    Option(
        "max_tokens",
        whole("a whole number of tokens from 1", 1, none="auto"),
        "Max tokens of an answer.  [default: 512; in a chat, no limit]",
        request=RequestRange(-1, MAX_INT, {-1: MAX_INT}),
    ),
    Option(
        "stop",
        TEXTS,
        "Stop before this text; repeatable.",
        default=(),
        title="stop strings",
        metavar="TEXT",
    ),
    Option(
        "think",
        SWITCH_OR_AUTO,
        "Turn thinking on or off, if the model's template supports it.",
        title="thinking",
        offered=_NOT_REQUEST,
    ),
    Option(
        "effort",
        choice({"auto": "", "low": "low", "medium": "medium", "high": "high"}),
        "How hard to think, if the model's template supports it.",
        default="",
        offered=("command",),
    ),
    Option(
        "think_budget",
        whole("a whole number of tokens", none="auto"),
        "End the thinking after N tokens.",
        title="thinking budget",
        offered=("command", "chat"),
    ),
    Option(
        "json_schema",
        JSON_SCHEMA,
        "Answer with JSON that satisfies this JSON Schema.",
        default="",
        title="JSON schema",
        offered=_NOT_REQUEST,
        metavar="FILE|JSON",
    ),
    Option(
        "grammar",
        GRAMMAR,
        "Answer with a text of this GBNF grammar.",
        default="",
        offered=_PROGRAMS,
        metavar="FILE",
    ),
)


def _installed_methods() -> dict[str, str]:
    """The drafters of other packages."""
    return {name: name for name in draft_kinds.installed()}


_SPECULATION = (
    Option(
        "spec",
        choice(draft_kinds.methods(), {"on": "auto"}, _installed_methods),
        f"Draft source: {', '.join(draft_kinds.methods()[:-1])} or {draft_kinds.methods()[-1]}.",
        default="auto",
        title="speculation",
        metavar="NAME",
        setting=Setting(
            "answers.spec",
            _NEW_CHATS,
            "auto: the fastest drafter; off: no speculation; or one drafter, if the pair has it.",
        ),
    ),
    Option(
        "draft_max",
        whole(f"0 to {DRAFT_MAX}", 0, DRAFT_MAX, none="auto"),
        f"Max draft tokens per round, 0 to {DRAFT_MAX}; of a model or head {MODEL_DRAFT_MAX}, on a hybrid 6.  [default: 5]",
        title="max draft tokens",
        fills="draft_length",
    ),
    Option(
        "verify",
        choice(get_args(VerifyChoice)),
        "Verification method; each keeps the model's own distribution.",
        default="auto",
        title="verification method",
    ),
    Option(
        "exact",
        choice({"on": True, "off": False}, {"auto": "off"}),
        "Exact mode: on a CPU, attention that computes passes of every width alike.",
        default=False,
        title="exact mode",
        offered=_NOT_REQUEST,
        metavar="[on|off]",
        setting=Setting(
            "answers.exact",
            _NEW_CHATS,
            "On a CPU, attention that computes passes of every width alike.",
        ),
    ),
)
# clamped when a model is loaded
_THREADS = number("a whole number", low=-math.inf, whole=True)
_LOAD = (
    _load(
        "ctx",
        whole("a whole number of tokens from 1", 1, 2**63),
        "Context size in tokens.  [default: what fits]",
    ),
    _load(
        "kv",
        choice(get_args(KvType)),
        "Type of the KV cache (keys/values).  [default: what fits]",
    ),
    _load(
        "draft_kv",
        choice(get_args(KvType)),
        "Type of the draft's KV cache; less than f16 lowers its acceptance rate.",
        default="f16",
    ),
    _load(
        "gpu_layers",
        whole("a number of layers", none="auto"),
        "Layers of the target on the GPU.  [default: auto]",
        metavar="N|auto",
    ),
    _load(
        "draft_gpu_layers",
        whole("a number of layers", none="auto"),
        "Layers of the draft model on the GPU.  [default: auto]",
        metavar="N|auto",
    ),
    _load(
        "main_gpu",
        whole("a whole number"),
        "GPU used with --split none or row, counted from 0.",
        default=0,
    ),
    _load(
        "split",
        SPLIT,
        "How several GPUs share the model; SHARES: 3,1; row is deprecated.",
        default="layer",
        metavar="none|layer|tensor|row|SHARES",
    ),
    _load(
        "cpu_moe",
        replace(
            whole("a number of layers, all or auto"),
            words={"auto": None, "all": ALL_LAYERS},
        ),
        "Layers of a MoE model whose experts stay in RAM, from the first on.  [default: auto]",
        title="experts in RAM",
        metavar="N|all|auto",
        setting=Setting(
            "run.cpu_moe",
            _NEXT_LOAD,
            "Layers of a mixture of experts whose experts stay in RAM, from the first on.",
        ),
    ),
    _load(
        "threads",
        _THREADS,
        "CPU threads.  [default: measured; at first one per performance core]",
    ),
    _load(
        "draft_threads",
        _THREADS,
        "CPU threads of the draft model.  [default: as --threads]",
    ),
    _load(
        "image_model",
        FILE_OR_NONE,
        "Projector (mmproj) by which the model sees pictures.  [default: the one beside the model]",
        metavar="FILE|none",
    ),
    _load(
        "image_tokens",
        whole("a whole number of tokens from 1", 1, 65_536),
        "Max tokens of a picture.  [default: the model's; on a CPU at most 1024]",
    ),
    _load(
        "flash_attn",
        choice(get_args(FlashAttention)),
        "Flash attention.",
        default="auto",
    ),
)
_APP = (
    _app(
        "screen.theme",
        choice(THEMES),
        "Colours of the app; ansi: the terminal's own. Monochrome uses underlines and symbols.",
        default=THEMES[0],
    ),
    _app(
        "screen.ascii",
        SWITCH,
        "For terminals and fonts without line, arrow and block characters.",
        default=False,
        title="plain ASCII",
    ),
    _app(
        "screen.guesses",
        SWITCH,
        "Show what is guessed, and in colour which words were guessed right (f2).",
        default=True,
        title="guesses in colour",
    ),
    _app(
        "screen.slow_motion",
        SWITCH,
        "Show answers at reading speed, guess by guess (the demo's are unless it is false); f7 while an answer streams.",
        default=False,
    ),
    _app(
        "run.pair",
        text("a pair, a model or a file, in quotes, as after `localspec run`"),
        "The pair or model that `localspec run` opens without arguments.",
        title="default model",
        takes_effect="at the next start",
        unset_label="the last one used",
        flags="MODEL",
    ),
    _app(
        "chats.keep",
        SWITCH,
        "On this computer only. Off: new chats are not saved.",
        default=True,
        title="save chats",
        takes_effect=_NEW_CHATS,
        flags="--private",
        safe_value=False,
    ),
    _app(
        "chats.overflow",
        choice(get_args(OverflowPolicy)),
        "Ask; stop; drop the oldest turns; or replace them by a summary.",
        default="ask",
        title="when the context is full",
        offered=("chat",),
        takes_effect=_NEW_CHATS,
    ),
    _app(
        "chats.show_thinking",
        SWITCH,
        "Expand the model's thinking by default.",
        default=False,
        offered=("chat",),
        takes_effect=_NEW_CHATS,
    ),
    _app(
        "models.folder",
        FOLDER,
        "Its .gguf files are listed together with those of the Hugging Face cache.",
        title="model folder",
        unset_label="none",
        flags="--models-dir",
        variable="LOCALSPEC_MODELS_DIR",
    ),
    _app(
        "models.too_slow",
        number("tokens per second above 0", above=True),
        "Advice calls a model too slow that writes fewer tokens per second.",
        title="too slow below (tok/s)",
        unset_label="an answer takes 90 s",
    ),
    _app(
        "network.offline",
        SWITCH,
        "Never use the network, not even for requested downloads.",
        default=False,
        title="offline mode",
        flags="--offline",
        variable="HF_HUB_OFFLINE",
        safe_value=True,
    ),
    _app(
        "tools.max_calls",
        whole("a whole number of calls from 1", 1, 1000),
        "Calls of tools in one answer; after them the model must answer.",
        default=16,
        title="tool calls in an answer",
        takes_effect="at the next message",
    ),
    _app(
        "downloads.limit",
        number("a number of MB/s above 0", above=True),
        "Maximum speed of all downloads together.",
        title="download limit (MB/s)",
        unset_label="no limit",
        flags="pull --limit",
    ),
)
EXTRA_SPECULATION_OPTIONS: tuple[Option, ...] = tuple(
    extras.load("SPECULATION_OPTIONS")
)
"""Options of `extras/` about speculation."""
EXTRA_LOAD_OPTIONS: tuple[Option, ...] = tuple(extras.load("LOAD_OPTIONS"))
_TABLE: Mapping[OptionGroup, tuple[Option, ...]] = {
    "sampling": _SAMPLING,
    "answer": _ANSWER,
    "speculation": (*_SPECULATION, *EXTRA_SPECULATION_OPTIONS),
    "load": (*_LOAD, *EXTRA_LOAD_OPTIONS),
    "app": _APP,
}
OPTIONS: Mapping[str, Option] = {
    option.name: option for options in _TABLE.values() for option in options
}
"""All options by name."""
RETIRED: Mapping[tuple[FrontEnd, str], str] = {
    ("request", "exact"): "exact mode: localspec serve --exact on",
    ("python", "exact"): "exact mode is an option of LLM",
}
"""What was an option of an answer, and what replaces it.

It is read and ignored, with a notice. Words that have gone are synonyms of a type's.
"""
TABLES: Mapping[str, str] = {
    "screen": "Screen",
    "run": "Running",
    "chats": "Chats",
    "answers": "Answers",
    "presets": "",
    "models": "Models and the network",
    "network": "",
    "downloads": "",
    "tools": "",
    "keys": "Keys",
}
"""The tables in order, with screen headings.

An empty heading continues the previous section.
"""
SETTINGS: Mapping[str, Option] = {
    option.key: option
    for table in TABLES
    for option in (*_APP, *OPTIONS.values())
    if option.key.startswith(f"{table}.")
}
"""The options of config.toml by key, in screen order."""


def select(front_end: FrontEnd, *groups: OptionGroup) -> Iterator[Option]:
    """The options that a front end offers, of these groups or of all."""
    for group in groups or _TABLE:
        yield from (option for option in _TABLE[group] if front_end in option.offered)


def find_key(typed: str) -> str:
    """The key that is meant, or "".

    Its name may be another program's: `answers.temp` is `answers.temperature`.
    """
    table, _, name = typed.rpartition(".")
    name = other_spellings.find_option_name(name) or name
    key = f"{table}.{name}"
    return key if key in SETTINGS else ""


def find_nearest_key(key: str, ids: frozenset[str] = frozenset()) -> str:
    """Find the most similar key, or "". `ids` are the action ids of [keys]."""
    same_key = find_key(key)
    if same_key:
        return same_key
    keys = [*SETTINGS, *(f"keys.{id_}" for id_ in ids)]
    similar_keys = difflib.get_close_matches(key, keys, n=1, cutoff=0.6)
    if similar_keys:
        return similar_keys[0]
    # The name may be right, in another table.
    by_name = {key.rpartition(".")[2]: key for key in SETTINGS}
    name = key.rpartition(".")[2]
    name = other_spellings.find_option_name(name) or name
    similar_names = difflib.get_close_matches(name, by_name, n=1, cutoff=0.7)
    return by_name[similar_names[0]] if similar_names else ""
