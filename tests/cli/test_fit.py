"""`localspec fit`, and what `run` does with its answer."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_hub import FakeHub
from tests.support.installation import DEEP, HEAD, INSIDE, Installation
from tests.support.run_command import localspec
from tests.support.zoo import Zoo

GIB = 1 << 30
OFFLINE = {"HF_HUB_OFFLINE": "1"}


def document(*arguments: str, **variables: str) -> Any:
    done = localspec("fit", *arguments, "--json", env=OFFLINE | variables)
    assert done.code in (0, 4), done.err
    return json.loads(done.out)


def test_a_pair_of_the_catalogue_on_another_card_offline() -> None:
    said = document("qwen3-8b+qwen3-0.6b", "--gpu", "RTX 4070")
    (device,) = said["devices"]
    assert said["method"] == "analytic" and 0 < said["error"] < 0.3 * GIB
    assert said["source"] == "shape" and device["verdict"] == "fits"
    assert 4.2 * GIB < device["target"]["weights"] < 4.6 * GIB
    assert device["total"] == sum(
        sum(device[part].values()) for part in ("target", "draft")
    ) + device["overhead"]  # fmt: skip
    low, high = said["speed"]["plain"]
    assert 30 < low < high < 120


def test_experts_in_ram_are_a_setting() -> None:
    """Which the command line overrides; a pair with prompt lookup takes no head."""
    subject = ("qwen3.6-35b-a3b+lookup", "--gpu", "RTX 3090")
    assert document(*subject, LOCALSPEC_RUN_CPU_MOE="30")["settings"]["cpu_moe"] == 30
    found = document(*subject, "--cpu-moe", "auto", LOCALSPEC_RUN_CPU_MOE="30")
    assert found["settings"]["cpu_moe"] == 0 and found["draft"] is None


def test_longer_copies_of_a_hybrid_are_counted_if_they_are_asked_for() -> None:
    subject = ("qwen3.8-27b+lookup", "--gpu", "RTX 3090")

    usual = document(*subject)
    longer = document(*subject, "--draft-max", "32")

    assert usual["settings"]["draft_max"] == 6
    assert longer["settings"]["draft_max"] == 32
    assert longer["devices"][0]["total"] > usual["devices"][0]["total"]
    assert "drafts of up to 32 tokens" in longer["why"]


def test_what_does_not_fit_ends_with_4_and_advice() -> None:
    done = localspec(
        "fit", "llama-3.3-70b", "--gpu", "RTX 4060", "--ctx", "8192", env=OFFLINE
    )
    assert done.code == 4 and "Speed: none, because it does not fit." in done.text
    lines = done.text.partition("To save memory:")[0].splitlines()
    advice, *others = [line for line in lines if line][1:]
    assert advice == "does not fit: take Qwen3.5 9B (≈ 52 tok/s)"
    assert not any("tok/s" in line for line in others), "of what does not run"
    savings = [line for line in done.text.splitlines() if "too big; " in line]
    assert not savings, "a saving that does not suffice has no speed"
    assert "--kv q8_0" in done.text and "localspec pull qwen3.5-9b+mtp" in done.text


def test_what_is_too_slow_is_no_fit_but_names_what_to_take() -> None:
    """A dense model of 32 billion parameters beside 12 GB: half is read from RAM."""
    done = localspec("fit", "qwq-32b", "--gpu", "RTX 3060", env=OFFLINE)
    assert done.code == 0, done.err
    second = done.text.splitlines()[1]
    assert re.fullmatch(
        r"too slow from RAM \(≈ [\d.]+ tok/s\): take Gemma 4 12B \(≈ \d+ tok/s\)",
        second,
    )


def test_fit_names_the_head_that_suggest_names() -> None:
    done = localspec("fit", "gemma-4-31b", "--gpu", "RTX 3090", env=OFFLINE)
    assert done.text.startswith("gemma-4-31b+mtp\n")
    assert "Draft: MTP head of Gemma 4 31B." in done.text
    assert "Get it: localspec pull gemma-4-31b+mtp" in done.text


def test_fit_explains_why_a_larger_memory_needs_more() -> None:
    """A Mac keeps the whole cache of a window that a card of 24 GB cuts."""
    done = localspec("fit", "gemma-4-31b", "--gpu", "M4 Pro 48GB", env=OFFLINE)
    saving = re.search(
        r"Where memory is short it does not, and needs ([\d.]+) G", done.text
    )
    assert saving
    assert float(saving[1]) > 8


def test_a_computer_without_a_gpu_is_named_by_its_cpu() -> None:
    cpu = ("--cpu", "Ryzen 7 5800X", "--ram", "32")
    said = document("llama-3.1-8b+lookup", *cpu)
    low, high = said["speed"]["plain"]
    assert low < 7 < high
    assert said["published"]["cpu"], "no card reports of it"

    unknown = localspec(
        "fit", "llama-3.1-8b", "--cpu", "Frobnicator", "--ram", "32", env=OFFLINE
    )
    assert unknown.code == 0, unknown.err
    assert "doctor --cpu" in unknown.err


def test_a_size_of_ram_that_is_assumed_is_said() -> None:
    done = localspec("fit", "llama-3.2-1b", "--cpu", "N100", env=OFFLINE)
    assert "RAM are assumed, as here. Say the size: --ram" in done.err


@pytest.mark.parametrize("gpu", [(), ("--gpu", "RTX 4060")])
def test_from_a_remote_header(zoo: Zoo, gpu: tuple[str, ...]) -> None:
    """Nothing is downloaded but the header."""
    body = Path(zoo["chatty"]).read_bytes()
    with FakeHub() as hub:
        hub.add("tiny/chatty-GGUF", "chatty-Q8_0.gguf", body)
        done = localspec(
            "fit", "tiny/chatty-GGUF", *gpu, "--json", env={"HF_ENDPOINT": hub.url}
        )
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert (said["source"], said["method"]) == ("hub", "exact")
    here = document(str(zoo["chatty"]), *gpu)
    for device, same in zip(
        (*said["devices"], said["host"]), (*here["devices"], here["host"]), strict=True
    ):
        assert device["target"] == same["target"]


def test_bars_are_words_for_a_screen_reader() -> None:
    done = localspec("fit", "demo", "--plain")
    assert done.code == 0, done.err
    assert "target 0.01 GB, draft <0.01 GB, KV <0.01 GB, compute buffers" in done.text
    assert not set("█▓▒░·[]=") & set(done.text)


def test_fit_counts_what_run_would_use(computer: Installation) -> None:
    computer.pulled(DEEP, HEAD, INSIDE)
    for ref, head, name in ((DEEP, HEAD, "EAGLE-3"), (INSIDE, INSIDE, "MTP")):
        small = computer.do("fit", ref, "--gpu", "RTX 4090")
        assert re.search(
            r"Not drafting with the .*: about \d+ tok/s with it, ", small.text
        )
        said = computer.do("fit", ref, "--draft", head, "--gpu", "RTX 4090", "--json")
        assert said.code == 0, said.err
        document = said.document
        # counted, on a GPU that is not in this computer
        assert document["method"] == "exact" and document["error"] == 0
        assert document["devices"][0]["draft"]["compute"] > 0
        assert f"{name} heads" in document["speed"]["why"]
    alone = computer.do("fit", DEEP, "--draft", "none", "--json").document
    assert alone["method"] == "exact"
    assert alone["draft"] is None and alone["host"]["draft"]["compute"] == 0


def test_what_sees_says_what_its_projector_takes_and_where() -> None:
    said = document("gemma-4-12b", "--gpu", "RTX 3090")
    (device,) = said["devices"]
    projector = said["projector"]
    assert (said["sees"], said["hears"]) == (True, True)
    assert projector["device"] == device["name"]
    assert projector["weights"] == 175_115_616
    assert device["projector"] > projector["weights"] + projector["compute"] - 1
    assert projector["about"] is True, "only the size of the file is known"
    done = localspec("fit", "gemma-4-12b", "--gpu", "RTX 3090", env=OFFLINE)
    assert re.search(
        r"Sees images, hears: its projector takes about 0\.\d+ GB of .*RTX 3090, 24 GB\.",
        done.text,
    )
    blind = document("qwen3-8b", "--gpu", "RTX 3090")
    assert (blind["sees"], blind["projector"]) == (False, None)


def test_a_size_that_nobody_knows_is_said_to_be_unknown() -> None:
    done = localspec("fit", "gemma-3-27b", "--gpu", "RTX 3090", env=OFFLINE)
    said = "Sees images: its projector, whose size is not known, takes more memory."
    assert said in done.text
