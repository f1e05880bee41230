"""`localspec fit`: whether a pair fits here or on another card, how fast, and what to change."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import click

from localspec.cli import completing, fitting
from localspec.cli import places as where
from localspec.fit import places
from localspec.fit.advisor import Advisor, Wish
from localspec.fit.exact import confirmed
from localspec.fit.report import Place
from localspec.fit.speed import Use
from localspec.fit.subject import Subject, look
from localspec.machine.probe import Probe
from localspec.models import wanted
from localspec.models.catalogue.entry import USES
from localspec.protocol.wire import Load


@click.command("fit")
@click.argument("ref", shell_complete=completing.models)
@click.option("--draft", metavar="REF|none", shell_complete=completing.only_models)
@click.option("--ctx", type=click.IntRange(1), help="Context in tokens.  [default: what fits]")
@click.option("--kv", type=click.Choice(["f16", "q8_0", "q4_0"]), help="[default: what fits]")
@click.option("--gpu", metavar="NAME", help='Another card: "RTX 4060".')
@click.option("--vram", type=click.FloatRange(0, 10_000, min_open=True), metavar="GIB")
@click.option("--use", type=click.Choice(USES), default="chat", show_default=True)
@where.ENDPOINT
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(ref: str, as_json: bool, **given: Any) -> int:
    """Whether REF, a model or a pair, fits this computer, before anything is downloaded.

    Memory is counted by llama.cpp itself, from the files' headers alone.  Ends with 4 where it
    does not fit.

    \b
    localspec fit qwen3-8b+qwen3-0.6b
    localspec fit llama-3.3-70b --draft llama-3.2-1b --gpu "RTX 3090"
    localspec fit big.gguf --draft small.gguf --ctx 32768
    """
    subject = _subject(ref, given["draft"], given["endpoint"])
    if not given["draft"]:
        subject = subject.with_head()
    subject.check()
    place = _place(given["gpu"], given["vram"])
    use = Use(given["use"])
    advisor = Advisor(*subject.headers, place, use)
    load = Load(subject.target.name, subject.draft.name if subject.draft else None)
    advice = advisor.advise(Wish(load, given["ctx"], given["kv"]))
    with Probe() as probe:
        sure = confirmed(advice.fit, subject, place, probe, use)
    advice = replace(advice, fit=sure)
    options = advisor.options(sure)
    if as_json:
        click.echo(json.dumps({"schema": 1} | fitting.document(advice, options, subject)))
    else:
        unicode, plain = sys.stdout.encoding.lower() == "utf-8", where.plain()
        for line in fitting.lines(advice, options, subject, unicode, plain=plain):
            click.echo(line)
    return 4 if advice.fit.verdict == "no" else 0


def _subject(ref: str, draft: str | None, endpoint: str | None) -> Subject:
    asked = wanted.read(ref)
    second = wanted.read(draft) if draft and draft != "none" else None
    if draft == "none":
        asked = replace(asked, draft=None)
    named = (second.draft or second.target) if second else None
    models = [asked.target, named or asked.draft]
    if all(one is None or one.path or one.stored() for one in models):
        return look(asked, named, None)
    from localspec.cli.pulling import stoppable  # noqa: PLC0415  late: the hub's library is slow
    from localspec.models.plan import Planner  # noqa: PLC0415
    from localspec.models.remote import Hub  # noqa: PLC0415

    return stoppable(lambda stop: look(asked, named, Planner(Hub(endpoint), stop, fresh=False)))


def _place(gpu: str | None, vram: float | None) -> Place:
    if gpu:
        return places.with_card(gpu, vram)
    return places.with_memory(vram) if vram else places.here()
