"""Whether a pretend card tells the truth with the installed llama.cpp.

A tiny model is loaded on one with its data: the sums must be those of a load without data and of
what was really allocated, and it must say what it says on the CPU.  Used in children only.
"""

from __future__ import annotations

import ctypes
from contextlib import closing
from typing import Any

from localspec.machine.opened import Opened
from localspec.machine.parameters import Role
from localspec.machine.pretend import Card, Pretend
from localspec.protocol.wire import ContextSettings

_SETTINGS = ContextSettings(n_ctx=512, n_ubatch=64, n_threads=1)
_ROLE = Role(_SETTINGS, outputs=9, rollback=0, repack=False)
"""A pretend card computes with the CPU's plain kernels, whose last bits those for repacked weights
do not share."""
_SIZE = 1024**3
_NAME = "PRETEND0"
_TOKENS = 8


def passes(c: Any, path: str) -> bool:
    """With the model at `path`."""
    empty = Pretend(c._lib, Card(_NAME, "", _SIZE, _SIZE))
    with closing(Opened(c, path, _ROLE, devices=[empty.address])) as model:
        promised = model.ledger().of(_NAME)
    card = Pretend(c._lib, Card(_NAME, "", _SIZE, _SIZE, empty=False))
    with closing(Opened(c, path, _ROLE, devices=[card.address], data=True)) as model:
        taken = model.ledger().of(_NAME)
        allocated = card.used
        there = logits(c, model)
    with closing(Opened(c, path, _ROLE, devices=[], data=True)) as model:
        here = logits(c, model)
    fair = all(abs(a - b) <= 0.02 * max(1.0, abs(b)) for a, b in zip(there, here, strict=True))
    return promised == taken and promised.total == allocated > 0 and card.used == 0 and fair


def logits(c: Any, model: Opened, tokens: int = _TOKENS) -> list[float]:
    """Of the last of a few tokens; empty where llama.cpp cannot read them."""
    ids = (ctypes.c_int32 * tokens)(*range(1, tokens + 1))
    if c.llama_decode(model.context, c.llama_batch_get_one(ids, tokens)) != 0:
        return []
    n = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model.model))
    return list(c.llama_get_logits(model.context)[:n])
