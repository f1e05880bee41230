"""The rows of Home: installed pairs, suggested pairs, hub results and downloads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from localspec import paths
from localspec.errors import LocalspecError
from localspec.fit import machine_profile
from localspec.fit.machine_profile import MachineProfile
from localspec.launch import ResolvedPair, recent_pairs
from localspec.models import catalog, draft_heads
from localspec.models.catalog import Catalog, CatalogModel, CatalogPair
from localspec.sanitize import sanitize
from localspec.tui import downloads
from localspec.tui.key_bindings import format_key, keys_for
from localspec.tui.wizard import fit_text
from localspec.tui.wizard.shortlist import Candidate, suggest_candidates
from localspec.tui.wizard.what_if import WhatIf
from localspec.units import gb, gib

if TYPE_CHECKING:
    from localspec.models.hub.client import HubSearchResult
    from localspec.models.hub.download import DownloadState
    from localspec.models.local_files.local_model import LocalModel

_MAX_SUGGESTED = 5
_DEFAULT_USE = "chat"
"""The use that speed estimates on Home are for."""
_MAX_MATCHES = 20
_RUNNABLE_KINDS = ("model", "lookup", *draft_heads.SUPPORTED_KINDS)


@dataclass(frozen=True, slots=True)
class HomeRow:
    """A pair to open, a saved chat, a pair or repository to download, or a download."""

    name: str
    description: str = ""
    size: str = ""
    note: str = ""
    choice: ResolvedPair | None = None
    reference: str | None = None
    """What to download, as `localspec pull` accepts it."""
    download: DownloadState | None = None
    chat_id: int | None = None
    is_excerpt: bool = False
    """Whether `description` is a search match within the chat."""


@dataclass(frozen=True, slots=True)
class HomeSection:
    heading: str
    rows: tuple[HomeRow, ...]
    key_hint: str = ""
    """A key for all these rows, shown beside the heading."""


@dataclass(frozen=True, slots=True)
class MachineSurvey:
    """What is known of this computer; it takes a while, so Home is drawn first."""

    machine_label: str = ""
    free_memory: int = 0
    """Bytes of main memory."""
    local_models: tuple[LocalModel, ...] = ()
    machine_profile: MachineProfile | None = None
    candidates: tuple[Candidate, ...] = ()
    """Suitable pairs, the best first."""
    unused_gpu_hint: str = ""
    """Names a GPU that this build of llama.cpp cannot use, and the command that fixes it."""


def survey_machine() -> MachineSurvey:
    """The fast part: memory, cores, and the models on disk."""
    import psutil  # noqa: PLC0415  not before the first frame

    from localspec.models import local_files  # noqa: PLC0415

    memory = psutil.virtual_memory()
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    label = f"{cores} cores · {gib(memory.total)}, {gib(memory.available)} free"
    return MachineSurvey(label, memory.available, local_files.list_models())


def refine_survey(survey: MachineSurvey) -> MachineSurvey:
    """The slow part: asks llama.cpp for devices, and estimates the pairs of the catalogue."""
    profile = machine_profile.detect()
    return replace(
        survey,
        machine_label=_describe_machine(profile) or survey.machine_label,
        machine_profile=profile,
        candidates=suggest_candidates(profile, _DEFAULT_USE, WhatIf(), load_catalog()[0]),
        unused_gpu_hint=_find_unused_gpu(),
    )


def _find_unused_gpu() -> str:
    from localspec import doctor  # noqa: PLC0415  many imports

    found = doctor.find_unused_gpu()
    if not found:
        return ""
    return f"{found.what}. {found.fix} To hide this: localspec doctor --dismiss {found.id}"


def _describe_machine(machine_profile: MachineProfile) -> str:
    """The first GPU; empty if there is none."""
    if not machine_profile.devices:
        return ""
    gpu, *more = machine_profile.devices
    memory = ""
    if gpu.total is not None and gpu.free is not None:
        memory = f"{gib(gpu.total)}, {gib(gpu.free)} free"
    others = f"and {len(more)} more" if more else ""
    parts = (gpu.description or gpu.name, memory, others, gpu.backend)
    return sanitize(" · ".join(filter(None, parts)), multiline=False)


def load_catalog() -> tuple[Catalog, LocalspecError | None]:
    """The catalogue; if the user's models.yaml is invalid, the built-in part and the error."""
    try:
        return catalog.load(), None
    except LocalspecError as error:
        return catalog.load(paths.catalog_file()), error


def build_sections(
    pair_catalog: Catalog,
    survey: MachineSurvey,
    search_text: str = "",
    states: Sequence[DownloadState] = (),
    hub_results: Sequence[HubSearchResult] = (),
    user_keys: Mapping[str, str] = MappingProxyType({}),
) -> list[HomeSection]:
    """The non-empty sections: all matches of `search_text`; without it, the suggestions."""
    ready = _ready_rows(pair_catalog, survey)
    ready_choices = [row.choice for row in ready]
    recent = [row for row in _recently_opened_rows() if row.choice not in ready_choices]
    downloadable = (
        _search_catalog(pair_catalog, search_text) if search_text else _suggested_rows(survey)
    )
    ready_ids = {row.name for row in ready}
    sections = [
        HomeSection("Ready to run", _filter_rows(ready, search_text)),
        HomeSection("Recent", _filter_rows(recent, search_text)),
        HomeSection(
            "In the catalogue" if search_text else "Fits this computer, not downloaded",
            tuple(row for row in downloadable if row.name not in ready_ids),
            f"{format_key(keys_for('home.wizard', user_keys)[0])} wizard",
        ),
        HomeSection("On the hub", tuple(map(_hub_row, hub_results))),
        HomeSection(
            "Downloads", tuple(HomeRow(state.job.path, download=state) for state in states)
        ),
    ]
    return [section for section in sections if section.rows]


def row_key_hints(row: HomeRow | None, user_keys: Mapping[str, str]) -> str:
    if row is None:
        return ""
    if row.download is not None:
        return downloads.download_key_hints(row.download, user_keys)
    if row.chat_id is not None:
        return f"enter continue  {format_key(keys_for('home.remove', user_keys)[0])} delete"
    if row.choice is not None:
        return f"enter open  {format_key(keys_for('home.bench', user_keys)[0])} bench"
    return "enter download"


def _filter_rows(rows: Iterable[HomeRow], search_text: str) -> tuple[HomeRow, ...]:
    words = search_text.lower().split()
    return tuple(r for r in rows if all(w in f"{r.name} {r.description}".lower() for w in words))


def find_ready_pairs(pair_catalog: Catalog, survey: MachineSurvey) -> dict[str, ResolvedPair]:
    """The installed pairs of the catalogue, by id."""
    return {
        row.name: row.choice for row in _ready_rows(pair_catalog, survey) if row.choice is not None
    }


def _ready_rows(pair_catalog: Catalog, survey: MachineSurvey) -> list[HomeRow]:
    """The catalogue's pairs whose files are all on this computer; the bundled one first."""
    files = {(model.repo, model.file): model.path for model in survey.local_models}
    speeds = {c.pair.id: _format_speed(c) for c in survey.candidates}
    rows: list[HomeRow] = []
    for pair in pair_catalog.pairs.values():
        target, draft = _local_path(pair.target, files), _local_path(pair.draft, files)
        if target is None or (pair.draft is not None and draft is None):
            continue
        if pair.draft_kind not in _RUNNABLE_KINDS:
            continue
        choice = ResolvedPair(
            target, draft, pair.spec, pair.why, pair.settings, requested_refs=(pair.id, "auto")
        )
        bundled = pair.target.repo is None
        if bundled and rows:  # one row for the bundled model; its other drafters are not listed
            continue
        description = f"{pair.title} · bundled" if bundled else _describe_uses(pair)
        note = "try it now" if bundled else speeds.get(pair.id, "")
        rows.append(HomeRow(pair.id, description, _format_size(choice), note, choice))
    return rows


def _local_path(
    model: CatalogModel | None, files: dict[tuple[str | None, str], Path]
) -> Path | None:
    if model is None:
        return None
    return model.path or files.get((model.repo, model.file))


def _recently_opened_rows() -> list[HomeRow]:
    rows = []
    for choice in recent_pairs.load():
        draft = _describe_draft(choice)
        where = sanitize(str(choice.target.parent), multiline=False)
        rows.append(HomeRow(_model_stem(choice.target), draft, _format_size(choice), where, choice))
    return rows


def _describe_draft(choice: ResolvedPair) -> str:
    if choice.draft is None:
        return "prompt lookup, no draft model"
    if choice.draft == choice.target:
        return "+ built-in MTP layer"
    return f"+ {_model_stem(choice.draft)}"


def _suggested_rows(survey: MachineSurvey) -> list[HomeRow]:
    """The best pairs for this computer, one per target."""
    targets: set[str] = set()
    rows = []
    for candidate in survey.candidates:
        pair = candidate.pair
        if pair.target.id not in targets and pair.target.repo is not None:
            targets.add(pair.target.id)
            rows.append(_downloadable_row(pair, candidate.total_bytes, _format_speed(candidate)))
    return rows[:_MAX_SUGGESTED]


def _format_speed(candidate: Candidate) -> str:
    """Speed with speculation, and the speed-up; if unknown, whether the pair fits."""
    if candidate.fit is None:
        return ""
    speed = candidate.fit.speed
    if speed.speculative is None:
        return fit_text.VERDICT_LABELS[candidate.fit.verdict]
    return (
        f"{fit_text.speed_text(speed.speculative):<14}  "
        f"{fit_text.speedup_text(fit_text.speedup_range(speed, _DEFAULT_USE))}"
    )


def _search_catalog(pair_catalog: Catalog, search_text: str) -> list[HomeRow]:
    rows = [
        _downloadable_row(
            pair, (pair.target.size or 0) + ((pair.draft.size or 0) if pair.draft else 0)
        )
        for pair in pair_catalog.pairs.values()
        if pair.target.repo is not None and pair.draft_kind in _RUNNABLE_KINDS
    ]
    return list(_filter_rows(rows, search_text))[:_MAX_MATCHES]


def _downloadable_row(pair: CatalogPair, size: int, note: str = "") -> HomeRow:
    uses = _describe_uses(pair)
    description = f"{uses} · {pair.status}" if uses else pair.status
    size_label = gb(size) if size else "?"
    return HomeRow(
        pair.id, description, size_label, sanitize(note, multiline=False), reference=pair.id
    )


def _describe_uses(pair: CatalogPair) -> str:
    """The uses of a pair, and the kind of its head."""
    head = (
        f"{draft_heads.KIND_TITLES[pair.draft_kind]} head"
        if pair.draft_kind in draft_heads.KIND_TITLES
        else ""
    )
    return " · ".join(filter(None, (", ".join(pair.use), head)))


def _hub_row(repo: HubSearchResult) -> HomeRow:
    name = sanitize(repo.repo, multiline=False)
    downloads = f"{repo.downloads:,} downloads" if repo.downloads else ""
    return HomeRow(name, downloads, "gated" if repo.gated else "", reference=repo.repo)


def _model_stem(path: Path) -> str:
    return sanitize(path.name.removesuffix(".gguf"), multiline=False)


def _format_size(choice: ResolvedPair) -> str:
    files = {choice.target, choice.draft}
    try:
        return gib(sum(file.stat().st_size for file in files if file is not None))
    except OSError:
        return "missing"
