"""Draft heads: networks that draft from the hidden states of one target model.

Covers their kinds (EAGLE-3, MTP, DFlash, DSpark), their compatibility with a target, and the heads
that lie beside a model's file.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from sys import byteorder

from localspec.errors import LocalspecError
from localspec.models import pair_compatibility, reference
from localspec.models.gguf import architectures
from localspec.models.gguf.header import Header, check_loadable
from localspec.models.gguf.header import read as read_header
from localspec.models.gguf.tensors import TensorInfo
from localspec.models.pair_compatibility import ComparableVocabulary, CompatibilityResult
from localspec.sanitize import sanitize

KIND_TITLES = {"eagle3": "EAGLE-3", "mtp": "MTP", "dflash": "DFlash", "dspark": "DSpark"}
"""Display names of the kinds of heads."""
SUPPORTED_KINDS = frozenset(KIND_TITLES)
_DEFAULT_BLOCK_SIZE = 16
"""Rows of a block, for files without the key."""
_EAGLE3_TARGET_LAYERS = 3
"""Target layers that an EAGLE-3 head reads."""
_D2T_TENSOR = "d2t"
"""For each token of a head's reduced vocabulary, the target's token."""
_I64_TYPE = 27
_SIDECAR_PREFIXES = ("mtp-", "eagle3-", "dspark-", "dflash-")
"""File name prefixes of heads beside their targets, best first."""

HeadProblem = tuple[str, str]
"""A rule, and the detail that breaks it."""


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


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """The block format of a DFlash or DSpark head."""

    size: int
    """Rows of a block.  With more rows llama.cpp silently skips the Markov matrices."""
    first_row: int
    """The row whose logits give the first draft token."""
    has_confidence: bool
    """Whether the head outputs a confidence for each draft token."""
    is_causal: bool


def read_block_format(header: Header) -> BlockFormat:
    tensors, keys = _tensors_by_name(header), header.keys
    markov = "markov_w1.weight" in tensors
    anchored = markov and keys.get("dflash.sample_from_anchor", True) is True
    confidence = keys.get("dflash.has_confidence_head", True) is True
    return BlockFormat(
        size=header.hparam("block_size", _DEFAULT_BLOCK_SIZE),
        first_row=0 if anchored else 1,
        # Without the matrix llama.cpp would return uninitialised memory.
        has_confidence=markov and confidence and "conf_proj.weight" in tensors,
        is_causal=keys.get("dflash.attention.causal") is True,
    )


def file_draft_kind(header: Header) -> str:
    """`model`, or the kind of head that a file holds."""
    if header.architecture == "dflash":
        return "dspark" if "markov_w1.weight" in _tensors_by_name(header) else "dflash"
    if header.architecture == "gemma4-assistant" or has_only_mtp_layers(header):
        return "mtp"
    return "eagle3" if header.architecture == "eagle3" else "model"


def draft_kind_for_target(target: Header, draft: Header) -> str:
    """`model`, or the kind of head that a draft is for this target.

    The target's own file as draft means its own MTP layer, if it has one.
    """
    return "mtp" if is_own_mtp_layer(target, draft) else file_draft_kind(draft)


def kind_from_file_name(path: str) -> str:
    """`model`, or the kind of head by the file's name: dspark-….gguf."""
    name = path.rpartition("/")[2]
    return next((prefix[:-1] for prefix in reference.HEAD_PREFIXES if prefix in name), "model")


def is_head(header: Header) -> bool:
    """Whether a file holds a head and no model."""
    return header.architecture in architectures.DRAFT_HEADS or has_only_mtp_layers(header)


def is_supported_head(header: Header) -> bool:
    return file_draft_kind(header) in SUPPORTED_KINDS and unsupported_kind(header) is None


def unsupported_kind(head: Header) -> str | None:
    """The kind of a head that shares a supported architecture but cannot be run; else None."""
    if head.architecture == "gemma4-assistant":
        return "Gemma 4 assistant"
    if "selector_hidden.weight" in _tensors_by_name(head):
        return "DFlash2"
    if has_only_mtp_layers(head) and not is_standalone_mtp(head):
        return f"MTP of {sanitize(head.architecture[:40], multiline=False)} models"
    return "DeepSeek V4 DSpark" if head.hparam("hyper_connection_count") else None


def target_layers(head: Header) -> tuple[int, ...]:
    """The target's layers whose inputs a head reads, in the head's order."""
    value = head.keys.get(f"{head.architecture}.target_layers", ())
    layers = value if isinstance(value, tuple) else ()
    return tuple(layer for layer in layers if isinstance(layer, int))


def has_own_mtp_layer(header: Header) -> bool:
    """Whether a model's file includes an MTP layer: the file is then its own head."""
    return _has_supported_mtp_layer(header) and not is_standalone_mtp(header)


def is_own_mtp_layer(target: Header, draft: Header) -> bool:
    """Whether the draft is the target's own MTP layer: the same file."""
    same = draft is target or draft.tensors == target.tensors
    return same and has_own_mtp_layer(target)


def is_standalone_mtp(header: Header) -> bool:
    """Whether a file holds only a supported MTP layer, under its model's architecture."""
    return _has_supported_mtp_layer(header) and has_only_mtp_layers(header)


def has_only_mtp_layers(header: Header) -> bool:
    """Whether a file holds MTP layers without their model (mtp-….gguf)."""
    tensors = _tensors_by_name(header)
    has_mtp = header.hparam("nextn_predict_layers") > 0
    return has_mtp and bool(tensors) and "blk.0.attn_norm.weight" not in tensors


def _has_supported_mtp_layer(header: Header) -> bool:
    supported = header.architecture in architectures.SUPPORTING_MTP
    n_mtp_layers = header.hparam("nextn_predict_layers")
    tensor = f"blk.{header.n_layer - 1}.nextn.eh_proj.weight"
    return supported and n_mtp_layers == 1 and tensor in _tensors_by_name(header)


def _tensors_by_name(header: Header) -> dict[str, TensorInfo]:
    return {tensor.name: tensor for tensor in header.tensors}


def check_compatibility(
    target: Header, draft: Header, path: Path | None = None
) -> CompatibilityResult:
    """Whether a draft of any kind works with a target; `path` is the draft's file, if complete."""
    if is_own_mtp_layer(target, draft):
        return CompatibilityResult("compatible", "own-layer", "it drafts with its own MTP layer")
    if not is_head(draft):
        return pair_compatibility.check_vocabularies(target.tokenizer, draft.tokenizer)
    return check_head(target_from_header(target), draft, path)


def check_head(target: HeadTarget, head: Header, path: Path | None = None) -> CompatibilityResult:
    """Rejects a head with which llama.cpp would abort, or silently compute wrong values."""
    if (mismatch := next(_structure_mismatches(target, head), None)) is not None:
        return mismatch
    result = pair_compatibility.check_vocabularies(target.vocabulary, head.tokenizer)
    if (
        result.is_compatible
        and (mismatch := next(_late_mismatches(target, head, path), None)) is not None
    ):
        return mismatch
    return result


def check_head_without_vocabulary(target: HeadTarget, head: Header) -> CompatibilityResult | None:
    """`check_head` without the rules that need vocabularies; None if none is broken."""
    mismatches = (m for m in _structure_mismatches(target, head) if m.rule != "mask-token")
    return next(mismatches, None)


def _structure_mismatches(target: HeadTarget, head: Header) -> Iterator[CompatibilityResult]:
    if (kind := unsupported_kind(head)) is not None:
        yield _incompatible("head-kind", f"it is a {kind} head, which cannot be run yet")
    elif is_standalone_mtp(head):
        yield from _mtp_layer_mismatches(target, head)
    else:
        yield from _hidden_state_mismatches(target, head)
        yield from _width_mismatches(target, head)
        yield from (_incompatible(*problem) for problem in _header_problems(head))


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
            "layers",
            f"it belongs to a model of {n_layer} layers; the target has {target.n_layer}",
        )


def _late_mismatches(
    target: HeadTarget, head: Header, path: Path | None
) -> Iterator[CompatibilityResult]:
    """Checks that need compatible vocabularies, or read the file's data."""
    if is_standalone_mtp(head):  # it has its own matrices
        return
    yield from _shared_matrix_mismatches(target, head)
    if path is not None:
        yield from (_incompatible(*problem) for problem in _data_problems(path, head))


def _hidden_state_mismatches(target: HeadTarget, head: Header) -> Iterator[CompatibilityResult]:
    name = sanitize(target.architecture[:40], multiline=False)
    if target.architecture not in architectures.EXPOSING_HIDDEN_STATES:
        detail = f"it reads hidden states, which llama.cpp does not provide for {name} models"
        yield _incompatible("hidden-states", detail)
    layers = target_layers(head)
    if file_draft_kind(head) == "eagle3" and len(layers) != _EAGLE3_TARGET_LAYERS:
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
    is_block_head = file_draft_kind(head) != "eagle3"  # reads states of its own width
    expected = head.n_embd if is_block_head else head.hparam("target_hidden_size")
    if expected != target.n_embd:
        detail = f"it reads hidden states {expected:,} wide; the target's are {target.n_embd:,}"
        yield _incompatible("hidden-size", detail)
    tensors = _tensors_by_name(head)
    missing = [name for name in ("token_embd", "output") if f"{name}.weight" not in tensors]
    if missing and head.n_embd != target.n_embd:
        detail = (
            f"it has no {missing[0]} of its own, and is {head.n_embd:,} wide; "
            f"the target's is {target.n_embd:,}"
        )
        yield _incompatible("embeddings", detail)


def _shared_matrix_mismatches(target: HeadTarget, head: Header) -> Iterator[CompatibilityResult]:
    """llama.cpp reads as many rows of the target's matrices as the head has tokens."""
    tensors = _tensors_by_name(head)
    n_tokens, n_target_tokens = head.tokenizer.n_tokens, target.vocabulary.n_tokens
    is_block_head = file_draft_kind(head) != "eagle3"
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


def _incompatible(rule: str, detail: str) -> CompatibilityResult:
    return CompatibilityResult("incompatible", rule, detail)


def _header_problems(head: Header) -> Iterator[HeadProblem]:
    """Problems of a head alone with which llama.cpp would abort or compute wrong values."""
    yield from _attention_problems(head)
    if head.architecture == "eagle3":
        yield from _eagle3_problems(head)
    else:
        yield from _block_problems(head)
    yield from _d2t_problems(head)


def _attention_problems(head: Header) -> Iterator[HeadProblem]:
    n, n_kv = head.n_head, head.n_head_kv
    if n < 1 or n_kv < 1 or n % n_kv:
        yield "attention", f"its {n} attention heads cannot share {n_kv} KV heads"
        return
    width = head.n_embd // n
    keys, values = (head.hparam(f"attention.{name}_length", width) for name in ("key", "value"))
    if keys != values:
        yield "attention", f"its keys are {keys} wide and its values {values}"
    rope_dim = head.hparam("rope.dimension_count", keys)
    if rope_dim % 2 or not 0 < rope_dim <= keys:
        yield "attention", f"it rotates {rope_dim} of {keys} dimensions (RoPE)"


def _eagle3_problems(head: Header) -> Iterator[HeadProblem]:
    if head.n_layer != 1:
        yield "head-layers", f"an EAGLE-3 head has one layer; it has {head.n_layer}"
    embeddings = _tensors_by_name(head).get("token_embd.weight")
    n_tokens = head.tokenizer.n_tokens
    if embeddings is not None and embeddings.shape[-1] != n_tokens:
        yield "embeddings", f"it has {embeddings.shape[-1]:,} embeddings for {n_tokens:,} tokens"


def _block_problems(head: Header) -> Iterator[HeadProblem]:
    mask = head.keys.get("tokenizer.ggml.mask_token_id")
    if not isinstance(mask, int):
        yield "mask-token", "it has no mask token, which its blocks need"
    elif not 0 <= mask < head.tokenizer.n_tokens:
        yield "mask-token", f"its mask token {mask:,} is beyond its {head.tokenizer.n_tokens:,}"
    key = "dflash.block_size"
    if "markov_w1.weight" in _tensors_by_name(head) and key not in head.keys:
        yield "block-size", "its block size is missing"
    elif key in head.keys and head.hparam("block_size") < 2:
        yield "block-size", f"blocks of {str(head.keys[key])[:20]} tokens hold no draft tokens"


def _d2t_problems(head: Header) -> Iterator[HeadProblem]:
    tensors = _tensors_by_name(head)
    d2t, output = tensors.get(_D2T_TENSOR), tensors.get("output.weight")
    if d2t is None:
        return
    rule = "reduced-vocabulary"
    if d2t.type != _I64_TYPE:
        yield rule, f"its reduced vocabulary (d2t) is of type {d2t.type_name} and must be I64"
    if output is None or output.shape[-1] != d2t.shape[0]:
        rows = "none" if output is None else f"{output.shape[-1]:,}"
        detail = f"its reduced vocabulary (d2t) has {d2t.shape[0]:,} tokens, its output has {rows}"
        yield rule, detail


def _data_problems(path: Path, head: Header) -> Iterator[HeadProblem]:
    """Problems of the ids in d2t, which are data and not in the header."""
    d2t = _tensors_by_name(head).get(_D2T_TENSOR)
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
        yield "reduced-vocabulary", f"its reduced vocabulary (d2t) names token {wrong[0]} of {n:,}"
    elif len(set(ids)) < len(ids):
        detail = "its reduced vocabulary (d2t) names tokens twice: it may hold offsets, not ids"
        yield "reduced-vocabulary", detail


def find_sidecar(path: Path, target: Header) -> Path | None:
    """The best compatible head (eagle3-….gguf, …) in the folder of a model's file.

    In the hub's cache, a head that was downloaded later may lie in a later commit's folder.
    """
    for prefix in _SIDECAR_PREFIXES:
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
        check_loadable(path)
        return check_compatibility(target, read_header(path), path).is_compatible
    except (LocalspecError, OSError):
        return False


def sidecar_notice(head_kind: str, name: str) -> str:
    """The notice that a head is used which the user did not name."""
    source = f"the {KIND_TITLES[head_kind]} head {name} in the model's folder"
    if head_kind == "mtp":
        source = "the model's own MTP layer"
    return sanitize(f"Drafting with {source}. To disable: --draft none.", multiline=False)
