"""Memory probe: runs llama.cpp in a child process to count the buffers of a pair.

llama.cpp loads the models without data, so a header-only file is enough: a GGUF header followed by
a hole.
"""

from __future__ import annotations

import hashlib
import json
import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from localspec import child_process
from localspec.errors import LocalspecError
from localspec.models import draft_heads
from localspec.models.gguf import header as headers
from localspec.models.gguf.header import Header
from localspec.models.gguf.writer import data_size, merge_split_headers, serialize_header
from localspec.protocol.wire import LoadCommand
from localspec.sanitize import sanitize


class ProbeError(Exception):
    """llama.cpp cannot be run or rejects the model; the message has the reason."""


@dataclass(frozen=True, slots=True)
class ModelBuffers:
    """What llama.cpp counts of one model in a load without data, in bytes."""

    compute: Mapping[str, int]
    """Compute buffers by device.  Without hidden states for a head, which are requested later."""
    kv: int
    """KV cache and recurrent states on all devices."""


@dataclass(frozen=True, slots=True)
class PairBuffers:
    target: ModelBuffers
    draft: ModelBuffers | None
    """None also for a draft that the engine does not use because it cannot roll back."""


def _command() -> list[str]:
    parent = str(child_process.parent_pid_for_child())
    return [sys.executable, "-P", "-m", "localspec.machine.probe_child", parent]


class MemoryProbe:
    """Client of one child process, started on demand and again after a crash.  Not thread-safe."""

    def __init__(
        self,
        command: Callable[[], Sequence[str]] = _command,
        *,
        start_timeout: float = 60,
        timeout: float = 10,
    ) -> None:
        self._command = command
        self._start_timeout, self._timeout = start_timeout, timeout
        self._child: ProbeProcess | None = None
        self._header_only_files = HeaderOnlyFiles()

    def __enter__(self) -> MemoryProbe:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None
        self._header_only_files.close()

    def query_info(self) -> dict[str, Any]:
        """`devices` (name, description, type, free, total, id, backend, caps), `offloads`, the path
        of the `library`, CPU `features`, and functions `lacking` for heads.  Raises ProbeError.
        """
        return self._request("devices")

    def count_buffers(self, load: LoadCommand) -> PairBuffers:
        """Buffers of the pair on the devices that llama.cpp chooses.

        The files of `load` are local, complete or header-only.  Raises ProbeError.
        """
        head_fields = _head_request(load)
        files = self._header_only_files
        draft = str(files.from_file(load.draft)) if load.draft else None
        header_only = replace(load, target=str(files.from_file(load.target)), draft=draft)
        reply = self._request("count", load=asdict(header_only), **head_fields)
        draft_buffers = reply["draft"] and ModelBuffers(**reply["draft"])
        return PairBuffers(ModelBuffers(**reply["target"]), draft_buffers)

    def write_header_only_file(self, header: Header, folder: Path | None = None) -> Path:
        """A sparse file with this header and the size of the whole model.

        In a temporary folder of the probe by default.  Raises ProbeError.
        """
        return self._header_only_files.from_header(header, folder)

    def _request(self, op: str, **fields: Any) -> dict[str, Any]:
        if self._child is None or self._child.exited:
            self._child = ProbeProcess(self._command(), self._start_timeout)
        reply = self._child.request({"op": op, **fields}, self._timeout)
        if "failed" in reply:
            raise ProbeError(sanitize(str(reply["failed"]), multiline=False))
        return reply


def _head_request(load: LoadCommand) -> dict[str, Any]:
    """Request fields for a head: its kind, and whether it has a file.  Raises ProbeError."""
    try:
        target = headers.read(Path(load.target))
        draft = headers.read(Path(load.draft)) if load.draft else None
    except LocalspecError as error:
        raise ProbeError(error.message) from error
    kind = draft_heads.draft_kind_for_target(target, draft) if draft else "model"
    if draft is None or kind == "model":
        return {"head": ""}
    if draft_heads.is_own_mtp_layer(target, draft):
        return {"head": kind, "separate": False}
    if (
        verdict := draft_heads.check_head_without_vocabulary(
            draft_heads.target_from_header(target), draft
        )
    ) is not None:  # llama.cpp would abort
        raise ProbeError(verdict.detail)
    return {"head": kind, "separate": True}


class ProbeProcess:
    """The child process, its pipes, and two threads that read them."""

    def __init__(self, command: Sequence[str], seconds: float) -> None:
        self.exited = False
        self._request_id = 0
        self._replies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._stderr_tail = b""
        try:
            self._process = child_process.start(command)
        except OSError as error:
            raise ProbeError(f"cannot start a process: {error.strerror}") from error
        self._threads = [
            threading.Thread(target=work, daemon=True)
            for work in (self._read_stdout, self._read_stderr)
        ]
        for thread in self._threads:
            thread.start()
        self._next_reply(seconds)

    def request(self, body: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Raises ProbeError on a crash or timeout; the process has ended then."""
        self._request_id += 1
        line = json.dumps({"id": self._request_id, **body}, separators=(",", ":"))
        assert self._process.stdin is not None
        with suppress(OSError):  # if the process is gone, _next_reply raises
            rest = memoryview(line.encode() + b"\n")
            while rest:
                rest = rest[self._process.stdin.write(rest) or 0 :]
        return self._next_reply(seconds)

    def stop(self) -> None:
        self.exited = True
        child_process.terminate(self._process, grace_seconds=1)
        for thread in self._threads:
            thread.join(timeout=1)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _next_reply(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._replies.get(timeout=seconds)
        except queue.Empty:
            self._process.kill()
            self.stop()
            raise ProbeError(f"no reply from llama.cpp within {seconds:g} s") from None
        if not line.endswith(b"\n"):
            self.stop()
            raise ProbeError(f"llama.cpp crashed: {self._crash_reason()}")
        reply: Any = None
        with suppress(ValueError):
            reply = json.loads(line)
        if not isinstance(reply, dict) or reply.get("re") != self._request_id:
            self._process.kill()
            self.stop()
            raise ProbeError("invalid reply from the probe process")
        return reply

    def _crash_reason(self) -> str:
        lines = self._stderr_tail.decode("utf-8", "replace").strip().splitlines()
        errors = [line for line in lines if "GGML_ASSERT" in line or "Error" in line] or lines[-1:]
        return sanitize(
            errors[-1] if errors else f"exit code {self._process.returncode}", multiline=False
        )

    def _read_stdout(self) -> None:
        """Queues complete lines, then b"" when the process ends."""
        assert self._process.stdout is not None
        with suppress(OSError, ValueError):
            rest = b""
            while part := self._process.stdout.read(65536):
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    self._replies.put(line + b"\n")
        self._replies.put(b"")

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        with suppress(OSError, ValueError):
            while part := self._process.stderr.read(65536):
                self._stderr_tail = (self._stderr_tail + part)[-8192:]


class HeaderOnlyFiles:
    """Creates header-only files in a temporary folder, deleted on close."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._by_source: dict[tuple[str, int, int], Path] = {}
        """By path, size and modification time of the model file."""

    def from_header(self, header: Header, folder: Path | None = None) -> Path:
        """Raises ProbeError if it cannot be written."""
        content = serialize_header(header)
        name = hashlib.blake2b(content, digest_size=12).hexdigest()
        try:
            path = (folder or self._temporary_folder()) / f"{name}.gguf"
            if not path.exists():
                _write_sparse(path, content, len(content) + data_size(header))
        except (OSError, OverflowError) as error:
            raise ProbeError(f"cannot write a header-only file: {error}") from error
        return path

    def from_file(self, file: str) -> Path:
        """For a local model with all its parts.  Raises ProbeError."""
        path = Path(file)
        try:
            stat = path.stat()
            key = (file, stat.st_size, stat.st_mtime_ns)
            if key not in self._by_source:
                self._by_source[key] = self.from_header(_read_merged_header(path))
        except OSError as error:
            raise ProbeError(f"{sanitize(path.name)}: {error.strerror}") from error
        except LocalspecError as error:
            raise ProbeError(error.message) from error
        return self._by_source[key]

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
        self._folder = None
        self._by_source.clear()

    def _temporary_folder(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(
                prefix="localspec-headers-", ignore_cleanup_errors=True
            )
        return Path(self._folder.name)


def _read_merged_header(path: Path) -> Header:
    header = headers.read(path)
    if header.split is None:
        return header
    headers.check_loadable(path)  # raises if a part is missing
    stem = path.name.removesuffix(_split_suffix(1, header.split.count))
    return merge_split_headers(
        [
            headers.read(path.with_name(stem + _split_suffix(number, header.split.count)))
            for number in range(1, header.split.count + 1)
        ]
    )


def _split_suffix(number: int, count: int) -> str:
    return f"-{number:05d}-of-{count:05d}.gguf"


def _write_sparse(path: Path, content: bytes, size: int) -> None:
    if sys.platform == "win32" and shutil.disk_usage(path.parent).free < size:
        raise OSError(0, "not enough disk space (Windows does not create sparse files)")
    try:
        with path.open("xb") as file:
            file.write(content)
            file.truncate(size)
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise
