"""The demo pair's networks, with llama.cpp's tensor names, and their files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import gguf
import torch.nn.functional as F
from demo_text import EOS, VOCAB
from head_files import add_tensors, finish
from head_network import Shape, heads, linear, rope_table, rotate, spread
from tokenizers import Tokenizer
from torch import Tensor, nn

CONTEXT = 1024


TARGET = Shape(n_embd=384, n_layer=6, n_head=6, n_head_kv=2, n_ff=1024)
DRAFT = Shape(n_embd=128, n_layer=3, n_head=2, n_head_kv=1, n_ff=352)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d = shape.n_embd
        q = shape.n_head * shape.head
        kv = shape.n_head_kv * shape.head
        self.shape = shape
        self.attn_norm = nn.RMSNorm(d, shape.eps)
        self.ffn_norm = nn.RMSNorm(d, shape.eps)
        self.attn_q = linear(d, q)
        self.attn_k = linear(d, kv)
        self.attn_v = linear(d, kv)
        self.attn_output = linear(q, d)
        self.ffn_gate = linear(d, shape.n_ff)
        self.ffn_up = linear(d, shape.n_ff)
        self.ffn_down = linear(shape.n_ff, d)

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        shape = self.shape
        h = self.attn_norm(x)
        q = rotate(heads(self.attn_q(h), shape), table)
        k = rotate(heads(self.attn_k(h), shape), table)
        v = heads(self.attn_v(h), shape)
        k = spread(k, shape)
        v = spread(v, shape)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_output(a.transpose(1, 2).flatten(-2))
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Llama(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(VOCAB, shape.n_embd)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.output_norm = nn.RMSNorm(shape.n_embd, shape.eps)
        self.table = rope_table(shape, CONTEXT)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.02
                if name.endswith(("attn_output.weight", "ffn_down.weight")):
                    # These two of each layer add to the residual.
                    std /= math.sqrt(2 * shape.n_layer)
                nn.init.normal_(p, std=std)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token_embd(ids)
        for block in self.blk:
            x = block(x, self.table)
        return F.linear(self.output_norm(x), self.token_embd.weight)


# --- files ----------------------------------------------------------------------------


def write_gguf(
    path: Path, model: Llama, tokenizer: Tokenizer, name: str, description: str
) -> None:
    """Q8_0 matrices, F32 norms; the tied output is left out, as llama.cpp expects."""
    shape = model.shape
    out = gguf.GGUFWriter(path, "llama")
    out.add_name(name)
    out.add_description(description)
    out.add_author("localspec")
    out.add_license("PSF-2.0")
    out.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    out.add_quantization_version(gguf.GGML_QUANT_VERSION)
    out.add_context_length(CONTEXT)
    out.add_embedding_length(shape.n_embd)
    out.add_block_count(shape.n_layer)
    out.add_feed_forward_length(shape.n_ff)
    out.add_head_count(shape.n_head)
    out.add_head_count_kv(shape.n_head_kv)
    out.add_key_length(shape.head)
    out.add_value_length(shape.head)
    out.add_rope_dimension_count(shape.head)
    out.add_rope_freq_base(shape.rope_base)
    out.add_layer_norm_rms_eps(shape.eps)
    out.add_vocab_size(VOCAB)
    add_vocabulary(out, tokenizer)
    weights = {name: p.float().numpy() for name, p in model.state_dict().items()}
    add_tensors(out, weights)
    finish(out)


def add_vocabulary(out: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    vocabulary = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    end = tokenizer.token_to_id(EOS)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    types = [gguf.TokenType.NORMAL] * VOCAB
    types[end] = gguf.TokenType.CONTROL
    out.add_token_types(types)
    out.add_token_merges([" ".join(m) for m in vocabulary["merges"]])
    out.add_eos_token_id(end)
    out.add_bos_token_id(end)
    out.add_add_bos_token(False)
