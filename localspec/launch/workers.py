"""Other computers before a model is loaded: which can be used, and how long sending takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from localspec.errors import LocalspecError
from localspec.fit.advisor import SettingsRequest, with_settings
from localspec.fit.verdict import FitReport
from localspec.machine.rpc import preflight
from localspec.machine.rpc.preflight import WorkerReport
from localspec.protocol.events import Event, Notice
from localspec.units import duration, gb


def check_workers(
    request: SettingsRequest, notify: Callable[[Event], None]
) -> tuple[SettingsRequest, tuple[WorkerReport, ...]]:
    """The request with those of its workers that can be used, and what they offer.

    Raises the reason why one cannot be used; only notifies if the request can do without.
    """

    def skip(error: LocalspecError) -> None:
        notify(Notice("warning", "workers", error.message, "Going on without it."))

    addresses = request.load.target_settings.workers
    workers = preflight.check_all(addresses, skip if request.can_skip_workers else None)
    try:
        if workers:
            from localspec.machine.rpc import side_library  # noqa: PLC0415  only with workers

            side_library.find_or_build(lambda text: notify(Notice("info", "workers", text)))
    except LocalspecError as error:
        if not request.can_skip_workers:
            raise
        skip(error)
        workers = ()
    usable = tuple(str(worker.address) for worker in workers)
    return replace(request, load=with_settings(request.load, workers=usable)), workers


def describe_transfer(fit: FitReport, workers: Sequence[WorkerReport]) -> str:
    """What loading sends to the workers, and how long that takes; empty if nothing."""
    speeds = {str(worker.address): worker.bytes_per_second for worker in workers}
    used = [each for each in fit.device_fits if each.device.worker and each.target.weights]
    if not used:
        return ""
    n_bytes = sum(each.target.weights for each in used)
    seconds = sum(each.target.weights / speeds[each.device.worker] for each in used)
    names = " and ".join(dict.fromkeys(each.device.worker for each in used))
    return f"Loading sends {gb(n_bytes)} to {names}: about {duration(max(seconds, 1))}."
