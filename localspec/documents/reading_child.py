"""The child process that reads one untrusted document, with limits.

It reads a line of JSON on stdin and then the file's bytes. It writes lines of JSON: how
many parts it has read so far, and at last the document, the pictures of a scan, or what
is wrong with it.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from localspec import child_process
from localspec.documents.document import PartSelection
from localspec.documents.reader_limits import UnreadableDocumentError
from localspec.errors import UsageError
from localspec.protocol.json_values import from_json, parse_object

_MAX_MEMORY = 1024 * 1024 * 1024
"""Bytes of address space beyond what the child has when it begins to read."""


def main() -> None:
    child_process.set_up_child(int(sys.argv[1]))
    output = child_process.take_over_stdout()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    line, _, data = sys.stdin.buffer.read().partition(b"\n")
    request = parse_object(line)

    def write(message: dict[str, Any]) -> None:
        text = json.dumps(message, ensure_ascii=False) + "\n"
        rest = memoryview(text.encode("utf-8", "replace"))
        while rest:
            rest = rest[os.write(output, rest) :]

    with suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        child_process.limit_resources(address_space=used + _MAX_MEMORY)
    child_process.limit_resources(cpu_seconds=int(request["seconds"]))

    def report(unit: str, n_read: int, n_parts: int) -> None:
        write({"unit": unit, "n_read": n_read, "n_parts": n_parts})

    try:
        reply = _read(request, data, report)
    except UnreadableDocumentError as error:
        refusal: dict[str, Any] = {"problem": error.problem, "hint": error.hint}
        write(refusal | {"is_scan": error.is_scan})
    except UsageError as error:  # Parts were chosen that it does not have.
        problem = error.message.removeprefix(f"{request['name']} ")
        write({"problem": problem, "hint": error.hint})
    except MemoryError:
        write({"problem": "needs too much memory to be read.", "hint": ""})
    except RecursionError:
        write({"problem": "is nested too deeply to be read.", "hint": ""})
    except Exception as error:  # A file of any bytes may fail anywhere in its reader.
        write(
            {
                "problem": f"is damaged: it cannot be read ({type(error).__name__}).",
                "hint": "Open it with another program, and save it again.",
            }
        )
    else:
        write(reply)
    os._exit(0)


def _read(request: dict[str, Any], data: bytes, report: Any) -> dict[str, Any]:
    """The last line of the reply."""
    name = str(request["name"])
    selection: PartSelection | None = None
    if request["selection"] is not None:
        selection = from_json(PartSelection, request["selection"])
    if request["kind"] == "scan":
        from localspec.documents import scan_reader  # noqa: PLC0415  one of the readers

        pages = scan_reader.read(name, data, selection, report)
        return {"scan": to_builtins(pages)}
    if request["kind"] == "pdf":
        from localspec.documents import pdf_reader  # noqa: PLC0415  one of the readers

        document = pdf_reader.read(name, data, selection, report)
        return {"document": to_builtins(document)}
    if request["kind"] == "html":
        from localspec.documents import html_reader  # noqa: PLC0415

        document = html_reader.read(name, data)
    else:
        from localspec.documents import zip_readers  # noqa: PLC0415

        document = zip_readers.read(name, data)
    if selection is not None:
        document = document.select(selection)
    return {"document": to_builtins(document)}


if __name__ == "__main__":
    main()
