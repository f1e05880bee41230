"""The wizard: finds a pair for this computer in three steps: use case, shortlist, details."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace

from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from localspec.errors import LocalspecError
from localspec.fit.report import FitReport
from localspec.fit.speed_estimate import UseCase
from localspec.launch import ResolvedPair
from localspec.machine.gpu_catalog import GpuSpec
from localspec.models.catalog import CatalogPair
from localspec.tui.app_options import AppOptions
from localspec.tui.centered import CenteredLayout
from localspec.tui.downloads import DownloadManager
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.key_bindings import bindings_for
from localspec.tui.screens.background import LatestOnlyWorker
from localspec.tui.screens.gpu_picker import GpuPickerScreen
from localspec.tui.screens.open_files import OpenFilesScreen
from localspec.tui.screens.pull import PullScreen
from localspec.tui.timer import set_reliable_timer
from localspec.tui.widgets.pair_lists import CandidateList
from localspec.tui.wizard import pair_details, shortlist, what_if
from localspec.tui.wizard.pair_details import (
    HeaderComparison,
    PairDetails,
    compare_headers,
    unlisted_candidate,
)
from localspec.tui.wizard.services import WizardResult, WizardServices
from localspec.tui.wizard.shortlist import Candidate, EstimateCache
from localspec.tui.wizard.what_if import DIALS, Dial, MachineProfiles, WhatIf

_ESTIMATE_BUDGET_SECONDS = 0.005
"""Time for estimates before key presses are handled again."""
_ESTIMATE_PAUSE_SECONDS = 0.02
_DIAL_SETTLE_SECONDS = 0.3
"""Delay before the whole catalogue is estimated: that slows the handling of keys."""
ShortlistKey = tuple[str, WhatIf]


class ShortlistScreen(CenteredLayout, Screen[WizardResult | None]):
    """The dials and the shortlist.

    The selected row is estimated at once, the others on a thread and between keys.
    """

    class ShortlistReady(Message):
        """The shortlist for a use case and dial settings."""

        def __init__(self, key: ShortlistKey, candidates: tuple[Candidate, ...]) -> None:
            super().__init__()
            self.key, self.candidates = key, candidates

    def __init__(self, services: WizardServices) -> None:
        super().__init__()
        self._services = services
        self.step = 1
        self.what_if = WhatIf()
        self._dial: Dial = "gpu"
        self._use_case = "chat"
        self._profiles = MachineProfiles(services.load_machine_profile)
        self._estimates = EstimateCache()
        self._details = PairDetails(services, self._estimates)
        self._shortlist_key: ShortlistKey | None = None
        """Of the shortlist that is shown."""
        self._settle_timer: asyncio.TimerHandle | None = None
        self._shortlist_worker = LatestOnlyWorker("shortlist")

    def draw(self) -> None:
        raise NotImplementedError

    def draw_header(self) -> None:
        raise NotImplementedError

    def dials_settled(self) -> None:
        """Called once no dial has moved for a moment."""
        self.request_shortlist()

    # --- the shortlist --------------------------------------------------------------------

    def preload(self) -> None:
        """Loads on a thread what every estimate needs."""

        def work() -> None:
            self._profiles.load(None)
            what_if.list_gpus()

        self._shortlist_worker.submit(work)

    def request_shortlist(self) -> None:
        """Computes the shortlist for the current use case and dials, on a thread."""
        key = self._use_case, self.what_if
        if key == self._shortlist_key:
            return

        def work() -> None:
            profile = self._profiles.load(key[1].gpu)
            try:
                candidates = self._services.suggest(profile, *key, self._services.catalogue)
            except LocalspecError:  # each pair's estimate shows the error
                candidates = ()
            self.post_message(self.ShortlistReady(key, candidates))

        self._shortlist_worker.submit(work)

    @on(ShortlistReady)
    def _shortlist_ready(self, message: ShortlistReady) -> None:
        if message.key != (self._use_case, self.what_if):
            return
        self._shortlist_key = message.key
        self._estimates.store(*message.key, message.candidates)
        self.query_one(CandidateList).set_candidates(message.candidates)
        if self._details.candidate is not None:
            self._details.candidate = self.estimate(self._details.candidate)
        self.draw()

    def estimate(self, candidate: Candidate) -> Candidate:
        """Adds a fit for the current dials; no change until this computer has been probed."""
        profile = self._profiles.get_loaded(self.what_if.gpu)
        if profile is None:
            return candidate
        return self._estimates.estimate(candidate, profile, self._use_case, self.what_if)

    def _estimate_some(self) -> None:
        """Estimates rows, the selected one first, until the time budget is spent."""
        listing = self.query_one(CandidateList)
        deadline = time.monotonic() + _ESTIMATE_BUDGET_SECONDS
        start = listing.highlighted or 0
        for candidate in [*listing.candidates[start:], *listing.candidates[:start]]:
            if candidate.fit is not None or candidate.no_fit_reason:
                continue
            if time.monotonic() >= deadline:
                set_reliable_timer(self, _ESTIMATE_PAUSE_SECONDS, self._estimate_some)
                return
            listing.update_candidate(self.estimate(candidate))
            if (
                listing.highlighted_candidate is not None
                and listing.highlighted_candidate.pair.id == candidate.pair.id
            ):
                self.draw_header()

    # --- the dials ------------------------------------------------------------------------

    def action_turn(self, by: int) -> None:
        self._set_what_if(self.what_if.turn_dial(self._dial, by))

    def _set_what_if(self, what_if: WhatIf) -> None:
        """Estimates the selected pair at once, the others later."""
        self.what_if = what_if
        if self._settle_timer is not None:
            self._settle_timer.cancel()
        self._settle_timer = set_reliable_timer(self, _DIAL_SETTLE_SECONDS, self.dials_settled)
        if self.step == 3 and self._details.candidate is not None:
            self._details.candidate = self.estimate(self._details.candidate)
        self.refresh_estimates()
        self.draw()

    def refresh_estimates(self) -> None:
        """Applies cached estimates to all rows; schedules the others if the list is visible."""
        listing, what_if = self.query_one(CandidateList), self.what_if
        cached = [
            self._estimates.get(candidate, self._use_case, what_if)
            for candidate in listing.candidates
        ]
        listing.candidates = [
            new or replace(old, fit=None, no_fit_reason="")
            for old, new in zip(listing.candidates, cached, strict=True)
        ]
        if self.step == 2:
            if listing.highlighted_candidate is not None:
                listing.candidates[listing.highlighted or 0] = self.estimate(
                    listing.highlighted_candidate
                )
            listing.redraw_candidates()
            set_reliable_timer(self, _ESTIMATE_PAUSE_SECONDS, self._estimate_some)

    def action_dial(self) -> None:
        self._dial = DIALS[(DIALS.index(self._dial) + 1) % len(DIALS)]
        self.draw_header()

    def action_settings(self) -> None:
        """Selects the context dial, then the KV dial."""
        self._dial = "kv" if self._dial == "context" else "context"
        self.draw_header()

    def action_card(self) -> None:
        def on_dismiss(picked: tuple[GpuSpec | None] | None) -> None:
            if picked is not None:
                self._dial = "gpu"
                self._set_what_if(WhatIf(picked[0], self.what_if.ctx, self.what_if.kv))

        self.app.push_screen(GpuPickerScreen(self.what_if.gpu), on_dismiss)


_SWITCH_INTERVAL = 0.0005
"""Lets a key press interrupt the estimating thread sooner. Python's default is 0.005 s."""


class WizardScreen(ShortlistScreen):
    """Every dial change is drawn at once; slow work runs on threads."""

    BINDINGS = bindings_for("wizard")
    AUTO_FOCUS = "#uses"

    class HeadersRead(Message):
        """`comparison` is None if the headers could not be read."""

        def __init__(
            self, pair: CatalogPair, comparison: HeaderComparison | None, free_disk: int | None
        ) -> None:
            super().__init__()
            self.pair, self.comparison, self.free_disk = pair, comparison, free_disk

    class FitConfirmed(Message):
        """A fit computed by llama.cpp itself."""

        def __init__(self, candidate: Candidate, key: ShortlistKey, fit: FitReport) -> None:
            super().__init__()
            self.candidate, self.key, self.fit = candidate, key, fit

    def __init__(
        self,
        runner: EngineRunner,
        options: AppOptions,
        downloads: DownloadManager,
        services: WizardServices,
    ) -> None:
        super().__init__(services)
        self._runner, self._options, self._downloads = runner, options, downloads
        self._previous_switch_interval = sys.getswitchinterval()
        self._header_worker = LatestOnlyWorker("headers")
        self._confirm_worker = LatestOnlyWorker("exact fit")

    def compose(self) -> ComposeResult:
        yield Static("", id="head", markup=False)
        uses = [
            Option(what_if.use_case_line(n, use), id=use)
            for n, use in enumerate(what_if.USE_CASES, 1)
        ]
        yield OptionList(*uses, id="uses", compact=True, markup=False)
        yield Static("", id="columns", markup=False)
        yield CandidateList(self._candidate_line)
        with VerticalScroll(id="card"):
            yield Static("", id="page", markup=False)
        yield Static("", id="about", markup=False)
        yield Static("", id="hints", markup=False)

    def on_mount(self) -> None:
        self._previous_switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_INTERVAL)
        self.preload()  # takes a second, while the user reads step 1
        self._go_to_step(1)

    def on_unmount(self) -> None:
        sys.setswitchinterval(self._previous_switch_interval)

    def on_resize(self) -> None:
        self.draw()

    # --- steps ----------------------------------------------------------------------------

    def _go_to_step(self, step: int) -> None:
        self.step = step
        visible = {1: ("uses",), 2: ("columns", "shortlist"), 3: ("card",)}[step]
        for name in ("uses", "columns", "shortlist", "card"):
            self.query_one(f"#{name}", Widget).display = name in visible
        if step == 2:
            self.refresh_estimates()
        self.set_focus(self.query_one({1: "#uses", 2: "#shortlist", 3: "#card"}[step], Widget))
        self.draw()

    @on(OptionList.OptionSelected, "#uses")
    def _use_case_selected(self, event: OptionList.OptionSelected) -> None:
        self.action_use(event.option.id or "chat")

    def action_use(self, use: str) -> None:
        if self.step != 1:
            return
        self._use_case = use
        self._go_to_step(2)
        self.request_shortlist()

    @on(OptionList.OptionSelected, "#shortlist")
    def _candidate_selected(self) -> None:
        if (candidate := self.query_one(CandidateList).highlighted_candidate) is not None:
            self._open_details(candidate)
            self._go_to_step(3)

    def action_back(self) -> None:
        if self.step == 1:
            self.dismiss(None)
        else:
            self._go_to_step(self.step - 1)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Each step has its own keys."""
        steps = {"use": (1,), "take": (3,), "other_draft": (3,), "other_target": (3,)}
        dials = dict.fromkeys(("turn", "dial", "settings", "card"), (2, 3))
        return self.step in (steps | dials).get(action, (1, 2, 3))

    # --- details of a pair ----------------------------------------------------------------

    def _open_details(self, candidate: Candidate) -> None:
        """Shows the estimate at once, and reads the files' headers on a thread."""
        self._details.candidate = self.estimate(candidate)
        pair = candidate.pair
        if self._details.has_tried_headers(pair):
            return

        def work() -> None:
            headers = self._services.read_headers(pair)
            comparison = compare_headers(headers) if headers is not None else None
            self.post_message(self.HeadersRead(pair, comparison, self._services.free_disk()))

        self._header_worker.submit(work)

    @on(HeadersRead)
    def _headers_read(self, message: HeadersRead) -> None:
        self._details.free_disk = message.free_disk
        self._details.set_headers(message.pair, message.comparison)
        if self._details.candidate is not None:
            self._details.candidate = self.estimate(self._details.candidate)
        self.draw()
        self._confirm_fit()

    def dials_settled(self) -> None:
        super().dials_settled()
        self._confirm_fit()

    def _confirm_fit(self) -> None:
        """Replaces the estimate by a fit computed by llama.cpp, on a thread."""
        profile, key = self._profiles.get_loaded(self.what_if.gpu), (self._use_case, self.what_if)
        candidate = self._details.candidate
        if self.step != 3 or profile is None or candidate is None or (fit := candidate.fit) is None:
            return
        if (headers := self._details.take_unconfirmed(*key)) is None:
            return

        def work() -> None:
            confirmed = self._services.confirm_fit(fit, headers, profile, UseCase(key[0]))
            self.post_message(self.FitConfirmed(candidate, key, confirmed))

        self._confirm_worker.submit(work)

    @on(FitConfirmed)
    def _fit_confirmed(self, message: FitConfirmed) -> None:
        self._estimates.store_confirmed(message.candidate, *message.key, message.fit)
        if self._details.candidate is not None and self.step == 3:
            self._details.candidate = self.estimate(self._details.candidate)
            self.draw()

    def action_other_draft(self) -> None:
        pair = self._details.next_draft()
        if pair is None:
            self.notify(
                "The catalogue has no other draft model for this target.", markup=False, timeout=2
            )
        else:
            self._show_pair(pair)

    def action_other_target(self) -> None:
        pair = self._details.next_target(self.query_one(CandidateList).candidates)
        if pair is not None:
            self._show_pair(pair)

    def _show_pair(self, pair: CatalogPair) -> None:
        listed = {
            candidate.pair.id: candidate for candidate in self.query_one(CandidateList).candidates
        }
        self._open_details(listed.get(pair.id) or unlisted_candidate(pair))
        self.draw()
        self._confirm_fit()

    def action_take(self) -> None:
        """Opens the pair; downloads missing files first."""
        if self._details.candidate is None:
            return
        pair = self._details.candidate.pair
        if (choice := self._services.ready_choices.get(pair.id)) is not None:
            self.dismiss(WizardResult(self.what_if, choice, pair))
            return

        def on_dismiss(started: bool | None) -> None:
            if started:
                self.dismiss(WizardResult(self.what_if, None, pair))

        sheet = PullScreen(pair.id, self._downloads, self._options.glyphs, start_at_once=True)
        self.app.push_screen(sheet, on_dismiss)

    def action_open_files(self) -> None:
        def on_dismiss(choice: ResolvedPair | None) -> None:
            if choice is not None:
                self.dismiss(WizardResult(self.what_if, choice))

        profile = self._profiles.get_loaded(None)
        self.app.push_screen(OpenFilesScreen(self._runner, self._options, profile), on_dismiss)

    # --- drawing --------------------------------------------------------------------------

    def draw(self) -> None:
        self.draw_header()
        if self.step == 2:
            self._draw_column_headings()
        if self.step == 3 and self._details.candidate is not None:
            width = max(40, min(self.size.width - 5, 116))  # one column for a scrollbar
            lines = pair_details.render_page(
                self._details.build_page(self._details.candidate, self._use_case),
                width,
                self._body_height,
                self._options.glyphs,
            )
            self.query_one("#page", Static).update(Content("\n").join(lines))
        self._draw_reasons()
        self._draw_key_hints()

    @property
    def _body_height(self) -> int:
        return self.size.height - (4 if self.size.height >= 20 else 2)

    def draw_header(self) -> None:
        width = self.size.width - 4
        candidate = (
            self._details.candidate
            if self.step == 3
            else self.query_one(CandidateList).highlighted_candidate
        )
        fit = candidate.fit if candidate is not None else None
        header = what_if.first_step_title(width)
        if self.step > 1:
            header = what_if.step_header(self.step, self.what_if, self._dial, fit, width)
        self.query_one("#head", Static).update(header)

    def _draw_column_headings(self) -> None:
        columns = self.query_one("#columns", Static)
        columns.update(shortlist.heading_line(min(self.size.width, 120) - 2))
        columns.display = bool(self.query_one(CandidateList).candidates)

    def _candidate_line(self, candidate: Candidate, pointed: bool) -> Content:
        is_installed = candidate.pair.id in self._services.ready_choices
        return shortlist.candidate_line(
            candidate,
            self._use_case,
            is_downloaded=is_installed,
            width=min(self.size.width, 120) - 2,
            glyphs=self._options.glyphs,
            pointed=pointed,
        )

    @on(OptionList.OptionHighlighted, "#shortlist")
    def _highlight_changed(self) -> None:
        self.draw_header()
        self._draw_reasons()

    def _draw_reasons(self) -> None:
        """Below the list: why the selected pair is listed, or that the list is empty."""
        about = self.query_one("#about", Static)
        listing = self.query_one(CandidateList)
        lines: list[Content] = []
        if self.step == 2 and not listing.candidates:
            done = self._shortlist_key == (self._use_case, self.what_if)
            lines = [
                Content.styled(
                    what_if.NO_CANDIDATE_TEXT if done else what_if.SEARCHING_TEXT, "$muted"
                )
            ]
        elif self.step == 2:
            max_lines = 4 if self.size.height >= 30 else 3 if self.size.height >= 20 else 1
            lines = shortlist.reason_lines(
                listing.highlighted_candidate, min(self.size.width - 6, 110), max_lines
            )
        about.update(Content("\n").join(lines))
        about.display = bool(lines)
        self.call_after_refresh(listing.scroll_to_highlight)

    def _draw_key_hints(self) -> None:
        take_hint = what_if.take_action_hint(
            self._details.candidate.pair if self._details.candidate else None,
            self._services.ready_choices,
        )
        keys = what_if.key_hints(self.step, take_hint, self._options.keymap, self.size.width - 4)
        self.query_one("#hints", Static).update(Content(keys))
