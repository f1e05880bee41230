"""The wizard's details page of a pair: memory, speed, reasons, and checks before the download."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from textual.content import Content

from localspec.fit import advisor, hparams
from localspec.fit.pair_headers import PairHeaders
from localspec.fit.report import DeviceFit, FitReport
from localspec.models import draft_heads
from localspec.models.catalog import CatalogPair
from localspec.models.pair_compatibility import CompatibilityResult
from localspec.sanitize import sanitize
from localspec.tui.glyphs import Glyphs
from localspec.tui.wizard import fit_text, memory_bar
from localspec.tui.wizard.services import WizardServices
from localspec.tui.wizard.shortlist import (
    VERDICT_STYLES,
    Candidate,
    EstimateCache,
    pairs_of_same_target,
)
from localspec.tui.wizard.what_if import WhatIf
from localspec.units import gb, gib

_LABEL_WIDTH = 12
_MAX_BAR_WIDTH = 64
_USE_CASE_LABELS = {"chat": "chat", "code": "code", "writing": "stories", "documents": "documents"}


@dataclass(frozen=True, slots=True)
class DetailsPage:
    candidate: Candidate
    use_case: str
    checks: tuple[PreDownloadCheck, ...]
    is_downloaded: bool = False
    """Whether both files are installed."""
    free_disk: int | None = None
    """Free bytes on the download disk."""
    fit_basis: str = ""
    """Where the memory numbers come from."""

    @property
    def pair(self) -> CatalogPair:
        return self.candidate.pair


def render_page(page: DetailsPage, width: int, height: int, glyphs: Glyphs) -> list[Content]:
    """Everything, or a shorter version on a low terminal."""
    spacious = height >= 19
    gap = [Content("")] if spacious else []
    blocks = [
        list(_title_lines(page, width)),
        list(_memory_lines(page, width, glyphs, short=height < 16, tall=height >= 24)),
        list(_speed_lines(page, width, short=height < 16)),
        list(_reason_lines(page, width, 4 if spacious else 2)),
        list(_check_lines(page, width, glyphs)),
    ]
    lines: list[Content] = []
    for block in blocks:
        lines += [*(gap if lines and block else []), *block]
    return lines


def _title_lines(page: DetailsPage, width: int) -> Iterator[Content]:
    pair = page.pair
    draft = (
        f"  with  {fit_text.model_text(pair.draft)}"
        if pair.draft
        else "  prompt lookup, no draft model"
    )
    name = Content.assemble(
        (fit_text.model_text(pair.target), "bold"),
        (draft[:8] if pair.draft else draft, "$muted"),
        (draft[8:] if pair.draft else "", "bold"),
    )
    size = _download_text(page)
    disk = (
        f"{gb(page.free_disk)} free"
        if page.free_disk is not None and not page.is_downloaded
        else ""
    )
    facts = " · ".join(
        filter(None, (fit_text.licence_text(pair, "licence: see model page"), size, disk))
    )
    gap = width - name.cell_length - len(facts)
    if gap >= 2:
        yield Content.assemble(name, " " * gap, (facts, "$muted"))
        return
    yield name.truncate(width, ellipsis=True)
    yield Content.styled(facts[:width], "$muted")


def _download_text(page: DetailsPage) -> str:
    return "installed" if page.is_downloaded else f"{gb(page.candidate.total_bytes)} to download"


def _row(label: str, *parts: Content | tuple[str, str] | str) -> Content:
    return Content.assemble((f"{label:<{_LABEL_WIDTH}}", "$muted"), *parts)


# --- memory -----------------------------------------------------------------------------


def _memory_lines(
    page: DetailsPage, width: int, glyphs: Glyphs, *, short: bool, tall: bool
) -> Iterator[Content]:
    fit = page.candidate.fit
    if fit is None:
        yield _row("Memory", page.candidate.no_fit_reason or "…")
        return
    bar_width = min(_MAX_BAR_WIDTH, width - _LABEL_WIDTH)
    devices = _shown_devices(fit)
    for n, device_fit in enumerate(devices):
        label = "Memory" if n == 0 else ""
        if len(devices) > 1:
            yield _row(
                label,
                (sanitize(device_fit.device.description, multiline=False)[:bar_width], "$muted"),
            )
            label = ""
        if not short:
            yield _row(label, (memory_bar.render_scale(device_fit, bar_width), "$muted"))
            label = ""
        yield _row(label, memory_bar.render_bar(device_fit, bar_width, glyphs))
        yield _row("", memory_bar.render_legend(device_fit, glyphs, width - _LABEL_WIDTH))
    yield from _verdict_lines(page, fit, width)
    if tall and (host := _host_memory_text(fit)):
        yield _row("", (host, "$muted"))


def _verdict_lines(page: DetailsPage, fit: FitReport, width: int) -> Iterator[Content]:
    """The verdict; how it is known, if there is room."""
    style = f"bold {VERDICT_STYLES[fit.verdict]}"
    *lines, last = fit_text.wrap_text(fit_text.verdict_text(fit), width - _LABEL_WIDTH)
    yield from (_row("", (line, style)) for line in lines)
    basis = f" · {page.fit_basis}"
    is_room = width >= 70 and len(last) + len(basis) <= width - _LABEL_WIDTH
    yield _row("", (last, style), (basis if is_room else "", "$muted"))


def _shown_devices(fit: FitReport) -> list[DeviceFit]:
    """The devices that are used, three at most; the host if no other is."""
    used = [
        device_fit
        for device_fit in fit.device_fits
        if device_fit.target.total or device_fit.draft.total
    ]
    return used[:3] or [fit.host]


def _host_memory_text(fit: FitReport) -> str:
    """Host memory that a pair on a GPU uses in addition."""
    if not _uses_gpu(fit) or not fit.host.total:
        return ""
    free = f", {gib(fit.host.device.free)} free" if fit.host.device.free else ""
    return f"plus {gib(fit.host.total)} of this computer's memory{free}"


def _uses_gpu(fit: FitReport) -> bool:
    return any(device_fit.target.total or device_fit.draft.total for device_fit in fit.device_fits)


# --- speed ------------------------------------------------------------------------------


def _speed_lines(page: DetailsPage, width: int, *, short: bool) -> Iterator[Content]:
    fit = page.candidate.fit
    if fit is None:
        return
    speed = fit.speed
    if speed.plain is None:
        yield _row("Speed", ("unknown: ", ""), sanitize(speed.explanation, multiline=False))
        return
    label = "speculative  "
    speedups = _speedup_text(page, width - _LABEL_WIDTH - len(label) - 20)
    yield _row("Speed", ("plain          ", "$muted"), fit_text.speed_text(speed.plain))
    yield _row(
        "",
        (f"{label}  ", "$muted"),
        (f"{fit_text.speed_text(speed.speculative):<14}", "bold"),
        (f"{'  ' if width >= 70 else ' '}{speedups}", "$muted"),
    )
    if not short:
        basis = f"based on {speed.explanation}"
        yield from (
            _row("", (text, "$muted")) for text in fit_text.wrap_text(basis, width - _LABEL_WIDTH)
        )


def _speedup_text(page: DetailsPage, width: int) -> str:
    """The speed-up for the chosen use case, then for others as room allows."""
    fit = page.candidate.fit
    assert fit is not None
    first = fit_text.speedup_text(fit_text.speedup_range(fit.speed, page.use_case))
    shown = f"{first} {_USE_CASE_LABELS.get(page.use_case, page.use_case)}" if first else ""
    for use, label in _USE_CASE_LABELS.items():
        more = f" · {fit_text.speedup_text(fit_text.speedup_range(fit.speed, use))} {label}"
        if use != page.use_case and len(shown) + len(more) <= width:
            shown += more
    return shown


# --- reasons and checks -----------------------------------------------------------------


def _reason_lines(page: DetailsPage, width: int, max_lines: int) -> Iterator[Content]:
    candidate = page.candidate
    reasons = " · ".join(filter(None, (candidate.draft_reason, *candidate.reasons)))
    if not reasons:
        return
    label = "This draft" if page.pair.draft else "This pair"
    for n, text in enumerate(fit_text.wrap_text(reasons, width - _LABEL_WIDTH)[:max_lines]):
        yield _row(label if n == 0 else "", text)


def _check_lines(page: DetailsPage, width: int, glyphs: Glyphs) -> Iterator[Content]:
    """As many checks per line as fit."""
    signs = {
        True: (glyphs.check, "$success"),
        False: (glyphs.cross, "$error"),
        None: (" ", "$muted"),
    }
    rows: list[list[Content]] = [[]]
    used = 0
    for check in page.checks:
        sign, style = signs[check.passed]
        text = sanitize(check.text, multiline=False)
        text = (
            text
            if len(text) <= width - _LABEL_WIDTH - 4
            else text[: width - _LABEL_WIDTH - 5] + glyphs.ellipsis
        )
        cell = Content.assemble((f"{sign} ", style), (text, "" if check.passed else style), "   ")
        if used and used + cell.cell_length - 3 > width - _LABEL_WIDTH:
            rows.append([])
            used = 0
        rows[-1].append(cell)
        used += cell.cell_length
    for n, row in enumerate(rows):
        yield _row("Checked" if n == 0 else "", *row)


# --- checks before the download -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PreDownloadCheck:
    """`passed` is None if it can only be checked at the download."""

    passed: bool | None
    text: str


@dataclass(frozen=True, slots=True)
class HeaderComparison:
    """The headers of a pair's files, and whether they are compatible."""

    subject: PairHeaders
    verdict: CompatibilityResult | None = None
    """None without a draft model, or if a header was made from the catalogue."""

    @property
    def is_from_files(self) -> bool:
        """Whether both headers were read from files, not made from the catalogue."""
        subject = self.subject
        return all(part.source != "shape" for part in (subject.target, subject.draft) if part)


def compare_headers(subject: PairHeaders) -> HeaderComparison:
    """Compares the vocabularies, which takes some tens of milliseconds."""
    target, draft = subject.headers
    comparison = HeaderComparison(subject)
    if draft is None or not comparison.is_from_files:
        return comparison
    return HeaderComparison(subject, draft_heads.check_compatibility(target, draft))


def check_before_download(
    pair: CatalogPair,
    fit: FitReport | None,
    subject: PairHeaders | None,
    comparison: HeaderComparison | None,
) -> tuple[PreDownloadCheck, ...]:
    return tuple(
        check
        for check in (
            _vocabulary_check(pair, comparison.verdict if comparison else None),
            _fit_check(fit),
            _rollback_check(subject),
            _licence_check(pair),
        )
        if check is not None
    )


def _vocabulary_check(
    pair: CatalogPair, verdict: CompatibilityResult | None
) -> PreDownloadCheck | None:
    if pair.draft is None:
        return None
    if pair.draft_kind in draft_heads.KIND_TITLES:
        return _head_check(draft_heads.KIND_TITLES[pair.draft_kind], verdict)
    if verdict is None:
        return PreDownloadCheck(None, "vocabularies: compared before the download")
    if verdict.is_compatible:
        return PreDownloadCheck(True, "vocabularies match")
    return PreDownloadCheck(False, f"vocabularies differ: {verdict.detail}")


def _head_check(name: str, verdict: CompatibilityResult | None) -> PreDownloadCheck:
    if verdict is None:
        return PreDownloadCheck(None, f"{name} head: compared with its target before the download")
    if verdict.is_compatible:
        return PreDownloadCheck(True, f"{name} head fits its target")
    return PreDownloadCheck(False, f"{name} head does not fit: {verdict.detail}")


def _fit_check(fit: FitReport | None) -> PreDownloadCheck | None:
    if fit is None or fit.verdict == "unknown":
        return None
    context = f"context {fit_text.context_text(fit.load.target_settings.n_ctx)}"
    fits = fit.verdict != "no"
    return PreDownloadCheck(fits, f"{'fits' if fits else 'does not fit'} with {context}")


def _rollback_check(subject: PairHeaders | None) -> PreDownloadCheck | None:
    """Whether the target can discard rejected draft tokens."""
    if subject is None:
        return None
    model_params = hparams.from_header(subject.target.header)
    if not model_params.has_recurrent_state:
        return PreDownloadCheck(True, "recurrent state: none")
    if model_params.can_rollback:
        return PreDownloadCheck(True, "recurrent state: can roll back")
    return PreDownloadCheck(False, "recurrent state: cannot roll back, no speculation")


def _licence_check(pair: CatalogPair) -> PreDownloadCheck:
    models: Iterator[str | None] = (m.licence for m in (pair.target, pair.draft) if m)
    if all(models):
        return PreDownloadCheck(True, f"licence {fit_text.licence_text(pair)}")
    return PreDownloadCheck(None, "licence: see model page")


# --- the selected pair --------------------------------------------------------------------


class PairDetails:
    """The pair of the last step: its headers, and the pairs to compare it with."""

    def __init__(self, services: WizardServices, estimates: EstimateCache) -> None:
        self._services, self._estimates = services, estimates
        self.candidate: Candidate | None = None
        self.free_disk: int | None = None
        """Free bytes on the download disk."""
        self._comparisons: dict[str, HeaderComparison | None] = {}
        self._confirmation_tried = set[tuple[str, str, WhatIf]]()

    def has_tried_headers(self, pair: CatalogPair) -> bool:
        """Also true if reading them failed."""
        return pair.id in self._comparisons

    def take_unconfirmed(self, use_case: str, what_if: WhatIf) -> PairHeaders | None:
        """The files' headers if the fit can be confirmed; only once per setting."""
        if self.candidate is None or self.candidate.fit is None:
            return None
        comparison = self._comparisons.get(self.candidate.pair.id)
        key = (self.candidate.pair.id, use_case, what_if)
        if comparison is None or not comparison.is_from_files or key in self._confirmation_tried:
            return None
        self._confirmation_tried.add(key)
        return comparison.subject

    def set_headers(self, pair: CatalogPair, comparison: HeaderComparison | None) -> None:
        """`comparison` is None if the headers could not be read."""
        self._comparisons[pair.id] = comparison
        if comparison is not None and comparison.is_from_files:
            self._estimates.use_headers(pair, comparison.subject)

    def next_draft(self) -> CatalogPair | None:
        """The next pair with this target, cyclically."""
        if self.candidate is None:
            return None
        pairs = pairs_of_same_target(self.candidate.pair, self._services.catalogue)
        ids = [pair.id for pair in pairs]
        index = ids.index(self.candidate.pair.id) if self.candidate.pair.id in ids else -1
        return pairs[(index + 1) % len(pairs)] if len(pairs) > 1 else None

    def next_target(self, candidates: Sequence[Candidate]) -> CatalogPair | None:
        """The next pair of the shortlist with another target."""
        if self.candidate is None:
            return None
        current = self.candidate.pair.target.id
        ids = [candidate.pair.target.id for candidate in candidates]
        index = ids.index(current) if current in ids else -1
        after = [*candidates[index + 1 :], *candidates[: index + 1]]
        return next(
            (candidate.pair for candidate in after if candidate.pair.target.id != current), None
        )

    def build_page(self, candidate: Candidate, use_case: str) -> DetailsPage:
        pair, comparison = candidate.pair, self._comparisons.get(candidate.pair.id)
        subject = comparison.subject if comparison else self._estimates.find_subject(pair)
        return DetailsPage(
            candidate=candidate,
            use_case=use_case,
            checks=check_before_download(pair, candidate.fit, subject, comparison),
            is_downloaded=pair.id in self._services.ready_choices,
            free_disk=self.free_disk,
            fit_basis=self._fit_basis(candidate),
        )

    def _fit_basis(self, candidate: Candidate) -> str:
        comparison = self._comparisons.get(candidate.pair.id)
        if candidate.fit is not None and candidate.fit.memory_estimate.method == "exact":
            return "exact, from the files' headers"
        if comparison is not None and comparison.is_from_files:
            return "from the files' headers"
        return "estimated from the catalogue"


def unlisted_candidate(pair: CatalogPair) -> Candidate:
    """A candidate for a pair that is not in the shortlist."""
    reasons = tuple(filter(None, (pair.why, pair.note)))
    return Candidate(
        pair, pair.size or 0, reasons=reasons, draft_reason=advisor.describe_head(pair.draft_kind)
    )
