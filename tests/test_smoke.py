"""`make smoke`: which tests it repeats, what it says at the end, and its list."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.campaigns import CAMPAIGNS
from tests.smoke import CONTAINER, FAULTS, FOREIGN, SECONDS, Smoke

ROOT = Path(__file__).parents[1]
TESTS = """
import pathlib, pytest
def once(name):
    path = pathlib.Path(name)
    before = path.exists()
    path.touch()
    assert before
def test_stable(): pass
def test_unstable(): once("a")
def test_broken(): assert False
def test_own(): once("b")
@pytest.fixture(scope="module")
def browser(): once("c")
def test_fixture(browser): pass
def test_skipped(): pytest.skip("no browser")
"""
RUN = """
import sys
from tests import smoke
names = sys.argv[1:]
smoke.install = lambda *_: None
smoke.FOREIGN = [f"test_some.py::test_{name}" for name in names if name != "own"]
smoke.CONTAINER = [f"test_some.py::test_{name}" for name in names if name == "own"] or ["test_some.py::test_stable"]
smoke.WORKERS, smoke.Smoke.faults = 0, lambda *_: None
sys.exit(smoke.main())
"""


def run(folder: Path, *names: str, **environ: str) -> tuple[int, list[str]]:
    """Run a smoke of these tests; return its exit code and its last lines, those of its report."""
    (folder / "test_some.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    env = {name: value for name, value in os.environ.items() if name != "CI"} | {"PYTHONPATH": str(ROOT), **environ}
    # They take a second of CPU each time.
    env["PYTEST_ADDOPTS"] = "-p no:hypothesispytest -p no:schemathesis"
    done = subprocess.run([sys.executable, "-c", RUN, *names], cwd=folder, env=env, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(("failed: ", "skipped: ", "unstable: ", "smoke: ")))
    return done.returncode, [line.partition(" (")[0] for line in lines[start:]]


def test_a_test_that_passes_when_it_is_repeated_is_named_unstable(tmp_path: Path) -> None:
    code, lines = run(tmp_path, "stable", "unstable", "fixture", "skipped")
    assert code == 0
    assert lines == [
        "unstable: test_some.py::test_unstable failed, and passed when it was repeated",
        "unstable: test_some.py::test_fixture failed, and passed when it was repeated",
        "smoke: passed",
    ]


def test_in_ci_a_skipped_test_has_failed_and_a_test_of_our_own_is_not_repeated(tmp_path: Path) -> None:
    code, lines = run(tmp_path, "broken", "own", "skipped", CI="true")
    assert code == 1
    assert lines == [
        "failed: test_some.py::test_broken",
        "skipped: test_some.py::test_skipped: Skipped: no browser",
        "failed: test_some.py::test_own",
        "smoke: FAILED",
    ]


def test_too_many_tests_are_told() -> None:
    lines = Smoke(seconds=SECONDS + 1).report().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["smoke", "TOO SLOW"]


@pytest.mark.parametrize("test", [*FOREIGN, *CONTAINER])
def test_the_list_names_tests(test: str) -> None:
    """They are not run by `make test`, so that a new name of one is not noticed there otherwise."""
    file, _, name = test.partition("::")
    functions = {node.name for node in ast.parse((ROOT / file).read_text()).body if hasattr(node, "name")}
    assert not name or name.partition("[")[0] in functions


def test_the_list_names_fault_campaigns() -> None:
    assert set(FAULTS) <= set(CAMPAIGNS)
