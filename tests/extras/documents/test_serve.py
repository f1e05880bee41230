"""Documents in requests of the official clients, and of hostile ones."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from localspec.documents import reading
from localspec.serve import messages, prompts, request_documents, responses
from localspec.serve.api_error import ApiError
from tests.serve.conftest import Served, serving
from tests.support.document_files import make_docx, make_epub, make_pdf, word_paragraph
from tests.support.downloads import wait_for
from tests.support.zoo import Zoo

anthropic: Any = pytest.importorskip("anthropic")
pytest.importorskip("pypdf")

PDF = make_pdf(["The first page", "The second page"])
PDF_TEXT = "[Page 1]\nThe first page\n\n[Page 2]\nThe second page"
SCAN = make_pdf([b"\xff\xd8\xff\xe0 a JPEG \xff\xd9"])
LOCKED = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le")


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def as_url(data: bytes, media_type: str = "application/pdf") -> str:
    return f"data:{media_type};base64,{encode(data)}"


def block(data: bytes, **more: Any) -> dict[str, Any]:
    source = {
        "type": "base64",
        "media_type": "application/pdf",
        "data": encode(data),
    }
    return {"type": "document", "source": source} | more


def file_part(data: bytes, name: str = "") -> dict[str, Any]:
    return {"type": "file", "file": {"file_data": as_url(data), "filename": name}}


def input_file(data: bytes, name: str = "") -> dict[str, Any]:
    return {"type": "input_file", "file_data": as_url(data), "filename": name}


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


Ask = Callable[[dict[str, Any]], str]


def ask_messages(part: dict[str, Any]) -> str:
    body = {"messages": [{"role": "user", "content": [part]}]}
    return messages.parse_chat(body).messages[0].content


def ask_chat(part: dict[str, Any]) -> str:
    body = {"messages": [{"role": "user", "content": [part]}]}
    return prompts.parse_chat(body).messages[0].content


def ask_responses(part: dict[str, Any]) -> str:
    body = {"input": [{"role": "user", "content": [part]}]}
    return responses.parse_chat(body).messages[0].content


@pytest.mark.parametrize(
    ("ask", "part"),
    [
        (ask_messages, block(PDF, title="plan.pdf")),
        (ask_chat, file_part(PDF, "plan.pdf")),
        (ask_responses, input_file(PDF, "plan.pdf")),
    ],
    ids=["messages", "chat", "responses"],
)
def test_a_pdf_is_the_same_text_in_each_api(ask: Ask, part: dict[str, Any]) -> None:
    assert ask(part) == f"plan.pdf\n{PDF_TEXT}"


@pytest.mark.parametrize(
    ("data", "name", "read"),
    [
        (make_docx(word_paragraph("Of Word")), "a.docx", "Of Word"),
        (make_epub(["<p>Of a book"]), "a.epub", "Of a book"),
        (b"<p>Of a page", "a.html", "Of a page"),
        (b"a,b\n1,2", "a.csv", "a,b\n1,2"),
    ],
    ids=["docx", "epub", "html", "csv"],
)
def test_other_formats_are_read_as_well(data: bytes, name: str, read: str) -> None:
    assert ask_chat(file_part(data, name)) == f"{name}\n{read}"


def test_base64_without_a_data_url_is_read() -> None:
    part = {"type": "file", "file": {"file_data": encode(PDF)}}

    assert ask_chat(part) == PDF_TEXT


def test_title_and_context_come_before_any_document() -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "abc"}
    heads = {"title": "Plan", "context": "Of last year"}

    assert ask_messages(block(PDF, **heads)) == f"Plan\nOf last year\n{PDF_TEXT}"
    noted = ask_messages({"type": "document", "source": plain} | heads)
    assert noted == "Plan\nOf last year\nabc"


REFUSED: list[tuple[Ask, dict[str, Any], str, str]] = [
    (
        ask_messages,
        {"type": "document", "source": {"type": "url", "url": "https://x/a.pdf"}},
        "source.type",
        "not fetched",
    ),
    (
        ask_messages,
        {"type": "document", "source": {"type": "file", "file_id": "f"}},
        "source.type",
        "not stored",
    ),
    (
        ask_chat,
        {"type": "file", "file": {"file_id": "f"}},
        "file.file_id",
        "not stored",
    ),
    (
        ask_responses,
        {"type": "input_file", "file_url": "https://x"},
        "file_url",
        "not fetched",
    ),
    (ask_responses, {"type": "input_file", "file_id": "f"}, "file_id", "not stored"),
    (ask_messages, block(SCAN), "source.data", "as of a scan"),
    (ask_chat, file_part(LOCKED, "a.docx"), "file.file_data", "a.docx is encrypted"),
    (ask_responses, input_file(b"\0\1", "a.pdf"), "file_data", "not a text file"),
    (
        ask_responses,
        {"type": "input_file", "file_data": "data:application/pdf;base64,%%%"},
        "file_data",
        "not base64",
    ),
    (ask_chat, {"type": "file"}, "type", "only text"),
    (ask_chat, {"type": "file", "file": {"file_data": [1]}}, "type", "only text"),
]


@pytest.mark.parametrize(
    ("ask", "part", "field", "problem"), REFUSED, ids=range(len(REFUSED))
)
def test_what_cannot_be_read_is_refused_by_its_field(
    ask: Ask, part: dict[str, Any], field: str, problem: str
) -> None:
    with pytest.raises(ApiError, match=problem) as refused:
        ask(part)

    assert refused.value.status == 400
    assert str(refused.value.param).endswith(f"content[0].{field}")


@pytest.mark.parametrize("part", [block(SCAN), block(b"\0")], ids=["scan", "no PDF"])
def test_in_an_earlier_message_a_line_is_in_its_place(part: dict[str, Any]) -> None:
    chat = messages.parse_chat(
        {
            "messages": [
                {"role": "user", "content": [part]},
                {"role": "assistant", "content": "I cannot."},
                {"role": "user", "content": "And now?"},
            ]
        }
    )

    assert chat.messages[0].content == "[document: not read by this model]"


def test_a_tool_may_return_a_document() -> None:
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [block(PDF, title="found.pdf")],
    }
    call = {"type": "tool_use", "id": "t1", "name": "find", "input": {}}

    chat = messages.parse_chat(
        {
            "messages": [
                {"role": "user", "content": "Find it."},
                {"role": "assistant", "content": [call]},
                {"role": "user", "content": [result]},
            ]
        }
    )

    assert chat.messages[-1].content == f"found.pdf\n{PDF_TEXT}"


def test_a_document_of_a_chat_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_chat(file_part(PDF, "once.pdf"))

    def read_again(*_: object) -> None:
        raise AssertionError("it was read again")

    monkeypatch.setattr(request_documents, "read_data", read_again)

    assert ask_chat(file_part(PDF, "once.pdf")) == f"once.pdf\n{PDF_TEXT}"


def test_too_many_documents_are_refused() -> None:
    part = file_part(b"x", "a.txt")
    body = {"messages": [{"role": "user", "content": [part] * 21}]}

    with pytest.raises(ApiError, match="more than 20 documents"):
        request_documents.count_documents(body)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": 3},
        {"messages": [None, 1, {"content": {"content": "x"}}]},
        {"input": "text"},
    ],
)
def test_other_requests_have_no_documents(body: dict[str, Any]) -> None:
    assert request_documents.count_documents(body) == 0


# --- with the official clients


@pytest.fixture
def chatty(zoo: Zoo) -> Iterator[Served]:
    with serving(zoo["chatty"], ctx=2048) as served:
        yield served


def test_the_official_clients_send_a_pdf(chatty: Served) -> None:
    question = "What is on the second page?"
    with anthropic.Anthropic(
        base_url=chatty.url, api_key="any", max_retries=0
    ) as claude:
        content: Any = [block(PDF, title="plan.pdf"), text(question)]
        chat: Any = [{"role": "user", "content": content}]
        message = claude.messages.create(model="any", messages=chat, max_tokens=8)
        counted = claude.messages.count_tokens(model="any", messages=chat)
    usage = message.usage
    n_read = usage.input_tokens + usage.cache_read_input_tokens
    assert counted.input_tokens == n_read
    with chatty.client() as client:
        parts: Any = [file_part(PDF, "plan.pdf"), text(question)]
        completion = client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": parts}], max_tokens=8
        )
        items: Any = [
            {
                "role": "user",
                "content": [
                    input_file(PDF, "plan.pdf"),
                    {"type": "input_text", "text": question},
                ],
            }
        ]
        response = client.responses.create(
            model="any", input=items, max_output_tokens=16
        )
        with pytest.raises(openai.BadRequestError, match="as of a scan") as refused:
            scan: Any = [{"role": "user", "content": [file_part(SCAN, "scan.pdf")]}]
            client.chat.completions.create(model="any", messages=scan)
    assert completion.usage is not None
    assert response.usage is not None
    assert completion.usage.prompt_tokens == response.usage.input_tokens
    assert refused.value.param == "messages[0].content[0].file.file_data"
    assert message.content


def test_a_server_that_ends_does_not_wait_for_a_document(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_CHILD", "tests.support.endless_reader")
    monkeypatch.setattr(reading, "READ_SECONDS", 10_000)
    processes: list[reading.ReadingProcesses] = []
    with serving(zoo["chatty"]) as served:
        processes.append(served.server.api.reading)
        part = file_part(make_pdf(["never read"]), "slow.pdf")
        body = {"messages": [{"role": "user", "content": [part]}]}
        asking = threading.Thread(
            target=lambda: served.post("/v1/chat/completions", body), daemon=True
        )
        asking.start()
        wait_for(lambda: bool(processes[0]._running))

    asking.join(60)

    assert not processes[0]._running
    assert not asking.is_alive()
