"""YAML that is data and nothing else: texts, lists and tables, each with its line.

Scalars stay text, so that `no`, `1.10` or `12:30:45` are what was written; whoever reads knows what
kind of value belongs where.  Anchors (a few lines of them stand for 10^10 values), tags, deep
nesting and keys that come twice are refused.  Read event by event: libyaml's own composer calls
itself for every level, and ends the process where a file has too many.
"""

from __future__ import annotations

from typing import Any

import yaml

from localspec.models.catalogue.node import Damaged, Node

__all__ = ["Damaged", "Node", "read"]

_DEEPEST = 20


def read(text: str) -> Node:
    """The document; an empty one is an empty text.  Raises Damaged."""
    builder = _Builder()
    parser = None
    try:
        # libyaml's parser where PyYAML has it: eight times as fast.
        parser = getattr(yaml, "CBaseLoader", yaml.BaseLoader)(text)
        while parser.check_event():
            builder.take(parser.get_event())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise Damaged(error.problem or "no YAML", mark.line + 1 if mark else None) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise Damaged(" ".join(str(error).split())) from None
    finally:
        if parser is not None:
            parser.dispose()
    return builder.root or Node("", 1)


class _Builder:
    """Makes nodes of the parser's events; the open lists and tables are a stack."""

    def __init__(self) -> None:
        self.root: Node | None = None
        self._open: list[Node] = []
        self._keys: list[str | None] = []
        """For every open node the key that waits for its value."""

    def take(self, event: Any) -> None:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise Damaged("aliases are not allowed", line)
        if isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)):
            if event.anchor:
                raise Damaged("anchors are not allowed", line)
            if event.tag not in (None, "!"):
                raise Damaged(f"the tag {event.tag} is not allowed", line)
            self._begin(event, line)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._open.pop()
            self._keys.pop()

    def _begin(self, event: Any, line: int) -> None:
        if isinstance(event, yaml.ScalarEvent):
            if self._open and isinstance(self._open[-1].value, dict) and self._keys[-1] is None:
                self._key(event.value, line)
            else:
                self._put(Node(event.value, line))
            return
        node = Node([] if isinstance(event, yaml.SequenceStartEvent) else {}, line)
        self._put(node)
        self._open.append(node)
        self._keys.append(None)
        if len(self._open) > _DEEPEST:
            raise Damaged("it is nested too deeply", line)

    def _key(self, key: str, line: int) -> None:
        if key in self._open[-1].value:
            raise Damaged(f"the key {key!r} stands there twice", line)
        self._keys[-1] = key

    def _put(self, node: Node) -> None:
        if not self._open:
            if self.root is not None:
                raise Damaged("a second document begins", node.line)
            self.root = node
            return
        inside = self._open[-1].value
        if isinstance(inside, list):
            inside.append(node)
        elif isinstance(inside, dict):
            key = self._keys[-1]
            if key is None:
                raise Damaged("a key must be a word", node.line)
            inside[key] = node
            self._keys[-1] = None
