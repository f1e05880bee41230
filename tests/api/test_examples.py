"""The examples of docs/api.md and docs/usage.md run as printed."""

import re
import sys
from pathlib import Path

from tests.support.run_command import ROOT, finish

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> list[str]:
    texts = [
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("docs/api.md", "docs/usage.md")
    ]
    return [block for text in texts for block in BLOCK.findall(text)]


RUN_ALL = """\
import runpy, sys
for path in sys.argv[1:]:
    print("#")
    runpy.run_path(path)
"""


def test_the_examples_run_as_printed(tmp_path: Path) -> None:
    """Each as a script of its own, in one process."""
    scripts = [tmp_path / f"{number}.py" for number in range(len(examples()))]
    for script, block in zip(scripts, examples(), strict=True):
        script.write_text(block, encoding="utf-8")
    asked = [sys.executable, "-W", "error", "-P", "-c", RUN_ALL, *map(str, scripts)]
    done = finish(asked, cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert all(said.strip() for said in done.text.split("#\n")[1:])
