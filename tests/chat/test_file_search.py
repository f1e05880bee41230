"""The files below a folder: which are ignored, how far is walked, what is found first."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from localspec.chat import file_search
from localspec.chat.file_search import FileIndex, find_files, is_ignored, parse_rules


def walk(folder: Path) -> list[str]:
    index = FileIndex(folder)
    for _ in index.walk():
        pass
    return [path for path, _ in index.files]


def make_files(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("")


RULES = [
    ("*.pyc", "a/b.pyc", True),
    ("*.pyc", "a/b.py", False),
    ("/build", "build", True),
    ("/build", "a/build", False),
    ("a/b", "a/b", True),
    ("a/b", "x/a/b", False),
    ("**/b", "x/y/b", True),
    ("a/**/b", "a/b", True),
    ("a/**/b", "a/x/y/b", True),
    ("a/**", "a/x", True),
    ("a/**", "a", False),
    ("*.log\n!keep.log", "keep.log", False),
    ("*.log\n!keep.log", "lose.log", True),
    ("# no rule", "# no rule", False),
    ("\\#file", "#file", True),
    ("\\!file", "!file", True),
    ("a\\*", "ab", False),
    ("a\\*", "a*", True),
    ("name   ", "name", True),
    ("[ab].txt", "b.txt", True),
    ("[!ab].txt", "b.txt", False),
    ("[", "[", False),
    ("?", "ab", False),
    ("*/x", "a/x", True),
    ("*/x", "a/b/x", False),
]


@pytest.mark.parametrize(("text", "path", "ignored"), RULES)
def test_a_path_is_ignored_as_git_does_it(text: str, path: str, ignored: bool) -> None:
    assert is_ignored(path, parse_rules(text), is_folder=False) is ignored


@pytest.mark.parametrize(("text", "path", "ignored"), RULES)
def test_git_agrees(text: str, path: str, ignored: bool, tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path)]
    if subprocess.run([*git, "init", "-q"], check=False).returncode:
        pytest.skip("no git here")
    (tmp_path / ".gitignore").write_text(text)

    checked = subprocess.run(
        [*git, "check-ignore", "-q", "--no-index", path], check=False
    )

    assert (checked.returncode == 0) is ignored


def test_a_rule_for_folders_leaves_files_alone() -> None:
    rules = parse_rules("logs/")

    assert is_ignored("logs", rules, is_folder=True)
    assert not is_ignored("logs", rules, is_folder=False)


def test_many_asterisks_take_no_time() -> None:
    rules = parse_rules("*a" * 40 + "b\n" + "**/a/" * 40 + "b")
    assert not is_ignored("/".join(["a" * 60] * 60), rules, is_folder=False)


def test_ignored_and_hidden_files_are_not_found(tmp_path: Path) -> None:
    make_files(
        tmp_path, "a.py", "b.pyc", ".env", ".git/x", "node_modules/x/y.js", "src/c.py"
    )
    make_files(tmp_path, "src/local/d.py", "src/kept.pyc")
    (tmp_path / ".gitignore").write_text("*.pyc\nnode_modules/\n")
    (tmp_path / "src/.gitignore").write_text("/local\n!kept.pyc\n")

    assert walk(tmp_path) == ["a.py", "src/c.py", "src/kept.pyc"]


def test_the_rules_of_the_repository_above_hold(tmp_path: Path) -> None:
    make_files(tmp_path, "docs/api/a.md", "docs/api/b.tmp", "docs/api/out/c.md")
    (tmp_path / ".gitignore").write_text("*.tmp\n/docs/api/out\n")
    (tmp_path / ".git/info").mkdir(parents=True)

    assert walk(tmp_path / "docs" / "api") == ["a.md"]


def test_a_link_that_leads_in_a_circle_is_not_followed(tmp_path: Path) -> None:
    make_files(tmp_path, "a/b.txt")
    (tmp_path / "a" / "again").symlink_to(tmp_path)

    assert walk(tmp_path) == ["a/b.txt"]


def test_a_huge_tree_is_walked_as_far_as_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_search, "MAX_FILES", 20)
    make_files(tmp_path, *(f"{a}/{b}.txt" for a in range(10) for b in range(10)))
    index = FileIndex(tmp_path)

    for _ in index.walk():
        pass

    assert 20 <= len(index.files) <= 30
    assert index.is_cut


def test_a_walk_that_takes_too_long_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_search, "MAX_SECONDS", 0.0)
    make_files(tmp_path, "a.txt", "b/c.txt")

    assert walk(tmp_path) == ["a.txt"]


def test_a_folder_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    assert walk(tmp_path / "missing") == []


FILES = [
    "composer.py",
    "my_composer.py",
    "comp/a.py",
    "cool_maps.py",
    "c/o/m/p.py",
    "other.py",
    "comp",
]


def test_the_best_match_is_the_first() -> None:
    files = [(path, path.lower()) for path in reversed(FILES)]

    found = find_files(files, "COMP")

    assert found == [
        "comp",
        "composer.py",
        "my_composer.py",
        "comp/a.py",
        "cool_maps.py",
        "c/o/m/p.py",
    ]


def test_without_letters_the_nearest_files_are_first() -> None:
    files = [(path, path) for path in ("a/b/c", "long-name", "b")]

    assert find_files(files, "") == ["b", "long-name", "a/b/c"]


def test_a_search_among_many_files_takes_little_time() -> None:
    files = [(f"aaaa/aaaa/aaaa/{n}", f"aaaa/aaaa/aaaa/{n}") for n in range(50_000)]

    assert find_files(files, "aaaaaaaaaaaab") == []
