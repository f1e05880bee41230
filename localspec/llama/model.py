"""A model loaded by llama.cpp: its handle, vocabulary and sizes."""

from __future__ import annotations

import ctypes
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from msgspec import Struct

from localspec.errors import EngineError, ModelFileError, PromptTooLongError
from localspec.llama import library
from localspec.llama.library import LOG, C
from localspec.machine import llama_params
from localspec.machine.device import HOST, DeviceMemory
from localspec.models.gguf import tokenizer
from localspec.protocol.wire import ContextSettings
from localspec.spec import heartbeat

_MAX_SPECIAL = 40_000
"""The most special tokens in a text; that many take a second."""
_MAX_SPECIAL_AT_ONCE = 256
"""llama.cpp's time is quadratic in the number of special tokens that it gets at once."""
_MULTI_AXIS_ROPE = (C.LLAMA_ROPE_TYPE_MROPE, C.LLAMA_ROPE_TYPE_IMROPE)
"""RoPE types with several position axes."""
_KV_ITEM_BYTES = {"f32": 4.0, "q8_0/f16": 1.53125, "q8_0": 1.0625, "q4_0": 0.5625}
"""Bytes of a number in the KV cache by its type; 2 for the others."""


_FLOAT_FILE_TYPES = ("0", "1", "32")
"""llama_ftype of F32, F16 and BF16."""


class LlamaModel:
    """A loaded file: weights, vocabulary and sizes, without a context."""

    def __init__(
        self, path: Path, settings: ContextSettings, *, with_mtp: bool = False
    ) -> None:
        """`with_mtp` loads the MTP layers too, if the file has any."""
        given = llama_params.model_params(C, settings)
        params = given.params
        self._keep_alive = given.keep_alive
        params.load_mtp = with_mtp
        self._progress_callback = C.llama_progress_callback(
            partial(_on_load_progress, path.name)
        )
        params.progress_callback = self._progress_callback
        LOG.clear()
        self.path = path
        self.handle: Any = C.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise library.load_error(path)
        try:
            self._read_properties(with_mtp=with_mtp)
        except BaseException:
            self.close()
            raise

    def _read_properties(self, *, with_mtp: bool) -> None:
        self._buffers = LOG.buffers.by_device()
        self.vocabulary = LlamaVocab(
            C.llama_model_get_vocab(self.handle),
            pre_tokenizer=self._text_value("tokenizer.ggml.pre"),
            template=self.chat_template() + self.chat_template("tool_use"),
        )
        self.n_layer: int = C.llama_model_n_layer(self.handle)
        self.n_embd: int = C.llama_model_n_embd(self.handle)
        self.n_embd_inp: int = C.llama_model_n_embd_inp(self.handle)
        """The width of rows in place of tokens; with deepstack it is a multiple."""
        self.n_embd_out: int = C.llama_model_n_embd_out(self.handle)
        self.n_mtp_layers: int = (
            C.llama_model_n_layer_nextn(self.handle) if with_mtp else 0
        )
        self.n_ctx_train: int = C.llama_model_n_ctx_train(self.handle)
        self.n_swa: int = C.llama_model_n_swa(self.handle)
        self.is_recurrent = llama_params.is_recurrent(C, self.handle)
        has_axes = C.llama_model_rope_type(self.handle) in _MULTI_AXIS_ROPE
        self.n_position_axes = 4 if has_axes else 1
        """Numbers in the position of a row without a token."""
        self.architecture = self._text_value("general.architecture")
        if self.vocabulary.kind == 0 and not self._text_value(tokenizer.TRIMMED_KEY):
            raise ModelFileError(
                f"{self.path.name} has no vocabulary.",
                "Use a file with the complete model.",
            )

    def _text_value(self, key: str) -> str:
        """A text of the file's metadata; empty without."""
        text = ctypes.create_string_buffer(256)
        C.llama_model_meta_val_str(self.handle, key.encode(), text, len(text))
        return text.value.decode("utf-8", "replace")

    @property
    def has_float_weights(self) -> bool:
        """Whether most weights are F32, F16 or BF16, by the file's own word."""
        return self._text_value("general.file_type") in _FLOAT_FILE_TYPES

    def chat_template(self, name: str | None = None) -> str:
        """The Jinja source of a template, by default the one without a name.

        It is empty if there is none.
        """
        key = name.encode() if name else None
        source = C.llama_model_chat_template(self.handle, key)
        return bytes(source or b"").decode("utf-8", "replace")

    def n_bytes(self) -> int:
        return int(C.llama_model_size(self.handle))

    def kv_bytes(self, n_ctx: int, kv_type: str) -> float:
        """Size of the KV cache, assuming the same attention in every layer."""
        heads = max(1, C.llama_model_n_head(self.handle))
        width = self.n_embd / heads * C.llama_model_n_head_kv(self.handle)
        item_bytes = _KV_ITEM_BYTES.get(kv_type, 2.0)
        return float(2 * n_ctx * self.n_layer * width * item_bytes)

    def memory_with_context(
        self,
        context_buffers: Mapping[str, DeviceMemory],
        outputs: int,
        *,
        shared: bool = False,
    ) -> dict[str, int]:
        """Bytes by device with a context; the logits buffer counts as RAM.

        With `shared` the weights do not count: another context has the same model.
        """
        used = {name: part.total for name, part in context_buffers.items()}
        if not shared:
            for name, part in self._buffers.items():
                used[name] = used.get(name, 0) + part.total
        used[HOST] = used.get(HOST, 0) + 4 * outputs * self.vocabulary.n_tokens
        return used

    def close(self) -> None:
        if self.handle:
            C.llama_model_free(self.handle)
        self.handle = None


def _on_load_progress(file: str, share: float, _: Any) -> bool:
    heartbeat.record_load(file, share)
    return True  # False would cancel loading


class TextFinder:
    """Finds any of many short texts in a long one."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = {text for text in texts if len(text) > 1}
        self._lengths = sorted({len(text) for text in self._texts}, reverse=True)
        starts = "".join({text[0] for text in self._texts})
        pattern = f"[{re.escape(starts)}]" if starts else "(?!)"
        self._start = re.compile(pattern)

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Where the texts begin and end.

        At each place it is the longest, and none is within another.
        """
        return self._find(text, overlapping=False)

    def find_overlapping(self, text: str) -> Iterator[tuple[int, int]]:
        """The same, but another may begin within each."""
        return self._find(text, overlapping=True)

    def _find(self, text: str, *, overlapping: bool) -> Iterator[tuple[int, int]]:
        at = 0
        while found := self._start.search(text, at):
            start = found.start()
            n = self._length_at(text, start)
            at = start + 1
            if n:
                yield start, start + n
                if not overlapping:
                    at = start + n

    def may_cut(self, text: str, at: int) -> bool:
        """Whether none of the texts lies across this place."""
        longest = self._lengths[0] if self._lengths else 0
        for start in range(max(0, at - longest + 1), at):
            if start + self._length_at(text, start) > at:
                return False
        return True

    def _length_at(self, text: str, start: int) -> int:
        """The length of the longest of the texts that begins at `start`; 0 if none."""
        for n in self._lengths:
            if text[start : start + n] in self._texts:
                return n
        return 0


_CONTROL_ATTRIBUTES = C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN
_BRACKETED = re.compile(r"<.+>|\[.+\]", re.DOTALL)
_HTML_TAG = re.compile(r"</?([a-z][a-z0-9]*)>")
_HTML_ELEMENTS = frozenset(
    [
        "a",
        "abbr",
        "address",
        "article",
        "aside",
        "audio",
        "b",
        "blockquote",
        "body",
        "br",
        "button",
        "caption",
        "cite",
        "code",
        "col",
        "dd",
        "del",
        "details",
        "dfn",
        "div",
        "dl",
        "dt",
        "em",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "head",
        "header",
        "hr",
        "html",
        "i",
        "iframe",
        "img",
        "input",
        "ins",
        "kbd",
        "label",
        "li",
        "link",
        "main",
        "mark",
        "meta",
        "nav",
        "ol",
        "option",
        "p",
        "pre",
        "q",
        "s",
        "samp",
        "script",
        "section",
        "select",
        "small",
        "span",
        "strong",
        "style",
        "sub",
        "summary",
        "sup",
        "svg",
        "table",
        "tbody",
        "td",
        "textarea",
        "tfoot",
        "th",
        "thead",
        "title",
        "tr",
        "u",
        "ul",
        "var",
        "video",
    ]
)


def _is_mark(text: str, template: str) -> bool:
    """Whether a token of the type USER_DEFINED structures a prompt.

    Some are only frequent texts: runs of spaces, and in Gemma's vocabulary the tags of
    HTML. Those stay tokens in what a person writes, unless the chat template has them.

        <tool_call>   yes   a name in brackets
        <|"|>         yes   Gemma 4's quotes in a tool call
        ]~b]          yes   if the template has it: MiniMax's beginning of a message
        <h1>          no    HTML, unless the template has it
        \\n\\n\\n        no    white space
    """
    if _BRACKETED.fullmatch(text):
        html = _HTML_TAG.fullmatch(text)
        is_html = html is not None and html[1] in _HTML_ELEMENTS
        return text in template or not is_html
    has_letter = any(map(str.isalpha, text))
    has_sign = not all(map(str.isalnum, text.replace(" ", "")))
    return has_letter and has_sign and text in template


def _too_many_special() -> PromptTooLongError:
    message = f"The text has more than {_MAX_SPECIAL:,} special tokens."
    return PromptTooLongError(message, "Shorten it.")


def _split_special(data: bytes, finder: TextFinder) -> list[bytes]:
    """Parts of a text with some hundred special tokens each.

    All parts but the first begin with a special token, so their tokens are those
    that they have in the whole text: llama.cpp too splits a text at special tokens
    before it looks at its words. Where all special tokens overlap, the tokens at an
    end may be others.
    """
    if len(data) <= _MAX_SPECIAL_AT_ONCE:
        return [data]
    text = data.decode("utf-8", "surrogateescape")
    parts: list[str] = []
    done = 0
    n_special = 0
    n_in_part = 0
    for start, end in finder.find(text):
        n_special += 1
        if n_special > _MAX_SPECIAL:
            raise _too_many_special()
        n_in_part += 1
        if n_in_part <= _MAX_SPECIAL_AT_ONCE:
            continue
        is_late = n_in_part > 2 * _MAX_SPECIAL_AT_ONCE
        is_separate = finder.may_cut(text, start) and finder.may_cut(text, end)
        if is_separate or is_late:
            parts.append(text[done:start])
            done = start
            n_in_part = 1
    parts.append(text[done:])
    return [part.encode("utf-8", "surrogateescape") for part in parts]


class _SpecialToken(Struct, frozen=True):
    id: int
    attributes: int  # Of llama.cpp.
    text: str


class LlamaVocab:
    """A model's vocabulary. It checks ids, because llama.cpp aborts on invalid ones."""

    def __init__(
        self, vocab: Any, *, pre_tokenizer: str = "", template: str = ""
    ) -> None:
        """`pre_tokenizer`: llama.cpp's name of what splits a text into words.

        `template` is the source of the model's chat templates.
        """
        self.handle = vocab
        self._template = template
        self._long_run = _LONG_RUN
        if pre_tokenizer in _COUNTS_DIGITS_FROM_THE_RIGHT:
            self._long_run = _LONG_RUN_WITHOUT_DIGITS
        self.n_tokens: int = C.llama_vocab_n_tokens(vocab)
        self.kind: int = int(C.llama_vocab_type(vocab))
        self.add_bos = bool(C.llama_vocab_get_add_bos(vocab))
        self.add_eos = bool(C.llama_vocab_get_add_eos(vocab))
        self.bos: int = int(C.llama_vocab_bos(vocab))
        self.eos: int = int(C.llama_vocab_eos(vocab))
        self._pieces: dict[int, bytes] = {}
        self._is_eog_by_token: dict[int, bool] = {}

    def token_text(self, token: int) -> bytes:
        self._check_token(token)
        return bytes(C.llama_vocab_get_text(self.handle, token) or b"")

    def is_eog(self, token: int) -> bool:
        eog = self._is_eog_by_token.get(token)
        if eog is None:
            eog = bool(C.llama_vocab_is_eog(self.handle, token))
            self._is_eog_by_token[token] = eog
        return eog

    def piece(self, token: int) -> bytes:
        """The bytes of a token; none for control tokens."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self.text_piece(token)
            self._pieces[token] = piece
        return piece

    def special_texts(self) -> dict[str, str]:
        """The texts of tokens that templates use; empty if the model lacks the token."""
        tokens = {
            "bos_token": self.bos,
            "eos_token": self.eos,
            "pad_token": int(C.llama_vocab_pad(self.handle)),
        }
        texts = dict.fromkeys(tokens, "")
        for name, token in tokens.items():
            if token >= 0:
                texts[name] = self.token_text(token).decode("utf-8", "replace")
        return texts

    def infill_tokens(self) -> dict[str, int] | None:
        """The tokens around a prefix and a suffix, by name; None if the model has none.

        `rep` and `sep`, for other files, and `bos` only where the model uses them.
        """
        tokens = {
            name: int(getattr(C, f"llama_vocab_fim_{name}")(self.handle))
            for name in ("pre", "suf", "mid", "rep", "sep")
        }
        if self.add_bos:
            tokens["bos"] = self.bos
        found = {name: token for name, token in tokens.items() if token >= 0}
        return found if {"pre", "suf", "mid"} <= found.keys() else None

    def show_control_tokens(self, text: str) -> None:
        """Let `piece` return the names of the control tokens that `text` contains."""
        for token in self.tokenize(text):
            if token != self.bos and not self.is_eog(token) and not self.piece(token):
                self._pieces[token] = self.token_text(token)

    def text_piece(self, token: int) -> bytes:
        """The bytes of a token; none for control tokens, even if their names are shown."""
        self._check_token(token)
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = C.llama_token_to_piece(self.handle, token, buffer, size, 0, False)
            if n >= 0:
                return buffer.raw[:n]
            size = -n

    @cached_property
    def mark_texts(self) -> TextFinder:
        """Finds the texts of tokens that structure a prompt.

        These are the control tokens, and the `text_marks`.
        """
        texts = self._find_texts(_CONTROL_ATTRIBUTES)
        return TextFinder([*texts, *self._user_defined_marks])

    @cached_property
    def mark_tokens(self) -> frozenset[int]:
        """The ids of the tokens whose texts `mark_texts` finds."""
        user_defined = set(self._user_defined_marks)
        found: set[int] = set()
        for special in self._special_tokens:
            is_control = bool(special.attributes & _CONTROL_ATTRIBUTES)
            if is_control or special.text in user_defined:
                found.add(special.id)
        return frozenset(found)

    @cached_property
    def text_marks(self) -> TextFinder:
        """Finds the texts of marks that llama.cpp reads as tokens in every text.

        They have the type USER_DEFINED, as Qwen's `<tool_call>` and Gemma 4's
        `<|channel>`.
        """
        return TextFinder(self._user_defined_marks)

    @cached_property
    def _user_defined_marks(self) -> list[str]:
        texts = self._find_texts(C.LLAMA_TOKEN_ATTR_USER_DEFINED)
        return [text for text in texts if _is_mark(text, self._template)]

    @cached_property
    def _special_texts(self) -> TextFinder:
        """Finds all texts that llama.cpp reads as one token before it splits words."""
        attributes = _CONTROL_ATTRIBUTES | C.LLAMA_TOKEN_ATTR_USER_DEFINED
        return TextFinder(self._find_texts(attributes))

    @cached_property
    def _plain_special_texts(self) -> TextFinder:
        """Those that it reads so with `parse_special` off, too."""
        return TextFinder(self._find_texts(C.LLAMA_TOKEN_ATTR_USER_DEFINED))

    def _find_texts(self, attributes: int) -> list[str]:
        """The texts of the tokens that have one of these attributes."""
        return [
            special.text
            for special in self._special_tokens
            if special.attributes & attributes
        ]

    @cached_property
    def _special_tokens(self) -> list[_SpecialToken]:
        """The tokens that llama.cpp reads before it splits words.

        It is one pass over the vocabulary, which takes 0.1 s for 100,000 tokens.
        """
        wanted = _CONTROL_ATTRIBUTES | C.LLAMA_TOKEN_ATTR_USER_DEFINED
        found: list[_SpecialToken] = []
        for token in range(self.n_tokens):
            attributes = int(C.llama_vocab_get_attr(self.handle, token))
            if attributes & wanted:
                text = self.token_text(token).decode("utf-8", "replace")
                found.append(_SpecialToken(token, attributes, text))
        return found

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Tokens of a text, with BOS if the model uses one; special tokens are parsed.

        Without `parse_special` none of the `mark_texts` becomes a token. The EOS that
        some files add (tokenizer.ggml.add_eos_token, from training) is left out: no
        prompt ends with it. Raises PromptTooLongError for a text with very many special
        tokens.
        """
        first = text
        others: list[str] = []
        if not parse_special:
            first, *others = self._split_at_marks(text)
        tokens = self._tokenize_data(
            first.encode("utf-8", "replace"),
            add_special=add_special,
            parse_special=parse_special,
        )
        return tokens + self._continue_all(others)

    def _continue_all(self, parts: Iterable[str]) -> list[int]:
        """Tokens of parts of a text that follow another part."""
        tokens: list[int] = []
        tokens_of_parts: dict[str, list[int]] = {}
        for part in parts:
            if part not in tokens_of_parts:
                tokens_of_parts[part] = self._continue(part)
            tokens += tokens_of_parts[part]
        return tokens

    def _split_at_marks(self, text: str) -> list[str]:
        """Parts of a text in which none of the `text_marks` is complete.

        Each is cut after its first character: of "a <think> b" the parts are "a <" and
        "think> b". llama.cpp reads a token in the whole, even with `parse_special` off.
        """
        parts: list[str] = []
        done = 0
        for start, _ in self.text_marks.find_overlapping(text):
            if len(parts) >= _MAX_SPECIAL:
                raise _too_many_special()
            parts.append(text[done : start + 1])
            done = start + 1
        return [*parts, text[done:]]

    def _tokenize_data(
        self, data: bytes, *, add_special: bool, parse_special: bool
    ) -> list[int]:
        """All texts pass here on their way to llama.cpp, in parts that it reads quickly.

        Raises PromptTooLongError for very many special tokens.
        """
        finder = self._plain_special_texts
        if parse_special:
            finder = self._special_texts
        tokens: list[int] = []
        for i, part in enumerate(_split_special(data, finder)):
            tokens += self._tokenize_runs(
                part, add_special=add_special and i == 0, parse_special=parse_special
            )
        return tokens

    def tokenize_plain(self, data: bytes) -> list[int]:
        """Tokens of UTF-8 that the model writes, without BOS and control tokens.

        Empty if llama.cpp cannot tokenize it.
        """
        try:
            return self._tokenize_data(data, add_special=False, parse_special=False)
        except (EngineError, PromptTooLongError):
            return []

    def _tokenize_runs(
        self, data: bytes, *, add_special: bool, parse_special: bool
    ) -> list[int]:
        """Tokens of a text, in pieces that end within its long runs (see `_LONG_RUN`).

        A text of 100 bytes, and behind it a run of 20,000 letters:

            tokenized           kept
            0 to 8,292          to 7,268    a run is found up to 8,192 bytes long, and its
            7,268 to 15,460     to 14,436   last 1,024 bytes are too near the end to cut
            14,436 to 20,100    to 19,076
            19,076 to 20,100    all         what is left is no long run
        """
        at = 0
        tokens: list[int] = []
        # Vocabularies of other kinds have no pre-tokenizer.
        run = None
        if self.kind == C.LLAMA_VOCAB_TYPE_BPE:
            run = self._long_run.search(data)
        while run is not None:
            piece = data[at : _character_start(data, run.end())]
            is_first = at == 0
            new = self._tokenize(piece, add_special and is_first, parse_special)
            cut = self._find_cut(new, piece, run.start() - at)
            if cut is not None:
                n_tokens, n_bytes = cut
                tokens += new[:n_tokens]
            else:
                # The tokens before this place may differ from those of the whole run.
                n_bytes = self._forced_cut(piece, run.start() - at)
                new = self._tokenize(
                    piece[:n_bytes], add_special and is_first, parse_special
                )
                tokens += new
            at += n_bytes
            run = self._long_run.search(data, at)
        is_first = at == 0
        return tokens + self._tokenize(
            data[at:], add_special and is_first, parse_special
        )

    def _tokenize(
        self, data: bytes, add_special: bool, parse_special: bool
    ) -> list[int]:
        size = len(data) + 8
        while True:
            buffer = (C.llama_token * size)()
            n = C.llama_tokenize(
                self.handle, data, len(data), buffer, size, add_special, parse_special
            )
            if n >= 0:
                tokens = list(buffer[:n])
                if add_special and self.add_eos and tokens[-1:] == [self.eos]:
                    tokens.pop()
                return tokens
            if -n <= size:
                raise EngineError(
                    "llama.cpp could not tokenize the text.", "Shorten the prompt."
                )
            size = -n

    def _find_cut(
        self, tokens: list[int], data: bytes, start: int
    ) -> tuple[int, int] | None:
        """Where to cut `data`, which ends within a long run that begins at `start`.

        Returns numbers of tokens and of bytes, such that the rest of the text has the
        tokens that it would have in one piece: a merge of BPE that crosses no end of a
        token there, far from the end of `data`, crosses none in the whole run. None if
        there is no such place.

        A run of 8,192 letters, of which each token has 8, ends at 8,292. The last end of
        a token that is 1,024 bytes before that is 7,268. If a word can end there, the
        result is that, and the number of tokens up to it.
        """
        last = _character_start(data, len(data) - _RUN_MARGIN)
        at = 0
        ends: list[int] = []  # Where each token ends in `data`.
        for i, token in enumerate(tokens):
            piece = self.piece(token)
            if not piece:
                # A special token: in the text, or the BOS that was added before it.
                name = self.token_text(token)
                is_added = i == 0 and token == self.bos and not data.startswith(name)
                if not is_added:
                    piece = name
            at += len(piece)
            ends.append(at)
        for i in range(len(ends) - 1, -1, -1):
            if start < ends[i] <= last and _may_cut(data, ends[i]):
                return i + 1, ends[i]
        return None

    def _forced_cut(self, data: bytes, start: int) -> int:
        """Where to cut `data` if `_find_cut` finds no place in the run from `start` on.

        It is as near to the end, and in no special token: half of one would be text. A
        run may be one of these itself, in a damaged file; then the cut is behind it.
        """
        cut = _character_start(data, len(data) - _RUN_MARGIN)
        n_before = len(data[start:cut].decode("utf-8", "replace"))
        run = data[start:].decode("utf-8", "replace")
        for begin, end in self._special_texts.find(run):
            if begin >= n_before:
                break
            if end > n_before:
                inner = begin if begin else end
                return start + len(run[:inner].encode())
        return cut

    def tokenize_continuation(self, text: str) -> list[int]:
        """Tokens of a text that continues another; none of them is a mark."""
        return self._continue_all(self._split_at_marks(text))

    def _continue(self, text: str) -> list[int]:
        data = text.encode("utf-8", "replace")
        tokens = self._tokenize_data(data, add_special=False, parse_special=False)
        if b"".join(map(self.text_piece, tokens)) == data:
            return tokens
        # This tokenizer puts a space before a text.
        anchored = self.tokenize_plain(b"\n" + data)
        for i in range(1, min(len(anchored), 4)):
            if b"".join(map(self.text_piece, anchored[i:])) == data:
                return anchored[i:]
        return tokens

    def _check_token(self, token: int) -> None:
        if not 0 <= token < self.n_tokens:
            raise EngineError(
                f"token {token} is outside the vocabulary of {self.n_tokens}"
            )


_LONG_RUN = re.compile(rb"\S{4096,8192}|\s{4096,8192}")
"""What may be one word of a pre-tokenizer; from some 10,000 characters on, llama.cpp's
regular expressions need more stack than a thread has.
"""
_COUNTS_DIGITS_FROM_THE_RIGHT = {"afmoe", "tiny_aya"}
"""Pre-tokenizers for which no cut among digits is right before their last is known."""
_LONG_RUN_WITHOUT_DIGITS = re.compile(rb"[^\s0-9]{4096,8192}|\s{4096,8192}")
"""For these. Their digits end a word, and are split without a regular expression."""
_RUN_MARGIN = 1024
"""So many bytes at the end of what is tokenized at once are too near it to cut there."""


def _character_start(data: bytes, at: int) -> int:
    """The place of the character that the byte at `at` belongs to."""
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at -= 1
    return min(at, len(data))


def _may_cut(data: bytes, at: int) -> bool:
    """Whether a pre-tokenizer sees the same words after a cut here, where a token ends.

    With `|` for the cut:

        abc|def   yes   letters: the merges decide, and a token ends here
        abc|123   yes   a word ends here anyway
        123|456   yes   digits are words of three, counted from the left …
        12|3456   no    … and here another three would begin
        ===|==a   yes   signs: the words are of signs on both sides
        ====|=a   no    the last sign may be put before the word behind it
        a|◌́       no    a mark belongs to the character before it
    """
    is_within_character = data[at] & 0xC0 == 0x80
    if is_within_character:
        return False
    before = data[:at].decode("utf-8", "ignore")
    after = data[at : at + 8].decode("utf-8", "ignore")
    last = _character_kind(before[-1])
    following = [_character_kind(character) for character in after[:2]]
    if following[0] == "M":
        return False
    if last != following[0] or last == "L":
        return True
    if last == "N":
        digits = takewhile(lambda c: _character_kind(c) == "N", reversed(before))
        return sum(1 for _ in digits) % 3 == 0
    return following[1:] == [last]


def _character_kind(character: str) -> str:
    """`L`, `M` or `N`, as in Unicode; `Z` for white space, `P` for the rest."""
    if character.isspace():
        return "Z"
    category = unicodedata.category(character)[0]
    return category if category in "LMN" else "P"
