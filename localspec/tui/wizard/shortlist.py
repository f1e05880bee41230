"""The wizard's shortlist: candidates, their estimates, and the table's rows."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from textual.content import Content

from localspec import launch
from localspec.errors import LocalspecError
from localspec.fit import pair_shapes, suggestion_groups, suggestions
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.pair_shapes import PairShapes
from localspec.fit.plan import FitVerdict, Plan
from localspec.fit.suggestion_groups import AdviceGroup
from localspec.fit.suggestions import PairSuggestion
from localspec.launch import ResolvedPair
from localspec.models import catalog, model_lookup, model_names
from localspec.models.catalog import Catalog, CatalogPair
from localspec.report import memory
from localspec.tui.text.report_content import role_style
from localspec.tui.text.wrapping import fit_to_width, one_line, wrap_words
from localspec.tui.wizard.what_if import WhatIf
from localspec.units import about_rate, gb, gib, middle

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
    group: str = ""  # The title of its group in the list.
    group_reason: str = ""  # Why it is in that group, in a few words.
    is_best: bool = False  # Whether it is in the first group.
    is_too_slow: bool = False
    bytes_to_free: int = 0  # What other programs hold now of the memory that it needs.

    @property
    def download_bytes(self) -> int:
        """What `pull` takes: the target's projector too, if its size is known."""
        projector = self.pair.target.projector
        if projector is None or projector.bytes is None:
            return self.total_bytes
        return self.total_bytes + projector.bytes

    @property
    def rate(self) -> float | None:
        """Tokens per second with its draft: the middle of the estimate."""
        if self.plan is None or not self.plan.verdict.can_load:
            return None
        return middle(self.plan.speed.speculative or self.plan.speed.plain)

    @property
    def plain_rate(self) -> float | None:
        """The same without the draft; None if it has none."""
        if self.rate is None or self.plan is None or self.pair.draft_kind == "lookup":
            return None
        return middle(self.plan.speed.plain)


def suggest_candidates(
    machine_profile: MachineProfile, use_case: str, what_if: WhatIf, catalogue: Catalog
) -> tuple[Candidate, ...]:
    """The best pair of each target, by the groups of `fit.suggestion_groups`.

    Takes about a second: call it on a thread.
    """
    criteria = launch.saved_criteria(use_case, what_if.ctx, what_if.kv)
    given = suggestion_groups.advise(machine_profile, criteria, catalogue=catalogue)
    candidates = []
    for title, pairs in given.by_group():
        for advised in pairs:
            candidate = replace(
                _candidate_from_suggestion(advised.suggestion),
                group=title,
                group_reason=advised.reason,
                is_best=advised.group is AdviceGroup.BEST,
            )
            candidates.append(candidate)
    return tuple(candidates)


class HiddenCandidates(Struct, frozen=True):
    """A row for what a long group has after its first candidates."""

    group: str
    number: int


ShortlistRow = Candidate | HiddenCandidates
_MAX_SHOWN = 5
"""The candidates of a group that are shown before it is opened: a friend names a few."""


def group_candidates(
    candidates: Iterable[Candidate], open_groups: Container[str] = ()
) -> list[tuple[Content | None, list[ShortlistRow]]]:
    """The sections of the list: the title of each group, and its rows.

    Of a long group that is not open only the best are shown, and a row that opens it.
    """
    sections: list[tuple[Content | None, list[ShortlistRow]]] = []
    for title, members in groupby(candidates, lambda each: each.group):
        heading = Content.styled(title, "$muted bold") if title else None
        rows: list[ShortlistRow] = list(members)
        n_hidden = len(rows) - _MAX_SHOWN
        # A row in place of a single candidate would gain nothing.
        if title and n_hidden > 1 and title not in open_groups:
            rows[_MAX_SHOWN:] = [HiddenCandidates(title, n_hidden)]
        sections.append((heading, rows))
    return sections


def row_key(row: ShortlistRow) -> tuple[str, str]:
    if isinstance(row, HiddenCandidates):
        return "group", row.group
    return "pair", row.pair.id


def _candidate_from_suggestion(suggestion: PairSuggestion) -> Candidate:
    """Leaves out reasons that the table shows as a number."""
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
    group_reason = ""
    if suggestion.is_too_slow:
        group_reason = suggestion_groups.describe_slow(suggestion, None)
    return Candidate(
        pair=suggestion.pair,
        total_bytes=suggestion.bytes,
        plan=plan,
        reasons=tuple(each for each in others if not each.startswith(about_draft)),
        draft_reason=suggestion.draft_reason,
        no_fit_reason=no_fit_reason,
        size_verdict=suggestion.verdict,
        group_reason=group_reason,
        is_too_slow=suggestion.is_too_slow,
        bytes_to_free=suggestion.bytes_to_free,
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
        group_reason = estimate.group_reason
        if estimate.is_too_slow == candidate.is_too_slow:
            group_reason = candidate.group_reason
        estimate = replace(
            estimate,
            reasons=candidate.reasons,
            draft_reason=candidate.draft_reason,
            group=candidate.group,
            group_reason=group_reason,
            is_best=candidate.is_best,
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
        found = suggestions.with_projector(
            found, machine_profile, criteria, shapes=shapes
        )
        return _candidate_from_suggestion(found)


_MEMORY_WIDTH = 15
_RATE_WIDTH = 9
_PLAIN_WIDTH = 15
_SIZE_WIDTH = 12
_MAX_NAME_WIDTH = 32
_MIN_REASON_WIDTH = 20
CLOSE_PROGRAMS = "close other programs first"


class ShortlistColumns(Struct, frozen=True):
    """Widths in cells of the columns that depend on the terminal; 0 hides a column."""

    name: int
    plain: int = 0
    size: int = 0
    reason: int = 0

    @classmethod
    def for_width(cls, width: int) -> ShortlistColumns:
        """In narrow terminals the reasons are below the names of the best."""
        figures = 1 + _MEMORY_WIDTH + _RATE_WIDTH
        all_figures = figures + _PLAIN_WIDTH + _SIZE_WIDTH
        reason = width - _MAX_NAME_WIDTH - all_figures - 2
        if reason >= _MIN_REASON_WIDTH:
            return cls(_MAX_NAME_WIDTH, _PLAIN_WIDTH, _SIZE_WIDTH, reason)
        if width >= all_figures + 20:
            name = min(_MAX_NAME_WIDTH, width - all_figures)
            return cls(name, _PLAIN_WIDTH, _SIZE_WIDTH)
        return cls(max(12, width - figures))


def heading_line(width: int) -> Content:
    columns = ShortlistColumns.for_width(width)
    cells = [
        " " * (1 + columns.name),
        "memory".rjust(_MEMORY_WIDTH),
        "tok/s".rjust(_RATE_WIDTH),
        _right("without draft", columns.plain),
        _right("download", columns.size),
    ]
    return Content.styled("".join(cells), "$muted")


def _right(text: str, width: int) -> str:
    """The text at the right of a column; nothing if the column is hidden."""
    return text.rjust(width) if width else ""


def hidden_line(hidden: HiddenCandidates) -> Content:
    return Content.styled(f"{hidden.number} more", "$muted")


def candidate_line(candidate: Candidate, *, is_downloaded: bool, width: int) -> Content:
    """Its figures and the reason for its group; or only why it is not to be taken."""
    columns = ShortlistColumns.for_width(width)
    shown = model_names.name_model(candidate.pair.target)
    name = f"{fit_to_width(shown, columns.name)} "
    problem = _find_problem(candidate)
    if problem:
        room = width - columns.name - 1
        return Content.assemble(
            name, (fit_to_width(problem, room).rstrip(), "$warning")
        )
    size = "✓ installed" if is_downloaded else gb(candidate.download_bytes)
    line = Content.assemble(
        name,
        *_memory_cells(candidate),
        _right(_format_rate(candidate), _RATE_WIDTH),
        (_right(_format_plain_rate(candidate), columns.plain), "$muted"),
        _right(size, columns.size),
    )
    reason, style = _row_reason(candidate)
    if columns.reason:
        reason = fit_to_width(reason, columns.reason).rstrip()
        return Content.assemble(line, ("  ", ""), (reason, style))
    if candidate.is_best and reason:
        reason = fit_to_width(reason, width - 2).rstrip()
        return Content.assemble(line, "\n", (f"  {reason}", style))
    return line


def _find_problem(candidate: Candidate) -> str:
    """Why it is no advice: too slow, which says what to take instead, or too big."""
    if candidate.is_too_slow and candidate.group_reason:
        return candidate.group_reason
    if candidate.plan is not None and not candidate.plan.verdict.can_load:
        return memory.describe_fit(candidate.plan)
    return ""


def _row_reason(candidate: Candidate) -> tuple[str, str]:
    """With its style."""
    if candidate.bytes_to_free:
        return CLOSE_PROGRAMS, "$warning"
    reason = candidate.group_reason
    if candidate.pair.target.sees:
        reason = f"sees · {reason}" if reason else "sees"
    return reason, "$muted"


def _memory_cells(candidate: Candidate) -> Iterator[tuple[str, str]]:
    """What it needs of the GPUs' memory, or of RAM without one."""
    plan = candidate.plan
    if plan is None:
        text = "…"  # It is not estimated yet.
        if candidate.no_fit_reason:
            text = f"about {gb(candidate.total_bytes)}"
        yield text.rjust(_MEMORY_WIDTH), "$muted"
        return
    share = memory.format_plan_share(plan)
    style = ""
    if plan.verdict is not FitVerdict.FITS:
        style = role_style(memory.VERDICT_ROLES[plan.verdict])
    yield share.rjust(_MEMORY_WIDTH), style


def _format_rate(candidate: Candidate) -> str:
    """`?` where it is unknown, nothing where it is not estimated yet."""
    if candidate.plan is None and not candidate.no_fit_reason:
        return ""
    return "?" if candidate.rate is None else about_rate(candidate.rate)


def _format_plain_rate(candidate: Candidate) -> str:
    return "" if candidate.plain_rate is None else about_rate(candidate.plain_rate)


def reason_lines(
    candidate: Candidate | None, width: int, max_lines: int
) -> list[Content]:
    """What the row has no room for; always `max_lines`, so that the list does not jump."""
    lines: list[str] = []
    if candidate is not None:
        reasons = list(_list_reasons(candidate, width))
        lines = wrap_words(" · ".join(filter(None, reasons)), width)
    lines += [""] * max_lines
    return [Content.styled(line, "$muted") for line in lines[:max_lines]]


def _list_reasons(candidate: Candidate, width: int) -> Iterator[str]:
    plan = candidate.plan
    if candidate.bytes_to_free:
        yield describe_bytes_to_free(candidate)
    is_in_row = candidate.is_best or ShortlistColumns.for_width(width).reason
    if candidate.is_too_slow or candidate.bytes_to_free or not is_in_row:
        yield candidate.group_reason
    yield candidate.no_fit_reason
    if plan is not None and plan.verdict is not FitVerdict.FITS:
        yield memory.describe_fit(plan)
    for reason in candidate.reasons:
        if reason != candidate.draft_reason:
            yield reason


def describe_bytes_to_free(candidate: Candidate) -> str:
    held = gib(candidate.bytes_to_free)
    return f"{CLOSE_PROGRAMS}: they hold {held} of the memory that it needs"


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
        plan = suggestions.plan_counted(
            shapes, machine_profile, criteria, target=candidate.pair.target
        )
        return replace(candidate, plan=plan)

    def free_disk(self) -> int | None:
        from localspec.models.local_files import hub_cache  # noqa: PLC0415  keeps start-up fast

        try:
            return hub_cache.free_bytes(hub_cache.cache_root())
        except OSError:
            return None
