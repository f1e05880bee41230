"""Memory probe: runs llama.cpp in a child process to count the buffers of pairs.

llama.cpp loads the models without data, so a header-only file is enough: a GGUF header
followed by a hole.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from localspec import child_process
from localspec.models import draft_heads, pair_compatibility
from localspec.models.gguf.header import Header
from localspec.models.gguf.writer import data_size, serialize_header
from localspec.protocol.json_dataclasses import parse_object
from localspec.protocol.wire import LoadCommand
from localspec.sanitize import sanitize

_START_SECONDS, _REPLY_SECONDS = 60.0, 10.0
"""Time for the child to start (a driver may have to wake a GPU), and for each reply."""

PairRequest = tuple[LoadCommand, tuple[Header, Header | None]]
"""Settings, and the headers of target and draft; the paths in the settings are ignored.
"""


class ProbeError(Exception):
    """llama.cpp cannot be run or rejects the model; the message has the reason."""


class LlamaCppInfo(Struct, frozen=True):
    """The installed llama.cpp and its devices."""

    devices: tuple[Mapping[str, Any], ...]
    """As ggml reports them: name, description, type, free, total, id, backend."""
    supports_gpu_offload: bool
    library_path: str = ""
    features: str = ""  # llama_print_system_info: CPU : SSE3 = 1 | AVX = 1 | …
    missing_head_functions: tuple[str, ...] = ()
    """Functions that heads need and this build does not export."""


class ModelBuffers(Struct, frozen=True):
    """What llama.cpp counts of one model in a load without data, in bytes."""

    compute: Mapping[str, int]
    """Compute buffers by device.

    Without hidden states for a head, which are requested later.
    """
    kv: int  # KV cache and recurrent states on all devices.


class PairBuffers(Struct, frozen=True):
    target: ModelBuffers
    draft: ModelBuffers | None


def query_llama_cpp() -> LlamaCppInfo:
    """Raises ProbeError."""
    (info,) = _run([{"op": "devices"}])
    return LlamaCppInfo(
        tuple(info["devices"]),
        bool(info["offloads"]),
        sanitize(str(info["library"]), multiline=False),
        sanitize(str(info["features"]), multiline=False).strip(),
        tuple(map(str, info["lacking"])),
    )


def count_buffers(
    load: LoadCommand, target: Header, draft: Header | None = None
) -> PairBuffers:
    """Buffers of the pair on the devices that llama.cpp chooses.  Raises ProbeError."""
    return count_each([(load, (target, draft))])[0]


def count_each(requests: Sequence[PairRequest]) -> list[PairBuffers]:
    """As `count_buffers`, for several pairs in one child process."""
    with tempfile.TemporaryDirectory(
        prefix="localspec-headers-", ignore_cleanup_errors=True
    ) as folder:
        replies = _run(
            [
                _count_request(
                    load, target, draft if load.draft else None, Path(folder)
                )
                for load, (target, draft) in requests
            ]
        )
    return [
        PairBuffers(
            ModelBuffers(**reply["target"]),
            reply["draft"] and ModelBuffers(**reply["draft"]),
        )
        for reply in replies
    ]


def _count_request(
    load: LoadCommand, target: Header, draft: Header | None, folder: Path
) -> dict[str, Any]:
    """Raises ProbeError for a head that llama.cpp would abort on."""
    if (verdict := pair_compatibility.find_head_mismatch(target, draft)) is not None:
        raise ProbeError(verdict.detail)
    kind = draft_heads.draft_kind_for_target(target, draft) if draft else "model"
    files = replace(
        load,
        target=str(_write_header_only_file(target, folder)),
        draft=str(_write_header_only_file(draft, folder)) if draft else None,
    )
    return {
        "op": "count",
        "load": to_builtins(files),
        "head": kind.replace("model", ""),
        "separate": draft is not None
        and not draft_heads.is_own_mtp_layer(target, draft),
    }


def _command() -> list[str]:
    parent = str(child_process.parent_pid_for_child())
    return [sys.executable, "-P", "-m", "localspec.machine.memory_probe_child", parent]


def _run(requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The replies of a new child process.  Raises ProbeError."""
    try:
        process = child_process.start(_command())
    except OSError as error:
        raise ProbeError(f"cannot start a process: {error.strerror}") from error
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    seconds = _START_SECONDS + _REPLY_SECONDS * len(requests)
    try:
        stdout, stderr = process.communicate(lines.encode(), timeout=seconds)
    except subprocess.TimeoutExpired:
        raise ProbeError(f"no reply from llama.cpp within {seconds:g} s") from None
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    try:
        replies = [parse_object(line) for line in stdout.splitlines()]
    except ValueError:
        raise ProbeError("invalid reply from the probe process") from None
    for reply in replies:
        if "failed" in reply:
            raise ProbeError(sanitize(str(reply["failed"]), multiline=False))
    if len(replies) < len(requests):
        said = stderr.decode("utf-8", "replace").strip().splitlines()
        errors = [
            line for line in said if "GGML_ASSERT" in line or "Error" in line
        ] or said
        reason = errors[-1] if errors else f"exit code {process.returncode}"
        raise ProbeError(f"llama.cpp crashed: {sanitize(reason, multiline=False)}")
    return replies


def _write_header_only_file(header: Header, folder: Path) -> Path:
    """A sparse file with this header and the size of the whole model.

    Raises ProbeError.
    """
    content = serialize_header(header)
    size = len(content) + data_size(header)
    try:
        if sys.platform == "win32" and shutil.disk_usage(folder).free < size:
            raise OSError(
                0, "not enough disk space (Windows does not create sparse files)"
            )
        with tempfile.NamedTemporaryFile(
            dir=folder, suffix=".gguf", delete=False
        ) as file:
            file.write(content)
            file.truncate(size)
    except (OSError, OverflowError) as error:
        raise ProbeError(f"cannot write a header-only file: {error}") from error
    return Path(file.name)
