"""Runs a function on a thread with a large stack.

llguidance compiles rules by recursion, and its recursion has no limit. A grammar of 3,000
rules, each of which names the next one, needs about 10 MB of stack. A main thread has
8 MB, and the process ends by a segmentation fault where a stack ends. With the stack of
this thread the longest grammar that is accepted compiles.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

STACK_BYTES = 256 * 1024 * 1024
"""Only what is used of it takes memory.

A grammar or schema has 128 KiB at most. A rule that names the next one has 13 characters
and takes 3.3 kB of stack, so the longest chain of rules takes 33 MB. A definition that
refers to the next one has 30 characters and takes 7 kB: 30 MB.
"""

_Result = TypeVar("_Result")
_start_lock = threading.Lock()


class _ThreadKind(threading.local):
    has_deep_stack = False


_kind = _ThreadKind()


def run_with_deep_stack(work: Callable[[], _Result]) -> _Result:
    """What the function returns, or raises; on this thread if it has such a stack."""
    if _kind.has_deep_stack:
        return work()
    future: Future[_Result] = Future()

    def run() -> None:
        _kind.has_deep_stack = True
        try:
            result = work()
        except BaseException as error:  # raised where it is waited for
            future.set_exception(error)
        else:
            future.set_result(result)

    thread = threading.Thread(target=run, name="deep-stack", daemon=True)
    # The size holds for all threads that start meanwhile, which does no harm.
    with _start_lock:
        size_before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(size_before)
    thread.join()
    return future.result()
