#!/usr/bin/env python3
"""Compare localspec's verdict on every pair of GGUF files with llama.cpp's rule.

    python scripts/check_pairing.py DIR [--range] [--markdown docs/pairing.md]

DIR contains models or vocabulary-only files (*.gguf), such as vendor/llama.cpp/models in the sdist
of llama-cpp-python. localspec reads headers only. llama.cpp's rule is
common_speculative_are_compatible (common/speculative.cpp), which the library does not export: a
child process evaluates it token by token with the library's functions. With --range, the headers
are also read by HTTP Range from a local fake hub. Exit code 1 if the verdicts differ, or if reading
a header takes too much time or too many bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError
from localspec.models import pair_compatibility
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header

INTRODUCTION = """\
# Pairs of vocabularies

Made by `scripts/check_pairing.py` from the vocabularies in the source archive of llama-cpp-python
{llama}: {files} files, {pairs} ordered pairs. The verdict of `check_vocabularies` from two headers
(compatible or not, rule, token) is compared with that of llama.cpp's
`common_speculative_are_compatible`, evaluated token by token on the loaded vocabularies; so are the
properties below and the end-of-generation tokens. Differences: {differ}.

`=` the same vocabulary · `p` the same up to padding · `t` another type · `b` another BOS ·
`e` another EOS · `s` another size · a number: the first token that differs
"""
SLOWEST, MOST_BYTES = 2.0, 20_000_000
"""Limits in seconds and bytes for a header of 16 MB by Range."""
LETTERS = {
    "same-vocabulary": "=",
    "vocabulary-type": "t",
    "add-bos": "b",
    "bos": "b",
    "add-eos": "e",
    "eos": "e",
}


@dataclass(frozen=True)
class Verdict:
    compatible: bool
    rule: str
    token: int | None


# --- llama.cpp's side, in a child ----------------------------------------------------------------


def reference(paths: Sequence[str]) -> dict[str, Any]:
    """Properties of each file, and the rule for each pair, from the library."""
    import llama_cpp.llama_cpp as C  # noqa: N812, PLC0415  only the child loads it

    SILENT.append(_silent(C))
    C.llama_log_set(SILENT[0], None)
    C.llama_backend_init()
    known = [_loaded(C, path) for path in paths]
    pairs = [[_rule(a, b) for b in known] for a in known]
    return {"facts": [facts for facts, _ in known], "pairs": pairs}


def _silent(C: Any) -> Any:  # noqa: N803
    return C.llama_log_callback(lambda *_: None)


SILENT: list[Any] = []
"""Callbacks that must outlive the library's use of them."""


def _loaded(C: Any, path: str) -> tuple[dict[str, Any], list[bytes]]:  # noqa: N803
    settings = C.llama_model_default_params()
    settings.vocab_only = True
    model = C.llama_model_load_from_file(path.encode(), settings)
    if not model:
        raise SystemExit(f"llama.cpp cannot load {path}")
    vocab = C.llama_model_get_vocab(model)
    n_tokens = C.llama_vocab_n_tokens(vocab)
    facts = {
        "kind": int(C.llama_vocab_type(vocab)),
        "n_tokens": int(n_tokens),
        "add_bos": bool(C.llama_vocab_get_add_bos(vocab)),
        "add_eos": bool(C.llama_vocab_get_add_eos(vocab)),
        "bos": int(C.llama_vocab_bos(vocab)),
        "eos": int(C.llama_vocab_eos(vocab)),
        "ends": [i for i in range(n_tokens) if C.llama_vocab_is_eog(vocab, i)],
    }
    texts = [bytes(C.llama_vocab_get_text(vocab, i) or b"") for i in range(n_tokens)]
    C.llama_model_free(model)
    return facts, texts


def _rule(
    target: tuple[dict[str, Any], list[bytes]], draft: tuple[dict[str, Any], list[bytes]]
) -> tuple[bool, str, int | None]:
    """common_speculative_are_compatible, line by line."""
    (a, texts_a), (b, texts_b) = target, draft
    for test, rule, token in (
        (a["kind"] == b["kind"], "vocabulary-type", None),
        (a["add_bos"] == b["add_bos"], "add-bos", None),
        (not a["add_bos"] or a["bos"] == b["bos"], "bos", b["bos"]),
        (a["add_eos"] == b["add_eos"], "add-eos", None),
        (not a["add_eos"] or a["eos"] == b["eos"], "eos", b["eos"]),
        (abs(a["n_tokens"] - b["n_tokens"]) <= 128, "vocabulary-size", None),
    ):
        if not test:
            return False, rule, token
    common = min(a["n_tokens"], b["n_tokens"])
    for i in range(5, common):
        if texts_a[i] != texts_b[i]:
            return False, "token-text", i
    if a["n_tokens"] != b["n_tokens"]:
        return True, "vocabulary-size", common
    return True, "same-vocabulary", None


def ask_child(paths: Sequence[Path]) -> dict[str, Any]:
    """Runs `reference` in a child process, because llama.cpp may abort."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", *map(str, paths)],
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the reference process exited with {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


# --- localspec's side ----------------------------------------------------------------------------


def facts_of(found: Header) -> dict[str, Any]:
    """The properties that `reference` returns."""
    tokenizer = found.tokenizer
    names = ("kind", "n_tokens", "add_bos", "add_eos", "bos", "eos")
    return {name: getattr(tokenizer, name) for name in names} | {"ends": sorted(tokenizer.eog_ids)}


def judge(target: Header, draft: Header) -> Verdict:
    verdict = pair_compatibility.check_vocabularies(target.tokenizer, draft.tokenizer)
    return Verdict(verdict.is_compatible, verdict.rule, verdict.token)


def compare(
    paths: Sequence[Path], read: Callable[[Path], Header] = reader.read
) -> tuple[list[str], list[Header], list[list[Verdict]]]:
    """Returns the differences as text, the headers, and localspec's verdict on each pair.

    `read`: the source of the headers, such as a hub.
    """
    headers = [read(path) for path in paths]
    theirs = ask_child(paths)
    wrong = []
    for path, found, facts in zip(paths, headers, theirs["facts"], strict=True):
        ours = facts_of(found)
        wrong += [
            f"{path.name}: {k} is {ours[k]}, llama.cpp says {facts[k]}"
            for k in facts
            if ours[k] != facts[k]
        ]
    table = [[judge(target, draft) for draft in headers] for target in headers]
    for i, target in enumerate(paths):
        for j, draft in enumerate(paths):
            if table[i][j] != Verdict(*theirs["pairs"][i][j]):
                verdicts = f"{table[i][j]}, llama.cpp says {theirs['pairs'][i][j]}"
                wrong.append(f"{target.name} + {draft.name}: {verdicts}")
    return wrong, headers, table


# --- by Range from a local hub --------------------------------------------------------------------


def compare_by_range(paths: Sequence[Path]) -> list[str]:
    """`compare` with headers from tests/fakehub.py; prints the cost of each."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from localspec.models.hub.client import HubClient  # noqa: PLC0415
    from tests.fakehub import FakeHub  # noqa: PLC0415

    wrong = []
    with FakeHub() as served:
        hub = HubClient(served.url, token=False)

        def read(path: Path) -> Header:
            repo = "vocab/all-GGUF"
            served.add(repo, path.name, path.read_bytes())
            before, started = served.sent(), time.perf_counter()
            found = hub.read_header(repo, served.commit, path.name)
            judge(found, found)
            took, sent = time.perf_counter() - started, served.sent() - before
            print(f"{path.name}: {took:.2f} s, {sent / 1e6:.1f} MB by Range")
            if took > SLOWEST or sent > MOST_BYTES:
                wrong.append(f"{path.name}: {took:.2f} s, {sent:,} bytes by Range: over the limit")
            return found

        return compare(paths, read)[0] + wrong


# --- the document --------------------------------------------------------------------------------


def markdown(
    paths: Sequence[Path], headers: Sequence[Header], table: list[list[Verdict]], differ: int
) -> str:
    pairs = len(paths) ** 2
    parts = [
        INTRODUCTION.format(
            llama=metadata.version("llama-cpp-python"),
            files=len(paths),
            pairs=pairs,
            differ=differ,
        )
    ]
    parts.append(
        "| | file | tokens | type | BOS | EOS | pre-tokenizer |\n|---|---|---|---|---|---|---|"
    )
    for i, (path, found) in enumerate(zip(paths, headers, strict=True), start=1):
        t = found.tokenizer
        bos, eos = (
            f"{n}{' added' if a else ''}" for n, a in ((t.bos, t.add_bos), (t.eos, t.add_eos))
        )
        cells = (path.stem, f"{t.n_tokens:,}", t.model, bos, eos, t.pre or "–")
        parts.append(f"| {i} | " + " | ".join(cells) + " |")
    numbers = range(1, len(paths) + 1)
    parts.append("\nA row is a target, a column a draft model.\n")
    parts.append("| |" + "".join(f" {i} |" for i in numbers) + "\n|---|" + "---|" * len(paths))
    for i, row in zip(numbers, table, strict=True):
        parts.append(f"| **{i}** |" + "".join(f" {_cell(judged)} |" for judged in row))
    return "\n".join(parts) + "\n"


def _cell(judged: Verdict) -> str:
    if judged.rule == "vocabulary-size":
        return "p" if judged.compatible else "s"
    return LETTERS.get(judged.rule) or str(judged.token)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--range", action="store_true", help="also by HTTP Range")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    asked = parser.parse_args()
    paths = sorted(asked.folder.glob("*.gguf"))
    if not paths:
        print(f"no .gguf files in {asked.folder}", file=sys.stderr)
        return 1
    started = time.perf_counter()
    try:
        wrong, headers, table = compare(paths)
        differ = len(wrong)
        if asked.range:
            wrong += compare_by_range(paths)
    except LocalspecError as error:
        print(f"{error.message} {error.hint}", file=sys.stderr)
        return 1
    for line in wrong:
        print(line)
    took = time.perf_counter() - started
    print(f"{len(paths)} files, {len(paths) ** 2} pairs: {len(wrong)} differences, {took:.0f} s")
    if asked.markdown:
        asked.markdown.write_text(markdown(paths, headers, table, differ), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(reference(sys.argv[2:])))
        sys.exit(0)
    sys.exit(main())
