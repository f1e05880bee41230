"""Loads a target, and a draft model or head that is compatible with it."""

from __future__ import annotations

import importlib
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from localspec import draft_kinds, extras
from localspec.engine import draft_scoring
from localspec.engine.chat_prompt import PromptBuilder
from localspec.engine.prompt_pictures import (
    PictureTimer,
    PromptPictures,
    TowerSizes,
    estimate_audio_row,
)
from localspec.errors import LocalspecError
from localspec.llama import hidden_states, library
from localspec.llama.context import LlamaContext
from localspec.llama.head_context import BlockHeadContext, HeadContext
from localspec.llama.images import Projector
from localspec.llama.trimmed_draft import TrimmedDraftContext
from localspec.machine import installed_llama_cpp, llama_params
from localspec.machine.llama_params import ModelRole
from localspec.models import draft_heads, pair_compatibility, projector_shape
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from localspec.models.projector_check import check_projector
from localspec.models.projector_kinds import projector_kind
from localspec.protocol.events import EngineReady, Notice
from localspec.protocol.wire import (
    MODEL_DRAFT_MAX,
    ContextSettings,
    GenerateCommand,
    LoadCommand,
    MeasuredCosts,
    PictureSpeed,
    ProjectorSettings,
)
from localspec.sanitize import sanitize
from localspec.spec.control.pass_costs import (
    ROW_COSTS,
    UNKNOWN_ROW_COST,
    UsualCosts,
)
from localspec.spec.drafters.autoregressive_head import HeadRunner
from localspec.spec.drafters.block_head import BlockHeadRunner
from localspec.spec.prefix_cache import PrefixCache

AnyContext = LlamaContext | HeadContext
_DRAFT_COST_MARGIN = 1.5
"""A draft pass reads fewer bytes, but begins and ends as often as the target's.

Measured on two cores: 1.0 for SmolLM2's head and a draft of 48 M, 1.4 and 2.1 for the
demo's head and draft, whose passes take 0.3 ms.
"""


class PreparedDraft(Struct, frozen=True):
    """What the loader of a kind of draft adds to a loaded draft model."""

    data: object
    """Handed to the kind's drafter, as `DrafterInputs.prepared`."""
    prompts: PromptBuilder | None = None
    """Renders chats for the draft model; None: it reads the target's text."""


class LoadedDraft:
    """The draft of a loaded target: its context, and what drafting with it needs."""

    def __init__(self, path: Path, load: LoadCommand, target: LlamaContext) -> None:
        self.context: AnyContext | None = None
        """It stays None if the draft cannot be used here; a notice says why."""
        self.head_runner: HeadRunner | BlockHeadRunner | None = None
        """Feeds the target's hidden states to the head, if the draft is one."""
        self.kind = "model"
        """The name of a row of `draft_kinds.py`."""
        self.prepared: object = None
        """What the kind's loader made, for its drafter."""
        self.notices: list[Notice] = []
        self.path = path
        self._load = load
        self._target = target
        self._scored: PrefixCache | None = None
        """The result of `load_for_scoring`."""
        self._scored_context: LlamaContext | None = None
        self._prompts: PromptBuilder | None = None
        """Renders chats for a draft model that reads them by its own template."""
        try:
            self._load_draft()
        except BaseException:
            self.close()
            raise

    @property
    def is_on_gpu(self) -> bool:
        """Whether most of it is on another device than the CPU."""
        return self.context is not None and _main_device(self.context) != "CPU"

    @property
    def description(self) -> str:
        name = draft_kinds.head_title(self.kind)
        return f"the {name} head" if name else "the draft model"

    def _load_draft(self) -> None:
        gguf = reader.read(self.path)
        is_own_layer = is_own_mtp_layer(self._load.target, str(self.path))
        if not is_own_layer and not draft_heads.is_head(gguf):
            self._load_model(gguf)
            return
        try:
            if is_own_layer:
                self._load_mtp_layer(None)
            else:
                self._load_head(gguf)
        except hidden_states.HeadsUnsupportedError as missing:
            title = draft_kinds.head_title(self.kind)
            message = (
                f"This build of llama.cpp cannot run {title} heads: it lacks "
                f"{missing.missing_function}. {self.path.name} is not used."
            )
            self.notices.append(Notice("warning", "no-heads", message, missing.hint))
            self.kind = "model"

    def _check_pair(self, gguf: Header) -> pair_compatibility.CompatibilityResult:
        """The verdict on target and draft. Raises LocalspecError if they do not fit."""
        target = Path(self._load.target)
        verdict = pair_compatibility.check_compatibility(
            reader.read(target), gguf, self.path
        )
        if not verdict.is_compatible:
            raise pair_compatibility.incompatible_pair_error(
                verdict, target.name, self.path.name
            )
        return verdict

    def _load_head(self, gguf: Header) -> None:
        target = self._target
        self._check_pair(gguf)
        self.kind = draft_heads.file_draft_kind(gguf)
        if self.kind == "mtp":
            self._load_mtp_layer(self.path, is_assistant=draft_heads.is_assistant(gguf))
            return
        layers = draft_heads.target_layers(gguf)
        source = hidden_states.LayerHiddenStates(target.handle, target.model, layers)
        settings = self._load.draft_settings
        if self.kind == "eagle3":
            head = HeadContext(self.path, settings, target, target_width=source.width)
            self.context = head
            self.head_runner = HeadRunner(head, self.kind, target.n_batch)
        else:
            block = BlockHeadContext(
                self.path,
                settings,
                target,
                target_width=source.width,
                form=draft_heads.read_block_format(gguf),
            )
            self.context = block
            self.head_runner = BlockHeadRunner(block, self.kind, target.n_batch)
        target.set_listener(source, self.head_runner)

    def _load_mtp_layer(self, path: Path | None, *, is_assistant: bool = False) -> None:
        """Load an MTP head from a file of its own, or from the target's file (None)."""
        self.kind = "mtp"
        target = self._target
        settings = self._load.draft_settings
        # An assistant reads the target's cache, whose layout depends on these settings.
        if is_assistant:
            same = self._load.target_settings
            settings = replace(
                settings, flash_attn=same.flash_attn, kv_type=same.kv_type
            )
        source = hidden_states.FinalHiddenStates(target.handle, target.model)
        head = HeadContext(
            path, settings, target, target_width=source.width, is_mtp=True
        )
        self.context = head
        self.head_runner = HeadRunner(head, "mtp", target.n_batch, first_position=0)
        target.set_listener(source, self.head_runner)

    def _load_model(self, gguf: Header) -> None:
        path = self.path
        target = Path(self._load.target)
        verdict = self._check_pair(gguf)
        kind = draft_kinds.of_verdict(verdict.verdict) or draft_kinds.kinds()["model"]
        self.kind = kind.name
        role = llama_params.draft_role(
            self._load, self._target.n_ctx, kind.n_output_rows
        )
        draft = _load_draft_context(path, role, gguf)
        self.context = draft
        if kind.loader:
            prepare = extras.load_object(kind.loader)
            prepared: PreparedDraft = prepare(target, self._target, path, draft)
            self.prepared = prepared.data
            self._prompts = prepared.prompts
            message = f"{path.name} has {verdict.summary}."
            self.notices.append(Notice("info", kind.verdict, message))
        if path.resolve() == target.resolve():
            self.notices.append(_large_draft_notice("info", "the target itself"))
        elif draft.model.n_bytes() > self._target.model.n_bytes():
            self.notices.append(
                _large_draft_notice("warning", "larger than its target")
            )
        # Without checkpoints it would decode the whole text again after each rejection.
        if draft.is_recurrent and not _can_return(draft):
            draft.close()
            self.context = None
            message = (
                f"{path.name} cannot roll back rejected tokens (recurrent state), "
                "so it is not used as a draft model."
            )
            self.notices.append(Notice("warning", "draft-no-rollback", message))

    def load_for_scoring(self) -> PrefixCache:
        """The draft model once more, with a row of logits for every token it reads."""
        if self._scored is None:
            n_rows = draft_scoring.READ_WIDTH
            role = llama_params.draft_role(self._load, self._target.n_ctx, n_rows)
            gguf = reader.read(self.path)
            self._scored_context = _load_draft_context(self.path, role, gguf)
            self._scored = PrefixCache(self._scored_context)
        return self._scored

    def prompt(self, request: GenerateCommand) -> list[int] | None:
        """The draft's own prompt of a chat; None if it reads the target's text."""
        if self._prompts is None or self.context is None or not request.messages:
            return None
        try:
            prompt = self._prompts.build_prompt(replace(request, template=None))
        except LocalspecError:  # There is no template, or it refuses this chat.
            return None
        return self._prompts.tokenize(prompt)

    def close(self) -> None:
        if self._scored_context is not None:
            self._scored_context.close()
        if self.context is not None:
            self.context.close()


def _large_draft_notice(level: Literal["info", "warning"], what: str) -> Notice:
    message = f"The draft model is {what}, so speculation gains nothing."
    hint = "Use a smaller draft model, or none."
    return Notice(level, "large-draft", message, hint)


def _load_draft_context(path: Path, role: ModelRole, gguf: Header) -> LlamaContext:
    if gguf.has_trimmed_vocabulary:
        return TrimmedDraftContext(path, role, gguf)
    return LlamaContext(path, role)


def is_own_mtp_layer(target: str, draft: str) -> bool:
    """Whether the draft is the target's own file and contains an MTP layer."""
    same = Path(target).resolve() == Path(draft).resolve()
    return same and draft_heads.has_own_mtp_layer(reader.read(Path(target)))


def _can_return(context: LlamaContext) -> bool:
    """Whether a checkpoint brings a recurrent state back; leaves the memory empty.

    It is tried with two tokens, of which the second is taken back. If that fails, the
    memory is empty instead.
    """
    context.decode([0], 0)
    context.save_checkpoint(until_next=True)
    context.decode([0], 0)
    context.truncate(1)
    is_restored = context.n_past == 1
    context.truncate(0)
    return is_restored


def _main_device(context: AnyContext) -> str:
    """The device with most of the memory."""
    used = context.memory_by_device()
    return max(used, key=lambda name: used[name], default="")


class LoadedPair:
    """The loaded target and its draft, their notices, and the builder of prompts."""

    def __init__(self, load: LoadCommand, interrupted: Callable[[], bool]) -> None:
        self.loaded_draft: LoadedDraft | None = None
        """None if none is given, or if it cannot draft here."""
        self.projector: Projector | None = None
        self.pictures: PromptPictures | None = None
        """Both None if the target is loaded without a projector."""
        self._projector_memory: dict[str, int] = {}
        """Bytes of its weights, and of the buffer of its largest picture, by device."""
        self._projector_weights = 0
        self.notices: list[Notice] = []
        self.has_remote_layers = bool(load.target_settings.remote_hosts)
        # The renderer is imported while llama.cpp loads; rendering waits for it.
        import_renderer = threading.Thread(
            target=importlib.import_module,
            args=("localspec.models.chat_template.jinja_render",),
            daemon=True,
        )
        import_renderer.start()
        with_mtp = load.draft is not None and is_own_mtp_layer(load.target, load.draft)
        self.target = LlamaContext(
            Path(load.target), llama_params.target_role(load, load_mtp=with_mtp)
        )
        try:
            self.prompt_builder = PromptBuilder(
                self.target.vocabulary,
                source=self.target.model.chat_template(),
                tool_source=self.target.model.chat_template("tool_use"),
            )
            if load.projector is not None:
                self._load_projector(load.projector, load.measured)
            if load.draft is not None:
                self._load_draft(Path(load.draft), load)
            for model in self.models:
                if isinstance(model, LlamaContext):
                    model.is_interrupted = interrupted
            rollback = self.target.rollback
            self.max_model_draft = min(load.draft_max, MODEL_DRAFT_MAX, rollback)
            """The most that a draft model or head drafts: what can be rolled back."""
            self.max_draft = load.draft_max if rollback else 0
            """The most draft tokens of a round.

            A copy may be longer than what can be rolled back: the loop saves a
            checkpoint before it.
            """
            self._add_warnings()
        except BaseException:
            self.close()
            raise

    def _load_projector(
        self, settings: ProjectorSettings, measured: MeasuredCosts | None
    ) -> None:
        """Raises ModelFileError, NotFoundError, UsageError or EngineError."""
        path = Path(settings.path)
        header = reader.read(path)
        check_projector(header, path.name)
        on_gpu = settings.on_gpu and library.has_gpu()
        self.projector = Projector.open(
            path,
            self.target,
            kind=projector_kind(header),
            on_gpu=on_gpu,
            max_rows=settings.max_rows,
        )
        device = "CPU"
        if on_gpu:
            device = _main_device(self.target)
        self._projector_weights = header.weight_bytes
        needed = header.weight_bytes
        with suppress(ArithmeticError, ValueError):
            shape = projector_shape.from_header(header)
            n_batch = self.target.n_batch
            rows = shape.rows(on_gpu=on_gpu, n_batch=n_batch, limit=settings.max_rows)
            # llama.cpp allocates it with the first picture, and tells no size.
            needed += shape.compute_bytes(rows, on_gpu=on_gpu)
            needed += shape.work_bytes(rows, on_gpu=on_gpu)
        self._projector_memory = {device: needed}
        estimate: float | None = None
        if not on_gpu:
            sizes = TowerSizes.from_header(header)
            n_threads = self.target.n_threads_batch
            estimate = sizes.seconds_per_row(n_threads=n_threads)
        speed: PictureSpeed | None = None
        if measured is not None:
            speed = measured.pictures
        name = f"{path.name}, {header.weight_bytes}, {device}"
        timer = PictureTimer(name, estimate, measured=speed)
        audio_estimate: float | None = None
        if not on_gpu:
            audio_estimate = estimate_audio_row(
                header,
                rows=self.projector.audio_rows,
                n_threads=self.target.n_threads_batch,
            )
        audio_timer = PictureTimer(name, audio_estimate)
        self.pictures = PromptPictures(self.projector, timer, audio_timer)

    def _image_settings(self) -> dict[str, Any] | None:
        """The `images` part of `EngineReady.settings`."""
        projector = self.projector
        if projector is None:
            return None
        return {
            "kind": sanitize(projector.kind, multiline=False),
            "max_rows": projector.max_rows,
            "audio": projector.hears,
        }

    def _load_draft(self, path: Path, load: LoadCommand) -> None:
        draft = LoadedDraft(path, load, self.target)
        self.notices += draft.notices
        if draft.context is not None:
            self.loaded_draft = draft

    def _add_warnings(self) -> None:
        if self.target.rollback < 1:
            message = (
                "This model cannot roll back rejected tokens (recurrent state without "
                "snapshots), so speculation is off."
            )
            self.notices.append(Notice("warning", "no-rollback", message))
        trained = self.target.n_ctx_train
        if trained and self.target.n_ctx_requested > trained:
            message = (
                f"The context of {self.target.n_ctx:,} is longer than the {trained:,} "
                "tokens the model was trained with: answers may get worse."
            )
            self.notices.append(Notice("warning", "beyond-trained", message))

    @property
    def draft(self) -> AnyContext | None:
        """The draft's context."""
        return self.loaded_draft.context if self.loaded_draft else None

    @property
    def models(self) -> list[AnyContext]:
        return [self.target] if self.draft is None else [self.target, self.draft]

    @property
    def usual_costs(self) -> UsualCosts:
        """What passes of such a pair usually cost, before they are timed."""
        device = _main_device(self.target).rstrip("0123456789")
        if device == "CPU" and self.target.model.has_float_weights:
            device = "CPU, floats"
        row = ROW_COSTS.get(device, UNKNOWN_ROW_COST)
        if self.draft is None or self.draft.model is self.target.model:
            # A layer of the target's own file says nothing of its size.
            return UsualCosts(row)
        share = self.draft.model.n_bytes() / self.target.model.n_bytes()
        return UsualCosts(row, _DRAFT_COST_MARGIN * share)

    @property
    def uses_two_devices(self) -> bool:
        """Whether most of the target and most of the draft are on different devices."""
        return len({_main_device(model) for model in self.models}) == 2

    def ready_event(self, load: LoadCommand, load_ms: float) -> EngineReady:
        draft_name: str | None = None
        draft_settings: dict[str, Any] | None = None
        draft_kind: str | None = None
        if self.loaded_draft is not None and self.draft is not None:
            draft_name = self.loaded_draft.path.name
            draft_settings = _effective_settings(load.draft_settings, self.draft)
            draft_kind = self.loaded_draft.kind
        return EngineReady(
            engine={"llama_cpp_python": installed_llama_cpp.version()},
            model=Path(load.target).name,
            draft=draft_name,
            devices=library.devices(),
            settings={
                "target": _effective_settings(load.target_settings, self.target),
                "draft": draft_settings,
                "draft_kind": draft_kind,
                "draft_max": self.max_draft,
                "chat": self.prompt_builder.ready_settings(),
                "fim": self.target.vocabulary.infill_tokens(),
                "images": self._image_settings(),
            },
            memory=self._memory(),
            load_ms=load_ms,
            notices=tuple(self.notices),
        )

    def _memory(self) -> dict[str, int | None]:
        """The `memory` of `EngineReady`; the launcher adds what was predicted."""
        # An MTP layer of the target's own file shares the target's model.
        loaded_models = {context.model for context in self.models}
        memory: dict[str, int | None] = {
            "predicted": None,
            "used": None,  # It stays None with builds of llama.cpp that report nothing.
            "weights": sum(model.n_bytes() for model in loaded_models)
            + self._projector_weights,
        }
        by_device: Counter[str] = Counter()
        for model in self.models:
            by_device.update(model.memory_by_device())
        if by_device:
            by_device.update(self._projector_memory)
            memory["used"] = by_device.total()
        return memory | by_device

    def close(self) -> None:
        if self.loaded_draft is not None:
            self.loaded_draft.close()
            self.loaded_draft = None
        if self.projector is not None:  # It uses the target's vocabulary.
            self.projector.close()
            self.projector = None
        self.target.close()


def _effective_settings(
    settings: ContextSettings, context: AnyContext
) -> dict[str, Any]:
    """The settings with the sizes and threads that llama.cpp gave the context."""
    values: dict[str, Any] = to_builtins(settings)
    values["n_ctx"] = context.n_ctx
    values["n_ubatch"] = context.n_batch
    values["n_threads"] = context.n_threads
    return values
