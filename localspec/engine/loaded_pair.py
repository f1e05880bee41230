"""Loads a target with its drafts, and checks that they are compatible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from localspec.engine import llama
from localspec.engine.chat_prompt import Prompt, PromptBuilder, reuse_answer_tokens
from localspec.engine.loaded_draft import LoadedDraft, is_own_mtp_layer, open_context
from localspec.errors import PromptTooLongError, UsageError
from localspec.machine import llama_params
from localspec.models.chat_template import render_process
from localspec.protocol.events import EngineReady, Notice
from localspec.protocol.wire import ContextSettings, LoadCommand


class LoadedPair:
    """The loaded target and its drafts, with the notices about them and the prompt builder."""

    def __init__(self, load: LoadCommand, interrupted: Callable[[], bool]) -> None:
        self.loaded_draft: LoadedDraft | None = None
        """None if none is given, or if it cannot draft here."""
        self.notices: list[Notice] = []
        self.has_workers = bool(load.target_settings.workers)
        role = llama_params.target_role(load)
        render_process.start_early(Path(load.target))  # it starts while llama.cpp loads
        with_mtp = load.draft is not None and is_own_mtp_layer(load.target, load.draft)
        self.target = open_context(Path(load.target), role, with_mtp=with_mtp)
        self.prompt_builder = PromptBuilder(
            self.target.vocabulary, self.target.model.chat_template()
        )
        self.notices += self.prompt_builder.notices
        try:
            if load.draft is not None:
                draft = LoadedDraft(Path(load.draft), load, self.target)
                self.notices += draft.notices
                self.loaded_draft = draft if draft.context is not None else None
        except BaseException:
            self.close()
            raise
        for model in self.models:
            if isinstance(model, llama.LlamaContext):
                model.is_interrupted = interrupted
        self.max_draft = min(load.draft_max, self.target.rollback)
        """Maximum number of draft tokens per round, limited by what the target can roll back."""
        self._add_warnings()

    @property
    def draft(self) -> llama.LlamaContext | llama.HeadContext | None:
        """The draft's context."""
        return self.loaded_draft.context if self.loaded_draft else None

    @property
    def models(self) -> list[llama.LlamaContext | llama.HeadContext]:
        return [self.target] if self.draft is None else [self.target, self.draft]

    @property
    def uses_two_devices(self) -> bool:
        """Whether most of the target and most of the draft are on different devices."""
        used = [model.memory_by_device() for model in self.models]
        main = [max(memory, key=lambda name: memory[name], default="") for memory in used]
        return len({*main}) == 2

    def _add_warnings(self) -> None:
        target = self.target
        if target.rollback < 1:
            self.notices.append(
                Notice(
                    "warning",
                    "no-rollback",
                    "This model cannot roll back rejected tokens (recurrent state without "
                    "snapshots), so speculation is off.",
                )
            )
        if target.n_ctx_train and target.n_ctx_requested > target.n_ctx_train:
            self.notices.append(
                Notice(
                    "warning",
                    "beyond-trained",
                    f"The context of {target.n_ctx:,} is longer than the {target.n_ctx_train:,} "
                    "tokens the model was trained with: answers may get worse.",
                )
            )

    def ready_event(self, load: LoadCommand, load_ms: float) -> EngineReady:
        draft = self.draft
        # An MTP layer of the target's own file shares the target's model.
        weights = sum(model.n_bytes() for model in {context.model for context in self.models})
        return EngineReady(
            engine=llama.versions(),
            model=Path(load.target).name,
            draft=self.loaded_draft.path.name if self.loaded_draft else None,
            devices=llama.devices(),
            settings={
                "target": _effective_settings(load.target_settings, self.target),
                "draft": _effective_settings(load.draft_settings, draft) if draft else None,
                "draft_kind": self.loaded_draft.kind if self.loaded_draft else None,
                "draft_max": self.max_draft,
                "chat": self.prompt_builder.ready_settings(),
                "fim": self.target.vocabulary.infill_tokens(),
            },
            memory={"predicted": None, "used": None, "weights": weights} | self._used_memory(),
            load_ms=load_ms,
            notices=tuple(self.notices),
        )

    def _used_memory(self) -> dict[str, int | None]:
        """Bytes by device and in total; empty if this llama.cpp build does not report them."""
        used: dict[str, int | None] = {}
        for model in self.models:
            for name, size in model.memory_by_device().items():
                used[name] = (used.get(name) or 0) + size
        total = sum(size or 0 for size in used.values())
        return {"used": total, **used} if used else {}

    def tokenize_prompt(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt; earlier answers keep the tokens they were generated with.

        Raises UsageError if the request's own tokens are not of this model.
        """
        vocabulary = self.target.vocabulary
        if prompt.tokens:
            if not all(0 <= token < vocabulary.n_tokens for token in prompt.tokens):
                raise UsageError("The prompt contains tokens that this model does not have.")
            return list(prompt.tokens)
        return reuse_answer_tokens(vocabulary.tokenize(prompt.text), prompt.messages, vocabulary)

    def checked_prompt_tokens(self, rendered_prompt: Prompt) -> list[int]:
        """The tokens of a prompt that leaves space for an answer.

        Raises UsageError if it is empty, PromptTooLongError if it fills the context.
        """
        tokens = self.tokenize_prompt(rendered_prompt)
        if not tokens:
            raise UsageError("The prompt is empty.", "Give a text to answer.")
        if len(tokens) >= self.target.n_ctx:
            larger = -(-(len(tokens) + 512) // 256) * 256
            trained = self.target.n_ctx_train
            possible = not trained or larger <= trained
            raise PromptTooLongError(
                f"The prompt has {len(tokens):,} tokens; the context holds {self.target.n_ctx:,}.",
                f"Use --ctx {larger}, or shorten it."
                if possible
                else f"Shorten it: the model was trained with {trained:,} tokens.",
            )
        return tokens

    def close(self) -> None:
        self.prompt_builder.close()
        if self.loaded_draft is not None:
            self.loaded_draft.close()
            self.loaded_draft = None
        self.target.close()


def _effective_settings(
    settings: ContextSettings, model: llama.LlamaContext | llama.HeadContext
) -> dict[str, Any]:
    return asdict(settings) | {
        "n_ctx": model.n_ctx,
        "n_ubatch": model.n_batch,
        "n_threads": model.n_threads,
    }
