"""What a head is: its kind, what it reads of its target, what its blocks are like."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from sys import byteorder
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError
from localspec.models import pair_compatibility, reference
from localspec.models.gguf import architectures, header
from localspec.models.gguf.header import Header
from localspec.models.pair_compatibility import ComparableVocabulary, CompatibilityResult
from localspec.sanitize import sanitize

KIND_TITLES = {"eagle3": "EAGLE-3", "mtp": "MTP", "dflash": "DFlash", "dspark": "DSpark"}
"""Kinds of heads as people write them."""
SUPPORTED_KINDS = frozenset(KIND_TITLES)
"""Those that this localspec can use."""
_DEFAULT_BLOCK_SIZE = 16
"""Rows of a block whose file does not say."""


@dataclass(frozen=True, slots=True)
class HeadTarget:
    """What a head must know of the model it drafts for."""

    architecture: str
    n_layer: int
    n_embd: int
    vocabulary: ComparableVocabulary


def target_from_header(facts: Header) -> HeadTarget:
    """Layers that guess further tokens (MTP) stand behind those that can be read."""
    n_layer = facts.n_layer - facts.hparam("nextn_predict_layers")
    return HeadTarget(facts.architecture, n_layer, facts.n_embd, facts.tokenizer)


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """What the blocks of a DFlash or DSpark head are like.

    `size` is how many rows a block may have: with more, llama.cpp leaves out the Markov matrices
    without a word.  `first` is the row whose logits are the first guess's.
    """

    size: int
    first_row: int
    has_confidence: bool
    """Whether it tells how sure it is of each guess."""
    is_causal: bool


def read_block_format(facts: Header) -> BlockFormat:
    own, keys = tensors_by_name(facts), facts.keys
    markov = "markov_w1.weight" in own
    anchored = markov and keys.get("dflash.sample_from_anchor", True) is True
    told = keys.get("dflash.has_confidence_head", True) is True
    return BlockFormat(
        size=facts.hparam("block_size", _DEFAULT_BLOCK_SIZE),
        first_row=0 if anchored else 1,
        # Without the matrix llama.cpp would give what was in that memory before.
        has_confidence=markov and told and "conf_proj.weight" in own,
        is_causal=keys.get("dflash.attention.causal") is True,
    )


def file_draft_kind(facts: Header) -> str:
    """What a file drafts as: `model`, or the kind of its head."""
    if facts.architecture == "dflash":
        return "dspark" if "markov_w1.weight" in tensors_by_name(facts) else "dflash"
    if facts.architecture == "gemma4-assistant" or has_only_mtp_layers(facts):
        return "mtp"
    return "eagle3" if facts.architecture == "eagle3" else "model"


def kind_from_file_name(path: str) -> str:
    """The kind of head that a file's name says: dspark-….gguf."""
    name = path.rpartition("/")[2]
    return next((word[:-1] for word in reference.HEAD_PREFIXES if word in name), "model")


def is_supported_head(facts: Header) -> bool:
    """Whether a head can be used out of this file."""
    return file_draft_kind(facts) in SUPPORTED_KINDS and unsupported_kind(facts) is None


def has_only_mtp_layers(facts: Header) -> bool:
    """Whether it holds layers that guess without the model that they belong to (mtp-….gguf)."""
    own = tensors_by_name(facts)
    guesses = facts.hparam("nextn_predict_layers") > 0
    return guesses and bool(own) and "blk.0.attn_norm.weight" not in own


def target_layers(facts: Header) -> tuple[int, ...]:
    """The target's layers whose inputs a head reads, in its own order."""
    value = facts.keys.get(f"{facts.architecture}.target_layers", ())
    found = value if isinstance(value, tuple) else ()
    return tuple(layer for layer in found if isinstance(layer, int))


def has_own_mtp_layer(facts: Header) -> bool:
    """Whether a model brings a layer of its own that guesses (MTP): its file is then its head."""
    return _has_supported_mtp_layer(facts) and not is_standalone_mtp(facts)


def is_standalone_mtp(facts: Header) -> bool:
    """Whether a file holds such a layer and not the model it belongs to, whose name it has."""
    return _has_supported_mtp_layer(facts) and has_only_mtp_layers(facts)


def is_head(facts: Header) -> bool:
    """No model by itself."""
    return facts.architecture in architectures.DRAFT_HEADS or has_only_mtp_layers(facts)


def _has_supported_mtp_layer(facts: Header) -> bool:
    known = facts.architecture in architectures.SUPPORTING_MTP
    n = facts.hparam("nextn_predict_layers")
    block = f"blk.{facts.n_layer - 1}.nextn.eh_proj.weight"
    return known and n == 1 and block in tensors_by_name(facts)


def draft_kind_for_target(target: Header, draft: Header) -> str:
    """What a draft is beside this target: `model`, or the kind of head.

    The target's own file twice is its own layer that guesses, where it has one.
    """
    return "mtp" if is_own_mtp_layer(target, draft) else file_draft_kind(draft)


def is_own_mtp_layer(target: Header, draft: Header) -> bool:
    """Whether the draft is the target's own layer that guesses: the same file."""
    same = draft is target or draft.tensors == target.tensors
    return same and has_own_mtp_layer(target)


def unsupported_kind(head: Header) -> str | None:
    """What a head is that has a kind's architecture and needs other calls."""
    if head.architecture == "gemma4-assistant":
        return "Gemma 4 assistant"
    if "selector_hidden.weight" in tensors_by_name(head):
        return "DFlash2"
    if has_only_mtp_layers(head) and not is_standalone_mtp(head):
        return f"MTP of {sanitize(head.architecture[:40], multiline=False)} models"
    return "DeepSeek V4 DSpark" if head.hparam("hyper_connection_count") else None


# --- Heads: files that guess for one model, by its hidden states.

__all__ = [
    "KIND_TITLES",
    "SUPPORTED_KINDS",
    "BlockFormat",
    "HeadTarget",
    "check_compatibility",
    "check_head",
    "check_head_without_vocabulary",
    "draft_kind_for_target",
    "file_draft_kind",
    "find_sidecar",
    "has_own_mtp_layer",
    "is_head",
    "is_head_for",
    "is_own_mtp_layer",
    "is_supported_head",
    "kind_from_file_name",
    "read_block_format",
    "sidecar_notice",
    "target_from_header",
    "target_layers",
]


# --- Whether a head can draft for a target: what it reads of it, and what it takes from it.

_EAGLE3_TARGET_LAYERS = 3
"""Layers that an EAGLE-3 head reads, never more or fewer."""


def check_compatibility(
    target: Header, draft: Header, path: Path | None = None
) -> CompatibilityResult:
    """Whether a draft of any kind can speculate for a target; its `path` if its data is here."""
    if is_own_mtp_layer(target, draft):
        return CompatibilityResult(
            "compatible", "own-layer", "it guesses by a layer of its own (MTP)"
        )
    if not is_head(draft):
        return pair_compatibility.check_vocabularies(target.tokenizer, draft.tokenizer)
    return check_head(target_from_header(target), draft, path)


def check_head(target: HeadTarget, head: Header, path: Path | None = None) -> CompatibilityResult:
    """Everything that llama.cpp would abort on, or silently compute nonsense with."""
    if (refusal := next(_structure_mismatches(target, head), None)) is not None:
        return refusal
    verdict = pair_compatibility.check_vocabularies(target.vocabulary, head.tokenizer)
    if (
        verdict.is_compatible
        and (refusal := next(_late_mismatches(target, head, path), None)) is not None
    ):
        return refusal
    return verdict


def check_head_without_vocabulary(target: HeadTarget, head: Header) -> CompatibilityResult | None:
    """The same as far as it needs no vocabulary; None where nothing is wrong."""
    found = (one for one in _structure_mismatches(target, head) if one.rule != "mask-token")
    return next(found, None)


def _structure_mismatches(target: HeadTarget, head: Header) -> Iterator[CompatibilityResult]:
    if (unknown := unsupported_kind(head)) is not None:
        yield _incompatible(
            "head-kind", f"it is a head of the kind {unknown}, which cannot be run yet"
        )
        return
    yield from _supported_head_mismatches(target, head)


def _supported_head_mismatches(target: HeadTarget, head: Header) -> Iterator[CompatibilityResult]:
    if is_standalone_mtp(head):
        yield from _mtp_layer_mismatches(target, head)
        return
    yield from _hidden_state_mismatches(target, head)
    yield from _width_mismatches(target, head)
    yield from (_incompatible(*problem) for problem in header_problems(head))


def _mtp_layer_mismatches(target: HeadTarget, head: Header) -> Iterator[CompatibilityResult]:
    """It goes on from what leaves the last layer of the very model that it was taken out of."""
    if head.architecture != target.architecture:
        mine, theirs = (sanitize(one.architecture[:40], multiline=False) for one in (head, target))
        yield _incompatible(
            "architecture", f"it is a layer of {mine} models, and the target is of {theirs}"
        )
    if head.n_embd != target.n_embd:
        detail = f"it reads hidden states {head.n_embd:,} wide; the target's are {target.n_embd:,}"
        yield _incompatible("hidden-size", detail)
    if (own := target_from_header(head).n_layer) != target.n_layer:
        yield _incompatible(
            "layers", f"it belongs behind {own} layers; the target has {target.n_layer}"
        )


def _late_mismatches(
    target: HeadTarget, head: Header, path: Path | None
) -> Iterator[CompatibilityResult]:
    """What matters only between vocabularies that go together, or is slow to see."""
    if is_standalone_mtp(head):  # it brings its own matrices
        return
    yield from _shared_matrix_mismatches(target, head)
    if path is not None:
        yield from (_incompatible(*problem) for problem in data_problems(path, head))


def _hidden_state_mismatches(target: HeadTarget, head: Header) -> Iterator[CompatibilityResult]:
    name = sanitize(target.architecture[:40], multiline=False)
    if target.architecture not in architectures.EXPOSING_HIDDEN_STATES:
        what = f"it reads hidden states, which llama.cpp does not give of {name} models"
        yield _incompatible("hidden-states", what)
    read = target_layers(head)
    if file_draft_kind(head) == "eagle3" and len(read) != _EAGLE3_TARGET_LAYERS:
        yield _incompatible(
            "layers",
            f"it must read {_EAGLE3_TARGET_LAYERS} layers of its target, and names {len(read)}",
        )
    if not read:
        yield _incompatible("layers", "it names no layers of its target to read")
    after_last = target.architecture in architectures.EXPOSING_LAST_LAYER_OUTPUT
    last = target.n_layer - (not after_last)
    if wrong := [layer for layer in read if not 0 <= layer <= last]:
        detail = f"it reads layer {wrong[0]} of its target, whose layers are 0 to {last}"
        yield _incompatible("layers", detail)


def _width_mismatches(target: HeadTarget, head: Header) -> Iterator[CompatibilityResult]:
    block = file_draft_kind(head) != "eagle3"  # its states are as wide as itself
    wanted = head.n_embd if block else head.hparam("target_hidden_size")
    if wanted != target.n_embd:
        detail = f"it reads hidden states {wanted:,} wide; the target's are {target.n_embd:,}"
        yield _incompatible("hidden-size", detail)
    own = tensors_by_name(head)
    lacks = [name for name in ("token_embd", "output") if f"{name}.weight" not in own]
    if lacks and head.n_embd != target.n_embd:
        detail = (
            f"it has no {lacks[0]} of its own, and is {head.n_embd:,} wide; "
            f"the target's is {target.n_embd:,}"
        )
        yield _incompatible("embeddings", detail)


def _shared_matrix_mismatches(target: HeadTarget, head: Header) -> Iterator[CompatibilityResult]:
    """Of the target's own matrices llama.cpp reads as many rows as the head has tokens."""
    own = tensors_by_name(head)
    n, theirs = head.tokenizer.n_tokens, target.vocabulary.n_tokens
    block = file_draft_kind(head) != "eagle3"
    output = "output.weight" in own or (block and "token_embd.weight" in own)
    if not output and n != theirs:
        detail = f"it has no output of its own for its {n:,} tokens; the target's has {theirs:,}"
        yield _incompatible("output", detail)
    mask = head.keys.get("tokenizer.ggml.mask_token_id")
    embedded = "token_embd.weight" in own
    if block and not embedded and isinstance(mask, int) and mask >= theirs:
        yield _incompatible(
            "mask-token", f"its mask token {mask:,} is none of the target's {theirs:,}"
        )


def _incompatible(rule: str, detail: str) -> CompatibilityResult:
    return CompatibilityResult("incompatible", rule, detail)


# --- Heads that lie beside their models, and the word that one is used.

SIDECAR_PREFIXES = ("mtp-", "eagle3-", "dspark-", "dflash-")
"""How the files of heads begin that lie beside their targets; the best first."""


def find_sidecar(path: Path, target: Header) -> Path | None:
    """The head in a model's folder that fits it: eagle3-…, as repositories name them.

    A download that came later may lie in the folder of a later commit.
    """
    for prefix in SIDECAR_PREFIXES:
        for folder in _sidecar_folders(path):
            for found in sorted(folder.glob(f"{prefix}*.gguf")):
                if is_head_for(target, found):
                    return found
    return None


def _sidecar_folders(path: Path) -> Iterator[Path]:
    """The file's own; of one in the hub's cache those of the repository's other commits too."""
    yield path.parent
    if path.parent.parent.name == "snapshots":
        yield from sorted(path.parent.parent.iterdir())


def is_head_for(target: Header, path: Path) -> bool:
    """Whether a file is a head for this model."""
    try:
        header.check_loadable(path)
        return check_compatibility(target, header.read(path), path).is_compatible
    except (LocalspecError, OSError):
        return False


def sidecar_notice(head_kind: str, name: str) -> str:
    """That a head is used though nobody named it, in a line."""
    what = f"the {KIND_TITLES[head_kind]} head {name} beside it"
    if head_kind == "mtp":
        what = "a layer of its own that predicts further tokens (MTP)"
    return sanitize(f"Guesses come from {what}. Without: --draft none.", multiline=False)


# --- What in a head's file alone makes llama.cpp abort, or compute nonsense: each with its rule.

if TYPE_CHECKING:
    from localspec.models.gguf.tensors import TensorInfo

HeadProblem = tuple[str, str]
"""A rule and what breaks it."""
D2T_TENSOR = "d2t"
"""The tensor of a reduced vocabulary: the target's token for each token of the head's."""
_I64_TYPE = 27


def tensors_by_name(head: Header) -> dict[str, TensorInfo]:
    return {tensor.name: tensor for tensor in head.tensors}


def header_problems(head: Header) -> Iterator[HeadProblem]:
    """The first of them is reason enough."""
    yield from _attention_problems(head)
    if head.architecture == "eagle3":
        yield from _eagle3_problems(head)
    else:
        yield from _block_problems(head)
    yield from _d2t_problems(head)


def _attention_problems(head: Header) -> Iterator[HeadProblem]:
    n, n_kv = head.n_head, head.n_head_kv
    if n < 1 or n_kv < 1 or n % n_kv:
        yield "attention", f"its {n} attention heads cannot share {n_kv} of keys and values"
        return
    width = head.n_embd // n
    keys, values = (head.hparam(f"attention.{name}_length", width) for name in ("key", "value"))
    if keys != values:
        yield "attention", f"its keys are {keys} wide and its values {values}"
    turned = head.hparam("rope.dimension_count", keys)
    if turned % 2 or not 0 < turned <= keys:
        yield "attention", f"it turns {turned} of {keys} dimensions by position"


def _eagle3_problems(head: Header) -> Iterator[HeadProblem]:
    if head.n_layer != 1:
        yield "head-layers", f"an EAGLE-3 head has one layer; it has {head.n_layer}"
    embeddings, n = tensors_by_name(head).get("token_embd.weight"), head.tokenizer.n_tokens
    if embeddings is not None and embeddings.shape[-1] != n:
        yield "embeddings", f"it has {embeddings.shape[-1]:,} embeddings for {n:,} tokens"


def _block_problems(head: Header) -> Iterator[HeadProblem]:
    mask = head.keys.get("tokenizer.ggml.mask_token_id")
    if not isinstance(mask, int):
        yield "mask-token", "it has no mask token, which its blocks are made of"
    elif not 0 <= mask < head.tokenizer.n_tokens:
        yield "mask-token", f"its mask token {mask:,} is beyond its {head.tokenizer.n_tokens:,}"
    key = "dflash.block_size"
    if "markov_w1.weight" in tensors_by_name(head) and key not in head.keys:
        yield "block-size", "it does not say how long its blocks are"
    elif key in head.keys and head.hparam("block_size") < 2:
        yield "block-size", f"blocks of {str(head.keys[key])[:20]} tokens guess nothing"


def _d2t_problems(head: Header) -> Iterator[HeadProblem]:
    own = tensors_by_name(head)
    map_, output = own.get(D2T_TENSOR), own.get("output.weight")
    if map_ is None:
        return
    rule = "reduced-vocabulary"
    if map_.type != _I64_TYPE:
        yield rule, f"its reduced vocabulary (d2t) is of type {map_.type_name} and must be I64"
    if output is None or output.shape[-1] != map_.shape[0]:
        rows = "none" if output is None else f"{output.shape[-1]:,}"
        detail = f"its reduced vocabulary (d2t) has {map_.shape[0]:,} tokens, its output has {rows}"
        yield rule, detail


def data_problems(path: Path, head: Header) -> Iterator[HeadProblem]:
    """Of the numbers in the map, which the header does not show."""
    map_ = tensors_by_name(head).get(D2T_TENSOR)
    if map_ is None:
        return
    ids = array("q")
    with path.open("rb") as file:
        file.seek(head.data_offset + map_.offset)
        ids.frombytes(file.read(map_.n_bytes))
    if byteorder == "big":
        ids.byteswap()
    n = head.tokenizer.n_tokens
    if wrong := [token for token in ids if not 0 <= token < n]:
        yield "reduced-vocabulary", f"its reduced vocabulary (d2t) names token {wrong[0]} of {n:,}"
    elif len(set(ids)) < len(ids):
        detail = "its reduced vocabulary (d2t) names tokens twice: perhaps it holds differences"
        yield "reduced-vocabulary", detail
