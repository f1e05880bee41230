"""JSON Schema to GBNF: every text of the grammar is JSON that satisfies the schema.

Keys come in the schema's order, with the separators of Python's json.dumps. Where a schema leaves
other keys open beside its properties, none are written. A keyword that would have to be ignored is
refused instead; annotations are ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.engine.constraints.regex_gbnf import pattern_to_gbnf
from localspec.errors import GrammarError

MAX_SCHEMA_CHARS = 128 * 1024
_MAX_DEPTH = 64
_MAX_RULES = 5000
_MAX_REPETITIONS = 2000
"""llama.cpp takes a larger maximum as none."""

_BASIC_RULES = {
    "char": r'[^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})',
    "string": r'"\"" char* "\""',
    "integer": '"-"? ("0" | [1-9] [0-9]{0,15})',
    "number": 'integer ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,3})?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "member": 'string ": " value',
    "object": '"{" (member (", " member)*)? "}"',
    "array": '"[" (value (", " value)*)? "]"',
    "value": "object | array | string | number | boolean | null",
}
_FORMATS = {
    "date": '[0-9]{4} "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])',
    "time": '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,6})? '
    '("Z" | [-+] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])',
    "uuid": '[0-9a-f]{8} "-" [0-9a-f]{4} "-" [0-9a-f]{4} "-" [0-9a-f]{4} "-" [0-9a-f]{12}',
}
_FORMATS["date-time"] = f'{_FORMATS["date"]} "T" {_FORMATS["time"]}'

_KEYWORDS: Mapping[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "boolean": frozenset(),
    "null": frozenset(),
}
"""By type, those that are used."""
_UNSUPPORTED: Mapping[str, frozenset[str]] = {
    "object": frozenset(
        {"patternProperties", "propertyNames", "minProperties", "maxProperties"}
        | {"dependentRequired", "dependentSchemas", "dependencies"}
    ),
    "array": frozenset({"contains", "minContains", "maxContains", "uniqueItems"}),
    "integer": frozenset({"multipleOf"}),
    "number": frozenset({"multipleOf"}),
}
_UNSUPPORTED_ANYWHERE = frozenset({"not", "if", "then", "else", "$dynamicRef", "$recursiveRef"})


def schema_to_gbnf(schema_text: str) -> str:
    """Raises GrammarError for what is no schema, and for keywords that cannot be honoured."""
    if len(schema_text) > MAX_SCHEMA_CHARS:
        raise GrammarError(
            f"The JSON Schema has {len(schema_text):,} characters.",
            f"At most {MAX_SCHEMA_CHARS:,} are possible.",
        )
    try:
        schema = json.loads(schema_text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"The JSON Schema is not valid JSON: {error}.") from error
    return _SchemaConverter(schema).convert()


class _SchemaConverter:
    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._rules: dict[str, str] = {}
        """Expressions by the name of their rule."""
        self._names: dict[str, str] = {}
        """Names by expression, so that equal parts share a rule."""
        self._refs: dict[str, str] = {}

    def convert(self) -> str:
        root = self._convert(self._schema, 0)
        rules = {"root": root, **_BASIC_RULES, **self._rules}
        return "".join(f"{name} ::= {expression}\n" for name, expression in rules.items())

    def _define(self, expression: str) -> str:
        name = self._names.get(expression)
        if name is None:
            name = self._names[expression] = f"r{len(self._rules)}"
            self._rules[name] = expression
        if len(self._rules) > _MAX_RULES:
            raise GrammarError("The JSON Schema is too large.", "Use fewer properties and values.")
        return name

    def _convert(self, schema: Any, depth: int) -> str:
        """The name of the rule for a schema."""
        if depth > _MAX_DEPTH:
            raise GrammarError(f"The JSON Schema is nested more than {_MAX_DEPTH} levels deep.")
        if schema is True:
            return "value"
        if not isinstance(schema, dict):
            raise GrammarError(f"{_shown(schema)} is not a JSON Schema.", "Use an object.")
        _refuse(schema, _UNSUPPORTED_ANYWHERE)
        if "$ref" in schema:
            return self._convert_ref(schema, depth)
        keyword = next((key for key in ("anyOf", "oneOf", "allOf") if key in schema), None)
        if keyword is not None:
            return self._convert_combination(schema, keyword, depth)
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else _list_of(schema, "enum")
            return self._define(" | ".join(dict.fromkeys(map(_json_literal, values))))
        return self._convert_type(schema, depth)

    def _convert_combination(self, schema: Mapping[str, Any], keyword: str, depth: int) -> str:
        base = {key: value for key, value in schema.items() if key != keyword}
        parts = _list_of(schema, keyword)
        if keyword == "allOf":
            return self._convert(_merge([base, *map(self._resolve, parts)]), depth + 1)
        return self._alternatives([_merge([base, part]) for part in parts], depth)

    def _alternatives(self, schemas: Sequence[Any], depth: int) -> str:
        names = [self._convert(schema, depth + 1) for schema in schemas]
        return self._define(" | ".join(dict.fromkeys(names)))

    def _convert_ref(self, schema: Mapping[str, Any], depth: int) -> str:
        ref = str(schema["$ref"])
        if schema.keys() - _ANNOTATIONS != {"$ref"}:
            return self._convert(self._resolve(schema), depth + 1)
        if ref not in self._refs:
            target = self._resolve(schema)
            self._refs[ref] = name = f"ref{len(self._refs)}"
            self._rules[name] = ""  # a schema may contain itself
            self._rules[name] = self._convert(target, depth + 1)
        return self._refs[ref]

    def _resolve(self, schema: Any) -> Any:
        """The schema that a reference within the document names."""
        seen: set[str] = set()
        while isinstance(schema, dict) and "$ref" in schema:
            ref = schema["$ref"]
            if not isinstance(ref, str) or not ref.startswith("#") or ref in seen:
                raise GrammarError(
                    f"The reference {_shown(ref)} cannot be used.",
                    "References within the schema, such as #/$defs/name, are possible.",
                )
            seen.add(ref)
            others = {key: value for key, value in schema.items() if key != "$ref"}
            schema = _merge([others, self._find(ref)])
        return schema

    def _find(self, ref: str) -> Any:
        target = self._schema
        for part in ref.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            elif isinstance(target, dict) and key in target:
                target = target[key]
            else:
                raise GrammarError(f"The reference {_shown(ref)} names nothing in the schema.")
        return target

    def _convert_type(self, schema: Mapping[str, Any], depth: int) -> str:
        types = schema.get("type")
        if types is None:
            types = [name for name, words in _KEYWORDS.items() if words & schema.keys()][:1]
        if isinstance(types, list):
            parts = [{**schema, "type": name} for name in types]
            return self._alternatives(parts, depth) if parts else "value"
        if types not in _KEYWORDS:
            raise GrammarError(f"{_shown(types)} is not a type of JSON Schema.")
        _refuse(schema, _UNSUPPORTED.get(types, frozenset()))
        if types in ("object", "array"):
            convert = self._convert_object if types == "object" else self._convert_array
            return convert(schema, depth)
        if types == "string":
            return self._convert_string(schema)
        if types in ("integer", "number") and _KEYWORDS["number"] & schema.keys():
            return self._define(_bounded_number(schema, is_integer=types == "integer"))
        return str(types)

    def _convert_object(self, schema: Mapping[str, Any], depth: int) -> str:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise GrammarError("`properties` must be an object, `required` a list.")
        others = schema.get("additionalProperties", True)
        missing = {str(name): others for name in required if name not in properties}
        members = [
            (f'{_json_literal(name)} ": " {self._convert(part, depth + 1)}', name in required)
            for name, part in {**properties, **missing}.items()
        ]
        if members:
            return self._define(f'"{{" {self._sequence(members)} "}}"')
        if others is False:
            return self._define('"{}"')
        if others is True or others == {}:
            return "object"
        member = self._define(f'string ": " {self._convert(others, depth + 1)}')
        return self._define(f'"{{" ({member} (", " {member})*)? "}}"')

    def _sequence(self, members: Sequence[tuple[str, bool]]) -> str:
        """Members separated by commas; each with whether it is required."""
        first = next((i for i, (_, required) in enumerate(members) if required), len(members))
        after = ""  # the members after the i-th, each with its comma
        beginnings: list[str] = []
        for i in range(len(members) - 1, -1, -1):
            text, required = members[i]
            if i <= first:
                beginnings.append(f"{text} {after}".strip())
            with_comma = f'", " {text}'
            after = f"{with_comma if required else f'({with_comma})?'} {after}".strip()
            if 0 < i <= first:
                after = self._define(after)
        choice = " | ".join(reversed(beginnings))
        return f"({choice})" + ("?" if first == len(members) else "")

    def _convert_array(self, schema: Mapping[str, Any], depth: int) -> str:
        low, high = _counts(schema, "minItems", "maxItems")
        prefix = schema.get("prefixItems", [])
        if prefix:
            if not isinstance(prefix, list) or not low <= len(prefix) <= high:
                raise GrammarError("`prefixItems` must be a list as long as the array may be.")
            parts = [self._convert(part, depth + 1) for part in prefix]
            items = ' ", " '.join(parts)
            return self._define(f'"[" {items} "]"')
        item = self._convert(schema.get("items", True), depth + 1)
        if high == 0:
            return self._define('"[]"')
        rest = _repeated(f'(", " {item})', max(low - 1, 0), high - 1)
        body = f"{item} {rest}" if low else f"({item} {rest})?"
        return self._define(f'"[" {body} "]"')

    def _convert_string(self, schema: Mapping[str, Any]) -> str:
        low, high = _counts(schema, "minLength", "maxLength")
        has_length = low > 0 or high < _UNLIMITED
        shape = None
        if "pattern" in schema:
            shape = pattern_to_gbnf(str(schema["pattern"]))
        elif schema.get("format") in _FORMATS:
            shape = _FORMATS[schema["format"]]
        if shape is not None:
            if has_length:
                raise GrammarError("A pattern or format together with a length is not supported.")
            return self._define(f'"\\"" ({shape}) "\\""')
        if has_length:
            return self._define(f'"\\"" {_repeated("char", low, high)} "\\""')
        return "string"


_UNLIMITED = 10**9


def _counts(schema: Mapping[str, Any], low_key: str, high_key: str) -> tuple[int, int]:
    low, high = schema.get(low_key, 0), schema.get(high_key, _UNLIMITED)
    for key, value in ((low_key, low), (high_key, high)):
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not is_number or value < 0 or (value > _MAX_REPETITIONS and value != _UNLIMITED):
            raise GrammarError(
                f"`{key}` cannot be {_shown(value)}.", f"Possible: 0 to {_MAX_REPETITIONS}."
            )
    if low > high:
        raise GrammarError(f"`{low_key}` is above `{high_key}`.")
    return low, high


def _repeated(item: str, low: int, high: int) -> str:
    if high >= _UNLIMITED - 1:
        return f"{item}{{{low},}}" if low else f"{item}*"
    return f"{item}{{{low},{high}}}" if high else ""


_UNLIMITED_NUMBER = 10**15


def _bounded_number(schema: Mapping[str, Any], *, is_integer: bool) -> str:
    bounds = {key: schema[key] for key in _KEYWORDS["number"] if key in schema}
    for key, value in bounds.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value != int(value):
            raise GrammarError(f"`{key}` cannot be {_shown(value)}.", "Use a whole number.")
    inclusive_low = bounds.get("minimum", -_UNLIMITED_NUMBER)
    inclusive_high = bounds.get("maximum", _UNLIMITED_NUMBER)
    above = bounds.get("exclusiveMinimum", -_UNLIMITED_NUMBER - 1)
    below = bounds.get("exclusiveMaximum", _UNLIMITED_NUMBER + 1)
    if is_integer:
        return _integer_between(
            int(max(inclusive_low, above + 1)), int(min(inclusive_high, below - 1))
        )
    low, high = int(max(inclusive_low, above)), int(min(inclusive_high, below))
    has_low, has_high = low > above, high < below
    parts = []
    if high >= 0:
        parts += _sizes_between(max(low, 0), high, has_low or low < 0, has_high)
    if low < 0:
        sizes = _sizes_between(max(-high, 0), -low, has_high or high > 0, has_low)
        parts += [f'"-" {size}' for size in sizes]
    if not parts:
        raise GrammarError("No number is within the bounds of the JSON Schema.")
    return " | ".join(parts)


def _sizes_between(low: int, high: int, has_low: bool, has_high: bool) -> list[str]:
    """Alternatives for a number from `low` to `high`, both not negative; which ends belong."""
    low, high = min(low, _UNLIMITED_NUMBER), min(high, _UNLIMITED_NUMBER)
    parts = [f'"{high}"'] if has_high and (has_low or high > low) else []
    if low >= high:
        return parts if low == high else []
    if has_low:
        return [*parts, f'({_integer_between(low, high - 1)}) ("." [0-9]{{1,15}})?']
    parts.append(f'"{low}." [0-9]{{0,14}} [1-9]')
    if high - low > 1:
        parts.append(f'({_integer_between(low + 1, high - 1)}) ("." [0-9]{{1,15}})?')
    return parts


def _integer_between(low: int, high: int) -> str:
    """An expression for the decimal numbers from `low` to `high`."""
    low, high = max(low, -_UNLIMITED_NUMBER), min(high, _UNLIMITED_NUMBER)
    if low > high:
        raise GrammarError("No number is within the bounds of the JSON Schema.")
    if low < 0:
        negative = f'"-" ({_integer_between(max(1, -high), -low)})'
        return negative if high < 0 else f"{negative} | {_integer_between(0, high)}"
    parts = []
    while low <= high:  # numbers of the same length
        end = min(high, 10 ** len(str(low)) - 1)
        parts += _digits_between(str(low), str(end))
        low = end + 1
    return " | ".join(parts)


def _digits_between(low: str, high: str) -> list[str]:
    """Expressions for the numbers between two of the same length."""
    n = len(low)
    if low[0] == high[0]:
        if n == 1:
            return [f'"{low}"']
        return [f'"{low[0]}" {rest}' for rest in _digits_between(low[1:], high[1:])]
    if n == 1:
        return [f"[{low}-{high}]"]
    parts = []
    first, last = int(low[0]), int(high[0])
    if low[1:] != "0" * (n - 1):
        parts += [f'"{first}" {rest}' for rest in _digits_between(low[1:], "9" * (n - 1))]
        first += 1
    end = last if high[1:] == "9" * (n - 1) else last - 1
    if first <= end:
        parts.append(f"[{first}-{end}] [0-9]{{{n - 1}}}")
    if end < last:
        parts += [f'"{last}" {rest}' for rest in _digits_between("0" * (n - 1), high[1:])]
    return parts


def _merge(schemas: Sequence[Any]) -> dict[str, Any]:
    """One schema with the keywords of all."""
    merged: dict[str, Any] = {}
    for schema in schemas:
        if schema is True:
            continue
        if not isinstance(schema, dict):
            raise GrammarError(f"{_shown(schema)} is not a JSON Schema.", "Use an object.")
        for key, value in schema.items():
            if key in ("properties", "required") and key in merged:
                merged[key] = _merge_members(key, merged[key], value)
            elif key not in merged or key in _ANNOTATIONS:
                merged[key] = value
            elif merged[key] != value:
                raise GrammarError(f"The JSON Schema has two different values for `{key}`.")
    return merged


_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"$id", "$schema", "$comment", "$defs", "definitions", "$anchor"}
)


def _merge_members(key: str, one: Any, other: Any) -> Any:
    if isinstance(one, list) and isinstance(other, list):
        return [*one, *other]
    if isinstance(one, dict) and isinstance(other, dict):
        twice = next((name for name in one.keys() & other.keys() if one[name] != other[name]), None)
        if twice is None:
            return {**one, **other}
    raise GrammarError(f"The JSON Schema has two different values for `{key}`.")


def _list_of(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    values = schema[keyword]
    if not isinstance(values, list) or not values:
        raise GrammarError(f"`{keyword}` must be a list with at least one element.")
    return values


def _refuse(schema: Mapping[str, Any], keywords: frozenset[str]) -> None:
    found = sorted(key for key in keywords & schema.keys() if schema[key] is not False)
    if found:
        raise GrammarError(
            f"The JSON Schema uses `{found[0]}`, which is not supported.",
            "Leave it out, or express it by properties, types, enum and anyOf.",
        )


def _json_literal(value: Any) -> str:
    return _gbnf_literal(json.dumps(value, ensure_ascii=False))


def _gbnf_literal(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _shown(value: Any) -> str:
    return repr(value)[:40]
