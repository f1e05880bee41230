"""A loaded pair that answers: tokens in and out of the loop become text and events."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace

from localspec import speculation
from localspec.engine import drafters, prober
from localspec.engine.accept import verifier
from localspec.engine.answer import Answer, alternatives
from localspec.engine.chat import Prompt
from localspec.engine.control.controller import Controller, Drafts
from localspec.engine.control.costs import Costs
from localspec.engine.control.pace import Experience
from localspec.engine.control.survival import Survival
from localspec.engine.exact import Guard
from localspec.engine.insight import look
from localspec.engine.llama import Llama
from localspec.engine.loop import Job, generate
from localspec.engine.pair import Pair
from localspec.engine.protocols import Drafter, Verifier
from localspec.engine.reader import Reader
from localspec.engine.replay import replay
from localspec.engine.reread import reread
from localspec.errors import LocalspecError, UsageError
from localspec.protocol.events import Event, Place, Plan
from localspec.protocol.wire import (
    DRAFT_LENGTH,
    DRAFT_MAX,
    Count,
    Counted,
    Generate,
    Inspect,
    Inspected,
    Load,
    Measured,
    Probe,
    Render,
    Rendered,
    Replay,
    Replayed,
)

_DRAFTS: dict[str, Drafts] = {"model": "tokens", "dspark": "blocks", "dflash": "blocks"}


class Session:
    """One target and perhaps one draft model, loaded; one answer at a time."""

    def __init__(self, load: Load) -> None:
        began = time.perf_counter()
        self._stop = False
        self._lookup: Drafter | None = None
        survival = load.measured.survival if load.measured else {}
        self._known = {name: Experience(Survival(kept)) for name, kept in survival.items()}
        self._difference = load.measured.difference if load.measured else None
        self._pair = Pair(load, self._asked_to_stop)
        self._target, self._draft = self._pair.target, self._pair.draft
        self._costs = self._costs_of(load.measured)
        self._chat = self._pair.chat
        marked = self._target.mark if self._target.needs_marks else None
        self._text = Reader(self._target, marked)
        self._reader = Reader(self._draft) if isinstance(self._draft, Llama) else None
        self._most = self._pair.most
        self._widest = load.draft_max + 1
        self._free_threads = load.target_settings.n_threads is None
        if self._free_threads and load.measured and load.measured.threads:
            self._pair.use_threads(load.measured.threads)
        self.ready = self._pair.ready(load, (time.perf_counter() - began) * 1e3)

    # --- answering ----------------------------------------------------------------------

    def stop(self) -> None:
        """End the answer after the llama_decode in progress.  Safe from a signal handler."""
        self._stop = True

    def generate(self, request: Generate) -> Iterator[Event]:
        """Answer; the generator may be closed at any yield.

        Raises PromptTooLongError, UsageError, or EngineError where the model fails on the way.
        """
        self._stop = False
        asked = self._chat.prompt(request)
        prompt = self._pair.prompt(asked)
        request = replace(request, stop=(*request.stop, *asked.stop))
        _check(request, self._target.n_vocab)
        name, plan = self._choose(request)
        words = self._target.vocabulary
        thought = self._chat.thought(asked, request.think_budget)
        thought.recall(request.begun)
        judge = verifier(request.verify, request.sampling.seed)
        needs = self._needs(request, judge, len(prompt))
        controller = self._controller(request, needs) if name == "auto" else None
        drafter = controller or self._drafter(name, needs)
        job = Job(
            prompt,
            request.sampling,
            request.max_tokens,
            self._length(request, DRAFT_MAX if controller else DRAFT_LENGTH),
            words.is_end,
            self._asked_to_stop,
            controller.learn if controller else lambda _: None,
            self._guard(request) if request.exact else None,
            look if request.probabilities else None,
            request.begun,
            thought,
        )
        yield plan
        yield from self._chat.news(asked.notices)
        loop = generate(self._text, drafter, judge, job)
        news = controller.news if controller else lambda: None
        yield from asked.told(Answer(request, words, plan.why, news, thought).events(loop))

    def _needs(self, request: Generate, judge: Verifier, start: int) -> drafters.Needs:
        """What a drafter of this answer may use."""
        return drafters.Needs(
            reader=self._reader,
            companion=self._pair.companion,
            verifier=judge,
            sampling=request.sampling,
            start=start,
            n_vocab=self._target.n_vocab,
            is_end=self._target.vocabulary.is_end,
            cancelled=self._asked_to_stop,
            keep_rows=request.probabilities,
        )

    def render(self, asked: Render) -> Rendered:
        """A chat as the text that `generate` would read."""
        return self._chat.render(asked.messages, asked.template, asked.think)

    def count(self, asked: Count) -> Counted:
        """The tokens of a text, or of a chat's prompt."""
        return Counted(len(self._pair.tokens(self._chat.prompt(asked))))

    # --- measuring ----------------------------------------------------------------------

    def probe(self, asked: Probe) -> Iterator[Plan | Measured]:
        """Measure what passes cost, in about so many seconds; the memories end empty."""
        self._stop = False
        times: prober.Times | None = None
        shown = 0
        if self._free_threads:
            yield Plan("probing", "finding the better number of threads")
            self._pair.use_threads(prober.better_threads(self._target, self._draft))
        for times in prober.measure(self._target, self._draft, self._most, asked.seconds):
            if len(times.verify) != shown:
                shown = len(times.verify)
                yield Plan("probing", f"measuring passes of {max(times.verify)} tokens")
            if self._stop:
                break
        assert times is not None
        if asked.difference:
            yield Plan("probing", "comparing passes of different widths")
            self._difference = prober.difference(self._target, self._most)
        self._costs = self._costs_of(Measured(times.t1(), times.curve(), times.c()))
        yield from self.measured()

    def measured(self) -> Iterator[Measured]:
        """What is known of the pair's costs, if anything is."""
        if not self._costs.known:
            return
        plain = self._costs.plain
        yield Measured(
            t1_ms=round(plain, 4),
            curve=self._costs.curve(),
            c=round(self._costs.c, 5) if self._draft else None,
            threads=self._target.n_threads,
            difference=self._difference,
            survival={name: known.survival.counts() for name, known in self._known.items()},
        )

    def replay(self, asked: Replay) -> Replayed:
        """What the target alone says of an answer's tokens, in passes of the widths asked for."""
        self._stop = False
        return replay(self._text, self._pair.prompt(Prompt(asked.text)), asked, self._asked_to_stop)

    def inspect(self, asked: Inspect) -> Iterator[Inspected]:
        """What the target gives to an answer's tokens; the memory ends as after writing it."""
        self._stop = False
        words, prompt = self._target.vocabulary, self._pair.prompt(self._chat.prompt(asked))
        tokens, stop = asked.tokens, self._asked_to_stop
        for seen in reread(self._text, prompt, tokens, self._widest, stop):
            yield Inspected(
                tuple(Place(i.taken.p, i.taken.rank, alternatives(i, words)) for i in seen)
            )

    def _costs_of(self, measured: Measured | None) -> Costs:
        return Costs(measured, at_once=_DRAFTS.get(self._pair.kind) == "blocks")

    def _choose(self, request: Generate) -> tuple[str, Plan]:
        name = request.spec
        length = self._length(request, DRAFT_LENGTH)
        if name in ("off", "none") or length < 1:
            why = "asked for" if self._most >= 1 else "the model cannot take back a wrong guess"
            return "none", Plan("off", why)
        if name == "auto":
            sources = f"{self._pair.drafting} and copying" if self._draft else "copying"
            return name, Plan("probing", f"{sources}, as far as they pay")
        speculation.check(name, self._pair.kind if self._draft else None)
        if name not in drafters.ALONE:  # `model` is the draft, whatever it is
            name = self._pair.kind
        return name, Plan("on", request.why or f"{length} guesses a round, {name}")

    def _guard(self, request: Generate) -> Guard:
        """Measures how far widths disagree, when first asked; that empties the memory."""
        if request.sampling.temperature > 0 and request.verify != "coupled":
            raise UsageError(
                f"Exact decisions cannot be told with --verify {request.verify} "
                "above temperature 0.",
                "Use --verify coupled with --exact.",
            )
        if self._difference is None:
            self._difference = prober.difference(self._target, self._most)
        return Guard(request.sampling, 2 * self._difference)

    def _length(self, request: Generate, unasked: int) -> int:
        asked = request.draft_length
        return min(unasked if asked is None else asked, self._most)

    def _controller(self, request: Generate, needs: drafters.Needs) -> Controller:
        """Chooses by what was seen under the same way of verifying."""
        way = "greedy" if request.sampling.temperature <= 0 else request.verify
        known = self._known.setdefault(way, Experience())
        kind, drafts = self._pair.kind, _DRAFTS.get(self._pair.kind, "states")
        draft = drafters.make(kind, needs) if self._draft else None
        lookup = self._drafter("lookup", needs)
        return Controller(draft, lookup, self._costs, known, drafts=drafts)

    def _drafter(self, name: str, needs: drafters.Needs) -> Drafter:
        if name != "lookup":
            return drafters.make(name, needs)
        if self._lookup is None:  # kept: it knows the chat so far
            self._lookup = drafters.make(name, needs)
        return self._lookup

    def _asked_to_stop(self) -> bool:
        return self._stop

    def close(self) -> None:
        self._pair.close()
        self._draft = None


def _check(request: Generate, n_vocab: int) -> None:
    sampling = request.sampling
    wrong: LocalspecError | None = None
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        wrong = UsageError(
            f"A temperature of {sampling.temperature} makes no sense.", "Use 0 to 2."
        )
    elif not 0 < sampling.top_p <= 1 or not 0 <= sampling.min_p <= 1 or sampling.top_k < 0:
        what = "top-p must be in (0, 1], min-p in [0, 1], top-k 0 or more."
        wrong = UsageError(what, "Leave them out to get 0.95, 0.05 and 40.")
    elif not (math.isfinite(sampling.repeat_penalty) and sampling.repeat_penalty > 0):
        wrong = UsageError("The repeat penalty must be above 0.", "1 is off; 1.1 is common.")
    elif request.max_tokens < 1:
        wrong = UsageError("At least one token must be asked for.", "Use --max-tokens 1 or more.")
    elif not all(0 <= token < n_vocab for token in request.begun):
        wrong = UsageError("The answer's beginning is not made of this model's tokens.")
    if wrong is not None:
        raise wrong
