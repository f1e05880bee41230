"""What a pair would take, asked of llama.cpp itself: a load without data, in a child process.

No byte of the weights is needed: a ghost is a file's header and nothing behind it.
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
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

from localspec import child_process, paths
from localspec.errors import LocalspecError
from localspec.machine.device import Device
from localspec.machine.memory_by_device import HOST, DeviceMemory, MemoryByDevice, MemoryEstimate
from localspec.models import draft_heads
from localspec.models.gguf import header as headers
from localspec.models.gguf.header import Header
from localspec.models.synthetic_header import data_size, serialize_header
from localspec.protocol.wire import LoadCommand
from localspec.sanitize import sanitize

__all__ = ["MemoryProbe", "ProbeError"]

_SIMULATED_ERROR = 0.02
"""Share of the graph's memory by which a card that is here may differ from one that is not."""


def _command() -> list[str]:
    parent = str(child_process.parent_pid_for_child())
    return [sys.executable, "-P", "-m", "localspec.machine.probe_child", parent]


class MemoryProbe:
    """One child process, started at the first question and again after a death; from one thread."""

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
        self._can_simulate: bool | None = None

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

    # --- questions ------------------------------------------------------------------------

    def list_devices(self) -> list[dict[str, Any]]:
        """What ggml reports: name, description, type, free, total, id, backend, caps.

        Raises ProbeError.
        """
        return list(self._request("devices")["devices"])

    def supports_gpu_offload(self) -> bool:
        """Whether the installed llama.cpp can use a graphics card.  Raises ProbeError."""
        return bool(self._request("devices")["offloads"])

    def query_info(self) -> dict[str, Any]:
        """Both, with the `library`'s path, the CPU `features` that it was built for, and the
        functions that are `lacking` for heads.

        Raises ProbeError.
        """
        return self._request("devices")

    def estimate_memory(
        self, load: LoadCommand, devices: Sequence[Device] | None = None
    ) -> MemoryEstimate:
        """What the pair would take of these devices; None for llama.cpp's own choice.

        The files of `load` are local, whole or ghosts.  Raises ProbeError.
        """
        pretend = any(device.simulated for device in devices or ())
        if pretend and not self.can_simulate_gpus():
            raise ProbeError("a pretend card does not work with this llama.cpp")
        head = _head_request(load)
        draft = str(self._header_only_files.from_file(load.draft)) if load.draft else None
        asked = replace(
            load, target=str(self._header_only_files.from_file(load.target)), draft=draft
        )
        told = self._request(
            "project",
            load=asdict(asked),
            devices=None if devices is None else [asdict(device) for device in devices],
            **head,
        )
        return _parse_estimate(told, pretend)

    def can_simulate_gpus(self) -> bool:
        """Whether pretend cards tell the truth here: tried once for each llama.cpp.

        Raises ProbeError where it cannot be tried.
        """
        if self._can_simulate is None:
            self._can_simulate = self._load_selftest_result()
        return self._can_simulate

    def write_header_only_file(self, header: Header, folder: Path | None = None) -> Path:
        """A file with this header and nothing behind it: sparse, of the whole model's size.

        In a folder of the probe's own unless another is given.  Raises ProbeError.
        """
        return self._header_only_files.from_header(header, folder)

    # --- within ---------------------------------------------------------------------------

    def _load_selftest_result(self) -> bool:
        file = paths.data_dir() / "pretend.json"
        version = metadata.version("llama-cpp-python")
        with suppress(OSError, ValueError, TypeError, AttributeError):
            known = json.loads(file.read_text(encoding="utf-8")).get(version)
            if isinstance(known, bool):
                return known
        try:
            model = str(paths.package_data_dir() / "demo" / "demo-draft.gguf")
            passed = bool(self._request("selftest", model=model)["ok"])
        except ProbeError:  # it died of it, or does not find its way
            passed = False
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({version: passed}), encoding="utf-8")
        return passed

    def _request(self, op: str, **fields: Any) -> dict[str, Any]:
        if self._child is None or self._child.exited:
            self._child = ProbeProcess(self._command(), self._start_timeout)
        told = self._child.request({"op": op, **fields}, self._timeout)
        if "failed" in told:
            raise ProbeError(sanitize(str(told["failed"]), multiline=False))
        return told


def _head_request(load: LoadCommand) -> dict[str, Any]:
    """What kind of head drafts, and the layers that it reads.  Raises ProbeError."""
    try:
        target = headers.read(Path(load.target))
        draft = headers.read(Path(load.draft)) if load.draft else None
    except LocalspecError as error:
        raise ProbeError(error.message) from error
    kind = draft_heads.draft_kind_for_target(target, draft) if draft else "model"
    if draft is None or kind == "model":
        return {}
    if draft_heads.is_own_mtp_layer(target, draft):
        return {"head": kind, "layers": []}
    if (
        verdict := draft_heads.check_head_without_vocabulary(
            draft_heads.target_from_header(target), draft
        )
    ) is not None:  # it would abort
        raise ProbeError(verdict.detail)
    return {"head": kind, "layers": draft_heads.target_layers(draft)}


def _parse_estimate(reply: Mapping[str, Any], simulated: bool) -> MemoryEstimate:
    target, draft = _parse_memory(reply["target"]), reply["draft"] and _parse_memory(reply["draft"])
    both = [ledger for ledger in (target, draft) if ledger]
    names = {name for ledger in both for name in ledger.on}
    graphs = [sum(ledger.of(name).compute for ledger in both) for name in names]
    error = int(_SIMULATED_ERROR * max(graphs, default=0)) if simulated else 0
    error += reply["doubt"] if len(names - {HOST}) > 1 else 0
    note = "The draft cannot take back a guess, so it is not kept." if reply.get("dropped") else ""
    return MemoryEstimate(target, draft, "exact", error, note)


def _parse_memory(body: Mapping[str, Any]) -> MemoryByDevice:
    on = {name: DeviceMemory(**counted) for name, counted in body["on"].items()}
    return MemoryByDevice(on, body["output"])


# --- The probe's child process from outside: its pipes, its patience, its end.


class ProbeError(Exception):
    """llama.cpp cannot be asked, or does not take the model; the text says why."""


class ProbeProcess:
    """The process, its pipes, and the two threads that empty them."""

    def __init__(self, command: Sequence[str], seconds: float) -> None:
        self.exited = False
        self._request_id = 0
        self._replies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._stderr_tail = b""
        """The last it said on stderr."""
        try:
            self._process = child_process.start(command)
        except OSError as error:
            raise ProbeError(f"no child process: {error.strerror}") from error
        self._threads = [
            threading.Thread(target=work, daemon=True)
            for work in (self._read_stdout, self._read_stderr)
        ]
        for thread in self._threads:
            thread.start()
        self._next_reply(seconds)

    def request(self, body: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Raises ProbeError where it dies or takes longer; it is gone then."""
        self._request_id += 1
        line = json.dumps({"id": self._request_id, **body}, separators=(",", ":"))
        assert self._process.stdin is not None
        with suppress(OSError):  # a process that is gone says so on its other pipe
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
            raise ProbeError(f"llama.cpp gave no answer within {seconds:g} s") from None
        if not line.endswith(b"\n"):
            self.stop()
            raise ProbeError(f"llama.cpp died of it: {self._crash_reason()}")
        told: Any = None
        with suppress(ValueError):
            told = json.loads(line)
        if not isinstance(told, dict) or told.get("re") != self._request_id:
            self._process.kill()
            self.stop()
            raise ProbeError("its answer is none")
        return told

    def _crash_reason(self) -> str:
        lines = self._stderr_tail.decode("utf-8", "replace").strip().splitlines()
        said = [line for line in lines if "GGML_ASSERT" in line or "Error" in line] or lines[-1:]
        return sanitize(
            said[-1] if said else f"exit code {self._process.returncode}", multiline=False
        )

    def _read_stdout(self) -> None:
        """A line without its end is the last: the process is gone."""
        assert self._process.stdout is not None
        with suppress(OSError, ValueError):
            pieces = b""
            while part := self._process.stdout.read(65536):
                *lines, pieces = (pieces + part).split(b"\n")
                for line in lines:
                    self._replies.put(line + b"\n")
        self._replies.put(b"")

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        with suppress(OSError, ValueError):
            while part := self._process.stderr.read(65536):
                self._stderr_tail = (self._stderr_tail + part)[-8192:]


# --- Ghosts of models: a header's bytes and a hole where the weights would be.


class HeaderOnlyFiles:
    """Those written so far, in a folder of their own that goes with them."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._known: dict[tuple[str, int, int], Path] = {}
        """By path, size and time of the last change."""

    def from_header(self, header: Header, folder: Path | None = None) -> Path:
        """Raises ProbeError where it cannot be written."""
        begins = serialize_header(header)
        name = hashlib.blake2b(begins, digest_size=12).hexdigest()
        try:
            path = (folder or self._temporary_folder()) / f"{name}.gguf"
            if not path.exists():
                _write_sparse(path, begins, len(begins) + data_size(header))
        except (OSError, OverflowError) as error:
            raise ProbeError(f"no ghost of the model: {error}") from error
        return path

    def from_file(self, file: str) -> Path:
        """Of a local model, all its parts together.  Raises ProbeError."""
        path = Path(file)
        try:
            about = path.stat()
            key = (file, about.st_size, about.st_mtime_ns)
            if key not in self._known:
                self._known[key] = self.from_header(_read_merged_header(path))
        except OSError as error:
            raise ProbeError(f"{sanitize(path.name)}: {error.strerror}") from error
        except LocalspecError as error:
            raise ProbeError(error.message) from error
        return self._known[key]

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
        self._folder = None
        self._known.clear()

    def _temporary_folder(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(
                prefix="localspec-ghosts-", ignore_cleanup_errors=True
            )
        return Path(self._folder.name)


def _read_merged_header(path: Path) -> Header:
    """A local model's header, with the tensors of all its parts."""
    header = headers.read(path)
    if header.split is None:
        return header
    headers.check_loadable(path)  # the parts are there
    stem = path.name.removesuffix(_split_suffix(1, header.split.count))
    return merge_split_headers(
        [
            headers.read(path.with_name(stem + _split_suffix(number, header.split.count)))
            for number in range(1, header.split.count + 1)
        ]
    )


def merge_split_headers(parts: Sequence[Header]) -> Header:
    """One header of a model in several files: the first one's keys, everyone's tensors."""
    tensors = []
    begins = 0
    for part in parts:
        tensors += [t._replace(offset=begins + t.offset) for t in part.tensors]
        begins += data_size(part)
    keys = {key: value for key, value in parts[0].keys.items() if not key.startswith("split.")}
    return replace(parts[0], keys=keys, tensors=tuple(tensors), split=None)


def _split_suffix(number: int, count: int) -> str:
    return f"-{number:05d}-of-{count:05d}.gguf"


def _write_sparse(path: Path, begins: bytes, size: int) -> None:
    """With a hole behind the beginning."""
    if sys.platform == "win32" and shutil.disk_usage(path.parent).free < size:
        raise OSError(0, "the disk has no room, and Windows makes no holes in files")
    try:
        with path.open("xb") as file:
            file.write(begins)
            file.truncate(size)
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise
