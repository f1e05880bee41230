"""A model's vocabulary: text to tokens, tokens to bytes."""

from __future__ import annotations

import ctypes
from typing import Any

from localspec.engine.llama.library import C
from localspec.errors import EngineError


class Vocabulary:
    """llama.cpp's vocabulary of one model, with ids checked before llama.cpp aborts on them."""

    def __init__(self, vocab: Any) -> None:
        self._vocab = vocab
        self.n_tokens: int = C.llama_vocab_n_tokens(vocab)
        self.kind: int = int(C.llama_vocab_type(vocab))
        self.add_bos = bool(C.llama_vocab_get_add_bos(vocab))
        self.add_eos = bool(C.llama_vocab_get_add_eos(vocab))
        self.bos: int = int(C.llama_vocab_bos(vocab))
        self.eos: int = int(C.llama_vocab_eos(vocab))
        self._pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}

    def token_text(self, token: int) -> bytes:
        self._check(token)
        return bytes(C.llama_vocab_get_text(self._vocab, token) or b"")

    def is_end(self, token: int) -> bool:
        end = self._ends.get(token)
        if end is None:
            end = self._ends[token] = bool(C.llama_vocab_is_eog(self._vocab, token))
        return end

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; none for control tokens."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._asked_piece(token)
        return piece

    def special_texts(self) -> dict[str, str]:
        """The texts of the tokens that chat templates name; empty where the model has none."""
        return {
            name: self.token_text(token).decode("utf-8", "replace") if token >= 0 else ""
            for name, token in {
                "bos_token": self.bos,
                "eos_token": self.eos,
                "pad_token": int(C.llama_vocab_pad(self._vocab)),
            }.items()
        }

    def show(self, text: str) -> None:
        """From now on the control tokens in a text stand for what they are called."""
        for token in self.tokenize(text):
            if token != self.bos and not self.is_end(token) and not self.piece(token):
                self._pieces[token] = self.token_text(token)

    def _asked_piece(self, token: int) -> bytes:
        self._check(token)
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = C.llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
            if n >= 0:
                return buffer.raw[:n]
            size = -n

    def tokenize(self, text: str) -> list[int]:
        """Ids of a text, with BOS where the model wants one; special tokens are recognised."""
        data = text.encode("utf-8", "replace")
        size = len(data) + 8
        while True:
            buffer = (C.llama_token * size)()
            n = C.llama_tokenize(self._vocab, data, len(data), buffer, size, True, True)
            if n >= 0:
                return list(buffer[:n])
            if -n <= size:
                raise EngineError("llama.cpp could not tokenize the text.", "Shorten the prompt.")
            size = -n

    def _check(self, token: int) -> None:
        if not 0 <= token < self.n_tokens:
            raise EngineError(f"token {token} is outside the vocabulary of {self.n_tokens}")
