"""JSON that a model writes: as written where it is JSON, and made JSON where it is not."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.models.chat_template.json_repair import JsonRepairer


def repair(pieces: list[str]) -> tuple[str, str]:
    """The JSON, and what follows it."""
    repairer = JsonRepairer()
    written = ""
    rest = ""
    for piece in pieces:
        if repairer.is_complete:
            rest += piece
        else:
            valid, after = repairer.feed(piece)
            written = written + valid
            rest = rest + after
    if not repairer.is_complete:
        written += repairer.close()
    return written, rest


PARTS = [
    *(
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"',
        "\\",
        "\\u",
        "d8",
        "00",
        "\\ud83d",
        "\\ude00",
        "\ud800",
    ),
    *(
        "true",
        "None",
        "NaN",
        "-",
        "1",
        ".",
        "e",
        "a",
        "'",
        " ",
        "\n",
        "\x00",
        "\u2028",
        "é",
        "😀",
    ),
]


@settings(derandomize=True, max_examples=800)
@given(
    st.sampled_from("{["),
    st.lists(st.sampled_from(PARTS), max_size=25),
    st.integers(1, 5),
)
def test_anything_becomes_json_however_it_is_cut(
    begin: str, parts: list[str], n: int
) -> None:
    text = begin + "".join(parts)
    written, rest = repair([text])
    json.loads(written)
    written.encode()
    assert text.endswith(rest)
    rng = random.Random(n)
    cuts = sorted(rng.choices(range(len(text) + 1), k=n))
    pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert repair(pieces) == repair(list(text)) == (written, rest)


def test_what_is_repaired() -> None:
    for text, expected in [
        ('{"a": "Ro\nme\t"}', '{"a": "Ro\\nme\\t"}'),
        (r'{"a": "x\qy"}', r'{"a": "x\\qy"}'),
        (r'{"a": "\ud83d\ude00 \ud83d"}', r'{"a": "\ud83d\ude00 \ufffd"}'),
        ("{a: 1, b: undefined}", '{"a": 1, "b": null}'),
        ('{"a": NaN, "b": True}', '{"a": null, "b": true}'),
        ("[1e999, 1E9]", '["1e999", 1E9]'),
        ('{"a" 1 "b" 2}', '{"a": 1, "b": 2}'),
        ('{"a": [1, {"b": "c', '{"a": [1, {"b": "c"}]}'),
    ]:
        assert repair([text]) == (expected, "")


@pytest.mark.timeout(60)  # With the square of the length it would be minutes.
def test_the_time_for_a_long_text_grows_with_its_length_only() -> None:
    space = " " * 3_000_000
    assert repair(["{" + space + "}"]) == ("{" + space + "}", "")
    n = 200_000
    closed = repair(["[" * n + "}" * n])
    assert closed == ("[" * n + "]" * n, "")
