"""Context parameters of a model, derived from its shape by the rules of the engine."""

from __future__ import annotations

from dataclasses import replace

from localspec.fit.shape import LayerShape, ModelShape
from localspec.lazy_dataclass import dataclass
from localspec.machine import llama_params
from localspec.machine.llama_params import CTX_STEP, MIN_BATCH, ModelRole
from localspec.models.gguf.tensors import GGML_TYPES
from localspec.protocol.wire import LoadCommand


@dataclass(frozen=True, slots=True)
class ContextParams:
    n_ctx: int
    n_ctx_swa: int  # KV cells of sliding-window layers.
    n_ubatch: int
    n_outputs_max: int
    n_rs_seq: int  # Snapshots of the recurrent state for rollback.
    kv_types: tuple[int, int]  # ggml_type of keys and of values.
    flash_attn: bool
    flash_attn_auto: bool = False
    """Turn flash attention off if it would not run on the layer's device."""
    v_token_major: bool = True
    """The V cache is stored token by token, as flash attention needs it; else transposed."""
    n_vocab: int = 0  # Of a head, whose file may not contain a vocabulary.
    target_output_matrix: tuple[str, int] = ("", 0)
    """Of a head: device and bytes of the target's output matrix, which the head may use."""
    n_hidden_states: int = 0  # Of a target: layers whose hidden states are extracted for a head.
    load_mtp: bool = False

    def cells(self, layer: LayerShape) -> int:
        return self.n_ctx_swa if layer.is_swa else self.n_ctx

    def hidden_state_bytes(self, shape: ModelShape) -> int:
        """Bytes of hidden states in the output buffer, beside the logits."""
        states = 1 if shape.head_kind else self.n_hidden_states
        return 4 * states * self.n_ubatch * shape.n_embd


def for_pair(
    load: LoadCommand, target: ModelShape, draft: ModelShape | None
) -> tuple[ContextParams, ContextParams | None]:
    """For target and draft.  Raises UsageError."""
    role = llama_params.target_role(load)
    n_ctx_target = llama_params.resolve_n_ctx(role.settings, target.n_ctx_train, "the target")
    params = _context_params(target, role, n_ctx_target)
    if draft is None:
        return params, None
    if draft.head_kind:
        role = llama_params.head_role(load, params.n_ctx)
        head_params = _context_params(draft, role, params.n_ctx)
        is_mtp = draft.head_kind == "mtp"
        n_states = 1 if is_mtp else draft.n_target_layers
        return (
            replace(params, n_hidden_states=n_states, load_mtp=is_mtp),
            replace(head_params, n_vocab=target.n_vocab),
        )
    role = llama_params.draft_role(load, params.n_ctx)
    n_ctx = min(role.settings.n_ctx or n_ctx_target, draft.n_ctx_train or n_ctx_target)
    return params, _context_params(draft, role, n_ctx)


def _context_params(shape: ModelShape, role: ModelRole, n_ctx_requested: int) -> ContextParams:
    settings = role.settings
    n_ctx = _round_up(n_ctx_requested)
    n_ubatch = min(max(settings.n_ubatch, role.n_outputs_max, MIN_BATCH), n_ctx)
    is_full = settings.swa_full and role.n_outputs_max > 1
    kv_types = llama_params.KV_TYPES[settings.kv_type]
    flash = settings.flash_attn != "off" and shape.architecture != "grok"
    return ContextParams(
        n_ctx=n_ctx,
        n_ctx_swa=n_ctx if is_full else _round_up(min(n_ctx, shape.n_swa + n_ubatch)),
        n_ubatch=n_ubatch,
        n_outputs_max=role.n_outputs_max,
        n_rs_seq=role.n_rs_seq if shape.can_rollback else 0,
        kv_types=kv_types,
        flash_attn=flash,
        flash_attn_auto=settings.flash_attn == "auto" and GGML_TYPES[kv_types[1]][1] == 1,
        v_token_major=flash,
    )


def _round_up(n: int) -> int:
    return -(-n // CTX_STEP) * CTX_STEP
