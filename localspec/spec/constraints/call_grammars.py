"""Writes the grammar of tool calls, in llguidance's Lark, from a layout and schemas.

A call is the text of its `CallLayout`, with the name of an offered tool and arguments
that satisfy the tool's JSON Schema. Example, with Hermes's layout and one tool
`get_time`, without the terms that are empty here:

    start: call
    call: call0
    call0: "\\n{\\"name\\": \\"get_time\\", \\"arguments\\": " arguments0 "}\\n</tool_call>"
    arguments0: %json {"type": "object", …}

Between tags, only what is no text is JSON. With `<parameter=city>`:

    arguments0: argument0_0 argument0_1?
    argument0_0: "<parameter=city>\\n" TEXT
    TEXT: (/(?s:.*)/ & ~/(?s:.*)(?:<parameter=|<\\/parameter>)(?s:.*)/) "\\n</parameter>\\n"
    argument0_1: "<parameter=days>\\n" value0_1 "\\n</parameter>\\n"
    value0_1: %json {"type": "integer", …}

A text ends at the first closing tag, at which the parser of the answer
(`tool_formats.py`) ends it, too. A rule's number is that of its tool, and after it that of
the argument.

If a schema cannot be written, the tool's arguments follow the layout alone: the tool is
one of `CallGrammarText.loose`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from localspec.models.chat_template.argument_types import ArgumentTypes
from localspec.models.chat_template.call_layouts import (
    ARGUMENTS,
    CHOICES,
    KEY,
    NAME,
    OPTIONAL,
    PATTERNS,
    PLACEHOLDER,
    CallLayout,
    JsonArguments,
    NotatedArguments,
    TagArguments,
)
from localspec.models.chat_template.schema_references import (
    BudgetExceededError,
    SchemaReferences,
    WorkBudget,
)
from localspec.spec.constraints.lark import (
    ControlTexts,
    LarkRules,
    can_be_empty,
    escape_regex,
)
from localspec.spec.constraints.notations import (
    NOTATIONS,
    NotationWriter,
    UnwritableSchemaError,
    is_python_name,
)

_PLAIN_NAME = re.compile(r"[\w.-]+", re.ASCII)
_KEY = re.compile(r"[^<>\"=\s]{1,256}")
_ANY_KEY = r'/[^<>"=\s]{1,64}/'
_MAX_LENGTH = 2_000
"""A larger `maxLength` of a text between tags is ignored: each character is a state."""
_MAX_DEFINITION_CHARS = 512 * 1024
"""The most that the schemas of a tool's arguments may have together.

Each argument that refers to definitions has a copy of them all.
"""
_ROOT_KEYWORDS = frozenset({
    "type", "properties", "required", "additionalProperties", "$defs", "definitions",
    "$schema", "$id", "title", "description", "default", "examples", "x-guidance", "strict",
})  # fmt: skip
"""The keywords that a tool's schema may have at its top: others are not written."""
_MAX_SCHEMA_STEPS = 20_000
_UNUSABLE = (
    UnwritableSchemaError,
    BudgetExceededError,
    RecursionError,
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
)
"""What reading a schema may raise: a client has written it, and may write anything."""


class CallGrammarText(Struct, frozen=True):
    """The grammar of the calls behind one mark."""

    lark: str
    loose: tuple[str, ...]
    """Tools whose arguments follow the layout, but not their schema."""
    ends_answer: bool
    """Whether only the end of the answer may follow a call: its closing mark is one."""


class CallGrammarWriter:
    """Writes grammars in one layout."""

    def __init__(
        self,
        layout: CallLayout,
        controls: ControlTexts,
        inline_schema: Callable[[Any, JsonArguments], str | None],
    ) -> None:
        """`inline_schema`: a schema as a grammar can contain it, or None."""
        self._layout = layout
        self._controls = controls
        self._inline_schema = inline_schema

    def write(
        self, schemas: Mapping[str, Any], *, is_loose: bool = False
    ) -> CallGrammarText:
        """The grammar of calls of these tools, behind the mark.

        With `is_loose` the arguments of every tool may be anything that the layout can
        hold. Raises UnwritableSchemaError if the layout cannot hold a tool's name.
        """
        return _CallRules(
            self._layout,
            self._controls,
            self._inline_schema,
            is_loose=is_loose,
        ).write(schemas)


class _CallRules:
    """The rules of one grammar; `CallGrammarWriter.write` says what they are."""

    def __init__(
        self,
        layout: CallLayout,
        controls: ControlTexts,
        inline_schema: Callable[[Any, JsonArguments], str | None],
        *,
        is_loose: bool,
    ) -> None:
        self._layout = layout
        self._rules = LarkRules(controls)
        self._inline_schema = inline_schema
        self._is_loose = is_loose
        self._loose: list[str] = []

    def write(self, schemas: Mapping[str, Any]) -> CallGrammarText:
        layout = self._layout
        calls: list[str] = []
        for i, (name, schema) in enumerate(schemas.items()):
            calls.append(self._write_call(i, name, schema))
        self._rules.add("call", " | ".join(calls))

        terms = [self._text(layout.opening), "call"]
        if layout.separator is not None:
            self._rules.add("next_call", f"{self._text(layout.separator)} call")
            terms.append("next_call*")
        terms.append(self._text(layout.ending))
        self._rules.add("start", " ".join(terms))
        return CallGrammarText(
            lark=self._rules.join(),
            loose=tuple(self._loose),
            ends_answer=self._rules.controls.ends_with_end(
                layout.ending or layout.call
            ),
        )

    def _text(self, text: str, name: str = "") -> str:
        """A text of the layout, with a tool's name, as terms.

        `<function=$NAME>$SPACE` with the name `now` becomes
        `"<function=now>" (/[ \\n]{1,8}/)?`.
        """
        terms: list[str] = []
        written = ""
        for piece in PLACEHOLDER.split(text):
            if piece not in PATTERNS and piece not in CHOICES:
                if piece == NAME:
                    written += name
                else:
                    written += piece
                continue
            if written:
                terms.append(self._rules.literal(written))
                written = ""
            terms.append(self._placeholder(piece))
        if written or not terms:
            terms.append(self._rules.literal(written))
        return " ".join(terms)

    def _placeholder(self, name: str) -> str:
        if name in CHOICES:
            choices = [self._rules.literal(choice) for choice in CHOICES[name]]
            return f"({' | '.join(choices)})"
        pattern = f"/{PATTERNS[name]}/"
        if name in OPTIONAL:
            return f"({pattern})?"
        return pattern

    def _write_call(self, i: int, name: str, schema: Any) -> str:
        written_name = name
        is_json = isinstance(self._layout.arguments, JsonArguments)
        if is_json and f'"{NAME}"' in self._layout.call:
            written_name = json.dumps(name, ensure_ascii=False)[1:-1]
        elif not self._can_write_name(name):
            raise UnwritableSchemaError(f"no call can have the name {name[:40]!r}")
        before, _, after = self._layout.call.partition(ARGUMENTS)
        head = self._text(before, written_name)
        arguments = self._write_arguments(i, name, schema)
        return self._rules.add(f"call{i}", f"{head} {arguments} {self._text(after)}")

    def _can_write_name(self, name: str) -> bool:
        form = self._layout.arguments
        if isinstance(form, NotatedArguments) and form.notation == "python":
            return all(map(is_python_name, name.split(".")))
        return _PLAIN_NAME.fullmatch(name) is not None

    def _write_arguments(self, i: int, name: str, schema: Any) -> str:
        """The rule of a tool's arguments; without its schema, if that cannot be written."""
        form = self._layout.arguments
        separators = JsonArguments()
        if isinstance(form, JsonArguments):
            separators = form
        inlined = None
        if not self._is_loose:
            inlined = self._inline_schema(schema, separators)
        if inlined is not None:
            try:
                return self._write_exact(i, form, inlined)
            except _UNUSABLE:
                pass
        self._loose.append(name)
        return self._write_loose(i, form)

    def _write_exact(
        self,
        i: int,
        form: JsonArguments | TagArguments | NotatedArguments,
        inlined: str,
    ) -> str:
        if isinstance(form, JsonArguments):
            return self._rules.add(f"arguments{i}", f"%json {inlined}")
        schema = json.loads(inlined)
        if isinstance(form, TagArguments):
            return _TagWriter(i, form, self._rules, schema).write()
        return self._notation(i, form, schema).write_arguments(schema)

    def _write_loose(
        self, i: int, form: JsonArguments | TagArguments | NotatedArguments
    ) -> str:
        if isinstance(form, JsonArguments):
            inlined = self._inline_schema({"type": "object"}, form)
            assert inlined is not None, "any object"
            return self._rules.add(f"arguments{i}", f"%json {inlined}")
        if isinstance(form, TagArguments):
            return _TagWriter(i, form, self._rules, {}).write_any()
        return self._notation(i, form, {}).write_any_arguments()

    def _notation(
        self, i: int, form: NotatedArguments, schema: Mapping[str, Any]
    ) -> NotationWriter:
        budget = WorkBudget(_MAX_SCHEMA_STEPS)
        return NOTATIONS[form.notation](f"value{i}", self._rules, schema, budget)


class _TagWriter:
    """The arguments of one tool between tags."""

    def __init__(
        self, i: int, form: TagArguments, rules: LarkRules, schema: dict[str, Any]
    ) -> None:
        self._i = i
        self._form = form
        self._rules = rules
        self._schema = schema
        budget = WorkBudget(_MAX_SCHEMA_STEPS)
        self._types = ArgumentTypes(schema, budget)
        self._text_rules = _TextRules(schema, budget)
        self._n_chars_left = _MAX_DEFINITION_CHARS

    def write(self) -> str:
        """Arguments in the order of the schema, as in JSON.

        Raises UnwritableSchemaError, BudgetExceededError.
        """
        schema = self._schema
        if schema.keys() - _ROOT_KEYWORDS:
            raise UnwritableSchemaError("the schema has more than properties")
        if "properties" not in schema:
            return self.write_any()
        properties = schema["properties"]
        required = set(schema.get("required", ()))
        if not required <= properties.keys():
            raise UnwritableSchemaError("an argument that is required has no schema")
        parts: list[str] = []
        for n, (key, part) in enumerate(properties.items()):
            rule = self._write_argument(n, key, part)
            if key not in required:
                rule = f"{rule}?"
            parts.append(rule)
        return self._rules.add(f"arguments{self._i}", " ".join(parts) or '""')

    def write_any(self) -> str:
        """Arguments of any name whose values are texts.

        Raises UnwritableSchemaError if the closing tag has the name.
        """
        if KEY in self._form.after_value:
            raise UnwritableSchemaError("arguments without a schema have no tags")
        key = self._rules.literal(self._form.before_key)
        before = self._rules.literal(self._form.before_text)
        argument = self._rules.add(
            f"argument{self._i}", f"{key} {_ANY_KEY} {before} {self._any_text()}"
        )
        return self._rules.add(f"arguments{self._i}", f"{argument}*")

    def _write_argument(self, n: int, key: str, part: Any) -> str:
        """The rule of the n-th argument, whose schema is `part`.

        An argument that may be a text is written as a text. `null` beside texts is the
        text `null`.
        """
        _, control = self._rules.controls.split_first(key)
        if control or not _KEY.fullmatch(key):
            raise UnwritableSchemaError(f"no tag can hold the name {key[:40]!r}")
        types = self._types.find(key)
        after = self._form.after_value.replace(KEY, key)
        rule = f"argument{self._i}_{n}"
        before_key = f"{self._form.before_key}{key}"
        if not types or "string" in types:
            head = self._rules.literal(f"{before_key}{self._form.before_text}")
            value = self._write_text(n, part, types, after)
            return self._rules.add(rule, f"{head} {value}")
        before_json = self._form.before_json or self._form.before_text
        heads: list[str] = []
        for before in _list_choices(before_json):
            heads.append(self._rules.literal(f"{before_key}{before}"))
        value = self._rules.add(
            f"value{self._i}_{n}", f"%json {self._write_value_schema(part)}"
        )
        if types == {"boolean"} and part.keys().isdisjoint({"enum", "const"}):
            value = f'({value} | "True" | "False")'
        closer = self._rules.literal(after)
        return self._rules.add(rule, f"({' | '.join(heads)}) {value} {closer}")

    def _write_text(self, n: int, part: Any, types: frozenset[str], after: str) -> str:
        """The terms of a text and the tag that closes it.

        If the schema names the texts, they are alternatives:
        `("red" | "green") "</parameter>"`.
        """
        rule = _TextRule(None)
        if types:
            rule = self._text_rules.find(part)
        if rule.choices is None:
            return self._free_text(n, rule.schema, after)
        # A text that holds a tag cannot be told from the tag.
        usable = [
            text
            for text in rule.choices
            if not any(tag in text for tag in self._form.tags)
        ]
        if "null" in types and "null" not in usable:
            usable.append("null")
        if not usable:
            raise UnwritableSchemaError("no text between tags satisfies the schema")
        texts = " | ".join(self._rules.letters(text) for text in usable)
        return f"({texts}) {self._rules.literal(after)}"

    def _free_text(self, n: int, part: Any, after: str) -> str:
        lengths = _read_lengths(part)
        if lengths == "*" and KEY not in self._form.after_value:
            return self._any_text()
        return self._text_to_tag(f"TEXT{self._i}_{n}", lengths, after)

    def _any_text(self) -> str:
        """One terminal for all texts: each further one costs time at every token."""
        return self._text_to_tag("TEXT", "*", self._form.after_value)

    def _text_to_tag(self, terminal: str, lengths: str, closer: str) -> str:
        """The terms of a text without the tags of arguments, and of its closing tag.

        A closing tag that is written in characters is a part of the terminal: a terminal
        takes as many characters as it can, and so would take those of the tag.
        """
        tags = map(escape_regex, self._form.tags)
        text = f"(/(?s:.{lengths})/ & ~/(?s:.*)(?:{'|'.join(tags)})(?s:.*)/)"
        first, rest = self._rules.controls.split_first(closer)
        if first:
            self._rules.add(terminal, f"{text} {json.dumps(first, ensure_ascii=False)}")
            return f"{terminal} {self._rules.literal(rest)}"
        # No text has a control token, so the text ends where it comes. A terminal is
        # never empty.
        self._rules.add(terminal, f"{text} & /(?s:.+)/")
        if can_be_empty(lengths):
            return f"({terminal})? {self._rules.literal(rest)}"
        return f"{terminal} {self._rules.literal(rest)}"

    def _write_value_schema(self, part: Any) -> str:
        """The schema of one value by itself, with the definitions of the whole."""
        definitions = {
            key: self._schema[key]
            for key in ("$defs", "definitions")
            if key in self._schema
        }
        if not isinstance(part, dict):
            raise UnwritableSchemaError("an argument's schema is no object")
        references = re.findall(r'"\$ref": "([^"]*)"', json.dumps([part, definitions]))
        starts = tuple(f"#/{key}/" for key in definitions)
        if any(not reference.startswith(starts) for reference in references):
            raise UnwritableSchemaError("a reference leads out of the definitions")
        if references:
            part = {**part, **definitions}
        written = json.dumps({**part, "x-guidance": self._schema["x-guidance"]})
        self._n_chars_left -= len(written)
        if self._n_chars_left < 0:
            raise UnwritableSchemaError("the definitions are too long")
        return written


def _list_choices(text: str) -> Sequence[str]:
    """The texts that a text with one placeholder for a choice stands for."""
    for placeholder, choices in CHOICES.items():
        if placeholder in text:
            return [text.replace(placeholder, choice) for choice in choices]
    return [text]


def _read_lengths(part: Any) -> str:
    """The repetition of a text's characters: `*`, `{2,}` or `{0,80}`."""
    if not isinstance(part, dict):
        return "*"
    least = part.get("minLength", 0)
    most = part.get("maxLength", _MAX_LENGTH + 1)
    if not isinstance(least, int) or not isinstance(most, int):
        return "*"
    if least > _MAX_LENGTH:
        return "*"
    if most <= _MAX_LENGTH:
        return f"{{{least},{most}}}"
    if least:
        return f"{{{least},}}"
    return "*"


class _TextRule(Struct, frozen=True):
    """Which texts a schema allows, beside values that are none."""

    choices: tuple[str, ...] | None
    """None: any text of the right length."""
    schema: Mapping[str, Any] = {}
    """The part of the schema that allows any text."""


class _TextRules:
    """Finds which texts a part of a schema allows."""

    def __init__(self, root: Any, budget: WorkBudget) -> None:
        self._references = SchemaReferences(root)
        self._budget = budget

    def find(self, part: Any) -> _TextRule:
        """Follow references and alternatives until one of them allows any text.

        `{"enum": ["red", 3]}` gives the choice `red`, for 3 is no text. With
        `{"anyOf": [{"const": "all"}, {"type": "string", "maxLength": 9}]}` any text is
        allowed, and the second part is its schema. Raises BudgetExceededError.
        """
        found: list[str] = []
        seen: set[int] = set()
        pending = [part]
        while pending:
            part = pending.pop(0)
            self._budget.spend(1)
            if not isinstance(part, dict):
                return _TextRule(None)
            if id(part) in seen:
                continue
            seen.add(id(part))
            reference = part.get("$ref")
            values = part.get("enum", [])
            if "const" in part and "enum" not in part:
                values = [part["const"]]
            given = part.get("type", [])
            alternatives = part.get("anyOf") or part.get("oneOf")
            if isinstance(reference, str):
                pending.append(self._references.find(reference))
            elif isinstance(values, list) and values:
                self._budget.spend(len(values))
                found += [value for value in values if isinstance(value, str)]
            elif given == "string" or "string" in given:
                return _TextRule(None, part)
            elif not given and isinstance(alternatives, list):
                pending += alternatives
            elif not given:
                return _TextRule(None)
        return _TextRule(tuple(found))
