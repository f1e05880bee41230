"""What a person prefers, put to use: at the start, and again whenever it is changed."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.config import Config, View
from localspec.tui import glyphs, rebinding
from localspec.tui.options import Options


def take_over(options: Options, view: View) -> None:
    """Into what the screens share; what is wrong in the file is as it comes, and is said."""
    known = Config.of(view)
    keys, refused = rebinding.sound(known.keys)
    options.keymap.clear()
    options.keymap.update(keys)
    options.theme = known.theme
    options.glyphs = glyphs.suited(known.ascii)
    options.download_limit = known.download_limit * 1e6 if known.download_limit else None
    options.offline = known.offline
    options.overflow = known.overflow
    options.show_thinking = known.show_thinking
    options.temperature, options.spec = known.temperature, known.spec
    if options.chats is not None:
        options.chats.keep(not known.private)
    options.trouble = (*_trouble(view), *refused)


def _trouble(view: View) -> Iterator[str]:
    """In few words: the whole path stands in the preferences."""
    path = view.contents.path
    for said in (*view.faults, *view.warnings):
        yield said.replace(str(path), path.name)
    if view.contents.damage is not None:
        yield "All is as it comes, and nothing is written, until it is mended."


def banner(options: Options) -> str:
    """One line for the first screen; empty where nothing is wrong."""
    if not options.trouble:
        return ""
    first, *more = options.trouble
    damaged = "until it is mended" in "".join(more)
    rest = f" {more[-1]}" if damaged else f" And {len(more)} more." if more else ""
    key = options.keymap.get("app.preferences", "f10")
    return f"{first}{'' if first.endswith(('.', '?')) else '.'}{rest} {key} shows it."
