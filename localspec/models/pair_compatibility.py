"""Compatibility of a target and a draft: a model, or a head made for the target.

A model with an equal vocabulary drafts tokens; for another vocabulary a kind of draft
may have a check of its own (`pairing` in `localspec/draft_kinds.py`).

Each rule is an `if` in a generator of refusals. The first refusal is the verdict, so a
rule may rely on those before it: nothing after the first refusal is computed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

from msgspec import Struct

from localspec import draft_kinds, extras
from localspec.errors import Hint, IncompatiblePairError, LocalspecError
from localspec.models import draft_heads, reference
from localspec.models.gguf import architectures, reader, tokenizer
from localspec.models.gguf.header import Header
from localspec.models.gguf.tokenizer import TokenizerMetadata
from localspec.sanitize import sanitize

MAX_SIZE_DIFFERENCE = 128
"""SPEC_VOCAB_MAX_SIZE_DIFFERENCE: allows for padding."""
FIRST_COMPARED_TOKEN = 5
"""SPEC_VOCAB_CHECK_START_TOKEN_ID: the first ids are special tokens."""
_VOCABULARY_TYPES = {
    tokenizer.UNKNOWN: "unknown",
    tokenizer.NONE: "none",
    tokenizer.SPM: "SPM",
    tokenizer.BPE: "BPE",
    tokenizer.WPM: "WPM",
    tokenizer.UGM: "UGM",
    tokenizer.RWKV: "RWKV",
    tokenizer.PLAMO2: "PLaMo-2",
}
_EAGLE3_LAYERS = 3
"""Layers of its target that an EAGLE-3 head reads."""
_D2T = "its reduced vocabulary (d2t)"
"""The tensor d2t has the target's token for each token of the head's output."""


class CompatibilityResult(Struct, frozen=True):
    """The verdict, the rule that decided it, and the first token that differs."""

    verdict: str
    """`compatible`, `compatible-padding` or `incompatible`.

    A kind of draft may have another one for models whose vocabularies differ.
    """
    rule: str
    detail: str
    """Why, as the end of a sentence about the draft."""
    token: int | None = None

    @property
    def is_compatible(self) -> bool:
        return self.verdict != "incompatible"

    @property
    def title(self) -> str:
        """The verdict in words."""
        kind = draft_kinds.of_verdict(self.verdict)
        if kind is not None:
            return kind.verdict_title
        return "compatible" if self.is_compatible else "incompatible"

    @property
    def summary(self) -> str:
        return f"{self.title}: {self.detail}"


Refusals = Iterator[CompatibilityResult]
"""The rules that a pair breaks, in the order in which they are checked."""


def check_compatibility(
    target: Header, draft: Header, path: Path | None = None
) -> CompatibilityResult:
    """Whether a draft of any kind works with a target.

    `path` is the draft's file, if it is complete.
    """
    if draft_heads.is_own_mtp_layer(target, draft):
        return CompatibilityResult(
            "compatible", "own-layer", "it drafts with its own MTP layer"
        )
    if not draft_heads.is_head(draft):
        return check_draft_model(target, draft)
    return _check_head(target, draft, path)


def check_draft_model(target: Header, draft: Header) -> CompatibilityResult:
    """Whether a model can draft.

    It can if the vocabularies agree, or if a kind of draft bridges them.
    """
    result = check_vocabularies(target.tokenizer, draft.tokenizer)
    if result.is_compatible:
        return result
    for kind in draft_kinds.kinds().values():
        if kind.pairing:
            verdict = extras.load_object(kind.pairing)(target, draft, result)
            if verdict is not None:
                return cast(CompatibilityResult, verdict)
    return result


def find_head_mismatch(
    target: Header, draft: Header | None
) -> CompatibilityResult | None:
    """The first rule that a head breaks, of those that need no vocabulary.

    None also for a draft model and for the target's own MTP layer.
    """
    if draft is None or not draft_heads.is_head(draft):
        return None
    for refusal in _check_structure(target, draft):
        if refusal.rule != "mask-token":
            return refusal
    return None


def _refuse(rule: str, detail: str, token: int | None = None) -> CompatibilityResult:
    return CompatibilityResult("incompatible", rule, detail, token)


# --- vocabularies


def check_vocabularies(
    target: TokenizerMetadata, draft: TokenizerMetadata
) -> CompatibilityResult:
    """Whether a draft's tokens are the target's.

    The rule is common_speculative_are_compatible in llama.cpp's
    common/speculative.cpp: same vocabulary type, same BOS and EOS if they are added,
    sizes at most 128 apart, and the same text for every id from 5 on.
    """
    refusal = next(_compare_vocabularies(target, draft), None)
    if refusal is not None:
        return refusal
    n_target = target.n_tokens
    n_draft = draft.n_tokens
    if n_target == n_draft:
        detail = f"the same {n_target:,} tokens"
        return CompatibilityResult("compatible", "same-vocabulary", detail)
    return CompatibilityResult(
        "compatible-padding",
        "vocabulary-size",
        f"equal up to padding: {n_target:,} and {n_draft:,} tokens",
        token=min(n_target, n_draft),
    )


def _compare_vocabularies(
    target: TokenizerMetadata, draft: TokenizerMetadata
) -> Refusals:
    if draft.kind != target.kind:
        own = _vocabulary_type(draft)
        expected = _vocabulary_type(target)
        yield _refuse(
            "vocabulary-type",
            f"its vocabulary is of type {own}, the target's is {expected}",
        )
    if draft.kind == tokenizer.NONE:
        # llama.cpp aborts if a token's text is requested of such a file.
        yield _refuse("vocabulary-type", "neither file has a vocabulary")
    yield from _compare_added_token(
        "BOS",
        draft=_AddedToken(draft.add_bos, draft.bos),
        target=_AddedToken(target.add_bos, target.bos),
    )
    yield from _compare_added_token(
        "EOS",
        draft=_AddedToken(draft.add_eos, draft.eos),
        target=_AddedToken(target.add_eos, target.eos),
    )
    if abs(draft.n_tokens - target.n_tokens) > MAX_SIZE_DIFFERENCE:
        yield _refuse(
            "vocabulary-size",
            f"its vocabulary has {draft.n_tokens:,} tokens, "
            f"the target's has {target.n_tokens:,}; "
            f"at most {MAX_SIZE_DIFFERENCE} may differ",
        )
    yield from _compare_texts(target, draft)


def _vocabulary_type(vocabulary: TokenizerMetadata) -> str:
    return _VOCABULARY_TYPES.get(vocabulary.kind, str(vocabulary.kind))


class _AddedToken(NamedTuple):
    """BOS or EOS of a vocabulary."""

    is_added: bool
    """Whether the tokenizer adds it to a text."""
    id: int


def _compare_added_token(
    name: str, *, draft: _AddedToken, target: _AddedToken
) -> Refusals:
    rule = name.lower()
    if draft.is_added != target.is_added:
        role = "the draft" if draft.is_added else "the target"
        yield _refuse(f"add-{rule}", f"only {role} adds a {name} token")
    if draft.is_added and draft.id != target.id:
        yield _refuse(
            rule,
            f"its {name} token is {draft.id}, the target's is {target.id}",
            token=draft.id,
        )


def _compare_texts(target: TokenizerMetadata, draft: TokenizerMetadata) -> Refusals:
    if draft.fingerprint and draft.fingerprint == target.fingerprint:
        return
    n_common = min(draft.n_tokens, target.n_tokens)
    for token in range(FIRST_COMPARED_TOKEN, n_common):
        text = draft.token_text(token)
        expected = target.token_text(token)
        if text != expected:
            yield _refuse(
                "token-text",
                f"token {token} is {_show_text(text)} in the draft "
                f"and {_show_text(expected)} in the target",
                token=token,
            )


def _show_text(text: bytes) -> str:
    return repr(sanitize(text.decode("utf-8", "replace"), multiline=False))


# --- heads


def _check_head(target: Header, head: Header, path: Path | None) -> CompatibilityResult:
    """Refuses a head with which llama.cpp would abort or compute wrong values."""
    refusal = next(_check_structure(target, head), None)
    if refusal is not None:
        return refusal
    result = check_vocabularies(target.tokenizer, head.tokenizer)
    if not result.is_compatible:
        return result
    if draft_heads.is_standalone_mtp(head) or draft_heads.is_assistant(head):
        return result  # It has matrices of its own.
    refusal = next(_check_shared_matrices(target, head), None)
    if refusal is None and path is not None:
        refusal = next(_check_d2t_ids(path, head), None)
    return refusal or result


def _check_structure(target: Header, head: Header) -> Refusals:
    """The rules that need no vocabulary, except `mask-token`."""
    unsupported = draft_heads.unsupported_kind(head)
    if unsupported is not None:
        detail = f"it is a {unsupported} head, which cannot be run yet"
        yield _refuse("head-kind", detail)
    if draft_heads.is_standalone_mtp(head):
        yield from _check_mtp_layer(target, head)
        return
    if draft_heads.is_assistant(head):
        yield from _check_assistant(target, head)
        return
    yield from _check_hidden_states(target, head)
    yield from _check_widths(target, head)
    yield from _check_attention(head)
    if draft_heads.is_eagle3(head):
        yield from _check_eagle3(head)
    else:
        yield from _check_blocks(head)
        if head.has_tensor(draft_heads.SELECTOR):
            yield from _check_selector(head)
    yield from _check_d2t(head)


def _check_mtp_layer(target: Header, head: Header) -> Refusals:
    """An MTP layer reads the last layer of the model that it was trained with."""
    if head.architecture != target.architecture:
        yield _refuse(
            "architecture",
            f"it is an MTP layer of {_architecture_name(head)} models, "
            f"the target is {_architecture_name(target)}",
        )
    yield from _compare_hidden_size(target, expected=head.n_embd)
    n_layer = draft_heads.count_readable_layers(head)
    n_target_layer = draft_heads.count_readable_layers(target)
    if n_layer != n_target_layer:
        yield _refuse(
            "layers",
            f"it belongs to a model of {n_layer} layers; the target has {n_target_layer}",
        )


def _architecture_name(header: Header) -> str:
    return sanitize(header.architecture[:40], multiline=False)


def _compare_hidden_size(target: Header, *, expected: int) -> Refusals:
    if expected != target.n_embd:
        yield _refuse(
            "hidden-size",
            f"it reads hidden states {expected:,} wide; the target's are {target.n_embd:,}",
        )


# --- assistants


def _check_assistant(target: Header, head: Header) -> Refusals:
    """A Gemma 4 assistant reads the keys and values of its target's last two layers.

    llama.cpp takes them for as wide as the assistant's own (`share` in
    src/llama-model.cpp).
    """
    if target.architecture not in architectures.WITH_ASSISTANT:
        names = ", ".join(sorted(architectures.WITH_ASSISTANT))
        yield _refuse(
            "architecture",
            f"it is an assistant of {names} models, "
            f"the target is {_architecture_name(target)}",
        )
    width = head.hparam("embedding_length_out", head.n_embd)
    yield from _compare_hidden_size(target, expected=width)
    if width == head.n_embd:
        yield _refuse("hidden-size", "it is as wide as its target")
    n_layer = head.n_layer
    n_mtp = head.hparam("nextn_predict_layers")
    if n_layer != n_mtp:
        yield _refuse("layers", f"it has {n_layer} layers, of which {n_mtp} draft")
    if not _ends_with_window_then_full(target):
        yield _refuse(
            "layers",
            "the target's last two layers are not one with a sliding window and one "
            "without",
        )
    for il in range(n_layer):
        yield from _compare_shared_kv(target, head, il)
    n_swa = head.hparam("attention.sliding_window")
    n_target_swa = target.hparam("attention.sliding_window")
    if n_swa != n_target_swa:
        yield _refuse(
            "window", f"its window is {n_swa:,} tokens, the target's {n_target_swa:,}"
        )


def _ends_with_window_then_full(target: Header) -> bool:
    if target.n_layer < 2:
        return False
    return _has_window(target, -2) and not _has_window(target, -1)


def _has_window(header: Header, il: int) -> bool:
    return bool(header.layer_hparam("attention.sliding_window_pattern", il))


def _compare_shared_kv(target: Header, head: Header, il: int) -> Refusals:
    """A layer of an assistant and the target's last one of the same attention."""
    is_swa = _has_window(head, il)
    target_layer = -2 if is_swa else -1
    own = _KvShape.of_layer(head, il, is_swa=is_swa)
    shared = _KvShape.of_layer(target, target_layer, is_swa=is_swa)
    if own != shared:
        yield _refuse(
            "attention",
            f"its layer {il} reads {own.describe()}; "
            f"the target's has {shared.n_heads} of "
            f"{shared.key_width} and {shared.value_width}",
        )


class _KvShape(NamedTuple):
    """What a layer stores of a token in the KV cache."""

    n_heads: int
    key_width: int
    value_width: int

    @classmethod
    def of_layer(cls, header: Header, il: int, *, is_swa: bool) -> _KvShape:
        suffix = "_swa" if is_swa else ""
        width = header.n_embd // max(1, header.n_head)
        return cls(
            header.layer_hparam("attention.head_count_kv", il, header.n_head),
            key_width=header.hparam(f"attention.key_length{suffix}", width),
            value_width=header.hparam(f"attention.value_length{suffix}", width),
        )

    def describe(self) -> str:
        return f"{self.n_heads} KV heads of {self.key_width} and {self.value_width}"


# --- EAGLE-3, DFlash and DSpark


def _check_hidden_states(target: Header, head: Header) -> Refusals:
    """A head reads inputs of the target's layers, which not every graph exposes."""
    if target.architecture not in architectures.EXPOSING_HIDDEN_STATES:
        yield _refuse(
            "hidden-states",
            "it reads hidden states, which llama.cpp does not provide for "
            f"{_architecture_name(target)} models",
        )
    layers = draft_heads.target_layers(head)
    if draft_heads.is_eagle3(head) and len(layers) != _EAGLE3_LAYERS:
        detail = f"it must read {_EAGLE3_LAYERS} layers of its target, and names {len(layers)}"
        yield _refuse("layers", detail)
    if not layers:
        yield _refuse("layers", "it names no layers of its target to read")
    last = draft_heads.count_readable_layers(target)
    if target.architecture not in architectures.EXPOSING_LAST_LAYER_OUTPUT:
        last -= 1
    for layer in layers:
        if not 0 <= layer <= last:
            yield _refuse(
                "layers",
                f"it reads layer {layer} of its target, whose layers are 0 to {last}",
            )


def _check_widths(target: Header, head: Header) -> Refusals:
    expected = head.n_embd
    if draft_heads.is_eagle3(head):
        expected = head.hparam("target_hidden_size")
    yield from _compare_hidden_size(target, expected=expected)
    for name in ("token_embd", "output"):
        # The target's matrix takes its place.
        if not head.has_tensor(f"{name}.weight") and head.n_embd != target.n_embd:
            yield _refuse(
                "embeddings",
                f"it has no {name} of its own, and is {head.n_embd:,} wide"
                f"; the target's is {target.n_embd:,}",
            )


def _check_attention(head: Header) -> Refusals:
    n_head = head.n_head
    n_head_kv = head.n_head_kv
    if n_head < 1 or n_head_kv < 1 or n_head % n_head_kv:
        yield _refuse(
            "attention",
            f"its {n_head} attention heads cannot share {n_head_kv} KV heads",
        )
    width = head.n_embd // n_head
    key_width = head.hparam("attention.key_length", width)
    value_width = head.hparam("attention.value_length", width)
    if key_width != value_width:
        yield _refuse(
            "attention", f"its keys are {key_width} wide and its values {value_width}"
        )
    n_rotated = head.hparam("rope.dimension_count", key_width)
    if n_rotated % 2 or not 0 < n_rotated <= key_width:
        yield _refuse(
            "attention", f"it rotates {n_rotated} of {key_width} dimensions (RoPE)"
        )


def _check_eagle3(head: Header) -> Refusals:
    if head.n_layer != 1:
        yield _refuse(
            "head-layers", f"an EAGLE-3 head has one layer; it has {head.n_layer}"
        )
    embeddings = head.tensors_by_name.get("token_embd.weight")
    if embeddings is None:
        return
    n_rows = embeddings.shape[-1]
    n_tokens = head.tokenizer.n_tokens
    if n_rows != n_tokens:
        yield _refuse(
            "embeddings", f"it has {n_rows:,} embeddings for {n_tokens:,} tokens"
        )


def _check_blocks(head: Header) -> Refusals:
    n_tokens = head.tokenizer.n_tokens
    mask = head.keys.get("tokenizer.ggml.mask_token_id")
    if not isinstance(mask, int):
        yield _refuse("mask-token", "it has no mask token, which its blocks need")
    elif not 0 <= mask < n_tokens:
        yield _refuse(
            "mask-token", f"its mask token {mask:,} is beyond its {n_tokens:,}"
        )
    size = head.raw_hparam("block_size")
    if size is None and draft_heads.has_markov_matrices(head):
        yield _refuse("block-size", "its block size is missing")
    if size is not None and head.hparam("block_size") < 2:
        shown = str(size)[:20]
        yield _refuse("block-size", f"blocks of {shown} tokens hold no draft tokens")


def _check_selector(head: Header) -> Refusals:
    """DFlash2 selects among the best tokens of each position."""
    k = head.hparam("selector_top_k")
    n_tokens = head.tokenizer.n_tokens
    # A row of its output has k tokens, and k scores after each of the k before.
    if not 0 < k <= n_tokens or k * (k + 1) > head.n_embd:
        yield _refuse(
            "selector",
            f"its selector takes {k} of {n_tokens:,} tokens, and is {head.n_embd:,} wide",
        )
    if head.raw_hparam("block_size") is None:
        yield _refuse("selector", "its block size is missing")
    types = {
        tensor.type_name
        for tensor in head.tensors
        if tensor.name.endswith("_conv_base")
    }
    wrong_types = ", ".join(sorted(types - {"F32"}))
    if wrong_types:
        yield _refuse(
            "selector", f"its convolutions are of type {wrong_types} and must be F32"
        )


def _check_d2t(head: Header) -> Refusals:
    d2t = head.tensors_by_name.get("d2t")
    if d2t is None:
        return
    if d2t.type_name != "I64":
        yield _refuse(
            "reduced-vocabulary", f"{_D2T} is of type {d2t.type_name} and must be I64"
        )
    n_tokens = d2t.shape[0]
    output = head.tensors_by_name.get("output.weight")
    n_rows = None if output is None else output.shape[-1]
    if n_rows != n_tokens:
        shown = "none" if n_rows is None else f"{n_rows:,}"
        yield _refuse(
            "reduced-vocabulary",
            f"{_D2T} has {n_tokens:,} tokens, its output has {shown}",
        )


def _check_shared_matrices(target: Header, head: Header) -> Refusals:
    """llama.cpp reads as many rows of the target's matrices as the head has tokens."""
    is_block_head = draft_heads.is_block_head(head)
    has_embeddings = head.has_tensor("token_embd.weight")
    has_output = head.has_tensor("output.weight")
    if is_block_head and has_embeddings:
        has_output = True  # The embeddings are its output matrix, too.
    n_tokens = head.tokenizer.n_tokens
    n_target_tokens = target.tokenizer.n_tokens
    if not has_output and n_tokens != n_target_tokens:
        yield _refuse(
            "output",
            f"it has no output of its own for its {n_tokens:,} tokens"
            f"; the target's has {n_target_tokens:,}",
        )
    if not is_block_head or has_embeddings:
        return
    mask = head.keys.get("tokenizer.ggml.mask_token_id")
    if isinstance(mask, int) and mask >= n_target_tokens:
        yield _refuse(
            "mask-token",
            f"its mask token {mask:,} is not among the target's {n_target_tokens:,}",
        )


def _check_d2t_ids(path: Path, head: Header) -> Refusals:
    """The tokens of the target in the file's d2t."""
    d2t = head.tensors_by_name.get("d2t")
    if d2t is None:
        return
    ids = array("q")
    with path.open("rb") as file:
        file.seek(head.data_offset + d2t.offset)
        ids.frombytes(file.read(d2t.n_bytes))
    n_tokens = head.tokenizer.n_tokens
    for token in ids:
        if not 0 <= token < n_tokens:
            yield _refuse(
                "reduced-vocabulary", f"{_D2T} names token {token} of {n_tokens:,}"
            )
    if len(set(ids)) < len(ids):
        yield _refuse(
            "reduced-vocabulary",
            f"{_D2T} names tokens twice: it may hold offsets, not ids",
        )


# --- errors and warnings


def incompatible_pair_error(
    result: CompatibilityResult, target: str, draft: str, suggestion: str = ""
) -> IncompatiblePairError:
    """`target` and `draft` are file names."""
    message = f"{draft} cannot draft for {target}: {result.detail}."
    hint = "Use a draft of the same model family, or {draft=none} (prompt lookup still works)."
    return IncompatiblePairError(
        sanitize(message, multiline=False), Hint(hint + suggestion)
    )


def list_warnings(target: Header, draft: Header) -> tuple[str, ...]:
    """What may make a compatible pair slow or inaccurate, the most serious first."""
    warnings = [
        *_support_warnings(target, draft),
        *_memory_warnings(target, draft),
        *_speed_warnings(target, draft),
    ]
    bridge = draft_kinds.of_verdict(check_draft_model(target, draft).verdict)
    if bridge is None:
        # A bridged draft model has its own tokenizer and template.
        warnings += _text_warnings(target, draft)
    return tuple(sanitize(warning, multiline=False) for warning in warnings)


def _support_warnings(target: Header, draft: Header) -> Iterator[str]:
    for role, header in (("The target", target), ("The draft", draft)):
        if header.unsupported_reason:
            yield f"{role} cannot be run: {header.unsupported_reason}."


def _memory_warnings(target: Header, draft: Header) -> Iterator[str]:
    is_head = draft_heads.is_head(draft) or draft_heads.is_own_mtp_layer(target, draft)
    for role, header, effect in (
        ("The target", target, "speculation is off"),
        ("The draft", draft, "it is not used"),
    ):
        if not header.is_recurrent and not header.is_hybrid:
            continue
        is_draft_model = header is draft and not is_head
        if header.architecture in architectures.ROLLBACK or is_draft_model:
            yield f"{role} has a recurrent state: checkpoints for rollback need extra memory."
        else:
            yield f"{role} has a recurrent state and cannot remove rejected tokens: {effect}."
    if draft.architecture in architectures.DRAFT_HEADS:
        yield "The draft reads its target's hidden states: it works with one target only."


def _speed_warnings(target: Header, draft: Header) -> Iterator[str]:
    if target.weight_bytes and draft.weight_bytes * 3 > target.weight_bytes:
        percent = 100 * draft.weight_bytes / target.weight_bytes
        yield (
            f"The draft has {percent:.0f} % of the target's bytes: "
            "it is too large to gain much."
        )
    if target.is_moe:
        yield (
            "The target is a mixture of experts: verifying several tokens reads more "
            "experts, so speculation gains less."
        )


def _text_warnings(target: Header, draft: Header) -> Iterator[str]:
    vocabulary = target.tokenizer
    draft_vocabulary = draft.tokenizer
    has_same_kind = vocabulary.kind == draft_vocabulary.kind
    if has_same_kind and vocabulary.pre != draft_vocabulary.pre:
        pre = vocabulary.pre or "default"
        draft_pre = draft_vocabulary.pre or "default"
        yield f"Their pre-tokenizers differ ({pre}, {draft_pre})."
    if vocabulary.eog_ids != draft_vocabulary.eog_ids:
        yield "Their end-of-generation tokens differ: the draft may continue past the end."
    templates = {target.chat_template, draft.chat_template}
    if len(templates - {""}) == 2:
        yield "Their chat templates differ: the draft may expect another chat format."
    for key in ("general.quantized_by", "general.organization"):
        name = str(target.keys.get(key, ""))[:40]
        draft_name = str(draft.keys.get(key, ""))[:40]
        if name and draft_name and name != draft_name:
            yield (
                f"Their publishers differ ({name} and {draft_name}): "
                "details of the files may differ."
            )
            break


def find_sidecar(path: Path, target: Header) -> Path | None:
    """The best compatible head (eagle3-….gguf, …) in the folder of a model's file.

    In the hub's cache, a head that was downloaded later may be in a later commit's
    folder.
    """
    folders = [path.parent]
    if path.parent.parent.name == "snapshots":
        folders += sorted(path.parent.parent.iterdir())
    for prefix in reference.HEAD_PREFIXES:
        for folder in folders:
            for file in sorted(folder.glob(f"{prefix}*.gguf")):
                if is_head_for(target, file):
                    return file
    return None


def is_head_for(target: Header, path: Path) -> bool:
    """False also if the file cannot be loaded."""
    try:
        reader.check_loadable(path)
        return check_compatibility(target, reader.read(path), path).is_compatible
    except (LocalspecError, OSError):
        return False
