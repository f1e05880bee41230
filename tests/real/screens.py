"""Contradictions within one screen of a chat: header, panel, status line, footer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from localspec.tui.key_bindings import KEY_BINDINGS

_LABELS = {key.footer_label for key in KEY_BINDINGS if key.footer_label} | {"back", "select token"}
_PANEL_EDGE = "▏"
_ROUNDING = 0.06


def find_contradictions(seen: str) -> Iterator[str]:
    """Nothing for another screen than a chat without a sheet on top."""
    last = seen.splitlines()[-1] if seen.strip() else ""
    keys, _, numbers = last.strip().partition("   ")
    if not re.search(r" ctx |loading$", f" {last}"):
        return
    yield from _in_status(keys, numbers.strip(), seen)
    panel = [line.partition(_PANEL_EDGE)[2].strip() for line in seen.splitlines()]
    if any("plain decoding" in line for line in panel):
        is_covered = "▌" in seen  # partly, by a notice
        yield from _in_panel([line for line in panel if line], numbers, is_covered=is_covered)


def _in_status(keys: str, numbers: str, seen: str) -> Iterator[str]:
    for hint in filter(None, keys.split("  ")):
        if not any(hint.endswith(f" {label}") for label in _LABELS):
            yield f"the footer has {hint!r}"
    if "esc stop" in keys and "first token" in numbers:
        yield "an answer can be stopped that has ended"
    if "esc back" in keys and ("reading prompt" in numbers or "stopping …" in seen):
        yield "nothing can be stopped, and yet it goes on"
    if context := re.search(r"ctx ([\d.]+)(k?) / ([\d.]+)(k?)", numbers):
        used, size = (float(context[n]) * (1000 if context[n + 1] else 1) for n in (1, 3))
        if used > size:
            yield f"more tokens than the context has: {context[0]}"
    if (left := re.search(r"about [\d.]+k? tokens, ([\d.]+)(k?) left", seen)) and context:
        free = float(left[1]) * (1000 if left[2] else 1)
        if abs(size - used - free) > 100:
            yield f"{context[0]}, but {left[0]}"


def _in_panel(panel: list[str], numbers: str, *, is_covered: bool) -> Iterator[str]:
    text = "\n".join(panel)
    if panel[0].startswith("LOADING") != numbers.endswith("loading"):
        yield f"{panel[0]!r} beside {numbers!r}"
    speeds = re.search(
        r"^with speculation +([\d.]+) tok/s\nplain decoding +([\d.]+) tok/s", text, re.M
    )
    gain = re.match(r"\w+ +([\d.]+)(?:–([\d.]+))?× plain speed", panel[0])
    if gain and speeds:
        ratio = float(speeds[1]) / float(speeds[2])
        low, high = float(gain[1]), float(gain[2] or gain[1])
        if not low - _ROUNDING <= ratio <= high + _ROUNDING:
            yield f"{panel[0]!r}, but {ratio:.2f}"
    if gain and not speeds:
        yield f"{panel[0]!r} without both speeds"
    drafted = {
        label: int(n.replace(",", ""))
        for n, label in re.findall(r"of ([\d,]+) drafted +(now|chat)", text)
    }
    if drafted.get("now", 0) > drafted.get("chat", 0):
        yield f"more drafted now than in the chat: {drafted}"
    table = re.findall(
        r"^(?:draft|lookup|mixed|[A-Z]).*? +([\d,]+) +(?:\d+ %|–) +[\d.]+$", text, re.M
    )
    total = sum(int(n.replace(",", "")) for n in table)
    if table and not is_covered and total != drafted.get("chat"):
        yield f"the sources drafted {table}, the chat {drafted}"
    if "ON FROM THE NEXT ANSWER" in text and "OFF FROM THE NEXT ANSWER" in text:
        yield "on and off"
