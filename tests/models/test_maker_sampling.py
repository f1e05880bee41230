"""The values that a model's makers suggest, from its file or the catalogue."""

import pytest
from msgspec.structs import replace

from localspec import paths
from localspec.chat.settings import ChatSettings
from localspec.models import catalog, maker_sampling
from localspec.models.catalog import PairSettings
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from localspec.protocol.wire import SamplingParams


@pytest.fixture(scope="module")
def demo() -> Header:
    return reader.read(paths.find_bundled("demo-target.gguf"))


def with_keys(header: Header, **values: float | str) -> Header:
    return replace(header, keys={f"general.sampling.{k}": v for k, v in values.items()})


def test_the_file_comes_before_the_catalogue_and_the_person_before_both(
    demo: Header,
) -> None:
    model = catalog.load().models["gemma-4-12b"]
    found = maker_sampling.find(with_keys(demo, temp=0.3, top_k=7), model)
    assert maker_sampling.parameters(found, thinks=None) == {
        "temperature": 0.3,
        "top_k": 7,
    }
    found = maker_sampling.find(demo, model)
    chosen = ChatSettings.from_catalog(PairSettings(sampling=found))
    assert chosen.sampling.temperature == 1.0
    assert chosen.sampling.top_k == 64
    assert chosen.with_value("top_k", "5").sampling.top_k == 5
    pair = PairSettings(temperature=0.6, sampling=found)
    assert ChatSettings.from_catalog(pair).sampling.temperature == 0.6


def test_thinking_and_plain_have_values_of_their_own(demo: Header) -> None:
    suggested = PairSettings(sampling=catalog.load().models["qwen3.5-9b"].sampling)
    thinking = ChatSettings.from_catalog(suggested).sampling
    plain = ChatSettings.from_catalog(suggested, think=False).sampling
    assert thinking.temperature == 1.0
    assert plain.temperature == 0.7
    assert "temperature 1" in maker_sampling.describe(suggested.sampling)


def test_each_value_has_its_source(demo: Header) -> None:
    suggested = PairSettings(sampling=catalog.load().models["qwen3.5-9b"].sampling)
    chosen = ChatSettings.from_catalog(suggested).with_value("min_p", "0.3")
    sources = [
        chosen.find_source(name, suggested)
        for name in ("top_p", "min_p", "xtc_threshold")
    ]
    assert sources == ["makers (catalogue), thinking", "yours", "default"]
    assert chosen.find_source("spec", suggested) == ""
    plain = ChatSettings.from_catalog(suggested, think=False).with_value("min_p", "0.3")
    assert plain.with_value("think", "off").find_source("temperature", suggested) == (
        "makers (catalogue)"
    )
    assert "min-p 0.3 (yours)" in plain.describe_sampling(suggested)
    of_file = PairSettings(
        sampling=maker_sampling.find(with_keys(demo, temp=0.3), None)
    )
    assert (
        ChatSettings.from_catalog(of_file).find_source("temperature", of_file)
        == "model file"
    )


def test_nothing_is_invented(demo: Header) -> None:
    models = catalog.load().models
    assert maker_sampling.find(demo, models["smollm2-135m"]) is None
    assert maker_sampling.find(demo, None) is None
    assert ChatSettings.from_catalog(PairSettings()).sampling == SamplingParams()
    assert (
        maker_sampling.find(with_keys(demo, temp=-1.0, top_p=7.0, min_p="x"), None)
        is None
    )
