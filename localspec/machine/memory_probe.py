"""Memory probe: a child process in which llama.cpp counts the buffers of pairs.

llama.cpp loads the models without data, so a header-only file is enough: a GGUF header
followed by a hole. The child takes over half a second to start and then 25 to 50 ms for
each setting, so it stays and answers one request after the other. It exits by itself
ten seconds after the last one, because a GPU's driver holds memory for every process
that uses it.

If a child that was running exits instead of answering, the request is sent once more,
to a new one. A request never waits longer than its time limit.
"""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from localspec import child_process
from localspec.machine.device import Device
from localspec.models import draft_heads, pair_compatibility
from localspec.models.gguf.header import Header
from localspec.models.gguf.writer import data_size, serialize_header
from localspec.protocol.json_values import from_json, parse_object
from localspec.protocol.wire import LoadCommand
from localspec.sanitize import sanitize
from localspec.temporary_files import TemporaryFolder

_START_SECONDS = 60.0
"""Time for the child to start: a driver may have to wake a GPU."""
_REPLY_SECONDS = 10.0
_MAX_HEADER_FILES = 4
"""Header-only files that are kept: a pair that is shown, and the one before."""


class ProbeError(Exception):
    """llama.cpp cannot be run or rejects the model; the message has the reason."""


class _ChildExitedError(ProbeError):
    """The child exited instead of answering."""


class LlamaCppInfo(Struct, frozen=True):
    """The installed llama.cpp and its devices: the reply to the request `devices`."""

    devices: tuple[Mapping[str, Any], ...]
    """As ggml reports them: name, description, type, free, total, id, backend."""
    supports_gpu_offload: bool
    library_path: str = ""
    features: str = ""  # llama_print_system_info: CPU : SSE3 = 1 | AVX = 1 | …
    missing_head_functions: tuple[str, ...] = ()
    """Functions that heads need and this build does not export."""


class ModelBuffers(Struct, frozen=True):
    """What llama.cpp counts of one model in a load without data, in bytes."""

    compute: Mapping[str, int]  # Compute buffers by device.
    kv: int  # KV cache and recurrent states on all devices.


class PairBuffers(Struct, frozen=True):
    """The reply to the request `count`."""

    target: ModelBuffers
    draft: ModelBuffers | None
    has_hidden_states: bool = True
    """The target's compute buffers include the hidden states that a head reads.

    They cannot with the builds of Microsoft's compiler.
    """


_Reply = TypeVar("_Reply", LlamaCppInfo, PairBuffers)


def query_llama_cpp() -> LlamaCppInfo:
    """Starts a new child: llama.cpp may have been installed anew. Raises ProbeError."""
    with _lock:
        _probe.close()
        info = _probe.ask(LlamaCppInfo, {"op": "devices"})
    return replace(
        info,
        library_path=sanitize(info.library_path, multiline=False),
        features=sanitize(info.features, multiline=False).strip(),
    )


def count_buffers(
    load: LoadCommand,
    target: Header,
    draft: Header | None = None,
    *,
    simulated: Sequence[Device] = (),
    used_by_target: Mapping[str, int] | None = None,
) -> PairBuffers:
    """Buffers of the pair on the devices that llama.cpp chooses. Raises ProbeError.

    The paths in `load` are ignored. `simulated` are GPUs that take the place of this
    computer's. `used_by_target` has the bytes that the target takes on each of them: a
    draft is split over several by what is left.
    """
    if not load.draft:
        draft = None
    verdict = pair_compatibility.find_head_mismatch(target, draft)
    if verdict is not None:  # llama.cpp would abort
        raise ProbeError(verdict.detail)
    head = ""
    is_separate_file = False
    target_layers: tuple[int, ...] = ()
    if draft is not None:
        kind = draft_heads.draft_kind_for_target(target, draft)
        is_separate_file = not draft_heads.is_own_mtp_layer(target, draft)
        if kind != "model":
            head = kind
            target_layers = draft_heads.target_layers(draft)
    used = used_by_target or {}
    gpus = [_describe_gpu(device, used_bytes=0) for device in simulated]
    draft_gpus = [
        _describe_gpu(device, used_bytes=used.get(device.name, 0))
        for device in simulated
    ]
    with _lock:
        files = replace(
            load, target=str(_probe.write_header_only_file(target)), draft=None
        )
        if draft is not None:
            files = replace(files, draft=str(_probe.write_header_only_file(draft)))
        request = {
            "op": "count",
            "load": to_builtins(files),
            "head": head,
            "separate": is_separate_file,
            "target_layers": target_layers,
            "gpus": gpus,
            "draft_gpus": draft_gpus,
        }
        return _probe.count(request)


def _describe_gpu(device: Device, used_bytes: int) -> dict[str, Any]:
    """The fields of simulated_gpu.GpuDescription."""
    free = device.free or 0
    return {
        "name": device.name,
        "backend": device.backend,
        "free": max(1, free - used_bytes),
        "total": device.total or device.free or 1,
    }


def close() -> None:
    """End the child, so that a GPU's driver frees what it holds for it.

    This does not wait: a child that is busy ends by itself later.
    """
    if _lock.acquire(blocking=False):
        try:
            _probe.close()
        finally:
            _lock.release()


def _command() -> list[str]:
    parent = str(child_process.parent_pid_for_child())
    return [sys.executable, "-P", "-m", "localspec.machine.memory_probe_child", parent]


class _WarmProbe:
    """The child process, and the files that it reads."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: TemporaryFolder | None = None
        self._files: dict[int, tuple[Header, Path]] = {}
        """Header-only files by the identity of their header, the last used last."""
        self._n_written = 0
        self._counted: dict[str, PairBuffers] = {}
        """This child's replies by request: another child may see other devices."""

    def count(self, request: Mapping[str, Any]) -> PairBuffers:
        """The reply to a request `count`, also from an earlier time.

        Raises ProbeError.
        """
        key = json.dumps(request)
        if self._process is None or self._process.poll() is not None:
            self._counted.clear()
        if key not in self._counted:
            self._counted[key] = self.ask(PairBuffers, request)
        return self._counted[key]

    def ask(self, reply_type: type[_Reply], request: Mapping[str, Any]) -> _Reply:
        """Raises ProbeError."""
        line = json.dumps(request).encode() + b"\n"
        was_warm = self._process is not None
        try:
            reply_line = self._exchange_lines(line)
        except _ChildExitedError:
            if not was_warm:
                raise
            # It may have exited because it was idle, or because of an earlier request.
            reply_line = self._exchange_lines(line)
        try:
            reply = parse_object(reply_line)
            if "failed" in reply:
                raise ProbeError(sanitize(str(reply["failed"]), multiline=False))
            return from_json(reply_type, reply)
        except ValueError:
            self.close()
            raise ProbeError("invalid reply from the probe process") from None

    def _exchange_lines(self, request: bytes) -> bytes:
        """Send a line to the child, and start one if there is none; read its reply."""
        process = self._process
        seconds = _REPLY_SECONDS
        if process is None:
            seconds += _START_SECONDS
            process = self._start()
        assert process.stdin is not None and process.stdout is not None
        is_late = threading.Event()

        def stop() -> None:
            is_late.set()
            process.kill()

        watchdog = threading.Timer(seconds, stop)
        watchdog.daemon = True
        watchdog.start()
        line = b""
        try:
            with suppress(OSError):
                process.stdin.write(request)
                line = process.stdout.readline()
        finally:
            watchdog.cancel()
        if is_late.is_set():
            self.close()
            raise ProbeError(f"no reply from llama.cpp within {seconds:g} s")
        if not line:
            raise _ChildExitedError(self._explain_exit())
        return line

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            self._process = child_process.start(_command())
        except OSError as error:
            message = f"cannot start a process: {error.strerror}"
            raise ProbeError(message) from error
        return self._process

    def _explain_exit(self) -> str:
        """Reaps the child and returns the reason that it printed."""
        process = self._process
        assert process is not None and process.stderr is not None
        process.kill()
        printed = process.stderr.read().decode("utf-8", "replace")
        self.close()
        lines = printed.strip().splitlines()
        errors = [line for line in lines if "GGML_ASSERT" in line or "Error" in line]
        reasons = errors or lines or [f"exit code {process.returncode}"]
        return f"llama.cpp crashed: {sanitize(reasons[-1], multiline=False)}"

    def close(self) -> None:
        process = self._process
        self._process = None
        self._counted.clear()
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()

    def delete_files(self) -> None:
        self._files.clear()
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def write_header_only_file(self, header: Header) -> Path:
        """A sparse file with this header and the size of the whole model.

        Raises ProbeError.
        """
        found = self._files.pop(id(header), None)
        if found is not None:
            self._files[id(header)] = found
            return found[1]
        try:
            if self._folder is None:
                self._folder = TemporaryFolder("headers")
            self._n_written += 1
            path = self._folder.path / f"{self._n_written}.gguf"
            _write_header_only_file(header, path)
        except (OSError, OverflowError) as error:
            raise ProbeError(f"cannot write a header-only file: {error}") from error
        self._files[id(header)] = header, path
        if len(self._files) > _MAX_HEADER_FILES:
            oldest = next(iter(self._files))
            _, old_path = self._files.pop(oldest)
            with suppress(OSError):
                old_path.unlink()
        return path


def _write_header_only_file(header: Header, path: Path) -> None:
    """Raises OSError, and OverflowError for a size that no file can have."""
    content = serialize_header(header)
    size = len(content) + data_size(header)
    if sys.platform == "win32" and shutil.disk_usage(path.parent).free < size:
        raise OSError(0, "not enough disk space (Windows does not create sparse files)")
    with path.open("xb") as file:
        file.write(content)
        file.truncate(size)


_lock = threading.Lock()
_probe = _WarmProbe()


@atexit.register
def _clean_up() -> None:
    _probe.close()
    _probe.delete_files()
