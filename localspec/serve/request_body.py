"""Reads request bodies, within limits of size, time and memory."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from localspec.serve.api_error import ApiError

MAX_BODY_BYTES = 32 * 1024 * 1024
_MAX_BYTES_IN_FLIGHT = 4 * MAX_BODY_BYTES
"""Of all bodies that are being read."""
_PART_TIMEOUT = 10.0
"""Seconds without a byte."""
_BODY_TIMEOUT = 120.0


class BodyReader:
    def __init__(self) -> None:
        self._n_in_flight = 0

    async def read(self, request: Request) -> bytes:
        """Raises ApiError for a body that is too large or too slow."""
        if _content_length(request) > MAX_BODY_BYTES:
            raise _too_large()
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(_BODY_TIMEOUT):
                stream = request.stream().__aiter__()
                while True:
                    async with asyncio.timeout(_PART_TIMEOUT):
                        part = await anext(stream, None)
                    if part is None:
                        break
                    size += len(part)
                    self._n_in_flight += len(part)
                    if size > MAX_BODY_BYTES:
                        raise _too_large()
                    if self._n_in_flight > _MAX_BYTES_IN_FLIGHT:
                        raise ApiError(
                            429, "Too many large requests.", headers={"Retry-After": "1"}
                        )
                    parts.append(part)
            return b"".join(parts)
        except TimeoutError:
            raise ApiError(
                408, "The body came too slowly.", headers={"Connection": "close"}
            ) from None
        except ClientDisconnect:
            raise ApiError(408, "The client has left.") from None
        finally:
            self._n_in_flight -= size


def _content_length(request: Request) -> int:
    text = request.headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0


def _too_large() -> ApiError:
    return ApiError(
        413,
        f"The body is larger than {MAX_BODY_BYTES >> 20} MiB.",
        headers={"Connection": "close"},
    )
