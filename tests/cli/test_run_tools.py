"""`localspec run -p` with tools: what is allowed runs, and nothing else."""

import json
import sys
from pathlib import Path

import pytest

from localspec.cli.run_tools import ToolArguments, find_allowed, open_toolbox
from localspec.errors import NotFoundError
from localspec.protocol.events import decode
from localspec.tools.folder_tools import FolderTools
from localspec.tools.toolbox import Toolbox
from tests.support.run_command import Done, localspec
from tests.support.zoo import RESULT_TEXT, Zoo

ASKED = ("-p", "Which tea?", "--temperature", "0")
TEA = "Green is best."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "notes"
    made.mkdir()
    (made / "tea").write_text(TEA, encoding="utf-8")
    return made


def run(zoo: Zoo, *arguments: str | Path, model: str = "reader") -> Done:
    return localspec("run", zoo[model], *ASKED, "--spec", "lookup", *arguments)


def test_a_call_that_is_allowed_runs_and_its_result_is_answered(
    zoo: Zoo, folder: Path
) -> None:
    done = run(zoo, "--folder", folder, "--allow", "folder.read")
    assert done.code == 0, done.err
    assert done.text == f"I look.\n{RESULT_TEXT}\n"
    assert "folder.read  path: tea" in done.err
    assert TEA in done.err


@pytest.mark.parametrize("name", ["folder", "folder.*"])
def test_all_tools_of_a_folder_are_allowed_by_its_name(
    name: str, zoo: Zoo, folder: Path
) -> None:
    document = run(zoo, "--folder", folder, "--allow", name, "--json").document
    (call,) = document["calls"]
    assert call["verdict"] == "named"


def test_a_call_that_is_not_allowed_is_refused_and_the_model_is_told(
    zoo: Zoo, folder: Path
) -> None:
    done = run(zoo, "--folder", folder, "--allow", "folder.list", "--json")
    assert done.code == 0
    (call,) = done.document["calls"]
    assert call["verdict"] == "no"
    assert TEA not in call["result"]
    assert "nobody can be asked" in call["result"]
    assert "--allow folder.read" in done.err


def test_the_document_has_the_calls_and_all_tokens(zoo: Zoo, folder: Path) -> None:
    document = run(zoo, "--folder", folder, "--allow", "folder", "--json").document
    assert document["calls"] == [
        {
            "name": "folder.read",
            "arguments": {"path": "tea"},
            "result": TEA,
            "is_error": False,
            "verdict": "named",
        }
    ]
    written = "".join(token["text"] for token in document["tokens"])
    assert written == document["text"]
    assert written.startswith("I look.<tool_call>")
    assert written.endswith(RESULT_TEXT)


def test_events_have_a_line_for_each_call(
    zoo: Zoo, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "events.jsonl"
    run(zoo, "--folder", folder, "--allow", "folder", "--events", str(file))
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    kinds = [line["ev"] for line in lines]
    assert kinds.count("finished") == 2
    (call,) = [line for line in lines if line["ev"] == "call"]
    assert (call["tool"], call["result"]) == ("folder.read", TEA)
    assert kinds.index("finished") < kinds.index("call") < len(kinds) - 1
    assert decode(json.dumps(call)) is None, "other readers skip it"
    shown = localspec("replay", file)
    assert "does not know" not in shown.err


def test_no_tools_are_offered_unless_they_are_named(zoo: Zoo) -> None:
    document = run(zoo, "--json").document
    assert document["calls"] == []
    assert "<tool_call>" in document["text"]


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["--folder", "no-such-folder"], 3, "There is no folder no-such-folder"),
        (["--tools", "nobody"], 3, "There is no server 'nobody'"),
        (["--folder", ".", "--allow", "folder.raed"], 3, "no tool 'folder.raed'"),
        (["--folder", ".", "--raw"], 2, "Tools cannot be used with --raw"),
        (
            ["--folder", ".", "--json-schema", "{}"],
            2,
            "Tools cannot be used with --json-schema",
        ),
        (["--folder", ""], 2, "it is empty"),
    ],
)
def test_what_cannot_be_offered_is_refused_before_a_model_is_loaded(
    arguments: list[str], code: int, problem: str, zoo: Zoo
) -> None:
    done = run(zoo, *arguments)
    assert (done.code, done.out) == (code, b"")
    assert problem in done.err


def test_a_model_without_a_chat_template_calls_no_tools(zoo: Zoo, folder: Path) -> None:
    done = run(zoo, "--folder", folder, model="parrot")
    assert done.code == 2
    assert "Tools need a chat template" in done.err


def test_a_toolbox_has_what_is_named(folder: Path) -> None:
    toolbox = open_toolbox(ToolArguments(folder=str(folder)))
    names = [tool.full_name for tool in toolbox.all_definitions()]
    assert names == ["folder.list", "folder.read", "folder.search"]
    assert not ToolArguments(servers=("none",)).are_named
    assert ToolArguments(servers=("all",)).are_named


def test_a_name_that_allows_nothing_is_an_error(folder: Path) -> None:
    toolbox = Toolbox([FolderTools(folder)])
    assert find_allowed(toolbox, ["folder.read"]) == ["folder.read"]
    assert len(find_allowed(toolbox, ["folder"])) == 3
    for wrong in ("time", "folder.", "fold", "read"):
        with pytest.raises(NotFoundError, match="to allow"):
            find_allowed(toolbox, [wrong])


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_on_a_terminal_the_person_is_asked(zoo: Zoo, folder: Path) -> None:
    from tests.support.dialogue import Dialogue  # noqa: PLC0415  none on Windows

    arguments = (*ASKED, "--folder", folder, "--spec", "lookup")
    with Dialogue("run", zoo["reader"], *arguments) as terminal:
        question = terminal.until("say why:")
        written, _, question = question.partition("The model asks")
        assert "folder.read" in written, "shown while it is written"
        assert "path: tea" in question
        assert str(folder) in question
        terminal.type("o\r")
        terminal.until(RESULT_TEXT)
        assert terminal.end() == 0


def test_to_allow_a_tool_where_none_is_offered_is_an_error(zoo: Zoo) -> None:
    done = run(zoo, "--allow", "folder")
    assert done.code == 2
    assert "no tools are offered" in done.err
    assert "--folder DIR" in done.err
