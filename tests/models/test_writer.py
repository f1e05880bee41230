"""Headers that are written: llama.cpp takes them, and they read back as they were."""

from pathlib import Path
from typing import Any

from localspec.models.gguf import reader, writer
from tests.models import gguffile


def test_any_value_that_a_header_may_hold_can_be_written(tmp_path: Path) -> None:
    """Property: the extremes of each type, alone and in an array, are read as written."""
    extremes: dict[int, tuple[Any, ...]] = {
        **{t: (0, 2**n - 1) for t, n in {0: 8, 2: 16, 4: 32, 10: 64}.items()},
        **{t: (-(2**n), 2**n - 1) for t, n in {1: 7, 3: 15, 5: 31, 11: 63}.items()},
        6: (3.4028234663852886e38, -0.0, float("inf"), float("-inf")),
        12: (1e300, -1.7e308, 0.5, float("inf")),
        7: (True, False),
    }
    for type_, values in extremes.items():
        file = gguffile.model()
        for n, value in enumerate(values):
            file.add(b"other.%d" % n, type_, value)
        file.put(b"other.all", type_, values)
        data = file.data()
        header = reader.parse(data, len(data))
        path = tmp_path / "x.gguf"
        content = writer.serialize_header(header)
        path.write_bytes(content + bytes(writer.data_size(header)))
        again = reader.read(path).keys
        assert all(
            again[key] == value for key, value in header.keys.items() if "other" in key
        )
