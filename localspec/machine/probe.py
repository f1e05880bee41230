"""What a pair would take, asked of llama.cpp itself: a load without data, in a child process.

No byte of the weights is needed: a ghost is a file's header and nothing behind it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

from localspec import children, paths
from localspec.clean import clean
from localspec.errors import LocalspecError
from localspec.machine.device import Device
from localspec.machine.ghosts import Ghosts
from localspec.machine.ledger import HOST, Bytes, Ledger, Projection
from localspec.machine.probe_process import ProbeError, ProbeProcess
from localspec.models import header as headers
from localspec.models import heads
from localspec.models.header import Header
from localspec.protocol.wire import Load

__all__ = ["Probe", "ProbeError"]

_PRETEND = 0.02
"""Share of the graph's memory by which a card that is here may differ from one that is not."""


def _command() -> list[str]:
    parent = str(children.parent_of_child())
    return [sys.executable, "-P", "-m", "localspec.machine.probe_child", parent]


class Probe:
    """One child process, started at the first question and again after a death; from one thread."""

    def __init__(
        self,
        command: Callable[[], Sequence[str]] = _command,
        *,
        start: float = 60,
        seconds: float = 10,
    ) -> None:
        self._command = command
        self._start, self._seconds = start, seconds
        self._child: ProbeProcess | None = None
        self._ghosts = Ghosts()
        self._pretends: bool | None = None

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None
        self._ghosts.close()

    # --- questions ------------------------------------------------------------------------

    def devices(self) -> list[dict[str, Any]]:
        """What ggml reports: name, description, type, free, total, id, backend, caps.

        Raises ProbeError.
        """
        return list(self._ask("devices")["devices"])

    def offloads(self) -> bool:
        """Whether the installed llama.cpp can use a graphics card.  Raises ProbeError."""
        return bool(self._ask("devices")["offloads"])

    def about(self) -> dict[str, Any]:
        """Both, with the `library`'s path, the CPU `features` that it was built for, and the
        functions that are `lacking` for heads.

        Raises ProbeError.
        """
        return self._ask("devices")

    def project(self, load: Load, devices: Sequence[Device] | None = None) -> Projection:
        """What the pair would take of these devices; None for llama.cpp's own choice.

        The files of `load` are local, whole or ghosts.  Raises ProbeError.
        """
        pretend = any(device.pretend for device in devices or ())
        if pretend and not self.pretends():
            raise ProbeError("a pretend card does not work with this llama.cpp")
        head = _head(load)
        draft = str(self._ghosts.of_file(load.draft)) if load.draft else None
        asked = replace(load, target=str(self._ghosts.of_file(load.target)), draft=draft)
        told = self._ask(
            "project",
            load=asdict(asked),
            devices=None if devices is None else [asdict(device) for device in devices],
            **head,
        )
        return _projection(told, pretend)

    def pretends(self) -> bool:
        """Whether pretend cards tell the truth here: tried once for each llama.cpp.

        Raises ProbeError where it cannot be tried.
        """
        if self._pretends is None:
            self._pretends = self._remembered_selftest()
        return self._pretends

    def ghost(self, header: Header, folder: Path | None = None) -> Path:
        """A file with this header and nothing behind it: sparse, of the whole model's size.

        In a folder of the probe's own unless another is given.  Raises ProbeError.
        """
        return self._ghosts.of_header(header, folder)

    # --- within ---------------------------------------------------------------------------

    def _remembered_selftest(self) -> bool:
        file = paths.state() / "pretend.json"
        version = metadata.version("llama-cpp-python")
        with suppress(OSError, ValueError, TypeError, AttributeError):
            known = json.loads(file.read_text(encoding="utf-8")).get(version)
            if isinstance(known, bool):
                return known
        try:
            model = str(paths.data() / "demo" / "demo-draft.gguf")
            passed = bool(self._ask("selftest", model=model)["ok"])
        except ProbeError:  # it died of it, or does not find its way
            passed = False
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({version: passed}), encoding="utf-8")
        return passed

    def _ask(self, op: str, **about: Any) -> dict[str, Any]:
        if self._child is None or self._child.dead:
            self._child = ProbeProcess(self._command(), self._start)
        told = self._child.ask({"op": op, **about}, self._seconds)
        if "failed" in told:
            raise ProbeError(clean(str(told["failed"]), multiline=False))
        return told


def _head(load: Load) -> dict[str, Any]:
    """What kind of head drafts, and the layers that it reads.  Raises ProbeError."""
    try:
        target = headers.read(Path(load.target))
        draft = headers.read(Path(load.draft)) if load.draft else None
    except LocalspecError as error:
        raise ProbeError(error.message) from error
    kind = heads.drafting(target, draft) if draft else "model"
    if draft is None or kind == "model":
        return {}
    if heads.own(target, draft):
        return {"head": kind, "layers": []}
    if (verdict := heads.misfit(heads.of(target), draft)) is not None:  # it would abort
        raise ProbeError(verdict.detail)
    return {"head": kind, "layers": heads.layers(draft)}


def _projection(told: Mapping[str, Any], pretend: bool) -> Projection:
    target, draft = _ledger(told["target"]), told["draft"] and _ledger(told["draft"])
    both = [ledger for ledger in (target, draft) if ledger]
    names = {name for ledger in both for name in ledger.on}
    graphs = [sum(ledger.of(name).compute for ledger in both) for name in names]
    error = int(_PRETEND * max(graphs, default=0)) if pretend else 0
    error += told["doubt"] if len(names - {HOST}) > 1 else 0
    note = "The draft cannot take back a guess, so it is not kept." if told.get("dropped") else ""
    return Projection(target, draft, "exact", error, note)


def _ledger(body: Mapping[str, Any]) -> Ledger:
    on = {name: Bytes(**counted) for name, counted in body["on"].items()}
    return Ledger(on, body["output"])
