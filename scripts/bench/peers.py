"""Compare localspec with llama.cpp's own programs on any model.

    bench.py peers --target T.gguf --draft D.gguf --llama-cpp build/bin --gamma 1 3 5

`--llama-cpp` is the folder with llama-server, llama-speculative-simple and
llama-completion, built from the llama.cpp source in the sdist of the installed
llama-cpp-python with the same compiler flags; a missing program is left out. Let
nothing else run meanwhile.

Every program reads the same text (no chat template) and samples with top-k 40, top-p
0.95 and min-p 0.05; all else is its own default unless an option says otherwise. Every
turn runs all programs on every prompt, each second turn in reverse order; one turn
before is not counted. Ratios to llama-server without a draft (to localspec's plain row,
if it is missing) are computed within a turn; their median is a prompt's. The table
gives the geometric mean over prompts and the worst prompt; above 1 is faster. What is
timed, by the sources:

- llama-server keeps running; tokens per second by its own clock, after the first token. "Whole
  answer" is the client's clock: reading the prompt and all tokens.
- llama-speculative-simple loads each time; its clock starts when both models have read the prompt.
- localspec loads each time; tokens per second after the first token. The draft model reads the
  prompt in its first draft, so this rate includes it. Costs measured in one run serve
  the next.

A whole answer has `--tokens` tokens: one that ends earlier is extended at its own
speed. Answers that repeat themselves (under half of the 4-grams distinct) are easy to
draft: if there are some, a table without them follows. Greedy texts that differ from
localspec's plain one part where two tokens are almost equally likely.

Tables of their own: `--threads-table 1 2` (localspec's default threads against these
counts), `--prefill 512 2048` (tokens per second of reading a prompt, by llama-server
and `localspec serve`, both kept running), `--first-token` (from the start of the
process to the first characters of the answer; `new` has no measurements yet, `known`
those of runs before; compile the bytecode first: python -m compileall localspec).
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from msgspec.structs import replace
from programs import (
    PLAIN,
    Case,
    LlamaServer,
    Settings,
    conditions,
    first_output,
    localspec,
    localspec_command,
    localspec_server_command,
    raw_program,
    speculative_simple,
)
from prompts import prompts_of, workload_prompts
from turns import (
    PLAIN_NAME,
    Contestant,
    Measurement,
    answer_table,
    in_turn,
    prompt_table,
    table,
)

FIRST_TOKEN_PROMPT = "The sea was calm that morning, and the old man"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", required=True, metavar="GGUF")
    draft_help = "the target: its MTP layers"
    add("--draft", action="append", default=[], metavar="GGUF", help=draft_help)
    add("--llama-cpp", required=True, metavar="DIR", help="llama.cpp's programs")
    add("--gamma", type=int, nargs="*", default=[], metavar="N", help="llama.cpp's")
    add("--fixed", type=int, nargs="*", default=[], metavar="N", help="localspec's")
    add("--temperature", type=float, nargs="+", default=[0.0, 0.8], metavar="T")
    add("--prompts", type=Path, metavar="FILE", help="JSON: {name: text, …}")
    add("--workload", nargs="*", metavar="NAME", help="those of localspec bench")
    add("--by-prompt", action="store_true", help="also a row for each prompt")
    add("--threads-table", type=int, nargs="+", metavar="N")
    add("--prefill", type=int, nargs="+", metavar="TOKENS")
    add("--first-token", action="store_true")
    add("--rounds", type=int, default=4, metavar="N")
    add("--tokens", type=int, default=96, metavar="N", help="at least 16")
    add("--ctx", type=int, default=1024, metavar="N")
    add("--threads", type=int, metavar="N", help="default: each program's own")
    add("--gpu-layers", type=int, metavar="N", help="of both models")
    add("--llama-cpp-options", default="", metavar="WORDS")
    add("--localspec-options", default="", metavar="WORDS")


def main(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as data_dir:
        settings = Settings(
            target=args.target,
            draft=next(iter(args.draft), None),
            folder=args.llama_cpp,
            tokens=args.tokens,
            ctx=args.ctx,
            threads=args.threads,
            gpu_layers=args.gpu_layers,
            llama_cpp_options=tuple(shlex.split(args.llama_cpp_options)),
            localspec_options=tuple(shlex.split(args.localspec_options)),
            data_dir=data_dir,
        )
        print(conditions())
        for name, value in vars(args).items():
            print(f"{name}: {value}")
        for part in report(settings, args):
            print(f"\n{part}", flush=True)


# --- contestants


def contestants_of(
    settings: Settings, args: argparse.Namespace, open_: ExitStack
) -> Iterator[Contestant]:
    pairs = [replace(settings, draft=draft) for draft in args.draft]
    if settings.has_program("llama-server"):
        for pair in (replace(settings, draft=None), *pairs):
            server = LlamaServer(pair)
            open_.callback(server.close)
            yield Contestant(f"llama-server{label(pair, args)}", server.complete)
    if settings.has_program("llama-speculative-simple"):
        for pair in pairs:
            name = f"llama-speculative-simple{label(pair, args)}"
            for gamma in (None, *args.gamma):
                run = partial(speculative_simple, pair, gamma=gamma)
                if gamma is None:
                    yield Contestant(name, run)
                else:
                    yield Contestant(f"{name}, γ {gamma}", run, f"{name}, γ")
    yield Contestant(PLAIN_NAME, partial(localspec, settings, options=PLAIN))
    for pair in pairs or [settings]:
        draft = ("--draft", pair.draft or "none")
        name = f"localspec auto{label(pair, args)}"
        auto = (*draft, "--spec", "auto")
        yield Contestant(name, partial(localspec, pair, options=auto))
        if not pair.draft:
            continue
        for gamma in args.fixed:
            options = (*draft, "--spec", "model", "--draft-max", str(gamma))
            family = f"localspec{label(pair, args)}, γ"
            run = partial(localspec, pair, options=options)
            yield Contestant(f"{family} {gamma}", run, family)


def label(pair: Settings, args: argparse.Namespace) -> str:
    """What tells pairs apart in the names of contestants."""
    if pair.draft is None:
        return ""
    if len(args.draft) == 1:
        return " + draft"
    stems = [Path(draft).stem for draft in pair.draft.split(",")]
    return f" + {', '.join(stems)}"


# --- tables of their own


def thread_tables(
    settings: Settings, cases: Sequence[Case], args: argparse.Namespace
) -> Iterator[str]:
    ways = {"plain": PLAIN}
    if settings.draft:
        ways["auto"] = ("--draft", settings.draft, "--spec", "auto")
    for name, options in ways.items():
        contestants = [
            Contestant("default", partial(localspec, settings, options=options))
        ]
        for threads in args.threads_table:
            fixed = replace(settings, threads=threads)
            run = partial(localspec, fixed, options=options)
            contestants.append(Contestant(str(threads), run))
        measured = Measurement(contestants, cases, "default")
        measured.measure(args.rounds)
        yield f"localspec {name}, by number of threads:"
        yield table(list(answer_table(measured, settings.tokens)))


def prefill_table(
    settings: Settings, lengths: Sequence[int], text: str, rounds: int
) -> Iterator[list[str]]:
    """Raises BenchError."""
    yield ["tokens", "llama-server, tok/s", "localspec, tok/s", "ratio"]
    settings = replace(settings, ctx=max(settings.ctx, *(n + 64 for n in lengths)))
    settings = replace(settings, draft=None)
    with ExitStack() as open_:
        servers = [
            LlamaServer(settings),
            LlamaServer(settings, localspec_server_command),
        ]
        for server in servers:
            open_.callback(server.close)
        for length in lengths:
            long_text = text * (1 + 8 * length // len(text))
            theirs: list[float] = []
            ours: list[float] = []
            for turn in range(rounds + 1):
                # Each turn has a text of its own, because localspec reuses prefixes.
                prompt = servers[0].cut(f"{length}, {turn}: {long_text}", length)
                speeds = {
                    server: server.prefill(prompt) for server in in_turn(servers, turn)
                }
                # localspec measures the model after its first answers.
                servers[1].wait_until_idle()
                if turn:  # The first one is not counted.
                    theirs.append(speeds[servers[0]])
                    ours.append(speeds[servers[1]])
            ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
            yield [
                str(length),
                f"{median(theirs):.0f}",
                f"{median(ours):.0f}",
                f"{ratio:.3f}",
            ]


def first_token_table(settings: Settings, rounds: int) -> Iterator[list[str]]:
    """Raises BenchError."""
    yield ["program", "first characters, s", "ratio", "CPU, s"]
    draft = ("--draft", settings.draft or "none")
    case = Case("", FIRST_TOKEN_PROMPT)
    ours = localspec_command(replace(settings, tokens=16), case, (*draft, "--quiet"))
    ours.remove("--json")
    theirs = raw_program(settings, FIRST_TOKEN_PROMPT)
    seconds: dict[str, list[float]] = {}
    cpu_seconds: dict[str, list[float]] = {}
    for turn in range(rounds + 1):
        with tempfile.TemporaryDirectory() as new:
            unmeasured = replace(settings, data_dir=new)
            # Name, command, the text that it writes before the answer, settings.
            runs = [
                ("localspec, new", ours, "", unmeasured),
                ("localspec, known", ours, "", settings),
            ]
            if theirs:
                name = Path(theirs[0]).name
                runs.insert(0, (name, theirs, FIRST_TOKEN_PROMPT, settings))
            for name, _, _, _ in runs:
                seconds.setdefault(name, [])
                cpu_seconds.setdefault(name, [])
            for name, command, before, run_settings in in_turn(runs, turn):
                first, cpu = first_output(run_settings, command, before.encode())
                if turn:  # The first one is not counted.
                    seconds[name].append(first)
                    cpu_seconds[name].append(cpu)
    base = next(iter(seconds.values()))
    for name, times in seconds.items():
        ratio = median(a / b for a, b in zip(times, base, strict=True))
        cpu = median(cpu_seconds[name])
        yield [name, f"{median(times):.2f}", f"{ratio:.2f}", f"{cpu:.2f}"]


# --- the report


def report(settings: Settings, args: argparse.Namespace) -> Iterator[str]:
    """Raises BenchError."""
    prompts = prompts_of(args.prompts)
    if args.workload is not None:
        prompts = workload_prompts(args.workload)
    cases = []
    for temperature in args.temperature:
        for seed, (name, text) in enumerate(prompts.items(), 1):
            cases.append(Case(name, text, temperature, seed))
    if args.threads_table:
        yield from thread_tables(settings, cases, args)
    if args.prefill:
        text = "\n".join(prompts.values())
        yield table(list(prefill_table(settings, args.prefill, text, args.rounds)))
    if args.first_token:
        yield table(list(first_token_table(settings, args.rounds)))
    if not (args.threads_table or args.prefill or args.first_token):
        yield from answer_report(settings, cases, args)


def answer_report(
    settings: Settings, cases: Sequence[Case], args: argparse.Namespace
) -> Iterator[str]:
    """Raises BenchError."""
    with ExitStack() as open_:
        contestants = list(contestants_of(settings, args, open_))
        names = [contestant.name for contestant in contestants]
        base = "llama-server" if "llama-server" in names else PLAIN_NAME
        measured = Measurement(contestants, cases, base)
        try:
            measured.measure(args.rounds)
        except KeyboardInterrupt:
            print("interrupted; the runs so far:", file=sys.stderr)
    yield table(list(answer_table(measured, settings.tokens)))
    varied = measured.varied()
    if varied is not None:
        yield f"Without answers that repeat themselves ({len(varied.cases)} prompts):"
        yield table(list(answer_table(varied, settings.tokens)))
    if args.by_prompt:
        yield table(list(prompt_table(measured)))
    for name, message in measured.failed.items():
        yield f"{name} was left out: {message}"
