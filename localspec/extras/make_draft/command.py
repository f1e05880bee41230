"""`localspec make-draft`: a draft model from some layers or tokens of a model."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TextIO

import click

from localspec import launch
from localspec.cli import global_options, shell_completion
from localspec.cli.history import open_history
from localspec.cli.terminal import echo, echo_json
from localspec.errors import UsageError
from localspec.extras.make_draft import layer_subset
from localspec.fit import shape
from localspec.models import draft_heads, model_lookup
from localspec.models.gguf import reader, trimmed_vocabulary
from localspec.models.gguf.header import Header
from localspec.protocol.wire import TokenizeCommand
from localspec.units import gb, percent


@click.command("make-draft")
@click.argument("model", shell_complete=shell_completion.complete_model)
@global_options.text_option(
    "--keep",
    "LAYERS",
    "Layers to keep, such as 0-9,24-29.  [default: the exit layer of a LayerSkip model]",
)
@global_options.text_option(
    "--vocab", "N", "Keep the output rows of the N most used tokens, such as 32k."
)
@click.option(
    "--from",
    "texts",
    type=click.File(encoding="utf-8"),
    multiple=True,
    metavar="FILE",
    help="Count the tokens of this text; repeatable.  [default: the answers of your kept chats]",
)
@click.option(
    "--out",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write.",
)
@global_options.JSON
def command(
    model: str,
    keep: str | None,
    vocab: str | None,
    texts: tuple[TextIO, ...],
    out: Path,
    as_json: bool,
) -> None:
    """Copy MODEL to a smaller file that drafts: some layers, or a trimmed vocabulary.

    With --keep it drafts for MODEL itself (early exit). Without training for that
    (LayerSkip) such a draft is rarely worth its time. With --vocab it drafts for every
    target that MODEL drafts for: it reads all tokens and proposes the most used, so its
    output matrix is smaller.
    """
    source = model_lookup.resolve(model).target.require_path()
    reader.check_loadable(source)
    facts = reader.read(source)
    if draft_heads.is_head(facts):
        raise UsageError(
            f"{source.name} is a draft head, not a model.", "Use the model itself."
        )
    layers = _choose_layers(facts, source.name, keep, is_whole=bool(vocab))
    if os.path.exists(out):
        raise UsageError(f"{out.name} exists already.", "Choose another --out.")
    kept: list[int] = []
    coverage: float | None = None
    if vocab:
        layer_subset.check_vocabulary(facts, source.name)
        kept, coverage = _choose_tokens(model, facts, vocab, texts)
    found = shape.from_header(facts)
    swa_layers: list[bool] | None = None
    if found.n_swa:
        swa_layers = [layer.is_swa for layer in found.layers]
    size = layer_subset.copy_layers(
        source, out, layers, swa_layers=swa_layers, kept_tokens=kept
    )
    if as_json:
        document = {
            "file": str(out),
            "bytes": size,
            "layers": layers,
            "of": found.n_layer,
        }
        echo_json(document | {"tokens": len(kept) or None, "coverage": coverage})
        return
    echo(
        f"{out}: {len(layers)} of {found.n_layer} layers, {gb(size)} of {gb(facts.size)}"
    )
    if coverage is not None:
        share = f"{len(kept):,} of {facts.tokenizer.n_tokens:,} tokens"
        echo(f"It drafts {share}, {percent(coverage)} of those counted.", err=True)
    target = "TARGET" if vocab and keep is None else model
    use = shlex.join(["localspec", "run", target, "--draft", str(out)])
    echo(f"Use it: {use}", err=True)


def _choose_layers(
    facts: Header, name: str, keep: str | None, *, is_whole: bool
) -> list[int]:
    """The layers of --keep; without it all if `is_whole`, or those before the exit.

    Raises UsageError.
    """
    if keep is not None:
        return _parse_layers(keep)
    n = facts.n_layer - facts.hparam("nextn_predict_layers")
    end = n if is_whole else layer_subset.find_exit_layer(facts)
    if end is None:
        what = f"{name} names no layer to exit from."
        raise UsageError(what, "Say which layers to keep: --keep 0-9,24-29, or --vocab")
    return list(range(end))


def _parse_count(text: str, n_tokens: int) -> int:
    """A number of tokens, such as `32k`, below `n_tokens`. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,7})(k?)", text.strip().lower())
    n = 0
    if match:
        n = int(match[1])
        if match[2]:
            n *= 1024
    if not 0 < n < n_tokens:
        hint = f"The model has {n_tokens:,}: type a smaller number, such as --vocab 32k"
        raise UsageError(f"{text!r} is no number of tokens to keep.", hint)
    return n


def _choose_tokens(
    model: str, facts: Header, vocab: str, files: Sequence[TextIO]
) -> tuple[list[int], float]:
    """The tokens to keep, and their share of those counted. Raises UsageError."""
    n = _parse_count(vocab, facts.tokenizer.n_tokens)
    sources = [file.read() for file in files] or _read_kept_answers()
    texts = [text for text in sources if text]
    if not texts:
        what = "There is no kept answer to count tokens in."
        raise UsageError(what, "Give texts: --from FILE")
    n_uses: Counter[int] = Counter()
    pair = launch.resolve_pair(model, "none")
    load = launch.LoadOptions(ctx=256, image_model=launch.NO_PROJECTOR).to_request(pair)
    with closing(launch.start_engine(load)) as engine:
        for text in texts:
            tokenized = engine.tokenize(TokenizeCommand(text, parse_special=False))
            n_uses.update(tokenized.tokens)
    kept = trimmed_vocabulary.choose_tokens(facts.tokenizer, n_uses, n)
    n_covered = sum(n_uses[token] for token in kept)
    return kept, n_covered / n_uses.total()


def _read_kept_answers() -> Iterator[str]:
    with open_history() as history:
        for entry in history.list_chats():
            chat = history.load_chat(entry.id, with_events=False)
            yield from (turn.answer for turn in chat.conversation.turns)


def _parse_layers(text: str) -> list[int]:
    """Layer numbers of a list of numbers and ranges, ascending. Raises UsageError."""
    layers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)
        numbers = range(0)
        if match is not None:
            first = int(match[1])
            last = int(match[2] or match[1])
            numbers = range(first, last + 1)
        if not numbers:
            what = f"{part!r} is no layer and no range of layers."
            raise UsageError(what, "Type numbers and ranges: --keep 0-9,24-29")
        layers.update(numbers)
    return sorted(layers)
