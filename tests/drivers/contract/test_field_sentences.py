"""Each field of the contract of drivers has its own sentence, below the field."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

CONTRACT = Path(__file__).parents[3] / "drivers" / "contract"
# The fields of messages are those of AAP.
MODULES = sorted(path for path in CONTRACT.glob("*.py") if path.name != "messages.py")


def is_record(found: ast.ClassDef) -> bool:
    bases = {ast.unparse(base) for base in found.bases}
    return any("dataclass" in ast.unparse(one) for one in found.decorator_list) or bool(bases & {"Event", "BaseModel"})


def fields_of(record: ast.ClassDef) -> dict[str, bool]:
    """Return the names of the fields, and whether a sentence follows."""
    found = {}
    for statement, following in zip(record.body, [*record.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.target.id != "kind":
            described = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            found[statement.target.id] = described
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_each_field_has_a_sentence(module: Path) -> None:
    missing = []
    for found in ast.walk(ast.parse(module.read_text())):
        if isinstance(found, ast.ClassDef) and is_record(found):
            fields = fields_of(found)
            # A single field is described by the sentence of its record.
            missing += [f"{found.name}.{name}" for name, described in fields.items() if not described and len(fields) > 1]
    assert missing == []


def test_the_fields_of_events_are_found() -> None:
    tree = ast.parse((CONTRACT / "events.py").read_text())
    records = {one.name: fields_of(one) for one in ast.walk(tree) if isinstance(one, ast.ClassDef) and is_record(one)}
    assert list(records["ToolOutput"]) == ["tool_call_id", "text"] and len(records) > 25
