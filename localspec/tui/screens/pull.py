"""Before a download: what it is, whether it goes together, how much it is, and what for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec.errors import IncompatiblePairError, LocalspecError
from localspec.models import resolver
from localspec.sanitize import sanitize
from localspec.tui.downloads import DownloadManager
from localspec.tui.glyphs import Glyphs
from localspec.units import gb

if TYPE_CHECKING:
    from localspec.models.hub.cancellation import CancelToken
    from localspec.models.pull_plan import PlannedModel, PlannedPair, PullPlan


class PullScreen(ModalScreen[bool]):
    """Asks the hub on a thread, shows what it said, and downloads on enter."""

    BINDINGS = [  # noqa: RUF012
        Binding("enter", "download", "Download"),
        Binding("escape,q", "leave", "Back"),
    ]

    class DownloadPlanned(Message):
        """What there is, or why not."""

        def __init__(self, plan: PullPlan | None, error: LocalspecError | None = None) -> None:
            super().__init__()
            self.plan, self.error = plan, error

    def __init__(
        self,
        reference: str,
        downloads: DownloadManager,
        glyphs: Glyphs,
        *,
        start_at_once: bool = False,
    ) -> None:
        """`at_once`: enter was pressed before; only what was not known then is asked about."""
        super().__init__()
        self._start_at_once = start_at_once
        self._reference = reference
        self._downloads = downloads
        self._glyphs = glyphs
        self._plan: PullPlan | None = None
        self._stop: CancelToken | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            title = sanitize(f"Download {self._reference}", multiline=False)
            yield Static(title, classes="heading", markup=False)
            with VerticalScroll(id="said"):
                yield Static("Asking the hub …", id="plan", markup=False)
            yield Static("esc back", classes="hint", markup=False)

    def on_mount(self) -> None:
        threading.Thread(target=self._make_plan, daemon=True, name="plan").start()

    def _make_plan(self) -> None:
        """On a thread of its own: the hub may be slow, and is left with esc."""
        from localspec.models import pull_plan  # noqa: PLC0415  200 ms, not before they are needed
        from localspec.models.hub.cancellation import CancelToken, OperationCancelledError  # noqa: PLC0415

        self._stop = CancelToken()
        try:
            asked = resolver.resolve(self._reference)
            made = pull_plan.build(self._downloads.hub, [asked], self._stop)
        except OperationCancelledError:
            return
        except LocalspecError as error:
            self.post_message(self.DownloadPlanned(None, error))
        else:
            self.post_message(self.DownloadPlanned(made))

    @on(DownloadPlanned)
    def _show_plan(self, message: DownloadPlanned) -> None:
        lines: list[Content] = []
        error = message.error
        if message.plan is not None:
            lines += _plan_lines(message.plan, self._glyphs)
            try:
                message.plan.check()
            except LocalspecError as refusal:
                error = refusal
            else:
                self._plan = message.plan
        if error is not None:
            lines += _error_lines(error, self._glyphs)
        self.query_one("#plan", Static).update(Content("\n").join(lines))
        self.query_one(".hint", Static).update(_key_hints(self._plan))
        if self._start_at_once and self._plan is not None and not _needs_review(self._plan):
            self.action_download()

    def action_download(self) -> None:
        if self._plan is None:
            return
        pieces = (piece for item in self._plan.models for piece in item.files)
        self._downloads.add(piece.job for piece in pieces if piece.path is None)
        self.dismiss(True)

    def action_leave(self) -> None:
        if self._stop is not None:
            self._stop.cancel()
        self.dismiss(False)


def _needs_review(plan: PullPlan) -> bool:
    """Whether a person should read what the hub said first."""
    told = any(item.notes or item.gated for item in plan.models)
    return told or any(match.warnings for match in plan.pairs)


def _plan_lines(plan: PullPlan, glyphs: Glyphs) -> Iterator[Content]:
    for item in plan.models:
        yield from _item_lines(item, glyphs)
    if all(match.compatibility.is_compatible for match in plan.pairs):
        total = (
            f"{gb(plan.missing_bytes)} to download" if plan.missing_bytes else "nothing to download"
        )
        yield Content(f"{total} · {gb(plan.free_bytes)} free on this disk")
    yield Content("")
    for match in plan.pairs:
        yield from _match_lines(match, glyphs)


def _item_lines(item: PlannedModel, glyphs: Glyphs) -> Iterator[Content]:
    name = sanitize(item.resolved.title, multiline=False)
    size = gb(item.size) if item.size else "size unknown"
    here = f"{glyphs.check} here" if not item.missing_bytes else size
    licence = sanitize(item.licence or "licence unknown", multiline=False)
    yield Content.assemble((f"{name}  ", "bold"), f"{here}  ", (licence, "$muted"))
    where = f"{item.repo} · {item.file}" if item.repo else item.file
    yield Content.styled(f"  {sanitize(where, multiline=False)}", "$muted")
    for note in (*item.notes, *(["gated: its page asks you to agree first"] if item.gated else [])):
        yield Content.styled(f"  {sanitize(note, multiline=False)}", "$warning")


def _match_lines(match: PlannedPair, glyphs: Glyphs) -> Iterator[Content]:
    detail = sanitize(match.compatibility.detail, multiline=False)
    if match.compatibility.is_compatible:
        yield Content.styled(f"{glyphs.check} they go together: {detail}", "$success")
    else:
        yield Content.styled(f"{glyphs.cross} they do not go together: {detail}", "bold $error")
        return
    for warning in match.warnings:
        yield Content.styled(f"  {sanitize(warning, multiline=False)}", "$warning")


def _error_lines(error: LocalspecError, glyphs: Glyphs) -> Iterator[Content]:
    if not isinstance(error, IncompatiblePairError):  # that was said, of the pair
        yield Content.styled(
            f"{glyphs.cross} {sanitize(error.message, multiline=False)}", "bold $error"
        )
    yield Content(sanitize(error.hint, multiline=False))


def _key_hints(plan: PullPlan | None) -> str:
    if plan is None:
        return "esc back"
    return "enter download   esc back" if plan.missing_bytes else "enter verify   esc back"
