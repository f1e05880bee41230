"""With what numbers a model's context is opened: the engine's own rules, on a header."""

from __future__ import annotations

from dataclasses import dataclass, replace

from localspec.fit.facts import Facts
from localspec.machine import parameters
from localspec.machine.parameters import Role
from localspec.models import heads
from localspec.protocol.wire import Load

_STEP = 256
_LEAST_BATCH = 32
_NO_FLASH = ("grok",)


@dataclass(frozen=True, slots=True)
class Opening:
    """One context."""

    n_ctx: int
    n_swa: int
    """Cells of layers with a sliding window."""
    n_ubatch: int
    n_outputs: int
    n_rs_seq: int
    """Snapshots of recurrent states to go back to."""
    kv_type: int
    flash: bool
    auto: bool = False
    """Without flash attention where that would run beside its layer's device."""
    by_token: bool = True
    """Values lie in the cache token by token, as flash attention wants them."""
    head: str = ""
    """What kind of head it is; nothing: a model."""
    n_vocab: int = 0
    """Of a head, whose file may leave it to its target."""
    matrix: tuple[str, int] = ("", 0)
    """Where its target's output matrix lies, and its bytes: it may use that."""
    taps: frozenset[int] = frozenset()
    """Of a target: layers whose inputs are kept for a head."""
    predicting: bool = False
    """Of a target: what leaves its last layer is kept, for its own layer that guesses."""

    def kept(self, n_embd: int) -> int:
        """Bytes of hidden states that are handed out beside the logits."""
        states = 1 if self.head or self.predicting else len(self.taps)
        return 4 * states * self.n_ubatch * n_embd


def pair(
    load: Load, target: Facts, draft: Facts | None, head: str = ""
) -> tuple[Opening, Opening | None]:
    """`head`: what kind of head the draft is, if it is one.  Raises UsageError."""
    role = parameters.of_target(load)
    asked = parameters.context_size(role.settings, target.header.n_ctx_train, "the target")
    first = _opening(target, role, asked)
    if draft is None:
        return first, None
    if head:
        beside = _opening(draft, parameters.of_head(load, first.n_ctx), first.n_ctx)
        taps = frozenset() if head == "mtp" else frozenset(heads.layers(draft.header))
        return (
            replace(first, taps=taps, predicting=head == "mtp"),
            replace(beside, head=head, n_vocab=target.n_vocab),
        )
    role = parameters.of_draft(load, first.n_ctx)
    trained = draft.header.n_ctx_train
    n_ctx = role.settings.n_ctx or asked
    if trained:
        n_ctx = min(n_ctx, trained)
    return first, _opening(draft, role, n_ctx)


def _opening(facts: Facts, role: Role, asked: int) -> Opening:
    settings = role.settings
    n_ctx = _padded(asked)
    n_ubatch = min(max(settings.n_ubatch, role.outputs, _LEAST_BATCH), n_ctx)
    window = (
        n_ctx
        if settings.swa_full and role.outputs > 1
        else _padded(min(n_ctx, facts.n_swa + n_ubatch))
    )
    flash = settings.flash_attn != "off" and facts.arch not in _NO_FLASH
    return Opening(
        n_ctx=n_ctx,
        n_swa=window,
        n_ubatch=n_ubatch,
        n_outputs=role.outputs,
        n_rs_seq=role.rollback if facts.rolls_back else 0,
        kv_type=parameters.KV_TYPES[settings.kv_type],
        auto=settings.flash_attn == "auto" and not settings.kv_type.startswith("q"),
        flash=flash,
        by_token=flash,
    )


def _padded(n: int) -> int:
    return -(-n // _STEP) * _STEP
