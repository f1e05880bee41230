"""What a person names a model by, and which files of a repository that means.

The rules for `user/repo:QUANT` are llama.cpp's (common/download.cpp), so that one reference means
the same file in both programs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from localspec.errors import NotFoundError, UsageError
from localspec.models import safe_names
from localspec.sanitize import sanitize

_DEFAULT_TAGS = ("Q4_K_M", "Q8_0")
HEAD_PREFIXES = ("eagle3-", "dspark-", "dflash-", "mtp-")
"""How heads are called that lie in their target's repository; the best first."""
COMPANION_MARKERS = ("mmproj", "imatrix", *HEAD_PREFIXES)
"""What the name of a file holds that is no model by itself."""

_HUB_HOSTS = ("huggingface.co/", "www.huggingface.co/", "hf.co/")
_TAG_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}\Z")
_SPLIT_NAME = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\Z")
_QUANTIZATION_PATTERN = re.compile(r"[-.]([A-Za-z0-9_]+)\Z")
_MAX_LENGTH = 4096
"""Characters of a reference, and files named in a hint stay far below."""


@dataclass(frozen=True, slots=True)
class RepoFile:
    """A file of a repository; `sha256` where the hub says it."""

    path: str
    size: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class PathReference:
    """A file on this computer, as it was typed."""

    path: str


@dataclass(frozen=True, slots=True)
class HubReference:
    """A repository, and what of it: a file, or the quantisation that `tag` says, or llama.cpp's
    choice."""

    repo: str
    tag: str | None = None
    file: str | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class NameReference:
    """The id of a catalogue entry, or a part of one; `tag` asks for another quantisation."""

    name: str
    tag: str | None = None


Reference = PathReference | HubReference | NameReference


def parse(text: str) -> Reference:
    """Read what was typed.  Raises UsageError where it can be none of them.  Looks at no disk."""
    plain = _strip_host(text)
    if plain is not None:
        return _parse_hub(plain, text)
    if not text or len(text) > _MAX_LENGTH or "\0" in text:
        raise _unreadable_error(text)
    if "://" in text:
        raise UsageError(
            f"{_quote(text)} is not an address of the Hugging Face hub.",
            "Download the file, then give its path.",
        )
    if _looks_like_path(text):
        return PathReference(text)
    if "/" in text:
        stem = text.partition(":")[0].partition("@")[0]
        return _parse_hub(text, text) if safe_names.is_repo_id(stem) else PathReference(text)
    name, colon, tag = text.partition(":")
    if _NAME_PATTERN.match(name) and (not colon or _TAG_PATTERN.match(tag)):
        return NameReference(name, tag or None)
    return PathReference(text)


def is_safe_gguf_path(path: str) -> bool:
    """Whether a name that others chose may become a GGUF file here."""
    return path.endswith(".gguf") and safe_names.is_safe_path(path)


@dataclass(frozen=True, slots=True)
class GgufFileName:
    """What a file name says: its stem, its quantisation, and which part of how many it is."""

    stem: str
    tag: str
    index: int = 1
    count: int = 1


def parse_file_name(path: str) -> GgufFileName:
    """Read a file name as llama.cpp does."""
    stem = path.removesuffix(".gguf")
    index, count = 1, 1
    if found := _SPLIT_NAME.match(stem):
        stem, index, count = found[1], int(found[2]), int(found[3])
    quant = _QUANTIZATION_PATTERN.search(stem)
    return GgufFileName(stem, quant[1].upper() if quant else "", index, count)


def is_model(path: str) -> bool:
    """Whether a file is a model by itself: a GGUF, and no companion of one."""
    name = path.rpartition("/")[2]
    return path.endswith(".gguf") and not any(word in name for word in COMPANION_MARKERS)


def choose_files(
    files: Sequence[RepoFile], tag: str | None = None, file: str | None = None
) -> tuple[RepoFile, ...]:
    """The file that a reference means, with all its parts in order.

    `file` names it; else the first model, in the repository's own order, whose path holds `tag`
    (or Q4_K_M, or Q8_0) followed by a dot or a dash; else, without a tag, the first.
    Raises NotFoundError, with what there is.
    """
    safe = [one for one in files if is_safe_gguf_path(one.path)]
    first = _find_named(safe, file) if file is not None else _first_by_tag(safe, tag)
    if first is None:
        what = (
            f"a file {_quote(file)}" if file else f"a GGUF for {_quote(tag)}" if tag else "a GGUF"
        )
        raise NotFoundError(
            f"The repository does not hold {what}.", _list_choices(safe, bool(file))
        )
    return _all_splits(safe, first)


def find_companion(files: Sequence[RepoFile], model: str, marker: str) -> RepoFile | None:
    """The best companion of a model by llama.cpp's rule: `word` in its path, in the same folder or
    above, the deepest; then the one whose bits are closest to the model's."""
    folders = model.split("/")[:-1]

    def worth(other: RepoFile) -> tuple[int, int]:
        depth = len(other.path.split("/")) - 1
        return depth, -abs(_quantization_bits(other.path) - _quantization_bits(model))

    found = [
        one
        for one in files
        if is_safe_gguf_path(one.path)
        and marker in one.path
        and folders[: one.path.count("/")] == one.path.split("/")[:-1]
    ]
    return max(found, key=worth, default=None)


def find_heads(files: Sequence[RepoFile], model: str) -> tuple[RepoFile, ...]:
    """The heads that a repository has for a model, of each kind the best by that rule."""
    found = (find_companion(files, model, word) for word in HEAD_PREFIXES if is_model(model))
    return tuple(one for one in found if one is not None)


def _first_by_tag(files: Sequence[RepoFile], tag: str | None) -> RepoFile | None:
    models = [one for one in files if is_model(one.path) and parse_file_name(one.path).index == 1]
    for wanted in (tag,) if tag else _DEFAULT_TAGS:
        pattern = re.compile(re.escape(wanted) + "[.-]", re.IGNORECASE)
        for one in models:
            if pattern.search(one.path):
                return one
    return models[0] if models and not tag else None


def _find_named(files: Sequence[RepoFile], name: str) -> RepoFile | None:
    """Any part stands for the whole."""
    named = next((one for one in files if one.path == name), None)
    if named is None or parse_file_name(name).index == 1:
        return named
    return next(
        (
            one
            for one in files
            if _is_same_model(one, named) and parse_file_name(one.path).index == 1
        ),
        named,
    )


def _is_same_model(one: RepoFile, other: RepoFile) -> bool:
    a, b = parse_file_name(one.path), parse_file_name(other.path)
    return (a.stem, a.count) == (b.stem, b.count)


def _all_splits(files: Sequence[RepoFile], first: RepoFile) -> tuple[RepoFile, ...]:
    about = parse_file_name(first.path)
    if about.count <= 1:
        return (first,)
    found = {parse_file_name(one.path).index: one for one in files if _is_same_model(one, first)}
    missing = [n for n in range(1, min(about.count, len(found) + 1) + 1) if n not in found]
    if missing:
        name = f"{about.stem}-{missing[0]:05}-of-{about.count:05}.gguf"
        raise NotFoundError(
            f"The repository holds {len(found)} of {about.count} parts: {_quote(name)} is missing.",
            "Ask for another file of it.",
        )
    return tuple(found[n] for n in range(1, about.count + 1))


def _list_choices(files: Sequence[RepoFile], by_file: bool) -> str:
    models = [
        one.path for one in files if is_model(one.path) and parse_file_name(one.path).index == 1
    ]
    words = models if by_file else [parse_file_name(path).tag or path for path in models]
    different = list(dict.fromkeys(words))
    if not different:
        return "It holds no GGUF files. Search for the model's name with GGUF added."
    more = ", …" if len(different) > 12 else ""
    return f"It has: {', '.join(map(_quote, different[:12]))}{more}"


def _quantization_bits(path: str) -> int:
    digits = re.search(r"[0-9]{1,4}", parse_file_name(path).tag)
    return int(digits[0]) if digits else 0


def _strip_host(text: str) -> str | None:
    """The part after hf:// or the hub's name, or None where neither is there."""
    if text[:5].lower() == "hf://":
        return text[5:]
    plain = re.sub(r"\Ahttps?://", "", text, count=1, flags=re.IGNORECASE)
    for host in _HUB_HOSTS:
        if plain.lower().startswith(host):
            return plain[len(host) :].partition("?")[0].partition("#")[0]
    return None


def _parse_hub(plain: str, typed: str) -> HubReference:
    """`user/repo[@revision][/file][:tag]`, or a page's address: `user/repo/blob/main/file`."""
    pieces = plain.strip("/").split("/")
    if len(pieces) < 2:
        raise _unreadable_error(typed)
    name, rest, tag = pieces[1], pieces[2:], None
    if not rest:
        name, colon, tag = name.partition(":")
        if colon and not _TAG_PATTERN.match(tag):
            raise _unreadable_error(typed)
    name, at, revision = name.partition("@")
    if rest and rest[0] in ("blob", "resolve", "tree") and len(rest) >= 2:
        revision, rest = rest[1], rest[2:]
    repo, file = f"{pieces[0]}/{name}", "/".join(rest)
    if not safe_names.is_repo_id(repo) or (file and not is_safe_gguf_path(file)):
        raise _unreadable_error(typed)
    if (at and not revision) or (revision and not safe_names.is_revision(revision)):
        raise _unreadable_error(typed)
    return HubReference(repo, tag or None, file or None, revision or None)


def _looks_like_path(text: str) -> bool:
    return (
        text.startswith(("/", "./", "../", "~", ".\\", "..\\"))
        or text in (".", "..")
        or "\\" in text
        or text.lower().endswith(".gguf")
        or bool(re.match(r"[A-Za-z]:[/\\]", text))
    )


def _unreadable_error(text: str) -> UsageError:
    return UsageError(
        f"{_quote(text)} names no model.",
        "Give an id of the catalogue, user/repo:QUANT, hf://user/repo/file.gguf or a path.",
    )


def _quote(text: str | None) -> str:
    words = sanitize(text or "''", multiline=False)
    return words if len(words) <= 120 else words[:119] + "…"
