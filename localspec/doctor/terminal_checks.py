"""Checks of the terminal: size, colours, encoding."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import TextIO

from localspec.doctor.findings import Finding

_MIN_SIZE = (60, 15)


def check_terminal(
    environ: Mapping[str, str] = os.environ, out: TextIO | None = None
) -> Iterator[Finding]:
    out = out or sys.__stdout__ or sys.stdout  # the app replaces sys.stdout
    yield _describe_terminal(environ, out)
    yield from _check_size(out)
    yield from _check_encoding(out)
    if environ.get("TERM") == "dumb":
        fix = "TERM=xterm-256color, if your terminal supports it"
        yield Finding("dumb", "terminal", "notice", "TERM=dumb: line-based chat only", fix)
    if sys.platform == "win32" and not environ.get("WT_SESSION"):
        fix = "Use Windows Terminal"
        what = "old console: some keys and colours may not work"
        yield Finding("old-console", "terminal", "notice", what, fix)


def _describe_terminal(environ: Mapping[str, str], out: TextIO) -> Finding:
    parts = [environ.get("TERM_PROGRAM") or environ.get("TERM") or "unknown terminal"]
    parts += [] if out.isatty() else ["output to a file or a pipe"]
    parts += [_describe_colours(environ)]
    parts += ["in tmux"] if environ.get("TMUX") else ["in screen"] if environ.get("STY") else []
    parts += ["over SSH"] if environ.get("SSH_CONNECTION") or environ.get("SSH_TTY") else []
    return Finding("terminal", "terminal", "ok", ", ".join(parts))


def _describe_colours(environ: Mapping[str, str]) -> str:
    if environ.get("NO_COLOR"):
        return "no colours (NO_COLOR)"
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") or environ.get("WT_SESSION"):
        return "16 million colours"
    return "256 colours" if "256" in environ.get("TERM", "") else "16 colours or fewer"


def _check_size(out: TextIO) -> Iterator[Finding]:
    if not out.isatty():
        return
    size = shutil.get_terminal_size()
    what = f"{size.columns} columns, {size.lines} lines"
    if size.columns < _MIN_SIZE[0] or size.lines < _MIN_SIZE[1]:
        fix = f"Enlarge it to at least {_MIN_SIZE[0]} by {_MIN_SIZE[1]}"
        yield Finding("small", "terminal", "notice", f"{what}: small for the app", fix)
    else:
        yield Finding("size", "terminal", "ok", what)


def _check_encoding(out: TextIO) -> Iterator[Finding]:
    encoding = (getattr(out, "encoding", "") or "").lower().replace("-", "")
    if encoding != "utf8":
        what = f"the output encoding is {encoding or 'unknown'}: other characters become ?"
        fix = "Set PYTHONUTF8=1 and a UTF-8 locale such as LANG=C.UTF-8"
        yield Finding("no-unicode", "terminal", "warning", what, fix)
    else:
        yield Finding("unicode", "terminal", "ok", "Unicode")
