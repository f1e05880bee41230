"""Opens a head with its target, outside a session."""

from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from localspec.llama.context import LlamaContext
from localspec.llama.head_context import BlockHeadContext, HeadContext
from localspec.llama.hidden_states import FinalHiddenStates, LayerHiddenStates
from localspec.machine.llama_params import ModelRole
from localspec.models import draft_heads
from localspec.models.gguf import reader
from localspec.spec.drafters.autoregressive_head import HeadRunner
from localspec.spec.drafters.block_head import BlockHeadRunner
from tests.support.sessions import SETTINGS


@dataclass
class Beside:
    """A target, its head, and where the head's hidden states come from."""

    target: LlamaContext
    head: HeadContext
    source: LayerHiddenStates | FinalHiddenStates
    first: int

    def followed(self) -> HeadRunner | BlockHeadRunner:
        """A runner that follows the target's passes."""
        head = self.head
        batch = self.target.n_batch
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
    settings = replace(SETTINGS, n_ubatch=n_ubatch)
    header = reader.read(path)
    inside = path == target_path
    kind = draft_heads.file_draft_kind(header)
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
        head = HeadContext(
            own, settings, target, target_width=width, is_mtp=kind == "mtp"
        )
    return Beside(target, head, source, 0 if inside or kind == "mtp" else 1)
