"""The wizard's details page: memory, speed, reasons and checks of one pair."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from textual.content import Content

from localspec import draft_kinds
from localspec.fit.pair_shapes import PairShapes
from localspec.fit.plan import DeviceFit, FitVerdict, Plan
from localspec.fit.shape import ModelShape
from localspec.machine import published
from localspec.models import (
    model_names,
    pair_compatibility,
    projectors,
)
from localspec.models.catalog import CatalogModel, CatalogPair
from localspec.models.pair_compatibility import CompatibilityResult
from localspec.report import fit as fit_report
from localspec.report import memory, pair_text
from localspec.report.compatibility import describe_compatibility
from localspec.report.lines import plain_text
from localspec.tui.text.report_content import role_style, to_content
from localspec.tui.text.wrapping import fit_to_width, one_line, wrap_words
from localspec.tui.wizard.shortlist import (
    Candidate,
    EstimateCache,
    WizardServices,
    describe_bytes_to_free,
    pairs_of_same_target,
)
from localspec.tui.wizard.what_if import WhatIf
from localspec.units import gb, gib

_LABEL_WIDTH = 12
_MAX_BARS = 3  # Of devices other than the host.

# A page of fewer lines than these leaves out what they name.
_FULL_TEXT_HEIGHT = 16  # The bars' scales, and where the speeds come from.
_SPACED_HEIGHT = 19  # Blank lines, the command that compares drafts, more reasons.
_HOST_MEMORY_HEIGHT = 24  # The host's memory beside that of GPUs.
_FIT_BASIS_WIDTH = 70  # A narrower page leaves out where the memory numbers come from.


class PreDownloadCheck(Struct, frozen=True):
    """`passed` is None if it can only be checked at the download."""

    passed: bool | None
    text: str


class DetailsPage(Struct, frozen=True):
    candidate: Candidate
    use_case: str
    checks: tuple[PreDownloadCheck, ...]
    is_downloaded: bool = False  # Whether both files are installed.
    free_disk: int | None = None  # Free bytes on the download disk.
    fit_basis: str = ""  # Where the memory numbers come from.
    comparable_drafts: tuple[str, ...] = ()
    """Installed drafts for an installed target, by catalogue id."""


# --- drawing the page
# --------------------------------------------------------------------------------------


def render_page(page: DetailsPage, width: int, height: int) -> list[Content]:
    """Everything, or a shorter version on a low terminal."""
    pair = page.candidate.pair
    text_width = width - _LABEL_WIDTH
    has_space = height >= _SPACED_HEIGHT
    max_lines = 4 if has_space else 2
    draft_label = "This pair" if _drafts_from_text(pair) else "This draft"
    reasons = _reason_lines(page.candidate, text_width, max_lines=max_lines)
    blocks = [
        list(_title_lines(page, width)),
        _add_label("Memory", _memory_lines(page, text_width, height)),
        _add_label("Speed", _speed_lines(page, text_width, height)),
        _add_label(draft_label, reasons),
        _add_label("Checked", _check_lines(page.checks, text_width)),
    ]
    if has_space:
        blocks.append(_add_label("Compare", _comparison_lines(page, text_width)))
    blocks = [block for block in blocks if block]
    n_lines = sum(map(len, blocks))
    n_visible = height - 1  # Below a blank line.
    if n_visible - len(blocks) + 1 < n_lines <= n_visible:
        has_space = False  # Without blank lines, all of it is seen.
    lines: list[Content] = []
    for block in blocks:
        if has_space and lines:
            lines.append(Content(""))
        lines += block
    return lines


def _add_label(label: str, lines: Iterable[Content]) -> list[Content]:
    """The lines in a column, with `label` at the left of the first."""
    labelled: list[Content] = []
    for line in lines:
        shown = "" if labelled else label
        cell = (shown.ljust(_LABEL_WIDTH), "$muted")
        labelled.append(Content.assemble(cell, line))
    return labelled


def _title_lines(page: DetailsPage, width: int) -> Iterator[Content]:
    """The names, at the right or below them licences and sizes; then what one types."""
    pair = page.candidate.pair
    names = model_names.name_catalog_pair(pair)
    drafter = names.text.removeprefix(names.target)
    name = Content.assemble((names.target, "bold"), (drafter, "$muted"))
    facts = list(_title_facts(page))
    joined = " · ".join(facts)
    gap = width - name.cell_length - len(joined)
    if gap >= 2:
        yield Content.assemble(name, " " * gap, (joined, "$muted"))
    else:
        yield name.truncate(width, ellipsis=True)
        while len(joined) > width and len(facts) > 1:  # The first ones matter most.
            facts.pop()
            joined = " · ".join(facts)
        yield Content.styled(fit_to_width(joined, width).rstrip(), "$muted")
    ids = Content.styled(_describe_ids(pair), "$muted")
    yield ids.truncate(width, ellipsis=True)


def _describe_ids(pair: CatalogPair) -> str:
    """The id, which commands take, and the files."""
    files = [
        model.file.rpartition("/")[2] or model.quantization
        for model in (pair.target, pair.draft)
        if model is not None
    ]
    return one_line(f"{pair.name} · {' + '.join(files)}")


def _drafts_from_text(pair: CatalogPair) -> bool:
    return pair.draft_kind == "lookup"


def _title_facts(page: DetailsPage) -> Iterator[str]:
    yield pair_text.format_licences(page.candidate.pair, pair_text.UNKNOWN_LICENCE)
    if page.is_downloaded:
        yield "installed"
        return
    yield f"{gb(page.candidate.download_bytes)} to download"
    if page.free_disk is not None:
        yield f"{gb(page.free_disk)} free on disk"


def _memory_lines(page: DetailsPage, width: int, height: int) -> Iterator[Content]:
    """The bars, the verdict, and what else a tall page has room for."""
    plan = page.candidate.plan
    if plan is None:
        yield Content(page.candidate.no_fit_reason or "…")
        return
    devices = _devices_with_bars(plan)
    for device_fit in devices:
        if len(devices) > 1:
            name = one_line(device_fit.device.description)
            yield Content.styled(name[: min(memory.MAX_BAR_WIDTH, width)], "$muted")
        has_scale = height >= _FULL_TEXT_HEIGHT
        for line in memory.format_device_memory(
            device_fit, width, with_scale=has_scale
        ):
            yield to_content(line)
    yield from _verdict_lines(page, plan, width)
    yield from _projector_lines(page.candidate.pair.target, plan, width)
    if height >= _HOST_MEMORY_HEIGHT and plan.host not in devices and plan.host.total:
        needed = memory.format_need(plan.host, plan.host.total)
        text = f"plus {needed} of this computer's memory"
        if plan.host.device.free:
            text += f", {gib(plan.host.device.free)} free"
        yield Content.styled(text, "$muted")


def _projector_lines(target: CatalogModel, plan: Plan, width: int) -> Iterator[Content]:
    """What the target sees, and what that takes, as the bars have it; one line."""
    senses = projectors.listed_senses(target)
    text = fit_report.describe_projector(plan, senses)
    if text:
        yield Content.styled(text, "$muted").truncate(width, ellipsis=True)


def _devices_with_bars(plan: Plan) -> list[DeviceFit]:
    """The devices that are used, three at most, or the host if no other is.

    Devices that share the host's memory have one bar together with it, unless one of
    them is itself too small.
    """
    used = [each for each in plan.device_fits if each.target.total or each.draft.total]
    sharing = plan.host.sharing
    if sharing and all(each.verdict is FitVerdict.FITS for each in sharing):
        others = [each for each in used if each not in sharing]
        return [*others[:_MAX_BARS], plan.host]
    return used[:_MAX_BARS] or [plan.host]


def _verdict_lines(page: DetailsPage, plan: Plan, width: int) -> Iterator[Content]:
    """Whether it fits; that it is too slow, or that programs hold its memory, comes first."""
    candidate = page.candidate
    warning = ""
    if candidate.is_too_slow:
        warning = candidate.group_reason
    elif candidate.bytes_to_free:
        warning = describe_bytes_to_free(candidate)
    if warning:
        for line in wrap_words(warning, width):
            yield Content.styled(line, "bold $warning")
    style = role_style(memory.VERDICT_ROLES[plan.verdict])
    if warning and plan.verdict.can_load:
        style = "$muted"
    style = f"bold {style}"
    *lines, last = wrap_words(memory.describe_fit(plan), width)
    for line in lines:
        yield Content.styled(line, style)
    basis = f" · {page.fit_basis}"
    is_wide = width + _LABEL_WIDTH >= _FIT_BASIS_WIDTH
    if is_wide and len(last) + len(basis) <= width:
        yield Content.assemble((last, style), (basis, "$muted"))
    else:
        yield Content.styled(last, style)


def _speed_lines(page: DetailsPage, width: int, height: int) -> Iterator[Content]:
    plan = page.candidate.plan
    if plan is None or not plan.verdict.can_load:
        return
    yield from _short_speed_lines(page.candidate)
    for line in pair_text.format_speeds(plan.speed, page.use_case, width):
        yield to_content(line)
    basis = pair_text.describe_speed_basis(plan.speed)
    if plan.speed.plain is None:
        yield to_content(basis)
    elif height >= _FULL_TEXT_HEIGHT:
        yield from _published_lines(page.candidate.pair, plan, width)
        for text in wrap_words(plain_text(basis), width):
            yield Content.styled(text, "$muted")


def _short_speed_lines(candidate: Candidate) -> Iterator[Content]:
    """The middles of the estimates; their ranges are below."""
    if candidate.rate is not None and candidate.plan is not None:
        has_draft = candidate.plain_rate is not None
        speed = candidate.plan.speed
        yield Content.styled(
            pair_text.describe_rates(speed, has_draft=has_draft), "bold"
        )


def _published_lines(pair: CatalogPair, plan: Plan, width: int) -> Iterator[Content]:
    """What others measured with this target on a similar GPU."""
    devices = [each.device for each in plan.device_fits]
    draft_kind = "" if pair.draft_kind == "lookup" else pair.draft_kind
    row = published.find_nearest(pair.target.id, devices, draft_kind)
    if row is not None:
        text = f"others report  {row.describe()}"
        yield Content.styled(text, "$muted").truncate(width, ellipsis=True)


def _reason_lines(candidate: Candidate, width: int, *, max_lines: int) -> list[Content]:
    reasons = [candidate.draft_reason, *candidate.reasons]
    distinct = dict.fromkeys(reason for reason in reasons if reason)
    if not distinct:
        return []
    lines = wrap_words(" · ".join(distinct), width)
    return [Content(line) for line in lines[:max_lines]]


def _check_lines(checks: Iterable[PreDownloadCheck], width: int) -> Iterator[Content]:
    """The checks side by side, as many in a line as fit."""
    gap = " " * 3
    line = Content("")
    for check in checks:
        cell = _check_cell(check, width)
        if not line:
            line = cell
        elif line.cell_length + len(gap) + cell.cell_length <= width:
            line = Content.assemble(line, gap, cell)
        else:
            yield line
            line = cell
    if line:
        yield line


def _check_cell(check: PreDownloadCheck, width: int) -> Content:
    text = one_line(check.text)
    if len(text) > width - 4:
        text = text[: width - 5] + "…"
    if check.passed:
        return Content.assemble(("✓ ", "$success"), text)
    if check.passed is None:
        return Content.assemble(("· ", "$muted"), (text, "$muted"))
    return Content.assemble(("✗ ", "$error"), (text, "$error"))


def _comparison_lines(page: DetailsPage, width: int) -> Iterator[Content]:
    """The command that compares the installed drafts.

    Without an installed draft it compares any model, which then drafts by text.
    """
    if not page.is_downloaded:
        return
    why = "a model of another family, by text:"
    drafts = ["MODEL"]
    if page.comparable_drafts:
        why = "which draft suits what you write:"
        drafts = list(page.comparable_drafts)
    target = page.candidate.pair.target.id
    command = ["localspec", "pair", "test", target, *drafts, "lookup"]
    for line in wrap_words(why, width):
        yield Content.styled(line, "$muted")
    for line in wrap_words(" ".join(command), width):
        yield Content(line)


# --- checks
# --------------------------------------------------------------------------------------


class HeaderComparison(Struct, frozen=True):
    """The headers of a pair's files, and whether they are compatible."""

    subject: PairShapes
    verdict: CompatibilityResult | None = None
    """None without a draft, or if the shapes come from the catalogue."""

    @property
    def is_from_files(self) -> bool:
        """Whether both shapes were read from files, not from the catalogue."""
        return self.subject.headers is not None


def compare_headers(subject: PairShapes) -> HeaderComparison:
    """Compares the vocabularies, which takes some tens of milliseconds."""
    target, draft = subject.headers or (None, None)
    if target is None or draft is None:
        return HeaderComparison(subject)
    verdict = pair_compatibility.check_compatibility(target, draft)
    return HeaderComparison(subject, verdict)


def check_before_download(
    pair: CatalogPair,
    plan: Plan | None,
    subject: PairShapes | None,
    comparison: HeaderComparison | None,
) -> Iterator[PreDownloadCheck]:
    if pair.draft is not None:
        compatibility = comparison.verdict if comparison is not None else None
        yield _check_compatibility(pair, compatibility)
    if plan is not None and plan.verdict is not FitVerdict.UNKNOWN:
        fits = plan.verdict.can_load
        # What is tight can be loaded, too.
        verdict = FitVerdict.FITS if fits else FitVerdict.NO
        label = memory.VERDICT_LABELS[verdict]
        context = pair_text.format_context(plan.load.target_settings.n_ctx)
        yield PreDownloadCheck(fits, f"{label} with context {context}")
    if subject is not None:
        yield _check_recurrent_state(subject.target.shape)
    models = [model for model in (pair.target, pair.draft) if model]
    if all(model.licence for model in models):
        yield PreDownloadCheck(True, f"licence {pair_text.format_licences(pair)}")
    else:
        yield PreDownloadCheck(None, pair_text.UNKNOWN_LICENCE)


def _check_compatibility(
    pair: CatalogPair, verdict: CompatibilityResult | None
) -> PreDownloadCheck:
    text = describe_compatibility(verdict, pair.draft_kind)
    if verdict is None:
        return PreDownloadCheck(None, text)
    return PreDownloadCheck(verdict.is_compatible, text)


def _check_recurrent_state(target: ModelShape) -> PreDownloadCheck:
    """Rejected tokens must be removed again, from recurrent states by a roll back."""
    if not target.has_recurrent_state:
        return PreDownloadCheck(True, "recurrent state: none")
    if target.can_rollback:
        return PreDownloadCheck(True, "recurrent state: can roll back")
    text = "recurrent state: cannot roll back, no speculation"
    return PreDownloadCheck(False, text)


# --- the pair that is shown
# --------------------------------------------------------------------------------------


class PairDetails:
    """The pair of the last step: its headers, and the pairs to compare it with."""

    def __init__(self, services: WizardServices, estimates: EstimateCache) -> None:
        self._services = services
        self._estimates = estimates
        self.candidate: Candidate | None = None
        self.free_disk: int | None = None  # Free bytes on the download disk.
        self._comparisons: dict[str, HeaderComparison | None] = {}
        """By pair id; None if reading the headers failed."""
        self._count_tried = set[tuple[str, str, WhatIf]]()

    def has_tried_headers(self, pair: CatalogPair) -> bool:
        """Also true if reading them failed."""
        return pair.id in self._comparisons

    def set_headers(
        self, pair: CatalogPair, comparison: HeaderComparison | None
    ) -> None:
        """`comparison` is None if the headers could not be read."""
        self._comparisons[pair.id] = comparison
        if comparison is not None and comparison.is_from_files:
            self._estimates.use_headers(pair, comparison.subject)

    def take_uncounted(self, use_case: str, what_if: WhatIf) -> PairShapes | None:
        """The files' headers if the memory can be counted; only once per setting."""
        if self.candidate is None or self.candidate.plan is None:
            return None
        pair_id = self.candidate.pair.id
        comparison = self._comparisons.get(pair_id)
        if comparison is None or not comparison.is_from_files:
            return None
        key = (pair_id, use_case, what_if)
        if key in self._count_tried:
            return None
        self._count_tried.add(key)
        return comparison.subject

    def next_draft(self) -> CatalogPair | None:
        """The next pair with this target, cyclically; None if there is no other."""
        if self.candidate is None:
            return None
        pairs = pairs_of_same_target(self.candidate.pair, self._services.catalogue)
        if len(pairs) < 2:
            return None
        ids = [pair.id for pair in pairs]
        if self.candidate.pair.id not in ids:
            return pairs[0]
        index = ids.index(self.candidate.pair.id)
        return pairs[(index + 1) % len(pairs)]

    def next_target(self, candidates: Sequence[Candidate]) -> CatalogPair | None:
        """The next pair of the shortlist with another target, cyclically."""
        if self.candidate is None:
            return None
        current = self.candidate.pair.target.id
        target_ids = [candidate.pair.target.id for candidate in candidates]
        start = 0
        if current in target_ids:
            start = target_ids.index(current) + 1
        for candidate in (*candidates[start:], *candidates[:start]):
            if candidate.pair.target.id != current:
                return candidate.pair
        return None

    def build_page(self, candidate: Candidate, use_case: str) -> DetailsPage:
        pair = candidate.pair
        comparison = self._comparisons.get(pair.id)
        if comparison is not None:
            subject: PairShapes | None = comparison.subject
        else:
            subject = self._estimates.find_subject(pair)
        checks = check_before_download(pair, candidate.plan, subject, comparison)
        return DetailsPage(
            candidate=candidate,
            use_case=use_case,
            checks=tuple(checks),
            is_downloaded=pair.id in self._services.ready_pairs,
            free_disk=self.free_disk,
            fit_basis=_describe_fit_basis(candidate, comparison),
            comparable_drafts=self._list_comparable_drafts(pair),
        )

    def _list_comparable_drafts(self, pair: CatalogPair) -> tuple[str, ...]:
        pairs = pairs_of_same_target(pair, self._services.catalogue)
        ready = [each for each in pairs if each.id in self._services.ready_pairs]
        return tuple(each.draft.id for each in ready if each.draft is not None)


def _describe_fit_basis(
    candidate: Candidate, comparison: HeaderComparison | None
) -> str:
    if candidate.plan is not None and candidate.plan.memory.method == "exact":
        return "exact, from the files' headers"
    if comparison is not None and comparison.is_from_files:
        return "from the files' headers"
    return "estimated from the catalogue"


def unlisted_candidate(pair: CatalogPair) -> Candidate:
    """A pair that is not in the shortlist, such as another draft for its target."""
    reasons = [pair.why, pair.note]
    return Candidate(
        pair,
        pair.size or 0,
        reasons=tuple(reason for reason in reasons if reason),
        draft_reason=draft_kinds.describe(pair.draft_kind),
    )
