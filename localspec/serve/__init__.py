"""The HTTP server: OpenAI's API, and llama.cpp's small routes, over one engine."""

from types import ModuleType

from localspec.errors import UsageError
from localspec.install_hints import SERVE_PACKAGES, install_command


def import_http_server() -> ModuleType:
    """The module `http_server`.

    Raises UsageError without the packages of the extra `serve`.
    """
    try:
        from localspec.serve import http_server  # noqa: PLC0415  an optional extra
    except ImportError as missing:
        if (missing.name or "").split(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise UsageError(
            "The server needs two more packages: starlette and uvicorn.",
            f"Install them: {install_command(*SERVE_PACKAGES)}",
        ) from None
    return http_server
