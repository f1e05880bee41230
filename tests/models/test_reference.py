"""References: what was typed, and which files of a repository it means."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.errors import LocalspecError, NotFoundError, UsageError
from localspec.models import reference
from localspec.models.reference import (
    HubReference,
    NameReference,
    Reference,
    RepoFile,
    choose_files,
    find_heads,
    is_model,
    is_safe_gguf_path,
    parse,
)

COMMIT = "7c41481f57cb95916b40956ab2f0b139b296d974"


def listed(*paths: str) -> list[RepoFile]:
    return [RepoFile(path, 100 + n) for n, path in enumerate(paths)]


def chosen(
    paths: list[str], tag: str | None = None, file: str | None = None
) -> list[str]:
    return [one.path for one in choose_files(listed(*paths), tag, file)]


TYPED: list[tuple[str, Reference]] = [
    ("demo", NameReference("demo")),
    ("qwen3-8b+qwen3-0.6b", NameReference("qwen3-8b+qwen3-0.6b")),
    ("qwen3-8b:Q8_0", NameReference("qwen3-8b", "Q8_0")),
    ("Qwen/Qwen3-8B-GGUF:q4_k_m", HubReference("Qwen/Qwen3-8B-GGUF", "q4_k_m")),
    (
        "Qwen/Qwen3-8B-GGUF@main:Q8_0",
        HubReference("Qwen/Qwen3-8B-GGUF", "Q8_0", None, "main"),
    ),
    (f"a/b@{COMMIT}", HubReference("a/b", revision=COMMIT)),
    ("HF://a/b:Q4_0", HubReference("a/b", "Q4_0")),
    ("hf://a/b/sub/c.gguf", HubReference("a/b", None, "sub/c.gguf")),
    (f"hf://a/b@{COMMIT}/c.gguf", HubReference("a/b", None, "c.gguf", COMMIT)),
    ("hf.co/a/b:Q4_K_M", HubReference("a/b", "Q4_K_M")),
    ("https://huggingface.co/a/b", HubReference("a/b")),
    (
        f"https://huggingface.co/a/b/resolve/{COMMIT}/c.gguf?download=true",
        HubReference("a/b", None, "c.gguf", COMMIT),
    ),
    (
        "https://huggingface.co/a/b/blob/main/c.gguf",
        HubReference("a/b", None, "c.gguf", "main"),
    ),
    (
        "https://huggingface.co/a/b/blob/main/my%20model.gguf",
        HubReference("a/b", None, "my model.gguf", "main"),
    ),
    (
        "https://huggingface.co/a/b/tree/main/UD-Q4",
        HubReference("a/b", None, "UD-Q4/", "main"),
    ),
    (
        "https://huggingface.co/a/b?show_file_info=s%2Fc.gguf",
        HubReference("a/b", None, "s/c.gguf"),
    ),
    (
        "hf.co/a/b/resolve/refs%2Fpr%2F1/c.gguf ",
        HubReference("a/b", None, "c.gguf", "refs/pr/1"),
    ),
    (
        "hf.co/a/b/blob/refs/pr/1/s/c.gguf",
        HubReference("a/b", None, "s/c.gguf", "refs/pr/1"),
    ),
    ("model.gguf", Path("model.gguf")),
    ("folder/model.gguf", Path("folder/model.gguf")),
    ("./folder", Path("./folder")),
    ("/m", Path("/m")),
    ("a\\b", Path("a\\b")),
    ("a/b/c", Path("a/b/c")),
    ("über", Path("über")),
]


def test_what_was_typed() -> None:
    for text, expected in TYPED:
        assert parse(text) == expected


def test_what_names_nothing() -> None:
    for text in (
        *(
            "",
            "\0",
            "a" * 5000,
            "hf://",
            "hf://a",
            "hf://a/b/../c.gguf",
            "hf://a/../c.gguf",
        ),
        *(
            "hf://a/b//c.gguf",
            "hf://a/b/c.safetensors",
            "hf://a/b:Q4 0",
            "hf://a/b@/c.gguf",
        ),
        *(
            "hf://a/b@../c.gguf",
            "hf://a/\x1b[31mb",
            "https://huggingface.co/a/b/blob/main/..%2f",
        ),
        *("https://example.org/m.gguf", "ftp://example.org/m"),
    ):
        with pytest.raises(UsageError) as failure:
            parse(text)
        assert "\x1b" not in failure.value.message
        assert len(failure.value.message) < 300
        assert failure.value.hint


@settings(max_examples=50)
@given(st.text(max_size=60))
def test_any_text_is_a_reference_or_refused(text: str) -> None:
    try:
        found = parse(text)
    except LocalspecError:
        return
    if isinstance(found, HubReference):
        assert reference.is_repo_id(found.repo)
        assert found.file is None or is_safe_gguf_path(found.file)


def test_names_of_repositories() -> None:
    for repo in (
        "Qwen/Qwen3-8B-GGUF",
        "a/b",
        "bartowski/microsoft_Phi-4-mini-instruct-GGUF",
    ):
        assert reference.is_repo_id(repo)
    wrong = (
        "a",
        "a/b/c",
        "/b",
        "a/",
        "../b",
        "a/..",
        "a/.b",
        "-a/b",
        "a/b--c",
        "a/b c",
        "a/b\n",
    )
    for repo in (*wrong, "a/é", "a/" + "b" * 100, "a/b.git"):
        assert not reference.is_repo_id(repo)


UNSAFE = (
    *(
        "",
        ".gguf/",
        "../a.gguf",
        "a/../b.gguf",
        "a/./b.gguf",
        "/etc/a.gguf",
        "a//b.gguf",
    ),
    *(
        "a\\b.gguf",
        "C:\\a.gguf",
        "C:a.gguf",
        "con.gguf",
        "NUL/a.gguf",
        "com1.x.gguf",
        "a./b.gguf",
    ),
    *(
        "a /b.gguf",
        " a.gguf",
        "-rf.gguf",
        "a\x1b[31m.gguf",
        "a\nb.gguf",
        "a\u202efugg.gguf",
    ),
    *(
        "e\u0301.gguf",
        "é.gguf",
        "a.gguf\n",
        "x" * 300 + ".gguf",
        "a.safetensors",
        "a.GGUF",
    ),
    "/".join("abcdefghi") + ".gguf",
)


def test_names_that_may_be_paths() -> None:
    for path in (
        "BF16/a-00001-of-00002.gguf",
        "A b (1)+c.gguf",
        "_a.gguf",
        "console.gguf",
    ):
        assert is_safe_gguf_path(path)
    for path in UNSAFE:
        assert not is_safe_gguf_path(path)


OFFICIAL = ["README.md", "m-F16.gguf", "m-Q4_K_M.gguf", "m-Q5_K_M.gguf", "m-Q8_0.gguf"]


def test_which_file_a_reference_means() -> None:
    for paths, tag, wanted in [
        (OFFICIAL, None, "m-Q4_K_M.gguf"),
        (OFFICIAL, "q5_k_m", "m-Q5_K_M.gguf"),
        (["m-F16.gguf", "m-Q8_0.gguf"], None, "m-Q8_0.gguf"),
        (["m.gguf"], None, "m.gguf"),
        (["m-UD-Q4_K_XL.gguf"], "UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        (["m-QAD-Q4_0.gguf"], "Q4_0", "m-QAD-Q4_0.gguf"),
        (["BF16/m-BF16.gguf", "m-Q4_0.gguf"], "BF16", "BF16/m-BF16.gguf"),
        (["m-TQ1_0.gguf", "m.q1_0.gguf"], "Q1_0", "m.q1_0.gguf"),
        (["m-BF16.gguf", "m-F16.gguf"], "F16", "m-F16.gguf"),
        (["m-Q4_K_M.gguf", "m-Q4_K.gguf"], "Q4_K", "m-Q4_K.gguf"),
        (["m-I-Compact.gguf", "m-Compact.gguf"], "Compact", "m-Compact.gguf"),
        (
            [
                "dflash-m-Q8_0.gguf",
                "imatrix-Q8_0.gguf",
                "mmproj-m-Q8_0.gguf",
                "m-Q8_0.gguf",
            ],
            None,
            "m-Q8_0.gguf",
        ),
        (["MTP/mtp-m-Q4_K_M.gguf", "m-Q8_0.gguf"], None, "m-Q8_0.gguf"),
        (["../m-Q4_K_M.gguf", "m-Q8_0.gguf"], None, "m-Q8_0.gguf"),
    ]:
        assert chosen(paths, tag) == [wanted]
    assert is_model("mtp-repo/m.gguf")
    assert not is_model("sub/mtp-m.gguf")
    assert not is_model("m.bin")


FOLDERS = ["a-Q4_K_M.gguf", "s/b-Q8_0.gguf", "s/b-Q4_K_M.gguf", "so/c-Q4_K_M.gguf"]
PARTS = [f"m-q4_k_m-{n:05}-of-00003.gguf" for n in (2, 3, 1)]


def test_all_parts_in_order() -> None:
    """Qwen2.5-Coder has both: the parts are listed first, and llama.cpp takes them."""
    assert chosen([*sorted(PARTS), "m-q4_k_m.gguf"]) == sorted(PARTS)
    assert chosen(PARTS) == sorted(PARTS)
    assert chosen(PARTS, file=PARTS[0]) == sorted(PARTS), (
        "any part stands for the whole"
    )


def test_a_missing_part_is_named() -> None:
    for gone in PARTS[:2]:
        with pytest.raises(NotFoundError, match=rf"2 of 3 parts.*{gone}"):
            chosen([path for path in PARTS if path != gone])
    assert chosen(FOLDERS, file="s/") == ["s/b-Q4_K_M.gguf"], "the default of a folder"
    with pytest.raises(NotFoundError, match="1 of 99999 parts"):
        chosen(["m-00001-of-99999.gguf"])


def test_what_there_is_stands_in_the_hint() -> None:
    with pytest.raises(NotFoundError, match="no GGUF for Q9") as failure:
        chosen(OFFICIAL, "Q9")
    assert failure.value.hint == "It has: F16, Q4_K_M, Q5_K_M, Q8_0"
    with pytest.raises(NotFoundError) as failure:
        chosen([f"m{n}-Q8_0.gguf" for n in range(42)], file="other.gguf")
    assert failure.value.hint.count(".gguf") == 12
    assert failure.value.hint.endswith(" and 30 more")
    with pytest.raises(NotFoundError, match="has no GGUF file") as failure:
        chosen(["model.safetensors", "mmproj-m.gguf"])
    assert "no GGUF" in failure.value.hint


def test_the_best_companion() -> None:
    files = listed(
        "m-Q4_0.gguf", "dflash-m-Q8_0.gguf", "dflash-m-Q4_0.gguf", "sub/dflash-m.gguf"
    )
    assert [f.path for f in find_heads(files, "m-Q4_0.gguf")] == ["dflash-m-Q4_0.gguf"]
    assert [f.path for f in find_heads(files, "sub/m-Q4_0.gguf")] == [
        "sub/dflash-m.gguf"
    ]
    assert find_heads(files, "dflash-m-Q8_0.gguf") == ()
