"""The regular expressions of the code in Python, found in its syntax tree."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "drivers")
METHODS = {"match": 2, "search": 2, "fullmatch": 2, "findall": 2, "finditer": 2, "split": 3, "sub": 4, "subn": 4}
"""Functions of `re` and methods of its patterns, with the position of the flags."""
USES = {"findall": "finditer", "split": "finditer", "sub": "finditer", "subn": "finditer"}
ANY_USE = frozenset({"match", "fullmatch", "finditer"})
ENGINES = frozenset({"re", "regex", "re2"})
NO_PATTERNS = frozenset({"escape", "error", "Match", "Pattern"})
"""Names of `re` that make no pattern; and its flags."""


@dataclass(frozen=True)
class Found:
    """A regular expression. `expression` is its text, or the source text of the expression that makes it.

    `pattern` is None if the expression has variables of a function. `by_pydantic`: it is a constraint of a model's field.
    """

    file: str
    expression: str
    pattern: re.Pattern[Any] | None
    uses: frozenset[str]
    by_pydantic: bool = False


@dataclass(frozen=True)
class _Module:
    file: str
    name: str
    tree: ast.Module


@cache
def modules() -> tuple[_Module, ...]:
    """Return the modules of both packages."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return tuple(
        _Module(str(path.relative_to(ROOT)), _name(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths
    )


def _name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@cache
def python_patterns() -> tuple[Found, ...]:
    """Return every regular expression of both packages."""
    return tuple(found for module in modules() for found in _patterns(module))


def other_engines() -> list[str]:
    """Return what makes regular expressions that `python_patterns` does not find."""
    found = [(module.file, _problem(node)) for module in modules() for node in ast.walk(module.tree)]
    return [f"{file}: {problem}" for file, problem in found if problem]


def _problem(node: ast.AST) -> str:
    if isinstance(node, ast.ImportFrom) and node.module in ENGINES:
        return f"from {node.module} import …: write `import re` and `re.compile`"
    if isinstance(node, ast.Import) and any(
        alias.name in ENGINES and (alias.name != "re" or alias.asname) for alias in node.names
    ):
        return "an engine by another name than `re`"
    if isinstance(node, ast.keyword) and node.arg == "regex_engine":
        return "pydantic's own engine takes linear time, and is not used"
    name = _name_of_re(node)
    return f"re.{name}" if name and not name.isupper() and name not in (*METHODS, "compile", *NO_PATTERNS) else ""


def _name_of_re(node: ast.AST) -> str:
    """Return NAME of `re.NAME`, empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "re" else ""


def _patterns(module: _Module) -> Iterator[Found]:
    parents = {child: node for node in ast.walk(module.tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        if (function := _name_of_re(node.func)) in (*METHODS, "compile"):
            given = node.args[0]
            uses = _uses(module, node, parents) if function == "compile" else frozenset({USES.get(function, function)})
            yield Found(module.file, _text(given), _compiled(module, given, _flags(function, node)), uses)
        for keyword in node.keywords:
            if keyword.arg == "pattern":
                pattern = _compiled(module, keyword.value, None)
                yield Found(module.file, _text(keyword.value), pattern, frozenset({"search"}), by_pydantic=True)


def _text(pattern: ast.expr) -> str:
    return pattern.value if isinstance(pattern, ast.Constant) and isinstance(pattern.value, str) else ast.unparse(pattern)


def _flags(function: str, call: ast.Call) -> ast.expr | None:
    position = METHODS.get(function, 1)
    named = next((keyword.value for keyword in call.keywords if keyword.arg == "flags"), None)
    return call.args[position] if len(call.args) > position else named


def _compiled(module: _Module, pattern: ast.expr, flags: ast.expr | None) -> re.Pattern[Any] | None:
    try:
        text = _value(module, pattern)
    except NameError:
        return None
    return re.compile(text, 0 if flags is None else _value(module, flags))


def _value(module: _Module, expression: ast.expr) -> Any:
    if isinstance(expression, ast.Constant):
        return expression.value
    names = {"re": re} if _name_of_re(expression) else vars(importlib.import_module(module.name))
    return eval(compile(ast.Expression(expression), "pattern", "eval"), dict(names))


def _uses(module: _Module, call: ast.Call, parents: Mapping[ast.AST, ast.AST]) -> frozenset[str]:
    """Return how a compiled pattern is used: by its methods, wherever its name is known. Any use, if it has no name."""
    parent = parents[call]
    if isinstance(parent, ast.Attribute):
        return frozenset({USES.get(parent.attr, parent.attr)})
    if not isinstance(parent, ast.Assign | ast.AnnAssign):
        return ANY_USE
    target = parent.targets[0] if isinstance(parent, ast.Assign) else parent.target
    name = _last_name(target)
    places = {module.name, *_imports().get((module.name, name), ())}
    methods = {method for place in places for method in _methods().get((place, name), ())}
    return frozenset(USES.get(method, method) for method in methods) or ANY_USE


@cache
def _imports() -> Mapping[tuple[str, str], set[str]]:
    """Return the modules that import a name, by the module that has it and the name."""
    found = defaultdict[tuple[str, str], set[str]](set)
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    found[(node.module or "", alias.name)].add(module.name)
    return found


@cache
def _methods() -> Mapping[tuple[str, str], set[str]]:
    """Return the methods that a module calls of a pattern, by the module and the pattern's name.

    A function that takes the pattern counts as the method of its name: `_match(_NAME, at)`.
    """
    found = defaultdict[tuple[str, str], set[str]](set)
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and node.attr in METHODS:
                found[(module.name, _last_name(node.value))].add(node.attr)
            elif isinstance(node, ast.Call) and node.args and (method := _last_name(node.func).lstrip("_")) in METHODS:
                found[(module.name, _last_name(node.args[0]))].add(method)
    return found


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
