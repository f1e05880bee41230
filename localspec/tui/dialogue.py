"""One chat as the screen holds it: what was said, how it is asked, and the figures of it."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from localspec import launch
from localspec.chat.context import Choose, Writer
from localspec.chat.conversation import Conversation
from localspec.chat.history import History, Kept, Pair
from localspec.chat.keeping import Keeper
from localspec.chat.meter import Engine as Writing
from localspec.chat.meter import How
from localspec.chat.settings import Loaded, Settings
from localspec.chat.turn import Attachment, Turn
from localspec.clean import clean
from localspec.errors import LocalspecError
from localspec.launch import SETTINGS, Choice, Engine
from localspec.protocol.events import Event, FinishReason, Notice
from localspec.protocol.wire import Generate, Inspect
from localspec.tui.figures import Figures

_ENDS: dict[FinishReason, str] = {
    "length": "cut at the longest answer allowed: f4 settings",
    "context": "the context is full: ctrl+n begins a new chat",
    "error": "ended by an error",
}
_UNANSWERED = "before it had thought enough to answer: /set think_budget N, or /think off"


class Dialogue:
    """No widgets here: a screen may come and go."""

    def __init__(
        self,
        choice: Choice,
        seed: int | None = None,
        history: History | None = None,
        kept: Kept | None = None,
    ) -> None:
        """`kept`: a chat of the history, to go on with."""
        self.choice = choice
        self.settings = kept.settings if kept else Settings.of(choice.suggested)
        self.conversation = (
            kept.conversation
            if kept
            else Conversation(secrets.randbits(31) if seed is None else seed)
        )
        self._news: deque[Notice] = deque()
        self.keeper = Keeper(
            self.conversation, history, self._pair(kept), kept=kept, say=self._news.append
        )
        self.attached: tuple[Attachment, ...] = ()
        """Files to go with the next question."""
        self.figures = Figures()
        self.loaded: Loaded | None = None
        self.thinking = self.keeper.pair.thinking
        """The markers around what the model thinks, as far as they are known."""
        self.chosen = ""
        """With what settings it was loaded, and why."""
        self._asked: Generate | None = None

    def _pair(self, kept: Kept | None) -> Pair:
        if kept is not None:
            pair = kept.listed.pair
            model, draft = launch.lasting(pair.model, pair.draft)
            return replace(pair, model=model, draft=draft)
        return Pair(*self.choice.lasting, self.model)

    @property
    def model(self) -> str:
        return _stem(self.choice.target.name)

    @property
    def pair(self) -> str:
        """`model + draft`, for a title."""
        draft = self.choice.draft
        if draft == self.choice.target:
            return f"{self.model} + its own layer (MTP)"
        return f"{self.model} + {_stem(draft.name)}" if draft else self.model

    @property
    def title(self) -> str:
        """The first thing that was asked."""
        first = next((t.question for t in self.conversation.turns if t.question.strip()), "")
        return " ".join(clean(first).split())[:200]

    def changed(self, name: str, value: str) -> Settings:
        """The settings with one as typed.  Raises UsageError, also where the pair lacks it."""
        settings = self.settings.changed(name, value)
        if self.loaded is not None:
            self.loaded.check(name, settings)
        return settings

    def opened(self, engine: Engine) -> None:
        """A pair is loaded, perhaps not for the first time."""
        self.loaded = Loaded.of(engine.ready, self.choice.spec, self.choice.why)
        self.thinking = self.loaded.thinking
        self.keeper.pair = replace(self.keeper.pair, name=self.model, thinking=self.thinking)
        told = [one.message for one in engine.ready.notices if one.code == SETTINGS]
        self.chosen = clean("\n".join(told))
        self.learn(engine)

    def learn(self, engine: Engine) -> None:
        """How fast plain decoding is here, as far as it was measured."""
        known = engine.measured
        if known is not None and known.t1_ms > 0:
            self.figures.plain = 1e3 / known.t1_ms

    def clear(self, *, private: bool = False) -> None:
        """Another chat, with the same system prompt and settings; perhaps one not to be kept."""
        plain = self.figures.plain
        self.conversation = Conversation(secrets.randbits(31), self.conversation.system)
        self.keeper = self.keeper.another(self.conversation)
        if private:
            self.keeper = Keeper(self.conversation, None, self.keeper.pair)
        self.attached = ()
        self.figures = Figures(plain=plain)

    # --- turns ----------------------------------------------------------------------------

    def ask(self, question: str) -> None:
        """Begin a turn, with the files that wait.  Raises InUseError, and is as before."""
        self._begin(lambda: self.conversation.ask(question, self.attached))
        self.attached = ()

    def again(self) -> None:
        """Answer the last question anew.  Raises InUseError, and is as before."""
        self._begin(self.conversation.again)

    def restart(self) -> None:
        """Write the answer that was cut off.  Raises InUseError, and is as before."""
        self._begin(self.conversation.restart)

    def _begin(self, begun: Callable[[], Turn]) -> None:
        """It is on the disk before it is shown as sent."""
        before = self.conversation.mark()
        self.keeper.settings = self.settings
        try:
            self.keeper.sent(begun())
        except LocalspecError:
            self.conversation.back_to(before)
            raise

    def take_back(self, turn_id: int | None = None) -> str:
        """Leave a turn, the last unless said which; its question, to be edited.

        Its files wait.
        """
        conversation = self.conversation
        turn = conversation.undo() if turn_id is None else conversation.leave(turn_id)
        self.attached = turn.attached
        self.moved()
        return turn.question

    def moved(self) -> None:
        """Another branch is shown, or other settings hold: that is kept too."""
        self.keeper.settings = self.settings
        self.keeper.moved()

    def news(self) -> list[Notice]:
        """What became of saving it, once."""
        found = list(self._news)
        for _ in found:
            self._news.popleft()
        return found

    def close(self) -> None:
        """Another window may have the chat."""
        self.keeper.close()

    # --- answers --------------------------------------------------------------------------

    def writer(
        self, engine: Writing, choose: Choose, stopped: Callable[[], bool], *, probabilities: bool
    ) -> Iterator[Event]:
        """The answer to the last turn, on the thread that calls it."""
        assert self.loaded is not None
        how = How(self.settings, self.loaded, probabilities)
        writer = Writer(engine, self.conversation, how, choose, stopped)
        for event in writer.events():
            self._asked = writer.request
            yield event

    @property
    def left_out(self) -> int:
        """Turns that the model is not sent any more."""
        cut = self.conversation.cut
        return cut.turns if cut.holds(self.conversation.turns) else 0

    def inspection(self) -> Inspect | None:
        """What to ask about the last answer; None where its tokens came with their chances."""
        asked, turns = self._asked, self.conversation.turns
        tokens = [t for r in turns[-1].rounds for t in r.tokens] if turns else []
        if asked is None or asked.probabilities or not tokens:
            return None
        ids = tuple(token.id for token in tokens)
        return Inspect(ids, asked.text, asked.messages, asked.template, asked.think, asked.said)

    def hear(self, events: Sequence[Event]) -> Turn:
        self.figures.take(events)
        return self.conversation.hear(events)

    def change(self, **fields: object) -> None:
        self.settings = replace(self.settings, **fields)  # type: ignore[arg-type]


def branch(conversation: Conversation, turn: Turn) -> str:
    """`2 of 3` where something else was said in a turn's place too."""
    ids = [one.id for one in conversation.branches(turn.id)]
    return f"{ids.index(turn.id) + 1} of {len(ids)}" if len(ids) > 1 else ""


def ending(turn: Turn, stopped_ms: float | None) -> str:
    """Why an answer ended, where that is worth a line."""
    why = _ENDS.get(turn.reason, "") if turn.reason else ""
    if turn.reason == "cancelled":
        why = "stopped" if stopped_ms is None else f"stopped in {stopped_ms:.0f} ms"
    return f"{why or 'ended'}, {_UNANSWERED}" if turn.ends_inside else why


def _stem(name: str) -> str:
    return clean(name.removesuffix(".gguf"), multiline=False)
