"""Chats that outlive the program: one SQLite file, its locks, and an index of its words.

What is promised, and how it is kept: docs/history.md.
"""

from localspec.chat.history.chats import History
from localspec.chat.history.kept import About, Found, Kept, Listed, Pair, Place

__all__ = ["About", "Found", "History", "Kept", "Listed", "Pair", "Place"]
