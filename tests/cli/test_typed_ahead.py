"""`localspec run -p` on a terminal: what is typed before a question answers nothing."""

import sys
from pathlib import Path

import pytest

from tests.support.zoo import RESULT_TEXT, Zoo

if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal", allow_module_level=True)

from tests.support.dialogue import Dialogue

TEA = "Green is best."


def test_a_line_typed_while_the_model_loads_allows_no_call(
    zoo: Zoo, tmp_path: Path
) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "tea").write_text(TEA, encoding="utf-8")
    env = {
        "LOCALSPEC_DATA_DIR": str(tmp_path / "data"),
        "LOCALSPEC_CONFIG": str(tmp_path / "config.toml"),
    }
    words = ("run", zoo["reader"], "-p", "Which tea?", "--temperature", "0")
    with Dialogue(*words, "--spec", "lookup", "--folder", folder, env=env) as run:
        run.type("a\r")
        run.until("say why:")
        run.type("n\r")
        rest = run.until(RESULT_TEXT)
    assert "refused" in rest
    assert TEA not in rest
    assert not (tmp_path / "data" / "tool-approvals.json").exists()
