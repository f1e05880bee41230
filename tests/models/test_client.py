"""What the hub answers is understood, and no more is requested than needed."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from localspec import errors
from localspec.models import reference
from localspec.models.gguf import reader
from localspec.models.hub import client, network_errors
from localspec.models.hub.client import HubClient, HubSearchResult
from tests.models import gguffile
from tests.support.downloads import DATA, FILE, MIB, QUICK, REPO, Downloader
from tests.support.fake_hub import API, BODY, COMMIT, Fault

# --- lists of files


ODD_VALUES: tuple[Any, ...] = (
    None,
    "x",
    5,
    -5,
    1e999,
    True,
    [],
    [5],
    {},
    {"sha256": 7},
    "9" * 400,
)


def answer_with(downloader: Downloader, body: Any) -> None:
    """The next answer of the hub's API."""
    downloader.hub.faults[API].append(Fault("json", body=json.dumps(body)))


@pytest.mark.parametrize("key", ["cardData", "siblings", "gated", "id", "sha"])
def test_a_list_of_files_may_have_values_of_any_type(
    key: str, downloader: Downloader
) -> None:
    """Property: it is a list of files, or an error that says so."""
    files = [{"rfilename": FILE, "size": 5}]
    for value in ODD_VALUES:
        body = {"id": REPO, "sha": COMMIT, "siblings": files, key: value}
        answer_with(downloader, body)

        with suppress(errors.DownloadError):
            listed = downloader.client.list_files(REPO).files
            assert all(file.size >= 0 for file in listed)


def test_a_file_of_the_list_may_have_values_of_any_type(downloader: Downloader) -> None:
    file = {"rfilename": FILE, "size": 5}
    keys = ("rfilename", "size", "blobId", "lfs")
    for value in ODD_VALUES:
        files = [file | {key: value} for key in keys]
        answer_with(downloader, {"id": REPO, "sha": COMMIT, "siblings": files})

        with suppress(errors.DownloadError):
            listed = downloader.client.list_files(REPO).files
            assert all(file.size >= 0 for file in listed)


def test_a_search_result_may_have_values_of_any_type(downloader: Downloader) -> None:
    keys = ("id", "downloads", "likes", "lastModified", "gated")
    for value in ODD_VALUES:
        answer_with(downloader, [{"id": REPO, key: value} for key in keys])

        with suppress(errors.DownloadError):
            downloader.client.search("x")


def test_a_server_whose_answer_does_not_end_is_no_hub(
    downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_MAX_JSON_BYTES", 1000)
    downloader.hub.faults[API].append(Fault("json", body=" " * 2000))

    with pytest.raises(errors.DownloadError, match="not a model hub"):
        downloader.client.list_files(REPO)


def test_files_with_harmful_names_are_not_listed(downloader: Downloader) -> None:
    for path in ("../x.gguf", "a\x1b[2J.gguf", "CON.gguf", "/x.gguf"):
        downloader.hub.add(REPO, path, DATA[:9])

    files = downloader.client.list_files(REPO).files

    assert [file.path for file in files] == [FILE]


# --- refusals


def test_an_unknown_repository_revision_or_file_is_named(
    downloader: Downloader,
) -> None:
    with pytest.raises(errors.NotFoundError, match="has no org/none"):
        downloader.client.list_files("org/none")
    with pytest.raises(errors.NotFoundError, match="no such revision"):
        downloader.client.list_files(REPO, "v9")
    with pytest.raises(errors.NotFoundError, match="no such file"):
        downloader.client.read_header(REPO, "main", "no.gguf")


@pytest.mark.parametrize("token", [False, "hf_bad"])
def test_a_gated_repository_says_where_to_accept_its_terms(
    token: str | bool, downloader: Downloader
) -> None:
    downloader.hub.gated[REPO] = "hf_good"
    hub = HubClient(downloader.hub.url, token=token, retry_policy=QUICK)
    assert hub.list_files(REPO).gated

    with pytest.raises(errors.AccessDeniedError, match="gated") as raised:
        hub.read_header(REPO, "main", FILE)

    assert f"{downloader.hub.url}/{REPO}" in raised.value.hint
    assert raised.value.exit_code == 14
    assert "hf_bad" not in raised.value.message + raised.value.hint


@pytest.mark.parametrize("token", ["“hf_abc”", "hf_abc\u200b", "hf\x7fabc"])
def test_a_token_that_no_header_can_have_is_an_error_without_the_token(
    token: str, downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    hub = HubClient(downloader.hub.url, retry_policy=QUICK)

    with pytest.raises(errors.AccessDeniedError, match="HF_TOKEN contains") as raised:
        hub.list_files(REPO)

    assert raised.value.message.isascii()
    assert "abc" not in raised.value.message
    assert downloader.hub.requests == []


PROXY_VARIABLES = (
    "NO_PROXY",
    "no_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "ALL_PROXY",
    "all_proxy",
)
USELESS_PROXIES = [
    ("socks://127.0.0.1:9/", "it is no http:// proxy"),
    ("socks5://127.0.0.1:9", "SOCKS needs the package socksio"),
    (
        "http://me:secret@127.0.0.1:9",
        "cannot be reached through the proxy http://127.0.0.1:9 of",
    ),
]


@pytest.mark.parametrize("variable", ["ALL_PROXY", "http_proxy"])
@pytest.mark.parametrize(("proxy", "reason"), USELESS_PROXIES)
def test_a_proxy_that_cannot_be_used_is_named_with_its_variable(
    variable: str,
    proxy: str,
    reason: str,
    downloader: Downloader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, proxy)

    with pytest.raises((errors.DownloadError, errors.OfflineError)) as raised:
        downloader.client.list_files(REPO)

    assert reason in raised.value.message
    assert variable in raised.value.message
    assert variable in raised.value.hint
    assert "secret" not in raised.value.message + raised.value.hint


def test_a_proxy_is_not_used_for_the_hosts_of_no_proxy(
    downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    assert downloader.client.list_files(REPO).revision == COMMIT


# --- search


def test_a_search_finds_repositories(downloader: Downloader) -> None:
    downloader.hub.add("org/other-GGUF", "o.gguf", DATA[:9])
    downloader.hub.gated["org/other-GGUF"] = "hf_good"

    found = downloader.client.search("GGUF", 5)

    updated = datetime(2026, 8, 22, 10, 11, 12, tzinfo=UTC)
    expected = HubSearchResult(
        REPO, downloads=12, likes=3, updated=updated, gated=False
    )
    gated = HubSearchResult(
        "org/other-GGUF", downloads=12, likes=3, updated=updated, gated=True
    )
    assert found == (expected, gated)
    assert "filter=gguf" in downloader.hub.requests[0].path
    assert len(downloader.client.search("GGUF", 1)) == 1
    assert downloader.client.search("nothing") == ()


def test_a_search_does_not_find_repositories_with_harmful_names(
    downloader: Downloader,
) -> None:
    downloader.hub.repos |= {"org/\x1b[2Jx-GGUF": {}, "../../x-GGUF": {}}

    found = downloader.client.search("GGUF")

    assert [result.repo for result in found] == [REPO]


# --- headers


def make_file(n_tokens: int, data_bytes: int = 0) -> bytes:
    """A file whose header has about 30 bytes a token."""
    words = [b"token-number-%d" % i for i in range(n_tokens)]
    file = gguffile.model(words, tokenizer=b"gpt2")
    file.tensors = [gguffile.Tensor(shape=(32, max(1, data_bytes // 128)))]
    return file.data()


@pytest.mark.parametrize("n_tokens", [300, 60_000])
def test_a_remote_header_is_the_same_as_a_local_one(
    n_tokens: int, downloader: Downloader
) -> None:
    data = make_file(n_tokens, data_bytes=24 * MIB)
    downloader.hub.add(REPO, "v.gguf", data)

    remote = downloader.client.read_header(REPO, "main", "v.gguf")

    local = reader.parse(data, len(data))
    assert remote.size == len(data)
    assert remote.tokenizer.fingerprint == local.tokenizer.fingerprint
    assert remote.tensors == local.tensors
    assert 1 <= len(downloader.hub.bodies()) <= 4
    assert downloader.hub.sent() <= 20_000_000


@pytest.mark.parametrize("second", [Fault("drop", after=MIB), Fault("norange")])
def test_a_header_arrives_over_a_connection_that_breaks(
    second: Fault, downloader: Downloader
) -> None:
    downloader.hub.add(REPO, "v.gguf", make_file(90_000))
    downloader.hub.faults[BODY].extend([Fault("drop", after=MIB), second])

    header = downloader.client.read_header(REPO, "main", "v.gguf")

    assert header.tokenizer.n_tokens == 90_000


def test_a_file_without_a_header_is_an_error_with_a_hint(
    downloader: Downloader,
) -> None:
    whole = make_file(90_000)
    files = {
        "random.gguf": DATA,
        "page.gguf": b"<html>" + bytes(MIB),
        "cut.gguf": whole[: len(whole) // 2],
        "none.gguf": b"",
    }

    for path, data in files.items():
        downloader.hub.add(REPO, path, data)
        with pytest.raises((errors.ModelFileError, errors.DownloadError)) as raised:
            downloader.client.read_header(REPO, "main", path)
        assert raised.value.hint


def test_a_header_of_a_harmful_path_is_not_requested(downloader: Downloader) -> None:
    with pytest.raises(errors.ModelFileError):
        downloader.client.read_header(REPO, "main", "../v.gguf")

    assert downloader.hub.requests == []


# --- the address of the hub


def test_a_mirror_may_end_in_a_slash(downloader: Downloader) -> None:
    mirror = HubClient(f"{downloader.hub.url}/", token=False, retry_policy=QUICK)

    assert mirror.list_files(REPO).revision == COMMIT
    assert "//" not in downloader.hub.requests[-1].path


def test_the_environment_sets_the_mirror_and_offline_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    hub = HubClient()

    assert hub.endpoint == "https://mirror.example"
    assert hub.offline


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(errors.UsageError):
        HubClient("hub.example")


# --- the address of the hub


AROUND = ("", " ", "  ", "\t", "\n", "\r\n", '"', "'", "/", "/ ", '" ')


@pytest.mark.parametrize("address", ["http://127.0.0.1:8000", "https://hub.example/a"])
def test_what_a_file_of_settings_leaves_around_the_address_is_cut_off(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for before in ("", " ", "\t", '"', "'"):
        for after in AROUND:
            monkeypatch.setenv("HF_ENDPOINT", before + address + after)
            assert HubClient().endpoint == address
            assert HubClient(before + address + after).endpoint == address


@pytest.mark.parametrize(
    ("variable", "given"),
    [
        ("http://127.0.0.1:8000 ", None),
        ('"http://127.0.0.1:8000"', None),
        ("   ", "http://127.0.0.1:8000"),
        ("http://a:b", "http://127.0.0.1:8000"),
    ],
)
def test_the_library_of_the_hub_can_be_imported_whatever_the_variable_is(
    variable: str, given: str | None
) -> None:
    """It reads HF_ENDPOINT when it is imported: so this is a process of its own."""
    code = (
        "from localspec.models.hub.client import HubClient\n"
        f"client = HubClient({given!r}, token=False)\n"
        "client._request_headers()\n"
        "print(client.endpoint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HF_ENDPOINT": variable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "http://127.0.0.1:8000", done.stderr


@pytest.mark.parametrize("blank", ["", " ", "\r\n", '""'])
def test_a_blank_address_is_none(blank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", blank)
    assert HubClient().endpoint == network_errors.DEFAULT_ENDPOINT


@pytest.mark.parametrize(
    "wrong",
    [
        "hub.example", "ftp://hub.example", "http://", "http://a b", "http://a:b",
        "http://a:99999", "http://[::1", "http://a\x07",
    ],
)  # fmt: skip
def test_a_wrong_address_names_where_it_is_from(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", wrong)
    with pytest.raises(errors.UsageError, match="HF_ENDPOINT"):
        HubClient()
    with pytest.raises(errors.UsageError, match="--endpoint"):
        HubClient(wrong)


# --- names of files


@pytest.mark.parametrize(
    "name",
    [
        "模型-Q8_0.gguf", "Größe-Q4_K_M.gguf", "writer's-Q4_K_M.gguf",
        "a,b-Q4_K_M.gguf", "m[v2]-Q4_K_M.gguf", "M-Q8_0.GGUF", "a@b.gguf", "#a.gguf",
    ],
)  # fmt: skip
def test_a_file_that_is_refused_for_its_name_is_named(
    name: str, downloader: Downloader
) -> None:
    files = [{"rfilename": name, "size": 5}]
    answer_with(downloader, {"id": REPO, "sha": COMMIT, "siblings": files})

    listed = downloader.client.list_files(REPO)

    assert listed.refused_names == (name,)
    with pytest.raises(errors.NotFoundError) as error:
        reference.choose_files(listed.files, "Q8_0", refused_names=listed.refused_names)
    assert name in error.value.hint and "no GGUF files" not in error.value.hint
