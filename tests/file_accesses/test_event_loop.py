"""No coroutine asks for the folders of agents and sessions by itself: the event loop would wait for their file system."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.file_accesses.found_accesses import PACKAGES, ROOT

METHODS = {
    "additional_directories", "check_options", "confined_writer", "folder", "folder_of", "folder_without_worktree", "folders",
    "installed_version", "look", "may_write", "realpath", "sandboxed", "spec", "stored_directory", "working_directory",
}  # fmt: skip
"""Methods of agents and sessions that read the file system. Coroutines give them to `in_time`, which calls them in a thread."""
PROGRAMS = ("gateway/cli", "gateway/diagnosis")
"""Commands, which serve nobody else."""


def calls_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines and names of the calls of METHODS in coroutines. Functions in a coroutine count where it calls them."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.AsyncFunctionDef):
            inner = {node.name for node in _own(function) if isinstance(node, ast.FunctionDef) and any(_calls(node, METHODS))}
            yield from _calls(function, METHODS | inner)


def _calls(function: ast.AST, names: set[str]) -> Iterator[tuple[int, str]]:
    for node in _own(function):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
            if name in names:
                yield node.lineno, name


def _own(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _own(child)


def test_no_coroutine_reads_the_folders_of_agents() -> None:
    found = [
        f"{name}:{line} {method}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if not (name := str(path.relative_to(ROOT))).startswith(PROGRAMS)
        for line, method in calls_in(path.read_text())
    ]
    assert found == [], "call these in a thread: await in_time(partial(agent.spec, options), FOLDER_OF_AGENT)"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("async def f(): agent.spec({})", ["spec"]),
        ("async def f(): await in_time(agent.spec({}))", ["spec"]),
        ("async def f(): await in_time(partial(agent.spec, {}))", []),
        ("async def f(): await in_time(lambda: agent.spec({}))", []),
        ("async def f():\n    def made(): agent.spec({})\n    await in_time(made)", []),
        ("async def f():\n    def made(): agent.spec({})\n    made()", ["made"]),
        ("async def f(folder): folder()", ["folder"]),
        ("def f(): agent.spec({})", []),
    ],
)
def test_calls_are_found(source: str, found: list[str]) -> None:
    assert [name for _, name in calls_in(source)] == found
