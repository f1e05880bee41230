"""Documents that go with a question: how long they are, and which parts have room."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from localspec.chat.conversation import Attachment, PictureAttachment
from localspec.chat.front_end import CommandResult
from localspec.chat.session import ChatSession
from localspec.documents.document import Document, PartRange, PartSelection
from localspec.documents.reading import FileRequest, Scan, ScannedDocumentError
from localspec.errors import UsageError
from localspec.launch import sight
from localspec.models.pictures import MAX_REQUEST_PICTURES
from localspec.sanitize import sanitize
from localspec.units import count, short_count

_ROOM_SHARE = 0.9
"""Of what is left: sizes are estimates, and the question needs room, too."""
_MAX_PART_TITLE = 60
NO_FILES = "No files are attached."


class DocumentPart(Struct, frozen=True):
    """A part as a list shows it."""

    number: int
    title: str  # Its title, or its first words.
    n_tokens: int  # About.


class DocumentSize(Struct, frozen=True):
    """How long a document is, against what is left of the context."""

    n_tokens: int  # About.
    n_left: int | None
    """After the files that are attached already; None if no model is loaded."""

    @property
    def is_too_long(self) -> bool:
        return self.n_left is not None and self.n_tokens > self.n_left

    @property
    def text(self) -> str:
        tokens = f"about {count_short(self.n_tokens, 'token')}"
        if self.n_left is None:
            return tokens
        return f"{tokens}, {short_count(max(0, self.n_left))} left"


def count_short(n: int, noun: str) -> str:
    """1 token, 950 tokens, 1.2k tokens."""
    return f"1 {noun}" if n == 1 else f"{short_count(n)} {noun}s"


def measure(session: ChatSession, document: Document) -> DocumentSize:
    return DocumentSize(session.estimate_text(document.text), _count_left(session))


def _count_left(session: ChatSession) -> int | None:
    """What the files and pictures that are attached already leave of the context."""
    left = session.tokens_left
    if left is None:
        return None
    return left - session.estimate_tokens("")


def needs_choice(
    session: ChatSession, request: FileRequest, document: Document
) -> bool:
    """Whether somebody has to choose parts, before any of them is attached.

    Parts that were chosen are attached whatever their size: it is an estimate.
    """
    if request.selection is not None:
        return False
    return request.is_question or measure(session, document).is_too_long


def attach(session: ChatSession, document: Document) -> CommandResult:
    """Add the document to the next question."""
    size = measure(session, document)
    label = document.label
    session.add_attachment(Attachment(label, document.text))
    if document.is_whole:
        label = f"{label}, {_count_parts(document)}"
    if document.note:
        label = f"{label}, {document.note}"
    sentences = [f"Attached to your next message: {label}.", f"A{size.text[1:]}."]
    if size.is_too_long:
        sentences.append("It may be too long.")
    return CommandResult(" ".join(sentences))


def _count_parts(document: Document) -> str:
    if document.unit == "line":
        return count_short(document.n_parts, "line")
    return count(document.n_parts, document.unit)


def list_parts(session: ChatSession, document: Document) -> list[DocumentPart]:
    titles: Sequence[str] = document.titles or document.parts
    parts = []
    for i, text in enumerate(document.part_texts):
        title = sanitize(_first_words(titles[i]), multiline=False)
        n_tokens = session.estimate_text(text)
        parts.append(DocumentPart(document.numbers[i], title, n_tokens))
    return parts


def _first_words(text: str) -> str:
    words = " ".join(text[: 4 * _MAX_PART_TITLE].split())
    words = words.lstrip("# ")
    if len(words) <= _MAX_PART_TITLE:
        return words
    return f"{words[: _MAX_PART_TITLE - 1]}…"


def find_fitting(
    parts: Sequence[DocumentPart], size: DocumentSize
) -> PartSelection | None:
    """The first parts, as many as have room; None if not even one has.

    All of them, if no model is loaded.
    """
    room = None
    if size.n_left is not None:
        room = size.n_left * _ROOM_SHARE
    n_tokens = 0
    last = 0
    for part in parts:
        n_tokens += part.n_tokens
        if room is not None and n_tokens > room:
            break
        last = part.number
    if not last:
        return None
    return PartSelection(None, (PartRange(parts[0].number, last),))


def suggest_parts(
    session: ChatSession, request: FileRequest, document: Document
) -> CommandResult:
    """Says how long the document is, and offers a command that attaches what has room."""
    size = measure(session, document)
    unit = document.unit
    n_parts = count_short(document.n_parts, unit)
    sentences = [f"{document.name} has {n_parts}, {size.text}."]
    command = f"/read {request.path}"
    if request.as_source:
        command += " source"
    fitting = find_fitting(list_parts(session, document), size)
    if fitting is None:
        sentences.append(
            f"Not even the first {unit} has room; /ctx N loads the model with a larger context."
        )
        return CommandResult(" ".join(sentences))
    last = fitting.ranges[0].last
    sentences.append(
        f"Choose {unit}s, such as {unit}s 1-{last}; all attaches everything."
    )
    return CommandResult(" ".join(sentences), f"{command} {unit}s 1-{last}")


# --- scans


def name_seeing_models(error: ScannedDocumentError) -> ScannedDocumentError:
    """The error for a model that does not see; it takes a moment to find others."""
    return ScannedDocumentError(error.message, sight.add_seeing_models(error.hint))


def load_scan(session: ChatSession, scan: Scan) -> list[PictureAttachment]:
    """The pages as pictures that can be added to the next question.

    Raises UsageError if there is no room for all of them.
    """
    n_free = MAX_REQUEST_PICTURES - len(session.pending_pictures)
    if len(scan.pictures) > n_free:
        raise UsageError(
            f"A message has at most {MAX_REQUEST_PICTURES} pictures; "
            f"{scan.name} adds {len(scan.pictures)}.",
            "Send the others first, or choose fewer pages.",
        )
    return [session.pictures.add(picture) for picture in scan.pictures]


def ask_about_scan(
    session: ChatSession, scan: Scan, pictures: Sequence[PictureAttachment]
) -> str:
    """The question whether to send the pages as pictures, and what they cost."""
    pages = count(len(scan.numbers), "page")
    costs = [session.picture_costs.get(each.sha256) for each in pictures]
    n_rows = sum(cost.n_rows for cost in costs if cost is not None)
    shown = "a picture" if len(scan.numbers) == 1 else "pictures"
    size = f"{pages} as {shown}"
    if n_rows and None not in costs:
        left = _count_left(session)
        tokens = count_short(n_rows, "token")
        size = f"{size}, {tokens}"
        if left is not None:
            size = f"{size}, {short_count(max(0, left))} left"
    return f"{scan.name} has no text: it is a scan. Attach {size}?"
