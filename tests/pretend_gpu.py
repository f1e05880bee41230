"""Pretend graphics cards for tests, and models really loaded on them in this process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from localspec.engine.llama.library import C
from localspec.machine import beside, parameters
from localspec.machine.device import Device
from localspec.machine.ledger import Ledger
from localspec.machine.opened import Opened
from localspec.machine.pretend import Card, Pretend
from localspec.models import header, heads
from localspec.protocol.wire import Load

GIB = 1024**3
_cards: list[Pretend] = []
"""llama.cpp may keep an address: cards live as long as the tests."""


def devices(count: int = 1, total: int = 4 * GIB) -> list[Device]:
    """As a projection takes them."""
    return [
        Device(f"CUDA{i}", "a pretend card", free=total, total=total, backend="CUDA", pretend=True)
        for i in range(count)
    ]


def cards(wanted: Sequence[Device]) -> list[Pretend]:
    """The same, to load on: they keep data, and refuse what is too much."""
    made = [
        Pretend(C._lib, Card(d.name, d.description, d.total or 0, d.free or 0, empty=False))
        for d in wanted
    ]
    _cards.extend(made)
    return made


def loaded(load: Load, on: Sequence[Pretend]) -> tuple[Ledger, Ledger | None]:
    """What both models take when really loaded, and none of it afterwards."""
    addresses = [card.address for card in on]
    with ExitStack() as stack:
        kind = _kind(load)
        role = parameters.of_target(load, predicting=kind == "mtp")
        target = Opened(C, load.target, role, devices=addresses, data=True)
        stack.enter_context(closing(target))
        draft = None
        if load.draft is not None:
            draft = _draft(load, target, kind, addresses)
            stack.enter_context(closing(draft))
        ledgers = target.ledger(), draft.ledger() if draft else None
        for card in on:
            held = sum(ledger.of(card.card.name).total for ledger in ledgers if ledger)
            assert held == card.used, "llama.cpp's sums are not what it allocated"
    return ledgers


def _kind(load: Load) -> str:
    if load.draft is None:
        return "model"
    return heads.drafting(header.read(Path(load.target)), header.read(Path(load.draft)))


def _draft(load: Load, target: Opened, kind: str, addresses: list[int]) -> Opened:
    assert load.draft is not None
    role = parameters.of_head(load, target.n_ctx)
    if kind == "mtp":
        beside.predict(C, target)
        return beside.Inside(C, role, target)
    if kind != "model":
        beside.tap(C, target, heads.layers(header.read(Path(load.draft))))
        return beside.Beside(C, load.draft, role, target, devices=addresses, data=True)
    role = parameters.of_draft(load, target.n_ctx)
    return Opened(C, load.draft, role, devices=addresses, data=True)


def real(folder: Path, name: str) -> Path:
    """A small model of a family, with random weights; written once."""
    from tests.families import FAMILIES, write_real  # noqa: PLC0415

    path = folder / f"{name}.gguf"
    if not path.exists():
        write_real(FAMILIES[name].small, FAMILIES[name].quantisation, path)
    return path
