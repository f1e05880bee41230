"""Checks that names of repositories, revisions and files are safe to use as paths."""

from __future__ import annotations

import re

from localspec.errors import ModelFileError, UsageError
from localspec.sanitize import sanitize

_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(/[A-Za-z0-9][A-Za-z0-9._-]{0,99}){0,3}")
_SEGMENT = re.compile(r"[A-Za-z0-9._+()][A-Za-z0-9._ +()-]{0,199}")
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
"""Windows device names; reserved with any suffix."""
_MAX_DEPTH = 8
COMMIT_HASH = re.compile(r"[0-9a-f]{40}")


def check_repo(repo: str) -> None:
    """Raise UsageError unless `repo` has the form user/name."""
    if not is_repo_id(repo):
        raise UsageError(
            f"{_quote(repo)} is not a repository name.",
            "A repository name looks like ggml-org/gemma-3-4b-it-GGUF.",
        )


def check_revision(revision: str) -> None:
    """Raise UsageError unless `revision` may be a branch, tag or commit."""
    if not is_revision(revision):
        raise UsageError(
            f"{_quote(revision)} is not a revision.", "Use a branch, a tag or a commit."
        )


def check_gguf_path(path: str) -> None:
    """Raise ModelFileError unless `path` is a .gguf path that is safe on every system."""
    if not is_safe_path(path):
        raise ModelFileError(
            f"The file name {_quote(path)} is unsafe and was rejected.",
            "Ask the owner of the repository to rename the file.",
        )
    if not path.lower().endswith(".gguf"):
        raise ModelFileError(
            f"{_quote(path)} is not a GGUF file.", "Choose one of the .gguf files."
        )


def is_repo_id(repo: str) -> bool:
    if not _REPO.fullmatch(repo) or "--" in repo or ".." in repo:
        return False
    return not repo.endswith((".git", "."))


def is_revision(revision: str) -> bool:
    if not _REVISION.fullmatch(revision) or ".." in revision:
        return False
    return not revision.endswith((".lock", "."))


def is_safe_path(path: str) -> bool:
    parts = path.split("/")
    return len(parts) <= _MAX_DEPTH and all(map(_is_safe_segment, parts))


def _is_safe_segment(part: str) -> bool:
    if not _SEGMENT.fullmatch(part) or _WINDOWS_DEVICE.fullmatch(part):
        return False
    return not part.endswith((".", " "))  # rejects "." and ".." too


def _quote(name: str) -> str:
    text = sanitize(name, multiline=False)
    return repr(text if len(text) <= 80 else f"{text[:80]}…")
