"""A model has one name on every screen, in every list and in every export.

Names that two files share are told apart by tests/test_files_of_one_name.py.
"""

import html
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path, PurePath

import pytest
from click.testing import CliRunner
from msgspec import Struct
from msgspec.structs import replace

from localspec.chat import export, slash_commands
from localspec.chat.history import ChatHistory, ChatPair, SavedChat, name_models
from localspec.chat.session import ChatSession
from localspec.chat.settings import ChatSettings, LoadedModel
from localspec.cli import local_models, run, show
from localspec.launch import ResolvedPair, resolve_pair
from localspec.models import catalog, model_lookup, model_names
from localspec.models.hub.cached_file import DownloadJob
from localspec.models.hub.download import DownloadState
from localspec.models.local_files import inventory
from localspec.models.reference import RepoFile
from localspec.protocol.wire import LoadProgress
from localspec.report.load_progress import describe_load
from localspec.serve.served_model import ServedModel
from localspec.tui import downloads, home_rows
from localspec.tui.home_rows import HomeSection, MachineSurvey
from localspec.tui.wizard import pair_details, shortlist
from localspec.tui.wizard.pair_details import DetailsPage
from localspec.tui.wizard.shortlist import Candidate
from tests.chat.saved_chats import about, chat
from tests.models import packagefile
from tests.support import head_models, tinygguf
from tests.support.scripted_engine import ready
from tests.support.zoo import Zoo

MAIN = "Qwen3-8B-Q4_K_M.gguf"
OTHER_TYPE = "Qwen3-8B-Q8_0.gguf"
FOREIGN = "my-own-Q8_0.gguf"


class NamedFile(Struct, frozen=True):
    path: Path
    name: str

    @property
    def pair(self) -> ResolvedPair:
        return resolve_pair(str(self.path), "none")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models folder."""
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", str(folder))
    return folder


def packaged(zoo: Zoo, tmp_path: Path, patch: pytest.MonkeyPatch) -> list[NamedFile]:
    path = packagefile.install(tmp_path / "packages", zoo["chatty"], patch)
    return [NamedFile(path, "SmolLM2 135M")]


KINDS = {
    "a model of the catalogue": {MAIN: "Qwen3 8B"},
    "a foreign file": {FOREIGN: "my-own-Q8_0"},
    "two quantisations": {MAIN: "Qwen3 8B", OTHER_TYPE: "Qwen3 8B Q8_0"},
}


@pytest.fixture(params=["a packaged model", *KINDS])
def files(
    request: pytest.FixtureRequest,
    folder: Path,
    tmp_path: Path,
    zoo: Zoo,
    monkeypatch: pytest.MonkeyPatch,
) -> list[NamedFile]:
    if request.param not in KINDS:
        return packaged(zoo, tmp_path, monkeypatch)
    named = []
    for file, name in KINDS[request.param].items():
        path = tinygguf.llama(0).write(folder / file)
        named.append(NamedFile(path, name))
    return named


# --- the doors: what each shows for a file
# ----------------------------------------------------------------------------------


def answered(file: NamedFile, draft: str = "none") -> ChatSession:
    session = ChatSession(resolve_pair(str(file.path), draft))
    session.conversation.ask("a question")
    session.conversation.set_model(session.recorded_name)
    return session


def saved(file: NamedFile) -> tuple[SavedChat, ChatPair]:
    """A chat as the history has it."""
    session = answered(file)
    chat = session.snapshot()
    return chat, chat.list_entry.pair


def chat_title(file: NamedFile) -> str:
    return answered(file).pair_name


def speaker(file: NamedFile) -> str:
    session = answered(file)
    return session.name_answers()[session.conversation.turns[-1].model]


def list_of_chats(file: NamedFile) -> str:
    _, pair = saved(file)
    conversation = chat(("a question", "an answer"))
    metadata = replace(about(conversation), pair=pair)
    with closing(ChatHistory.open()) as history:
        history.save_chat(None, metadata, conversation.all_turns)
        (entry,) = history.list_chats(1)
        return name_models([entry])[entry.id]


def recap_of_a_chat(file: NamedFile) -> str:
    chat, _ = saved(file)
    turn = replace(chat.conversation.turns[-1], answer="an answer")
    chat.conversation.update_turn(turn)
    lines = run._format_recap(chat, plain=True)
    (line,) = [line for line in lines if line.endswith(": an answer")]
    return line.removesuffix(": an answer")


def markdown(file: NamedFile) -> str:
    chat, _ = saved(file)
    title, *_, speaker = [
        line.removeprefix("# A chat with ").removeprefix("## ")
        for line in export.render_markdown(chat).splitlines()
        if line.startswith("#")
    ]
    assert title == speaker
    return title


def page(file: NamedFile) -> str:
    chat, _ = saved(file)
    text = html.unescape(export.render_html(chat))
    name = text.partition("<footer>")[2].partition(" · ")[0]
    assert f"<h2>{name}</h2>" in text
    return name


def plain_text(file: NamedFile) -> str:
    chat, _ = saved(file)
    return export.render_text(chat).splitlines()[-1].rstrip(": ")


def home(file: NamedFile) -> str:
    catalogue, _ = catalog.load_valid()
    sections = home_rows.build_sections(
        catalogue,
        MachineSurvey(local_models=inventory.list_models()),
        search_text="",
        chats=HomeSection("Recent chats", ()),
        hub_results=(),
        download_states=(),
    )
    for section in sections:
        for row in section.rows:
            if row.pair is not None and row.pair.target == file.path:
                return row.name
    return ""


def picker(file: NamedFile) -> str:
    word = slash_commands.MODEL_CHOICES.find_current(file.pair)
    rows = {row.word: row.name for row in slash_commands.MODEL_CHOICES.load()}
    return rows[word]


def list_command(file: NamedFile) -> str:
    models = inventory.list_models()
    (local,) = [each for each in models if each.path == file.path]
    word = model_lookup.shortest_reference(local, models)
    output = CliRunner().invoke(local_models.list_command, []).output
    _, _, rows = output.partition("MODEL ")
    line = next(each for each in rows.splitlines() if each.startswith(f"{word} "))
    return line.removeprefix(word).strip().partition("  ")[0]


def show_command(file: NamedFile) -> str:
    output = CliRunner().invoke(show.command, [str(file.path)]).output
    return output.splitlines()[0].removeprefix("name").strip()


def server(file: NamedFile) -> str:
    served = ServedModel("id", file.pair, ChatSettings())
    return served.name_loaded(replace(ready(), draft=None))


def loading(file: NamedFile) -> str:
    shown = describe_load(LoadProgress("reading", file.path.name, 0.5), 0.0)
    return shown.removeprefix("reading ").partition("   ")[0]


DOORS: dict[str, Callable[[NamedFile], str]] = {
    door.__name__: door
    for door in (
        chat_title,
        speaker,
        list_of_chats,
        recap_of_a_chat,
        markdown,
        page,
        plain_text,
        home,
        picker,
        list_command,
        show_command,
        server,
        loading,
    )
}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_a_model_has_one_name_at_every_door(
    door: Callable[[NamedFile], str], files: list[NamedFile]
) -> None:
    assert [door(file) for file in files] == [file.name for file in files]


# --- before a download
# ----------------------------------------------------------------------------------


def catalog_doors(id_: str) -> Iterator[str]:
    pair = catalog.load().pairs[id_]
    candidate = Candidate(pair, 0)
    row = shortlist.candidate_line(candidate, is_downloaded=False, width=200)
    yield row.plain.partition("  ")[0]
    card = pair_details.render_page(DetailsPage(candidate, "chat", ()), 200, 40)
    yield card[0].plain.partition(" (")[0]
    yield home_rows._downloadable_row(candidate, MachineSurvey()).name
    job = DownloadJob(
        pair.target.repo or "", "a" * 40, RepoFile(pair.target.file, 1), None
    )
    yield downloads.name_downloads([DownloadState(job)])[job]


def test_a_model_has_this_name_before_it_is_downloaded() -> None:
    assert set(catalog_doors("qwen3-8b+qwen3-0.6b")) == {"Qwen3 8B"}


def test_the_card_has_the_id_and_the_files() -> None:
    candidate = Candidate(catalog.load().pairs["qwen3-8b+qwen3-0.6b"], 0)
    lines = pair_details.render_page(DetailsPage(candidate, "chat", ()), 200, 40)
    text = "\n".join(line.plain for line in lines)
    assert f"qwen3-8b+qwen3-0.6b · {MAIN} + Qwen3-0.6B-Q8_0.gguf" in text


def test_every_file_of_the_catalogue_has_the_name_of_its_model() -> None:
    for listed in catalog.load().models.values():
        for model in (listed, *listed.files):
            if model.repo is None or not model.file:
                continue
            path = PurePath(model.repo, model.file)
            assert model_names.name_files([path])[path] == model_names.name_model(model)


def test_no_two_models_have_one_name() -> None:
    names: dict[str, str] = {}
    for listed in catalog.load().models.values():
        for model in (listed, *listed.files):
            file = f"{model.repo} {model.quantization} {model.file}".casefold()
            twin = names.setdefault(model_names.name_model(model), file)
            is_same = twin == file or "Qwen3-8B-Q8_0".casefold() in twin + file
            assert is_same, model.id


# --- who guesses
# ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pair", "text"),
    [
        ("demo", "Demo (guesses: Demo draft)"),
        ("demo+eagle3", "Demo (guesses: EAGLE-3 head)"),
    ],
)
def test_the_title_says_who_guesses(pair: str, text: str) -> None:
    session = ChatSession(resolve_pair(pair, "auto"))
    assert session.pair_name == text
    assert session.model_name == "Demo"


def test_a_draft_that_was_left_out_is_not_named(tmp_path: Path) -> None:
    target = head_models.quantised(head_models.deep()).write(tmp_path / "deep.gguf")
    session = ChatSession(ResolvedPair(target, target))
    assert session.pair_name == "deep (guesses: deep)"
    session.loaded = LoadedModel.from_ready(replace(ready(), draft=None))
    assert session.pair_name == "deep"


# --- what a history keeps
# ----------------------------------------------------------------------------------


def test_a_history_keeps_the_names_of_files(folder: Path) -> None:
    file = NamedFile(tinygguf.llama(0).write(folder / MAIN), "Qwen3 8B")
    session = answered(file)
    assert session.conversation.turns[-1].model == "Qwen3-8B-Q4_K_M"
    assert session.recorder.pair.name == "Qwen3-8B-Q4_K_M"
    document = export.list_entry_json(session.snapshot().list_entry)
    assert document["model"] == "Qwen3-8B-Q4_K_M"


def test_a_name_that_is_no_file_of_the_catalogue_stays_as_it_is() -> None:
    names = ["gpt-4o", "mistralai/mistral-7b", "llama3.2:1b", "Qwen3-8B", ""]
    assert model_names.name_recorded(names) == dict(zip(names, names, strict=True))


def test_answers_of_two_quantisations_are_told_apart() -> None:
    recorded = ["Qwen3-8B-Q4_K_M", "Qwen3-8B-Q8_0", "Qwen3-8B-Q6_K"]
    shown = model_names.name_recorded(recorded)
    assert list(shown.values()) == ["Qwen3 8B", "Qwen3 8B Q8_0", "Qwen3 8B Q6_K"]


def test_a_copy_of_the_packaged_model_has_its_name_unless_both_answered() -> None:
    own = "SmolLM2-135M-Instruct.Q4_1"
    copy = "SmolLM2-135M-Instruct-Q8_0"
    assert model_names.name_recorded([copy]) == {copy: "SmolLM2 135M"}
    assert model_names.name_recorded([own, copy]) == {
        own: "SmolLM2 135M Q4_1",
        copy: "SmolLM2 135M Q8_0",
    }


# --- the picker
# ----------------------------------------------------------------------------------


def test_the_picker_lists_the_demo_once() -> None:
    rows = slash_commands.MODEL_CHOICES.load()
    assert [row.word for row in rows if row.name == "Demo"] == ["demo"]
    for pair in ("demo", "demo+eagle3", "demo+dspark"):
        resolved = replace(resolve_pair(pair, "auto"), requested_refs=(pair, "auto"))
        assert slash_commands.MODEL_CHOICES.find_current(resolved) == "demo"
