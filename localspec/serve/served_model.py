"""The loaded pair as its requests need it: engine requests, and its description."""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from localspec import __version__
from localspec.chat.conversation import Conversation
from localspec.chat.settings import ChatSettings, LoadedModel, build_request
from localspec.errors import LocalspecError
from localspec.launch import Engine, ResolvedPair
from localspec.models.chat_template.tool_formats import GENERIC
from localspec.models.gguf import reader
from localspec.protocol.events import EngineReady, Token
from localspec.protocol.json_values import to_plain
from localspec.protocol.wire import (
    ChatMessage,
    GenerateCommand,
    TokenizeCommand,
    ToolCall,
)
from localspec.serve.api_error import ApiError
from localspec.serve.prompts import InfillInput, PromptInput
from localspec.serve.request_budget import check_prompt_size
from localspec.serve.request_options import CompletionOptions

_TEXT_MAX_TOKENS = 512
"""Default for a text, as of `localspec run`; a chat's answer may fill the context."""
_KEPT_ANSWER_TOKENS = 500_000
_INFILL_ANSWER_TOKENS = 256
"""Left free for the answer of an infill, in a context of at least twice as many."""
_INFILL_CONTROL_TOKENS = 8  # Room for the tokens before, between and after the texts.
_PREFIX_SHARE = 0.75
"""Of the rest, as in llama-server: the prefix matters more than the suffix."""
_MAX_CHARS_PER_TOKEN = 64
_MAX_PREDICTED_CHARS = 16
"""Of a prediction, per token of context: an answer is no longer than the context."""


class AnswerTokens:
    """The tokens of earlier answers, by who got them, in which chat, and their text.

    With them the next prompt matches the KV cache. They may differ from the tokenizer's,
    and so change the next answer: nobody gets those of another client, of another chat,
    or of an answer with another sampling, a bias or a grammar.
    """

    def __init__(self) -> None:
        self._tokens: OrderedDict[_AnswerKey, tuple[int, ...]] = OrderedDict()
        self._n_tokens = 0

    def remember(
        self,
        place: bytes,
        text: str,
        tokens: Sequence[Token],
        calls: Sequence[ToolCall] = (),
    ) -> None:
        """`text` is the visible text of the answer with these tokens.

        `place` is where in a chat it was given (`answer_places`). Of an answer with
        calls all tokens are kept: its thinking is a part of the next prompt, too.
        """
        kept = _tokens_of_end(text, tokens)
        if calls:
            kept = tuple(token.id for token in tokens)
        elif not text.strip():
            return
        if not kept:
            return
        key = _make_key(place, text, calls)
        earlier = self._tokens.pop(key, ())
        self._tokens[key] = kept
        self._n_tokens += len(kept) - len(earlier)
        while self._n_tokens > _KEPT_ANSWER_TOKENS:
            _, oldest = self._tokens.popitem(last=False)
            self._n_tokens -= len(oldest)

    def find(
        self, place: bytes, text: str, calls: Sequence[ToolCall] = ()
    ) -> tuple[int, ...]:
        """Empty if no answer had this text and these calls there."""
        return self._tokens.get(_make_key(place, text, calls), ())

    def add_to(
        self, messages: Sequence[ChatMessage], places: Sequence[bytes]
    ) -> tuple[ChatMessage, ...]:
        added = []
        for message, place in zip(messages, places, strict=False):
            tokens = message.tokens
            if message.role == "assistant":
                tokens = self.find(place, message.content, message.tool_calls)
            added.append(replace(message, tokens=tokens))
        return tuple(added)


_AnswerKey = tuple[bytes, str, tuple[tuple[str, str], ...]]
"""Where an answer was given, its text, and the names and arguments of its calls."""


def _make_key(place: bytes, text: str, calls: Sequence[ToolCall]) -> _AnswerKey:
    """A client may write the arguments with other spaces, and with other ids."""
    named: list[tuple[str, str]] = []
    for call in calls:
        arguments = call.arguments
        with suppress(ValueError, RecursionError):
            arguments = json.dumps(json.loads(arguments), sort_keys=True)
        named.append((call.name, arguments))
    return place, text, tuple(named)


def answer_places(messages: Sequence[ChatMessage], maker: object) -> list[bytes]:
    """Digests of what is before each message, and before the one after the last.

    `maker` is who asks, and how answers are made. Thinking and the ids of calls are no
    part of it: clients leave them out later.
    """
    digest = hashlib.sha256(repr(maker).encode())
    places = [digest.digest()]
    for message in messages:
        calls = [(call.name, call.arguments) for call in message.tool_calls]
        shown: tuple[object, ...] = (message.role, message.content, calls)
        if message.images:
            shown += tuple(image.sha256 for image in message.images)
        digest.update(repr(shown).encode("utf-8", "replace"))
        places.append(digest.digest())
    return places


def _tokens_of_end(text: str, tokens: Sequence[Token]) -> tuple[int, ...]:
    """The last tokens, whose text is exactly `text`; none if no token begins there.

    Tokens `<think>`, `hm`, `</think>`, `Hel`, `lo` and text `Hello` give the last two.
    """
    length = 0
    start = len(tokens)
    while start and length < len(text):
        start -= 1
        length += len(tokens[start].text)
    end = tokens[start:]
    if "".join(token.text for token in end) != text:
        return ()
    return tuple(token.id for token in end)


NOT_LOADED = EngineReady(
    engine={}, model="", draft=None, devices=(), settings={}, memory={}, load_ms=0.0
)


class ModelSizes(Struct, frozen=True):
    """The sizes of a model; None while its file cannot be read."""

    n_ctx_train: int | None = None
    n_vocab: int | None = None
    n_embd: int | None = None
    n_params: int | None = None
    size: int | None = None  # In bytes.


def read_sizes(path: Path) -> ModelSizes:
    try:
        header = reader.read(path)
    except (LocalspecError, OSError):
        return ModelSizes()
    return ModelSizes(
        n_ctx_train=header.n_ctx_train,
        n_vocab=header.tokenizer.n_tokens,
        n_embd=header.n_embd,
        n_params=header.parameters,
        size=header.weight_bytes,
    )


def model_status(*, is_loaded: bool) -> str:
    return "loaded" if is_loaded else "unloaded"


class ServedModel(Struct, frozen=True):
    """What the server knows about a pair."""

    name: str  # The `id` of /v1/models.
    pair: ResolvedPair
    settings: ChatSettings  # Of an answer whose request leaves them open.
    ready: EngineReady = NOT_LOADED
    seed: int | None = None
    """Of every request without one; None: each has a random seed."""
    template: str | None = None
    sizes: ModelSizes = field(default_factory=ModelSizes)
    """Of the target. They are read once: its file may change while it is served."""
    created: int = field(default_factory=lambda: int(time.time()))
    answer_tokens: AnswerTokens = field(default_factory=AnswerTokens)

    def name_loaded(self, ready: EngineReady) -> str:
        """The names of the pair for people; a default draft may be left out."""
        names = self.pair.names()
        return names.text if ready.draft else names.target

    def loaded(self, *, raw: bool = False) -> LoadedModel:
        return LoadedModel.from_ready(
            self.ready,
            self.pair.spec,
            self.pair.spec_reason,
            raw=raw,
            template=self.template,
        )

    @property
    def n_ctx(self) -> int:
        return self.loaded().n_ctx

    @property
    def sees(self) -> bool:
        """Whether chats with it may have pictures."""
        return self.loaded().sees

    @property
    def hears(self) -> bool:
        """Whether chats with it may have audio."""
        return self.loaded().hears

    @property
    def tool_format(self) -> str:
        """The format of tool calls: a row of `tool_formats.py`."""
        if self.template:
            return GENERIC.name
        chat = self.ready.settings.get("chat") or {}
        return chat.get("tools") or GENERIC.name

    @property
    def has_exact_calls(self) -> bool:
        """Whether the engine knows how the model writes calls."""
        chat = self.ready.settings.get("chat") or {}
        return bool(self.template or chat.get("exact_calls"))

    @property
    def fingerprint(self) -> str:
        """Changes with the files and the engine, as OpenAI's `system_fingerprint`."""
        parts = (
            __version__,
            self.ready.model,
            self.ready.draft,
            sorted(self.ready.engine.items()),
        )
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()
        return f"fp_{digest[:10]}"

    def check_prompt(self, prompt: PromptInput, options: CompletionOptions) -> None:
        """Raise ApiError for a prompt that cannot fit, or a chat without a template."""
        if prompt.messages and not self.loaded().has_chat_template:
            message = (
                f"{self.ready.model} has no chat template: it only completes text. "
                "Use /v1/completions, or start the server with --template."
            )
            raise ApiError(400, message, param=prompt.param)
        parts: dict[str, Any] = {
            prompt.param: (prompt.messages, prompt.text, prompt.tokens)
        }
        if options.tools is not None:
            parts["tools"] = options.tools.tools
        check_prompt_size(parts, self.n_ctx)

    def build_command(
        self,
        engine: Engine,
        prompt: PromptInput,
        options: CompletionOptions,
        index: int,
        client: str,
    ) -> GenerateCommand:
        """The engine's request for one choice.

        May ask the engine, so call it in its turn.
        """
        settings = options.choice_settings(index)
        messages = prompt.messages
        prefill = ""
        if messages and messages[-1].role == "assistant":
            # The last message is the beginning of the answer.
            prefill = messages[-1].content
            messages = messages[:-1]
        places = self.answer_places(messages, options, client)
        tools = ""
        callable_tools: tuple[str, ...] = ()
        must_call = False
        answer_prefix = ""
        if options.tools is not None:
            tools = options.tools.tools
            callable_tools = tuple(options.tools.parameters)
            must_call = options.tools.must_call
            if options.tools.forced is not None:
                must_call = False
                answer_prefix = options.tools.forced.prefix
        if must_call and "budget" in self.loaded().thinking_controls:
            # The answer is nothing but the call.
            settings = replace(settings, think_budget=0)
        if not messages and settings.max_tokens is None:
            settings = replace(settings, max_tokens=_TEXT_MAX_TOKENS)
        prompt_tokens = prompt.tokens
        if prompt.infill is not None:
            fim = self.ready.settings.get("fim")
            prompt_tokens = build_infill_tokens(engine, prompt.infill, fim, self.n_ctx)
        conversation = Conversation(settings.sampling.seed)
        conversation.ask("")
        request = build_request(
            settings,
            conversation,
            self.loaded(raw=not messages),
            probabilities=options.n_logprobs is not None,
            seed=settings.sampling.seed,
        )
        return replace(
            request,
            client=hashlib.sha256(client.encode()).hexdigest(),  # It may be a key.
            text=prompt.text,
            messages=self.answer_tokens.add_to(messages, places),
            message_fields=prompt.message_fields[: len(messages)],
            prior_messages=(),
            prompt_tokens=prompt_tokens,
            resumed_tokens=self.answer_tokens.find(places[-1], prefill),
            max_tokens=min(request.max_tokens, self.n_ctx),
            prefill=prefill,
            n_alternatives=max(options.n_logprobs or 0, 1),
            prediction=options.prediction[: _MAX_PREDICTED_CHARS * self.n_ctx],
            grammar=options.constraint.grammar,
            json_schema=options.constraint.json_schema,
            fallback_schema=options.constraint.fallback_schema,
            tools=tools,
            callable_tools=callable_tools,
            must_call=must_call,
            answer_prefix=answer_prefix,
            template_arguments=options.template_arguments,
        )

    def answer_places(
        self, messages: Sequence[ChatMessage], options: CompletionOptions, client: str
    ) -> list[bytes]:
        """Where in a chat of this client its answers are, for `answer_tokens`."""
        sampling = replace(options.settings.sampling, seed=0)
        maker = (client, sampling, options.constraint)
        return answer_places(messages, maker)

    def describe(self, *, is_loaded: bool) -> dict[str, Any]:
        """The object of /v1/models."""
        n_ctx = self.n_ctx if is_loaded else None
        created = datetime.fromtimestamp(self.created, UTC)
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            # Anthropic's fields.
            "type": "model",
            "display_name": self.name,
            "created_at": f"{created:%Y-%m-%dT%H:%M:%SZ}",
            # llama-server's fields.
            "owned_by": "localspec",
            "meta": {"n_ctx": n_ctx} | to_plain(self.sizes),
            "status": {"value": model_status(is_loaded=is_loaded)},
            "capabilities": self._capabilities(is_loaded=is_loaded),
        }

    def _capabilities(self, *, is_loaded: bool) -> list[str]:
        """As Ollama and llama-server name them; a pair is known when it is loaded."""
        capabilities = ["completion"]
        if is_loaded and self.sees:
            capabilities.append("vision")
        if is_loaded and self.hears:
            capabilities.append("audio")
        return capabilities

    def props(self) -> dict[str, Any]:
        """The object of llama-server's /props, without the template and the path."""
        loaded = self.loaded()
        sampling = self.settings.sampling
        has_chat = loaded.has_chat_template
        takes_tools = has_chat  # In the template's format, or in the generic one.
        params = {
            "seed": self.seed,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repeat_penalty": sampling.repeat_penalty,
            "repeat_last_n": sampling.repeat_last_n,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "max_tokens": self.settings.max_tokens,
            "stop": list(self.settings.stop),
        }
        return {
            "default_generation_settings": {"params": params, "n_ctx": loaded.n_ctx},
            "total_slots": 1,
            "model_alias": self.name,
            "modalities": {
                "vision": loaded.sees,
                "video": False,
                "audio": loaded.hears,
            },
            "endpoint_slots": False,
            "endpoint_props": False,
            "endpoint_metrics": True,
            "chat_template_caps": {
                "supports_string_content": has_chat,
                "supports_typed_content": has_chat,
                "supports_tools": takes_tools,
                "supports_tool_calls": takes_tools,
                "supports_parallel_tool_calls": takes_tools,
                "supports_system_role": has_chat,
                "supports_preserve_reasoning": False,
                "supports_reasoning_effort": "levels" in loaded.thinking_controls,
                "supports_object_arguments": takes_tools,
            },
            "build_info": f"localspec {__version__}",
            "is_sleeping": False,
        }


def build_infill_tokens(
    engine: Engine, given: InfillInput, fim: Mapping[str, int] | None, n_ctx: int
) -> tuple[int, ...]:
    """Other files, prefix and suffix, cut to what the context holds.

    `fim`: the model's tokens for this, as in `EngineReady.settings`. Raises ApiError
    without them.
    """
    if not fim:
        message = "This model has no tokens for text before and after a cursor."
        raise ApiError(501, message, name="no_infill")

    def tokenize(text: str) -> list[int]:
        return list(engine.tokenize(TokenizeCommand(text, parse_special=False)).tokens)

    # Of a long text, only what may fit is tokenized.
    max_chars = _MAX_CHARS_PER_TOKEN * n_ctx
    n_answer = min(_INFILL_ANSWER_TOKENS, n_ctx // 2)
    room = n_ctx - n_answer - _INFILL_CONTROL_TOKENS
    prefix = tokenize((given.prefix + given.prompt)[-max_chars:])
    suffix = tokenize(given.suffix[:max_chars])
    # In a room of 1,000 tokens, a prefix of 2,000 and a suffix of 900 become 750 and
    # 250; beside a prefix of 300, the suffix gets 700.
    suffix_share = int(room * (1 - _PREFIX_SHARE))
    n_suffix = min(len(suffix), max(room - len(prefix), suffix_share))
    prefix = prefix[-(room - n_suffix) :]
    suffix = suffix[:n_suffix]
    files: list[int] = []
    for file in reversed(given.files):
        if len(file.text) > max_chars:
            break
        if "sep" in fim:
            separator = [fim["sep"], *tokenize(f"{file.name}\n")]
        else:
            separator = tokenize("\n\n")
        tokens = [*separator, *tokenize(file.text)]
        if len(tokens) + len(files) + len(prefix) + len(suffix) > room:
            break
        files = [*tokens, *files]
    if files and "rep" in fim:
        files = [fim["rep"], *tokenize("myproject\n"), *files]
    begin = [fim["bos"]] if "bos" in fim else []
    return (*begin, *files, fim["pre"], *prefix, fim["suf"], *suffix, fim["mid"])
