"""Two model files of one name are told apart wherever files are named.

The commands that take a reference are tested by tests/models/test_references_of_files.py.
"""

from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec.chat import slash_commands
from localspec.chat.history import ChatHistory, ChatPair, name_models
from localspec.chat.session import ChatSession
from localspec.cli import serve
from localspec.doctor import checks
from localspec.errors import IncompatiblePairError
from localspec.launch import ResolvedPair, recent_pairs, resolve_pair
from localspec.models import catalog
from localspec.models.hub.cached_file import DownloadJob
from localspec.models.hub.download import DownloadState
from localspec.models.local_files import inventory
from localspec.models.reference import RepoFile
from localspec.tui import home_rows
from localspec.tui.home_rows import HomeSection, MachineSurvey
from tests.chat.saved_chats import about, chat
from tests.support import head_models, tinygguf

NAME = "same-Q8_0"


@pytest.fixture
def twins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two files in two folders; the models folder holds both."""
    folder = tmp_path / "models"
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", str(folder))
    paths = []
    for name in ("x", "y"):
        path = folder / name / f"{NAME}.gguf"
        path.parent.mkdir(parents=True)
        paths.append(tinygguf.llama(0).write(path))
    return paths[0], paths[1]


def sections(survey: MachineSurvey, *states: DownloadState) -> list[HomeSection]:
    catalogue, _ = catalog.load_valid()
    return home_rows.build_sections(
        catalogue,
        survey,
        search_text="",
        chats=HomeSection("Recent chats", ()),
        hub_results=(),
        download_states=states,
    )


def names(found: list[HomeSection], heading: str) -> list[str]:
    return [row.name for each in found if each.heading == heading for row in each.rows]


def test_home_lists_both_files(twins: tuple[Path, Path]) -> None:
    found = sections(MachineSurvey(local_models=inventory.list_models()))
    assert names(found, "Other models on this computer") == [f"x/{NAME}", f"y/{NAME}"]


def test_home_lists_a_recent_file_beside_its_twin(twins: tuple[Path, Path]) -> None:
    recent_pairs.add(ResolvedPair(twins[0], None))
    found = sections(MachineSurvey(local_models=inventory.list_models()))
    assert names(found, "Recent") == [f"x/{NAME}"]
    assert names(found, "Other models on this computer") == [f"y/{NAME}"]


def test_home_lists_two_recent_files(twins: tuple[Path, Path]) -> None:
    for path in twins:
        recent_pairs.add(ResolvedPair(path, None))
    found = sections(MachineSurvey())
    assert names(found, "Recent") == [f"y/{NAME}", f"x/{NAME}"]


def test_downloads_of_two_repositories_are_told_apart() -> None:
    states = [
        DownloadState(DownloadJob(repo, "a" * 40, RepoFile(f"{NAME}.gguf", 1), None))
        for repo in ("bartowski/Twin-GGUF", "unsloth/Twin-GGUF")
    ]
    found = sections(MachineSurvey(), *states)
    assert names(found, "Downloads") == [f"bartowski/{NAME}", f"unsloth/{NAME}"]


def test_a_chat_that_goes_on_with_the_twin_names_both(
    twins: tuple[Path, Path],
) -> None:
    session = ChatSession(resolve_pair(str(twins[0]), "none"))
    before = session.pair_name
    result = slash_commands._model(session, f'"{twins[1]}" none')
    assert result.message == f"From now on y/{NAME} answers."
    assert session.pair_name != before


def test_the_picker_marks_the_file_that_answers(twins: tuple[Path, Path]) -> None:
    choices = slash_commands.MODEL_CHOICES
    listed = [row.word for row in choices.load()]
    for path in twins:
        assert choices.find_current(resolve_pair(str(path), "none")) == str(path)
        assert str(path) in listed


def test_a_pair_of_two_twins_names_both(twins: tuple[Path, Path]) -> None:
    assert ChatSession(ResolvedPair(*twins)).pair_name == (
        f"x/{NAME} (guesses: y/{NAME})"
    )


def test_twins_that_cannot_be_paired_are_both_named(
    tmp_path: Path, twins: tuple[Path, Path]
) -> None:
    other = tmp_path / "z" / f"{NAME}.gguf"
    other.parent.mkdir()
    head_models.quantised(head_models.eagle3()).write(other)
    with pytest.raises(IncompatiblePairError) as refused:
        resolve_pair(str(twins[0]), str(other))
    assert f"z/{NAME}.gguf" in refused.value.message
    assert f"x/{NAME}.gguf" in refused.value.message


def test_the_doctor_names_both_damaged_files(twins: tuple[Path, Path]) -> None:
    for path in twins:
        path.write_bytes(b"GGUF and no more")
    texts = [finding.what for finding in checks.check_models()]
    for folder in ("x", "y"):
        named = [text for text in texts if text.startswith(f"{folder}/{NAME}.gguf: ")]
        assert len(named) == 1


def test_clients_of_the_server_get_both(twins: tuple[Path, Path]) -> None:
    served = dict(serve._name_installed())
    assert {served[str(path)] for path in twins} == {f"x/{NAME}", f"y/{NAME}"}


def saved(history: ChatHistory, pair: ChatPair) -> int:
    conversation = chat(("a question", "an answer"))
    metadata = replace(about(conversation), pair=pair)
    return history.save_chat(None, metadata, conversation.all_turns).chat_id


PAIRS = {
    "two folders": [f"/models/{folder}/{NAME}.gguf" for folder in ("x", "y")],
    "two publishers": [f"{owner}/Twin-GGUF:Q8_0" for owner in ("x", "y")],
}


@pytest.mark.parametrize("references", PAIRS.values(), ids=PAIRS)
def test_chats_of_two_files_are_told_apart(references: list[str]) -> None:
    with closing(ChatHistory.open()) as history:
        for reference in references:
            saved(history, ChatPair(reference, "none", NAME))
        shown = set(name_models(history.list_chats()).values())
    assert shown == {f"x/{NAME}", f"y/{NAME}"}
