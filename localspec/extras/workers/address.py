"""Addresses of workers: `HOST[:PORT]`, as options and settings have them."""

from __future__ import annotations

from msgspec import Struct

from localspec.errors import UsageError

DEFAULT_PORT = 50052  # That of llama.cpp's ggml-rpc-server.
MAX_WORKERS = 2  # Three or more deadlock in llama.cpp.


class WorkerAddress(Struct, frozen=True):
    host: str
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_addresses(text: str | None) -> tuple[WorkerAddress, ...]:
    """Parse `HOST[:PORT],…`; None and `none` give no addresses. Raises UsageError."""
    parts = [] if text is None or text.strip() == "none" else text.split(",")
    addresses = tuple(map(parse_address, parts))
    if len(addresses) > MAX_WORKERS:
        raise UsageError(
            f"{len(addresses)} workers were given; llama.cpp works with at most {MAX_WORKERS}.",
            f"Choose {MAX_WORKERS} of them.",
        )
    if len({*addresses}) < len(addresses):
        raise UsageError("The same worker was given twice.", "Give each worker once.")
    return addresses


def parse_address(text: str) -> WorkerAddress:
    """Raises UsageError."""
    text = text.strip()
    host = text
    port = str(DEFAULT_PORT)
    if ":" in text:
        host, _, port = text.rpartition(":")
    if ":" in host or "[" in host:
        raise UsageError(
            f"{text} is an IPv6 address; llama.cpp's RPC backend takes IPv4 addresses and names.",
            "Use the computer's name or its IPv4 address.",
        )
    is_port = port.isdecimal() and 0 < int(port) < 65536
    is_host = host != "" and all(_is_visible(character) for character in host)
    if not is_host or not is_port:
        raise UsageError(
            f"{text!r} is no worker's address.",
            "Type HOST or HOST:PORT, such as 192.168.1.20",
        )
    return WorkerAddress(host, int(port))


def _is_visible(character: str) -> bool:
    return character.isprintable() and not character.isspace()
