"""`localspec fit`: estimate whether a pair fits a computer, and how fast it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins
from msgspec.structs import replace

from localspec import launch
from localspec.cli import global_options, options, shell_completion
from localspec.cli.global_options import number_option
from localspec.cli.options import CommandArguments
from localspec.cli.report_printer import echo_line
from localspec.cli.terminal import echo, echo_json, notify, terminal_width
from localspec.fit import machine_profile, suggestion_groups, suggestions
from localspec.fit.advisor import SettingsAdvisor, with_settings
from localspec.fit.machine_profile import MachineProfile, SimulatedHardware
from localspec.fit.pair_shapes import PairShapes, resolve_shapes
from localspec.fit.plan import Plan
from localspec.fit.speed import UseCase
from localspec.fit.suggestions import PairSuggestion, SuggestionCriteria
from localspec.launch import ResolvedPair
from localspec.launch.start import describe_transfer
from localspec.machine import published, remote_devices
from localspec.machine.device import HOST
from localspec.machine.published import PublishedRow
from localspec.models import draft_heads, model_lookup, projectors
from localspec.models.catalog import CatalogModel
from localspec.models.catalog_entries import USE_CASES
from localspec.models.model_lookup import ModelRequest, ResolvedModel
from localspec.report import fit as fit_report
from localspec.report.fit import FitAnswer
from localspec.units import middle


class FitArguments(CommandArguments, frozen=True, kw_only=True):
    """The arguments of `fit`, but REF."""

    draft: str | None
    gpu: str | None
    vram: float | None
    cpu: str | None
    ram: float | None
    use: str
    as_json: bool

    @property
    def hardware(self) -> SimulatedHardware:
        return SimulatedHardware(
            gpu=self.gpu, vram=self.vram, cpu=self.cpu, ram=self.ram
        )


@click.command("fit")
@click.argument("ref", shell_complete=shell_completion.complete_model_or_pair)
@options.OTHER_SPELLINGS
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
@global_options.simulated_hardware
@click.option(
    "--use",
    type=click.Choice(USE_CASES),
    default="chat",
    show_default=True,
    help="Kind of text that the speed is estimated for.",
)
@options.OFFLOAD
@options.DRAFT_MAX
@options.EXTRA_LOAD
@global_options.JSON
def command(ref: str, **given: Any) -> int:
    """Estimate whether the model or pair REF fits this computer.

    Nothing is downloaded. llama.cpp itself counts the memory, from the headers of the
    files, also on a GPU that is not here; without them it is estimated. Exit code 4 if
    REF does not fit.

    \b
    localspec fit qwen3-8b+qwen3-0.6b
    localspec fit llama-3.3-70b --draft llama-3.2-1b --gpu "RTX 3090"
    localspec fit qwen3-8b --cpu "Ryzen 7 5800X" --ram 32
    localspec fit big.gguf --draft small.gguf --ctx 32768
    """
    arguments = options.read_arguments(FitArguments, given)
    machine = options.simulate_machine(arguments.hardware)
    no_pair = ResolvedPair(Path(), None)
    wishes = options.build_load_request(no_pair, arguments.options, spec="auto")
    criteria = replace(launch.saved_criteria(arguments.use), wishes=wishes)

    # The pair, and the computers that it may use.
    request = suggestions.resolve_best_file(ref, lambda: machine, criteria)
    request, default_draft = choose_draft(request, arguments.draft, machine, criteria)
    subject = _read_subject(request)
    if default_draft or (request.pair and request.pair.spec == "mtp"):
        subject = subject.add_own_head()
    subject.check_head()
    on_unusable = options.print_skipped if wishes.can_skip_remote else None
    hosts = wishes.load.target_settings.remote_hosts
    remote = remote_devices.find_devices(hosts, on_unusable)
    machine = machine_profile.with_remote(machine, remote)

    # Its settings.
    advisor = SettingsAdvisor(*subject.shapes, machine, UseCase(arguments.use))
    draft = subject.draft.reference if subject.draft else None
    load = replace(wishes.load, target=subject.target.reference, draft=draft)
    load = with_settings(load, remote_hosts=machine.remote_hosts)
    wishes = replace(wishes, load=load, default_draft=default_draft)
    plan = advisor.advise_counted(wishes, subject)
    without_projector = plan
    projector = projectors.find_shape(request.target)
    if projector is not None:
        plan = advisor.with_projector(plan, projector, wishes, subject)
    if plan.skipped_draft:
        subject = PairShapes(subject.target)
    if not plan.load.target_settings.remote_hosts:
        machine = machine_profile.without_remote(machine)

    answer = FitAnswer(
        subject=subject,
        plan=plan,
        savings=advisor.list_memory_savings(without_projector),
        use_case=arguments.use,
        pair=request.pair,
        missing=_find_missing(request),
        instead=_find_better(request, plan, machine=machine, criteria=criteria),
        is_too_slow=_is_too_slow(plan, request.target.catalog_model, criteria),
        window_saving=advisor.count_window_saving(without_projector),
        senses=projectors.find_senses(request.target),
    )
    reported = _find_published(answer, machine)
    if arguments.as_json:
        _print_json(answer, reported)
    else:
        _print_report(answer, reported)
        model = request.target.catalog_model
        reason = ""
        if model is not None:
            reason = suggestions.explain_type(model, machine)
        if reason:
            echo(f"{reason}.")
        transfer = describe_transfer(plan)
        if transfer:
            echo(transfer)
    return 0 if plan.verdict.can_load else 4


def _find_missing(request: ModelRequest) -> str:
    """What `pull` takes to get the files of the pair; empty if all are here."""
    if all(model.find_path() for model in request.models):
        return ""
    return request.pair.name if request.pair else request.name


def _is_too_slow(
    plan: Plan, model: CatalogModel | None, criteria: SuggestionCriteria
) -> bool:
    """Whether a pair that could be loaded would take too long to answer."""
    rate = middle(plan.speed.speculative or plan.speed.plain)
    if rate is None or not plan.verdict.can_load:
        return False
    return criteria.is_too_slow(rate, model)


def _find_better(
    request: ModelRequest,
    plan: Plan,
    *,
    machine: MachineProfile,
    criteria: SuggestionCriteria,
) -> PairSuggestion | None:
    """What to take in place of a pair that does not fit, or is too slow."""
    model = request.target.catalog_model
    if plan.verdict.can_load and not _is_too_slow(plan, model, criteria):
        return None
    best = suggestion_groups.advise(machine, criteria).best
    return best.suggestion if best else None


def _print_json(answer: FitAnswer, reported: PublishedRow | None) -> None:
    document = fit_report.fit_to_json(answer)
    document["published"] = to_builtins(reported) if reported else None
    echo_json(document)


def _print_report(answer: FitAnswer, reported: PublishedRow | None) -> None:
    plain = global_options.is_plain()
    for line in fit_report.format_fit(answer, terminal_width(), plain=plain):
        echo_line(line)
    if reported:
        echo(f"Others report: {reported.describe()}.")


def _find_published(answer: FitAnswer, machine: MachineProfile) -> PublishedRow | None:
    """The speed that others report from the computer most like this one."""
    subject = answer.subject
    devices = [each.device for each in answer.plan.device_fits]
    kind = ""
    if subject.draft:
        kind = subject.draft.shape.head_kind or "model"
    cpu = machine.hardware.nominal_speeds[HOST]
    return published.find_nearest(
        subject.target.name, devices, kind, cpu_reaches=cpu.reached
    )


def choose_draft(
    request: ModelRequest,
    draft: str | None,
    machine: MachineProfile,
    criteria: SuggestionCriteria,
) -> tuple[ModelRequest, str]:
    """The request with its draft, and what that is if nobody named it.

    `draft` is what --draft says.  Without it, a draft that is here is taken, as `run`
    does; else the one that `pair suggest` would put first for the model.
    """
    if draft == "none":
        return replace(request, draft=None, pair=None), ""
    if draft:
        named = model_lookup.resolve(draft)
        draft_model = named.draft or named.target
        return replace(request, draft=draft_model, pair=None), ""
    if request.pair is not None:
        if request.draft is not None or request.is_lookup_pair:
            return request, ""  # The reference names the draft.
        return _find_default_draft(request)[0], ""

    request, default_draft = _find_default_draft(request)
    if request.draft is not None:
        return request, default_draft
    model = request.target.catalog_model
    found = None
    if model is not None:
        found = suggestions.best_pair(model, machine, criteria, searches=True)
    if found is None or found.pair.draft_kind == "lookup":
        # A head that no catalogue knows may be in the model's own file.
        return request, draft_heads.describe_found_head("mtp", "")
    drafting = found.pair.draft
    if drafting is None:
        return replace(request, pair=found.pair), ""
    listed = model_lookup.from_catalog(drafting)
    return replace(request, draft=listed, pair=found.pair), ""


def _read_subject(request: ModelRequest) -> PairShapes:
    if all(model.find_path() for model in request.models):
        return resolve_shapes(request, None)
    return _read_shapes(request)


def _find_default_draft(request: ModelRequest) -> tuple[ModelRequest, str]:
    """The draft that `run` would find beside an installed file, and what it is."""
    path = request.target.find_path()
    if path is None:
        return request, ""
    model = None if request.pair else request.target.catalog_model
    pair = launch.with_default_draft(ResolvedPair(path, None), model)
    found = ResolvedModel(pair.draft.name, pair.draft) if pair.draft else None
    return replace(request, draft=found), pair.default_draft


def _read_shapes(request: ModelRequest) -> PairShapes:
    """The shapes of a pair of which a file is not here: from headers on the hub."""
    from localspec.cli.pull import run_cancellable  # noqa: PLC0415  late: slow to import
    from localspec.models.hub.client import HubClient  # noqa: PLC0415
    from localspec.models.pull_plan import PullPlanner  # noqa: PLC0415

    hub = HubClient(on_wait=notify)
    return run_cancellable(
        lambda stop: resolve_shapes(request, PullPlanner(hub, stop, refresh=False))
    )
