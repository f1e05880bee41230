"""Finds files for `@` in the message field; threads walk and search."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from textual.message_pump import MessagePump

from localspec.chat.argument_completion import complete_path
from localspec.chat.file_search import FileIndex, find_files
from localspec.errors import LocalspecError
from localspec.tui.scheduling import LatestOnlyWorker, run_on_thread

_FRESH_SECONDS = 15.0
"""After a walk has ended, what it found is used for so long."""
_PATH_BEGINNINGS = ("/", "~", ".")
"""Of a query that is a path, and is completed folder by folder."""


class FileFinder:
    """`search` answers through `show`, which is called between two messages of `pump`."""

    def __init__(
        self, pump: MessagePump, show: Callable[[str, Sequence[str]], None]
    ) -> None:
        """`show` receives the query and the paths."""
        self._pump = pump
        self._show = show
        self._folder = Path.cwd()
        self._index = FileIndex(self._folder)
        self._is_walking = False
        self._walk_ended = float("-inf")
        self._query = ""
        self._worker = LatestOnlyWorker(pump, "file search")

    def search(self, query: str) -> None:
        self._query = query
        is_path = query.startswith(_PATH_BEGINNINGS)
        if not is_path:
            self._walk_if_old()

        def work() -> None:
            self._pump.call_later(self._show, query, self.find_now(query))

        self._worker.submit(work, failed=_ignore)

    def find_now(self, query: str) -> list[str]:
        """What matches among the files that are known so far."""
        if query.startswith(_PATH_BEGINNINGS):
            return complete_path(query)
        return find_files(self._index.files, query)

    def describe_gap(self, query: str) -> str:
        """What a list of files does not have; empty if it has all that match."""
        if query.startswith(_PATH_BEGINNINGS) or not self._index.is_cut:
            return ""
        n_files = len(self._index.files)
        return f"… only the nearest {n_files:,} files are found; @./ lists any folder"

    def _walk_if_old(self) -> None:
        is_fresh = time.monotonic() - self._walk_ended < _FRESH_SECONDS
        if self._is_walking or is_fresh:
            return
        self._is_walking = True
        index = FileIndex(self._folder)
        if not self._index.files:
            self._index = index  # What is found can be searched at once.

        def work() -> None:
            for _ in index.walk():
                self._pump.call_later(self._search_again)
            self._pump.call_later(self._end_walk, index)

        run_on_thread(self._pump, "file walk", work, failed=self._fail_walk)

    def _search_again(self) -> None:
        self.search(self._query)

    def _end_walk(self, index: FileIndex) -> None:
        self._index = index
        self._is_walking = False
        self._walk_ended = time.monotonic()
        self._search_again()

    def _fail_walk(self, _: LocalspecError) -> None:
        """Without the files a path can still be typed."""
        self._is_walking = False
        self._walk_ended = time.monotonic()


def _ignore(_: LocalspecError) -> None:
    """A search that fails lists nothing."""
