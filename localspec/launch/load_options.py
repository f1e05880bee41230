"""How a pair is loaded: the options of the command line, the app and `LLM`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from localspec.fit.advisor import SettingsRequest
from localspec.launch.resolve import ResolvedPair
from localspec.lazy_dataclass import dataclass
from localspec.protocol.wire import (
    ContextSettings,
    FlashAttention,
    KvType,
    LoadCommand,
    SplitMode,
)
from localspec.speculation_methods import WITHOUT_DRAFT


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """None: chosen to fit this machine."""

    ctx: int | None = None
    kv: KvType | None = None
    gpu_layers: int | None = None
    draft_gpu_layers: int | None = None
    main_gpu: int = 0
    split: SplitMode | tuple[float, ...] = "layer"
    """A split mode, or one share for each device."""
    cpu_moe: bool = False
    threads: int | None = None
    draft_threads: int | None = None
    """None: as `threads`."""
    flash_attn: FlashAttention = "auto"
    workers: tuple[str, ...] = ()
    """Addresses (host:port) of workers that hold layers of the target."""
    can_skip_workers: bool = False
    """Use them only if they can be reached, and if the pair does not fit here or is slower."""
    exact: bool | None = None
    """Store keys and values so that every pass width computes alike. None: if that costs little."""
    overlap: bool | None = None
    """Draft while the target verifies. None: across devices, where it is worth it."""
    anyway: bool = False
    """Load even if the estimate exceeds the memory."""

    def to_request(self, pair: ResolvedPair, spec: str = "auto") -> SettingsRequest:
        """Without a draft if `spec` needs none; the catalogue's context unless `ctx` is set."""
        ctx = self.ctx or pair.suggested_settings.ctx
        is_mode = isinstance(self.split, str)
        split: dict[str, Any] = {"split_mode" if is_mode else "tensor_split": self.split}
        target = ContextSettings(
            n_gpu_layers=-1 if self.gpu_layers is None else self.gpu_layers,
            main_gpu=self.main_gpu,
            kv_type=self.kv or "f16",
            cpu_moe=self.cpu_moe,
            flash_attn=self.flash_attn,
            n_ctx=ctx,
            n_threads=self.threads,
            workers=self.workers,
            **split,
        )
        draft = replace(
            target,
            cpu_moe=False,
            workers=(),  # a draft there would cost a round trip a token
            n_gpu_layers=-1 if self.draft_gpu_layers is None else self.draft_gpu_layers,
            n_threads=self.draft_threads or self.threads,
        )
        path = str(pair.draft) if pair.draft and spec not in WITHOUT_DRAFT else None
        return SettingsRequest(
            LoadCommand(str(pair.target), path, target, draft, overlap=self.overlap),
            ctx=ctx,
            kv=self.kv,
            n_gpu_layers=self.gpu_layers,
            draft_n_gpu_layers=self.draft_gpu_layers,
            draft_note=pair.head_notice if path else "",
            exact=self.exact,
            skip_memory_check=self.anyway,
            can_skip_workers=self.can_skip_workers,
        )
