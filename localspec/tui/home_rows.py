"""The rows of Home: which pairs and downloads there are, and how a row is drawn."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from textual.content import Content

from localspec import draft_kinds
from localspec.chat import presets
from localspec.fit import machine_profile
from localspec.fit.machine_profile import MachineProfile
from localspec.launch import ResolvedPair, recent_pairs
from localspec.machine import remote_devices
from localspec.models import catalog, model_lookup, reference
from localspec.models.catalog import Catalog, CatalogModel, CatalogPair
from localspec.models.local_files.local_model import ORIGIN_TITLES
from localspec.report import memory, pair_text
from localspec.sanitize import sanitize
from localspec.tui import downloads
from localspec.tui.key_bindings import BINDINGS_BY_ID, key_label
from localspec.tui.text.wrapping import fit_to_width
from localspec.tui.wizard.shortlist import Candidate, suggest_candidates
from localspec.tui.wizard.what_if import WhatIf
from localspec.units import gb, gib

if TYPE_CHECKING:
    from localspec.chat.history import SearchHit
    from localspec.models.hub.client import HubSearchResult
    from localspec.models.hub.download import DownloadState
    from localspec.models.local_files.local_model import LocalModel

_MAX_SUGGESTED = 5
_MAX_LISTED = 12  # Recent pairs, and other models, that are listed without a search.
_DEFAULT_USE = "chat"  # The use that speed estimates on Home are for.
_MAX_MATCHES = 20


class HomeRow(Struct, frozen=True):
    """A pair to open, a saved chat, a pair or repository to download, or a download."""

    name: str
    description: str = ""
    size: str = ""
    note: str = ""
    pair: ResolvedPair | None = None
    reference: str | None = None  # What to download, as `localspec pull` accepts it.
    download: DownloadState | None = None
    chat_id: int | None = None
    is_pinned: bool = False
    preset: str = ""  # The name of a preset for a new chat.
    # A search match within the chat; `description` is its excerpt.
    found: SearchHit | None = None
    hub_search_text: str = ""
    """Words to search the hub for: only this row sends what was typed to the network.
    """
    is_included: bool = False  # Whether the pair came with localspec.

    @property
    def key(self) -> str:
        """Identifies the row: several chats may have one title."""
        return self.name if self.chat_id is None else f"chat {self.chat_id}"


class HomeSection(Struct, frozen=True):
    heading: str
    rows: tuple[HomeRow, ...]
    binding_id: str = ""  # A key for all these rows, shown beside the heading.


class MachineSurvey(Struct, frozen=True):
    """What is known of this computer; it takes a while, so Home is drawn first."""

    machine_label: str = ""
    local_models: tuple[LocalModel, ...] = ()
    machine_profile: MachineProfile | None = None
    candidates: tuple[Candidate, ...] = ()  # Suitable pairs, the best first.
    # Addresses of other computers that it asks for their devices.
    remote_hosts: tuple[str, ...] = ()
    unused_gpu_hint: str = ""
    """Names a GPU that this build of llama.cpp cannot use, and the command that fixes
    it.
    """


def survey_machine() -> MachineSurvey:
    """The fast part: memory, cores, and the models on disk."""
    import psutil  # noqa: PLC0415  not before the first frame

    from localspec.models.local_files import inventory  # noqa: PLC0415

    memory = psutil.virtual_memory()
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    label = f"{cores} cores · {gib(memory.total)}, {gib(memory.available)} free"
    return MachineSurvey(label, inventory.list_models())


def initial_survey() -> MachineSurvey:
    """What is known before the first frame: the models in Python packages."""
    from localspec.models.local_files import inventory  # noqa: PLC0415

    return MachineSurvey(local_models=inventory.list_packaged())


def refine_survey(survey: MachineSurvey) -> MachineSurvey:
    """The slow part: asks llama.cpp and other computers for devices; estimates all pairs."""
    from localspec.doctor import llama_build  # noqa: PLC0415  many imports

    local = machine_profile.detect()
    remote = remote_devices.find_devices(survey.remote_hosts, lambda _: None)
    profile = machine_profile.with_remote(local, remote)
    label = _describe_machine(local) or survey.machine_label
    for host in survey.remote_hosts:
        is_used = host in profile.remote_hosts
        label += f" · {'with' if is_used else 'without'} {host}"
    unused = llama_build.find_unused_gpu()
    hide = f"To hide this: localspec doctor --dismiss {unused.id}" if unused else ""
    return replace(
        survey,
        machine_label=label,
        machine_profile=profile,
        candidates=suggest_candidates(
            profile, _DEFAULT_USE, WhatIf(), catalog.load_valid()[0]
        ),
        unused_gpu_hint=f"{unused.what}. {unused.fix} {hide}" if unused else "",
    )


def _describe_machine(machine_profile: MachineProfile) -> str:
    if not machine_profile.devices:
        return ""
    gpu, *more = machine_profile.devices
    is_known = gpu.total is not None and gpu.free is not None
    memory = f"{gib(gpu.total or 0)}, {gib(gpu.free or 0)} free" if is_known else ""
    others = f"and {len(more)} more" if more else ""
    parts = (gpu.description or gpu.name, memory, others, gpu.backend)
    return sanitize(" · ".join(filter(None, parts)), multiline=False)


def build_sections(
    pair_catalog: Catalog,
    survey: MachineSurvey,
    search_text: str,
    chats: HomeSection,
    hub_results: Sequence[HubSearchResult],
    states: Sequence[DownloadState],
) -> list[HomeSection]:
    """The non-empty sections: all matches of `search_text`; without it, the
    suggestions.
    """
    ready = _ready_rows(pair_catalog, survey)
    ready_pairs, listed = (
        find_ready_pairs(pair_catalog, survey),
        [row.pair for row in ready],
    )
    ready_ids = {catalog.own_id(id_) for id_ in ready_pairs}
    recent = [row for row in _recently_opened_rows(survey) if row.pair not in listed]
    shown_pairs = [*ready_pairs.values(), *(row.pair for row in recent if row.pair)]
    others = _other_model_rows(survey, shown_pairs)
    saved_presets = [
        HomeRow(p.name, p.summary, preset=p.name) for p in presets.load().values()
    ]
    limit = None if search_text else _MAX_LISTED
    downloadable = _downloadable_rows(pair_catalog, survey, search_text)
    loads = [HomeRow(state.job.file.path, download=state) for state in states]
    running = [row for row in loads if row.download and row.download.phase != "done"]
    active = HomeSection("Downloads", tuple(running))
    sections = (
        *(() if search_text else (active,)),  # what is searched comes first
        HomeSection("Ready to run", _filter_rows(ready, search_text)),
        chats,
        HomeSection("Recent", _filter_rows(recent, search_text)[:limit]),
        HomeSection(
            "Other models on this computer", _filter_rows(others, search_text)[:limit]
        ),
        HomeSection("New chat with a preset", _filter_rows(saved_presets, search_text)),
        HomeSection(
            "In the catalogue" if search_text else "Fits this computer, not downloaded",
            tuple(
                row for row in downloadable if catalog.own_id(row.name) not in ready_ids
            ),
            "" if search_text else "home.wizard",
        ),
        HomeSection("On the hub (network)", tuple(_hub_rows(search_text, hub_results))),
        HomeSection("Downloaded", tuple(row for row in loads if row not in running)),
        *((active,) if search_text else ()),
    )
    return [section for section in sections if section.rows]


def _hub_rows(
    search_text: str, results: Sequence[HubSearchResult]
) -> Iterator[HomeRow]:
    """The results; before there are any, the row that searches."""
    if search_text and not results:
        shown = f"“{sanitize(search_text, multiline=False)}”"
        yield HomeRow(
            "Search the hub", shown, note="sends this text", hub_search_text=search_text
        )
    for found in results:
        name = sanitize(found.repo, multiline=False)
        downloads = f"{found.downloads:,} downloads" if found.downloads else ""
        yield HomeRow(
            name, downloads, "gated" if found.gated else "", reference=found.repo
        )


def row_key_hints(
    row: HomeRow | None, user_keys: Mapping[str, str], *, typing: bool = False
) -> str:
    """What the keys do with a row; while `typing`, letters are text."""
    if row is None:
        return ""
    if row.download is not None:
        return "" if typing else downloads.download_key_hints(row.download, user_keys)
    if row.chat_id is not None:
        delete = f"  {key_label('home.remove', user_keys)} delete"
        return "enter continue" + delete * (not typing)
    if row.pair is not None:
        bench = f"  {key_label('home.bench', user_keys)} bench"
        return "enter open" + bench * (not typing)
    if row.hub_search_text:
        return "enter search the hub"
    return "enter new chat" if row.preset else "enter download"


def chat_key_hints(row: HomeRow | None, user_keys: Mapping[str, str]) -> str:
    """More keys of a saved chat, the last of a key line."""
    if row is None or row.chat_id is None:
        return ""
    pin = "unpin" if row.is_pinned else "pin"
    labels = {"home.rename": "rename", "home.pin": pin, "home.export": "export"}
    return "  ".join(
        f"{key_label(id_, user_keys)} {label}" for id_, label in labels.items()
    )


def _filter_rows(rows: Iterable[HomeRow], search_text: str) -> tuple[HomeRow, ...]:
    words = search_text.lower().split()
    return tuple(
        r for r in rows if all(w in f"{r.name} {r.description}".lower() for w in words)
    )


def find_ready_pairs(
    pair_catalog: Catalog, survey: MachineSurvey
) -> dict[str, ResolvedPair]:
    """The pairs of the catalogue whose files are all on this computer, by id."""

    def find_path(model: CatalogModel) -> Path | None:
        files = survey.local_models
        found = (file.path for file in files if model.is_file(file.repo, file.file))
        return model.path or next(found, None)

    ready: dict[str, ResolvedPair] = {}
    for pair in model_lookup.ready_pairs(survey.local_models, pair_catalog):
        target, draft = (
            find_path(pair.target),
            find_path(pair.draft) if pair.draft else None,
        )
        if target is not None:
            about, refs = (pair.spec, pair.why, pair.settings), (pair.id, "auto")
            ready[pair.id] = ResolvedPair(target, draft, *about, requested_refs=refs)
    return ready


def _ready_rows(pair_catalog: Catalog, survey: MachineSurvey) -> list[HomeRow]:
    """The starter first, the bundled model last: one row each, for the first of their
    pairs.
    """
    speeds = {c.pair.id: _format_speed(c) for c in survey.candidates}
    starters: dict[str, HomeRow] = {}
    downloaded: list[HomeRow] = []
    bundled: list[HomeRow] = []
    for id_, resolved in find_ready_pairs(pair_catalog, survey).items():
        pair = pair_catalog.pairs[catalog.own_id(id_)]
        size, note = _format_size(resolved), speeds.get(id_, "")
        if pair.target.repo is None:
            about = f"{pair.title} · bundled", size, "shows how speculation works"
            bundled.append(HomeRow(id_, *about, resolved, is_included=True))
        elif pair.target.package and (pair.draft is None or pair.draft.repo is None):
            about = pair.title, size, note
            row = HomeRow(pair.target.title, *about, resolved, is_included=True)
            starters.setdefault(pair.target.id, row)
        else:
            downloaded.append(HomeRow(id_, _describe_uses(pair), size, note, resolved))
    return [*starters.values(), *downloaded, *bundled[:1]]


def _recently_opened_rows(survey: MachineSurvey) -> list[HomeRow]:
    rows = []
    names = _ollama_names(survey)
    for opened in recent_pairs.load():
        name = names.get(opened.target)
        pair = (
            replace(opened, requested_refs=(name, opened.portable_refs[1]))
            if name
            else opened
        )
        draft = (
            f"+ {pair.draft_name}" if pair.draft else "prompt lookup, no draft model"
        )
        where = sanitize(str(pair.target.parent), multiline=False)
        rows.append(HomeRow(pair.target_name, draft, _format_size(pair), where, pair))
    return rows


def _ollama_names(survey: MachineSurvey) -> dict[Path, str]:
    """Names that open Ollama's models, by their files, which are named by their
    checksums.
    """
    models = (model for model in survey.local_models if model.origin == "ollama")
    return {model.path: model.own_name for model in models if "/" not in model.own_name}


def _other_model_rows(
    survey: MachineSurvey, listed: Iterable[ResolvedPair]
) -> list[HomeRow]:
    """Models on disk that are in no pair of `listed`, such as those of LM Studio."""
    paths = {path for pair in listed for path in (pair.target, pair.draft)}
    names, rows = _ollama_names(survey), []
    for model in survey.local_models:
        is_model = model.origin == "ollama" or reference.is_model(model.file)
        if is_model and model.path not in paths:
            name = reference.parse_file_name(model.file.rpartition("/")[2]).stem
            refs = (names[model.path], "auto") if model.path in names else None
            pair = ResolvedPair(model.path, None, requested_refs=refs)
            about = model.repo or ORIGIN_TITLES[model.origin]
            rows.append(HomeRow(name, about, gib(model.size), pair=pair))
    return rows


def _format_speed(candidate: Candidate) -> str:
    """Speed with speculation, and the speed-up; if unknown, whether the pair fits."""
    if candidate.fit is None:
        return ""
    speed = candidate.fit.speed
    if speed.speculative is None:
        return memory.VERDICT_LABELS[candidate.fit.verdict]
    speedup = pair_text.format_speedup(pair_text.find_speedup(speed, _DEFAULT_USE))
    return f"{pair_text.format_speed(speed.speculative):<14}  {speedup}"


def _downloadable_rows(
    pair_catalog: Catalog, survey: MachineSurvey, search_text: str
) -> Sequence[HomeRow]:
    if not search_text:
        best = survey.candidates[:_MAX_SUGGESTED]
        return [
            _downloadable_row(each.pair, each.total_bytes, _format_speed(each))
            for each in best
        ]
    pairs = pair_catalog.pairs.values()
    rows = (
        _downloadable_row(pair, pair.size or 0) for pair in pairs if pair.target.repo
    )
    return _filter_rows(rows, search_text)[:_MAX_MATCHES]


def _downloadable_row(pair: CatalogPair, size: int, note: str = "") -> HomeRow:
    uses = _describe_uses(pair)
    description = f"{uses} · {pair.status}" if uses else pair.status
    return HomeRow(
        pair.id, description, gb(size) if size else "?", note, reference=pair.id
    )


def _describe_uses(pair: CatalogPair) -> str:
    head = draft_kinds.head_title(pair.draft_kind)
    return " · ".join(
        filter(None, (", ".join(pair.use), f"{head} head" if head else ""))
    )


def _format_size(pair: ResolvedPair) -> str:
    try:
        return gib(
            sum(file.stat().st_size for file in {pair.target, pair.draft} if file)
        )
    except OSError:
        return "missing"


MAX_WIDTH = 120  # Cells of a line, as in localspec.tcss.
_NARROW_WIDTH = 32  # Terminals narrower than this show only names.
_MODEL_WIDTH = 16  # Cells for the model of a saved chat.


def draw_heading(
    section: HomeSection, width: int, user_keys: Mapping[str, str]
) -> Content:
    hint, id_ = "", section.binding_id
    if id_:
        hint = f"{key_label(id_, user_keys)} {BINDINGS_BY_ID[id_].footer_label}"
    gap = min(width, MAX_WIDTH) - len(section.heading) - len(hint) - 6
    hint = f"{' ' * gap}{hint}" if gap > 2 else ""
    return Content.assemble((f" {section.heading}", "$muted bold"), (hint, "$muted"))


def draw_row(row: HomeRow, pointed: bool, width: int) -> Content:
    width = min(width, MAX_WIDTH)
    pointer = "▸ " if pointed else "  "
    if row.download is not None:
        line = downloads.format_download(row.download, width - 6)
        return Content.assemble((pointer, "$accent"), line)
    name, description = (34, 34) if width >= 110 else (27, 32)
    if width < 80:  # narrow terminals have no description
        beside = 18 if width >= _NARROW_WIDTH else 7
        name, description = max(6, min(26, width - beside)), 0
    if row.chat_id is not None and description and row.found is None:
        # a chat's title matters more than its model
        name, description = name + description - _MODEL_WIDTH, _MODEL_WIDTH
    note = max(0, width - name - description - 20)
    return Content.assemble(
        (pointer, "$accent"),
        f"{fit_to_width(row.name, name)} ",
        (fit_to_width(row.description, description), "$muted"),
        f"{row.size:>10}  " if width >= _NARROW_WIDTH else "",
        (fit_to_width(row.note, note) if note > 12 else "", "$muted"),
    )
