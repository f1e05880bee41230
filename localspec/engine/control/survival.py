"""How often a guess stands, counted while running: by source, confidence and place in its draft."""

from __future__ import annotations

from collections.abc import Sequence

_WINDOW = 96.0
"""Guesses that a count remembers, about: older ones fade."""
_OWN = 6.0
"""Guesses after which a cell's own rate counts as much as what is believed without it."""
_PRIOR = 6.0
_BELIEVED = 0.6
"""A draft model's chance before anything was seen."""
_FORGET = 0.998

_PLACES = (0, 1, 2, 3, 3, 4, 4, 4, 4) + (5,) * 16
"""The group of a guess's place in its draft."""
_MATCHES = (0, 0, 0, 1, 2, 3, 3, 4, 4, 4, 4, 4) + (5,) * 5
"""The group of a match by its length in tokens."""
_LONG = 6


class Rate:
    """Kept of tried, fading, and what is believed before any was tried."""

    def __init__(self, believed: float, weight: float, counts: Sequence[float] = (0, 0)) -> None:
        self.kept, self.tried = (float(count) for count in counts)
        self._believed, self._weight = believed, weight

    def value(self, believed: float | None = None) -> float:
        start = self._believed if believed is None else believed
        return (self.kept + start * self._weight) / (self.tried + self._weight)

    def fade(self, share: float) -> None:
        self.kept *= share
        self.tried *= share

    def add(self, kept: float) -> None:
        if self.tried >= _WINDOW:
            self.kept *= 1 - 1 / _WINDOW
            self.tried *= 1 - 1 / _WINDOW
        self.kept += kept
        self.tried += 1


class Table:
    """Chances that a guess stands when all before it do, by how sure its source was, and place.

    A cell without counts of its own falls back on its bucket's, and that on `believed`.
    """

    def __init__(self, believed: Sequence[float], kept: dict[str, list[float]]) -> None:
        self._buckets = [Rate(b, _PRIOR, kept.get(f"b{i}", (0, 0))) for i, b in enumerate(believed)]
        self._cells: dict[tuple[int, int], Rate] = {}
        for name, counts in kept.items():
            bucket, dot, place = name.partition(".")
            if dot and int(bucket) < len(believed):
                self._cells[int(bucket), int(place)] = Rate(0.5, _OWN, counts)

    def chance(self, bucket: int, place: int) -> float:
        whole = self._buckets[bucket].value()
        cell = self._cells.get((bucket, _PLACES[place]))
        return whole if cell is None else cell.value(whole)

    def learn(self, bucket: int, place: int, kept: bool) -> None:
        self._buckets[bucket].add(kept)
        self._cells.setdefault((bucket, _PLACES[place]), Rate(0.5, _OWN)).add(kept)

    def counts(self) -> dict[str, list[float]]:
        rates = {f"b{i}": rate for i, rate in enumerate(self._buckets)}
        rates |= {f"{b}.{p}": rate for (b, p), rate in self._cells.items()}
        return {k: [round(r.kept, 2), round(r.tried, 2)] for k, r in rates.items() if r.tried}


class Survival:
    """What a controller has seen of every source under one way of verifying."""

    def __init__(self, kept: dict[str, dict[str, list[float]]] | None = None) -> None:
        kept = kept or {}
        self.model = Table([0.1 + 0.08 * i for i in range(11)], kept.get("model", {}))
        self.lookup = Table([0.25, 0.4, 0.5, 0.6, 0.7, 0.8], kept.get("lookup", {}))
        means = kept.get("place", {})
        self._place = [Rate(_BELIEVED, _OWN, means.get(str(i), (0, 0))) for i in range(6)]
        self._chain()

    def mean(self, place: int) -> float:
        """Chance of the draft model's next guess at this place, before its confidence is known."""
        return self._means[_PLACES[place]]

    def saw_model(self, place: int, chance: float) -> None:
        """A guess was made or declined there, believed to stand with this chance, or known to.

        All places fade, so that one which an unlucky start made look bad is tried again.
        """
        for rate in self._place:
            rate.fade(_FORGET)
        self._place[_PLACES[place]].add(chance)
        self._chain()

    def _chain(self) -> None:
        """A place that was rarely reached is believed to be like the one before it."""
        self._means = []
        believed = _BELIEVED
        for rate in self._place:
            believed = rate.value(believed)
            self._means.append(believed)

    def counts(self) -> dict[str, dict[str, list[float]]]:
        means = {str(i): [round(r.kept, 2), round(r.tried, 2)] for i, r in enumerate(self._place)}
        return {"model": self.model.counts(), "lookup": self.lookup.counts(), "place": means}


def confidence_bucket(confidence: float) -> int:
    """One of eleven: by tenths, and the very sure apart."""
    return 10 if confidence > 0.98 else int(confidence * 10)


def match_bucket(match: int) -> int:
    return _MATCHES[match] if match < len(_MATCHES) else _LONG - 1
