"""How templates write tool calls, to the character: one table, a row for each way.

`tool_formats.py` reads what models write, with their mistakes. A grammar that holds a
model to exact calls needs the opposite, the one text that a call has. It is the text
that the model's own template writes, so that an earlier call in a prompt has the tokens
with which it was generated. A layout is that text with placeholders:

| placeholder | stands for |
|---|---|
| `$NAME` | the tool's name |
| `$ARGUMENTS` | its arguments, in the layout's notation |
| `$KEY` | behind a value: the argument's name (MiniMax M3) |
| `$SPACE` | white space: `fit_layout` puts in what the template writes; between two calls any |
| `$ID`, `$LABEL`, `$NUMBER` | what the model makes up: an id of nine characters, any id, the number of a call |
| `$IDFIELD` | an id as a further field, which an answer may lack (Apriel) |
| `$TYPE` | the JSON type of an argument (Kimi K3) |
| `$HEADER` | the rest of a message's header (gpt-oss) |

For example, Hermes's layout has the mark `<tool_call>` and the call
`$SPACE{"name": "$NAME", "arguments": $ARGUMENTS}$SPACE</tool_call>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

NAME = "$NAME"
ARGUMENTS = "$ARGUMENTS"
SPACE = "$SPACE"
KEY = "$KEY"
PATTERNS: Mapping[str, str] = {
    SPACE: "[ \\n]{1,8}",
    "$ID": "[a-zA-Z0-9]{9}",
    "$LABEL": "[a-zA-Z0-9_-]{1,40}",
    "$NUMBER": "[0-9]{1,3}",
    "$IDFIELD": ', "id": "[a-zA-Z0-9_-]{1,40}"',
}
"""Placeholders for what the model makes up, and their regular expressions."""
OPTIONAL = frozenset({SPACE, "$IDFIELD"})
"""Those that a call may lack."""
CHOICES: Mapping[str, tuple[str, ...]] = {
    "$TYPE": ("number", "boolean", "object", "array", "null"),
    "$HEADER": (
        "",
        " json",
        " <|constrain|>json",
        "<|channel|>commentary",
        "<|channel|>commentary json",
        "<|channel|>commentary <|constrain|>json",
    ),
}
"""Placeholders for one of several texts."""
PLACEHOLDER = re.compile(r"(\$[A-Z]+)")


class JsonArguments(Struct, frozen=True):
    """A JSON object with the separators of the template."""

    item_separator: str = ", "
    key_separator: str = ": "


class TagArguments(Struct, frozen=True):
    """Each argument between tags, such as `<parameter=city>Rome</parameter>`.

    A text is written as it is, up to the closing tag. All else is JSON; for true and
    false some templates write Python's words.
    """

    before_key: str
    before_text: str
    """Between the key and a text."""
    after_value: str
    before_json: str = ""
    """Between the key and JSON; empty if it is the same as before a text."""
    closing_tag: str = ""
    """The tag that no text has; empty if `after_value` is no more than this tag."""

    @property
    def tags(self) -> tuple[str, str]:
        """What no text between tags may hold."""
        closing_tag = self.closing_tag or self.after_value.replace(SPACE, "").strip()
        return self.before_key.strip(), closing_tag


class NotatedArguments(Struct, frozen=True):
    """A notation of its own, which `spec/constraints/notations.py` writes."""

    notation: Literal["gemma", "python"]


ArgumentsLayout = JsonArguments | TagArguments | NotatedArguments


class CallLayout(Struct, frozen=True):
    """The text of calls behind one mark."""

    mark: str
    """The text that opens a call. With `$NAME`, each tool has a mark of its own."""
    call: str
    opening: str = ""
    """Between the mark and the first call."""
    separator: str | None = None
    """Between two calls; None if each call has its own mark."""
    ending: str = ""
    """Behind the last call."""
    arguments: ArgumentsLayout = JsonArguments()
    place: Literal["answer", "start", "header"] = "answer"
    """Where a mark opens a call: anywhere in an answer, only at its beginning, or in the
    header of a message.
    """

    def marks(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The marks, and the tools that may be called behind each."""
        if NAME not in self.mark:
            return {self.mark: tuple(names)}
        return {self.mark.replace(NAME, name): (name,) for name in names}

    def with_mark(self) -> CallLayout:
        """The layout of calls that begin with the mark itself."""
        if self.place == "header":
            # Only there can an answer begin with a header that has this text.
            return replace(self, opening=f"<|channel|>commentary {self.mark}")
        if NAME in self.mark:
            return replace(self, call=f"{self.mark}{self.call}")
        return replace(self, opening=f"{self.mark}{self.opening}")


_MINIMAX_3 = "]<]minimax[>["
_OBJECT = f'{{"name": "{NAME}", "arguments": {ARGUMENTS}}}'


def _list_layout(mark: str, *, ending: str, call: str = _OBJECT) -> CallLayout:
    """A JSON list of calls behind the mark: `[{"name": "f", "arguments": {}}]`."""
    return CallLayout(
        mark,
        call=call,
        opening=f"{SPACE}[{SPACE}",
        separator=f",{SPACE}",
        ending=f"{SPACE}]{ending}",
    )


def _function_layout(mark: str, *, closer: str, value_space: str) -> CallLayout:
    """`<function=f>` with a `<parameter=…>` for each argument, between two tags.

    `value_space` is what the template writes on both sides of a value: a line feed, or
    nothing.
    """
    return CallLayout(
        mark,
        call=(
            f"{SPACE}<function={NAME}>{SPACE}{ARGUMENTS}{SPACE}</function>{SPACE}{closer}"
        ),
        arguments=TagArguments(
            before_key="<parameter=",
            before_text=f">{value_space}",
            after_value=f"{value_space}</parameter>{SPACE}",
        ),
    )


def _invoke_layout(
    section: str, *, prefix: str = "", of_text: str = "", of_json: str = ""
) -> CallLayout:
    """`<invoke name="f">`, with a prefix before each tag's name.

    `of_text` and `of_json` are the attributes of an argument that is a text, or JSON:
    DeepSeek writes `<｜DSML｜parameter name="city" string="true">Rome`.
    """
    return CallLayout(
        f"<{section}>",
        opening=SPACE,
        call=(
            f'<{prefix}invoke name="{NAME}">{SPACE}{ARGUMENTS}{SPACE}</{prefix}invoke>{SPACE}'
        ),
        separator="",
        ending=f"</{section}>",
        arguments=TagArguments(
            before_key=f'<{prefix}parameter name="',
            before_text=f'"{of_text}>',
            before_json=f'"{of_json}>',
            after_value=f"</{prefix}parameter>{SPACE}",
        ),
    )


def _param_layout(*, before_value: str, after_value: str) -> CallLayout:
    """MiniCPM's `<param name="a">1</param>`."""
    return CallLayout(
        '<function name="',
        f'{NAME}">{SPACE}{ARGUMENTS}</function>',
        arguments=TagArguments(
            before_key='<param name="',
            before_text=f'">{before_value}',
            after_value=f"{after_value}</param>{SPACE}",
            closing_tag="</param>",
        ),
    )


def _dsml_layout(section: str) -> CallLayout:
    """DeepSeek's `<｜DSML｜invoke name="f">`."""
    return _invoke_layout(
        f"｜DSML｜{section}",
        prefix="｜DSML｜",
        of_text=' string="true"',
        of_json=' string="false"',
    )


LAYOUTS: Mapping[str, tuple[CallLayout, ...]] = {
    "tags": (
        CallLayout("<tool_call>", f"{SPACE}{_OBJECT}{SPACE}</tool_call>"),
        _function_layout("<tool_call>", closer="</tool_call>", value_space="\n"),
        _function_layout("<tool_call>", closer="</tool_call>", value_space=""),
        CallLayout(
            "<tool_call>",
            f"{NAME}{SPACE}{ARGUMENTS}{SPACE}</tool_call>",
            arguments=TagArguments(
                before_key="<arg_key>",
                before_text=f"</arg_key>{SPACE}<arg_value>",
                after_value=f"</arg_value>{SPACE}",
            ),
        ),
    ),
    "mistral": (
        CallLayout("[TOOL_CALLS]", f"{NAME}[CALL_ID]$ID[ARGS]{ARGUMENTS}"),
        CallLayout("[TOOL_CALLS]", f"{NAME}[ARGS]{ARGUMENTS}"),
        CallLayout("[TOOL_CALLS]", f"{NAME}{ARGUMENTS}"),
        _list_layout(
            "[TOOL_CALLS]",
            ending="",
            call=f'{{"name": "{NAME}", "arguments": {ARGUMENTS}, "id": "$ID"}}',
        ),
        _list_layout("[TOOL_CALLS]", ending=""),
    ),
    "gpt-oss": (
        CallLayout(
            "to=functions.",
            f"{NAME}$HEADER<|message|>{ARGUMENTS}<|call|>",
            place="header",
        ),
    ),
    "gemma": (
        CallLayout(
            "<|tool_call>",
            f"call:{NAME}{ARGUMENTS}<tool_call|>",
            arguments=NotatedArguments("gemma"),
        ),
    ),
    "python": (
        CallLayout(
            "<|tool_call_start|>",
            f"{NAME}({ARGUMENTS})",
            opening="[",
            separator=", ",
            ending="]<|tool_call_end|>",
            arguments=NotatedArguments("python"),
        ),
    ),
    "deepseek": (
        CallLayout(
            "<｜tool▁calls▁begin｜>",
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{NAME}{SPACE}```json{SPACE}"
            f"{ARGUMENTS}{SPACE}```<｜tool▁call▁end｜>",
            opening=SPACE,
            separator=SPACE,
            ending=f"{SPACE}<｜tool▁calls▁end｜>",
        ),
        CallLayout(
            "<｜tool▁calls▁begin｜>",
            f"<｜tool▁call▁begin｜>{NAME}<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>",
            separator="",
            ending="<｜tool▁calls▁end｜>",
        ),
    ),
    "dsml": (_dsml_layout("function_calls"), _dsml_layout("tool_calls")),
    "kimi": (
        CallLayout(
            "<|tool_calls_section_begin|>",
            f"<|tool_call_begin|>functions.{NAME}:$NUMBER"
            f"<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|>",
            opening=SPACE,
            separator=SPACE,
            ending=f"{SPACE}<|tool_calls_section_end|>",
        ),
    ),
    "kimi3": (
        CallLayout(
            "<|open|>tools<|sep|>",
            f'<|open|>call tool="{NAME}" index="$NUMBER"<|sep|>{ARGUMENTS}'
            "<|close|>call<|sep|>",
            separator="",
            ending="<|close|>tools<|sep|>",
            arguments=TagArguments(
                before_key='<|open|>argument key="',
                before_text='" type="string"<|sep|>',
                before_json='" type="$TYPE"<|sep|>',
                after_value="<|close|>argument<|sep|>",
            ),
        ),
    ),
    "minimax": (_invoke_layout("minimax:tool_call"),),
    "minimax3": (
        CallLayout(
            f"{_MINIMAX_3}<tool_call>",
            f'{_MINIMAX_3}<invoke name="{NAME}">{ARGUMENTS}{_MINIMAX_3}</invoke>',
            opening=SPACE,
            separator=SPACE,
            ending=f"{SPACE}{_MINIMAX_3}</tool_call>",
            # The template writes lists and objects as tags in tags, in which `12` has no
            # type. As JSON they are read, too.
            arguments=TagArguments(
                before_key=f"{_MINIMAX_3}<",
                before_text=">",
                after_value=f"{_MINIMAX_3}</{KEY}>",
                closing_tag=_MINIMAX_3,
            ),
        ),
    ),
    "seed": (
        _function_layout(
            "<seed:tool_call>", closer="</seed:tool_call>", value_space=""
        ),
        _function_layout(
            "<seed:tool_call>", closer="</seed:tool_call>", value_space="\n"
        ),
    ),
    "hunyuan": (
        CallLayout(
            "<tool_calls:opensource>",
            f"<tool_call:opensource>{NAME}<tool_sep:opensource>{SPACE}{ARGUMENTS}"
            f"{SPACE}</tool_call:opensource>",
            opening=SPACE,
            separator=SPACE,
            ending=f"{SPACE}</tool_calls:opensource>",
            arguments=TagArguments(
                before_key="<arg_key:opensource>",
                before_text=f"</arg_key:opensource>{SPACE}<arg_value:opensource>",
                after_value=f"</arg_value:opensource>{SPACE}",
            ),
        ),
    ),
    "minicpm": (
        _param_layout(before_value="", after_value=""),
        _param_layout(before_value="<![CDATA[", after_value="]]>"),
        CallLayout('<function name="', f'{NAME}">{ARGUMENTS}</function>'),
    ),
    "functionary": (CallLayout("<function=", f"{NAME}>{ARGUMENTS}</function>"),),
    "solar": (
        CallLayout(
            "<|tool_calls|>",
            f"<|tool_call:begin|>$LABEL<|tool_call:name|>{NAME}<|tool_call:args|>"
            f"{ARGUMENTS}<|tool_call:end|>",
            opening=SPACE,
            separator=SPACE,
            ending=f"{SPACE}<|calls|>",
        ),
    ),
    "tool_calls": (
        CallLayout(
            "<tool_calls>",
            _OBJECT,
            opening=SPACE,
            separator="\n",
            ending=f"{SPACE}</tool_calls>",
        ),
        _list_layout(
            "<tool_calls>",
            ending="</tool_calls>",
            call=f'{{"name": "{NAME}", "arguments": {ARGUMENTS}$IDFIELD}}',
        ),
    ),
    "nemotron": (_list_layout("<TOOLCALL>", ending="</TOOLCALL>"),),
    "cohere": (
        _list_layout(
            "<|START_ACTION|>",
            ending="<|END_ACTION|>",
            call=f'{{"tool_call_id": "$NUMBER", "tool_name": "{NAME}", '
            f'"parameters": {ARGUMENTS}}}',
        ),
    ),
    "apertus": (
        _list_layout(
            "<|tools_prefix|>",
            ending="<|tools_suffix|>",
            call=f'{{"{NAME}": {ARGUMENTS}}}',
        ),
    ),
    "firefunction": (
        CallLayout(
            "functools[", _OBJECT, opening=SPACE, separator=f",{SPACE}", ending="]"
        ),
    ),
    "gigachat": (
        CallLayout("<|function_call|>", f"{SPACE}{_OBJECT}"),
        CallLayout("function call<|role_sep|>", f"{SPACE}{_OBJECT}"),
    ),
    "llama3": (
        CallLayout(
            f'{{"name": "{NAME}", "parameters": ', f"{ARGUMENTS}}}", place="start"
        ),
    ),
    "generic": (CallLayout("<tool_call>", f"\n{_OBJECT}\n</tool_call>"),),
}
"""The layouts of each format. Of several, a template has the first that fits."""

GENERIC_LAYOUT = LAYOUTS["generic"][0]


def find_layout(
    format_name: str, text: str, name: str, arguments: Mapping[str, Any]
) -> CallLayout | None:
    """The layout by which a template has written a call; None if there is none.

    `text` holds the call of `name` with `arguments`: texts, numbers and booleans.
    """
    for layout in LAYOUTS.get(format_name, ()):
        if layout.place == "header":
            # `text` is without headers, and gpt-oss has one layout.
            return layout
        fitted = fit_layout(layout, text, name, arguments)
        if fitted is not None:
            return fitted
    return None


def fit_layout(
    layout: CallLayout, text: str, name: str, arguments: Mapping[str, Any]
) -> CallLayout | None:
    """The layout with the white space of a text in place of `$SPACE`.

    None if the text does not hold a call in this layout.
    """
    fit = _LayoutFit(layout, name, arguments)
    found = re.search(fit.pattern, text, re.DOTALL)
    if found is None:
        return None
    return fit.fill(found)


class _LayoutFit:
    """A regular expression of one call in a layout, with a group for each `$SPACE`.

    A text that occurs several times, such as the one between an argument's key and its
    value, has the same space each time.

    For example, Hermes's layout begins with `<tool_call>$SPACE{"name": `. Its pattern
    begins with `<tool_call>(?P<before0>\\s*)\\{"name": `. A template that writes a line
    feed there gives `before0` the text "\\n", and `fill` puts it in place of `$SPACE`.
    """

    def __init__(
        self, layout: CallLayout, name: str, arguments: Mapping[str, Any]
    ) -> None:
        self._layout = layout
        self._name = name
        self._groups: dict[str, list[str]] = {}
        before, _, after = layout.call.partition(ARGUMENTS)
        self.pattern = "".join([
            self._part("mark", layout.mark),
            self._part("opening", layout.opening),
            self._part("before", before),
            self._arguments(arguments),
            self._part("after", after),
            self._part("ending", layout.ending),
        ])  # fmt: skip

    def _part(self, field: str, text: str) -> str:
        """The pattern of a field's text; from its second occurrence on, a repetition."""
        is_first = field not in self._groups
        groups = self._groups.setdefault(field, [])
        parts: list[str] = []
        n_spaces = 0
        for piece in PLACEHOLDER.split(text):
            if piece == SPACE:
                group = f"{field}{n_spaces}"
                n_spaces += 1
                if is_first:
                    groups.append(group)
                    parts.append(rf"(?P<{group}>\s*)")
                else:
                    parts.append(f"(?P={group})")
            elif piece in OPTIONAL:
                parts.append(f"(?:{PATTERNS[piece]})?")
            elif piece in PATTERNS or piece in CHOICES:
                # The id of a probe is none that the model would make up.
                parts.append(r"[\w.-]+")
            elif piece == NAME:
                parts.append(re.escape(self._name))
            else:
                parts.append(re.escape(piece))
        return "".join(parts)

    def _arguments(self, arguments: Mapping[str, Any]) -> str:
        form = self._layout.arguments
        if isinstance(form, JsonArguments):
            return _json_pattern(arguments)
        if isinstance(form, NotatedArguments):
            return _notation_pattern(form, arguments)
        parts: list[str] = []
        for key, value in arguments.items():
            is_text = isinstance(value, str)
            parts.append(self._part("before_key", form.before_key))
            parts.append(re.escape(key))
            if is_text or not form.before_json:
                parts.append(self._part("before_text", form.before_text))
            else:
                parts.append(self._part("before_json", form.before_json))
            parts.append(_value_pattern(value))
            after_value = form.after_value.replace(KEY, key)
            parts.append(self._part("after_value", after_value))
        return "".join(parts)

    def fill(self, found: re.Match[str]) -> CallLayout:
        layout = self._layout
        before, _, after = layout.call.partition(ARGUMENTS)
        form = layout.arguments
        if isinstance(form, JsonArguments):
            form = JsonArguments(found["item_separator"], found["key_separator"])
        elif isinstance(form, TagArguments):
            form = replace(
                form,
                before_text=self._fill("before_text", form.before_text, found),
                before_json=self._fill("before_json", form.before_json, found),
                after_value=self._fill("after_value", form.after_value, found),
            )
        before = self._fill("before", before, found)
        after = self._fill("after", after, found)
        return replace(
            layout,
            call=f"{before}{ARGUMENTS}{after}",
            opening=self._fill("opening", layout.opening, found),
            ending=self._fill("ending", layout.ending, found),
            arguments=form,
        )

    def _fill(self, field: str, text: str, found: re.Match[str]) -> str:
        for group in self._groups.get(field, ()):
            text = text.replace(SPACE, found[group], 1)
        return text


def _value_pattern(value: Any) -> str:
    if isinstance(value, bool):
        # Some templates write `True`, as Python does.
        return f"(?i:{json.dumps(value)})"
    if isinstance(value, str):
        return re.escape(value)
    return re.escape(json.dumps(value))


def _json_pattern(arguments: Mapping[str, Any]) -> str:
    """An object, and the separators in it as the groups of their names."""
    parts: list[str] = []
    for i, (key, value) in enumerate(arguments.items()):
        item_separator = r"(?P<item_separator>,\s?)"
        key_separator = r"(?P<key_separator>:\s?)"
        if i == 0:
            item_separator = ""
        else:
            key_separator = "(?P=key_separator)"
        if i > 1:
            item_separator = "(?P=item_separator)"
        key_text = re.escape(json.dumps(key))
        value_text = re.escape(json.dumps(value))
        parts.append(f"{item_separator}{key_text}{key_separator}{value_text}")
    return rf"\{{{''.join(parts)}\}}"


def _notation_pattern(form: NotatedArguments, arguments: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for key, value in arguments.items():
        written = _value_pattern(value)
        if form.notation == "gemma":
            if isinstance(value, str):
                written = rf'<\|"\|>{written}<\|"\|>'
            parts.append(f"{re.escape(key)}:{written}")
        else:
            if isinstance(value, str):
                written = f"(?:'{written}'|\"{written}\")"
            parts.append(f"{re.escape(key)}={written}")
    if form.notation == "gemma":
        return rf"\{{{','.join(parts)}\}}"
    return ", ".join(parts)
