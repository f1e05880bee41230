"""A head opened beside its target, as the engine would open it: what both take then.

Used in children only.  The functions are C++, exported under their mangled names, as in
engine/llama/taps.py; a build may lack them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from localspec.machine import parameters
from localspec.machine.breakdown import UnknownLayoutError
from localspec.machine.ledger import Ledger
from localspec.machine.opened import Opened, OpeningError
from localspec.machine.parameters import Role

_TAP = "_Z30llama_set_embeddings_layer_inpP13llama_contextjb"
_NEXT = "_Z26llama_set_embeddings_nextnP13llama_contextbb"
_RESERVE = "_ZN13llama_context13sched_reserveEv"
_ARGUMENTS: dict[str, list[Any]] = {
    _TAP: [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool],
    _NEXT: [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool],
    _RESERVE: [ctypes.c_void_p],
}


_NEEDED = {
    "llama_set_embeddings_layer_inp": (
        _TAP,
        "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
    ),
    "llama_get_embeddings_layer_inp": (
        "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
        "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
    ),
    "llama_set_embeddings_nextn": (
        _NEXT,
        "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z",
    ),
    "llama_get_embeddings_nextn": (
        "_Z26llama_get_embeddings_nextnP13llama_context",
        "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z",
    ),
}
"""What the engine calls where a head drafts, by plain name: as GCC and Clang, and as Microsoft's
compiler write it."""


def lacking(c: Any) -> list[str]:
    """Functions without which this build runs no heads."""

    def has(symbol: str) -> bool:
        try:
            return bool(c._lib[symbol])
        except AttributeError:
            return False

    return [name for name, ways in _NEEDED.items() if not any(map(has, (name, *ways)))]


def tap(c: Any, target: Opened, layers: Sequence[int]) -> None:
    """From now on the target keeps the inputs of these layers, of every token of a batch.

    llama.cpp aborts on layers that it does not give.  Raises UnknownLayoutError.
    """
    for layer in set(layers):
        _call(c, _TAP, target.context, layer, True)
    _call(c, _RESERVE, target.context)
    target.kept = len(set(layers)) * _states(c, target, c.llama_model_n_embd)


def predict(c: Any, target: Opened) -> None:
    """The same of what leaves its last layer, for the layer of its own that guesses."""
    _call(c, _NEXT, target.context, True, False)
    _call(c, _TAP, target.context, 0, False)  # asks for nothing, but the graph is sized anew
    _call(c, _RESERVE, target.context)
    target.kept = _states(c, target, c.llama_model_n_embd_out)


class Beside(Opened):
    """A head of another file.  Close it before the target."""

    def __init__(self, c: Any, path: str, role: Role, target: Opened, **how: Any) -> None:
        """`how` as `Opened` has it."""
        self._target = target
        super().__init__(c, path, role, **how)

    def _begin(self, role: Role) -> None:
        self._join(role, self._c.LLAMA_CONTEXT_TYPE_DEFAULT)

    def _join(self, role: Role, kind: int) -> None:
        c, self.role = self._c, role
        params = parameters.context(c, self.model, role, self._target.n_ctx)
        params.ctx_other, params.ctx_type = self._target.context, kind
        self.context = c.llama_init_from_model(self.model, params)
        if not self.context:
            raise OpeningError("no context for the head")
        self.n_ctx = int(c.llama_n_ctx(self.context))
        self.recurrent = False
        self.kept = _states(c, self, c.llama_model_n_embd)


class Inside(Beside):
    """The target's own layer that guesses (MTP): a context more of the same model."""

    def __init__(self, c: Any, role: Role, target: Opened) -> None:
        self._c, self._target = c, target
        self.model, self.context = target.model, None
        self._join(role, c.LLAMA_CONTEXT_TYPE_MTP)

    def ledger(self) -> Ledger:
        """The weights are the target's."""
        found = super().ledger()
        on = {name: replace(part, weights=0) for name, part in found.on.items()}
        return Ledger(on, found.output)

    def close(self) -> None:
        self.model = None
        super().close()


def _states(c: Any, opened: Opened, width: Any) -> int:
    return int(4 * c.llama_n_ubatch(opened.context) * width(opened.model))


def _call(c: Any, name: str, *arguments: Any) -> None:
    try:
        function = c._lib[name]
    except AttributeError:
        raise UnknownLayoutError(f"no {name}") from None
    function.argtypes, function.restype = _ARGUMENTS[name], None
    function(*arguments)
