"""Formats memory sizes, speeds, shares, durations and counts for display."""

from collections.abc import Sequence


def gib(n_bytes: float) -> str:
    """A memory size in units of 2**30 bytes, called GB as memory is sold.

    A card of 24 GB has 24 of them.  Files have the GB of `gb`, as hubs show them; no
    column has both.
    """
    size = n_bytes / 1024**3
    if 0 < size < 0.005:
        return "<0.01 GB"
    if size < 1:
        return f"{size:.2f} GB"
    if size < 100:
        return f"{size:.1f} GB"
    return f"{size:,.0f} GB"


def size_limit(n_bytes: int) -> str:
    """A limit of so many times 2**20 bytes, as in the GB of `gib`: 64 MB."""
    return f"{n_bytes >> 20} MB"


def token_rate(rate: float | None) -> str:
    if rate is None:
        return "– tok/s"
    return f"{rate:.1f} tok/s" if rate < 100 else f"{rate:.0f} tok/s"


def middle(low_high: tuple[float, float] | None) -> float | None:
    return None if low_high is None else sum(low_high) / 2


def about_rate(rate: float | None) -> str:
    """The middle of an estimate, no more exact than it is: `≈ 2.4`, `≈ 55`, `≈ 170`."""
    if rate is None:
        return "≈ ?"
    if rate >= 100:
        return f"≈ {round(rate, -1):.0f}"
    return f"≈ {rate:.0f}" if rate >= 10 else f"≈ {round(rate, 1):g}"


def token_rate_range(low_high: tuple[float, float] | None) -> str:
    if low_high is None:
        return "– tok/s"
    low, high = low_high
    if high < 20:
        return f"{low:.1f}–{high:.1f} tok/s"
    return f"{low:.0f}–{high:.0f} tok/s"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def milliseconds(ms: float | None) -> str:
    """A short duration; seconds from 1000 ms on."""
    if ms is None:
        return "–"
    if ms >= 1000:
        return f"{ms / 1000:.1f} s"
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.2f} ms"


def count(n: int, noun: str) -> str:
    """1 token, 2 tokens, 2 matches."""
    if n == 1:
        return f"{n} {noun}"
    ending = "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{n} {noun}{ending}"


def count_tokens(n: int) -> str:
    """1 token, 1,020 tokens."""
    return "1 token" if n == 1 else f"{n:,} tokens"


def join_first(names: Sequence[str], limit: int) -> str:
    """`a, b, c`; of more than `limit` names the first ones `and 30 more`."""
    joined = ", ".join(names[:limit])
    rest = len(names) - limit
    return f"{joined} and {rest} more" if rest > 0 else joined


def short_count(n: int) -> str:
    """950, 1.2k, 16k."""
    if n < 1000:
        return f"{n}"
    return f"{n / 1000:.1f}k" if n < 9950 else f"{n / 1000:.0f}k"


def gb(n_bytes: float) -> str:
    """A download size, in units of 10**9 bytes as hubs show it; small ones in MB."""
    if 0 < n_bytes < 5e4:
        return "<0.1 MB"
    if n_bytes < 1e7:
        return f"{n_bytes / 1e6:.1f} MB"
    if n_bytes < 1e8:
        return f"{n_bytes / 1e6:.0f} MB"
    return f"{n_bytes / 1e9:.1f} GB"


def bytes_per_second(rate: float) -> str:
    return f"{rate / 1e6:.1f} MB/s" if rate < 10e6 else f"{rate / 1e6:.0f} MB/s"


def duration(seconds: float) -> str:
    """5 s, 3 min 5 s, 2 h 30 min."""
    minutes, remainder = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    if minutes:
        return f"{minutes} min {remainder} s"
    return f"{remainder} s"


def about_duration(seconds: float | None) -> str:
    """`about 16 s`; empty for less than a second, and if nothing is known."""
    if seconds is None or seconds < 1:
        return ""
    return f"about {duration(seconds)}"
