"""How soon a picture is read, beside llama-server.

    bench.py pictures --target T.gguf --projector M.gguf --llama-cpp build/bin
                      [--side 512] [--rounds 6] [--threads N]

Both servers keep running and are asked by the same client, in turns, each second turn in
reverse order. A question has a picture of noise that neither has read before, so nothing
is cached, and its answer one token. The time is the client's, from the request to the
end of the answer, so it has the picture's decoding, its tower and the pass over its rows.
"""

from __future__ import annotations

import argparse
import base64
import struct
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from programs import (
    LOCALSPEC,
    PLAIN,
    LlamaServer,
    Settings,
    conditions,
    llama_server_command,
    model_settings,
)
from turns import in_turn, table

_TEMPLATE = "chatml"
_QUESTION = "What is in the picture?"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", required=True, metavar="GGUF")
    add("--projector", required=True, metavar="GGUF")
    add("--llama-cpp", required=True, metavar="DIR", help="llama.cpp's programs")
    add("--side", type=int, nargs="+", default=[512], metavar="PIXELS")
    add("--rows", type=int, metavar="N", help="the most tokens of a picture")
    add("--rounds", type=int, default=6, metavar="N")
    add("--ctx", type=int, default=4096, metavar="N")
    add("--threads", type=int, metavar="N")


def main(args: argparse.Namespace) -> None:
    settings = Settings(
        target=args.target,
        draft=None,
        folder=args.llama_cpp,
        tokens=1,
        ctx=args.ctx,
        threads=args.threads,
    )
    projector = str(Path(args.projector).resolve())
    theirs = ["--mmproj", projector, "--jinja", "--chat-template", _TEMPLATE]
    ours = ["--image-model", projector, "--template", _TEMPLATE]
    if args.rows is not None:
        theirs += ["--image-max-tokens", str(args.rows)]
        ours += ["--image-tokens", str(args.rows)]

    def our_command(settings: Settings) -> list[str]:
        options = (*PLAIN, *model_settings(settings), *ours)
        return [*LOCALSPEC, "serve", settings.target, *options]

    def their_command(settings: Settings) -> list[str]:
        return [*llama_server_command(settings), *theirs]

    print(conditions())
    rows: list[list[str]] = [
        ["picture", "prompt", "llama-server, s", "localspec, s", "ratio"]
    ]
    with ExitStack() as opened:
        servers = {
            "llama-server": LlamaServer(settings, their_command),
            "localspec": LlamaServer(settings, our_command),
        }
        for server in servers.values():
            opened.callback(server.close)
        for side in args.side:
            rows.append(compare(servers, side, args.rounds))
    print(table(rows))


def compare(servers: dict[str, LlamaServer], side: int, n_rounds: int) -> list[str]:
    """A row of the table. Above 1, localspec is faster."""
    seconds = defaultdict[str, list[float]](list)
    n_prompt = dict[str, int]()
    pictures = make_pictures(side)
    for turn in range(n_rounds + 1):
        picture = next(pictures)
        for name in in_turn(list(servers), turn):
            began = time.perf_counter()
            answer = servers[name].post("/v1/chat/completions", make_body(picture))
            took = time.perf_counter() - began
            n_prompt[name] = answer["usage"]["prompt_tokens"]
            print(f"turn {turn}, {side} px, {name}: {took:.2f} s", file=sys.stderr)
            if turn:  # The first one is not counted.
                seconds[name].append(took)
    theirs = seconds["llama-server"]
    ours = seconds["localspec"]
    ratio = median(a / b for a, b in zip(theirs, ours, strict=True))
    lengths = " / ".join(str(n_prompt[name]) for name in servers)
    return [
        f"{side} x {side}",
        f"{lengths} tokens",
        f"{median(theirs):.2f}",
        f"{median(ours):.2f}",
        f"{ratio:.3f}",
    ]


def make_body(picture: bytes) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    parts = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": _QUESTION},
    ]
    return {
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 1,
        "temperature": 0,
    }


def make_pictures(side: int) -> Iterator[bytes]:
    """PNG files of noise, each another."""
    random = np.random.default_rng(side)
    while True:
        pixels = random.integers(0, 256, (side, side, 3), np.uint8)
        # Each line of pixels begins with its filter, 0: none.
        lines = np.concatenate(
            [np.zeros((side, 1), np.uint8), pixels.reshape(side, -1)], 1
        )
        header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        yield b"\x89PNG\r\n\x1a\n" + b"".join(
            [
                make_chunk(b"IHDR", header),
                make_chunk(b"IDAT", zlib.compress(lines.tobytes(), 1)),
                make_chunk(b"IEND", b""),
            ]
        )


def make_chunk(kind: bytes, data: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + checksum
