"""The download dialog: files, sizes, licences and compatibility of what is chosen."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec.errors import IncompatiblePairError, LocalspecError, StorageError
from localspec.models import model_lookup
from localspec.sanitize import sanitize
from localspec.tui.downloads import DownloadManager
from localspec.units import gb

if TYPE_CHECKING:
    from localspec.models.hub.cancellation import CancelToken
    from localspec.models.pull_plan import PlannedModel, PlannedPair, PullPlan


class PullScreen(ModalScreen[bool]):
    """Queries the hub on a thread, shows the plan, and downloads on enter."""

    BINDINGS = [  # noqa: RUF012
        Binding("enter", "download", "Download"),
        Binding("escape,q", "leave", "Back"),
    ]

    @dataclass(eq=False)
    class DownloadPlanned(Message):
        plan: PullPlan | None
        error: LocalspecError | None = None

    @dataclass(eq=False)
    class WaitRequested(Message):
        """By the hub, a limit of requests."""

        text: str

    def __init__(
        self, reference: str, downloads: DownloadManager, *, start_at_once: bool = False
    ) -> None:
        """`start_at_once` downloads without asking, unless the plan has warnings."""
        super().__init__()
        self._reference = reference
        self._start_at_once = start_at_once
        self._downloads = downloads
        self._plan: PullPlan | None = None
        self._stop: CancelToken | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            title = sanitize(f"Download {self._reference}", multiline=False)
            yield Static(title, classes="heading", markup=False)
            with VerticalScroll(id="plan-scroll"):
                yield Static("Contacting the hub …", id="plan", markup=False)
            yield Static("esc back", classes="hint", markup=False)

    def on_mount(self) -> None:
        threading.Thread(target=self._make_plan, daemon=True, name="plan").start()

    def _make_plan(self) -> None:
        """On a thread, since the hub may be slow; esc cancels it."""
        from localspec.models import pull_plan  # noqa: PLC0415  takes 200 ms
        from localspec.models.hub.cancellation import (  # noqa: PLC0415
            CancelToken,
            OperationCancelledError,
        )

        self._stop = CancelToken()
        try:
            request = model_lookup.resolve(self._reference)
            hub = self._downloads.hub
            hub.on_wait = lambda text: self.post_message(self.WaitRequested(text))
            plan = pull_plan.build(hub, [request], self._stop)
        except OperationCancelledError:
            return
        except LocalspecError as error:
            self.post_message(self.DownloadPlanned(None, error))
        except OSError as error:
            refused = StorageError(f"{error}.", "Check its permissions, and its disk.")
            self.post_message(self.DownloadPlanned(None, refused))
        else:
            self.post_message(self.DownloadPlanned(plan))

    @on(WaitRequested)
    def _show_wait(self, message: WaitRequested) -> None:
        self.query_one("#plan", Static).update(message.text)

    @on(DownloadPlanned)
    def _show_plan(self, message: DownloadPlanned) -> None:
        lines: list[Content] = []
        error = message.error
        if message.plan is not None:
            lines += _plan_lines(message.plan)
            try:
                message.plan.check()
            except LocalspecError as refusal:
                error = refusal
            else:
                self._plan = message.plan
        if error is not None:
            # The lines of the pair have the message of an incompatible one.
            if not isinstance(error, IncompatiblePairError):
                message_text = sanitize(error.message, multiline=False)
                lines.append(Content.styled(f"✗ {message_text}", "bold $error"))
            lines.append(Content(sanitize(error.hint, multiline=False)))
        self.query_one("#plan", Static).update(Content("\n").join(lines))
        keys = "esc back"
        if self._plan is not None:
            verb = "download" if self._plan.missing_bytes else "verify"
            keys = f"enter {verb}   {keys}"
        self.query_one(".hint", Static).update(keys)
        plan = self._plan
        if self._start_at_once and plan is not None and not _has_warnings(plan):
            self._add_files(verify=False)

    def action_download(self) -> None:
        """Where all is there, in the hub's cache: verify it again."""
        if self._plan is not None:
            self._add_files(verify=not self._plan.missing_bytes)

    def _add_files(self, *, verify: bool) -> None:
        assert self._plan is not None
        jobs = []
        for model in self._plan.models:
            for file in model.files:
                if file.path is None or (verify and file.origin == "hub"):
                    jobs.append(file.job)
        self._downloads.add(jobs)
        self.dismiss(True)

    def action_leave(self) -> None:
        if self._stop is not None:
            self._stop.cancel()
        self.dismiss(False)


def _has_warnings(plan: PullPlan) -> bool:
    if any(model.notes or model.gated for model in plan.models):
        return True
    return any(match.warnings for match in plan.pairs)


def _plan_lines(plan: PullPlan) -> Iterator[Content]:
    for model in plan.models:
        yield from _model_lines(model)
    if all(match.compatibility.is_compatible for match in plan.pairs):
        missing = gb(plan.missing_bytes) if plan.missing_bytes else "nothing"
        yield Content(
            f"{missing} to download · {gb(plan.free_bytes)} free on this disk"
        )
    yield Content("")
    for match in plan.pairs:
        yield from _match_lines(match)


def _model_lines(model: PlannedModel) -> Iterator[Content]:
    name = sanitize(model.resolved.title, multiline=False)
    size = gb(model.size) if model.size else "size unknown"
    status = "✓ downloaded" if not model.missing_bytes else size
    licence = sanitize(model.licence or "licence unknown", multiline=False)
    yield Content.assemble((f"{name}  ", "bold"), f"{status}  ", (licence, "$muted"))
    location = f"{model.repo} · {model.file}" if model.repo else model.file
    yield Content.styled(f"  {sanitize(location, multiline=False)}", "$muted")
    notes = list(model.notes)
    if model.gated:
        notes.append("gated: accept the terms on the model's page first")
    for note in notes:
        yield Content.styled(f"  {sanitize(note, multiline=False)}", "$warning")


def _match_lines(match: PlannedPair) -> Iterator[Content]:
    summary = sanitize(match.compatibility.summary, multiline=False)
    if not match.compatibility.is_compatible:
        yield Content.styled(f"✗ {summary}", "bold $error")
        return
    yield Content.styled(f"✓ {summary}", "$success")
    for warning in match.warnings:
        yield Content.styled(f"  {sanitize(warning, multiline=False)}", "$warning")
