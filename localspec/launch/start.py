"""Starts an engine with given or suitable settings, and saves its measurements."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import fields, replace

from localspec import config, draft_kinds, extras, paths
from localspec.config import SETTINGS, EffectiveConfig
from localspec.errors import (
    DoesNotFitError,
    Hint,
    LocalspecError,
    ModelFileError,
    OutOfMemoryError,
)
from localspec.fit import (
    calibration,
    machine_profile,
    pair_shapes,
)
from localspec.fit.advisor import (
    SettingsAdvisor,
    SettingsRequest,
    with_settings,
)
from localspec.fit.plan import Plan
from localspec.fit.suggestions import SuggestionCriteria
from localspec.launch.engine_client import EngineClient
from localspec.launch.pair import ResolvedPair
from localspec.machine import (
    device_detection,
    installed_llama_cpp,
    measurements,
    memory_probe,
    remote_devices,
)
from localspec.machine.device import Device
from localspec.models import projector_shape, projectors
from localspec.models.gguf import reader
from localspec.models.local_files import inventory
from localspec.protocol import wire
from localspec.protocol.events import EngineReady, Event, Notice, TokenScore
from localspec.sanitize import sanitize
from localspec.tools import server_settings
from localspec.units import count, duration, gb, gib

_SIZE_CLASS = 2.0
"""Models that read up to this many times as many bytes use the same thread counts."""
_MAX_SNAPSHOT_BYTES = 2 * 2**30
_CALL_TABLES_BYTES = 2**28
"""The largest vocabulary, Gemma's of 262,000 tokens, takes up to 164 MB."""


NO_PROJECTOR = "none"
"""The value of `image_model` with which no projector is loaded."""


class LoadOptions(Struct, frozen=True):
    """The user's settings of a load; None: chosen to fit this machine."""

    ctx: int | None = None
    kv: wire.KvType | None = None
    draft_kv: wire.KvType = "f16"
    gpu_layers: int | None = None
    draft_gpu_layers: int | None = None
    main_gpu: int = 0
    # A mode, or a share for each device.
    split: wire.SplitMode | tuple[float, ...] = "layer"
    cpu_moe: int | None = None
    threads: int | None = None
    draft_threads: int | None = None  # None: as `threads`.
    flash_attn: wire.FlashAttention = "auto"
    remote_hosts: tuple[str, ...] = ()
    """Addresses of other computers that hold layers of the target."""
    can_skip_remote: bool = False
    """Use them only if they can be reached and are worth it.

    They are if the pair does not fit here, or is slower.
    """
    exact: bool = False
    """Keys in q8_0, values in f16: a CPU then computes every width alike."""
    overlap: bool | None = None
    """Draft while the target verifies. None: across devices, where it is worth it."""
    draft_length: int | None = None
    """The most draft tokens of a round, for which a hybrid needs memory; None: 6."""
    image_model: str | None = None
    """The projector's file, or `none`; None: the one that was found for the target."""
    image_tokens: int | None = None
    """The most tokens that a picture becomes; None: as many as suit this machine."""
    anyway: bool = False  # Load even if the estimate exceeds the memory.

    @classmethod
    def saved(cls, view: EffectiveConfig, **more: Any) -> LoadOptions:
        """The options of config.toml, and `more`."""
        names = {each.name for each in fields(cls)}
        known: dict[str, Any] = {}
        for key, option in SETTINGS.items():
            if option.attribute in names:
                known[option.attribute] = view.get(key)
        return cls(**known | more, can_skip_remote=True)

    def to_request(self, pair: ResolvedPair, spec: str = "auto") -> SettingsRequest:
        """A request for the pair, without its draft if `spec` needs none.

        The context is the catalogue's unless `ctx` is set.
        """
        ctx = self.ctx or pair.suggested_settings.ctx
        target_settings = self._target_settings(ctx)
        load = wire.LoadCommand(
            target=str(pair.target),
            target_settings=target_settings,
            draft_settings=self._draft_settings(target_settings),
            overlap=self.overlap,
            projector=self._projector_settings(pair),
        )
        request = SettingsRequest(
            load,
            ctx=ctx,
            kv=self.kv,
            n_gpu_layers=self.gpu_layers,
            cpu_moe=self.cpu_moe,
            draft_n_gpu_layers=self.draft_gpu_layers,
            exact=self.exact,
            draft_length=self.draft_length,
            skip_memory_check=self.anyway,
            can_skip_remote=self.can_skip_remote,
        )
        if pair.draft is None or draft_kinds.needs_no_draft(spec):
            return request
        if spec == "auto":
            request = replace(request, default_draft=pair.default_draft)
        return replace(
            request,
            load=replace(load, draft=str(pair.draft)),
            draft_note=pair.draft_notice,
        )

    def _target_settings(self, ctx: int | None) -> wire.ContextSettings:
        settings = wire.ContextSettings(
            n_gpu_layers=_or_all(self.gpu_layers),
            main_gpu=self.main_gpu,
            kv_type=self.kv or "f16",
            cpu_moe=self.cpu_moe or 0,
            flash_attn=self.flash_attn,
            n_ctx=ctx,
            n_threads=self.threads,
            remote_hosts=self.remote_hosts,
        )
        if isinstance(self.split, str):
            return replace(settings, split_mode=self.split)
        return replace(settings, tensor_split=self.split)

    def _projector_settings(self, pair: ResolvedPair) -> wire.ProjectorSettings | None:
        if self.image_model == NO_PROJECTOR:
            return None
        if self.image_model is not None:
            path: Path | None = Path(os.path.expanduser(self.image_model)).absolute()
        elif pair.target.name:
            path = projectors.find_projector(pair.target)
        else:  # An estimate, of no file.
            path = None
        if path is None:
            return None
        return wire.ProjectorSettings(str(path), max_rows=self.image_tokens)

    def _draft_settings(self, target: wire.ContextSettings) -> wire.ContextSettings:
        """Those of the target, but for the options that a draft has of its own."""
        return replace(
            target,
            cpu_moe=0,
            # A draft of a quantised cache is accepted less: half as often in q4_0.
            kv_type=self.draft_kv,
            remote_hosts=(),  # A draft there would cost a round trip a token.
            n_gpu_layers=_or_all(self.draft_gpu_layers),
            n_threads=self.draft_threads or self.threads,
        )


def _or_all(gpu_layers: int | None) -> int:
    """The number of layers as llama.cpp takes it: -1 is all of them."""
    return -1 if gpu_layers is None else gpu_layers


def saved_criteria(
    use: str | None = None, ctx: int | None = None, kv: wire.KvType | None = None
) -> SuggestionCriteria:
    """What to suggest pairs for, with the settings of config.toml."""
    view = config.resolve()
    options = LoadOptions.saved(view, ctx=ctx, kv=kv)
    wishes = options.to_request(ResolvedPair(Path(), None))
    return SuggestionCriteria(use, wishes, least_rate=view.get("models.too_slow"))


class Engine(Protocol):
    """A loaded pair that runs one command at a time.

    It is an `EngineClient`, or a fake of the tests.
    """

    @property
    def ready(self) -> EngineReady: ...

    @property
    def measured(self) -> wire.MeasuredCosts | None: ...

    @property
    def alive(self) -> bool: ...

    def generate(self, request: wire.GenerateCommand) -> Iterator[Event]: ...

    def count(self, count: wire.CountCommand) -> wire.CountResult: ...

    def tokenize(self, tokenize: wire.TokenizeCommand) -> wire.TokenizeResult: ...

    def inspect(self, inspect: wire.InspectCommand) -> tuple[TokenScore, ...]: ...

    def probe(self, probe: wire.ProbeCommand) -> Iterator[Event]: ...

    def replay(self, replay: wire.ReplayCommand) -> wire.ReplayResult: ...

    def score_draft(self, command: wire.ScoreDraftCommand) -> wire.DraftScore: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


StartEngine = Callable[..., Engine]
"""`start_engine`, or a fake of the tests."""


def start_engine(
    request: SettingsRequest,
    *,
    probe: bool = False,
    notify: Callable[[wire.LoadEvent], None] = lambda _: None,
    on_worker: Callable[[EngineClient], None] = lambda _: None,
) -> EngineClient:
    """Load the pair in a separate process, with the costs measured in earlier runs.

    With `probe`, it keeps other conversations in RAM, and measures costs when idle, if
    that is due. `on_worker` receives the engine before it loads, for another thread to
    close it. Raises what `choose_settings` raises, and the engine's errors.
    """
    # What is loaded, and with which settings.
    notify(wire.LoadProgress("planning"))
    load = replace(request.load, target=_choose_faster_copy(request, notify))
    request, remote = find_remote_devices(replace(request, load=load), notify)
    plan = choose_settings(request, remote)
    load = plan.load if plan else request.load

    # What is to be said before the user waits for it.
    if plan is not None:
        transfer = describe_transfer(plan)
        if transfer:
            notify(Notice("info", remote_devices.option_name(), transfer))
        about_projector = _projector_notice(plan)
        if about_projector is not None:
            notify(about_projector)
        about_drafts = _draft_length_notice(request, plan)
        if about_drafts is not None:
            notify(about_drafts)
    missing_gpu = _missing_gpu_notice(load.target_settings)
    if missing_gpu is not None:
        notify(missing_gpu)

    # The process, and the pair in it.
    notify(wire.LoadProgress("checking", Path(load.target).name))
    inventory.verify_packaged(Path(load.target))
    notify(wire.LoadProgress("starting"))
    store = measurements.MeasurementStore(paths.DataFile.MEASUREMENTS.path)
    engine = EngineClient(store, measurements.make_key(load))
    try:
        on_worker(engine)
        load = _with_measurements(load, engine.measured, store, plan, probe=probe)
        _load_pair(engine, load, plan, notify)
        engine.add_notices(plan, request)
    except BaseException:
        engine.close()
        raise
    return engine


def _with_measurements(
    load: wire.LoadCommand,
    measured: wire.MeasuredCosts | None,
    store: measurements.MeasurementStore,
    plan: Plan | None,
    *,
    probe: bool,
) -> wire.LoadCommand:
    """The command, with what is known about this pair or about pairs of its size."""
    load = replace(load, measured=measured)
    if not _is_complete(measured, load):
        threads = _find_threads(store, plan)
        load = replace(load, threads=threads, measure_when_idle=probe)
    if probe:
        load = replace(
            load,
            snapshot_bytes=_snapshot_bytes(plan),
            expects_tools=_has_tool_servers() and _has_space_for_calls(plan),
        )
    return load


def _has_tool_servers() -> bool:
    """Whether chats are offered the tools of a server."""
    return any(server.enabled for server in server_settings.read_servers().servers)


def _has_space_for_calls(plan: Plan | None) -> bool:
    """Whether the RAM that the estimate leaves holds the tables of grammars."""
    if plan is None or plan.host.headroom is None:
        return True
    return plan.host.headroom >= _CALL_TABLES_BYTES


FasterCopyChooser = Callable[[Path, Callable[[Notice], None] | None], Path]
"""Returns the file to load for a model's file.

It may say so, unless it gets None: then nothing is loaded.
"""


def has_faster_copy(target: Path) -> bool:
    """Whether a load would take a copy that an extra has made of this file."""
    choosers: list[FasterCopyChooser] = extras.load("FASTER_COPIES")
    return any(choose(target, None) != target for choose in choosers)


def _choose_faster_copy(
    request: SettingsRequest, notify: Callable[[wire.LoadEvent], None]
) -> str:
    """The target's file, or a copy of it that an extra has made for this computer."""
    target = Path(request.load.target)
    if request.keeps_file:
        return str(target)
    choosers: list[FasterCopyChooser] = extras.load("FASTER_COPIES")
    for choose in choosers:
        target = choose(target, notify)
    return str(target)


def _snapshot_bytes(plan: Plan | None) -> int:
    """RAM for conversations besides the current one, of what the estimate leaves."""
    if plan is None or plan.load.target_settings.remote_hosts:
        return 0
    free_after_load = plan.host.headroom or 0
    return max(0, min(free_after_load // 4, _MAX_SNAPSHOT_BYTES))


def _missing_gpu_notice(settings: wire.ContextSettings) -> Notice | None:
    """A notice if there is no GPU, or if an option names one that is not here.

    llama.cpp would ignore the option.
    """
    found = device_detection.detect_devices()
    n_gpus = len(found.devices)
    # If llama.cpp is not installed, the engine says so.
    is_installed = installed_llama_cpp.library_folder() is not None
    if found.note and is_installed and settings.n_gpu_layers:
        hint = "Layers are on the CPU. localspec doctor says what to check."
        return Notice("warning", "no-gpu", f"No GPU: {found.note}.", hint)
    shares = [i for i, share in enumerate(settings.tensor_split) if share > 0]
    named = max(settings.main_gpu, *shares, 0)
    if named < max(n_gpus, 1):
        return None
    if settings.remote_hosts or not settings.n_gpu_layers:
        return None
    # With this mode llama.cpp refuses the option itself.
    if settings.split_mode == "none" and n_gpus > 0:
        return None
    option = "--main-gpu" if named == settings.main_gpu else "--split"
    gpus_here = count(n_gpus, "GPU") if n_gpus else "no GPU"
    message = (
        f"{option} names GPU {named}, counted from 0, "
        f"but there is {gpus_here} here: it is ignored."
    )
    return Notice("warning", "no-gpu", message, "localspec doctor lists them.")


def _is_complete(costs: wire.MeasuredCosts | None, load: wire.LoadCommand) -> bool:
    """Whether thread counts and pass costs were measured, on a quiet computer."""
    if costs is None or not measurements.is_trusted(costs):
        return False
    if len(costs.curve) < 2:
        return False
    return costs.threads_batch is not None or load.target_settings.n_threads is not None


def _find_threads(
    store: measurements.MeasurementStore, plan: Plan | None
) -> tuple[int, int] | None:
    """Thread counts that were best for a model of about this size on these devices.

    The latest such model counts.
    """
    if plan is None or plan.load.target_settings.remote_hosts:
        return None
    own_reads = calibration.summarize_reads(plan.speed)
    if own_reads is None:
        return None
    target = own_reads.target
    for record in store.read_all():
        costs = record.measured
        reads = record.reads
        if costs is None or reads is None:
            continue
        if not costs.threads or not costs.threads_batch:
            continue
        ratio = reads.target.read / max(target.read, 1)
        is_similar = 1 / _SIZE_CLASS <= ratio <= _SIZE_CLASS
        if is_similar and reads.target.devices == target.devices:
            return costs.threads, costs.threads_batch
    return None


def choose_settings(
    request: SettingsRequest, remote: Sequence[Device] = ()
) -> Plan | None:
    """Choose the settings that were left open, to fit this machine.

    Returns None if a file's header is not plausible: then llama.cpp decides whether to
    load it. Raises DoesNotFitError if the pair needs more memory than is free,
    UsageError if the context is far too long.
    """
    load = request.load
    target = reader.read_model(Path(load.target))
    draft = reader.read_model(Path(load.draft)) if load.draft else None
    machine = machine_profile.with_remote(machine_profile.detect(refresh=True), remote)
    try:
        pair = pair_shapes.from_headers(target, draft)
        advisor = SettingsAdvisor(*pair.shapes, machine)
        plan = advisor.advise_counted(request, pair, only_if_close=True)
    except ModelFileError:
        return None
    if not plan.load.target_settings.remote_hosts:
        machine = machine_profile.without_remote(machine)
        advisor = SettingsAdvisor(*pair.shapes, machine)
    is_refused = not plan.verdict.can_load and plan.missing_bytes > plan.error
    if is_refused and not request.skip_memory_check:
        raise _does_not_fit_error(advisor, plan, Path(load.target).name)
    if load.projector is None:
        return plan
    return _place_projector(advisor, plan, request, load.projector)


def _place_projector(
    advisor: SettingsAdvisor,
    plan: Plan,
    request: SettingsRequest,
    settings: wire.ProjectorSettings,
) -> Plan:
    """The plan with its projector where it has room, and without it where it has none."""
    try:
        shape = projector_shape.from_header(reader.read(Path(settings.path)))
    except (ArithmeticError, ValueError):
        return plan  # llama.cpp says what is wrong with it.
    plan = advisor.with_projector(
        plan,
        shape,
        request,
        on_gpu=settings.on_gpu,
        max_rows=settings.max_rows,
    )
    found = plan.projector
    placed: wire.ProjectorSettings | None = settings
    if found is not None:
        placed = replace(settings, on_gpu=found.on_gpu, max_rows=found.max_rows)
        if not found.device and not request.skip_memory_check:
            placed = None
    return replace(plan, load=replace(plan.load, projector=placed))


def _draft_length_notice(request: SettingsRequest, plan: Plan) -> Notice | None:
    """What is possible of the draft length that was asked for, where memory is short.

    Longer copies need rows of logits and, on a hybrid, a checkpoint.
    """
    longest = plan.load.draft_max
    if request.draft_length is None or request.draft_length <= longest:
        return None
    message = f"No room for drafts of {request.draft_length} tokens: at most {longest}."
    hint = "Take a shorter context or a smaller model for longer ones."
    return Notice("info", "draft-length", message, hint)


def _projector_notice(plan: Plan) -> Notice | None:
    """Where a picture takes longer to read, or cannot be read, for lack of memory."""
    found = plan.projector
    if found is None or found.on_gpu:
        return None
    size = gib(plan.projector_bytes)
    if not found.device:
        message = f"No room for its projector ({size}): it does not see."
        hint = "Close other programs, or take a smaller model."
        return Notice("warning", "no-projector", message, hint)
    if not plan.device_fits:
        return None
    message = f"Its projector ({size}) is in RAM: the GPU has no room for it."
    hint = "Pictures take longer to read; answers do not."
    return Notice("info", "projector-in-ram", message, hint)


def _does_not_fit_error(
    advisor: SettingsAdvisor, plan: Plan, name: str
) -> DoesNotFitError:
    """What is missing, and in the hint the single changes with which the pair fits."""
    device = plan.tightest.device
    if device.kind == "cpu":
        place = "this computer"
    else:
        place = sanitize(device.description or device.name, multiline=False)
    needed = gib(plan.tightest.needed)
    message = (
        f"{sanitize(name, multiline=False)} needs {needed}; "
        f"{place} has {gib(device.free or 0)} free."
    )

    options = []
    for saving in advisor.list_memory_savings(plan):
        if saving.plan.verdict.can_load:
            options.append(_hint_option(saving.flags))
    longest = advisor.find_longest_context(plan)
    if longest is not None:
        others = [option for option in options if "ctx" not in option]
        options = [_hint_option(f"--ctx {longest}"), *others]
    if options:
        advice = f"This fits: {' or '.join(options)}."
    else:
        advice = "Smaller models: localspec pair suggest."
    anyway = "{ Load anyway: run |anyway}"
    return DoesNotFitError(message, Hint(f"{advice} Details: localspec fit.{anyway}"))


def _hint_option(flags: str) -> str:
    """An option as in a `Hint`: "--draft-gpu-layers 0" is "{draft_gpu_layers=0}"."""
    name, _, value = flags.removeprefix("--").partition(" ")
    return f"{{{name.replace('-', '_')}={value}}}"


def _load_pair(
    engine: EngineClient,
    load: wire.LoadCommand,
    plan: Plan | None,
    notify: Callable[[wire.LoadEvent], None],
) -> None:
    """Load, and add the memory estimate to an out-of-memory error."""
    memory_probe.close()  # It holds memory of the GPU.
    try:
        engine.load(load, notify)
    except OutOfMemoryError as error:
        if plan is None:
            raise
        fit = plan.tightest
        before = fit.device.free or 0
        now = device_detection.query_free(fit.device.name) or 0
        estimate = (
            f"Estimated {gib(fit.needed)}, with {gib(before)} free; "
            f"now {gib(now)} free."
        )
        raise OutOfMemoryError(f"{error.message} {estimate}", error.hint) from error


# --- Other computers


def find_remote_devices(
    request: SettingsRequest, notify: Callable[[wire.LoadEvent], None]
) -> tuple[SettingsRequest, tuple[Device, ...]]:
    """Ask the other computers of a request, before it is loaded.

    Returns the request with those that can be used, and their devices. Raises the
    reason why one cannot be used, or notifies if the request can do without.
    """
    hosts = request.load.target_settings.remote_hosts
    if not hosts:
        return request, ()
    code = remote_devices.option_name()
    source = remote_devices.source()

    def skip(error: LocalspecError) -> None:
        notify(Notice("warning", code, error.message, "Going on without it."))

    on_unusable = skip if request.can_skip_remote else None
    devices = source.find_devices(hosts, on_unusable)
    try:
        if devices:
            source.prepare(lambda text: notify(Notice("info", code, text)))
    except LocalspecError as error:
        if on_unusable is None:
            raise
        on_unusable(error)
        devices = ()
    links = [device.link for device in devices if device.link is not None]
    usable = tuple(dict.fromkeys(link.host for link in links))
    load = with_settings(request.load, remote_hosts=usable)
    return replace(request, load=load), devices


def describe_transfer(plan: Plan) -> str:
    """What a load sends to other computers, and how long it takes, if anything."""
    n_bytes = 0
    seconds = 0.0
    hosts: dict[str, None] = {}
    for device_fit in plan.device_fits:
        link = device_fit.device.link
        weights = device_fit.target.weights
        if link is not None and weights:
            n_bytes += weights
            seconds += weights / link.bytes_per_second
            hosts[link.host] = None
    if not hosts:
        return ""
    names = " and ".join(hosts)
    return f"Loading sends {gb(n_bytes)} to {names}: about {duration(max(seconds, 1))}."
