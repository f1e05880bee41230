"""One question and its answer, as lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.segment import Segment

from localspec.chat.thinking import Splitter
from localspec.chat.turn import Attachment, Turn
from localspec.clean import clean
from localspec.protocol.events import Event, Finished, Place, Prefill, Round
from localspec.tui.glyphs import Glyphs
from localspec.tui.text.flow import Flow
from localspec.tui.text.look import Look
from localspec.tui.text.part import Gap, Part, Stack, Styles, Words
from localspec.tui.text.prose import Prose
from localspec.units import count

_LONG = 50_000
"""Characters of a question from which only a part is drawn: to wrap a megabyte takes seconds."""
_PART = 5_000


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who answers, and how its answers read."""

    name: str
    thinking: tuple[str, str] | None
    raw: bool
    """A completion model: its text stands as it came, after the question."""


def attached(file: Attachment) -> str:
    """A file in a line."""
    return f"+ {clean(file.name, multiline=False)}, {count(len(file.text))} characters"


def first_part(question: str, more: str) -> str:
    """What is drawn of a question; of a very long one the first lines."""
    if len(question) <= _LONG:
        return question
    return f"{question[:_PART]}\n{more} and {count(len(question) - _PART)} characters more"


def last_part(text: str, more: str) -> str:
    """What is drawn of a text that is gone on with; of a very long one the last lines."""
    if len(text) <= _LONG:
        return text
    return f"{count(len(text) - _PART)} characters, then {more}\n{text[-_PART:]}"


class TurnText:
    """Markdown, or for completion models the text itself; or the same tokens as they came."""

    def __init__(
        self, turn: Turn, speaker: Speaker, glyphs: Glyphs, look: Look, branch: str = ""
    ) -> None:
        """`branch`: which of several that stand in this place it is."""
        self._speaker = speaker
        self._branch = f"  {glyphs.dot} {branch}" if branch else ""
        self._glyphs = glyphs
        self._splitter = Splitter(speaker.thinking)
        self._thought = ""
        self._unfolded = False
        self._tokens = False
        self.flow = Flow(last_part(turn.question, glyphs.more) if speaker.raw else "", glyphs)
        self.prose = Prose(look)
        self.rounds: list[Round] = []
        self.ended = False
        self._question = first_part(clean(turn.question), glyphs.more)
        self._files = [Words(attached(file), "muted") for file in turn.attached]
        self._thinking = Words(style="thinking")
        self._note = Words(style="muted")
        self._stack = Stack()
        self._arrange()

    def _arrange(self) -> None:
        """Which parts there are, in the view that is wanted."""
        parts: list[Part] = [Gap()]
        if self._speaker.raw:
            parts.append(self.flow)
        else:
            if self._question or self._files:
                parts += [
                    Words(f"You{self._branch}", "role"),
                    *self._files,
                    Words(self._question),
                    Gap(),
                ]
            parts.append(Words(clean(self._speaker.name, multiline=False), "speaker"))
            parts += [self.flow] if self._tokens else [self._thinking, self.prose]
        self._stack.parts = [*parts, self._note]

    # --- what comes in --------------------------------------------------------------------

    def heard(self, events: Sequence[Event]) -> None:
        """Take in what the engine said."""
        said: list[str] = []
        for event in events:
            if isinstance(event, Round):
                self.rounds.append(event)
                self.flow.extend(event.tokens)
                said += [token.text for token in event.tokens]
            elif isinstance(event, Prefill) and event.thinking:
                self._splitter = Splitter(self._speaker.thinking, begins_inside=True)
            elif isinstance(event, Finished):
                said.append(event.tail)
                self.flow.end(event.tail)
        if not self._speaker.raw:
            self._say("".join(said))

    def _say(self, text: str, *, last: bool = False) -> None:
        parts = self._splitter.feed(text)
        if last:
            parts += self._splitter.end()
        for part in parts:
            if part.thought:
                self._thought += clean(part.text)
            else:
                self.prose.write(clean(part.text))
        self._fold()

    def end(self, note: str = "") -> None:
        """No more will come."""
        self.ended = True
        if not self._speaker.raw:
            self._say("", last=True)
        self.note(note)

    def note(self, text: str) -> None:
        """A muted line below the answer; an empty one hides it."""
        self._note.say(f"\n{clean(text, multiline=False)}" if text else "")

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

    # --- how it is shown ------------------------------------------------------------------

    def show_tokens(self, shown: bool, marks: bool) -> None:
        """Every token in its class, or the text as it is meant to be read."""
        self._tokens = shown
        self.flow.mark(shown, marks)
        self._arrange()

    def fold_thinking(self, unfolded: bool) -> None:
        self._unfolded = unfolded
        self._fold()

    def _fold(self) -> None:
        thought = self._thought.strip()
        if not thought:
            self._thinking.say("")
            return
        sign = self._glyphs.unfolded if self._unfolded else self._glyphs.folded
        doing = "thinking" if self._splitter.inside and not self.ended else "thought"
        head = f"{sign} {doing}, {len(thought.split())} words"
        self._thinking.say(f"{head}\n{thought}\n" if self._unfolded else f"{head}\n")

    def height(self, width: int) -> int:
        return self._stack.height(width)

    def line(self, y: int, styles: Styles) -> Sequence[Segment]:
        return self._stack.line(y, styles)

    def line_of(self, token: int) -> int:
        """The line where a token begins, as of the last `height`."""
        return self._stack.top(self.flow) + self.flow.line_of(token)
