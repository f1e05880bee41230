"""Imports chats from files into the history: all chats of all files, or none."""

from __future__ import annotations

import re
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from localspec.chat import import_formats
from localspec.chat.history import ChatHistory, ChatMetadata, ChatPair, NewChat
from localspec.chat.import_formats import ImportedChat
from localspec.chat.titles import clean_title, make_title
from localspec.errors import NotFoundError, StorageError, UsageError
from localspec.sanitize import sanitize
from localspec.text_decoding import decode_text
from localspec.units import count, size_limit

_MAX_FILE_BYTES = 512 * 1024 * 1024
"""The most of a file, also in an archive. Its JSON takes several times the memory."""
_MAX_ARCHIVE_ENTRIES = 100_000
_ARCHIVED_EXPORT = re.compile(
    r"(^|/)conversations(-\d+)?\.json$|\.jsonl$", re.IGNORECASE
)
"""The files of an archive that are read: ChatGPT's and llama.cpp's names."""


class ImportReport(Struct, frozen=True):
    chat_ids: tuple[int, ...]  # The ids of the chats that were added.
    n_known: int  # Chats that were here before.
    n_empty: int  # Chats without a message.

    @property
    def summary(self) -> str:
        parts = [f"{count(len(self.chat_ids), 'chat')} imported"]
        if self.n_known:
            parts.append(f"{self.n_known} here already")
        if self.n_empty:
            parts.append(f"{self.n_empty} without messages")
        return f"{', '.join(parts)}."


def import_files(history: ChatHistory, files: Sequence[Path]) -> ImportReport:
    """Read the files, then save all chats in one transaction. Raises LocalspecError."""
    chats: list[ImportedChat] = []
    for file in files:
        chats += _read_file(file)
    filled = [chat for chat in chats if chat.conversation.all_turns]
    # The oldest first, so that the newest is listed first.
    filled.sort(key=lambda chat: chat.updated)
    now = time.time()
    new_chats = [
        NewChat(
            _build_metadata(chat),
            chat.conversation.all_turns,
            created=chat.created or now,
            updated=chat.updated or now,
            pictures=chat.pictures,
        )
        for chat in filled
    ]
    ids = history.import_chats(new_chats)
    added = tuple(chat_id for chat_id in ids if chat_id is not None)
    return ImportReport(
        chat_ids=added,
        n_known=len(ids) - len(added),
        n_empty=len(chats) - len(filled),
    )


def _build_metadata(chat: ImportedChat) -> ChatMetadata:
    conversation = chat.conversation
    title = clean_title(sanitize(chat.title, multiline=False))
    model, draft = chat.pair_refs
    markers = import_formats.THINKING_MARKERS if chat.has_thinking else None
    return ChatMetadata(
        title=title or make_title(conversation),
        seed=conversation.seed,
        system=conversation.system,
        settings=chat.settings,
        pair=ChatPair(model, draft, name=chat.model, thinking=markers),
        head=conversation.head,
        dropped=conversation.dropped,
        turn_count=len(conversation.questions),
        system_since=conversation.system_since,
    )


def _read_file(path: Path) -> Iterator[ImportedChat]:
    name = sanitize(str(path), multiline=False)
    try:
        for text in _read_texts(path, name):
            yield from import_formats.parse_document(text)
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}", error.hint) from error
    except MemoryError as error:
        raise UsageError(f"{name}: it does not fit in memory.") from error


def _read_texts(path: Path, name: str) -> Iterator[str]:
    """The text of a file, or those of the exports in an archive.

    `name`: the path as errors show it.
    """
    try:
        if not path.is_file():
            if path.exists():
                raise UsageError("it is no file.", "Give the file of an export.")
            raise NotFoundError(f"There is no file {name}.", "Check the path.")
        if zipfile.is_zipfile(path):
            yield from _read_archive(path)
            return
        _check_size(path.stat().st_size)
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or "it cannot be opened"
        raise StorageError(
            f"{name} cannot be read: {reason}.", "Check its permissions."
        ) from error
    yield _decode(data)


def _read_archive(path: Path) -> Iterator[str]:
    found = False
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if len(entries) > _MAX_ARCHIVE_ENTRIES:
                raise UsageError(f"it packs more than {_MAX_ARCHIVE_ENTRIES:,} files.")
            for entry in entries:
                if not _ARCHIVED_EXPORT.search(entry.filename):
                    continue
                found = True
                _check_size(entry.file_size)
                with archive.open(entry) as file:
                    # The size that the archive states may be wrong.
                    data = file.read(_MAX_FILE_BYTES + 1)
                _check_size(len(data))
                yield _decode(data)
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        zlib.error,
        EOFError,
    ) as error:
        raise UsageError(
            f"the archive is damaged, or has a password: {error}.", "Export it again."
        ) from error
    if not found:
        raise UsageError(
            "the archive has no conversations.json and no .jsonl file.",
            "Give the archive as ChatGPT or llama.cpp made it.",
        )


def _check_size(n_bytes: int) -> None:
    if n_bytes > _MAX_FILE_BYTES:
        raise UsageError(
            f"it has more than {size_limit(_MAX_FILE_BYTES)}.",
            "Export fewer chats at once.",
        )


def _decode(data: bytes) -> str:
    try:
        text, _ = decode_text(data)
    except ValueError as error:
        raise UsageError(
            "it is not text.", f"Formats: {import_formats.FORMATS}."
        ) from error
    return text
