"""Opens a head with its target, and fits heads to one text."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localspec.engine.drafters.autoregressive_head import HeadRunner
from localspec.engine.drafters.block_head import BlockHeadRunner
from localspec.engine.llama.context import LlamaContext
from localspec.engine.llama.head_context import BlockHeadContext, HeadContext
from localspec.engine.llama.hidden_states import FinalHiddenStates, LayerHiddenStates
from localspec.machine.llama_params import ModelRole
from localspec.models import draft_heads
from localspec.models.gguf import reader
from localspec.models.gguf.architectures import ASSISTANT
from tests.support.sessions import SETTINGS
from tests.support.tinygguf import Model, RandomTensors

STEPS = 3
"""Consecutive draft tokens that a fitted head learns."""


@dataclass
class Beside:
    """A target, its head, the source of the head's hidden states, and its first row's position."""

    target: LlamaContext
    head: HeadContext
    source: LayerHiddenStates | FinalHiddenStates
    first: int

    def followed(self) -> HeadRunner | BlockHeadRunner:
        """A runner that follows the target's passes."""
        head, batch = self.head, self.target.n_batch
        runner: HeadRunner | BlockHeadRunner
        if isinstance(head, BlockHeadContext):
            runner = BlockHeadRunner(head, "block", batch)
        else:
            runner = HeadRunner(head, "head", batch, self.first)
        self.target.set_listener(self.source, runner)
        return runner

    def close(self) -> None:
        self.head.close()
        self.target.close()


def opened(target_path: Path, path: Path, n_ubatch: int = 32) -> Beside:
    """The same path twice means the target's own MTP layer."""
    settings, header = replace(SETTINGS, n_ubatch=n_ubatch), reader.read(path)
    inside, kind = path == target_path, draft_heads.file_draft_kind(header)
    target = LlamaContext(target_path, ModelRole(settings, 17, 16, load_mtp=inside))
    source: LayerHiddenStates | FinalHiddenStates
    if inside or kind == "mtp":
        source = FinalHiddenStates(target.handle, target.model)
    else:
        layers = draft_heads.target_layers(header)
        source = LayerHiddenStates(target.handle, target.model, layers)
    head: HeadContext
    width = source.width
    if kind in ("dflash", "dspark"):
        form = draft_heads.read_block_format(header)
        head = BlockHeadContext(path, settings, target, target_width=width, form=form)
    else:
        own = None if inside else path
        head = HeadContext(own, settings, target, target_width=width, is_mtp=kind == "mtp")
    return Beside(target, head, source, 0 if inside or kind == "mtp" else 1)


def ids(path: Path, text: str) -> list[int]:
    with closing(LlamaContext(path, ModelRole(SETTINGS, 1, 0))) as model:
        return model.vocabulary.tokenize(text)


def fitted(
    pair: Beside, text: Sequence[int], model: Model, steps: slice = slice(None)
) -> NDArray[np.float32]:
    """An output matrix with which the head often predicts one text; closes the pair.

    Least squares on the head's states; no other weights change. `steps`: slice of all states.
    """
    with closing(pair):
        if isinstance(pair.head, BlockHeadContext):
            output = model.tensors["output.weight"]
            states, said = _states_of_blocks(pair, pair.head, text, output)
        else:
            states, said = _states(pair, text)
            if pair.head.reads_target_memory:  # its states are given as wide as the target's
                states = states @ np.linalg.pinv(model.tensors["nextn.post_projection.weight"]).T
    states, said = states[steps], said[steps]
    scale = np.sqrt((states**2).mean(axis=1, keepdims=True) + 1e-5)
    wanted = np.zeros((len(states), pair.head.n_vocab), np.float32)
    wanted[np.arange(len(states)), said] = 1.0
    found = np.linalg.lstsq(states / scale, wanted, rcond=1e-4)[0]
    return np.ascontiguousarray(10.0 * found.T, np.float32)


def taught(target: Path, head: Model, text: Sequence[int], folder: Path) -> Path:
    """A head in a file of its own, fitted to the text."""
    if head.arch == "dflash":  # its states are visible only through an output matrix of its own
        RandomTensors(3, head).matrix(
            "output", len(head.vocabulary()), head.keys["embedding_length"], std=1.0
        )
    path = head.write(folder / "untaught.gguf")
    name = "token_embd.weight" if head.arch == ASSISTANT else "output.weight"
    head.tensors[name] = fitted(opened(target, path), text, head)
    return head.write(folder / "taught.gguf")


def taught_inside(model: Model, text: Sequence[int], folder: Path) -> Path:
    """A model whose MTP layers, one or STEPS, are fitted to the text."""
    path = model.write(folder / "untaught.gguf")
    n = model.keys["nextn_predict_layers"]
    for i in range(n):
        name = f"blk.{model.keys['block_count'] - n + i}.nextn.shared_head_head.weight"
        steps = slice(i, None, n)  # each layer makes one token of a draft
        model.tensors[name] = fitted(opened(path, path), text, model, steps)
    return model.write(folder / "taught.gguf")


def _states(pair: Beside, text: Sequence[int]) -> tuple[NDArray[np.float32], list[int]]:
    """The head's states for each row and for its own rows after it, and the tokens to predict."""
    target, head = pair.target, pair.head
    states, said = [], []
    if pair.first == 0 and not head.reads_target_memory:
        head.decode(text[:1], 0)
    for place in range(len(text) - STEPS - 1):
        target.decode(text[place : place + 1], 0)
        state = head.encode(pair.source.states(1))
        for step in range(1, STEPS + 1):
            if step == 1:
                head.decode([text[place + step]], 1, state)
            else:
                head.continue_draft(text[place + step])
            state = head.last_hidden_state()
            states.append(state)
            said.append(text[place + step + 1])
        head.truncate(place + 2 - pair.first)
    return np.concatenate(states), said


def _states_of_blocks(
    pair: Beside, head: BlockHeadContext, text: Sequence[int], output: NDArray[np.float32]
) -> tuple[NDArray[np.float32], list[int]]:
    """The same for a block's rows, computed from their logits."""
    back = np.linalg.pinv(output)
    states: list[NDArray[np.float32]] = []
    said: list[int] = []
    for place in range(len(text) - STEPS - 1):
        pair.target.decode(text[place : place + 1], 0)
        head.inject(pair.source.states(1))
        rows, _ = head.draft_block(text[place + 1], STEPS)
        states.append(rows @ back.T)
        said += text[place + 2 : place + 2 + STEPS]
    return np.concatenate(states).astype(np.float32), said
