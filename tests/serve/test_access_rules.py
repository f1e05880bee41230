"""Who may use the server: Host, Origin, key and method."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localspec.serve.access_rules import AccessRules
from localspec.serve.api_error import ApiError
from tests.serve.conftest import Served, serving
from tests.support.zoo import Zoo

RULES = AccessRules(
    allowed_hosts=("box.lan",), allowed_origins=("https://app.example",), keys=("secret", "other")
)
KEY = {"Authorization": "Bearer secret"}
BODY = {"prompt": "a", "max_tokens": 1}


@pytest.fixture(scope="module")
def guarded(zoo: Zoo) -> Iterator[Served]:
    with serving(zoo["parrot"], rules=RULES) as served:
        yield served


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("localhost:8080", True),
        ("LOCALHOST.:1", True),
        ("127.9.9.9", True),
        ("[::1]:8080", True),
        ("::1", True),
        ("box.lan:80", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("[::1].evil.example", False),
        ("192.168.1.5", False),
        ("box.lan, evil.example", False),
        ("", False),
    ],
)
def test_hosts(guarded: Served, host: str, allowed: bool) -> None:
    response = guarded.get("/v1/models", KEY | {"Host": host})
    assert response.status == (200 if allowed else 403)


def test_a_server_for_all_addresses_accepts_addresses_but_no_names() -> None:
    rules = AccessRules("0.0.0.0", keys=("secret",))
    assert rules.is_host_allowed("192.168.1.5:8080")
    assert rules.is_host_allowed("[fe80::1]")
    assert not rules.is_host_allowed("evil.example")
    assert AccessRules("192.168.1.5").is_host_allowed("192.168.1.5")
    assert not AccessRules("192.168.1.5").is_host_allowed("192.168.1.6")


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:3000", True),
        ("https://127.0.0.1", True),
        ("http://[::1]:5", True),
        ("https://app.example", True),
        ("https://evil.example", False),
        ("https://app.example.evil.example", False),
        ("http://localhost.evil.example", False),
        ("null", False),
        ("file://", False),
        ("", False),
        ("http://[", False),
    ],
)
def test_origins(guarded: Served, origin: str, allowed: bool) -> None:
    response = guarded.post("/v1/completions", BODY, KEY | {"Origin": origin})
    assert response.status == (200 if allowed else 403)
    allow = response.headers.get("access-control-allow-origin")
    assert allow == (origin if allowed else None)
    asked = {"Origin": origin, "Access-Control-Request-Headers": "authorization"}
    preflight = guarded.send("OPTIONS", "/v1/completions", None, asked)
    assert preflight.status == (204 if allowed else 403)
    assert "access-control-allow-credentials" not in preflight.headers


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, False),
        ({"Authorization": "Bearer secret"}, True),
        ({"authorization": "bearer other"}, True),
        ({"X-Api-Key": "secret"}, True),
        ({"Authorization": "Bearer wrong"}, False),
        ({"Authorization": "Basic secret"}, False),
        ({"Authorization": "Bearer "}, False),
        ({"X-Api-Key": "sécret"}, False),
    ],
)
def test_keys(guarded: Served, headers: dict[str, str], allowed: bool) -> None:
    for method, path in (("GET", "/v1/models"), ("GET", "/metrics"), ("POST", "/tokenize")):
        body = {"content": "a"} if method == "POST" else None
        response = guarded.send(method, path, body, headers)
        assert response.status == (200 if allowed else 401), path
    assert guarded.get("/health", headers).status == 200


def test_keys_of_any_encoding() -> None:
    """A header is bytes: clients send UTF-8 or Latin-1."""
    rules = AccessRules(keys=("secönd", "\udcff", "ключ1"))
    for sent in ("secönd".encode(), "secönd".encode("latin-1"), b"\xff"):
        headers = {"host": "localhost", "x-api-key": sent.decode("latin-1")}
        rules.check("GET", "/v1/models", headers)
    for wrong in ("second", "", "sec", "1"):
        with pytest.raises(ApiError):
            rules.check("GET", "/v1/models", {"host": "localhost", "x-api-key": wrong})


def test_content_types_and_paths(guarded: Served, zoo: Zoo) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = guarded.post("/v1/completions", BODY, KEY | {"Content-Type": kind})
        assert response.status == 415
    kind = "Application/JSON; charset=utf-8"
    assert guarded.post("/v1/completions", BODY, KEY | {"Content-Type": kind}).status == 200
    for path in ("/v1/models", "/metrics", "/"):
        assert str(zoo.folder) not in guarded.get(path, KEY).body.decode(), "of the model's file"


def test_a_page_can_read_why_it_is_refused(guarded: Served) -> None:
    origin = {"Origin": "https://app.example"}
    for headers, status in ({}, 401), (KEY | {"Content-Type": "text/plain"}, 415), (KEY, 200):
        response = guarded.post("/v1/completions", BODY, origin | headers)
        assert response.status == status
        assert response.headers["access-control-allow-origin"] == "https://app.example"
