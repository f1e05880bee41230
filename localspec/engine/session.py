"""A loaded pair that answers: tokens in and out of the loop become text and events."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from localspec.engine import drafters, llama, prober
from localspec.engine.accept import verifier
from localspec.engine.answer import Answer, alternatives
from localspec.engine.chat import Chat
from localspec.engine.control.controller import Controller
from localspec.engine.control.costs import Costs
from localspec.engine.control.pace import Experience
from localspec.engine.control.survival import Survival
from localspec.engine.exact import Guard
from localspec.engine.insight import look
from localspec.engine.loop import Job, generate
from localspec.engine.protocols import Drafter
from localspec.engine.reader import Reader
from localspec.engine.replay import replay
from localspec.engine.reread import reread
from localspec.errors import (
    IncompatiblePairError,
    LocalspecError,
    PromptTooLongError,
    UsageError,
)
from localspec.models import pairing
from localspec.protocol.events import Event, Notice, Place, Plan, Ready
from localspec.protocol.wire import (
    DRAFT_LENGTH,
    DRAFT_MAX,
    ContextSettings,
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


class Session:
    """One target and perhaps one draft model, loaded; one answer at a time."""

    def __init__(self, load: Load) -> None:
        began = time.perf_counter()
        self._stop = False
        self._draft: llama.Llama | None = None
        self._lookup: Drafter | None = None
        self._costs = Costs(load.measured)
        survival = load.measured.survival if load.measured else {}
        self._known = {name: Experience(Survival(kept)) for name, kept in survival.items()}
        self._host_ms = load.measured.host_ms if load.measured else 0.0
        self._difference = load.measured.difference if load.measured else None
        self._notices: list[Notice] = []
        self._target = llama.Llama(
            Path(load.target),
            load.target_settings,
            outputs=load.draft_max + 1,
            rollback=load.draft_max,
        )
        self._chat = Chat(self._target.vocabulary, self._target.chat_template())
        self._notices += self._chat.notices
        try:
            if load.draft is not None:
                self._load_draft(Path(load.draft), load)
        except BaseException:
            self.close()
            raise
        for model in (self._target, self._draft):
            if model is not None:
                model.interrupted = self._asked_to_stop
        self._readers = [Reader(m) for m in (self._target, self._draft) if m is not None]
        self._most = min(load.draft_max, self._target.rollback)
        self._widest = load.draft_max + 1
        self._free_threads = load.target_settings.n_threads is None
        if self._free_threads and load.measured and load.measured.threads:
            self._use_threads(load.measured.threads)
        self._warn()
        self.ready = self._make_ready(load, (time.perf_counter() - began) * 1e3)

    def _load_draft(self, path: Path, load: Load) -> None:
        # A draft may have a shorter memory than its target: it then stops guessing, no more.
        asked = load.draft_settings.n_ctx or self._target.n_ctx
        settings = replace(load.draft_settings, n_ctx=asked)
        self._draft = llama.Llama(
            path, settings, outputs=1, rollback=load.draft_max, within_trained=True
        )
        if path.resolve() != Path(load.target).resolve():
            verdict = pairing.check(self._target.vocabulary, self._draft.vocabulary)
            if not verdict.compatible:
                raise IncompatiblePairError(
                    f"{path.name} cannot draft for {Path(load.target).name}: {verdict.detail}.",
                    "Use a draft of the same model family, or --draft none (lookup still works).",
                )
        if self._draft.recurrent:  # it would read the text again after each rejection
            self._draft.close()
            self._draft = None
            self._notices.append(
                Notice(
                    "warning",
                    "draft-no-rollback",
                    f"{path.name} cannot take back a wrong guess (recurrent memory), "
                    "so it is not used.",
                )
            )

    def _warn(self) -> None:
        target = self._target
        if target.rollback < 1:
            self._notices.append(
                Notice(
                    "warning",
                    "no-rollback",
                    "This model cannot take back a wrong guess (recurrent memory without "
                    "snapshots), so it runs plain.",
                )
            )
        if target.n_ctx_train and target.n_ctx_asked > target.n_ctx_train:
            self._notices.append(
                Notice(
                    "warning",
                    "beyond-trained",
                    f"The context of {target.n_ctx:,} is longer than the {target.n_ctx_train:,} "
                    "tokens the model was trained with: answers may get worse.",
                )
            )

    def _make_ready(self, load: Load, load_ms: float) -> Ready:
        draft = self._draft
        weights = self._target.bytes_of_weights() + (draft.bytes_of_weights() if draft else 0)
        return Ready(
            engine=llama.versions(),
            model=Path(load.target).name,
            draft=Path(load.draft).name if load.draft and draft else None,
            devices=llama.devices(),
            settings={
                "target": _used(load.target_settings, self._target),
                "draft": _used(load.draft_settings, draft) if draft else None,
                "draft_max": self._most,
                "chat": self._chat.settings(),
            },
            memory={"predicted": None, "used": None, "weights": weights},
            load_ms=load_ms,
            notices=tuple(self._notices),
        )

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
        prompt = self._prompt(asked.text)
        request = replace(request, stop=(*request.stop, *asked.stop))
        _check(request)
        name, plan = self._choose(request)
        words = self._target.vocabulary
        judge = verifier(request.verify, request.sampling.seed)
        needs = drafters.Needs(
            reader=self._readers[1] if self._draft else None,
            verifier=judge,
            sampling=request.sampling,
            start=len(prompt),
            n_vocab=self._target.n_vocab,
            is_end=words.is_end,
            cancelled=self._asked_to_stop,
            keep_rows=request.probabilities,
        )
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
        )
        yield plan
        yield from self._chat.news(asked.notices)
        loop = generate(self._readers[0], drafter, judge, job)
        news = controller.news if controller else lambda: None
        yield from asked.told(Answer(request, words, plan.why, news).events(loop))

    def render(self, asked: Render) -> Rendered:
        """A chat as the text that `generate` would read."""
        return self._chat.render(asked.messages, asked.template, asked.think)

    def count(self, asked: Count) -> Counted:
        """The tokens of a text, or of a chat's prompt."""
        return Counted(len(self._target.vocabulary.tokenize(self._chat.prompt(asked).text)))

    # --- measuring ----------------------------------------------------------------------

    def probe(self, asked: Probe) -> Iterator[Plan | Measured]:
        """Measure what passes cost, in about so many seconds; the memories end empty."""
        self._stop = False
        draft = self._readers[1].model if self._draft else None
        times: prober.Times | None = None
        shown = 0
        if self._free_threads:
            yield Plan("probing", "finding the better number of threads")
            self._use_threads(prober.better_threads(self._target, self._draft))
        for times in prober.measure(self._target, draft, self._most, asked.seconds):
            if len(times.verify) != shown:
                shown = len(times.verify)
                yield Plan("probing", f"measuring passes of {max(times.verify)} tokens")
            if self._stop:
                break
        assert times is not None
        if asked.difference:
            yield Plan("probing", "comparing passes of different widths")
            self._difference = prober.difference(self._target, self._most)
        self._costs = Costs(Measured(times.t1(), times.curve(), times.c()))
        yield from self.measured()

    def measured(self) -> Iterator[Measured]:
        """What is known of the pair's costs, if anything is."""
        if not self._costs.known:
            return
        plain = self._costs.plain
        yield Measured(
            t1_ms=round(plain, 4),
            curve=self._costs.curve(),
            c=round(self._costs.draft / plain, 5) if self._draft else None,
            host_ms=round(self._host_ms, 4),
            threads=self._target.n_threads,
            difference=self._difference,
            survival={name: known.survival.counts() for name, known in self._known.items()},
        )

    def _use_threads(self, n: int) -> None:
        for model in (self._target, self._draft):
            if model is not None:
                model.use_threads(n)

    def replay(self, asked: Replay) -> Replayed:
        """What the target alone says of an answer's tokens, in passes of the widths asked for."""
        self._stop = False
        return replay(self._readers[0], self._prompt(asked.text), asked, self._asked_to_stop)

    def inspect(self, asked: Inspect) -> Iterator[Inspected]:
        """What the target gives to an answer's tokens; the memory ends as after writing it."""
        self._stop = False
        words, prompt = self._target.vocabulary, self._prompt(self._chat.prompt(asked).text)
        tokens, stop = asked.tokens, self._asked_to_stop
        for seen in reread(self._readers[0], prompt, tokens, self._widest, stop):
            yield Inspected(
                tuple(Place(i.taken.p, i.taken.rank, alternatives(i, words)) for i in seen)
            )

    def _prompt(self, text: str) -> list[int]:
        prompt = self._target.vocabulary.tokenize(text)
        if not prompt:
            raise UsageError("The prompt is empty.", "Give one: -p 'def fibonacci(n):'")
        if len(prompt) >= self._target.n_ctx:
            larger = _round_up(len(prompt) + 512)
            trained = self._target.n_ctx_train
            possible = not trained or larger <= trained
            raise PromptTooLongError(
                f"The prompt has {len(prompt):,} tokens; the context holds {self._target.n_ctx:,}.",
                f"Use --ctx {larger}, or shorten it."
                if possible
                else f"Shorten it: the model was trained with {trained:,} tokens.",
            )
        return prompt

    def _choose(self, request: Generate) -> tuple[str, Plan]:
        name = request.spec
        length = self._length(request, DRAFT_LENGTH)
        if name in ("off", "none") or length < 1:
            why = "asked for" if self._most >= 1 else "the model cannot take back a wrong guess"
            return "none", Plan("off", why)
        if name == "auto":
            sources = "the draft model and copying" if self._draft else "copying"
            return name, Plan("probing", f"{sources}, as far as they pay")
        if name not in drafters.NAMES:
            known = ", ".join(["auto", "off", *drafters.NAMES[1:]])
            raise UsageError(f"There is no way of speculating called {name!r}.", f"Use: {known}.")
        if name == "model" and self._draft is None:
            raise UsageError(
                "Speculating with a model needs a draft model.",
                "Give one with --draft FILE, or use --spec lookup.",
            )
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
        model = drafters.make("model", needs) if self._draft else None
        return Controller(model, self._drafter("lookup", needs), self._costs, known)

    def _drafter(self, name: str, needs: drafters.Needs) -> Drafter:
        if name != "lookup":
            return drafters.make(name, needs)
        if self._lookup is None:  # kept: it knows the chat so far
            self._lookup = drafters.make(name, needs)
        return self._lookup

    def _asked_to_stop(self) -> bool:
        return self._stop

    def close(self) -> None:
        self._chat.close()
        for model in (self._draft, self._target):
            if model is not None:
                model.close()
        self._draft = None


def _check(request: Generate) -> None:
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
    if wrong is not None:
        raise wrong


def _used(asked: ContextSettings, model: llama.Llama) -> dict[str, Any]:
    return asdict(asked) | {
        "n_ctx": model.n_ctx,
        "n_ubatch": model.n_batch,
        "n_threads": model.n_threads,
    }


def _round_up(n: int) -> int:
    return -(-n // 256) * 256
