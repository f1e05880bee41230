"""Model references as typed, and the repository files that they select.

The rules for `user/repo:QUANT` are llama.cpp's (common/download.cpp), so that one
reference means the same file in both programs. Names are untrusted: those that become
parts of paths are checked here, too.
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

_HEADS_BY_RANK = sorted(draft_kinds.heads(), key=lambda kind: kind.search_rank)
HEAD_PREFIXES = tuple(kind.file_prefix for kind in _HEADS_BY_RANK)
"""File name prefixes of heads in their target's repository, best first."""
PROJECTOR_MARKER = "mmproj"
COMPANION_MARKERS = (PROJECTOR_MARKER, "imatrix", *HEAD_PREFIXES)
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
_MAX_LENGTH = 4096
"""Characters of a reference."""
_HUB_ADDRESS = re.compile(
    r"(https?://)?((www\.)?huggingface\.co|hf\.co)/", re.IGNORECASE
)
_PAGES = ("blob", "resolve", "raw", "tree")
"""What is between repository and revision in the address of a file or folder."""
_DEFAULT_TAGS = ("Q4_K_M", "Q8_0")
"""llama.cpp's quantisations for a reference without a tag, the first that is there."""


class RepoFile(Struct, frozen=True):
    path: str
    size: int
    digest: str = ""
    """sha256, or git's sha1 of a file in git; empty if it is not published."""

    @property
    def sha256(self) -> str | None:
        return self.digest if len(self.digest) == 64 else None


class HubReference(Struct, frozen=True):
    """A file of a repository; without `file` and `tag`, llama.cpp's default."""

    repo: str
    tag: str | None = None
    """The quantisation."""
    file: str | None = None
    """The path of the file. A folder ends in a slash, and its default file is meant."""
    revision: str | None = None


class NameReference(Struct, frozen=True):
    """The id of a catalogue entry, or a part of it; `tag`: its quantisation."""

    name: str
    tag: str | None = None


Reference = Path | HubReference | NameReference


def parse(text: str) -> Reference:
    """Parse a typed reference, without access to the disk.

    Raises UsageError if it is none.
    """
    pieces = _split_address(text)
    if pieces is not None:
        return _parse_hub(pieces, text)
    if not text or len(text) > _MAX_LENGTH or "\0" in text:
        raise _unreadable_error(text)
    if "://" in text:
        hint = "Download the file, then use its path."
        raise UsageError(f"{_quote(text)} is not a Hugging Face address.", hint)
    if _looks_like_path(text):
        return Path(text)
    if "/" in text:
        stem = text.partition(":")[0].partition("@")[0]
        return _parse_hub(text.split("/"), text) if is_repo_id(stem) else Path(text)
    name, colon, tag = text.partition(":")
    if _NAME.fullmatch(name) and (not colon or _TAG.fullmatch(tag)):
        return NameReference(name, tag or None)
    return Path(text)


def _looks_like_path(text: str) -> bool:
    if text in (".", "..") or text.startswith(("/", "./", "../", "~")):
        return True
    if "\\" in text or re.match(r"[A-Za-z]:/", text):  # as on Windows
        return True
    return text.lower().endswith(".gguf")


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
    """Raise ModelFileError unless it is a .gguf path that is safe on any system."""
    if not is_safe_gguf_path(path):
        raise ModelFileError(
            f"The file name {_quote(path)} is unsafe, or not that of a .gguf file.",
            "Choose another file, or ask the owner of the repository to rename it.",
        )


def is_repo_id(repo: str) -> bool:
    if not _REPO.fullmatch(repo) or "--" in repo or ".." in repo:
        return False
    return not repo.endswith((".git", "."))


_UPLOADER_PREFIX = re.compile(r"[a-z0-9.-]+_(?=[a-z])")
_QUANTIZATION_SUFFIX = re.compile(r"(-i1)?(-(ud-)?i?q[1-8](_\w+)?|-b?f16|-mxfp4)?$")


def model_of_repo(repo: str) -> str:
    """The model that a repository of GGUF files is named after: `qwen3-8b`.

    It is the same for bartowski/Qwen_Qwen3-8B-GGUF and someone/Qwen3-8B-Q4_K_M-GGUF, and
    another one for someone/Qwen3-8B-abliterated-GGUF.
    """
    name = repo.rpartition("/")[2].lower().removesuffix("-gguf")
    name = _QUANTIZATION_SUFFIX.sub("", name)
    return _UPLOADER_PREFIX.sub("", name, count=1)


def is_revision(revision: str) -> bool:
    if not _REVISION.fullmatch(revision) or ".." in revision:
        return False
    return not revision.endswith((".lock", "."))


def is_safe_path(path: str) -> bool:
    """Whether an untrusted name may be used as a relative path on every system."""
    parts = path.split("/")
    return len(parts) <= _MAX_DEPTH and all(map(_is_safe_name, parts))


def _is_safe_name(name: str) -> bool:
    if not _SEGMENT.fullmatch(name) or _WINDOWS_DEVICE.fullmatch(name):
        return False
    return not name.endswith((".", " "))  # rejects "." and ".." too


def is_safe_gguf_path(path: str) -> bool:
    return path.endswith(".gguf") and is_safe_path(path)


class GgufFileName(Struct, frozen=True):
    """The parts of a file name: `m-Q4_K_M-00002-of-00003.gguf` is split 2 of 3."""

    stem: str
    """Without the split and the suffix: `m-Q4_K_M`."""
    tag: str
    """The quantisation, `Q4_K_M`; may be empty."""
    index: int = 1
    count: int = 1


def parse_file_name(path: str) -> GgufFileName:
    """Take a file name apart as llama.cpp does."""
    stem = path.removesuffix(".gguf")
    index = 1
    count = 1
    split = re.fullmatch(r"(.+)-([0-9]{5})-of-([0-9]{5})", stem)
    if split:
        stem = split[1]
        index = int(split[2])
        count = int(split[3])
    last_word = re.search(r"[-.]([A-Za-z0-9_]+)\Z", stem)
    tag = last_word[1].upper() if last_word else ""
    return GgufFileName(stem, tag, index=index, count=count)


def is_model(path: str) -> bool:
    """Whether it is a GGUF and no companion of a model, such as a head or mmproj."""
    if not path.endswith(".gguf"):
        return False
    name = path.rpartition("/")[2]
    return not any(marker in name for marker in COMPANION_MARKERS)


def is_projector(path: str) -> bool:
    """Whether it is named as the GGUF with which a model sees or hears (mmproj)."""
    return path.endswith(".gguf") and PROJECTOR_MARKER in path.rpartition("/")[2]


def choose_files(
    files: Sequence[RepoFile],
    tag: str | None = None,
    file: str | None = None,
    *,
    refused_names: Sequence[str] = (),
) -> tuple[RepoFile, ...]:
    """The file that a reference selects, with all its splits in order.

    `file` names it, or its folder. Without `file`, it is the first model, in the
    repository's own order, whose path holds the word `tag` (or Q4_K_M, or Q8_0)
    followed by a dot or a dash; without a tag and a match, the first model. Raises
    NotFoundError, with the available files and those whose names are refused.
    """
    safe = [f for f in files if is_safe_gguf_path(f.path)]
    if file is not None and not file.endswith("/"):
        chosen = next((f for f in safe if f.path == file), None)
    else:
        folder = file or ""
        models = [f for f in list_models(safe) if f.path.startswith(folder)]
        chosen = _choose_model(models, tag)
    if chosen is None:
        wanted = f"GGUF for {_quote(tag)}" if tag else "GGUF file"
        if file:
            wanted = f"file {_quote(file)}"
        raise NotFoundError(
            f"The repository has no {wanted}.",
            _list_choices(safe, refused_names, by_file=bool(file)),
        )
    return _all_splits(safe, chosen)


def _choose_model(models: Sequence[RepoFile], tag: str | None) -> RepoFile | None:
    if tag:
        return _find_tagged(models, tag)
    for default in _DEFAULT_TAGS:
        found = _find_tagged(models, default)
        if found is not None:
            return found
    return models[0] if models else None


def _find_tagged(models: Sequence[RepoFile], tag: str) -> RepoFile | None:
    """The first model with a tag, and without a further word before the tag.

    Of m-I-Compact.gguf and m-Compact.gguf, the tag Compact selects the second: before
    the tag it has only `m-`, with which the first begins, too.
    """
    pattern = re.compile(rf"(?<![A-Za-z0-9]){re.escape(tag)}[.-]", re.IGNORECASE)
    matches: list[tuple[str, RepoFile]] = []
    """What is before the tag, and the model."""
    for model in models:
        found = pattern.search(model.path)
        if found:
            matches.append((model.path[: found.start()], model))
    if not matches:
        return None
    first_before, first = matches[0]
    for before, model in matches:
        if len(before) < len(first_before) and first_before.startswith(before):
            return model
    return first


def list_models(files: Sequence[RepoFile]) -> list[RepoFile]:
    """The models of a repository; of a split one the first split."""
    return [f for f in files if is_model(f.path) and parse_file_name(f.path).index == 1]


def find_heads(files: Sequence[RepoFile], model: str) -> tuple[RepoFile, ...]:
    """A repository's best head of each kind for a model, by llama.cpp's rule.

    Its path holds the kind's prefix and is in the model's folder or above. The deepest
    wins, then the one whose number of bits is closest to the model's.
    """
    if not is_model(model):
        return ()
    candidates = [
        file
        for file in files
        if is_safe_gguf_path(file.path) and is_in_or_above(file.path, model)
    ]

    def rank(file: RepoFile) -> tuple[int, int]:
        depth = file.path.count("/")
        return -depth, abs(_bits(file.path) - _bits(model))

    candidates.sort(key=rank)
    heads = []
    for prefix in HEAD_PREFIXES:
        of_kind = [file for file in candidates if prefix in file.path]
        heads += of_kind[:1]
    return tuple(heads)


def is_in_or_above(path: str, model: str) -> bool:
    """Whether a file is in the folder of a model, or in a folder above it."""
    folder = path.split("/")[:-1]
    model_folder = model.split("/")[:-1]
    return model_folder[: len(folder)] == folder


def _bits(path: str) -> int:
    """The first number of the quantisation: 4 of Q4_K_M."""
    digits = re.search(r"[0-9]{1,4}", parse_file_name(path).tag)
    return int(digits[0]) if digits else 0


def _all_splits(files: Sequence[RepoFile], split: RepoFile) -> tuple[RepoFile, ...]:
    """All splits of the model that a split belongs to."""
    wanted = parse_file_name(split.path)
    if wanted.count <= 1:
        return (split,)
    splits: dict[int, RepoFile] = {}
    for file in files:
        name = parse_file_name(file.path)
        if name.stem == wanted.stem and name.count == wanted.count:
            splits[name.index] = file
    missing = next(n for n in range(1, len(splits) + 2) if n not in splits)
    if missing <= wanted.count:
        path = _quote(f"{wanted.stem}-{missing:05}-of-{wanted.count:05}.gguf")
        raise NotFoundError(
            f"The repository has {len(splits)} of {wanted.count} parts: "
            f"{path} is missing.",
            "Choose another file.",
        )
    return tuple(splits[n] for n in range(1, wanted.count + 1))


def _list_choices(
    files: Sequence[RepoFile], refused_names: Sequence[str], *, by_file: bool
) -> str:
    names = [f.path for f in list_models(files)]
    if not by_file:
        names = [parse_file_name(path).tag or path for path in names]
    choices = list(dict.fromkeys(names))
    refusal = ""
    if refused_names:
        refused = join_first([*map(_quote, refused_names)], 12)
        refusal = (
            f"Files with other names than letters from A to Z, digits and ._+()- before "
            f".gguf are not downloaded: {refused}. Download one with a browser, and "
            "open it by its path."
        )
    if choices:
        return f"It has: {join_first([*map(_quote, choices)], 12)} {refusal}".rstrip()
    if refusal:
        return refusal
    return "It has no GGUF files. Search for the model's name plus GGUF."


def _split_address(text: str) -> list[str] | None:
    """The parts of a path after hf:// or the hub's host name, decoded.

    None for another text. A page with a file's details (`?show_file_info=FILE`) means
    the file.
    """
    if text[:5].lower() == "hf://":
        return text[5:].strip("/").split("/")
    host = _HUB_ADDRESS.match(text)
    if host is None:
        return None
    url = urlsplit(text[host.end() :].strip())
    pieces = [unquote(piece) for piece in url.path.strip("/").split("/")]
    shown_file = parse_qs(url.query).get("show_file_info")
    if shown_file and len(pieces) == 2:
        pieces += shown_file[-1].split("/")
    return pieces


def _parse_hub(pieces: Sequence[str], typed: str) -> HubReference:
    """`user/repo[@revision][/file][:tag]`, or the parts of a page's address.

    The latter are `user/repo/blob/main/file`, or `user/repo/tree/main/folder`.
    """
    if len(pieces) < 2:
        raise _unreadable_error(typed)
    user, name, *rest = pieces
    tag = ""
    if not rest:
        name, colon, tag = name.partition(":")
        if colon and not _TAG.fullmatch(tag):
            raise _unreadable_error(typed)
    name, at, revision = name.partition("@")
    is_folder = False
    if len(rest) >= 2 and rest[0] in _PAGES:
        page = rest[0]
        is_long_revision = rest[1] == "refs" and len(rest) > 4  # refs/pr/1
        revision_end = 4 if is_long_revision else 2
        revision = "/".join(rest[1:revision_end])
        rest = rest[revision_end:]
        is_folder = page == "tree" and bool(rest) and not rest[-1].endswith(".gguf")

    repo = f"{user}/{name}"
    file = "/".join(rest)
    is_safe_file = is_safe_path(file) if is_folder else is_safe_gguf_path(file)
    if not is_repo_id(repo) or (file and not is_safe_file):
        raise _unreadable_error(typed)
    if (at or revision) and not is_revision(revision):
        raise _unreadable_error(typed)
    if is_folder:
        file += "/"
    return HubReference(
        repo, tag=tag or None, file=file or None, revision=revision or None
    )


def _unreadable_error(text: str) -> UsageError:
    return UsageError(
        f"{_quote(text)} is not a model reference.",
        "Use a catalogue id, user/repo:QUANT, hf://user/repo/file.gguf or a path.",
    )


def _quote(text: str | None) -> str:
    shown = sanitize(text or "''", multiline=False)
    return shown if len(shown) <= 120 else shown[:119] + "…"
