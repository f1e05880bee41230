"""All commands and screens name one draft for a model on a machine."""

import pytest
from msgspec.structs import replace

from localspec.cli import fit, pull
from localspec.cli import pair as pair_command
from localspec.errors import UsageError
from localspec.fit import machine_profile, suggestions
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.suggestions import PairSuggestion, SuggestionCriteria
from localspec.machine.device import Device
from localspec.models import catalog, model_lookup
from localspec.models.catalog import own_id
from localspec.tui.wizard import shortlist
from localspec.tui.wizard.what_if import WhatIf
from tests.support.long_cases import often
from tests.support.shapes import computer, with_card

MACHINES = {
    "8 GB": with_card("RTX 4060"),
    "12 GB": with_card("RTX 4070"),
    "24 GB": with_card("RTX 3090"),
    "two of 24 GB": with_card("RTX 3090", n=2),
    "Mac of 48 GB": with_card("M4 Pro", 48),
    "RAM of 16 GB": computer(16),
}


@pytest.fixture(scope="module", params=often(list(MACHINES), ["24 GB", "RAM of 16 GB"]))
def machine(request: pytest.FixtureRequest) -> MachineProfile:
    return MACHINES[str(request.param)]


@pytest.fixture(scope="module")
def listed(machine: MachineProfile) -> dict[str, PairSuggestion]:
    """The first pair of each target in the list of `pair suggest`."""
    first: dict[str, PairSuggestion] = {}
    for each in suggestions.suggest(machine):
        if not each.is_bundled:
            first.setdefault(own_id(each.pair.target.id), each)
    return first


def draft_of(suggestion: PairSuggestion) -> str:
    """Its id, `mtp` for the target's own layer, or nothing."""
    pair = suggestion.pair
    if pair.draft is not None:
        return pair.draft.id
    return "" if pair.draft_kind == "lookup" else pair.draft_kind


def test_suggest_with_a_name_says_what_the_list_says(
    machine: MachineProfile, listed: dict[str, PairSuggestion]
) -> None:
    for target, in_list in listed.items():
        named, *_ = suggestions.suggest(machine, target=target)
        assert named.pair == in_list.pair
        model = catalog.load().models[target]
        best = suggestions.best_pair(
            model, machine, SuggestionCriteria(), searches=True
        )
        assert best is not None
        assert best.pair == in_list.pair


def test_fit_and_pair_check_take_the_draft_that_suggest_puts_first(
    machine: MachineProfile, listed: dict[str, PairSuggestion]
) -> None:
    for target, in_list in listed.items():
        draft = draft_of(in_list)
        request = model_lookup.resolve(target)
        fitted, default_draft = fit.choose_draft(
            request, None, machine, SuggestionCriteria()
        )
        if draft == "":
            # A layer in the file is compared by what its header says.
            assert fitted.draft is None
            assert default_draft == "the model's own MTP layer"
            with pytest.raises(UsageError, match="No draft is known"):
                pair_command.find_draft(request, machine)
            continue
        assert default_draft == ""
        assert fitted.pair is not None
        assert own_id(fitted.pair.id) == own_id(in_list.pair.id)
        checked = pair_command.find_draft(request, machine)
        expected = own_id(target) if draft == "mtp" else draft
        assert checked.name == expected


def test_the_wizard_and_home_name_what_suggest_names(
    machine: MachineProfile, listed: dict[str, PairSuggestion]
) -> None:
    candidates = shortlist.suggest_candidates(machine, "chat", WhatIf(), catalog.load())
    chat = SuggestionCriteria("chat")
    first: dict[str, PairSuggestion] = {}
    for each in suggestions.suggest(machine, chat):
        first.setdefault(own_id(each.pair.target.id), each)
    for candidate in candidates:
        expected = first[own_id(candidate.pair.target.id)]
        assert candidate.pair == expected.pair
    for target, in_list in listed.items():
        assert draft_of(in_list) == draft_of(first[target]), "a use decides no draft"


def test_one_name_of_a_pair_everywhere_opens_it() -> None:
    """Also the longer ones that were typed before."""
    catalogue = catalog.load()
    names: set[str] = set()
    for pair in catalogue.pairs.values():
        assert "+lookup" not in pair.name
        assert pair.name not in names, "no two pairs have one name"
        names.add(pair.name)
        opened = model_lookup.resolve(pair.name)
        if pair.draft_kind != "lookup":
            assert opened.pair == pair, pair.name
        assert opened.target.catalog_model == pair.target
        by_id = model_lookup.resolve(pair.id)
        assert by_id.pair == pair
    assert model_lookup.resolve("gemma-4-e4b+mtp:Q8_0").name == (
        "gemma-4-e4b+gemma-4-e4b-mtp:Q8_0"
    )


def test_downloads_and_search_results_name_what_suggest_names(
    machine: MachineProfile,
    listed: dict[str, PairSuggestion],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`pull MODEL`, the next step that it prints, and the verdict beside a search hit."""
    monkeypatch.setattr(machine_profile, "detect", lambda: machine)
    for target, in_list in listed.items():
        request = model_lookup.resolve(target)
        found = pull._find_best_pair(request)
        assert found == in_list.pair
        model = in_list.pair.target
        named = f"{target}:{model.quantization}" if ":" in model.id else target
        file = suggestions.resolve_best_file(
            target, lambda: machine, SuggestionCriteria()
        )
        assert file.name == model_lookup.resolve(named).name


def test_no_order_moves_with_four_gigabytes_of_other_programs(
    machine: MachineProfile, listed: dict[str, PairSuggestion]
) -> None:
    def take_4_gb(device: Device) -> Device:
        if device.free is None:
            return device
        return replace(device, free=max(0, device.free - (4 << 30)))

    devices = tuple(take_4_gb(device) for device in machine.devices)
    busy = replace(machine, devices=devices, cpu=take_4_gb(machine.cpu))
    idle_order = [each.pair.id for each in suggestions.suggest(machine)]
    busy_order = [each.pair.id for each in suggestions.suggest(busy)]
    assert busy_order == idle_order
