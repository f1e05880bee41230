"""Connections to MCP servers, and that no server can do more than answer wrongly."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("mcp")

from localspec.errors import ToolServerError
from localspec.extras.tools.connection import ServerConnection
from localspec.tools.server_settings import ServerSettings
from localspec.tools.tool_types import MAX_RESULT_CHARACTERS, ToolResult
from tests.extras.tools.servers import hostile_server

Connect = Callable[..., ServerConnection]
SHORT = 3.0
"""Seconds for calls that are never answered."""


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connects a hostile server; all are closed at the end."""
    opened: list[ServerConnection] = []

    def start(behaviour: str, **settings: Any) -> ServerConnection:
        connection = ServerConnection(hostile_server(behaviour, **settings))
        opened.append(connection)
        connection.start()
        connection.wait_until_ready()
        return connection

    yield start
    for each in opened:
        each.close()


def call(connection: ServerConnection, tool: str = "echo") -> ToolResult:
    return connection.call(tool, {"text": "hello"}, threading.Event())


def test_a_tool_is_listed_and_called(connect: Connect) -> None:
    connection = connect("good")

    (tool,) = connection.definitions()
    result = call(connection)

    assert tool.full_name == "test.echo"
    assert tool.description == "Answers."
    assert tool.schema["properties"] == {"text": {"type": "string"}}
    assert result == ToolResult("you said hello")


def test_calls_of_several_threads_are_all_answered(connect: Connect) -> None:
    connection = connect("good")
    results: list[ToolResult] = []
    threads = []
    for _ in range(20):
        thread = threading.Thread(target=lambda: results.append(call(connection)))
        threads.append(thread)

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == [ToolResult("you said hello")] * 20


ENDS_IN_AN_ERROR = {
    "closes-in-mid-call": "it ended",
    "half-a-message": "it ended",
    "garbage": "it writes lines that are no messages",
    "endless-line": "it sent more than 16 MB at once",
    "wrong-result": "what it sent is not as the protocol has it",
    "error": "you said hello",
    "rpc-error": "no such thing",
}


@pytest.mark.parametrize("behaviour", ENDS_IN_AN_ERROR)
def test_what_a_server_does_wrong_is_an_error_result(
    connect: Connect, behaviour: str
) -> None:
    result = call(connect(behaviour))

    assert result.is_error
    assert ENDS_IN_AN_ERROR[behaviour] in result.text
    assert "\x1b" not in result.text


@pytest.mark.parametrize("behaviour", ["never-answers", "other-id", "flood"])
def test_a_call_that_is_not_answered_ends_with_its_timeout(
    connect: Connect, behaviour: str
) -> None:
    connection = connect(behaviour, timeout=SHORT)

    result = call(connection)

    assert result.is_error
    assert result.text == "test did not answer in 3 seconds."


def test_after_a_call_without_answer_the_next_one_works(connect: Connect) -> None:
    connection = connect("some-garbage")

    assert call(connection) == ToolResult("you said hello")
    assert call(connection) == ToolResult("you said hello")


def test_a_long_result_is_cut_and_says_so(connect: Connect) -> None:
    result = call(connect("long-result"))

    assert len(result.text) < MAX_RESULT_CHARACTERS + 100
    assert result.n_left_out == 10_000_000 - MAX_RESULT_CHARACTERS
    assert result.text.endswith(
        "[9,800,000 more characters of this result were left out.]"
    )


def test_a_stopped_call_returns_and_the_server_is_told(connect: Connect) -> None:
    connection = connect("never-answers")
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()

    result = connection.call("echo", {}, stop)

    assert result.is_error
    assert result.text == "The call was stopped by the user."
    wait_for(lambda: "cancelled" in connection.stderr_lines())


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_a_pattern_that_takes_for_ever_is_not_tried(connect: Connect) -> None:
    assert call(connect("slow-pattern")) == ToolResult("you said hello")


def test_a_list_that_changes_has_other_fingerprints(connect: Connect) -> None:
    connection = connect("changing-list")
    (before,) = connection.definitions()

    call(connection)
    wait_for(lambda: len(connection.definitions()) == 2)

    after = connection.definitions()[0]
    assert after.full_name == before.full_name
    assert after.fingerprint != before.fingerprint


def test_only_names_that_templates_can_hold_are_offered(connect: Connect) -> None:
    connection = connect("wrong-names")

    assert [tool.name for tool in connection.definitions()] == ["echo"]
    assert len(connection.left_out) == 6
    assert not any("\x1b" in line for line in connection.left_out)


def test_tools_are_limited_in_number_and_size(connect: Connect) -> None:
    many = connect("many-tools")
    bomb = connect("schema-bomb")

    assert len(many.definitions()) == 500
    assert [tool.name for tool in bomb.definitions()] == ["echo"]
    assert bomb.left_out == ("bomb has arguments of more than 100,000 characters",)


def test_pages_without_end_do_not_hang(connect: Connect) -> None:
    connection = connect("endless-pages")

    assert len(connection.definitions()) == 1


def test_a_picture_is_kept_and_named(connect: Connect) -> None:
    result = call(connect("picture"))

    (picture,) = result.pictures
    assert picture.media_type == "image/png"
    assert picture.data == b"\x89PNG"
    assert result.text == "[image/png, 6 bytes]"


def test_a_damaged_picture_is_only_named(connect: Connect) -> None:
    result = call(connect("wrong-picture"))

    assert not result.pictures
    assert "image/png" in result.text


def test_a_server_cannot_use_the_model(connect: Connect) -> None:
    result = call(connect("asks-for-sampling"))

    assert "not supported" in result.text


def test_a_server_gets_no_secrets_of_the_environment(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")

    result = call(connect("environment", env={"WANTED": "yes"}))

    environment = json.loads(result.text)
    assert environment["WANTED"] == "yes"
    assert "PATH" in environment
    assert "hf_secret" not in result.text


def test_a_server_that_fails_to_start_is_explained_by_its_last_line(
    connect: Connect,
) -> None:
    with pytest.raises(ToolServerError) as caught:
        connect("fails-to-start")

    assert caught.value.message == "The server test: it ended."
    assert caught.value.hint == "It wrote: the key is missing"


def test_a_list_that_is_not_as_the_protocol_has_it_is_the_reason(
    connect: Connect,
) -> None:
    with pytest.raises(ToolServerError) as caught:
        connect("wrong-list")

    assert "not as the protocol has it: tools: Input should be" in str(caught.value)


def test_a_wrong_tool_is_left_out_by_name_and_the_others_stay(connect: Connect) -> None:
    connection = connect("wrong-tools")

    assert [tool.name for tool in connection.definitions()] == ["echo"]
    assert call(connection) == ToolResult("you said hello")
    assert len(connection.left_out) == 16
    assert connection.left_out[:3] == (
        "text is not as the protocol has it: inputSchema.type: Input should be 'object'",
        "none is not as the protocol has it: inputSchema: Field required",
        "tool 3 is not as the protocol has it: name: Field required",
    )


def test_a_list_of_nothing_but_wrong_tools_is_empty(connect: Connect) -> None:
    connection = connect("only-wrong-tools")

    assert connection.definitions() == ()
    assert len(connection.left_out) == 500


def test_a_server_that_never_starts_ends_with_its_timeout(connect: Connect) -> None:
    with pytest.raises(ToolServerError, match="it did not answer in 1 seconds"):
        connect("never-starts", timeout=1.0)


def test_a_program_that_does_not_exist_is_named(connect: Connect) -> None:
    with pytest.raises(ToolServerError, match="There is no program 'no-such-server'"):
        connect("good", command="no-such-server")


def test_a_folder_that_does_not_exist_is_an_error(
    connect: Connect, tmp_path: Path
) -> None:
    with pytest.raises(ToolServerError, match="cannot be started"):
        connect("good", cwd=str(tmp_path / "missing"))


def test_much_text_on_stderr_is_kept_in_few_lines(connect: Connect) -> None:
    connection = connect("noisy-stderr")

    assert len(connection.stderr_lines()) <= 21
    assert call(connection) == ToolResult("you said hello")


@pytest.mark.parametrize("behaviour", ["good", "stays"])
def test_closing_ends_the_process(connect: Connect, behaviour: str) -> None:
    connection = connect(behaviour)
    before = find_processes(behaviour)

    connection.close()
    connection.close()

    assert before
    assert not any(process.is_running() for process in before)
    assert call(connection).text == "The server test is not connected: it was closed."


def find_processes(behaviour: str) -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # Of another test, and has ended.
            if child.cmdline()[-1:] == [behaviour]:
                found.append(child)
    return found


def test_a_connection_that_was_not_started_can_be_closed() -> None:
    connection = ServerConnection(ServerSettings("test", command="x"))

    connection.close()

    assert call(connection).is_error
