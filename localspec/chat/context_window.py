"""An answer that is written whatever room it takes: what to do where a chat outgrows its context.

Nothing here draws or asks: whoever runs it says what is to be done when the context is full.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from localspec.chat import settings
from localspec.chat.conversation import Conversation, DroppedTurns, Turn, build_messages
from localspec.chat.settings import ChatSettings, LoadedModel, OverflowPolicy
from localspec.chat.thinking import strip_thinking
from localspec.errors import LocalspecError, PromptTooLongError
from localspec.protocol.events import Event, GenerationFinished, Notice, Prefill, Round
from localspec.protocol.wire import ChatMessage, CountCommand, GenerateCommand

_MIN_ANSWER_TOKENS = 256
"""Tokens that an answer should have, if the context has eight times as many."""
_MAX_SUMMARY_TOKENS = 400
_SUMMARY_OVERHEAD_TOKENS = 64
"""Tokens that stand around a summary at most."""
_SUMMARY_PROMPT = (
    "Summarise our conversation so far in at most {words} words, for yourself: what was asked, "
    "what was found or decided, names, numbers, open questions. Write the summary only."
)


@dataclass(frozen=True, slots=True)
class ContextOverflow:
    """The context is full, or as good as: what is to be done?"""

    used: int
    """Tokens of the prompt, and of the answer as far as it is written."""
    n_ctx: int
    droppable_turns: int
    """Older turns that could be left out."""
    mid_answer: bool
    """Whether an answer is in the middle; else its question was not sent yet."""
    choices: tuple[OverflowPolicy, ...] = ("drop", "summarise", "stop")
    """What is possible."""


OverflowChooser = Callable[[ContextOverflow], OverflowPolicy]
"""May wait for a person, as it is called on the thread that runs the answer."""


class AnswerGenerator:
    """One answer to the last turn of a conversation; sets its `cut` where it leaves out turns.

    `stopped` is asked between the engine's answers: whether the person wants no more of this one.
    """

    def __init__(
        self,
        engine: ChatEngine,
        conversation: Conversation,
        options: RequestOptions,
        choose_policy: OverflowChooser = lambda _: "stop",
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._engine, self._conversation, self._options = engine, conversation, options
        self._choose_policy, self._is_stopped = choose_policy, is_stopped
        self._tokens = list(conversation.turns[-1].tokens)
        self._rounds = 0
        """Told so far."""
        self.request = self._build_request()
        """What the engine was asked last."""

    def stream_events(self) -> Iterator[Event]:
        """As an engine's.  What is left out is told by a notice.

        Raises PromptTooLongError where the question was not sent, and what the engine raises.
        """
        if not self._has_room() and not (yield from self._make_room_for_question()):
            yield GenerationFinished("cancelled")
            return
        while (end := (yield from self._generate_until_full())) is not None:
            if self._is_stopped() or not (yield from self._make_room(self._describe_overflow())):
                yield replace(end, reason="cancelled") if self._is_stopped() else end
                return

    # --- one answer of the engine ---------------------------------------------------------

    def _build_request(self) -> GenerateCommand:
        how = self._options
        asked = settings.build_request(
            how.settings, self._conversation, how.loaded, probabilities=how.probabilities
        )
        return replace(asked, begun=tuple(self._tokens))

    def _generate_until_full(self) -> Generator[Event, None, GenerationFinished | None]:
        """The answer up to the end of the context, which is returned and not told.

        Its rounds are counted on: whatever room it takes, it is one answer.
        """
        self.request = self._build_request()
        end: GenerationFinished | None = None
        before = self._rounds
        for event in self._engine.generate(self.request):
            if isinstance(event, Round):
                self._tokens += [token.id for token in event.tokens]
                event = replace(event, n=before + event.n)  # noqa: PLW2901
                self._rounds = event.n + 1
            if isinstance(event, GenerationFinished) and event.reason == "context":
                end = event
            else:
                yield event
        return end

    # --- room -----------------------------------------------------------------------------

    @property
    def _n_ctx(self) -> int:
        return self._options.loaded.n_ctx

    @property
    def _answer_reserve(self) -> int:
        """Tokens that an answer should have room for."""
        most = self._options.settings.max_tokens or _MIN_ANSWER_TOKENS
        return max(1, min(_MIN_ANSWER_TOKENS, self._n_ctx // 8, most))

    def _earlier_turns(self) -> Sequence[Turn]:
        return self._conversation.turns[:-1]

    def _dropped_count(self) -> int:
        cut = self._conversation.dropped
        return cut.turns if cut.is_prefix_of(self._earlier_turns()) else 0

    def _count_tokens(self, dropped: DroppedTurns | None = None) -> int:
        asked = build_count(self._conversation, self._options, dropped)
        return self._engine.count(asked) + len(self._tokens)

    def _has_room(self) -> bool:
        """Whether the turn can be sent as it is; where nothing can be done the engine says no."""
        if (
            self._options.settings.overflow == "stop"
            or len(self._earlier_turns()) == self._dropped_count()
        ):
            return True
        try:
            return self._count_tokens() + self._answer_reserve <= self._n_ctx
        except LocalspecError:  # a dead engine says so as an event, when it is to answer
            return True

    def _describe_overflow(self) -> ContextOverflow:
        turns = len(self._earlier_turns()) - self._dropped_count()
        choices: tuple[OverflowPolicy, ...] = ("drop", "summarise", "stop")
        if not self._options.loaded.has_chat_template:  # nobody there who could be asked for one
            choices = ("drop", "stop")
        return ContextOverflow(
            self._count_tokens(), self._n_ctx, turns, bool(self._tokens), choices
        )

    def _make_room_for_question(self) -> Generator[Event, None, bool]:
        """Make room for the question; False where the person stopped that."""
        full = self._describe_overflow()
        if (yield from self._make_room(full)) or self._is_stopped():
            return not self._is_stopped()
        raise PromptTooLongError(
            f"The chat has {full.used:,} tokens; the context holds {full.n_ctx:,}."
        )

    def _make_room(self, overflow: ContextOverflow) -> Generator[Event, None, bool]:
        """Leave out as many turns as were chosen; whether there is room now."""
        if not overflow.droppable_turns:
            return False
        wish = self._options.settings.overflow
        wish = self._choose_policy(overflow) if wish == "ask" else wish
        if wish not in ("drop", "summarise") or self._is_stopped():
            return False
        cut = None
        if wish == "summarise" and "summarise" in overflow.choices:
            cut = self._choose_dropped(spare=self._summary_limit + _SUMMARY_OVERHEAD_TOKENS)
            cut = (yield from self._summarise(cut)) if cut else None
            if self._is_stopped():
                return False
        cut = cut or self._choose_dropped()
        if cut is None:
            return False
        self._conversation.dropped = cut
        yield _overflow_notice(cut, self._n_ctx, policy=wish)
        return True

    def _choose_dropped(self, spare: int = 0) -> DroppedTurns | None:
        """The fewest turns to leave out so that a quarter is free, or else the least that helps.

        None where the question and the answer alone are too long.
        """
        older, first = self._earlier_turns(), self._dropped_count() + 1
        if first > len(older):
            return None
        least = self._count_tokens(DroppedTurns.from_turns(older)) + spare
        wanted = (self._n_ctx * 3 // 4, self._n_ctx - self._answer_reserve, self._n_ctx - 1)
        limit = next((one for one in wanted if least <= one), None)
        if limit is None:
            return None

        def enough(n: int) -> bool:
            return self._count_tokens(DroppedTurns.from_turns(older[:n])) + spare <= limit

        places = range(first, len(older))
        return DroppedTurns.from_turns(older[: first + bisect_left(places, True, key=enough)])

    # --- a summary ------------------------------------------------------------------------

    @property
    def _summary_limit(self) -> int:
        return max(8, min(_MAX_SUMMARY_TOKENS, self._n_ctx // 8))

    def _summarise(self, dropped: DroppedTurns) -> Generator[Event, None, DroppedTurns | None]:
        """The same with a summary; None where none came of it."""
        messages, left_out = self._build_summary_messages(dropped)
        if not messages:
            return None
        turns = _pluralize(dropped.turns - self._dropped_count() - left_out, "turn")
        rest = f" The {_pluralize(left_out, 'turn')} before do not fit into it." if left_out else ""
        yield Notice("info", "context-summarising", f"Summarising {turns} …{rest}")
        request = replace(
            self.request,
            messages=messages,
            begun=(),
            stop=(),
            max_tokens=self._summary_limit,
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
            elif isinstance(event, GenerationFinished):
                text += event.tail
        summary = strip_thinking(text, self._options.loaded.thinking_markers, inside).strip()
        found = DroppedTurns.from_turns(self._earlier_turns()[: dropped.turns], summary)
        return found if summary and self._count_tokens(found) < self._n_ctx else None

    def _build_summary_messages(self, dropped: DroppedTurns) -> tuple[tuple[ChatMessage, ...], int]:
        """What to ask for one, of as many of the turns as fit, and how many do not."""
        conversation, first = self._conversation, self._dropped_count()
        gone = first
        question = _SUMMARY_PROMPT.format(words=self._summary_limit // 2)
        before = conversation.dropped.summary if gone else ""
        while gone < dropped.turns:
            turns = conversation.turns[gone : dropped.turns]
            messages = build_messages(conversation.system, before, turns, Turn(question))
            asked = CountCommand(
                messages=messages, template=self._options.loaded.template_override, think=False
            )
            if self._engine.count(asked) + self._summary_limit <= self._n_ctx:
                return messages, gone - first
            gone += max(1, (dropped.turns - gone) // 4)
        return (), gone - first


def _overflow_notice(dropped: DroppedTurns, n_ctx: int, policy: OverflowPolicy) -> Notice:
    turns = _pluralize(dropped.turns, "oldest turn")
    verb = "is" if dropped.turns == 1 else "are"
    if dropped.summary:
        words = _pluralize(len(dropped.summary.split()), "word")
        what = f"the model reads a summary of {words} instead of the {turns}."
        return Notice("info", "context-summarised", f"The context of {n_ctx:,} tokens: {what}")
    why = " No summary came of it." if policy == "summarise" else ""
    what = f"the {turns} {verb} not sent to the model any more.{why}"
    return Notice("info", "context-dropped", f"The context of {n_ctx:,} tokens is full: {what}")


def _pluralize(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


# --- How much of the context a chat takes, exactly.


class ChatEngine(Protocol):
    """A loaded pair that can also count."""

    def generate(self, request: GenerateCommand) -> Iterator[Event]: ...

    def count(self, count: CountCommand) -> int: ...


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """How a conversation is asked."""

    settings: ChatSettings
    loaded: LoadedModel
    probabilities: bool = False


@dataclass(frozen=True, slots=True)
class ContextUsage:
    """What the next question would take of the context."""

    used: int
    n_ctx: int
    dropped_turns: int = 0
    """Turns that are not sent any more."""
    has_summary: bool = False
    """Whether a summary stands for them."""

    @property
    def remaining(self) -> int:
        """Tokens for the answer."""
        return max(0, self.n_ctx - self.used)


def measure_context_usage(
    engine: ChatEngine, conversation: Conversation, options: RequestOptions, next_question: str = ""
) -> ContextUsage:
    """Exactly what would be sent with `typed` as the next question; not while one is answered.

    Raises what the engine raises.
    """
    used = engine.count(build_count(conversation, options, next_question=next_question))
    cut = conversation.dropped
    cut = cut if cut.is_prefix_of(conversation.turns) else DroppedTurns()
    return ContextUsage(used, options.loaded.n_ctx, cut.turns, bool(cut.summary))


def build_count(
    conversation: Conversation,
    options: RequestOptions,
    dropped: DroppedTurns | None = None,
    next_question: str | None = None,
) -> CountCommand:
    """What the last turn takes, or `more` after it; by another cut, to see what that would do."""
    messages = conversation.messages(dropped, next_question)
    if options.loaded.has_chat_template:
        return CountCommand(
            messages=messages,
            template=options.loaded.template_override,
            think=options.settings.think,
        )
    return CountCommand(conversation.prompt_text(dropped, next_question), said=messages)
