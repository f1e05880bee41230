"""What a pair will take of each device, before anything is loaded: by formulas, from headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from localspec.fit import cache, compute, doubt, facts, opening, placement, weights
from localspec.fit.facts import Facts
from localspec.fit.opening import Opening
from localspec.machine.device import Device
from localspec.machine.ledger import Bytes, Ledger, Projection
from localspec.models import heads
from localspec.models.header import Header
from localspec.protocol.wire import ContextSettings, Load

_DROPPED = "The draft cannot take back a guess, so it is not kept."


def estimate(
    load: Load, target: Header, draft: Header | None, devices: Sequence[Device]
) -> Projection:
    """Without llama.cpp, for cards that are not here.  Raises UsageError: the context is absurd."""
    head = "" if draft is None else heads.drafting(target, draft).replace("model", "")
    inside = head == "mtp"
    first = facts.of(target, predicting=inside)
    second = None if draft is None else first if inside else facts.of(draft)
    note = ""
    if second is not None and second.keeps_state and not head:
        second, note = None, _DROPPED
    opened, opened_draft = opening.pair(load, first, second, head)
    ledger = of_model(first, opened, load.target_settings, devices, {})
    beside: Ledger | None = None
    if second is not None and opened_draft is not None:
        before = ledger
        if opened.taps and len(devices) > 1:  # the states are kept only when it is loaded
            untapped = replace(opened, taps=frozenset())
            before = of_model(first, untapped, load.target_settings, devices, {})
        used = {name: part.total for name, part in before.on.items()}
        if head:
            matrix = _matrix(first, load.target_settings, devices)
            opened_draft = replace(opened_draft, matrix=matrix)
        beside = of_model(second, opened_draft, load.draft_settings, devices, used)
    found = Projection(ledger, beside, "analytic", note=note)
    models = [(first, opened)]
    if second is not None and opened_draft is not None:
        models.append((second, opened_draft))
    experts = load.target_settings.cpu_moe or load.draft_settings.cpu_moe
    return replace(found, error=doubt.of(found, models, experts))


def _matrix(target: Facts, settings: ContextSettings, devices: Sequence[Device]) -> tuple[str, int]:
    """Where the output matrix lies, and its bytes."""
    placed = placement.place(target, settings, devices, {})
    found = target.others.get("output.weight") or target.others.get("token_embd.weight")
    return placed.names[placed.output], found.n_bytes if found else 0


def of_model(
    model: Facts,
    opened: Opening,
    settings: ContextSettings,
    devices: Sequence[Device],
    used: Mapping[str, int],
) -> Ledger:
    """One model's part, where `used` bytes of each device have been taken."""
    placed = placement.place(model, settings, devices, used)
    if opened.auto and opened.flash and not compute.flash_is_home(model, opened, placed):
        opened = replace(opened, flash=False)
    sums = zip(
        placed.names,
        (0,) * len(placed.names) if opened.head == "mtp" else weights.place(model, placed),
        cache.place(model, opened, placed),
        compute.place(model, opened, placed),
        strict=True,
    )
    on = {name: Bytes(*parts) for name, *parts in sums}
    rows = 4 * opened.n_outputs * (opened.n_vocab or model.n_vocab)
    return Ledger(on, output=rows + opened.kept(model.n_embd))
