"""What this process does with a history keeps the locks of its open connections.

On POSIX, closing any descriptor of a file ends all locks of the process on that file. A
second localspec that closes the history then takes itself for the last one and deletes
the write-ahead log that is in use: what the first one writes afterwards is lost.
"""

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from localspec import paths, sqlite_damage
from localspec.chat.history import ChatHistory
from localspec.doctor import checks
from localspec.tui import saved_chats
from tests.chat.saved_chats import put

COUNT_CHATS = """
import sys
from contextlib import closing
from pathlib import Path
from localspec.chat.history import ChatHistory
with closing(ChatHistory.open(Path(sys.argv[1]))) as history:
    print(len(history.list_chats()))
"""


def count_chats(path: Path) -> int:
    """As another localspec counts them, which then closes the history."""
    words = [sys.executable, "-c", COUNT_CHATS, str(path)]
    done = subprocess.run(words, check=True, capture_output=True)
    return int(done.stdout)


def read_header(path: Path) -> None:
    sqlite_damage.has_unknown_write_version(path)


def open_again(path: Path) -> None:
    with closing(ChatHistory.open(path)) as history:
        history.list_chats()


def search(path: Path) -> None:
    with closing(ChatHistory.open(path)) as history:
        assert history.search("Africa")


def check(path: Path) -> None:
    assert list(checks.check_chats())
    assert list(checks.check_disk())


def export(path: Path) -> None:
    with closing(ChatHistory.open(path)) as history:
        saved_chats.export_chat(history, 1, str(path.parent / "chat.md"))


ACTS: dict[str, Callable[[Path], None]] = {
    "nothing": lambda path: None,
    "read the header": read_header,
    "open it again": open_again,
    "search": search,
    "check": check,
    "export": export,
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_chats_are_kept_beside_a_second_program(act: Callable[[Path], None]) -> None:
    with closing(ChatHistory.open()) as history:
        path = paths.chats_file()
        put(history, ("Where are elephants?", "In Africa"))
        act(path)

        assert count_chats(path) == 1
        put(history, ("And lions?", "There, too"))

        assert count_chats(path) == 2
