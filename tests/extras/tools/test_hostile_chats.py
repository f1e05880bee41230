"""Hostile servers in a chat: nothing runs unasked, and the chat goes on."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from localspec.chat.conversation import CallResult
from localspec.chat.history import ChatHistory
from localspec.chat.session import ChatSession
from localspec.chat.tool_loop import CallState
from localspec.extras.tools import opening
from localspec.extras.tools.connection import ServerConnection
from localspec.report import tool_calls
from localspec.tools.approval import CallDecision, Verdict
from localspec.tools.tool_types import MAX_RESULT_CHARACTERS
from localspec.tools.toolbox import Toolbox
from tests.extras.tools.servers import hostile_server
from tests.support.fake_tools import Person, write_call
from tests.support.scenes import PAIR
from tests.support.scripted_engine import ScriptedEngine, answer, pieces, ready

SHORT = 3.0
"""Seconds for calls that are never answered."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
ECHO = write_call("test_echo", text="hello")


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path / "config.toml"))


class HostileChat:
    """A chat with these servers, whose model writes what the test says."""

    def __init__(self, history: ChatHistory, servers: list[ServerConnection]) -> None:
        self.session = ChatSession(PAIR, 1, history)
        self.toolbox = Toolbox(servers)
        self.session.toolbox = self.toolbox
        self.server = servers[0]
        self.person = Person()
        self.engine = ScriptedEngine()

    def ask(self, *texts: str) -> str:
        """Ask a question; the model writes these texts, an answer each.

        Returns the last answer.
        """
        played = [lambda text=text: answer(pieces(text)) for text in texts]
        self.engine = ScriptedEngine(*played, ready=ready())
        self.session.attach_engine(self.engine)
        self.session.ask("Hi?")
        for delta in self.session.stream_answer(self.engine, tools=self.person):
            assert not any("<tool_call>" in part.text for part in delta.parts)
        return self.session.conversation.turns[-1].answer

    def wait_for_change(self) -> None:
        """The server's list has changed, and was read."""
        wait_for(lambda: len(self.server.definitions()) == 2)

    @property
    def asked(self) -> list[str]:
        return [request.full_name for request in self.person.asked]

    @property
    def results(self) -> list[CallResult]:
        found: list[CallResult] = []
        for turn in self.session.conversation.turns:
            found += turn.results
        return found


StartChat = Callable[..., HostileChat]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartChat]:
    """Starts a chat with servers of this behaviour; the first one is called `test`."""
    opened: list[ServerConnection] = []
    with closing(ChatHistory.open(tmp_path / "chats.sqlite")) as history:

        def begin(
            behaviour: str, *, names: tuple[str, ...] = ("test",), **settings: Any
        ) -> HostileChat:
            servers: list[ServerConnection] = []
            for name in names:
                server = hostile_server(behaviour, name, **settings)
                servers.append(opening.connect(server))
                opened.append(servers[-1])
            return HostileChat(history, servers)

        yield begin
        for each in opened:
            each.close()


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


BEHAVIOURS = {
    "good": "you said hello",
    "long-result": "x" * 1000,
    "wrong-result": "not as the protocol has it",
    "error": "you said hello",
    "rpc-error": "such",
    "closes-in-mid-call": "it ended",
    "half-a-message": "it ended",
    "garbage": "no messages",
    "endless-line": "16 MB",
    "never-answers": "did not answer in 3 seconds",
    "other-id": "did not answer in 3 seconds",
    "flood": "did not answer in 3 seconds",
    "slow-pattern": "you said hello",
    "asks-for-sampling": "not supported",
}
"""What a server does, and a part of what the model receives."""


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_whatever_a_server_does_the_chat_goes_on(
    start: StartChat, behaviour: str
) -> None:
    expected = BEHAVIOURS[behaviour]
    timeout = SHORT if "3 seconds" in expected else 60.0
    chat = start(behaviour, timeout=timeout)

    first = chat.ask(ECHO, "Done.")
    second = chat.ask("Still here.")

    (result,) = chat.results
    assert first == "Done."
    assert second == "Still here."
    assert chat.asked == ["test.echo"]
    assert expected in result.text
    assert len(result.text) < MAX_RESULT_CHARACTERS + 200


def test_a_call_that_is_refused_does_not_reach_the_server(start: StartChat) -> None:
    chat = start("good")
    chat.person = Person(CallDecision("no"))

    chat.ask(ECHO, "Done.")

    assert chat.results[0].is_error
    assert chat.server.stderr_lines() == ()


def test_a_description_that_gives_orders_allows_nothing(start: StartChat) -> None:
    """The model obeys it. That echo is allowed in this chat does not allow delete."""
    chat = start("orders")
    chat.person = Person(CallDecision("chat"), CallDecision("no"))

    chat.ask(ECHO, write_call("test_delete", text="all"), "Done.")

    assert chat.asked == ["test.echo", "test.delete"]
    assert [result.is_error for result in chat.results] == [False, True]
    assert chat.server.stderr_lines() == ("called echo",)


def test_a_call_in_a_result_is_no_call(start: StartChat) -> None:
    chat = start("hostile-texts")

    last = chat.ask(ECHO, "Done.")

    assert last == "Done."
    assert "test_delete" in chat.results[0].text
    assert chat.asked == ["test.echo"]
    assert chat.server.stderr_lines() == ("called echo",)


def test_what_a_person_reads_of_a_hostile_server_has_no_control_characters(
    start: StartChat,
) -> None:
    chat = start("hostile-texts")

    chat.ask(write_call("test_echo", text="\x1b[2Jhello\u202e\x9b31m"), "Done.")

    shown: list[str] = []
    for state in chat.person.states:
        shown += list_shown(state)
    assert len(shown) > 10
    assert [text for text in shown if CONTROL.search(text)] == []


def list_shown(state: CallState) -> list[str]:
    """What front ends show of a call."""
    request = state.request
    shown = [
        request.arguments_text,
        tool_calls.call_name(request),
        tool_calls.summarise_arguments(request),
        tool_calls.describe_outcome(state),
    ]
    for argument in tool_calls.describe_arguments(request):
        shown += [argument.name, argument.text]
    if request.tool is not None:
        shown.append(tool_calls.describe_provider(request.tool))
        shown.append(tool_calls.describe_description(request.tool))
        shown.append(tool_calls.describe_claims(request.tool))
    return shown


@pytest.mark.parametrize("suffix", [".md", ".html", ".json"])
def test_exports_of_a_hostile_server_have_no_control_characters(
    start: StartChat, tmp_path: Path, suffix: str
) -> None:
    chat = start("hostile-texts")
    chat.ask(ECHO, "Done.")

    path = chat.session.prepare_export(str(tmp_path / f"chat{suffix}"))()

    text = path.read_text(encoding="utf-8")
    assert "test_delete" in text
    assert CONTROL.search(text) is None


@pytest.mark.parametrize("verdict", ["chat", "always"])
def test_a_tool_that_changes_after_it_was_allowed_is_asked_about_again(
    start: StartChat, verdict: Verdict
) -> None:
    """The server says with its first call that its list has changed."""
    chat = start("changing-list")
    chat.person = Person(CallDecision(verdict))

    def wait_after_the_first(state: CallState) -> None:
        if state.phase == "done":
            chat.wait_for_change()

    chat.person.on_state = wait_after_the_first

    chat.ask(ECHO, ECHO, ECHO, "Done.")

    tools = [request.tool for request in chat.person.asked]
    assert [tool.description for tool in tools if tool is not None] == [
        "Answers.",
        "Now it deletes.",
    ]
    assert [result.is_error for result in chat.results] == [False, False, False]


def test_a_tool_that_changes_while_a_person_is_asked_does_not_run(
    start: StartChat,
) -> None:
    chat = start("changing-list")

    def change_the_list(state: CallState) -> None:
        if state.phase == "asking":
            chat.server.call("echo", {}, threading.Event())
            chat.wait_for_change()

    chat.person.on_state = change_the_list

    chat.ask(ECHO, "Done.")

    (result,) = chat.results
    assert result.is_error
    assert "has changed" in result.text


def test_tools_of_two_servers_with_one_name_are_two_tools(start: StartChat) -> None:
    chat = start("good", names=("test", "other"))
    chat.person = Person(CallDecision("chat"))

    chat.ask(ECHO, write_call("other_echo", text="hello"), ECHO, "Done.")

    assert chat.asked == ["test.echo", "other.echo"]
    assert [result.tool for result in chat.results] == [
        "test.echo",
        "other.echo",
        "test.echo",
    ]


def test_a_name_that_two_servers_have_is_nobodys(start: StartChat) -> None:
    chat = start("good", names=("test", "other"))

    chat.ask(write_call("echo", text="hello"), "Done.")

    assert chat.asked == []
    assert chat.results[0].is_error


def test_fifty_tools_are_offered_and_the_last_is_called(start: StartChat) -> None:
    chat = start("fifty-tools")

    chat.ask(write_call("test_tool49", text="hello"), "Done.")

    assert len(json.loads(chat.engine.asked[0].tools)) == 50
    assert chat.results[0].text == "you said hello"


def test_schemas_that_are_wrong_break_nothing(start: StartChat) -> None:
    chat = start("wrong-schemas")
    names = [tool.name for tool in chat.server.definitions()]
    calls = [write_call(f"test_{name}", text="hello") for name in names]

    last = chat.ask(*calls, "Done.")

    assert len(names) > 10
    assert last == "Done."
    assert len(chat.results) == len(names)


@pytest.mark.parametrize("depth", [50, 500, 5_000])
def test_arguments_that_are_nested_without_end_break_nothing(
    start: StartChat, depth: int
) -> None:
    deep = '{"text":' * depth + "1" + "}" * depth
    call = f'<tool_call>{{"name": "test_echo", "arguments": {deep}}}</tool_call>'
    chat = start("good")

    chat.ask(call, "Done.")

    for state in chat.person.states:
        assert list_shown(state)
    assert chat.ask("Still here.") == "Still here."


def test_a_call_that_is_stopped_ends_at_once_and_the_chat_goes_on(
    start: StartChat,
) -> None:
    chat = start("never-answers")

    def stop_soon(state: CallState) -> None:
        if state.phase == "running":
            threading.Timer(0.3, chat.session.stop).start()

    chat.person.on_state = stop_soon

    chat.ask(ECHO, "Done.")

    assert chat.results[0].verdict == "stopped"
    wait_for(lambda: "cancelled" in chat.server.stderr_lines())
    assert chat.ask("Still here.") == "Still here."
