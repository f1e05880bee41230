"""Numbers in the words of the screen."""

from __future__ import annotations

_GIB = 1024**3


def gib(n_bytes: float) -> str:
    """Memory, in GiB."""
    size = n_bytes / _GIB
    if 0 < size < 0.005:
        return "<0.01 GiB"
    return (
        f"{size:.2f} GiB" if size < 10 else f"{size:.1f} GiB" if size < 100 else f"{size:,.0f} GiB"
    )


def token_rate(rate: float | None) -> str:
    """Tokens a second."""
    return "– tok/s" if rate is None else f"{rate:.1f} tok/s" if rate < 100 else f"{rate:.0f} tok/s"


def token_rate_range(low_high: tuple[float, float] | None) -> str:
    """Tokens a second between two ends."""
    if low_high is None:
        return "– tok/s"
    low, high = low_high
    return f"{low:.1f}–{high:.1f} tok/s" if high < 20 else f"{low:.0f}–{high:.0f} tok/s"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def milliseconds(ms: float | None) -> str:
    """A duration given in ms, short."""
    if ms is None:
        return "–"
    return f"{ms / 1000:.1f} s" if ms >= 1000 else f"{ms:.0f} ms" if ms >= 10 else f"{ms:.2f} ms"


def short_count(n: int) -> str:
    """A number of tokens, short: 950, 1.2k, 16k."""
    return f"{n}" if n < 1000 else f"{n / 1000:.1f}k" if n < 9950 else f"{n / 1000:.0f}k"


def gb(n_bytes: float) -> str:
    """A download, in GB as hubs count them."""
    if n_bytes < 1e8:
        return f"{n_bytes / 1e6:.0f} MB" if n_bytes >= 1e7 else f"{n_bytes / 1e6:.1f} MB"
    return f"{n_bytes / 1e9:.1f} GB"


def bytes_per_second(rate: float) -> str:
    """The speed of a download."""
    return f"{rate / 1e6:.1f} MB/s" if rate < 10e6 else f"{rate / 1e6:.0f} MB/s"


def duration(seconds: float) -> str:
    """How long something will take."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
