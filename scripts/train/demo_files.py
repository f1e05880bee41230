"""Files of the demo pair: two Q8_0 GGUFs."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import torch
from demo_network import CONTEXT, Llama
from demo_text import EOS, VOCAB
from gguf.quants import dequantize, quantize
from tokenizers import Tokenizer


def write_gguf(path: Path, model: Llama, tokenizer: Tokenizer, name: str, description: str) -> None:
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
    for key, value in model.state_dict().items():
        data = value.float().numpy()
        if data.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            out.add_tensor(key, quantize(data, kind), raw_dtype=kind)
        else:
            out.add_tensor(key, data)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def add_vocabulary(out: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    vocabulary = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    end = tokenizer.token_to_id(EOS)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    out.add_token_types(
        [gguf.TokenType.CONTROL if i == end else gguf.TokenType.NORMAL for i in range(VOCAB)]
    )
    out.add_token_merges([" ".join(m) for m in vocabulary["merges"]])
    out.add_eos_token_id(end)
    out.add_bos_token_id(end)
    out.add_add_bos_token(False)


def load_weights(model: Llama, path: Path) -> None:
    """Loads a file written by `write_gguf`."""
    state = {
        tensor.name: torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        for tensor in gguf.GGUFReader(path).tensors
    }
    model.load_state_dict(state)
