"""The SQLite file of all chats: opened with care, read and written whole or not at all."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from localspec.chat.history import repair, schema
from localspec.errors import InUseError, LocalspecError, StorageError
from localspec.protocol.events import Notice
from localspec.sanitize import sanitize

Transaction = Callable[[sqlite3.Connection], "T"]
T = TypeVar("T")


class HistoryDatabase:
    """One connection, for all threads of this process."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        """Where nothing can be written it is opened for reading, and `refusal` says why.

        `create`: a file that is not there is made; else there are no chats.  Raises AccessError
        where there is nothing to read either.
        """
        self.path = path
        self.write_error: LocalspecError | None = None
        self.notices: list[Notice] = []
        """What a person should know; whoever tells it takes it out."""
        self._lock = threading.RLock()
        self._inode = 0
        self._connection = self._open(create)

    def close(self) -> None:
        with self._lock, suppress(sqlite3.Error):
            self._connection.close()

    def run_read(self, work: Transaction[T]) -> T:
        """What `work` finds in one unchanging state.  Raises LocalspecError."""
        return self._run_transaction(work, "BEGIN")

    def run_write(self, work: Transaction[T]) -> T:
        """All of it or nothing, on the disk when it returns.  Raises LocalspecError."""
        if self.write_error is not None:
            raise self.write_error
        return self._run_transaction(work, "BEGIN IMMEDIATE")

    def vacuum(self) -> bool:
        """Leave nothing of what was removed; False while another process is reading it."""
        with self._lock:
            try:
                self._connection.execute("VACUUM")
                (busy, *_) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.Error:
                return False
        return not busy

    def _run_transaction(self, work: Transaction[T], begin: str) -> T:
        with self._lock:
            try:
                self._reopen_if_replaced()
                with _transaction(self._connection, begin) as connection:
                    return work(connection)
            except schema.DATABASE_ERRORS as error:
                if self.write_error is not None or not schema.is_corrupt(error):
                    raise to_user_error(error, self.path) from error
            self._repair()
            try:
                with _transaction(self._connection, begin) as connection:
                    return work(connection)
            except schema.DATABASE_ERRORS as error:
                raise to_user_error(error, self.path) from error

    # --- opening --------------------------------------------------------------------------

    def _open(self, create: bool) -> sqlite3.Connection:
        self.write_error = None
        if not create and not self.path.exists():
            return self._open_empty()
        try:
            return self._open_for_writing()
        except (OSError, *schema.DATABASE_ERRORS) as error:
            self.write_error = to_user_error(error, self.path)
        except InUseError as error:
            self.write_error = error
        if not self.path.exists():
            raise self.write_error
        try:
            return schema.open_read_only(self.path)
        except schema.DATABASE_ERRORS as error:
            raise to_user_error(error, self.path) from error

    def _open_empty(self) -> sqlite3.Connection:
        self.write_error = StorageError("There are no chats.", "Chats begin with: localspec run")
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        schema.create_tables(connection)
        return connection

    def _open_for_writing(self) -> sqlite3.Connection:
        create_private_file(self.path)
        try:
            connection = schema.open_for_writing(self.path)
        except schema.DATABASE_ERRORS as error:
            if not schema.is_corrupt(error):
                raise
            self._add_repair_notice(repair.repair_file(self.path))
            connection = schema.open_for_writing(self.path)
        self._inode = self.path.stat().st_ino
        return connection

    def _reopen_if_replaced(self) -> None:
        """A file that was put in the place of ours, or ours that was removed, is looked at anew."""
        if self.write_error is not None:
            return
        try:
            same = self.path.stat().st_ino == self._inode
        except OSError:
            same = False
        if not same:
            self._reopen()

    def _repair(self) -> None:
        self._connection.close()
        try:
            self._add_repair_notice(repair.repair_file(self.path))
        except (OSError, *schema.DATABASE_ERRORS) as error:
            self._reopen()
            raise to_user_error(error, self.path) from error
        self._reopen()

    def _reopen(self) -> None:
        self._connection.close()
        self._connection = self._open(create=True)
        if self.write_error is not None:
            raise self.write_error

    def _add_repair_notice(self, repaired: repair.HistoryRepair | None) -> None:
        if repaired is None:
            return
        where = sanitize(str(repaired.damaged_copy), multiline=False)
        words = (
            f"The file of chats was damaged. {repaired.recovered_chats} chats were saved from it."
        )
        self.notices.append(Notice("warning", "history-mended", words, f"It is kept as {where}"))


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[sqlite3.Connection]:
    connection.execute(begin)
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        raise


def create_private_file(path: Path) -> None:
    """The file and its folder, for their person alone, from the first moment.  Raises OSError."""
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if os.name == "posix":
        about = path.parent.stat()
        if about.st_uid not in (os.geteuid(), 0) and os.geteuid() != 0:
            raise PermissionError(1, "it belongs to somebody else", str(path.parent))
        if about.st_mode & 0o077:
            path.parent.chmod(0o700)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def to_user_error(error: Exception, path: Path) -> LocalspecError:
    """An error of the system or of SQLite, for a person."""
    where = sanitize(str(path), multiline=False)
    if isinstance(error, OSError):
        what = error.strerror or "it cannot be opened"
        return StorageError(
            f"{where} cannot be written: {what}.", "--data-dir names another place."
        )
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return InUseError("Another localspec is writing chats for long.", "Try again.")
    hints = {
        sqlite3.SQLITE_FULL: "Make room on the disk.",
        sqlite3.SQLITE_IOERR: "Is the disk full, or gone?",
    }
    return StorageError(
        f"{where} cannot be used: {error}.", hints.get(code, "--data-dir names another place.")
    )
