"""A model loaded by llama.cpp: its handle, vocabulary and sizes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localspec.engine import heartbeat
from localspec.engine.llama import library
from localspec.engine.llama.library import LOG, C
from localspec.errors import EngineError, ModelFileError, PromptTooLongError
from localspec.machine import llama_params
from localspec.machine.device import HOST, DeviceMemory
from localspec.protocol.wire import ContextSettings

_MAX_SPECIAL = 40_000  # Special tokens in a text; that many take llama.cpp some seconds.
_MULTI_AXIS_ROPE = (C.LLAMA_ROPE_TYPE_MROPE, C.LLAMA_ROPE_TYPE_IMROPE)
"""RoPE types with several position axes."""


class LlamaModel:
    """`with_mtp`: load the MTP layers too, if the file has any."""

    def __init__(self, path: Path, settings: ContextSettings, *, with_mtp: bool = False) -> None:
        given = llama_params.model_params(C, settings)
        params, self._keep_alive = given.params, given.keep_alive
        params.load_mtp = with_mtp
        self._progress_callback = C.llama_progress_callback(_on_load_progress)
        params.progress_callback = self._progress_callback
        LOG.clear()
        self.path = path
        self.handle: Any = C.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise library.load_error(path)
        self._buffers = LOG.allocated()
        self.vocabulary = LlamaVocab(C.llama_model_get_vocab(self.handle))
        self.n_layer: int = C.llama_model_n_layer(self.handle)
        self.n_embd: int = C.llama_model_n_embd(self.handle)
        self.n_embd_out: int = C.llama_model_n_embd_out(self.handle)
        self.n_mtp_layers: int = C.llama_model_n_layer_nextn(self.handle) if with_mtp else 0
        self.n_ctx_train: int = C.llama_model_n_ctx_train(self.handle)
        self.n_swa: int = C.llama_model_n_swa(self.handle)
        self.is_recurrent = llama_params.is_recurrent(C, self.handle)
        has_axes = C.llama_model_rope_type(self.handle) in _MULTI_AXIS_ROPE
        self.n_position_axes = 4 if has_axes else 1
        """Numbers in the position of a row without a token."""
        name = ctypes.create_string_buffer(256)
        C.llama_model_meta_val_str(self.handle, b"general.architecture", name, len(name))
        self.architecture = name.value.decode("utf-8", "replace")
        if self.vocabulary.kind == 0:
            self.close()
            raise ModelFileError(
                f"{path.name} has no vocabulary.", "Use a file with the complete model."
            )

    def chat_template(self) -> str:
        """The template's Jinja source; empty if there is none."""
        source = C.llama_model_chat_template(self.handle, None)
        return bytes(source or b"").decode("utf-8", "replace")

    def n_bytes(self) -> int:
        return int(C.llama_model_size(self.handle))

    def kv_bytes(self, n_ctx: int, kv_type: str) -> float:
        """Size of the KV cache, assuming the same attention in every layer."""
        heads = max(1, C.llama_model_n_head(self.handle))
        width = self.n_embd / heads * C.llama_model_n_head_kv(self.handle)
        item = {"f32": 4.0, "q8_0/f16": 1.53125, "q8_0": 1.0625, "q4_0": 0.5625}.get(kv_type, 2.0)
        return float(2 * n_ctx * self.n_layer * width * item)

    def memory_with_context(
        self, context_buffers: Mapping[str, DeviceMemory], outputs: int, *, shared: bool = False
    ) -> dict[str, int]:
        """Bytes by device with a context; the logits buffer counts as RAM.

        `shared`: do not count the weights.
        """
        used = {name: part.total for name, part in context_buffers.items()}
        for name, part in ({} if shared else self._buffers).items():
            used[name] = used.get(name, 0) + part.total
        used[HOST] = used.get(HOST, 0) + 4 * outputs * self.vocabulary.n_tokens
        return used

    def close(self) -> None:
        if self.handle:
            C.llama_model_free(self.handle)
        self.handle = None


def _on_load_progress(_share: float, _: Any) -> bool:
    """llama.cpp's callback while loading; returning False would cancel it."""
    heartbeat.record_progress()
    return True


class LlamaVocab:
    """A model's vocabulary; ids are checked first, because llama.cpp aborts on invalid ones."""

    def __init__(self, vocab: Any) -> None:
        self.handle = vocab
        self.n_tokens: int = C.llama_vocab_n_tokens(vocab)
        self.kind: int = int(C.llama_vocab_type(vocab))
        self.add_bos = bool(C.llama_vocab_get_add_bos(vocab))
        self.add_eos = bool(C.llama_vocab_get_add_eos(vocab))
        self.bos: int = int(C.llama_vocab_bos(vocab))
        self.eos: int = int(C.llama_vocab_eos(vocab))
        self._pieces: dict[int, bytes] = {}
        self._special: set[str] | None = None  # Texts of special tokens, when they are needed.
        self._is_eog_by_token: dict[int, bool] = {}

    def token_text(self, token: int) -> bytes:
        self._check_token(token)
        return bytes(C.llama_vocab_get_text(self.handle, token) or b"")

    def is_eog(self, token: int) -> bool:
        eog = self._is_eog_by_token.get(token)
        if eog is None:
            eog = self._is_eog_by_token[token] = bool(C.llama_vocab_is_eog(self.handle, token))
        return eog

    def piece(self, token: int) -> bytes:
        """The bytes of a token; none for control tokens."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self.text_piece(token)
        return piece

    def special_texts(self) -> dict[str, str]:
        """Texts of the tokens that chat templates use; empty if the model has no such token."""
        return {
            name: self.token_text(token).decode("utf-8", "replace") if token >= 0 else ""
            for name, token in {
                "bos_token": self.bos,
                "eos_token": self.eos,
                "pad_token": int(C.llama_vocab_pad(self.handle)),
            }.items()
        }

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
        """As `piece`, but control tokens have none even where their names are shown."""
        self._check_token(token)
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = C.llama_token_to_piece(self.handle, token, buffer, size, 0, False)
            if n >= 0:
                return buffer.raw[:n]
            size = -n

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Tokens of a text, with BOS if the model uses one; special tokens are parsed.

        The EOS that some files add (tokenizer.ggml.add_eos_token, from training) is left out: no
        prompt ends with it.  Raises PromptTooLongError for a text with very many of these.
        """
        data = text.encode("utf-8", "replace")
        if parse_special and len(data) > 3 * _MAX_SPECIAL and self._has_too_many_special(text):
            raise PromptTooLongError(
                f"The text has more than {_MAX_SPECIAL:,} special tokens.", "Shorten it."
            )
        size = len(data) + 8
        while True:
            buffer = (C.llama_token * size)()
            n = C.llama_tokenize(
                self.handle, data, len(data), buffer, size, add_special, parse_special
            )
            if n >= 0:
                has_eos = add_special and self.add_eos and n and buffer[n - 1] == self.eos
                return list(buffer[: n - bool(has_eos)])
            if -n <= size:
                raise EngineError("llama.cpp could not tokenize the text.", "Shorten the prompt.")
            size = -n

    def _has_too_many_special(self, text: str) -> bool:
        """Whether the text has more than `_MAX_SPECIAL`: llama.cpp's time is quadratic in them."""
        if self._special is None:
            kinds = C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_USER_DEFINED
            kinds |= C.LLAMA_TOKEN_ATTR_UNKNOWN
            attributes = (C.llama_vocab_get_attr(self.handle, i) for i in range(self.n_tokens))
            special = [token for token, each in enumerate(attributes) if each & kinds]
            texts = {self.token_text(token).decode("utf-8", "replace") for token in special}
            self._special = texts - {""}
        starts = {each[0] for each in self._special}
        if sum(map(text.count, starts)) <= _MAX_SPECIAL:
            return False
        lengths = sorted({len(each) for each in self._special}, reverse=True)
        n, i = 0, 0
        while i < len(text) and n <= _MAX_SPECIAL:
            found = text[i] in starts and next(
                (length for length in lengths if text[i : i + length] in self._special), 0
            )
            n, i = n + bool(found), i + (found or 1)
        return n > _MAX_SPECIAL

    def tokenize_plain(self, data: bytes) -> list[int]:
        """Tokens of valid UTF-8 without BOS, in which nothing is a special token.

        Empty if llama.cpp cannot tokenize it.
        """
        size = len(data) + 8
        buffer = (C.llama_token * size)()
        n = C.llama_tokenize(self.handle, data, len(data), buffer, size, False, False)
        return list(buffer[:n]) if n > 0 else []

    def _check_token(self, token: int) -> None:
        if not 0 <= token < self.n_tokens:
            raise EngineError(f"token {token} is outside the vocabulary of {self.n_tokens}")
