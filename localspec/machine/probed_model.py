"""Models and heads opened without data, as the engine opens them, to count their buffers.

For child processes only: llama.cpp may abort on a malformed header.
"""

from __future__ import annotations

import os
from typing import Any

from localspec.machine import llama_params
from localspec.machine.llama_params import ModelRole


class ModelOpenError(Exception):
    """llama.cpp rejects the model or the settings."""


class ProbedModel:
    """A model and its context.  Raises ModelOpenError or UsageError; `close` frees both."""

    def __init__(self, c: Any, path: str, role: ModelRole) -> None:
        self._c = c
        self.model: Any = None
        self.context: Any = None
        params = llama_params.model_params(c, role.settings).params
        # Without data llama.cpp aborts in other load modes.
        params.no_alloc, params.load_mode = True, c.LLAMA_LOAD_MODE_NONE
        params.load_mtp = role.load_mtp
        try:
            self.model = c.llama_model_load_from_file(os.fsencode(path), params)
            if not self.model:
                raise ModelOpenError("llama.cpp cannot load the model")
            self._create_context(role)
        except BaseException:
            self.close()
            raise

    def _create_context(self, role: ModelRole) -> None:
        c = self._c
        role = llama_params.limit_to_trained(c, self.model, role)
        trained = int(c.llama_model_n_ctx_train(self.model))
        n_ctx = llama_params.resolve_n_ctx(role.settings, trained, "this model")
        params = llama_params.context_params(c, self.model, role, n_ctx)
        self.context = c.llama_init_from_model(self.model, params)
        if not self.context:
            raise ModelOpenError("llama.cpp cannot create a context with these settings")
        self.n_ctx = int(c.llama_n_ctx(self.context))
        self.is_recurrent = llama_params.is_recurrent(c, self.model)

    def close(self) -> None:
        if self.context:
            self._c.llama_free(self.context)
        if self.model:
            self._c.llama_model_free(self.model)
        self.context = self.model = None


class ProbedHead(ProbedModel):
    """A head in its own file.  Close it before the target."""

    def __init__(self, c: Any, path: str, role: ModelRole, target: ProbedModel) -> None:
        self._target = target
        super().__init__(c, path, role)

    def _create_context(self, role: ModelRole) -> None:
        self._create_head_context(role, self._c.LLAMA_CONTEXT_TYPE_DEFAULT)

    def _create_head_context(self, role: ModelRole, context_type: int) -> None:
        c = self._c
        params = llama_params.context_params(c, self.model, role, self._target.n_ctx)
        params.ctx_other, params.ctx_type = self._target.context, context_type
        self.context = c.llama_init_from_model(self.model, params)
        if not self.context:
            raise ModelOpenError("llama.cpp cannot create a context for the head")
        self.is_recurrent = False


class ProbedMtpHead(ProbedHead):
    """The MTP layer of the target: a second context of the same model."""

    def __init__(self, c: Any, role: ModelRole, target: ProbedModel) -> None:
        self._c, self._target = c, target
        self.model, self.context = target.model, None
        self._create_head_context(role, c.LLAMA_CONTEXT_TYPE_MTP)

    def close(self) -> None:
        self.model = None
        super().close()


_HEAD_FUNCTIONS = {
    "llama_set_embeddings_layer_inp": (
        "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
        "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
    ),
    "llama_get_embeddings_layer_inp": (
        "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
        "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
    ),
    "llama_set_embeddings_nextn": (
        "_Z26llama_set_embeddings_nextnP13llama_contextbb",
        "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z",
    ),
    "llama_get_embeddings_nextn": (
        "_Z26llama_get_embeddings_nextnP13llama_context",
        "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z",
    ),
}
"""Functions the engine needs for heads, with their names by GCC or Clang and by MSVC."""


def missing_head_functions(c: Any) -> list[str]:
    """Functions that heads need and this build does not export."""

    def has(symbol: str) -> bool:
        try:
            return bool(c._lib[symbol])
        except AttributeError:
            return False

    return [
        name for name, mangled in _HEAD_FUNCTIONS.items() if not any(map(has, (name, *mangled)))
    ]
