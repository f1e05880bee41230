"""The rows of Home: which pairs and downloads there are, and how a row is drawn."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace
from textual.content import Content

from localspec import draft_kinds
from localspec.chat import presets
from localspec.config.key_table import BINDINGS_BY_ID
from localspec.fit import machine_profile
from localspec.fit.machine_profile import MachineProfile
from localspec.launch import ResolvedPair, recent_pairs
from localspec.machine import remote_devices
from localspec.models import catalog, model_lookup, model_names, reference
from localspec.models.catalog import Catalog, CatalogModel, CatalogPair
from localspec.models.local_files.local_model import ORIGIN_TITLES
from localspec.tui import downloads
from localspec.tui.key_bindings import key_label
from localspec.tui.text.wrapping import fit_to_width, one_line
from localspec.tui.widgets.screen_frame import PAGE_WIDTH
from localspec.tui.wizard.shortlist import (
    CLOSE_PROGRAMS,
    Candidate,
    suggest_candidates,
)
from localspec.tui.wizard.what_if import WhatIf
from localspec.units import about_rate, gb, gib

if TYPE_CHECKING:
    from localspec.chat.history import SearchHit
    from localspec.models.hub.client import HubSearchResult
    from localspec.models.hub.download import DownloadState
    from localspec.models.local_files.local_model import LocalModel

_MAX_SUGGESTED = 3
_MAX_LISTED = 12  # Recent pairs, and other models, that are listed without a search.
_DEFAULT_USE = "chat"  # The use that speed estimates on Home are for.
_MAX_MATCHES = 20
SEES = "sees"
"""What a row says of a model that reads pictures."""


class HomeRow(Struct, frozen=True):
    """A pair to open, a saved chat, a pair or repository to download, or a download."""

    name: str
    description: str = ""
    size: str = ""
    speed: str = ""  # The middle of an estimate.
    note: str = ""
    pair: ResolvedPair | None = None
    reference: str | None = None  # What to download, as `localspec pull` accepts it.
    download: DownloadState | None = None
    chat_id: int | None = None
    is_pinned: bool = False
    period: str = ""  # Of a saved chat, in the list of all chats.
    preset: str = ""  # The name of a preset for a new chat.
    # A search match within the chat; `description` is its excerpt.
    found: SearchHit | None = None
    hub_search_text: str = ""
    """Words to search the hub for: only this row sends what was typed to it."""
    is_included: bool = False  # Whether the pair came with localspec.

    @property
    def reference_text(self) -> str:
        """What one would type to open or download it; the search finds it, too."""
        if self.reference is not None:
            return self.reference
        if self.pair is None:
            return ""
        model, _ = self.pair.requested_refs or ("", "")
        return f"{model} {self.pair.target.name}"

    @property
    def key(self) -> tuple[object, ...]:
        """Identifies the row by what it opens: names are not unique.

        Two folders may hold files of one name, two repositories, too; several chats may
        have one title, and a preset the name of a pair.
        """
        if self.chat_id is not None:
            return ("chat", self.chat_id)
        if self.pair is not None:
            return ("pair", self.pair.requested_refs, *self.pair.files)
        if self.download is not None:
            job = self.download.job
            return ("download", job.repo, job.commit, job.file.path)
        if self.preset:
            return ("preset", self.preset)
        if self.reference is not None:
            return ("reference", self.reference)
        return ("hub search",)


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
    """A GPU that this build of llama.cpp cannot use, and the command that fixes it."""
    projectors: Mapping[Path, Path] = field(default_factory=dict)
    """The projector of each local model that has one, by the file of the model."""


def survey_machine() -> MachineSurvey:
    """The fast part: memory, cores, and the models on disk."""
    import psutil  # noqa: PLC0415  not before the first frame

    from localspec.models import projectors  # noqa: PLC0415
    from localspec.models.local_files import inventory  # noqa: PLC0415

    memory = psutil.virtual_memory()
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    label = f"{cores} cores · {gib(memory.total)}, {gib(memory.available)} free"
    models = inventory.list_models()
    return MachineSurvey(label, models, projectors=projectors.map_projectors(models))


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
        joint = "with" if host in profile.remote_hosts else "without"
        label += f" · {joint} {host}"
    catalogue, _ = catalog.load_valid()
    unused_gpu_hint = ""
    unused = llama_build.find_unused_gpu()
    if unused is not None:
        hide = f"To hide this: localspec doctor --dismiss {unused.id}"
        unused_gpu_hint = f"{unused.what}. {unused.fix} {hide}"
    return replace(
        survey,
        machine_label=label,
        machine_profile=profile,
        candidates=suggest_candidates(profile, _DEFAULT_USE, WhatIf(), catalogue),
        unused_gpu_hint=unused_gpu_hint,
    )


def _describe_machine(machine_profile: MachineProfile) -> str:
    """The first GPU; empty if there is none."""
    if not machine_profile.devices:
        return ""
    gpu, *more = machine_profile.devices
    parts = [gpu.description or gpu.name]
    if gpu.total is not None and gpu.free is not None:
        parts.append(f"{gib(gpu.total)}, {gib(gpu.free)} free")
    if more:
        parts.append(f"and {len(more)} more")
    if gpu.backend:
        parts.append(gpu.backend)
    return one_line(" · ".join(parts))


def build_sections(
    pair_catalog: Catalog,
    survey: MachineSurvey,
    *,
    search_text: str,
    chats: HomeSection,
    hub_results: Sequence[HubSearchResult],
    download_states: Sequence[DownloadState],
) -> list[HomeSection]:
    """The sections that have rows.

    With a search text, its matches, those on this computer first; without one, what can
    be opened, and suggestions.
    """
    ready = _ready_rows(pair_catalog, survey)
    ready_pairs = find_ready_pairs(pair_catalog, survey)
    listed = [row.pair.files for row in ready if row.pair is not None]
    recent = [
        row
        for row in _recently_opened_rows(survey)
        if row.pair is not None and row.pair.files not in listed
    ]
    shown_pairs = [*ready_pairs.values(), *(row.pair for row in recent if row.pair)]
    others = _other_model_rows(survey, shown_pairs)
    ready_targets = {
        catalog.own_id(pair_catalog.pairs[catalog.own_id(id_)].target.id)
        for id_ in ready_pairs
    }
    downloadable = []
    for candidate in _find_suggested(pair_catalog, survey, search_text):
        if catalog.own_id(candidate.pair.target.id) not in ready_targets:
            downloadable.append(_downloadable_row(candidate, survey))
    rows = _download_rows(pair_catalog, download_states, search_text)
    running = [row for row in rows if not _is_done(row)]
    done = [row for row in rows if _is_done(row)]

    def matching(heading: str, rows: Iterable[HomeRow]) -> HomeSection:
        return HomeSection(heading, _filter_rows(rows, search_text))

    if search_text:
        sections = [
            matching("Ready to run", ready),
            chats,
            matching("Recent", recent),
            matching("Other models on this computer", others),
            matching("New chat with a preset", _preset_rows()),
            HomeSection("In the catalogue", tuple(downloadable)),
            HomeSection(
                "On the hub (network)",
                tuple(_hub_rows(search_text, hub_results, survey)),
            ),
            HomeSection("Downloaded", tuple(done)),
            HomeSection("Downloads", tuple(running)),
        ]
    else:
        sections = [
            HomeSection("Downloads", tuple(running)),
            HomeSection("Ready to run", tuple(ready)),
            chats,
            HomeSection("Recent", tuple(recent[:_MAX_LISTED])),
            HomeSection("Other models on this computer", tuple(others[:_MAX_LISTED])),
            HomeSection("New chat with a preset", tuple(_preset_rows())),
            HomeSection(_suggested_heading(survey), tuple(downloadable), "home.wizard"),
            HomeSection("Downloaded", tuple(done)),
        ]
    return [section for section in sections if section.rows]


def _download_rows(
    pair_catalog: Catalog, states: Sequence[DownloadState], search_text: str
) -> list[HomeRow]:
    """With a search text, those that it names: by name, file, repository or pair.

    So a download is seen where it was begun, in the search for its pair.
    """
    names = downloads.name_downloads(states)
    rows = []
    for state in states:
        words = [names[state.job], state.job.repo, state.job.file.path]
        for pair in pair_catalog.pairs.values():
            models = [pair.target] if pair.draft is None else [pair.target, pair.draft]
            if any(model.repo == state.job.repo for model in models):
                words += [pair.id, pair.name, pair.title]
        if has_all_words(" ".join(words), search_text):
            rows.append(HomeRow(names[state.job], download=state))
    return rows


def _is_done(row: HomeRow) -> bool:
    return row.download is not None and row.download.phase == "done"


def _preset_rows() -> list[HomeRow]:
    return [
        HomeRow(preset.name, preset.summary, preset=preset.name)
        for preset in presets.load().values()
    ]


def _hub_rows(
    search_text: str, results: Sequence[HubSearchResult], survey: MachineSurvey
) -> Iterator[HomeRow]:
    """The results; before there are any, the row that searches."""
    speeds = _HubSpeeds(survey.candidates)
    if not results:
        shown = f"“{one_line(search_text)}”"
        yield HomeRow(
            "Search the hub", shown, note="sends this text", hub_search_text=search_text
        )
    for found in results:
        popularity = f"{found.downloads:,} downloads" if found.downloads else ""
        access = "gated" if found.gated else ""
        yield HomeRow(
            name=one_line(found.repo),
            description=popularity,
            size=access,
            speed=speeds.describe(found.repo),
            reference=found.repo,
        )


class _HubSpeeds:
    """Speeds of the hub's repositories, which it does not give the sizes of.

    So they are known of the catalogue's models. Other uploads of such a model, which
    have its name, are as large; the draft may not be for them, so theirs is the speed
    without it.
    """

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._by_repo: dict[str, str] = {}
        self._by_model: dict[str, str] = {}
        for candidate in candidates:
            repo = candidate.pair.target.repo
            if repo is None:
                continue
            self._by_repo.setdefault(repo, _format_speed(candidate))
            plain = _format_rate(candidate.plain_rate or candidate.rate)
            self._by_model.setdefault(reference.model_of_repo(repo), plain)

    def describe(self, repo: str) -> str:
        """Empty if it is unknown."""
        model = reference.model_of_repo(repo)
        return self._by_repo.get(repo) or self._by_model.get(model, "")


def row_key_hints(
    row: HomeRow | None, user_keys: Mapping[str, str], *, typing: bool = False
) -> str:
    """What the keys do with a row; while `typing`, letters are text."""
    if row is None:
        return ""
    if row.download is not None:
        return "" if typing else downloads.download_key_hints(row.download, user_keys)
    if row.chat_id is not None:
        if typing:
            return "enter continue"
        return f"enter continue  {key_label('home.remove', user_keys)} delete"
    if row.pair is not None:
        if typing:
            return "enter open"
        return f"enter open  {key_label('home.bench', user_keys)} bench"
    if row.hub_search_text:
        return "enter search the hub"
    if row.preset:
        return "enter new chat"
    return "enter download"


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
    matching = []
    for row in rows:
        if has_all_words(
            f"{row.name} {row.description} {row.reference_text}", search_text
        ):
            matching.append(row)
    return tuple(matching)


def has_all_words(text: str, search_text: str) -> bool:
    """Whether each word of the search is in the text, in whichever form of Unicode.

    macOS names files with `ü` as `u` and a combining mark; keyboards type one character.
    """
    lower_text = unicodedata.normalize("NFC", text).lower()
    words = unicodedata.normalize("NFC", search_text).lower().split()
    return all(word in lower_text for word in words)


def find_ready_pairs(
    pair_catalog: Catalog, survey: MachineSurvey
) -> dict[str, ResolvedPair]:
    """The pairs of the catalogue whose files are all on this computer, by id."""

    def find_path(model: CatalogModel) -> Path | None:
        if model.path is not None:
            return model.path
        for local in survey.local_models:
            if model.is_file(local.repo, local.file):
                return local.path
        return None

    ready: dict[str, ResolvedPair] = {}
    pairs = model_lookup.ready_pairs(survey.local_models, pair_catalog)
    for pair in pairs:
        target = find_path(pair.target)
        draft = find_path(pair.draft) if pair.draft is not None else None
        if target is not None:
            ready[pair.id] = ResolvedPair(
                target,
                draft,
                spec=pair.spec,
                spec_reason=pair.why,
                suggested_settings=pair.settings,
                requested_refs=(pair.id, "auto"),
            )
    return ready


def _ready_rows(pair_catalog: Catalog, survey: MachineSurvey) -> list[HomeRow]:
    """The starter first, the bundled model last.

    Each of these two has one row, for the first of its pairs.
    """
    speeds = {each.pair.id: _format_speed(each) for each in survey.candidates}
    ready = find_ready_pairs(pair_catalog, survey)
    pairs = [pair_catalog.pairs[catalog.own_id(id_)] for id_ in ready]
    listed = {pair.id for pair in model_lookup.leave_out_spare_lookup(pairs)}
    starters: dict[str, HomeRow] = {}
    downloaded: list[HomeRow] = []
    bundled: list[HomeRow] = []
    for id_, resolved in ready.items():
        pair = pair_catalog.pairs[catalog.own_id(id_)]
        if pair.id not in listed:
            continue
        _, _, type_ = id_.partition(":")
        target = pair.target.find_type(type_) if type_ else None
        names = model_names.name_catalog_pair(pair.with_target(target or pair.target))
        row = HomeRow(
            name=names.target,
            description=_describe_ready(
                pair, names.draft, sees=resolved.target in survey.projectors
            ),
            size=_format_size(resolved, survey.projectors.get(resolved.target)),
            speed=speeds.get(id_, ""),
            pair=resolved,
        )
        if pair.target.repo is None:
            bundled.append(
                replace(
                    row,
                    description=f"{pair.title}, bundled",
                    note="shows how speculation works",
                    is_included=True,
                )
            )
        elif pair.target.package and (pair.draft is None or pair.draft.repo is None):
            starter = replace(
                row,
                description=pair.title,
                is_included=True,
            )
            starters.setdefault(pair.target.id, starter)
        else:
            downloaded.append(row)
    return [*starters.values(), *downloaded, *bundled[:1]]


def _recently_opened_rows(survey: MachineSurvey) -> list[HomeRow]:
    ollama_names = _ollama_names(survey)
    files = _file_names(survey)
    rows = []
    for opened in recent_pairs.load():
        pair = opened
        name = ollama_names.get(opened.target)
        if name:
            _, draft_ref = opened.portable_refs
            pair = replace(opened, requested_refs=(name, draft_ref))
        names = pair.names(files)
        draft = f"guesses: {names.draft}" if names.draft else "no draft model"
        rows.append(
            HomeRow(
                name=names.target,
                description=draft,
                size=_format_size(pair, survey.projectors.get(pair.target)),
                note=one_line(str(pair.target.parent)),
                pair=pair,
            )
        )
    return rows


def _ollama_names(survey: MachineSurvey) -> dict[Path, str]:
    """Names that open Ollama's models, by their files, whose names are checksums."""
    return {
        model.path: model.own_name
        for model in survey.local_models
        if model.origin == "ollama" and "/" not in model.own_name
    }


def _other_model_rows(
    survey: MachineSurvey, listed: Iterable[ResolvedPair]
) -> list[HomeRow]:
    """Models on disk that are in no pair of `listed`, such as those of LM Studio."""
    listed_paths: set[Path | None] = set()
    for pair in listed:
        listed_paths |= {pair.target, pair.draft}
    ollama_names = _ollama_names(survey)
    names = _file_names(survey)
    rows = []
    for model in survey.local_models:
        is_model = model.origin == "ollama" or reference.is_model(model.file)
        if not is_model or model.path in listed_paths:
            continue
        if model_lookup.is_spare_copy(model, survey.local_models):
            continue
        name = names[model.path]
        description = model.repo or ORIGIN_TITLES[model.origin]
        if model.path in survey.projectors:
            description += f" · {SEES}"
        folder = ""
        if "/" in name and model.repo is None:
            folder = one_line(str(model.path.parent))
            description = _last_cells(folder)
        refs = None
        if model.origin == "ollama":
            name = one_line(model.own_name.rpartition("/")[2])
        if model.path in ollama_names:
            refs = (ollama_names[model.path], "auto")
        rows.append(
            HomeRow(
                name=name,
                description=description,
                size=gb(model.size),
                note=folder,
                pair=ResolvedPair(model.path, None, requested_refs=refs),
            )
        )
    return rows


def _file_names(survey: MachineSurvey) -> dict[Path, str]:
    """The name of each model file of this computer, told apart from all others."""
    files = [model.path for model in survey.local_models]
    for pair in recent_pairs.load():
        files += [file for file in pair.files if file is not None]
    return model_names.name_files(files)


def _last_cells(folder: str) -> str:
    """The end of a path, which tells folders apart where there is little room."""
    n_cells = 30
    return folder if len(folder) <= n_cells else f"…{folder[1 - n_cells :]}"


def _format_speed(candidate: Candidate) -> str:
    """The middle of the estimate; empty if it is unknown."""
    return _format_rate(candidate.rate)


def _format_rate(rate: float | None) -> str:
    return "" if rate is None else f"{about_rate(rate)} tok/s"


def _find_suggested(
    pair_catalog: Catalog, survey: MachineSurvey, search_text: str
) -> list[Candidate]:
    """The best for this computer; with a search text, each model that matches, once."""
    if not search_text:
        best = [each for each in survey.candidates if each.is_best]
        return best or list(survey.candidates[:_MAX_SUGGESTED])
    found: dict[str, Candidate] = {}
    others = [Candidate(pair, pair.size or 0) for pair in pair_catalog.pairs.values()]
    for candidate in (*survey.candidates, *others):
        pair = candidate.pair
        text = f"{pair.id} {pair.name} {pair.title} {_describe_uses(pair)}"
        if pair.target.repo is not None and has_all_words(text, search_text):
            found.setdefault(catalog.own_id(pair.target.id), candidate)
    return list(found.values())[:_MAX_MATCHES]


def _suggested_heading(survey: MachineSurvey) -> str:
    title = "For this computer"
    if survey.candidates and survey.candidates[0].group:
        title = survey.candidates[0].group
    return f"{title}, not downloaded"


def _downloadable_row(candidate: Candidate, survey: MachineSurvey) -> HomeRow:
    pair = candidate.pair
    description = _describe_uses(pair)
    if candidate.group_reason:
        description = candidate.group_reason
        if pair.target.sees:
            description = f"{SEES} · {description}"
    if candidate.bytes_to_free:
        description = CLOSE_PROGRAMS
    elif _is_known_not_to_fit(pair, survey):
        description = "does not fit this computer"
    size = "?"
    if candidate.total_bytes:
        size = gb(candidate.download_bytes)
    plain = ""
    if candidate.plain_rate is not None:
        plain = f"{about_rate(candidate.plain_rate)} without draft"
    return HomeRow(
        name=model_names.name_model(pair.target),
        description=description,
        size=size,
        speed=_format_speed(candidate),
        note=plain,
        reference=pair.id,
    )


def _is_known_not_to_fit(pair: CatalogPair, survey: MachineSurvey) -> bool:
    """The survey has the models of the catalogue that fit, if it has been made."""
    if not survey.candidates:
        return False
    target = catalog.own_id(pair.target.id)
    fitting = [catalog.own_id(each.pair.target.id) for each in survey.candidates]
    return target not in fitting


def _describe_ready(pair: CatalogPair, draft: str, *, sees: bool) -> str:
    """What guesses tells the pairs of one target apart."""
    parts = [f"guesses: {draft}"] if draft else []
    if pair.use:
        parts.append(", ".join(pair.use))
    if sees:
        parts.append(SEES)
    return " · ".join(parts)


def _describe_uses(pair: CatalogPair) -> str:
    parts = [", ".join(pair.use)] if pair.use else []
    head = draft_kinds.head_title(pair.draft_kind)
    if head:
        parts.append(f"{head} head")
    if pair.target.sees:
        parts.append(SEES)
    return " · ".join(parts)


def _format_size(pair: ResolvedPair, projector: Path | None = None) -> str:
    """The size of the pair's files; a head may be in the target's file."""
    files = {file for file in pair.files if file is not None}
    if projector is not None:
        files.add(projector)
    try:
        return gb(sum(file.stat().st_size for file in files))
    except OSError:
        return "missing"


# --- drawing
# ----------------------------------------------------------------------------------

_NARROW_WIDTH = 32  # Terminals narrower than this show only names.
_MIN_NOTE_WIDTH = 20
"""A note that is longer than its column is cut if it has so many cells, else left out."""
_ROW_MARGINS = 5  # Both sides, and a scroll bar.
_MODEL_WIDTH = 16  # Cells for the model of a saved chat.


def draw_heading(
    section: HomeSection, width: int, user_keys: Mapping[str, str]
) -> Content:
    hint = _heading_hint(section, width, user_keys)
    return Content.assemble((section.heading, "$muted bold"), (hint, "$muted"))


def _heading_hint(
    section: HomeSection, width: int, user_keys: Mapping[str, str]
) -> str:
    """The key of a section, if it has one, at the right edge; empty without room."""
    hint = ""
    id_ = section.binding_id
    if id_:
        binding = BINDINGS_BY_ID[id_]
        label = binding.footer_label or binding.description.lower()
        hint = f"{key_label(id_, user_keys)} {label}"
    gap = min(width, PAGE_WIDTH) - len(section.heading) - len(hint) - 5
    if gap <= 2:
        return ""
    return f"{' ' * gap}{hint}"


def draw_row(row: HomeRow, width: int) -> Content:
    width = min(width, PAGE_WIDTH)
    if row.download is not None:
        return downloads.format_download(row.download, row.name, width - 6)
    columns = _row_columns(row, width)
    size = row.size.rjust(columns.size) if columns.size else ""
    speed = row.speed.rjust(columns.speed) if columns.speed else ""
    note = ""
    if len(row.note) <= columns.note or columns.note >= _MIN_NOTE_WIDTH:
        note = f"  {fit_to_width(row.note, columns.note)}"
    description = fit_to_width(row.description, columns.description)
    return Content.assemble(
        f"{fit_to_width(row.name, columns.name)} ",
        (description, "$muted"),
        size,
        speed,
        (note, "$muted"),
    )


class _RowColumns(Struct, frozen=True):
    """Widths in cells. Figures end in one column, whatever kind of row they are of."""

    name: int
    description: int
    size: int
    speed: int
    note: int


def _row_columns(row: HomeRow, width: int) -> _RowColumns:
    name = 23
    description = 30
    size = 9
    speed = 12
    if width >= 110:
        name = 34
        description = 34
        size = 10
        speed = 13
    elif width < _NARROW_WIDTH:
        name = max(6, width - 7)
        description = 0
        size = 0
    elif width < 80:
        name = min(26, width - 18)
        description = 0
        size = 10
    if row.chat_id is not None and description and row.found is None:
        # A chat's title matters more than its model.
        name += description - _MODEL_WIDTH
        description = _MODEL_WIDTH
    used = name + len(" ") + description + size
    if row.speed and description:
        used += speed
    else:
        speed = 0
    note = max(0, width - _ROW_MARGINS - used - len("  "))
    return _RowColumns(name, description, size, speed, note)
