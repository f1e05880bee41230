"""Loads models with their data, and returns the buffers that llama.cpp reports."""

import os
from pathlib import Path

from localspec.llama.library import LOG, C
from localspec.machine import llama_params
from localspec.machine.device import DeviceMemory
from localspec.protocol.wire import LoadCommand
from tests.support.families import FAMILIES, write_ghost


def real(folder: Path, name: str) -> Path:
    """A small model of a family, written once; it has no vocabulary."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        write_ghost(FAMILIES[name].small, FAMILIES[name].quantisation, path)
    return path


def load(command: LoadCommand) -> dict[str, DeviceMemory]:
    """Buffers of the target by device; the model is closed again."""
    role = llama_params.target_role(command)
    params = llama_params.model_params(C, role.settings).params
    params.load_mode = C.LLAMA_LOAD_MODE_NONE  # a mapped file would count whole
    LOG.clear()
    model = C.llama_model_load_from_file(os.fsencode(command.target), params)
    assert model
    n_ctx = llama_params.resolve_n_ctx(
        role.settings, C.llama_model_n_ctx_train(model), "it"
    )
    context = C.llama_init_from_model(
        model, llama_params.context_params(C, model, role, n_ctx)
    )
    assert context
    allocated = LOG.buffers.by_device()
    C.llama_free(context)
    C.llama_model_free(model)
    return allocated
