"""Interfaces and shared types of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from localspec.errors import EngineError
from localspec.protocol.events import Overlap

Logits = NDArray[np.float32]
"""One row of logits, shape (n_vocab,), or several, shape (rows, n_vocab)."""

HiddenStates = NDArray[np.float32]
"""Hidden states, shape (tokens, width)."""


class Distribution(Struct, frozen=True):
    """A distribution over tokens.

    The ids have any order; their probabilities are above 0 and sum to 1.
    """

    ids: NDArray[np.int64]
    probs: NDArray[np.float64]

    def prob(self, token: int) -> float:
        """The token's probability; 0 if truncation removed it."""
        hits = (self.ids == token).nonzero()[0]
        return float(self.probs[hits[0]]) if len(hits) else 0.0


class Draft(Struct, frozen=True):
    """Draft tokens, and where they come from."""

    tokens: list[int] = field(default_factory=list)
    distributions: list[Distribution] | None = None
    """The distributions they were sampled from; None if the tokens are certain."""
    source: str | None = None
    decode_seconds: float = 0.0  # Time inside the drafter's own llama_decode.
    match_length: int = 0
    """Prompt lookup sets it: the length of the repeated suffix that was matched."""
    copied_from: int = -1
    """Prompt lookup sets it: the place in the text of what it copies; negative for a
    prediction.
    """
    # Why this source and length were chosen, or why nothing was drafted.
    reason: str = ""
    logits: Sequence[Logits] | None = None
    """Copies of the draft model's logits for its own draft tokens, if requested."""
    overlap: Overlap = ""

    def first(self, n: int) -> Draft:
        """The same draft with its first n tokens only."""
        return replace(
            self,
            tokens=self.tokens[:n],
            distributions=self.distributions and self.distributions[:n],
            logits=self.logits and self.logits[:n],
        )


class InvalidDraftError(EngineError):
    """A drafter returned a draft that no verifier can judge: a bug of the drafter."""

    def __init__(self, drafter: str, problem: str) -> None:
        super().__init__(
            f"The drafter {drafter!r} does not work: {problem}.",
            "Use another method of speculation, or update the package of this drafter.",
        )


class DecodeInterrupted(Exception):  # noqa: N818  not an error
    """A decode was cancelled; `n_past` says how many tokens are in memory."""


class LanguageModel(Protocol):
    """A language model whose memory holds the tokens at positions 0 to n_past - 1."""

    n_vocab: int  # Vocabulary size: the width of a row of logits.
    n_ctx: int  # Context length in tokens.
    n_batch: int  # Maximum number of tokens per `decode`.
    decode_seconds: float  # Time inside llama_decode since the model was loaded.

    @property
    def n_past(self) -> int:
        """Number of tokens in memory."""

    def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
        """Append tokens; return the logits of the last `outputs` of them.

        Their shape is (outputs, n_vocab). They are a view of llama.cpp's memory, valid
        until the next call.
        """

    def truncate(self, n_past: int) -> None:
        """Keep the first n_past tokens, or fewer if the memory cannot be cut there."""


class BranchingModel(LanguageModel, Protocol):
    """A language model whose memory also holds branches.

    A branch continues a prefix of the text. Branches are numbered from 1; number 0 is
    the text itself.
    """

    n_branches: int  # How many branches the memory can hold.

    def fork(self, branch: int, n_past: int) -> None:
        """Start a branch with the first n_past tokens of the text."""

    def decode_branches(self, steps: Sequence[tuple[int, int]]) -> Logits:
        """Append one token to each branch; return one row for each pair."""

    def adopt(self, branch: int) -> None:
        """Make a branch the text (0 leaves it as it is), and free the others."""


class SavableModel(LanguageModel, Protocol):
    """A language model whose memory can be copied and put back."""

    def state_bytes(self) -> int:
        """Size of a copy of everything that `save_state` copies; 0 if it cannot."""

    def save_state(self) -> Any:
        """A copy of the memory and of what belongs to it."""

    def restore_state(self, state: Any, n_past: int) -> bool:
        """Continue where the copy, of n_past tokens, was made.

        Returns False, and leaves the memory empty, if that failed.
        """


class Vocabulary(Protocol):
    """The tokens of a model."""

    n_tokens: int
    eos: int

    def is_eog(self, token: int) -> bool:
        """Whether the token ends an answer."""

    def text_piece(self, token: int) -> bytes:
        """The bytes that the token stands for in a text; none for control tokens."""

    def token_text(self, token: int) -> bytes:
        """The token's name in the vocabulary, such as `<|im_end|>`."""

    def tokenize_plain(self, data: bytes) -> list[int]:
        """Tokens of a text in which the names of control tokens are only text."""


class AutoregressiveHead(LanguageModel, Protocol):
    """A trained draft head (EAGLE-3, MTP).

    Each input row is a token and a hidden state.
    """

    target_width: int  # Width of the target's hidden states that the head takes.
    reads_target_memory: bool
    """It has no memory of its own: each row needs only the newest state of the text."""
    max_draft: int  # Maximum number of draft tokens.

    def encode(self, states: HiddenStates) -> HiddenStates:
        """Convert at most n_batch of the target's hidden states to the head's input."""

    def decode(
        self, tokens: Sequence[int], outputs: int, states: HiddenStates | None = None
    ) -> Logits:
        """The same as a model's `decode`, with one row of `states` per token."""

    def continue_draft(self, token: int) -> Logits:
        """Logits after one more draft token, which gets the last row's state.

        Their shape is (1, n_vocab).
        """


class BlockHead(LanguageModel, Protocol):
    """A trained draft head that drafts a block of tokens in one pass (DFlash, DSpark)."""

    block_size: int  # Rows per block.
    first_draft_row: int  # Index of the block's first row that gives a draft token.
    top_k: int
    """The number of candidates k of DFlash2; 0 for other heads. A row is then a part of
    a lattice, not of logits: the k tokens, then for each candidate of the row before
    the k scores after it; in the first row all alike.
    """
    target_width: int  # Width of the target's hidden states that the head takes.

    def inject(self, states: HiddenStates) -> None:
        """Append at most n_batch of the target's hidden states to the head's memory."""

    def draft_block(self, last: int, n: int) -> tuple[Logits, HiddenStates | None]:
        """Rows of the n tokens after `last`, and the confidences of a head that has them."""


class HiddenStateListener(Protocol):
    """Receives the hidden states of each token that a target decodes, and truncations."""

    def on_decode(self, tokens: Sequence[int], states: HiddenStates) -> None:
        """The target decoded `tokens`; `states` are valid only during the call."""

    def limit_truncation(self, n_past: int) -> int:
        """How many of n_past tokens the target may keep.

        These are fewer if a hidden state is needed again. Called before the target
        truncates.
        """

    def on_truncate(self, n_past: int) -> None:
        """The target now holds only its first n_past tokens."""

    def newest_state(self) -> HiddenStates | None:
        """The newest token's hidden state, if it is needed to continue from here."""

    def on_restore(self, state: HiddenStates) -> None:
        """Restore what `newest_state` returned when the target held the same tokens."""

    def state_bytes(self) -> int:
        """Size of a copy of all that the listener holds."""

    def save_state(self) -> Any:
        """A copy of all that the listener holds."""

    def restore_state(self, state: Any) -> None:
        """Restore what `save_state` returned when the target held the same tokens."""


class DraftStopPolicy(Protocol):
    """Ends a draft when another token is not worth its cost."""

    def should_draft_token(self, confidence: float) -> bool:
        """Whether to draw the next token, given the confidence in the likeliest one.

        Called before the token is drawn: dropping a drawn token because of its own
        probability would bias rejection sampling.
        """

    def should_continue(self, token: int) -> bool:
        """Whether another draft pass is worth its cost, after `token` was drawn."""


class Drafter(Protocol):
    """A source of draft tokens.

    The loop checks what a drafter returns, because it may come from another package.
    """

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        """Draft at most `limit` tokens that follow `tokens`; `limit` is at least 1.

        Within one answer `tokens` is the same list and only grows, so a drafter need
        not check its prefix again.
        """


class GrammarState(Protocol):
    """What a grammar allows after a text. A state never changes."""

    def allows(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the tokens may come next; end tokens may where the text is complete."""

    def allowed_tokens(self) -> NDArray[np.int64]:
        """All tokens that may come next."""

    def forced_tokens(self) -> list[int]:
        """The next tokens, of which each has the only text that is allowed.

        None where a search would be needed to know them.
        """

    def advance(self, token: int) -> GrammarState:
        """The state after `token`, which must be allowed."""


DistributionAt = Callable[[int], Distribution]
"""The target's distribution of the token after the first i draft tokens."""


class Verifier(Protocol):
    """Samples draft tokens, and decides which of them are accepted."""

    def sample_draft_token(self, distribution: Distribution, index: int) -> int:
        """Sample the draft token at position `index` of the answer."""

    def verify(
        self, distribution_at: DistributionAt, draft: Draft, index: int
    ) -> tuple[int, int]:
        """Return the number of accepted draft tokens, and the token that follows them.

        `index` is the position of the first draft token in the answer.
        """


class DraftWait(Struct):
    """How long a round waited for a draft pass that ran beside the target's."""

    seconds: float = 0.0


OverlapRound = Callable[[Sequence[int], Draft], AbstractContextManager[DraftWait]]
"""A block in which drafting goes on after a text and its draft, while the target
verifies. Nothing runs any more when the block is left.
"""
