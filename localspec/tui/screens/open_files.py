"""Models by their paths: the target, then the draft, and whether they go together."""

from __future__ import annotations

import threading
from pathlib import Path

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.suggester import Suggester
from textual.widgets import Input, Static

from localspec import hints, launch
from localspec.errors import LocalspecError
from localspec.fit import pair_headers
from localspec.fit.advisor import SettingsAdvisor, SettingsRequest
from localspec.fit.report import MachineProfile
from localspec.launch import ResolvedPair, recent_pairs
from localspec.models import draft_heads
from localspec.models.gguf import header
from localspec.protocol.wire import LoadCommand
from localspec.sanitize import sanitize
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineLoaded, EngineLoadFailed, EngineRunner
from localspec.tui.wizard import fit_text
from localspec.units import gib

_KIND_LABELS = {
    "model": "a GGUF model",
    "eagle3": "an EAGLE-3 head",
    "mtp": "an MTP head",
    "dflash": "a DFlash head",
    "dspark": "a DSpark head",
}


class OpenFilesScreen(ModalScreen[ResolvedPair | None]):
    """Every file is looked at as soon as it is named; the pair is judged by loading it."""

    BINDINGS = [Binding("escape", "cancel", "Cancel")]  # noqa: RUF012
    AUTO_FOCUS = "#target"  # before the first picture: one may type at once

    class FitEstimated(Message):
        """What the files would take, and how fast they would be; `files` as they were then."""

        def __init__(self, files: tuple[str, str], text: str) -> None:
            super().__init__()
            self.files, self.text = files, text

    def __init__(
        self,
        runner: EngineRunner,
        options: AppOptions,
        machine_profile: MachineProfile | None = None,
    ) -> None:
        """`place`: where the files would run, if that is known."""
        super().__init__()
        self._machine_profile = machine_profile
        self._runner = runner
        self._options = options
        self._choice: ResolvedPair | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            yield Static("Open models by their paths", classes="heading", markup=False)
            yield Static("Target: the model that answers", classes="label", markup=False)
            yield Input(placeholder="/path/to/big.gguf", id="target", suggester=_PathSuggester())
            yield Static("", id="target-verdict", classes="verdict", markup=False)
            yield Static("Draft: a small one of the same family", classes="label", markup=False)
            yield Input(
                placeholder="empty: no draft, copying only", id="draft", suggester=_PathSuggester()
            )
            yield Static("", id="draft-verdict", classes="verdict", markup=False)
            yield Static("", id="fit-verdict", classes="verdict", markup=False)
            yield Static(
                "→ takes what is suggested   enter next   esc back",
                classes="hint",
                markup=False,
            )

    def on_mount(self) -> None:
        for field in self.query(Input):
            field.cursor_blink = False

    @on(Input.Submitted, "#target")
    def _target_submitted(self) -> None:
        if self._check_file("target"):
            self.query_one("#draft", Input).focus()
            self._estimate_fit()

    @on(Input.Changed)
    def _estimate_fit(self) -> None:
        """On a thread: what the files that are named so far would take."""
        files = self._typed_path("target"), self._typed_path("draft")
        if (
            self._machine_profile is None
            or not all(Path(f).is_file() for f in files if f)
            or not files[0]
        ):
            self._show_fit("")
            return
        place = self._machine_profile

        def work() -> None:
            self.post_message(self.FitEstimated(files, describe_fit(*files, place)))

        threading.Thread(target=work, daemon=True, name="fit").start()

    @on(FitEstimated)
    def _fit_estimated(self, message: FitEstimated) -> None:
        if message.files == (self._typed_path("target"), self._typed_path("draft")):
            self._show_fit(message.text)

    def _show_fit(self, text: str) -> None:
        line = self.query_one("#fit-verdict", Static)
        line.update(Content.styled(sanitize(text), "$muted"))
        line.display = bool(text)

    @on(Input.Submitted, "#draft")
    def _draft_submitted(self) -> None:
        """Load the pair: llama.cpp's own word on whether the draft can speculate for the target."""
        draft = self.query_one("#draft", Input).value.strip()
        if not self._check_file("target") or (draft and not self._check_file("draft")):
            return
        try:
            self._choice = launch.resolve_pair(
                self._typed_path("target"), self._typed_path("draft") or "auto"
            )
        except LocalspecError as error:
            self._show_load_error(error)
            return
        if self._choice.draft is None:
            self._dismiss_with(self._choice)
            return
        self._show_verdict("draft", "checking that they go together …", "")
        self._runner.load(self._options.build_load_request(self._choice), self.post_message)

    @on(EngineLoaded)
    def _engine_ready(self, message: EngineLoaded) -> None:
        notices = [n for n in message.engine.ready.notices if n.code == "draft-no-rollback"]
        if notices:
            self._show_verdict("draft", notices[0].message, "$warning")
        elif self._choice is not None:
            self._dismiss_with(self._choice)

    @on(EngineLoadFailed)
    def _load_failed(self, message: EngineLoadFailed) -> None:
        self._show_load_error(message.error)

    def _error_text(self, error: LocalspecError) -> str:
        return f"{self._options.glyphs.cross} {error.message} {hints.for_screen(error.hint)}"

    def _show_load_error(self, error: LocalspecError) -> None:
        self._show_verdict("draft", self._error_text(error), "$error")
        self.query_one("#draft", Input).focus()

    def _dismiss_with(self, choice: ResolvedPair) -> None:
        recent_pairs.add(choice)
        self.dismiss(choice)

    def _check_file(self, name: str) -> bool:
        """Whether a file is a model, said below its path."""
        path = self._typed_path(name)
        try:
            if not path:
                raise LocalspecError("A path is needed.", "Such as ~/models/big.gguf")
            found = launch.resolve_file(path)
        except LocalspecError as error:
            self._show_verdict(name, self._error_text(error), "$error")
            return False
        size = gib(found.stat().st_size)
        what = _KIND_LABELS[draft_heads.file_draft_kind(header.read(found))]
        self._show_verdict(name, f"{self._options.glyphs.check} {what}, {size}", "$success")
        return True

    def _typed_path(self, name: str) -> str:
        """Always a path, never a pair's name."""
        typed = self.query_one(f"#{name}", Input).value.strip()
        return str(Path(typed).expanduser().absolute()) if typed else ""

    def _show_verdict(self, name: str, text: str, style: str) -> None:
        line = self.query_one(f"#{name}-verdict", Static)
        line.update(Content.styled(sanitize(text, multiline=False), style))

    def action_cancel(self) -> None:
        self._runner.close()
        self.dismiss(None)


class _PathSuggester(Suggester):
    """The first folder or .gguf file that a path may become."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        try:
            path = Path(value).expanduser()
            folder, begun = (path, "") if value.endswith("/") else (path.parent, path.name)
            for entry in sorted(folder.iterdir())[:2000]:
                fits = entry.name.startswith(begun) and not entry.name.startswith(".")
                if fits and (entry.suffix == ".gguf" or entry.is_dir()):
                    typed = value[: len(value) - len(begun)]
                    return sanitize(
                        f"{typed}{entry.name}{'/' if entry.is_dir() else ''}", multiline=False
                    )
        except (OSError, RuntimeError):
            return None
        return None


# --- Files of one's own: what they would take, and how fast they would be, from their headers.


def describe_fit(target: str, draft: str, machine_profile: MachineProfile) -> str:
    """Two lines, or nothing where the files say nothing; some 100 ms: on a thread."""
    try:
        choice = launch.with_detected_head(
            ResolvedPair(Path(target), Path(draft) if draft else None)
        )
        first = pair_headers.read_model_header(choice.target)
        second = pair_headers.read_model_header(choice.draft) if choice.draft else None
        load = LoadCommand(target, str(choice.draft) if choice.draft else None)
        fit = SettingsAdvisor(first, second, machine_profile).advise(SettingsRequest(load)).fit
    except (LocalspecError, ValueError):
        return ""
    at = fit_text.context_text(fit.load.target_settings.n_ctx)
    said = f"{fit_text.verdict_text(fit)}, with context {at}"
    speed = fit.speed
    if speed.plain is None:
        return f"{said}\nspeed unknown: {speed.explanation}"
    kind = draft_heads.draft_kind_for_target(first, second) if second else "lookup"
    names = {"lookup": "with copying", "model": "with draft", "mtp": "with its own MTP layer"}
    beside = names.get(kind) or f"with the {draft_heads.KIND_TITLES[kind]} head"
    return (
        f"{said}\n{fit_text.speed_text(speed.plain)}, "
        f"{beside} {fit_text.speed_text(speed.speculative)}"
    )
