"""Documents that go with a question: how long they are, and which parts have room."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from localspec.chat.conversation import Attachment, PictureAttachment
from localspec.chat.front_end import CommandResult
from localspec.chat.pictures import PictureCost, add_costs
from localspec.chat.session import ChatSession
from localspec.documents.document import Document, PartRange, PartSelection, PartUnit
from localspec.documents.reading import (
    FileRequest,
    Scan,
    ScannedDocumentError,
    read_scanned_file,
)
from localspec.errors import UsageError
from localspec.launch import sight
from localspec.models.pictures import MAX_REQUEST_PICTURES
from localspec.sanitize import sanitize
from localspec.units import count, short_count

_ROOM_SHARE = 0.9
"""The share of what is left that a document may take.

Sizes are estimates, and the question needs room, too.
"""
_MAX_PART_TITLE = 60
NO_FILES = "No files are attached."
_FIRST_PAGES = PartSelection("page", (PartRange(1, MAX_REQUEST_PICTURES),))


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


class PartChoice(Struct, frozen=True):
    """What can be chosen of a document, or of a scan."""

    name: str
    unit: PartUnit
    n_parts: int
    parts: Sequence[DocumentPart]
    size: DocumentSize
    max_chosen: int | None = None
    """The pictures that a message still takes: a page of a scan is one."""

    def resolve(self, selection: PartSelection) -> tuple[int, ...]:
        """The numbers of the chosen parts. Raises UsageError if there are none."""
        return selection.resolve(self.name, self.unit, self.n_parts)

    def find_fitting(self) -> PartSelection | None:
        """The first parts, as many as have room; None if not even one has.

        If no model is loaded, these are all parts. With 1,000 tokens left, of which a
        document may take 900, and parts of 400 tokens each, they are the first two.
        """
        room = None
        if self.size.n_left is not None:
            room = self.size.n_left * _ROOM_SHARE
        n_tokens = 0
        last = 0
        for part in self.parts[: self.max_chosen]:
            n_tokens += part.n_tokens
            if room is not None and n_tokens > room:
                break
            last = part.number
        if not last:
            return None
        return PartSelection(None, (PartRange(self.parts[0].number, last),))


def count_short(n: int, noun: str) -> str:
    """1 token, 950 tokens, 1.2k tokens."""
    if n == 1:
        return f"1 {noun}"
    return f"{short_count(n)} {noun}s"


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


def choose_parts(session: ChatSession, document: Document) -> PartChoice:
    return PartChoice(
        document.name,
        document.unit,
        n_parts=document.n_parts,
        parts=_list_parts(session, document),
        size=measure(session, document),
    )


def _list_parts(session: ChatSession, document: Document) -> list[DocumentPart]:
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


def suggest_parts(choice: PartChoice, request: FileRequest) -> CommandResult:
    """Says how long the document is, and offers a command that attaches what has room."""
    unit = choice.unit
    n_parts = count_short(choice.n_parts, unit)
    sentences = [f"{choice.name} has {n_parts}, {choice.size.text}."]
    command = f"/read {request.path}"
    if request.as_source:
        command += " source"
    fitting = choice.find_fitting()
    if fitting is None:
        sentences.append(
            f"Not even the first {unit} has room; /ctx N loads the model with a larger context."
        )
        return CommandResult(" ".join(sentences))
    last = fitting.ranges[0].last
    everything = "all attaches everything"
    if choice.max_chosen is not None:
        everything = f"a message takes {choice.max_chosen} of them"
    sentences.append(f"Choose {unit}s, such as {unit}s 1-{last}; {everything}.")
    return CommandResult(" ".join(sentences), f"{command} {unit}s 1-{last}")


# --- scans


def name_seeing_models(error: ScannedDocumentError) -> ScannedDocumentError:
    """The error for a model that does not see; it takes a moment to find others."""
    return ScannedDocumentError(error.message, sight.add_seeing_models(error.hint))


def read_scan(request: FileRequest) -> Scan:
    """The chosen pages, else the first ones, as many as a message has pictures.

    Raises LocalspecError.
    """
    if request.selection is None:
        request = replace(request, selection=_FIRST_PAGES)
    return read_scanned_file(request)


def load_scan(
    session: ChatSession, request: FileRequest, scan: Scan
) -> list[PictureAttachment]:
    """The pages as pictures that can be added to the next question.

    Raises UsageError if pages were chosen, and there is no room for all of them, or for
    none at all.
    """
    n_free = _count_free(session)
    is_chosen = request.selection is not None
    if not n_free or (is_chosen and len(scan.pictures) > n_free):
        raise UsageError(
            f"A message has at most {MAX_REQUEST_PICTURES} pictures; "
            f"{scan.name} adds {len(scan.pictures)}.",
            "Send the others first, or choose fewer pages.",
        )
    return [session.pictures.add(picture) for picture in scan.pictures]


def _count_free(session: ChatSession) -> int:
    """How many pictures the next question still takes."""
    return MAX_REQUEST_PICTURES - len(session.pending_pictures)


def needs_page_choice(
    session: ChatSession,
    request: FileRequest,
    scan: Scan,
    pictures: Sequence[PictureAttachment],
) -> bool:
    """Whether somebody has to choose pages, before any of them is attached."""
    if request.selection is not None:
        return False
    if request.is_question or scan.n_pages > MAX_REQUEST_PICTURES:
        return True
    if len(pictures) > _count_free(session):
        return True
    cost = _add_costs(session, pictures)
    left = _count_left(session)
    return cost is not None and left is not None and cost.n_rows > left


def choose_pages(
    session: ChatSession, scan: Scan, pictures: Sequence[PictureAttachment]
) -> PartChoice:
    """The pages of a scan; those that were not read are taken to be like the others."""
    cost = _add_costs(session, pictures)
    n_usual = 0
    if session.loaded is not None:
        n_usual = session.loaded.max_picture_rows
    if cost is not None and pictures:
        n_usual = ceil(cost.n_rows / len(pictures))
    pages = dict(zip(scan.numbers, pictures, strict=True))
    n_read = min(scan.n_pages, MAX_REQUEST_PICTURES)
    parts: list[DocumentPart] = []
    for number in range(1, scan.n_pages + 1):
        picture = pages.get(number)
        if picture is not None:
            known = session.picture_costs.get(picture.sha256)
            n_tokens = n_usual if known is None else known.n_rows
            title = f"{picture.width} x {picture.height} pixels"
        elif number <= n_read:
            n_tokens = 0
            title = "no picture"
        else:
            n_tokens = n_usual
            title = ""
        parts.append(DocumentPart(number, title, n_tokens))
    size = DocumentSize(sum(part.n_tokens for part in parts), _count_left(session))
    return PartChoice(
        scan.name,
        "page",
        n_parts=scan.n_pages,
        parts=parts,
        size=size,
        max_chosen=_count_free(session),
    )


def _add_costs(
    session: ChatSession, pictures: Sequence[PictureAttachment]
) -> PictureCost | None:
    """What the pictures cost together; None if that of one is not known."""
    costs: list[PictureCost] = []
    for picture in pictures:
        cost = session.picture_costs.get(picture.sha256)
        if cost is None:
            return None
        costs.append(cost)
    return add_costs(costs)


def ask_about_scan(
    session: ChatSession, scan: Scan, pictures: Sequence[PictureAttachment]
) -> str:
    """The question whether to send the pages as pictures, and what they cost."""
    pages = count(len(scan.numbers), "page")
    shown = "a picture" if len(scan.numbers) == 1 else "pictures"
    size = f"{pages} as {shown}"
    cost = _add_costs(session, pictures)
    if cost is not None:
        size = f"{size}, {cost.text}"
        left = _count_left(session)
        if left is not None:
            size = f"{size}, {short_count(max(0, left))} left"
    return f"{scan.name} has no text: it is a scan. Attach {size}?"
