"""What the engine's parts need from one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
"""One row of logits, shape (n_vocab,), or several, shape (rows, n_vocab)."""

HiddenStates = NDArray[np.float32]
"""Hidden states, one row a token."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution over tokens: ids, in no order, and their probabilities (above 0, sum 1)."""

    ids: NDArray[np.int64]
    probs: NDArray[np.float64]

    def prob(self, token: int) -> float:
        """Its probability; 0 where it was cut off."""
        hits = (self.ids == token).nonzero()[0]
        return float(self.probs[hits[0]]) if len(hits) else 0.0


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed tokens.  `laws` are those they were drawn from; None: the guesses were certain."""

    tokens: list[int] = field(default_factory=list)
    distributions: list[Distribution] | None = None
    source: str | None = None
    decode_seconds: float = 0.0
    """Spent inside the drafter's own llama_decode."""
    match_length: int = 0
    """Tokens that stood in the text before, where that is why these are guessed."""
    reason: str = ""
    """Why this source and this length, or why no guess, from whoever chose."""
    logits: Sequence[Logits | None] | None = None
    """Copies of the draft model's logits at each guess, kept where asked for; None if copied."""


class DecodeInterrupted(Exception):  # noqa: N818  not an error
    """A read was stopped on the way; `n_past` says what the memory holds."""


class LanguageModel(Protocol):
    """A language model with a memory of the tokens it has read, at positions 0 to n_past - 1."""

    @property
    def n_vocab(self) -> int:
        """Tokens it knows: the width of a row of logits."""
        ...

    @property
    def n_ctx(self) -> int:
        """Tokens its memory has room for."""
        ...

    @property
    def n_batch(self) -> int:
        """The most tokens one `read` takes."""
        ...

    @property
    def n_past(self) -> int:
        """Tokens in its memory."""
        ...

    @property
    def decode_seconds(self) -> float:
        """Spent inside llama_decode since the model was loaded."""
        ...

    def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
        """Append tokens; logits of the last `outputs` of them, shape (outputs, n_vocab).

        The rows are llama.cpp's own memory and hold only until the next call.
        """
        ...

    def truncate(self, n_past: int) -> None:
        """Keep the first n_past tokens; fewer where the memory cannot be cut there."""
        ...


class AutoregressiveHead(LanguageModel, Protocol):
    """A head: each of its rows is a token with a hidden state."""

    @property
    def target_width(self) -> int:
        """How wide the target's states are that it takes."""
        ...

    def encode(self, states: HiddenStates) -> HiddenStates:
        """The target's states as the head reads them; at most n_batch of them."""
        ...

    def decode(
        self, tokens: Sequence[int], outputs: int, states: HiddenStates | None = None
    ) -> Logits:
        """As a model's, a row of `states` beside each token."""
        ...

    def last_hidden_state(self) -> HiddenStates:
        """What the last row leaves for the token after it, shape (1, width)."""
        ...


class BlockHead(LanguageModel, Protocol):
    """A head that guesses a block of tokens at once."""

    block_size: int
    """Rows of a block."""
    first_draft_row: int
    """Of these, how many stand before the first guess."""

    @property
    def target_width(self) -> int:
        """How wide the target's states are that it takes."""
        ...

    def inject(self, states: HiddenStates) -> None:
        """Append the target's states, at most n_batch of them."""
        ...

    def draft_block(self, last: int, n: int) -> tuple[Logits, HiddenStates | None]:
        """Logits of the n tokens after `last`, and how sure the head is of each, if it says."""
        ...


class HiddenStateListener(Protocol):
    """Hears what a target reads, with the hidden states of each token, and what it forgets."""

    def on_decode(self, tokens: Sequence[int], states: HiddenStates) -> None:
        """The target has read on; the states are the caller's and hold only until the return."""
        ...

    def limit_truncation(self, n_past: int) -> int:
        """How many of n_past tokens the target may keep; fewer where a state is to be seen again.

        Asked before the target forgets.
        """
        ...

    def on_truncate(self, n_past: int) -> None:
        """The target holds its first n_past tokens, no more."""
        ...

    def newest_state(self) -> HiddenStates | None:
        """What was heard of the newest token, where it would be needed to go on from here."""
        ...

    def on_restore(self, state: HiddenStates) -> None:
        """`state` is what `state()` was when the target had read what it holds now."""
        ...


class DraftStopPolicy(Protocol):
    """Judges a draft while it grows, so that it ends where one more guess would not pay."""

    def should_draft_token(self, confidence: float) -> bool:
        """Whether to draw the next guess, by the draft's confidence in its likeliest token.

        It is asked before the guess is drawn: dropping a drawn guess for its own probability
        would bend the distribution under ratio verification (algorithms.md 2.4).
        """
        ...

    def should_continue(self, token: int) -> bool:
        """Whether another pass of the draft pays, now that `guess` was drawn."""
        ...


class Drafter(Protocol):
    """Anything that can guess what comes next."""

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        draft_prefix: Sequence[int] = (),
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        """Guess at most `limit` tokens to follow the whole sequence `tokens`, then `ahead`.

        Within one answer `tokens` is the same list, and only grows: what a drafter has checked of
        it stays true.  `ahead` are guesses of another drafter, which this one extends.
        """
        ...


DistributionAt = Callable[[int], Distribution]
"""The target's law of the token that follows the first i drafted ones."""


class Verifier(Protocol):
    """Draws drafts from the draft's law, and decides which of them stand."""

    def sample_draft_token(self, distribution: Distribution, index: int) -> int:
        """Draw the draft's token at place `index` of the answer."""
        ...

    def verify(self, distribution_at: DistributionAt, draft: Draft, index: int) -> tuple[int, int]:
        """How many drafted tokens stand, and the token that follows them.

        `index` is the place of the first drafted token in the answer.
        """
        ...
