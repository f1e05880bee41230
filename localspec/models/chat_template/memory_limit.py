"""Limits the memory that a chat template may take, where the system can."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock

MAX_TEMPLATE_BYTES = 512 * 1024 * 1024
"""More than this process has: the longest prompt takes a fraction of it."""
_is_limited = RLock()
"""Held while the limit is changed: two threads would restore each other's."""


@contextmanager
def limit_memory() -> Iterator[None]:
    """Within it, an allocation beyond the limit raises MemoryError.

    A template's `'a'|center(2000000000)`, or 30 doublings of a text, would otherwise
    take what they ask for. The limit is on the process's address space, which the
    process has with its model already: 12 GiB become at most 12.5. It is lifted again
    at the end. Only Linux has a limit that holds; elsewhere nothing is limited here.
    """
    if sys.platform != "linux":
        yield
        return
    import resource  # noqa: PLC0415  Windows has none

    with _is_limited:
        before, hard = resource.getrlimit(resource.RLIMIT_AS)
        allowed = _address_space() + MAX_TEMPLATE_BYTES
        if before != resource.RLIM_INFINITY:
            allowed = min(allowed, before)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def _address_space() -> int:
    """Bytes of this process's address space."""
    import resource  # noqa: PLC0415  Windows has none

    n_pages = int(Path("/proc/self/statm").read_text().split()[0])
    return n_pages * resource.getpagesize()
