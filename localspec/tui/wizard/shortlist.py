"""The wizard's shortlist: candidates, their estimates, and the table's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from textual.content import Content

from localspec import launch
from localspec.errors import LocalspecError
from localspec.fit import pair_shapes, suggestions
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.pair_shapes import PairShapes
from localspec.fit.plan import FitVerdict, Plan
from localspec.fit.suggestions import PairSuggestion
from localspec.launch import ResolvedPair
from localspec.models import catalog, model_lookup
from localspec.models.catalog import Catalog, CatalogPair
from localspec.report import memory, pair_text
from localspec.symbols import draw_bar
from localspec.tui.text.report_content import role_style
from localspec.tui.text.wrapping import fit_to_width, one_line, wrap_words
from localspec.tui.wizard.what_if import WhatIf
from localspec.units import gb

if TYPE_CHECKING:
    from localspec.models.hub.cancellation import CancelToken
    from localspec.models.hub.client import HubClient

NO_SHAPE_REASON = "model shape not in the catalogue"


class Candidate(Struct, frozen=True):
    """A pair with its estimate, and the reasons for its place in the list."""

    pair: CatalogPair
    total_bytes: int  # Of both files.
    # None if not estimated yet, or if the model shape is unknown.
    plan: Plan | None = None
    reasons: tuple[str, ...] = ()
    draft_reason: str = ""
    no_fit_reason: str = ""
    size_verdict: FitVerdict | None = None  # By file sizes only.


def suggest_candidates(
    machine_profile: MachineProfile, use_case: str, what_if: WhatIf, catalogue: Catalog
) -> tuple[Candidate, ...]:
    """The best pair of each target that fits.

    Takes about a second: call it on a thread.
    """
    criteria = launch.saved_criteria(use_case, what_if.ctx, what_if.kv)
    best_by_target: dict[str, Candidate] = {}
    suggested = suggestions.suggest(machine_profile, criteria, catalogue=catalogue)
    for suggestion in suggested:
        target = suggestion.pair.target
        if target.repo is not None:  # the bundled demo is not suggested
            own_id = catalog.own_id(target.id)
            best_by_target.setdefault(own_id, _candidate_from_suggestion(suggestion))
    return tuple(best_by_target.values())


def _candidate_from_suggestion(suggestion: PairSuggestion) -> Candidate:
    """Leaves out reasons that the table shows as a bar or a number."""
    plan = suggestion.plan
    n_shown = 1  # The first reason is the memory.
    has_speed = plan is not None and plan.speed.speculative is not None
    if has_speed and suggestion.verdict.can_load:
        n_shown = 2  # The second is the speed.
    others = suggestion.reasons[n_shown:]
    about_draft = ("no draft", "prompt lookup")
    no_fit_reason = ""
    if plan is None:
        no_fit_reason = f"{NO_SHAPE_REASON}; {suggestion.reasons[0]}"
    return Candidate(
        pair=suggestion.pair,
        total_bytes=suggestion.bytes,
        plan=plan,
        reasons=tuple(each for each in others if not each.startswith(about_draft)),
        draft_reason=suggestion.draft_reason,
        no_fit_reason=no_fit_reason,
        size_verdict=suggestion.verdict,
    )


def pairs_of_same_target(
    pair: CatalogPair, catalogue: Catalog
) -> tuple[CatalogPair, ...]:
    """With the same quantisation of it."""
    others = catalog.pairs_for(catalogue, pair.target)
    return tuple(other.with_target(pair.target) for other in others)


class EstimateCache:
    """Caches estimates and headers, so that turning a dial back needs no computing."""

    def __init__(self) -> None:
        self._estimates: dict[tuple[str, str, WhatIf], Candidate] = {}
        """By pair id, use case and dials."""
        self._subjects: dict[str, PairShapes] = {}
        """By pair id; more accurate than the catalogue's shapes."""

    def store(
        self, use_case: str, what_if: WhatIf, candidates: tuple[Candidate, ...]
    ) -> None:
        """Skips pairs whose headers were read since: their estimates are better."""
        for candidate in candidates:
            if candidate.pair.id not in self._subjects:
                self._estimates[candidate.pair.id, use_case, what_if] = candidate

    def use_headers(self, pair: CatalogPair, headers: PairShapes) -> None:
        """The headers replace the catalogue's shape; the pair's estimates are dropped."""
        self._subjects[pair.id] = headers
        outdated = [key for key in self._estimates if key[0] == pair.id]
        for key in outdated:
            del self._estimates[key]

    def find_subject(self, pair: CatalogPair) -> PairShapes | None:
        return self._subjects.get(pair.id) or pair_shapes.from_catalog(pair)

    def get(
        self, candidate: Candidate, use_case: str, what_if: WhatIf
    ) -> Candidate | None:
        return self._estimates.get((candidate.pair.id, use_case, what_if))

    def store_counted(
        self, candidate: Candidate, use_case: str, what_if: WhatIf
    ) -> None:
        """Also for a pair whose headers were read: its memory was counted from them."""
        self._estimates[candidate.pair.id, use_case, what_if] = candidate

    def estimate(
        self,
        candidate: Candidate,
        machine_profile: MachineProfile,
        use_case: str,
        what_if: WhatIf,
    ) -> Candidate:
        """Takes a few milliseconds if not cached."""
        estimate = self.get(candidate, use_case, what_if)
        if estimate is None:
            estimate = self._compute(candidate, machine_profile, use_case, what_if)
        estimate = replace(
            estimate, reasons=candidate.reasons, draft_reason=candidate.draft_reason
        )
        self._estimates[candidate.pair.id, use_case, what_if] = estimate
        return estimate

    def _compute(
        self,
        candidate: Candidate,
        machine_profile: MachineProfile,
        use_case: str,
        what_if: WhatIf,
    ) -> Candidate:
        criteria = launch.saved_criteria(use_case, what_if.ctx, what_if.kv)
        shapes = self._subjects.get(candidate.pair.id)
        try:
            found = suggestions.assess_pair(
                candidate.pair, machine_profile, criteria, shapes=shapes
            )
        except LocalspecError as error:
            reason = one_line(error.message)
            return replace(candidate, plan=None, no_fit_reason=reason)
        if found is None:
            return replace(candidate, plan=None, no_fit_reason=NO_SHAPE_REASON)
        return _candidate_from_suggestion(found)


_FIT_WIDTH = 8
_SPEED_WIDTH = 14
_SIZE_WIDTH = 12


class ShortlistColumns(Struct, frozen=True):
    """Widths in cells of the columns that depend on the terminal; 0 hides a column."""

    name: int
    bar: int = 0
    speedup: int = 0
    plain: int = 0
    licence: int = 0

    @classmethod
    def for_width(cls, width: int) -> ShortlistColumns:
        if width >= 110:
            licence = max(0, min(20, width - 104))
            return cls(name=32, bar=9, speedup=9, plain=14, licence=licence)
        if width >= 78:
            return cls(name=25, bar=7, speedup=9)
        others = 4 + _FIT_WIDTH + _SPEED_WIDTH + _SIZE_WIDTH
        return cls(name=max(12, width - others))


def _right(text: str, width: int) -> str:
    """The text at the right of a column; nothing if the column is hidden."""
    return text.rjust(width) if width else ""


def heading_line(width: int) -> Content:
    columns = ShortlistColumns.for_width(width)
    cells = [
        " " * (1 + columns.name),
        "fits".ljust(columns.bar + _FIT_WIDTH),
        _right("speculative", _SPEED_WIDTH),
        _right("speed-up", columns.speedup),
        _right("plain", columns.plain),
        _right("download", _SIZE_WIDTH),
    ]
    if columns.licence:
        cells.append(f"  {'licence':<{columns.licence}}")
    return Content.styled("".join(cells), "$muted")


def candidate_line(
    candidate: Candidate,
    use_case: str,
    *,
    is_downloaded: bool,
    width: int,
) -> Content:
    columns = ShortlistColumns.for_width(width)
    size = "✓ installed" if is_downloaded else gb(candidate.total_bytes)
    name = fit_to_width(pair_text.format_pair_name(candidate.pair), columns.name)
    licence = fit_to_width(pair_text.format_licences(candidate.pair), columns.licence)
    if columns.licence:
        licence = f"  {licence}"
    return Content.assemble(
        f"{name} ",
        *_fit_cells(candidate, columns),
        *_speed_cells(candidate, use_case, columns),
        _right(size, _SIZE_WIDTH),
        (licence, "$muted"),
    )


def _fit_cells(
    candidate: Candidate, columns: ShortlistColumns
) -> Iterator[tuple[str, str]]:
    """How much of its free memory the fullest device uses, as a bar, and the verdict."""
    plan = candidate.plan
    if plan is None:
        label = _label_without_fit(candidate)
        yield f"{' ' * columns.bar}{label:<{_FIT_WIDTH}}", "$muted"
        return
    style = role_style(memory.VERDICT_ROLES[plan.verdict])
    if columns.bar:
        free = plan.tightest.device.free
        share = plan.tightest.needed / free if free else 1.0
        bar_width = columns.bar - 1
        bar = draw_bar(share, bar_width)
        bar_style = "$accent" if plan.verdict is FitVerdict.FITS else style
        yield bar, bar_style
        yield "·" * (bar_width - len(bar)), "$muted"
        yield " ", ""
    yield f"{memory.VERDICT_LABELS[plan.verdict]:<{_FIT_WIDTH}}", style


def _label_without_fit(candidate: Candidate) -> str:
    if not candidate.no_fit_reason:
        return "…"  # It is not estimated yet.
    if candidate.size_verdict is None:
        return "?"
    return memory.VERDICT_LABELS[candidate.size_verdict]


def _speed_cells(
    candidate: Candidate, use_case: str, columns: ShortlistColumns
) -> Iterator[tuple[str, str]]:
    """No speed where the pair does not run, and `?` where it is unknown."""
    plan = candidate.plan
    speedup_and_plain = " " * (columns.speedup + columns.plain)
    if plan is None or not plan.verdict.can_load:
        yield _right("", _SPEED_WIDTH) + speedup_and_plain, "$muted"
        return
    speed = plan.speed
    if speed.plain is None:
        yield _right("?", _SPEED_WIDTH) + speedup_and_plain, "$muted"
        return
    yield _right(pair_text.format_speed(speed.speculative), _SPEED_WIDTH), ""
    speedup = pair_text.format_speedup(pair_text.find_speedup(speed, use_case))
    yield _right(speedup, columns.speedup), ""
    yield _right(pair_text.format_speed(speed.plain), columns.plain), "$muted"


def reason_lines(
    candidate: Candidate | None, width: int, max_lines: int
) -> list[Content]:
    if candidate is None:
        return []
    plan = candidate.plan
    reasons: list[str] = []
    if candidate.no_fit_reason:
        reasons.append(candidate.no_fit_reason)
    if plan is not None:
        reasons.append(memory.describe_fit(plan))
    reasons += candidate.reasons
    if plan is not None and plan.verdict.can_load and plan.speed.explanation:
        reasons.append(f"speed: {plan.speed.explanation}")
    lines = wrap_words(" · ".join(reasons), width)
    return [Content.styled(line, "$muted") for line in lines[:max_lines]]


class WizardResult(Struct, frozen=True):
    """The chosen pair: `ready_pair` to open it now, `pair` if it is downloaded first."""

    what_if: WhatIf
    ready_pair: ResolvedPair | None = None
    pair: CatalogPair | None = None


class WizardServices:
    """What the wizard computes and reads.  The methods may be slow: call them on threads."""

    def __init__(
        self,
        catalogue: Catalog,
        load_machine_profile: Callable[[], MachineProfile],
        ready_pairs: Mapping[str, ResolvedPair],
        hub: Callable[[], HubClient],
    ) -> None:
        """`ready_pairs`: the installed pairs, by catalogue id."""
        self.catalogue = catalogue
        self.ready_pairs = ready_pairs
        self.load_machine_profile = load_machine_profile
        self._hub = hub
        self._stop: CancelToken | None = None

    def suggest(
        self, machine_profile: MachineProfile, use_case: str, what_if: WhatIf
    ) -> tuple[Candidate, ...]:
        return suggest_candidates(machine_profile, use_case, what_if, self.catalogue)

    def read_headers(self, pair: CatalogPair) -> PairShapes | None:
        """From the disk, or from the hub if needed; None if they cannot be read."""
        from localspec.models.hub.cancellation import (  # noqa: PLC0415
            CancelToken,
            OperationCancelledError,
        )
        from localspec.models.pull_plan import PullPlanner  # noqa: PLC0415

        stop = CancelToken()
        self._stop = stop
        try:
            planner = PullPlanner(self._hub(), stop, refresh=False)
            return pair_shapes.resolve_shapes(model_lookup.resolve(pair.id), planner)
        except (LocalspecError, OperationCancelledError):
            return None

    def stop_reading(self) -> None:
        if self._stop is not None:
            self._stop.cancel()

    def count_memory(
        self,
        candidate: Candidate,
        shapes: PairShapes,
        machine_profile: MachineProfile,
        use_case: str,
        what_if: WhatIf,
    ) -> Candidate:
        """The candidate with the memory that llama.cpp counts; `shapes` have headers.

        If it counts more than was estimated, settings that fit are searched again.
        """
        criteria = launch.saved_criteria(use_case, what_if.ctx, what_if.kv)
        plan = suggestions.plan_counted(shapes, machine_profile, criteria)
        return replace(candidate, plan=plan)

    def free_disk(self) -> int | None:
        from localspec.models.local_files import hub_cache  # noqa: PLC0415  keeps start-up fast

        try:
            return hub_cache.free_bytes(hub_cache.cache_root())
        except OSError:
            return None
