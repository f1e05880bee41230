"""What a person sees of an answer at each moment: confirmed text, and the guess behind it.

The engine reports a round when it is over: which draft tokens were right, which were
thrown away, and the model's own token after them. `LiveFrames` shows that in order. First
the guess is dim, as while the target checks it. Then what was right is confirmed, the
first wrong token is struck through, and the model's own token follows.

It has no clock and draws nothing: rounds go in, frames come out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from localspec.chat.answer import AnswerDelta
from localspec.protocol.events import Round
from localspec.sanitize import sanitize

GUESS_SECONDS = 0.08  # How long a guess is shown before its result.
RESULT_SECONDS = 0.04  # How long a result is shown before more text.
GUESS_INTERVAL = 0.25
"""Least seconds from one guess to the next: about what an eye follows."""
SLOW_TOKENS_PER_SECOND = 8.0
"""In slow motion: about as fast as people read."""
_SLOW_STEPS = 2
"""In slow motion a guess, and what was wrong in it, are each shown as long as 2 tokens."""


class LiveGuess(Struct, frozen=True):
    """What is drawn beside the confirmed text, of which it is no part.

    For example, the confirmed text is `The old town`. In place of ` town` the draft had
    ` city`. Now the target checks ` hall is`, and ` hall` is right:

        The old (city) town hall is

    Then `rejected` is ` city`, and `n_own` 5: the length of ` town`. `right` is ` hall`
    and `unchecked` ` is`.
    """

    rejected: str = ""
    n_own: int = 0
    """Characters at the end of the confirmed text that follow what was rejected."""
    right: str = ""
    unchecked: str = ""

    @property
    def n_rejected_blanks(self) -> int:
        """White space before the word that was rejected."""
        return len(self.rejected) - len(self.rejected.lstrip())

    @property
    def follows(self) -> str:
        """What is drawn behind the confirmed text."""
        return self.right + self.unchecked


NO_GUESS = LiveGuess()


class LiveFrame(Struct, frozen=True):
    deltas: tuple[AnswerDelta, ...]
    """What is confirmed since the frame before."""
    guess: LiveGuess
    due: float | None
    """When the next frame is due, though nothing arrives; None: there is none."""


class _RoundGuess(Struct, frozen=True):
    """The draft of a round, if it can be drawn: it is visible text."""

    right: tuple[str, ...]
    rejected: tuple[str, ...]
    own: str  # The model's own token, if it replaced a rejected one.

    @property
    def text(self) -> str:
        return "".join(self.right + self.rejected)

    def check(self, n_checked: int, before: LiveGuess) -> LiveGuess:
        """The guess when so many tokens are known to be right."""
        return replace(
            before,
            right="".join(self.right[:n_checked]),
            unchecked="".join(self.right[n_checked:] + self.rejected),
        )

    @property
    def result(self) -> LiveGuess:
        """After the round: the first wrong token is before the model's own."""
        if not self.rejected or not self.own:
            return NO_GUESS
        return LiveGuess(rejected=self.rejected[0], n_own=len(self.own))


def _guess_of(delta: AnswerDelta) -> _RoundGuess | None:
    """None where nothing was drafted, or the text is thinking or held back."""
    round_ = delta.event
    if not isinstance(round_, Round) or delta.in_thinking:
        return None
    shown = "".join(part.text for part in delta.parts if not part.is_thinking)
    if shown != "".join(token.text for token in round_.tokens):
        return None
    right = [
        sanitize(token.text) for token in round_.tokens if token.kind == "accepted"
    ]
    own = ""
    if round_.tokens and round_.tokens[-1].kind == "correction":
        own = sanitize(round_.tokens[-1].text)
    guess = _RoundGuess(tuple(right), tuple(map(sanitize, round_.rejected)), own)
    return guess if guess.text else None


class LiveFrames:
    """Turns what the engine reports into frames.

    For example, rounds of a fast model arrive each 10 ms, and a frame is drawn each
    40 ms. Round 9 is the newest at 0.00 s:

        0.00 s   rounds 1 to 8 are confirmed, and the guess of round 9 is dim
        0.08 s   round 9 is confirmed, and its first wrong token is struck through
        0.12 s   rounds 10 to 12 are confirmed; and so on with each frame
        0.25 s   all rounds but the newest are confirmed, and its guess is dim

    In slow motion, round 9 with the right tokens ` a` and ` b` and the correction ` c`
    takes three quarters of a second: the guess is dim for two eighths, then ` a` is
    right, then ` b`, and then ` c` is confirmed, for two eighths if it is a correction.
    The engine is ahead meanwhile.

    In either case each delta is confirmed once, in order. Without slow motion that is
    at most `GUESS_SECONDS` + `RESULT_SECONDS` and a frame after it arrived, and at once
    when the answer has ended.
    """

    def __init__(self, *, has_guesses: bool = True, is_slow: bool = False) -> None:
        self.has_guesses = has_guesses  # Whether guesses are shown.
        self.is_slow = is_slow
        self.speed = 1.0  # Of slow motion.
        self._waiting: deque[AnswerDelta] = deque()
        self._has_ended = False
        # The first of `_waiting` while its guess is shown, and its tokens that are right.
        self._shown: _RoundGuess | None = None
        self._n_checked = 0
        self._guess = NO_GUESS
        self._until = float("-inf")  # Nothing changes before.
        self._next_guess = float("-inf")

    def add(self, deltas: Sequence[AnswerDelta]) -> None:
        self._waiting += deltas

    def end(self) -> None:
        """Nothing more arrives."""
        self._has_ended = True

    @property
    def is_behind(self) -> bool:
        """Whether something has arrived that is not confirmed yet."""
        return bool(self._waiting)

    def catch_up(self) -> LiveFrame:
        """Confirms all that has arrived, without a guess."""
        deltas = tuple(self._waiting)
        self._waiting.clear()
        self._shown = None
        self._guess = NO_GUESS
        self._until = float("-inf")
        return LiveFrame(deltas, NO_GUESS, None)

    def next_frame(self, now: float) -> LiveFrame:
        """`now`: in seconds, of any clock that does not go back."""
        if not self.is_slow and (self._has_ended or not self.has_guesses):
            return self.catch_up()
        deltas: list[AnswerDelta] = []
        if now >= self._until:
            if self.is_slow:
                self._advance_slowly(now, deltas)
            else:
                self._advance(now, deltas)
        if self._has_ended and not self._waiting and now >= self._until:
            self._guess = NO_GUESS
        has_more = self._waiting or (self._has_ended and self._guess != NO_GUESS)
        due = self._until if has_more else None
        return LiveFrame(tuple(deltas), self._guess, due)

    def _confirm(self, deltas: list[AnswerDelta]) -> None:
        deltas.append(self._waiting.popleft())

    # --- at the engine's speed
    # ----------------------------------------------------------------------------

    def _advance(self, now: float, deltas: list[AnswerDelta]) -> None:
        if self._shown is not None:
            self._confirm_shown(deltas)
            self._until = now + RESULT_SECONDS
            return
        newest = None
        n_kept = 0
        if now >= self._next_guess:
            newest, n_kept = self._find_newest_guess()
        while len(self._waiting) > n_kept:
            self._confirm(deltas)
            if isinstance(deltas[-1].event, Round):
                self._guess = NO_GUESS
        if newest is not None:
            self._show(newest)
            self._until = now + GUESS_SECONDS
            self._next_guess = now + GUESS_INTERVAL

    def _find_newest_guess(self) -> tuple[_RoundGuess | None, int]:
        """The guess of the newest round, and how many deltas there are from it on."""
        for n_kept, delta in enumerate(reversed(self._waiting), 1):
            if isinstance(delta.event, Round):
                guess = _guess_of(delta)
                if guess is None:
                    break
                return guess, n_kept
        return None, 0

    def _show(self, guess: _RoundGuess) -> None:
        self._shown = guess
        self._n_checked = 0
        self._guess = guess.check(0, self._guess)

    def _confirm_shown(self, deltas: list[AnswerDelta]) -> None:
        assert self._shown is not None
        self._guess = self._shown.result
        self._shown = None
        self._confirm(deltas)

    # --- in slow motion
    # ----------------------------------------------------------------------------

    def _advance_slowly(self, now: float, deltas: list[AnswerDelta]) -> None:
        """By one token of the draft, or by a round without a draft that is seen."""
        seconds = 1 / (SLOW_TOKENS_PER_SECOND * self.speed)
        if self._shown is not None:
            if self._n_checked < len(self._shown.right):
                self._n_checked += 1
                self._guess = self._shown.check(self._n_checked, NO_GUESS)
            else:
                self._confirm_shown(deltas)
                if self._guess.rejected:
                    seconds *= _SLOW_STEPS
            self._until = now + seconds
            return
        while self._waiting:
            delta = self._waiting[0]
            guess = _guess_of(delta) if self.has_guesses else None
            if guess is not None:
                self._show(guess)
                self._until = now + _SLOW_STEPS * seconds
                return
            self._confirm(deltas)
            n_shown = _count_shown(delta)
            if n_shown:
                self._guess = NO_GUESS
                self._until = now + n_shown * seconds
                return


def _count_shown(delta: AnswerDelta) -> int:
    """The tokens of a round that are visible text; thinking is not watched."""
    is_shown = any(not part.is_thinking and part.text for part in delta.parts)
    if not is_shown or not isinstance(delta.event, Round):
        return 0
    return len(delta.event.tokens)
