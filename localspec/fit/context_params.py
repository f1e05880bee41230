"""Context parameters of a model, derived from its header by the rules of the engine."""

from __future__ import annotations

from dataclasses import replace

from localspec.fit.hparams import ModelHparams
from localspec.lazy_dataclass import dataclass
from localspec.machine import llama_params
from localspec.machine.llama_params import CTX_STEP, MIN_BATCH, ModelRole
from localspec.models import draft_heads
from localspec.models.gguf.tensors import GGML_TYPES
from localspec.protocol.wire import LoadCommand

_NO_FLASH_ATTN = ("grok",)


@dataclass(frozen=True, slots=True)
class ContextParams:
    n_ctx: int
    n_ctx_swa: int
    """KV cells of sliding-window layers."""
    n_ubatch: int
    n_outputs_max: int
    n_rs_seq: int
    """Snapshots of the recurrent state for rollback."""
    kv_types: tuple[int, int]
    """ggml_type of keys and of values."""
    flash_attn: bool
    flash_attn_auto: bool = False
    """Turn flash attention off if it would not run on the layer's device."""
    v_token_major: bool = True
    """The V cache is stored token by token, as flash attention needs it; else transposed."""
    head_kind: str = ""
    """Empty for a full model."""
    n_vocab: int = 0
    """Of a head, whose file may not contain a vocabulary."""
    target_output_matrix: tuple[str, int] = ("", 0)
    """Of a head: device and bytes of the target's output matrix, which the head may use."""
    hidden_state_layers: frozenset[int] = frozenset()
    """Of a target: layers whose input hidden states are extracted for a head."""
    keeps_last_hidden_state: bool = False
    """Of a target: the output of its last layer is extracted for its MTP layer."""

    def hidden_state_bytes(self, n_embd: int) -> int:
        """Bytes of hidden states in the output buffer, beside the logits."""
        states = (
            1 if self.head_kind or self.keeps_last_hidden_state else len(self.hidden_state_layers)
        )
        return 4 * states * self.n_ubatch * n_embd


def for_pair(
    load: LoadCommand, target: ModelHparams, draft: ModelHparams | None, head_kind: str = ""
) -> tuple[ContextParams, ContextParams | None]:
    """For target and draft; `head_kind` is empty for a draft model.  Raises UsageError."""
    role = llama_params.target_role(load)
    n_ctx_target = llama_params.resolve_n_ctx(
        role.settings, target.header.n_ctx_train, "the target"
    )
    target_params = _context_params(target, role, n_ctx_target)
    if draft is None:
        return target_params, None
    if head_kind:
        role = llama_params.head_role(load, target_params.n_ctx)
        head_params = _context_params(draft, role, target_params.n_ctx)
        layers = (
            frozenset()
            if head_kind == "mtp"
            else frozenset(draft_heads.target_layers(draft.header))
        )
        return (
            replace(
                target_params,
                hidden_state_layers=layers,
                keeps_last_hidden_state=head_kind == "mtp",
            ),
            replace(head_params, head_kind=head_kind, n_vocab=target.n_vocab),
        )
    role = llama_params.draft_role(load, target_params.n_ctx)
    n_ctx = role.settings.n_ctx or n_ctx_target
    if draft.header.n_ctx_train:
        n_ctx = min(n_ctx, draft.header.n_ctx_train)
    return target_params, _context_params(draft, role, n_ctx)


def _context_params(hparams: ModelHparams, role: ModelRole, n_ctx_requested: int) -> ContextParams:
    settings = role.settings
    n_ctx = _round_up(n_ctx_requested)
    n_ubatch = min(max(settings.n_ubatch, role.n_outputs_max, MIN_BATCH), n_ctx)
    n_ctx_swa = (
        n_ctx
        if settings.swa_full and role.n_outputs_max > 1
        else _round_up(min(n_ctx, hparams.n_swa + n_ubatch))
    )
    kv_types = llama_params.KV_TYPES[settings.kv_type]
    flash = settings.flash_attn != "off" and hparams.arch not in _NO_FLASH_ATTN
    return ContextParams(
        n_ctx=n_ctx,
        n_ctx_swa=n_ctx_swa,
        n_ubatch=n_ubatch,
        n_outputs_max=role.n_outputs_max,
        n_rs_seq=role.n_rs_seq if hparams.can_rollback else 0,
        kv_types=kv_types,
        flash_attn_auto=settings.flash_attn == "auto" and GGML_TYPES[kv_types[1]][1] == 1,
        flash_attn=flash,
        v_token_major=flash,
    )


def _round_up(n: int) -> int:
    return -(-n // CTX_STEP) * CTX_STEP
