"""The kinds of projectors (mmproj): what each is made for, and the rows of a picture.

Kinds that end in `a`, ultravox and voxtral are those of towers for audio.

The names and the limits are those of llama.cpp (tools/mtmd/clip.cpp, `load_hparams`).
A kind that is not in the table is judged by its file alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from localspec.models.gguf.header import Header
from localspec.sanitize import sanitize

ROWS_ON_CPU = 1024
ROWS_ON_GPU = 4096
"""The most rows that a picture becomes, unless the user says another number.

They count for kinds whose rows grow with the picture. The work grows faster than the
rows: 4,096 take a CPU minutes.
"""


class ProjectorKind(Struct, frozen=True):
    """What all projectors of a kind have in common."""

    architectures: tuple[str, ...] = ()
    """How the architectures of its models begin; empty: those of any."""
    merge: int = 1
    """Patches on each side that become one row, unless the file says it."""
    most_rows: int = 0
    """Of the largest picture; 0: every picture, or tile of one, is of one size."""
    is_in_one_pass: bool = False
    """Whether a picture must fit into one batch, as its rows see each other."""
    is_merged_first: bool = False
    """Whether the patches are merged before anything is computed: a row is a patch."""
    has_window_mask: bool = False
    """Whether some layers attend within windows, by a mask of every patch by every other."""
    why_refused: str = ""
    """Of a kind that cannot be used here."""

    def limit_rows(
        self, *, on_gpu: bool, n_batch: int, limit: int | None = None
    ) -> int | None:
        """The most rows that a picture becomes; None: what the file says.

        `n_batch`: the widest pass of the model; `limit`: the user's, which never
        raises that of the kind.
        """
        if not self.most_rows:
            return limit
        if limit is None:
            limit = ROWS_ON_GPU if on_gpu else ROWS_ON_CPU
        rows = min(limit, self.most_rows)
        return min(rows, n_batch) if self.is_in_one_pass else rows


_SPEAKS = "it is made for models that speak"

KINDS: Mapping[str, ProjectorKind] = {
    "deepseek4v": ProjectorKind(
        why_refused="its rows depend on what is before a picture"
    ),
    "gemma3": ProjectorKind(("gemma3",), merge=4),
    "gemma4v": ProjectorKind(("gemma4",), merge=3, most_rows=1120, is_in_one_pass=True),
    "gemma4uv": ProjectorKind(
        ("gemma4",),
        merge=3,
        most_rows=1120,
        is_in_one_pass=True,
        is_merged_first=True,
    ),
    "gemma4a": ProjectorKind(("gemma4",)),
    "gemma4ua": ProjectorKind(("gemma4",)),
    "glm4v": ProjectorKind(("glm4",), merge=2, most_rows=4096),
    "hunyuanvl": ProjectorKind(
        why_refused="its rows depend on the number of the picture"
    ),
    "idefics3": ProjectorKind(("llama",)),
    "kimik25": ProjectorKind(most_rows=4096),
    "lfm2": ProjectorKind(("lfm2",), most_rows=256),
    "ling3vl": ProjectorKind(merge=2, most_rows=4096),
    "muse-glimmer": ProjectorKind(
        ("muse-glimmer",), merge=2, most_rows=4096, has_window_mask=True
    ),
    "pixtral": ProjectorKind(("llama", "mistral"), most_rows=1024),
    "pockettts_spkenc": ProjectorKind(why_refused=_SPEAKS),
    "qwen2a": ProjectorKind(("qwen2",)),
    "qwen2vl_merger": ProjectorKind(("qwen2",), merge=2, most_rows=4096),
    "qwen2.5o": ProjectorKind(
        ("qwen2",), merge=2, most_rows=4096, has_window_mask=True
    ),
    "qwen2.5vl_merger": ProjectorKind(
        ("qwen2",), merge=2, most_rows=4096, has_window_mask=True
    ),
    "qwen3a": ProjectorKind(("qwen3",)),
    "qwen3tts_spkenc": ProjectorKind(why_refused=_SPEAKS),
    "qwen3vl_merger": ProjectorKind(("qwen3", "qwen4"), merge=2, most_rows=4096),
    "ultravox": ProjectorKind(("gemma3", "llama", "qwen3")),
    "voxtral": ProjectorKind(("llama", "mistral")),
    "youtuvl": ProjectorKind(merge=2, most_rows=62500, has_window_mask=True),
}
ORDINARY = ProjectorKind()
"""What most have: for a kind that is not in the table."""


def projector_kind(projector: Header) -> str:
    """llama.cpp's name of its architecture, such as `gemma3`; that for pictures first."""
    for key in ("projector_type", "vision.projector_type", "audio.projector_type"):
        kind = projector.keys.get(f"clip.{key}")
        if isinstance(kind, str) and kind:
            return sanitize(kind, multiline=False)
    return ""


def audio_kind(projector: Header) -> str:
    """llama.cpp's name of the architecture of its tower for audio; empty for none."""
    if projector.keys.get("clip.has_audio_encoder") is not True:
        return ""
    for key in ("projector_type", "audio.projector_type"):
        kind = projector.keys.get(f"clip.{key}")
        if isinstance(kind, str) and kind:
            return sanitize(kind, multiline=False)
    return ""


def find_kind(projector: Header) -> ProjectorKind:
    """The row of a projector's kind."""
    return KINDS.get(projector_kind(projector), ORDINARY)
