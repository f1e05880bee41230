"""llama-server's `/infill` for editors: text before and after the cursor, in the model's format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from localspec.chat.settings import ChatSettings
from localspec.launch import Engine
from localspec.lazy_dataclass import dataclass
from localspec.protocol.wire import TokenizeCommand
from localspec.serve import request_options
from localspec.serve.api_error import ApiError, invalid, unsupported
from localspec.serve.json_fields import JsonFields, to_fields
from localspec.serve.request_options import CompletionOptions

_MAX_EXTRA_FILES = 256
_MAX_FIELDS = 256
_ANSWER_TOKENS = 256  # Left free for the answer, in a context of at least twice as many.
_PREFIX_SHARE = 0.75
"""Of what is left, as in llama-server: the prefix matters more than the suffix."""
_MAX_CHARS_PER_TOKEN = 64
_PROJECT = "myproject\n"


@dataclass(frozen=True, slots=True)
class InfillInput:
    prefix: str
    suffix: str
    prompt: str = ""  # Text after the prefix, before the cursor.
    files: tuple[tuple[str, str], ...] = ()  # Names and texts of other files, the nearest last.


def parse_infill(fields: JsonFields) -> InfillInput:
    """The text around the cursor, and further files of the project. Raises ApiError."""
    files = []
    for i, value in enumerate(fields.items("input_extra", _MAX_EXTRA_FILES)):
        file = to_fields(value, f"input_extra[{i}]")
        if not isinstance(file.get("text"), str):
            raise invalid(file.param("text"), "it is not a string")
        files.append((file.text("filename"), file.text("text")))
    prefix, suffix = fields.text("input_prefix"), fields.text("input_suffix")
    return InfillInput(prefix, suffix, fields.text("prompt"), tuple(files))


def parse_infill_options(
    fields: JsonFields, defaults: ChatSettings, default_seed: int | None
) -> CompletionOptions:
    """`n_predict` has another name in OpenAI's API. Raises ApiError."""
    options = request_options.parse_options(fields, defaults, default_seed)
    if options.n > 1:
        raise unsupported("n", "only 1 is supported")
    n_predict = fields.integer("n_predict", -1, 2**31 - 1)
    if n_predict is not None:
        max_tokens = 2**31 - 1 if n_predict == -1 else max(n_predict, 1)
        settings = replace(options.settings, max_tokens=max_tokens)
        options = replace(options, settings=settings, reads_only=n_predict == 0)
    wanted = fields.items("response_fields", _MAX_FIELDS)
    if not all(isinstance(name, str) for name in wanted):
        raise invalid("response_fields", "it is not an array of strings")
    return replace(
        options,
        return_tokens=fields.flag("return_tokens") or options.stream,
        response_fields=tuple(filter(None, wanted)),
    )


def build_infill_tokens(
    engine: Engine, given: InfillInput, fim: Mapping[str, int] | None, n_ctx: int
) -> tuple[int, ...]:
    """Other files, prefix and suffix, cut to what the context holds.

    `fim`: the model's tokens for this, as in `EngineReady.settings`. Raises ApiError without them.
    """
    if not fim:
        raise ApiError(
            501, "This model has no tokens for text before and after a cursor.", name="no_infill"
        )

    def tokenize(text: str) -> list[int]:
        return list(engine.tokenize(TokenizeCommand(text, parse_special=False)).tokens)

    # Of a long text, only what may fit is tokenized.
    limit = _MAX_CHARS_PER_TOKEN * n_ctx
    room = n_ctx - min(_ANSWER_TOKENS, n_ctx // 2) - 8
    prefix, suffix = (
        tokenize((given.prefix + given.prompt)[-limit:]),
        tokenize(given.suffix[:limit]),
    )
    n_suffix = min(len(suffix), max(room - len(prefix), int(room * (1 - _PREFIX_SHARE))))
    prefix, suffix = prefix[-(room - n_suffix) :], suffix[:n_suffix]
    files: list[int] = []
    for name, text in reversed(given.files):
        separator = [fim["sep"], *tokenize(f"{name}\n")] if "sep" in fim else tokenize("\n\n")
        if len(text) > limit:
            break
        file = [*separator, *tokenize(text)]
        if len(file) + len(files) + len(prefix) + len(suffix) > room:
            break
        files = [*file, *files]
    if files and "rep" in fim:
        files = [fim["rep"], *tokenize(_PROJECT), *files]
    begin = [fim["bos"]] if "bos" in fim else []
    return (*begin, *files, fim["pre"], *prefix, fim["suf"], *suffix, fim["mid"])
