"""The app's downloads: one queue for all screens, and its rows on Home."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from textual.content import Content

from localspec import data_files
from localspec.models import model_names
from localspec.paths import DataFile
from localspec.protocol.json_values import from_json
from localspec.symbols import draw_bar
from localspec.tui.key_bindings import key_label
from localspec.tui.text.wrapping import fit_to_width, one_line
from localspec.units import bytes_per_second, duration, gb

if TYPE_CHECKING:
    from localspec.models.hub.cached_file import DownloadJob
    from localspec.models.hub.client import HubClient
    from localspec.models.hub.download import DownloadState
    from localspec.models.hub.download_queue import DownloadQueue


class DownloadManager:
    """Creates the hub client and the queue on first use.

    Partial files stay, so that a download can be resumed.
    """

    def __init__(
        self, hub: HubClient | None = None, limit: float | None = None
    ) -> None:
        """`limit`: bytes per second of all downloads together."""
        self._limit = limit
        self._hub = hub
        self._queue: DownloadQueue | None = None
        self._saved_jobs: list[dict[str, Any]] = []

    @property
    def hub(self) -> HubClient:
        """The client, created at the first access, on the thread that asks."""
        if self._hub is None:
            from localspec.models.hub.client import HubClient  # noqa: PLC0415  takes 200 ms

            self._hub = HubClient()
        return self._hub

    @property
    def queue(self) -> DownloadQueue:
        if self._queue is None:
            from localspec.models.hub.download_queue import DownloadQueue  # noqa: PLC0415  slow to import

            self._queue = DownloadQueue(self.hub, limit_bytes_s=self._limit)
        return self._queue

    def apply_settings(self, limit: float | None, offline: bool) -> None:
        """Applies to running downloads, too; going offline pauses them."""
        self._limit = limit
        if self._queue is not None:
            self._queue.set_rate_limit(limit)
        if self._hub is not None:
            self._hub.offline = offline
        if offline:
            for state in self.states():
                if state.phase in ("loading", "waiting"):
                    self.queue.pause(state.job)

    def add(self, jobs: Iterable[DownloadJob]) -> None:
        for job in jobs:
            self.queue.add(job)

    def states(self) -> tuple[DownloadState, ...]:
        return self._queue.states() if self._queue is not None else ()

    def restore(self) -> None:
        """The downloads that were not finished when the app was left, paused.

        Takes a while.
        """
        entries = data_files.read_list(DataFile.DOWNLOADS, dict[str, Any])
        if not entries:
            return
        from localspec.models.hub.cached_file import DownloadJob  # noqa: PLC0415  slow to import

        for entry in entries:  # A damaged one loses no other.
            with suppress(ValueError, OSError):
                self.queue.add_paused(from_json(DownloadJob, entry))

    def save_unfinished(self) -> None:
        """So that `restore` finds them.

        Has no effect while no download has changed its phase.
        """
        states = self.states()
        jobs = [
            to_builtins(state.job)
            for state in states
            if state.phase not in ("done", "cancelled")
        ]
        if states and jobs != self._saved_jobs:
            self._saved_jobs = jobs
            data_files.write_json(DataFile.DOWNLOADS, jobs)

    def pause_or_resume(self, job: DownloadJob) -> None:
        """Pauses a download that runs or waits, else resumes or retries it."""
        phase = next((state.phase for state in self.states() if state.job == job), "")
        if phase in ("paused", "failed", "cancelled"):
            self.queue.retry(job)
        else:
            self.queue.pause(job)

    def close(self) -> None:
        if self._queue is not None:
            self.save_unfinished()
            self._queue.close()


def name_downloads(states: Iterable[DownloadState]) -> dict[DownloadJob, str]:
    """The name of each download: several repositories may have files of one name."""
    paths = {state.job: _path_on_hub(state.job) for state in states}
    names = model_names.name_files(paths.values())
    return {job: names[path] for job, path in paths.items()}


def _path_on_hub(job: DownloadJob) -> PurePosixPath:
    return PurePosixPath(job.repo, job.file.path)


def format_download(state: DownloadState, name: str, width: int) -> Content:
    """One line of `width` cells: name, bar, percentage, bytes, speed and time left.

    A failed download has its error instead.
    """
    name_width, bar_width = _download_columns(width)
    name = f"{fit_to_width(name, name_width)}  "
    size = state.job.file.size
    if state.phase == "done":
        verified = ("✓ verified", "$success")
        return Content.assemble(name, verified, (f"  {gb(size)}", "$muted"))
    if state.phase == "failed" and state.error is not None:
        message = f"✗ {one_line(state.error.message)}"
        message = fit_to_width(message, width - name_width - 2)
        return Content.assemble(name, (message, "$error"))
    share = state.done_bytes / size if size else 0.0
    bar = draw_bar(share, bar_width)
    rest = "·" * (bar_width - len(bar))
    progress = f"  {100 * share:3.0f} %  {_format_progress(state, width)}"
    return Content.assemble(name, (bar, "$accent"), (rest, "$muted"), progress)


def _download_columns(width: int) -> tuple[int, int]:
    """The cells for the name and for the bar."""
    if width >= 100:
        return 33, 16
    if width >= 70:
        return 26, 12
    if width >= 50:
        return 20, 8
    if width >= 30:
        return width - 24, 6
    return max(6, width - 24), 0


def _format_progress(state: DownloadState, width: int) -> str:
    parts = []
    if width >= 100:
        size = gb(state.job.file.size)
        if state.done_bytes:
            size = f"{gb(state.done_bytes)} of {size}"
        parts.append(size.rjust(18))
    if state.note or state.phase != "loading":
        return "  ".join([*parts, state.note or state.phase])
    if state.rate and width >= 70:
        parts.append(bytes_per_second(state.rate))
    if state.eta is not None:
        parts.append(duration(state.eta))
    return "  ".join(parts)


def download_key_hints(state: DownloadState, user_keys: Mapping[str, str]) -> str:
    if state.phase == "done":
        return ""
    labels = {"paused": "resume", "cancelled": "resume", "failed": "try again"}
    label = labels.get(state.phase, "pause")
    hint = f"{key_label('home.pause', user_keys)} {label}"
    if state.phase not in ("failed", "cancelled"):
        hint += f"  {key_label('home.cancel', user_keys)} cancel"
    return hint


def download_error(state: DownloadState) -> str:
    """Message and hint of a failed download; else empty."""
    error = state.error
    if error is None:
        return ""
    return one_line(f"{error.message} {error.hint}")
