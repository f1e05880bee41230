"""Grammars for one model's vocabulary, from GBNF or from a JSON Schema."""

from __future__ import annotations

from importlib import util
from typing import TYPE_CHECKING

from localspec.engine.constraints.json_schema import MAX_SCHEMA_CHARS, schema_to_gbnf
from localspec.engine.llama.grammar import GbnfGrammars
from localspec.engine.llama.model import LlamaVocab
from localspec.engine.protocols import GrammarState
from localspec.errors import GrammarError

if TYPE_CHECKING:
    from localspec.engine.constraints.llguidance_schema import LlguidanceSchemas


class Grammars:
    """`use_llguidance`: for schemas; None for where it is installed."""

    def __init__(self, vocabulary: LlamaVocab, *, use_llguidance: bool | None = None) -> None:
        self._vocabulary = vocabulary
        self._gbnf = GbnfGrammars(vocabulary)
        self._use_llguidance = use_llguidance
        self._schemas: LlguidanceSchemas | None = None

    def start(self, grammar: str, json_schema: str) -> GrammarState:
        """The state before the first token, for whichever of the two is not empty.

        Raises GrammarError if it cannot be used.
        """
        if grammar:
            return self._gbnf.start(grammar)
        if len(json_schema) > MAX_SCHEMA_CHARS:
            raise GrammarError(
                f"The JSON Schema has {len(json_schema):,} characters.",
                f"At most {MAX_SCHEMA_CHARS:,} are possible.",
            )
        if self._use_llguidance is None:
            self._use_llguidance = util.find_spec("llguidance") is not None
        if not self._use_llguidance:
            return self._gbnf.start(schema_to_gbnf(json_schema))
        return self._load_llguidance().start(json_schema)

    def _load_llguidance(self) -> LlguidanceSchemas:
        if self._schemas is None:
            # Late: the package is optional.
            from localspec.engine.constraints import llguidance_schema  # noqa: PLC0415

            self._schemas = llguidance_schema.LlguidanceSchemas(self._vocabulary)
        return self._schemas
