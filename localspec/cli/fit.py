"""`localspec fit`: whether a pair fits here or on another card, how fast, and what to change."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import click

from localspec.cli import completion
from localspec.cli import global_options as where
from localspec.fit import advisor, machine_profile
from localspec.fit.advisor import MemorySaving, SettingsAdvice, SettingsAdvisor, SettingsRequest
from localspec.fit.exact_fit import confirm_fit
from localspec.fit.pair_headers import PairHeaders, resolve_headers
from localspec.fit.report import DeviceFit, FitReport, MachineProfile
from localspec.fit.speed_estimate import UseCase
from localspec.machine.memory_by_device import DeviceMemory
from localspec.machine.probe import MemoryProbe
from localspec.models import draft_heads, resolver
from localspec.models.catalog.entries import USE_CASES
from localspec.protocol.wire import LoadCommand
from localspec.sanitize import sanitize
from localspec.units import gib, token_rate_range


@click.command("fit")
@click.argument("ref", shell_complete=completion.complete_model_or_pair)
@click.option("--draft", metavar="REF|none", shell_complete=completion.complete_model)
@click.option("--ctx", type=click.IntRange(1), help="Context in tokens.  [default: what fits]")
@click.option("--kv", type=click.Choice(["f16", "q8_0", "q4_0"]), help="[default: what fits]")
@click.option("--gpu", metavar="NAME", help='Another card: "RTX 4060".')
@click.option("--vram", type=click.FloatRange(0, 10_000, min_open=True), metavar="GIB")
@click.option("--use", type=click.Choice(USE_CASES), default="chat", show_default=True)
@where.ENDPOINT
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(ref: str, as_json: bool, **given: Any) -> int:
    """Whether REF, a model or a pair, fits this computer, before anything is downloaded.

    Memory is counted by llama.cpp itself, from the files' headers alone.  Ends with 4 where it
    does not fit.

    \b
    localspec fit qwen3-8b+qwen3-0.6b
    localspec fit llama-3.3-70b --draft llama-3.2-1b --gpu "RTX 3090"
    localspec fit big.gguf --draft small.gguf --ctx 32768
    """
    subject = _load_subject(ref, given["draft"], given["endpoint"])
    if not given["draft"]:
        subject = subject.add_found_head()
    subject.check_head()
    place = _machine_profile(given["gpu"], given["vram"])
    use = UseCase(given["use"])
    advisor = SettingsAdvisor(*subject.headers, place, use)
    load = LoadCommand(subject.target.name, subject.draft.name if subject.draft else None)
    advice = advisor.advise(SettingsRequest(load, given["ctx"], given["kv"]))
    with MemoryProbe() as probe:
        sure = confirm_fit(advice.fit, subject, place, probe, use)
    advice = replace(advice, fit=sure)
    options = advisor.list_memory_savings(sure)
    if as_json:
        click.echo(json.dumps({"schema": 1} | fit_to_json(advice, options, subject)))
    else:
        unicode, plain = sys.stdout.encoding.lower() == "utf-8", where.is_plain()
        for line in format_fit(advice, options, subject, unicode, plain=plain):
            click.echo(line)
    return 4 if advice.fit.verdict == "no" else 0


def _load_subject(ref: str, draft: str | None, endpoint: str | None) -> PairHeaders:
    asked = resolver.resolve(ref)
    second = resolver.resolve(draft) if draft and draft != "none" else None
    if draft == "none":
        asked = replace(asked, draft=None)
    named = (second.draft or second.target) if second else None
    models = [asked.target, named or asked.draft]
    if all(one is None or one.path or one.find_local() for one in models):
        return resolve_headers(asked, named, None)
    from localspec.cli.pull import run_cancellable  # noqa: PLC0415  late: the hub's library is slow
    from localspec.models.hub.client import HubClient  # noqa: PLC0415
    from localspec.models.pull_plan import PullPlanner  # noqa: PLC0415

    return run_cancellable(
        lambda stop: resolve_headers(
            asked, named, PullPlanner(HubClient(endpoint), stop, refresh=False)
        )
    )


def _machine_profile(gpu: str | None, vram: float | None) -> MachineProfile:
    if gpu:
        return machine_profile.with_gpu(gpu, vram)
    return machine_profile.with_vram(vram) if vram else machine_profile.detect()


# --- What `fit` says, for people and as JSON.

_BAR_WIDTH = 48
_VERDICT_TEXT = {
    "fits": "fits",
    "tight": "tight",
    "no": "does not fit",
    "unknown": "nobody knows what is free",
}
_SOURCE_TEXT = {
    "file": "files that are here",
    "hub": "the hub's files, of which only headers were read",
    "shape": "the catalogue's numbers",
}
_SHORTFALL_TEXT = {
    "tight": "of what is left to others",
    "no": "short",
    "unknown": "short",
    "fits": "",
}
_MAX_OPTIONS = 6
_MIN_SPEEDUP_SHOWN = 1.05
"""A smaller one is not worth telling."""


def format_fit(
    advice: SettingsAdvice,
    options: Sequence[MemorySaving],
    subject: PairHeaders,
    unicode: bool = True,
    *,
    plain: bool = False,
) -> Iterator[str]:
    """For a person; `plain`: to be read aloud, without bars."""
    fit = advice.fit
    yield sanitize(subject.name, multiline=False)
    for room in (*fit.device_fits, fit.host):
        if room.total:
            yield from _format_device(room, unicode, plain=plain)
    yield from _format_speed(fit)
    if fit.load.draft and (head := _head_reason(subject)):
        yield f"Draft: {head}."
    yield f"With {advice.explanation}."
    yield f"Memory: {_format_method(fit, subject)}."
    if fit.verdict in ("tight", "no") and options:
        yield "What saves memory:"
        for option in options[:_MAX_OPTIONS]:
            verdict = _VERDICT_TEXT[option.fit.verdict]
            words = f"  {option.change:36} saves {gib(option.saved_bytes):>9}   {verdict}"
            yield (
                f"{words}; {token_rate_range(option.fit.speed.speculative)}  {option.flags}"
            ).rstrip()
    if fit.verdict == "no":
        yield "A smaller model: localspec pair suggest"


def _head_reason(subject: PairHeaders) -> str:
    if subject.draft is None:
        return ""
    return advisor.describe_head(
        draft_heads.draft_kind_for_target(subject.target.header, subject.draft.header)
    )


def _format_device(device_fit: DeviceFit, unicode: bool, *, plain: bool) -> Iterator[str]:
    device = device_fit.device
    name = sanitize(device.description or device.name, multiline=False)
    total = device.total or device.free or device_fit.total
    free = device.free if device.free is not None else total
    yield ""
    yield f"{name}: {gib(free)} free of {gib(total)}, {gib(device_fit.reserve)} left to others"
    if plain:
        yield "  " + ", ".join(
            f"{name} {gib(size)}" for name, size in _memory_parts(device_fit) if size
        )
    else:
        yield f"  {memory_bar(device_fit, _BAR_WIDTH, unicode)}"
        yield f"  {_bar_legend(device_fit, unicode)}"
    spare, short = device_fit.headroom, _SHORTFALL_TEXT[device_fit.verdict]
    left = (
        ""
        if spare is None
        else (f", {gib(spare)} to spare" if spare >= 0 else f", {gib(-spare)} {short}")
    )
    yield f"  {_VERDICT_TEXT[device_fit.verdict]}: takes {gib(device_fit.total)}{left}"


_BAR_CELLS = {True: "█▓▒░·", False: "#=+-."}


def memory_bar(device_fit: DeviceFit, width: int, unicode: bool = True) -> str:
    """Target, draft, keys and values, work, and what is free, each by its own sign."""
    free = max(device_fit.device.free or device_fit.total, 1)
    signs, shown = _BAR_CELLS[unicode], ""
    filled = 0
    for (_, size), sign in zip(_memory_parts(device_fit), signs, strict=False):
        filled += size
        cells = min(width, round(width * filled / free))
        if size and cells <= len(shown) < width:  # however small, it is there
            cells = len(shown) + 1
        shown += sign * (cells - len(shown))
    return f"[{shown}{signs[-1] * (width - len(shown))}]"


def _memory_parts(device_fit: DeviceFit) -> tuple[tuple[str, int], ...]:
    work = (
        device_fit.target.compute
        + device_fit.draft.compute
        + device_fit.output
        + device_fit.overhead
    )
    return (
        ("target", device_fit.target.weights),
        ("draft", device_fit.draft.weights),
        ("KV", device_fit.target.kv + device_fit.draft.kv),
        ("work", work),
    )


def _bar_legend(device_fit: DeviceFit, unicode: bool) -> str:
    signs = _BAR_CELLS[unicode]
    shown = zip(_memory_parts(device_fit), signs, strict=False)
    return "   ".join(f"{sign} {name} {gib(size)}" for (name, size), sign in shown if size)


def _format_speed(fit: FitReport) -> Iterator[str]:
    speed = fit.speed
    yield ""
    if speed.plain is None:
        yield f"Speed: unknown, {speed.explanation}."
        return
    yield f"Without draft  {token_rate_range(speed.plain)}"
    if speed.speculative is not None:
        what = "With draft   " if fit.load.draft else "With copying "
        yield f"{what}  {token_rate_range(speed.speculative)}{_format_speedups(fit)}"
    yield f"By {sanitize(speed.explanation, multiline=False)}."


def _format_speedups(fit: FitReport) -> str:
    """What the draft does for some kinds of text."""
    shown = [
        f"{one.speedup[0]:.1f}–{one.speedup[1]:.1f}× for {name}"
        for name, one in fit.speed.by_workload.items()
        if name in ("code", "chat", "writing") and one.speedup[1] >= _MIN_SPEEDUP_SHOWN
    ]
    return f"   ({', '.join(shown)})" if shown else "   (no faster here)"


def _format_method(fit: FitReport, subject: PairHeaders) -> str:
    parts = [subject.target, *filter(None, [subject.draft])]
    sources = " and ".join(dict.fromkeys(_SOURCE_TEXT[part.source] for part in parts))
    found = fit.memory_estimate
    how = "llama.cpp's own count" if found.method == "exact" else "our estimate"
    error = f", ± {gib(found.error)}" if found.error else ""
    note = f" ({sanitize(found.note, multiline=False)})" if found.note else ""
    return f"{how}, by {sources}{error}{note}"


def fit_to_json(
    advice: SettingsAdvice, options: Sequence[MemorySaving], subject: PairHeaders
) -> dict[str, Any]:
    """As `--json` has it: bytes, tokens a second."""
    fit = advice.fit
    return {
        "target": subject.target.name,
        "draft": subject.draft.name if subject.draft and fit.load.draft else None,
        "source": subject.target.source,
        "verdict": fit.verdict,
        "why": advice.explanation,
        "settings": {
            "ctx": fit.load.target_settings.n_ctx,
            "kv": fit.load.target_settings.kv_type,
            "gpu_layers": fit.load.target_settings.n_gpu_layers,
            "draft_gpu_layers": fit.load.draft_settings.n_gpu_layers,
            "cpu_moe": fit.load.target_settings.cpu_moe,
        },
        "devices": [_device_to_json(room) for room in fit.device_fits],
        "host": _device_to_json(fit.host),
        "method": fit.memory_estimate.method,
        "error": fit.memory_estimate.error,
        "speed": {
            "plain": fit.speed.plain,
            "speculative": fit.speed.speculative,
            "calibrated": fit.speed.calibrated,
            "why": fit.speed.explanation,
        },
        "advice": [
            {
                "change": option.change,
                "flags": option.flags,
                "saves": option.saved_bytes,
                "costs": option.drawback,
                "speed": option.fit.speed.speculative,
                "fits": option.fit.verdict != "no",
            }
            for option in options
        ],
    }


def _device_to_json(device_fit: DeviceFit) -> dict[str, Any]:
    return {
        "name": device_fit.device.name,
        "description": device_fit.device.description,
        "free": device_fit.device.free,
        "total_memory": device_fit.device.total,
        "reserve": device_fit.reserve,
        "target": _memory_to_json(device_fit.target),
        "draft": _memory_to_json(device_fit.draft),
        "output": device_fit.output,
        "overhead": device_fit.overhead,
        "total": device_fit.total,
        "verdict": device_fit.verdict,
    }


def _memory_to_json(memory: DeviceMemory) -> dict[str, int]:
    return {"weights": memory.weights, "kv": memory.kv, "compute": memory.compute}
