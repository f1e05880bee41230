"""With what numbers a model's context is opened: the engine's own rules, on a header."""

from __future__ import annotations

from dataclasses import dataclass, replace

from localspec.fit.hparams import ModelHparams
from localspec.machine import llama_params
from localspec.machine.llama_params import ModelRole
from localspec.models import draft_heads
from localspec.protocol.wire import LoadCommand

_CTX_STEP = 256
_MIN_BATCH = 32
_NO_FLASH_ATTN = ("grok",)


@dataclass(frozen=True, slots=True)
class ContextParams:
    """One context."""

    n_ctx: int
    n_ctx_swa: int
    """Cells of layers with a sliding window."""
    n_ubatch: int
    n_outputs_max: int
    n_rs_seq: int
    """Snapshots of recurrent states to go back to."""
    kv_type: int
    flash_attn: bool
    flash_attn_auto: bool = False
    """Without flash attention where that would run beside its layer's device."""
    v_token_major: bool = True
    """Values lie in the cache token by token, as flash attention wants them."""
    head_kind: str = ""
    """What kind of head it is; nothing: a model."""
    n_vocab: int = 0
    """Of a head, whose file may leave it to its target."""
    target_output_matrix: tuple[str, int] = ("", 0)
    """Where its target's output matrix lies, and its bytes: it may use that."""
    hidden_state_layers: frozenset[int] = frozenset()
    """Of a target: layers whose inputs are kept for a head."""
    keeps_last_hidden_state: bool = False
    """Of a target: what leaves its last layer is kept, for its own layer that guesses."""

    def hidden_state_bytes(self, n_embd: int) -> int:
        """Bytes of hidden states that are handed out beside the logits."""
        states = (
            1 if self.head_kind or self.keeps_last_hidden_state else len(self.hidden_state_layers)
        )
        return 4 * states * self.n_ubatch * n_embd


def for_pair(
    load: LoadCommand, target: ModelHparams, draft: ModelHparams | None, head_kind: str = ""
) -> tuple[ContextParams, ContextParams | None]:
    """`head`: what kind of head the draft is, if it is one.  Raises UsageError."""
    role = llama_params.target_role(load)
    asked = llama_params.resolve_n_ctx(role.settings, target.header.n_ctx_train, "the target")
    first = _context_params(target, role, asked)
    if draft is None:
        return first, None
    if head_kind:
        beside = _context_params(draft, llama_params.head_role(load, first.n_ctx), first.n_ctx)
        taps = (
            frozenset()
            if head_kind == "mtp"
            else frozenset(draft_heads.target_layers(draft.header))
        )
        return (
            replace(first, hidden_state_layers=taps, keeps_last_hidden_state=head_kind == "mtp"),
            replace(beside, head_kind=head_kind, n_vocab=target.n_vocab),
        )
    role = llama_params.draft_role(load, first.n_ctx)
    trained = draft.header.n_ctx_train
    n_ctx = role.settings.n_ctx or asked
    if trained:
        n_ctx = min(n_ctx, trained)
    return first, _context_params(draft, role, n_ctx)


def _context_params(hparams: ModelHparams, role: ModelRole, n_ctx_requested: int) -> ContextParams:
    settings = role.settings
    n_ctx = _round_up(n_ctx_requested)
    n_ubatch = min(max(settings.n_ubatch, role.n_outputs_max, _MIN_BATCH), n_ctx)
    window = (
        n_ctx
        if settings.swa_full and role.n_outputs_max > 1
        else _round_up(min(n_ctx, hparams.n_swa + n_ubatch))
    )
    flash = settings.flash_attn != "off" and hparams.arch not in _NO_FLASH_ATTN
    return ContextParams(
        n_ctx=n_ctx,
        n_ctx_swa=window,
        n_ubatch=n_ubatch,
        n_outputs_max=role.n_outputs_max,
        n_rs_seq=role.n_rs_seq if hparams.can_rollback else 0,
        kv_type=llama_params.KV_TYPES[settings.kv_type],
        flash_attn_auto=settings.flash_attn == "auto" and not settings.kv_type.startswith("q"),
        flash_attn=flash,
        v_token_major=flash,
    )


def _round_up(n: int) -> int:
    return -(-n // _CTX_STEP) * _CTX_STEP
