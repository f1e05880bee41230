"""Titles of chats: made of the words of the first question."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.conversation import Attachment, Conversation
from localspec.chat.history import ChatHistory
from localspec.chat.titles import make_title, title_of_question
from tests.chat.saved_chats import put

TITLES = {
    # Instructions that say nothing: the code is the title.
    "Explain this code: ```python\nfor i in range(3):\n    print(i)\n```": "for i in range(3)",
    "Explain this code: ```python for i in range(3): print(i)```": (
        "for i in range(3): print(i)"
    ),
    "Hi! What does this do?\n\n```js\nconst x = 1;\n```": "const x = 1",
    "```\nx=1\n```": "x=1",
    "Explain this code:\n~~~\ndef f(x):\n": "def f(x)",
    "Summarise this:\n\nThe cat sat on the mat.": "The cat sat on the mat",
    # Greetings and courtesy go.
    "Hello there, why is the sky blue?": "why is the sky blue?",
    "Hey, could you please write a haiku about rain?": "Write a haiku about rain",
    "Guten Morgen! Kannst du mir Quarks erklären?": "Mir Quarks erklären",
    "I'd like you to act as a pirate.": "Act as a pirate",
    # An instruction that says something is the title, without the text that it is about.
    "Fix the spelling mistake in this text:\n\nThe color is gray.": (
        "Fix the spelling mistake in this text"
    ),
    "Please translate this to German:\n\nHello": "Translate this to German",
    # The first sentence, with its question mark.
    "Why does my loop allocate? It should not.": "Why does my loop allocate?",
    "e.g. this one. And more.": "e.g. this one",
    "# A heading\nand text": "A heading",
    # Too long: cut between words.
    "Letter to the landlord about the heating that has not worked since Tuesday": (
        "Letter to the landlord about the heating that has not…"
    ),
    "hello \x1b[2J": "hello",
    # What has no other words is its own title.
    "Hi": "Hi",
    "Explain this code": "Explain this code",
    "???": "???",
    "def fibonacci(n):": "def fibonacci(n)",
    "大規模言語モデルとは何ですか？例も": "大規模言語モデルとは何ですか？",
}


@pytest.mark.parametrize(("question", "title"), TITLES.items())
def test_a_title_is_the_first_words_that_mean_something(
    question: str, title: str
) -> None:
    assert title_of_question(question) == title


@given(st.text(st.sampled_from("ab Hi.:?!\n`~#é漢") | st.characters(), max_size=300))
def test_any_question_with_words_has_a_short_title_on_one_line(question: str) -> None:
    title = title_of_question(question)
    assert len(title) <= 60
    assert title == " ".join(title.split())
    if any(character.isalnum() for character in question):
        assert title


def test_a_chat_without_words_has_no_title_yet() -> None:
    chat = Conversation(1)
    assert make_title(chat) == ""
    chat.ask("  ")
    chat.ask(" a\n b " + "c" * 300)
    assert make_title(chat) == "b " + "c" * 57 + "…"


def test_files_are_the_title_of_a_question_without_words_of_its_own() -> None:
    file = Attachment("notes.txt", "milk")
    for question, title in (
        ("", "notes.txt"),
        ("Summarise this", "notes.txt"),
        ("Which drink is missing?", "Which drink is missing?"),
    ):
        chat = Conversation(1)
        chat.ask(question, (file,))
        assert make_title(chat) == title


# --- chats that were saved before
# ------------------------------------------------------------------------


def save_with_title(history: ChatHistory, path: Path, question: str, title: str) -> int:
    chat = put(history, (question, "Yes.")).chat_id
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE chats SET title = ? WHERE id = ?", (title, chat))
        database.commit()
    return chat


def test_the_title_of_an_old_chat_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite"
    question = "Explain this code: ```python\nfor i in range(3):\n    print(i)\n```"
    with closing(ChatHistory.open(path)) as history:
        chat = save_with_title(history, path, question, " ".join(question.split()))
        assert history.find_entry(chat).title == "for i in range(3)"
        assert [hit.turn for hit in history.search("range")] == [None, 1]


def test_a_title_that_a_person_gave_stays(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite"
    with closing(ChatHistory.open(path)) as history:
        chat = put(history, ("Explain this code: x = 1", "Yes.")).chat_id
        history.rename_chat(chat, "Hello! Explain this code: mine")
        assert history.find_entry(chat).title == "Hello! Explain this code: mine"
