"""The card of a pair: bars of memory, and draft heads: description, fit, automatic
detection.
"""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from localspec import launch
from localspec.chat.session import ChatSession
from localspec.fit import pair_shapes
from localspec.fit.pair_shapes import PairShapes
from localspec.models import catalog
from localspec.models.catalog import CatalogPair
from localspec.models.gguf import reader
from localspec.report import memory
from localspec.tui import home_rows
from localspec.tui.app_options import AppOptions
from localspec.tui.saved_chats import ChatSessions
from localspec.tui.wizard import pair_details
from localspec.tui.wizard.shortlist import WizardServices
from localspec.tui.wizard.what_if import WhatIf
from tests.support import head_models, headshapes, wizards
from tests.support.wizards import CARD, PLACE
from tests.support.zoo import Zoo
from tests.tui.screens.test_wizard import shown

HEADS = """\
  - {id: qwen3-8b-dspark, title: DSpark head of Qwen3 8B, repo: a/A-GGUF, licence: apache-2.0,
     file: dspark-A-Q8_0.gguf, bytes: 1200000000, family: qwen3, kind: dspark}
pairs:
  - {target: qwen3-8b, draft: qwen3-8b-dspark}
"""
PAIR = "qwen3-8b+qwen3-8b-dspark"


def stock(folder: Path, **more: Any) -> WizardServices:
    """The wizard's services, with a head for the first target."""
    path = folder / "models-with-heads.yaml"
    path.write_text(wizards.MODELS.replace("pairs:\n", HEADS), encoding="utf-8")
    services = wizards.stock(folder, **more)
    services.catalogue = catalog.load(path)
    return services


def of_the_hub(target: str, head: str, zoo: Zoo) -> PairShapes:
    """Headers of target and head with the same vocabulary."""
    words = reader.read(zoo["target"]).tokenizer
    drawn = headshapes.of_target(target), headshapes.header(head)
    parts = [replace(one, tokenizer=words) for one in drawn]
    members = [pair_shapes.member(one.name or "qwen3-8b", "hub", one) for one in parts]
    return pair_shapes.join(*members)


DSPARK = "dspark-qwen3-8b"
REFINED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "a head": (DSPARK, DSPARK, (
        "with qwen3-8b-dspark Q8_0", "This draft", "DSpark head: trained on",
        "DSpark head fits its target", "as reported for DSpark heads",
        "speculative", "tok/s", "from the files' headers",
    )),
    "a head of another model": (DSPARK, "eagle3-gpt-oss", (
        "✗ DSpark head does not fit: it reads hidden states 2,880",
    )),
    "another vocabulary": ("target", "renamed", ("✗ vocabularies differ: token 257",)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFINED)
async def test_headers_say_what_a_draft_is_and_why_it_does_not_fit(
    name: str, tmp_path: Path, zoo: Zoo
) -> None:
    target, draft, words = REFINED[name]

    def refine(pair: CatalogPair) -> PairShapes | None:
        if target == DSPARK:
            return of_the_hub(target, draft, zoo) if pair.id == PAIR else None
        parts = [
            pair_shapes.member(n, "hub", reader.read(zoo[n])) for n in (target, draft)
        ]
        return pair_shapes.join(*parts)

    keys = "ddd" if target == DSPARK else ""
    async with shown(
        stock(tmp_path, read_headers=refine), "1", "enter", *keys
    ) as wizard:
        await wizard.sees(*words)


def test_a_target_opened_alone_takes_its_head_and_says_so(tmp_path: Path) -> None:
    target = head_models.quantised(head_models.deep()).write(tmp_path / "deep.gguf")
    head = head_models.quantised(head_models.eagle3()).write(
        tmp_path / "eagle3-deep.gguf"
    )
    choice = launch.with_default_draft(launch.ResolvedPair(target, None))
    assert choice.draft == head
    assert (
        "Drafting with the EAGLE-3 head eagle3-deep.gguf"
        in AppOptions().build_load_request(choice).draft_note
    )
    assert ChatSession(choice).pair_name == "deep + eagle3-deep"
    inside = head_models.quantised(head_models.mimo2()).write(tmp_path / "inside.gguf")
    own = launch.with_default_draft(launch.ResolvedPair(inside, None))
    assert ChatSession(own).pair_name == "inside + built-in MTP layer"
    itself = launch.ResolvedPair(target, target)
    assert ChatSession(itself).pair_name == "deep + deep", "it has no MTP layer"
    note = AppOptions().build_load_request(own).draft_note
    assert note == "Drafting with the model's own MTP layer."
    assert home_rows._format_size(own) == home_rows._format_size(
        replace(own, draft=None)
    ), "one file"
    named = launch.ResolvedPair(target, head)
    assert AppOptions().build_load_request(named).draft_note == ""
    wanted = ChatSessions(AppOptions(spec="eagle3"))
    assert wanted.for_pair(named).settings.spec == "eagle3"
    assert wanted.for_pair(own).settings.spec == "auto", (
        "a preference is for pairs that have it"
    )


def test_memory_that_a_gpu_shares_has_one_bar(tmp_path: Path) -> None:
    one, *_ = wizards.candidates(PLACE, "chat", WhatIf(), wizards.catalogue(tmp_path))
    assert one.fit is not None and one.fit.device_fits
    gpu = replace(one.fit.device_fits[0], device=replace(CARD, unified=True))
    pool = replace(
        one.fit, device_fits=(gpu,), host=replace(one.fit.host, sharing=(gpu,))
    )
    page = pair_details.DetailsPage(replace(one, fit=pool), "chat", ())
    lines = [line.plain for line in pair_details.render_page(page, 100, 30)]
    (legend,) = [line for line in lines if " KV " in line]
    assert (
        f"target {memory.short_gib(gpu.target.weights + pool.host.target.weights)}"
        in legend
    )
    assert not any("of this computer's memory" in line for line in lines), (
        "it is in the bar"
    )
