"""The wizard's details page of a pair: memory, speed, reasons, and checks before the
download.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat

from msgspec import Struct
from textual.content import Content

from localspec import draft_kinds
from localspec.fit.pair_shapes import PairShapes
from localspec.fit.plan import Plan
from localspec.machine import published
from localspec.models import pair_compatibility
from localspec.models.catalog import CatalogPair
from localspec.models.pair_compatibility import CompatibilityResult
from localspec.report import memory, pair_text
from localspec.report.compatibility import describe_compatibility
from localspec.report.lines import plain_text
from localspec.sanitize import sanitize
from localspec.tui.text.report_content import role_style, to_content
from localspec.tui.text.wrapping import wrap_words
from localspec.tui.wizard.shortlist import (
    Candidate,
    EstimateCache,
    WizardServices,
    pairs_of_same_target,
)
from localspec.tui.wizard.what_if import WhatIf
from localspec.units import gb, gib

_LABEL_WIDTH = 12


class DetailsPage(Struct, frozen=True):
    candidate: Candidate
    use_case: str
    checks: tuple[PreDownloadCheck, ...]
    is_downloaded: bool = False  # Whether both files are installed.
    free_disk: int | None = None  # Free bytes on the download disk.
    fit_basis: str = ""  # Where the memory numbers come from.
    comparable_drafts: tuple[str, ...] = ()
    """Installed drafts for an installed target, by catalogue id."""


def render_page(page: DetailsPage, width: int, height: int) -> list[Content]:
    """Everything, or a shorter version on a low terminal."""
    is_short, is_spacious = height < 16, height >= 19
    inner, pair = width - _LABEL_WIDTH, page.candidate.pair
    # each once
    given = dict.fromkeys((page.candidate.draft_reason, *page.candidate.reasons))
    why = " · ".join(filter(None, given))
    reasons = wrap_words(why, inner)[: 4 if is_spacious else 2] if why else []
    blocks = [
        list(_title_lines(page, width)),
        _label("Memory", _memory_lines(page, inner, short=is_short, tall=height >= 24)),
        _label("Speed", _speed_lines(page, inner, short=is_short)),
        _label("This draft" if pair.draft else "This pair", map(Content, reasons)),
        _label("Checked", _check_lines(page.checks, inner)),
        _label("Compare", _comparison_lines(page, inner)) if is_spacious else [],
    ]
    lines: list[Content] = []
    for block in filter(None, blocks):
        lines += [Content("")] * (is_spacious and bool(lines))
        lines += block
    return lines


def _label(label: str, lines: Iterable[Content]) -> list[Content]:
    labels = chain([label], repeat(""))
    return [
        Content.assemble((f"{label:<{_LABEL_WIDTH}}", "$muted"), line)
        for label, line in zip(labels, lines, strict=False)
    ]


def _title_lines(page: DetailsPage, width: int) -> Iterator[Content]:
    pair = page.candidate.pair
    name = Content.assemble(
        (pair_text.format_model(pair.target), "bold"),
        ("  with  " if pair.draft else "  prompt lookup, no draft model", "$muted"),
        (pair_text.format_model(pair.draft) if pair.draft else "", "bold"),
    )
    facts = [pair_text.format_licences(pair, "licence: see model page")]
    if page.is_downloaded:
        facts.append("installed")
    else:
        facts.append(f"{gb(page.candidate.total_bytes)} to download")
        facts += [f"{gb(page.free_disk)} free"] if page.free_disk is not None else []
    text = " · ".join(facts)
    gap = width - name.cell_length - len(text)
    if gap >= 2:
        yield Content.assemble(name, " " * gap, (text, "$muted"))
        return
    yield name.truncate(width, ellipsis=True)
    yield Content.styled(text[:width], "$muted")


def _memory_lines(
    page: DetailsPage, width: int, *, short: bool, tall: bool
) -> Iterator[Content]:
    """A bar for each device that is used, three at most, or for the host if no other
    is.

    Devices that share the host's memory have one bar with it, unless one is itself too
    small.
    """
    fit = page.candidate.fit
    if fit is None:
        yield Content(page.candidate.no_fit_reason or "…")
        return
    bar_width = min(memory.MAX_BAR_WIDTH, width)
    gpus = [each for each in fit.device_fits if each.target.total or each.draft.total]
    is_pool = bool(fit.host.sharing) and all(
        each.verdict == "fits" for each in fit.host.sharing
    )
    if is_pool:
        gpus = [each for each in gpus if each not in fit.host.sharing]
    devices = [*gpus[:3], *([fit.host] if is_pool or not gpus else [])]
    for device_fit in devices:
        if len(devices) > 1:
            name = sanitize(device_fit.device.description, multiline=False)[:bar_width]
            yield Content.styled(name, "$muted")
        for line in memory.format_device_memory(
            device_fit, width, with_scale=not short
        ):
            yield to_content(line)
    style = f"bold {role_style(memory.VERDICT_ROLES[fit.verdict])}"
    *lines, last = wrap_words(memory.describe_fit(fit), width)
    yield from (Content.styled(line, style) for line in lines)
    basis = f" · {page.fit_basis}"
    is_room = width + _LABEL_WIDTH >= 70 and len(last) + len(basis) <= width
    yield Content.assemble((last, style), (basis if is_room else "", "$muted"))
    if tall and gpus and not is_pool and fit.host.total:
        free = f", {gib(fit.host.device.free)} free" if fit.host.device.free else ""
        text = f"plus {gib(fit.host.total)} of this computer's memory{free}"
        yield Content.styled(text, "$muted")


def _speed_lines(page: DetailsPage, width: int, *, short: bool) -> Iterator[Content]:
    fit = page.candidate.fit
    if fit is None or fit.verdict == "no":
        return
    speed = fit.speed
    yield from map(to_content, pair_text.format_speeds(speed, page.use_case, width))
    basis = pair_text.describe_speed_basis(speed)
    if speed.plain is None:
        yield to_content(basis)
        return
    pair, devices = page.candidate.pair, [each.device for each in fit.device_fits]
    kind = "" if pair.draft_kind == "lookup" else pair.draft_kind
    if not short and (row := published.find_nearest(pair.target.id, devices, kind)):
        text = f"others report  {row.describe()}"
        yield Content.styled(text, "$muted").truncate(width, ellipsis=True)
    if not short:
        lines = wrap_words(plain_text(basis), width)
        yield from (Content.styled(line, "$muted") for line in lines)


def _comparison_lines(page: DetailsPage, width: int) -> Iterator[Content]:
    """The command that judges the installed drafts; any model may draft where there is
    none.
    """
    if not page.is_downloaded:
        return
    drafts, target = page.comparable_drafts, page.candidate.pair.target.id
    why = (
        "which draft suits what you write"
        if drafts
        else "a model of another family, by text"
    )
    command = " ".join(
        ("localspec pair test", target, *(drafts or ("MODEL",)), "lookup")
    )
    yield from (Content.styled(line, "$muted") for line in wrap_words(f"{why}:", width))
    yield from map(Content, wrap_words(command, width))


def _check_lines(checks: Iterable[PreDownloadCheck], width: int) -> Iterator[Content]:
    good, bad = ("✓", "$success"), ("✗", "$error")
    signs = {True: good, False: bad, None: (" ", "$muted")}
    line = Content("")
    for check in checks:
        sign, style = signs[check.passed]
        text = sanitize(check.text, multiline=False)
        if len(text) > width - 4:
            text = text[: width - 5] + "…"
        cell = Content.assemble(
            (f"{sign} ", style), (text, "" if check.passed else style)
        )
        if line and line.cell_length + 3 + cell.cell_length > width:
            yield line
            line = Content("")
        line = Content.assemble(line, "   ", cell) if line else cell
    if line:
        yield line


class PreDownloadCheck(Struct, frozen=True):
    """`passed` is None if it can only be checked at the download."""

    passed: bool | None
    text: str


class HeaderComparison(Struct, frozen=True):
    """The headers of a pair's files, and whether they are compatible."""

    subject: PairShapes
    # None without a draft, or from the catalogue.
    verdict: CompatibilityResult | None = None

    @property
    def is_from_files(self) -> bool:
        """Whether both shapes were read from files, not from the catalogue."""
        return self.subject.headers is not None


def compare_headers(subject: PairShapes) -> HeaderComparison:
    """Compares the vocabularies, which takes some tens of milliseconds."""
    target, draft = subject.headers or (None, None)
    if target is None or draft is None:
        return HeaderComparison(subject)
    return HeaderComparison(
        subject, pair_compatibility.check_compatibility(target, draft)
    )


def check_before_download(
    pair: CatalogPair,
    fit: Plan | None,
    subject: PairShapes | None,
    comparison: HeaderComparison | None,
) -> Iterator[PreDownloadCheck]:
    if pair.draft is not None:
        yield _compatibility_check(pair, comparison.verdict if comparison else None)
    if fit is not None and fit.verdict != "unknown":
        context = pair_text.format_context(fit.load.target_settings.n_ctx)
        fits = fit.verdict != "no"
        label = memory.VERDICT_LABELS["fits" if fits else "no"]
        text = f"{label} with context {context}"
        yield PreDownloadCheck(fits, text)
    if subject is not None:
        shape = subject.target.shape
        can_speculate = not shape.has_recurrent_state or shape.can_rollback
        text = "can roll back" if shape.has_recurrent_state else "none"
        text = text if can_speculate else "cannot roll back, no speculation"
        yield PreDownloadCheck(can_speculate, f"recurrent state: {text}")
    if all(model.licence for model in (pair.target, pair.draft) if model):
        yield PreDownloadCheck(True, f"licence {pair_text.format_licences(pair)}")
    else:
        yield PreDownloadCheck(None, "licence: see model page")


def _compatibility_check(
    pair: CatalogPair, verdict: CompatibilityResult | None
) -> PreDownloadCheck:
    text = describe_compatibility(verdict, pair.draft_kind)
    return PreDownloadCheck(verdict.is_compatible if verdict else None, text)


class PairDetails:
    """The pair of the last step: its headers, and the pairs to compare it with."""

    def __init__(self, services: WizardServices, estimates: EstimateCache) -> None:
        self._services, self._estimates = services, estimates
        self.candidate: Candidate | None = None
        self.free_disk: int | None = None  # Free bytes on the download disk.
        self._comparisons: dict[str, HeaderComparison | None] = {}
        self._confirmation_tried = set[tuple[str, str, WhatIf]]()

    def has_tried_headers(self, pair: CatalogPair) -> bool:
        """Also true if reading them failed."""
        return pair.id in self._comparisons

    def take_unconfirmed(self, use_case: str, what_if: WhatIf) -> PairShapes | None:
        """The files' headers if the fit can be confirmed; only once per setting."""
        if self.candidate is None or self.candidate.fit is None:
            return None
        comparison = self._comparisons.get(self.candidate.pair.id)
        key = (self.candidate.pair.id, use_case, what_if)
        if (
            comparison is None
            or not comparison.is_from_files
            or key in self._confirmation_tried
        ):
            return None
        self._confirmation_tried.add(key)
        return comparison.subject

    def set_headers(
        self, pair: CatalogPair, comparison: HeaderComparison | None
    ) -> None:
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
        index = (
            ids.index(self.candidate.pair.id) if self.candidate.pair.id in ids else -1
        )
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
            (each.pair for each in after if each.pair.target.id != current), None
        )

    def build_page(self, candidate: Candidate, use_case: str) -> DetailsPage:
        pair, comparison = candidate.pair, self._comparisons.get(candidate.pair.id)
        subject = (
            comparison.subject if comparison else self._estimates.find_subject(pair)
        )
        fit_basis = "estimated from the catalogue"
        if candidate.fit is not None and candidate.fit.memory.method == "exact":
            fit_basis = "exact, from the files' headers"
        elif comparison is not None and comparison.is_from_files:
            fit_basis = "from the files' headers"
        return DetailsPage(
            candidate=candidate,
            use_case=use_case,
            checks=tuple(
                check_before_download(pair, candidate.fit, subject, comparison)
            ),
            is_downloaded=pair.id in self._services.ready_pairs,
            free_disk=self.free_disk,
            fit_basis=fit_basis,
            comparable_drafts=tuple(
                other.draft.id
                for other in pairs_of_same_target(pair, self._services.catalogue)
                if other.draft is not None and other.id in self._services.ready_pairs
            ),
        )


def unlisted_candidate(pair: CatalogPair) -> Candidate:
    reasons = tuple(filter(None, (pair.why, pair.note)))
    return Candidate(
        pair,
        pair.size or 0,
        reasons=reasons,
        draft_reason=draft_kinds.describe(pair.draft_kind),
    )
