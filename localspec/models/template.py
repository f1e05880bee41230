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

from localspec.clean import clean
from localspec.models.chat import fallbacks, thinking
from localspec.protocol.events import Notice
from localspec.protocol.wire import Message, Rendered

LONGEST_TEXT = 16 * 1024 * 1024
"""Characters that a template may make."""

_THINK = ("enable_thinking", "thinking", "reasoning")
"""What templates call it."""


class Refused(jinja2.TemplateError):
    """A template called `raise_exception`."""


def render(
    source: str,
    messages: Sequence[Message],
    tokens: Mapping[str, str],
    think: bool | None = None,
) -> Rendered:
    """The prompt by a model's own template; by the default one where that does not work.

    `tokens` are the texts of special tokens: bos_token, eos_token, …
    """
    try:
        return _with_roles(source, messages, tokens, think)
    except Refused as error:
        why = f"refuses this chat: {error}"
    except MemoryError:
        why = "does not work: it needs too much memory"
    except Exception as error:  # a hostile program may raise anything
        why = f"does not work: {type(error).__name__}: {error}"
    return fallback(messages, tokens, because=f"The model's chat template {why}")


def fallback(
    messages: Sequence[Message],
    tokens: Mapping[str, str],
    name: str = fallbacks.DEFAULT,
    because: str = "",
) -> Rendered:
    """The prompt by one of our own templates; a notice tells `because`, if it was not asked for.

    Raises UsageError where there is none of that name.
    """
    rendered = _with_roles(fallbacks.source(name), messages, tokens, None)
    notices = rendered.notices
    if because:
        notices = (
            Notice(
                "warning",
                "template-fallback",
                f"{clean(because, multiline=False)[:300].rstrip('.')}. Using {name} instead.",
                f"Choose another with --template: {', '.join(fallbacks.STOPS)}.",
            ),
            *notices,
        )
    return Rendered(rendered.text, notices, name)


# --- roles ------------------------------------------------------------------------------


def _with_roles(
    source: str, messages: Sequence[Message], tokens: Mapping[str, str], think: bool | None
) -> Rendered:
    """The chat as it is, or in fewer roles where the template refuses those."""
    try:
        return Rendered(_text(source, messages, tokens, think), (), "own")
    except Refused as error:
        refused = error
    for change, what in _CHANGES:
        changed = change(messages)
        if changed != list(messages):
            try:
                text = _text(source, changed, tokens, think)
            except Refused:
                continue
            said = f"This model's chat template takes fewer roles: {what}."
            return Rendered(text, (Notice("info", "template-roles", said),), "own")
    raise refused


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Neighbours of the same role as one."""
    found: list[Message] = []
    for message in messages:
        same = found and found[-1].role == message.role
        before = f"{found.pop().content}\n\n" if same else ""
        found.append(Message(message.role, before + message.content))
    return found


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """What the system says as the beginning of the first question after it."""
    return _joined(
        [Message("user", m.content) if m.role == "system" else m for m in messages],
    )


_CHANGES: tuple[tuple[Callable[[Sequence[Message]], list[Message]], str], ...] = (
    (_joined, "messages of the same role were joined"),
    (_without_system, "the system prompt became part of the question"),
)


# --- the sandbox ------------------------------------------------------------------------


def _text(
    source: str, messages: Sequence[Message], tokens: Mapping[str, str], think: bool | None
) -> str:
    given: dict[str, Any] = {} if think is None else dict.fromkeys(_THINK, think)
    found = thinking.markers(source)
    pieces, length = [], 0
    for piece in _compiled(source).generate(
        messages=[_plain(message, found) for message in messages],
        tools=None,
        documents=None,
        add_generation_prompt=True,
        **tokens,
        **given,
    ):
        length += len(piece)
        if length > LONGEST_TEXT:
            raise ValueError(f"it makes more than {LONGEST_TEXT:,} characters")
        pieces.append(piece)
    text = "".join(pieces)
    if not text.strip():
        raise ValueError("it makes nothing of this chat")
    return text


def _plain(message: Message, found: thinking.Markers | None) -> dict[str, str]:
    """A message as templates know it: an answer's thinking under the names that they read."""
    thought, said = None, message.content
    if message.role == "assistant":
        thought, said = thinking.split(said, found)
    body = {"role": message.role, "content": said}
    return body | {"thinking": thought, "reasoning_content": thought} if thought else body


@lru_cache(maxsize=4)
def _compiled(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": _now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment.from_string(source)


def _refuse(message: str) -> None:
    raise Refused(str(message))


def _now(form: str) -> str:
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


class _Generation(Extension):
    """`{% generation %}`: marks an answer for training, and is nothing to us but its body."""

    tags = {"generation"}  # noqa: RUF012  jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return str(caller())


class _Dict:
    """`dict` without the type itself and what hangs on it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """A `namespace` that keeps no name with an underscore in front: nothing of Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` may be a template's name
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot keep {name!r}")
