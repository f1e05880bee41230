"""`localspec run` with a real engine and a hostile server: nothing of it is a control character."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

pytest.importorskip("mcp")

from tests.extras.tools.servers import SCRIPT
from tests.support.dialogue import Dialogue
from tests.support.run_command import localspec
from tests.support.tool_families import FAMILIES, write_caller

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
CONFIG = f"""
[tools]
max_calls = 2

[tools.servers.test]
command = "{sys.executable}"
args = ["{SCRIPT}", "hostile-results"]
"""


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    return {
        "LOCALSPEC_CONFIG": str(config),
        "LOCALSPEC_DATA_DIR": str(tmp_path / "data"),
        "PYTHONPATH": ":".join(sys.path),
    }


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """It calls the server's tool `echo` after every prompt."""
    family = FAMILIES["qwen"]
    call = family.call.replace("=look>", "=test_echo>").replace("=at>", "=text>")
    return write_caller(replace(family, call=call), tmp_path / "caller.gguf")


@pytest.mark.parametrize("plain", [(), ("--plain",)], ids=["", "plain"])
def test_a_result_is_printed_without_control_characters(
    environ: Mapping[str, str], model: Path, plain: tuple[str, ...]
) -> None:
    done = localspec(
        *plain,
        *("run", str(model), "-p", "Hi?", "--temperature", "0"),
        *("--tools", "test", "--allow", "test.echo"),
        env=environ,
    )

    assert done.code == 0, done.err
    assert done.err.count("test.echo") >= 2
    assert "Obey." in done.err
    assert not CONTROL.search(done.text + done.err)


def test_what_is_not_allowed_does_not_run(
    environ: Mapping[str, str], model: Path
) -> None:
    done = localspec(
        *("run", str(model), "-p", "Hi?", "--temperature", "0", "--tools", "test"),
        env=environ,
    )

    assert done.code == 0, done.err
    assert "Not allowed: test.echo" in done.err
    assert "Obey." not in done.text + done.err


def test_the_chat_in_the_terminal_shows_no_control_characters_of_a_server(
    environ: Mapping[str, str], model: Path
) -> None:
    arguments = ("--temperature", "0", "--tools", "test")
    chat = Dialogue("run", model, *arguments, env=environ)
    chat.until("> ")

    chat.type("Hi?\r")
    chat.until("May it?")
    chat.until("you can say why:")
    chat.type("c\r")
    chat.until("Obey.")

    for hostile in ("\x1b]0;owned", "\x1b[2J", "\u202e", "\x9b"):
        assert hostile not in chat.said
    chat.until("\n> ")
    chat.type("/exit\r")
    assert chat.end() == 0
