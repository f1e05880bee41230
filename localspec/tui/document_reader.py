"""Reads the documents of a chat on threads, and attaches them to the next message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING

from localspec.chat import document_attachment
from localspec.chat.conversation import PictureAttachment
from localspec.chat.front_end import CommandResult
from localspec.chat.pictures import PictureCost
from localspec.documents.document import Document, PartSelection
from localspec.documents.reading import (
    FileRequest,
    Scan,
    ScannedDocumentError,
    read_file,
    read_scanned_file,
)
from localspec.errors import LocalspecError
from localspec.tui.dialogs.choices import ConfirmScreen
from localspec.tui.dialogs.document_parts import DocumentPartsScreen
from localspec.tui.scheduling import run_on_thread
from localspec.tui.text.wrapping import one_line

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen


class DocumentReader:
    """What is being read; a message that is sent meanwhile waits for it."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._n_started = 0
        self._names: dict[int, str] = {}
        """Of the documents that are being read, by the order in which they were begun."""

    @property
    def names(self) -> list[str]:
        return list(self._names.values())

    def read(self, request: FileRequest) -> None:
        self._n_started += 1
        job = self._n_started
        self._names[job] = one_line(PurePath(request.path).name)

        def work() -> None:
            try:
                document = read_file(request)
            except ScannedDocumentError as error:
                self._read_scan(job, request, error)
            else:
                self._screen.call_later(self._finish, job, request, document)

        failed = partial(self._fail, job)
        run_on_thread(self._screen, "document", work, failed=failed)
        self._screen.draw()

    def _read_scan(
        self, job: int, request: FileRequest, error: ScannedDocumentError
    ) -> None:
        """On the thread. Raises the error if the model does not see."""
        loaded = self._screen.session.loaded
        if loaded is None:
            raise error
        if not loaded.sees:
            raise document_attachment.name_seeing_models(error)
        scan = read_scanned_file(request)
        self._screen.call_later(self._count_scan, job, scan)

    def _count_scan(self, job: int, scan: Scan) -> None:
        """Ask the engine, which is free if no answer streams, what the pages cost."""
        if job not in self._names:
            return
        session = self._screen.session
        try:
            pictures = document_attachment.load_scan(session, scan)
        except LocalspecError as error:
            self._fail(job, error)
            return

        def work() -> None:
            costs: dict[str, PictureCost] = {}
            with suppress(LocalspecError):  # It can be asked without the figure.
                engine = self._screen.runner.engine
                if engine is not None:
                    costs = session.count_pictures(engine, pictures)
            self._screen.call_later(self._offer_scan, job, scan, pictures, costs)

        if self._screen.phase == "ready":
            self._screen.runner.run(work)
        else:
            self._offer_scan(job, scan, pictures, {})

    def _offer_scan(
        self,
        job: int,
        scan: Scan,
        pictures: Sequence[PictureAttachment],
        costs: Mapping[str, PictureCost],
    ) -> None:
        if self._names.pop(job, None) is None:
            return
        self._screen.restore_queued()
        session = self._screen.session
        session.picture_costs |= costs
        question = document_attachment.ask_about_scan(session, scan, pictures)

        def on_dismiss(is_wanted: bool | None) -> None:
            if is_wanted:
                self._screen.composer.attach_pictures(lambda: pictures)
            self._screen.draw()

        self._screen.app.push_screen(ConfirmScreen(question, "attach"), on_dismiss)
        self._screen.draw()

    def forget(self) -> None:
        """What is being read will not be attached."""
        self._names.clear()

    def _fail(self, job: int, error: LocalspecError) -> None:
        if self._names.pop(job, None) is not None:
            self._screen.restore_queued()
            self._screen.show_warning(error)
            self._screen.draw()

    def _finish(self, job: int, request: FileRequest, document: Document) -> None:
        if self._names.pop(job, None) is None:
            return
        session = self._screen.session
        if document_attachment.needs_choice(session, request, document):
            self._screen.restore_queued()
            self._ask_for_parts(document)
        else:
            self._show(document_attachment.attach(session, document))

    def _ask_for_parts(self, document: Document) -> None:
        session = self._screen.session
        size = document_attachment.measure(session, document)
        parts = document_attachment.list_parts(session, document)

        def on_dismiss(selection: PartSelection | None) -> None:
            if selection is not None:
                chosen = document.select(selection)
                self._show(document_attachment.attach(session, chosen))
            self._screen.draw()

        dialog = DocumentPartsScreen(document, parts, size)
        self._screen.app.push_screen(dialog, on_dismiss)
        self._screen.draw()

    def _show(self, result: CommandResult) -> None:
        self._screen.notify(one_line(result.message), markup=False)
        self._screen.draw()
        self._screen.send_queued()
