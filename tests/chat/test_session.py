"""A chat session: what each action means, in every front end."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from localspec import paths
from localspec.chat import document_attachment
from localspec.chat.answer import AnswerDelta
from localspec.chat.argument_completion import complete_path
from localspec.chat.history import ChatHistory
from localspec.chat.session import ChatSession
from localspec.chat.settings import ChatSettings, LoadedModel
from localspec.chat.slash_commands import CommandCall, change_session, parse
from localspec.documents.reading import parse_file_request, read_file
from localspec.errors import EngineError, LocalspecError, PromptTooLongError, UsageError
from localspec.protocol.events import EngineExit, GenerationFinished, Notice
from tests.support.scenes import PAIR
from tests.support.scripted_engine import Gate, ScriptedEngine, answer, ready

KILLED = EngineExit("signal SIGKILL")
TOO_LONG = PromptTooLongError("The prompt is too long.")
FAILED = EngineError("The model computed no numbers.")


class Talk:
    """A session with an engine that plays one script per answer."""

    def __init__(self, history: ChatHistory, *scripts: object, **model: Any) -> None:
        """`model`: as `ready`."""
        self.session = ChatSession(
            PAIR,
            1,
            history,
            settings=ChatSettings().with_value("top_k", "9"),
            system="Be brief.",
        )
        self.plays(*scripts, **model)

    def plays(self, *scripts: object, **model: Any) -> None:
        """Loads an engine."""
        played = [lambda s=script: s for script in scripts or [answer(["yes"])]]
        self.engine = ScriptedEngine(*played, ready=ready(**model))
        self.session.attach_engine(self.engine)

    def hear(self) -> list[AnswerDelta]:
        return list(self.session.stream_answer(self.engine))

    def ask(self, question: str) -> None:
        self.session.ask(question)
        self.hear()

    def type(self, line: str) -> str:
        call = parse(line)
        assert isinstance(call, CommandCall)
        if call.name == "read":
            return self.read(call.argument)
        return change_session(self.session, call).message

    def read(self, argument: str) -> str:
        if argument == "-":
            self.session.pending_attachments = ()
            return ""
        document = read_file(parse_file_request(argument))
        return document_attachment.attach(self.session, document).message

    def save(self, path: Path | str) -> Path:
        write = self.session.prepare_export(str(path))
        return write()

    @property
    def path(self) -> list[tuple[str, str]]:
        return [
            (turn.question, turn.answer) for turn in self.session.conversation.turns
        ]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[ChatHistory]:
    with closing(ChatHistory.open(tmp_path / "chats.sqlite")) as opened:
        yield opened


def test_a_too_long_prompt_is_withdrawn_with_its_files(
    history: ChatHistory, tmp_path: Path
) -> None:
    talk = Talk(history, answer(["yes"]), [TOO_LONG], [TOO_LONG])
    talk.ask("one")
    (tmp_path / "notes.txt").write_text("seven\r\n")
    talk.type(f"/read {tmp_path / 'notes.txt'}")
    with pytest.raises(PromptTooLongError):
        talk.ask("two")
    session = talk.session
    assert (talk.path, session.withdrawn_question) == ([("one", "yes")], "two")
    assert [(file.name, file.text) for file in session.pending_attachments] == [
        ("notes.txt", "seven")
    ]
    with pytest.raises(PromptTooLongError):
        session.regenerate()
        talk.hear()
    assert (talk.path, session.withdrawn_question) == ([("one", "yes")], "")
    stored = history.load_chat(history.find_last_id()).conversation
    assert (
        stored.all_turns == session.conversation.all_turns and not session.is_answering
    )
    with pytest.raises(PromptTooLongError):
        Talk(history, [TOO_LONG]).ask("too long")
    assert len(history.list_chats()) == 1, "a chat of which no message is left is none"


@pytest.mark.parametrize("end", [KILLED, FAILED], ids=["killed", "failed"])
def test_how_an_answer_comes_again(
    end: EngineExit | LocalspecError, history: ChatHistory
) -> None:
    talk = Talk(history, [*answer(["be", "gun"])[:-1], end])
    with pytest.raises(LocalspecError):
        talk.ask("one")
    session = talk.session
    assert talk.path == [("one", "begun")] and session.is_interrupted is (end is KILLED)
    saved = history.load_chat(history.find_last_id())
    session.close()
    for again in (session, ChatSession(PAIR, 1, history, saved)):  # reopened, too
        talk.session = again
        talk.plays(answer(["whole"]))
        again.regenerate()
        talk.hear()
        assert talk.path == [("one", "whole")] and not again.is_interrupted
        seeds = [turn.attempt for turn in again.conversation.all_turns]
        assert seeds == ([0] if end is KILLED else [0, 1])
        again.close()
        if end is FAILED:
            break


def test_the_files_of_a_turn_go_with_its_question(
    history: ChatHistory, tmp_path: Path
) -> None:
    talk = Talk(history)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    talk.type(f"/read {tmp_path / 'a.txt'}")
    talk.ask("")  # files alone can be sent
    talk.type(f"/read {tmp_path / 'b.txt'}")
    talk.session.edit_last("what?")
    talk.hear()
    files = [
        [file.name for file in turn.attachments]
        for turn in talk.session.conversation.turns
    ]
    pending = [file.name for file in talk.session.pending_attachments]
    assert (files, pending) == ([["a.txt"]], ["b.txt"]), "still pending"
    assert talk.session.return_to(talk.session.conversation.turns[0].id) == "what?"
    assert [file.name for file in talk.session.pending_attachments] == ["a.txt"]
    talk.type("/read -")
    assert not talk.session.pending_attachments


def test_while_an_answer_is_generated_its_turn_stays(history: ChatHistory) -> None:
    talk = Talk(history)
    talk.ask("one")
    talk.session.ask("two")
    for line in ("/undo", "/new", "/clear", "/turns 1"):
        with pytest.raises(UsageError, match="is being generated"):
            talk.type(line)
    with pytest.raises(UsageError):
        talk.session.regenerate()
    talk.type("/set top_k 3")  # for the next answer
    talk.hear()
    talk.type("/undo")
    assert talk.path == [("one", "yes")]


def test_a_stop_before_the_first_event_is_not_lost(history: ChatHistory) -> None:
    talk = Talk(history, [*answer(["a"])[:-1], Gate()])
    talk.session.ask("one")
    talk.session.stop()
    events = [delta.event for delta in talk.hear()]
    assert (
        isinstance(events[-1], GenerationFinished) and events[-1].reason == "cancelled"
    )


def test_what_a_template_does_to_every_prompt_is_told_once_a_chat(
    history: ChatHistory,
) -> None:
    notice = Notice("info", "template-roles", "The template is strict.")
    other = Notice("info", "thinking-ended", "The thinking was ended.")
    script = [*answer(["yes"])[:1], notice, other, *answer(["yes"])[1:]]
    for _ in range(2):  # another chat, perhaps with the same engine
        talk = Talk(history, script)
        told = []
        for _ in range(2):
            talk.session.ask("one")
            told += [
                delta.event for delta in talk.hear() if isinstance(delta.event, Notice)
            ]
        assert told == [notice, other, other]


def test_leaving_in_the_middle_keeps_what_came(history: ChatHistory) -> None:
    talk = Talk(history, answer(["a", "b"], width=1))
    talk.session.ask("one")
    stream = talk.session.stream_answer(talk.engine)
    while "a" not in talk.session.answer.text:
        next(stream)
    stream.close()  # type: ignore[attr-defined]
    stored = history.load_chat(history.find_last_id()).conversation.turns
    assert [(turn.answer, turn.finish_reason) for turn in stored] == [("a", None)]
    assert stored == talk.session.conversation.turns and talk.session.is_interrupted


def test_a_draft_length_beyond_what_was_loaded_for_says_what_is_possible(
    history: ChatHistory,
) -> None:
    talk = Talk(history)
    loaded = ready()
    loaded.settings["draft_max"] = 6
    talk.session.loaded = LoadedModel.from_ready(loaded)

    assert "at most" not in talk.type("/spec 6")
    assert "loaded for at most 6" in talk.type("/spec 32")


def test_a_draft_length_turns_speculation_on_nonsense_nothing(
    history: ChatHistory,
) -> None:
    talk = Talk(history)
    assert "Speculation is off" in talk.type(
        "/spec off"
    ) and "draft_max: 3" in talk.type("/spec 3")
    assert (talk.session.settings.spec, talk.session.settings.draft_length) == (
        "auto",
        3,
    )
    before = talk.session.settings
    with pytest.raises(UsageError):
        talk.type("/spec eagle3")
    assert talk.session.settings == before


def test_a_text_completion_goes_on_with_nothing_typed(history: ChatHistory) -> None:
    talk = Talk(history, chats=False)
    assert not talk.session.can_ask("  ")
    talk.ask("once")
    assert talk.session.can_ask("")
    talk.plays(chats=True)
    assert not talk.session.can_ask("")


@pytest.mark.parametrize(("command", "is_saved"), [("/clear", False), ("/new", True)])
def test_a_private_chat_stays_private_and_the_chat_after_it_is_saved(
    command: str, is_saved: bool, history: ChatHistory
) -> None:
    talk = Talk(history)
    talk.type("/private")
    talk.ask("a secret")

    talk.type(command)
    talk.ask("the next message")

    titles = [chat.title for chat in history.list_chats()]
    assert titles == (["the next message"] if is_saved else [])


def test_without_a_history_for_new_chats_no_later_chat_is_saved(
    history: ChatHistory,
) -> None:
    """The preference is off, or the program was started with `--private`."""
    talk = Talk(history)
    talk.ask("saved")
    talk.session.history_for_new_chats = None

    for command in ("/new", "/clear", "/private", "/new"):
        talk.type(command)
        talk.ask(f"after {command}")

    assert [chat.title for chat in history.list_chats()] == ["saved"]


def test_only_its_own_export_is_overwritten(
    history: ChatHistory, tmp_path: Path
) -> None:
    talk = Talk(history)
    mine = tmp_path / "mine.md"
    other = tmp_path / "other.md"
    with pytest.raises(UsageError, match="The chat is empty"):
        talk.save(mine)
    talk.ask("one")
    other.write_text("precious")
    for _ in range(2):
        assert talk.save(mine) == mine
    with pytest.raises(LocalspecError, match="already exists"):
        talk.save(other)
    with pytest.raises(LocalspecError, match="cannot be written"):
        talk.save(tmp_path / "no" / "chat.md")
    assert other.read_text() == "precious" and "yes" in mine.read_text()


@pytest.mark.parametrize(
    ("name", "data", "error"),
    [
        (".", None, "is not a file"),
        ("none.txt", None, "There is no file"),
        ("binary", b"a\0b", "is not a text file"),
        ("large", b"a" * (4 * 1024 * 1024 + 1), "is too large"),
    ],
    ids=["folder", "missing", "binary", "large"],
)
def test_what_is_no_text_is_not_attached(
    name: str, data: bytes | None, error: str, history: ChatHistory, tmp_path: Path
) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    talk = Talk(history)

    with pytest.raises(LocalspecError, match=error):
        talk.type(f"/read {path}")

    assert not talk.session.pending_attachments


@pytest.mark.parametrize(
    "path", ["a" * 300 + "/a.md", "~nobody-of-this-name/a.md"], ids=["long", "no user"]
)
def test_a_path_that_the_system_refuses_is_an_error_of_every_command(
    path: str, history: ChatHistory
) -> None:
    talk = Talk(history)
    talk.ask("one")

    with pytest.raises(LocalspecError, match=r"a\.md"):
        talk.type(f"/read {path}")
    with pytest.raises(LocalspecError):
        talk.save(path)
    with pytest.raises(LocalspecError):
        talk.type(f"/set json_schema {path}")

    assert complete_path(path) == []


def test_a_file_that_is_not_utf8_is_said_to_be_so(
    history: ChatHistory, tmp_path: Path
) -> None:
    """And its path may be quoted."""
    file = tmp_path / "my brief.txt"
    talk = Talk(history)
    file.write_bytes("für".encode("latin-1"))
    told = talk.type(f'/read "{file}"')
    assert "my brief.txt, 1 line, read as Windows-1252 (it is not UTF-8)" in told
    assert talk.session.pending_attachments[-1].text == "für"


def test_think_takes_a_switch_an_effort_or_a_budget(history: ChatHistory) -> None:
    talk = Talk(history)

    def thinking() -> tuple[object, ...]:
        settings = talk.session.settings
        return settings.think, settings.effort, settings.think_budget

    with pytest.raises(UsageError, match="no thinking, so no effort low"):
        talk.type("/think low")
    talk.type("/think off")
    assert thinking() == (False, "", None)
    chat = {"template": "own", "thinking_controls": ["levels", "budget"]}
    loaded = ready(chats=True)
    loaded.settings["chat"] = chat
    talk.session.attach_engine(ScriptedEngine(lambda: answer(["yes"]), ready=loaded))
    assert "low" in talk.type("/think low") and thinking() == (None, "low", None)
    talk.ask("Hi?")
    assert talk.session._last_request and talk.session._last_request.effort == "low"
    talk.type("/think 500")
    assert thinking() == (None, "", 500)
    for word, think in (("off", False), ("0", None), ("on", True), ("auto", None)):
        talk.type(f"/think {word}")
        assert thinking() == (think, "", 500 if word == "off" else 0)
    with pytest.raises(UsageError, match="cannot be 'hard'"):
        talk.type("/think hard")


NEEDS_THINKING = (
    "/think on",
    "/think low",
    "/think high",
    "/think 500",
    "/think 0",
    "/set think on",
    "/set think_budget 7",
    "/preset thinker",
)
"""Each way to ask for thinking.  What turns it off is allowed for every model."""


@pytest.fixture
def thinking_preset() -> None:
    paths.config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.config_file().write_text("[presets.thinker]\nthink = true\n")


@pytest.mark.usefixtures("thinking_preset")
@pytest.mark.parametrize("line", NEEDS_THINKING)
def test_what_needs_thinking_is_refused_by_a_model_without_it(
    line: str, history: ChatHistory
) -> None:
    talk = Talk(history)
    before = talk.session.settings
    with pytest.raises(UsageError, match="template has no thinking, so"):
        talk.type(line)
    assert talk.session.settings == before


@pytest.mark.usefixtures("thinking_preset")
@pytest.mark.parametrize("line", NEEDS_THINKING)
def test_what_needs_thinking_is_taken_by_a_model_that_thinks(
    line: str, history: ChatHistory
) -> None:
    talk = Talk(history, thinking=("<think>", "</think>"))
    before = talk.session.settings
    talk.type(line)
    assert talk.session.settings != before


@pytest.mark.parametrize("line", ["/think off", "/think auto", "/think show"])
def test_turning_thinking_off_needs_no_thinking(
    line: str, history: ChatHistory
) -> None:
    assert Talk(history).type(line)


def test_a_model_without_thinking_says_so_if_the_chat_asks_for_it(
    history: ChatHistory,
) -> None:
    talk = Talk(history, thinking=("<think>", "</think>"))
    talk.type("/think on")
    assert talk.session.take_notices() == []
    talk.plays()
    (notice,) = talk.session.take_notices()
    assert "no thinking, so it cannot be turned on" in notice.message


def test_after_undo_no_probabilities_of_the_withdrawn_answer_are_asked_for(
    history: ChatHistory,
) -> None:
    talk = Talk(history, answer(["one"]), answer(["two"]))
    talk.ask("First?")
    talk.ask("Second?")
    assert talk.session.build_inspect_request() is not None
    talk.session.undo()
    assert talk.session.build_inspect_request() is None
