"""What `localspec doctor` says about models that another weight type would speed up."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from localspec.doctor.findings import Finding, problem
from localspec.extras.convert import conversion
from localspec.machine import device_detection
from localspec.models import short_names
from localspec.models.gguf.header import Header
from localspec.models.local_files.local_model import LocalModel


def check_weight_types(
    models: Sequence[tuple[LocalModel, Header]],
) -> Iterator[Finding]:
    """Suggest one conversion at most, of a model that has no copy yet.

    Nothing is suggested where a GPU computes. The packaged model gets its copy by
    itself.
    """
    if device_detection.detect_devices().devices:
        return
    copied = {header.keys.get(conversion.ORIGIN_KEY) for _, header in models}
    names = short_names.shorten(
        (model.path for model, _ in models), short_names.file_name
    )
    for model, header in models:
        if model.origin == "package" or model.path.name in copied:
            continue
        gain = conversion.suggest_conversion(header)
        if gain:
            fix = f"localspec convert {shlex.quote(str(model.path))}"
            name = names[model.path]
            yield problem("slow-type", f"{name}: {gain}", fix)
            return
