"""A model's vocabulary as llama.cpp would read it, from a header alone.

What a file does not say has a default by the kind of tokenizer.  All of them stand here; they are
those of llama_vocab::impl::load in llama.cpp's src/llama-vocab.cpp.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from localspec.clean import clean
from localspec.models.gguf import parser as gguf
from localspec.models.gguf.parser import Contents, DamagedError
from localspec.models.gguf.texts import Texts

NONE, SPM, BPE, WPM, UGM, RWKV, PLAMO2, TEST = range(8)
UNKNOWN = -1
"""A tokenizer.ggml.model that llama.cpp refuses."""
ABSENT = -1
"""LLAMA_TOKEN_NULL."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where the file says nothing."""

    kind: int
    bos: int = ABSENT
    eos: int = ABSENT
    add_bos: bool = False
    add_eos: bool = False


DEFAULTS: dict[str, Defaults] = {
    "none": Defaults(NONE),
    "no_vocab": Defaults(NONE),
    "llama": Defaults(SPM, bos=1, eos=2, add_bos=True),
    "gpt2": Defaults(BPE, bos=11, eos=11),
    "hybriddna": Defaults(BPE, bos=11, eos=11),
    "whitespace": Defaults(BPE, bos=11, eos=11),
    "gemma4": Defaults(BPE),
    "bert": Defaults(WPM, bos=101, add_bos=True),
    "t5": Defaults(UGM, eos=1, add_eos=True),
    "rwkv": Defaults(RWKV),
    "plamo2": Defaults(PLAMO2, bos=1, eos=2),
    "test": Defaults(TEST),
}
"""By tokenizer.ggml.model."""
ADD_BOS = _words(
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken "
    "chameleon"
)
"""By tokenizer.ggml.pre, of BPE: a BOS is added unless the file says no."""
ALWAYS_ADD_BOS = frozenset({"gemma4", "granite-embed-multi-311m"})
"""By tokenizer.ggml.pre, of BPE: a BOS is added whatever the file says."""
NO_BOS = frozenset({"chatglm-bpe", "glm4", "glm5"})
"""By tokenizer.ggml.pre, of BPE: there is none unless the file names one."""
PRETOKENIZERS = (
    ADD_BOS
    | ALWAYS_ADD_BOS
    | NO_BOS
    | _words(
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

_KEYS = {
    "bos": "bos",
    "eos": "eos",
    "eot": "eot",
    "eom": "eom",
    "fim_pad": "fim_pad",
    "fim_rep": "fim_rep",
    "fim_sep": "fim_sep",
}
_BY_TEXT: dict[str, tuple[bytes, ...]] = {
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
_ENDS = frozenset(
    text.encode()
    for text in _words(
        "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> "
        "<|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> "
        "<end_of_utterance> <eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> [e~["
    )
)
"""Texts of tokens that end an answer in any vocabulary."""
_NAMED = _ENDS.union(*_BY_TEXT.values())
_DNA_MARKER = b"\xee\x80\x80"


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A vocabulary by llama.cpp's numbers; `pairing.check` compares two of them."""

    kind: int
    model: str
    pre: str
    n_tokens: int
    add_bos: bool = False
    add_eos: bool = False
    special: Mapping[str, int] = field(default_factory=dict)
    """Ids by what they are for: bos, eos, eot, eom, fim_pad, fim_rep, fim_sep; or ABSENT."""
    ends: frozenset[int] = frozenset()
    """Ids that end an answer."""
    fingerprint: str = ""
    """SHA-256 of all texts and types: where two are equal, so are the vocabularies."""
    texts: Texts | None = field(default=None, repr=False)

    @property
    def bos(self) -> int:
        return self.special.get("bos", ABSENT)

    @property
    def eos(self) -> int:
        return self.special.get("eos", ABSENT)

    @property
    def eot(self) -> int:
        return self.special.get("eot", ABSENT)

    @property
    def known(self) -> bool:
        """Whether llama.cpp has such a tokenizer."""
        return self.kind != UNKNOWN and (self.kind != BPE or self.pre in {*PRETOKENIZERS, ""})

    def token_text(self, token: int) -> bytes:
        return self.texts[token] if self.texts is not None else b""


def read(contents: Contents, architecture: str) -> Tokenizer:
    """Raises DamagedError where llama.cpp would refuse the vocabulary, or die of it."""
    model = _string(contents, "model", "none")
    defaults = DEFAULTS.get(model, Defaults(UNKNOWN))
    pre = "gemma4" if model == "gemma4" else _string(contents, "pre", "")
    if defaults.kind == NONE:
        size = contents.keys.get(f"{architecture}.vocab_size", 0)
        return Tokenizer(NONE, model, pre, size if isinstance(size, int) else 0)
    _check_arrays(contents, defaults.kind, pre)
    texts, known = _as_llama_cpp_reads(contents.tokens)
    if len(known) < len(texts):
        raise DamagedError(_twin(texts))
    named = {text: texts.index(text) for text in known & _NAMED}
    special = _special(contents, defaults, pre, named, len(texts))
    if model == "hybriddna":
        texts = _without_marker(texts)
    kept = Texts.of(texts)
    return Tokenizer(
        kind=defaults.kind,
        model=model,
        pre=pre,
        n_tokens=len(texts),
        add_bos=_adds(contents, "bos", defaults, pre),
        add_eos=_adds(contents, "eos", defaults, pre),
        special=special,
        ends=_ends(special, named),
        fingerprint=_fingerprint(kept, contents),
        texts=kept,
    )


def _string(contents: Contents, name: str, default: str) -> str:
    value = contents.keys.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, str):
        raise DamagedError(f"has a damaged header: tokenizer.ggml.{name} is no text")
    return value


def _check_arrays(contents: Contents, kind: int, pre: str) -> None:
    """Those that llama.cpp wants, of the type and length that it wants."""
    tokens = contents.arrays.get("tokenizer.ggml.tokens")
    if tokens is None or tokens.kind != gguf.STRING:
        raise DamagedError("has no list of tokens")
    for name, kinds in {
        "scores": (gguf.INT32, gguf.FLOAT32),
        "token_type": (gguf.INT32,),
    }.items():
        array = contents.arrays.get(f"tokenizer.ggml.{name}")
        wrong = array is not None and (array.kind not in kinds or array.count < tokens.count)
        if wrong or (array is None and f"tokenizer.ggml.{name}" in contents.kinds):
            raise DamagedError(f"has a damaged vocabulary: tokenizer.ggml.{name} does not fit it")
    merges = contents.arrays.get("tokenizer.ggml.merges")
    if kind == BPE and (merges is None or merges.kind != gguf.STRING) and pre != WITHOUT_MERGES:
        raise DamagedError("has a vocabulary without merges")


def _as_llama_cpp_reads(texts: Sequence[bytes]) -> tuple[Sequence[bytes], set[bytes]]:
    """C strings: they end at the first zero byte, and an empty one gets a name."""
    known = set(texts)
    if b"" in known or b"\0" in b"".join(texts):
        cut = (text.partition(b"\0")[0] for text in texts)
        texts = [text or b"[EMPTY_%d]" % i for i, text in enumerate(cut)]
        known = set(texts)
    return texts, known


def _twin(texts: Sequence[bytes]) -> str:
    """llama.cpp aborts the whole process on a vocabulary in which a text stands twice."""
    seen: dict[bytes, int] = {}
    for token, text in enumerate(texts):
        first = seen.setdefault(text, token)
        if first != token:
            shown = clean(text[:80].decode("utf-8", "replace"), multiline=False)
            return f"has a damaged vocabulary: tokens {first} and {token} are both {shown!r}"
    return "has a damaged vocabulary"


def _special(
    contents: Contents, defaults: Defaults, pre: str, named: Mapping[bytes, int], n_tokens: int
) -> dict[str, int]:
    ids = dict.fromkeys(_KEYS, ABSENT) | {"bos": defaults.bos, "eos": defaults.eos}
    if defaults.kind == BPE and pre in NO_BOS:
        ids["bos"] = ABSENT
    for name, word in _KEYS.items():
        if ids[name] >= n_tokens:
            ids[name] = ABSENT
        key = f"tokenizer.ggml.{word}_token_id"
        given = contents.keys.get(key)
        if given is None and key not in contents.kinds:
            continue
        if not isinstance(given, int) or contents.kinds[key] != gguf.UINT32:
            raise DamagedError(f"has a damaged header: {key} is of a wrong type")
        if given < n_tokens:
            ids[name] = given
    for name, texts in _BY_TEXT.items():
        if ids[name] == ABSENT:
            ids[name] = next((named[text] for text in texts if text in named), ABSENT)
    return ids


def _adds(contents: Contents, name: str, defaults: Defaults, pre: str) -> bool:
    key = f"tokenizer.ggml.add_{name}_token"
    adds = defaults.add_bos if name == "bos" else defaults.add_eos
    bpe_bos = defaults.kind == BPE and name == "bos"
    given = contents.keys.get(key, adds or (bpe_bos and pre in ADD_BOS))
    if not isinstance(given, bool):
        raise DamagedError(f"has a damaged header: {key} is of a wrong type")
    return given or (bpe_bos and pre in ALWAYS_ADD_BOS)


def _ends(special: Mapping[str, int], named: Mapping[bytes, int]) -> frozenset[int]:
    """Ids that end an answer, with llama.cpp's two exceptions."""
    ends = {named[text] for text in _ENDS if text in named}
    ends |= {special[name] for name in ("fim_pad", "fim_rep", "fim_sep", "eos", "eot", "eom")}
    ends.discard(ABSENT)
    has = {text for text, token in named.items() if token in ends}
    calls = bool(has & {b"<|call|>", b"<|calls|>"})
    if calls and b"<|end|>" in has and has & {b"<|return|>", b"<|flush|>"}:
        ends.discard(named[b"<|end|>"])
    if b"<|tool_response>" in has and b"</s>" in has:
        ends.discard(named[b"</s>"])
    return frozenset(ends)


def _without_marker(texts: Sequence[bytes]) -> Sequence[bytes]:
    """DNA words carry a mark that keeps them apart until the vocabulary is read."""
    first = texts.index(b"<oov>") + 1 if b"<oov>" in texts else len(texts)
    cut = (text.removesuffix(_DNA_MARKER) or text for text in texts[first:])
    return [*texts[:first], *cut]


def _fingerprint(texts: Texts, contents: Contents) -> str:
    types = contents.arrays.get("tokenizer.ggml.token_type")
    ends = texts.ends
    if sys.byteorder == "big":
        ends = ends[:]
        ends.byteswap()
    digest = hashlib.sha256(texts.joined)
    digest.update(ends.tobytes())
    digest.update(types.data if types is not None else b"")
    return digest.hexdigest()
