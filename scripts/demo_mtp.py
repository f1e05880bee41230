#!/usr/bin/env python3
"""Join the demo target and an MTP layer into one file of the `mimo2` architecture.

    scripts/demo_mtp.py demo-mtp-layer.gguf demo-mtp.gguf

The target computes the same: its Q8_0 rows are copied unchanged, those of queries and keys in
another order, because `mimo2` rotates the halves of a head and `llama` adjacent pairs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import head_files
import numpy as np
from head_files import Source
from numpy.typing import NDArray

DEMO = Path(__file__).resolve().parents[1] / "localspec" / "data" / "demo"
TIED = "token_embd.weight"
UNBOUND = 65536
"""A sliding window without effect; the architecture requires a layer with one."""


def in_halves(rows: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Reorders the rows of each head from adjacent pairs to halves."""
    order = np.arange(len(rows)).reshape(-1, size // 2, 2).transpose(0, 2, 1).ravel()
    return rows[order]


def add_keys(out: gguf.GGUFWriter, target: Source) -> None:
    layers = target.value("llama.block_count")
    out.add_block_count(layers + 1)
    out.add_uint32("mimo2.nextn_predict_layers", 1)
    out.add_uint32("mimo2.expert_feed_forward_length", target.value("llama.feed_forward_length"))
    out.add_uint32("mimo2.attention.sliding_window", UNBOUND)
    out.add_array("mimo2.attention.sliding_window_pattern", [True] + [False] * layers)
    out.add_float32("mimo2.rope.freq_base_swa", target.value("llama.rope.freq_base"))


def join(target_path: Path, layer_path: Path, out_path: Path) -> None:
    target, layer = Source(target_path), Source(layer_path)
    size = target.value("llama.attention.key_length")
    out = head_files.begin(out_path, target, "mimo2", "localspec demo MTP", "target and MTP layer")
    add_keys(out, target)
    for tensor in (*target.reader.tensors, *layer.reader.tensors):
        data = tensor.data
        if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            data = in_halves(data, size)
        out.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
        if tensor.name == TIED:
            out.add_tensor("output.weight", data, raw_dtype=tensor.tensor_type)
    head_files.finish(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("layer", type=Path, help="file from train_demo_heads.py --kind mtp")
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", type=Path, default=DEMO / "demo-target.gguf")
    args = parser.parse_args()
    join(args.target, args.layer, args.out)


if __name__ == "__main__":
    main()
