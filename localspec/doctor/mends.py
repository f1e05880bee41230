"""What localspec can mend itself, by the finding's id; nothing happens before a person agreed.

Nothing is deleted but what downloads left behind: a damaged file is kept under another name.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from localspec import paths
from localspec.chat.history import mending
from localspec.clean import clean
from localspec.doctor import build
from localspec.doctor.finding import Action, Command, Finding
from localspec.machine import backends, installing
from localspec.machine.backends import Choice
from localspec.models import store
from localspec.units import gb
from localspec.worker import crashes

_CPU = Choice("cpu", "", compilers=("c++", "cl"))
_TRUE = ("1", "on", "yes", "true")


def action(finding: Finding) -> Action | None:
    """What can be done about it from here; None: only the person can."""
    if finding.id == "library-missing":  # which one, the loader said
        return _install(partial(_libraries, finding.what))
    make = _ACTIONS.get(finding.id)
    return make() if make is not None else None


# --- builds of llama.cpp ------------------------------------------------------------------


def _install(commands: Callable[[], tuple[Command, ...]]) -> Action | None:
    """From the package index: not where the network is forbidden, or the build is one's own."""
    offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE
    if offline or os.environ.get("LLAMA_CPP_LIB_PATH") or not (lines := commands()):
        return None
    shown = "\n\n".join(clean(str(line)) for line in lines)
    slow = any("--no-binary" in line.words for line in lines)
    time_ = "It compiles llama.cpp: minutes." if slow else "It downloads some hundred MB."
    return Action("install it", f"Run this? {time_}\n\n{shown}", commands=lines)


def _for_the_card() -> tuple[Command, ...]:
    return build.install(backends.choose(backends.detect()))


def _for_the_processor() -> tuple[Command, ...]:
    return build.anew(_CPU)


def _missing() -> tuple[Command, ...]:
    choice = backends.choose(backends.detect())
    return build.anew(choice) or build.anew(_CPU)


def _libraries(why: str) -> tuple[Command, ...]:
    """NVIDIA's, of the generation that the loader misses."""
    found = re.search(r"(?:libcudart|libcublas)\.so\.(\d+)|(?:cudart|cublas)64_(\d\d)", why)
    needed = backends.libraries(found[1] or found[2]) if found else ()
    if not needed or not installing.can_install():
        return ()
    choice = Choice("cuda", "", libraries=needed)
    return (Command(tuple(installing.libraries(choice, sys.executable, installing.uv()))),)


# --- files --------------------------------------------------------------------------------


def _sweep() -> Action | None:
    left = store.orphans()
    if not left:
        return None
    size = gb(sum(one.size for one in left))
    question = f"Remove {len(left)} unfinished downloads, {size}? They would begin anew."
    return Action("remove them", question, lambda: f"{gb(store.sweep(left))} are free now.")


def _aside(path: Callable[[], Path], instead: str) -> Action | None:
    where = path()
    if not where.exists():
        return None
    shown = clean(str(where), multiline=False)
    question = f"Set {shown} aside? It is kept beside, under another name; {instead}."
    return Action("set it aside", question, partial(_set_aside, where))


def _set_aside(path: Path) -> str:
    utc = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    there = path.with_name(f"{path.name}.damaged-{utc}")
    path.rename(there)
    return f"It is now {clean(str(there), multiline=False)}"


def _make_folder() -> Action | None:
    folder = store.models_folder()
    if folder is None or folder.exists():
        return None

    def make() -> str:
        folder.mkdir(parents=True)
        return "It is there."

    return Action("make it", f"Make the folder {clean(str(folder), multiline=False)}?", make)


def _mend_chats() -> Action:
    def mend() -> str:
        mended = mending.mend(paths.chats())
        if mended is None:
            return "Another localspec has just mended it."
        where = clean(str(mended.aside), multiline=False)
        return f"{mended.chats} chats were saved. The old file is {where}"

    question = "Save all chats that can be read into a new file? The damaged one is kept aside."
    return Action("mend it", question, mend)


def _forget_crashes() -> Action:
    def forget() -> str:
        crashes.forget_all()
        return "They may begin anew."

    question = "Forget that these pairs crashed? They are then restarted after a crash, as others."
    return Action("forget them", question, forget)


_ACTIONS: dict[str, Callable[[], Action | None]] = {
    "cpu-only-build": partial(_install, _for_the_card),
    "slow-build": partial(_install, _for_the_processor),
    "other-cpu": partial(_install, _for_the_processor),
    "illegal-instruction": partial(_install, _for_the_processor),
    "engine-fails": partial(_install, _for_the_processor),
    "engine-missing": partial(_install, _missing),
    "leftovers": _sweep,
    "models-folder": _make_folder,
    "config-damaged": partial(_aside, paths.config, "without it everything is as it comes"),
    "catalogue-damaged": partial(_aside, paths.own_catalogue, "the built-in pairs stay"),
    "chats-damaged": _mend_chats,
    "crash-loops": _forget_crashes,
}
