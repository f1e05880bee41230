#!/usr/bin/env python3
"""Checks the rules of CONTRIBUTING.md that a program can check.

They are about the names of classes, docstrings, broad excepts, files of text and
temporary ones, and lines that say two things.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
CONTRACTS = ("spec/protocols.py", "api/llm.py")
"""Files of the package in which everything public has a docstring."""

NOT_A_NOUN = re.compile(
    "About|After|Again|Ahead|Alone|Always|Before|Begun|Beside|Best|Done|Going|Gone|Heard|Held|How|"
    "Inside|Kept|Known|Later|Left|Lost|Made|Meant|Near|Now|Over|Read|Said|Seen|Sent|Shown|Soon|"
    "Spoken|Taken|Then|There|Told|Under|Way|When|Where|Whole|Why|Written|[A-Z][a-z]+ed"
)
"""Single words that do not say what an object is."""

TEMPORARY_FILES = ("localspec/data_files.py", "localspec/temporary_files.py")
"""The files that may import `tempfile`."""
BROAD_ERRORS = ("Exception", "BaseException")


class Problems:
    """Violations found so far, one line each."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, where: str, what: str) -> None:
        self.lines.append(f"{where}: {what}")


def main() -> int:
    found = find_problems(ROOT)
    print("\n".join(found))
    return 1 if found else 0


def find_problems(root: Path) -> list[str]:
    problems = Problems()
    package = read_sources(root, "localspec")
    others = read_sources(root, "scripts") | read_sources(root, "tests")
    check_class_names(package, problems)
    for name in CONTRACTS:
        check_docstrings(f"localspec/{name}", package[f"localspec/{name}"], problems)
    for name, text in (package | others).items():
        tree = ast.parse(text)
        check_broad_excepts(name, text, tree, problems)
        check_statements(name, tree, problems)
        if name in package:
            check_text_files(name, tree, problems)
            check_temporary_files(name, tree, problems)
        if not name.startswith("tests/") and text and not ast.get_docstring(tree):
            problems.add(name, "the first line does not say what the file is")
    return problems.lines


def read_sources(root: Path, folder: str) -> dict[str, str]:
    """Python sources by their path below `root`."""
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((root / folder).rglob("*.py"))
    }


def check_class_names(sources: dict[str, str], problems: Problems) -> None:
    """One name is one class of the package, and says what its objects are."""
    places = defaultdict(list)
    for name, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and not is_textual_message(node):
                places[node.name.lstrip("_")].append(f"{name}:{node.lineno}")
    for class_name, where in places.items():
        if len(where) > 1:
            others = ", ".join(where[1:])
            problems.add(where[0], f"class {class_name} exists again: {others}")
        if NOT_A_NOUN.fullmatch(class_name):
            what = f"class {class_name}: a noun with its qualifier, please"
            problems.add(where[0], what)


def is_textual_message(node: ast.ClassDef) -> bool:
    """Textual names a widget's messages by participles: `Input.Submitted`."""
    return any(
        isinstance(base, ast.Name) and base.id == "Message" for base in node.bases
    )


def check_broad_excepts(
    name: str, text: str, tree: ast.Module, problems: Problems
) -> None:
    """A broad except raises again, or a comment on its line says why it does not."""
    lines = text.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler) or not is_broad(node):
            continue
        raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
        has_comment = "#" in lines[node.lineno - 1]
        if not raises and not has_comment:
            problems.add(f"{name}:{node.lineno}", "a broad except without a reason")


def is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return isinstance(handler.type, ast.Name) and handler.type.id in BROAD_ERRORS


def check_text_files(name: str, tree: ast.Module, problems: Problems) -> None:
    """A file of text that is written says what becomes of what its encoding lacks.

    File names of any bytes come in as lone surrogates, which UTF-8 refuses. What holds
    JSON is ASCII.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if isinstance(node.func, ast.Name):
            called = node.func.id
        modes = [each.value for each in node.args if isinstance(each, ast.Constant)]
        writes = called == "write_text" or any(
            mode in ("w", "a", "x") for mode in modes
        )
        if called not in ("open", "fdopen", "write_text") or not writes:
            continue
        named = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        positional = "'ascii'" in map(ast.unparse, node.args)
        is_ascii = positional or named.get("encoding") == "'ascii'"
        if not is_ascii and "errors" not in named:
            problems.add(f"{name}:{node.lineno}", "a text file without `errors=`")


def check_temporary_files(name: str, tree: ast.Module, problems: Problems) -> None:
    """Two files make what is temporary: they know what a killed process leaves."""
    if name in TEMPORARY_FILES:
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        imported = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            imported = [node.module or ""]
        if "tempfile" in imported:
            problems.add(f"{name}:{node.lineno}", "use localspec.temporary_files")


def check_statements(name: str, tree: ast.Module, problems: Problems) -> None:
    """A line says one thing: no construct in it has to be read twice."""
    for node in ast.walk(tree):
        where = f"{name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Assign) and assigns_several(node):
            problems.add(where, "several assignments in a statement")
        if isinstance(node, ast.Call):
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(isinstance(argument, ast.NamedExpr) for argument in arguments):
                problems.add(where, "an assignment in a call's arguments")
        if isinstance(node, ast.IfExp):
            parts = (node.test, node.body, node.orelse)
            if any(isinstance(part, ast.IfExp) for part in parts):
                problems.add(where, "a conditional expression inside another")


def assigns_several(node: ast.Assign) -> bool:
    """Whether it is `a = b = x` or `a, b = x, y`.

    `a, b = b, a` swaps two values, and is read at once. What a function returns may be
    unpacked.
    """
    if len(node.targets) > 1:
        return True
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    targets = {ast.unparse(each) for each in target.elts}
    return targets != {ast.unparse(each) for each in node.value.elts}


def check_docstrings(name: str, text: str, problems: Problems) -> None:
    """Public classes and their public methods say what they do.

    Overloads and special methods need not.
    """
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        for member in (node, *public_methods(node)):
            if not ast.get_docstring(member):
                where = f"{name}:{member.lineno}"
                problems.add(where, f"{member.name} has no docstring")


def public_methods(
    class_: ast.ClassDef,
) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    methods = [member for member in class_.body if isinstance(member, FUNCTION)]
    public = [method for method in methods if not method.name.startswith("_")]
    return [method for method in public if not is_overload(method)]


def is_overload(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(
        isinstance(mark, ast.Name) and mark.id == "overload"
        for mark in function.decorator_list
    )


if __name__ == "__main__":
    sys.exit(main())
