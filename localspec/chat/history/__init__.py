"""Chats that outlive the program: one SQLite file, its locks, and an index of its words.

What is promised, and how it is kept: docs/history.md.
"""

from localspec.chat.history.records import (
    ChatListEntry,
    ChatLocation,
    ChatMetadata,
    ChatPair,
    SavedChat,
    SearchHit,
)
from localspec.chat.history.store import ChatHistory

__all__ = [
    "ChatHistory",
    "ChatListEntry",
    "ChatLocation",
    "ChatMetadata",
    "ChatPair",
    "SavedChat",
    "SearchHit",
]
