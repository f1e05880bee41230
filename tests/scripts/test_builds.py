"""The way to a build for this computer's GPU, and back to a plain one."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import bootstrap
import builds
import pytest

from localspec.machine import llama_cpp_builds
from localspec.machine.llama_cpp_builds import LlamaCppBuild, SystemHardware

CUDA = LlamaCppBuild(
    "cuda",
    "NVIDIA driver (570.86) found",
    wheel_index="https://wheels.example/cu125",
    cmake="-DGGML_CUDA=on",
    libraries=("nvidia-cublas-cu12",),
    compilers=("nvcc-of-no-computer",),
)


class Shell:
    """Carries out nothing; commands that hold a word of `fails` fail."""

    def __init__(self, *fails: str) -> None:
        self.fails = fails
        self.ran: list[list[str]] = []
        self.environ: list[Mapping[str, str]] = []
        self.said: list[str] = []
        self.user: dict[str, str] = {}

    def run(self, command: Sequence[str], environ: Mapping[str, str]) -> bool:
        self.ran.append(list(command))
        self.environ.append(environ)
        line = "\n".join(command)
        return not any(word in line for word in self.fails)

    def install(self, choice: LlamaCppBuild) -> bool:
        tools = ("python", None)
        return builds.install(
            choice, "0.3.36", tools, self.run, self.said.append, self.user
        )


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[SystemHardware]:
    found = [SystemHardware("Linux", "x86_64")]
    monkeypatch.setattr(llama_cpp_builds, "detect_hardware", lambda: found[0])
    return found


def test_which_build_is_chosen(here: list[SystemHardware]) -> None:
    asked = {"LOCALSPEC_BACKEND": "cpu"}
    for before, environ in (("", {}), ("cpu", {}), ("nonsense", {}), ("", asked)):
        assert builds.choose(before, environ) is None
    for before, environ, backend in (
        ("vulkan", {}, "vulkan"),
        ("vulkan", asked, "cpu"),
    ):
        choice = builds.choose(before, environ)
        assert choice is not None and choice.backend == backend, (
            "what was chosen once stays"
        )
    here[0] = SystemHardware("Linux", "x86_64", "570.86", 8.9)
    own = {"CMAKE_ARGS": "-DGGML_BLAS=on"}
    assert builds.choose("", own) is None, "the person's own way to build"
    for environ in ({}, own | {"LOCALSPEC_BACKEND": "cuda"}):
        choice = builds.choose("", environ)
        assert choice is not None and choice.backend == "cuda"
    with pytest.raises(SystemExit, match="must be one of cpu, cuda"):
        builds.choose("", {"LOCALSPEC_BACKEND": "gpu"})


def test_the_wheel_its_libraries_and_whether_it_loads() -> None:
    shell = Shell()
    assert shell.install(CUDA)
    wheel, libraries, check = shell.ran
    assert "https://wheels.example/cu125" in wheel
    assert libraries[-2:] == ["nvidia-cublas-cu12", "llama-cpp-python==0.3.36"]
    assert "--no-deps" in wheel and "--no-deps" not in libraries
    assert check[:2] == ["python", "-c"]
    assert "NVIDIA (CUDA)" in shell.said[0]


def test_without_a_wheel_that_loads_it_is_compiled() -> None:
    shell = Shell("import llama_cpp")
    compilable = CUDA._replace(compilers=(sys.executable,))
    assert not shell.install(compilable)
    build = shell.ran[3]
    assert "--no-binary" in build
    assert shell.environ[3] == {"CMAKE_ARGS": "-DGGML_CUDA=on"}
    shell = Shell("--only-binary")
    assert shell.install(compilable)


VULKAN = LlamaCppBuild(
    "vulkan",
    "",
    CUDA.wheel_index,
    "-DGGML_VULKAN=on",
    compilers=(sys.executable,),
    required_header=("vulkan/vulkan_core.h", "VkLayerSettingEXT"),
    core_seconds=960,
)


def test_the_users_cmake_arguments_are_kept_and_ask_for_a_build_from_source() -> None:
    shell = Shell()
    shell.user = {"CMAKE_ARGS": "-DGGML_NATIVE=off"}
    assert shell.install(VULKAN._replace(required_header=None))
    assert "--no-binary" in shell.ran[0]
    assert shell.environ[0] == {"CMAKE_ARGS": "-DGGML_VULKAN=on -DGGML_NATIVE=off"}


def test_headers_that_are_too_old_are_refused_before_minutes_are_spent(
    tmp_path: Path,
) -> None:
    header = tmp_path / "vulkan" / "vulkan_core.h"
    header.parent.mkdir()
    header.write_text("typedef struct VkInstance_T* VkInstance;\n")
    shell = Shell()
    shell.user = {"CMAKE_ARGS": f"-DVulkan_INCLUDE_DIR={tmp_path}"}
    assert not shell.install(VULKAN)
    assert shell.ran == []
    assert str(header) in shell.said[-1] and "docs/gpu.md" in shell.said[-1]
    header.write_text(
        "typedef struct VkLayerSettingEXT { int a; } VkLayerSettingEXT;\n"
    )
    assert shell.install(VULKAN)


# In the checkout.


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bootstrap.Venv:
    for name in (llama_cpp_builds.ENV_VARIABLE, *builds.USER_BUILD_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    pinned = '[project]\ndependencies = ["llama-cpp-python==0.3.36"]\n'
    (tmp_path / "pyproject.toml").write_text(pinned)
    venv = bootstrap.Venv(tmp_path)
    venv.python.parent.mkdir(parents=True)
    venv.python.touch()
    bootstrap.write_stamp(venv, bootstrap.fingerprint(venv), [])
    return venv


def test_a_build_is_fetched_once_for_each_version(
    venv: bootstrap.Venv, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Sequence[str]] = []

    def logged(
        venv: bootstrap.Venv,
        command: Sequence[str],
        environ: Mapping[str, str] | None = None,
        *,
        core_seconds: int | None,
    ) -> int:
        ran.append(command)
        return 0

    monkeypatch.setattr(bootstrap, "call_logged", logged)
    bootstrap.install_build(venv, None, CUDA, reinstall=True)
    assert len(ran) == 3
    assert ran[0][:5] == [str(venv.python), "-m", "pip", "install", "-v"]
    assert ran[2][1] == "-c"
    assert builds.read_backend(venv.build) == "cuda"
    (venv.packages / "llama_cpp_python-0.3.36.dist-info").mkdir(parents=True)
    bootstrap.install_build(venv, None, CUDA, reinstall=False)
    assert len(ran) == 3
    (venv.packages / "llama_cpp_python-0.3.36.dist-info").rename(
        venv.packages / "other"
    )
    bootstrap.install_build(venv, None, CUDA, reinstall=False)
    assert len(ran) == 6
