"""The shape of a model: the numbers that determine the tensors of its file."""

from __future__ import annotations

from localspec.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """As in the model's published configuration; 0 or empty: the model has no such part."""

    architecture: str
    """In llama.cpp's spelling."""
    layers: int
    embd: int
    vocab: int
    ff: int = 0
    context: int = 4096
    """Trained context length."""
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    """Of queries and keys; default: `embd / heads`."""
    value_dim: int = 0
    """Of values; default: `head_dim`."""
    rope_dim: int = 0
    """Rotated dimensions of a head; default: all."""
    tied: bool = False
    """One matrix for embedding and output."""
    rope_factors: bool = False
    """The file has a table of rotation frequencies."""
    experts: int = 0
    experts_used: int = 0
    expert_ff: int = 0
    shared_ff: int = 0
    """Total width of the shared experts."""
    dense_layers: int = 0
    """Layers before the first one with experts."""
    window: int = 0
    """Tokens of the sliding attention window."""
    full_every: int = 0
    """Every n-th layer has full attention; the others have a window or are recurrent."""
    full_layers: tuple[int, ...] = ()
    """The layers with full attention, if `full_every` does not describe them."""
    sliding_head_dim: int = 0
    """Of layers with a window, if it differs."""
    full_kv_heads: int = 0
    """Of layers with full attention, if it differs."""
    shared_kv_layers: int = 0
    """Last layers, which read the keys and values of earlier ones."""
    shared_kv_ff: int = 0
    """Feed-forward width of those layers, if it differs."""
    keys_as_values: bool = False
    """Layers with full attention have one matrix for keys and values."""
    layer_embd: int = 0
    """Width of the per-layer embeddings."""
    q_rank: int = 0
    kv_rank: int = 0
    """Width of the compressed keys and values (MLA)."""
    conv: int = 0
    """Kernel size of a recurrent layer's convolution."""
    inner: int = 0
    state: int = 0
    state_heads: int = 0
    """Heads of a recurrent layer, or its time step rank."""
    groups: int = 0
    mtp_layers: int = 0
    """MTP layers, after the others."""

    @property
    def n_head_kv(self) -> int:
        return self.kv_heads or self.heads

    @property
    def key_dim(self) -> int:
        return self.head_dim or (self.embd // self.heads if self.heads else 0)

    def has_full_attention(self, layer: int) -> bool:
        """True for every layer if neither `full_every` nor `full_layers` is set."""
        if self.full_layers:
            return layer in self.full_layers
        return not self.full_every or (layer + 1) % self.full_every == 0
