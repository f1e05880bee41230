"""A chat as the text that a model was trained on: its own template, or one by name.

Renders as transformers' `apply_chat_template(add_generation_prompt=True)` does.  A template is a
program from the model's file: it runs in jinja2's sandbox, and elsewhere than here in a process of
its own with limits (`renderer.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from localspec.models.chat_template import builtin_templates, thinking_tags
from localspec.protocol.events import Notice
from localspec.protocol.wire import ChatMessage, RenderResult
from localspec.sanitize import sanitize

MAX_PROMPT_CHARS = 16 * 1024 * 1024
"""Characters that a template may make."""

_THINKING_VARIABLES = ("enable_thinking", "thinking", "reasoning")
"""What templates call it."""


class TemplateRaisedError(jinja2.TemplateError):
    """A template called `raise_exception`."""


def render(
    source: str,
    messages: Sequence[ChatMessage],
    special_tokens: Mapping[str, str],
    enable_thinking: bool | None = None,
) -> RenderResult:
    """The prompt by a model's own template; by the default one where that does not work.

    `tokens` are the texts of special tokens: bos_token, eos_token, …
    """
    try:
        return _render_with_role_changes(source, messages, special_tokens, enable_thinking)
    except TemplateRaisedError as error:
        why = f"refuses this chat: {error}"
    except MemoryError:
        why = "does not work: it needs too much memory"
    except Exception as error:  # a hostile program may raise anything
        why = f"does not work: {type(error).__name__}: {error}"
    return render_builtin(messages, special_tokens, reason=f"The model's chat template {why}")


def render_builtin(
    messages: Sequence[ChatMessage],
    special_tokens: Mapping[str, str],
    name: str = builtin_templates.DEFAULT_TEMPLATE,
    reason: str = "",
) -> RenderResult:
    """The prompt by one of our own templates; a notice tells `because`, if it was not asked for.

    Raises UsageError where there is none of that name.
    """
    rendered = _render_with_role_changes(
        builtin_templates.load_source(name), messages, special_tokens, None
    )
    notices = rendered.notices
    if reason:
        notices = (
            Notice(
                "warning",
                "template-fallback",
                f"{sanitize(reason, multiline=False)[:300].rstrip('.')}. Using {name} instead.",
                f"Choose another with --template: {', '.join(builtin_templates.STOP_STRINGS)}.",
            ),
            *notices,
        )
    return RenderResult(rendered.text, notices, name)


# --- roles ------------------------------------------------------------------------------


def _render_with_role_changes(
    source: str,
    messages: Sequence[ChatMessage],
    special_tokens: Mapping[str, str],
    enable_thinking: bool | None,
) -> RenderResult:
    """The chat as it is, or in fewer roles where the template refuses those."""
    try:
        return RenderResult(
            _render_text(source, messages, special_tokens, enable_thinking), (), "own"
        )
    except TemplateRaisedError as error:
        refused = error
    for change, what in _ROLE_CHANGES:
        changed = change(messages)
        if changed != list(messages):
            try:
                text = _render_text(source, changed, special_tokens, enable_thinking)
            except TemplateRaisedError:
                continue
            said = f"This model's chat template takes fewer roles: {what}."
            return RenderResult(text, (Notice("info", "template-roles", said),), "own")
    raise refused


def _merge_same_roles(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Neighbours of the same role as one."""
    found: list[ChatMessage] = []
    for message in messages:
        same = found and found[-1].role == message.role
        before = f"{found.pop().content}\n\n" if same else ""
        found.append(ChatMessage(message.role, before + message.content))
    return found


def _move_system_to_user(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """What the system says as the beginning of the first question after it."""
    return _merge_same_roles(
        [ChatMessage("user", m.content) if m.role == "system" else m for m in messages],
    )


_ROLE_CHANGES: tuple[tuple[Callable[[Sequence[ChatMessage]], list[ChatMessage]], str], ...] = (
    (_merge_same_roles, "messages of the same role were joined"),
    (_move_system_to_user, "the system prompt became part of the question"),
)


# --- the sandbox ------------------------------------------------------------------------


def _render_text(
    source: str,
    messages: Sequence[ChatMessage],
    special_tokens: Mapping[str, str],
    enable_thinking: bool | None,
) -> str:
    given: dict[str, Any] = (
        {} if enable_thinking is None else dict.fromkeys(_THINKING_VARIABLES, enable_thinking)
    )
    found = thinking_tags.detect_tags(source)
    pieces, length = [], 0
    for piece in _compile(source).generate(
        messages=[_template_message(message, found) for message in messages],
        tools=None,
        documents=None,
        add_generation_prompt=True,
        **special_tokens,
        **given,
    ):
        length += len(piece)
        if length > MAX_PROMPT_CHARS:
            raise ValueError(f"it makes more than {MAX_PROMPT_CHARS:,} characters")
        pieces.append(piece)
    text = "".join(pieces)
    if not text.strip():
        raise ValueError("it makes nothing of this chat")
    return text


def _template_message(
    message: ChatMessage, tags: thinking_tags.ThinkingTags | None
) -> dict[str, str]:
    """A message as templates know it: an answer's thinking under the names that they read."""
    thought, said = None, message.content
    if message.role == "assistant":
        thought, said = thinking_tags.split_thinking(said, tags)
    body = {"role": message.role, "content": said}
    return body | {"thinking": thought, "reasoning_content": thought} if thought else body


@lru_cache(maxsize=4)
def _compile(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationExtension, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _SafeDict(),
        "namespace": _SafeNamespace,
    }
    return environment.from_string(source)


def _raise_exception(message: str) -> None:
    raise TemplateRaisedError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class _GenerationExtension(Extension):
    """`{% generation %}`: marks an answer for training, and is nothing to us but its body."""

    tags = {"generation"}  # noqa: RUF012  jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return str(caller())


class _SafeDict:
    """`dict` without the type itself and what hangs on it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _SafeNamespace(Namespace):
    """A `namespace` that keeps no name with an underscore in front: nothing of Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` may be a template's name
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_attribute_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute_name(name)
        super().__setitem__(name, value)


def _check_attribute_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot keep {name!r}")
