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

from localspec import flags, launch
from localspec.chat import recent
from localspec.clean import clean
from localspec.errors import LocalspecError
from localspec.fit.report import Place
from localspec.launch import Choice
from localspec.models import header, heads
from localspec.tui.messages import EngineOpened, EngineRefused
from localspec.tui.options import Options
from localspec.tui.runner import Runner
from localspec.tui.wizard.own import priced
from localspec.units import gib

_KINDS = {
    "model": "a GGUF model",
    "eagle3": "an EAGLE-3 head",
    "mtp": "an MTP head",
    "dflash": "a DFlash head",
    "dspark": "a DSpark head",
}


class OpeningScreen(ModalScreen[Choice | None]):
    """Every file is looked at as soon as it is named; the pair is judged by loading it."""

    BINDINGS = [Binding("escape", "cancel", "Cancel")]  # noqa: RUF012
    AUTO_FOCUS = "#target"  # before the first picture: one may type at once

    class Priced(Message):
        """What the files would take, and how fast they would be; `files` as they were then."""

        def __init__(self, files: tuple[str, str], said: str) -> None:
            super().__init__()
            self.files, self.said = files, said

    def __init__(self, runner: Runner, options: Options, place: Place | None = None) -> None:
        """`place`: where the files would run, if that is known."""
        super().__init__()
        self._place = place
        self._runner = runner
        self._options = options
        self._choice: Choice | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            yield Static("Open models by their paths", classes="heading", markup=False)
            yield Static("Target: the model that answers", classes="label", markup=False)
            yield Input(placeholder="/path/to/big.gguf", id="target", suggester=_Paths())
            yield Static("", id="target-verdict", classes="verdict", markup=False)
            yield Static("Draft: a small one of the same family", classes="label", markup=False)
            yield Input(placeholder="empty: no draft, copying only", id="draft", suggester=_Paths())
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
    def _target(self) -> None:
        if self._looked_at("target"):
            self.query_one("#draft", Input).focus()
            self._price()

    @on(Input.Changed)
    def _price(self) -> None:
        """On a thread: what the files that are named so far would take."""
        files = self._path("target"), self._path("draft")
        if self._place is None or not all(Path(f).is_file() for f in files if f) or not files[0]:
            self._fit("")
            return
        place = self._place

        def work() -> None:
            self.post_message(self.Priced(files, priced(*files, place)))

        threading.Thread(target=work, daemon=True, name="fit").start()

    @on(Priced)
    def _was_priced(self, message: Priced) -> None:
        if message.files == (self._path("target"), self._path("draft")):
            self._fit(message.said)

    def _fit(self, said: str) -> None:
        line = self.query_one("#fit-verdict", Static)
        line.update(Content.styled(clean(said), "$muted"))
        line.display = bool(said)

    @on(Input.Submitted, "#draft")
    def _draft(self) -> None:
        """Load the pair: llama.cpp's own word on whether the draft can speculate for the target."""
        draft = self.query_one("#draft", Input).value.strip()
        if not self._looked_at("target") or (draft and not self._looked_at("draft")):
            return
        try:
            self._choice = launch.choose(self._path("target"), self._path("draft") or "auto")
        except LocalspecError as error:
            self._refuse(error)
            return
        if self._choice.draft is None:
            self._done(self._choice)
            return
        self._say("draft", "checking that they go together …", "")
        self._runner.open(self._options.wish(self._choice), self.post_message)

    @on(EngineOpened)
    def _opened(self, message: EngineOpened) -> None:
        notices = [n for n in message.engine.ready.notices if n.code == "draft-no-rollback"]
        if notices:
            self._say("draft", notices[0].message, "$warning")
        elif self._choice is not None:
            self._done(self._choice)

    @on(EngineRefused)
    def _refused(self, message: EngineRefused) -> None:
        self._refuse(message.error)

    def _wrong(self, error: LocalspecError) -> str:
        return f"{self._options.glyphs.bad} {error.message} {flags.in_words(error.hint)}"

    def _refuse(self, error: LocalspecError) -> None:
        self._say("draft", self._wrong(error), "$error")
        self.query_one("#draft", Input).focus()

    def _done(self, choice: Choice) -> None:
        recent.add(choice)
        self.dismiss(choice)

    def _looked_at(self, name: str) -> bool:
        """Whether a file is a model, said below its path."""
        path = self._path(name)
        try:
            if not path:
                raise LocalspecError("A path is needed.", "Such as ~/models/big.gguf")
            found = launch.file(path)
        except LocalspecError as error:
            self._say(name, self._wrong(error), "$error")
            return False
        size = gib(found.stat().st_size)
        what = _KINDS[heads.kind(header.read(found))]
        self._say(name, f"{self._options.glyphs.good} {what}, {size}", "$success")
        return True

    def _path(self, name: str) -> str:
        """Always a path, never a pair's name."""
        typed = self.query_one(f"#{name}", Input).value.strip()
        return str(Path(typed).expanduser().absolute()) if typed else ""

    def _say(self, name: str, text: str, style: str) -> None:
        line = self.query_one(f"#{name}-verdict", Static)
        line.update(Content.styled(clean(text, multiline=False), style))

    def action_cancel(self) -> None:
        self._runner.close()
        self.dismiss(None)


class _Paths(Suggester):
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
                    return clean(
                        f"{typed}{entry.name}{'/' if entry.is_dir() else ''}", multiline=False
                    )
        except (OSError, RuntimeError):
            return None
        return None
