"""A full-text index of all turns; its file can be deleted at any time.

The index stores trigrams (SQLite FTS5). So it finds parts of words, and text without spaces.
Without FTS5, or if the file cannot be written, a search reads all turns.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

_MIN_TERM_LENGTH = 3
"""The index cannot find shorter terms."""
_CHANGED_TURNS = (
    "SELECT key, question, answer, changed FROM turns WHERE changed > ? ORDER BY changed"
)


class SearchIndex:
    def __init__(self, path: Path) -> None:
        self._path = path

    def find_candidates(
        self, database: sqlite3.Connection, terms: Sequence[str]
    ) -> list[int] | None:
        """Return the keys of turns that may match all terms, latest first; None means any turn."""
        indexed_terms = [term for term in terms if len(term) >= _MIN_TERM_LENGTH]
        if not indexed_terms:
            return None
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            with closing(sqlite3.connect(self._path, timeout=0.2, isolation_level=None)) as index:
                self._update(database, index)
                match = " ".join('"{}"'.format(t.replace('"', '""')) for t in indexed_terms)
                query = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid DESC"
                return [key for (key,) in index.execute(query, (match,))]
        except sqlite3.OperationalError:  # no FTS5; in use
            return None
        except (sqlite3.DatabaseError, OSError):
            self.delete()
            return None

    def delete(self) -> bool:
        """Delete the index; the next search rebuilds it. Returns False if that failed."""
        for suffix in ("", "-journal"):
            with suppress(OSError):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        return not self._path.exists()

    def _update(self, database: sqlite3.Connection, index: sqlite3.Connection) -> None:
        """Index the turns changed since the last search, or all turns of another database."""
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
            text = f"{question}\n{answer}".lower()
            index.execute("INSERT INTO words (rowid, said) VALUES (?, ?)", (key, text))
            clock = changed
        index.execute("UPDATE seen SET clock = ?", (clock,))
        index.execute("COMMIT")
