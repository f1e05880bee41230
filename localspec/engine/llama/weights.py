"""A model file as llama.cpp has loaded it: its handle, its vocabulary and its sizes."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from localspec.engine import pulse
from localspec.engine.llama import failures
from localspec.engine.llama.library import LOG, C
from localspec.engine.llama.vocabulary import Vocabulary
from localspec.errors import ModelFileError
from localspec.machine import breakdown, parameters
from localspec.machine.ledger import HOST
from localspec.protocol.wire import ContextSettings

_AXES = (C.LLAMA_ROPE_TYPE_MROPE, C.LLAMA_ROPE_TYPE_IMROPE)
"""Ways of turning by position along several axes."""


class Weights:
    """`predicting`: with the layers that guess further tokens, where the file has such (MTP)."""

    def __init__(self, path: Path, settings: ContextSettings, *, predicting: bool = False) -> None:
        given = parameters.model(C, settings)
        params, self._kept = given.params, given.kept
        params.load_mtp = predicting
        self._loading = C.llama_progress_callback(_loading)
        params.progress_callback = self._loading
        LOG.lines.clear()
        self.path = path
        self.handle: Any = C.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise failures.load_error(path)
        self.vocabulary = Vocabulary(C.llama_model_get_vocab(self.handle))
        self.n_layer: int = C.llama_model_n_layer(self.handle)
        self.n_embd: int = C.llama_model_n_embd(self.handle)
        self.n_embd_out: int = C.llama_model_n_embd_out(self.handle)
        self.n_predicting: int = C.llama_model_n_layer_nextn(self.handle) if predicting else 0
        self.n_ctx_train: int = C.llama_model_n_ctx_train(self.handle)
        self.n_swa: int = C.llama_model_n_swa(self.handle)
        self.architecture = self.key("general.architecture")
        if self.vocabulary.kind == 0:
            self.close()
            raise ModelFileError(
                f"{path.name} has no vocabulary.", "Give a file with the whole model."
            )

    @property
    def writes(self) -> bool:
        """Whether it continues text, alone."""
        has_encoder = C.llama_model_has_encoder(self.handle)
        return bool(C.llama_model_has_decoder(self.handle) and not has_encoder)

    @property
    def recurrent(self) -> bool:
        return parameters.is_recurrent(C, self.handle)

    @property
    def n_axes(self) -> int:
        """Numbers in the position of a row that has no token."""
        return 4 if C.llama_model_rope_type(self.handle) in _AXES else 1

    def key(self, name: str) -> str:
        """A value of the file's header, as text; empty where there is none."""
        buffer = ctypes.create_string_buffer(256)
        n = C.llama_model_meta_val_str(self.handle, name.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if n >= 0 else ""

    def chat_template(self) -> str:
        """Its source, as the file has it; empty where there is none."""
        source = C.llama_model_chat_template(self.handle, None)
        return bytes(source or b"").decode("utf-8", "replace")

    def n_bytes(self) -> int:
        return int(C.llama_model_size(self.handle))

    def kv_bytes(self, n_ctx: int, kv_type: str) -> float:
        """Of keys and values, were attention the same in every layer."""
        heads = max(1, C.llama_model_n_head(self.handle))
        width = self.n_embd / heads * C.llama_model_n_head_kv(self.handle)
        item = {"f32": 4.0, "q8_0": 1.0625, "q4_0": 0.5625}.get(kv_type, 2.0)
        return float(2 * n_ctx * self.n_layer * width * item)

    def used_with(self, context: Any, outputs: int, *, shared: bool = False) -> dict[str, int]:
        """Bytes by device with a context, its rows of logits with the computer's own memory.

        Empty where this build does not tell.  `shared`: the weights are counted elsewhere.
        """
        try:
            parts = breakdown.by_device(C._lib, context)
        except breakdown.UnknownLayoutError:
            return {}
        used = {name: part.total - shared * part.weights for name, part in parts.items()}
        used[HOST] = used.get(HOST, 0) + 4 * outputs * self.vocabulary.n_tokens
        return used

    def close(self) -> None:
        if self.handle:
            C.llama_model_free(self.handle)
        self.handle = None


def _loading(_share: float, _: Any) -> bool:
    """llama.cpp's progress while it loads; False would end it."""
    pulse.beat()
    return True
