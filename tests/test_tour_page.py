"""docs/tour.md: its pictures exist, and its keys are bound."""

from __future__ import annotations

import re
from pathlib import Path

from localspec.tui.key_bindings import KEY_BINDINGS, format_key

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "tour.md").read_text(encoding="utf-8")
WORDS = re.compile(r".*[ .].*")
"""Between backticks, too: commands and files."""
PLACES = re.compile(r"/(?:home|root|tmp|work|usr|Users)\b|C:\\")


def pictures() -> list[Path]:
    return [DOCS / found for found in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", PAGE)]


def test_the_pictures_contain_no_personal_paths() -> None:
    assert pictures()
    for path in pictures():
        text = re.sub(r"&#160;", " ", path.read_text(encoding="utf-8"))
        said = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", text))
        assert said.strip() and not PLACES.search(said), path


def test_every_key_on_the_page_is_bound() -> None:
    known = {format_key(one) for key in KEY_BINDINGS for one in key.keys.split(",")}
    named = {said for said in re.findall(r"`([^`]+)`", PAGE) if not WORDS.fullmatch(said)}
    assert {"w", "f2", "f10", "esc", "enter", "ctrl+q", "←"} <= named
    assert not named - known - {"enter"}, named - known
