"""Generating an answer, also in a chat that exceeds the context.

Old turns are dropped or summarised, or the answer stops. This module has no user
interface: its caller passes an `OverflowChooser` that picks the policy.

Counting the tokens of a chat of 2,000 turns takes the engine seconds. So the whole chat
is counted once at most, and the search for the turns that are still sent begins at the
newest ones: its cost depends on the context, not on the length of the chat.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from localspec import units
from localspec.chat import settings
from localspec.chat.answer import AnswerDelta
from localspec.chat.conversation import Conversation, DroppedTurns, Turn, build_messages
from localspec.chat.settings import ChatSettings, LoadedModel, OverflowPolicy
from localspec.chat.speculation_stats import SpeculationStats
from localspec.engine_process import exit_causes
from localspec.errors import LocalspecError, PromptTooLongError
from localspec.launch import Engine
from localspec.protocol.events import (
    EngineExit,
    Event,
    GenerationFinished,
    Notice,
    Round,
)
from localspec.protocol.wire import ChatMessage, CountCommand, GenerateCommand

_MIN_ANSWER_TOKENS = 256
"""Tokens reserved for an answer, if the context has at least eight times as many."""
_MAX_SUMMARY_TOKENS = 400
_SUMMARY_OVERHEAD_TOKENS = 64
"""Upper bound of the tokens that the message around a summary adds."""
_SUMMARY_PROMPT = (
    "Summarise our conversation so far in at most {words} words, for yourself: what was asked, "
    "what was found or decided, names, numbers, open questions. Write the summary only."
)


def check_answer(engine: Engine, event: Event, is_stopped: Callable[[], bool]) -> None:
    """Handle what each event of an answer may mean: the engine has exited, or must stop.

    If the answer is stopped, the engine is told at every event: the first time may have
    been before the request.
    """
    if isinstance(event, EngineExit):
        raise exit_causes.exit_error(event)
    if is_stopped() and not isinstance(event, GenerationFinished):
        engine.stop()


class RequestOptions(Struct, frozen=True):
    settings: ChatSettings
    loaded: LoadedModel
    probabilities: bool = False
    tools: str = ""
    """The tools that are offered, as `GenerateCommand.tools` has them."""


def build_count(
    conversation: Conversation,
    options: RequestOptions,
    dropped: DroppedTurns | None = None,
) -> CountCommand:
    """Build the command that counts the prompt of the last turn.

    `dropped` replaces the conversation's own dropped turns, to see in advance how many
    tokens that leaves.
    """
    messages = conversation.messages(dropped)
    if options.loaded.has_chat_template:
        return CountCommand(
            messages=messages,
            template=options.loaded.template_override,
            think=options.settings.think,
            effort=options.settings.effort,
            tools=options.tools,
        )
    return CountCommand(conversation.prompt_text(dropped), prior_messages=messages)


class ContextOverflow(Struct, frozen=True):
    """A context that is full, or too full for a useful answer."""

    used: int  # Tokens of the prompt and of the answer so far.
    n_ctx: int
    droppable_turns: int  # Older turns that can still be left out.
    mid_answer: bool
    """True while an answer is being written; False if its question was not sent yet."""
    choices: tuple[OverflowPolicy, ...] = ("drop", "summarise", "stop")


OverflowChooser = Callable[[ContextOverflow], OverflowPolicy]
"""Picks a policy. It runs on the answer's thread, so it may wait for the user."""


def find_largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `most` that fits; 0 if not even 1 does.

    Smaller numbers must fit, too. Numbers are doubled until one does not fit, and the
    last step is bisected: if 50 of 2,000 turns fit, then 1, 2, 4, 8, 16, 32 and 64 are
    tried, and five between 32 and 64. None is much larger than the result, because
    trying a number of turns takes as long as their tokens take to be counted.
    """
    n_fitting = 0
    n = 1
    while n <= most and fits(n):
        n_fitting = n
        n *= 2
    # Now `n` does not fit, or is above `most`.
    between = range(n_fitting + 1, min(n, most + 1))
    return n_fitting + bisect_left(between, True, key=lambda n: not fits(n))


class AnswerGenerator:
    """Generates one answer to the last turn of a conversation.

    Adds the events to `stats`, whose current answer this is. Sets
    `conversation.dropped` when it leaves out turns. Calls `is_stopped` between two
    engine requests, to see whether the user has stopped the answer.
    """

    def __init__(
        self,
        engine: Engine,
        conversation: Conversation,
        options: RequestOptions,
        choose_policy: OverflowChooser = lambda _: "stop",
        is_stopped: Callable[[], bool] = lambda: False,
        stats: SpeculationStats | None = None,
    ) -> None:
        self._engine = engine
        self._conversation = conversation
        self._options = options
        self._choose_policy = choose_policy
        self._is_stopped = is_stopped
        self._stats = stats or SpeculationStats()
        self._answer = self._stats.answer
        self._older = conversation.turns[: conversation.n_before_question]
        """The turns before the question; its own tool steps are never dropped."""
        self._question_starts = _find_question_starts(self._older)
        self._n_ctx = options.loaded.n_ctx
        max_tokens = options.settings.max_tokens or _MIN_ANSWER_TOKENS
        eighth = self._n_ctx // 8
        self._answer_reserve = max(1, min(_MIN_ANSWER_TOKENS, eighth, max_tokens))
        """Tokens kept free for the answer before its question is sent."""
        self._summary_limit = max(8, min(_MAX_SUMMARY_TOKENS, eighth))
        self.request = self._build_request()  # The last request sent to the engine.

    def stream(self) -> Iterator[AnswerDelta]:
        """Yield the engine's events, and a notice whenever turns are left out.

        Raises PromptTooLongError if the question does not fit, and as `check_answer`.
        """
        overflow = None
        if not self._is_stopped():
            overflow = self._find_overflow()
        if overflow is not None:
            yield from self._make_room_for_question(overflow)
        if self._is_stopped():
            yield self._stats.add(GenerationFinished("cancelled"))
            return
        while True:
            end = yield from self._generate_until_full()
            if end is None:
                return
            if end.reason != "context":
                yield self._stats.add(end)
                return
            has_room = False
            if not self._is_stopped():
                overflow = self._describe_overflow(self._count_tokens())
                has_room = yield from self._make_room(overflow)
            if not has_room:
                if self._is_stopped():
                    end = replace(end, reason="cancelled")
                yield self._stats.add(end)
                return

    def _build_request(self) -> GenerateCommand:
        options = self._options
        request = settings.build_request(
            options.settings,
            self._conversation,
            options.loaded,
            probabilities=options.probabilities,
            tools=options.tools,
        )
        written = tuple(token.id for token in self._answer.tokens)
        return replace(request, resumed_tokens=written)

    def _generate_until_full(
        self,
    ) -> Generator[AnswerDelta, None, GenerationFinished | None]:
        """Yield events until the answer ends or the context is full; return that event.

        What the engine has measured follows it, and is what the answer is compared
        with. Round numbers continue across requests, because all of them belong to one
        answer.
        """
        self.request = self._build_request()
        end: GenerationFinished | None = None
        first_round = len(self._answer.rounds)
        for event in self._engine.generate(self.request):
            if isinstance(event, Round):
                event = replace(event, n=first_round + event.n)  # noqa: PLW2901
            if isinstance(event, GenerationFinished):
                end = event
                continue
            if isinstance(event, EngineExit) and end is not None:
                yield self._stats.add(end)  # The answer is whole all the same.
            yield self._stats.add(event)
            check_answer(self._engine, event, self._is_stopped)
        self._stats.measured = self._engine.measured or self._stats.measured
        return end

    @property
    def _n_dropped(self) -> int:
        """Turns that an earlier overflow dropped."""
        return self._conversation.dropped_before_last.turns

    def _count_questions(self, start: int, end: int) -> int:
        """How many of the older turns from `start` to before `end` are no tool steps."""
        return len([at for at in self._question_starts if start <= at < end])

    def _count_tokens(self, dropped: DroppedTurns | None = None) -> int:
        command = build_count(self._conversation, self._options, dropped)
        return self._engine.count(command).tokens + self._answer.totals.tokens

    def _count_without(self, n_oldest: int) -> int:
        """Tokens of the chat without its oldest turns, and without a summary of them."""
        return self._count_tokens(DroppedTurns(n_oldest))

    def _count_without_earlier_turns(self) -> int:
        """Tokens that no policy can free."""
        return self._count_without(len(self._older))

    def _find_overflow(self) -> ContextOverflow | None:
        """None if the question can be sent unchanged.

        Also None if nothing could be dropped: then the engine reports the overflow.
        """
        can_drop = self._options.settings.overflow != "stop"
        if not can_drop or len(self._older) == self._n_dropped:
            return None
        try:
            used = self._count_tokens()
        except LocalspecError:
            # An engine that has exited reports it as an event of the answer.
            return None
        if used + self._answer_reserve <= self._n_ctx:
            return None
        return self._describe_overflow(used)

    def _describe_overflow(self, used: int) -> ContextOverflow:
        overflow = ContextOverflow(
            used=used,
            n_ctx=self._n_ctx,
            droppable_turns=self._count_questions(self._n_dropped, len(self._older)),
            mid_answer=bool(self._answer.rounds),
        )
        if self._options.loaded.has_chat_template:
            return overflow
        # A summary needs a chat model.
        return replace(overflow, choices=("drop", "stop"))

    def _make_room_for_question(
        self, overflow: ContextOverflow
    ) -> Iterator[AnswerDelta]:
        """Raises PromptTooLongError if there is no room, unless the user stopped."""
        has_room = yield from self._make_room(overflow)
        if has_room or self._is_stopped():
            return
        what = "The conversation exceeds"
        used = overflow.used
        alone = self._count_without_earlier_turns()
        if alone >= overflow.n_ctx:
            what = "This message alone exceeds"
            used = alone
        raise PromptTooLongError(
            f"{what} the context ({used:,} / {overflow.n_ctx:,} tokens).",
            "Shorten it, or load the model with a larger context.",
        )

    def _make_room(
        self, overflow: ContextOverflow
    ) -> Generator[AnswerDelta, None, bool]:
        """Apply the overflow policy. Returns whether there is room now."""
        if not overflow.droppable_turns:
            return False
        if self._count_without_earlier_turns() >= self._n_ctx:
            return False
        policy = self._options.settings.overflow
        if policy == "ask":
            policy = self._choose_policy(overflow)
        if policy not in ("drop", "summarise") or self._is_stopped():
            return False
        dropped = None
        if policy == "summarise" and "summarise" in overflow.choices:
            spare = self._summary_limit + _SUMMARY_OVERHEAD_TOKENS
            to_summarise = self._choose_dropped(spare=spare)
            if to_summarise is not None:
                dropped = yield from self._summarise(to_summarise)
            if self._is_stopped():
                return False
        if dropped is None:
            dropped = self._choose_dropped()
        if dropped is None:
            return False
        self._conversation.dropped = dropped
        n_questions = self._count_questions(0, dropped.turns)
        yield self._stats.add(
            _overflow_notice(dropped, n_questions, self._n_ctx, policy)
        )
        return True

    def _choose_dropped(self, spare: int = 0) -> DroppedTurns | None:
        """Choose the fewest turns whose removal frees a quarter of the context.

        If a quarter is not possible, the room for an answer or at least one token is
        enough. `spare`: tokens to keep free besides. Returns None if the question and
        the answer alone are too long.
        """
        if len(self._older) <= self._n_dropped:
            return None
        shortest = self._count_without_earlier_turns() + spare
        limits = (
            self._n_ctx * 3 // 4,
            self._n_ctx - self._answer_reserve,
            self._n_ctx - 1,
        )
        limit = next((tokens for tokens in limits if shortest <= tokens), None)
        if limit is None:
            return None

        # A question is dropped with all its tool steps, or kept with them.
        starts = [at for at in self._question_starts if at > self._n_dropped]

        def find_start(n_kept: int) -> int:
            """The turn at which the newest `n_kept` questions begin."""
            return starts[len(starts) - n_kept] if n_kept else len(self._older)

        def fits(n_kept: int) -> bool:
            tokens = self._count_without(find_start(n_kept))
            return tokens + spare <= limit

        n_dropped = find_start(find_largest(len(starts), fits))
        return DroppedTurns.from_turns(self._older[:n_dropped])

    def _summarise(
        self, dropped: DroppedTurns
    ) -> Generator[AnswerDelta, None, DroppedTurns | None]:
        """Add a summary to the dropped turns.

        Returns None if the model wrote none that fits.
        """
        messages, skipped = self._build_summary_messages(dropped)
        if not messages:
            return None
        first = self._n_dropped + skipped
        n_turns = self._count_questions(first, dropped.turns)
        n_skipped = self._count_questions(self._n_dropped, first)
        message = f"Summarising {units.count(n_turns, 'turn')} …"
        if skipped:
            message += f" ({units.count(n_skipped, 'older turn')} skipped: too long)"
        yield self._stats.add(Notice("info", "context-summarising", message))
        request = replace(
            self.request,
            messages=messages,
            tools="",
            resumed_tokens=(),
            stop=(),
            max_tokens=self._summary_limit,
            sampling=replace(self.request.sampling, temperature=0.0),
            think=False,
            think_budget=0,
            effort="",
            probabilities=False,
        )
        answered = Turn("").with_events(list(self._engine.generate(request)))
        summary = answered.visible_answer(self._options.loaded.thinking_markers).strip()
        summarised = DroppedTurns.from_turns(self._older[: dropped.turns], summary)
        if not summary or self._count_tokens(summarised) >= self._n_ctx:
            return None
        return summarised

    def _build_summary_messages(
        self, dropped: DroppedTurns
    ) -> tuple[tuple[ChatMessage, ...], int]:
        """Return the request for a summary, and how many turns it leaves out.

        The oldest turns are left out if not all fit; no message is returned if not even
        the newest turn does.
        """
        conversation = self._conversation
        first = self._n_dropped
        question = _SUMMARY_PROMPT.format(words=self._summary_limit // 2)
        previous = conversation.dropped_before_last.summary

        def build(start: int) -> tuple[ChatMessage, ...]:
            turns = self._older[start : dropped.turns]
            return build_messages(
                conversation.system,
                previous,
                turns,
                Turn(question),
                picture_paths=conversation.picture_paths,
                thinking_markers=conversation.thinking_markers,
            )

        def fits(start: int) -> bool:
            command = CountCommand(
                messages=build(start),
                template=self._options.loaded.template_override,
                think=False,
            )
            n_tokens = self._engine.count(command).tokens
            return n_tokens + self._summary_limit <= self._n_ctx

        # Each start leaves out a quarter of the turns that the start before it has.
        starts: list[int] = []
        start = first
        while start < dropped.turns:
            starts.append(start)
            start += max(1, (dropped.turns - start) // 4)
            while start < dropped.turns and self._older[start].is_tool_step:
                start += 1
        # The latest start has the fewest turns. The first that does not fit has at most
        # a third more than the one before it.
        earliest = dropped.turns
        for start in reversed(starts):
            if not fits(start):
                break
            earliest = start
        if earliest == dropped.turns:
            return (), earliest - first
        return build(earliest), earliest - first


def _find_question_starts(turns: Sequence[Turn]) -> list[int]:
    """The places of the turns that are no tool steps.

    Of a question, its two tool steps and another question they are 0 and 3.
    """
    return [at for at, turn in enumerate(turns) if not turn.is_tool_step]


def _overflow_notice(
    dropped: DroppedTurns, n_questions: int, n_ctx: int, policy: OverflowPolicy
) -> Notice:
    """A question counts as one turn, however many tool steps it has."""
    is_one = n_questions == 1
    turns = "oldest turn" if is_one else f"{n_questions:,} oldest turns"
    full = f"The context of {n_ctx:,} tokens is full:"
    if dropped.summary:
        words = units.count(len(dropped.summary.split()), "word")
        message = f"{full} a summary of {words} replaces the {turns}."
        return Notice("info", "context-summarised", message)
    why = " The summary failed." if policy == "summarise" else ""
    verb = "is" if is_one else "are"
    message = f"{full} the {turns} {verb} no longer sent to the model.{why}"
    return Notice("info", "context-dropped", message)
