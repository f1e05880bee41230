"""What the hub says is understood, and nothing more is asked of it than needed."""

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from localspec import errors
from localspec.models.gguf import reader
from localspec.models.hub import client
from localspec.models.hub.client import HubClient, HubSearchResult
from tests.models import gguffile
from tests.support.downloads import DATA, FILE, MIB, QUICK, REPO, Desk
from tests.support.fake_hub import API, BODY, COMMIT, Fault


@pytest.mark.parametrize(
    "key", ["cardData", "siblings", "gated", "id", "sha", "file", "search"]
)
def test_values_of_any_type_are_an_answer_or_no_hubs(key: str, desk: Desk) -> None:
    """Property: whatever types a hub sends, it is a list of files or an error that says
    so.
    """
    for value in (None, "x", 5, -5, 1e999, True, [], [5], {}, {"sha256": 7}, "9" * 400):
        body: Any = {
            "id": REPO,
            "sha": COMMIT,
            "siblings": [{"rfilename": FILE, "size": 5}],
        }
        if key == "file":
            file_names = ("rfilename", "size", "blobId", "lfs")
            body["siblings"] = [
                body["siblings"][0] | {name: value} for name in file_names
            ]
        elif key == "search":
            names = ("id", "downloads", "likes", "lastModified", "gated")
            body = [{"id": REPO, name: value} for name in names]
        else:
            body[key] = value
        desk.hub.faults[API].append(Fault("json", body=json.dumps(body)))
        with suppress(errors.DownloadError):
            if key == "search":
                desk.client.search("x")
            else:
                assert all(
                    file.size >= 0 for file in desk.client.list_files(REPO).files
                )


def test_an_answer_without_end_is_no_hubs(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_MAX_JSON_BYTES", 1000)
    with pytest.raises(errors.DownloadError, match="not a model hub"):
        desk.hub.faults[API].append(Fault("json", body=" " * 2000))
        desk.client.list_files(REPO)


@pytest.mark.parametrize("token", ["“hf_abc”", "hf_abc\u200b", "hf\x7fabc"])
def test_a_token_no_header_can_have(
    token: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    mine = HubClient(desk.hub.url, retry_policy=QUICK)
    with pytest.raises(errors.AccessDeniedError, match="HF_TOKEN contains") as raised:
        mine.list_files(REPO)
    assert raised.value.message.isascii() and "abc" not in raised.value.message
    assert desk.hub.seen == []


PROXIES = [
    ("socks://127.0.0.1:9/", "it is no http:// proxy"),
    ("socks5://127.0.0.1:9", "SOCKS needs the package socksio"),
    (
        "http://me:secret@127.0.0.1:9",
        "cannot be reached through the proxy http://127.0.0.1:9 of",
    ),
]


@pytest.mark.parametrize("variable", ["ALL_PROXY", "http_proxy"])
def test_a_proxy_of_no_use(
    variable: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "NO_PROXY",
        "no_proxy",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    for proxy, reason in PROXIES:
        monkeypatch.setenv(variable, proxy)
        with pytest.raises((errors.DownloadError, errors.OfflineError)) as raised:
            desk.client.list_files(REPO)
        assert reason in raised.value.message and variable in raised.value.message
        assert "secret" not in raised.value.message + raised.value.hint
        assert variable in raised.value.hint
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert desk.client.list_files(REPO).revision == COMMIT


def test_names_that_could_harm_are_not_even_listed(desk: Desk) -> None:
    for path in ("../x.gguf", "a\x1b[2J.gguf", "CON.gguf", "/x.gguf"):
        desk.hub.add(REPO, path, DATA[:9])
    assert [file.path for file in desk.client.list_files(REPO).files] == [FILE]


def test_what_is_not_there(desk: Desk) -> None:
    with pytest.raises(errors.NotFoundError, match="has no org/none"):
        desk.client.list_files("org/none")
    with pytest.raises(errors.NotFoundError, match="no such revision"):
        desk.client.list_files(REPO, "v9")
    with pytest.raises(errors.NotFoundError, match="no such file"):
        desk.client.read_header(REPO, "main", "no.gguf")
    desk.hub.gated[REPO] = "hf_good"
    assert desk.client.list_files(REPO).gated
    for token in (False, "hf_bad"):
        mine = HubClient(desk.hub.url, token=token, retry_policy=QUICK)
        with pytest.raises(errors.AccessDeniedError, match="gated") as raised:
            mine.read_header(REPO, "main", FILE)
        assert (
            f"{desk.hub.url}/{REPO}" in raised.value.hint
            and raised.value.exit_code == 14
        )
        assert "hf_bad" not in raised.value.message + raised.value.hint


def test_a_search_finds_repositories(desk: Desk) -> None:
    desk.hub.add("org/other-GGUF", "o.gguf", DATA[:9])
    desk.hub.gated["org/other-GGUF"] = "hf_good"
    when = datetime(2026, 8, 22, 10, 11, 12, tzinfo=UTC)
    assert desk.client.search("GGUF", 5) == (
        HubSearchResult(REPO, 12, 3, when, False),
        HubSearchResult("org/other-GGUF", 12, 3, when, True),
    )
    assert (
        len(desk.client.search("GGUF", 1)) == 1 and desk.client.search("nothing") == ()
    )
    assert "filter=gguf" in desk.hub.seen[0].path
    desk.hub.repos |= {"org/\x1b[2Jx-GGUF": {}, "../../x-GGUF": {}}
    assert [found.repo for found in desk.client.search("m-GGUF")] == [REPO]


def vocabulary(n_tokens: int, tail: int = 0) -> bytes:
    """A file with a header of about 30 bytes a token, and as much behind it as asked
    for.
    """
    words = [b"token-number-%d" % i for i in range(n_tokens)]
    file = gguffile.model(words, tokenizer=b"gpt2")
    file.tensors = [gguffile.Tensor(shape=(32, max(1, tail // 128)))]
    return file.data()


@pytest.mark.parametrize("n_tokens", [300, 60_000])
def test_a_header_is_the_same_from_afar(n_tokens: int, desk: Desk) -> None:
    data = vocabulary(n_tokens, 24 * MIB)
    desk.hub.add(REPO, "v.gguf", data)
    near, far = (
        reader.parse(data, len(data)),
        desk.client.read_header(REPO, "main", "v.gguf"),
    )
    assert (
        far.size == len(data)
        and far.tokenizer.fingerprint == near.tokenizer.fingerprint
    )
    assert far.tensors == near.tensors and 1 <= len(desk.hub.bodies()) <= 4
    assert desk.hub.sent() <= 20_000_000


def test_a_header_over_a_bad_line(desk: Desk) -> None:
    desk.hub.add(REPO, "v.gguf", vocabulary(90_000))
    for faults in (
        [Fault("drop", after=MIB), Fault("drop", after=MIB)],
        [Fault("drop", after=MIB), Fault("norange")],
    ):
        desk.hub.faults[BODY].extend(faults)
        assert (
            desk.client.read_header(REPO, "main", "v.gguf").tokenizer.n_tokens == 90_000
        )


def test_what_has_no_header_is_said(desk: Desk) -> None:
    whole = vocabulary(90_000)
    desk.hub.add(REPO, "random.gguf", DATA)
    desk.hub.add(REPO, "page.gguf", b"<html>" + bytes(MIB))
    desk.hub.add(REPO, "cut.gguf", whole[: len(whole) // 2])
    desk.hub.add(REPO, "none.gguf", b"")
    for path in ("random.gguf", "page.gguf", "cut.gguf", "none.gguf"):
        with pytest.raises((errors.ModelFileError, errors.DownloadError)) as raised:
            desk.client.read_header(REPO, "main", path)
        assert raised.value.hint
    with pytest.raises(errors.ModelFileError):
        desk.client.read_header(REPO, "main", "../v.gguf")


def test_the_last_slash_of_a_mirror_goes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = HubClient(f"{desk.hub.url}/", token=False, retry_policy=QUICK)
    assert (
        mirror.list_files(REPO).revision == COMMIT
        and "//" not in desk.hub.seen[-1].path
    )
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert (HubClient().endpoint, HubClient().offline) == (
        "https://mirror.example",
        True,
    )
    with pytest.raises(errors.UsageError):
        HubClient("hub.example")
