"""Heads from the hub: offered beside their targets, pulled, found without being named, and said."""

from __future__ import annotations

from tests.cli.installation import DEEP, INSIDE, Installation

HEAD = f"hf://{DEEP}/eagle3-Deep-Q8_0.gguf"
ANSWER = ("-p", "a", "--max-tokens", "12", "--temperature", "0")


def test_heads_beside_a_target_are_offered(computer: Installation) -> None:
    shown = computer.do("show", DEEP)
    assert shown.code == 0, shown.err
    assert f"EAGLE-3 head, 0.1 MB: localspec pull {HEAD}" in shown.text
    assert f"MTP head, 0.1 MB: localspec pull hf://{DEEP}/mtp-Deep-Q8_0.gguf" in shown.text
    about = computer.do("show", DEEP, "--json").document["models"][0]
    kinds = [one["kind"] for one in about["beside"]]
    assert kinds == ["mtp", "eagle3", "dflash"], "in the order in which `run` looks for them"
    assert about["file"] == "Deep-Q8_0.gguf"
    pulled = computer.do("pull", DEEP, "-y")
    assert pulled.code == 0, pulled.err
    assert f"In the same repository: EAGLE-3 head, 0.1 MB: localspec pull {HEAD}" in pulled.err


def test_a_pulled_head_is_used_and_said(computer: Installation) -> None:
    """Through the links of the hub's cache, and from the folder of a later commit too."""
    computer.pulled(DEEP)
    alone = computer.do("run", DEEP, *ANSWER, "--json")
    assert alone.code == 0, alone.err
    assert alone.document["draft"] is None and "Drafting with" not in alone.err
    computer.hub.commit = "2" * 40
    pulled = computer.do("pull", HEAD, "-y")
    assert pulled.code == 0 and "used automatically" in pulled.err, pulled.err
    told = computer.do("run", DEEP, *ANSWER, "--json")
    assert told.code == 0, told.err
    assert told.document["draft"] == "eagle3-Deep-Q8_0.gguf"
    assert told.document["text"] == alone.document["text"]
    said = "Drafting with the EAGLE-3 head eagle3-Deep-Q8_0.gguf in the model's folder."
    assert f"{said} To disable: --draft none." in told.err
    without = computer.do("run", DEEP, *ANSWER, "--json", "--draft", "none")
    assert without.document["draft"] is None and "Drafting with" not in without.err
    named = computer.do("run", DEEP, *ANSWER, "--json", "--draft", HEAD)
    assert named.document["draft"] == "eagle3-Deep-Q8_0.gguf"
    assert "Drafting with" not in named.err, "who named it knows"


def test_a_head_is_asked_for_by_its_name(computer: Installation) -> None:
    computer.pulled(DEEP, HEAD)
    told = computer.do("run", DEEP, *ANSWER, "--spec", "eagle3", "--json")
    assert told.code == 0, told.err
    assert set(told.document["speculation"]["by_source"]) == {"eagle3"}
    other = computer.do("run", DEEP, *ANSWER, "--spec", "dspark")
    assert other.code == 2 and other.text == ""
    assert "does not support 'dspark': its draft is a head (eagle3)" in other.err
    assert "Use one of: auto, off, model, lookup, eagle3." in other.err


def test_a_model_that_predicts_uses_its_own_layer(computer: Installation) -> None:
    computer.pulled(INSIDE)
    told = computer.do("run", INSIDE, *ANSWER, "--json")
    assert told.code == 0, told.err
    said = "Drafting with the model's own MTP layer."
    assert f"{said} To disable: --draft none." in told.err
    without = computer.do("run", INSIDE, *ANSWER, "--json", "--draft", "none")
    assert without.document["text"] == told.document["text"] and "(MTP)" not in without.err
    shown = computer.do("show", INSIDE)
    assert "MTP: a layer of the model itself" in shown.text


def test_a_pair_of_the_catalogue_with_a_head(computer: Installation) -> None:
    pulled = computer.do("pull", "deep+head", "-y")
    assert pulled.code == 0, pulled.err
    assert pulled.text == "Ready: localspec run deep+head\n"
    assert "Compatible: " in pulled.err and "draft head (EAGLE-3)" in pulled.err
    for ref in ("deep+head", "deep"):
        told = computer.do("run", ref, *ANSWER, "--json")
        assert told.code == 0 and told.document["draft"] == "Head-Q8_0.gguf", told.err
    listed = computer.do("pair", "list", "--json").document["pairs"]
    (entry,) = [one for one in listed if one["id"] == "deep+head"]
    assert (entry["kind"], entry["here"]) == ("eagle3", True)


def test_what_does_not_match_is_named(computer: Installation) -> None:
    good = computer.do("pair", "check", DEEP, HEAD, "--json")
    assert good.code == 0, good.err
    assert good.document["verdict"] == "compatible"
    layers = computer.do("pair", "check", DEEP, f"hf://{DEEP}/dflash-Deep-Q8_0.gguf", "--json")
    assert layers.code == 5
    assert layers.document["rule"] == "layers" and "layer 9" in layers.document["detail"]
    width = computer.do("pair", "check", "tiny", HEAD)
    assert width.code == 5 and "Incompatible: " in width.text
    own = computer.do("pair", "check", INSIDE, INSIDE)
    assert own.code == 0 and "its own MTP layer" in own.text
    fit = computer.do("fit", "tiny", "--draft", HEAD)
    assert fit.code == 5 and "it reads layer 2 of its target" in fit.err
    assert not computer.cache.exists(), "by headers alone"


def test_fit_counts_what_run_would_use(computer: Installation) -> None:
    computer.pulled(DEEP, HEAD, INSIDE)
    for ref, name in ((DEEP, "EAGLE-3"), (INSIDE, "MTP")):
        said = computer.do("fit", ref, "--gpu", "RTX 4090", "--json")
        assert said.code == 0, said.err
        document = said.document
        assert document["method"] == "analytic" and document["error"] > 0  # not in this computer
        assert document["devices"][0]["draft"]["compute"] > 0
        assert f"{name} heads" in document["speed"]["why"]
    alone = computer.do("fit", DEEP, "--draft", "none", "--json").document
    assert alone["method"] == "exact"
    assert alone["draft"] is None and alone["host"]["draft"]["compute"] == 0
