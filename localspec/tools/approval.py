"""Which calls of tools run: a person is asked, unless the tool was allowed before.

A permission is for a tool as it was when it was given (`ToolDefinition.fingerprint`). A
server that describes its tool in another way, or another server under the same name, is
asked about again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct, to_builtins

from localspec import data_files
from localspec.errors import StorageError
from localspec.paths import DataFile
from localspec.tools.tool_types import ToolDefinition

Verdict = Literal["once", "chat", "always", "named", "no", "stopped", "wrong"]
"""What became of a call.

"once", "chat", "always": a person allowed it, for so long. "named": the command line
named the tool (`--allow`). "no": a person refused it. "stopped": the answer was stopped.
"wrong": it could not run, so nobody was asked.
"""
REFUSALS: tuple[Verdict, ...] = ("no", "stopped", "wrong")
"""The verdicts with which a call does not run, or not to its end."""


class CallRequest(Struct, frozen=True):
    """A call that the model wrote.

    All texts are untrusted; only `arguments_text` may be shown as it is.
    """

    call_id: str
    name: str
    """The name that the model wrote."""
    tool: ToolDefinition | None
    """None: there is no such tool."""
    arguments: Mapping[str, Any]
    arguments_text: str
    """The arguments as JSON, without control characters."""
    problem: str = ""
    """Why the call cannot run. Then nobody is asked, and the model receives this."""

    @property
    def full_name(self) -> str:
        """The tool's unique name; the name that the model wrote if there is none."""
        if self.tool is None:
            return self.name
        return self.tool.full_name


class CallDecision(Struct, frozen=True):
    verdict: Verdict
    reason: str = ""
    """What the model is told about a "no", or about a call that is "wrong"."""

    @property
    def is_allowed(self) -> bool:
        return self.verdict not in REFUSALS


class SavedApproval(Struct, frozen=True):
    """A tool that is always allowed: a row of the file."""

    tool: str
    """Its full name, such as `time.get_current_time`."""
    fingerprint: str


class Approvals:
    """What a person has allowed: always, in this chat, or on the command line.

    The thread of an answer asks, and another one may change what is allowed.
    """

    def __init__(self, *, reads_saved: bool = True) -> None:
        """`reads_saved`: whether a tool that is always allowed is not asked about.

        A program that nobody watches runs only what its command line names.
        """
        self._reads_saved = reads_saved
        self._lock = threading.Lock()
        self._in_chat: dict[str, str] = {}
        """The fingerprints of the tools that are allowed in this chat, by full name."""
        self._named: dict[str, str] = {}
        """The fingerprints of the tools that the command line names, by full name.

        A fingerprint is empty until the first call of its tool.
        """

    def decide(
        self, request: CallRequest, ask: Callable[[CallRequest], CallDecision]
    ) -> CallDecision:
        """Whether a call may run; `ask` is called unless its tool was allowed before.

        Raises StorageError if "always" cannot be saved.
        """
        tool = request.tool
        if tool is None or request.problem:
            return CallDecision("wrong", request.problem)
        known = self._find_approval(tool)
        if known is not None:
            return CallDecision(known)
        decision = ask(request)
        if decision.verdict == "chat":
            with self._lock:
                self._in_chat[tool.full_name] = tool.fingerprint
        elif decision.verdict == "always":
            self._save(tool)
        return decision

    def _find_approval(self, tool: ToolDefinition) -> Verdict | None:
        """The verdict by which a tool may run without a question; None if it may not."""
        name = tool.full_name
        fingerprint = tool.fingerprint
        saved = SavedApproval(name, fingerprint)
        if self._reads_saved and saved in self.allowed_always():
            return "always"
        with self._lock:
            if self._in_chat.get(name) == fingerprint:
                return "chat"
            if name not in self._named:
                return None
            if not self._named[name]:
                self._named[name] = fingerprint
            if self._named[name] == fingerprint:
                return "named"
            return None

    def allow_named(self, names: Iterable[str]) -> None:
        """Allow tools by their full names, as they are when they are called first."""
        with self._lock:
            for name in names:
                self._named.setdefault(name, "")

    def forget(self, full_name: str) -> None:
        """Ask again for the tools of this name.

        Raises StorageError if the file cannot be written.
        """
        with self._lock:
            self._named.pop(full_name, None)
            self._in_chat.pop(full_name, None)
        saved = self.allowed_always()
        kept = [each for each in saved if each.tool != full_name]
        if kept != saved:
            _write(kept)

    def forget_chat(self) -> None:
        """Another chat begins: what was allowed in this one is asked again."""
        with self._lock:
            self._in_chat.clear()

    def allowed_always(self) -> list[SavedApproval]:
        """The saved approvals.

        The file is read at each call: another window may have changed it.
        """
        return data_files.read_list(DataFile.APPROVALS, SavedApproval)

    def _save(self, tool: ToolDefinition) -> None:
        """Add a row. A name may have several, such as `folder.read` of two folders."""
        approval = SavedApproval(tool.full_name, tool.fingerprint)
        _write([*self.allowed_always(), approval])


def _write(approvals: list[SavedApproval]) -> None:
    if not data_files.write_json(DataFile.APPROVALS, to_builtins(approvals)):
        raise StorageError(
            f"{DataFile.APPROVALS.path} cannot be written.",
            "Allow the tool once, or for this chat.",
        )
