"""How each format writes calls is known, to the character."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from localspec.models.chat_template.call_layouts import (
    GENERIC_LAYOUT,
    LAYOUTS,
    CallLayout,
    JsonArguments,
    TagArguments,
    find_layout,
)
from localspec.models.chat_template.tool_detection import detect_format, detect_layout
from localspec.models.chat_template.tool_formats import TOOL_FORMATS
from tests.models.test_tool_formats import FOLDER, SMALL_TEMPLATE, UNKNOWN, write

ARGUMENTS: dict[str, Any] = {"city": "Rome", "days": 3, "ok": True}
DOCS = Path(__file__).parents[2] / "docs" / "tools.md"


def find(format_name: str, text: str) -> CallLayout | None:
    return find_layout(format_name, text, "get_weather", ARGUMENTS)


@pytest.mark.parametrize("format_name", TOOL_FORMATS)
def test_every_format_is_exact(format_name: str) -> None:
    layout = find(format_name, write(format_name, ARGUMENTS))
    assert layout is not None
    written = layout.mark + layout.opening + layout.call + layout.ending
    assert "$SPACE" not in written


def test_the_documents_list_the_formats() -> None:
    text = DOCS.read_text(encoding="utf-8").partition("## Exact calls")[2]
    rows = re.findall(r"^\| `(\w[\w-]*)` \|.*\| ([^|]*) \|$", text, re.MULTILINE)
    assert {name for name, _ in rows} == set(TOOL_FORMATS)
    assert set(LAYOUTS) == set(TOOL_FORMATS)


@pytest.mark.parametrize("format_name", LAYOUTS)
def test_the_marks_of_a_layout_are_those_that_the_parser_knows(
    format_name: str,
) -> None:
    form = TOOL_FORMATS[format_name]
    for layout in LAYOUTS[format_name]:
        if layout.place == "answer":
            assert layout.mark in form.marks


def test_the_space_in_a_call_is_that_of_the_template() -> None:
    call = '{"name": "get_weather", "arguments": ' + json.dumps(ARGUMENTS) + "}"
    for space in ("", "\n", " ", "\n\n"):
        layout = find("tags", f"I look.<tool_call>{space}{call}\n</tool_call> So.")
        assert layout is not None
        assert layout.call.startswith(f'{space}{{"name"')
        assert layout.call.endswith("}\n</tool_call>")


def test_the_separators_in_a_call_are_those_of_the_template() -> None:
    for separators in ((",", ":"), (", ", ": "), (",", ": ")):
        written = json.dumps(ARGUMENTS, separators=separators)
        call = f'{{"name": "get_weather", "arguments": {written}}}'
        layout = find("generic", f"<tool_call>\n{call}\n</tool_call>")
        assert layout is not None
        assert layout.arguments == JsonArguments(*separators)


def test_the_tags_of_a_format_keep_their_space() -> None:
    text = (
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>"
        "<arg_key>days</arg_key><arg_value>3</arg_value>"
        "<arg_key>ok</arg_key><arg_value>True</arg_value></tool_call>"
    )
    layout = find("tags", text)
    assert layout is not None
    assert isinstance(layout.arguments, TagArguments)
    assert layout.arguments.before_text == "</arg_key><arg_value>"
    spaced = text.replace("</arg_key>", "</arg_key>\n").replace(
        "<arg_key>c", "\n<arg_key>c"
    )
    layout = find("tags", spaced)
    assert layout is not None
    assert isinstance(layout.arguments, TagArguments)
    assert layout.arguments.before_text == "</arg_key>\n<arg_value>"


@pytest.mark.parametrize(
    "text",
    [
        "",
        '<tool_call> {"arguments": {}, "name": "get_weather"}</tool_call>',
        '<tool_call>{"name": "other", "arguments": '
        + json.dumps(ARGUMENTS)
        + "}</tool_call>",
        '<tool_call>{"name": "get_weather", "arguments": '
        + json.dumps(ARGUMENTS, indent=1)
        + "}</tool_call>",
    ],
)
def test_what_is_written_in_no_layout_has_none(text: str) -> None:
    assert find("tags", text) is None


def test_a_mark_of_llama_names_the_tool() -> None:
    (layout,) = LAYOUTS["llama3"]
    assert layout.marks(("f", "g")) == {
        '{"name": "f", "parameters": ': ("f",),
        '{"name": "g", "parameters": ': ("g",),
    }
    assert GENERIC_LAYOUT.marks(("f", "g")) == {"<tool_call>": ("f", "g")}


def test_the_layout_is_found_by_what_the_template_writes() -> None:
    call = (
        '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
        "{{ call.function.arguments | tojson }}}\n</tool_call>"
    )
    source = SMALL_TEMPLATE.replace("CALL", call)
    layout = detect_layout("tags", source, {})
    assert layout is not None
    assert layout.call == GENERIC_LAYOUT.call
    assert detect_layout("tags", source.replace("name", "title"), {}) is None


@pytest.mark.skipif(not FOLDER.is_dir(), reason="LLAMA_CPP_CHECKOUT is not set")
@pytest.mark.parametrize(
    "path", sorted(FOLDER.glob("*.jinja")), ids=lambda path: path.stem
)
def test_the_layouts_of_llama_cpps_templates(path: Path) -> None:
    if path.stem in UNKNOWN:
        return
    source = path.read_text(encoding="utf-8")
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    found = detect_format(source, variables)
    assert found is not None
    assert detect_layout(found, source, variables) is not None
