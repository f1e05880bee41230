"""One animated SVG of pictures of a terminal, such as `App.export_screenshot` gives.

A picture of 110 columns and 32 rows has about 40 kB, and a recording of 20 seconds has
eighty of them. Most rows stay as they are from one picture to the next, so the recording
holds each state of a row once, with the times at which it is shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from msgspec import Struct

_ROW_HEIGHT = 24.4
"""Of rich's SVG, in its own units: https://github.com/Textualize/rich, `export_svg`."""
_FIRST_BASELINE = 20.0
_FIRST_BACKGROUND = 1.5
_NAMESPACE = "http://www.w3.org/2000/svg"
_STYLE_RULE = re.compile(r"\.(?P<name>\S+-r\d+) \{ (?P<style>[^}]*) \}")


class Frame(Struct, frozen=True):
    """A picture, and for how long it is shown."""

    svg: str
    seconds: float


class _RowState(Struct, frozen=True):
    """What a row shows, as SVG elements; its class names are those of the recording."""

    row: int
    elements: str


def animate(frames: Sequence[Frame], name: str) -> str:
    """A recording that begins again when it has ended.

    `name`: a prefix of its ids and classes, which are those of the whole page.

    A renderer that does not animate shows the last frame.
    """
    ElementTree.register_namespace("", _NAMESPACE)
    styles: dict[str, str] = {}
    shown_in: dict[_RowState, list[int]] = {}
    for number, frame in enumerate(frames):
        for state in _row_states(frame.svg, name, styles):
            shown_in.setdefault(state, []).append(number)
    starts = [0.0]
    for frame in frames:
        starts.append(starts[-1] + frame.seconds)
    groups = [_group(state, numbers, starts) for state, numbers in shown_in.items()]
    return _fill_in(frames[-1].svg, name, styles, groups)


def _row_states(svg: str, name: str, styles: dict[str, str]) -> list[_RowState]:
    """The rows of a picture; a style that is new gets a class name in `styles`."""
    own_styles = {rule["name"]: rule["style"] for rule in _STYLE_RULE.finditer(svg)}
    rows: dict[int, list[str]] = {}
    for element in ElementTree.fromstring(svg).iter():
        tag = element.tag.rpartition("}")[2]
        own_class = element.get("class", "")
        if tag == "text" and own_class in own_styles:
            style = own_styles[own_class]
            element.set("class", styles.setdefault(style, f"{name}-r{len(styles)}"))
            row = round((_number(element, "y") - _FIRST_BASELINE) / _ROW_HEIGHT)
            element.set("clip-path", f"url(#{name}-line-{row})")
        elif tag == "rect" and element.get("shape-rendering") == "crispEdges":
            row = round((_number(element, "y") - _FIRST_BACKGROUND) / _ROW_HEIGHT)
        else:
            continue
        element.tail = ""
        text = ElementTree.tostring(element, encoding="unicode")
        text = text.replace(f' xmlns="{_NAMESPACE}"', "").replace("\u00a0", "&#160;")
        if (element.text or "").strip() or tag == "rect":
            rows.setdefault(row, []).append(text)
    return [_RowState(row, "".join(elements)) for row, elements in rows.items()]


def _number(element: ElementTree.Element, attribute: str) -> float:
    return float(element.get(attribute, "0"))


def _group(state: _RowState, numbers: Sequence[int], starts: Sequence[float]) -> str:
    """The elements of a row, visible while one of these frames is shown.

    Frames 1, 2 and 4 of five, one second each: from .2 to .6 and from .8 to 1 of the
    recording, so the values at 0, .2, .6, .8 are hidden, visible, hidden, visible.
    """
    n_frames = len(starts) - 1
    if len(numbers) == n_frames:
        return f"<g>{state.elements}</g>"
    shown = set(numbers)
    values: list[str] = []
    times: list[str] = []
    for number in range(n_frames):
        value = "visible" if number in shown else "hidden"
        if not values or values[-1] != value:
            values.append(value)
            times.append(f"{starts[number] / starts[-1]:.5g}")
    still = "visible" if n_frames - 1 in shown else "hidden"
    animation = (
        f'<animate attributeName="visibility" values="{";".join(values)}" '
        f'keyTimes="{";".join(times)}" dur="{starts[-1]:.2f}s" calcMode="discrete" '
        'repeatCount="indefinite"/>'
    )
    return f'<g visibility="{still}">{animation}{state.elements}</g>'


def _fill_in(svg: str, name: str, styles: dict[str, str], groups: Sequence[str]) -> str:
    """The frame of a picture, with the recording's styles and rows in it."""
    first_rule = _STYLE_RULE.search(svg)
    if first_rule is None:
        raise ValueError("not a picture of a terminal: it has no styles")
    old_name = first_rule["name"].rpartition("-r")[0]
    before, _, after = svg.partition("    </style>")
    before = _STYLE_RULE.sub("", before).rstrip()
    rules = [f".{own_class} {{ {style} }}" for style, own_class in styles.items()]
    svg = "\n".join([before, *rules, f"    </style>{after}"])
    svg = re.sub(rf"\b{re.escape(old_name)}-", f"{name}-", svg)
    # The window around the terminal stays; the terminal's own two groups are replaced.
    terminal = svg.rindex("<g ", 0, svg.index(f'<g class="{name}-matrix">'))
    opening = svg[terminal : svg.index(">", terminal) + 1]
    rows = "\n".join(groups)
    return (
        f"{svg[:terminal]}{opening}\n"
        f'    <g class="{name}-matrix">\n{rows}\n    </g>\n    </g>\n</svg>\n'
    )
