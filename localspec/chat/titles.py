"""Titles of chats: by default, what the first question is about."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from localspec.chat.conversation import Conversation, Turn
from localspec.sanitize import sanitize

_MAX_LENGTH = 200  # Characters of a title.
_MAX_MADE_LENGTH = 60  # Characters of a title that is made of a question.
_MAX_READ = 4000
"""Characters of a question that are read for its title; a code block may be long."""

_FENCE = re.compile(r"(`{3,}|~{3,})(.*?)(?:\1|\Z)", re.DOTALL)
_LANGUAGES = (
    "bash|c|c\\+\\+|cpp|cs|css|go|html|java|javascript|js|json|php|py|python|ruby|rust|sh|"
    "shell|sql|text|toml|ts|typescript|xml|yaml"
)
_LANGUAGE = re.compile(rf"[ \t]*[\w+#.-]*[ \t]*\n|(?:{_LANGUAGES})\s+", re.IGNORECASE)
"""After the fence: any word if the line ends there, else only a known language."""
_SENTENCE_END = re.compile(
    r"(?<=\w\w[.!?:;])\s+|(?<=[)\]\"'][.!?:;])\s+|\n+|(?<=[。！？：])"
)
_MARKUP = re.compile(r"^\s*(?:#+|>+|[-*•]|\d+[.)])\s+|[`*]")
_GREETING = re.compile(
    r"^(?:(?:hi|hello|hey|hallo|hola|bonjour|salut|ciao|moin|servus|"
    r"good (?:morning|afternoon|evening|day)|guten (?:morgen|tag|abend))"
    r"(?: there| everyone| again)?[\s,.!:;–-]+)+",
    re.IGNORECASE,
)
_COURTESY = re.compile(
    r"^(?:please[,\s]+|(?:can|could|would|will) you(?: please)?\s+|"
    r"i(?: would|'d) like you to\s+|i want you to\s+|(?:bitte|kannst du|können sie)\s+)+",
    re.IGNORECASE,
)
_EMPTY_WORDS = frozenset([
    "a", "an", "and", "answer", "any", "are", "at", "be", "below", "check", "code",
    "describe", "do", "does", "explain", "find", "fix", "following", "for", "from",
    "function", "give", "happens", "help", "here", "how", "i", "improve", "in", "is",
    "it", "its", "line", "lines", "look", "me", "mean", "means", "mistake", "my", "of",
    "on", "one", "please", "program", "review", "rewrite", "script", "see", "shorten",
    "snippet", "summarise", "summarize", "tell", "text", "thank", "thanks", "that",
    "the", "then", "these", "this", "those", "to", "translate", "understand", "us",
    "what", "when", "why", "with", "work", "works", "write", "wrong", "you", "your",
    "bitte", "das", "dem", "den", "der", "die", "diesen", "dieser", "dieses", "erklär",
    "erkläre", "folgenden", "macht", "mir", "tut", "was",
])  # fmt: skip
"""A sentence of these words alone is no title, such as `Explain this code:`."""


def make_title(conversation: Conversation) -> str:
    """The title by the first question, or by the names of its files and pictures."""
    for turn in conversation.turns or conversation.all_turns:
        title = _title_of(turn)
        if title:
            return title
    return ""


def _title_of(turn: Turn) -> str:
    title = title_of_question(turn.question)
    names = ", ".join(turn.file_names)
    if names and not _means_something(title):  # "Summarise this", with a file.
        title = names
    return clean_title(title)


def clean_title(title: str) -> str:
    """The title on one line, and no longer than one may be."""
    return " ".join(title.split())[:_MAX_LENGTH]


def title_of_question(question: str) -> str:
    """The first sentence that says what the chat is about, without greetings.

    Of "Hi! Explain this code:", followed by a code block, it is the first line of the
    code. Of "Can you explain recursion? I am five." it is "Explain recursion".
    """
    question = sanitize(question[:_MAX_READ])
    fallback = ""
    for piece in map(_clean, _pieces(question)):
        if _means_something(piece):
            return _shorten(piece)
        fallback = fallback or piece
    return _shorten(fallback or " ".join(question.split()))


@lru_cache(maxsize=20_000)
def replace_old_title(title: str, first_question: str) -> str:
    """The title of a saved chat.

    Earlier versions saved the beginning of the first question. It is made anew; a title
    that a person gave is another text, and stays.
    """
    beginning = " ".join(first_question[: 4 * _MAX_LENGTH].split())
    if not title or beginning[:_MAX_LENGTH] != title:
        return title
    return title_of_question(first_question)


def _pieces(question: str) -> Iterator[str]:
    """The sentences of the text, then the lines of its code blocks."""
    yield from _SENTENCE_END.split(_FENCE.sub("\n", question))
    for fence in _FENCE.finditer(question):
        yield from _LANGUAGE.sub("", fence[2], count=1).splitlines()


def _clean(piece: str) -> str:
    piece = " ".join(_MARKUP.sub("", piece).split())
    without_greeting = _GREETING.sub("", f"{piece} ").strip()
    request = _COURTESY.sub("", without_greeting)
    if request != without_greeting:
        request = request[:1].upper() + request[1:].removesuffix("?")
    return request.rstrip(" .:,;!{")


def _means_something(piece: str) -> bool:
    words = re.findall(r"[^\W_]+", piece.lower())
    return any(word not in _EMPTY_WORDS for word in words)


def _shorten(piece: str) -> str:
    """At most `_MAX_MADE_LENGTH` characters, cut between two words if possible."""
    if len(piece) <= _MAX_MADE_LENGTH:
        return piece
    cut = piece[: _MAX_MADE_LENGTH - 1]
    begun, space, _ = cut.rpartition(" ")
    if space and len(begun) > _MAX_MADE_LENGTH // 2:
        cut = begun
    return f"{cut.rstrip(' .:,;')}…"
