"""The wizard: finds a pair for this computer by use case, shortlist and details."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from localspec.chat.front_end import PickerChoices, PickerRow
from localspec.errors import LocalspecError
from localspec.fit.plan import Plan
from localspec.launch import ResolvedPair
from localspec.models.catalog import CatalogPair
from localspec.tui.app_options import AppOptions
from localspec.tui.dialogs.choices import PickerScreen
from localspec.tui.dialogs.open_files import OpenFilesScreen
from localspec.tui.dialogs.pull import PullScreen
from localspec.tui.downloads import DownloadManager
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.key_bindings import bindings_for
from localspec.tui.notices import problem_text
from localspec.tui.scheduling import LatestOnlyWorker, set_reliable_timer
from localspec.tui.text.wrapping import wrap_words
from localspec.tui.widgets.pointer_list import MarkedList, PointerList
from localspec.tui.widgets.screen_frame import PAGE_WIDTH, CenteredLayout, KeyLine
from localspec.tui.wizard import pair_details, shortlist, what_if
from localspec.tui.wizard.pair_details import (
    HeaderComparison,
    PairDetails,
    compare_headers,
    unlisted_candidate,
)
from localspec.tui.wizard.shortlist import (
    Candidate,
    EstimateCache,
    HiddenCandidates,
    ShortlistRow,
    WizardResult,
    WizardServices,
)
from localspec.tui.wizard.what_if import DIALS, Dial, MachineProfiles, WhatIf

# Time for estimates before key presses are handled again.
_ESTIMATE_BUDGET_SECONDS = 0.005
_ESTIMATE_PAUSE_SECONDS = 0.02
_DIAL_SETTLE_SECONDS = 0.3
"""Delay before the whole catalogue is estimated: that slows the handling of keys."""
_SWITCH_INTERVAL = 0.0005
"""Lets a key press interrupt the estimating thread sooner.

Python's default is 0.005 s.
"""
_STEP_WIDGETS = {1: ("uses",), 2: ("shortlist", "columns"), 3: ("card",)}
"""Visible in each step; the first has the keyboard."""
_STEPS_OF_ACTION: Mapping[str, tuple[int, ...]] = {
    "use": (1,),
    "turn": (2, 3),
    "dial": (2, 3),
    "settings": (2, 3),
    "card": (2, 3),
    "take": (3,),
    "other_draft": (3,),
    "other_target": (3,),
}
"""The others are available in every step."""


class WizardScreen(CenteredLayout, Screen[WizardResult | None]):
    """Every dial change is drawn at once.

    The selected row is estimated at once, the others on a thread and between keys.
    """

    BINDINGS = bindings_for("wizard")
    AUTO_FOCUS = "#uses"

    def __init__(
        self,
        runner: EngineRunner,
        options: AppOptions,
        downloads: DownloadManager,
        services: WizardServices,
    ) -> None:
        super().__init__()
        self._runner = runner
        self._options = options
        self._downloads = downloads
        self._services = services
        self.step = 1
        self.what_if = WhatIf()
        self._dial: Dial = "gpu"
        self._use_case = "chat"
        self._profiles = MachineProfiles(services.load_machine_profile)
        self._estimates = EstimateCache()
        self._details = PairDetails(services, self._estimates)
        self._candidates: tuple[Candidate, ...] = ()
        """Of the shortlist; of long groups, not all of them have a row."""
        self._open_groups: set[str] = set()
        self._list = PointerList[ShortlistRow](
            "shortlist", shortlist.row_key, self._draw_row
        )
        self._listed_for: tuple[str, WhatIf] | None = None
        """Use case and dials of the shortlist that is shown."""
        self._settle_timer: asyncio.TimerHandle | None = None
        self._shortlist_worker = LatestOnlyWorker(self, "shortlist")
        self._header_worker = LatestOnlyWorker(self, "headers")
        self._count_worker = LatestOnlyWorker(self, "memory count")
        self._previous_switch_interval = sys.getswitchinterval()

    def compose(self) -> ComposeResult:
        yield Static("", id="head", markup=False)
        uses = [
            Option(what_if.use_case_line(number, use), id=use)
            for number, use in enumerate(what_if.USE_CASES, 1)
        ]
        yield MarkedList(*uses, id_="uses")
        yield Static("", id="columns", markup=False)
        yield self._list
        with VerticalScroll(id="card"):
            yield Static("", id="page", markup=False)
        yield Static("", id="about", markup=False)
        yield KeyLine()

    def on_mount(self) -> None:
        sys.setswitchinterval(_SWITCH_INTERVAL)
        # It takes a second, in which the user reads step 1.
        self._shortlist_worker.submit(self._preload, failed=self._show_failure)
        self._go_to_step(1)

    def _show_failure(self, error: LocalspecError) -> None:
        self.notify(problem_text(error), severity="error", markup=False)

    def _preload(self) -> None:
        self._profiles.load(None)
        what_if.list_gpus()

    def on_unmount(self) -> None:
        sys.setswitchinterval(self._previous_switch_interval)

    def on_resize(self) -> None:
        self.draw()

    # --- steps
    # ----------------------------------------------------------------------------

    def _go_to_step(self, step: int) -> None:
        self.step = step
        visible = _STEP_WIDGETS[step]
        for names in _STEP_WIDGETS.values():
            for name in names:
                self.query_one(f"#{name}", Widget).display = name in visible
        if step == 2:
            self._refresh_estimates()
        self.set_focus(self.query_one(f"#{visible[0]}", Widget))
        self.draw()

    @on(OptionList.OptionSelected, "#uses")
    def _use_case_selected(self, event: OptionList.OptionSelected) -> None:
        self.action_use(event.option.id or "chat")

    def action_use(self, use: str) -> None:
        self._use_case = use
        self._go_to_step(2)
        self._request_shortlist()

    @on(OptionList.OptionSelected, "#shortlist")
    def _row_selected(self) -> None:
        row = self._list.highlighted_row
        if isinstance(row, HiddenCandidates):
            self._open_group(row.group)
        elif row is not None:
            self._open_details(row)
            self._go_to_step(3)

    def _open_group(self, group: str) -> None:
        """The first of its candidates that were hidden gets the pointer."""
        index = self._list.highlighted_index or 0
        self._open_groups.add(group)
        self._fill_list()
        self._list.point_at(index)
        self._refresh_estimates()
        self.draw()

    def action_back(self) -> None:
        if self.step == 1:
            self.dismiss(None)
        else:
            self._go_to_step(self.step - 1)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.step in _STEPS_OF_ACTION.get(action, (1, 2, 3))

    # --- the shortlist
    # --------------------------------------------------------------------

    def _request_shortlist(self) -> None:
        """Computes the shortlist for the current use case and dials, on a thread."""
        use_case = self._use_case
        what_if = self.what_if
        key = (use_case, what_if)
        if key == self._listed_for:
            return

        def work() -> None:
            profile = self._profiles.load(what_if.gpu)
            candidates: tuple[Candidate, ...] = ()
            with suppress(LocalspecError):  # each pair's estimate shows the error
                candidates = self._services.suggest(profile, use_case, what_if)
            self.call_later(self._shortlist_ready, key, candidates)  # thread-safe

        def failed(error: LocalspecError) -> None:
            self._show_failure(error)
            self._shortlist_ready(key, ())

        self._shortlist_worker.submit(work, failed=failed)

    def _shortlist_ready(
        self, key: tuple[str, WhatIf], candidates: tuple[Candidate, ...]
    ) -> None:
        if key != (self._use_case, self.what_if):
            return
        self._listed_for = key
        self._estimates.store(*key, candidates)
        self._candidates = candidates
        self._fill_list()
        self._estimate_details()
        self.draw()

    def _fill_list(self) -> None:
        sections = shortlist.group_candidates(self._candidates, self._open_groups)
        self._list.set_sections(sections)

    def _estimate(self, candidate: Candidate) -> Candidate:
        """Adds a plan for the current dials, once this computer has been probed."""
        profile = self._profiles.get_loaded(self.what_if.gpu)
        if profile is None:
            return candidate
        return self._estimates.estimate(
            candidate, profile, self._use_case, self.what_if
        )

    def _refresh_estimates(self) -> None:
        """Applies cached estimates to all rows.

        Schedules the others if the list is visible.
        """
        for index, row in enumerate(self._list.rows):
            if isinstance(row, HiddenCandidates):
                continue
            estimated = self._estimates.get(row, self._use_case, self.what_if)
            if estimated is None:
                estimated = replace(row, plan=None, no_fit_reason="")
            self._list.update_row(index, estimated)
        if self.step == 2:
            pointed = self._list.highlighted_index
            candidate = self._selected
            if pointed is not None and candidate is not None:
                self._list.update_row(pointed, self._estimate(candidate))
            set_reliable_timer(self, _ESTIMATE_PAUSE_SECONDS, self._estimate_some)

    def _estimate_some(self) -> None:
        """Estimates rows, the selected one first, until the time budget is spent."""
        deadline = time.monotonic() + _ESTIMATE_BUDGET_SECONDS
        start = self._list.highlighted_index or 0
        n_rows = len(self._list.rows)
        for index in (*range(start, n_rows), *range(start)):
            row = self._list.rows[index]
            if isinstance(row, HiddenCandidates):
                continue
            if row.plan is not None or row.no_fit_reason:
                continue
            if time.monotonic() >= deadline:
                set_reliable_timer(self, _ESTIMATE_PAUSE_SECONDS, self._estimate_some)
                return
            self._list.update_row(index, self._estimate(row))
            if index == start:
                self._draw_header()

    # --- the dials
    # ------------------------------------------------------------------------

    def action_turn(self, by: int) -> None:
        plan = self._plan_with_automatic(self._dial)
        self._set_what_if(self.what_if.turn_dial(self._dial, by, plan))

    def _plan_with_automatic(self, dial: Dial) -> Plan | None:
        """Of the selected pair with that dial at auto; None until it can be estimated."""
        candidate = self._selected
        profile = self._profiles.get_loaded(self.what_if.gpu)
        if candidate is None or profile is None:
            return None
        dials = self.what_if.with_automatic(dial)
        estimate = self._estimates.estimate(candidate, profile, self._use_case, dials)
        return estimate.plan

    @property
    def _selected(self) -> Candidate | None:
        """The pair whose page is shown, or that of the list's marked row."""
        if self.step == 3:
            return self._details.candidate
        row = self._list.highlighted_row
        return None if isinstance(row, HiddenCandidates) else row

    def _set_what_if(self, what_if: WhatIf) -> None:
        self.what_if = what_if
        if self._settle_timer is not None:
            self._settle_timer.cancel()
        self._settle_timer = set_reliable_timer(
            self, _DIAL_SETTLE_SECONDS, self._dials_settled
        )
        if self.step == 3:
            self._estimate_details()
        self._refresh_estimates()
        self.draw()

    def _dials_settled(self) -> None:
        self._request_shortlist()
        self._count_memory()

    def action_dial(self) -> None:
        self._dial = DIALS[(DIALS.index(self._dial) + 1) % len(DIALS)]
        self._draw_header()

    def action_settings(self) -> None:
        """Selects the context dial, then the KV dial."""
        self._dial = "kv" if self._dial == "context" else "context"
        self._draw_header()

    def action_card(self) -> None:
        gpus = {what_if.gpu_name(gpu): gpu for gpu in (None, *what_if.list_gpus())}
        rows = [PickerRow(name) for name in gpus]

        def on_dismiss(name: str | None) -> None:
            if name is not None:
                self._dial = "gpu"
                self._set_what_if(replace(self.what_if, gpu=gpus[name]))

        choices = PickerChoices(
            heading="Estimate for another GPU",
            placeholder="4060, 7900 xtx, M4 Pro",
            load=lambda: rows,
            takes_text=False,
        )
        dialog = PickerScreen(choices, what_if.gpu_name(self.what_if.gpu))
        self.app.push_screen(dialog, on_dismiss)

    # --- details of a pair
    # ----------------------------------------------------------------

    def _open_details(self, candidate: Candidate) -> None:
        """Shows the estimate at once, and reads the files' headers on a thread."""
        self._details.candidate = self._estimate(candidate)
        pair = candidate.pair
        if self._details.has_tried_headers(pair):
            return

        def work() -> None:
            headers = self._services.read_headers(pair)
            comparison = compare_headers(headers) if headers is not None else None
            free_disk = self._services.free_disk()
            self.call_later(self._headers_read, pair, comparison, free_disk)

        def failed(error: LocalspecError) -> None:
            self._show_failure(error)
            self._headers_read(pair, None, None)

        self._header_worker.submit(work, failed=failed)

    def _headers_read(
        self,
        pair: CatalogPair,
        comparison: HeaderComparison | None,
        free_disk: int | None,
    ) -> None:
        """`comparison` is None if the headers could not be read."""
        self._details.free_disk = free_disk
        self._details.set_headers(pair, comparison)
        self._estimate_details()
        self.draw()
        self._count_memory()

    def _estimate_details(self) -> None:
        if self._details.candidate is not None:
            self._details.candidate = self._estimate(self._details.candidate)

    def _count_memory(self) -> None:
        """Replaces the estimate by what llama.cpp counts, on a thread."""
        profile = self._profiles.get_loaded(self.what_if.gpu)
        candidate = self._details.candidate
        if self.step != 3 or profile is None:
            return
        if candidate is None or candidate.plan is None:
            return
        use_case = self._use_case
        dials = self.what_if
        shapes = self._details.take_uncounted(use_case, dials)
        if shapes is None:
            return

        def work() -> None:
            counted = self._services.count_memory(
                candidate, shapes, profile, use_case, dials
            )
            self.call_later(self._memory_counted, counted, use_case, dials)

        def failed(error: LocalspecError) -> None:
            self._show_failure(error)
            self._memory_counted(candidate, use_case, dials)  # the estimate stays

        self._count_worker.submit(work, failed=failed)

    def _memory_counted(self, counted: Candidate, use_case: str, dials: WhatIf) -> None:
        self._estimates.store_counted(counted, use_case, dials)
        if self.step == 3:
            self._estimate_details()
            self.draw()

    def action_other_draft(self) -> None:
        pair = self._details.next_draft()
        if pair is not None:
            self._show_pair(pair)
        else:
            text = "The catalogue has no other draft model for this target."
            self.notify(text, markup=False, timeout=2)

    def action_other_target(self) -> None:
        pair = self._details.next_target(self._candidates)
        if pair is not None:
            self._show_pair(pair)

    def _show_pair(self, pair: CatalogPair) -> None:
        listed = {each.pair.id: each for each in self._candidates}
        self._open_details(listed.get(pair.id) or unlisted_candidate(pair))
        self.draw()
        self._count_memory()

    def action_take(self) -> None:
        if self._details.candidate is None:
            return
        pair = self._details.candidate.pair
        resolved = self._services.ready_pairs.get(pair.id)
        if resolved is not None:
            self.dismiss(WizardResult(self.what_if, resolved, pair))
            return

        def on_dismiss(started: bool | None) -> None:
            if started:
                self.dismiss(WizardResult(self.what_if, None, pair))

        profile = self._profiles.get_loaded(None)
        sheet = PullScreen(pair.id, self._downloads, profile, start_at_once=True)
        self.app.push_screen(sheet, on_dismiss)

    def action_open_files(self) -> None:
        def on_dismiss(pair: ResolvedPair | None) -> None:
            if pair is not None:
                self.dismiss(WizardResult(self.what_if, pair))

        profile = self._profiles.get_loaded(None)
        self.app.push_screen(
            OpenFilesScreen(self._runner, self._options, profile), on_dismiss
        )

    # --- drawing
    # --------------------------------------------------------------------------

    @property
    def _list_width(self) -> int:
        return min(self.size.width, PAGE_WIDTH) - 4

    def draw(self) -> None:
        self._draw_header()
        columns = self.query_one("#columns", Static)
        columns.update(self._heading())
        columns.display = self.step == 2
        if self.step == 3 and self._details.candidate is not None:
            self._draw_page(self._details.candidate)
        self._draw_reasons()
        self._draw_keys()

    def _heading(self) -> Content:
        """The columns of the list; in place of an empty list, why it is empty."""
        if self._list.rows:
            return shortlist.heading_line(self._list_width)
        text = what_if.SEARCHING_TEXT
        if self._listed_for == (self._use_case, self.what_if):
            text = what_if.NO_CANDIDATE_TEXT
        lines = wrap_words(text, self._list_width)
        return Content.styled("\n".join(lines), "$muted")

    def _draw_page(self, candidate: Candidate) -> None:
        page = self._details.build_page(candidate, self._use_case)
        width = max(
            40, min(self.size.width, PAGE_WIDTH) - 5
        )  # one column for a scrollbar
        height = self.size.height - 2
        if self.size.height >= 20:
            height -= 2
        lines = pair_details.render_page(page, width, height)
        self.query_one("#page", Static).update(Content("\n").join(lines))

    def _draw_header(self) -> None:
        width = self._list_width
        candidate = self._selected
        plan = candidate.plan if candidate is not None else None
        header = what_if.step_header(
            self.step, self.what_if, dial=self._dial, plan=plan, width=width
        )
        self.query_one("#head", Static).update(header)

    def _draw_row(self, row: ShortlistRow) -> Content:
        if isinstance(row, HiddenCandidates):
            return shortlist.hidden_line(row)
        return shortlist.candidate_line(
            row,
            is_downloaded=row.pair.id in self._services.ready_pairs,
            width=self._list_width,
        )

    @on(OptionList.OptionHighlighted, "#shortlist")
    def _highlight_changed(self) -> None:
        self._draw_header()
        self._draw_reasons()
        self._draw_keys()

    def _draw_keys(self) -> None:
        keys = what_if.key_hints(self.step, self._enter_hint, self._options.keymap)
        self.query_one(KeyLine).show_keys(keys)

    def _draw_reasons(self) -> None:
        """Below the list: why the selected pair is listed."""
        lines: list[Content] = []
        if self.step == 2 and self._list.rows:
            max_lines = 2 if self.size.height >= 20 else 1
            width = self._list_width
            lines = shortlist.reason_lines(self._selected, width, max_lines)
        about = self.query_one("#about", Static)
        about.update(Content("\n").join(lines))
        about.display = bool(lines)
        self.call_after_refresh(self._list.scroll_to_highlight)

    @property
    def _enter_hint(self) -> str:
        if self.step == 1:
            return "enter select"
        if self.step == 3:
            return self._take_hint
        if isinstance(self._list.highlighted_row, HiddenCandidates):
            return "enter show them"
        return "enter details"

    @property
    def _take_hint(self) -> str:
        candidate = self._details.candidate
        if candidate is None:
            return "enter download"
        if candidate.pair.id in self._services.ready_pairs:
            return "enter chat"
        hint = "enter download"
        if candidate.pair.draft:
            hint += " both"
        if candidate.plan is None or candidate.plan.verdict.can_load:
            hint += " and chat"
        return hint
