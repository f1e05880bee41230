"""One question and its answer in the transcript."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownStream

from localspec.chat.conversation import Turn
from localspec.chat.thinking import Splitter
from localspec.clean import clean
from localspec.protocol.events import Event, Finished, Place, Prefill, Round
from localspec.tui.glyphs import Glyphs
from localspec.tui.widgets.flow import Flow


class TurnView(Vertical):
    """Markdown, or for completion models the text itself; or the same tokens as they came."""

    def __init__(
        self,
        turn: Turn,
        *,
        speaker: str,
        thinking: tuple[str, str] | None,
        raw: bool,
        glyphs: Glyphs,
    ) -> None:
        super().__init__(classes="raw" if raw else "chat")
        self._question = turn.question
        self._speaker = speaker
        self._markers = thinking
        self._splitter = Splitter(thinking)
        self._raw = raw
        self._glyphs = glyphs
        self._thought = ""
        self._unfolded = False
        self._stream: MarkdownStream | None = None
        self._behind = ""
        """Said while the tokens were shown instead of the Markdown."""
        self.flow = Flow(turn.question if raw else "", glyphs=glyphs)
        self.rounds: list[Round] = []
        self.ended = False

    def compose(self) -> ComposeResult:
        if self._raw:
            yield self.flow
        else:
            if self._question:
                yield Static("You", classes="role", markup=False)
                yield Static(Content(clean(self._question)), classes="question", markup=False)
            yield Static(self._speaker, classes="role speaker", markup=False)
            yield Static("", classes="thinking", markup=False)
            yield Markdown("", open_links=False, classes="answer")
            yield self.flow
        yield Static("", classes="note", markup=False)

    def on_mount(self) -> None:
        if not self._raw:
            self.flow.display = False
            self.query_one(".thinking").display = False
        self.query_one(".note").display = False

    # --- what comes in --------------------------------------------------------------------

    async def heard(self, events: Sequence[Event]) -> None:
        """Show what the engine said."""
        said: list[str] = []
        for event in events:
            if isinstance(event, Round):
                self.rounds.append(event)
                self.flow.extend(event.tokens)
                said += [token.text for token in event.tokens]
            elif isinstance(event, Prefill) and event.thinking:
                self._splitter = Splitter(self._markers, begins_inside=True)
            elif isinstance(event, Finished):
                said.append(event.tail)
                self.flow.end(event.tail)
        if not self._raw:
            await self._say("".join(said))

    async def _say(self, text: str) -> None:
        for part in self._splitter.feed(text):
            if part.thought:
                self._thought += clean(part.text)
                self._draw_thinking()
            else:
                await self._write(clean(part.text))

    async def _write(self, text: str) -> None:
        if self.flow.display:
            self._behind += text
            return
        if self._stream is None:
            self._stream = Markdown.get_stream(self.query_one(Markdown))
        await self._stream.write(text)

    def learn(self, places: Sequence[Place]) -> None:
        """What the model gives to the tokens, asked afterwards."""
        for number, place in enumerate(places[: len(self.flow.tokens)]):
            self.flow.tokens[number] = replace(
                self.flow.tokens[number],
                p_target=place.p_target,
                rank=place.rank,
                instead=place.instead,
            )

    def round_of(self, token: int) -> Round | None:
        """The round that a token came in."""
        seen = 0
        for round_ in self.rounds:
            seen += len(round_.tokens)
            if token < seen:
                return round_
        return None

    async def end(self, note: str = "") -> None:
        """No more will come."""
        self.ended = True
        if not self._raw:
            for part in self._splitter.end():
                if part.thought:
                    self._thought += clean(part.text)
                else:
                    await self._write(clean(part.text))
            self._draw_thinking()
        await self._stop_stream()
        if note:
            self.note(note)

    async def _stop_stream(self) -> None:
        if self._stream is not None:
            await self._stream.stop()
            self._stream = None

    def note(self, text: str) -> None:
        """A muted line below the answer; an empty one hides it."""
        line = self.query_one(".note", Static)
        line.update(Content(clean(text, multiline=False)))
        line.display = bool(text)

    # --- how it is shown ------------------------------------------------------------------

    async def show_tokens(self, shown: bool, marks: bool) -> None:
        """Every token in its class, or the text as it is meant to be read."""
        self.flow.mark(marked=shown, marks=marks)
        if self._raw:
            return
        markdown = self.query_one(Markdown)
        self.flow.display, markdown.display = shown, not shown
        self.query_one(".thinking").display = bool(self._thought) and not shown
        if not shown and self._behind:
            behind, self._behind = self._behind, ""
            await self._write(behind)
            if self.ended:
                await self._stop_stream()

    def fold_thinking(self, unfolded: bool) -> None:
        self._unfolded = unfolded
        self._draw_thinking()

    def _draw_thinking(self) -> None:
        if self._raw or not self._thought.strip():
            return
        line = self.query_one(".thinking", Static)
        line.display = not self.flow.display
        words = len(self._thought.split())
        sign = self._glyphs.unfolded if self._unfolded else self._glyphs.folded
        doing = "thought" if self.ended or not self._splitter.inside else "thinking"
        head = f"{sign} {doing}, {words} words"
        line.update(Content(f"{head}\n{self._thought.strip()}" if self._unfolded else head))

    async def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """A link is shown, never followed: the model wrote it."""
        event.stop()
        self.app.notify(clean(event.href, multiline=False), title="Link", markup=False)
