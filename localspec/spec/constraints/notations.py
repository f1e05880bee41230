"""Grammars of arguments in notations that are no JSON: Gemma 4's, and Python.

llguidance compiles JSON Schemas to JSON only. For another notation the schema is walked
here, and each part of it becomes a rule. With Gemma's notation,

    {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
     "required": ["city"]}

becomes, where 48 is the token `<|"|>` and `later_days` has the comma before `days`:

    value0: "{" first_city "}"
    first_city: "city:" text later_days
    later_days: "," "days:" integer | ""
    text: <[48]> (TEXT)? <[48]>
    integer: %json {"type": "integer", "minimum": …, "maximum": …}

The rules have numbers instead of these names. A schema with a keyword that is not written
here raises UnwritableSchemaError, and its tool may have any arguments. `pattern` and
`format` of a text are ignored.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.models.chat_template.schema_references import (
    SchemaReferences,
    WorkBudget,
)
from localspec.spec.constraints.lark import LarkRules, can_be_empty, escape_regex

_IGNORED = frozenset({
    "title", "description", "default", "examples", "$defs", "definitions", "$schema", "$id",
    "format", "pattern", "x-guidance", "strict", "deprecated", "readOnly", "writeOnly",
})  # fmt: skip
_NUMBER_KEYWORDS = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
)  # fmt: skip
_KEYWORDS_BY_TYPE: Mapping[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength"}),
    "integer": frozenset(_NUMBER_KEYWORDS),
    "number": frozenset(_NUMBER_KEYWORDS),
    "boolean": frozenset(),
    "null": frozenset(),
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
}
_ANY_TYPE = ("string", "number", "boolean", "null", "array", "object")
_MAX_REPETITIONS = 1_000
"""The most characters of a text, or items of a list, that a schema may ask for."""
LARGEST_NUMBER = 9 * 10**18
"""llguidance has no larger limits."""


class UnwritableSchemaError(Exception):
    """A notation cannot hold exactly what a schema allows."""


class NotationWriter:
    """Writes the rules of one tool's arguments. A notation is a child of this class.

    Rules are named by a prefix and a number. A part of the schema that several
    references name has one rule, so a schema may refer to itself.
    """

    def __init__(
        self, prefix: str, rules: LarkRules, root: Mapping[str, Any], budget: WorkBudget
    ) -> None:
        self._prefix = prefix
        self._rules = rules
        self._root = root
        self._references = SchemaReferences(root)
        self._budget = budget
        self._n_rules = 0
        self._rule_by_part: dict[int, tuple[Any, str]] = {}
        """Each part and its rule, by the part's id.

        The part is kept: Python may give the id of one that is gone to another.
        """
        self._any: dict[str, Any] = {}
        """The schema of any value, which refers to itself."""

    # --- what a notation decides

    def write_arguments(self, schema: dict[str, Any]) -> str:
        """The rule of a whole call's arguments. Raises as `value` does."""
        raise NotImplementedError

    def write_any_arguments(self) -> str:
        """The rule of arguments of which nothing is known."""
        raise NotImplementedError

    def _key(self, name: str) -> str:
        """The terms of a key of an object, and what is between it and the value."""
        raise NotImplementedError

    def _any_key(self) -> str:
        """As `_key`, for a name that the schema does not say."""
        raise NotImplementedError

    def _text(self, lengths: str) -> str:
        """The terms of a text; `lengths` is the repetition of its characters."""
        raise NotImplementedError

    def _constant(self, value: Any) -> str:
        """The terms of one value. Raises UnwritableSchemaError for an object or a list."""
        raise NotImplementedError

    _item_separator = ","

    # --- the walk

    def value(self, schema: Any) -> str:
        """The rule of a value.

        Raises UnwritableSchemaError, and BudgetExceededError for a schema that is too
        long.
        """
        self._budget.spend(1)
        if schema is True:
            schema = self._any
        if not isinstance(schema, dict):
            raise UnwritableSchemaError("a part is no schema")
        known = self._rule_by_part.get(id(schema))
        if known is not None:
            return known[1]
        rule = self._new_rule()
        self._rule_by_part[id(schema)] = (schema, rule)
        self._rules.add(rule, self._alternatives(schema))
        return rule

    def _new_rule(self) -> str:
        rule = f"{self._prefix}_{self._n_rules}"
        self._n_rules += 1
        return rule

    def _alternatives(self, schema: dict[str, Any]) -> str:
        given = {key: part for key, part in schema.items() if key not in _IGNORED}
        if "$ref" in given:
            if len(given) > 1:
                raise UnwritableSchemaError("a reference stands beside other keywords")
            return self.value(self._references.find(given["$ref"]))
        if "enum" in given:
            values = given["enum"]
            if not isinstance(values, list) or not values:
                raise UnwritableSchemaError("an enum has no values")
            self._budget.spend(len(values))
            return " | ".join(map(self._constant, values))
        if "const" in given:
            self._budget.spend(1)
            return self._constant(given["const"])
        for key in ("anyOf", "oneOf"):
            if key in given:
                if given.keys() - {key, "type"}:
                    raise UnwritableSchemaError(f"{key} stands beside other keywords")
                return " | ".join(map(self.value, given[key]))
        return self._by_type(given)

    def _by_type(self, given: dict[str, Any]) -> str:
        names = given.pop("type", None)
        if isinstance(names, str):
            names = (names,)
        elif names is None and given:
            names = _imply_types(given)
        elif names is None:
            names = _ANY_TYPE
        known: frozenset[str] = frozenset()
        for name in names:
            known |= _KEYWORDS_BY_TYPE.get(name, frozenset())
        if given.keys() - known:
            raise UnwritableSchemaError(f"{min(given.keys() - known)} is not written")
        return " | ".join(self._of_type(name, given) for name in names)

    def _of_type(self, name: str, given: dict[str, Any]) -> str:
        if name == "string":
            return self._text(_repetition(given))
        if name in ("integer", "number"):
            return self._number(name, given)
        if name == "boolean":
            return f"{self._constant(True)} | {self._constant(False)}"
        if name == "null":
            return self._constant(None)
        if name == "array":
            return self._array(given)
        if name == "object":
            return self._object(given)
        raise UnwritableSchemaError(f"the type {name!r:.40} is unknown")

    def _number(self, name: str, given: dict[str, Any]) -> str:
        bounds = {key: given[key] for key in _NUMBER_KEYWORDS if key in given}
        if not bounds:
            bounds = {"minimum": -LARGEST_NUMBER, "maximum": LARGEST_NUMBER}
        schema = json.dumps({"type": name, **bounds})
        return self._rules.add(self._new_rule(), f"%json {schema}")

    def _array(self, given: dict[str, Any]) -> str:
        """A list between brackets.

        With at least 2 and at most 4 items it is `"[" item ("," item){1,3} "]"`.
        """
        item = self.value(given.get("items", True))
        least = given.get("minItems", 0)
        most = given.get("maxItems")
        if max(least, most or 0) > _MAX_REPETITIONS:
            raise UnwritableSchemaError("an array has too many items")
        separator = json.dumps(self._item_separator)
        further = "*"
        if most is not None:
            further = f"{{{max(least - 1, 0)},{most - 1}}}"
        elif least > 1:
            further = f"{{{least - 1},}}"
        items = f"{item} ({separator} {item}){further}"
        if most == 0:
            return '"[]"'
        if most == 1:
            items = item
        if not least:
            items = f"({items})?"
        return f'"[" {items} "]"'

    def _object(self, given: dict[str, Any]) -> str:
        """An object between braces; without named properties it may have any."""
        properties = given.get("properties")
        if properties is None:
            items = self._any_items(given.get("additionalProperties", True))
        else:
            items = self._items(properties, given.get("required", ()))
        return f'"{{" {items} "}}"'

    def _any_items(self, schema: Any) -> str:
        """Properties of any name, whose values satisfy a schema; none if that is false."""
        if schema is False:
            return '""'
        item = f"{self._any_key()} {self.value(schema)}"
        return f"({item} ({json.dumps(self._item_separator)} {item})*)?"

    def _items(self, properties: Mapping[str, Any], required: Sequence[str]) -> str:
        """The properties in the order of the schema, some of which may be left out.

        Each property has two rules, with a separator before it and without. For `city`
        and `days`, of which neither is required, they are, from the last one on:

            first_days: "days:" integer "" | ""
            later_days: "," "days:" integer "" | ""
            first_city: "city:" text later_days | first_days
            later_city: "," "city:" text later_days | later_days

        The rule of the object begins with `first_city`.
        """
        if not set(required) <= properties.keys():
            raise UnwritableSchemaError("a property that is required has no schema")
        separator = json.dumps(self._item_separator)
        first_rest = '""'
        later_rest = '""'
        for name, schema in reversed(list(properties.items())):
            item = f"{self._key(name)} {self.value(schema)}"
            first = f"{item} {later_rest}"
            later = f"{separator} {item} {later_rest}"
            if name not in required:
                first = f"{first} | {first_rest}"
                later = f"{later} | {later_rest}"
            first_rest = self._rules.add(self._new_rule(), first)
            later_rest = self._rules.add(self._new_rule(), later)
        return first_rest


def _imply_types(given: Mapping[str, Any]) -> Sequence[str]:
    """The types that a schema without `type` is about, by its keywords.

    `{"maxLength": 5}` is about texts. Raises UnwritableSchemaError if the keywords are
    of several types, or of none.
    """
    names = [
        name
        for name, keywords in _KEYWORDS_BY_TYPE.items()
        if keywords & given.keys() and name != "integer"
    ]
    if len(names) != 1:
        raise UnwritableSchemaError("a schema has no type")
    return names


def _repetition(given: Mapping[str, Any]) -> str:
    """How often a text's characters are repeated: `*`, `{2,}` or `{0,80}`."""
    least = given.get("minLength", 0)
    most = given.get("maxLength")
    if max(least, most or 0) > _MAX_REPETITIONS:
        raise UnwritableSchemaError("a text has too many characters")
    if most is not None:
        return f"{{{least},{most}}}"
    if least:
        return f"{{{least},}}"
    return "*"


# --- Gemma 4


class GemmaWriter(NotationWriter):
    """Writes rules for `{city:<|"|>Rome<|"|>,days:3}`."""

    _QUOTE = '<|"|>'
    _KEY = re.compile(r"[^\s{}\[\],:\"<]{1,256}")

    def write_arguments(self, schema: dict[str, Any]) -> str:
        return self.value(schema)

    def write_any_arguments(self) -> str:
        return self.value({"type": "object"})

    def _key(self, name: str) -> str:
        if not self._KEY.fullmatch(name):
            raise UnwritableSchemaError(f"no key can be {name[:40]!r}")
        return json.dumps(f"{name}:", ensure_ascii=False)

    def _items(self, properties: Mapping[str, Any], required: Sequence[str]) -> str:
        """The properties in the order of their names, as the template writes them."""
        by_name = sorted(properties.items(), key=lambda item: item[0].lower())
        return super()._items(dict(by_name), required)

    def _any_key(self) -> str:
        return r"/[a-zA-Z_][a-zA-Z0-9_.-]{0,63}:/"

    def _text(self, lengths: str) -> str:
        quote = self._rules.literal(self._QUOTE)
        terminal = f"TEXT{self._prefix.upper()}_{self._n_rules}"
        self._n_rules += 1
        first, _ = self._rules.controls.split_first(self._QUOTE)
        if not first:
            self._rules.add(terminal, f"/(?s:.{lengths})/ & /(?s:.+)/")
            middle = terminal
            if can_be_empty(lengths):
                # A terminal is never empty.
                middle = f"({terminal})?"
            return f"{quote} {middle} {quote}"
        # The quotation mark is a text of characters in this vocabulary.
        mark = escape_regex(self._QUOTE)
        text = f"(/(?s:.{lengths})/ & ~/(?s:.*){mark}(?s:.*)/)"
        self._rules.add(terminal, f"{text} {quote}")
        return f"{quote} {terminal}"

    def _constant(self, value: Any) -> str:
        if isinstance(value, str):
            if self._QUOTE in value:
                raise UnwritableSchemaError("a text has a quotation mark")
            quote = self._rules.literal(self._QUOTE)
            return f"{quote} {self._rules.letters(value)} {quote}"
        if isinstance(value, dict | list):
            raise UnwritableSchemaError("a constant is an object or a list")
        return json.dumps(json.dumps(value))


# --- Python


class PythonWriter(NotationWriter):
    """Writes rules for `city='Rome', days=3`, and for values such as `{'a': [1, True]}`.

    A text is a literal of Python: what would end it is escaped.
    """

    _item_separator = ", "
    _TEXT = r"(?:[^'\\\x00-\x1f\x7f]|\\[\\'nrt])"

    def write_arguments(self, schema: dict[str, Any]) -> str:
        given = {key for key in schema if key not in _IGNORED}
        if given - {"type", "properties", "required", "additionalProperties"}:
            raise UnwritableSchemaError("the schema has more than properties")
        if "properties" not in schema:
            return self.write_any_arguments()
        properties = _CallProperties(
            self._prefix, self._rules, self._root, self._budget
        )
        return properties.items(schema["properties"], schema.get("required", ()))

    def write_any_arguments(self) -> str:
        item = rf"/[a-z_][a-z0-9_]{{0,63}}=/ {self.value(True)}"
        return self._rules.add(self._new_rule(), f'({item} (", " {item})*)?')

    def _key(self, name: str) -> str:
        return f'{self._constant(name)} ": "'

    def _any_key(self) -> str:
        return f"/'{self._TEXT}{{1,64}}': /"

    def _text(self, lengths: str) -> str:
        return f"/'{self._TEXT}{lengths}'/"

    def _constant(self, value: Any) -> str:
        if isinstance(value, str):
            # `repr` writes "it's" with other quotation marks, which are as good.
            return json.dumps(repr(value))
        if isinstance(value, dict | list):
            raise UnwritableSchemaError("a constant is an object or a list")
        return json.dumps(repr(value))


class _CallProperties(PythonWriter):
    """The arguments themselves, whose keys are names: `city='Rome'`."""

    def __init__(
        self, prefix: str, rules: LarkRules, root: Mapping[str, Any], budget: WorkBudget
    ) -> None:
        super().__init__(f"{prefix}_call", rules, root, budget)
        self._values = PythonWriter(prefix, rules, root, budget)

    def items(self, properties: Mapping[str, Any], required: Sequence[str]) -> str:
        return self._items(properties, required)

    def value(self, schema: Any) -> str:
        return self._values.value(schema)

    def _key(self, name: str) -> str:
        if not is_python_name(name):
            raise UnwritableSchemaError(f"no argument can have the name {name[:40]!r}")
        return json.dumps(f"{name}=")


def is_python_name(text: str) -> bool:
    return text.isidentifier() and text.isascii() and not keyword.iskeyword(text)


NOTATIONS: Mapping[str, type[NotationWriter]] = {
    "gemma": GemmaWriter,
    "python": PythonWriter,
}
