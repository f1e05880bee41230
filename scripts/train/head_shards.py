"""Shards: folders of arrays with a target's conversations.

The training of the target's head reads them. A shard is written under another name and renamed, so that an interruption loses only
the answers in progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEQUENCE_TOKENS = 768
"""Of the longest conversation."""
SHARD_TOKENS = 16384
"""75 MB with four hidden states of 576 numbers in half precision."""


@dataclass
class Conversation:
    """Tokens of a chat; `own` marks the target's."""

    prompt: int
    temperature: float
    tokens: list[int] = field(default_factory=list)
    own: list[bool] = field(default_factory=list)
    states: list[NDArray[np.float16]] = field(default_factory=list)
    """Inputs of the layers that the head reads, [tokens of a pass, layers × n_embd]."""
    finals: list[NDArray[np.float16]] = field(default_factory=list)
    """Output after the final norm at the target's own tokens, [1, n_embd]."""
    next_token: int = -1
    turns_left: int = 0
    answer_left: int = 0

    @property
    def n_own(self) -> int:
        return sum(self.own)


class ShardWriter:
    """Collects conversations and writes a shard whenever there are enough."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.pending = list[Conversation]()

    def add(self, conversation: Conversation) -> bool:
        """Whether a shard was written."""
        self.pending.append(conversation)
        enough = sum(len(c.tokens) for c in self.pending) >= SHARD_TOKENS
        if enough:
            self.flush()
        return enough

    def flush(self) -> None:
        if not self.pending:
            return
        numbers = [int(p.name) for p in self.folder.iterdir() if p.name.isdigit()]
        path = self.folder / f"{max(numbers, default=-1) + 1:05}"
        unfinished = path.with_suffix(".part")
        unfinished.mkdir(exist_ok=True)
        for name, array in arrays_of(self.pending).items():
            np.save(unfinished / f"{name}.npy", array)
        unfinished.rename(path)
        self.pending = []


def arrays_of(conversations: Sequence[Conversation]) -> dict[str, NDArray[Any]]:
    """The arrays of a shard, in which conversations follow each other."""
    tokens: list[int] = []
    own: list[bool] = []
    states: list[NDArray[np.float16]] = []
    finals: list[NDArray[np.float16]] = []
    for conversation in conversations:
        tokens += conversation.tokens
        own += conversation.own
        states += conversation.states
        finals += conversation.finals
    return {
        "tokens": np.array(tokens, np.int32),
        "own": np.array(own, np.bool_),
        "lengths": np.array([len(c.tokens) for c in conversations], np.int32),
        "prompts": np.array([c.prompt for c in conversations], np.int32),
        "temperatures": np.array([c.temperature for c in conversations], np.float32),
        "states": np.concatenate(states),
        "finals": np.concatenate(finals),
    }


def shards(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*") if p.name.isdigit())


def answered(folder: Path) -> set[int]:
    """Numbers of the prompts in the shards."""
    numbers: set[int] = set()
    for shard in shards(folder):
        numbers.update(np.load(shard / "prompts.npy").tolist())
    return numbers


def own_tokens(folder: Path) -> int:
    return sum(int(np.load(shard / "own.npy").sum()) for shard in shards(folder))
