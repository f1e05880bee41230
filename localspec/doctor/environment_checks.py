"""Checks of the environment: hub settings, for which no connection is opened, and the terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

from localspec import config
from localspec.doctor.findings import Finding

_OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_TRUE_VALUES = ("1", "on", "yes", "true")


def check_network(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    yield from _check_offline(environ)
    yield _check_endpoint(environ.get("HF_ENDPOINT", ""))
    yield _check_token(environ)
    proxies = [name for name in _PROXY_VARIABLES if environ.get(name) or environ.get(name.lower())]
    if proxies:  # their values may hold passwords
        yield Finding("proxy", "network", "ok", f"a proxy is set ({', '.join(proxies)})")


def _check_offline(environ: Mapping[str, str]) -> Iterator[Finding]:
    setting = config.resolve(environ).settings["network.offline"]
    if setting.origin == "command line":
        what, fix = f"offline: {setting.origin_text} was given", "leave it out, to download models"
        yield Finding("offline", "network", "notice", what, fix)
        return
    for name in _OFFLINE_VARIABLES:
        if environ.get(name, "").lower() in _TRUE_VALUES:
            fix = f"unset {name}, to download models"
            yield Finding("offline", "network", "notice", f"offline: {name} is set", fix)
    if setting.current and not setting.is_overridden:
        what = f"offline: network.offline is set in {setting.origin_text}"
        fix = "localspec config set network.offline false, to download models"
        yield Finding("offline", "network", "notice", what, fix)


def _check_endpoint(value: str) -> Finding:
    if not value:
        return Finding("endpoint", "network", "ok", "downloads from huggingface.co")
    parts = _split_url(value)
    if parts is None:
        fix = "unset HF_ENDPOINT, or set it to an address like https://hub.example"
        return Finding("endpoint-wrong", "network", "warning", "HF_ENDPOINT is not a URL", fix)
    what = f"HF_ENDPOINT: downloads from {parts[0]}://{parts[1]} instead of huggingface.co"
    return Finding("endpoint", "network", "notice", what)


def _split_url(value: str) -> tuple[str, str] | None:
    """Scheme and host; leaves out user and password."""
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not host:
        return None
    return parts.scheme, f"{host}:{port}" if port else host


def _check_token(environ: Mapping[str, str]) -> Finding:
    """Checks that a token exists; does not read it."""
    variable = next((name for name in _TOKEN_VARIABLES if environ.get(name)), None)
    if variable:
        return Finding("token", "network", "ok", f"hub token set ({variable})")
    home = environ.get("HF_HOME") or os.path.join(
        environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    file = Path(os.path.expanduser(environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")))
    if os.path.isfile(file):
        return Finding("token", "network", "ok", f"hub token in {file}")
    return Finding("no-token", "network", "ok", "no hub token: gated models cannot be downloaded")


# --- the terminal: size, colours, encoding -----------------------------------------------------

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
