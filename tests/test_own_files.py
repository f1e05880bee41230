"""Every file that localspec writes and reads again, damaged in every way.

What cannot be used is made again, or an error or the doctor names it. Nothing else is
raised. A new file of ours must be a row of `DATA_FILES`.
"""

import ast
import importlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from localspec import config, data_files, paths
from localspec.chat.history import ChatHistory
from localspec.config import toml_file
from localspec.doctor import checks, llama_build
from localspec.engine_process.engine_log import EngineLog
from localspec.errors import LocalspecError
from localspec.launch import recent_pairs
from localspec.machine import type_speeds
from localspec.machine.measurements import MeasurementStore, make_key
from localspec.models import catalog
from localspec.models.gguf import reader
from localspec.models.hub.cached_file import DownloadJob
from localspec.models.local_files import inventory, local_model
from localspec.models.reference import RepoFile
from localspec.paths import DataFile
from localspec.protocol.wire import LoadCommand, MeasuredCosts
from localspec.tools.approval import (
    Approvals,
    CallDecision,
    CallRequest,
    SavedApproval,
)
from localspec.tools.tool_types import ToolDefinition
from localspec.tui import crash_log, saved_chats
from localspec.tui.downloads import DownloadManager
from localspec.tui.screens import log, welcome
from tests.chat.saved_chats import put
from tests.support import tinygguf
from tests.support.long_cases import often
from tests.support.own_files import FileUse

COSTS = MeasuredCosts(4.9, {"1": 1.0, "2": 1.4})
JOB = DownloadJob("org/m", "c" * 40, RepoFile("m.gguf", 9, "a" * 64))


def model_path() -> Path:
    """A model outside of the data folder."""
    path = paths.data_dir().parent / "m.gguf"
    if not path.exists():
        tinygguf.llama().write(path)
    return path


# --- how each file is written and read


def save_chat() -> None:
    with closing(ChatHistory.open()) as history:
        put(history, ("Where are elephants?", "In Africa"))


def has_saved_chat() -> bool:
    with closing(ChatHistory.open()) as history:
        titles = [entry.title for entry in history.list_chats()]
    return "Where are elephants?" in titles


def can_find_chat() -> bool:
    with closing(ChatHistory.open()) as history:
        return len(history.search("Africa")) > 0


def save_and_search() -> None:
    save_chat()
    assert can_find_chat()


def save_costs() -> None:
    store = MeasurementStore(DataFile.MEASUREMENTS.path)
    store.write_costs(make_key(LoadCommand(str(model_path()))), COSTS)


def has_costs() -> bool:
    store = MeasurementStore(DataFile.MEASUREMENTS.path)
    store.read_all()
    return store.read_costs(make_key(LoadCommand(str(model_path())))) == COSTS


def use_another_model() -> None:
    for model in ("demo", str(model_path())):
        recent_pairs.save_last(model, "none")


def pin() -> None:
    if not is_pinned():
        saved_chats.pin_or_unpin(7)


def is_pinned() -> bool:
    return 7 in data_files.read_list(DataFile.PINNED_CHATS, int)


def save_download() -> None:
    downloads = DownloadManager()
    downloads.queue.add_paused(JOB)
    downloads.save_unfinished()
    downloads.close()


def has_download() -> bool:
    downloads = DownloadManager()
    downloads.restore()
    return JOB in [state.job for state in downloads.states()]


def has_checksum() -> bool:
    stat = local_model.stat_gguf(model_path())
    assert stat is not None
    found = local_model.lookup_checksum(local_model.load_checksums(), stat)
    return found == "a" * 64


TIMES = type_speeds.TypeSpeed("Q8_0", {1: 2.0, 256: 90.0})


ALLOWED_TOOL = ToolDefinition("time", "convert", "Convert a time.", {})


def allow_tool() -> None:
    request = CallRequest("1", "time_convert", ALLOWED_TOOL, {}, "{}")
    Approvals().decide(request, lambda _: CallDecision("always"))


def is_tool_allowed() -> bool:
    saved = SavedApproval(ALLOWED_TOOL.full_name, ALLOWED_TOOL.fingerprint)
    return saved in Approvals().allowed_always()


def log_lines() -> None:
    EngineLog(1).append(["a line of the engine"])


def fill_log() -> None:
    """The log becomes so large that it is renamed at the next line."""
    EngineLog(1).append(["a line of the engine"] * 25_000)
    EngineLog(1).append(["the next line"])


def has_line(file: DataFile) -> bool:
    return any("a line of the engine" in line for line in log._read_tail(file.path))


def repair_chats() -> None:
    paths.chats_file().parent.mkdir(parents=True, exist_ok=True)
    paths.chats_file().write_bytes(b"no database" * 1000)
    save_chat()


def hold_chat() -> bool:
    with closing(ChatHistory.open()) as history, closing(history.acquire_lock(1)):
        return True


def read_header() -> bool:
    reader._read_cached.cache_clear()
    return reader.read(model_path()).architecture == "llama"


def find_header() -> Path:
    (file,) = DataFile.HEADERS.path.iterdir()
    return file


def convert() -> None:
    folder = inventory.converted_folder()
    with suppress(OSError):  # as of the test itself
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "m-Q4_0.gguf").write_bytes(model_path().read_bytes())


def has_converted() -> bool:
    return any(model.path.name == "m-Q4_0.gguf" for model in inventory.iter_files())


def set_theme() -> None:
    toml_file.set_value("screen.theme", "high-contrast")


def write_catalogue() -> None:
    paths.user_catalog_file().parent.mkdir(parents=True, exist_ok=True)
    paths.user_catalog_file().write_text("models: {}\n")


def read_catalogue() -> bool:
    """Raise the error that the program shows: the shipped catalogue is used then."""
    catalogue, error = catalog.load_valid()
    assert catalogue.models
    if error is not None:
        raise error
    return True


def read_config() -> bool:
    """Raise the errors that the program shows: the defaults are used then."""
    found = config.resolve()
    if found.errors:
        raise LocalspecError("; ".join(found.errors), "")
    return bool(found.get("screen.theme") == "high-contrast")


DATA_FILES: dict[DataFile, FileUse] = {
    DataFile.CHATS: FileUse(save_chat, has_saved_chat),
    DataFile.SEARCH_INDEX: FileUse(save_and_search, can_find_chat),
    DataFile.MEASUREMENTS: FileUse(save_costs, has_costs),
    DataFile.OPENED_PAIRS: FileUse(
        write=lambda: inventory.add_opened((model_path(), None)),
        read=lambda: (model_path(), None) in inventory.load_opened(),
    ),
    DataFile.LAST_RUN: FileUse(
        write=lambda: recent_pairs.save_last("demo", "none"),
        read=lambda: recent_pairs.load_last() == ("demo", "none"),
    ),
    DataFile.PINNED_CHATS: FileUse(pin, is_pinned),
    DataFile.DOWNLOADS: FileUse(save_download, has_download),
    DataFile.CHECKSUMS: FileUse(
        write=lambda: local_model.save_checksum(model_path(), "a" * 64),
        read=has_checksum,
    ),
    DataFile.TYPE_SPEEDS: FileUse(
        write=lambda: type_speeds._store(TIMES),
        read=lambda: type_speeds.read_types().get("Q8_0") == TIMES,
    ),
    DataFile.DISMISSED: FileUse(
        write=llama_build.dismiss,
        read=lambda: (
            llama_build.CPU_ONLY in data_files.read_list(DataFile.DISMISSED, str)
        ),
    ),
    DataFile.APPROVALS: FileUse(allow_tool, is_tool_allowed),
    DataFile.ENGINE_LOG: FileUse(log_lines, lambda: has_line(DataFile.ENGINE_LOG)),
    DataFile.OLDER_ENGINE_LOG: FileUse(
        fill_log, lambda: has_line(DataFile.OLDER_ENGINE_LOG)
    ),
    DataFile.CRASH_LOG: FileUse(
        write=lambda: crash_log.write_crash_log(ValueError("a line of the engine")),
        read=lambda: has_line(DataFile.CRASH_LOG),
    ),
    DataFile.WELCOMED: FileUse(
        write=welcome.mark_welcomed, read=lambda: not welcome.is_first_run()
    ),
    DataFile.USED_ANOTHER_MODEL: FileUse(
        write=use_another_model, read=recent_pairs.has_used_another_model
    ),
    DataFile.REPAIR_LOCK: FileUse(repair_chats, has_saved_chat),
    DataFile.CHAT_LOCKS: FileUse(
        hold_chat, hold_chat, find=lambda: DataFile.CHAT_LOCKS.path / "1.lock"
    ),
    DataFile.HEADERS: FileUse(read_header, read_header, find=find_header),
    DataFile.CONVERTED: FileUse(
        convert, has_converted, find=lambda: DataFile.CONVERTED.path / "m-Q4_0.gguf"
    ),
}
for extra in sorted(Path(__file__).parent.glob("extras/*/own_files.py")):
    module = importlib.import_module(f"tests.extras.{extra.parent.name}.own_files")
    DATA_FILES |= module.DATA_FILES
USER_FILES: dict[Callable[[], Path], FileUse] = {
    paths.config_file: FileUse(set_theme, read_config),
    paths.user_catalog_file: FileUse(write_catalogue, read_catalogue),
}
"""Files that people write, too: such a file is never replaced, and errors name it."""


# --- damages of contents


def flip_bits(body: bytes) -> Iterator[bytes]:
    for at in range(0, len(body), max(1, len(body) // 40)):
        yield body[:at] + bytes([body[at] ^ (1 << at % 8)]) + body[at + 1 :]


def cut(body: bytes) -> Iterator[bytes]:
    for n in (1, len(body) // 4, len(body) // 2, max(0, len(body) - 1)):
        yield body[:n]


def replace_all(body: bytes) -> Iterator[bytes]:
    yield b""
    yield bytes(len(body))
    yield b"\xff\xfe" * 50
    yield b"[" * 100_000
    for text in ("null", "3", '"x"', "[]", "{}", "[[]]", '{"a": {}}', "- a\n- b"):
        yield text.encode()


OTHER_VALUES: tuple[object, ...] = (
    None,
    True,
    -1,
    3.5,
    10**400,
    float("nan"),
    "x",
    "\ud800",
    [],
    {},
)


def change_types(body: bytes) -> Iterator[bytes]:
    """Put a value of another type in the place of each value of a JSON file."""
    try:
        whole = json.loads(body)
    except ValueError:
        return
    for changed in replace_each(whole):
        yield json.dumps(changed).encode()


def replace_each(value: Any) -> Iterator[Any]:
    yield from OTHER_VALUES
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    if isinstance(value, list):
        items = list(enumerate(value))
    for key, inner in items[:20]:
        for changed in replace_each(inner):
            copy = value.copy()
            copy[key] = changed
            yield copy


def grow(body: bytes) -> Iterator[bytes]:
    """100 MB that are still right as JSON, TOML or YAML."""
    yield body + b"\n" * (100_000_000 - len(body))


CONTENTS: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    "flipped bits": flip_bits,
    "cut": cut,
    "replaced": replace_all,
    "other types": change_types,
    "100 MB": grow,
}

QUICK = [damage for damage in CONTENTS if damage != "100 MB"]


# --- obstacles in the file's place


def make_folder(path: Path) -> None:
    path.mkdir()
    (path / "a file").write_text("x")


def link_to_itself(path: Path) -> None:
    """Not even a superuser can read it."""
    path.symlink_to(path.name)


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


OBSTACLES: dict[str, Callable[[Path], None]] = {
    "a folder": make_folder,
    "a loop of links": link_to_itself,
    "a pipe": make_pipe,
}


# --- tests


def try_to(act: Callable[[], object], names: tuple[Path, ...]) -> bool:
    """Whether it works. An error that names one of the paths is no fault either."""
    try:
        return bool(act())
    except LocalspecError as error:
        message = f"{error.message} {error.hint}"
        assert any(path.name in message for path in names), message
        return False


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for file in path.iterdir():
            remove(file)
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def files_in_memory(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(memory_path / "data"))
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(memory_path / "config.toml"))


@pytest.mark.parametrize("damage", often(CONTENTS.keys(), quick=QUICK))
@pytest.mark.parametrize("file", DATA_FILES)
def test_a_damaged_data_file_is_made_again_or_named(
    file: DataFile, damage: str
) -> None:
    use = DATA_FILES[file]
    use.write()
    assert use.read()
    path = use.find() if use.find is not None else file.path
    body = path.read_bytes()
    for number, damaged in enumerate(CONTENTS[damage](body)):
        path.write_bytes(damaged)

        try_to(use.read, (path,))
        try_to(use.write, (path,))

        assert try_to(use.read, (path,)), (number, damaged[:200])


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("file", DATA_FILES)
def test_an_obstacle_in_the_place_of_a_data_file_is_named(
    file: DataFile, obstacle: str
) -> None:
    use = DATA_FILES[file]
    use.write()
    remove(file.path)
    OBSTACLES[obstacle](file.path)

    try_to(use.read, (file.path,))
    try_to(use.write, (file.path,))
    try_to(use.read, (file.path,))

    is_replaced = file.path.is_file() or (file.is_folder and file.path.is_dir())
    named = [finding.what for finding in checks._check_data_files()]
    assert is_replaced or any(str(file.path) in what for what in named), named


@pytest.mark.parametrize("damage", often(CONTENTS.keys(), quick=QUICK))
@pytest.mark.parametrize("find", USER_FILES)
def test_a_damaged_file_of_the_user_is_kept_and_named(
    find: Callable[[], Path], damage: str
) -> None:
    use = USER_FILES[find]
    use.write()
    path = find()
    for damaged in CONTENTS[damage](path.read_bytes()):
        path.write_bytes(damaged)

        try_to(use.read, (path,))


@pytest.mark.parametrize("obstacle", ["a folder", "a loop of links"])
@pytest.mark.parametrize("find", USER_FILES)
def test_an_obstacle_in_the_place_of_a_file_of_the_user_is_named(
    find: Callable[[], Path], obstacle: str
) -> None:
    use = USER_FILES[find]
    use.write()
    path = find()
    remove(path)
    OBSTACLES[obstacle](path)

    with pytest.raises(LocalspecError) as error:
        use.read()

    assert str(path) in error.value.message


def test_every_file_of_the_data_folder_is_in_the_table() -> None:
    assert set(DATA_FILES) == set(DataFile)


READERS = ("read_json", "read_list", "read_table", "write_json")


def test_no_file_of_the_data_folder_is_named_elsewhere() -> None:
    """So a new file becomes a name in `DataFile`, and a row of the table."""
    names = {file.value for file in DataFile} | {Path(file).name for file in DataFile}
    common_words = {"open", "headers", "converted", "rpc", "welcomed"}
    for source in sorted(paths.PACKAGE.rglob("*.py")):
        if source.name in ("paths.py", "data_files.py"):
            continue
        text = source.read_text(encoding="utf-8")
        assert "paths.data_dir() /" not in text, source
        for node in ast.walk(ast.parse(text)):
            where = f"{source}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Constant):
                assert node.value not in names - common_words, where
            if isinstance(node, ast.Call) and any(name in text for name in READERS):
                called = ast.unparse(node.func).rpartition(".")[2]
                if called in READERS:
                    argument = ast.unparse(node.args[0])
                    assert "DataFile." in argument or argument in ("file", "name"), (
                        where
                    )
