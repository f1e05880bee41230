"""Who may use the server: Host, Origin, key and method."""

from collections.abc import Iterator

import pytest

from localspec.serve.access_rules import AccessRules
from localspec.serve.api_error import ApiError
from tests.serve.conftest import Response, Served, serving
from tests.support.zoo import Zoo

RULES = AccessRules(
    allowed_hosts=("box.lan",),
    allowed_origins=("https://app.example",),
    keys=("secret", "other"),
)
KEY = {"Authorization": "Bearer secret"}
BODY = {"prompt": "a", "max_tokens": 1}


@pytest.fixture(scope="module")
def guarded(zoo: Zoo) -> Iterator[Served]:
    with serving(zoo["parrot"], rules=RULES) as served:
        yield served


HOSTS = (
    "localhost", "localhost:8080", "LOCALHOST.:1", "127.9.9.9", "[::1]:8080", "::1",
    "box.lan:80", "[::ffff:127.0.0.1]:80", "::ffff:127.0.0.1", "localhost:",
)  # fmt: skip
OTHER_HOSTS = (
    "127.0.0.1:80, evil.example", "127.0.0.1:evil", "127.0.0.1:80:80", "localhost:80/",
    "localhost: 80", "[::1]:80, evil.example", "[::1]:evil", "[::1", "::1]", "[[::1]]", "box.lan:x",
    "127.0.0.1:-1", "evil@localhost", "[::ffff:10.0.0.1]",
    "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "[::1].evil.example",
    "192.168.1.5",
)  # fmt: skip
ORIGINS = (
    "http://localhost:3000", "https://127.0.0.1", "http://[::1]:5", "https://app.example",
)  # fmt: skip
OTHER_ORIGINS = (
    "https://evil.example", "https://app.example.evil.example", "http://localhost.evil.example",
    "null", "file://", "http://[", "http://localhost:80, http://evil.example",
    "http://localhost, http://evil.example", "http://localhost:evil", "http://localhost/",
    "http://evil@localhost", "http://localhost:80:80",
)  # fmt: skip


def test_hosts(guarded: Served) -> None:
    for host in (*HOSTS, *OTHER_HOSTS, "box.lan, evil.example", ""):
        response = guarded.get("/v1/models", KEY | {"Host": host})
        expected = 200 if host in HOSTS else 403
        assert response.status == expected, host


def test_a_server_for_all_addresses_accepts_addresses_but_no_names() -> None:
    rules = AccessRules("0.0.0.0", keys=("secret",))
    assert rules.is_host_allowed("192.168.1.5:8080")
    assert rules.is_host_allowed("[fe80::1]")
    assert not rules.is_host_allowed("evil.example")
    assert AccessRules("192.168.1.5").is_host_allowed("192.168.1.5")
    assert not AccessRules("192.168.1.5").is_host_allowed("192.168.1.6")


def send_preflight(guarded: Served, origin: str) -> Response:
    headers = {"Origin": origin, "Access-Control-Request-Headers": "authorization"}
    return guarded.send("OPTIONS", "/v1/completions", None, headers)


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_page_of_an_allowed_origin_may_send_and_read(
    guarded: Served, origin: str
) -> None:
    response = guarded.post("/v1/completions", BODY, KEY | {"Origin": origin})
    preflight = send_preflight(guarded, origin)

    assert response.status == 200
    assert response.headers["access-control-allow-origin"] == origin
    assert preflight.status == 204
    assert "access-control-allow-credentials" not in preflight.headers


@pytest.mark.parametrize("origin", [*OTHER_ORIGINS, ""])
def test_a_page_of_another_origin_is_refused(guarded: Served, origin: str) -> None:
    response = guarded.post("/v1/completions", BODY, KEY | {"Origin": origin})
    preflight = send_preflight(guarded, origin)

    assert response.status == 403
    assert "access-control-allow-origin" not in response.headers
    assert preflight.status == 403
    assert "access-control-allow-credentials" not in preflight.headers


def test_keys(guarded: Served) -> None:
    for name, value, allowed in [
        ("X-Other", "secret", False),
        ("Authorization", "Bearer secret", True),
        ("authorization", "bearer other", True),
        ("X-Api-Key", "secret", True),
        ("Authorization", "Bearer wrong", False),
        ("Authorization", "Basic secret", False),
        ("Authorization", "Bearer ", False),
        ("X-Api-Key", "sécret", False),
    ]:
        for method, path in (
            ("GET", "/v1/models"),
            ("GET", "/metrics"),
            ("POST", "/tokenize"),
        ):
            body = {"content": "a"} if method == "POST" else None
            response = guarded.send(method, path, body, {name: value})
            expected = 200 if allowed else 401
            assert response.status == expected, path
        assert guarded.get("/health", {name: value}).status == 200


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
    json_type = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert guarded.post("/v1/completions", BODY, KEY | json_type).status == 200
    for path in ("/v1/models", "/metrics", "/"):
        assert str(zoo.folder) not in guarded.get(path, KEY).body.decode(), (
            "of the model's file"
        )


def test_a_page_can_read_why_it_is_refused(guarded: Served) -> None:
    origin = {"Origin": "https://app.example"}
    for headers, status in (
        ({}, 401),
        (KEY | {"Content-Type": "text/plain"}, 415),
        (KEY, 200),
    ):
        response = guarded.post("/v1/completions", BODY, origin | headers)
        assert response.status == status
        assert response.headers["access-control-allow-origin"] == "https://app.example"
