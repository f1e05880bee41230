"""What `localspec doctor` says about llama.cpp's RPC backend."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.doctor.findings import Finding, ok
from localspec.extras.workers import side_library


def check_rpc_backend() -> Iterator[Finding]:
    library = side_library.find()
    if library is not None:
        found = str(library)
    elif side_library.find_compiler() is not None:
        found = "not here, it is built when first used"
    else:
        found = "not here, it needs a C++ compiler to be built"
    yield ok("workers", f"llama.cpp's RPC backend: {found}")
