"""fit/suggestion_groups.py: the groups, and what people say about each kind of computer."""

from functools import cache

import pytest
from msgspec.structs import replace

from localspec.fit import suggestion_groups, suggestions
from localspec.fit.suggestion_groups import Advice, AdviceGroup
from localspec.fit.suggestions import SuggestionCriteria
from localspec.models import catalog, model_names
from localspec.models.catalog import own_id
from tests.support.long_cases import often
from tests.support.shapes import computer, with_card

GIB = 2**30


@cache
def advise(machine: str, use: str) -> Advice:
    """For `RTX 3090`, `M4 Pro 48`, `2 x RTX 3090` or `CPU 32`."""
    name, _, last = machine.rpartition(" ")
    if name == "CPU":
        profile = computer(int(last))
    elif name.startswith("2 x "):
        profile = with_card(machine.removeprefix("2 x "), n=2)
    elif name.startswith("M"):
        profile = with_card(name, int(last))
    else:
        profile = with_card(machine)
    return suggestion_groups.advise(profile, SuggestionCriteria(use))


# What lists and owners of late 2026 choose; one of them is the first, or all are among
# the best three.
FIRST = {
    "RTX 4060": {"chat": "qwen3.5-9b", "code": "qwen3.5-9b", "writing": "gemma-4-e4b"},
    "RTX 4070": {"chat": "gemma-4-12b", "code": "qwen3.5-9b"},
    "RTX 5060 Ti 16GB": {"chat": "gemma-4-26b-a4b", "code": "devstral-small-2-24b"},
    "RTX 3090": {
        "chat": "gemma-4-31b",
        "code": "qwen3.8-27b",
        "writing": "gemma-4-31b",
    },
    "RTX 5090": {"chat": "gemma-4-31b", "code": "qwen3.8-27b"},
    # For a chat two mixtures are as good as each other (below).
    "M4 Pro 48": {"code": "qwen3.6-35b-a3b"},
    "M4 Pro 24": {"chat": "gemma-4-26b-a4b"},
    "CPU 32": {"chat": "gemma-4-26b-a4b"},
}
AMONG_THE_BEST = {
    "GTX 1650": {"chat": "gemma-4-e4b gemma-4-e2b"},
    "RTX 2060": {"chat": "gemma-4-e4b qwen3.5-4b"},
    "RTX 3090": {"chat": "gemma-4-31b muse-glimmer-30b qwen3.8-27b"},
    "2 x RTX 3090": {
        "chat": "gemma-4-31b qwen3.8-27b",
        "code": "qwen3.8-27b qwen3-coder-next",
    },
    "M4 16": {"chat": "gemma-4-e4b"},
    "M4 32": {"chat": "gemma-4-26b-a4b qwen3.6-35b-a3b", "code": "qwen3.6-35b-a3b"},
    "M4 Pro 48": {"chat": "gemma-4-26b-a4b qwen3.6-35b-a3b"},
    # Muse-Glimmer is as large and was released in the same year, and a fifth faster.
    "M4 Max 64": {"chat": "gemma-4-31b muse-glimmer-30b"},
    "M4 Max 128": {"chat": "qwen3.5-122b-a10b qwen3.8-flash-next gpt-oss-120b"},
    "CPU 8": {"chat": "gemma-4-e2b"},
    "CPU 16": {"chat": "gemma-4-e4b gemma-4-e2b lfm2.5-8b-a1b", "code": "qwen3.5-4b"},
    "CPU 32": {"code": "qwen3.6-35b-a3b"},
}


def best_targets(machine: str, use: str) -> list[str]:
    found = advise(machine, use).pairs
    best = [each for each in found if each.group is AdviceGroup.BEST]
    return [own_id(each.suggestion.pair.target.id) for each in best]


@pytest.mark.parametrize("machine", often(list(FIRST), ["RTX 3090", "M4 Pro 48"]))
def test_the_first_is_what_people_choose(machine: str) -> None:
    for use, expected in FIRST[machine].items():
        first, *_ = best_targets(machine, use)
        assert first == expected, use


@pytest.mark.parametrize(
    "machine", often(list(AMONG_THE_BEST), ["CPU 16", "M4 Pro 48"])
)
def test_the_best_three_have_what_people_choose(machine: str) -> None:
    for use, expected in AMONG_THE_BEST[machine].items():
        best = best_targets(machine, use)
        assert set(expected.split()) <= set(best), (use, best)
        assert len(best) <= 3


def test_a_model_that_is_slow_on_a_mac_comes_after_one_that_is_not() -> None:
    """M4 Pro, 48 GB: dense models of 9 to 16 tok/s come after a mixture of about 50."""
    order = [
        own_id(each.suggestion.pair.target.id)
        for each in advise("M4 Pro 48", "chat").pairs
    ]
    mixture = order.index("qwen3.6-35b-a3b")
    for dense in ("gemma-4-31b", "muse-glimmer-30b", "qwen3.8-27b"):
        assert mixture < order.index(dense)


@pytest.mark.parametrize(
    "machine", often(["M4 16", "M4 Pro 48", "M4 Max 128"], ["M4 Max 128"])
)
def test_the_gpu_of_a_mac_and_its_cpu_share_all_of_its_memory(machine: str) -> None:
    """A table of 27 GB in RAM has what the GPU leaves, and nothing is promised twice."""
    whole = int(machine.rpartition(" ")[2]) * GIB
    for use in ("chat", "code"):
        for each in advise(machine, use).pairs:
            plan = each.suggestion.plan
            if plan is not None and plan.verdict.can_load:
                assert sum(fit.needed for fit in plan.all_fits) <= whole
                assert not each.suggestion.bytes_to_free
    if machine == "M4 Max 128":
        assert "qwen3.8-flash-next" in best_targets(machine, "chat")


@pytest.mark.parametrize("machine", ["RTX 3090", "CPU 16"])
def test_each_group_is_what_its_title_says(machine: str) -> None:
    found = advise(machine, "chat")
    first = found.best
    assert first is not None
    first_rate = first.suggestion.tokens_per_second
    assert first_rate is not None
    targets = [own_id(each.suggestion.pair.target.id) for each in found.pairs]
    assert len(targets) == len(set(targets)), "one row a model"
    for each in found.pairs:
        suggestion = each.suggestion
        rate = suggestion.tokens_per_second or first_rate
        assert suggestion.is_too_slow == (each.group is AdviceGroup.TOO_SLOW)
        match each.group:
            case AdviceGroup.BEST:
                assert each.reason
                assert suggestion.pair.target.tier != "old"
            case AdviceGroup.FASTER:
                assert rate > 1.4 * first_rate
            case AdviceGroup.LARGER:
                assert suggestion.is_partly_in_ram
            case AdviceGroup.TOO_SLOW:
                assert each.reason.startswith("too slow")
                assert (
                    f"take {model_names.name_model(first.suggestion.pair.target)} (≈ "
                    in each.reason
                )
            case AdviceGroup.OLDER:
                assert suggestion.pair.target.tier != "current"
            case AdviceGroup.OTHER:
                is_unsuited = each.reason == "not made for chat"
                assert is_unsuited or rate < 2 * first_rate
    if machine == "RTX 3090":
        assert [title for title, _ in found.by_group()] == [
            *("Best for this card", "Faster", "Larger, partly in RAM"),
            *("Others", "Older"),
        ]


def test_the_best_three_have_different_reasons() -> None:
    for machine, use in (("RTX 3090", "chat"), ("RTX 3090", "code")):
        found = advise(machine, use).pairs
        reasons = [each.reason for each in found if each.group is AdviceGroup.BEST]
        assert len(set(reasons)) == 3


def test_what_a_newer_model_of_its_class_replaces_is_older() -> None:
    models = list(catalog.load().models.values())
    targets = [model for model in models if model.kind == "model" and model.use]
    newer = suggestion_groups.find_newer_models(targets)
    for old, expected in {
        "qwen3.6-27b": "qwen3.8-27b",
        "qwen3.5-35b-a3b": "qwen3.6-35b-a3b",
        "qwen3-8b": "qwen3.5-9b",
        "gemma-3-27b": "gemma-4-31b",
        "gemma-3-12b": "gemma-4-12b",
        "nemotron-3-nano-30b-a3b": "nemotron-3.5-30b-a3b",
        "granite-4.0-micro": "granite-4.1-3b",
    }.items():
        assert own_id(newer[old].id) == expected, old
    for model in targets:
        assert model.tier != "current" or model.id not in newer, model.id


def test_the_order_does_not_move_with_what_other_programs_hold() -> None:
    """It ranks by the whole memory, and says how much is to be freed."""
    idle = with_card("RTX 3090")
    (card,) = idle.devices
    assert card.total is not None
    busy_card = replace(card, free=card.total - 6 * GIB)
    cpu = replace(idle.cpu, free=8 * GIB)
    busy = replace(idle, devices=(busy_card,), cpu=cpu)
    catalogue = catalog.load()
    n_free = busy_card.free or 0
    to_free = {}
    for pair_id in ("gemma-4-31b+gemma-4-31b-mtp", "qwen3.8-27b+mtp", "phi-4+lookup"):
        pair = catalogue.pairs[pair_id]
        then = suggestions.choose_file(pair, idle, SuggestionCriteria())
        now = suggestions.choose_file(pair, busy, SuggestionCriteria())
        assert then is not None
        assert now is not None
        assert then.bytes_to_free == 0
        assert now.needed_bytes == then.needed_bytes
        assert now.tokens_per_second == then.tokens_per_second
        assert now.bytes_to_free == max(0, now.needed_bytes - n_free)
        to_free[pair_id] = now.bytes_to_free
    assert to_free["qwen3.8-27b+mtp"] > 0
    assert to_free["phi-4+lookup"] == 0, "it fits beside the other programs"


def test_only_models_that_see_are_listed_if_that_is_asked_for() -> None:
    machine = with_card("RTX 4060")
    for each in suggestions.suggest(machine, SuggestionCriteria("chat", sees=True)):
        assert "image" in each.pair.target.sees


def test_a_model_that_thinks_needs_more_speed() -> None:
    models = catalog.load().models
    plain = suggestions.least_useful_rate(models["devstral-small-2-24b"])
    thinking = suggestions.least_useful_rate(models["qwen3.8-27b"])
    assert 5 < plain < 10 < thinking
