"""The process that asks llama.cpp what a pair would take: one JSON object a line, in and out.

A file's header is another's work and llama.cpp aborts on some of them; so does a wrong guess of
ours about its insides.  Then this process is gone, and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from typing import Any

from localspec import children
from localspec.errors import UsageError
from localspec.machine import beside, parameters, runtimes, selftest
from localspec.machine.beside import Beside, Inside
from localspec.machine.breakdown import UnknownLayoutError
from localspec.machine.device import Device
from localspec.machine.ggml import Ggml
from localspec.machine.ledger import Ledger
from localspec.machine.opened import Opened, OpeningError
from localspec.machine.pretend import RULES, Card, Pretend, Rules
from localspec.protocol.parts import made
from localspec.protocol.wire import Load

os.environ.setdefault("GGML_NO_BACKTRACE", "1")
runtimes.preload()
import llama_cpp.llama_cpp as C  # noqa: E402, N812

_MEMORY = 8 * 1024**3
"""Bytes of address space: the states of recurrent layers are really allocated."""
_SECONDS = 30
"""Of computing, for one request."""
_ERROR = 4
"""GGML_LOG_LEVEL_ERROR."""
_MOST_ERRORS = 20


class Child:
    """Answers requests; the cards it makes stay, because llama.cpp may keep their addresses."""

    def __init__(self) -> None:
        self._said: list[str] = []
        self._log = C.llama_log_callback(self._hear)
        C.llama_log_set(self._log, None)
        C.llama_backend_init()
        self._ggml = Ggml(C._lib)
        self._cards: dict[Card, Pretend] = {}

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Failures that are llama.cpp's answer are said as `failed`."""
        self._said.clear()
        try:
            if asked["op"] == "devices":
                return self._devices()
            if asked["op"] == "selftest":
                return {"ok": selftest.passes(C, asked["model"])}
            return self._project(asked)
        except OpeningError as error:  # llama.cpp's first line says why; others that it failed
            return {"failed": self._said[0] if self._said else str(error)}
        except UsageError as error:
            return {"failed": error.message}
        except (UnknownLayoutError, LookupError, AttributeError, ValueError) as error:
            return {"failed": str(error)}

    def _devices(self) -> dict[str, Any]:
        found = [self._ggml.describe(device) for device in self._ggml.devices()]
        return {
            "devices": found,
            "offloads": bool(C.llama_supports_gpu_offload()),
            "library": str(C._lib._name),
            "lacking": beside.lacking(C),
            "features": C.llama_print_system_info().decode("utf-8", "replace"),
        }

    def _project(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Both models open at once, as the engine has them."""
        load: Load = made(Load, asked["load"])
        devices = self._chosen(asked["devices"])
        head: str = asked.get("head", "")
        with ExitStack() as open_:
            role = parameters.of_target(load, predicting=head == "mtp")
            target = Opened(C, load.target, role, devices=devices)
            open_.enter_context(closing(target))
            ledger = target.ledger()
            told = {"target": asdict(ledger), "draft": None, "doubt": target.doubt()}
            if load.draft is None:
                return told
            role = parameters.of_draft(load, target.n_ctx)
            split = () if role.settings.tensor_split else self._left(devices, ledger)
            how: dict[str, Any] = {"devices": devices, "split": split}
            if head:
                draft = self._head(load, target, asked["layers"], how)
                told["target"] = asdict(target.ledger())  # it keeps states now
            else:
                draft = Opened(C, load.draft, role, **how)
            open_.enter_context(closing(draft))
            if draft.recurrent:
                return told | {"dropped": True}
            doubt = target.doubt() + draft.doubt()
            return told | {"draft": asdict(draft.ledger()), "doubt": doubt}

    def _head(
        self, load: Load, target: Opened, layers: Sequence[int], how: Mapping[str, Any]
    ) -> Opened:
        """A head of a file that reads these layers; without any the target's own layer."""
        role = parameters.of_head(load, target.n_ctx)
        if not layers:
            beside.predict(C, target)
            return Inside(C, role, target)
        beside.tap(C, target, layers)
        assert load.draft is not None
        return Beside(C, load.draft, role, target, **how)

    def _chosen(self, wanted: Sequence[Mapping[str, Any]] | None) -> list[int] | None:
        """Addresses of the devices that are named; those of pretend cards where they are."""
        if wanted is None:
            return None
        here = {self._ggml.describe(device)["name"]: device for device in self._ggml.devices()}
        found = []
        for device in (made(Device, body) for body in wanted):
            if device.kind in ("cpu", "accel"):
                continue
            if device.pretend:
                found.append(self._card(device).address)
            elif device.name in here:
                found.append(here[device.name])
            else:
                raise LookupError(f"llama.cpp has no device {device.name}")
        return found

    def _card(self, device: Device) -> Pretend:
        total = device.total or device.free or 0
        card = Card(
            device.name,
            device.description,
            total,
            total if device.free is None else device.free,
            device.kind == "igpu",
            RULES.get(device.backend, Rules()),
        )
        return self._cards.setdefault(card, self._cards.get(card) or Pretend(C._lib, card))

    def _left(self, devices: list[int] | None, taken: Ledger) -> tuple[float, ...]:
        """What the target leaves free: llama.cpp splits the draft by it, without being told."""
        shared = self._own() if devices is None else devices
        if len(shared) < 2:
            return ()
        told = [self._ggml.describe(device) for device in shared]
        if not all(device["free"] for device in told):
            return ()
        return tuple(
            float(max(1, device["free"] - taken.of(device["name"]).total)) for device in told
        )

    def _own(self) -> list[int]:
        """llama.cpp's own choice: every graphics card once, integrated ones where there is none."""
        by_kind: dict[str, list[int]] = {"gpu": [], "igpu": []}
        seen: set[str] = set()
        for device in self._ggml.devices():
            told = self._ggml.describe(device)
            if told["type"] in by_kind and told["id"] not in seen:
                by_kind[told["type"]].append(device)
                seen |= {told["id"]} if told["id"] else set()
        return by_kind["gpu"] or by_kind["igpu"]

    def _hear(self, level: int, text: bytes, _: Any) -> None:
        if level == _ERROR and len(self._said) < _MOST_ERRORS:
            self._said.append(text.decode("utf-8", "replace").strip())


def _limit_memory() -> None:
    """Not with a graphics driver, which reserves addresses without end."""
    if sys.platform != "win32" and not C.llama_supports_gpu_offload():
        import resource  # noqa: PLC0415  not on Windows

        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


def _limit_time() -> None:
    """So long from now on, and the system ends us: nobody may be there any more to do it."""
    if sys.platform != "win32":
        import resource  # noqa: PLC0415  not on Windows

        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime) + _SECONDS
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))


def _say(out: int, body: Mapping[str, Any]) -> None:
    rest = memoryview(json.dumps(body, separators=(",", ":")).encode() + b"\n")
    while rest:
        rest = rest[os.write(out, rest) :]


def main() -> None:
    children.settle(int(sys.argv[1]))
    out = children.private_stdout()
    child = Child()
    _limit_memory()
    _say(out, {"re": 0})
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        _limit_time()
        _say(out, {"re": asked["id"]} | child.answer(asked))


if __name__ == "__main__":
    main()
