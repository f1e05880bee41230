"""Ranges and names in words."""

from msgspec.structs import replace

from localspec.models import catalog
from localspec.models.catalog_entries import name_pair
from localspec.report import pair_text


def test_ranges_in_words() -> None:
    assert pair_text.format_range((70.8, 84.2)) == "71–84"
    assert pair_text.format_range((3.21, 4.09)) == "3.2–4.1"
    assert pair_text.format_speedup((1.01, 1.04)) == "1.0×"


def test_names_say_nothing_twice() -> None:
    pairs = catalog.load().pairs
    shown = {
        "gemma-4-e4b+gemma-4-e4b-mtp": "gemma-4-e4b+mtp",
        "gemma-4-31b+gemma-4-e2b": "gemma-4-31b+gemma-4-e2b",
        "qwen3.8-27b+mtp": "qwen3.8-27b+mtp",
        "phi-4+lookup": "phi-4",
    }
    assert {name: pairs[name].name for name in shown} == shown
    assert (
        pair_text.format_licences(pairs["gemma-4-31b+gemma-4-31b-mtp"]) == "apache-2.0"
    )


def test_a_name_keeps_the_quantisation_and_an_id_of_the_users_own() -> None:
    pair = catalog.load().pairs["phi-4+lookup"]
    other_target = replace(pair.target, id="phi-4:Q8_0", type="Q8_0")
    assert pair.with_target(other_target).name == "phi-4:Q8_0"
    own = name_pair("my+lookup-test", "phi-4", None, ())
    assert own == "my+lookup-test"
