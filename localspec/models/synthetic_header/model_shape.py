"""The numbers that decide what stands in a model's file: they are known before it is had."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """As in the model's published configuration; 0 or empty is a part that it does not have."""

    architecture: str
    """As llama.cpp calls it."""
    layers: int
    embd: int
    vocab: int
    ff: int = 0
    context: int = 4096
    """The trained one."""
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    """Of queries and keys; what the heads divide the width into, where absent."""
    value_dim: int = 0
    """Of values; as `head_dim` where absent."""
    rope_dim: int = 0
    """Dimensions of a head that are rotated; all where absent."""
    tied: bool = False
    """The output is the embedding: the file has one matrix for both."""
    rope_factors: bool = False
    """The file has a table of rotation frequencies."""
    experts: int = 0
    experts_used: int = 0
    expert_ff: int = 0
    shared_ff: int = 0
    """Width of the experts that every token passes, all together."""
    dense_layers: int = 0
    """Layers before the first one with experts."""
    window: int = 0
    """Tokens that a sliding layer looks back."""
    full_every: int = 0
    """Each so manieth layer has attention over everything: others slide, or are recurrent."""
    full_layers: tuple[int, ...] = ()
    """Those layers by their numbers, where they follow no rule."""
    sliding_head_dim: int = 0
    """Of sliding layers, where theirs differs."""
    full_kv_heads: int = 0
    """Of the other layers, where theirs differs."""
    shared_kv_layers: int = 0
    """Last layers that read the keys and values of earlier ones."""
    shared_kv_ff: int = 0
    """Width of those layers, where it differs."""
    keys_as_values: bool = False
    """Layers over everything have one matrix for keys and values."""
    layer_embd: int = 0
    """Width of the embedding that each layer adds."""
    q_rank: int = 0
    kv_rank: int = 0
    """Width of the compressed keys and values (MLA)."""
    conv: int = 0
    """Steps that a recurrent layer's convolution looks back."""
    inner: int = 0
    state: int = 0
    state_heads: int = 0
    """Of a recurrent layer: heads, or ranks of the time step."""
    groups: int = 0
    mtp_layers: int = 0
    """Layers behind the last that predict further tokens."""

    @property
    def n_head_kv(self) -> int:
        return self.kv_heads or self.heads

    @property
    def key_dim(self) -> int:
        return self.head_dim or (self.embd // self.heads if self.heads else 0)

    def has_full_attention(self, layer: int) -> bool:
        """Whether a layer has attention over everything; all have where no rule is known."""
        if self.full_layers:
            return layer in self.full_layers
        return not self.full_every or (layer + 1) % self.full_every == 0
