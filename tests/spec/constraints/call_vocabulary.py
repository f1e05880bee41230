"""A vocabulary of bytes, some words, and the control tokens of a format of calls."""

from __future__ import annotations

import re

from localspec.models.chat_template.tool_formats import TOOL_FORMATS

_WORDS = (
    *(b'": "', b'"}', b"}\n", b'": ', b'", "', b"\n\n", b">\n", b"Rome", b", ", b"</"),
    *(
        b"</parameter>",
        b"<parameter=",
        b"</arg_value>",
        b"</function>",
        b"</tool_call>",
    ),
    *(b"'it", b'<|"', b"\\n", b"1e999", b"null", b"True", b"]]>"),
)
"""Tokens that models have, and with which a call could end too early."""
_CONTROL = re.compile(r"\]<\]minimax\[>\[|<[|｜][^<>]*>|<[^<>]*[|｜]>|\[[A-Z_]+\]")


class CallVocabulary:
    """Its tokens: the end of an answer, the bytes, the words, and the control tokens."""

    eos = 0

    def __init__(self, format_name: str, *, ends: tuple[str, ...] = ()) -> None:
        """`ends`: further control tokens that end an answer."""
        texts = "".join(TOOL_FORMATS[format_name].control_texts)
        self.controls: list[str] = list(dict.fromkeys(_CONTROL.findall(texts)))
        single_bytes = (bytes([byte]) for byte in range(256))
        self._pieces: list[bytes] = [b"", *single_bytes, *_WORDS]
        self.n_text = len(self._pieces)
        self.n_tokens = self.n_text + len(self.controls)
        self._ends = {end.encode() for end in ends}

    def is_eog(self, token: int) -> bool:
        return token == self.eos or self.token_text(token) in self._ends

    def text_piece(self, token: int) -> bytes:
        return self._pieces[token] if token < self.n_text else b""

    def token_text(self, token: int) -> bytes:
        if token < self.n_text:
            return self._pieces[token] or b"<eos>"
        return self.controls[token - self.n_text].encode()

    def piece(self, token: int) -> bytes:
        return b"" if token == self.eos else self.token_text(token)

    def tokenize_plain(self, data: bytes) -> list[int]:
        return [1 + byte for byte in data]

    def tokenize(self, text: str) -> list[int]:
        """Tokens of a text with control tokens, all else as bytes."""
        pattern = "|".join(map(re.escape, self.controls)) or "(?!)"
        tokens: list[int] = []
        for part in re.split(f"({pattern})", text):
            if part in self.controls:
                tokens.append(self.n_text + self.controls.index(part))
            else:
                tokens += self.tokenize_plain(part.encode())
        return tokens
