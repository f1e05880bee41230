"""Copying to the terminal, where there is no clipboard tool."""

from localspec.chat import copying


def test_a_terminal_is_asked_to_copy() -> None:
    written: list[str] = []
    elsewhere = {
        "SSH_CONNECTION": "1",
        "DISPLAY": ":0",
    }  # no clipboard of the other computer
    assert "does not say" in copying.copy("hello", written.append, elsewhere)
    assert written == ["\x1b]52;c;aGVsbG8=\x07"]
    assert copying.copy("x" * 100_000, written.append, elsewhere) == ""
    assert copying.copy("hello", None, elsewhere) == ""
