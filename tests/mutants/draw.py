"""Draws mutants of the product by a seed: cosmic-ray makes all of them, and this module leaves out those that prove nothing."""

from __future__ import annotations

import ast
import hashlib
import random
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from attrs import evolve
from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import MutationSpec, WorkItem

PACKAGES = ("drivers", "gateway/runs", "gateway/sessions", "gateway/policy", "gateway/protocols")
LEFT_OUT = re.compile(
    # `is` for `==` of interned texts and of enums changes nothing, and neither does `==` for `is`.
    r"core/ReplaceComparisonOperator_(Eq_Is|NotEq_IsNot|Is_Eq|IsNot_NotEq"
    # These raise TypeError for all that the product compares.
    r"|Is(Not)?_(Lt|LtE|Gt|GtE))$"
    r"|core/ReplaceBinaryOperator_(Add|BitOr)_(Div|FloorDiv|Mod|Pow|LShift|RShift)$"
)
"""Operators of mutants that cannot matter, or that fail wherever they run."""
DECORATORS = {"abstractmethod", "final", "overload", "override", "runtime_checkable"}
"""Decorators that change no behaviour."""
KEYWORDS = {"frozen", "slots", "defer_build"}
"""Arguments by name that change no behaviour."""
Position = tuple[int, int]


@dataclass(frozen=True)
class Mutant:
    """One change of one file, as a diff that `git apply` accepts for each commit where the lines around it are the same."""

    id: str
    path: str
    definition: str
    operator: str
    lines: range
    diff: str

    @property
    def change(self) -> str:
        """Returns the removed and the added lines, without their indentation."""
        lines = [f"{line[0]} {line[1:].strip()}" for line in self.diff.splitlines()[2:] if line[0] in "+-"]
        return " ".join(lines)


def draw(root: Path, database: WorkDB, count: int, seed: int) -> None:
    """Fills the database with `count` mutants of the files below `root`, at most one for each function."""
    paths = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    init(paths, database, {})
    choices: dict[tuple[str, Position, str], list[MutationSpec]] = defaultdict(list)
    left_out = {path: list(_left_out(ast.parse(path.read_text()))) for path in paths}
    for item in database.work_items:
        mutation = item.mutations[0]
        inside = any(begin <= mutation.start_pos < end for begin, end in left_out[mutation.module_path])
        if not inside and not LEFT_OUT.match(mutation.operator_name):
            kind = mutation.operator_name.split("_")[0]
            choices[str(mutation.module_path), mutation.start_pos, kind].append(mutation)
    # Each place in the code is as likely as another one, whatever the number of its mutants.
    places = sorted(choices)
    chance = random.Random(seed)
    chance.shuffle(places)
    drawn: dict[tuple[str, str | None], WorkItem] = {}
    for place in places:
        mutation = chance.choice(sorted(choices[place], key=lambda one: (one.operator_name, one.occurrence)))
        key = (place[0], mutation.definition_name)
        mutation = evolve(mutation, module_path=mutation.module_path.relative_to(root))
        if key not in drawn and _compiles(mutated_code(root, mutation)):
            drawn[key] = WorkItem.single(mutant(root, mutation).id, mutation)
        if len(drawn) == count:
            break
    database.clear()
    database.add_work_items(drawn.values())


def mutated_code(root: Path, mutation: MutationSpec) -> str:
    """Returns the text of the file with the mutation."""
    operator = get_operator(mutation.operator_name)(**mutation.operator_args)
    return str(mutate_code((root / mutation.module_path).read_text(), operator, mutation.occurrence))


def mutant(root: Path, mutation: MutationSpec) -> Mutant:
    """Returns the mutant that cosmic-ray describes."""
    path = str(mutation.module_path)
    before, after = (code.splitlines(True) for code in ((root / path).read_text(), mutated_code(root, mutation)))
    lines = unified_diff(before, after, f"a/{path}", f"b/{path}")
    diff, definition = "".join(lines), mutation.definition_name or ""
    operator = mutation.operator_name.removeprefix("core/")
    name = hashlib.sha1(f"{path} {definition} {operator} {diff}".encode()).hexdigest()[:8]
    return Mutant(name, path, definition, operator, range(mutation.start_pos[0], mutation.end_pos[0] + 1), diff)


def _compiles(code: str) -> bool:
    """Whether Python accepts the code without a warning, which pytest would make an error of each test."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            compile(code, "mutant", "exec")
        except (SyntaxError, SyntaxWarning):
            return False
    return True


def _left_out(module: ast.Module) -> Iterator[tuple[Position, Position]]:
    """Yields the places where a mutant changes no behaviour: types, decorators without effect, and texts of the log."""
    in_functions = {id(inner) for outer in ast.walk(module) if isinstance(outer, _FUNCTIONS) for inner in ast.walk(outer)}
    for node in ast.walk(module):
        found = list(_without_effect(node))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and id(node) not in in_functions:
            found.append(node)  # A union of types.
        for one in found:
            # The `@` of a decorator is one column before it.
            yield (one.lineno, one.col_offset - 1), (one.end_lineno or 0, one.end_col_offset or 0)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _without_effect(node: ast.AST) -> Iterable[ast.expr | ast.stmt | ast.keyword]:
    found: list[ast.expr | ast.stmt | ast.keyword | None] = []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        found.append(node.returns)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        found += [decorator for decorator in node.decorator_list if ast.unparse(decorator).split(".")[-1] in DECORATORS]
    if isinstance(node, ast.arg | ast.AnnAssign):
        found.append(node.annotation)
    if isinstance(node, ast.If) and re.search("TYPE_CHECKING|__name__", ast.unparse(node.test)):
        found.append(node)
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
        found.append(node)
    if isinstance(node, ast.Call) and re.match(r"log\.|isinstance$|cast$|TypeVar$", ast.unparse(node.func)):
        found += node.args[0 if ast.unparse(node.func).startswith("log.") else 1 :]
    if isinstance(node, ast.keyword) and node.arg in KEYWORDS:
        found.append(node)
    return [one for one in found if one is not None]
