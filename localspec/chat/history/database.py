"""The SQLite database of all chats: opening, transactions, repair."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from localspec import sqlite_damage
from localspec.chat.history import repair, schema
from localspec.errors import InUseError, LocalspecError, NotFoundError, StorageError
from localspec.protocol.events import Notice
from localspec.sanitize import sanitize

Transaction = Callable[[sqlite3.Connection], "T"]
T = TypeVar("T")


class HistoryDatabase:
    """One connection, shared by all threads of this process."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        """Open the file.

        If it cannot be written, it is opened read-only and `write_error` says why.
        Without `create`, a missing file counts as an empty history. Raises
        LocalspecError if the file cannot be read either.
        """
        self.path = path
        self.write_error: LocalspecError | None = None
        self.notices: list[Notice] = []
        """Notices for the user. The caller that shows them removes them."""
        self._lock = threading.RLock()
        self._inode = 0
        self._connection = self._open(create=create)

    def close(self) -> None:
        with self._lock, suppress(sqlite3.Error):
            self._connection.close()

    def run_read(self, work: Transaction[T]) -> T:
        """Run `work` on one snapshot of the database. Raises LocalspecError."""
        return self._run_transaction(work, begin="BEGIN")

    def run_write(self, work: Transaction[T]) -> T:
        """Run `work` as one durable transaction. Raises LocalspecError."""
        if self.write_error is not None:
            raise self.write_error
        return self._run_transaction(work, begin="BEGIN IMMEDIATE")

    def vacuum(self) -> bool:
        """Overwrite deleted data.

        Returns False if another process is reading the file.
        """
        checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)"
        with self._lock:
            try:
                self._connection.execute("VACUUM")
                is_busy, *_ = self._connection.execute(checkpoint).fetchone()
            except sqlite3.Error:
                return False
        return not is_busy

    def _run_transaction(self, work: Transaction[T], *, begin: str) -> T:
        """Run `work`; if the file is found damaged, repair it and run `work` again."""
        with self._lock:
            try:
                self._reopen_if_replaced()
                with _transaction(self._connection, begin) as connection:
                    return work(connection)
            except sqlite_damage.DATABASE_ERRORS as error:
                is_damage = sqlite_damage.is_damage(error, self.path)
                if self.write_error is not None or not is_damage:
                    raise to_user_error(error, self.path) from error
            self._repair()
            try:
                with _transaction(self._connection, begin) as connection:
                    return work(connection)
            except sqlite_damage.DATABASE_ERRORS as error:
                raise to_user_error(error, self.path) from error

    def _open(self, *, create: bool) -> sqlite3.Connection:
        self.write_error = None
        if not create and not os.path.exists(self.path):
            self.write_error = NotFoundError(
                "There are no chats yet.", "Start one: localspec run"
            )
            return _open_empty()
        try:
            return self._open_for_writing()
        except (OSError, *sqlite_damage.DATABASE_ERRORS) as error:
            self.write_error = to_user_error(error, self.path)
        except InUseError as error:
            self.write_error = error
        # Opening a pipe would wait until another program writes to it.
        if not os.path.isfile(self.path):
            raise self.write_error
        try:
            return schema.open_read_only(self.path)
        except sqlite_damage.DATABASE_ERRORS as error:
            if sqlite_damage.is_damage(error, self.path):
                # It could not be repaired, or its tables could not be made: the disk
                # is full, say.
                raise self.write_error from error
            raise to_user_error(error, self.path) from error

    def _open_for_writing(self) -> sqlite3.Connection:
        create_private_file(self.path)
        try:
            connection = schema.open_for_writing(self.path)
        except sqlite_damage.DATABASE_ERRORS as error:
            if not sqlite_damage.is_damage(error, self.path):
                raise
            self._add_repair_notice(repair.repair_file(self.path))
            connection = schema.open_for_writing(self.path)
        self._inode = self.path.stat().st_ino
        return connection

    def _reopen_if_replaced(self) -> None:
        """Another process may have repaired the file, and so replaced it."""
        if self.write_error is not None:
            return
        with suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                return
        self._reopen()

    def _repair(self) -> None:
        self._connection.close()
        try:
            self._add_repair_notice(repair.repair_file(self.path))
        except (OSError, *sqlite_damage.DATABASE_ERRORS) as error:
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
        copy = sanitize(str(repaired.damaged_copy), multiline=False)
        n = repaired.recovered_chats
        recovered = "1 chat was recovered" if n == 1 else f"{n} chats were recovered"
        message = f"The chat history was damaged. {recovered}."
        hint = f"The damaged file is saved as {copy}"
        self.notices.append(Notice("warning", "history-repaired", message, hint))


def _open_empty() -> sqlite3.Connection:
    connection = sqlite3.connect(
        ":memory:", isolation_level=None, check_same_thread=False
    )
    schema.create_tables(connection)
    return connection


@contextmanager
def _transaction(
    connection: sqlite3.Connection, begin: str
) -> Iterator[sqlite3.Connection]:
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
    """Create the file and its folder, never readable by other users. Raises OSError."""
    path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if os.name == "posix":
        folder = path.parent.stat()
        is_own = folder.st_uid in (os.geteuid(), 0)
        is_root = os.geteuid() == 0
        if not is_own and not is_root:
            message = "it belongs to another user"
            raise PermissionError(errno.EPERM, message, str(path.parent))
        if folder.st_mode & 0o077:
            path.parent.chmod(0o700)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        _check_writable(path)


def _check_writable(path: Path) -> None:
    """Raise OSError if the file is none that can be read and written.

    The file is not opened for that: closing it would end the locks of the connections
    that this process has (see `sqlite_damage._read_beginning`).
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if not os.access(path, os.R_OK | os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def to_user_error(error: Exception, path: Path) -> LocalspecError:
    """Convert an OSError or a SQLite error into an error with a message and a hint."""
    shown = sanitize(str(path), multiline=False)
    other_folder = "Use --data-dir for another folder."
    if isinstance(error, OSError):
        reason = error.strerror or "it cannot be opened"
        if error.filename is not None:  # It may be the lock or the folder.
            shown = sanitize(str(error.filename), multiline=False)
        return StorageError(f"{shown} cannot be written: {reason}.", other_folder)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return InUseError("Another localspec is still writing chats.", "Try again.")
    hint = other_folder
    if code == sqlite3.SQLITE_FULL:
        hint = "Free some disk space."
    elif code == sqlite3.SQLITE_IOERR:
        hint = "Is the disk full, or was it removed?"
    return StorageError(f"{shown} cannot be used: {error}.", hint)
