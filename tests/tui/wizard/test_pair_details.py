"""The details of a pair: bars of memory, and what is said of draft heads."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from localspec import draft_kinds, launch
from localspec.chat.session import ChatSession
from localspec.draft_kinds import heads
from localspec.fit import pair_shapes
from localspec.fit.pair_shapes import PairShapes
from localspec.launch import ResolvedPair
from localspec.models import catalog, model_names
from localspec.models.catalog import CatalogPair
from localspec.models.gguf import reader
from localspec.report import memory
from localspec.tui import home_rows
from localspec.tui.app_options import AppOptions
from localspec.tui.saved_chats import ChatSessions
from localspec.tui.wizard import pair_details
from localspec.tui.wizard.shortlist import Candidate, WizardServices
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


def with_one_vocabulary(target: str, head: str, zoo: Zoo) -> PairShapes:
    """Headers of target and head with the same vocabulary."""
    tokenizer = reader.read(zoo["target"]).tokenizer
    target_header = replace(headshapes.of_target(target), tokenizer=tokenizer)
    head_header = replace(headshapes.header(head), tokenizer=tokenizer)
    return pair_shapes.join(
        pair_shapes.member(target_header.name or "qwen3-8b", "hub", target_header),
        pair_shapes.member(head_header.name or "qwen3-8b", "hub", head_header),
    )


DSPARK = "dspark-qwen3-8b"
HEAD_PAGES = {
    "a head": (DSPARK, (
        "(guesses: DSpark head)", "qwen3-8b+dspark · ", "This draft", "DSpark head: trained on",
        "DSpark head fits its target", "as reported for DSpark heads",
        "speculative", "tok/s", "from the files' headers",
    )),
    "a head of another model": ("eagle3-gpt-oss", (
        "✗ DSpark head does not fit: it reads hidden states 2,880",
    )),
}  # fmt: skip


@pytest.mark.parametrize("name", HEAD_PAGES)
async def test_headers_say_what_a_head_is_and_whether_it_fits(
    name: str, tmp_path: Path, zoo: Zoo
) -> None:
    head, words = HEAD_PAGES[name]

    def read_headers(pair: CatalogPair) -> PairShapes | None:
        return with_one_vocabulary(DSPARK, head, zoo) if pair.id == PAIR else None

    services = stock(tmp_path, read_headers=read_headers)
    async with shown(services, "1", "enter", "d", "d", "d") as wizard:
        await wizard.sees(*words)


async def test_headers_say_where_vocabularies_differ(tmp_path: Path, zoo: Zoo) -> None:
    target = pair_shapes.member("target", "hub", reader.read(zoo["target"]))
    draft = pair_shapes.member("renamed", "hub", reader.read(zoo["renamed"]))
    shapes = pair_shapes.join(target, draft)
    services = stock(tmp_path, read_headers=lambda _: shapes)
    async with shown(services, "1", "enter") as wizard:
        await wizard.sees("✗ vocabularies differ: token 257")


# --- the title
# --------------------------------------------------------------------------------------


def make_title(pair: CatalogPair) -> str:
    page = pair_details.DetailsPage(Candidate(pair, 0), "chat", ())
    title, *_ = pair_details.render_page(page, 200, 40)
    return title.plain


@pytest.mark.parametrize("kind", ["model", *(head.name for head in heads())])
def test_a_draft_in_a_file_of_its_own_is_named(kind: str) -> None:
    model = catalog.load().models["qwen3-8b"]
    draft = replace(model, id=f"the-{kind}", kind=kind, file="D-Q8_0.gguf")
    title = make_title(CatalogPair("a+b", "A", "a+b", model, draft))
    head = draft_kinds.head_title(kind)
    guesses = f"{head} head" if head else "Qwen3 8B"
    assert title.startswith(f"Qwen3 8B (guesses: {guesses}) ")


def test_every_pair_of_the_catalogue_is_called_by_what_drafts() -> None:
    for pair in catalog.load().pairs.values():
        title = make_title(pair)
        if pair.draft is not None:
            names = model_names.name_catalog_pair(pair)
            assert f"(guesses: {names.draft}) " in title
        elif pair.draft_kind == "lookup":
            assert "guesses" not in title
        else:
            assert "(guesses: its MTP layer)" in title


# --- a target that is opened alone
# --------------------------------------------------------------------------------------


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return head_models.quantised(head_models.deep()).write(tmp_path / "deep.gguf")


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """A head of `target`, beside it."""
    eagle3 = head_models.quantised(head_models.eagle3())
    return eagle3.write(tmp_path / "eagle3-deep.gguf")


@pytest.fixture
def with_own_layer(tmp_path: Path) -> ResolvedPair:
    """A model that drafts with its own MTP layer."""
    file = head_models.quantised(head_models.mimo2()).write(tmp_path / "inside.gguf")
    return launch.with_default_draft(ResolvedPair(file, None))


def draft_note(pair: ResolvedPair) -> str:
    return AppOptions().build_load_request(pair).draft_note


def test_a_target_opened_alone_takes_its_head_and_says_so(
    target: Path, head: Path
) -> None:
    pair = launch.with_default_draft(ResolvedPair(target, None))
    assert pair.draft == head
    assert "Drafting with the EAGLE-3 head eagle3-deep.gguf" in draft_note(pair)
    assert ChatSession(pair).pair_name == "deep (guesses: eagle3-deep)"


def test_a_layer_of_the_models_own_is_named(with_own_layer: ResolvedPair) -> None:
    assert ChatSession(with_own_layer).pair_name == "inside (guesses: its MTP layer)"
    assert draft_note(with_own_layer) == "Drafting with the model's own MTP layer."


def test_a_layer_of_the_models_own_is_counted_once(
    with_own_layer: ResolvedPair,
) -> None:
    alone = replace(with_own_layer, draft=None)
    size = home_rows._format_size(with_own_layer)
    assert size == home_rows._format_size(alone)


def test_a_model_that_drafts_for_itself_has_no_layer_in_its_name(target: Path) -> None:
    assert ChatSession(ResolvedPair(target, target)).pair_name == "deep (guesses: deep)"


def test_a_head_that_was_named_needs_no_note(target: Path, head: Path) -> None:
    assert draft_note(ResolvedPair(target, head)) == ""


def test_a_preferred_drafter_is_used_by_pairs_that_have_it(
    target: Path, head: Path, with_own_layer: ResolvedPair
) -> None:
    sessions = ChatSessions(AppOptions(spec="eagle3"))
    with_head = ResolvedPair(target, head)
    assert sessions.for_pair(with_head).settings.spec == "eagle3"
    assert sessions.for_pair(with_own_layer).settings.spec == "auto"


# --- bars
# --------------------------------------------------------------------------------------


def test_memory_that_a_gpu_shares_has_one_bar(tmp_path: Path) -> None:
    first, *_ = wizards.candidates(PLACE, "chat", WhatIf(), wizards.catalogue(tmp_path))
    assert first.plan is not None
    gpu = replace(first.plan.device_fits[0], device=replace(CARD, unified=True))
    host = replace(first.plan.host, sharing=(gpu,))
    pool = replace(first.plan, device_fits=(gpu,), host=host)
    page = pair_details.DetailsPage(replace(first, plan=pool), "chat", ())
    lines = [line.plain for line in pair_details.render_page(page, 100, 30)]
    (legend,) = [line for line in lines if " KV " in line]
    both = gpu.target.weights + host.target.weights
    assert f"target {memory.short_gib(both)}" in legend
    assert not any("of this computer's memory" in line for line in lines)
