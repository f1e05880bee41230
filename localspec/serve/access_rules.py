"""Who may use the server: checks of Host, Origin, key and content type before any work.

A page of the web can make a browser send requests to this computer. `Host` shows a name
that was rebound to it (CVE-2024-28224), `Origin` a page that is not of this computer.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from msgspec import Struct
from starlette.datastructures import Address, Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from localspec.serve.api_error import ApiError
from localspec.serve.json_bodies import error_response

_OPEN_PATHS = ("/health", "/v1/health")  # Answered without a key.


class AccessRules(Struct, frozen=True):
    host: str = "127.0.0.1"  # The address that the server is bound to.
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()  # Empty: no key is needed, and any is accepted.

    def check(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Raise ApiError for a request that is not allowed."""
        # A proxy may ask for the health in HTTP/1.0, which has no Host.
        is_probe = "host" not in headers and path in _OPEN_PATHS
        if not is_probe and not self.is_host_allowed(headers.get("host", "")):
            message = (
                "This Host is not allowed. Allow it: localspec serve --allow-host NAME"
            )
            raise ApiError(403, message, name="host_not_allowed")
        if "origin" in headers and not self.is_origin_allowed(headers["origin"]):
            message = "This Origin is not allowed. Allow it: localspec serve --allow-origin ORIGIN"
            raise ApiError(403, message, name="origin_not_allowed")
        if method == "OPTIONS":
            return
        if path not in _OPEN_PATHS and not self._has_key(headers):
            message = "The API key is missing or wrong."
            raise ApiError(401, message, name="invalid_api_key")
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method == "POST" and content_type != "application/json":
            raise ApiError(415, "Send JSON, with Content-Type: application/json.")

    def is_host_allowed(self, header: str) -> bool:
        name = _host_name(header)
        if _is_loopback(name):
            return True
        allowed = [_host_name(host) for host in (self.host, *self.allowed_hosts)]
        if name and name in allowed:
            return True
        # A name can be rebound to this computer; an address cannot.
        is_open = self.host in ("0.0.0.0", "::", "")
        return is_open and _is_address(name)

    def is_origin_allowed(self, origin: str) -> bool:
        if origin in self.allowed_origins or "*" in self.allowed_origins:
            return True
        scheme, _, host = origin.lower().partition("://")
        return scheme in ("http", "https") and _is_loopback(_host_name(host))

    def _has_key(self, headers: Mapping[str, str]) -> bool:
        if not self.keys:
            return True
        given = [headers.get("x-api-key", "").strip().encode("latin-1")]
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given.append(bearer.strip().encode("latin-1"))
        has_key = False
        # All keys are compared, so that the time does not tell which one is right.
        for key in self.keys:
            for encoded in _encode_key(key):
                for text in given:
                    if hmac.compare_digest(encoded, text):
                        has_key = True
        return has_key


def _encode_key(key: str) -> list[bytes]:
    """In UTF-8, and in Latin-1, which some clients send; none of an empty key."""
    if not key:
        return []
    encoded = [key.encode("utf-8", "surrogateescape")]
    with suppress(UnicodeEncodeError):
        encoded.append(key.encode("latin-1"))
    return encoded


def client_name(headers: Mapping[str, str], address: Address | None) -> str:
    """Whose request it is: the key that it has, or the computer that it comes from."""
    given = (headers.get("x-api-key", ""), headers.get("authorization", ""))
    if any(given):
        return repr(given)
    return address.host if address is not None else ""


def is_local(host: str) -> bool:
    """Whether only this computer reaches a server bound to `host`."""
    return _is_loopback(_host_name(host))


_HOST = re.compile(r"(?:\[(?P<address>[^\[\]]*)\]|(?P<name>[^:]*))(?::[0-9]*)?")
"""A name, or an IPv6 address in brackets; then, if at all, the number of a port."""


def _host_name(header: str) -> str:
    """The name in a Host header: without port, brackets, case and final dot.

    Empty if the header is anything else, such as `localhost:80, evil.example`.
    """
    text = header.strip().lower()
    if _is_address(text):  # IPv6 without brackets
        return text
    match = _HOST.fullmatch(text)
    if match is None:
        return ""
    return (match["address"] or match["name"] or "").removesuffix(".")


def _normalize_path(path: str) -> str:
    """Without an origin before it (RFC 9112, 3.2.2), doubled slashes, and the last one."""
    path = re.sub(r"^https?://[^/]*", "", path)
    return re.sub("/+", "/", path).removesuffix("/") or "/"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    if not _is_address(name):
        return False
    address = ipaddress.ip_address(name)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback  # A newer Python says so by itself.
    return address.is_loopback


class AccessMiddleware:
    """Applies `AccessRules`, and answers the preflight requests of allowed origins."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope = {**scope, "path": _normalize_path(scope["path"])}
        received = Headers(scope=scope)
        # A header that comes twice has all its values here, so each is checked.
        headers = {name: ", ".join(received.getlist(name)) for name in received}
        cors = self._make_cors_headers(headers)

        async def send_with_cors(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(cors)
            await send(message)

        app = self._app
        if scope["method"] == "OPTIONS":
            app = Response(status_code=204)
        try:
            self._rules.check(scope["method"], scope["path"], headers)
        except ApiError as error:
            app = error_response(error, scope)
        await app(scope, receive, send_with_cors)

    def _make_cors_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Headers that let a page read the answer; none if its origin is not allowed."""
        origin = headers.get("origin")
        if origin is None or not self._rules.is_origin_allowed(origin):
            return {}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Headers": headers.get(
                "access-control-request-headers", "*"
            ),
            "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
            "Access-Control-Max-Age": "600",
            "Vary": "Origin",
        }
