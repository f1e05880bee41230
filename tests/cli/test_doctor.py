"""`localspec doctor`, as a person and as a program would read it."""

import os
from pathlib import Path

from tests.support.run_command import localspec


def test_a_report_by_area_made_to_be_pasted(tmp_path: Path) -> None:
    home = tmp_path / "ann"
    home.mkdir()
    env = {"HOME": str(home), "HF_HOME": str(home / "hf"), "HF_TOKEN": "hf_secret"}
    done = localspec("doctor", env=env)
    assert done.code == 0, done.text
    for area in ("engine", "devices", "disk", "chats", "network", "terminal", "models"):
        assert f"\n{area}\n" in "\n" + done.text
    assert (
        str(home) not in done.text
        and "~/hf/hub" in done.text
        and "secret" not in done.text
    )
    assert done.err == ""


def test_an_engine_that_is_gone_is_a_finding(tmp_path: Path) -> None:
    done = localspec("doctor", "--json", env={"LLAMA_CPP_LIB_PATH": str(tmp_path)})
    assert done.code == 1
    assert done.document["schema"] == 1
    keys = {"id", "area", "level", "what", "fix", "means", "action"}
    assert all(set(one) == keys for one in done.document["findings"])
    levels = {one["id"]: one["level"] for one in done.document["findings"]}
    assert levels["engine-fails"] == "error" and levels["devices-unknown"] == "warning"
    assert "memory" in levels


def test_fix_repairs_what_the_user_confirms(tmp_path: Path) -> None:
    blobs = tmp_path / "hub" / "models--ann--m" / "blobs"
    blobs.mkdir(parents=True)
    part = blobs / ("a" * 64 + ".localspec.part")
    part.write_bytes(b"x" * 20_000_000)
    os.utime(part, (1, 1))
    env = {"HF_HOME": str(tmp_path)}
    found = localspec("doctor", "--json", env=env).document["findings"]
    assert [one["action"] for one in found if one["id"] == "leftovers"] == [
        "remove them"
    ]
    asked = localspec("doctor", "--fix", env=env)
    assert asked.code == 2 and "--fix -y" in asked.err and part.exists()
    done = localspec("doctor", "--fix", "-y", env=env)
    assert done.code == 0, done.text
    assert "Now: " in done.text and "Freed 20 MB." in done.err and not part.exists()
    again = localspec("doctor", "--fix", "-y", "--json", env=env)
    assert again.code == 0 and "leftovers" not in {
        one["id"] for one in again.document["findings"]
    }
