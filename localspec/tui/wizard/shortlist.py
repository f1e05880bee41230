"""The wizard's shortlist: candidates, their estimates, and the table's rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from textual.content import Content

from localspec import suggest
from localspec.errors import LocalspecError
from localspec.fit import pair_headers, report
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.pair_headers import PairHeaders
from localspec.fit.report import FitReport
from localspec.fit.speed_estimate import UseCase
from localspec.machine.llama_params import DEFAULT_CTX
from localspec.models import draft_heads
from localspec.models.catalog import Catalog, CatalogPair
from localspec.protocol.wire import ContextSettings, LoadCommand
from localspec.sanitize import sanitize
from localspec.suggest import PairSuggestion
from localspec.tui.glyphs import Glyphs
from localspec.tui.text.wrapping import fit_to_width
from localspec.tui.wizard import fit_text
from localspec.tui.wizard.what_if import WhatIf
from localspec.units import gb

_SUPPORTED_KINDS = ("model", "lookup", *draft_heads.SUPPORTED_KINDS)
NO_SHAPE_REASON = "model shape not in the catalogue"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair with its estimate, and the reasons for its place in the list."""

    pair: CatalogPair
    total_bytes: int
    """Of both files."""
    fit: FitReport | None = None
    """None if not estimated yet, or if the model shape is unknown."""
    reasons: tuple[str, ...] = ()
    draft_reason: str = ""
    no_fit_reason: str = ""
    size_verdict: str = ""
    """By file sizes only: fits, tight or no."""


SuggestCandidates = Callable[[MachineProfile, str, WhatIf, Catalog], tuple[Candidate, ...]]


def suggest_candidates(
    machine_profile: MachineProfile, use_case: str, what_if: WhatIf, catalogue: Catalog
) -> tuple[Candidate, ...]:
    """The best pair of each target that fits. Takes about a second: call it on a thread."""
    criteria = suggest.SuggestionCriteria(use_case, what_if.ctx, what_if.kv)
    best_by_target: dict[str, Candidate] = {}
    for suggestion in suggest.suggest(machine_profile, criteria, catalogue=catalogue):
        if suggestion.pair.target.repo is not None:  # the bundled demo is not suggested
            best_by_target.setdefault(
                suggestion.pair.target.id, _candidate_from_suggestion(suggestion)
            )
    return tuple(best_by_target.values())


def _candidate_from_suggestion(suggestion: PairSuggestion) -> Candidate:
    """Leaves out reasons that the table shows as a bar or a number."""
    n_shown = 1
    if suggestion.fit is not None and suggestion.fit.speed.speculative is not None:
        n_shown += 1
    reasons = tuple(
        reason
        for reason in suggestion.reasons[n_shown:]
        if not reason.startswith(("no draft", "prompt lookup"))
    )
    no_fit_reason = "" if suggestion.fit else f"{NO_SHAPE_REASON}; {suggestion.reasons[0]}"
    return Candidate(
        suggestion.pair,
        suggestion.bytes,
        suggestion.fit,
        reasons,
        suggestion.draft_reason,
        no_fit_reason,
        suggestion.verdict,
    )


def pairs_of_same_target(pair: CatalogPair, catalogue: Catalog) -> tuple[CatalogPair, ...]:
    pairs = catalogue.pairs.values()
    return tuple(
        other
        for other in pairs
        if other.target.id == pair.target.id and other.draft_kind in _SUPPORTED_KINDS
    )


class EstimateCache:
    """Caches estimates and headers, so that turning a dial back needs no computing."""

    def __init__(self) -> None:
        self._estimates: dict[tuple[str, str, WhatIf], Candidate] = {}
        self._subjects: dict[str, PairHeaders] = {}
        """By pair id; more accurate than the catalogue's shapes."""

    def store(self, use_case: str, what_if: WhatIf, candidates: tuple[Candidate, ...]) -> None:
        """Skips pairs whose headers were read since: their estimates are better."""
        for candidate in candidates:
            if candidate.pair.id not in self._subjects:
                self._estimates[candidate.pair.id, use_case, what_if] = candidate

    def use_headers(self, pair: CatalogPair, headers: PairHeaders) -> None:
        """Replaces the catalogue's shape by the files' headers; drops the pair's estimates."""
        self._subjects[pair.id] = headers
        for key in [key for key in self._estimates if key[0] == pair.id]:
            del self._estimates[key]

    def find_subject(self, pair: CatalogPair) -> PairHeaders | None:
        return self._subjects.get(pair.id) or pair_headers.from_catalog(pair)

    def get(self, candidate: Candidate, use_case: str, what_if: WhatIf) -> Candidate | None:
        return self._estimates.get((candidate.pair.id, use_case, what_if))

    def store_confirmed(
        self, candidate: Candidate, use_case: str, what_if: WhatIf, fit: FitReport
    ) -> None:
        self._estimates[candidate.pair.id, use_case, what_if] = replace(candidate, fit=fit)

    def estimate(
        self, candidate: Candidate, machine_profile: MachineProfile, use_case: str, what_if: WhatIf
    ) -> Candidate:
        """Takes a few milliseconds if not cached."""
        estimate = self.get(candidate, use_case, what_if) or self._compute(
            candidate, machine_profile, use_case, what_if
        )
        estimate = replace(estimate, reasons=candidate.reasons, draft_reason=candidate.draft_reason)
        self._estimates[candidate.pair.id, use_case, what_if] = estimate
        return estimate

    def _compute(
        self, candidate: Candidate, machine_profile: MachineProfile, use_case: str, what_if: WhatIf
    ) -> Candidate:
        subject = self.find_subject(candidate.pair)
        if subject is None:
            return replace(
                candidate, fit=None, no_fit_reason=candidate.no_fit_reason or NO_SHAPE_REASON
            )
        target, draft = subject.headers
        ctx = what_if.ctx or min(DEFAULT_CTX, target.n_ctx_train or DEFAULT_CTX)
        kv = what_if.kv or "f16"
        load = LoadCommand(
            subject.target.name,
            subject.draft.name if subject.draft else None,
            ContextSettings(n_ctx=ctx, kv_type=kv),
            ContextSettings(kv_type=kv),
        )
        try:
            fit = report.estimate_fit(load, target, draft, machine_profile, UseCase(use_case))
        except LocalspecError as error:
            return replace(
                candidate, fit=None, no_fit_reason=sanitize(error.message, multiline=False)
            )
        return replace(candidate, fit=fit, no_fit_reason="")


# --- table --------------------------------------------------------------------------------

VERDICT_STYLES = {"fits": "$success", "tight": "$warning", "no": "$error", "unknown": "$muted"}


@dataclass(frozen=True, slots=True)
class ShortlistColumns:
    """Column widths in cells; 0 hides a column."""

    name: int
    bar: int
    speculative: int
    speedup: int
    plain: int
    size: int
    licence: int


def column_widths(width: int) -> ShortlistColumns:
    if width >= 110:
        licence = min(20, width - 104)
        return ShortlistColumns(32, 8, 14, 10, 13, 12, max(0, licence))
    if width >= 78:
        return ShortlistColumns(25, 6, 14, 9, 0, 12, 0)
    return ShortlistColumns(max(12, width - 4 - 8 - 14 - 12), 0, 14, 0, 0, 12, 0)


def heading_line(width: int) -> Content:
    columns = column_widths(width)
    parts = [f"  {'':<{columns.name}} {'fits':<{8 + columns.bar + (1 if columns.bar else 0)}}"]
    parts.append(f"{'speculative':>{columns.speculative}}")
    parts.append(f"{'speed-up':>{columns.speedup}}" if columns.speedup else "")
    parts.append(f"{'plain':>{columns.plain}}" if columns.plain else "")
    parts.append(f"{'download':>{columns.size}}")
    parts.append(f"  {'licence':<{columns.licence}}" if columns.licence else "")
    return Content.styled("".join(parts), "$muted")


def candidate_line(
    candidate: Candidate,
    use_case: str,
    *,
    is_downloaded: bool,
    width: int,
    glyphs: Glyphs,
    pointed: bool,
) -> Content:
    columns = column_widths(width)
    size = f"{glyphs.check} installed" if is_downloaded else gb(candidate.total_bytes)
    licence = (
        fit_to_width(fit_text.licence_text(candidate.pair), columns.licence, glyphs.ellipsis)
        if columns.licence
        else ""
    )
    name = fit_to_width(sanitize(candidate.pair.id, multiline=False), columns.name, glyphs.ellipsis)
    return Content.assemble(
        (f"{glyphs.pointer if pointed else ' '} ", "$accent"),
        f"{name} ",
        _fit_cell(candidate, columns, glyphs),
        _speed_cells(candidate, use_case, columns),
        f"{size:>{columns.size}}",
        (f"  {licence}" if licence else "", "$muted"),
    )


def _fit_cell(candidate: Candidate, columns: ShortlistColumns, glyphs: Glyphs) -> Content:
    width = 8 + (columns.bar + 1 if columns.bar else 0)
    if candidate.fit is None:
        label = (
            fit_text.VERDICT_LABELS.get(candidate.size_verdict, "?")
            if candidate.no_fit_reason
            else glyphs.ellipsis
        )
        return Content.styled(f"{' ' * (width - 8)}{label:<8}", "$muted")
    verdict = candidate.fit.verdict
    word = Content.styled(f"{fit_text.VERDICT_LABELS[verdict]:<8}", VERDICT_STYLES[verdict])
    if not columns.bar:
        return word
    share = memory_share(candidate.fit)
    bar = glyphs.bar(share, columns.bar)
    dots = glyphs.dot * (columns.bar - len(bar))
    style = VERDICT_STYLES[verdict] if verdict != "fits" else "$accent"
    return Content.assemble((bar, style), (dots, "$muted"), " ", word)


def memory_share(fit: FitReport) -> float:
    """The used share of the free memory, on the device with the least to spare."""
    tightest = fit.tightest
    return tightest.total / tightest.device.free if tightest.device.free else 1.0


def _speed_cells(candidate: Candidate, use_case: str, columns: ShortlistColumns) -> Content:
    fit = candidate.fit
    if fit is None or fit.speed.plain is None:
        empty = "?" if fit is not None else ""
        return Content.styled(
            f"{empty:>{columns.speculative}}{'':>{columns.speedup + columns.plain}}", "$muted"
        )
    speed = fit.speed
    speedup = fit_text.speedup_text(fit_text.speedup_range(speed, use_case))
    return Content.assemble(
        f"{fit_text.speed_text(speed.speculative):>{columns.speculative}}",
        f"{speedup:>{columns.speedup}}" if columns.speedup else "",
        (f"{fit_text.speed_text(speed.plain):>{columns.plain}}" if columns.plain else "", "$muted"),
    )


def reason_lines(candidate: Candidate | None, width: int, max_lines: int) -> list[Content]:
    """Shown below the list: why the selected pair is listed."""
    if candidate is None:
        return []
    reasons = [candidate.no_fit_reason] if candidate.no_fit_reason else []
    reasons += [fit_text.verdict_text(candidate.fit)] if candidate.fit else []
    reasons += candidate.reasons
    if candidate.fit and candidate.fit.speed.explanation:
        reasons.append(f"speed: {candidate.fit.speed.explanation}")
    lines = fit_text.wrap_text(" · ".join(reasons), width)
    return [Content.styled(line, "$muted") for line in lines[:max_lines]]
