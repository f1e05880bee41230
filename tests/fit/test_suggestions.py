"""fit/suggestions.py: which pairs are suggested, from the shipped catalogue alone."""

import socket
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields, replace

from localspec import draft_kinds, launch
from localspec.config import SETTINGS
from localspec.config.options import EXTRA_LOAD_OPTIONS, EXTRA_SPECULATION_OPTIONS
from localspec.errors import NotFoundError
from localspec.fit import machine_profile, pair_shapes, suggestions
from localspec.fit.advisor import (
    SettingsAdvisor,
    SettingsRequest,
    estimate_tokens_per_second,
    with_settings,
)
from localspec.fit.pair_shapes import PairMember, PairShapes
from localspec.fit.plan import FitVerdict, Plan
from localspec.fit.suggestions import PairSuggestion, SuggestionCriteria
from localspec.launch import ResolvedPair
from localspec.launch.start import LoadOptions
from localspec.machine.type_speeds import TypeSpeed
from localspec.models import catalog, projector_shape
from localspec.models.catalog import CatalogPair
from localspec.models.catalog_entries import TIERS
from localspec.protocol.wire import LoadCommand
from localspec.tui.wizard.shortlist import Candidate, EstimateCache
from localspec.tui.wizard.what_if import WhatIf
from tests.support import shapes
from tests.support.long_cases import often
from tests.support.shapes import computer, with_card

GIB = 2**30


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)


def suggest(
    gib: float, use: str | None = None, target: str | None = None, **more: Any
) -> tuple[PairSuggestion, ...]:
    return suggestions.suggest(
        machine_profile.with_vram(gib), SuggestionCriteria(use), target, **more
    )


def ids(gib: float, use: str | None = None, target: str | None = None) -> list[str]:
    return [one.pair.id for one in suggest(gib, use, target)]


def real(found: tuple[PairSuggestion, ...]) -> list[PairSuggestion]:
    return [one for one in found if one.pair.id != "demo"]


RECOMMENDED = {
    "4 chat": ("gemma-4-e2b+gemma-4-e2b-mtp", 2),
    "8 chat": ("qwen3.5-9b+mtp", 1),
    "8 writing": ("gemma-4-e4b+gemma-4-e4b-mtp", 3),
    "12 chat": ("gemma-4-12b+gemma-4-12b-mtp", 1),
    "12 code": ("qwen3.5-9b+mtp:Q8_0", 3),
    "16 chat": ("gemma-4-26b-a4b+gemma-4-26b-a4b-mtp", 3),
    "16 code": ("devstral-small-2-24b+lookup:IQ4_XS", 3),
    "24 code": ("qwen3.8-27b+mtp", 2),
    "24 writing": ("gemma-4-31b+gemma-4-31b-mtp", 1),
    "32 documents": ("qwen3.6-35b-a3b+qwen3.6-35b-a3b-mtp:UD-Q5_K_XL", 3),
}


@pytest.mark.parametrize(
    "card", often(list(RECOMMENDED), ["8 chat", "16 code", "32 documents"])
)
def test_a_card_of_each_size_gets_what_people_recommend(card: str) -> None:
    size, use = card.split()
    found = suggest(int(size), use)
    pair, place = RECOMMENDED[card]
    assert pair in [one.pair.id for one in found][:place]
    assert all(one.needed_bytes <= 0.95 * int(size) * GIB for one in found), (
        "the rest is others'"
    )


def test_a_target_that_does_not_fit_is_shown_with_the_reason_and_no_speed() -> None:
    found = suggest(8, target="llama-3.3-70b")
    assert {one.verdict for one in found} == {"no"}
    assert "more than 8.0 GB" in found[0].reasons[0]
    assert not any("tok/s" in reason for reason in found[0].reasons)


def test_pairs_that_fit_come_before_pairs_that_do_not() -> None:
    can_load = [one.verdict.can_load for one in suggest(8, target="qwen3.5-9b")]
    assert True in can_load
    assert can_load == sorted(can_load, reverse=True)


def test_hardly_any_memory_leaves_the_demo() -> None:
    assert ids(0.5) == ["demo"]


def test_without_a_gpu_what_reads_less_for_a_token_comes_first() -> None:
    without = suggested("CPU 32 GB")
    assert suggested("two 24 GB")[0].pair.target.active is None
    assert without[0].pair.target.active is not None
    slow = next(one for one in without if one.pair.target.id == "qwen3-32b")
    assert any("slower than reading speed" in reason for reason in slow.reasons)


def test_comfortable_comes_before_large_on_a_cpu() -> None:
    """The slow ones follow: what leaves some memory, by standing, the fastest first.

    Slow is what takes longer than 90 s for an answer.
    """
    found = real(suggested("CPU 32 GB"))
    are_slow: list[bool] = []  # Of the best pair of each target.
    slow_ranks: list[tuple[bool, int, float]] = []
    targets: set[str] = set()
    for one in found:
        target = one.pair.target
        is_best_of_target = catalog.own_id(target.id) not in targets
        targets.add(catalog.own_id(target.id))
        if one.plan is None:
            continue
        speed = estimate_tokens_per_second(one.plan)
        is_slow = speed < suggestions.least_useful_rate(target)
        if not is_best_of_target:
            continue
        are_slow.append(is_slow)
        if is_slow:
            rank = (one.plan.is_full, TIERS.index(target.tier), -speed)
            slow_ranks.append(rank)
    assert set(are_slow) == {True, False}
    assert are_slow == sorted(are_slow)
    assert slow_ranks == sorted(slow_ranks)


def test_the_catalogue_pairs_no_target_with_a_draft_model_that_the_engine_would_not_use() -> (
    None
):
    """As a draft, a model with a recurrent state would decode the text again and again."""
    machine = machine_profile.with_vram(80)
    for pair in catalog.load().pairs.values():
        one = suggestions.assess_pair(pair, machine, SuggestionCriteria())
        if pair.draft is not None and one is not None and one.plan is not None:
            assert one.plan.memory.draft is not None, pair.id


def test_sizes_that_are_rounded_or_unknown(tmp_path: Path) -> None:
    """Where nothing is known but the size, the verdict comes from it."""
    (best, *_) = suggest(80, target="ling-3.0-flash")
    assert best.plan is None
    assert best.reasons[0].startswith("about ")
    assert not suggest(8, target="qwen3-8b")[0].reasons[0].startswith("about")
    path = tmp_path / "models.yaml"
    path.write_text(
        "models:\n  - {id: a, title: A, repo: x/y, file: a.gguf}\npairs:\n  - {target: a}\n"
    )
    assert suggest(8, catalogue=catalog.load(path)) == ()


def test_memory_that_is_unknown_is_not_called_too_little() -> None:
    pair = catalog.find(catalog.load(), "ling-3.0-flash")
    unknown = shapes.machine(cpu=replace(shapes.CPU, free=None, total=None))
    (best, *_) = suggestions.suggest(unknown, None, pair.id)
    assert best.plan is None
    assert best.verdict == "unknown"
    assert "with caches: of the free memory" in best.reasons[0]


def test_layers_in_ram_make_a_file_slow_even_if_its_experts_are_there_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three bits whose experts alone are in RAM are better than four bits with layers."""
    pair = catalog.load().pairs["qwen3.6-35b-a3b+lookup"]
    assess = suggestions.assess_pair

    def assess_partly_in_ram(
        pair: CatalogPair, *arguments: Any, **options: Any
    ) -> PairSuggestion | None:
        found = assess(pair, *arguments, **options)
        assert found is not None
        assert found.plan is not None
        load = with_settings(found.plan.load, cpu_moe=-1)
        if "4" in pair.target.quantization:
            load = with_settings(load, n_gpu_layers=20)
        plan = replace(found.plan, load=load)
        return replace(found, plan=plan, verdict=FitVerdict.FITS)

    monkeypatch.setattr(suggestions, "assess_pair", assess_partly_in_ram)
    best = suggestions.choose_file(
        pair, machine_profile.with_vram(80), SuggestionCriteria()
    )
    assert best is not None
    assert best.plan is not None
    assert not best.plan.has_layers_in_ram
    assert "4" not in best.pair.target.quantization


def test_a_part_of_an_id_is_enough_and_an_unknown_one_is_refused() -> None:
    pairs = {"qwen2.5-coder-14b+qwen2.5-coder-0.5b", "qwen2.5-coder-14b+lookup"}
    assert set(ids(8, target="coder-14b")) == pairs
    with pytest.raises(NotFoundError, match="no entry nosuch"):
        suggest(8, target="nosuch")
    with pytest.raises(NotFoundError, match="no pair for Qwen3 0"):
        suggest(8, target="qwen3-0.6b")


def test_a_target_asked_for_may_keep_its_experts_in_ram_as_fit_says() -> None:
    (best, *_) = suggest(8, target="gpt-oss-20b")
    assert best.verdict == "fits"
    assert best.plan is not None
    assert best.plan.load.target_settings.cpu_moe
    assert "experts in RAM" in best.reasons[0]


MACHINES = {
    "8 GB": with_card("RTX 4060"),
    "12 GB": with_card("RTX 3060", 12),
    "16 GB": with_card("RTX 5060 Ti", 16),
    "24 GB": with_card("RTX 3090"),
    "32 GB": with_card("RTX 5090"),
    "two 24 GB": with_card("RTX 3090", n=2),
    "AMD 16 GB": with_card("RX 9070 XT"),
    "Apple 32 GB": with_card("M4", 32),
    "Apple 64 GB": with_card("M4 Pro", 64),
    "Apple 128 GB": with_card("M4 Max", 128),
    "CPU 16 GB": computer(16),
    "CPU 32 GB": computer(32),
}


@cache
def suggested(name: str) -> tuple[PairSuggestion, ...]:
    """From the whole catalogue, which takes seconds."""
    return suggestions.suggest(MACHINES[name])


CORNERS = ("8 GB", "two 24 GB", "Apple 32 GB", "CPU 32 GB")


@pytest.fixture(scope="module", params=often(list(MACHINES), CORNERS))
def name(request: pytest.FixtureRequest) -> str:
    """A machine: its tests run one after the other, with one list of suggestions."""
    return str(request.param)


def test_nothing_is_suggested_that_cannot_run_or_loses(name: str) -> None:
    """The whole catalogue: no exception, no refused draft, memory within the limit."""
    machine = MACHINES[name]
    known_heads = {*(kind.name for kind in draft_kinds.heads()), "model", "lookup"}
    found = real(suggested(name))
    assert suggested(name)[-1].pair.id == "demo", "which is never before a real model"
    assert found[0].plan is not None
    assert not found[0].plan.is_full, "what is free changes"
    devices = machine.devices or (machine.cpu,)
    free = sum(device.free or 0 for device in devices)
    for one in found:
        kind = one.pair.draft_kind
        plan = one.plan
        assert kind in known_heads
        assert one.reasons
        if plan is None:
            assert one.needed_bytes <= free
            continue
        assert plan.verdict == "fits"
        assert not plan.loses, "the engine pauses such a draft"
        for device_fit in plan.all_fits:
            headroom = device_fit.headroom
            assert headroom is not None
            assert headroom >= 0
        has_draft = plan.memory.draft is not None
        assert has_draft == (kind != "lookup"), "a draft that has no room"


def settings_of(plan: Plan | None) -> object:
    """What a person sees of a plan."""
    assert plan is not None
    load = plan.load
    return (
        (load.target_settings, load.draft_settings, load.draft_max, load.draft is None),
        (plan.verdict, plan.speed.plain, plan.speed.speculative),
        [each.needed for each in plan.all_fits],
    )


def test_all_commands_plan_alike(name: str) -> None:
    """`pair suggest`, `fit`, the wizard and `run` agree in settings, speed and memory."""
    machine = machine_profile.with_programs_closed(MACHINES[name])
    cache = EstimateCache()
    best: dict[str, PairSuggestion] = {}
    for one in real(suggested(name)):
        best.setdefault(catalog.own_id(one.pair.target.id), one)
        shapes_ = pair_shapes.from_catalog(one.pair)
        if one.plan is None or shapes_ is None:
            continue
        draft = Path("draft") if shapes_.draft else None
        request = LoadOptions().to_request(ResolvedPair(Path("target"), draft))
        advisor = SettingsAdvisor(*shapes_.shapes, machine)
        advised = advisor.advise(request)
        assert settings_of(advised) == settings_of(one.plan), one.pair.id
        listed = one.pair.target.projector
        if listed is not None and listed.bytes is not None:
            shape = projector_shape.from_size(listed.bytes)
            advised = advisor.with_projector(advised, shape, request)
        shown = suggestions.with_projector(one, machine, SuggestionCriteria())
        assert settings_of(advised) == settings_of(shown.plan), one.pair.id
        row = cache.estimate(Candidate(one.pair, one.bytes), machine, "chat", WhatIf())
        assert settings_of(row.plan) == settings_of(shown.plan), one.pair.id
    for target, one in list(best.items())[:4]:
        named, *_ = suggestions.suggest(machine, None, target)
        assert settings_of(named.plan) == settings_of(one.plan), "by its name, too"
        resolved = suggestions.resolve_best_file(
            target, lambda: machine, SuggestionCriteria()
        )
        assert resolved.target.catalog_model == one.pair.target


def test_a_head_that_nobody_named_drafts_where_pair_suggest_puts_it_first(
    name: str,
) -> None:
    """The whole catalogue: `fit T` and `run T` if the file of T is all that is here."""
    machine = machine_profile.with_programs_closed(MACHINES[name])
    first: dict[str, PairSuggestion] = {}
    for one in real(suggested(name)):
        if one.pair.draft is None:
            first.setdefault(catalog.own_id(one.pair.target.id), one)
    for one in first.values():
        file = pair_shapes.shape_from_catalog(one.pair.target)
        if one.plan is None or file is None or not file.n_mtp:
            continue
        target = PairMember(one.pair.target.id, "shape", file)
        subject = PairShapes(target).add_own_head()
        pair = ResolvedPair(
            Path("target"), Path("target"), default_draft="its MTP layer"
        )
        options = LoadOptions()
        advisor = SettingsAdvisor(*subject.shapes, machine)
        advised = advisor.advise(options.to_request(pair))
        assert settings_of(advised) == settings_of(one.plan), one.pair.id
        if one.pair.draft_kind == "lookup":
            reason = "Not drafting with its MTP layer: "
            assert advised.skipped_draft.startswith(reason)
        else:
            assert advised.skipped_draft == ""
        forced = advisor.advise(options.to_request(pair, "mtp"))
        assert not forced.skipped_draft


def test_every_preference_for_loading_is_a_wish_of_the_search(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`pair suggest` and the wizard take from config.toml what `run` and `fit` take."""
    values = {"cpu_moe": "24", "exact": "true"}
    saved = {
        key: values[option.name]
        for key, option in SETTINGS.items()
        if option.name in values
    }
    names = {each.name for each in fields(LoadOptions)}
    own = {option.name for option in SETTINGS.values() if option.attribute in names}
    extra = (*EXTRA_LOAD_OPTIONS, *EXTRA_SPECULATION_OPTIONS)
    assert own - {option.name for option in extra} == {*values}
    lines = [f"{key} = {value}\n" for key, value in saved.items()]
    (tmp_path / "config.toml").write_text("".join(lines))
    wishes = launch.saved_criteria("chat", 4096, "q8_0").wishes
    assert wishes.cpu_moe == 24
    assert wishes.exact
    assert wishes.ctx == 4096
    assert wishes.kv == "q8_0"
    assert wishes.can_skip_remote
    assert experts_in_ram() == 24
    (tmp_path / "config.toml").write_text("")
    assert experts_in_ram() == 0


def experts_in_ram() -> int:
    """Layers whose experts the suggestion of a mixture leaves in RAM, as saved."""
    pair = catalog.load().pairs["gpt-oss-20b+lookup"]
    machine = MACHINES["24 GB"]
    found = suggestions.assess_pair(pair, machine, launch.saved_criteria())
    assert found is not None
    assert found.plan is not None
    return found.plan.load.target_settings.cpu_moe


@pytest.mark.parametrize("name", ["24 GB", "Apple 32 GB", "CPU 16 GB"])
def test_the_range_of_a_speed_up_and_the_verdict_agree(name: str) -> None:
    for one in suggestions.suggest(MACHINES[name], None, "qwen3.5-9b"):
        if one.plan and one.plan.memory.draft and one.plan.speed.plain:
            low, high = one.plan.speed.by_workload["chat"].speedup
            is_slower = "probably not faster with this draft" in one.reasons
            assert is_slower == one.plan.loses
            if one.plan.loses:
                assert low <= 1
                assert high == 1
            else:
                assert high > 1


def test_a_mac_gets_four_bits_that_its_gpu_holds() -> None:
    """The memory beyond a GPU's limit is slower to reach."""
    found = [
        one for one in suggested("Apple 32 GB") if "qwen3.6-35b-a3b" in one.pair.id
    ]
    assert found[0].pair.target.quantization == "UD-Q4_K_XL"
    assert found[0].plan is not None
    assert not found[0].plan.is_partly_in_ram


@pytest.mark.parametrize(
    "name", [name for name, machine in MACHINES.items() if machine.devices]
)
def test_the_search_fills_a_card_that_a_target_exceeds(name: str) -> None:
    """At most 0.6 GB stay free beside the reserve."""
    machine = MACHINES[name]
    for model in ("qwen3.6-35b-a3b", "gemma-4-26b-a4b", "qwen3.8-27b", "gpt-oss-120b"):
        shape = pair_shapes.shape_from_catalog(catalog.load().models[model])
        assert shape is not None
        settings = SettingsAdvisor(shape, None, machine)
        fit = settings.advise(SettingsRequest(LoadCommand("target")))
        if fit.verdict != "fits" or fit.load.target_settings.n_gpu_layers == 0:
            continue
        target = fit.load.target_settings
        assert target.cpu_moe == 0 or 0 < target.cpu_moe <= shape.n_layer
        if target.cpu_moe > 0 or target.n_gpu_layers > 0:
            left = min((device_fit.headroom or 0) for device_fit in fit.device_fits)
            assert 0 <= left <= 0.6 * GIB, (model, left / GIB)


def test_the_quantisation_is_what_the_memory_allows() -> None:
    """The largest one that leaves memory free.

    A model that was trained for one type is best in that type.
    """
    for gib, model, type_ in [
        (24, "qwen3.8-27b", "UD-Q4_K_XL"),
        (32, "qwen3.8-27b", "UD-Q6_K"),
        (48, "qwen3.8-27b", "Q8_0"),
        (14, "qwen3.8-27b", "UD-Q3_K_XL"),
        (80, "gemma-4-31b", "Q4_0"),
    ]:
        (best, *_) = suggest(gib, target=model)
        assert best.pair.target.quantization == type_
        assert best.verdict == "fits"
        detect = partial(machine_profile.with_vram, gib)
        request = suggestions.resolve_best_file(model, detect, SuggestionCriteria())
        assert request.target.catalog_model == best.pair.target, (
            "as fit and pull choose"
        )
        named = suggestions.resolve_best_file(
            f"{model}:Q8_0", detect, SuggestionCriteria()
        )
        assert named.name == f"{model}:Q8_0", "a person's choice stays"
        assert {
            one.pair.target.quantization for one in suggest(gib, target=f"{model}:Q8_0")
        } == {"Q8_0"}


def test_a_cpu_gets_the_quantisation_that_it_computes_fastest() -> None:
    for model, gib, slow, type_, reason in [
        ("qwen3-4b", 30, "Q5_K Q6_K", "Q8_0", ""),
        (
            "qwen3-4b",
            30,
            "Q5_K Q6_K Q8_0",
            "Q4_K_M",
            "Q4_K_M reads 2.5 × as fast on this CPU",
        ),
        (
            "qwen3-4b",
            4,
            "Q5_K Q6_K",
            "Q4_K_M",
            "Q4_K_M reads 2.5 × as fast on this CPU as Q5_K_M",
        ),
        ("gemma-4-12b", 60, "Q4_0 Q5_K Q6_K", "Q8_0", ""),
    ]:
        types = {}
        for name in ("Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0"):
            ms_a_token = 2.5 if name in slow.split() else 1.0
            pass_ms = {1: 10.0, 2: 10.0, 4: 10.0, 8: 10.0, 256: 256 * ms_a_token}
            types[name] = TypeSpeed(name, pass_ms)
        machine = replace(computer(gib), types=types)
        (best, *_) = suggestions.suggest(machine, SuggestionCriteria(), model)
        assert best.pair.target.quantization == type_
        if reason:
            assert any(each.startswith(reason) for each in best.reasons)
        request = suggestions.resolve_best_file(
            model, partial(replace, machine), SuggestionCriteria()
        )
        assert request.target.catalog_model == best.pair.target, (
            "as fit and pull choose"
        )


@pytest.mark.parametrize("card", ["", "RTX 4060"])
def test_the_list_and_the_wizards_page_count_the_projector(card: str) -> None:
    """It is the part of the bar, and of the sum: 3.5 GB of RAM, and 1.2 more."""
    machine = with_card(card) if card else computer(24)
    criteria = SuggestionCriteria("chat")
    found = suggestions.suggest_with_projectors(machine, criteria, "gemma-4-e2b+mtp")
    pair = found[0].pair
    alone = suggestions.assess_pair(pair, machine, criteria)

    page = EstimateCache().estimate(Candidate(pair, 0), machine, "chat", WhatIf())

    assert found[0].plan and page.plan and alone and alone.plan
    in_bars = sum(each.projector for each in page.plan.all_fits)
    assert in_bars >= page.plan.projector_bytes > 0.9 * GIB
    assert page.plan.total == alone.plan.total + in_bars
    assert found[0].needed_bytes == sum(each.total for each in found[0].used)
    assert found[0].needed_bytes > alone.needed_bytes + 0.9 * GIB
    needed = found[0].used[0].needed / GIB
    assert f"needs {needed:.1f} GB" in found[0].reasons[0]
