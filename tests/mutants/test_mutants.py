"""`make mutants`: which mutants it draws, and how it finds the test that kills one. Skipped without cosmic-ray."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray")

from cosmic_ray.work_db import use_db

from tests.mutants.__main__ import table
from tests.mutants.draw import draw, mutant
from tests.mutants.run import Clone, choose, measure, try_all, try_survivors

CODE = """
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    LIMIT = 1
Number = int | float
@dataclass(frozen=True)
class Point:
    x: int | None
def add(a: int | None, b: int) -> int | None:
    return a + b
def half(a: int) -> int:
    return a // 2
def call(function: object) -> object:
    return function(**{})
"""
TESTS = """
import subprocess, sys
from drivers.code import add, half
def test_add(): assert add(3, 2) == 5
def test_half(): half(6)
def test_half_in_a_process():
    assert subprocess.run([sys.executable, "-c", "from drivers.code import half; assert half(6) == 3"]).returncode == 0
"""
SETTINGS = "from hypothesis import settings\nsettings.register_profile('short')\n"


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    files = {"drivers/code.py": CODE, "tests/test_code.py": TESTS, "conftest.py": SETTINGS, ".gitignore": ".venv\n__pycache__\n"}
    files["pytest.ini"] = "[pytest]\nmarkers =\n    long: takes long\n"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "code"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return Clone(tmp_path)


@pytest.mark.long
def test_mutants_are_drawn_where_they_change_behaviour_and_tried(clone: Clone, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("results")
    with use_db(folder / "drawn.sqlite") as database:
        draw(clone.folder, database, 100, 1)
        mutants = {item.job_id: mutant(clone.folder, item.mutations[0]) for item in database.work_items}
        draw(clone.folder, database, 100, 1)
        assert mutants.keys() == {item.job_id for item in database.work_items}
        # One for each function, and the removed decorator. `call` has only mutants that are no Python.
        assert {one.definition for one in mutants.values()} == {"", "add", "half"}

        failed = measure(clone, folder / "coverage")
        assert failed == []
        add, half = (next(one for one in mutants.values() if one.definition == name) for name in ("add", "half"))
        tests = choose(folder / "coverage", mutants.values(), {}, [])
        assert tests[add.id] == ["tests/test_code.py::test_add"]
        # What runs in a process of its own is not seen.
        assert tests[half.id] == ["tests/test_code.py::test_half"]

        try_all(database, mutants, [clone], tests)
        results = {name: json.loads(result.output)["test"] for name, result in database.results}
        assert (results[add.id], results[half.id]) == ("tests/test_code.py::test_add", "")
        try_survivors(database, mutants, clone, failed)
        results = {name: json.loads(result.output)["test"] for name, result in database.results}
        assert results[half.id] == "tests/test_code.py::test_half_in_a_process"
        assert (clone.folder / "drivers/code.py").read_text() == CODE
        assert f"| {add.id} | drivers/code.py add | `{add.change}` | killed |" in table({"a" * 40: database}, mutants)
