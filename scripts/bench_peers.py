#!/usr/bin/env python3
"""Compare localspec with llama.cpp's own programs: same files, prompts, threads, draft length.

    scripts/bench_peers.py --target T.gguf --draft D.gguf --threads 4 \\
        --speculative-simple build/bin/llama-speculative-simple --llama-bench build/bin/llama-bench

Build both programs from the llama.cpp source in the sdist of the installed llama-cpp-python, with
the same compiler flags, or link them with its libraries. Let nothing else run meanwhile.

Runs alternate in pairs; the order is reversed in every second round. Ratios are computed within a
pair, and their medians are printed (above 1: localspec is faster). What is timed, by the sources:

- llama-speculative-simple, "decoded": from the first draft, including the first token. Both models
  have read the prompt before. It stops one token after -n, so -n is one less.
- localspec, tokens_per_second: after the first token. The draft model reads the prompt in its first
  draft; that time is measured separately (a run with --events: the first draft against the median
  of the later ones) and subtracted.
- llama-bench: passes over random tokens, without sampling and text; one warm-up pass.
- "whole answer": reading the prompt (both models) and all tokens, without loading.

If the texts differ, two tokens were almost equally likely: the two programs read the prompt in
batches of different widths, and floating-point sums then differ in the last digits.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

from programs import BenchError, Case, Run, Settings, llama_bench, localspec, speculative_simple
from prompts import prompts_of

from localspec.machine.llama_params import has_amx, resolve_n_threads
from localspec.protocol.wire import DRAFT_MAX


@dataclass(frozen=True)
class Sample:
    """One run of each program, back to back."""

    case: Case
    round: int
    peer: Run
    ours: Run

    @property
    def ratio(self) -> float:
        return self.ours.speed / self.peer.speed

    @property
    def answer_ratio(self) -> float | None:
        if self.peer.answer_s is None or self.ours.answer_s is None:
            return None
        return self.peer.answer_s / self.ours.answer_s


# --- measuring ------------------------------------------------------------------------------


def measure(settings: Settings, prompts: dict[str, str]) -> Iterator[Sample]:
    """Every case in every round; the order of the programs alternates by round."""
    for n in range(settings.rounds):
        for case, program in cases(settings, prompts):
            if n % 2:
                ours = localspec(settings, case)
                peer = program(settings, case)
            else:
                peer = program(settings, case)
                ours = localspec(settings, case)
            yield Sample(case, n, peer, ours)


def cases(
    settings: Settings, prompts: dict[str, str]
) -> Iterator[tuple[Case, Callable[[Settings, Case], Run]]]:
    if settings.llama_bench:
        for name, prompt in prompts.items():
            # llama-bench starts at position 0: a short prompt keeps the context as short.
            yield Case(name, prompt.strip().splitlines()[0], 0), llama_bench
    if settings.speculative_simple:
        for gamma in settings.gammas:
            for name, prompt in prompts.items():
                yield Case(name, prompt, gamma), speculative_simple


# --- reporting ------------------------------------------------------------------------------


def stated(settings: Settings) -> list[str]:
    """The conditions of the measurement."""
    same = f"flash attention {settings.flash_attn}, KV f16"
    peer = f"{same}, draft min 0, p_min 0, greedy by top-k 1 alone"
    if settings.peer_defaults:
        peer = "its own defaults"
    load = "unknown" if settings.load_before is None else f"{settings.load_before:.2f}"
    return [
        f"target {Path(settings.target).name}, draft {Path(settings.draft).name}",
        f"llama-cpp-python {version('llama-cpp-python')}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, load before {load}",
        f"tokens {settings.tokens}, context {settings.ctx}, threads {settings.threads} for each "
        f"model, layers on a GPU {settings.gpu_layers}, temperature 0, rounds {settings.rounds}",
        f"localspec: {same}; llama.cpp: {peer}",
        f"weights repacked for the CPU: {'allowed' if settings.repack else 'off'} in both",
    ]


SPECULATIVE = (
    *("γ", "prompt", "llama.cpp tok/s", "localspec tok/s", "ratio", "whole answer"),
    *("acceptance llama.cpp", "acceptance localspec", "same text"),
)
PLAIN = ("prompt", "llama-bench tok/s", "localspec tok/s", "ratio")


def report(settings: Settings, samples: Sequence[Sample], *, markdown: bool) -> str:
    plain = [s for s in samples if not s.case.gamma]
    speculative = [s for s in samples if s.case.gamma]
    parts = ["\n".join(f"- {line}" for line in stated(settings))]
    if plain:
        groups = [*_by_name(plain), ("all", plain)]
        rows = [[name, *_speeds(group)] for name, group in groups]
        parts.append(table([PLAIN, *rows], markdown=markdown))
    if speculative:
        parts.append(table([SPECULATIVE, *_speculative_rows(speculative)], markdown=markdown))
    return "\n\n".join(parts if samples else [*parts, "Nothing was measured."])


def _speculative_rows(samples: Sequence[Sample]) -> Iterator[list[str]]:
    for gamma in sorted({s.case.gamma for s in samples}):
        group = [s for s in samples if s.case.gamma == gamma]
        for name, few in [*_by_name(group), ("all", group)]:
            yield [str(gamma), name, *_speculative(few)]
    yield ["all", "all", *_speculative(samples)]


def _speculative(samples: Sequence[Sample]) -> list[str]:
    answers = [s.answer_ratio for s in samples if s.answer_ratio is not None]
    same = sum(s.ours.text in s.peer.text for s in samples)
    return [
        *_speeds(samples),
        f"{median(answers):.3f}" if answers else "",
        _acceptance_rate([s.peer for s in samples]),
        _acceptance_rate([s.ours for s in samples]),
        f"{same}/{len(samples)}",
    ]


def _speeds(samples: Sequence[Sample]) -> list[str]:
    return [
        f"{median(s.peer.speed for s in samples):.1f}",
        f"{median(s.ours.speed for s in samples):.1f}",
        f"{median(s.ratio for s in samples):.3f}",
    ]


def _acceptance_rate(runs: Sequence[Run]) -> str:
    drafted = sum(run.drafted for run in runs)
    return f"{sum(run.accepted for run in runs) / drafted:.1%}" if drafted else "-"


def _by_name(samples: Sequence[Sample]) -> list[tuple[str, list[Sample]]]:
    names = dict.fromkeys(s.case.name for s in samples)
    return [(name, [s for s in samples if s.case.name == name]) for name in names]


def table(rows: Sequence[Sequence[str]], *, markdown: bool) -> str:
    """Aligned columns; a Markdown table with `markdown`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[text.ljust(w) for text, w in zip(row, widths, strict=True)] for row in rows]
    if not markdown:
        return "\n".join("  ".join(row).rstrip() for row in cells)
    cells.insert(1, ["-" * w for w in widths])
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def write_json(path: Path, settings: Settings, samples: Sequence[Sample]) -> None:
    document = {
        "schema": 1,
        "settings": asdict(settings),
        "stated": stated(settings),
        "samples": [
            asdict(s) | {"ratio": s.ratio, "answer_ratio": s.answer_ratio} for s in samples
        ],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


# --- the command line -----------------------------------------------------------------------


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True, metavar="GGUF")
    parser.add_argument("--draft", required=True, metavar="GGUF")
    parser.add_argument("--speculative-simple", metavar="PATH", help="compare speculation with it")
    parser.add_argument("--llama-bench", metavar="PATH", help="compare plain decoding with it")
    parser.add_argument("--gamma", type=int, nargs="+", default=[3, 5, 8], metavar="N")
    parser.add_argument("--threads", type=int, metavar="N", help="default: localspec's")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--tokens", type=int, default=128, metavar="N")
    parser.add_argument("--ctx", type=int, default=1024, metavar="N")
    parser.add_argument("--gpu-layers", type=int, default=0, metavar="N", help="of both models")
    parser.add_argument("--flash-attn", choices=["on", "off"], default="on")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="JSON: {name: text, …}")
    parser.add_argument("--peer-defaults", action="store_true", help="llama.cpp's own defaults")
    parser.add_argument("--localspec", metavar="COMMAND", help="default: this Python's")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run here")
    args = parser.parse_args(argv)
    if not (args.speculative_simple or args.llama_bench):
        parser.error("give --speculative-simple, --llama-bench or both")
    if not all(1 <= gamma <= DRAFT_MAX for gamma in args.gamma):
        parser.error(f"--gamma takes 1 to {DRAFT_MAX}")
    if args.tokens < 16 or args.rounds < 1:
        parser.error("at least 16 tokens and 1 round")
    return args


def settings_of(args: argparse.Namespace) -> Settings:
    default = (sys.executable, "-m", "localspec")
    return Settings(
        target=args.target,
        draft=args.draft,
        speculative_simple=args.speculative_simple,
        llama_bench=args.llama_bench,
        localspec=tuple(shlex.split(args.localspec)) if args.localspec else default,
        gammas=tuple(args.gamma),
        tokens=args.tokens,
        ctx=args.ctx,
        threads=resolve_n_threads(args.threads),
        gpu_layers=args.gpu_layers,
        flash_attn=args.flash_attn,
        repack=not has_amx(),
        peer_defaults=args.peer_defaults,
        rounds=args.rounds,
        load_before=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    settings = settings_of(args)
    samples: list[Sample] = []
    code = 0
    try:
        for sample in measure(settings, prompts_of(args.prompts)):
            samples.append(sample)
            kind = f"γ {sample.case.gamma}" if sample.case.gamma else "plain"
            line = f"round {sample.round + 1}, {kind}, {sample.case.name}: {sample.ratio:.3f}"
            print(line, file=sys.stderr)
    except KeyboardInterrupt:
        code = 130
    except BenchError as error:
        print(f"bench_peers: {error}", file=sys.stderr)
        code = 1
    print(report(settings, samples, markdown=args.markdown))
    if args.json:
        write_json(args.json, settings, samples)
    return code


if __name__ == "__main__":
    sys.exit(main())
