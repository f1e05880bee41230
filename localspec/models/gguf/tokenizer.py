"""A model's vocabulary and its special tokens, read from the header as by llama.cpp.

Missing keys have defaults by the kind of tokenizer: those of llama_vocab::impl::load in
llama.cpp's src/llama-vocab.cpp.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from localspec.models.gguf import parser as gguf
from localspec.models.gguf.architectures import name_set
from localspec.models.gguf.parser import GgufContents, InvalidGgufError
from localspec.sanitize import sanitize

# Kinds of vocabularies (llama_vocab_type).
UNKNOWN = -1
"""A tokenizer.ggml.model that llama.cpp rejects."""
NONE = 0
SPM = 1
BPE = 2
WPM = 3
UGM = 4
RWKV = 5
PLAMO2 = 6
TEST = 7

NULL_TOKEN = -1
"""No token (LLAMA_TOKEN_NULL)."""
TRIMMED_KEY = "localspec.tokenizer.model"
"""Has the value of tokenizer.ggml.model in a file whose vocabulary is trimmed."""


class TokenizerDefaults(Struct, frozen=True):
    """The values of missing keys."""

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
ADD_BOS_BY_DEFAULT = name_set(
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken "
    "chameleon"
)
"""BPE pre-tokenizers: BOS is added unless the file disables it."""
ALWAYS_ADD_BOS = frozenset({"gemma4", "granite-embed-multi-311m"})
"""BPE pre-tokenizers: BOS is added even if the file disables it."""
NO_DEFAULT_BOS = frozenset({"chatglm-bpe", "glm4", "glm5"})
"""BPE pre-tokenizers: no BOS unless the file names one."""
PRETOKENIZERS = (
    ADD_BOS_BY_DEFAULT
    | ALWAYS_ADD_BOS
    | NO_DEFAULT_BOS
    | name_set(
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
"""Values of tokenizer.ggml.pre; llama.cpp rejects others for BPE."""

_SPECIAL_TOKENS = ("bos", "eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")


def _token_texts(text: str) -> tuple[bytes, ...]:
    return tuple(text.encode().split())


_SPECIAL_TOKEN_TEXTS = {
    "eot": _token_texts(
        "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <EOT> "
        "_<EOT> [EOT] <｜end▁of▁sentence｜> <end_of_utterance>"
    ),
    "eom": _token_texts("<|eom_id|>"),
    "fim_pad": _token_texts("<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]"),
    "fim_rep": _token_texts("<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>"),
    "fim_sep": _token_texts("<|file_sep|>"),
}
"""Texts by which a special token is found if no key names it."""
_EOG_TEXTS = frozenset(
    _token_texts(
        "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> "
        "<|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> "
        "<end_of_utterance> <eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> [e~["
    )
)
"""Texts of end-of-generation tokens in any vocabulary."""
_RECOGNIZED_TEXTS = _EOG_TEXTS.union(*_SPECIAL_TOKEN_TEXTS.values())
_DNA_MARKER = b"\xee\x80\x80"
"""The end of DNA words in `hybriddna`, whose texts other tokens may have."""


class TokenTexts(Struct, frozen=True):
    texts: Sequence[bytes]
    types: Sequence[int] = ()
    """llama.cpp's type of each token; empty if the file does not say."""


class TokenizerMetadata(Struct, frozen=True, eq=False):
    """A vocabulary, in llama.cpp's numbering.

    Two are equal if all but `read_texts` is equal: it does not matter from which file
    they were read.
    """

    kind: int
    model: str
    pre: str
    n_tokens: int
    add_bos: bool = False
    add_eos: bool = False
    special_ids: Mapping[str, int] = field(default_factory=dict)
    """NULL_TOKEN if there is none; bos, eos, eot, eom, fim_pad, fim_rep, fim_sep."""
    eog_ids: frozenset[int] = frozenset()
    """End-of-generation tokens."""
    fingerprint: str = ""
    """SHA-256 of all texts and types: equal vocabularies have equal ones."""
    read_texts: Callable[[], TokenTexts] = lambda: TokenTexts(())
    """If the header was cached, this reads the file, and raises as `reader.read`."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenizerMetadata):
            return NotImplemented
        return self._compared_fields() == other._compared_fields()

    __hash__ = None  # type: ignore[assignment]

    def _compared_fields(self) -> dict[str, Any]:
        values = asdict(self)
        del values["read_texts"]
        return values

    @property
    def bos(self) -> int:
        return self.special_ids.get("bos", NULL_TOKEN)

    @property
    def eos(self) -> int:
        return self.special_ids.get("eos", NULL_TOKEN)

    @property
    def is_supported(self) -> bool:
        if self.kind == BPE:
            return self.pre == "" or self.pre in PRETOKENIZERS
        return self.kind != UNKNOWN

    def token_text(self, token: int) -> bytes:
        texts = self.read_texts().texts
        return texts[token] if len(texts) else b""


def read_tokenizer(contents: GgufContents, architecture: str) -> TokenizerMetadata:
    """Raises InvalidGgufError if llama.cpp would reject the vocabulary or abort."""
    model = contents.text("tokenizer.ggml.model", "none")
    # A file with a trimmed vocabulary says "none" there, but has the whole one.
    model = contents.text(TRIMMED_KEY, model)
    defaults = DEFAULTS_BY_MODEL.get(model, TokenizerDefaults(UNKNOWN))
    pre = "gemma4" if model == "gemma4" else contents.text("tokenizer.ggml.pre")
    if defaults.kind == NONE:
        size = contents.keys.get(f"{architecture}.vocab_size")
        n_tokens = size if isinstance(size, int) else 0
        return TokenizerMetadata(NONE, model, pre, n_tokens)
    _check_arrays(contents, defaults.kind, pre)
    texts, distinct = _normalize_token_texts(contents.tokens)
    if len(distinct) < len(texts):
        raise InvalidGgufError(_describe_duplicate(texts))
    ids_by_text = {text: texts.index(text) for text in distinct & _RECOGNIZED_TEXTS}
    special = _read_special_ids(
        contents, defaults, pre=pre, ids_by_text=ids_by_text, n_tokens=len(texts)
    )
    if model == "hybriddna":
        texts = _remove_dna_markers(texts)
    type_data = b""
    type_array = contents.arrays.get("tokenizer.ggml.token_type")
    if type_array is not None:
        type_data = type_array.data
    token_texts = TokenTexts(texts, array("i", type_data[: 4 * len(texts)]))
    import hashlib  # noqa: PLC0415  loads OpenSSL, which the engine has no use for

    digest = hashlib.sha256(b"\0".join([*texts, b"", type_data]))
    return TokenizerMetadata(
        kind=defaults.kind,
        model=model,
        pre=pre,
        n_tokens=len(texts),
        add_bos=_read_add_token(contents, "bos", defaults, pre),
        add_eos=_read_add_token(contents, "eos", defaults, pre),
        special_ids=special,
        eog_ids=_find_eog_ids(special, ids_by_text),
        fingerprint=digest.hexdigest(),
        read_texts=lambda: token_texts,
    )


def _check_arrays(contents: GgufContents, kind: int, pre: str) -> None:
    """Check the presence, types and lengths that llama.cpp requires."""
    tokens = contents.arrays.get("tokenizer.ggml.tokens")
    if tokens is None or tokens.element_type != gguf.STRING:
        raise InvalidGgufError("has no list of tokens")
    for key, types in (
        ("tokenizer.ggml.scores", (gguf.INT32, gguf.FLOAT32)),
        ("tokenizer.ggml.token_type", (gguf.INT32,)),
    ):
        if key not in contents.key_types:
            continue
        array = contents.arrays.get(key)
        has_type = array is not None and array.element_type in types
        if array is None or not has_type or array.count < tokens.count:
            raise InvalidGgufError(f"has a damaged vocabulary: {key} does not match it")
    merges = contents.arrays.get("tokenizer.ggml.merges")
    has_merges = merges is not None and merges.element_type == gguf.STRING
    if kind == BPE and not has_merges and pre != "kimi-k2":
        raise InvalidGgufError("has a vocabulary without merges")


def _normalize_token_texts(
    texts: Sequence[bytes],
) -> tuple[Sequence[bytes], set[bytes]]:
    """The texts as C strings, and their set.

    llama.cpp cuts a text at a zero byte, and names an empty one by its token.
    """
    distinct = set(texts)
    if b"" in distinct or b"\0" in b"".join(texts):
        cut = (text.partition(b"\0")[0] for text in texts)
        texts = [text or b"[EMPTY_%d]" % token for token, text in enumerate(cut)]
        distinct = set(texts)
    return texts, distinct


def _remove_dna_markers(texts: Sequence[bytes]) -> Sequence[bytes]:
    """The DNA words are after the token <oov>."""
    if b"<oov>" not in texts:
        return texts
    n_others = texts.index(b"<oov>") + 1
    words = [text.removesuffix(_DNA_MARKER) or text for text in texts[n_others:]]
    return [*texts[:n_others], *words]


def _describe_duplicate(texts: Sequence[bytes]) -> str:
    """llama.cpp aborts the process if two tokens have the same text."""
    first_tokens: dict[bytes, int] = {}
    for token, text in enumerate(texts):
        first = first_tokens.setdefault(text, token)
        if first != token:
            break
    shown = sanitize(text[:80].decode("utf-8", "replace"), multiline=False)
    return f"has a damaged vocabulary: tokens {first} and {token} are both {shown!r}"


def _read_special_ids(
    contents: GgufContents,
    defaults: TokenizerDefaults,
    *,
    pre: str,
    ids_by_text: Mapping[bytes, int],
    n_tokens: int,
) -> dict[str, int]:
    ids = dict.fromkeys(_SPECIAL_TOKENS, NULL_TOKEN)
    ids["bos"] = defaults.bos
    ids["eos"] = defaults.eos
    if defaults.kind == BPE and pre in NO_DEFAULT_BOS:
        ids["bos"] = NULL_TOKEN
    for name in _SPECIAL_TOKENS:
        if ids[name] >= n_tokens:
            ids[name] = NULL_TOKEN
        key = f"tokenizer.ggml.{name}_token_id"
        value = contents.keys.get(key)
        if value is None and key not in contents.key_types:
            continue
        if not isinstance(value, int) or contents.key_types[key] != gguf.UINT32:
            raise InvalidGgufError(f"has a damaged header: {key} is of a wrong type")
        if value < n_tokens:
            ids[name] = value
    for name, texts in _SPECIAL_TOKEN_TEXTS.items():
        if ids[name] == NULL_TOKEN:
            matches = (ids_by_text[text] for text in texts if text in ids_by_text)
            ids[name] = next(matches, NULL_TOKEN)
    return ids


def _read_add_token(
    contents: GgufContents, name: str, defaults: TokenizerDefaults, pre: str
) -> bool:
    key = f"tokenizer.ggml.add_{name}_token"
    is_bpe_bos = defaults.kind == BPE and name == "bos"
    default = defaults.add_bos if name == "bos" else defaults.add_eos
    if is_bpe_bos and pre in ADD_BOS_BY_DEFAULT:
        default = True
    value = contents.keys.get(key, default)
    if not isinstance(value, bool):
        raise InvalidGgufError(f"has a damaged header: {key} is of a wrong type")
    return value or (is_bpe_bos and pre in ALWAYS_ADD_BOS)


def _find_eog_ids(
    special: Mapping[str, int], ids_by_text: Mapping[bytes, int]
) -> frozenset[int]:
    """The end-of-generation tokens, with llama.cpp's two exceptions."""
    eog_ids = {ids_by_text[text] for text in _EOG_TEXTS if text in ids_by_text}
    eog_ids |= {
        special[name] for name in ("fim_pad", "fim_rep", "fim_sep", "eos", "eot", "eom")
    }
    eog_ids.discard(NULL_TOKEN)
    eog_texts = {text for text, token in ids_by_text.items() if token in eog_ids}
    has_call = bool(eog_texts & {b"<|call|>", b"<|calls|>"})
    has_return = bool(eog_texts & {b"<|return|>", b"<|flush|>"})
    if b"<|end|>" in eog_texts and has_call and has_return:
        # As in gpt-oss, where it ends a part of an answer.
        eog_ids.discard(ids_by_text[b"<|end|>"])
    if b"<|tool_response>" in eog_texts and b"</s>" in eog_texts:
        eog_ids.discard(ids_by_text[b"</s>"])
    return frozenset(eog_ids)
