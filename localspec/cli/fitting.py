"""What `fit` says, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from localspec.clean import clean
from localspec.fit import reason
from localspec.fit.advisor import Advice, Option
from localspec.fit.report import Fit, Room
from localspec.fit.subject import Subject
from localspec.machine.ledger import Bytes
from localspec.models import heads
from localspec.units import gib, rate

_WIDE = 48
_VERDICTS = {
    "fits": "fits",
    "tight": "tight",
    "no": "does not fit",
    "unknown": "nobody knows what is free",
}
_SOURCES = {
    "file": "files that are here",
    "hub": "the hub's files, of which only headers were read",
    "shape": "the catalogue's numbers",
}
_SHORT = {"tight": "of what is left to others", "no": "short", "unknown": "short", "fits": ""}
_MOST_OPTIONS = 6
_GAIN = 1.05
"""A smaller one is not worth telling."""


def lines(
    advice: Advice,
    options: Sequence[Option],
    subject: Subject,
    unicode: bool = True,
    *,
    plain: bool = False,
) -> Iterator[str]:
    """For a person; `plain`: to be read aloud, without bars."""
    fit = advice.fit
    yield clean(subject.name, multiline=False)
    for room in (*fit.rooms, fit.host):
        if room.total:
            yield from _room(room, unicode, plain=plain)
    yield from _speed(fit)
    if fit.load.draft and (head := _head(subject)):
        yield f"Draft: {head}."
    yield f"With {advice.why}."
    yield f"Memory: {_method(fit, subject)}."
    if fit.verdict in ("tight", "no") and options:
        yield "What saves memory:"
        for option in options[:_MOST_OPTIONS]:
            verdict = _VERDICTS[option.fit.verdict]
            words = f"  {option.change:36} saves {gib(option.saves):>9}   {verdict}"
            yield f"{words}; {rate(option.fit.speed.speculative)}  {option.flags}".rstrip()
    if fit.verdict == "no":
        yield "A smaller model: localspec pair suggest"


def _head(subject: Subject) -> str:
    if subject.draft is None:
        return ""
    return reason.of_head(heads.drafting(subject.target.header, subject.draft.header))


def _room(room: Room, unicode: bool, *, plain: bool) -> Iterator[str]:
    device = room.device
    name = clean(device.description or device.name, multiline=False)
    total = device.total or device.free or room.total
    free = device.free if device.free is not None else total
    yield ""
    yield f"{name}: {gib(free)} free of {gib(total)}, {gib(room.reserve)} left to others"
    if plain:
        yield "  " + ", ".join(f"{name} {gib(size)}" for name, size in _parts(room) if size)
    else:
        yield f"  {bar(room, _WIDE, unicode)}"
        yield f"  {_legend(room, unicode)}"
    spare, short = room.spare, _SHORT[room.verdict]
    left = (
        ""
        if spare is None
        else (f", {gib(spare)} to spare" if spare >= 0 else f", {gib(-spare)} {short}")
    )
    yield f"  {_VERDICTS[room.verdict]}: takes {gib(room.total)}{left}"


_SIGNS = {True: "█▓▒░·", False: "#=+-."}


def bar(room: Room, wide: int, unicode: bool = True) -> str:
    """Target, draft, keys and values, work, and what is free, each by its own sign."""
    free = max(room.device.free or room.total, 1)
    signs, shown = _SIGNS[unicode], ""
    filled = 0
    for (_, size), sign in zip(_parts(room), signs, strict=False):
        filled += size
        cells = min(wide, round(wide * filled / free))
        if size and cells <= len(shown) < wide:  # however small, it is there
            cells = len(shown) + 1
        shown += sign * (cells - len(shown))
    return f"[{shown}{signs[-1] * (wide - len(shown))}]"


def _parts(room: Room) -> tuple[tuple[str, int], ...]:
    work = room.target.compute + room.draft.compute + room.output + room.overhead
    return (
        ("target", room.target.weights),
        ("draft", room.draft.weights),
        ("KV", room.target.kv + room.draft.kv),
        ("work", work),
    )


def _legend(room: Room, unicode: bool) -> str:
    signs = _SIGNS[unicode]
    shown = zip(_parts(room), signs, strict=False)
    return "   ".join(f"{sign} {name} {gib(size)}" for (name, size), sign in shown if size)


def _speed(fit: Fit) -> Iterator[str]:
    speed = fit.speed
    yield ""
    if speed.plain is None:
        yield f"Speed: unknown, {speed.why}."
        return
    yield f"Without draft  {rate(speed.plain)}"
    if speed.speculative is not None:
        what = "With draft   " if fit.load.draft else "With copying "
        yield f"{what}  {rate(speed.speculative)}{_gains(fit)}"
    yield f"By {clean(speed.why, multiline=False)}."


def _gains(fit: Fit) -> str:
    """What the draft does for some kinds of text."""
    shown = [
        f"{one.speedup[0]:.1f}–{one.speedup[1]:.1f}× for {name}"
        for name, one in fit.speed.by_workload.items()
        if name in ("code", "chat", "writing") and one.speedup[1] >= _GAIN
    ]
    return f"   ({', '.join(shown)})" if shown else "   (no faster here)"


def _method(fit: Fit, subject: Subject) -> str:
    parts = [subject.target, *filter(None, [subject.draft])]
    sources = " and ".join(dict.fromkeys(_SOURCES[part.source] for part in parts))
    found = fit.projection
    how = "llama.cpp's own count" if found.method == "exact" else "our estimate"
    error = f", ± {gib(found.error)}" if found.error else ""
    note = f" ({clean(found.note, multiline=False)})" if found.note else ""
    return f"{how}, by {sources}{error}{note}"


def document(advice: Advice, options: Sequence[Option], subject: Subject) -> dict[str, Any]:
    """As `--json` has it: bytes, tokens a second."""
    fit = advice.fit
    return {
        "target": subject.target.name,
        "draft": subject.draft.name if subject.draft and fit.load.draft else None,
        "source": subject.target.source,
        "verdict": fit.verdict,
        "why": advice.why,
        "settings": {
            "ctx": fit.load.target_settings.n_ctx,
            "kv": fit.load.target_settings.kv_type,
            "gpu_layers": fit.load.target_settings.n_gpu_layers,
            "draft_gpu_layers": fit.load.draft_settings.n_gpu_layers,
            "cpu_moe": fit.load.target_settings.cpu_moe,
        },
        "devices": [_device(room) for room in fit.rooms],
        "host": _device(fit.host),
        "method": fit.projection.method,
        "error": fit.projection.error,
        "speed": {
            "plain": fit.speed.plain,
            "speculative": fit.speed.speculative,
            "calibrated": fit.speed.calibrated,
            "why": fit.speed.why,
        },
        "advice": [
            {
                "change": option.change,
                "flags": option.flags,
                "saves": option.saves,
                "costs": option.costs,
                "speed": option.fit.speed.speculative,
                "fits": option.fit.verdict != "no",
            }
            for option in options
        ],
    }


def _device(room: Room) -> dict[str, Any]:
    return {
        "name": room.device.name,
        "description": room.device.description,
        "free": room.device.free,
        "total_memory": room.device.total,
        "reserve": room.reserve,
        "target": _bytes(room.target),
        "draft": _bytes(room.draft),
        "output": room.output,
        "overhead": room.overhead,
        "total": room.total,
        "verdict": room.verdict,
    }


def _bytes(part: Bytes) -> dict[str, int]:
    return {"weights": part.weights, "kv": part.kv, "compute": part.compute}
