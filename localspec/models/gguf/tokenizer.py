"""A model's vocabulary as llama.cpp would read it, from a header alone.

What a file does not say has a default by the kind of tokenizer.  All of them stand here; they are
those of llama_vocab::impl::load in llama.cpp's src/llama-vocab.cpp.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from localspec.models.gguf import parser as gguf
from localspec.models.gguf.parser import GgufContents, InvalidGgufError, StringArray
from localspec.sanitize import sanitize

NONE, SPM, BPE, WPM, UGM, RWKV, PLAMO2, TEST = range(8)
UNKNOWN = -1
"""A tokenizer.ggml.model that llama.cpp refuses."""
NULL_TOKEN = -1
"""LLAMA_TOKEN_NULL."""


def _name_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class TokenizerDefaults:
    """What holds where the file says nothing."""

    kind: int
    bos: int = NULL_TOKEN
    eos: int = NULL_TOKEN
    add_bos: bool = False
    add_eos: bool = False


DEFAULTS_BY_MODEL: dict[str, TokenizerDefaults] = {
    "none": TokenizerDefaults(NONE),
    "no_vocab": TokenizerDefaults(NONE),
    "llama": TokenizerDefaults(SPM, bos=1, eos=2, add_bos=True),
    "gpt2": TokenizerDefaults(BPE, bos=11, eos=11),
    "hybriddna": TokenizerDefaults(BPE, bos=11, eos=11),
    "whitespace": TokenizerDefaults(BPE, bos=11, eos=11),
    "gemma4": TokenizerDefaults(BPE),
    "bert": TokenizerDefaults(WPM, bos=101, add_bos=True),
    "t5": TokenizerDefaults(UGM, eos=1, add_eos=True),
    "rwkv": TokenizerDefaults(RWKV),
    "plamo2": TokenizerDefaults(PLAMO2, bos=1, eos=2),
    "test": TokenizerDefaults(TEST),
}
"""By tokenizer.ggml.model."""
ADD_BOS_BY_DEFAULT = _name_set(
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken "
    "chameleon"
)
"""By tokenizer.ggml.pre, of BPE: a BOS is added unless the file says no."""
ALWAYS_ADD_BOS = frozenset({"gemma4", "granite-embed-multi-311m"})
"""By tokenizer.ggml.pre, of BPE: a BOS is added whatever the file says."""
NO_DEFAULT_BOS = frozenset({"chatglm-bpe", "glm4", "glm5"})
"""By tokenizer.ggml.pre, of BPE: there is none unless the file names one."""
PRETOKENIZERS = (
    ADD_BOS_BY_DEFAULT
    | ALWAYS_ADD_BOS
    | NO_DEFAULT_BOS
    | _name_set(
        "a.x-4.0 afmoe bailingmoe bailingmoe2 bloom codeshell cohere2moe command-r dbrx "
        "deepseek-coder deepseek-llm deepseek-r1-qwen deepseek-v3 default exaone exaone-moe "
        "exaone4 f2llmv2 falcon gigachat gpt-2 gpt-4o gpt3-finnish granite-docling "
        "granite-embed-multi-97m grok-2 hunyuan hunyuan-dense hy_v4 jais jais-2 jina-de jina-es "
        "jina-v1-en jina-v2-code jina-v2-de jina-v2-es joyai-llm kanana2 kimi-k2 kormo laguna "
        "llada-moe llama4 megrez mellum mellum2 minerva-7b minicpm5 minimax-m2 modern-bert mpt "
        "olmo phi-2 poro-chat qwen2 qwen35 refact roberta-bpe sarvam-moe seed-coder smaug-bpe "
        "smollm solar-open spark2_5 stablelm2 starcoder superbpe talkie tiny_aya trillion "
        "ufakzeka viking whitespace youtu"
    )
)
"""What tokenizer.ggml.pre may say; llama.cpp refuses others for BPE."""
WITHOUT_MERGES = "kimi-k2"

_SPECIAL_TOKEN_KEYS = {
    "bos": "bos",
    "eos": "eos",
    "eot": "eot",
    "eom": "eom",
    "fim_pad": "fim_pad",
    "fim_rep": "fim_rep",
    "fim_sep": "fim_sep",
}
_SPECIAL_TOKEN_TEXTS: dict[str, tuple[bytes, ...]] = {
    name: tuple(text.encode() for text in texts.split())
    for name, texts in {
        "eot": "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <EOT> "
        "_<EOT> [EOT] <｜end▁of▁sentence｜> <end_of_utterance>",
        "eom": "<|eom_id|>",
        "fim_pad": "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]",
        "fim_rep": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
        "fim_sep": "<|file_sep|>",
    }.items()
}
"""What a token is taken for by its text, where no key names one."""
_EOG_TEXTS = frozenset(
    text.encode()
    for text in _name_set(
        "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> "
        "<|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> "
        "<end_of_utterance> <eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> [e~["
    )
)
"""Texts of tokens that end an answer in any vocabulary."""
_RECOGNIZED_TEXTS = _EOG_TEXTS.union(*_SPECIAL_TOKEN_TEXTS.values())
_DNA_MARKER = b"\xee\x80\x80"


@dataclass(frozen=True, slots=True)
class TokenizerMetadata:
    """A vocabulary by llama.cpp's numbers; `pairing.check` compares two of them."""

    kind: int
    model: str
    pre: str
    n_tokens: int
    add_bos: bool = False
    add_eos: bool = False
    special_ids: Mapping[str, int] = field(default_factory=dict)
    """Ids by what they are for: bos, eos, eot, eom, fim_pad, fim_rep, fim_sep; or ABSENT."""
    eog_ids: frozenset[int] = frozenset()
    """Ids that end an answer."""
    fingerprint: str = ""
    """SHA-256 of all texts and types: where two are equal, so are the vocabularies."""
    texts: StringArray | None = field(default=None, repr=False)

    @property
    def bos(self) -> int:
        return self.special_ids.get("bos", NULL_TOKEN)

    @property
    def eos(self) -> int:
        return self.special_ids.get("eos", NULL_TOKEN)

    @property
    def eot(self) -> int:
        return self.special_ids.get("eot", NULL_TOKEN)

    @property
    def is_supported(self) -> bool:
        """Whether llama.cpp has such a tokenizer."""
        return self.kind != UNKNOWN and (self.kind != BPE or self.pre in {*PRETOKENIZERS, ""})

    def token_text(self, token: int) -> bytes:
        return self.texts[token] if self.texts is not None else b""


def read_tokenizer(contents: GgufContents, architecture: str) -> TokenizerMetadata:
    """Raises DamagedError where llama.cpp would refuse the vocabulary, or die of it."""
    model = _get_string(contents, "model", "none")
    defaults = DEFAULTS_BY_MODEL.get(model, TokenizerDefaults(UNKNOWN))
    pre = "gemma4" if model == "gemma4" else _get_string(contents, "pre", "")
    if defaults.kind == NONE:
        size = contents.keys.get(f"{architecture}.vocab_size", 0)
        return TokenizerMetadata(NONE, model, pre, size if isinstance(size, int) else 0)
    _check_arrays(contents, defaults.kind, pre)
    texts, known = _normalize_token_texts(contents.tokens)
    if len(known) < len(texts):
        raise InvalidGgufError(_describe_duplicate(texts))
    named = {text: texts.index(text) for text in known & _RECOGNIZED_TEXTS}
    special = _read_special_ids(contents, defaults, pre, named, len(texts))
    if model == "hybriddna":
        texts = _strip_dna_marker(texts)
    kept = StringArray.from_list(texts)
    return TokenizerMetadata(
        kind=defaults.kind,
        model=model,
        pre=pre,
        n_tokens=len(texts),
        add_bos=_read_add_token(contents, "bos", defaults, pre),
        add_eos=_read_add_token(contents, "eos", defaults, pre),
        special_ids=special,
        eog_ids=_find_eog_ids(special, named),
        fingerprint=_fingerprint(kept, contents),
        texts=kept,
    )


def _get_string(contents: GgufContents, name: str, default: str) -> str:
    value = contents.keys.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, str):
        raise InvalidGgufError(f"has a damaged header: tokenizer.ggml.{name} is no text")
    return value


def _check_arrays(contents: GgufContents, kind: int, pre: str) -> None:
    """Those that llama.cpp wants, of the type and length that it wants."""
    tokens = contents.arrays.get("tokenizer.ggml.tokens")
    if tokens is None or tokens.element_type != gguf.STRING:
        raise InvalidGgufError("has no list of tokens")
    for name, kinds in {
        "scores": (gguf.INT32, gguf.FLOAT32),
        "token_type": (gguf.INT32,),
    }.items():
        array = contents.arrays.get(f"tokenizer.ggml.{name}")
        wrong = array is not None and (
            array.element_type not in kinds or array.count < tokens.count
        )
        if wrong or (array is None and f"tokenizer.ggml.{name}" in contents.key_types):
            raise InvalidGgufError(
                f"has a damaged vocabulary: tokenizer.ggml.{name} does not fit it"
            )
    merges = contents.arrays.get("tokenizer.ggml.merges")
    if (
        kind == BPE
        and (merges is None or merges.element_type != gguf.STRING)
        and pre != WITHOUT_MERGES
    ):
        raise InvalidGgufError("has a vocabulary without merges")


def _normalize_token_texts(texts: Sequence[bytes]) -> tuple[Sequence[bytes], set[bytes]]:
    """C strings: they end at the first zero byte, and an empty one gets a name."""
    known = set(texts)
    if b"" in known or b"\0" in b"".join(texts):
        cut = (text.partition(b"\0")[0] for text in texts)
        texts = [text or b"[EMPTY_%d]" % i for i, text in enumerate(cut)]
        known = set(texts)
    return texts, known


def _describe_duplicate(texts: Sequence[bytes]) -> str:
    """llama.cpp aborts the whole process on a vocabulary in which a text stands twice."""
    seen: dict[bytes, int] = {}
    for token, text in enumerate(texts):
        first = seen.setdefault(text, token)
        if first != token:
            shown = sanitize(text[:80].decode("utf-8", "replace"), multiline=False)
            return f"has a damaged vocabulary: tokens {first} and {token} are both {shown!r}"
    return "has a damaged vocabulary"


def _read_special_ids(
    contents: GgufContents,
    defaults: TokenizerDefaults,
    pre: str,
    named: Mapping[bytes, int],
    n_tokens: int,
) -> dict[str, int]:
    ids = dict.fromkeys(_SPECIAL_TOKEN_KEYS, NULL_TOKEN) | {
        "bos": defaults.bos,
        "eos": defaults.eos,
    }
    if defaults.kind == BPE and pre in NO_DEFAULT_BOS:
        ids["bos"] = NULL_TOKEN
    for name, word in _SPECIAL_TOKEN_KEYS.items():
        if ids[name] >= n_tokens:
            ids[name] = NULL_TOKEN
        key = f"tokenizer.ggml.{word}_token_id"
        given = contents.keys.get(key)
        if given is None and key not in contents.key_types:
            continue
        if not isinstance(given, int) or contents.key_types[key] != gguf.UINT32:
            raise InvalidGgufError(f"has a damaged header: {key} is of a wrong type")
        if given < n_tokens:
            ids[name] = given
    for name, texts in _SPECIAL_TOKEN_TEXTS.items():
        if ids[name] == NULL_TOKEN:
            ids[name] = next((named[text] for text in texts if text in named), NULL_TOKEN)
    return ids


def _read_add_token(
    contents: GgufContents, name: str, defaults: TokenizerDefaults, pre: str
) -> bool:
    key = f"tokenizer.ggml.add_{name}_token"
    adds = defaults.add_bos if name == "bos" else defaults.add_eos
    bpe_bos = defaults.kind == BPE and name == "bos"
    given = contents.keys.get(key, adds or (bpe_bos and pre in ADD_BOS_BY_DEFAULT))
    if not isinstance(given, bool):
        raise InvalidGgufError(f"has a damaged header: {key} is of a wrong type")
    return given or (bpe_bos and pre in ALWAYS_ADD_BOS)


def _find_eog_ids(special: Mapping[str, int], named: Mapping[bytes, int]) -> frozenset[int]:
    """Ids that end an answer, with llama.cpp's two exceptions."""
    ends = {named[text] for text in _EOG_TEXTS if text in named}
    ends |= {special[name] for name in ("fim_pad", "fim_rep", "fim_sep", "eos", "eot", "eom")}
    ends.discard(NULL_TOKEN)
    has = {text for text, token in named.items() if token in ends}
    calls = bool(has & {b"<|call|>", b"<|calls|>"})
    if calls and b"<|end|>" in has and has & {b"<|return|>", b"<|flush|>"}:
        ends.discard(named[b"<|end|>"])
    if b"<|tool_response>" in has and b"</s>" in has:
        ends.discard(named[b"</s>"])
    return frozenset(ends)


def _strip_dna_marker(texts: Sequence[bytes]) -> Sequence[bytes]:
    """DNA words carry a mark that keeps them apart until the vocabulary is read."""
    first = texts.index(b"<oov>") + 1 if b"<oov>" in texts else len(texts)
    cut = (text.removesuffix(_DNA_MARKER) or text for text in texts[first:])
    return [*texts[:first], *cut]


def _fingerprint(texts: StringArray, contents: GgufContents) -> str:
    types = contents.arrays.get("tokenizer.ggml.token_type")
    ends = texts.ends
    if sys.byteorder == "big":
        ends = ends[:]
        ends.byteswap()
    digest = hashlib.sha256(texts.joined)
    digest.update(ends.tobytes())
    digest.update(types.data if types is not None else b"")
    return digest.hexdigest()
