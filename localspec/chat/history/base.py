"""The SQLite file of all chats: opened with care, read and written whole or not at all."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from localspec.chat.history import mending, tables
from localspec.clean import clean
from localspec.errors import AccessError, InUseError, LocalspecError
from localspec.protocol.events import Notice

Work = Callable[[sqlite3.Connection], "T"]
T = TypeVar("T")


class Base:
    """One connection, for all threads of this process."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        """Where nothing can be written it is opened for reading, and `refusal` says why.

        `create`: a file that is not there is made; else there are no chats.  Raises AccessError
        where there is nothing to read either.
        """
        self.path = path
        self.refusal: LocalspecError | None = None
        self.notices: list[Notice] = []
        """What a person should know; whoever tells it takes it out."""
        self._lock = threading.RLock()
        self._inode = 0
        self._connection = self._opened(create)

    def close(self) -> None:
        with self._lock, suppress(sqlite3.Error):
            self._connection.close()

    def read(self, work: Work[T]) -> T:
        """What `work` finds in one unchanging state.  Raises LocalspecError."""
        return self._do(work, "BEGIN")

    def write(self, work: Work[T]) -> T:
        """All of it or nothing, on the disk when it returns.  Raises LocalspecError."""
        if self.refusal is not None:
            raise self.refusal
        return self._do(work, "BEGIN IMMEDIATE")

    def wipe(self) -> bool:
        """Leave nothing of what was removed; False while another process is reading it."""
        with self._lock:
            try:
                self._connection.execute("VACUUM")
                (busy, *_) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.Error:
                return False
        return not busy

    def _do(self, work: Work[T], begin: str) -> T:
        with self._lock:
            try:
                self._follow()
                with _transaction(self._connection, begin) as connection:
                    return work(connection)
            except tables.FAILURES as error:
                if self.refusal is not None or not tables.damaged(error):
                    raise told(error, self.path) from error
            self._mend()
            try:
                with _transaction(self._connection, begin) as connection:
                    return work(connection)
            except tables.FAILURES as error:
                raise told(error, self.path) from error

    # --- opening --------------------------------------------------------------------------

    def _opened(self, create: bool) -> sqlite3.Connection:
        self.refusal = None
        if not create and not self.path.exists():
            return self._of_nothing()
        try:
            return self._for_writing()
        except (OSError, *tables.FAILURES) as error:
            self.refusal = told(error, self.path)
        except InUseError as error:
            self.refusal = error
        if not self.path.exists():
            raise self.refusal
        try:
            return tables.reading(self.path)
        except tables.FAILURES as error:
            raise told(error, self.path) from error

    def _of_nothing(self) -> sqlite3.Connection:
        self.refusal = AccessError("There are no chats.", "Chats begin with: localspec run")
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        tables.make(connection)
        return connection

    def _for_writing(self) -> sqlite3.Connection:
        make_private(self.path)
        try:
            connection = tables.writing(self.path)
        except tables.FAILURES as error:
            if not tables.damaged(error):
                raise
            self._tell(mending.mend(self.path))
            connection = tables.writing(self.path)
        self._inode = self.path.stat().st_ino
        return connection

    def _follow(self) -> None:
        """A file that was put in the place of ours, or ours that was removed, is looked at anew."""
        if self.refusal is not None:
            return
        try:
            same = self.path.stat().st_ino == self._inode
        except OSError:
            same = False
        if not same:
            self._again()

    def _mend(self) -> None:
        self._connection.close()
        try:
            self._tell(mending.mend(self.path))
        except (OSError, *tables.FAILURES) as error:
            self._again()
            raise told(error, self.path) from error
        self._again()

    def _again(self) -> None:
        self._connection.close()
        self._connection = self._opened(create=True)
        if self.refusal is not None:
            raise self.refusal

    def _tell(self, mended: mending.Mended | None) -> None:
        if mended is None:
            return
        where = clean(str(mended.aside), multiline=False)
        words = f"The file of chats was damaged. {mended.chats} chats were saved from it."
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


def make_private(path: Path) -> None:
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


def told(error: Exception, path: Path) -> LocalspecError:
    """An error of the system or of SQLite, for a person."""
    where = clean(str(path), multiline=False)
    if isinstance(error, OSError):
        what = error.strerror or "it cannot be opened"
        return AccessError(f"{where} cannot be written: {what}.", "--data-dir names another place.")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return InUseError("Another localspec is writing chats for long.", "Try again.")
    hints = {
        sqlite3.SQLITE_FULL: "Make room on the disk.",
        sqlite3.SQLITE_IOERR: "Is the disk full, or gone?",
    }
    return AccessError(
        f"{where} cannot be used: {error}.", hints.get(code, "--data-dir names another place.")
    )
