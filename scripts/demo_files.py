"""Files of the demo pair: two Q8_0 GGUFs, which training can resume from, and a model card."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import torch
from demo_network import CONTEXT, Llama, Shape
from demo_text import EOS, VOCAB
from gguf.quants import dequantize, quantize
from tokenizers import Tokenizer

CARD = """# The demo pair

Two small language models that complete Python code. They are bundled so that localspec runs, speculates and can be
tested with nothing to download. Completing Python code in the style of the standard library is all they are for:
they do not chat, do not know facts, and the code they write is plausible rather than right.

| | target `demo-target.gguf` | draft `demo-draft.gguf` |
|---|---|---|
| parameters | {target_parameters:,} | {draft_parameters:,} |
| shape | {target_shape} | {draft_shape} |
| loss on held-out modules, nats a token | {target_loss} | {draft_loss} |

Greedy agreement of the two on held-out text: {greedy_agreement}; overlap of their distributions (1 − total variation): {overlap}.

- **Data**: the source of Python {python}'s standard library and its tests, and functions of it followed by the same
  function slightly changed ({edits} of the sampled windows), so that the models learn to copy. SHA-256 of the text: `{sha256}`.
- **Licence**: the data is under the PSF licence 2.0; the weights are distributed under the same.
- **Held out**: {held_out}.
- **Tokens seen**: {tokens:,}, in windows of {context}; context {context}. The draft was distilled from the target's distributions
  while the target was trained. Vocabulary: byte-level BPE, {vocab:,} tokens, GPT-2's pre-tokenizer; EOS after each file.
- **Made by**: `{command}` with torch {torch} on {threads} CPU threads, in {minutes}.
"""


def shape_text(shape: Shape) -> str:
    return f"{shape.n_layer} layers × {shape.n_embd}, {shape.n_head} heads ({shape.n_head_kv} KV), FFN {shape.n_ff}"


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


def tokens_seen(folder: Path | None) -> int:
    """Training tokens of the pair in this folder, from its model card."""
    if folder is None:
        return 0
    found = re.search(r"Tokens seen\*\*: ([\d,]+)", (folder / "README.md").read_text("utf-8"))
    if found is None:
        raise SystemExit(f"{folder}/README.md does not contain the number of training tokens")
    return int(found[1].replace(",", ""))
