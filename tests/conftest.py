"""Options and fixtures of all tests: --long, --amx, --device, folders, tiny models."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from localspec.machine import device_detection, llama_params
from localspec.machine.cpu_and_ram import OtherCpuLoad
from localspec.temporary_files import TemporaryFolder
from tests.support.audio_models import AudioModels
from tests.support.vision_models import VisionModels
from tests.support.zoo import Zoo

hypothesis.settings.register_profile(
    "beside other programs",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("beside other programs")
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
# Spinning threads would take the cores from the other tests' engines.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# The demo is the default model; see tests/models/test_inventory.py.
os.environ["LOCALSPEC_STARTER"] = "0"
os.environ["LOCALSPEC_STARTER_TYPE"] = "own"  # Its conversion takes 10 s.
# Tests never use the data and the cache of the user.
OWN_FOLDER = TemporaryFolder("tests")
for variable, name in (("LOCALSPEC_DATA_DIR", "data"), ("HF_HOME", "hub")):
    os.environ[variable] = str(OWN_FOLDER.path / name)
    (OWN_FOLDER.path / name).mkdir()
os.environ["NO_PROXY"] = "127.0.0.1,localhost"
os.environ["no_proxy"] = "127.0.0.1,localhost"
for name in (
    "HF_TOKEN",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
):
    os.environ.pop(name, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the slow tests too")
    parser.addoption(
        "--amx",
        choices=["shown", "hidden"],
        help="simulate a CPU with AMX, for which llama.cpp repacks no weights, or one without",
    )
    parser.addoption(
        "--device",
        choices=["vulkan", "cuda", "rocm", "metal"],
        help="run tests/device on this backend; without it llama.cpp's GPUs are hidden",
    )


def pytest_unconfigure() -> None:
    OWN_FOLDER.close()


def pytest_configure(config: pytest.Config) -> None:
    os.environ.pop("LOCALSPEC_AMX", None)
    amx = config.getoption("--amx")
    if amx:
        if amx == "hidden" and llama_params.has_amx():
            raise pytest.UsageError("this CPU has AMX: ggml would use it and may crash")
        os.environ["LOCALSPEC_AMX"] = amx
        llama_params.has_amx.cache_clear()
    if not config.getoption("--device"):
        os.environ |= dict.fromkeys(device_detection.VISIBLE_DEVICES_VARIABLES, "-1")
        # ggml takes a number that is not there as an error.
        os.environ["GGML_VK_VISIBLE_DEVICES"] = ""
    config.addinivalue_line("markers", "long: slow, collected only with --long")
    config.addinivalue_line("markers", "load: sees the real load of this computer")
    config.addinivalue_line("markers", "pictures: see tests/tui/conftest.py")


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    left_out = [item for item in items if not is_selected(config, item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def is_selected(config: pytest.Config, item: pytest.Item) -> bool:
    """With --device, only tests/device: the others mean the CPU.

    One process has one setting.
    """
    has_device = bool(config.getoption("--device"))
    needs_device = "device" in item.path.relative_to(config.rootpath).parts
    if has_device or needs_device:
        return has_device and needs_device
    return bool(config.getoption("--long") or not item.get_closest_marker("long"))


@pytest.fixture(autouse=True, scope="module")
def freeze_garbage_collection() -> Iterator[None]:
    """Excludes long-lived objects from garbage collection.

    It took most of a test's time.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each test its own data folder.

    A crash that one has recorded must not affect the next.
    """
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path / "config.toml"))


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A folder in memory, where systems have one.

    There, thousands of transactions do not wait for a disk.
    """
    base = Path("/dev/shm")
    is_usable = base.is_dir() and os.access(base, os.W_OK)
    place = base if is_usable else None
    with TemporaryFolder("tests", place) as folder:
        yield folder


@pytest.fixture(autouse=True)
def quiet_computer(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measurements are trusted although other tests use the CPUs.

    A test with the mark `load` is not.
    """
    if request.node.get_closest_marker("load") is None:
        monkeypatch.setattr(OtherCpuLoad, "read", lambda _: 0.0)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return Zoo(tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="session")
def vision_models(tmp_path_factory: pytest.TempPathFactory) -> VisionModels:
    return VisionModels(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="session")
def audio_models(tmp_path_factory: pytest.TempPathFactory) -> AudioModels:
    return AudioModels(tmp_path_factory.mktemp("audio"))
