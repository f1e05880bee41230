"""`localspec tools`: list, add, rm and try, in processes of their own."""

import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from localspec.extras import tools
from tests.cli.test_main import options_that_take_an_empty_text
from tests.extras.tools.servers import SCRIPT
from tests.support.run_command import Done, localspec

needs_mcp = pytest.mark.skipif(
    importlib.util.find_spec("mcp") is None, reason="the extra `tools` is not installed"
)


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    config = str(tmp_path / "config.toml")
    return {"LOCALSPEC_CONFIG": config, "PYTHONPATH": ":".join(sys.path)}


def run(environ: Mapping[str, str], *arguments: str) -> Done:
    return localspec("tools", *arguments, env=environ)


def add(environ: Mapping[str, str], name: str, behaviour: str) -> None:
    done = run(environ, "add", name, sys.executable, str(SCRIPT), behaviour)
    assert done.code == 0, done.err


@needs_mcp
def test_a_server_is_added_listed_tried_and_removed(
    environ: Mapping[str, str],
) -> None:
    add(environ, "mine", "good")

    listed = run(environ, "list")
    tried = run(environ, "try", "mine", "echo", '{"text": "hi"}')
    removed = run(environ, "rm", "mine")
    empty = run(environ, "list")

    assert listed.code == 0
    assert "mine.echo" in listed.text
    assert "Answers." in listed.text
    assert tried.code == 0
    assert tried.text == "you said hi\n"
    assert removed.code == 0
    assert "No servers." in empty.err


@needs_mcp
def test_a_server_that_fails_is_listed_with_its_last_lines(
    environ: Mapping[str, str],
) -> None:
    add(environ, "good", "good")
    add(environ, "bad", "fails-to-start")

    done = run(environ, "list")
    document = run(environ, "list", "--json").document

    assert done.code == 1
    assert "good.echo" in done.text
    assert "The server bad: it ended." in done.err
    assert "the key is missing" in done.err
    assert "\x1b" not in done.err
    by_name = {each["name"]: each for each in document["servers"]}
    assert by_name["good"]["tools"][0]["name"] == "echo"
    assert by_name["bad"]["log"] == ["the key is missing"]


@needs_mcp
def test_an_error_result_is_an_exit_code(environ: Mapping[str, str]) -> None:
    add(environ, "mine", "error")

    done = run(environ, "try", "mine", "echo")
    document = run(environ, "try", "mine", "echo", "--json").document

    assert done.code == 1
    assert done.text == ""
    assert "you said" in done.err
    assert document["is_error"]


@needs_mcp
def test_control_characters_of_a_server_are_not_printed(
    environ: Mapping[str, str],
) -> None:
    add(environ, "mine", "wrong-names")

    done = run(environ, "list")

    assert done.code == 0
    assert "\x1b" not in done.text + done.err
    assert "echo is there twice" in done.err


CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@needs_mcp
@pytest.mark.parametrize(
    "arguments",
    [("list",), ("list", "--json"), ("try", "mine", "echo")],
    ids=" ".join,
)
def test_texts_of_a_hostile_server_are_printed_without_control_characters(
    environ: Mapping[str, str], arguments: tuple[str, ...]
) -> None:
    add(environ, "mine", "hostile-texts")

    done = run(environ, *arguments)

    assert done.code == 0
    assert "IMPORTANT" in done.text or "Answers." in done.text
    assert not CONTROL.search(done.text + done.err)


@needs_mcp
def test_a_tool_that_does_not_exist_is_not_called(environ: Mapping[str, str]) -> None:
    add(environ, "mine", "good")

    done = run(environ, "try", "mine", "missing")

    assert done.code == 3
    assert "It has: echo." in done.err


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_arguments_must_be_an_object(environ: Mapping[str, str], text: str) -> None:
    add(environ, "mine", "good")

    done = run(environ, "try", "mine", "echo", text)

    assert done.code == 2
    assert "rguments" in done.err


def test_an_unknown_server_is_not_found(environ: Mapping[str, str]) -> None:
    for arguments in (("rm", "x"), ("list", "x"), ("try", "x", "y")):
        done = run(environ, *arguments)

        assert done.code == 3
        assert "There is no server 'x'." in done.err


def test_a_name_is_added_once(environ: Mapping[str, str]) -> None:
    add(environ, "mine", "good")

    done = run(environ, "add", "mine", "other")

    assert done.code == 2
    assert "There is a server mine already." in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("mine",),
        ("--url", "ftp://x", "mine"),
        ("--url", "http://x", "mine", "program"),
        ("--env", "X", "mine", "program"),
        ("a b", "program"),
    ],
)
def test_a_wrong_server_is_not_added(
    environ: Mapping[str, str], arguments: tuple[str, ...]
) -> None:
    done = run(environ, "add", *arguments)

    assert done.code == 2
    assert not Path(environ["LOCALSPEC_CONFIG"]).exists()


def test_without_the_package_its_installation_is_the_hint(
    environ: Mapping[str, str], tmp_path: Path
) -> None:
    add(environ, "mine", "good")
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'mcp' else find(name, *a)\n"
    )
    path = f"{tmp_path}:{environ['PYTHONPATH']}"

    done = run({**environ, "PYTHONPATH": path}, "list")

    assert done.code == 1
    assert "need the package mcp" in done.err
    assert "mcp>=2.3" in done.err


def test_no_option_takes_an_empty_text() -> None:
    (row,) = tools.COMMANDS

    assert options_that_take_an_empty_text(row) == set()
