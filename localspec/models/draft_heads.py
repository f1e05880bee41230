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

SELECTOR = "selector_hidden.weight"
"""The matrix of a DFlash2 head that selects among candidates."""


class BlockFormat(Struct, frozen=True):
    """The block format of a DFlash or DSpark head."""

    size: int
    """Rows of a block. With more rows llama.cpp silently skips the Markov matrices."""
    first_row: int
    """The row whose logits give the first draft token."""
    has_confidence: bool
    """Whether the head outputs a confidence for each draft token."""
    is_causal: bool
    top_k: int = 0
    """DFlash2: candidates per draft token, scored after each of the token before."""


def read_block_format(header: Header) -> BlockFormat:
    first_row = 1
    has_confidence = False
    if has_markov_matrices(header):
        if _read_flag(header, "sample_from_anchor", default=True):
            first_row = 0
        # Without the matrix llama.cpp would return uninitialised memory.
        if header.has_tensor("conf_proj.weight"):
            has_confidence = _read_flag(header, "has_confidence_head", default=True)
    top_k = 0
    if header.has_tensor(SELECTOR):
        top_k = header.hparam("selector_top_k")
    return BlockFormat(
        size=header.hparam("block_size", 16),
        first_row=first_row,
        has_confidence=has_confidence,
        is_causal=_read_flag(header, "attention.causal", default=False),
        top_k=top_k,
    )


def _read_flag(header: Header, key: str, *, default: bool) -> bool:
    """`default` if the key is missing; False if it is no boolean."""
    value = header.raw_hparam(key)
    return default if value is None else value is True


def has_markov_matrices(head: Header) -> bool:
    """Whether a block head is of the DSpark kind."""
    return head.has_tensor("markov_w1.weight")


def file_draft_kind(header: Header) -> str:
    """`model`, or the kind of head that a file holds."""
    if is_block_head(header):
        return "dspark" if has_markov_matrices(header) else "dflash"
    if is_assistant(header) or has_only_mtp_layers(header):
        return "mtp"
    return "eagle3" if is_eagle3(header) else "model"


def draft_kind_for_target(target: Header, draft: Header) -> str:
    """`model`, or the kind of head that a draft is for this target.

    The target's own file as draft means its own MTP layer, if it has one.
    """
    return "mtp" if is_own_mtp_layer(target, draft) else file_draft_kind(draft)


def kind_from_file_name(path: str) -> str:
    """`model`, or the kind of head by the file's name: dspark-….gguf."""
    name = path.rpartition("/")[2]
    for prefix in reference.HEAD_PREFIXES:
        if prefix in name:
            return prefix.removesuffix("-")
    return "model"


def is_head(header: Header) -> bool:
    """Whether a file holds a head and no model."""
    is_head_alone = header.architecture in architectures.DRAFT_HEADS
    return is_head_alone or has_only_mtp_layers(header)


def is_eagle3(header: Header) -> bool:
    return header.architecture in architectures.EAGLE3_HEADS


def is_block_head(header: Header) -> bool:
    """Whether a file holds a head that drafts a block in one pass: DFlash or DSpark."""
    return header.architecture in architectures.BLOCK_HEADS


def is_assistant(header: Header) -> bool:
    """Whether it is an MTP head that reads its target's KV cache, as Gemma 4's."""
    return header.architecture in architectures.ASSISTANTS


def unsupported_kind(head: Header) -> str | None:
    """What a head is that cannot be run although its architecture can; else None."""
    if has_only_mtp_layers(head) and not is_standalone_mtp(head):
        return f"MTP of {sanitize(head.architecture[:40], multiline=False)} models"
    return "DeepSeek V4 DSpark" if head.hparam("hyper_connection_count") else None


def target_layers(head: Header) -> tuple[int, ...]:
    """The target's layers whose inputs a head reads, in the head's order."""
    layers = head.raw_hparam("target_layers")
    if not isinstance(layers, tuple):
        return ()
    return tuple(il for il in layers if isinstance(il, int))


def count_readable_layers(target: Header) -> int:
    """The layers that a head can read: not the MTP layers at the end."""
    return target.n_layer - target.hparam("nextn_predict_layers")


def has_own_mtp_layer(header: Header) -> bool:
    """Whether a model's file includes an MTP layer: the file is then its own head."""
    return _has_supported_mtp_layer(header) and not is_standalone_mtp(header)


def is_own_mtp_layer(target: Header, draft: Header) -> bool:
    """Whether the draft is the target's own MTP layer: the same file."""
    return draft.tensors == target.tensors and has_own_mtp_layer(target)


def is_standalone_mtp(header: Header) -> bool:
    """Whether it has only a supported MTP layer, of its model's architecture."""
    return _has_supported_mtp_layer(header) and has_only_mtp_layers(header)


def has_only_mtp_layers(header: Header) -> bool:
    """Whether a file holds MTP layers without their model (mtp-….gguf)."""
    if header.hparam("nextn_predict_layers") <= 0 or not header.tensors:
        return False
    return not header.has_tensor("blk.0.attn_norm.weight")


def _has_supported_mtp_layer(header: Header) -> bool:
    """Whether a file has MTP layers, all of them, that llama.cpp can run."""
    n_mtp = header.hparam("nextn_predict_layers")
    if n_mtp <= 0 or header.architecture not in architectures.SUPPORTING_MTP:
        return False
    if n_mtp > 1 and header.architecture not in architectures.CHAINING_MTP:
        return False
    tensors = header.tensors_by_name
    mtp_layers = range(header.n_layer - n_mtp, header.n_layer)
    return all(f"blk.{il}.nextn.eh_proj.weight" in tensors for il in mtp_layers)


def describe_found_head(head_kind: str, name: str) -> str:
    """A head that the user did not name, in words."""
    if head_kind == "mtp":
        return "the model's own MTP layer"
    head = f"the {draft_kinds.head_title(head_kind)} head {name} in the model's folder"
    return sanitize(head, multiline=False)
