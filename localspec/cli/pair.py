"""`localspec pair`: list, suggest and check pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click
from msgspec.structs import replace

from localspec import launch
from localspec.cli import global_options, options, pull, shell_completion
from localspec.cli.global_options import FiniteRange, flag, number_option, text_option
from localspec.cli.report_printer import echo_columns, echo_line
from localspec.cli.terminal import echo, echo_json, notify
from localspec.errors import UsageError
from localspec.fit import machine_profile, suggestion_groups, suggestions
from localspec.fit.machine_profile import MachineProfile, SimulatedHardware
from localspec.fit.suggestions import (
    PairSuggestion,
    SuggestionCriteria,
    suggest_with_projectors,
)
from localspec.machine import remote_devices
from localspec.models import catalog, model_lookup, pull_plan
from localspec.models.catalog import CatalogPair
from localspec.models.catalog_entries import USE_CASES, PairStatus
from localspec.models.hub.cancellation import CancelToken
from localspec.models.hub.client import HubClient
from localspec.models.local_files import inventory
from localspec.models.model_lookup import ModelRequest, ResolvedModel
from localspec.models.pull_plan import PlannedPair, PullPlanner
from localspec.report import advice as advice_report
from localspec.report.compatibility import format_pair_verdict, match_to_json
from localspec.report.lines import Line
from localspec.units import gb, gib

_STATUS_LABELS: dict[PairStatus, str] = {
    "verified": "✓",
    "reported": "reported",  # By others: `pair suggest MODEL` says who.
    "untested": "",
}


@click.group("pair")
def command() -> None:
    """Find pairs: a target model, and a draft that makes it faster."""


@command.command("suggest")
@click.argument("ref", required=False, shell_complete=shell_completion.complete_model)
@global_options.simulated_hardware
@click.option("--use", type=click.Choice(USE_CASES), help="Prefer pairs for this use.")
@number_option("--ctx", "Context size in tokens.  [default: what fits]", 1)
@flag("--sees", about="Only models that see pictures.")
@flag("--all", "everything", about="List all, not only the first of each group.")
@global_options.JSON
def _suggest(
    ref: str | None,
    use: str | None,
    ctx: int | None,
    sees: bool,
    everything: bool,
    as_json: bool,
    **hardware: Any,
) -> None:
    """Advise what to run on this computer; with REF, which draft for that model.

    The advice counts the whole memory, not what is free at the moment. The pairs are
    loaded with the settings of config.toml. The network is not used, except for other
    computers that these settings name.
    """
    criteria = replace(launch.saved_criteria(use, ctx), sees=sees)
    hosts = criteria.wishes.load.target_settings.remote_hosts
    remote = remote_devices.find_devices(hosts, options.print_skipped)
    machine = options.simulate_machine(SimulatedHardware(**hardware))
    machine = machine_profile.with_remote(machine, remote)
    found = suggest_with_projectors(machine, criteria, ref)
    if as_json:
        echo_json(_suggestions_to_json(found, machine, criteria))
        return

    echo(f"For {_describe_device(machine)}:", err=True)
    n_hidden = 0
    if ref is None:
        advised = suggestion_groups.group_suggestions(found, machine, criteria)
        best = advised.best.suggestion if advised.best else None
        lines = advice_report.format_advice(advised, is_whole=everything)
        if not everything:
            n_hidden = advice_report.count_hidden(advised)
    else:
        instead = None
        best = found[0] if found else None
        if best is None or not best.verdict.can_load or best.is_too_slow:
            first = suggestion_groups.advise(machine, criteria).best
            instead = first.suggestion if first else None
        lines = advice_report.format_drafts(found, instead)
        best = instead or best
    for line in lines:
        echo_line(line)
    if n_hidden:
        echo(f"{n_hidden} more with --all", err=True)
    if best is not None and best.verdict.can_load:
        echo(f"Download one: localspec pull {best.pair.name}", err=True)
    else:
        echo("No pair fits.", err=True)


def _describe_device(machine: MachineProfile) -> str:
    """What the advice is for, with its memory: `RTX 3090, 24 GB`."""
    device = machine.devices[0] if machine.devices else machine.cpu
    name = device.description or device.name
    if not machine.devices and device.simulated:
        name = f"a computer without a GPU ({name})"
    elif not machine.devices:
        name = f"this computer without a GPU ({name})"
    if len(machine.devices) > 1:
        name = f"{len(machine.devices)} GPUs, the first {name}"
    is_named = device.simulated and bool(machine.devices)
    if device.total is None or is_named:
        return name
    return f"{name}, {gib(device.total)}"


def _suggestions_to_json(
    found: Sequence[PairSuggestion],
    machine: MachineProfile,
    criteria: SuggestionCriteria,
) -> dict[str, object]:
    device = machine.devices[0] if machine.devices else machine.cpu
    advised = suggestion_groups.group_suggestions(found, machine, criteria)
    by_id = {each.suggestion.pair.id: each for each in advised.pairs}
    pairs = []
    for suggestion in found:
        document = _suggestion_to_json(suggestion)
        each = by_id.get(suggestion.pair.id)
        document["group"] = each.group if each else None
        document["reason"] = each.reason if each else None
        pairs.append(document)
    return {
        "memory": device.free or 0,
        "gpu": bool(machine.devices),
        "use": criteria.use,
        "pairs": pairs,
    }


@command.command("check")
@click.argument("target", shell_complete=shell_completion.complete_model_or_pair)
@click.argument(
    "draft",
    required=False,
    callback=options.single_drafts("check one at a time."),
    shell_complete=shell_completion.complete_model,
)
@global_options.JSON
def _check(target: str, draft: str | None, as_json: bool) -> int:
    """Check whether DRAFT is compatible with TARGET.

    Reads only the headers of the files, here or on the hub. Without DRAFT it is that of
    the pair TARGET, or the one that `pair suggest` puts first for the model TARGET.
    Exit code 5 if the models are incompatible.
    """
    request = model_lookup.resolve(target)
    target_model = request.target
    if draft:
        draft_request = model_lookup.resolve(draft)
        draft_model = draft_request.draft or draft_request.target
    else:
        draft_model = find_draft(request, machine_profile.detect())

    def check(stop: CancelToken) -> PlannedPair | None:
        planner = PullPlanner(HubClient(on_wait=notify), stop, refresh=False)
        planned_target = planner.plan_model(target_model)
        planned_draft = planner.plan_model(draft_model)
        return pull_plan.check_pair(planned_target, planned_draft)

    match = pull.run_cancellable(check)
    if match is None:
        what = "The header of a model could not be read."
        raise UsageError(what, "Go online, or pull both models first.")
    if as_json:
        echo_json(match_to_json(match))
    else:
        for line in format_pair_verdict(match):
            echo_line(line)
    return 0 if match.compatibility.is_compatible else 5


def find_draft(request: ModelRequest, machine: MachineProfile) -> ResolvedModel:
    """The draft of a pair, or that which suits a model best on this machine.

    The target is its own draft if it has an MTP layer.  Raises UsageError without one.
    """
    if request.draft is not None:
        return request.draft
    pair = request.pair
    model = request.target.catalog_model
    if pair is None and model is not None:
        found = suggestions.best_pair(
            model, machine, launch.saved_criteria(), searches=True
        )
        pair = found.pair if found else None
    if pair is not None and pair.draft is not None:
        return model_lookup.from_catalog(pair.draft)
    if pair is not None and pair.draft_kind == "mtp":
        return request.target
    name = request.target.name
    raise UsageError(
        f"No draft is known to make {name} faster here.",
        f"Name one: localspec pair check {name} DRAFT",
    )


@command.command("test")
@click.argument("target", shell_complete=shell_completion.complete_model)
@click.argument(
    "drafts",
    nargs=-1,
    required=True,
    callback=options.single_drafts(
        "each is judged by itself: put a space between them."
    ),
    shell_complete=shell_completion.complete_model,
)
@text_option("--workload", "NAME", "Answer only this; repeatable.", multiple=True)
@click.option(
    "--file",
    type=click.File(encoding="utf-8"),
    help="Answer the prompts in FILE, one a line.",
)
@flag("--chats", about="Take the first answers of your kept chats.")
@number_option("--tokens", "Tokens of the answers together.", 16, default=1000)
@number_option(
    "--temperature", "Sampling temperature.", type=FiniteRange(0, 2), default=0.0
)
@options.QUIET
@options.MACHINE
@global_options.JSON
def _test(target: str, drafts: tuple[str, ...], **given: Any) -> int:
    """Judge DRAFTS for TARGET in seconds: the speed of each, and its draft length.

    TARGET answers prompts once, or has answered your kept chats. Each draft reads these
    answers, which tells how many of its tokens would have been accepted, for every
    draft length. A draft is a model, a head, or `lookup` for prompt lookup.
    """
    # Late: they import the launcher.
    from localspec.cli import measuring, pair_test  # noqa: PLC0415
    from localspec.report import bench  # noqa: PLC0415

    arguments = options.read_arguments(pair_test.DraftTestArguments, given)
    test = pair_test.DraftTest(target, drafts, arguments)

    def format_report() -> Iterable[Line]:
        return bench.format_judgements(test.judgements, test.other_load)

    is_done = measuring.print_measurement(
        test,
        test.run(),
        format_report,
        quiet=arguments.quiet,
        as_json=arguments.as_json,
    )
    return 0 if is_done else 130


@command.command("list")
@global_options.JSON
def _list(as_json: bool) -> None:
    """List all pairs of the catalogue; ✓ marks those that we ran ourselves."""
    pairs = catalog.load().pairs.values()
    ready = {pair.id for pair in model_lookup.ready_pairs(inventory.list_models())}
    if as_json:
        rows = [_pair_to_json(pair, is_ready=pair.id in ready) for pair in pairs]
        echo_json({"pairs": rows})
        return
    table = [("PAIR", "SIZE", "DRAFT", "", "")]
    for pair in pairs:
        size = gb(pair.size) if pair.size else "–"
        note = "installed" if pair.id in ready else ""
        status = _STATUS_LABELS[pair.status]
        table.append((pair.name, size, pair.draft_kind, status, note))
    echo_columns(table)


def _pair_to_json(pair: CatalogPair, *, is_ready: bool) -> dict[str, object]:
    draft = pair.draft.id if pair.draft else None
    return {
        "id": pair.id,
        "title": pair.title,
        "target": pair.target.id,
        "draft": draft,
        "kind": pair.draft_kind,
        "bytes": pair.size,
        "use": list(pair.use),
        "sees": bool(pair.target.sees),
        "hears": pair.target.hears,
        "status": pair.status,
        "source": pair.source or None,
        "here": is_ready,
    }


def _suggestion_to_json(suggestion: PairSuggestion) -> dict[str, object]:
    pair = suggestion.pair
    draft = pair.draft.id if pair.draft else None
    speculative = None
    plain = None
    if suggestion.plan is not None:
        speculative = suggestion.plan.speed.speculative
        plain = suggestion.plan.speed.plain
    return {
        "id": pair.id,
        "name": pair.name,
        "target": pair.target.id,
        "draft": draft,
        "sees": bool(pair.target.sees),
        "hears": pair.target.hears,
        "bytes": suggestion.bytes,
        "needed": suggestion.needed_bytes,
        "verdict": suggestion.verdict,
        "to_free": suggestion.bytes_to_free,
        "speed": speculative,
        "plain": plain,
        "reasons": list(suggestion.reasons),
    }
