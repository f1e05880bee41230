"""Compatibility of a target and a draft: a model, or a head made for the target.

A model with an equal vocabulary drafts tokens, one with another vocabulary drafts text.
The rule for vocabularies is common_speculative_are_compatible in llama.cpp's
common/speculative.cpp: same vocabulary type, same BOS and EOS if they are added, sizes at most 128
apart, and the same text for every id from 5 on.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from sys import byteorder
from typing import Literal, Protocol

from localspec.errors import Hint, IncompatiblePairError, LocalspecError
from localspec.lazy_dataclass import dataclass
from localspec.models import draft_heads, reference
from localspec.models.gguf import architectures, reader, token_bytes
from localspec.models.gguf.header import Header
from localspec.models.gguf.tokenizer import TokenizerMetadata
from localspec.sanitize import sanitize

MAX_SIZE_DIFFERENCE = 128
"""SPEC_VOCAB_MAX_SIZE_DIFFERENCE: allows for padding."""
FIRST_COMPARED_TOKEN = 5
"""SPEC_VOCAB_CHECK_START_TOKEN_ID: the first ids are special tokens whose names differ."""
MIN_SIZE_RATIO = 3
"""A draft larger than a third of its target gains little."""
_EAGLE3_TARGET_LAYERS = 3
"""Target layers that an EAGLE-3 head reads."""
_D2T_TENSOR = "d2t"
"""For each token of a head's reduced vocabulary, the target's token."""
_I64_TYPE = 27

_VOCABULARY_TYPES = {
    0: "none",
    1: "SPM",
    2: "BPE",
    3: "WPM",
    4: "UGM",
    5: "RWKV",
    6: "PLaMo-2",
    -1: "unknown",
}


class ComparableVocabulary(Protocol):
    """The properties that the rule compares, in llama.cpp's numbering."""

    @property
    def kind(self) -> int: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def add_bos(self) -> bool: ...
    @property
    def add_eos(self) -> bool: ...
    @property
    def bos(self) -> int: ...
    @property
    def eos(self) -> int: ...

    def token_text(self, token: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class CompatibilityResult:
    """The verdict, the rule that decided it, and the first token that differs."""

    verdict: Literal["compatible", "compatible-padding", "cross-vocabulary", "incompatible"]
    rule: str
    detail: str
    token: int | None = None

    @property
    def is_compatible(self) -> bool:
        return self.verdict != "incompatible"

    @property
    def summary(self) -> str:
        kind = self.verdict.replace("cross-vocabulary", "another vocabulary").partition("-")[0]
        return f"{kind}: {self.detail}"


@dataclass(frozen=True, slots=True)
class HeadTarget:
    """The properties of a target that a head depends on."""

    architecture: str
    n_layer: int
    n_embd: int
    vocabulary: ComparableVocabulary


def target_from_header(header: Header) -> HeadTarget:
    """`n_layer` excludes the MTP layers at the end: a head cannot read them."""
    n_layer = header.n_layer - header.hparam("nextn_predict_layers")
    return HeadTarget(header.architecture, n_layer, header.n_embd, header.tokenizer)


def check_compatibility(
    target: Header, draft: Header, path: Path | None = None
) -> CompatibilityResult:
    """Whether a draft of any kind works with a target; `path` is the draft's file, if complete."""
    if draft_heads.is_own_mtp_layer(target, draft):
        return CompatibilityResult("compatible", "own-layer", "it drafts with its own MTP layer")
    if not draft_heads.is_head(draft):
        return check_draft_model(target.tokenizer, draft.tokenizer)
    return check_head(target_from_header(target), draft, path)


def check_draft_model(target: TokenizerMetadata, draft: TokenizerMetadata) -> CompatibilityResult:
    """How a draft model drafts: tokens of the same vocabulary, or text."""
    result = check_vocabularies(target, draft)
    if result.is_compatible or not token_bytes.can_draft_across(target, draft):
        return result
    coverage = token_bytes.estimate_coverage(target, draft)
    detail = f"drafts by text, covers {100 * coverage:.0f} % of what the target writes"
    return CompatibilityResult("cross-vocabulary", result.rule, detail)


def check_vocabularies(
    target: ComparableVocabulary, draft: ComparableVocabulary
) -> CompatibilityResult:
    if (mismatch := next(_vocabulary_mismatches(target, draft), None)) is not None:
        return mismatch
    a, b = target.n_tokens, draft.n_tokens
    if a != b:
        detail = f"equal up to padding: {a:,} and {b:,} tokens"
        return CompatibilityResult("compatible-padding", "vocabulary-size", detail, min(a, b))
    return CompatibilityResult("compatible", "same-vocabulary", f"the same {a:,} tokens")


def _vocabulary_mismatches(
    target: ComparableVocabulary, draft: ComparableVocabulary
) -> Iterator[CompatibilityResult]:
    """Apply llama.cpp's rule in its own order."""
    kind, target_kind = (_VOCABULARY_TYPES.get(v.kind, str(v.kind)) for v in (draft, target))
    if draft.kind != target.kind:
        detail = f"its vocabulary is of type {kind}, the target's is {target_kind}"
        yield _incompatible("vocabulary-type", detail)
    elif not draft.kind:  # llama.cpp aborts when a token's text is requested
        yield _incompatible("vocabulary-type", "neither file has a vocabulary")
    for name in ("bos", "eos"):
        adds, target_adds = (bool(getattr(v, f"add_{name}")) for v in (draft, target))
        id_, target_id = (int(getattr(v, name)) for v in (draft, target))
        if adds != target_adds:
            role = "the draft" if adds else "the target"
            yield _incompatible(f"add-{name}", f"only {role} adds a {name.upper()} token")
        elif adds and id_ != target_id:
            detail = f"its {name.upper()} token is {id_}, the target's is {target_id}"
            yield _incompatible(name, detail, id_)
    n, n_target = draft.n_tokens, target.n_tokens
    if abs(n - n_target) > MAX_SIZE_DIFFERENCE:
        sizes = f"its vocabulary has {n:,} tokens, the target's has {n_target:,}"
        detail = f"{sizes}; at most {MAX_SIZE_DIFFERENCE} may differ"
        yield _incompatible("vocabulary-size", detail)
    if (token := _first_different_token(target, draft)) is not None:
        text, target_text = (_quote(v.token_text(token)) for v in (draft, target))
        detail = f"token {token} is {text} in the draft and {target_text} in the target"
        yield _incompatible("token-text", detail, token)


def _first_different_token(target: ComparableVocabulary, draft: ComparableVocabulary) -> int | None:
    fingerprints = [getattr(vocabulary, "fingerprint", "") for vocabulary in (target, draft)]
    if fingerprints[0] and fingerprints[0] == fingerprints[1]:
        return None
    for token in range(FIRST_COMPARED_TOKEN, min(target.n_tokens, draft.n_tokens)):
        if target.token_text(token) != draft.token_text(token):
            return token
    return None


def _incompatible(rule: str, detail: str, token: int | None = None) -> CompatibilityResult:
    return CompatibilityResult("incompatible", rule, detail, token)


def _quote(text: bytes) -> str:
    return repr(sanitize(text.decode("utf-8", "replace"), multiline=False))


def check_head(target: HeadTarget, head: Header, path: Path | None = None) -> CompatibilityResult:
    """Rejects a head with which llama.cpp would abort, or silently compute wrong values."""
    if (mismatch := next(_structure_mismatches(target, head), None)) is not None:
        return mismatch
    result = check_vocabularies(target.vocabulary, head.tokenizer)
    if (
        result.is_compatible
        and (mismatch := next(_late_mismatches(target, head, path), None)) is not None
    ):
        return mismatch
    return result


def find_head_mismatch(target: Header, draft: Header | None) -> CompatibilityResult | None:
    """The first rule of `check_head`, of those that need no vocabulary, that a head breaks.

    None also for a draft model and for the target's own MTP layer.
    """
    if draft is None or draft_heads.is_own_mtp_layer(target, draft):
        return None
    if draft_heads.draft_kind_for_target(target, draft) == "model":
        return None
    mismatches = _structure_mismatches(target_from_header(target), draft)
    return next((m for m in mismatches if m.rule != "mask-token"), None)


def _structure_mismatches(target: HeadTarget, head: Header) -> Iterator[CompatibilityResult]:
    if (kind := draft_heads.unsupported_kind(head)) is not None:
        yield _incompatible("head-kind", f"it is a {kind} head, which cannot be run yet")
    elif draft_heads.is_standalone_mtp(head):
        yield from _mtp_layer_mismatches(target, head)
    else:
        yield from _hidden_state_mismatches(target, head)
        yield from _width_mismatches(target, head)
        yield from _header_problems(head)


def _mtp_layer_mismatches(target: HeadTarget, head: Header) -> Iterator[CompatibilityResult]:
    """An MTP layer continues from the last layer's output of the model it was trained with."""
    if head.architecture != target.architecture:
        own, expected = (sanitize(m.architecture[:40], multiline=False) for m in (head, target))
        yield _incompatible(
            "architecture", f"it is an MTP layer of {own} models, the target is {expected}"
        )
    if head.n_embd != target.n_embd:
        detail = f"it reads hidden states {head.n_embd:,} wide; the target's are {target.n_embd:,}"
        yield _incompatible("hidden-size", detail)
    if (n_layer := target_from_header(head).n_layer) != target.n_layer:
        yield _incompatible(
            "layers", f"it belongs to a model of {n_layer} layers; the target has {target.n_layer}"
        )


def _late_mismatches(
    target: HeadTarget, head: Header, path: Path | None
) -> Iterator[CompatibilityResult]:
    """Checks that need compatible vocabularies, or read the file's data."""
    if draft_heads.is_standalone_mtp(head):  # it has its own matrices
        return
    yield from _shared_matrix_mismatches(target, head)
    if path is not None:
        yield from _data_problems(path, head)


def _hidden_state_mismatches(target: HeadTarget, head: Header) -> Iterator[CompatibilityResult]:
    name = sanitize(target.architecture[:40], multiline=False)
    if target.architecture not in architectures.EXPOSING_HIDDEN_STATES:
        detail = f"it reads hidden states, which llama.cpp does not provide for {name} models"
        yield _incompatible("hidden-states", detail)
    layers = draft_heads.target_layers(head)
    if draft_heads.file_draft_kind(head) == "eagle3" and len(layers) != _EAGLE3_TARGET_LAYERS:
        yield _incompatible(
            "layers",
            f"it must read {_EAGLE3_TARGET_LAYERS} layers of its target, and names {len(layers)}",
        )
    if not layers:
        yield _incompatible("layers", "it names no layers of its target to read")
    after_last = target.architecture in architectures.EXPOSING_LAST_LAYER_OUTPUT
    last = target.n_layer - (not after_last)
    if wrong := [layer for layer in layers if not 0 <= layer <= last]:
        detail = f"it reads layer {wrong[0]} of its target, whose layers are 0 to {last}"
        yield _incompatible("layers", detail)


def _width_mismatches(target: HeadTarget, head: Header) -> Iterator[CompatibilityResult]:
    is_block_head = draft_heads.file_draft_kind(head) != "eagle3"  # reads states of its own width
    expected = head.n_embd if is_block_head else head.hparam("target_hidden_size")
    if expected != target.n_embd:
        detail = f"it reads hidden states {expected:,} wide; the target's are {target.n_embd:,}"
        yield _incompatible("hidden-size", detail)
    tensors = head.tensors_by_name
    missing = [name for name in ("token_embd", "output") if f"{name}.weight" not in tensors]
    if missing and head.n_embd != target.n_embd:
        detail = (
            f"it has no {missing[0]} of its own, and is {head.n_embd:,} wide; "
            f"the target's is {target.n_embd:,}"
        )
        yield _incompatible("embeddings", detail)


def _shared_matrix_mismatches(target: HeadTarget, head: Header) -> Iterator[CompatibilityResult]:
    """llama.cpp reads as many rows of the target's matrices as the head has tokens."""
    tensors = head.tensors_by_name
    n_tokens, n_target_tokens = head.tokenizer.n_tokens, target.vocabulary.n_tokens
    is_block_head = draft_heads.file_draft_kind(head) != "eagle3"
    has_embeddings = "token_embd.weight" in tensors
    has_output = "output.weight" in tensors or (is_block_head and has_embeddings)
    if not has_output and n_tokens != n_target_tokens:
        detail = (
            f"it has no output of its own for its {n_tokens:,} tokens; "
            f"the target's has {n_target_tokens:,}"
        )
        yield _incompatible("output", detail)
    mask = head.keys.get("tokenizer.ggml.mask_token_id")
    if is_block_head and not has_embeddings and isinstance(mask, int) and mask >= n_target_tokens:
        yield _incompatible(
            "mask-token", f"its mask token {mask:,} is not among the target's {n_target_tokens:,}"
        )


def _header_problems(head: Header) -> Iterator[CompatibilityResult]:
    """Problems of a head alone with which llama.cpp would abort or compute wrong values."""
    yield from _attention_problems(head)
    if head.architecture == "eagle3":
        yield from _eagle3_problems(head)
    else:
        yield from _block_problems(head)
    yield from _d2t_problems(head)


def _attention_problems(head: Header) -> Iterator[CompatibilityResult]:
    n, n_kv = head.n_head, head.n_head_kv
    if n < 1 or n_kv < 1 or n % n_kv:
        yield _incompatible("attention", f"its {n} attention heads cannot share {n_kv} KV heads")
        return
    width = head.n_embd // n
    keys, values = (head.hparam(f"attention.{name}_length", width) for name in ("key", "value"))
    if keys != values:
        yield _incompatible("attention", f"its keys are {keys} wide and its values {values}")
    rope_dim = head.hparam("rope.dimension_count", keys)
    if rope_dim % 2 or not 0 < rope_dim <= keys:
        yield _incompatible("attention", f"it rotates {rope_dim} of {keys} dimensions (RoPE)")


def _eagle3_problems(head: Header) -> Iterator[CompatibilityResult]:
    if head.n_layer != 1:
        yield _incompatible("head-layers", f"an EAGLE-3 head has one layer; it has {head.n_layer}")
    embeddings = head.tensors_by_name.get("token_embd.weight")
    n_tokens = head.tokenizer.n_tokens
    if embeddings is not None and embeddings.shape[-1] != n_tokens:
        yield _incompatible(
            "embeddings", f"it has {embeddings.shape[-1]:,} embeddings for {n_tokens:,} tokens"
        )


def _block_problems(head: Header) -> Iterator[CompatibilityResult]:
    mask = head.keys.get("tokenizer.ggml.mask_token_id")
    if not isinstance(mask, int):
        yield _incompatible("mask-token", "it has no mask token, which its blocks need")
    elif not 0 <= mask < head.tokenizer.n_tokens:
        yield _incompatible(
            "mask-token", f"its mask token {mask:,} is beyond its {head.tokenizer.n_tokens:,}"
        )
    key = "dflash.block_size"
    if "markov_w1.weight" in head.tensors_by_name and key not in head.keys:
        yield _incompatible("block-size", "its block size is missing")
    elif key in head.keys and head.hparam("block_size") < 2:
        yield _incompatible(
            "block-size", f"blocks of {str(head.keys[key])[:20]} tokens hold no draft tokens"
        )


def _d2t_problems(head: Header) -> Iterator[CompatibilityResult]:
    tensors = head.tensors_by_name
    d2t, output = tensors.get(_D2T_TENSOR), tensors.get("output.weight")
    if d2t is None:
        return
    rule = "reduced-vocabulary"
    if d2t.type != _I64_TYPE:
        yield _incompatible(
            rule, f"its reduced vocabulary (d2t) is of type {d2t.type_name} and must be I64"
        )
    if output is None or output.shape[-1] != d2t.shape[0]:
        rows = "none" if output is None else f"{output.shape[-1]:,}"
        detail = f"its reduced vocabulary (d2t) has {d2t.shape[0]:,} tokens, its output has {rows}"
        yield _incompatible(rule, detail)


def _data_problems(path: Path, head: Header) -> Iterator[CompatibilityResult]:
    """Problems of the ids in d2t, which are data and not in the header."""
    d2t = head.tensors_by_name.get(_D2T_TENSOR)
    if d2t is None:
        return
    ids = array("q")
    with path.open("rb") as file:
        file.seek(head.data_offset + d2t.offset)
        ids.frombytes(file.read(d2t.n_bytes))
    if byteorder == "big":
        ids.byteswap()
    n = head.tokenizer.n_tokens
    if wrong := [token for token in ids if not 0 <= token < n]:
        yield _incompatible(
            "reduced-vocabulary", f"its reduced vocabulary (d2t) names token {wrong[0]} of {n:,}"
        )
    elif len(set(ids)) < len(ids):
        detail = "its reduced vocabulary (d2t) names tokens twice: it may hold offsets, not ids"
        yield _incompatible("reduced-vocabulary", detail)


def incompatible_pair_error(
    result: CompatibilityResult, target: str, draft: str, suggestion: str = ""
) -> IncompatiblePairError:
    """`target` and `draft` are file names."""
    message = f"{draft} cannot draft for {target}: {result.detail}."
    return IncompatiblePairError(
        sanitize(message, multiline=False),
        Hint(
            "Use a draft of the same model family, or {draft=none} (prompt lookup still works)."
            + suggestion
        ),
    )


def list_warnings(target: Header, draft: Header) -> tuple[str, ...]:
    """Properties that may make a compatible pair slow or inaccurate, most serious first."""
    warnings = [
        *(
            f"{role} cannot be run: {header.unsupported_reason}."
            for role, header in _with_roles(target, draft)
            if header.unsupported_reason
        ),
        *_memory_warnings(target, draft),
        *_cost_warnings(target, draft),
        *_text_warnings(target, draft),
    ]
    return tuple(sanitize(warning, multiline=False) for warning in warnings)


def _with_roles(target: Header, draft: Header) -> tuple[tuple[str, Header], ...]:
    return (("The target", target), ("The draft", draft))


def _memory_warnings(target: Header, draft: Header) -> Iterator[str]:
    is_head = draft_heads.is_head(draft) or draft_heads.is_own_mtp_layer(target, draft)
    for role, header in _with_roles(target, draft):
        has_state = header.is_recurrent or header.is_hybrid
        can_rollback = header.architecture in architectures.ROLLBACK
        if header is draft and not is_head:
            can_rollback = False  # it would decode the whole text again after each rejection
        if has_state and not can_rollback:
            effect = "speculation is off" if header is target else "it is not used"
            yield f"{role} has a recurrent state and cannot remove rejected tokens: {effect}."
        elif has_state:
            yield f"{role} has a recurrent state: checkpoints for rollback need extra memory."
    if draft.architecture in architectures.DRAFT_HEADS:
        yield "The draft reads its target's hidden states: it works with one target only."


def _cost_warnings(target: Header, draft: Header) -> Iterator[str]:
    if target.weight_bytes and draft.weight_bytes * MIN_SIZE_RATIO > target.weight_bytes:
        share = 100 * draft.weight_bytes / target.weight_bytes
        yield f"The draft has {share:.0f} % of the target's bytes: it is too large to gain much."
    if target.is_moe:
        yield (
            "The target is a mixture of experts: verifying several tokens reads more experts, "
            "so speculation gains less."
        )


def _text_warnings(target: Header, draft: Header) -> Iterator[str]:
    a, b = target.tokenizer, draft.tokenizer
    if check_draft_model(a, b).verdict == "cross-vocabulary":
        return  # it has its own tokenizer, ends and template
    if a.kind == b.kind and a.pre != b.pre:
        yield f"Their pre-tokenizers differ ({a.pre or 'default'}, {b.pre or 'default'})."
    if a.eog_ids != b.eog_ids:
        yield "Their end-of-generation tokens differ: the draft may continue past the end."
    templates = (target.chat_template, draft.chat_template)
    if all(templates) and templates[0] != templates[1]:
        yield "Their chat templates differ: the draft may expect another chat format."
    for key in ("general.quantized_by", "general.organization"):
        names = (target.keys.get(key), draft.keys.get(key))
        if all(names) and names[0] != names[1]:
            shown = " and ".join(str(name)[:40] for name in names)
            yield f"Their publishers differ ({shown}): details of the files may differ."
            break


def find_sidecar(path: Path, target: Header) -> Path | None:
    """The best compatible head (eagle3-….gguf, …) in the folder of a model's file.

    In the hub's cache, a head that was downloaded later may lie in a later commit's folder.
    """
    for prefix in reference.HEAD_PREFIXES:
        for folder in _sidecar_folders(path):
            for candidate in sorted(folder.glob(f"{prefix}*.gguf")):
                if is_head_for(target, candidate):
                    return candidate
    return None


def _sidecar_folders(path: Path) -> Iterator[Path]:
    yield path.parent
    if path.parent.parent.name == "snapshots":
        yield from sorted(path.parent.parent.iterdir())


def is_head_for(target: Header, path: Path) -> bool:
    """False also if the file cannot be loaded."""
    try:
        reader.check_loadable(path)
        return check_compatibility(target, reader.read(path), path).is_compatible
    except (LocalspecError, OSError):
        return False
