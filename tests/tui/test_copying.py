"""Copying an answer, one of its code blocks, or the chat: keys, the mouse, and `/copy`."""

from __future__ import annotations

import pytest

from tests.support.scenes import settled, words
from tests.support.scripted_engine import Script, ScriptedEngine, answer
from tests.tui.screens.test_chat import Chat, said

pytestmark = pytest.mark.asyncio

CODE = """\
First:

```python
for x in items:
    print(x)
```

- in a list:

  ```sh
  ls -l
  ```

~~~
plain
~~~
"""
BLOCKS = ["for x in items:\n    print(x)\n", "ls -l\n", "plain\n"]


def code() -> Script:
    return answer(words(CODE))


async def test_code_blocks_are_numbered_and_have_a_key_each(copied: list[str]) -> None:
    async with Chat(ScriptedEngine(code, said)) as chat:
        await chat.send("loop?")
        assert "1 python for x" in chat.shown and "2 sh ls -l" in chat.shown
        assert "3 plain" in chat.shown
        await chat.press("alt+1", "alt+3", "alt+2")
        assert copied == [BLOCKS[0], BLOCKS[2], BLOCKS[1]]
        await chat.press("alt+4")
        assert "There is no code block 4: the answer has 3 code blocks." in chat.shown
        await chat.send("thanks")  # its answer has no code
        await chat.send("/copy code")
        assert copied[3:] == [BLOCKS[2]]


async def test_a_click_on_its_number_copies_the_code(copied: list[str]) -> None:
    async with Chat(ScriptedEngine(code, said)) as chat:
        await chat.send("loop?")
        await settled(chat.pilot)
        lines = chat.screen.transcript.plain_text.split("\n")
        top = chat.screen.transcript.region.y - round(chat.screen.transcript.scroll_y)
        (row,) = [n for n, line in enumerate(lines) if line.strip() == "2 sh"]
        await chat.pilot.click(offset=(lines[row].index("sh"), top + row))
        assert copied == [BLOCKS[1]]


async def test_any_answer_and_the_whole_chat(copied: list[str]) -> None:
    async with Chat(ScriptedEngine(said, code)) as chat:
        await chat.send("/copy")
        assert "No answer to copy yet." in chat.shown
        await chat.send("hi")
        await chat.send("loop?")
        await chat.send("/copy 1")
        await chat.press("f8", "up", "c", "escape")
        assert copied == ["Well, hello."] * 2
        await chat.send("/copy all")
        assert "## You\n\nhi" in copied[2] and "```python" in copied[2]
        for wrong in ("/copy 3", "/copy code x", "/copy everything"):
            await chat.send(wrong)
        assert len(copied) == 3
        await chat.press("ctrl+o")
        assert copied[3].startswith("First:")
