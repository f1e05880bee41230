"""Compatibility of a target and a draft: a model, or a head made for the target.

A model with an equal vocabulary drafts tokens; for another vocabulary a kind of draft may
have a check of its own (`pairing` in `localspec/draft_kinds.py`).
The rule for vocabularies is common_speculative_are_compatible in llama.cpp's
common/speculative.cpp: same vocabulary type, same BOS and EOS if they are added, sizes
at most 128 apart, and the same text for every id from 5 on.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

from msgspec import Struct

from localspec import draft_kinds, extras
from localspec.errors import Hint, IncompatiblePairError, LocalspecError
from localspec.models import draft_heads, reference
from localspec.models.gguf import architectures, reader
from localspec.models.gguf.header import Header
from localspec.models.gguf.tokenizer import TokenizerMetadata
from localspec.sanitize import sanitize

MAX_SIZE_DIFFERENCE = 128  # SPEC_VOCAB_MAX_SIZE_DIFFERENCE: allows for padding.
FIRST_COMPARED_TOKEN = 5
"""SPEC_VOCAB_CHECK_START_TOKEN_ID: the first ids are special tokens whose names differ.
"""
_VOCABULARY_TYPES = ("none", "SPM", "BPE", "WPM", "UGM", "RWKV", "PLaMo-2")


class CompatibilityResult(Struct, frozen=True):
    """The verdict, the rule that decided it, and the first token that differs."""

    verdict: str
    """`compatible`, `compatible-padding` or `incompatible`, or one that a kind of
    draft has for models whose vocabularies differ.
    """
    rule: str
    detail: str
    token: int | None = None

    @property
    def is_compatible(self) -> bool:
        return self.verdict != "incompatible"

    @property
    def summary(self) -> str:
        kind = draft_kinds.of_verdict(self.verdict)
        title = kind.verdict_title if kind else self.verdict.partition("-")[0]
        return f"{title}: {self.detail}"


def check_compatibility(
    target: Header, draft: Header, path: Path | None = None
) -> CompatibilityResult:
    """Whether a draft of any kind works with a target; `path` is the draft's file, if
    complete.
    """
    if draft_heads.is_own_mtp_layer(target, draft):
        return CompatibilityResult(
            "compatible", "own-layer", "it drafts with its own MTP layer"
        )
    if not draft_heads.is_head(draft):
        return check_draft_model(target, draft)
    return _check_head(target, draft, path)


def check_draft_model(target: Header, draft: Header) -> CompatibilityResult:
    """Whether a model can draft: the vocabularies agree, or a kind of draft bridges
    them.
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


def check_vocabularies(
    target: TokenizerMetadata, draft: TokenizerMetadata
) -> CompatibilityResult:
    """By llama.cpp's rule, in its own order."""
    if (mismatch := _first_broken(_vocabulary_rules(target, draft))) is not None:
        return mismatch
    a, b = target.n_tokens, draft.n_tokens
    if a != b:
        detail = f"equal up to padding: {a:,} and {b:,} tokens"
        return CompatibilityResult(
            "compatible-padding", "vocabulary-size", detail, min(a, b)
        )
    return CompatibilityResult(
        "compatible", "same-vocabulary", f"the same {a:,} tokens"
    )


HeadRule = tuple[str, bool, str] | tuple[str, bool, str, int | None]
"""A rule, whether a pair breaks it, how, and the token that differs. A later rule is
evaluated only if none before is broken.
"""


def _first_broken(rules: Iterable[HeadRule]) -> CompatibilityResult | None:
    for rule, is_broken, *details in rules:
        if is_broken:
            return CompatibilityResult("incompatible", rule, *details)
    return None


def _vocabulary_rules(
    target: TokenizerMetadata, draft: TokenizerMetadata
) -> Iterator[HeadRule]:
    names = dict(enumerate(_VOCABULARY_TYPES)) | {-1: "unknown"}
    kind, target_kind = (names.get(v.kind, str(v.kind)) for v in (draft, target))
    detail = f"its vocabulary is of type {kind}, the target's is {target_kind}"
    yield "vocabulary-type", draft.kind != target.kind, detail
    # llama.cpp aborts when a token's text is requested of a file without a vocabulary
    yield "vocabulary-type", not draft.kind, "neither file has a vocabulary"
    for name in ("bos", "eos"):
        adds, target_adds = (bool(getattr(v, f"add_{name}")) for v in (draft, target))
        id_, target_id = (int(getattr(v, name)) for v in (draft, target))
        role = "the draft" if adds else "the target"
        yield (
            f"add-{name}",
            adds != target_adds,
            f"only {role} adds a {name.upper()} token",
        )
        detail = f"its {name.upper()} token is {id_}, the target's is {target_id}"
        yield name, adds and id_ != target_id, detail, id_
    n, n_target = draft.n_tokens, target.n_tokens
    detail = f"its vocabulary has {n:,} tokens, the target's has {n_target:,}; "
    detail += f"at most {MAX_SIZE_DIFFERENCE} may differ"
    yield "vocabulary-size", abs(n - n_target) > MAX_SIZE_DIFFERENCE, detail
    if draft.fingerprint and draft.fingerprint == target.fingerprint:
        return
    for token in range(FIRST_COMPARED_TOKEN, min(n, n_target)):
        texts = draft.token_text(token), target.token_text(token)
        if texts[0] != texts[1]:
            text, target_text = (
                repr(sanitize(each.decode("utf-8", "replace"), multiline=False))
                for each in texts
            )
            detail = (
                f"token {token} is {text} in the draft and {target_text} in the target"
            )
            yield "token-text", True, detail, token


def _check_head(target: Header, head: Header, path: Path | None) -> CompatibilityResult:
    """Rejects a head with which llama.cpp would abort, or silently compute wrong
    values.
    """
    if (mismatch := _first_broken(_structure_rules(target, head))) is not None:
        return mismatch
    result = check_vocabularies(target.tokenizer, head.tokenizer)
    has_own_matrices = draft_heads.is_standalone_mtp(head) or draft_heads.is_assistant(
        head
    )
    if not result.is_compatible or has_own_matrices:
        return result
    mismatch = _first_broken(_shared_matrix_rules(target, head))
    if mismatch is None and path is not None:
        mismatch = _first_broken(_data_rules(path, head))
    return mismatch or result


def find_head_mismatch(
    target: Header, draft: Header | None
) -> CompatibilityResult | None:
    """The first rule that a head breaks, of those that need no vocabulary.

    None also for a draft model and for the target's own MTP layer.
    """
    if draft is None or not draft_heads.is_head(draft):
        return None
    rules = _structure_rules(target, draft)
    return _first_broken(rule for rule in rules if rule[0] != "mask-token")


def _structure_rules(target: Header, head: Header) -> Iterator[HeadRule]:
    kind = draft_heads.unsupported_kind(head)
    yield "head-kind", kind is not None, f"it is a {kind} head, which cannot be run yet"
    if draft_heads.is_standalone_mtp(head):
        yield from _mtp_layer_rules(target, head)
        return
    if draft_heads.is_assistant(head):
        yield from _assistant_rules(target, head)
        return
    yield from _hidden_state_rules(target, head)
    yield from _width_rules(target, head)
    yield from _attention_rules(head)
    yield from (
        _eagle3_rules(head) if head.architecture == "eagle3" else _block_rules(head)
    )
    yield from _d2t_rules(head)


def _count_layers(header: Header) -> int:
    """Without the MTP layers at the end, which a head cannot read."""
    return header.n_layer - header.hparam("nextn_predict_layers")


def _mtp_layer_rules(target: Header, head: Header) -> Iterator[HeadRule]:
    """An MTP layer continues from the last layer's output of the model it was trained
    with.
    """
    own, expected = (
        sanitize(m.architecture[:40], multiline=False) for m in (head, target)
    )
    detail = f"it is an MTP layer of {own} models, the target is {expected}"
    yield "architecture", head.architecture != target.architecture, detail
    detail = f"it reads hidden states {head.n_embd:,} wide; the target's are {target.n_embd:,}"
    yield "hidden-size", head.n_embd != target.n_embd, detail
    n_layer, n_target = _count_layers(head), _count_layers(target)
    detail = f"it belongs to a model of {n_layer} layers; the target has {n_target}"
    yield "layers", n_layer != n_target, detail


def _assistant_rules(target: Header, head: Header) -> Iterator[HeadRule]:
    """A Gemma 4 assistant reads the keys and values of its target's last two layers.

    llama.cpp takes them for as wide as the assistant's own (`share` in
    src/llama-model.cpp).
    """
    name = sanitize(target.architecture[:40], multiline=False)
    detail = f"it is an assistant of gemma4 models, the target is {name}"
    yield "architecture", target.architecture != "gemma4", detail
    width = head.hparam("embedding_length_out", head.n_embd)
    detail = (
        f"it reads hidden states {width:,} wide; the target's are {target.n_embd:,}"
    )
    yield "hidden-size", width != target.n_embd, detail
    yield "hidden-size", width == head.n_embd, "it is as wide as its target"
    n, n_mtp = head.n_layer, head.hparam("nextn_predict_layers")
    yield "layers", n != n_mtp, f"it has {n} layers, of which {n_mtp} draft"
    windows = [
        _layer_value(target, "attention.sliding_window_pattern", il, 0)
        for il in (-2, -1)
    ]
    detail = (
        "the target's last two layers are not one with a sliding window and one without"
    )
    yield (
        "layers",
        target.n_layer < 2 or [bool(each) for each in windows] != [True, False],
        detail,
    )
    for il in range(n):
        is_swa = bool(_layer_value(head, "attention.sliding_window_pattern", il, 0))
        sizes = [
            (
                _layer_value(header, "attention.head_count_kv", at, header.n_head),
                *_kv_widths(header, is_swa),
            )
            for header, at in ((head, il), (target, -2 if is_swa else -1))
        ]
        (own, k, v), (theirs, target_k, target_v) = sizes
        detail = f"its layer {il} reads {own} KV heads of {k} and {v}; the target's has {theirs} of "
        yield "attention", sizes[0] != sizes[1], f"{detail}{target_k} and {target_v}"
    n_swa, target_swa = (
        each.hparam("attention.sliding_window") for each in (head, target)
    )
    detail = f"its window is {n_swa:,} tokens, the target's {target_swa:,}"
    yield "window", n_swa != target_swa, detail


def _layer_value(header: Header, key: str, il: int, default: int) -> int:
    """Of a layer (negative: from the end), for a key with one value for all or one for
    each.
    """
    value = header.keys.get(f"{header.architecture}.{key}", default)
    values = value if isinstance(value, tuple) else (value,)
    found = (
        values[il]
        if len(values) == header.n_layer
        else values[0]
        if values
        else default
    )
    return found if isinstance(found, int) else default


def _kv_widths(header: Header, is_swa: bool) -> tuple[int, int]:
    """Of a key and of a value."""
    width, swa = header.n_embd // max(1, header.n_head), "_swa" * is_swa
    k, v = (
        header.hparam(f"attention.{part}_length{swa}", width)
        for part in ("key", "value")
    )
    return k, v


def _hidden_state_rules(target: Header, head: Header) -> Iterator[HeadRule]:
    name = sanitize(target.architecture[:40], multiline=False)
    is_exposed = target.architecture in architectures.EXPOSING_HIDDEN_STATES
    detail = (
        f"it reads hidden states, which llama.cpp does not provide for {name} models"
    )
    yield "hidden-states", not is_exposed, detail
    layers = draft_heads.target_layers(head)
    detail = f"it must read 3 layers of its target, and names {len(layers)}"
    yield "layers", head.architecture == "eagle3" and len(layers) != 3, detail
    yield "layers", not layers, "it names no layers of its target to read"
    after_last = target.architecture in architectures.EXPOSING_LAST_LAYER_OUTPUT
    last = _count_layers(target) - (not after_last)
    for layer in layers:
        detail = f"it reads layer {layer} of its target, whose layers are 0 to {last}"
        yield "layers", not 0 <= layer <= last, detail


def _width_rules(target: Header, head: Header) -> Iterator[HeadRule]:
    is_eagle3 = head.architecture == "eagle3"  # others read states of their own width
    expected = head.hparam("target_hidden_size") if is_eagle3 else head.n_embd
    detail = (
        f"it reads hidden states {expected:,} wide; the target's are {target.n_embd:,}"
    )
    yield "hidden-size", expected != target.n_embd, detail
    for name in ("token_embd", "output"):
        is_missing = f"{name}.weight" not in head.tensors_by_name
        detail = f"it has no {name} of its own, and is {head.n_embd:,} wide"
        detail += f"; the target's is {target.n_embd:,}"
        yield "embeddings", is_missing and head.n_embd != target.n_embd, detail


def _shared_matrix_rules(target: Header, head: Header) -> Iterator[HeadRule]:
    """llama.cpp reads as many rows of the target's matrices as the head has tokens."""
    n_tokens, n_target_tokens = head.tokenizer.n_tokens, target.tokenizer.n_tokens
    is_block_head = head.architecture != "eagle3"
    has_embeddings = "token_embd.weight" in head.tensors_by_name
    has_output = "output.weight" in head.tensors_by_name or (
        is_block_head and has_embeddings
    )
    detail = f"it has no output of its own for its {n_tokens:,} tokens"
    detail += f"; the target's has {n_target_tokens:,}"
    yield "output", not has_output and n_tokens != n_target_tokens, detail
    mask = head.keys.get("tokenizer.ggml.mask_token_id")
    if is_block_head and not has_embeddings and isinstance(mask, int):
        detail = (
            f"its mask token {mask:,} is not among the target's {n_target_tokens:,}"
        )
        yield "mask-token", mask >= n_target_tokens, detail


def _attention_rules(head: Header) -> Iterator[HeadRule]:
    n, n_kv = head.n_head, head.n_head_kv
    is_wrong = n < 1 or n_kv < 1 or n % n_kv > 0
    yield "attention", is_wrong, f"its {n} attention heads cannot share {n_kv} KV heads"
    width = head.n_embd // n
    keys, values = (
        head.hparam(f"attention.{name}_length", width) for name in ("key", "value")
    )
    yield (
        "attention",
        keys != values,
        f"its keys are {keys} wide and its values {values}",
    )
    rope_dim = head.hparam("rope.dimension_count", keys)
    is_wrong = rope_dim % 2 > 0 or not 0 < rope_dim <= keys
    yield "attention", is_wrong, f"it rotates {rope_dim} of {keys} dimensions (RoPE)"


def _eagle3_rules(head: Header) -> Iterator[HeadRule]:
    detail = f"an EAGLE-3 head has one layer; it has {head.n_layer}"
    yield "head-layers", head.n_layer != 1, detail
    embeddings, n_tokens = (
        head.tensors_by_name.get("token_embd.weight"),
        head.tokenizer.n_tokens,
    )
    if embeddings is not None:
        rows = embeddings.shape[-1]
        yield (
            "embeddings",
            rows != n_tokens,
            f"it has {rows:,} embeddings for {n_tokens:,} tokens",
        )


def _block_rules(head: Header) -> Iterator[HeadRule]:
    mask, n_tokens = (
        head.keys.get("tokenizer.ggml.mask_token_id"),
        head.tokenizer.n_tokens,
    )
    if not isinstance(mask, int):
        yield "mask-token", True, "it has no mask token, which its blocks need"
    else:
        detail = f"its mask token {mask:,} is beyond its {n_tokens:,}"
        yield "mask-token", not 0 <= mask < n_tokens, detail
    size = head.keys.get("dflash.block_size")
    is_missing = size is None and "markov_w1.weight" in head.tensors_by_name
    yield "block-size", is_missing, "its block size is missing"
    is_wrong = size is not None and head.hparam("block_size") < 2
    yield (
        "block-size",
        is_wrong,
        f"blocks of {str(size)[:20]} tokens hold no draft tokens",
    )
    if draft_heads.SELECTOR in head.tensors_by_name:
        k, n = head.hparam("selector_top_k"), head.n_embd
        detail = f"its selector takes {k} of {n_tokens:,} tokens, and is {n:,} wide"
        yield "selector", not 0 < k <= n_tokens or k * (k + 1) > n, detail
        yield "selector", size is None, "its block size is missing"
        kinds = {t.type_name for t in head.tensors if t.name.endswith("_conv_base")} - {
            "F32"
        }
        detail = (
            f"its convolutions are of type {', '.join(sorted(kinds))} and must be F32"
        )
        yield "selector", bool(kinds), detail


def _d2t_rules(head: Header) -> Iterator[HeadRule]:
    rule, name = "reduced-vocabulary", "its reduced vocabulary (d2t)"
    d2t, output = (
        head.tensors_by_name.get(tensor) for tensor in ("d2t", "output.weight")
    )
    if d2t is not None:
        yield (
            rule,
            d2t.type_name != "I64",
            f"{name} is of type {d2t.type_name} and must be I64",
        )
        rows = "none" if output is None else f"{output.shape[-1]:,}"
        detail = f"{name} has {d2t.shape[0]:,} tokens, its output has {rows}"
        yield rule, output is None or output.shape[-1] != d2t.shape[0], detail


def _data_rules(path: Path, head: Header) -> Iterator[HeadRule]:
    """Of the ids in d2t, the target's token for each one of a head's reduced
    vocabulary.
    """
    if (d2t := head.tensors_by_name.get("d2t")) is None:
        return
    ids = array("q")
    with path.open("rb") as file:
        file.seek(head.data_offset + d2t.offset)
        ids.frombytes(file.read(d2t.n_bytes))
    rule, name, n = (
        "reduced-vocabulary",
        "its reduced vocabulary (d2t)",
        head.tokenizer.n_tokens,
    )
    if wrong := [token for token in ids if not 0 <= token < n]:
        yield rule, True, f"{name} names token {wrong[0]} of {n:,}"
    detail = f"{name} names tokens twice: it may hold offsets, not ids"
    yield rule, len(set(ids)) < len(ids), detail


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
    """Properties that may make a compatible pair slow or inaccurate, most serious
    first.
    """
    warnings = [
        f"{role} cannot be run: {header.unsupported_reason}."
        for role, header in (("The target", target), ("The draft", draft))
        if header.unsupported_reason
    ]
    warnings += _memory_warnings(target, draft)
    if target.weight_bytes and draft.weight_bytes * 3 > target.weight_bytes:
        share = f"{100 * draft.weight_bytes / target.weight_bytes:.0f} % of the target's bytes"
        warnings.append(f"The draft has {share}: it is too large to gain much.")
    if target.is_moe:
        warnings.append(
            "The target is a mixture of experts: verifying several tokens reads more experts, "
            "so speculation gains less."
        )
    if draft_kinds.of_verdict(check_draft_model(target, draft).verdict) is None:
        # else it has its own tokenizer and template
        warnings += _text_warnings(target, draft)
    return tuple(sanitize(warning, multiline=False) for warning in warnings)


def _memory_warnings(target: Header, draft: Header) -> Iterator[str]:
    is_head = draft_heads.is_head(draft) or draft_heads.is_own_mtp_layer(target, draft)
    for role, header in (("The target", target), ("The draft", draft)):
        is_draft_model = header is draft and not is_head
        if not (header.is_recurrent or header.is_hybrid):
            continue
        if header.architecture in architectures.ROLLBACK or is_draft_model:
            yield f"{role} has a recurrent state: checkpoints for rollback need extra memory."
        else:
            effect = "speculation is off" if header is target else "it is not used"
            yield f"{role} has a recurrent state and cannot remove rejected tokens: {effect}."
    if draft.architecture in architectures.DRAFT_HEADS:
        yield "The draft reads its target's hidden states: it works with one target only."


def _text_warnings(target: Header, draft: Header) -> Iterator[str]:
    a, b = target.tokenizer, draft.tokenizer
    if a.kind == b.kind and a.pre != b.pre:
        yield f"Their pre-tokenizers differ ({a.pre or 'default'}, {b.pre or 'default'})."
    if a.eog_ids != b.eog_ids:
        yield "Their end-of-generation tokens differ: the draft may continue past the end."
    templates = {target.chat_template, draft.chat_template}
    if len(templates - {""}) == 2:
        yield "Their chat templates differ: the draft may expect another chat format."
    for key in ("general.quantized_by", "general.organization"):
        names = [str(header.keys.get(key, ""))[:40] for header in (target, draft)]
        if all(names) and names[0] != names[1]:
            shown = " and ".join(names)
            yield f"Their publishers differ ({shown}): details of the files may differ."
            break


def find_sidecar(path: Path, target: Header) -> Path | None:
    """The best compatible head (eagle3-….gguf, …) in the folder of a model's file.

    In the hub's cache, a head that was downloaded later may lie in a later commit's
    folder.
    """
    folders = [path.parent]
    if path.parent.parent.name == "snapshots":
        folders += sorted(path.parent.parent.iterdir())
    candidates = (
        candidate
        for prefix in reference.HEAD_PREFIXES
        for folder in folders
        for candidate in sorted(folder.glob(f"{prefix}*.gguf"))
    )
    return next((file for file in candidates if is_head_for(target, file)), None)


def is_head_for(target: Header, path: Path) -> bool:
    """False also if the file cannot be loaded."""
    try:
        reader.check_loadable(path)
        return check_compatibility(target, reader.read(path), path).is_compatible
    except (LocalspecError, OSError):
        return False
