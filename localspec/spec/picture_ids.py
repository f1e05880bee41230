"""Pictures among the tokens of a text: negative numbers, one for each row.

A text model reads a picture as rows of numbers in place of tokens. Each row takes a cell
of the KV cache, so it has a number in the text, too. The numbers of a picture say which
one it is: equal texts have equal numbers, and a cache compares nothing else.

A picture's `id` is even and at most -2. Its first row has that number, the others the
one below. The text "a", a picture of three rows with the id -4, "b", and the same
picture twice:

    [12, -4, -5, -5, 13, -4, -5, -5, -4, -5, -5]

-1 is no picture: llama.cpp has it for a token that a vocabulary lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_FIRST_ID = -2


def make_picture_id(number: int) -> int:
    """The id of the picture with this number, which counts from 0."""
    return _FIRST_ID - 2 * number


def list_row_ids(picture_id: int, n_rows: int) -> list[int]:
    """The numbers that a picture has in a text."""
    return [picture_id] + [picture_id - 1] * (n_rows - 1)


def has_pictures(tokens: Sequence[int]) -> bool:
    return min(tokens, default=0) <= _FIRST_ID


def is_later_row(token: int) -> bool:
    """Whether it is a row of a picture, but not the first."""
    return token < _FIRST_ID and token % 2 == 1


def find_cut(tokens: Sequence[int], end: int) -> int:
    """The last place up to `end` that is not inside a picture.

    Of the text above, 2 and 3 are inside the first picture: the place is 1.
    """
    while end < len(tokens) and is_later_row(tokens[end]):
        end -= 1
    return end


def find_picture_end(tokens: Sequence[int], start: int) -> int:
    """The end of the picture that has a row at `start`."""
    end = start + 1
    while end < len(tokens) and is_later_row(tokens[end]):
        end += 1
    return end


def split_at_pictures(tokens: Sequence[int]) -> Iterator[Sequence[int]]:
    """The parts of a text, in order: tokens alone, or rows of one picture."""
    start = 0
    while start < len(tokens):
        if tokens[start] <= _FIRST_ID:
            end = find_picture_end(tokens, start)
        else:
            end = start + 1
            while end < len(tokens) and tokens[end] > _FIRST_ID:
                end += 1
        yield tokens[start:end]
        start = end


def without_pictures(tokens: Sequence[int]) -> list[int]:
    return [token for token in tokens if token >= 0]


def last_tokens(tokens: Sequence[int], n: int) -> list[int]:
    """The last n tokens of a text, or fewer; its pictures do not count."""
    last = list(tokens[-n:]) if n else []
    if not has_pictures(last):
        return last
    found: list[int] = []
    for token in reversed(tokens):
        if token >= 0:
            found.append(token)
        if len(found) == n:
            break
    found.reverse()
    return found


class PicturelessText:
    """A text that grows, without its pictures.

    Each text has a list of its own, which only grows while the text does: a reader
    need not compare its beginning again.
    """

    def __init__(self) -> None:
        self._source: Sequence[int] = ()
        self._n_read = 0
        self._tokens: list[int] = []

    def read(self, tokens: Sequence[int]) -> list[int]:
        """The text without its pictures; the same list as long as `tokens` is the same."""
        if tokens is not self._source or len(tokens) < self._n_read:
            self._source = tokens
            self._n_read = 0
            self._tokens = []
        self._tokens += without_pictures(tokens[self._n_read :])
        self._n_read = len(tokens)
        return self._tokens
