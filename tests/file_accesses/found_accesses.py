"""The accesses to files in the code of both packages, found in its syntax tree."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Container, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "drivers")
FUNCTIONS = {
    "os": {"open", "listdir", "scandir", "walk", "unlink", "remove", "removedirs", "rmdir", "mkdir", "makedirs", "rename",
           "renames", "replace", "symlink", "link", "chmod", "chown", "utime", "truncate", "mkfifo", "mknod"},
    "shutil": {"rmtree", "copy", "copy2", "copyfile", "copytree", "move", "chown", "make_archive", "unpack_archive"},
    "tempfile": {"mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile", "TemporaryFile", "SpooledTemporaryFile"},
    "io": {"open", "FileIO"},
}  # fmt: skip
"""Functions that read, list or change files. Those that only look whether there is a file, or what its path is, read nothing."""
METHODS = {
    "read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "glob", "rglob", "unlink", "rmdir", "mkdir", "chmod",
    "symlink_to", "hardlink_to",
}  # fmt: skip
"""Methods that only paths have."""
SHARED_METHODS = {"open", "rename", "replace", "touch", "walk"}
"""Methods of paths whose names other objects have too."""


@cache
def accesses() -> dict[str, Counter[str]]:
    """Return how often each module has each kind of access, by the module's path and the name of the function or method."""
    found = {}
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        if names := Counter(accesses_in(path.read_text())):
            found[str(path.relative_to(ROOT))] = names
    return found


def accesses_in(source: str) -> Iterator[str]:
    """Yield the names of the functions and methods that access files in a module."""
    tree = ast.parse(source)
    modules, functions = dict[str, str](), {"open": "open"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name in FUNCTIONS}
        elif isinstance(node, ast.ImportFrom) and node.module in FUNCTIONS:
            functions |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name in FUNCTIONS[node.module]}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in functions and isinstance(node.ctx, ast.Load):
            yield functions[node.id]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            # Also without a call: `asyncio.to_thread(shutil.rmtree, folder)`.
            if node.attr in FUNCTIONS[modules[node.value.id]]:
                yield f"{modules[node.value.id]}.{node.attr}"
        elif isinstance(node, ast.Attribute) and node.attr in METHODS:
            yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_of_path(node, modules):
            yield node.func.attr


def _is_of_path(call: ast.Call, modules: Container[str]) -> bool:
    """Whether a call of a method with a common name has the arguments that a path's has."""
    assert isinstance(call.func, ast.Attribute)
    if isinstance(call.func.value, ast.Name) and call.func.value.id in modules:
        return False
    name, arguments = call.func.attr, call.args
    if name not in SHARED_METHODS or any(isinstance(one, ast.Starred) for one in arguments):
        return False
    if name == "open":
        # With a mode: others open without arguments, too.
        first = arguments[0] if arguments else None
        return isinstance(first, ast.Constant) and isinstance(first.value, str) and set(first.value) <= set("rwaxbt+")
    return len(arguments) == (1 if name in ("rename", "replace") else 0) and (name != "replace" or not call.keywords)
