"""`localspec convert` and `localspec doctor --cpu`."""

import json
from pathlib import Path

import pytest

from localspec import paths
from localspec.cli import doctor
from localspec.errors import UsageError
from localspec.extras import convert
from localspec.extras.convert import command as convert_command
from localspec.machine import type_speeds
from localspec.machine.type_speeds import TypeSpeed
from tests.cli.test_main import options_that_take_an_empty_text
from tests.support import tinygguf
from tests.support.run_command import localspec

DEMO = str(paths.package_data_dir() / "demo" / "demo-target.gguf")


def test_a_copy_is_named_by_model_and_type() -> None:
    to_f16 = ("convert", "demo-target", "--type", "f16")

    document = localspec(*to_f16, "--compare", "2", "--json").document

    copy = Path(document["file"])
    try:
        assert document["type"] == "F16"
        assert document["source"]["type"] == "Q8_0"
        assert document["comparison"]["same"] > 0.9
        assert copy.stat().st_size == document["bytes"]
        shown = localspec("show", "demo-target:F16", "--json").document
        assert shown["models"][0]["file"] == copy.name
        again = localspec(*to_f16)
        assert again.code == 2
        assert "exists already" in again.err
    finally:
        copy.unlink()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> TypeSpeed:
    speed = TypeSpeed("Q8_0", {1: 9.2274688, 2: 13.0, 4: 18.0, 8: 46.0, 256: 236.0})
    monkeypatch.setattr(type_speeds, "read_types", lambda: {"Q8_0": speed})
    monkeypatch.setattr(type_speeds, "time_types", lambda *_: iter([speed]))
    return speed


def test_auto_says_so_if_no_type_is_faster(timed: TypeSpeed) -> None:
    with pytest.raises(UsageError, match="faster on this CPU than Q8_0"):
        convert_command.command.main([DEMO], standalone_mode=False)


def test_auto_is_not_without_a_comparison() -> None:
    with pytest.raises(UsageError, match="by the comparison"):
        convert_command.command.main([DEMO, "--compare", "0"], standalone_mode=False)


def test_the_table_of_types(
    timed: TypeSpeed, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor.command.main(["--cpu"], standalone_mode=False)
    table = capsys.readouterr().out.splitlines()
    doctor.command.main(["--cpu", "--json"], standalone_mode=False)
    document = json.loads(capsys.readouterr().out)

    assert table[1].split() == ["Q8_0", "10", "100", "1.41", "1.95", "4.99"]
    assert document["types"][0]["name"] == "Q8_0"


def test_a_type_that_was_timed_beside_other_programs_has_no_figures(
    timed: TypeSpeed,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    disturbed = TypeSpeed("Q4_0", timed.pass_ms, is_disturbed=True)
    monkeypatch.setattr(type_speeds, "time_types", lambda *_: iter([timed, disturbed]))

    doctor.command.main(["--cpu"], standalone_mode=False)

    table = capsys.readouterr().out.splitlines()
    assert table[1].split()[:2] == ["Q8_0", "10"]
    assert table[2].split() == ["Q4_0", "-", "-", "-", "-", "-"]
    assert "measure again" in table[-1]


def test_auto_does_not_follow_times_that_other_programs_disturbed(
    timed: TypeSpeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = dict.fromkeys(timed.pass_ms, 0.1)
    disturbed = TypeSpeed("F16", quick, is_disturbed=True)
    monkeypatch.setattr(type_speeds, "time_types", lambda *_: iter([disturbed]))
    with pytest.raises(UsageError, match="faster on this CPU than Q8_0"):
        convert_command.command.main([DEMO], standalone_mode=False)


def test_an_empty_file_name_is_refused_when_it_is_used() -> None:
    (row,) = convert.COMMANDS

    assert options_that_take_an_empty_text(row) == {"out"}


def test_a_copy_is_named_by_its_path_where_its_name_means_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", str(tmp_path))
    twins = []
    for folder in ("x", "y"):
        path = tmp_path / folder / "same-Q8_0.gguf"
        path.parent.mkdir()
        twins.append(tinygguf.llama(0).write(path))

    assert convert_command._find_reference("same:Q8_0", twins[0]) == str(twins[0])
    twins[1].unlink()
    assert convert_command._find_reference("same:Q8_0", twins[0]) == "same:Q8_0"
