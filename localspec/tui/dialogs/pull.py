"""The download dialog: files, sizes, licences and compatibility of what is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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

from localspec.errors import IncompatiblePairError, LocalspecError
from localspec.models import catalog, model_lookup
from localspec.models.catalog import CatalogPair
from localspec.report import memory, pair_text
from localspec.report.model_details import describe_senses
from localspec.tui.downloads import DownloadManager
from localspec.tui.scheduling import run_on_thread
from localspec.tui.text.wrapping import one_line
from localspec.units import gb

if TYPE_CHECKING:
    from localspec.fit.machine_profile import MachineProfile
    from localspec.fit.plan import Plan
    from localspec.models.hub.cancellation import CancelToken
    from localspec.models.model_lookup import ModelRequest
    from localspec.models.pull_plan import (
        PlannedModel,
        PlannedPair,
        PlannedProjector,
        PullPlan,
    )


class PullScreen(ModalScreen[bool]):
    """Queries the hub on a thread, shows the plan, and downloads on enter."""

    BINDINGS = [  # noqa: RUF012
        Binding("enter", "download", "Download"),
        Binding("i", "toggle_images", "Images"),
        Binding("escape,q", "leave", "Back"),
    ]

    @dataclass(eq=False)
    class WaitRequested(Message):
        """By the hub, a limit of requests."""

        text: str

    def __init__(
        self,
        reference: str,
        downloads: DownloadManager,
        machine_profile: MachineProfile | None = None,
        *,
        start_at_once: bool = False,
    ) -> None:
        """`start_at_once` downloads without asking, unless the plan has warnings.

        Without `machine_profile`, memory and speed are not estimated.
        """
        super().__init__()
        self._reference = reference
        self._machine_profile = machine_profile
        self._start_at_once = start_at_once
        self._downloads = downloads
        self._plan: PullPlan | None = None
        self._estimated: Plan | None = None
        self._leaves_projectors = False  # Whether the projectors are not downloaded.
        self._stop: CancelToken | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            title = one_line(f"Download {_find_name(self._reference)}")
            yield Static(title, classes="heading", markup=False)
            with VerticalScroll(id="plan-scroll"):
                yield Static("Contacting the hub …", id="plan", markup=False)
            yield Static("esc back", classes="hint", markup=False)

    def on_mount(self) -> None:
        run_on_thread(self, "plan", self._make_plan, failed=self._planning_failed)

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
            estimate = self._estimate(request, plan)
        except OperationCancelledError:
            return
        self.call_later(self._show_plan, plan, estimate)

    def _estimate(self, request: ModelRequest, plan: PullPlan) -> Plan | None:
        """Memory and speed by the headers of the files; None if one could not be read."""
        from localspec import launch  # noqa: PLC0415
        from localspec.fit import pair_shapes, suggestions  # noqa: PLC0415
        from localspec.fit.plan import place_projector  # noqa: PLC0415
        from localspec.models import projector_shape  # noqa: PLC0415

        profile = self._machine_profile
        target, *drafts = [model.header for model in plan.models]
        if profile is None or target is None or None in drafts:
            return None
        try:
            shapes = pair_shapes.from_headers(target, next(iter(drafts), None))
            if request.pair is not None and not drafts and not request.is_lookup_pair:
                shapes = shapes.add_own_head()
            criteria = launch.saved_criteria()
            estimate = suggestions.plan_shapes(shapes, profile, criteria)
            projector = plan.models[0].projector
            if projector is None or projector.header is None:
                return estimate
            shape = projector_shape.from_header(projector.header)
            return place_projector(estimate, shape)
        except (LocalspecError, ArithmeticError, ValueError):
            return None

    @on(WaitRequested)
    def _show_wait(self, message: WaitRequested) -> None:
        self.query_one("#plan", Static).update(message.text)

    def _planning_failed(self, error: LocalspecError) -> None:
        self._show_lines(_error_lines(error))

    def _show_plan(self, plan: PullPlan, estimate: Plan | None) -> None:
        lines = list(_plan_lines(plan, estimate))
        try:
            plan.check()
        except LocalspecError as error:
            self._show_lines([*lines, *_error_lines(error)])
            return
        self._plan = plan
        self._estimated = estimate
        self._show_lines(lines)
        self._show_hint(plan)
        if self._start_at_once and not _has_warnings(plan):
            self._add_files(verify=False)

    def _show_hint(self, plan: PullPlan) -> None:
        """The keys; `i` where a projector would be downloaded."""
        verb = "download" if plan.missing_bytes else "verify"
        images = ""
        if plan.has_missing_projector:
            images = "i with images   " if self._leaves_projectors else "i no images   "
        self.query_one(".hint", Static).update(f"enter {verb}   {images}esc back")

    def action_toggle_images(self) -> None:
        """Leave the projectors out of the download, or take them along again."""
        plan = self._plan
        if plan is None or not plan.has_missing_projector:
            return
        self._leaves_projectors = not self._leaves_projectors
        shown = plan
        estimated = self._estimated
        if self._leaves_projectors:
            shown = plan.without_projectors()
            estimated = estimated.without_projector() if estimated else None
        self._show_lines(_plan_lines(shown, estimated))
        self._show_hint(plan)

    def _show_lines(self, lines: Iterable[Content]) -> None:
        self.query_one("#plan", Static).update(Content("\n").join(lines))

    def action_download(self) -> None:
        """Where all is there, in the hub's cache: verify it again."""
        if self._plan is not None:
            self._add_files(verify=not self._plan.missing_bytes)

    def _add_files(self, *, verify: bool) -> None:
        assert self._plan is not None
        plan = self._plan
        if self._leaves_projectors:
            plan = plan.without_projectors()
        jobs = []
        for model in plan.models:
            for file in model.all_files:
                if file.path is None or (verify and file.origin == "hub"):
                    jobs.append(file.job)
        self._downloads.add(jobs)
        self.dismiss(True)

    def action_leave(self) -> None:
        if self._stop is not None:
            self._stop.cancel()
        self.dismiss(False)


def _error_lines(error: LocalspecError) -> Iterator[Content]:
    # The lines of the pair have the message of an incompatible one.
    if not isinstance(error, IncompatiblePairError):
        message = one_line(error.message)
        yield Content.styled(f"✗ {message}", "bold $error")
    yield Content(one_line(error.hint))


def _has_warnings(plan: PullPlan) -> bool:
    if any(model.notes or model.gated for model in plan.models):
        return True
    return any(match.warnings for match in plan.pairs)


def _find_name(reference: str) -> str:
    """What screens call it, if it is of the catalogue."""
    entry = catalog.load_valid()[0].find_exact(reference)
    return entry.name if isinstance(entry, CatalogPair) else reference


def _plan_lines(plan: PullPlan, estimate: Plan | None) -> Iterator[Content]:
    for model in plan.models:
        yield from _model_lines(model)
    if all(match.compatibility.is_compatible for match in plan.pairs):
        missing = gb(plan.missing_bytes) if plan.missing_bytes else "nothing"
        yield Content(
            f"{missing} to download · {gb(plan.free_bytes)} free on this disk"
        )
        if estimate is not None:
            yield _estimate_line(estimate)
    yield Content("")
    for match in plan.pairs:
        yield from _match_lines(match)


def _estimate_line(estimate: Plan) -> Content:
    """Such as `needs 19.9 of 24 GB · ≈ 53 tok/s, ≈ 36 without the draft`."""
    if not estimate.verdict.can_load:
        return Content.styled(memory.describe_fit(estimate), "$error")
    parts = [f"needs {memory.format_plan_share(estimate)}"]
    rates = pair_text.describe_rates(
        estimate.speed, has_draft=bool(estimate.load.draft)
    )
    if rates:
        parts.append(rates)
    if estimate.is_partly_in_ram:
        parts.append("partly in RAM")
    return Content(" · ".join(parts))


def _model_lines(model: PlannedModel) -> Iterator[Content]:
    name = one_line(model.resolved.title)
    size = gb(model.size) if model.size else "size unknown"
    status = "✓ downloaded" if not model.own_missing_bytes else size
    licence = one_line(model.licence or pair_text.UNKNOWN_LICENCE)
    yield Content.assemble((f"{name}  ", "bold"), f"{status}  ", (licence, "$muted"))
    location = f"{model.repo} · {model.file}" if model.repo else model.file
    yield Content.styled(f"  {one_line(location)}", "$muted")
    if model.projector is not None:
        yield _projector_line(model.projector)
    notes = list(model.notes)
    if model.gated:
        notes.append("gated: accept the terms on the model's page first")
    for note in notes:
        yield Content.styled(f"  {one_line(note)}", "$warning")


def _projector_line(projector: PlannedProjector) -> Content:
    """Such as `  sees images: mmproj-F16.gguf  0.92 GB`."""
    state = "✓ downloaded" if projector.path is not None else gb(projector.size)
    senses = describe_senses(projector.senses)
    file = one_line(projector.name)
    return Content.assemble(f"  {senses}  {state}  ", (file, "$muted"))


def _match_lines(match: PlannedPair) -> Iterator[Content]:
    summary = one_line(match.compatibility.summary)
    if not match.compatibility.is_compatible:
        yield Content.styled(f"✗ {summary}", "bold $error")
        return
    yield Content.styled(f"✓ {summary}", "$success")
    for warning in match.warnings:
        yield Content.styled(f"  {one_line(warning)}", "$warning")
