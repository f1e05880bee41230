"""scripts/house_rules.py finds what it promises to find, in a tree with planted violations."""

from __future__ import annotations

from pathlib import Path

import house_rules
import pytest

LONG = "def long() -> None:\n" + "    pass\n" * 40


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package without a violation."""
    for name in (*(f"localspec/{name}" for name in house_rules.CONTRACTS), "localspec/one.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('"""What it is."""\n')
    (tmp_path / "docs").mkdir()
    for page in house_rules.MAX_PAGE_LINES:
        (tmp_path / page).write_text("text\n")
    assert house_rules.find_problems(tmp_path) == []
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("one.py", '"""A."""\nclass Kept: ...\n', "class Kept: a noun"),
        ("one.py", '"""A."""\nclass Measured: ...\n', "class Measured: a noun"),
        ("one.py", '"""A."""\nclass Twin: ...\nclass _Twin: ...\n', "class Twin exists again"),
        ("one.py", "x = 1\n", "does not say what the file is"),
        ("one.py", f'"""A."""\n{LONG}', "long has 41 lines"),
        ("one.py", '"""A."""\n' + "x = 1\n" * 500, "501 lines"),
        ("one.py", '"""A."""\ntry: ...\nexcept Exception: ...\n', "broad except"),
        (
            "api/llm.py",
            '"""A."""\nclass LLM:\n    """A."""\n    def ask(self): ...\n',
            "ask has no",
        ),
    ],
)
def test_a_planted_violation_is_found(tree: Path, name: str, text: str, problem: str) -> None:
    (tree / "localspec" / name).write_text(text)
    (found,) = house_rules.find_problems(tree)
    assert problem in found


def test_too_many_files_and_long_pages(tree: Path) -> None:
    for number in range(house_rules.MAX_FILES):
        (tree / "localspec" / f"file_{number}.py").write_text("")
    (tree / "README.md").write_text("line\n" * 81)
    assert len(house_rules.find_problems(tree)) == 2


def test_a_package_that_grows_too_long(tree: Path) -> None:
    for number in range(house_rules.MAX_PACKAGE_LINES // 500 + 1):
        (tree / "localspec" / f"file_{number}.py").write_text('"""A."""\n' + "\n" * 499)
    (found,) = house_rules.find_problems(tree)
    assert f"at most {house_rules.MAX_PACKAGE_LINES}" in found


def test_messages_of_widgets_keep_textuals_names(tree: Path) -> None:
    (tree / "localspec" / "one.py").write_text('"""A."""\nclass Submitted(Message): ...\n')
    assert house_rules.find_problems(tree) == []
