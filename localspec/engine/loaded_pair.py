"""Loads a target with its draft model or head, and checks that they are compatible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from localspec.engine import draft_scoring, llama
from localspec.engine.chat_prompt import Prompt, PromptBuilder, reuse_answer_tokens
from localspec.engine.drafters.autoregressive_head import HeadRunner
from localspec.engine.drafters.block_head import BlockHeadRunner
from localspec.engine.prefix_cache import PrefixCache
from localspec.engine.vocabulary_map import SpelledVocabulary, VocabularyMap
from localspec.errors import LocalspecError, PromptTooLongError, UsageError
from localspec.machine import llama_params
from localspec.machine.llama_params import ModelRole
from localspec.models import draft_heads, pair_compatibility
from localspec.models.chat_template import render_process
from localspec.models.gguf import header, token_bytes
from localspec.protocol.events import EngineReady, Notice
from localspec.protocol.wire import ContextSettings, GenerateCommand, LoadCommand


class LoadedPair:
    """The loaded target and draft, with the notices about them and the prompt builder."""

    def __init__(self, load: LoadCommand, interrupted: Callable[[], bool]) -> None:
        self.draft: llama.LlamaContext | llama.HeadContext | None = None
        self.head_runner: HeadRunner | BlockHeadRunner | None = None
        """Feeds the target's hidden states to the head, if the draft is one."""
        self.draft_kind = "model"
        """`model`, `crossvocab` (a model with another vocabulary), or the kind of head."""
        self.vocabularies: VocabularyMap | None = None
        """If the draft model has another vocabulary than the target."""
        self._load = load
        self._scored_draft: tuple[llama.LlamaContext, PrefixCache] | None = None
        self._draft_prompts: PromptBuilder | None = None
        """Renders chats for such a draft model."""
        self.notices: list[Notice] = []
        self.has_workers = bool(load.target_settings.workers)
        self._is_self_mtp = load.draft is not None and _is_own_mtp_layer(load.target, load.draft)
        role = llama_params.target_role(load)
        render_process.start_early(Path(load.target))  # it starts while llama.cpp loads
        self.target = _open_context(Path(load.target), role, with_mtp=self._is_self_mtp)
        self.prompt_builder = PromptBuilder(
            self.target.vocabulary, self.target.model.chat_template()
        )
        self.notices += self.prompt_builder.notices
        try:
            if load.draft is not None:
                self._load_draft(Path(load.draft), load)
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
    def models(self) -> list[llama.LlamaContext | llama.HeadContext]:
        return [model for model in (self.target, self.draft) if model is not None]

    @property
    def can_overlap(self) -> bool:
        """Whether the draft model may draft while the target verifies."""
        draft = self.draft if self.draft_kind == "model" else None
        return isinstance(draft, llama.LlamaContext) and not draft.needs_checkpoints

    @property
    def uses_two_devices(self) -> bool:
        """Whether most of the target and most of the draft are on different devices."""
        used = [model.memory_by_device() for model in self.models]
        main = [max(memory, key=lambda name: memory[name], default="") for memory in used]
        return len({*main}) == 2

    @property
    def draft_description(self) -> str:
        name = draft_heads.KIND_TITLES.get(self.draft_kind)
        return f"the {name} head" if name else "the draft model"

    def _load_draft(self, path: Path, load: LoadCommand) -> None:
        if not self._is_self_mtp and not draft_heads.is_head(header.read(path)):
            self._load_draft_model(path, load)
            return
        try:
            if self._is_self_mtp:
                self._load_mtp_layer(None, load)
            else:
                self._load_head(path, load)
        except llama.HeadsUnsupportedError as missing:
            what = (
                "This build of llama.cpp cannot run "
                f"{draft_heads.KIND_TITLES[self.draft_kind]} heads"
            )
            message = f"{what}: it lacks {missing.missing_function}. {path.name} is not used."
            self.notices.append(Notice("warning", "no-heads", message, missing.hint))
            self.draft_kind = "model"

    def _load_head(self, path: Path, load: LoadCommand) -> None:
        gguf, model = header.read(path), self.target.model
        target = pair_compatibility.HeadTarget(
            model.architecture, model.n_layer, model.n_embd, self.target.vocabulary
        )
        verdict = pair_compatibility.check_head(target, gguf, path)
        if not verdict.is_compatible:
            raise pair_compatibility.incompatible_pair_error(
                verdict, Path(load.target).name, path.name
            )
        self.draft_kind = draft_heads.file_draft_kind(gguf)
        if self.draft_kind == "mtp":
            self._load_mtp_layer(path, load)
            return
        source = llama.LayerHiddenStates(self.target.handle, model, draft_heads.target_layers(gguf))
        settings, width, batch = load.draft_settings, source.width, self.target.n_batch
        if self.draft_kind == "eagle3":
            self.draft = head = llama.HeadContext(path, settings, self.target, target_width=width)
            self.head_runner = HeadRunner(head, self.draft_kind, batch)
        else:
            self.draft = block = llama.BlockHeadContext(
                path,
                settings,
                self.target,
                target_width=width,
                form=draft_heads.read_block_format(gguf),
            )
            self.head_runner = BlockHeadRunner(block, self.draft_kind, batch)
        self.target.set_listener(source, self.head_runner)

    def _load_mtp_layer(self, path: Path | None, load: LoadCommand) -> None:
        """Load an MTP layer from a file of its own, or from the target's file if `path` is None."""
        self.draft_kind = "mtp"
        source = llama.FinalHiddenStates(self.target.handle, self.target.model)
        settings, width = load.draft_settings, source.width
        self.draft = head = llama.HeadContext(
            path, settings, self.target, target_width=width, is_mtp=True
        )
        self.head_runner = HeadRunner(head, "mtp", self.target.n_batch, first_position=0)
        self.target.set_listener(source, self.head_runner)

    def _load_draft_model(self, path: Path, load: LoadCommand) -> None:
        is_target = path.resolve() == Path(load.target).resolve()
        verdict = pair_compatibility.check_compatibility(
            header.read(Path(load.target)), header.read(path), path
        )
        if not verdict.is_compatible:
            raise pair_compatibility.incompatible_pair_error(
                verdict, Path(load.target).name, path.name
            )
        is_cross = verdict.verdict == "cross-vocabulary"
        role = llama_params.draft_role(load, self.target.n_ctx, n_outputs=2 if is_cross else 1)
        self.draft = draft = _open_context(path, role)
        if is_cross:
            self._map_vocabularies(Path(load.target), path, draft)
            self.notices.append(
                Notice("info", "cross-vocabulary", f"{path.name} has {verdict.summary}.")
            )
        if is_target or draft.model.n_bytes() > self.target.model.n_bytes():
            what = "the target itself" if is_target else "larger than its target"
            message = f"The draft model is {what}, so speculation gains nothing."
            level: Literal["info", "warning"] = "info" if is_target else "warning"
            self.notices.append(
                Notice(level, "large-draft", message, "Use a smaller draft model, or --draft none.")
            )
        if draft.is_recurrent:  # it would decode the whole text again after each rejection
            draft.close()
            self.draft = None
            self.notices.append(
                Notice(
                    "warning",
                    "draft-no-rollback",
                    f"{path.name} cannot roll back rejected tokens (recurrent state), "
                    "so it is not used as a draft model.",
                )
            )

    def _map_vocabularies(self, target: Path, path: Path, draft: llama.LlamaContext) -> None:
        self.draft_kind = "crossvocab"
        self.vocabularies = VocabularyMap(
            _spelled_vocabulary(target, self.target), _spelled_vocabulary(path, draft)
        )
        self._draft_prompts = PromptBuilder(draft.vocabulary, draft.model.chat_template())

    def open_scored_draft(self) -> PrefixCache:
        """The draft model once more, with a row of logits for every token that it reads.

        Raises UsageError if there is none.
        """
        if self._load.draft is None or self.draft is None:
            raise UsageError("There is no draft to be judged.")
        if self._scored_draft is None:
            role = llama_params.draft_role(self._load, self.target.n_ctx, draft_scoring.READ_WIDTH)
            context = _open_context(Path(self._load.draft), role)
            self._scored_draft = context, PrefixCache(context)
        return self._scored_draft[1]

    def draft_prompt(self, request: GenerateCommand) -> list[int] | None:
        """The draft's own prompt of a chat; None if it reads the target's text."""
        if self._draft_prompts is None or self.draft is None or not request.messages:
            return None
        try:
            prompt = self._draft_prompts.build_prompt(replace(request, template=None))
        except LocalspecError:  # no template, or one that refuses this chat
            return None
        assert isinstance(self.draft, llama.LlamaContext)
        return self.draft.vocabulary.tokenize(prompt.text)

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
            draft=Path(load.draft).name if load.draft and draft else None,
            devices=llama.devices(),
            settings={
                "target": _effective_settings(load.target_settings, self.target),
                "draft": _effective_settings(load.draft_settings, draft) if draft else None,
                "draft_kind": self.draft_kind if draft else None,
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
            raise UsageError("The prompt is empty.", "Enter one: -p 'def fibonacci(n):'")
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
        if self._draft_prompts is not None:
            self._draft_prompts.close()
        if self._scored_draft is not None:
            self._scored_draft[0].close()
        for model in reversed(self.models):
            model.close()
        self.draft = None


def _is_own_mtp_layer(target: str, draft: str) -> bool:
    """Whether the draft is the target's own file and contains an MTP layer."""
    same = Path(target).resolve() == Path(draft).resolve()
    return same and draft_heads.has_own_mtp_layer(header.read(Path(target)))


def _spelled_vocabulary(path: Path, context: llama.LlamaContext) -> SpelledVocabulary:
    tokenizer, vocabulary = header.read(path).tokenizer, context.vocabulary
    return SpelledVocabulary(
        token_bytes.read_token_bytes(tokenizer),
        vocabulary.tokenize_plain,
        (vocabulary.bos,) if vocabulary.add_bos else (),
        tuple(sorted(tokenizer.eog_ids)),
    )


def _open_context(path: Path, role: ModelRole, *, with_mtp: bool = False) -> llama.LlamaContext:
    return llama.LlamaContext(
        path,
        role.settings,
        outputs=role.n_outputs_max,
        rollback=role.n_rs_seq,
        n_branches=role.n_branches,
        within_trained=role.limit_to_trained_ctx,
        with_mtp=with_mtp,
    )


def _effective_settings(
    settings: ContextSettings, model: llama.LlamaContext | llama.HeadContext
) -> dict[str, Any]:
    return asdict(settings) | {
        "n_ctx": model.n_ctx,
        "n_ubatch": model.n_batch,
        "n_threads": model.n_threads,
    }
