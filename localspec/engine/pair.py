"""A target and perhaps a draft model or head, loaded and found to go together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from localspec.engine import llama
from localspec.engine.chat import Chat, Prompt
from localspec.engine.drafters.blocks import BlockCompanion
from localspec.engine.drafters.companion import Companion
from localspec.engine.spelling import spelt
from localspec.errors import PromptTooLongError, UsageError
from localspec.machine import parameters
from localspec.machine.parameters import Role
from localspec.models import header, heads, pairing
from localspec.protocol.events import Notice, Ready
from localspec.protocol.wire import ContextSettings, Load


class Pair:
    """Both models, what is to be told of them, and how a chat becomes a prompt for them."""

    def __init__(self, load: Load, interrupted: Callable[[], bool]) -> None:
        self.draft: llama.Llama | llama.Head | None = None
        self.companion: Companion | BlockCompanion | None = None
        """Makes drafts of a head out of what the target reads."""
        self.kind = "model"
        """What the draft is: a model, or the kind of its head."""
        self.notices: list[Notice] = []
        self._predicting = load.draft is not None and _predicts(load.target, load.draft)
        role = parameters.of_target(load)
        self.target = _opened(Path(load.target), role, predicting=self._predicting)
        self.chat = Chat(self.target.vocabulary, self.target.weights.chat_template())
        self.notices += self.chat.notices
        try:
            if load.draft is not None:
                self._load_draft(Path(load.draft), load)
        except BaseException:
            self.close()
            raise
        for model in self.models:
            if isinstance(model, llama.Llama):
                model.interrupted = interrupted
        self.most = min(load.draft_max, self.target.rollback)
        """Tokens that can be guessed in a round and taken back."""
        self._warn()

    @property
    def models(self) -> list[llama.Llama | llama.Head]:
        """The target, then the draft if there is one."""
        return [model for model in (self.target, self.draft) if model is not None]

    @property
    def drafting(self) -> str:
        """What drafts, in words."""
        name = heads.NAMES.get(self.kind)
        return f"the {name} head" if name else "the draft model"

    def _load_draft(self, path: Path, load: Load) -> None:
        if not self._predicting and not heads.is_head(header.read(path)):
            self._load_model(path, load)
            return
        try:
            if self._predicting:
                self._use_layer(None, load)
            else:
                self._load_head(path, load)
        except llama.NoHeadsError as missing:
            what = f"This build of llama.cpp cannot run {heads.NAMES[self.kind]} heads"
            said = f"{what}: it lacks {missing.lacks}. {path.name} is not used."
            self.notices.append(Notice("warning", "no-heads", said, missing.hint))
            self.kind = "model"

    def _load_head(self, path: Path, load: Load) -> None:
        facts, weights, name = header.read(path), self.target.weights, Path(load.target).name
        target = heads.Target(
            weights.architecture, weights.n_layer, weights.n_embd, self.target.vocabulary
        )
        verdict = heads.check(target, facts, path)
        if not verdict.compatible:
            raise pairing.refusal(verdict, name, path.name)
        self.kind = heads.kind(facts)
        if self.kind == "mtp":
            self._use_layer(path, load)
            return
        taps = llama.Taps(self.target.context, weights, heads.layers(facts))
        settings, width, batch = load.draft_settings, taps.width, self.target.n_batch
        if self.kind == "eagle3":
            self.draft = head = llama.Head(path, settings, self.target, taken_width=width)
            self.companion = Companion(head, batch)
        else:
            self.draft = block = llama.Block(
                path, settings, self.target, taken_width=width, form=heads.form(facts)
            )
            self.companion = BlockCompanion(block, batch)
        self.target.follow(taps, self.companion)

    def _use_layer(self, path: Path | None, load: Load) -> None:
        """One that predicts: without a path the target's own."""
        self.kind = "mtp"
        last = llama.LastStates(self.target.context, self.target.weights)
        settings, width = load.draft_settings, last.width
        self.draft = head = llama.Head(
            path, settings, self.target, taken_width=width, predicting=True
        )
        self.companion = Companion(head, self.target.n_batch, first=0)
        self.target.follow(last, self.companion)

    def _load_model(self, path: Path, load: Load) -> None:
        self.draft = draft = _opened(path, parameters.of_draft(load, self.target.n_ctx))
        same = path.resolve() == Path(load.target).resolve()
        if not same:
            verdict = pairing.check(self.target.vocabulary, draft.vocabulary)
            if not verdict.compatible:
                raise pairing.refusal(verdict, Path(load.target).name, path.name)
        if same or draft.weights.n_bytes() > self.target.weights.n_bytes():
            how = "the target itself" if same else "larger than its target"
            said = f"The draft is {how}: a guess costs as much as an answer, so nothing is gained."
            level: Literal["info", "warning"] = "info" if same else "warning"
            self.notices.append(
                Notice(level, "large-draft", said, "Take a smaller draft, or --draft none.")
            )
        if draft.recurrent:  # it would read the text again after each rejection
            draft.close()
            self.draft = None
            self.notices.append(
                Notice(
                    "warning",
                    "draft-no-rollback",
                    f"{path.name} cannot take back a wrong guess (recurrent memory), "
                    "so it is not used.",
                )
            )

    def _warn(self) -> None:
        target = self.target
        if target.rollback < 1:
            self.notices.append(
                Notice(
                    "warning",
                    "no-rollback",
                    "This model cannot take back a wrong guess (recurrent memory without "
                    "snapshots), so it runs plain.",
                )
            )
        if target.n_ctx_train and target.n_ctx_asked > target.n_ctx_train:
            self.notices.append(
                Notice(
                    "warning",
                    "beyond-trained",
                    f"The context of {target.n_ctx:,} is longer than the {target.n_ctx_train:,} "
                    "tokens the model was trained with: answers may get worse.",
                )
            )

    def ready(self, load: Load, load_ms: float) -> Ready:
        """What to say when everything is loaded."""
        draft = self.draft
        weights = sum(one.n_bytes() for one in {model.weights for model in self.models})
        return Ready(
            engine=llama.versions(),
            model=Path(load.target).name,
            draft=Path(load.draft).name if load.draft and draft else None,
            devices=llama.devices(),
            settings={
                "target": _used(load.target_settings, self.target),
                "draft": _used(load.draft_settings, draft) if draft else None,
                "draft_kind": self.kind if draft else None,
                "draft_max": self.most,
                "chat": self.chat.settings(),
            },
            memory={"predicted": None, "used": None, "weights": weights} | self._memory(),
            load_ms=load_ms,
            notices=tuple(self.notices),
        )

    def _memory(self) -> dict[str, int | None]:
        """Bytes by device, and of all; nothing where this llama.cpp does not tell."""
        used: dict[str, int | None] = {}
        for model in self.models:
            for name, size in model.memory().items():
                used[name] = (used.get(name) or 0) + size
        total = sum(size or 0 for size in used.values())
        return {"used": total, **used} if used else {}

    def tokens(self, prompt: Prompt) -> list[int]:
        """Its ids, those of earlier answers as they were written."""
        words = self.target.vocabulary
        return spelt(words.tokenize(prompt.text), prompt.said, words)

    def prompt(self, asked: Prompt) -> list[int]:
        """The ids of a prompt that leaves room for an answer.

        Raises UsageError where it is empty, PromptTooLongError.
        """
        prompt = self.tokens(asked)
        if not prompt:
            raise UsageError("The prompt is empty.", "Give one: -p 'def fibonacci(n):'")
        if len(prompt) >= self.target.n_ctx:
            larger = _round_up(len(prompt) + 512)
            trained = self.target.n_ctx_train
            possible = not trained or larger <= trained
            raise PromptTooLongError(
                f"The prompt has {len(prompt):,} tokens; the context holds {self.target.n_ctx:,}.",
                f"Use --ctx {larger}, or shorten it."
                if possible
                else f"Shorten it: the model was trained with {trained:,} tokens.",
            )
        return prompt

    def use_threads(self, n: int) -> None:
        for model in self.models:
            model.use_threads(n)

    def close(self) -> None:
        self.chat.close()
        for model in reversed(self.models):
            model.close()
        self.draft = None


def _predicts(target: str, draft: str) -> bool:
    """Whether the draft is the target's own file, and that brings a layer that guesses."""
    same = Path(target).resolve() == Path(draft).resolve()
    return same and heads.predicts(header.read(Path(target)))


def _opened(path: Path, role: Role, *, predicting: bool = False) -> llama.Llama:
    return llama.Llama(
        path,
        role.settings,
        outputs=role.outputs,
        rollback=role.rollback,
        within_trained=role.within_trained,
        predicting=predicting,
    )


def _used(asked: ContextSettings, model: llama.Llama | llama.Head) -> dict[str, Any]:
    return asdict(asked) | {
        "n_ctx": model.n_ctx,
        "n_ubatch": model.n_batch,
        "n_threads": model.n_threads,
    }


def _round_up(n: int) -> int:
    return -(-n // 256) * 256
