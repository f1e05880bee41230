"""An answer that is written whatever room it takes: what to do where a chat outgrows its context.

Nothing here draws or asks: whoever runs it says what is to be done when the context is full.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace

from localspec.chat import settings
from localspec.chat.conversation import Conversation, chat_of
from localspec.chat.fields import Overflow
from localspec.chat.meter import Engine, How, count
from localspec.chat.thinking import said
from localspec.chat.turn import Cut, Turn
from localspec.errors import LocalspecError, PromptTooLongError
from localspec.protocol.events import Event, Finished, Notice, Prefill, Round
from localspec.protocol.wire import Count, Generate, Message

_ROOM = 256
"""Tokens that an answer should have, if the context has eight times as many."""
_LONGEST_SUMMARY = 400
_AROUND = 64
"""Tokens that stand around a summary at most."""
_INSTRUCTION = (
    "Summarise our conversation so far in at most {words} words, for yourself: what was asked, "
    "what was found or decided, names, numbers, open questions. Write the summary only."
)


@dataclass(frozen=True, slots=True)
class Full:
    """The context is full, or as good as: what is to be done?"""

    used: int
    """Tokens of the prompt, and of the answer as far as it is written."""
    n_ctx: int
    turns: int
    """Older turns that could be left out."""
    writing: bool
    """Whether an answer is in the middle; else its question was not sent yet."""
    choices: tuple[Overflow, ...] = ("drop", "summarise", "stop")
    """What is possible."""


Choose = Callable[[Full], Overflow]
"""May wait for a person, as it is called on the thread that runs the answer."""


class Writer:
    """One answer to the last turn of a conversation; sets its `cut` where it leaves out turns.

    `stopped` is asked between the engine's answers: whether the person wants no more of this one.
    """

    def __init__(
        self,
        engine: Engine,
        conversation: Conversation,
        how: How,
        choose: Choose = lambda _: "stop",
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._engine, self._conversation, self._how = engine, conversation, how
        self._choose, self._stopped = choose, stopped
        self._tokens = list(conversation.turns[-1].tokens)
        self._rounds = 0
        """Told so far."""
        self.request = self._asked()
        """What the engine was asked last."""

    def events(self) -> Iterator[Event]:
        """As an engine's.  What is left out is told by a notice.

        Raises PromptTooLongError where the question was not sent, and what the engine raises.
        """
        if not self._fits() and not (yield from self._begin()):
            yield Finished("cancelled")
            return
        while (end := (yield from self._leg())) is not None:
            if self._stopped() or not (yield from self._room(self._full())):
                yield replace(end, reason="cancelled") if self._stopped() else end
                return

    # --- one answer of the engine ---------------------------------------------------------

    def _asked(self) -> Generate:
        how = self._how
        asked = settings.request(
            how.settings, self._conversation, how.loaded, probabilities=how.probabilities
        )
        return replace(asked, begun=tuple(self._tokens))

    def _leg(self) -> Generator[Event, None, Finished | None]:
        """The answer up to the end of the context, which is returned and not told.

        Its rounds are counted on: whatever room it takes, it is one answer.
        """
        self.request = self._asked()
        end: Finished | None = None
        before = self._rounds
        for event in self._engine.generate(self.request):
            if isinstance(event, Round):
                self._tokens += [token.id for token in event.tokens]
                event = replace(event, n=before + event.n)  # noqa: PLW2901
                self._rounds = event.n + 1
            if isinstance(event, Finished) and event.reason == "context":
                end = event
            else:
                yield event
        return end

    # --- room -----------------------------------------------------------------------------

    @property
    def _n_ctx(self) -> int:
        return self._how.loaded.n_ctx

    @property
    def _wanted(self) -> int:
        """Tokens that an answer should have room for."""
        most = self._how.settings.max_tokens or _ROOM
        return max(1, min(_ROOM, self._n_ctx // 8, most))

    def _older(self) -> Sequence[Turn]:
        return self._conversation.turns[:-1]

    def _gone(self) -> int:
        cut = self._conversation.cut
        return cut.turns if cut.holds(self._older()) else 0

    def _size(self, cut: Cut | None = None) -> int:
        asked = count(self._conversation, self._how, cut)
        return self._engine.count(asked) + len(self._tokens)

    def _fits(self) -> bool:
        """Whether the turn can be sent as it is; where nothing can be done the engine says no."""
        if self._how.settings.overflow == "stop" or len(self._older()) == self._gone():
            return True
        try:
            return self._size() + self._wanted <= self._n_ctx
        except LocalspecError:  # a dead engine says so as an event, when it is to answer
            return True

    def _full(self) -> Full:
        turns = len(self._older()) - self._gone()
        choices: tuple[Overflow, ...] = ("drop", "summarise", "stop")
        if not self._how.loaded.chats:  # nobody there who could be asked for one
            choices = ("drop", "stop")
        return Full(self._size(), self._n_ctx, turns, bool(self._tokens), choices)

    def _begin(self) -> Generator[Event, None, bool]:
        """Make room for the question; False where the person stopped that."""
        full = self._full()
        if (yield from self._room(full)) or self._stopped():
            return not self._stopped()
        raise PromptTooLongError(
            f"The chat has {full.used:,} tokens; the context holds {full.n_ctx:,}."
        )

    def _room(self, full: Full) -> Generator[Event, None, bool]:
        """Leave out as many turns as were chosen; whether there is room now."""
        if not full.turns:
            return False
        wish = self._how.settings.overflow
        wish = self._choose(full) if wish == "ask" else wish
        if wish not in ("drop", "summarise") or self._stopped():
            return False
        cut = None
        if wish == "summarise" and "summarise" in full.choices:
            cut = self._cut(spare=self._longest + _AROUND)
            cut = (yield from self._summarised(cut)) if cut else None
            if self._stopped():
                return False
        cut = cut or self._cut()
        if cut is None:
            return False
        self._conversation.cut = cut
        yield _told(cut, self._n_ctx, asked=wish)
        return True

    def _cut(self, spare: int = 0) -> Cut | None:
        """The fewest turns to leave out so that a quarter is free, or else the least that helps.

        None where the question and the answer alone are too long.
        """
        older, first = self._older(), self._gone() + 1
        if first > len(older):
            return None
        least = self._size(Cut.of(older)) + spare
        wanted = (self._n_ctx * 3 // 4, self._n_ctx - self._wanted, self._n_ctx - 1)
        limit = next((one for one in wanted if least <= one), None)
        if limit is None:
            return None

        def enough(n: int) -> bool:
            return self._size(Cut.of(older[:n])) + spare <= limit

        places = range(first, len(older))
        return Cut.of(older[: first + bisect_left(places, True, key=enough)])

    # --- a summary ------------------------------------------------------------------------

    @property
    def _longest(self) -> int:
        return max(8, min(_LONGEST_SUMMARY, self._n_ctx // 8))

    def _summarised(self, cut: Cut) -> Generator[Event, None, Cut | None]:
        """The same with a summary; None where none came of it."""
        messages, left_out = self._summing_up(cut)
        if not messages:
            return None
        turns = _count_of(cut.turns - self._gone() - left_out, "turn")
        rest = f" The {_count_of(left_out, 'turn')} before do not fit into it." if left_out else ""
        yield Notice("info", "context-summarising", f"Summarising {turns} …{rest}")
        request = replace(
            self.request,
            messages=messages,
            begun=(),
            stop=(),
            max_tokens=self._longest,
            sampling=replace(self.request.sampling, temperature=0.0),
            think=False,
            think_budget=0,
            probabilities=False,
        )
        text, inside = "", False
        for event in self._engine.generate(request):
            if isinstance(event, Round):
                text += "".join(token.text for token in event.tokens)
            elif isinstance(event, Prefill):
                inside = event.thinking
            elif isinstance(event, Finished):
                text += event.tail
        summary = said(text, self._how.loaded.thinking, inside).strip()
        found = Cut.of(self._older()[: cut.turns], summary)
        return found if summary and self._size(found) < self._n_ctx else None

    def _summing_up(self, cut: Cut) -> tuple[tuple[Message, ...], int]:
        """What to ask for one, of as many of the turns as fit, and how many do not."""
        conversation, first = self._conversation, self._gone()
        gone = first
        question = _INSTRUCTION.format(words=self._longest // 2)
        before = conversation.cut.summary if gone else ""
        while gone < cut.turns:
            turns = conversation.turns[gone : cut.turns]
            messages = chat_of(conversation.system, before, turns, Turn(question))
            asked = Count(messages=messages, template=self._how.loaded.asked, think=False)
            if self._engine.count(asked) + self._longest <= self._n_ctx:
                return messages, gone - first
            gone += max(1, (cut.turns - gone) // 4)
        return (), gone - first


def _told(cut: Cut, n_ctx: int, asked: Overflow) -> Notice:
    turns = _count_of(cut.turns, "oldest turn")
    verb = "is" if cut.turns == 1 else "are"
    if cut.summary:
        words = _count_of(len(cut.summary.split()), "word")
        what = f"the model reads a summary of {words} instead of the {turns}."
        return Notice("info", "context-summarised", f"The context of {n_ctx:,} tokens: {what}")
    why = " No summary came of it." if asked == "summarise" else ""
    what = f"the {turns} {verb} not sent to the model any more.{why}"
    return Notice("info", "context-dropped", f"The context of {n_ctx:,} tokens is full: {what}")


def _count_of(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"
