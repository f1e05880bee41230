#!/usr/bin/env python3
"""Compare localspec's rendering of chat templates with that of transformers and llama.cpp.

    python scripts/check_templates.py DIR [--markdown docs/templates.md]
    python scripts/check_templates.py --record tests/real/rendered.json NAME=MODEL.gguf …

DIR contains real templates (*.jinja), such as vendor/llama.cpp/models/templates in the sdist of
llama-cpp-python. Needs the extra `templates`. Exit code 1 if a text differs from that of
transformers. The second form stores what transformers makes of the templates of models.
"""

from __future__ import annotations

import argparse
import ctypes
import difflib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("GGML_NO_BACKTRACE", "1")
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

import llama_cpp.llama_cpp as C  # noqa: N812
from transformers.utils.chat_template_utils import render_jinja_template

from localspec.errors import UsageError
from localspec.models.chat_template import thinking_tags
from localspec.models.chat_template.jinja_render import render
from localspec.models.gguf import reader
from localspec.protocol.events import Notice
from localspec.protocol.wire import ChatMessage, RenderResult

REFUSED = "refused"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
SYSTEM = ChatMessage("system", "Be brief.")
CHAT = (
    ChatMessage("user", "Hi, who are you?"),
    ChatMessage("assistant", "I am a model."),
    ChatMessage("user", "Is 2 < 3?"),
    ChatMessage("assistant", 'Yes & "so on".'),
    ChatMessage("user", "Schön. And in 漢字?"),
    ChatMessage("assistant", "- 二\n- 三\n\n```\n2 < 3\n```"),
    ChatMessage("user", "Thanks."),
)
DATES = re.compile(r"\d{1,2} [A-Z][a-z]+ \d{4}|\d{4}-\d{2}-\d{2}|[A-Z][a-z]+ \d{1,2}, \d{4}")
END = re.compile(r"<[^<>]*(end|return)[^<>]*>")
LONGEST = 60
INTRODUCTION = """\
# Chat templates

Made by `scripts/check_templates.py` from the real templates in the source archive of
llama-cpp-python {llama}. Each renders a chat of four turns: without and with a system prompt,
with thinking switched on and off, and with a thinking part in an earlier answer.
`<s>` and `</s>` stand for BOS and EOS.

## transformers {transformers}

{templates} templates, {chats} chats: {equal} texts equal those of transformers byte for byte; in
{raised} cases the template raises an error in transformers; {differ} texts differ. localspec passes
the thinking of an earlier answer to a template as `reasoning_content` and `thinking`, and the
thinking setting as `enable_thinking`, `thinking` and `reasoning`. It passes no tools or documents.
"""


@dataclass(frozen=True)
class Case:
    """A chat and its options; `thought`: an earlier answer has a thinking part."""

    name: str
    messages: tuple[ChatMessage, ...] = CHAT
    think: bool | None = None
    thought: bool = False


CASES = (
    Case("no system", CHAT),
    Case("system", (SYSTEM, *CHAT)),
    Case("think", CHAT, think=True),
    Case("no think", CHAT, think=False),
    Case("thought", CHAT, thought=True),
)


@dataclass(frozen=True)
class Outcome:
    case: Case
    ours: RenderResult
    theirs: str | None
    error: str
    """Why transformers returned no text."""
    native: str | None
    """llama.cpp's text; None if it does not recognise the template."""

    @property
    def same(self) -> bool:
        return self.theirs == self.ours.text


def outcome(source: str, case: Case) -> Outcome:
    markers = thinking_tags.detect_tags(source)
    ours_of, theirs_of = _messages(case, markers)
    try:
        ours = render(source, ours_of, TOKENS, case.think)
    except UsageError as refused:
        ours = RenderResult("", (Notice("warning", "template", refused.message),), REFUSED)
    given: dict[str, Any] = {}
    if case.think is not None:
        given = dict.fromkeys(("enable_thinking", "thinking", "reasoning"), case.think)
    theirs, error = None, ""
    try:
        texts, _ = render_jinja_template(
            [theirs_of], chat_template=source, add_generation_prompt=True, **TOKENS, **given
        )
        theirs = texts[0]
    except Exception as raised:  # templates raise what they like
        error = f"{type(raised).__name__}: {raised}"
    return Outcome(case, ours, theirs, error, _native(source, case.messages))


def _messages(
    case: Case, markers: thinking_tags.ThinkingTags | None
) -> tuple[list[ChatMessage], list[dict[str, str]]]:
    """The chat for localspec, and for transformers, which takes the thinking separately."""
    ours = list(case.messages)
    theirs = [{"role": m.role, "content": m.content} for m in ours]
    if case.thought and markers is not None:
        answer = (
            f"{markers.open}Let me see."
            f"{thinking_tags.with_answer_prefix(markers).close}{ours[1].content}"
        )
        ours[1] = ChatMessage("assistant", answer)
        theirs[1] |= {"reasoning_content": "Let me see."}
    return ours, theirs


def _native(source: str, messages: Sequence[ChatMessage]) -> str | None:
    pairs = [C.llama_chat_message(m.role.encode(), m.content.encode()) for m in messages]
    chat = (C.llama_chat_message * len(pairs))(*pairs)
    size = 1 << 16
    buffer = ctypes.create_string_buffer(size)
    n = C.llama_chat_apply_template(source.encode(), chat, len(pairs), True, buffer, size)
    return buffer.raw[:n].decode() if 0 <= n <= size else None


# --- reasons ----------------------------------------------------------------------------


def difference(ours: str, native: str) -> tuple[str, str, str]:
    """The reason for a difference, the parts only in ours, and those only in llama.cpp's."""
    ours = ours.removeprefix(TOKENS["bos_token"])
    native = native.removeprefix(TOKENS["bos_token"])
    if ours == native:
        return "", "", ""
    ours, native = DATES.sub("[date]", ours), DATES.sub("[date]", native)
    words, others = (re.findall(r"<[^<>\s]*>|\w+|\s|.", text) for text in (ours, native))
    added, missing, last = [], [], False
    matcher = difflib.SequenceMatcher(None, words, others, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind != "equal":
            last = b == len(words)
            added.append("".join(words[a:b]))
            missing.append("".join(others[c:d]))
    return _reason(added, missing, last), _shown(added), _shown(missing)


def _reason(added: list[str], missing: list[str], last: bool) -> str:
    """The reason as text, from the parts that only one text has."""
    more, less = "".join(added), "".join(missing)
    if not more.strip() and not less.strip():
        return "whitespace"
    if more.strip() == less.strip():
        return "which user message contains the system prompt"
    ends = bool(last and re.search(r"think|THINK|channel", added[-1]))
    rest = "".join(added[:-1] if ends else added)
    reasons = {
        "a date": "[date]" in more,
        "a default system text": bool(re.search(r"[Yy]ou are|[Ss]ystem|SYSTEM", more)),
        "instructions of the template": bool(re.search(r"Metadata|detailed thinking", more)),
        "the start of the answer (thinking)": ends,
        "thinking tags in earlier answers": bool(re.search(r"think>|channel", rest)),
        "the end of earlier answers": any(map(END.fullmatch, (*added, *missing))),
        "another form of the same text": any(p.strip() and not END.fullmatch(p) for p in missing),
        "whitespace": any(part.isspace() for part in missing),
    }
    return ", ".join(name for name, holds in reasons.items() if holds) or "unknown"


def _shown(parts: list[str]) -> str:
    seen = dict.fromkeys(part for part in parts if part)
    text = " … ".join(repr(p.replace(" ", "␣") if p.isspace() else p)[1:-1] for p in seen)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


# --- the report -------------------------------------------------------------------------


def _code(text: str) -> str:
    """Code in a table cell."""
    return f"`` {text} ``".replace("|", "\\|") if text else ""


def report(found: dict[str, tuple[str, list[Outcome]]]) -> Iterator[str]:
    outcomes = [each for _, case in found.values() for each in case]
    yield INTRODUCTION.format(
        llama=metadata.version("llama-cpp-python"),
        transformers=metadata.version("transformers"),
        templates=len(found),
        chats=len(outcomes),
        equal=sum(each.same for each in outcomes),
        raised=sum(each.theirs is None for each in outcomes),
        differ=sum(not each.same and each.theirs is not None for each in outcomes),
    )
    yield "| template | chats | needs | transformers | localspec |"
    yield "|---|---|---|---|---|"
    for name, (_, case) in found.items():
        yield from _differences(name, case)
    yield ""
    yield "## Thinking"
    yield ""
    yield "| tags | templates |"
    yield "|---|---|"
    yield from _thinking(found)
    yield ""
    yield from _natives(found)


def _differences(name: str, outcomes: list[Outcome]) -> Iterator[str]:
    rows: dict[tuple[str, str], list[str]] = {}
    for each in outcomes:
        if not each.same:
            theirs = each.error or "different text"
            ours = "; ".join(notice.message for notice in each.ours.notices)
            rows.setdefault((theirs, ours), []).append(each.case.name)
    for (theirs, ours), cases in rows.items():
        chats = "all" if len(cases) == len(outcomes) else ", ".join(cases)
        yield f"| {name} | {chats} | {_need(theirs)} | {_code(theirs)} | {ours} |"


def _need(error: str) -> str:
    """The input that a template needs and localspec does not provide."""
    if "NoneType" in error:
        return "a list of tools"
    undefined = re.search(r"'(\w+)' is undefined", error)
    if undefined:
        return f"`{undefined[1]}`"
    return "a chat without that role" if "ole" in error else "unknown"


def _thinking(found: dict[str, tuple[str, list[Outcome]]]) -> Iterator[str]:
    rows: dict[str, list[str]] = {}
    for name, (source, _) in found.items():
        markers = thinking_tags.detect_tags(source)
        pair = " … ".join(map(repr, thinking_tags.with_answer_prefix(markers))) if markers else ""
        rows.setdefault(pair, []).append(name)
    for pair, names in sorted(rows.items(), key=lambda row: (not row[0], -len(row[1]))):
        yield f"| {_code(pair) or 'none, or unknown to localspec'} | {', '.join(names)} |"


def _natives(found: dict[str, tuple[str, list[Outcome]]]) -> Iterator[str]:
    rows: list[tuple[str, str, tuple[str, str, str]]] = []
    unknown, fallen = [], []
    for name, (_, outcomes) in found.items():
        for each in outcomes[:2]:
            if each.native is None:
                unknown += [name] if name not in unknown else []
            elif each.ours.template == REFUSED:
                fallen += [name] if name not in fallen else []
            else:
                reason = difference(each.ours.text, each.native)
                rows.append((name, each.case.name, reason))
    same = [name for name, _, reason in rows if not reason[0]]
    yield "## llama.cpp's `llama_chat_apply_template`"
    yield ""
    yield "It runs no templates. It recognises some by their text and has its own form of each."
    yield f"Without and with a system prompt, {len(same)} of {2 * len(found)} texts are equal"
    yield f"(except for BOS, which the tokenizer adds), {len(rows) - len(same)} differ."
    yield ""
    yield f"Not recognised: {', '.join(unknown)}."
    yield ""
    yield f"Refused by localspec, see above: {', '.join(fallen)}."
    yield ""
    yield "| template | chat | reason | only in localspec's text | only in llama.cpp's |"
    yield "|---|---|---|---|---|"
    for name, case, (why, added, missing) in rows:
        if why:
            yield f"| {name} | {case} | {why} | {_code(added)} | {_code(missing)} |"


def record(into: Path, models: Sequence[str]) -> None:
    """Write the chats of CASES as transformers renders them, by model; errors are left out."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, _, path in (model.partition("=") for model in models):
        facts = reader.read(Path(path))
        tokens = {
            f"{each}_token": facts.tokenizer.token_text(token).decode() if token >= 0 else ""
            for each, token in (("bos", facts.tokenizer.bos), ("eos", facts.tokenizer.eos))
        }
        found[name] = []
        for case in CASES[:2]:
            messages = [{"role": m.role, "content": m.content} for m in case.messages]
            rendered, _ = render_jinja_template(
                [messages], chat_template=facts.chat_template, add_generation_prompt=True, **tokens
            )
            found[name].append({"messages": messages, "tokens": tokens, "text": rendered[0]})
    command = "scripts/check_templates.py --record tests/real/rendered.json NAME=MODEL.gguf"
    made = {"command": command, "transformers": metadata.version("transformers"), "models": found}
    into.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--markdown", type=Path, help="also write the report to this file")
    parser.add_argument("--record", nargs="+", metavar=("FILE", "NAME=MODEL.gguf"))
    arguments = parser.parse_args()
    if arguments.record:
        record(Path(arguments.record[0]), arguments.record[1:])
        return 0
    if arguments.folder is None:
        parser.error("DIR or --record is needed")
    found: dict[str, tuple[str, list[Outcome]]] = {}
    for path in sorted(arguments.folder.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        found[path.stem] = source, [outcome(source, case) for case in CASES]
    text = "\n".join(report(found)) + "\n"
    sys.stdout.write(text)
    if arguments.markdown:
        arguments.markdown.write_text(text, encoding="utf-8")
    outcomes = [each for _, case in found.values() for each in case]
    return int(not outcomes or any(not e.same and e.theirs is not None for e in outcomes))


if __name__ == "__main__":
    sys.exit(main())
