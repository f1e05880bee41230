"""What Home lists: pairs that are here, pairs that could be, and what is on its way."""

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
from localspec.fit.report import MachineProfile
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
"""What speeds are said for where nobody was asked."""
_MAX_MATCHES = 20
_RUNNABLE_KINDS = ("model", "lookup", *draft_heads.SUPPORTED_KINDS)


@dataclass(frozen=True, slots=True)
class HomeRow:
    """One line: a pair to open, something to download, or a download."""

    name: str
    description: str = ""
    size: str = ""
    note: str = ""
    choice: ResolvedPair | None = None
    reference: str | None = None
    """What to pull."""
    download: DownloadState | None = None
    chat_id: int | None = None
    """One that was kept."""
    is_excerpt: bool = False
    """Whether `about` is what was found in it."""


@dataclass(frozen=True, slots=True)
class HomeSection:
    """Rows with a heading."""

    heading: str
    rows: tuple[HomeRow, ...]
    key_hint: str = ""
    """A key that has to do with them."""


@dataclass(frozen=True, slots=True)
class MachineSurvey:
    """What takes a while to find out of this computer: done after the first picture."""

    machine_label: str = ""
    free_memory: int = 0
    """Bytes of memory."""
    local_models: tuple[LocalModel, ...] = ()
    machine_profile: MachineProfile | None = None
    """Its devices."""
    candidates: tuple[Candidate, ...] = ()
    """What suits them, the best first."""
    unused_gpu_hint: str = ""
    """A card that this build of llama.cpp cannot use, and what to type."""


def survey_machine() -> MachineSurvey:
    """Look at memory, cores and the models on the disk."""
    import psutil  # noqa: PLC0415  not before the first picture

    from localspec.models import local_files  # noqa: PLC0415

    memory = psutil.virtual_memory()
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    words = f"{cores} cores · {gib(memory.total)}, {gib(memory.available)} free"
    return MachineSurvey(words, memory.available, local_files.list_models())


def refine_survey(survey: MachineSurvey) -> MachineSurvey:
    """With the devices and what suits them: llama.cpp is asked, and the catalogue priced."""
    place = machine_profile.detect()
    found = suggest_candidates(place, _DEFAULT_USE, WhatIf(), load_catalog()[0])
    machine = _describe_machine(place) or survey.machine_label
    return replace(
        survey,
        machine_label=machine,
        machine_profile=place,
        candidates=found,
        unused_gpu_hint=_find_unused_gpu(),
    )


def _find_unused_gpu() -> str:
    from localspec import doctor  # noqa: PLC0415  as above

    found = doctor.find_unused_gpu()
    again = f"Not again: localspec doctor --dismiss {found.id}" if found else ""
    return f"{found.what}. {found.fix} {again}" if found else ""


def _describe_machine(machine_profile: MachineProfile) -> str:
    """The best card; empty where there is none."""
    if not machine_profile.devices:
        return ""
    card = machine_profile.devices[0]
    memory = ""
    if card.total is not None and card.free is not None:
        memory = f"{gib(card.total)}, {gib(card.free)} free"
    others = f"and {len(machine_profile.devices) - 1} more" if machine_profile.devices[1:] else ""
    said = (card.description or card.name, memory, others, card.backend)
    return sanitize(" · ".join(filter(None, said)), multiline=False)


def load_catalog() -> tuple[Catalog, LocalspecError | None]:
    """The catalogue; where the person's own part is damaged, ours and what is wrong."""
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
    """Everything that `wanted` is a part of; without it, the few that suit this computer.

    `own`: a person's own keys.
    """
    here = _ready_rows(pair_catalog, survey)
    lately = [
        row for row in _recently_opened_rows() if row.choice not in [one.choice for one in here]
    ]
    away = (
        _search_catalog(pair_catalog, survey, search_text)
        if search_text
        else _suggested_rows(survey)
    )
    ids = {row.name for row in here}
    sections_ = [
        HomeSection("Ready to run", _filter_rows(here, search_text)),
        HomeSection("Opened lately", _filter_rows(lately, search_text)),
        HomeSection(
            "In the catalogue" if search_text else "Would fit here, not downloaded",
            tuple(row for row in away if row.name not in ids),
            f"{format_key(keys_for('home.wizard', user_keys)[0])} wizard",
        ),
        HomeSection("On the hub", tuple(map(_hub_row, hub_results))),
        HomeSection(
            "Downloads", tuple(HomeRow(state.job.path, download=state) for state in states)
        ),
    ]
    return [section for section in sections_ if section.rows]


def row_key_hints(row: HomeRow | None, user_keys: Mapping[str, str]) -> str:
    """The keys that do something with a row."""
    if row is None:
        return ""
    if row.download is not None:
        return downloads.download_key_hints(row.download, user_keys)
    if row.chat_id is not None:
        return f"enter go on  {format_key(keys_for('home.remove', user_keys)[0])} delete"
    if row.choice is not None:
        return f"enter open  {format_key(keys_for('home.bench', user_keys)[0])} bench"
    return "enter download"


def _filter_rows(rows: Iterable[HomeRow], search_text: str) -> tuple[HomeRow, ...]:
    words = search_text.lower().split()
    return tuple(r for r in rows if all(w in f"{r.name} {r.description}".lower() for w in words))


def find_ready_pairs(pair_catalog: Catalog, survey: MachineSurvey) -> dict[str, ResolvedPair]:
    """Pairs of the catalogue that may be opened, by their ids."""
    return {
        row.name: row.choice for row in _ready_rows(pair_catalog, survey) if row.choice is not None
    }


def _ready_rows(pair_catalog: Catalog, survey: MachineSurvey) -> list[HomeRow]:
    """The catalogue's pairs of which every file is here; the bundled one first."""
    files = {(one.repo, one.file): one.path for one in survey.local_models}
    speeds = {one.pair.id: _format_speed(one) for one in survey.candidates}
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
        if bundled and rows:  # its other drafts are for who asks for them
            continue
        about = f"{pair.title} · bundled" if bundled else _describe_uses(pair)
        note = "try it now" if bundled else speeds.get(pair.id, "")
        rows.append(HomeRow(pair.id, about, _format_size(choice), note, choice))
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
        return "no draft: copying"
    if choice.draft == choice.target:
        return "+ a layer of its own (MTP)"
    return f"+ {_model_stem(choice.draft)}"


def _suggested_rows(survey: MachineSurvey) -> list[HomeRow]:
    """The best for this computer: one for every target."""
    targets: set[str] = set()
    rows = []
    for one in survey.candidates:
        if one.pair.target.id not in targets and one.pair.target.repo is not None:
            targets.add(one.pair.target.id)
            rows.append(_downloadable_row(one.pair, one.total_bytes, _format_speed(one)))
    return rows[:_MAX_SUGGESTED]


def _format_speed(candidate: Candidate) -> str:
    """With its draft, and what that gains; where nobody knows, whether it fits."""
    if candidate.fit is None:
        return ""
    speed = candidate.fit.speed
    if speed.speculative is None:
        return fit_text.VERDICT_LABELS[candidate.fit.verdict]
    return (
        f"{fit_text.speed_text(speed.speculative):<14}  "
        f"{fit_text.speedup_text(fit_text.speedup_range(speed, _DEFAULT_USE))}"
    )


def _search_catalog(
    pair_catalog: Catalog, survey: MachineSurvey, search_text: str
) -> list[HomeRow]:
    rows = [
        _downloadable_row(
            pair, (pair.target.size or 0) + ((pair.draft.size or 0) if pair.draft else 0)
        )
        for pair in pair_catalog.pairs.values()
        if pair.target.repo is not None and pair.draft_kind in _RUNNABLE_KINDS
    ]
    return list(_filter_rows(rows, search_text))[:_MAX_MATCHES]


def _downloadable_row(pair: CatalogPair, size: int, note: str = "") -> HomeRow:
    about = f"{_describe_uses(pair)} · {pair.status}" if _describe_uses(pair) else pair.status
    shown = f"{gb(size)}" if size else "?"
    return HomeRow(pair.id, about, shown, sanitize(note, multiline=False), reference=pair.id)


def _describe_uses(pair: CatalogPair) -> str:
    """What for, and which head drafts, if one does."""
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
        return "gone"
