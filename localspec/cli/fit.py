"""`localspec fit`: estimate whether a pair fits a computer, and how fast it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins
from msgspec.structs import replace

from localspec import launch
from localspec.cli import global_options, options, shell_completion
from localspec.cli.global_options import number_option
from localspec.cli.terminal import echo, echo_json, notify
from localspec.fit import machine_profile, suggestions
from localspec.fit.advisor import (
    MemorySaving,
    SettingsAdvice,
    SettingsAdvisor,
    with_settings,
)
from localspec.fit.pair_shapes import PairShapes, resolve_shapes
from localspec.fit.speed import UseCase
from localspec.fit.suggestions import SuggestionCriteria
from localspec.fit.verdict import DeviceFit, FitReport, confirm_fit, is_in_system_memory
from localspec.launch import ResolvedPair
from localspec.launch.start import describe_transfer
from localspec.machine import published, remote_devices
from localspec.models import draft_heads, model_lookup
from localspec.models.catalog_entries import USE_CASES
from localspec.models.model_lookup import ModelRequest, ResolvedModel
from localspec.symbols import MEMORY_PARTS
from localspec.units import gib, token_rate_range


@click.command("fit")
@click.argument("ref", shell_complete=shell_completion.complete_model_or_pair)
@click.option(
    "--draft",
    metavar="REF|none",
    callback=options.single_drafts("a pair has one."),
    shell_complete=shell_completion.complete_model,
    help="Draft model.",
)
@number_option("--ctx", "Context size in tokens.  [default: what fits]", 1)
@click.option(
    "--kv",
    type=click.Choice(["f16", "q8_0/f16", "q8_0", "q4_0"]),
    help="Type of the KV cache.  [default: what fits]",
)
@global_options.GPU
@global_options.VRAM
@click.option(
    "--use",
    type=click.Choice(USE_CASES),
    default="chat",
    show_default=True,
    help="Kind of text that the speed is estimated for.",
)
@options.OFFLOAD
@options.EXTRA_LOAD
@global_options.ENDPOINT
@global_options.JSON
def command(ref: str, as_json: bool, **given: Any) -> int:
    """Estimate whether the model or pair REF fits this computer, without downloading
    it.

    llama.cpp itself counts the memory, from the headers of the files, also on a GPU
    that is not here; without them it is estimated. Exit code 4 if REF does not fit.

    \b
    localspec fit qwen3-8b+qwen3-0.6b
    localspec fit llama-3.3-70b --draft llama-3.2-1b --gpu "RTX 3090"
    localspec fit big.gguf --draft small.gguf --ctx 32768
    """
    machine = machine_profile.simulate(given["gpu"], given["vram"])
    wishes = options.build_load_request(
        ResolvedPair(Path(), None), given | {"spec": "auto"}
    )
    criteria = SuggestionCriteria(given["use"], wishes)
    request = suggestions.resolve_best_file(ref, lambda: machine, criteria)
    subject, default_draft = _load_subject(request, given["draft"], given["endpoint"])
    subject.check_head()
    on_unusable = options.print_skipped if wishes.can_skip_remote else None
    hosts = wishes.load.target_settings.remote_hosts
    remote = remote_devices.find_devices(hosts, on_unusable)
    machine = machine_profile.with_remote(machine, remote)
    advisor = SettingsAdvisor(*subject.shapes, machine, UseCase(given["use"]))
    draft = subject.draft.reference if subject.draft else None
    load = replace(wishes.load, target=subject.target.reference, draft=draft)
    load = with_settings(load, remote_hosts=machine.remote_hosts)
    advice = advisor.advise(replace(wishes, load=load, default_draft=default_draft))
    if advice.skipped_draft:
        subject = PairShapes(subject.target)
    if not advice.fit.load.target_settings.remote_hosts:
        machine = machine_profile.without_remote(machine)
    advice = replace(advice, fit=(fit := confirm_fit(advice.fit, subject, machine)))
    _show(advice, advisor.list_memory_savings(fit), subject, as_json=as_json)
    model = request.target.catalog_model
    if not as_json and model and (reason := suggestions.explain_type(model, machine)):
        echo(f"{reason}.")
    if not as_json and (transfer := describe_transfer(fit)):
        echo(transfer)
    return 4 if fit.verdict == "no" else 0


def _show(
    advice: SettingsAdvice,
    savings: Sequence[MemorySaving],
    subject: PairShapes,
    *,
    as_json: bool,
) -> None:
    devices = [each.device for each in advice.fit.device_fits]
    kind = (subject.draft.shape.head_kind or "model") if subject.draft else ""
    reported = published.find_nearest(subject.target.name, devices, kind)
    if as_json:
        document = fit_to_json(advice, savings, subject)
        echo_json(document | {"published": to_builtins(reported) if reported else None})
        return
    for line in format_fit(advice, savings, subject, plain=global_options.is_plain()):
        echo(line)
    if reported:
        echo(f"Others report: {reported.describe()}.")


def _load_subject(
    request: ModelRequest, draft: str | None, endpoint: str | None
) -> tuple[PairShapes, str]:
    """The pair as `run` takes it, and what its draft is if nobody named it."""
    is_open, default = (
        not draft and request.draft is None and not request.is_lookup_pair,
        "",
    )
    if draft:
        named = None if draft == "none" else model_lookup.resolve(draft)
        request = replace(
            request, draft=(named.draft or named.target) if named else None
        )
    elif is_open and (path := request.target.find_path()):
        model = None if request.pair else request.target.catalog_model
        pair = launch.with_default_draft(ResolvedPair(path, None), model)
        found = ResolvedModel(pair.draft.name, pair.draft) if pair.draft else None
        request, default = replace(request, draft=found), pair.default_draft
    if all(model.find_path() for model in request.models):
        subject = resolve_shapes(request, None)
    else:
        from localspec.cli.pull import run_cancellable  # noqa: PLC0415  late: slow to import
        from localspec.models.hub.client import HubClient  # noqa: PLC0415
        from localspec.models.pull_plan import PullPlanner  # noqa: PLC0415

        hub = HubClient(endpoint, on_wait=notify)
        subject = run_cancellable(
            lambda stop: resolve_shapes(request, PullPlanner(hub, stop, refresh=False))
        )
        if is_open:
            default = draft_heads.describe_found_head("mtp", "")
            subject = subject.add_own_head()
    return subject, "" if request.pair else default


_BAR_WIDTH = 48
_VERDICT_TEXT = {
    "fits": "fits",
    "tight": "tight",
    "no": "does not fit",
    "unknown": "free memory is unknown",
}
_SOURCE_TEXT = {
    "file": "the installed files",
    "hub": "the file headers on the hub",
    "shape": "the model shapes in the catalogue",
}
_MAX_SAVINGS = 6
_MIN_SPEEDUP_SHOWN = 1.05


def format_fit(
    advice: SettingsAdvice,
    savings: Sequence[MemorySaving],
    subject: PairShapes,
    *,
    plain: bool = False,
) -> Iterator[str]:
    """The lines of the report; `plain`: without bars, for a screen reader."""
    fit = advice.fit
    yield subject.name
    for device_fit in (*fit.device_fits, fit.host):
        if device_fit.needed:
            yield from _format_device(device_fit, plain=plain)
    yield from _format_speed(fit)
    kind = subject.draft.shape.head_kind if subject.draft else ""
    if fit.load.draft and (head := draft_heads.HEAD_DESCRIPTIONS.get(kind)):
        yield f"Draft: {head}."
    if advice.skipped_draft:
        yield advice.skipped_draft
    yield f"With {advice.explanation}."
    yield f"Memory estimate: {_format_method(fit, subject)}."
    if fit.verdict in ("tight", "no") and savings:
        yield "To save memory:"
        for saving in savings[:_MAX_SAVINGS]:
            verdict = _VERDICT_TEXT[saving.fit.verdict]
            line = (
                f"  {saving.change:36} saves {gib(saving.saved_bytes):>9}   {verdict}"
            )
            speed = saving.fit.speed.speculative
            rate = f"; {token_rate_range(speed)}" if speed else ""
            yield f"{line}{rate}  {saving.flags}".rstrip()
    if fit.verdict == "no":
        yield "Find a smaller model: localspec pair suggest"


def _format_device(device_fit: DeviceFit, *, plain: bool) -> Iterator[str]:
    device = device_fit.device
    name = device.description or device.name
    total = device.total or device.free or device_fit.needed
    free = device.free if device.free is not None else total
    yield ""
    reserve = f"{gib(device_fit.reserve)} reserved for other programs"
    if is_in_system_memory(device) and device.kind != "cpu":
        reserve = "shared with this computer"
    yield f"{name}: {gib(free)} free of {gib(total)}, {reserve}"
    if plain:
        parts = device_fit.memory_parts.items()
        yield "  " + ", ".join(f"{name} {gib(size)}" for name, size in parts if size)
    else:
        yield f"  {memory_bar(device_fit, _BAR_WIDTH)}"
        cells = zip(MEMORY_PARTS, device_fit.memory_parts.items(), strict=False)
        yield "  " + "  ".join(
            f"{cell} {name} {gib(size)}" for cell, (name, size) in cells if size
        )
    verdict = _VERDICT_TEXT[device_fit.verdict]
    shared, spare = " with the GPU's" if device_fit.sharing else "", device_fit.headroom
    left = "" if spare is None else f", {gib(spare)} to spare"
    if spare is not None and spare < 0:
        is_tight = device_fit.verdict == "tight"
        left = (
            f", uses {gib(-spare)} of the reserve"
            if is_tight
            else f", {gib(-spare)} short"
        )
    yield f"  {verdict}: needs {gib(device_fit.needed)}{shared}{left}"


def memory_bar(device_fit: DeviceFit, width: int) -> str:
    """A bar of the device's memory, with a symbol for each part."""
    free = max(device_fit.device.free or device_fit.needed, 1)
    bar, used = "", 0
    for size, character in zip(
        device_fit.memory_parts.values(), MEMORY_PARTS, strict=False
    ):
        used += size
        end = min(width, round(width * used / free))
        if size and end <= len(bar) < width:  # every part gets at least one cell
            end = len(bar) + 1
        bar += character * (end - len(bar))
    return f"[{bar:·<{width}}]"


def _format_speed(fit: FitReport) -> Iterator[str]:
    speed = fit.speed
    yield ""
    if fit.verdict == "no":
        yield "Speed: none, because it does not fit."
        return
    if speed.plain is None:
        yield f"Speed: unknown, {speed.explanation}."
        return
    yield f"Plain               {token_rate_range(speed.plain)}"
    if speed.speculative is not None:
        has_draft = fit.memory_estimate.draft is not None
        label = "With speculation" if has_draft else "With prompt lookup"
        yield f"{label:18}  {token_rate_range(speed.speculative)}{_format_speedups(fit)}"
    yield f"Speed estimate: {speed.explanation}."


def _format_speedups(fit: FitReport) -> str:
    speedups = [
        f"{estimate.speedup[0]:.1f}–{estimate.speedup[1]:.1f}× for {name}"
        for name, estimate in fit.speed.by_workload.items()
        if name in ("code", "chat", "writing")
        and estimate.speedup[1] >= _MIN_SPEEDUP_SHOWN
    ]
    return f"   ({', '.join(speedups)})" if speedups else "   (not faster here)"


def _format_method(fit: FitReport, subject: PairShapes) -> str:
    parts = [subject.target, *filter(None, [subject.draft])]
    sources = " and ".join(dict.fromkeys(_SOURCE_TEXT[part.source] for part in parts))
    memory = fit.memory_estimate
    counted = (
        "counted by llama.cpp"
        if memory.method == "exact"
        else "calculated by localspec"
    )
    error = f", ± {gib(fit.error)}" if fit.error else ""
    note = f" ({memory.note})" if memory.note else ""
    return f"{counted} from {sources}{error}{note}"


def fit_to_json(
    advice: SettingsAdvice, savings: Sequence[MemorySaving], subject: PairShapes
) -> dict[str, Any]:
    """The document of --json; sizes in bytes, speeds in tokens per second."""
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
        "devices": [_device_to_json(device_fit) for device_fit in fit.device_fits],
        "host": _device_to_json(fit.host),
        "method": fit.memory_estimate.method,
        "error": fit.error,
        "speed": {
            "plain": fit.speed.plain,
            "speculative": fit.speed.speculative,
            "calibrated": fit.speed.calibrated,
            "why": fit.speed.explanation,
        },
        "advice": [
            {
                "change": saving.change,
                "flags": saving.flags,
                "saves": saving.saved_bytes,
                "costs": saving.drawback,
                "speed": saving.fit.speed.speculative,
                "fits": saving.fit.verdict != "no",
            }
            for saving in savings
        ],
    }


def _device_to_json(device_fit: DeviceFit) -> dict[str, Any]:
    return {
        "name": device_fit.device.name,
        "description": device_fit.device.description,
        "free": device_fit.device.free,
        "total_memory": device_fit.device.total,
        "reserve": device_fit.reserve,
        "target": to_builtins(device_fit.target),
        "draft": to_builtins(device_fit.draft),
        "output": device_fit.output,
        "overhead": device_fit.overhead,
        "total": device_fit.total,
        "shared": device_fit.needed - device_fit.total,
        "verdict": device_fit.verdict,
    }
