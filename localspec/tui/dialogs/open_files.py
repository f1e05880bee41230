"""The dialog that opens models by path: a target, and a draft model if wanted."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.suggester import Suggester
from textual.widgets import Input, Static

from localspec import draft_kinds, launch, paths
from localspec.chat import argument_completion
from localspec.errors import LocalspecError
from localspec.fit import pair_shapes
from localspec.fit.advisor import SettingsAdvisor, with_settings
from localspec.fit.machine_profile import MachineProfile
from localspec.launch import ResolvedPair, recent_pairs
from localspec.models import draft_heads
from localspec.models.gguf import reader
from localspec.report import memory, pair_text
from localspec.sanitize import sanitize
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineLoaded, EngineLoadFailed, EngineRunner
from localspec.tui.notices import problem_text
from localspec.tui.scheduling import run_on_thread
from localspec.tui.text.wrapping import one_line
from localspec.units import gb


class OpenFilesScreen(ModalScreen[ResolvedPair | None]):
    """Each file is checked when it is entered; the pair is checked by loading it."""

    BINDINGS = [Binding("escape", "cancel", "Cancel")]  # noqa: RUF012
    AUTO_FOCUS = "#target"  # set before the first draw: no typed key is lost

    def __init__(
        self,
        runner: EngineRunner,
        options: AppOptions,
        machine_profile: MachineProfile | None = None,
    ) -> None:
        """`machine_profile`: without it, no fit is estimated."""
        super().__init__()
        self._runner = runner
        self._options = options
        self._machine_profile = machine_profile
        self._choice: ResolvedPair | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            yield Static("Open model files", classes="heading", markup=False)
            yield from self._compose_field(
                "target", label="Target model", placeholder="/path/to/big.gguf"
            )
            yield from self._compose_field(
                "draft",
                label="Draft model: a smaller one of the same family",
                placeholder="empty: prompt lookup, no draft model",
            )
            yield Static("", id="fit-verdict", classes="verdict", markup=False)
            keys = "enter complete the path, then next   esc back"
            yield Static(keys, classes="hint", markup=False)

    def _compose_field(
        self, name: str, *, label: str, placeholder: str
    ) -> ComposeResult:
        yield Static(label, classes="label", markup=False)
        suggester = _PathSuggester(use_cache=False, case_sensitive=True)
        field = Input(placeholder=placeholder, id=name, suggester=suggester)
        field.cursor_blink = False
        yield field
        yield Static("", id=f"{name}-verdict", classes="verdict", markup=False)

    @on(Input.Submitted, "#target")
    def _target_submitted(self, event: Input.Submitted) -> None:
        if self._is_complete(event.input) and self._check_file("target"):
            self.query_one("#draft", Input).focus()
            self._estimate_fit()

    def _is_complete(self, field: Input) -> bool:
        """Takes the completion of a path that is no file.

        Returns False if that is a folder, to be continued.
        """
        typed = field.value.strip()
        if not typed or os.path.isfile(
            os.path.expanduser(paths.parse_typed_path(typed))
        ):
            return True
        completed = complete_path(typed)
        if completed is None:
            return True
        field.value = completed
        field.cursor_position = len(completed)
        return not completed.endswith("/")

    @on(Input.Changed)
    def _estimate_fit(self) -> None:
        """On a thread: memory and speed of the files entered so far."""
        files = self._typed_files
        target, draft = files
        profile = self._machine_profile
        are_files = os.path.isfile(target) and (not draft or os.path.isfile(draft))
        if profile is None or not are_files:
            self._show_fit(files, "")
            return

        def work() -> None:
            text = describe_files(target, draft, profile, self._options)
            self.call_later(self._show_fit, files, text)

        def failed(error: LocalspecError) -> None:
            self._show_fit(files, problem_text(error))

        run_on_thread(self, "fit", work, failed=failed)

    def _show_fit(self, files: tuple[str, str], text: str) -> None:
        """Dropped if the paths have changed since."""
        if files == self._typed_files:
            line = self.query_one("#fit-verdict", Static)
            line.update(Content.styled(sanitize(text), "$muted"))
            line.display = bool(text)

    @on(Input.Submitted, "#draft")
    def _draft_submitted(self, event: Input.Submitted) -> None:
        """Loads the pair: llama.cpp decides whether the draft suits the target."""
        if not self._is_complete(event.input) or not self._check_file("target"):
            return
        if event.input.value.strip() and not self._check_file("draft"):
            return
        try:
            target, draft = self._typed_files
            self._choice = launch.resolve_pair(target, draft or "auto")
        except LocalspecError as error:
            self._show_error("draft", error)
            return
        if self._choice.draft is None:
            self._dismiss_with(self._choice)
            return
        self._show_verdict("draft", "checking compatibility …", "")
        request = self._options.build_load_request(self._choice)
        self._runner.load(request, self.post_message)

    @on(EngineLoaded)
    def _engine_ready(self, message: EngineLoaded) -> None:
        for notice in message.engine.ready.notices:
            if notice.code == "draft-no-rollback":
                self._show_verdict("draft", notice.message, "$warning")
                return
        if self._choice is not None:
            self._dismiss_with(self._choice)

    @on(EngineLoadFailed)
    def _load_failed(self, message: EngineLoadFailed) -> None:
        self._show_error("draft", message.error)

    def _show_error(self, name: str, error: LocalspecError) -> None:
        text = f"✗ {problem_text(error)}"
        self._show_verdict(name, text, "$error")
        self.query_one(f"#{name}", Input).focus()

    def _dismiss_with(self, choice: ResolvedPair) -> None:
        recent_pairs.add(choice)
        self.dismiss(choice)

    def _check_file(self, name: str) -> bool:
        path = self._typed_path(name)
        try:
            if not path:
                raise LocalspecError("Enter a path.", "For example ~/models/big.gguf")
            file = launch.resolve_file(path)
        except LocalspecError as error:
            self._show_error(name, error)
            return False
        size = gb(file.stat().st_size)
        kind = _file_label(draft_heads.file_draft_kind(reader.read(file)))
        self._show_verdict(name, f"✓ {kind}, {size}", "$success")
        return True

    def _typed_path(self, name: str) -> str:
        """Always a path, never a pair's name; empty if nothing is typed."""
        typed = paths.parse_typed_path(self.query_one(f"#{name}", Input).value)
        if not typed:
            return ""
        return str(Path(os.path.expanduser(typed)).absolute())

    @property
    def _typed_files(self) -> tuple[str, str]:
        """The target, and the draft if there is one."""
        return self._typed_path("target"), self._typed_path("draft")

    def _show_verdict(self, name: str, text: str, style: str) -> None:
        line = self.query_one(f"#{name}-verdict", Static)
        line.update(Content.styled(one_line(text), style))

    def action_cancel(self) -> None:
        self._runner.close()
        self.dismiss(None)


class _PathSuggester(Suggester):
    """Completes a path to the first folder or .gguf file that matches."""

    async def get_suggestion(self, value: str) -> str | None:
        return complete_path(value)


def complete_path(value: str) -> str | None:
    return next(iter(argument_completion.complete_path(value, ".gguf")), None)


def describe_files(
    target: str, draft: str, machine_profile: MachineProfile, options: AppOptions
) -> str:
    """Lines of memory and speed; empty if the headers cannot be read.

    Takes some 100 ms.
    """
    draft_path = None
    if draft:
        draft_path = Path(draft)
    try:
        choice = launch.with_default_draft(ResolvedPair(Path(target), draft_path))
        target_header = reader.read_model(choice.target)
        draft_header = None
        if choice.draft is not None:
            draft_header = reader.read_model(choice.draft)
        pair = pair_shapes.from_headers(target_header, draft_header)
        request = options.build_load_request(choice)
        usable = with_settings(request.load, remote_hosts=machine_profile.remote_hosts)
        request = replace(request, load=usable)
        fit = SettingsAdvisor(*pair.shapes, machine_profile).advise(request)
    except (LocalspecError, ValueError):
        return ""
    context = pair_text.format_context(fit.load.target_settings.n_ctx)
    verdict = f"{memory.describe_fit(fit)}, with context {context}"
    speed = fit.speed
    if speed.plain is None:
        return f"{verdict}\nspeed unknown: {speed.explanation}"
    label = "prompt lookup"
    if pair.draft and fit.load.draft:
        kind = pair.draft.shape.head_kind
        label = "the draft model"
        if kind:
            label = f"the {draft_kinds.head_title(kind)} head"
    plain = pair_text.format_speed(speed.plain)
    speculative = pair_text.format_speed(speed.speculative)
    speeds = f"{plain}, with {label} {speculative}"
    return f"{verdict}\n{speeds}\n{fit.skipped_draft}".rstrip()


def _file_label(kind: str) -> str:
    """What a file holds, by its kind of draft."""
    return draft_kinds.kinds()[kind].noun if kind != "model" else "a GGUF model"
