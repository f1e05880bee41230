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

from localspec.clean import clean
from localspec.errors import IncompatiblePairError, LocalspecError
from localspec.models import wanted
from localspec.tui.downloads import Downloads
from localspec.tui.glyphs import Glyphs
from localspec.units import gb

if TYPE_CHECKING:
    from localspec.models.hub.errand import Stop
    from localspec.models.plan import Item, Match, Plan


class PullScreen(ModalScreen[bool]):
    """Asks the hub on a thread, shows what it said, and downloads on enter."""

    BINDINGS = [  # noqa: RUF012
        Binding("enter", "download", "Download"),
        Binding("escape,q", "leave", "Back"),
    ]

    class Planned(Message):
        """What there is, or why not."""

        def __init__(self, plan: Plan | None, error: LocalspecError | None = None) -> None:
            super().__init__()
            self.plan, self.error = plan, error

    def __init__(
        self, reference: str, downloads: Downloads, glyphs: Glyphs, *, at_once: bool = False
    ) -> None:
        """`at_once`: enter was pressed before; only what was not known then is asked about."""
        super().__init__()
        self._at_once = at_once
        self._reference = reference
        self._downloads = downloads
        self._glyphs = glyphs
        self._plan: Plan | None = None
        self._stop: Stop | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            title = clean(f"Download {self._reference}", multiline=False)
            yield Static(title, classes="heading", markup=False)
            with VerticalScroll(id="said"):
                yield Static("Asking the hub …", id="plan", markup=False)
            yield Static("esc back", classes="hint", markup=False)

    def on_mount(self) -> None:
        threading.Thread(target=self._ask, daemon=True, name="plan").start()

    def _ask(self) -> None:
        """On a thread of its own: the hub may be slow, and is left with esc."""
        from localspec.models import plan  # noqa: PLC0415  200 ms, not before they are needed
        from localspec.models.hub.errand import Stop, Stopped  # noqa: PLC0415

        self._stop = Stop()
        try:
            asked = wanted.read(self._reference)
            made = plan.make(self._downloads.hub, [asked], self._stop)
        except Stopped:
            return
        except LocalspecError as error:
            self.post_message(self.Planned(None, error))
        else:
            self.post_message(self.Planned(made))

    @on(Planned)
    def _planned(self, message: Planned) -> None:
        lines: list[Content] = []
        error = message.error
        if message.plan is not None:
            lines += _told(message.plan, self._glyphs)
            try:
                message.plan.check()
            except LocalspecError as refusal:
                error = refusal
            else:
                self._plan = message.plan
        if error is not None:
            lines += _refused(error, self._glyphs)
        self.query_one("#plan", Static).update(Content("\n").join(lines))
        self.query_one(".hint", Static).update(_keys(self._plan))
        if self._at_once and self._plan is not None and not _doubtful(self._plan):
            self.action_download()

    def action_download(self) -> None:
        if self._plan is None:
            return
        pieces = (piece for item in self._plan.items for piece in item.pieces)
        self._downloads.add(piece.job for piece in pieces if piece.path is None)
        self.dismiss(True)

    def action_leave(self) -> None:
        if self._stop is not None:
            self._stop.set()
        self.dismiss(False)


def _doubtful(plan: Plan) -> bool:
    """Whether a person should read what the hub said first."""
    told = any(item.notes or item.gated for item in plan.items)
    return told or any(match.warnings for match in plan.matches)


def _told(plan: Plan, glyphs: Glyphs) -> Iterator[Content]:
    for item in plan.items:
        yield from _item(item, glyphs)
    if all(match.verdict.compatible for match in plan.matches):
        total = f"{gb(plan.missing)} to download" if plan.missing else "nothing to download"
        yield Content(f"{total} · {gb(plan.free)} free on this disk")
    yield Content("")
    for match in plan.matches:
        yield from _match(match, glyphs)


def _item(item: Item, glyphs: Glyphs) -> Iterator[Content]:
    name = clean(item.wanted.title, multiline=False)
    size = gb(item.size) if item.size else "size unknown"
    here = f"{glyphs.good} here" if not item.missing else size
    licence = clean(item.licence or "licence unknown", multiline=False)
    yield Content.assemble((f"{name}  ", "bold"), f"{here}  ", (licence, "$muted"))
    where = f"{item.repo} · {item.file}" if item.repo else item.file
    yield Content.styled(f"  {clean(where, multiline=False)}", "$muted")
    for note in (*item.notes, *(["gated: its page asks you to agree first"] if item.gated else [])):
        yield Content.styled(f"  {clean(note, multiline=False)}", "$warning")


def _match(match: Match, glyphs: Glyphs) -> Iterator[Content]:
    detail = clean(match.verdict.detail, multiline=False)
    if match.verdict.compatible:
        yield Content.styled(f"{glyphs.good} they go together: {detail}", "$success")
    else:
        yield Content.styled(f"{glyphs.bad} they do not go together: {detail}", "bold $error")
        return
    for warning in match.warnings:
        yield Content.styled(f"  {clean(warning, multiline=False)}", "$warning")


def _refused(error: LocalspecError, glyphs: Glyphs) -> Iterator[Content]:
    if not isinstance(error, IncompatiblePairError):  # that was said, of the pair
        yield Content.styled(f"{glyphs.bad} {clean(error.message, multiline=False)}", "bold $error")
    yield Content(clean(error.hint, multiline=False))


def _keys(plan: Plan | None) -> str:
    if plan is None:
        return "esc back"
    return "enter download   esc back" if plan.missing else "enter verify   esc back"
