"""One pair on one place: memory, speed, why this draft, and what is checked before a download."""

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
"""Cells of the bar."""
_USE_CASE_LABELS = {"chat": "chat", "code": "code", "writing": "stories", "documents": "documents"}


@dataclass(frozen=True, slots=True)
class DetailsPage:
    """What the card is made from."""

    candidate: Candidate
    use_case: str
    checks: tuple[PreDownloadCheck, ...]
    is_downloaded: bool = False
    """Both files are."""
    free_disk: int | None = None
    """Bytes free where the files will be."""
    fit_basis: str = ""
    """How sure the memory is: read from headers, or drawn from the catalogue."""

    @property
    def pair(self) -> CatalogPair:
        return self.candidate.pair


def render_page(page: DetailsPage, width: int, height: int, glyphs: Glyphs) -> list[Content]:
    """Everything, or in few lines what fits them."""
    airy = height >= 19
    gap = [Content("")] if airy else []
    blocks = [
        list(_title_lines(page, width)),
        list(_memory_lines(page, width, glyphs, short=height < 16, tall=height >= 24)),
        list(_speed_lines(page, width, short=height < 16)),
        list(_reason_lines(page, width, 4 if airy else 2)),
        list(_check_lines(page, width, glyphs)),
    ]
    found: list[Content] = []
    for block in blocks:
        found += [*(gap if found and block else []), *block]
    return found


def _title_lines(page: DetailsPage, width: int) -> Iterator[Content]:
    pair = page.pair
    beside = f"  with  {fit_text.model_text(pair.draft)}" if pair.draft else "  copying, no draft"
    name = Content.assemble(
        (fit_text.model_text(pair.target), "bold"),
        (beside[:8] if pair.draft else beside, "$muted"),
        (beside[8:] if pair.draft else "", "bold"),
    )
    size = _download_text(page)
    disk = (
        f"{gb(page.free_disk)} free"
        if page.free_disk is not None and not page.is_downloaded
        else ""
    )
    facts = " · ".join(
        filter(None, (fit_text.licence_text(pair, "licence on its page"), size, disk))
    )
    room = width - name.cell_length - len(facts)
    if room >= 2:
        yield Content.assemble(name, " " * room, (facts, "$muted"))
        return
    yield name.truncate(width, ellipsis=True)
    yield Content.styled(facts[:width], "$muted")


def _download_text(page: DetailsPage) -> str:
    """How much must come."""
    return "here already" if page.is_downloaded else f"{gb(page.candidate.total_bytes)} to download"


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
    wide = min(_MAX_BAR_WIDTH, width - _LABEL_WIDTH)
    shown = _shown_devices(fit)
    for n, room in enumerate(shown):
        label = "Memory" if n == 0 else ""
        if len(shown) > 1:
            yield _row(label, (sanitize(room.device.description, multiline=False)[:wide], "$muted"))
            label = ""
        if not short:
            yield _row(label, (memory_bar.render_scale(room, wide), "$muted"))
            label = ""
        yield _row(label, memory_bar.render_bar(room, wide, glyphs))
        yield _row("", memory_bar.render_legend(room, glyphs, width - _LABEL_WIDTH))
    yield from _verdict_lines(page, fit, width)
    if tall and (beside := _host_memory_text(fit)):
        yield _row("", (beside, "$muted"))


def _verdict_lines(page: DetailsPage, fit: FitReport, width: int) -> Iterator[Content]:
    """Whether it fits; and how that is known, where there is room for it."""
    style = f"bold {VERDICT_STYLES[fit.verdict]}"
    *lines, last = fit_text.wrap_text(fit_text.verdict_text(fit), width - _LABEL_WIDTH)
    yield from (_row("", (line, style)) for line in lines)
    basis = f" · {page.fit_basis}"
    is_room = width >= 70 and len(last) + len(basis) <= width - _LABEL_WIDTH
    yield _row("", (last, style), (basis if is_room else "", "$muted"))


def _shown_devices(fit: FitReport) -> list[DeviceFit]:
    """The devices that take something, three at most; without any the computer's memory."""
    used = [room for room in fit.device_fits if room.target.total or room.draft.total]
    return used[:3] or [fit.host]


def _host_memory_text(fit: FitReport) -> str:
    """What a card's pair takes of the computer's own memory."""
    if not _uses_gpu(fit) or not fit.host.total:
        return ""
    free = f", {gib(fit.host.device.free)} free" if fit.host.device.free else ""
    return f"and {gib(fit.host.total)} of this computer's memory{free}"


def _uses_gpu(fit: FitReport) -> bool:
    return any(room.target.total or room.draft.total for room in fit.device_fits)


# --- speed ------------------------------------------------------------------------------


def _speed_lines(page: DetailsPage, width: int, *, short: bool) -> Iterator[Content]:
    fit = page.candidate.fit
    if fit is None:
        return
    speed = fit.speed
    if speed.plain is None:
        yield _row("Speed", ("unknown: ", ""), sanitize(speed.explanation, multiline=False))
        return
    with_ = "with draft   " if page.pair.draft else "with copying "
    gains = _speedup_text(page, width - _LABEL_WIDTH - len(with_) - 20)
    yield _row("Speed", ("without draft  ", "$muted"), fit_text.speed_text(speed.plain))
    yield _row(
        "",
        (f"{with_}  ", "$muted"),
        (f"{fit_text.speed_text(speed.speculative):<14}", "bold"),
        (f"{'  ' if width >= 70 else ' '}{gains}", "$muted"),
    )
    if not short:
        rests = f"rests on {speed.explanation}"
        yield from (
            _row("", (text, "$muted")) for text in fit_text.wrap_text(rests, width - _LABEL_WIDTH)
        )


def _speedup_text(page: DetailsPage, width: int) -> str:
    """2.0–2.4× for what was asked for, then for the rest as far as there is room."""
    fit = page.candidate.fit
    assert fit is not None
    first = fit_text.speedup_text(fit_text.speedup_range(fit.speed, page.use_case))
    said = f"{first} {_USE_CASE_LABELS.get(page.use_case, page.use_case)}" if first else ""
    for use, word in _USE_CASE_LABELS.items():
        more = f" · {fit_text.speedup_text(fit_text.speedup_range(fit.speed, use))} {word}"
        if use != page.use_case and len(said) + len(more) <= width:
            said += more
    return said


# --- reasons and checks -----------------------------------------------------------------


def _reason_lines(page: DetailsPage, width: int, max_lines: int) -> Iterator[Content]:
    one = page.candidate
    said = " · ".join(filter(None, (one.draft_reason, *one.reasons)))
    if not said:
        return
    label = "This draft" if page.pair.draft else "This pair"
    for n, text in enumerate(fit_text.wrap_text(said, width - _LABEL_WIDTH)[:max_lines]):
        yield _row(label if n == 0 else "", text)


def _check_lines(page: DetailsPage, width: int, glyphs: Glyphs) -> Iterator[Content]:
    """As many to a line as fit."""
    signs = {
        True: (glyphs.check, "$success"),
        False: (glyphs.cross, "$error"),
        None: (" ", "$muted"),
    }
    rows: list[list[Content]] = [[]]
    filled = 0
    for check in page.checks:
        sign, style = signs[check.passed]
        text = sanitize(check.text, multiline=False)
        text = (
            text
            if len(text) <= width - _LABEL_WIDTH - 4
            else text[: width - _LABEL_WIDTH - 5] + glyphs.ellipsis
        )
        cell = Content.assemble((f"{sign} ", style), (text, "" if check.passed else style), "   ")
        if filled and filled + cell.cell_length - 3 > width - _LABEL_WIDTH:
            rows.append([])
            filled = 0
        rows[-1].append(cell)
        filled += cell.cell_length
    for n, row in enumerate(rows):
        yield _row("Checked" if n == 0 else "", *row)


# --- What is known to be right, or wrong, before a byte of weights is downloaded.


@dataclass(frozen=True, slots=True)
class PreDownloadCheck:
    """`good` None: it will be seen at the download."""

    passed: bool | None
    text: str


@dataclass(frozen=True, slots=True)
class HeaderComparison:
    """What the headers of a pair's files say."""

    subject: PairHeaders
    verdict: CompatibilityResult | None = None
    """Of what must be the same in both; None: there is no draft, or a header was only drawn."""

    @property
    def is_from_files(self) -> bool:
        """Whether both headers are those of the files."""
        subject = self.subject
        return all(part.source != "shape" for part in (subject.target, subject.draft) if part)


def compare_headers(subject: PairHeaders) -> HeaderComparison:
    """Compares the vocabularies, which takes some tens of milliseconds."""
    target, draft = subject.headers
    known = HeaderComparison(subject)
    if draft is None or not known.is_from_files:
        return known
    return HeaderComparison(subject, draft_heads.check_compatibility(target, draft))


def check_before_download(
    pair: CatalogPair,
    fit: FitReport | None,
    subject: PairHeaders | None,
    comparison: HeaderComparison | None,
) -> tuple[PreDownloadCheck, ...]:
    """In the order in which people ask."""
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
    at = f"context {fit_text.context_text(fit.load.target_settings.n_ctx)}"
    good = fit.verdict != "no"
    return PreDownloadCheck(good, f"{'fits' if good else 'does not fit'} with {at}")


def _rollback_check(subject: PairHeaders | None) -> PreDownloadCheck | None:
    """Whether the target can forget a wrong guess."""
    if subject is None:
        return None
    about = hparams.from_header(subject.target.header)
    if not about.has_recurrent_state:
        return PreDownloadCheck(True, "hybrid memory: no")
    if about.can_rollback:
        return PreDownloadCheck(True, "hybrid memory: takes guesses back")
    return PreDownloadCheck(False, "hybrid memory: cannot take a guess back, no speculation")


def _licence_check(pair: CatalogPair) -> PreDownloadCheck:
    models: Iterator[str | None] = (m.licence for m in (pair.target, pair.draft) if m)
    if all(models):
        return PreDownloadCheck(True, f"licence {fit_text.licence_text(pair)}")
    return PreDownloadCheck(None, "licence: on its page")


# --- The pair of the wizard's last step: what is known of it, and what could stand in its place.


class PairDetails:
    """Headers that were read are remembered by pair."""

    def __init__(self, services: WizardServices, estimates: EstimateCache) -> None:
        self._services, self._estimates = services, estimates
        self.candidate: Candidate | None = None
        self.free_disk: int | None = None
        """Bytes free where files will be."""
        self._comparisons: dict[str, HeaderComparison | None] = {}
        self._confirmation_tried = set[tuple[str, str, WhatIf]]()
        """Or tried to be."""

    def has_tried_headers(self, pair: CatalogPair) -> bool:
        """Or tried, in vain."""
        return pair.id in self._comparisons

    def take_unconfirmed(self, use_case: str, what_if: WhatIf) -> PairHeaders | None:
        """The files' headers, where the price by formulas can be confirmed and was not; once."""
        if self.candidate is None or self.candidate.fit is None:
            return None
        known, key = (
            self._comparisons.get(self.candidate.pair.id),
            (self.candidate.pair.id, use_case, what_if),
        )
        if known is None or not known.is_from_files or key in self._confirmation_tried:
            return None
        self._confirmation_tried.add(key)
        return known.subject

    def set_headers(self, pair: CatalogPair, comparison: HeaderComparison | None) -> None:
        """What the headers of its files say; None: they could not be had."""
        self._comparisons[pair.id] = comparison
        if comparison is not None and comparison.is_from_files:
            self._estimates.use_headers(pair, comparison.subject)

    def next_draft(self) -> CatalogPair | None:
        """The next pair of this target, round and round."""
        if self.candidate is None:
            return None
        pairs = pairs_of_same_target(self.candidate.pair, self._services.catalogue)
        ids = [pair.id for pair in pairs]
        at = ids.index(self.candidate.pair.id) if self.candidate.pair.id in ids else -1
        return pairs[(at + 1) % len(pairs)] if len(pairs) > 1 else None

    def next_target(self, candidates: Sequence[Candidate]) -> CatalogPair | None:
        """The next of the shortlist with another target."""
        if self.candidate is None:
            return None
        mine = self.candidate.pair.target.id
        ids = [one.pair.target.id for one in candidates]
        at = ids.index(mine) if mine in ids else -1
        after = [*candidates[at + 1 :], *candidates[: at + 1]]
        return next((one.pair for one in after if one.pair.target.id != mine), None)

    def build_page(self, candidate: Candidate, use_case: str) -> DetailsPage:
        pair, known = candidate.pair, self._comparisons.get(candidate.pair.id)
        found = known.subject if known else self._estimates.find_subject(pair)
        return DetailsPage(
            candidate=candidate,
            use_case=use_case,
            checks=check_before_download(pair, candidate.fit, found, known),
            is_downloaded=pair.id in self._services.ready_choices,
            free_disk=self.free_disk,
            fit_basis=self._fit_basis(candidate),
        )

    def _fit_basis(self, candidate: Candidate) -> str:
        """How sure the memory is."""
        known = self._comparisons.get(candidate.pair.id)
        if candidate.fit is not None and candidate.fit.memory_estimate.method == "exact":
            return "exact, from the files' headers"
        if known is not None and known.is_from_files:
            return "from the files' headers"
        return "estimated from the catalogue"


def unlisted_candidate(pair: CatalogPair) -> Candidate:
    """One that is not in the shortlist."""
    why = tuple(filter(None, (pair.why, pair.note)))
    return Candidate(
        pair, pair.size or 0, reasons=why, draft_reason=advisor.describe_head(pair.draft_kind)
    )
