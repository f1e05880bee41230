"""Model references as typed, and the repository files that they select.

The rules for `user/repo:QUANT` are llama.cpp's (common/download.cpp), so that one reference means
the same file in both programs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from localspec.errors import NotFoundError, UsageError
from localspec.lazy_dataclass import dataclass
from localspec.models import safe_names
from localspec.sanitize import sanitize

_DEFAULT_TAGS = ("Q4_K_M", "Q8_0")
HEAD_PREFIXES = ("mtp-", "eagle3-", "dspark-", "dflash-")
"""File name prefixes of heads in their target's repository, best first."""
COMPANION_MARKERS = ("mmproj", "imatrix", *HEAD_PREFIXES)
"""Parts of the names of files that are not models by themselves."""

_HUB_HOSTS = ("huggingface.co/", "www.huggingface.co/", "hf.co/")
_TAG_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}\Z")
_SPLIT_NAME = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\Z")
_QUANTIZATION_PATTERN = re.compile(r"[-.]([A-Za-z0-9_]+)\Z")
_MAX_LENGTH = 4096  # Characters of a reference.


@dataclass(frozen=True, slots=True)
class RepoFile:
    path: str
    size: int
    digest: str = ""
    """sha256, or git's sha1 of a file that is stored in git; empty if it is not published."""

    @property
    def sha256(self) -> str | None:
        return self.digest if len(self.digest) == 64 else None


@dataclass(frozen=True, slots=True)
class HubReference:
    """A file of a repository: `file`, else the quantisation `tag`, else llama.cpp's default."""

    repo: str
    tag: str | None = None
    file: str | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class NameReference:
    """The id of a catalogue entry, or a part of it; `tag` selects another quantisation."""

    name: str
    tag: str | None = None


Reference = Path | HubReference | NameReference


def parse(text: str) -> Reference:
    """Parse a typed reference, without access to the disk.  Raises UsageError if it is none."""
    hub_path = _strip_host(text)
    if hub_path is not None:
        return _parse_hub(hub_path, text)
    if not text or len(text) > _MAX_LENGTH or "\0" in text:
        raise _unreadable_error(text)
    if "://" in text:
        raise UsageError(
            f"{_quote(text)} is not a Hugging Face address.",
            "Download the file, then use its path.",
        )
    is_relative = text.startswith(("/", "./", "../", "~")) or text in (".", "..")
    is_windows = "\\" in text or re.match(r"[A-Za-z]:/", text)
    if is_relative or is_windows or text.lower().endswith(".gguf"):
        return Path(text)
    if "/" in text:
        stem = text.partition(":")[0].partition("@")[0]
        return _parse_hub(text, text) if safe_names.is_repo_id(stem) else Path(text)
    name, colon, tag = text.partition(":")
    if _NAME_PATTERN.match(name) and (not colon or _TAG_PATTERN.match(tag)):
        return NameReference(name, tag or None)
    return Path(text)


def is_safe_gguf_path(path: str) -> bool:
    """Whether an untrusted name may be used as the path of a GGUF file."""
    return path.endswith(".gguf") and safe_names.is_safe_path(path)


@dataclass(frozen=True, slots=True)
class GgufFileName:
    """The parts of a file name: stem, quantisation, and split number and count."""

    stem: str
    tag: str
    index: int = 1
    count: int = 1


def parse_file_name(path: str) -> GgufFileName:
    """Split a file name as llama.cpp does."""
    stem = path.removesuffix(".gguf")
    index, count = 1, 1
    if split := _SPLIT_NAME.match(stem):
        stem, index, count = split[1], int(split[2]), int(split[3])
    quant = _QUANTIZATION_PATTERN.search(stem)
    return GgufFileName(stem, quant[1].upper() if quant else "", index, count)


def is_model(path: str) -> bool:
    """Whether a file is a GGUF and not a companion of a model, such as a head or an mmproj."""
    name = path.rpartition("/")[2]
    return path.endswith(".gguf") and not any(marker in name for marker in COMPANION_MARKERS)


def choose_files(
    files: Sequence[RepoFile], tag: str | None = None, file: str | None = None
) -> tuple[RepoFile, ...]:
    """The file that a reference selects, with all its splits in order.

    `file` names it.  Without `file`, it is the first model, in the repository's own order, whose
    path holds `tag` (or Q4_K_M, or Q8_0) followed by a dot or a dash; without a tag and a match,
    the first model.  Raises NotFoundError, with the available files.
    """
    safe = [f for f in files if is_safe_gguf_path(f.path)]
    if file is not None:
        chosen = next((f for f in safe if f.path == file), None)
    else:
        models = list_models(safe)
        patterns = [re.escape(wanted) + "[.-]" for wanted in ((tag,) if tag else _DEFAULT_TAGS)]
        tagged = (
            model
            for pattern in patterns
            for model in models
            if re.search(pattern, model.path, re.IGNORECASE)
        )
        chosen = next(tagged, models[0] if models and not tag else None)
    if chosen is None:
        wanted = (
            f"file {_quote(file)}" if file else f"GGUF for {_quote(tag)}" if tag else "GGUF file"
        )
        raise NotFoundError(f"The repository has no {wanted}.", _list_choices(safe, bool(file)))
    return _all_splits(safe, chosen)


def list_models(files: Sequence[RepoFile]) -> list[RepoFile]:
    """The models of a repository; of a split one the first split."""
    return [f for f in files if is_model(f.path) and parse_file_name(f.path).index == 1]


def find_companion(files: Sequence[RepoFile], model: str, marker: str) -> RepoFile | None:
    """The best companion of a model by llama.cpp's rule.

    Its path holds `marker` and lies in the model's folder or above.  The deepest wins, then the
    one whose number of bits is closest to the model's.
    """
    folders = model.split("/")[:-1]

    def rank(companion: RepoFile) -> tuple[int, int]:
        depth = len(companion.path.split("/")) - 1
        return depth, -abs(_quantization_bits(companion.path) - _quantization_bits(model))

    candidates = [
        f
        for f in files
        if is_safe_gguf_path(f.path)
        and marker in f.path
        and folders[: f.path.count("/")] == f.path.split("/")[:-1]
    ]
    return max(candidates, key=rank, default=None)


def find_heads(files: Sequence[RepoFile], model: str) -> tuple[RepoFile, ...]:
    """The best head of each kind that a repository has for a model, by `find_companion`'s rule."""
    heads = (find_companion(files, model, prefix) for prefix in HEAD_PREFIXES if is_model(model))
    return tuple(head for head in heads if head is not None)


def _all_splits(files: Sequence[RepoFile], split: RepoFile) -> tuple[RepoFile, ...]:
    """All splits of the model that a split belongs to."""
    name = parse_file_name(split.path)
    if name.count <= 1:
        return (split,)
    parsed = [(parse_file_name(f.path), f) for f in files]
    splits = {n.index: f for n, f in parsed if (n.stem, n.count) == (name.stem, name.count)}
    missing = [n for n in range(1, min(name.count, len(splits) + 1) + 1) if n not in splits]
    if missing:
        path = f"{name.stem}-{missing[0]:05}-of-{name.count:05}.gguf"
        raise NotFoundError(
            f"The repository has {len(splits)} of {name.count} parts: {_quote(path)} is missing.",
            "Choose another file.",
        )
    return tuple(splits[n] for n in range(1, name.count + 1))


def _list_choices(files: Sequence[RepoFile], by_file: bool) -> str:
    models = [f.path for f in list_models(files)]
    names = models if by_file else [parse_file_name(path).tag or path for path in models]
    choices = list(dict.fromkeys(names))
    if not choices:
        return "It has no GGUF files. Search for the model's name plus GGUF."
    more = ", …" if len(choices) > 12 else ""
    return f"It has: {', '.join(map(_quote, choices[:12]))}{more}"


def _quantization_bits(path: str) -> int:
    digits = re.search(r"[0-9]{1,4}", parse_file_name(path).tag)
    return int(digits[0]) if digits else 0


def _strip_host(text: str) -> str | None:
    """The part after hf:// or the hub's host name, where a browser writes %20 for a space."""
    if text[:5].lower() == "hf://":
        return text[5:]
    address = re.sub(r"\Ahttps?://", "", text, count=1, flags=re.IGNORECASE)
    for host in _HUB_HOSTS:
        if address.lower().startswith(host):
            return unquote(address[len(host) :].partition("?")[0].partition("#")[0])
    return None


def _parse_hub(hub_path: str, typed: str) -> HubReference:
    """`user/repo[@revision][/file][:tag]`, or a page's address: `user/repo/blob/main/file`."""
    pieces = hub_path.strip("/").split("/")
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


def _unreadable_error(text: str) -> UsageError:
    return UsageError(
        f"{_quote(text)} is not a model reference.",
        "Use a catalogue id, user/repo:QUANT, hf://user/repo/file.gguf or a path.",
    )


def _quote(text: str | None) -> str:
    shown = sanitize(text or "''", multiline=False)
    return shown if len(shown) <= 120 else shown[:119] + "…"
