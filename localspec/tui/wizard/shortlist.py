"""Which pairs suit a place and a use, each priced.  The only place that asks `suggest`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from textual.content import Content

from localspec import suggest
from localspec.errors import LocalspecError
from localspec.fit import pair_headers, report
from localspec.fit.pair_headers import PairHeaders
from localspec.fit.report import FitReport, MachineProfile
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
NO_SHAPE_REASON = "its shape is not in the catalogue"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair, and why it stands where it stands."""

    pair: CatalogPair
    total_bytes: int
    """Of both files."""
    fit: FitReport | None = None
    """None: not priced yet, or its shape is unknown."""
    reasons: tuple[str, ...] = ()
    draft_reason: str = ""
    no_fit_reason: str = ""
    """Why there is no fit."""
    size_verdict: str = ""
    """By the size of its files: fits, tight or no."""


SuggestCandidates = Callable[[MachineProfile, str, WhatIf, Catalog], tuple[Candidate, ...]]


def suggest_candidates(
    machine_profile: MachineProfile, use_case: str, what_if: WhatIf, catalogue: Catalog
) -> tuple[Candidate, ...]:
    """The best pair of each target that fits.  A second or so: not where keys wait."""
    wanted = suggest.SuggestionCriteria(use_case, what_if.ctx, what_if.kv)
    found: dict[str, Candidate] = {}
    for one in suggest.suggest(machine_profile, wanted, catalogue=catalogue):
        if one.pair.target.repo is not None:  # what comes along needs no advice
            found.setdefault(one.pair.target.id, _candidate_from_suggestion(one))
    return tuple(found.values())


def _candidate_from_suggestion(suggestion: PairSuggestion) -> Candidate:
    """With the reasons that the screen does not show as a bar or a number anyway."""
    shown = 1
    if suggestion.fit is not None and suggestion.fit.speed.speculative is not None:
        shown += 1
    reasons = tuple(why for why in suggestion.reasons[shown:] if not why.startswith("no draft"))
    unknown = "" if suggestion.fit else f"{NO_SHAPE_REASON}; {suggestion.reasons[0]}"
    return Candidate(
        suggestion.pair,
        suggestion.bytes,
        suggestion.fit,
        reasons,
        suggestion.draft_reason,
        unknown,
        suggestion.verdict,
    )


def pairs_of_same_target(pair: CatalogPair, catalogue: Catalog) -> tuple[CatalogPair, ...]:
    """The pairs of the same target."""
    pairs = catalogue.pairs.values()
    return tuple(
        o for o in pairs if o.target.id == pair.target.id and o.draft_kind in _SUPPORTED_KINDS
    )


class EstimateCache:
    """What was priced, and what headers were read: a change of a dial must not wait."""

    def __init__(self) -> None:
        self._estimates: dict[tuple[str, str, WhatIf], Candidate] = {}
        self._subjects: dict[str, PairHeaders] = {}
        """By pair: better than its shape."""

    def store(self, use_case: str, what_if: WhatIf, candidates: tuple[Candidate, ...]) -> None:
        """Prices that were made elsewhere, but for pairs whose headers were read since."""
        for one in candidates:
            if one.pair.id not in self._subjects:
                self._estimates[one.pair.id, use_case, what_if] = one

    def use_headers(self, pair: CatalogPair, known: PairHeaders) -> None:
        """From now on by these headers."""
        self._subjects[pair.id] = known
        for key in [key for key in self._estimates if key[0] == pair.id]:
            del self._estimates[key]

    def find_subject(self, pair: CatalogPair) -> PairHeaders | None:
        return self._subjects.get(pair.id) or pair_headers.from_catalog(pair)

    def get(self, candidate: Candidate, use_case: str, what_if: WhatIf) -> Candidate | None:
        """As it was priced for this, or None."""
        return self._estimates.get((candidate.pair.id, use_case, what_if))

    def store_confirmed(
        self, candidate: Candidate, use_case: str, what_if: WhatIf, fit: FitReport
    ) -> None:
        """Priced anew, with the same headers."""
        self._estimates[candidate.pair.id, use_case, what_if] = replace(candidate, fit=fit)

    def estimate(
        self, candidate: Candidate, machine_profile: MachineProfile, use_case: str, what_if: WhatIf
    ) -> Candidate:
        """In some milliseconds."""
        known = self.get(candidate, use_case, what_if) or self._compute(
            candidate, machine_profile, use_case, what_if
        )
        known = replace(known, reasons=candidate.reasons, draft_reason=candidate.draft_reason)
        self._estimates[candidate.pair.id, use_case, what_if] = known
        return known

    def _compute(
        self, candidate: Candidate, machine_profile: MachineProfile, use_case: str, what_if: WhatIf
    ) -> Candidate:
        found = self.find_subject(candidate.pair)
        if found is None:
            return replace(
                candidate, fit=None, no_fit_reason=candidate.no_fit_reason or NO_SHAPE_REASON
            )
        target, draft = found.headers
        ctx = what_if.ctx or min(DEFAULT_CTX, target.n_ctx_train or DEFAULT_CTX)
        kv = what_if.kv or "f16"
        load = LoadCommand(
            found.target.name,
            found.draft.name if found.draft else None,
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


# --- The shortlist's lines: does it fit, how fast, how much to download.

VERDICT_STYLES = {"fits": "$success", "tight": "$warning", "no": "$error", "unknown": "$muted"}


@dataclass(frozen=True, slots=True)
class ShortlistColumns:
    """Cells of each; 0: there is no room for it."""

    name: int
    bar: int
    speculative: int
    speedup: int
    plain: int
    size: int
    licence: int


def column_widths(width: int) -> ShortlistColumns:
    """By the width of the window."""
    if width >= 110:
        rest = min(20, width - 4 - 30 - 18 - 15 - 10 - 15 - 9 - 2)
        return ShortlistColumns(32, 8, 15, 10, 14, 9, max(0, rest))
    if width >= 78:
        return ShortlistColumns(26, 6, 15, 9, 0, 9, 0)
    return ShortlistColumns(max(12, width - 4 - 8 - 15 - 9), 0, 15, 0, 0, 9, 0)


def heading_line(width: int) -> Content:
    """What the columns are."""
    to = column_widths(width)
    parts = [f"  {'':<{to.name}} {'fits':<{8 + to.bar + (1 if to.bar else 0)}}"]
    parts.append(f"{'with draft':>{to.speculative}}")
    parts.append(f"{'gain':>{to.speedup}}" if to.speedup else "")
    parts.append(f"{'without':>{to.plain}}" if to.plain else "")
    parts.append(f"{'download':>{to.size}}")
    parts.append(f"  {'licence':<{to.licence}}" if to.licence else "")
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
    """One candidate."""
    to = column_widths(width)
    size = f"{glyphs.check} here" if is_downloaded else gb(candidate.total_bytes)
    licence = (
        fit_to_width(fit_text.licence_text(candidate.pair), to.licence, glyphs.ellipsis)
        if to.licence
        else ""
    )
    return Content.assemble(
        (f"{glyphs.pointer if pointed else ' '} ", "$accent"),
        f"{fit_to_width(sanitize(candidate.pair.id, multiline=False), to.name, glyphs.ellipsis)} ",
        _fit_cell(candidate, to, glyphs),
        _speed_cells(candidate, use_case, to),
        f"{size:>{to.size}}",
        (f"  {licence}" if licence else "", "$muted"),
    )


def _fit_cell(candidate: Candidate, to: ShortlistColumns, glyphs: Glyphs) -> Content:
    room = 8 + (to.bar + 1 if to.bar else 0)
    if candidate.fit is None:
        guess = (
            fit_text.VERDICT_LABELS.get(candidate.size_verdict, "?")
            if candidate.no_fit_reason
            else glyphs.ellipsis
        )
        return Content.styled(f"{' ' * (room - 8)}{guess:<8}", "$muted")
    verdict = candidate.fit.verdict
    word = Content.styled(f"{fit_text.VERDICT_LABELS[verdict]:<8}", VERDICT_STYLES[verdict])
    if not to.bar:
        return word
    share = memory_share(candidate.fit)
    bar = glyphs.bar(share, to.bar)
    dots = glyphs.dot * (to.bar - len(bar))
    style = VERDICT_STYLES[verdict] if verdict != "fits" else "$accent"
    return Content.assemble((bar, style), (dots, "$muted"), " ", word)


def memory_share(fit: FitReport) -> float:
    """How much of what is free it takes, where the least is to spare."""
    room = fit.tightest
    return room.total / room.device.free if room.device.free else 1.0


def _speed_cells(candidate: Candidate, use_case: str, to: ShortlistColumns) -> Content:
    fit = candidate.fit
    if fit is None or fit.speed.plain is None:
        empty = "?" if fit is not None else ""
        return Content.styled(f"{empty:>{to.speculative}}{'':>{to.speedup + to.plain}}", "$muted")
    speed = fit.speed
    gain = fit_text.speedup_text(fit_text.speedup_range(speed, use_case))
    return Content.assemble(
        f"{fit_text.speed_text(speed.speculative):>{to.speculative}}",
        f"{gain:>{to.speedup}}" if to.speedup else "",
        (f"{fit_text.speed_text(speed.plain):>{to.plain}}" if to.plain else "", "$muted"),
    )


def reason_lines(candidate: Candidate | None, width: int, max_lines: int) -> list[Content]:
    """Below the list: why the one under the pointer stands where it stands."""
    if candidate is None:
        return []
    said = [candidate.no_fit_reason] if candidate.no_fit_reason else []
    said += [fit_text.verdict_text(candidate.fit)] if candidate.fit else []
    said += candidate.reasons
    if candidate.fit and candidate.fit.speed.explanation:
        said.append(f"speed: {candidate.fit.speed.explanation}")
    text = fit_text.wrap_text(" · ".join(said), width)
    return [Content.styled(row, "$muted") for row in text[:max_lines]]
