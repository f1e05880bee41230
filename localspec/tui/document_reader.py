"""Reads the documents of a chat on threads, and attaches them to the next message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from localspec.chat import document_attachment
from localspec.chat.conversation import PictureAttachment
from localspec.chat.document_attachment import PartChoice
from localspec.chat.front_end import CommandResult
from localspec.chat.pictures import PictureCost
from localspec.documents.document import Document, PartSelection
from localspec.documents.reading import (
    FileRequest,
    Scan,
    ScannedDocumentError,
    read_file,
)
from localspec.errors import LocalspecError
from localspec.tui.dialogs.choices import ConfirmScreen
from localspec.tui.dialogs.document_parts import DocumentPartsScreen
from localspec.tui.scheduling import run_on_thread
from localspec.tui.text.wrapping import one_line

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen


class _Reading(Struct, frozen=True):
    """A document that is being read."""

    number: int  # Counts from 1, in the order in which they were begun.
    request: FileRequest
    is_chosen: bool
    """Whether its pages were chosen in the dialog, which has told what they cost."""


class DocumentReader:
    """What is being read; a message that is sent meanwhile waits for it."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._n_started = 0
        self._names: dict[int, str] = {}
        """Of the documents that are being read, by their numbers."""

    @property
    def names(self) -> list[str]:
        return list(self._names.values())

    def read(self, request: FileRequest, *, is_chosen: bool = False) -> None:
        self._n_started += 1
        reading = _Reading(self._n_started, request, is_chosen)
        self._names[reading.number] = one_line(PurePath(request.path).name)

        def work() -> None:
            try:
                document = read_file(request)
            except ScannedDocumentError as error:
                self._read_scan(reading, error)
            else:
                self._screen.call_later(self._finish, reading, document)

        failed = partial(self._fail, reading)
        run_on_thread(self._screen, "document", work, failed=failed)
        self._screen.draw()

    def _read_scan(self, reading: _Reading, error: ScannedDocumentError) -> None:
        """On the thread. Raises the error if the model does not see."""
        loaded = self._screen.session.loaded
        if loaded is None:
            raise error
        if not loaded.sees:
            raise document_attachment.name_seeing_models(error)
        scan = document_attachment.read_scan(reading.request)
        self._screen.call_later(self._count_scan, reading, scan)

    def _count_scan(self, reading: _Reading, scan: Scan) -> None:
        """Ask the engine, which is free if no answer streams, what the pages cost."""
        if reading.number not in self._names:
            return
        session = self._screen.session
        try:
            pictures = document_attachment.load_scan(session, reading.request, scan)
        except LocalspecError as error:
            self._fail(reading, error)
            return

        def work() -> None:
            costs: dict[str, PictureCost] = {}
            with suppress(LocalspecError):  # It can be asked without the figure.
                engine = self._screen.runner.engine
                if engine is not None:
                    costs = session.count_pictures(engine, pictures)
            self._screen.call_later(self._offer_scan, reading, scan, pictures, costs)

        if self._screen.phase == "ready":
            self._screen.runner.run(work)
        else:
            self._offer_scan(reading, scan, pictures, {})

    def _offer_scan(
        self,
        reading: _Reading,
        scan: Scan,
        pictures: Sequence[PictureAttachment],
        costs: Mapping[str, PictureCost],
    ) -> None:
        if not self._take(reading):
            return
        self._screen.restore_queued()
        session = self._screen.session
        session.picture_costs |= costs
        request = reading.request

        def attach() -> None:
            self._screen.composer.attach_pictures(lambda: pictures)

        if reading.is_chosen:
            attach()
        elif document_attachment.needs_page_choice(session, request, scan, pictures):
            choice = document_attachment.choose_pages(session, scan, pictures)
            self._ask_for_parts(choice, partial(self._read_pages, request))
        else:
            question = document_attachment.ask_about_scan(session, scan, pictures)

            def on_dismiss(is_wanted: bool | None) -> None:
                if is_wanted:
                    attach()
                self._screen.draw()

            self._screen.app.push_screen(ConfirmScreen(question, "attach"), on_dismiss)
        self._screen.draw()

    def _read_pages(self, request: FileRequest, selection: PartSelection) -> None:
        self.read(replace(request, selection=selection), is_chosen=True)

    def forget(self) -> None:
        """What is being read will not be attached."""
        self._names.clear()

    def _take(self, reading: _Reading) -> bool:
        """It is read; False if it was forgotten meanwhile."""
        return self._names.pop(reading.number, None) is not None

    def _fail(self, reading: _Reading, error: LocalspecError) -> None:
        if self._take(reading):
            self._screen.restore_queued()
            self._screen.show_warning(error)
            self._screen.draw()

    def _finish(self, reading: _Reading, document: Document) -> None:
        if not self._take(reading):
            return
        session = self._screen.session
        if document_attachment.needs_choice(session, reading.request, document):
            choice = document_attachment.choose_parts(session, document)
            self._ask_for_parts(choice, partial(self._attach_parts, document))
        else:
            self._show(document_attachment.attach(session, document))

    def _attach_parts(self, document: Document, selection: PartSelection) -> None:
        chosen = document.select(selection)
        self._show(document_attachment.attach(self._screen.session, chosen))

    def _ask_for_parts(
        self, choice: PartChoice, take: Callable[[PartSelection], None]
    ) -> None:
        self._screen.restore_queued()

        def on_dismiss(selection: PartSelection | None) -> None:
            if selection is not None:
                take(selection)
            self._screen.draw()

        self._screen.app.push_screen(DocumentPartsScreen(choice), on_dismiss)
        self._screen.draw()

    def _show(self, result: CommandResult) -> None:
        self._screen.notify(one_line(result.message), markup=False)
        self._screen.draw()
        self._screen.send_queued()
