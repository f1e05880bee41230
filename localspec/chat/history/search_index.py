"""An index of what was said, to find it fast: a file that may be thrown away at any time.

Every three letters that stand together are indexed (SQLite's FTS5), so it finds parts of words and
languages without spaces.  Without FTS5, or where the file cannot be written, all turns are read.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

INDEX_VERSION = 1
_MIN_TERM_LENGTH = 3
"""Letters of a term that the index knows."""
_CHANGED_TURNS = (
    "SELECT key, question, answer, changed FROM turns WHERE changed > ? ORDER BY changed"
)


class SearchIndex:
    """The index of one history's file, beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def find_candidates(
        self, database: sqlite3.Connection, terms: Sequence[str]
    ) -> list[int] | None:
        """Keys of turns that may hold all terms, the latest first; None: it may be any turn."""
        asked = [term for term in terms if len(term) >= _MIN_TERM_LENGTH]
        if not asked:
            return None
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            with closing(sqlite3.connect(self._path, timeout=0.2, isolation_level=None)) as index:
                self._update(database, index)
                match = " ".join('"{}"'.format(term.replace('"', '""')) for term in asked)
                query = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid DESC"
                return [key for (key,) in index.execute(query, (match,))]
        except sqlite3.OperationalError:  # no FTS5; in use
            return None
        except (sqlite3.DatabaseError, OSError):
            self.delete()
            return None

    def delete(self) -> bool:
        """Remove all of it; it grows anew with the next search.  False where it cannot be."""
        for end in ("", "-journal"):
            with suppress(OSError):
                self._path.with_name(self._path.name + end).unlink(missing_ok=True)
        return not self._path.exists()

    def _update(self, database: sqlite3.Connection, index: sqlite3.Connection) -> None:
        """What was said since the last search, or all of another file."""
        index.execute("PRAGMA synchronous = OFF")
        index.execute("BEGIN IMMEDIATE")
        index.execute("CREATE TABLE IF NOT EXISTS seen (name TEXT, clock INTEGER)")
        index.execute(
            "CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 "
            "(said, tokenize = 'trigram case_sensitive 1')"
        )
        (name,) = database.execute("SELECT name FROM state").fetchone()
        row = index.execute("SELECT clock FROM seen WHERE name = ?", (name,)).fetchone()
        if row is None:
            index.execute("DELETE FROM words")
            index.execute("DELETE FROM seen")
            index.execute("INSERT INTO seen VALUES (?, 0)", (name,))
        clock = row[0] if row else 0
        for key, question, answer, changed in database.execute(_CHANGED_TURNS, (clock,)):
            index.execute("DELETE FROM words WHERE rowid = ?", (key,))
            said = f"{question}\n{answer}".lower()
            index.execute("INSERT INTO words (rowid, said) VALUES (?, ?)", (key, said))
            clock = changed
        index.execute("UPDATE seen SET clock = ?", (clock,))
        index.execute("COMMIT")
