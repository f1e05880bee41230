"""Converts the loop's results into events: rounds with text, and an answer's totals."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from localspec.models.chat_template.thinking_tags import partial_length
from localspec.protocol.events import (
    MAX_REJECTED_CHARS,
    Alternative,
    Event,
    FinishReason,
    GenerationFinished,
    Notice,
    Prefill,
    Round,
    Token,
    TokenClass,
)
from localspec.protocol.round_totals import RoundTotals
from localspec.spec.prepared_answer import PreparedAnswer
from localspec.spec.speculative_loop import Drafting, LoopEnd, RoundResult
from localspec.spec.token_probabilities import TokenProbabilities

if TYPE_CHECKING:
    from localspec.llama.model import LlamaVocab


class OutputProcessor:
    """Makes the events of one answer."""

    def __init__(
        self,
        answer: PreparedAnswer,
        drafting: Drafting,
        vocabulary: LlamaVocab,
        count_known: Callable[[int], int] = lambda n_reused: n_reused,
    ) -> None:
        """`count_known`: how many of the reused tokens are reported."""
        self._count_known = count_known
        self._vocabulary = vocabulary
        self._drafting = drafting
        self._verify = answer.drafting.verify
        self._thinking = answer.thinking
        self._starts_in_thinking = False
        if answer.thinking is not None:
            self._starts_in_thinking = answer.thinking.starts_open
        self._detokenizer = IncrementalDetokenizer(answer.stop_strings)
        self._stop_tokens: dict[int, str] = {}
        """Stop strings that are control tokens: these have no text."""
        for stop in filter(None, answer.stop_strings):
            tokens = vocabulary.tokenize(stop, add_special=False)
            if len(tokens) == 1 and not self._piece(tokens[0]):
                self._stop_tokens[tokens[0]] = stop
        self._totals = RoundTotals()
        self._started_at = time.perf_counter()
        self._first_token_at: float | None = None
        self._prompt_tokens = 0
        self._reused_tokens = 0  # Those that are reported.
        # Their text was sent already; an unfinished character comes with the next one.
        for token in answer.shown_tokens:
            self._push(token)

    def process(
        self, loop: Iterator[Prefill | RoundResult | LoopEnd]
    ) -> Iterator[Event]:
        if self._detokenizer.found_stop:
            yield self._to_finished("stop")
            return
        for step in loop:
            if isinstance(step, Prefill):
                yield self._to_prefill(step)
            elif isinstance(step, LoopEnd):
                yield self._to_finished(step.reason)
            else:
                yield from self._process_round(step)
                if self._detokenizer.found_stop:
                    yield self._to_finished("stop")
                    return

    def _to_prefill(self, step: Prefill) -> Prefill:
        """Report what is reused as far as the client knows it.

        Of 100 tokens, 60 are reused, and 20 of these are known: to the client, 40 more
        are read than really are. So 70 that are in the cache are reported as 30.
        """
        known = min(step.reused, self._count_known(step.reused))
        done = step.done
        if done < step.total:
            done -= step.reused - known
        self._prompt_tokens = step.total
        self._reused_tokens = known
        thinking = self._starts_in_thinking
        return Prefill(done, step.total, known, thinking=thinking)

    def _process_round(self, step: RoundResult) -> Iterator[Event]:
        event = self._to_round(step)
        self._totals.add(event)
        if self._first_token_at is None:
            self._first_token_at = time.perf_counter()
        yield event

        plan = self._drafting.plan_change()
        if plan is not None:
            yield plan
        # A round without a pass has the tokens that close the thinking part.
        if step.width == 0 and self._thinking is not None:
            n = self._thinking.n_tokens
            message = f"Thinking stopped after {n:,} tokens: its budget is used up."
            yield Notice("info", "thinking-ended", message)

    def _to_round(self, step: RoundResult) -> Round:
        drafted = len(step.draft.tokens)
        tokens: list[Token] = []
        rejected: tuple[str, ...] = ()
        for i, token in enumerate(step.tokens):
            if i == step.accepted < drafted:
                rejected = self._rejected_texts(step.draft.tokens[i:])
            kind = _token_class(i, drafted, step.accepted)
            tokens.append(Token(token, self._push(token), kind))
            if self._detokenizer.found_stop:
                break
        if step.probabilities:
            tokens = list(map(self._with_probabilities, tokens, step.probabilities))
        n = self._totals.passes
        source = step.draft.source if drafted else None
        return Round(
            n=n,
            source=source,
            reason=step.draft.reason or self._default_reason(n, drafted),
            drafted=drafted,
            accepted=min(step.accepted, len(tokens)),
            tokens=tuple(tokens),
            ms=step.ms,
            overlap=step.draft.overlap,
            rejected=rejected,
        )

    def _rejected_texts(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """The texts of draft tokens that follow the text so far, had they been accepted.

        A token that completes a character has all of it, one that ends inside a
        character has what is before it, as in `Token.text`.
        """
        decoder = self._detokenizer.fork_decoder()
        texts = [decoder.decode(self._piece(token)) for token in tokens]
        return tuple(text[:MAX_REJECTED_CHARS] for text in texts)

    def _default_reason(self, n: int, drafted: int) -> str:
        if drafted:
            return self._drafting.plan.why
        return "no draft tokens" if n else "prompt pass, nothing drafted"

    def _push(self, token: int) -> str:
        """The text that this token completes."""
        if token in self._stop_tokens:
            text = self._detokenizer.finish()
            self._detokenizer.found_stop = self._stop_tokens[token]
            return text
        return self._detokenizer.push(self._piece(token))

    def _piece(self, token: int) -> bytes:
        return b"" if self._vocabulary.is_eog(token) else self._vocabulary.piece(token)

    def _with_probabilities(
        self, token: Token, probabilities: TokenProbabilities
    ) -> Token:
        chosen = probabilities.chosen
        own_bytes = self._piece(token.id)
        piece: str | None = None
        if token.text.encode("utf-8", "replace") != own_bytes:
            piece = own_bytes.decode("latin-1")
        return replace(
            token,
            piece=piece,
            p_target=chosen.p,
            p_draft=chosen.p_draft,
            rank=chosen.rank,
            alternatives=to_alternatives(probabilities, self._vocabulary),
        )

    def _to_finished(self, reason: FinishReason) -> GenerationFinished:
        totals: dict[str, Any] = {
            "tokens": self._totals.tokens,
            "prompt_tokens": self._prompt_tokens,
            "reused_tokens": self._reused_tokens,
            "verify": self._verify,
            "timings": self._timings(),
            "speculation": self._totals.to_json(),
        }
        if self._thinking is not None and self._thinking.has_thinking:
            totals["thinking"] = {
                "tokens": self._thinking.n_tokens,
                "open": self._thinking.is_open,
            }
        tail = self._detokenizer.finish()
        return GenerationFinished(reason, tail, totals, self._detokenizer.found_stop)

    def _timings(self) -> dict[str, float | None]:
        """The `timings` of the totals. The speed is that of the tokens after the first."""
        now = time.perf_counter()
        first_token_at = self._first_token_at or now
        prefill_ms = round((first_token_at - self._started_at) * 1e3, 3)
        first_token_ms: float | None = prefill_ms
        if self._first_token_at is None:
            first_token_ms = None
        decode_seconds = now - first_token_at
        n_later = self._totals.tokens - 1
        tokens_per_second: float | None = None
        if n_later > 0 and decode_seconds:
            tokens_per_second = round(n_later / decode_seconds, 3)
        return {
            "prefill_ms": prefill_ms,
            "first_token_ms": first_token_ms,
            "decode_ms": round(decode_seconds * 1e3, 3),
            "tokens_per_second": tokens_per_second,
        }


def to_alternatives(
    probabilities: TokenProbabilities, vocabulary: LlamaVocab
) -> tuple[Alternative, ...]:
    """The alternatives with their texts; the text of a control token is its name."""
    found: list[Alternative] = []
    for other in probabilities.alternatives:
        piece = b""
        if not vocabulary.is_eog(other.id):
            piece = vocabulary.piece(other.id)
        if not piece:
            piece = vocabulary.token_text(other.id)
        text = piece.decode("utf-8", "replace")
        own_bytes: str | None = None
        if text.encode() != piece:
            own_bytes = piece.decode("latin-1")
        found.append(replace(other, text=text, piece=own_bytes))
    return tuple(found)


def _token_class(i: int, drafted: int, accepted: int) -> TokenClass:
    if i < accepted:
        return "accepted"
    if not drafted:
        return "plain"
    return "bonus" if accepted == drafted else "correction"


_new_decoder = partial(codecs.getincrementaldecoder("utf-8"), "replace")


class IncrementalDetokenizer:
    """Decodes token bytes to text that can be shown immediately.

    Bytes of an unfinished character, and text that may be the start of a stop string,
    are held back until a later piece completes them.
    """

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        self._decoder = _new_decoder()
        self._stops = tuple(filter(None, stops))
        self._held_back = ""
        self.found_stop = ""  # The stop string that was found.

    def push(self, piece: bytes) -> str:
        """The text that this piece completes.

        A stop string ends it and sets `found_stop`. With the stop string "###" the
        pieces "a #", "# b" and "###" give "a ", "## b" and "": what may be the start of
        the stop string waits for the piece that decides.
        """
        decoded = self._decoder.decode(piece)
        if not self._stops:
            return decoded
        self._held_back += decoded
        matches: list[tuple[int, int, str]] = []
        for stop in self._stops:
            at = self._held_back.find(stop)
            if at >= 0:
                matches.append((at + len(stop), at, stop))
        if matches:
            # The one that is complete first, as if the bytes had come one by one.
            _, at, self.found_stop = min(matches)
            return self._release(at, dropped=True)
        n_held = max(partial_length(self._held_back, stop) for stop in self._stops)
        return self._release(len(self._held_back) - n_held)

    def _release(self, end: int, *, dropped: bool = False) -> str:
        """The text that was held back, up to `end`; the rest stays, or is dropped."""
        text = self._held_back[:end]
        self._held_back = "" if dropped else self._held_back[end:]
        return text

    def finish(self) -> str:
        """The remaining text; an unfinished character becomes U+FFFD."""
        if self.found_stop:
            return ""
        text = self._held_back + self._decoder.decode(b"", final=True)
        self._held_back = ""
        return text

    def fork_decoder(self) -> codecs.IncrementalDecoder:
        """A decoder that goes on from here, without stop strings."""
        decoder = _new_decoder()
        decoder.setstate(self._decoder.getstate())
        return decoder
