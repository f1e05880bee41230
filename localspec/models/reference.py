"""Model references as typed, the repository files that they select, and which names are
safe as paths.

The rules for `user/repo:QUANT` are llama.cpp's (common/download.cpp), so that one
reference means the same file in both programs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec import Struct

from localspec import draft_kinds
from localspec.errors import ModelFileError, NotFoundError, UsageError
from localspec.sanitize import sanitize
from localspec.units import join_first

HEAD_PREFIXES = tuple(
    kind.file_prefix
    for kind in sorted(draft_kinds.heads(), key=lambda kind: kind.search_rank)
)
"""File name prefixes of heads in their target's repository, best first."""
COMPANION_MARKERS = ("mmproj", "imatrix", *HEAD_PREFIXES)
"""Parts of the names of files that are not models by themselves."""

_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(/[A-Za-z0-9][A-Za-z0-9._-]{0,99}){0,3}"
)
COMMIT_HASH = re.compile(r"[0-9a-f]{40}")
_SEGMENT = re.compile(r"[A-Za-z0-9._+()][A-Za-z0-9._ +()-]{0,199}")
_WINDOWS_DEVICE = re.compile(
    r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE
)
"""Device names of Windows; reserved with any suffix."""
_MAX_DEPTH = 8
_MAX_LENGTH = 4096  # Characters of a reference.


class RepoFile(Struct, frozen=True):
    path: str
    size: int
    digest: str = ""
    """sha256, or git's sha1 of a file that is stored in git; empty if it is not
    published.
    """

    @property
    def sha256(self) -> str | None:
        return self.digest if len(self.digest) == 64 else None


class HubReference(Struct, frozen=True):
    """A file of a repository: `file`, else the quantisation `tag`, else llama.cpp's
    default.

    A `file` that ends in a slash is a folder, of which the default is meant.
    """

    repo: str
    tag: str | None = None
    file: str | None = None
    revision: str | None = None


class NameReference(Struct, frozen=True):
    """The id of a catalogue entry, or a part of it; `tag` selects another quantisation."""

    name: str
    tag: str | None = None


Reference = Path | HubReference | NameReference


def parse(text: str) -> Reference:
    """Parse a typed reference, without access to the disk.

    Raises UsageError if it is none.
    """
    if (pieces := _split_address(text)) is not None:
        return _parse_hub(pieces, text)
    if not text or len(text) > _MAX_LENGTH or "\0" in text:
        raise _unreadable_error(text)
    if "://" in text:
        hint = "Download the file, then use its path."
        raise UsageError(f"{_quote(text)} is not a Hugging Face address.", hint)
    is_relative = text.startswith(("/", "./", "../", "~")) or text in (".", "..")
    is_windows = "\\" in text or re.match(r"[A-Za-z]:/", text)
    if is_relative or is_windows or text.lower().endswith(".gguf"):
        return Path(text)
    if "/" in text:
        stem = text.partition(":")[0].partition("@")[0]
        return _parse_hub(text.split("/"), text) if is_repo_id(stem) else Path(text)
    name, colon, tag = text.partition(":")
    if _NAME.fullmatch(name) and (not colon or _TAG.fullmatch(tag)):
        return NameReference(name, tag or None)
    return Path(text)


def check_names(repo: str, *revisions: str | None) -> None:
    """Raise UsageError unless all may be names of the hub; None is no revision."""
    if not is_repo_id(repo):
        hint = "A repository name looks like ggml-org/gemma-3-4b-it-GGUF."
        raise UsageError(f"{_quote(repo)} is not a repository name.", hint)
    for revision in revisions:
        if revision is not None and not is_revision(revision):
            hint = "Use a branch, a tag or a commit."
            raise UsageError(f"{_quote(revision)} is not a revision.", hint)


def check_gguf_path(path: str) -> None:
    """Raise ModelFileError unless `path` is a .gguf path that is safe on every system."""
    if not is_safe_gguf_path(path):
        message = (
            f"The file name {_quote(path)} is unsafe, or not that of a .gguf file."
        )
        hint = "Choose another file, or ask the owner of the repository to rename it."
        raise ModelFileError(message, hint)


def is_repo_id(repo: str) -> bool:
    is_plain = _REPO.fullmatch(repo) and "--" not in repo and ".." not in repo
    return bool(is_plain) and not repo.endswith((".git", "."))


def is_revision(revision: str) -> bool:
    is_plain = _REVISION.fullmatch(revision) and ".." not in revision
    return bool(is_plain) and not revision.endswith((".lock", "."))


def is_safe_path(path: str) -> bool:
    """Whether an untrusted name may be used as a relative path on every system."""
    parts = path.split("/")
    return len(parts) <= _MAX_DEPTH and all(
        _SEGMENT.fullmatch(part)
        and not _WINDOWS_DEVICE.fullmatch(part)
        and not part.endswith((".", " "))  # rejects "." and ".." too
        for part in parts
    )


def is_safe_gguf_path(path: str) -> bool:
    return path.endswith(".gguf") and is_safe_path(path)


class GgufFileName(Struct, frozen=True):
    """The parts of a file name: stem, quantisation, and split number and count."""

    stem: str
    tag: str
    index: int = 1
    count: int = 1


def parse_file_name(path: str) -> GgufFileName:
    """Split a file name as llama.cpp does."""
    stem, index, count = path.removesuffix(".gguf"), 1, 1
    if split := re.fullmatch(r"(.+)-([0-9]{5})-of-([0-9]{5})", stem):
        stem, index, count = split[1], int(split[2]), int(split[3])
    quant = re.search(r"[-.]([A-Za-z0-9_]+)\Z", stem)
    return GgufFileName(stem, quant[1].upper() if quant else "", index, count)


def is_model(path: str) -> bool:
    """Whether a file is a GGUF and not a companion of a model, such as a head or an
    mmproj.
    """
    name = path.rpartition("/")[2]
    return path.endswith(".gguf") and not any(
        marker in name for marker in COMPANION_MARKERS
    )


def choose_files(
    files: Sequence[RepoFile], tag: str | None = None, file: str | None = None
) -> tuple[RepoFile, ...]:
    """The file that a reference selects, with all its splits in order.

    `file` names it, or its folder.  Without `file`, it is the first model, in the repository's own
    order, whose path holds the word `tag` (or Q4_K_M, or Q8_0) followed by a dot or a dash; without
    a tag and a match, the first model.  Of m-I-Compact and m-Compact the tag Compact is the latter.
    Raises NotFoundError, with the available files.
    """
    safe = [f for f in files if is_safe_gguf_path(f.path)]
    if file is not None and not file.endswith("/"):
        chosen = next((f for f in safe if f.path == file), None)
    else:
        models = [f for f in list_models(safe) if f.path.startswith(file or "")]
        tagged = (
            _tagged_first(models, wanted)
            for wanted in ((tag,) if tag else ("Q4_K_M", "Q8_0"))
        )
        chosen = next(filter(None, tagged), models[0] if models and not tag else None)
    if chosen is None:
        of_tag = f"GGUF for {_quote(tag)}" if tag else "GGUF file"
        what = f"file {_quote(file)}" if file else of_tag
        raise NotFoundError(
            f"The repository has no {what}.", _list_choices(safe, bool(file))
        )
    return _all_splits(safe, chosen)


def _tagged_first(models: Sequence[RepoFile], tag: str) -> RepoFile | None:
    pattern = re.compile(rf"(?<![A-Za-z0-9]){re.escape(tag)}[.-]", re.IGNORECASE)
    matches = [(found.start(), m) for m in models if (found := pattern.search(m.path))]
    if not matches:
        return None
    # and one without a further word between its name and the tag
    start, first = matches[0]
    plainer = (
        m for at, m in matches if at < start and first.path.startswith(m.path[:at])
    )
    return next(plainer, first)


def list_models(files: Sequence[RepoFile]) -> list[RepoFile]:
    """The models of a repository; of a split one the first split."""
    return [f for f in files if is_model(f.path) and parse_file_name(f.path).index == 1]


def find_heads(files: Sequence[RepoFile], model: str) -> tuple[RepoFile, ...]:
    """The best head of each kind that a repository has for a model, by llama.cpp's
    rule.

    Its path holds the kind's prefix and lies in the model's folder or above.  The deepest wins,
    then the one whose number of bits is closest to the model's.
    """

    def bits(path: str) -> int:
        digits = re.search(r"[0-9]{1,4}", parse_file_name(path).tag)
        return int(digits[0]) if digits else 0

    folders = model.split("/")[:-1]
    candidates = [
        f
        for f in files
        if is_safe_gguf_path(f.path)
        and folders[: f.path.count("/")] == f.path.split("/")[:-1]
    ]
    candidates.sort(key=lambda f: (-f.path.count("/"), abs(bits(f.path) - bits(model))))
    best = (
        next((f for f in candidates if kind in f.path), None) for kind in HEAD_PREFIXES
    )
    return tuple(filter(None, best)) if is_model(model) else ()


def _all_splits(files: Sequence[RepoFile], split: RepoFile) -> tuple[RepoFile, ...]:
    """All splits of the model that a split belongs to."""
    name = parse_file_name(split.path)
    if name.count <= 1:
        return (split,)
    parsed = [(parse_file_name(f.path), f) for f in files]
    splits = {
        n.index: f for n, f in parsed if (n.stem, n.count) == (name.stem, name.count)
    }
    missing = next(n for n in range(1, len(splits) + 2) if n not in splits)
    if missing <= name.count:
        path = _quote(f"{name.stem}-{missing:05}-of-{name.count:05}.gguf")
        message = f"The repository has {len(splits)} of {name.count} parts: {path} is missing."
        raise NotFoundError(message, "Choose another file.")
    return tuple(splits[n] for n in range(1, name.count + 1))


def _list_choices(files: Sequence[RepoFile], by_file: bool) -> str:
    models = [f.path for f in list_models(files)]
    names = (
        models if by_file else [parse_file_name(path).tag or path for path in models]
    )
    choices = list(dict.fromkeys(names))
    if not choices:
        return "It has no GGUF files. Search for the model's name plus GGUF."
    return f"It has: {join_first([*map(_quote, choices)], 12)}"


def _split_address(text: str) -> list[str] | None:
    """The parts of a path after hf:// or the hub's host name, decoded; None for another
    text.

    A page of a file's details (`?show_file_info=FILE`) is the file's.
    """
    if text[:5].lower() == "hf://":
        return text[5:].strip("/").split("/")
    host = re.match(
        r"(https?://)?((www\.)?huggingface\.co|hf\.co)/", text, re.IGNORECASE
    )
    if host is None:
        return None
    url = urlsplit(text[host.end() :].strip())
    pieces = [unquote(piece) for piece in url.path.strip("/").split("/")]
    shown = parse_qs(url.query).get("show_file_info")
    return [*pieces, *shown[-1].split("/")] if shown and len(pieces) == 2 else pieces


def _parse_hub(pieces: Sequence[str], typed: str) -> HubReference:
    """`user/repo[@revision][/file][:tag]`, or a page's address:
    `user/repo/blob/main/file`.
    """
    if len(pieces) < 2:
        raise _unreadable_error(typed)
    name, rest, tag = pieces[1], pieces[2:], None
    if not rest:
        name, colon, tag = name.partition(":")
        if colon and not _TAG.fullmatch(tag):
            raise _unreadable_error(typed)
    name, at, revision = name.partition("@")
    folder = ""
    if rest and rest[0] in ("blob", "resolve", "raw", "tree") and len(rest) >= 2:
        n = 4 if rest[1] == "refs" and len(rest) > 4 else 2  # refs/pr/1
        revision, page, rest = "/".join(rest[1:n]), rest[0], rest[n:]
        folder = (
            "/" if page == "tree" and rest and not rest[-1].endswith(".gguf") else ""
        )
    repo, file = f"{pieces[0]}/{name}", "/".join(rest)
    is_wrong = (at and not revision) or (revision and not is_revision(revision))
    is_path = is_safe_path(file) if folder else not file or is_safe_gguf_path(file)
    if is_wrong or not is_repo_id(repo) or not is_path:
        raise _unreadable_error(typed)
    return HubReference(repo, tag or None, file + folder or None, revision or None)


def _unreadable_error(text: str) -> UsageError:
    return UsageError(
        f"{_quote(text)} is not a model reference.",
        "Use a catalogue id, user/repo:QUANT, hf://user/repo/file.gguf or a path.",
    )


def _quote(text: str | None) -> str:
    shown = sanitize(text or "''", multiline=False)
    return shown if len(shown) <= 120 else shown[:119] + "…"
