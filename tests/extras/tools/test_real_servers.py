"""The reference servers of the Model Context Protocol, unchanged.

They are looked for in the folder that LOCALSPEC_TEST_SERVERS names:

    python -m venv FOLDER
    FOLDER/bin/pip install mcp-server-time mcp-server-git mcp-server-fetch
    npm install --prefix FOLDER @modelcontextprotocol/server-everything \\
        @modelcontextprotocol/server-filesystem @modelcontextprotocol/server-memory
"""

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from localspec.chat.session import ChatSession
from localspec.extras.tools import opening
from localspec.extras.tools.connection import ServerConnection
from localspec.models import pictures
from localspec.tools.server_settings import ServerSettings
from localspec.tools.tool_types import ToolDefinition, ToolResult
from localspec.tools.toolbox import Toolbox
from tests.support.fake_tools import Person, write_call
from tests.support.scenes import PAIR
from tests.support.scripted_engine import ScriptedEngine, answer, pieces, ready

FOLDER = Path(os.environ.get("LOCALSPEC_TEST_SERVERS", "/none"))
PYTHON_SERVERS = ("time", "git", "fetch")
NODE_SERVERS = ("everything", "filesystem", "memory")
N_TOOLS = {
    "everything": 10,
    "filesystem": 10,
    "memory": 9,
    "time": 2,
    "git": 10,
    "fetch": 1,
}
"""At least as many tools as each has."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not FOLDER.is_dir(), reason="LOCALSPEC_TEST_SERVERS names no folder"
    ),
]
Connect = Callable[..., ServerConnection]


def configure(name: str, *arguments: str, **settings: Any) -> ServerSettings:
    if name in PYTHON_SERVERS:
        program = FOLDER / "bin" / f"mcp-server-{name}"
    else:
        program = FOLDER / "node_modules/.bin" / f"mcp-server-{name}"
    return ServerSettings(name, command=str(program), args=arguments, **settings)


@pytest.fixture
def connect() -> Iterator[Connect]:
    opened: list[ServerConnection] = []

    def start(name: str, *arguments: str, **settings: Any) -> ServerConnection:
        connection = opening.connect(configure(name, *arguments, **settings))
        opened.append(connection)
        return connection

    yield start
    for each in opened:
        each.close()


def call(
    connection: ServerConnection, tool: str, arguments: Mapping[str, Any]
) -> ToolResult:
    return connection.call(tool, arguments, threading.Event())


def test_everything_answers_in_every_way(connect: Connect) -> None:
    server = connect("everything")

    said = call(server, "echo", {"message": "hello"})
    total = call(server, "get-sum", {"a": 2, "b": 3})
    wrong = call(server, "get-sum", {"a": "two"})
    structured = call(server, "get-structured-content", {"location": "Chicago"})
    links = call(server, "get-resource-links", {"count": 2})
    missing = call(server, "no-such-tool", {})

    assert "hello" in said.text
    assert not said.is_error
    assert "5" in total.text
    assert wrong.is_error
    assert "temperature" in structured.text
    assert "resource" in links.text
    assert missing.is_error


def test_a_picture_of_everything_is_a_picture(connect: Connect) -> None:
    result = call(connect("everything"), "get-tiny-image", {})

    (picture,) = result.pictures
    assert picture.media_type == "image/png"
    assert pictures.check_picture(picture.data, "tiny.png").width > 0
    assert "image/png" in result.text


def test_a_long_operation_of_everything_is_stopped(connect: Connect) -> None:
    server = connect("everything")
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()

    stopped = server.call(
        "trigger-long-running-operation", {"duration": 600, "steps": 10}, stop
    )
    after = call(server, "echo", {"message": "still here"})

    assert stopped.text == "The call was stopped by the user."
    assert "still here" in after.text


def test_a_long_operation_of_everything_ends_with_its_timeout(connect: Connect) -> None:
    server = connect("everything", timeout=10.0)

    result = call(
        server, "trigger-long-running-operation", {"duration": 600, "steps": 10}
    )

    assert result.is_error
    assert result.text == "everything did not answer in 10 seconds."


def test_everything_gets_no_secrets(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")

    result = call(connect("everything"), "get-env", {})

    assert "PATH" in result.text
    assert "hf_secret" not in result.text


def test_fifty_calls_at_once_are_answered_each_with_its_own(connect: Connect) -> None:
    server = connect("everything")
    results: dict[int, ToolResult] = {}

    def ask(number: int) -> None:
        results[number] = call(server, "echo", {"message": f"number {number}."})

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(results) == 50
    for number, result in results.items():
        assert f"number {number}." in result.text


def test_files_of_a_folder_are_read_and_others_refused(
    connect: Connect, tmp_path: Path
) -> None:
    folder = tmp_path / "allowed"
    folder.mkdir()
    (folder / "note.txt").write_text("a note\x1b[31m")
    (tmp_path / "secret.txt").write_text("secret")
    server = connect("filesystem", str(folder))

    listed = call(server, "list_directory", {"path": str(folder)})
    read = call(server, "read_text_file", {"path": str(folder / "note.txt")})
    refused = call(server, "read_text_file", {"path": str(tmp_path / "secret.txt")})

    assert "note.txt" in listed.text
    assert "a note" in read.text
    assert refused.is_error
    assert "secret" not in refused.text.replace("secret.txt", "")


def test_a_memory_is_kept_in_its_file(connect: Connect, tmp_path: Path) -> None:
    path = tmp_path / "memory.jsonl"
    server = connect("memory", env={"MEMORY_FILE_PATH": str(path)})
    entity = {"name": "Ada", "entityType": "person", "observations": ["likes maths"]}

    made = call(server, "create_entities", {"entities": [entity]})
    graph = call(server, "read_graph", {})

    assert not made.is_error
    assert "likes maths" in graph.text
    assert "likes maths" in path.read_text()


def test_the_time_is_told(connect: Connect) -> None:
    server = connect("time")

    now = call(server, "get_current_time", {"timezone": "Europe/Rome"})
    wrong = call(server, "get_current_time", {"timezone": "Nowhere/Land"})

    assert json.loads(now.text)["timezone"] == "Europe/Rome"
    assert wrong.is_error


def test_a_repository_is_read(connect: Connect, tmp_path: Path) -> None:
    for arguments in (
        ("init", "-q"),
        ("config", "user.email", "a@example.org"),
        ("config", "user.name", "A"),
        ("commit", "-q", "--allow-empty", "-m", "the first commit"),
    ):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    server = connect("git", "--repository", str(tmp_path))

    status = call(server, "git_status", {"repo_path": str(tmp_path)})
    log = call(server, "git_log", {"repo_path": str(tmp_path)})
    other = call(server, "git_log", {"repo_path": "/"})

    assert "nothing to commit" in status.text
    assert "the first commit" in log.text
    assert other.is_error


PAGE = b"<html><head><title>A page</title></head><body><main><h1>A page</h1>"
PAGE += b"<p>It says <b>hello</b> to whoever reads it.</p></main></body></html>"


class PageHandler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  inherited
        pass

    def do_GET(self) -> None:
        body = PAGE
        kind = "text/html"
        if self.path == "/robots.txt":
            body = b"User-agent: *\nDisallow: /private\n"
            kind = "text/plain"
        self.send_response(404 if self.path == "/missing" else 200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serve_page() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), PageHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_page_of_this_computer_is_fetched(connect: Connect) -> None:
    with serve_page() as url:
        server = connect("fetch", "--allow-private-ips")
        page = call(server, "fetch", {"url": f"{url}/page"})
        private = call(server, "fetch", {"url": f"{url}/private"})
        missing = call(server, "fetch", {"url": f"{url}/missing"})

    assert "hello" in page.text
    assert private.is_error
    assert "robots.txt" in private.text
    assert missing.is_error
    assert "404" in missing.text


def test_nobody_at_an_address_is_an_error_of_fetch(connect: Connect) -> None:
    with serve_page() as url:
        pass
    server = connect("fetch", "--allow-private-ips", "--ignore-robots-txt")

    result = call(server, "fetch", {"url": url})

    assert result.is_error


def list_all(folder: Path) -> list[ServerSettings]:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    arguments = {"filesystem": (str(folder),), "git": ("--repository", str(folder))}
    names = (*NODE_SERVERS, *PYTHON_SERVERS)
    return [configure(name, *arguments.get(name, ())) for name in names]


@pytest.mark.timeout(300)
def test_all_servers_together_offer_fifty_tools(tmp_path: Path) -> None:
    definitions: list[ToolDefinition] = []
    for server, opened in opening.connect_all(list_all(tmp_path)):
        assert isinstance(opened, ServerConnection), opened
        assert opened.left_out == ()
        assert len(opened.definitions()) >= N_TOOLS[server.name]
        definitions += opened.definitions()

    assert len(definitions) >= 50
    assert len({tool.full_name for tool in definitions}) == len(definitions)


@pytest.mark.timeout(300)
def test_a_chat_calls_tools_of_five_servers(connect: Connect, tmp_path: Path) -> None:
    """Fifty tools are offered, and the results of five calls are in the last prompt."""
    servers = []
    for settings in list_all(tmp_path):
        servers.append(connect(settings.name, *settings.args))
    toolbox = Toolbox(servers)
    names = {tool.full_name: toolbox.model_name(tool) for tool in toolbox.definitions()}
    texts = [
        write_call(names["everything.echo"], message="hello"),
        write_call(names["filesystem.list_directory"], path=str(tmp_path)),
        write_call(names["memory.read_graph"]),
        write_call(names["time.get_current_time"], timezone="UTC"),
        write_call(names["git.git_status"], repo_path=str(tmp_path)),
        "Done.",
    ]
    played = [lambda text=text: answer(pieces(text)) for text in texts]
    engine = ScriptedEngine(*played, ready=ready())
    session = ChatSession(PAIR, 1)
    session.toolbox = toolbox
    session.attach_engine(engine)

    session.ask("Hi?")
    for _ in session.stream_answer(engine, tools=Person()):
        pass

    assert len(json.loads(engine.asked[0].tools)) >= 50
    results = [each for each in engine.asked[-1].messages if each.role == "tool"]
    assert len(results) == 5
    assert "hello" in results[0].content
    assert ".git" in results[1].content
    assert "UTC" in results[3].content
    for turn in session.conversation.turns:
        assert not any(result.is_error for result in turn.results)
