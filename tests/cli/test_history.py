"""Saved chats on the command line.

They are listed, found, shown, exported, removed and continued.
"""

import json
import signal
import sys
from contextlib import closing
from pathlib import Path

import pytest

from localspec import paths
from localspec.chat.answer import with_plain_speed
from localspec.chat.history import ChatHistory
from localspec.protocol import events as ev
from tests.chat.saved_chats import put, said
from tests.support.run_command import harmful, hello, localspec
from tests.support.zoo import CHAT_TEXT, HELLO_TEXT, HOSTILE, Zoo

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
if sys.platform != "win32":
    from tests.support.dialogue import Dialogue

GREEDY = ("--temperature", "0", "--spec", "off")
CTRL_D = "\x04"


@pytest.fixture
def two() -> tuple[int, int]:
    """Two chats that are kept."""
    with closing(ChatHistory.open()) as history:
        first = put(
            history, ("What is a tree?", "A graph <without> cycles."), ("And?", "No.")
        )
        return first.chat_id, put(history, ("hello \x1b[2J", "Hi!")).chat_id


def test_nothing_is_kept_yet() -> None:
    done = localspec("history", "list")
    assert (done.code, done.out) == (0, b"") and "No saved chats" in done.err
    assert localspec("history", "list", "--json").document == {"schema": 1, "chats": []}
    assert localspec("history", "show").code == 3 and localspec("export").code == 3
    assert (
        "There are no chats yet." in localspec("history", "rename", "1", "greeting").err
    )
    assert not paths.chats_file().exists()


def test_list(two: tuple[int, int]) -> None:
    lines = localspec("history", "list").text.splitlines()
    assert [line.split()[0] for line in lines] == ["CHAT", str(two[1]), str(two[0])]
    assert lines[1].endswith("Qwen3 8B  hello") and "\x1b" not in "".join(lines)
    (one,) = localspec("history", "list", "-n", "1", "--json").document["chats"]
    assert (one["id"], one["turns"], one["model"]) == (two[1], 1, "Qwen3 8B")
    assert one["pair"] == {"model": "qwen3-8b", "draft": "qwen3-0.6b"}


def test_search(two: tuple[int, int]) -> None:
    done = localspec("history", "search", "GRAPH", "cycles")
    assert (done.code, done.text) == (
        0,
        f"{two[0]}  What is a tree? A graph <without> cycles.\n",
    )
    (one,) = localspec("history", "search", "cycles", "--json").document["found"]
    assert (one["chat"]["id"], one["turn"]) == (two[0], 1)
    assert localspec("history", "search", "elephants").text == ""


def test_show(two: tuple[int, int]) -> None:
    done = localspec("history", "show", str(two[0]))
    assert done.text == (
        "System: be brief\n\nYou: What is a tree?\n\nQwen3 8B: A graph <without> cycles.\n\n"
        "You: And?\n\nQwen3 8B: No.\n"
    )
    assert (
        localspec("history", "show", "last", "--json").document["chat"]["id"] == two[1]
    )
    wrong = localspec("history", "show", "99", "--json")
    assert (wrong.code, wrong.document["error"]["code"]) == (3, "not-found")
    assert localspec("history", "show", "x" * 99).code == 3


def test_export(two: tuple[int, int], tmp_path: Path) -> None:
    first = str(two[0])
    assert localspec("export", first).text.startswith("# A chat with Qwen3 8B\n")
    assert (
        "A graph &lt;without&gt; cycles." in localspec("export", first, "--html").text
    )
    whole = localspec("export", first, "--json", "--rounds").document["chat"]
    assert whole["turns"][0]["events"][0]["ev"] == "plan"
    assert localspec("export", first, "--rounds").code == 2
    page = tmp_path / "chat.html"
    assert localspec("export", first, "-o", page).code == 0
    assert page.read_text().startswith("<!DOCTYPE html>")
    again = localspec("export", first, "-o", page)
    assert again.code == 8 and "already exists" in again.err
    assert localspec("export", first, "-o", page, "-f").code == 0


def test_an_export_is_imported_once_and_its_numbers_are_told(
    two: tuple[int, int], tmp_path: Path
) -> None:
    file = tmp_path / "chat.json"
    assert localspec("export", "last", "--json", "-o", file).code == 0
    known = localspec("history", "import", file)
    assert (known.code, known.out) == (0, b"")
    assert known.err == "0 chats imported, 1 here already.\n"
    assert localspec("history", "rm", str(two[-1]), "-y").code == 0
    document = localspec("history", "import", file, "--json").document
    (entry,) = document["imported"]
    assert (document["schema"], document["known"], document["empty"]) == (1, 0, 0)
    again = localspec("history", "show", str(entry["id"]), "--json").document["chat"]
    before = json.loads(file.read_text("utf-8"))["chat"]
    for name in before.keys() - {"id"}:
        assert again[name] == before[name]


@pytest.mark.parametrize(
    ("content", "code", "what"),
    [
        (None, 3, "There is no file"),
        (b"not an export", 2, "This is no export of chats"),
        (b"\0", 2, "it is not text"),
        (b"PK\x05\x06" + bytes(18), 2, "no conversations.json"),
    ],
)
def test_what_cannot_be_imported(
    tmp_path: Path, content: bytes | None, code: int, what: str
) -> None:
    file = tmp_path / "x\x1b]0;owned\x07.json"
    if content is not None:
        file.write_bytes(content)
    done = localspec("history", "import", file)
    assert (done.code, done.out) == (code, b"")
    assert what in done.err and not harmful(done.err.encode())


def test_rm(two: tuple[int, int]) -> None:
    assert localspec("history", "rm").code == 2
    assert localspec("history", "rm", str(two[0])).code == 2  # nobody can be asked
    assert localspec("history", "rm", str(two[0]), "99", "-y").code == 3
    done = localspec("history", "rm", str(two[0]), "-y", "--json").document
    assert done == {"schema": 1, "removed": [two[0]], "wiped": True}
    assert localspec("history", "rename", "last", "greeting").code == 0
    assert localspec("history", "rename", "last", " ").code == 2
    assert localspec("history", "list").text.splitlines()[1].endswith("greeting")
    with closing(ChatHistory.open()) as history, closing(history.acquire_lock(two[1])):
        open_ = localspec("history", "rm", "--all", "-y", "--json")
        assert (open_.code, open_.document["error"]["code"]) == (15, "in-use")
    assert localspec("history", "rm", "--all", "-y").text == "1 chat removed.\n"
    assert localspec("history", "rm", "--all", "-y").text == "0 chats removed.\n"


def test_continuing_needs_a_terminal(two: tuple[int, int]) -> None:
    done = localspec("run", "--continue", "-p", "hello")
    assert done.code == 2 and "terminal" in done.err


def kept() -> list[list[tuple[str, str]]]:
    """What another program reads, the last used first."""
    with closing(ChatHistory.open()) as history:
        return [list(turns) for turns in said(history).values()]


def ask(chat: Dialogue, line: str) -> None:
    """The answer itself holds what looks like a prompt."""
    chat.line(line, "tok/s")
    chat.until("\n> ")


@posix
def test_a_chat_is_kept_and_gone_on_with(zoo: Zoo) -> None:
    with Dialogue("run", zoo["chatty"], *GREEDY, "--system", "Be brief.") as chat:
        chat.until("> ")
        for question in ("one", "two"):
            ask(chat, question)
        chat.line("/undo")
        ask(chat, "three")
        chat.line("/set top_k 7")
        chat.type(CTRL_D)
        assert chat.end() == 0
    assert kept() == [[("one", CHAT_TEXT), ("three", CHAT_TEXT)]]
    with Dialogue("run", "--continue") as chat:
        told = chat.until("Anything else?") + chat.until("Anything else?")
        chat.until("\n> ")
        assert "Chat 1, 2 turns: one" in told and "\n> three\n…\n" in told
        shown = chat.line("/show")
        assert "system prompt   Be brief." in shown
        assert "top_k           7" in shown and "temperature     0 " in shown
        ask(chat, "four")
        ask(chat, "/retry")
        with Dialogue("run", "--continue", "1") as second:
            assert second.end() == 15 and "open in another window" in second.said
        chat.line("/new")
        ask(chat, "five")
    assert kept() == [
        [("five", CHAT_TEXT)],
        [("one", CHAT_TEXT), ("three", CHAT_TEXT), ("four", CHAT_TEXT)],
    ]
    document = localspec("history", "show", "1", "--json").document["chat"]
    questions = [turn["question"] for turn in document["turns"]]
    assert questions == ["one", "two", "three", "four", "four"]
    assert len(document["path"]) == 3 and document["system"] == "Be brief."
    whole = localspec("export", "1", "--json", "--rounds").document["chat"]["turns"]
    assert all("round" in {event["ev"] for event in turn["events"]} for turn in whole)


@posix
@pytest.mark.parametrize("how", ["--private", "config"])
def test_a_private_chat(how: str, zoo: Zoo, tmp_path: Path) -> None:
    options = ["--private"] if how == "--private" else []
    if how == "config":
        (tmp_path / "config.toml").write_text("[chats]\nkeep = false\n")
    with Dialogue("run", zoo["parrot"], *GREEDY, *options) as chat:
        chat.until("> ")
        assert HELLO_TEXT in chat.line("a")
        chat.line("/new")
        chat.type(CTRL_D)
        assert chat.end() == 0
    assert not paths.chats_file().exists()


@posix
def test_a_killed_chat_is_there_and_can_be_finished(zoo: Zoo) -> None:
    asked = ("run", zoo["chatter"], *GREEDY, "--max-tokens", "400")
    with Dialogue(*asked) as chat:
        chat.until("> ")
        chat.type("count\r")
        for _ in range(9):
            chat.until("seven eight nine one")
        chat.process.kill()
        assert chat.end() == -signal.SIGKILL
    ((question, answer),) = kept()[0]
    assert question == "count" and len(answer.split()) > 9 * 9 - 64
    assert localspec("history", "show", "--json").document["chat"]["turns"][0][
        "interrupted"
    ]
    with Dialogue("run", "--continue", "last", *GREEDY, "--max-tokens", "400") as chat:
        assert "The last answer was interrupted. Press Enter" in chat.until("it again.")
        chat.until("\n> ")
        chat.line("")
    ((question, whole),) = kept()[0]
    assert question == "count" and whole.startswith(answer) and len(whole) > len(answer)


@pytest.fixture(scope="module")
def recorded(zoo: Zoo) -> Path:
    path = zoo.folder / "recorded.jsonl"
    assert hello(zoo, "--spec", "model", "--events", str(path)).code == 0
    return path


def test_marks_and_words(recorded: Path) -> None:
    done = localspec("replay", recorded)
    assert done.code == 0 and done.text.startswith("parrot (guesses: parrot)\n")
    assert "  0  plain" in done.text and " Hello·" in done.text and "ˢ" in done.text
    assert "7 of 7 guesses right, 3.0 tokens per step" in done.text
    assert done.text.endswith("The model ended the answer.\n") and not harmful(done.out)
    words = localspec("replay", recorded, "--plain")
    assert (
        'no guess. Written by the model: " Hello".' in words.text
        and words.text.isascii()
    )
    assert 'model guessed 5, 5 right: ",", " wor", "ld", "!", "\\n".' in words.text


def test_a_replay_says_what_the_answer_was_compared_with(tmp_path: Path) -> None:
    """A step takes 25 ms for 4 tokens, of which a plain one takes 20 ms."""
    tokens = tuple(ev.Token(1, "x", "accepted") for _ in range(4))
    times = ev.RoundTimes(5.0, 20.0, 0.0)
    rounds = [ev.Round(n, "model", "", 4, 4, tokens, times) for n in range(11)]
    end = with_plain_speed(ev.GenerationFinished("eog"), 50.0)
    path = tmp_path / "answer.jsonl"
    events: tuple[ev.Event, ...] = (*rounds, end)
    lines = [ev.encode(event) for event in events]
    path.write_text("\n".join(lines), encoding="utf-8")

    assert "250 ms instead of 800 ms" in localspec("replay", path).text


def test_an_attacking_file(tmp_path: Path) -> None:
    tokens = tuple(ev.Token(i, text, "plain") for i, text in enumerate(HOSTILE))
    path = tmp_path / "attack.jsonl"
    events: tuple[ev.Event, ...] = (
        ev.EngineReady({}, "\x1b[2Jm", None, (), {}, {}, 1.0),
        ev.Round(
            1, "\x1b]0;x\x07", "", len(tokens), 3, tokens, ev.RoundTimes(1.0, 10.0, 1.0)
        ),
        ev.GenerationFinished("eog", totals={"tokens": "many"}),
    )
    path.write_text("\n".join(ev.encode(event) for event in events), encoding="utf-8")
    for options in ((), ("--plain",)):
        done = localspec("replay", path, *options)
        assert done.code == 0 and not harmful(done.out)


def test_a_damaged_line_is_named_and_another_file_refused(
    recorded: Path, tmp_path: Path
) -> None:
    path = tmp_path / "events.jsonl"
    assert localspec("replay", path).code == 3
    path.write_text("{\n" + recorded.read_text(encoding="utf-8"), encoding="utf-8")
    done = localspec("replay", path)
    assert done.code == 0 and "localspec: Line 1 is damaged: skipped." in done.err
