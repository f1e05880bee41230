"""Prompts for training a head: chat_prompts.yaml and texts of this computer."""

from __future__ import annotations

import gzip
import importlib
import inspect
import pkgutil
import random
import re
import sysconfig
import warnings
import zlib
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

SOURCE = Path(__file__).with_name("chat_prompts.yaml")
SEED = 7
PASSAGE_CHARS = (200, 1200)
HELD_OUT_OF = 16
"""One in so many documentation texts is held out."""
FIELD = re.compile(r"\{(\w+)\}")
MAN_PAGE_STEP = 3
"""One manual page in so many is read."""
MAN_PAGES = Path("/usr/share/man")
DOCUMENTS = ("/usr/share/doc", "/usr/share/common-licenses", "/usr/share/perl")


def make_prompts(count: int, *, held_out: bool) -> list[str]:
    """Different prompts in random order, the same in every call on one computer."""
    book = yaml.safe_load(SOURCE.read_text("utf-8"))
    part_name = "held_out" if held_out else "train"
    part = book[part_name]
    words = {name: text.split(" | ") for name, text in part["words"].items()}
    words |= {
        "number": [str(i) for i in range(2, 100)],
        "small": [str(i) for i in range(2, 13)],
    }
    words |= texts_of_this_computer(held_out)
    rng = random.Random(SEED)
    found = dict.fromkeys(part["prompts"])
    weights = [kind["weight"] for kind in part["kinds"]]
    for _ in range(50 * count):
        if len(found) >= count:
            break
        kind = rng.choices(part["kinds"], weights)[0]
        found[fill(rng.choice(kind["templates"]), words, rng)] = None
    prompts = list(found)
    rng.shuffle(prompts)
    return prompts


def follow_ups() -> list[str]:
    return list(yaml.safe_load(SOURCE.read_text("utf-8"))["follow_ups"])


def fill(template: str, words: dict[str, list[str]], rng: random.Random) -> str:
    """The template with a random word in each field.

    Words may have fields of their own.
    """

    def word(field: re.Match[str]) -> str:
        chosen = rng.choice(words[field[1]])
        if "{topic}" not in chosen:
            return chosen
        return fill(chosen, words, rng)

    return FIELD.sub(word, template)


def texts_of_this_computer(held_out: bool) -> dict[str, list[str]]:
    """Passages, docstrings, functions and commands.

    Each belongs to one of the two parts, held out or not.
    """
    found = all_texts_of_this_computer()
    return {
        name: [t for t in texts if is_held_out(t) == held_out]
        for name, texts in found.items()
    }


@cache
def all_texts_of_this_computer() -> dict[str, list[str]]:
    docstrings = dict(python_docstrings())
    return {
        "passage": [
            *document_paragraphs(),
            *package_paragraphs(),
            *docstrings.values(),
        ],
        "docstring": list(docstrings.values()),
        "function": list(docstrings),
        "command": list(manual_commands()),
    }


def is_held_out(text: str) -> bool:
    return zlib.crc32(text.encode("utf-8", "replace")) % HELD_OUT_OF == 0


def python_docstrings() -> Iterator[tuple[str, str]]:
    """(qualified name, docstring) of functions of the standard library and numpy."""
    for module in library_modules():
        for name, member in inspect.getmembers(module):
            text = docstring_of(member)
            if not name.startswith("_") and has_passage_length(text):
                yield f"{module.__name__}.{name}", text


def library_modules() -> Iterator[Any]:
    names = [m.name for m in pkgutil.iter_modules([sysconfig.get_path("stdlib")])]
    skipped = (
        "_",
        "this",
        "antigravity",
        "idlelib",
        "test",
        "turtle",
        "tkinter",
        "lib2to3",
    )
    for name in (
        *names,
        "numpy",
        "numpy.linalg",
        "numpy.random",
        "yaml",
        "jinja2",
        "click",
    ):
        if name.startswith(skipped):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield importlib.import_module(name)
        except Exception:  # a module may need a library that this system lacks
            continue


def docstring_of(member: Any) -> str:
    if not (inspect.isroutine(member) or inspect.isclass(member)):
        return ""
    try:
        return inspect.getdoc(member) or ""
    except Exception:  # an object may refuse inspection
        return ""


def manual_commands() -> Iterator[str]:
    for page in sorted(MAN_PAGES.glob("man[18]/*")):
        name = page.name.split(".")[0]
        if re.fullmatch(r"[a-z][a-z0-9-]{1,14}", name):
            yield name


def document_paragraphs() -> Iterator[str]:
    paths: list[Path] = []
    for root in DOCUMENTS:
        paths += [path for path in Path(root).glob("**/*") if is_document(path)]
    for path in sorted(paths):
        yield from paragraphs(read_text(path))
    for path in sorted(MAN_PAGES.glob("man[178]/*.gz"))[::MAN_PAGE_STEP]:
        yield from paragraphs(plain_manual(read_text(path)))


def is_document(path: Path) -> bool:
    return path.is_file() and bool(
        re.match(r"README|NEWS|perlfaq|FAQ|GPL|LGPL|Apache", path.name)
    )


def package_paragraphs() -> Iterator[str]:
    """Of the descriptions of installed Python packages."""
    for package in metadata.distributions():
        yield from paragraphs(package.read_text("METADATA") or "")


def read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        return data.decode("utf-8")
    except (OSError, ValueError, EOFError, zlib.error):
        return ""


def plain_manual(source: str) -> str:
    """A manual page's text without most of its troff commands."""
    text = re.sub(r"^\.(?:PP|P|sp|Pp|TP|IP|SH|SS|LP).*$", "", source, flags=re.M)
    text = re.sub(r"^[.'].*\n", "", text, flags=re.M)
    text = re.sub(r"\\f[A-Z]|\\f\(..|\\&|\\[|^]", "", text)
    return text.replace("\\-", "-").replace("\\(bu", "*").replace("\\e", "\\")


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of prose of a passage's length."""
    for part in re.split(r"\n\s*\n", text):
        letters = sum(c.isalpha() or c.isspace() for c in part)
        if (
            has_passage_length(part)
            and part.count(" ") > 30
            and letters > 0.8 * len(part)
        ):
            yield part.strip()


def has_passage_length(text: str) -> bool:
    return PASSAGE_CHARS[0] < len(text) < PASSAGE_CHARS[1]
