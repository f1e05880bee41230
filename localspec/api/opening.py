"""From what a script names to the files and the settings that are loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec import flags, launch
from localspec.api.options import (
    LARGEST_SEED,
    MachineOptions,
    known,
    one_of,
    whole,
)
from localspec.errors import LocalspecError, UsageError
from localspec.fit.advisor import Wish
from localspec.models.chat import fallbacks
from localspec.models.wanted import NotHere
from localspec.protocol.events import Event, Notice
from localspec.protocol.wire import (
    DRAFT_MAX,
    ContextSettings,
    FlashAttention,
    KvType,
    Load,
    Split,
)
from localspec.speculation import WITHOUT_DRAFT, Spec
from localspec.worker.client import Worker


@dataclass(frozen=True, slots=True)
class Opening:
    """Loads the pair, each time with the settings that fit then."""

    wish: Wish
    probe: bool

    def __call__(
        self, hold: Callable[[Worker], None], say: Callable[[Notice], None]
    ) -> launch.Remembering:
        """Raises as `launch.start`."""

        def hear(event: Event) -> None:
            if isinstance(event, Notice):
                say(event)

        return launch.start(self.wish, probe=self.probe, say=hear, hold=hold)


_MOST = 2
"""Downloads: a target, and a draft that was named beside it."""


def check(spec: str, seed: int | None, template: str | None) -> None:
    """Raise UsageError where one of these makes no sense, before anything is looked for."""
    one_of("spec", spec, Spec)
    if seed is not None:
        whole("seed", seed, 0, LARGEST_SEED)
    if template is not None:
        fallbacks.source(template)


def files(model: str, draft: str, *, pull: bool) -> launch.Choice:
    """The files that these mean, downloaded where they may be.  Raises as `launch.choose`."""
    for _ in range(_MOST):
        try:
            return launch.choose(model, draft)
        except NotHere as missing:
            if not pull:
                missing.hint += " — or say LLM(…, pull=True)."
                raise
            _pull(missing.asked)
        except LocalspecError as error:
            error.hint = flags.in_python(error.hint)
            raise
    return launch.choose(model, draft)


def check_drafter(choice: launch.Choice, spec: str) -> None:
    """Raise UsageError where the pair has no drafter of that name, before it is loaded."""
    try:
        launch.check_drafter(choice, spec)
    except UsageError as error:
        error.hint = flags.in_python(error.hint)
        raise


def _pull(asked: str) -> None:
    """Fetch what is missing, after a look at headers and at the disk; resumes what was begun."""
    # Late: most scripts run what is here.
    from localspec.models import plan, wanted  # noqa: PLC0415
    from localspec.models.download import fetch  # noqa: PLC0415
    from localspec.models.remote import Hub  # noqa: PLC0415

    hub = Hub()
    found = plan.make(hub, [wanted.read(asked)])
    found.check()
    for item in found.items:
        for piece in item.pieces:
            if piece.where in ("", "hub"):
                fetch(hub, piece.job)


def wish(choice: launch.Choice, spec: str, given: MachineOptions) -> Wish:
    """What to load, as far as these options say.  Raises UsageError, or TypeError."""
    options = known(given, MachineOptions)
    ctx = _number(options, "ctx", 1)
    kv = one_of("kv", options["kv"], KvType) if "kv" in options else None
    layers = _number(options, "gpu_layers", 0)
    draft_layers = _number(options, "draft_gpu_layers", 0)
    threads = _number(options, "threads", 1)
    target = ContextSettings(
        n_gpu_layers=-1 if layers is None else layers,
        main_gpu=_number(options, "main_gpu", 0) or 0,
        kv_type=kv or "f16",
        cpu_moe=bool(options.get("cpu_moe")),
        flash_attn=one_of("flash_attn", options.get("flash_attn", "auto"), FlashAttention),
        n_ctx=ctx or choice.suggested.ctx,
        n_threads=threads,
        **_split(options.get("split", "layer")),
    )
    draft = replace(
        target,
        cpu_moe=False,
        n_gpu_layers=-1 if draft_layers is None else draft_layers,
        n_threads=_number(options, "draft_threads", 1) or threads,
    )
    path = str(choice.draft) if choice.draft and spec not in WITHOUT_DRAFT else None
    load = Load(str(choice.target), path, target, draft, DRAFT_MAX)
    return Wish(load, ctx=target.n_ctx, kv=kv, layers=layers, draft_layers=draft_layers)


def _number(options: dict[str, Any], name: str, low: int) -> int | None:
    return whole(name, options[name], low) if name in options else None


def _split(given: str | Sequence[float]) -> dict[str, Any]:
    if isinstance(given, str):
        return {"split_mode": one_of("split", given, Split)}
    try:
        return {"tensor_split": tuple(float(share) for share in given)}
    except (TypeError, ValueError):
        raise UsageError(f"split cannot be {given!r}.", "Possible: shares, as [3, 1].") from None
