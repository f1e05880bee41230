"""How long one pass of a model takes, from what it reads and how fast its devices read."""

from __future__ import annotations

from localspec.fit.hardware import Hardware, Rate
from localspec.fit.reading import Part, Reading

_MIXTURE = 1.36
"""A mixture of experts takes longer than its bytes say: 206 and 96 tok/s foretold, 152 and 71 seen
(30B with 3B active, RX 7900 XT and M4 Pro)."""
_CPU_ATTENTION = 2.3
"""A CPU's attention, against reading as many bytes of weights (3.0 and 6.9 GB/s at one thread)."""
_CROSSING_MS = 0.045
"""Handing the state from one device to the next: 30 to 60 µs."""


def rate(reading: Reading, device: str, hardware: Hardware) -> Rate:
    """How fast this device reads this model."""
    return hardware.rate(device, reading.family, reading.on[device].weights)


def unknown(reading: Reading, hardware: Hardware) -> str:
    """Why nothing can be said of this model, or nothing."""
    for device in reading.devices:
        here = rate(reading, device, hardware)
        if here.bandwidth is None:
            return f"{device}: {here.basis}"
    return ""


def ms(reading: Reading, hardware: Hardware, width: int = 1) -> float:
    """Milliseconds of a pass of so many tokens.  Only where nothing is `unknown`."""
    took = sum(_part(reading, device, hardware, width) for device in reading.devices)
    took += _CROSSING_MS * (len(reading.devices) - 1)
    return took * slowed(reading.moe)


def slowed(moe: bool) -> float:
    """How many times longer than its bytes say a model takes."""
    return _MIXTURE if moe else 1.0


def context_ms(reading: Reading, hardware: Hardware, width: int = 1) -> float:
    """What of a pass is reading the context."""
    return sum(
        _context(part, rate(reading, name, hardware), width, reading.family)
        for name, part in reading.on.items()
    )


def curve(reading: Reading, hardware: Hardware, widest: int) -> dict[int, float]:
    """The verify curve v of this model here."""
    one = ms(reading, hardware)
    return {width: ms(reading, hardware, width) / one for width in range(1, widest + 1)}


def error(reading: Reading, hardware: Hardware) -> float:
    """How far a pass may be from this, by the devices that take most of it."""
    took = {name: _part(reading, name, hardware, 1) for name in reading.devices}
    whole = sum(took.values())
    if not whole:
        return 0.0
    errors = {name: rate(reading, name, hardware).error for name in took}
    return sum(took[name] * errors[name] for name in took) / whole


def _part(reading: Reading, device: str, hardware: Hardware, width: int) -> float:
    """One device's milliseconds.  The fixed part grows with the width as the rest does: so small
    models' curves were measured."""
    part, family = reading.on[device], reading.family
    here = rate(reading, device, hardware)
    dense = part.share * here.fixed_ms + here.ms(part.dense)
    took = dense * here.verify(width, family) + _context(part, here, width, family)
    if part.experts:
        took += here.ms(part.experts) * _experts(reading, width, here)
    return took


def _context(part: Part, here: Rate, width: int, family: str) -> float:
    """On a CPU every head of every row computes for itself; a GPU's wait for the memory."""
    if here.kind == "cpu":
        return _CPU_ATTENTION * here.ms(part.attended) * width
    return here.ms(part.cache) * here.verify(width, family)


def _experts(reading: Reading, width: int, here: Rate) -> float:
    """More tokens are sent to more experts, each of which then computes for few of them."""
    touched = reading.touched(width)
    return touched * here.verify(width / touched, reading.family)
