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
from localspec.doctor.findings import Finding, ok, problem

_OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_MIN_SIZE = (60, 15)


def check_network(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    yield from _check_offline(environ)
    yield _check_endpoint(environ.get("HF_ENDPOINT", ""))
    yield ok("network", *_describe_token(environ))
    proxies = [name for name in _PROXY_VARIABLES if environ.get(name) or environ.get(name.lower())]
    if proxies:  # their values may hold passwords
        yield ok("network", "proxy", f"a proxy is set ({', '.join(proxies)})")


def _check_offline(environ: Mapping[str, str]) -> Iterator[Finding]:
    setting = config.resolve(environ).settings["network.offline"]
    if setting.origin == "command line":
        what, fix = f"offline: {setting.origin_text} was given", "leave it out, to download models"
        yield problem("network", "offline", what, fix)
        return
    for name in _OFFLINE_VARIABLES:
        if environ.get(name, "").lower() in ("1", "on", "yes", "true"):
            fix = f"unset {name}, to download models"
            yield problem("network", "offline", f"offline: {name} is set", fix)
    if setting.current and not setting.is_overridden:
        what = f"offline: network.offline is set in {setting.origin_text}"
        fix = "localspec config set network.offline false, to download models"
        yield problem("network", "offline", what, fix)


def _check_endpoint(value: str) -> Finding:
    if not value:
        return ok("network", "endpoint", "downloads from huggingface.co")
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        fix = "unset HF_ENDPOINT, or set it to an address like https://hub.example"
        return problem("network", "endpoint-wrong", "HF_ENDPOINT is not a URL", fix)
    # Without user and password.
    address = f"{parts.scheme}://{host}:{port}" if port else f"{parts.scheme}://{host}"
    what = f"HF_ENDPOINT: downloads from {address} instead of huggingface.co"
    return problem("network", "endpoint", what)


def _describe_token(environ: Mapping[str, str]) -> tuple[str, str]:
    """Whether there is a token, which is not read: finding id and text."""
    variable = next((name for name in _TOKEN_VARIABLES if environ.get(name)), None)
    if variable:
        return "token", f"hub token set ({variable})"
    home = environ.get("HF_HOME") or os.path.join(
        environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    file = Path(os.path.expanduser(environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")))
    if os.path.isfile(file):
        return "token", f"hub token in {file}"
    return "no-token", "no hub token: gated models cannot be downloaded"


def check_terminal(
    environ: Mapping[str, str] = os.environ, out: TextIO | None = None
) -> Iterator[Finding]:
    out = out or sys.__stdout__ or sys.stdout  # the app replaces sys.stdout
    parts = [
        environ.get("TERM_PROGRAM") or environ.get("TERM") or "unknown terminal",
        "" if out.isatty() else "output to a file or a pipe",
        _describe_colours(environ),
        "in tmux" if environ.get("TMUX") else "in screen" if environ.get("STY") else "",
        "over SSH" if environ.get("SSH_CONNECTION") or environ.get("SSH_TTY") else "",
    ]
    yield ok("terminal", "terminal", ", ".join(filter(None, parts)))
    size = shutil.get_terminal_size()
    what = f"{size.columns} columns, {size.lines} lines"
    if out.isatty() and (size.columns < _MIN_SIZE[0] or size.lines < _MIN_SIZE[1]):
        fix = f"Enlarge it to at least {_MIN_SIZE[0]} by {_MIN_SIZE[1]}"
        yield problem("terminal", "small", f"{what}: small for the app", fix)
    elif out.isatty():
        yield ok("terminal", "size", what)
    encoding = (getattr(out, "encoding", "") or "").lower().replace("-", "")
    if encoding != "utf8":
        what = f"the output encoding is {encoding or 'unknown'}: other characters become ?"
        fix = "Set PYTHONUTF8=1 and a UTF-8 locale such as LANG=C.UTF-8"
        yield problem("terminal", "no-unicode", what, fix)
    else:
        yield ok("terminal", "unicode", "Unicode")
    if environ.get("TERM") == "dumb":
        fix = "TERM=xterm-256color, if your terminal supports it"
        yield problem("terminal", "dumb", "TERM=dumb: line-based chat only", fix)
    if sys.platform == "win32" and not environ.get("WT_SESSION"):
        what = "old console: some keys and colours may not work"
        yield problem("terminal", "old-console", what, "Use Windows Terminal")


def _describe_colours(environ: Mapping[str, str]) -> str:
    if environ.get("NO_COLOR"):
        return "no colours (NO_COLOR)"
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") or environ.get("WT_SESSION"):
        return "16 million colours"
    return "256 colours" if "256" in environ.get("TERM", "") else "16 colours or fewer"
