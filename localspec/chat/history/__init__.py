"""Saved chats: one SQLite file, its locks and its search index.

Guarantees: docs/history.md.
"""

from localspec.chat.history.records import (
    ChatListEntry,
    ChatLocation,
    ChatMetadata,
    ChatPair,
    NewChat,
    SavedChat,
    SearchHit,
    name_answers,
    name_chat_model,
    name_models,
)
from localspec.chat.history.store import ChatHistory
