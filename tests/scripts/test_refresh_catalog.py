"""The catalogue's sizes and hashes are taken from the hub; all else stays."""

from refresh_catalog import put_facts

CATALOGUE = """models:
  - id: a
    file: a.gguf
    about: 1 GiB
    licence: mit
    # A comment.
  - id: b
    file: b.gguf
    bytes: 20
pairs:
  - id: a+b
"""


def test_facts_are_put_after_the_file_of_their_model() -> None:
    facts = {"a": {"bytes": "12", "sha256": "f00", "revision": "main"}}

    assert (
        put_facts(CATALOGUE, facts)
        == """models:
  - id: a
    file: a.gguf
    bytes: 12
    sha256: f00
    revision: main
    licence: mit
    # A comment.
  - id: b
    file: b.gguf
    bytes: 20
pairs:
  - id: a+b
"""
    )


def test_without_facts_nothing_changes() -> None:
    assert put_facts(CATALOGUE, {}) == CATALOGUE
