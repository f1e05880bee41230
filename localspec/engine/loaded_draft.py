"""Loads a draft model or head for a loaded target, and checks that it is compatible."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from localspec.engine import draft_scoring, llama
from localspec.engine.chat_prompt import PromptBuilder
from localspec.engine.drafters.autoregressive_head import HeadRunner
from localspec.engine.drafters.block_head import BlockHeadRunner
from localspec.engine.prefix_cache import PrefixCache
from localspec.engine.vocabulary_map import SpelledVocabulary, VocabularyMap
from localspec.errors import LocalspecError
from localspec.machine import llama_params
from localspec.machine.llama_params import ModelRole
from localspec.models import draft_heads, pair_compatibility
from localspec.models.gguf import reader, token_bytes
from localspec.protocol.events import Notice
from localspec.protocol.wire import GenerateCommand, LoadCommand


class LoadedDraft:
    """One draft of a loaded target: its context, and what drafting with it needs."""

    def __init__(self, path: Path, load: LoadCommand, target: llama.LlamaContext) -> None:
        self.context: llama.LlamaContext | llama.HeadContext | None = None
        """None if it cannot draft here; a notice says why."""
        self.head_runner: HeadRunner | BlockHeadRunner | None = None
        """Feeds the target's hidden states to the head, if the draft is one."""
        self.kind = "model"
        """`model`, `crossvocab` (a model with another vocabulary), or the kind of head."""
        self.vocabularies: VocabularyMap | None = None
        """If the draft model has another vocabulary than the target."""
        self.notices: list[Notice] = []
        self.path = path
        self._load, self._target = load, target
        self._scored: tuple[llama.LlamaContext, PrefixCache] | None = None
        self._prompts: PromptBuilder | None = None
        """Renders chats for a draft model with another vocabulary."""
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @property
    def can_overlap(self) -> bool:
        """Whether it may draft while the target verifies."""
        draft = self.context if self.kind == "model" else None
        return isinstance(draft, llama.LlamaContext) and not draft.needs_checkpoints

    @property
    def is_on_gpu(self) -> bool:
        """Whether most of it is on another device than the CPU."""
        used = self.context.memory_by_device() if self.context else {}
        return max(used, key=lambda name: used[name], default="CPU") != "CPU"

    @property
    def description(self) -> str:
        name = draft_heads.KIND_TITLES.get(self.kind)
        return f"the {name} head" if name else "the draft model"

    def _open(self) -> None:
        is_own_layer = is_own_mtp_layer(self._load.target, str(self.path))
        if not is_own_layer and not draft_heads.is_head(reader.read(self.path)):
            self._open_model()
            return
        try:
            if is_own_layer:
                self._open_mtp_layer(None)
            else:
                self._open_head()
        except llama.HeadsUnsupportedError as missing:
            what = f"This build of llama.cpp cannot run {draft_heads.KIND_TITLES[self.kind]} heads"
            message = f"{what}: it lacks {missing.missing_function}. {self.path.name} is not used."
            self.notices.append(Notice("warning", "no-heads", message, missing.hint))
            self.kind = "model"

    def _open_head(self) -> None:
        path, target = self.path, self._target
        gguf, model = reader.read(path), target.model
        head_target = pair_compatibility.HeadTarget(
            model.architecture, model.n_layer, model.n_embd, target.vocabulary
        )
        verdict = pair_compatibility.check_head(head_target, gguf, path)
        if not verdict.is_compatible:
            raise pair_compatibility.incompatible_pair_error(
                verdict, Path(self._load.target).name, path.name
            )
        self.kind = draft_heads.file_draft_kind(gguf)
        if self.kind == "mtp":
            self._open_mtp_layer(path)
            return
        source = llama.LayerHiddenStates(target.handle, model, draft_heads.target_layers(gguf))
        settings, width, batch = self._load.draft_settings, source.width, target.n_batch
        if self.kind == "eagle3":
            self.context = head = llama.HeadContext(path, settings, target, target_width=width)
            self.head_runner = HeadRunner(head, self.kind, batch)
        else:
            form = draft_heads.read_block_format(gguf)
            self.context = block = llama.BlockHeadContext(
                path, settings, target, target_width=width, form=form
            )
            self.head_runner = BlockHeadRunner(block, self.kind, batch)
        target.set_listener(source, self.head_runner)

    def _open_mtp_layer(self, path: Path | None) -> None:
        """Load an MTP layer from a file of its own, or from the target's file if `path` is None."""
        self.kind, target = "mtp", self._target
        source = llama.FinalHiddenStates(target.handle, target.model)
        self.context = head = llama.HeadContext(
            path, self._load.draft_settings, target, target_width=source.width, is_mtp=True
        )
        self.head_runner = HeadRunner(head, "mtp", target.n_batch, first_position=0)
        target.set_listener(source, self.head_runner)

    def _open_model(self) -> None:
        path, target = self.path, Path(self._load.target)
        verdict = pair_compatibility.check_compatibility(
            reader.read(target), reader.read(path), path
        )
        if not verdict.is_compatible:
            raise pair_compatibility.incompatible_pair_error(verdict, target.name, path.name)
        is_cross = verdict.verdict == "cross-vocabulary"
        role = llama_params.draft_role(self._load, self._target.n_ctx, 2 if is_cross else 1)
        self.context = draft = open_context(path, role)
        if is_cross:
            self._map_vocabularies(target, draft)
            self.notices.append(
                Notice("info", "cross-vocabulary", f"{path.name} has {verdict.summary}.")
            )
        self._warn_if_large(draft, is_target=path.resolve() == target.resolve())
        if draft.is_recurrent:  # it would decode the whole text again after each rejection
            draft.close()
            self.context = None
            message = (
                f"{path.name} cannot roll back rejected tokens (recurrent state), "
                "so it is not used as a draft model."
            )
            self.notices.append(Notice("warning", "draft-no-rollback", message))

    def _warn_if_large(self, draft: llama.LlamaContext, *, is_target: bool) -> None:
        if not is_target and draft.model.n_bytes() <= self._target.model.n_bytes():
            return
        what = "the target itself" if is_target else "larger than its target"
        message = f"The draft model is {what}, so speculation gains nothing."
        level: Literal["info", "warning"] = "info" if is_target else "warning"
        self.notices.append(
            Notice(level, "large-draft", message, "Use a smaller draft model, or --draft none.")
        )

    def _map_vocabularies(self, target: Path, draft: llama.LlamaContext) -> None:
        self.kind = "crossvocab"
        self.vocabularies = VocabularyMap(
            _spelled_vocabulary(target, self._target), _spelled_vocabulary(self.path, draft)
        )
        self._prompts = PromptBuilder(draft.vocabulary, draft.model.chat_template())

    def open_scored(self) -> PrefixCache:
        """The draft model once more, with a row of logits for every token that it reads."""
        if self._scored is None:
            n_rows = draft_scoring.READ_WIDTH
            role = llama_params.draft_role(self._load, self._target.n_ctx, n_rows)
            context = open_context(self.path, role)
            self._scored = context, PrefixCache(context)
        return self._scored[1]

    def prompt(self, request: GenerateCommand) -> list[int] | None:
        """The draft's own prompt of a chat; None if it reads the target's text."""
        if self._prompts is None or self.context is None or not request.messages:
            return None
        try:
            prompt = self._prompts.build_prompt(replace(request, template=None))
        except LocalspecError:  # no template, or one that refuses this chat
            return None
        assert isinstance(self.context, llama.LlamaContext)
        return self.context.vocabulary.tokenize(prompt.text)

    def close(self) -> None:
        if self._prompts is not None:
            self._prompts.close()
        if self._scored is not None:
            self._scored[0].close()
        if self.context is not None:
            self.context.close()


def is_own_mtp_layer(target: str, draft: str) -> bool:
    """Whether the draft is the target's own file and contains an MTP layer."""
    same = Path(target).resolve() == Path(draft).resolve()
    return same and draft_heads.has_own_mtp_layer(reader.read(Path(target)))


def _spelled_vocabulary(path: Path, context: llama.LlamaContext) -> SpelledVocabulary:
    tokenizer, vocabulary = reader.read(path).tokenizer, context.vocabulary
    return SpelledVocabulary(
        token_bytes.read_token_bytes(tokenizer),
        vocabulary.tokenize_plain,
        (vocabulary.bos,) if vocabulary.add_bos else (),
        tuple(sorted(tokenizer.eog_ids)),
    )


def open_context(path: Path, role: ModelRole, *, with_mtp: bool = False) -> llama.LlamaContext:
    return llama.LlamaContext(
        path,
        role.settings,
        outputs=role.n_outputs_max,
        rollback=role.n_rs_seq,
        n_branches=role.n_branches,
        within_trained=role.limit_to_trained_ctx,
        with_mtp=with_mtp,
    )
