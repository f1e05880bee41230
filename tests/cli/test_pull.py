"""`localspec pull` and what it brings: real processes, and a hub on this computer."""

import io
import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from localspec.cli.pull import DownloadProgressLine
from localspec.models.gguf import reader
from localspec.models.hub.cached_file import DownloadJob
from localspec.models.hub.download import DownloadPhase, DownloadState
from localspec.models.reference import RepoFile
from tests.support import ghost_projectors
from tests.support.downloads import wait_for
from tests.support.fake_hub import BODY, COMMIT, Fault
from tests.support.installation import (
    BAD_PAIR,
    BIG,
    DEEP,
    HEAD,
    INSIDE,
    ODD,
    PAIR,
    SMALL,
    Installation,
)

needs_terminal = pytest.mark.skipif(
    sys.platform == "win32", reason="no pseudo-terminals there"
)
ASK = ("-p", "a", "--max-tokens", "2", "--temperature", "0", "--json")
BOTH = ["Tiny-Draft-Q8_0.gguf", "Tiny-Q8_0.gguf"]


def test_from_nothing_to_an_answer_and_back(computer: Installation) -> None:
    """What the README shows."""
    first = computer.do("pull", PAIR, "-y")
    assert first.code == 0, first.err
    assert first.text == f"Ready: localspec run {PAIR}\n"
    assert "org/Tiny-GGUF/Tiny-Q8_0.gguf" in first.err and "licence: mit" in first.err
    assert (
        "Compatible: " in first.err
        and "To download:" in first.err
        and computer.finals() == BOTH
    )
    listed = computer.do("list")
    assert listed.code == 0, listed.err
    rows = [line.split()[0] for line in listed.text.splitlines() if line]
    models = rows.index("MODEL")
    assert rows[0] == "PAIR" and {"demo", PAIR} <= set(rows[1:models])
    assert rows[models + 1] == "tiny-draft"
    shown = computer.do("show", PAIR)
    assert (
        shown.code == 0 and "365 tokens" in shown.text and "Compatible: " in shown.text
    )
    told = computer.do("run", PAIR, *ASK)
    assert told.code == 0, told.err
    assert told.document["model"] == "Tiny-Q8_0.gguf"
    assert told.document["draft"] == "Tiny-Draft-Q8_0.gguf"
    before = len(computer.hub.bodies())
    again = computer.do("pull", "-y", PAIR)
    assert again.code == 0 and "Everything is already downloaded." in again.err
    assert again.err.count("already downloaded, verified") == 2
    assert len(computer.hub.bodies()) == before
    gone = computer.do("rm", PAIR, "-y")
    assert gone.code == 0, gone.err
    assert computer.finals() == []
    assert not list(computer.cache.glob("models--*")), "folders and blobs go too"


def test_a_dry_run_shows_the_plan_and_writes_nothing(computer: Installation) -> None:
    done = computer.do("pull", PAIR, "--dry-run")
    assert done.code == 0, done.err
    assert (
        "To download: " in done.text
        and "Free: " in done.text
        and not computer.cache.exists()
    )
    assert computer.do("pull", "tiny").code == 2, "nobody can be asked"
    plan = computer.do("pull", PAIR, "--dry-run", "--json").document
    assert plan["dry_run"] is True and plan["missing"] == plan["bytes"] > 0
    assert [model["name"] for model in plan["models"]] == ["tiny", "tiny-draft"]
    assert plan["models"][0]["licence"] == "mit" and plan["models"][0]["path"] is None
    (pair,) = plan["pairs"]
    assert (pair["verdict"], pair["rule"]) == ("compatible", "same-vocabulary")


def test_an_incompatible_pair_is_refused_before_its_bytes(
    computer: Installation,
) -> None:
    done = computer.do("pull", BAD_PAIR, "-y")
    assert done.code == 5
    assert "token 257 is '▁other' in the draft and '<0xFE>' in the target" in done.err
    assert computer.finals() == []
    assert sum("bytes=0-" in str(seen.range) for seen in computer.hub.bodies()) == 2, (
        "headers"
    )


def test_what_the_hub_refuses_and_then_allows(computer: Installation) -> None:
    computer.hub.gated[BIG] = "hf_token"
    done = computer.do("pull", "tiny", "-y")
    assert (done.code, "/org/Tiny-GGUF" in done.err) == (14, True), "the page to open"
    assert computer.finals() == []
    alone = computer.do("pull", "tiny", "-y", "-q", HF_TOKEN="hf_token")
    assert alone.text == "Ready: localspec run tiny\n"
    assert alone.err == f"Faster with its draft: localspec pull {PAIR}\n"


def test_a_draft_that_another_pair_uses_stays(computer: Installation) -> None:
    own = Path(computer.env["LOCALSPEC_CONFIG"]).with_name("models.yaml")
    own.write_text(own.read_text() + "  - {target: odd, draft: tiny-draft}\n")
    computer.pulled(PAIR, "odd")
    done = computer.do("rm", PAIR, "-y")
    assert done.code == 0 and "tiny-draft is kept: odd+tiny-draft uses it" in done.err
    assert computer.finals() == ["Odd-F32.gguf", "Tiny-Draft-Q8_0.gguf"]


def test_what_is_left_behind_is_shown_and_removed(computer: Installation) -> None:
    computer.pulled("tiny")
    (folder,) = computer.cache.glob("models--*")
    part = folder / "blobs" / f"{'a' * 64}.localspec.part"
    part.write_bytes(b"GGUF" + bytes(1000))
    os.utime(part, (1, 1))
    assert "rm --leftovers" in computer.do("list").err
    assert computer.do("list", "--json").document["leftovers"][0]["resumable"] is True
    assert computer.do("rm", "--leftovers").code == 2, "nobody to ask"
    assert computer.do("rm", "--leftovers", "-y", "--json").document["freed"] == 1004
    assert not part.exists() and computer.finals() == ["Tiny-Q8_0.gguf"]


def test_a_folder_of_ones_own(computer: Installation, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "My-Model-Q8_0.gguf").write_bytes(
        computer.hub.repos[BIG]["Tiny-Q8_0.gguf"].data
    )
    assert "My-Model" in computer.do("--models-dir", mine, "list").text
    assert computer.do("run", "my-model", *ASK, "--models-dir", mine).code == 0
    assert computer.do("run", "my-model", *ASK).code == 3
    assert computer.do("rm", "my-model", "-y", "--models-dir", mine).code == 0
    assert not list(mine.iterdir())
    for name in ("no-such-thing-at-all", "qwen3", f"{BIG}:Q2_K", "org/None-GGUF"):
        assert computer.do("pull", name, "-y").code == 3, name


def test_search_and_the_files_of_what_it_found(computer: Installation) -> None:
    found = computer.do("search", "tiny", "draft", "--json")
    assert found.code == 0, found.err
    assert found.document["repos"] == []  # the fake's words must follow one another
    (one,) = computer.do("search", "tiny-draft", "--json").document["repos"]
    assert one["repo"] == SMALL and one["downloads"] == 12 and one["gated"] is False
    assert SMALL in computer.do("search", "tiny-draft").text
    shown = computer.do("show", ODD)
    assert shown.code == 0 and "Head-Q8_0.gguf" in shown.text
    asked = computer.do(
        "show", "tiny", "--endpoint", computer.hub.url, HF_ENDPOINT="http://x.no"
    )
    assert asked.code == 0


def test_offline_no_socket_is_opened(computer: Installation) -> None:
    computer.pulled(PAIR, "odd")
    env = computer.without_sockets()
    seen = len(computer.hub.requests)
    for code, arguments in (
        (0, ("ls", "--json")),
        (0, ("show", PAIR, "--json")),
        (0, ("pull", PAIR, "-y")),
        (0, ("run", f"{BIG}:Q8_0", "-p", "a", "--max-tokens", "2")),
        (10, ("pull", "qwen3-8b", "-y")),
        (10, ("search", "tiny")),
        (10, ("pair", "check", "qwen3-8b", "qwen3-0.6b")),
        (0, ("rm", "tiny-draft", "-y")),
    ):
        done = computer.do("--offline", *arguments, **env)
        assert done.code == code, done.err
        assert "RuntimeError" not in done.err and len(computer.hub.requests) == seen, (
            arguments
        )
        if code:
            assert "Set by --offline" in done.err and "HF_HUB_OFFLINE" not in done.err


@needs_terminal
@pytest.mark.parametrize(
    "how", [Fault("slow", rate=60_000), Fault("stall", after=70_000)]
)
def test_stopping_keeps_what_came_and_says_how_to_go_on(
    computer: Installation, how: Fault
) -> None:
    from tests.support.dialogue import Dialogue  # noqa: PLC0415  there is none on Windows

    computer.hub.faults[BODY].extend([Fault("")])  # the header
    computer.hub.always[BODY] = how
    with Dialogue("pull", "tiny", env=computer.env) as person:
        person.until("Download? [Y/n]")
        person.type("\r")
        person.until(" of 0.1 MB")
        wait_for(lambda: computer.came() >= 60_000, 20)
        person.type("\x03")
        person.until("To resume: localspec pull tiny")
        assert person.end() == 130
    assert computer.finals() == []
    computer.hub.always.clear()
    computer.pulled("tiny")
    last = computer.hub.bodies()[-1]
    assert last.range is not None and not last.range.startswith("bytes=0-")


@needs_terminal
def test_run_asks_before_it_pulls(computer: Installation) -> None:
    from tests.support.dialogue import Dialogue  # noqa: PLC0415

    unasked = computer.do("run", PAIR, "-p", "a")  # nobody can be asked
    assert unasked.code == 3 and f"localspec pull {PAIR}" in unasked.err
    asked = ("run", PAIR, "-p", "a", "--max-tokens", "3")
    for arguments, key, code in (
        (asked, "n", 3),
        (("pull", "tiny"), "n", 1),
        (asked, "y", 0),
    ):
        with Dialogue(*arguments, env=computer.env) as person:
            person.until("Download? [Y/n]")
            person.type(f"{key}\r")
            assert person.end() == code, person.said
        downloaded = BOTH if key == "y" else []
        assert computer.finals() == downloaded


@pytest.mark.parametrize("name", ["LOCALSPEC_PLAIN", "TERM"])
def test_nothing_is_redrawn_for_a_screen_reader(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCALSPEC_PLAIN", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\r" in told(monkeypatch)
    monkeypatch.setenv(name, "dumb")
    lines = told(monkeypatch)
    assert (
        lines.replace("\n", "").isprintable()
        and "25 %" in lines
        and "verified" in lines
    )


def told(monkeypatch: pytest.MonkeyPatch) -> str:
    """What a short download shows."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    job = DownloadJob("some/repo", COMMIT, RepoFile("model.gguf", 100))
    with closing(DownloadProgressLine("model.gguf")) as meter:
        meter.update(DownloadState(job, DownloadPhase.LOADING, 25))
        meter.update(DownloadState(job, DownloadPhase.DONE, 100))
    return terminal.getvalue()


def test_heads_beside_a_target_are_offered(computer: Installation) -> None:
    shown = computer.do("show", DEEP)
    assert shown.code == 0, shown.err
    assert f"EAGLE-3 head, 0.1 MB: localspec pull {HEAD}" in shown.text
    assert "MTP: a layer of the model itself" in computer.do("show", INSIDE).text
    assert (
        f"MTP head, 0.1 MB: localspec pull hf://{DEEP}/mtp-Deep-Q8_0.gguf" in shown.text
    )
    about = computer.do("show", DEEP, "--json").document["models"][0]
    kinds = [one["kind"] for one in about["beside"]]
    assert kinds == ["mtp", "eagle3", "dflash"], (
        "in the order in which `run` looks for them"
    )
    assert about["file"] == "Deep-Q8_0.gguf"
    pulled = computer.do("pull", DEEP, "-y")
    assert pulled.code == 0, pulled.err
    assert (
        f"In the same repository: EAGLE-3 head, 0.1 MB: localspec pull {HEAD}"
        in pulled.err
    )


def add_projector(computer: Installation, folder: Path) -> int:
    """Beside the model on the hub; its bytes."""
    tiny = folder / "tiny.gguf"
    tiny.write_bytes(computer.hub.repos[BIG]["Tiny-Q8_0.gguf"].data)
    width = reader.read(tiny).n_embd
    tower = ghost_projectors.tiny("idefics3", width)
    data = tower.write(folder / "mmproj-F16.gguf").read_bytes()
    computer.hub.add(BIG, "mmproj-F16.gguf", data)
    return len(data)


def test_a_projector_comes_and_goes_with_its_model(
    computer: Installation, tmp_path: Path
) -> None:
    n_bytes = add_projector(computer, tmp_path)
    plan = computer.do("pull", "tiny", "--dry-run")
    assert "projector: sees images" in plan.text
    assert "less: --no-images" in plan.text
    planned = computer.do("pull", "tiny", "--dry-run", "--json").document
    assert planned["models"][0]["projector"]["bytes"] == n_bytes
    assert planned["models"][0]["projector"]["sees"] is True

    computer.pulled("tiny")

    assert computer.finals() == ["Tiny-Q8_0.gguf", "mmproj-F16.gguf"]
    (model,) = computer.do("list", "--json").document["models"]
    assert model["file"] == "Tiny-Q8_0.gguf"
    assert model["projector"].endswith("mmproj-F16.gguf")
    assert "with projector" in computer.do("list").text
    shown = computer.do("show", "tiny")
    assert "sees images" in shown.text
    assert "mmproj-F16.gguf" in shown.text
    assert computer.do("show", "tiny", "--json").document["models"][0]["sees"] is True
    gone = computer.do("rm", "tiny", "-y", "--json").document
    assert len(gone["removed"]) == 2
    assert computer.finals() == []


def test_a_projector_that_another_model_uses_stays(
    computer: Installation, tmp_path: Path
) -> None:
    add_projector(computer, tmp_path)
    data = computer.hub.repos[BIG]["Tiny-Q8_0.gguf"].data
    computer.hub.add(BIG, "Tiny-Q4_0.gguf", data + b"")
    computer.pulled("tiny", f"{BIG}:Q4_0")
    computer.do("rm", "tiny", "-y")
    assert computer.finals() == ["Tiny-Q4_0.gguf", "mmproj-F16.gguf"]
    computer.do("rm", f"{BIG}:Q4_0", "-y")
    assert computer.finals() == []


def test_without_images_no_projector_comes(
    computer: Installation, tmp_path: Path
) -> None:
    add_projector(computer, tmp_path)
    computer.do("pull", "tiny", "-y", "--no-images")
    assert computer.finals() == ["Tiny-Q8_0.gguf"]
