"""Draft heads: networks that draft from the hidden states of one target model.

What a file's header says of them: EAGLE-3, MTP, DFlash and DSpark.
"""

from __future__ import annotations

from msgspec import Struct

from localspec import draft_kinds
from localspec.models import reference
from localspec.models.gguf import architectures
from localspec.models.gguf.header import Header
from localspec.sanitize import sanitize

SELECTOR = "selector_hidden.weight"  # Of DFlash2.


class BlockFormat(Struct, frozen=True):
    """The block format of a DFlash or DSpark head."""

    # Rows of a block.  With more rows llama.cpp silently skips the Markov matrices.
    size: int
    first_row: int  # The row whose logits give the first draft token.
    has_confidence: bool  # Whether the head outputs a confidence for each draft token.
    is_causal: bool
    # DFlash2: candidates per draft token, scored after each of the token before.
    top_k: int = 0


def read_block_format(header: Header) -> BlockFormat:
    tensors, keys = header.tensors_by_name, header.keys
    markov = "markov_w1.weight" in tensors
    anchored = markov and keys.get("dflash.sample_from_anchor", True) is True
    confidence = keys.get("dflash.has_confidence_head", True) is True
    return BlockFormat(
        size=header.hparam("block_size", 16),
        first_row=0 if anchored else 1,
        # Without the matrix llama.cpp would return uninitialised memory.
        has_confidence=markov and confidence and "conf_proj.weight" in tensors,
        is_causal=keys.get("dflash.attention.causal") is True,
        top_k=header.hparam("selector_top_k") if SELECTOR in tensors else 0,
    )


def file_draft_kind(header: Header) -> str:
    """`model`, or the kind of head that a file holds."""
    if header.architecture == "dflash":
        return "dspark" if "markov_w1.weight" in header.tensors_by_name else "dflash"
    if is_assistant(header) or has_only_mtp_layers(header):
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
    return next(
        (prefix[:-1] for prefix in reference.HEAD_PREFIXES if prefix in name), "model"
    )


def is_head(header: Header) -> bool:
    """Whether a file holds a head and no model."""
    return header.architecture in architectures.DRAFT_HEADS or has_only_mtp_layers(
        header
    )


def is_assistant(header: Header) -> bool:
    """Whether a file holds a Gemma 4 assistant: an MTP head that reads its target's KV
    cache.
    """
    return header.architecture == architectures.ASSISTANT


def unsupported_kind(head: Header) -> str | None:
    """The kind of a head that shares a supported architecture but cannot be run; else
    None.
    """
    if has_only_mtp_layers(head) and not is_standalone_mtp(head):
        return f"MTP of {sanitize(head.architecture[:40], multiline=False)} models"
    return "DeepSeek V4 DSpark" if head.hparam("hyper_connection_count") else None


def target_layers(head: Header) -> tuple[int, ...]:
    """The target's layers whose inputs a head reads, in the head's order."""
    layers = head.keys.get(f"{head.architecture}.target_layers")
    return (
        tuple(n for n in layers if isinstance(n, int))
        if isinstance(layers, tuple)
        else ()
    )


def has_own_mtp_layer(header: Header) -> bool:
    """Whether a model's file includes an MTP layer: the file is then its own head."""
    return _has_supported_mtp_layer(header) and not is_standalone_mtp(header)


def is_own_mtp_layer(target: Header, draft: Header) -> bool:
    """Whether the draft is the target's own MTP layer: the same file."""
    return draft.tensors == target.tensors and has_own_mtp_layer(target)


def is_standalone_mtp(header: Header) -> bool:
    """Whether a file holds only a supported MTP layer, under its model's architecture."""
    return _has_supported_mtp_layer(header) and has_only_mtp_layers(header)


def has_only_mtp_layers(header: Header) -> bool:
    """Whether a file holds MTP layers without their model (mtp-….gguf)."""
    has_mtp = header.hparam("nextn_predict_layers") > 0 and bool(header.tensors)
    return has_mtp and "blk.0.attn_norm.weight" not in header.tensors_by_name


def _has_supported_mtp_layer(header: Header) -> bool:
    n, end, tensors = (
        header.hparam("nextn_predict_layers"),
        header.n_layer,
        header.tensors_by_name,
    )
    can_chain = header.architecture in architectures.CHAINING_MTP
    is_supported = header.architecture in architectures.SUPPORTING_MTP and (
        n == 1 or can_chain
    )
    names = (f"blk.{il}.nextn.eh_proj.weight" for il in range(end - n, end))
    return is_supported and n > 0 and all(name in tensors for name in names)


def describe_found_head(head_kind: str, name: str) -> str:
    """A head that the user did not name, in words."""
    if head_kind == "mtp":
        return "the model's own MTP layer"
    head = f"the {draft_kinds.head_title(head_kind)} head {name} in the model's folder"
    return sanitize(head, multiline=False)
