"""`localspec pair`: list, suggest and check pairs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from localspec import launch
from localspec.cli import global_options, options, pull, shell_completion
from localspec.cli.global_options import FiniteRange, flag, number_option, text_option
from localspec.cli.report_printer import echo_columns, echo_line
from localspec.cli.terminal import echo, echo_json, notify
from localspec.errors import UsageError
from localspec.fit import machine_profile
from localspec.fit.suggestions import PairSuggestion, suggest
from localspec.machine import remote_devices
from localspec.models import catalog, model_lookup, pull_plan
from localspec.models.catalog import CatalogPair
from localspec.models.catalog_entries import USE_CASES
from localspec.models.hub.cancellation import CancelToken
from localspec.models.hub.client import HubClient
from localspec.models.local_files import inventory
from localspec.models.pull_plan import PlannedPair, PullPlanner
from localspec.report.compatibility import format_pair_verdict, match_to_json
from localspec.report.lines import Line
from localspec.units import gb, gib

_MAX_SHOWN = 5


@click.group("pair")
def command() -> None:
    """Find pairs: a target model, and a draft that makes it faster."""


@command.command("suggest")
@click.argument("ref", required=False, shell_complete=shell_completion.complete_model)
@global_options.GPU
@global_options.VRAM
@click.option("--use", type=click.Choice(USE_CASES), help="Prefer pairs for this use.")
@flag("--all", "everything", about=f"List all, not only {_MAX_SHOWN}.")
@global_options.JSON
def _suggest(
    ref: str | None, use: str | None, everything: bool, as_json: bool, **gpu: Any
) -> None:
    """List the pairs that fit, best first; with REF only those of that model.

    The pairs are loaded with the settings of config.toml. The network is not used,
    except for other computers that these settings name.
    """
    criteria = launch.saved_criteria(use)
    hosts = criteria.wishes.load.target_settings.remote_hosts
    remote = remote_devices.find_devices(hosts, options.print_skipped)
    machine = machine_profile.with_remote(machine_profile.simulate(**gpu), remote)
    suggestions = suggest(machine, criteria, ref)
    device = machine.devices[0] if machine.devices else machine.cpu
    free = device.free or 0
    if as_json:
        pairs = [_suggestion_to_json(suggestion) for suggestion in suggestions]
        document = {
            "memory": free,
            "gpu": bool(machine.devices),
            "use": use,
            "pairs": pairs,
        }
        echo_json(document)
        return
    where = "on the GPU" if machine.devices else "free on this computer"
    echo(f"Pairs for {gib(free)} {where}:", err=True)
    shown = suggestions if everything else suggestions[:_MAX_SHOWN]
    for number, suggestion in enumerate(shown, 1):
        echo(f"{number}. {suggestion.pair.id}  {suggestion.pair.title}")
        for reason in suggestion.shown_reasons:
            echo(f"   {reason}")
    if len(suggestions) > len(shown):
        echo(f"{len(suggestions) - len(shown)} more with --all", err=True)
    if suggestions and suggestions[0].verdict.can_load:
        echo(f"Download one: localspec pull {suggestions[0].pair.id}", err=True)
    else:
        echo("No pair fits.", err=True)


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

    Reads only the headers of the files, here or on the hub. A pair may be given as
    TARGET alone. Exit code 5 if the models are incompatible.
    """
    request = model_lookup.resolve(target)
    draft_model = request.draft
    if draft:
        draft_request = model_lookup.resolve(draft)
        draft_model = draft_request.draft or draft_request.target
    if draft_model is None:
        raise UsageError(
            "Two models are needed.", "Type: localspec pair check TARGET DRAFT"
        )
    target_model = request.target

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
    """List all pairs of the catalogue."""
    pairs = catalog.load().pairs.values()
    ready = {pair.id for pair in model_lookup.ready_pairs(inventory.list_models())}
    if as_json:
        rows = [_pair_to_json(pair, is_ready=pair.id in ready) for pair in pairs]
        echo_json({"pairs": rows})
        return
    table = [("PAIR", "SIZE", "DRAFT", "STATUS", "")]
    for pair in pairs:
        size = gb(pair.size) if pair.size else "–"
        note = "installed" if pair.id in ready else ""
        table.append((pair.id, size, pair.draft_kind, pair.status, note))
    echo_columns(table)


def _pair_to_json(pair: CatalogPair, *, is_ready: bool) -> dict[str, object]:
    return {
        "id": pair.id,
        "title": pair.title,
        "target": pair.target.id,
        "draft": pair.draft.id if pair.draft else None,
        "kind": pair.draft_kind,
        "bytes": pair.size,
        "use": list(pair.use),
        "status": pair.status,
        "source": pair.source or None,
        "here": is_ready,
    }


def _suggestion_to_json(suggestion: PairSuggestion) -> dict[str, object]:
    pair = suggestion.pair
    return {
        "id": pair.id,
        "target": pair.target.id,
        "draft": pair.draft.id if pair.draft else None,
        "bytes": suggestion.bytes,
        "needed": suggestion.needed_bytes,
        "verdict": suggestion.verdict,
        "speed": suggestion.plan.speed.speculative if suggestion.plan else None,
        "reasons": list(suggestion.reasons),
    }
