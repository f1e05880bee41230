"""The formats in which models write tool calls: one table, a row each.

A format says which marks may begin a call, how the text behind a mark has to go on
(a reader), and what may follow a call. There are three kinds of readers:

| reader | for example | rows |
|---|---|---|
| an object with name and arguments | `<tool_call>{"name": "f", "arguments": {…}}` | Hermes, Mistral, Llama |
| a name, then the arguments as JSON | `[TOOL_CALLS]f[ARGS]{…}` | Mistral, Kimi, DeepSeek |
| a name, then a body in a notation of its own | `<function=f><parameter=a>1…` | Qwen Coder, GLM |

Which format a model has is not looked up here: `tool_detection.py` lets its template
write a call, and takes the row that reads it back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from localspec.models.chat_template import generic_tools
from localspec.models.chat_template.call_bodies import (
    BodyStyle,
    GemmaStyle,
    NestedTagStyle,
    PythonStyle,
    TaggedStyle,
)

MAX_HEAD = 256
"""Characters from a mark on, in which a name and what is before the arguments come."""


class CallReader(Struct, frozen=True):
    """How a call may begin. The text from a mark on has to match `head`."""

    head: re.Pattern[str]
    """Its group `name` is the tool's name; without the group, an object has it."""
    body: BodyStyle | None = None
    """The notation of the arguments; None is JSON."""
    is_keyed: bool = False
    """Whether an object's only key is the tool's name: `{"f": {…}}`."""


class ToolFormat(Struct, frozen=True):
    """One row of the table."""

    name: str
    marks: tuple[str, ...]
    readers: tuple[CallReader, ...]
    closers: tuple[str, ...] = ()
    """What may follow a call, and is no text of the answer."""
    inner_marks: tuple[str, ...] = ()
    """Further markers, within a call."""
    is_section: bool = False
    """Whether further calls may follow behind one mark, also without a comma."""
    begins_bare: bool = False
    """Whether an object at the beginning of an answer is a call, without a mark."""
    restart: str = ""
    """A closer after which the answer begins again, as far as `begins_bare` goes."""
    arguments_key: Literal["arguments", "parameters"] = "arguments"
    """The key of a forced call's arguments."""
    forced_prefix: str = ""
    """What a forced call begins with, before an object with name and arguments."""
    forces_list: bool = False
    forced_call: str = ""
    """What comes before the arguments of a forced call if only one tool is allowed.

    `{name}` is its name. Without `forced_prefix` the format cannot leave a choice.
    """
    glued_type: str = ""
    """The type of the arguments that a model may write right behind the name."""

    @property
    def is_keyed(self) -> bool:
        """Whether the only key of a call's object is the tool's name."""
        return any(reader.is_keyed for reader in self.readers)

    @property
    def any_mark(self) -> re.Pattern[str]:
        return _any_of(self.marks)

    @property
    def control_texts(self) -> tuple[str, ...]:
        """All markers of the format, which may be control tokens."""
        return self.marks + self.closers + self.inner_marks


@lru_cache
def _any_of(texts: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)))


_OPTIONAL_LIST = r"\s*+(?:\[\s*+)?(?=\{)"
_NAME = r"\s*+(?P<name>[\w.-]+)"


def _object(mark: str, *, is_keyed: bool = False) -> CallReader:
    head = re.compile(re.escape(mark) + _OPTIONAL_LIST)
    return CallReader(head, is_keyed=is_keyed)


def _named(before: str, after: str) -> CallReader:
    """A name between two patterns, and the arguments as a JSON object."""
    return CallReader(re.compile(rf"{before}{_NAME}{after}\s*+(?=\{{)"))


def _tagged(head: str, style: BodyStyle) -> CallReader:
    return CallReader(re.compile(head), style)


# --- notations between tags

_FUNCTION_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>")
_FUNCTION_HEAD = r"<function=(?P<name>[^<>\s]+)\s*>"
_FUNCTION_END = re.compile("</parameter>")

_FUNCTION = TaggedStyle(
    parameter=_FUNCTION_PARAMETER,
    value_end=_FUNCTION_END,
    end="</function>",
    followers=("</tool_call>", "<tool_call>", "<function="),
    has_line_feeds=True,
)
_SEED_FUNCTION = TaggedStyle(
    parameter=_FUNCTION_PARAMETER,
    value_end=_FUNCTION_END,
    end="</function>",
    followers=("</seed:tool_call>", "<seed:tool_call>", "<function="),
)
_KEYED = TaggedStyle(
    parameter=re.compile(
        r"<arg_key>((?:[^<]|<(?!/?arg_key>)){0,1024})</arg_key>\s*<arg_value>"
    ),
    value_end=re.compile("</arg_value>"),
    end="</tool_call>",
)
_HUNYUAN = TaggedStyle(
    parameter=re.compile(
        r"<arg_key:opensource>([^<]{0,1024})</arg_key:opensource>\s*"
        r"<arg_value:opensource>"
    ),
    value_end=re.compile("</arg_value:opensource>"),
    end="</tool_call:opensource>",
)
_MINICPM = TaggedStyle(
    parameter=re.compile(r'<param name="([^"<>]+)">'),
    value_end=re.compile("</param>"),
    end="</function>",
    has_cdata=True,
)
_MINIMAX_SEPARATOR = re.escape("]<]minimax[>[")
_MINIMAX_3 = NestedTagStyle("]<]minimax[>[", end="]<]minimax[>[</invoke>")
_KIMI_3 = TaggedStyle(
    parameter=re.compile(
        r'<\|open\|>argument key="([^"]+)" type="(?P<is_text>[^"]*)"<\|sep\|>'
    ),
    value_end=re.compile(r"<\|close\|>argument<\|sep\|>"),
    end="<|close|>call<|sep|>",
)


def _invoke_style(prefix: str) -> TaggedStyle:
    """`<invoke name="f"><parameter name="a">1</parameter></invoke>`, with a prefix."""
    escaped = re.escape(prefix)
    opening = rf'<{escaped}parameter name="([^"<>]+)"'
    is_text = r'(?:\s+string="(?P<is_text>true|false)")?'
    return TaggedStyle(
        parameter=re.compile(rf"{opening}{is_text}\s*>"),
        value_end=re.compile(f"</{escaped}parameter>"),
        end=f"</{prefix}invoke>",
    )


def _invoke_format(name: str, prefix: str, sections: tuple[str, ...]) -> ToolFormat:
    begin = "|".join(re.escape(f"<{section}>") for section in sections)
    head = (
        rf'(?:(?:{begin})\s*+)?<{re.escape(prefix)}invoke name="(?P<name>[^"<>]+)"\s*>'
    )
    marks = [f"<{section}>" for section in sections]
    closers = [f"</{section}>" for section in sections]
    return ToolFormat(
        name,
        marks=(*marks, f"<{prefix}invoke name="),
        readers=(_tagged(head, _invoke_style(prefix)), _object(marks[0])),
        closers=tuple(closers),
        forced_prefix=f"{marks[0]}\n",
    )


# --- the table

GPT_OSS = ToolFormat(
    "gpt-oss",
    # `HarmonyParser` leaves headers of calls in this form.
    marks=("<|channel|>",),
    inner_marks=("<|start|>", "<|constrain|>", "<|message|>", "<|end|>"),
    readers=(
        CallReader(
            re.compile(
                r"<\|channel\|>[^<]*?\bto=functions\.(?P<name>[\w.-]+)[^<]*+"
                r"<\|message\|>\s*+(?=\{)"
            )
        ),
    ),
    closers=("<|call|>",),
    forced_call=(
        "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
    ),
    glued_type="json",
)

_ROWS = (
    ToolFormat(
        "tags",
        marks=("<tool_call>", "<function="),
        inner_marks=(
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
            "</function>",
            "<parameter=",
            "</parameter>",
        ),
        readers=(
            _object("<tool_call>"),
            _tagged(rf"(?:<tool_call>\s*+)?{_FUNCTION_HEAD}", _FUNCTION),
            _tagged(
                rf"<tool_call>{_NAME}(?=\s*(?:<arg_key>|</tool_call>))",
                _KEYED,
            ),
        ),
        closers=("</tool_call>",),
        forced_prefix="<tool_call>\n",
    ),
    ToolFormat(
        "mistral",
        marks=("[TOOL_CALLS]",),
        inner_marks=("[CALL_ID]", "[ARGS]"),
        readers=(
            _object("[TOOL_CALLS]"),
            _named(r"\[TOOL_CALLS\]", r"\s*+(?:\[CALL_ID\][^\[{]*+)?(?:\[ARGS\])?"),
        ),
        forced_prefix="[TOOL_CALLS]",
        forces_list=True,
    ),
    GPT_OSS,
    ToolFormat(
        "gemma",
        marks=("<|tool_call>",),
        inner_marks=('<|"|>',),
        readers=(
            _tagged(
                r"<\|tool_call>\s*+call:(?P<name>[\w.-]+)(?=\{)",
                GemmaStyle("<tool_call|>"),
            ),
            _object("<|tool_call>"),
        ),
        closers=("<tool_call|>",),
        forced_prefix="<|tool_call>",
    ),
    ToolFormat(
        "python",
        marks=("<|tool_call_start|>",),
        readers=(
            _object("<|tool_call_start|>"),
            _tagged(
                r"<\|tool_call_start\|>(?=\s*+\[?\s*+[A-Za-z_][\w.]*\()",
                PythonStyle("<|tool_call_end|>"),
            ),
        ),
        closers=("<|tool_call_end|>",),
        forced_prefix="<|tool_call_start|>",
    ),
    ToolFormat(
        "deepseek",
        marks=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
        inner_marks=("<｜tool▁sep｜>",),
        readers=(
            _named(
                r"(?:<｜tool▁calls▁begin｜>\s*+)?<｜tool▁call▁begin｜>"
                r"(?:\s*+function<｜tool▁sep｜>)?",
                r"\s*+(?:<｜tool▁sep｜>)?\s*+(?:```json)?",
            ),
            _object("<｜tool▁calls▁begin｜>"),
        ),
        closers=("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        forced_prefix="<｜tool▁calls▁begin｜>",
    ),
    _invoke_format(
        "dsml", "｜DSML｜", ("｜DSML｜function_calls", "｜DSML｜tool_calls")
    ),
    ToolFormat(
        "kimi",
        marks=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        inner_marks=("<|tool_call_argument_begin|>",),
        readers=(
            _named(
                r"(?:<\|tool_calls_section_begin\|>\s*+)?<\|tool_call_begin\|>"
                r"\s*+(?:functions\.)?",
                r"(?::\d+)?\s*+<\|tool_call_argument_begin\|>",
            ),
            _object("<|tool_calls_section_begin|>"),
        ),
        closers=("<|tool_call_end|>", "<|tool_calls_section_end|>"),
        forced_prefix="<|tool_calls_section_begin|>",
    ),
    ToolFormat(
        "kimi3",
        marks=("<|open|>tools<|sep|>", '<|open|>call tool="'),
        inner_marks=("<|open|>call", "<|close|>call<|sep|>"),
        readers=(
            _tagged(
                r'(?:<\|open\|>tools<\|sep\|>\s*+)?<\|open\|>call tool="(?P<name>[^"<>]+)"'
                r'(?: index="\d+")?<\|sep\|>',
                _KIMI_3,
            ),
            _object("<|open|>tools<|sep|>"),
        ),
        closers=("<|close|>tools<|sep|>",),
        forced_prefix="<|open|>tools<|sep|>",
    ),
    _invoke_format("minimax", "", ("minimax:tool_call",)),
    ToolFormat(
        "minimax3",
        marks=("]<]minimax[>[<tool_call>", "]<]minimax[>[<invoke name="),
        inner_marks=("]<]minimax[>[",),
        readers=(
            _tagged(
                rf"(?:{_MINIMAX_SEPARATOR}<tool_call>\s*+)?"
                rf'{_MINIMAX_SEPARATOR}<invoke name="(?P<name>[^"<>]+)">',
                _MINIMAX_3,
            ),
            _object("]<]minimax[>[<tool_call>"),
        ),
        closers=("]<]minimax[>[</tool_call>",),
        forced_prefix="]<]minimax[>[<tool_call>",
    ),
    ToolFormat(
        "seed",
        marks=("<seed:tool_call>",),
        readers=(
            _tagged(rf"<seed:tool_call>\s*+{_FUNCTION_HEAD}", _SEED_FUNCTION),
            _object("<seed:tool_call>"),
        ),
        closers=("</seed:tool_call>",),
        forced_prefix="<seed:tool_call>\n",
    ),
    ToolFormat(
        "hunyuan",
        marks=("<tool_calls:opensource>", "<tool_call:opensource>"),
        inner_marks=(
            "<tool_sep:opensource>",
            "<arg_key:opensource>",
            "</arg_key:opensource>",
            "<arg_value:opensource>",
            "</arg_value:opensource>",
            "</tool_call:opensource>",
        ),
        readers=(
            _tagged(
                r"(?:<tool_calls:opensource>\s*+)?<tool_call:opensource>"
                rf"{_NAME}\s*+<tool_sep:opensource>",
                _HUNYUAN,
            ),
            _object("<tool_calls:opensource>"),
        ),
        closers=("</tool_calls:opensource>",),
        forced_prefix="<tool_calls:opensource>",
    ),
    ToolFormat(
        "minicpm",
        marks=('<function name="',),
        readers=(
            _named('<function name="', '">'),
            _tagged(r'<function name="(?P<name>[^"<>]+)">(?=\s*+<)', _MINICPM),
            _object('<function name="'),
        ),
        closers=("</function>",),
        forced_prefix='<function name="',
        forced_call='<function name="{name}">',
    ),
    ToolFormat(
        "functionary",
        marks=("<function=",),
        readers=(_named("<function=", ">"), _object("<function=")),
        closers=("</function>",),
        forced_prefix="<function=",
        forced_call="<function={name}>",
    ),
    ToolFormat(
        "solar",
        marks=("<|tool_calls|>", "<|tool_call:begin|>"),
        inner_marks=("<|tool_call:name|>", "<|tool_call:args|>"),
        readers=(
            _named(
                r"(?:<\|tool_calls\|>\s*+)?<\|tool_call:begin\|>[^<]*+"
                r"<\|tool_call:name\|>",
                r"\s*+<\|tool_call:args\|>",
            ),
            _object("<|tool_calls|>"),
        ),
        closers=("<|tool_call:end|>", "<|calls|>"),
        forced_prefix="<|tool_calls|>",
    ),
    ToolFormat(
        "tool_calls",
        marks=("<tool_calls>",),
        readers=(_object("<tool_calls>"),),
        closers=("</tool_calls>",),
        is_section=True,
        forced_prefix="<tool_calls>",
        forces_list=True,
    ),
    ToolFormat(
        "nemotron",
        marks=("<TOOLCALL>",),
        readers=(_object("<TOOLCALL>"),),
        closers=("</TOOLCALL>",),
        forced_prefix="<TOOLCALL>",
        forces_list=True,
    ),
    ToolFormat(
        "cohere",
        marks=("<|START_ACTION|>",),
        readers=(_object("<|START_ACTION|>"),),
        closers=("<|END_ACTION|>",),
        forced_prefix="<|START_ACTION|>",
        forces_list=True,
    ),
    ToolFormat(
        "apertus",
        marks=("<|tools_prefix|>",),
        readers=(_object("<|tools_prefix|>", is_keyed=True),),
        closers=("<|tools_suffix|>",),
        forced_prefix="<|tools_prefix|>",
        forces_list=True,
    ),
    ToolFormat(
        "firefunction",
        marks=("functools[",),
        readers=(CallReader(re.compile(r"functools\[\s*+(?=\{)")),),
        closers=("]",),
        forced_prefix="functools",
        forces_list=True,
    ),
    ToolFormat(
        "gigachat",
        marks=("<|function_call|>", "function call<|role_sep|>"),
        readers=(_object("<|function_call|>"), _object("function call<|role_sep|>")),
        forced_prefix="<|function_call|>",
    ),
    # Last, as its calls have no mark of their own.
    ToolFormat(
        "llama3",
        marks=("<|python_tag|>",),
        readers=(_object("<|python_tag|>"), _object("")),
        closers=(";",),
        begins_bare=True,
        restart=";",
        arguments_key="parameters",
    ),
)


GENERIC = ToolFormat(
    generic_tools.FORMAT,
    marks=("<tool_call>",),
    readers=(_object("<tool_call>"),),
    closers=("</tool_call>",),
    forced_prefix="<tool_call>\n",
)
"""Of models whose template has none: `generic_tools.py` asks them for calls in it.

No template is taken to have it: it is a part of `tags`, which reads as much.
"""


def _by_name(rows: Iterable[ToolFormat]) -> dict[str, ToolFormat]:
    return {row.name: row for row in rows}


TOOL_FORMATS = _by_name((*_ROWS, GENERIC))
"""Every format, in the order in which detection tries them."""
