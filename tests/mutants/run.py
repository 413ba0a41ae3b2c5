"""Runs a suite against mutants: each with the tests that reach its lines, then all survivors at once with the whole suite."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from cosmic_ray.testing import run_tests
from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkResult
from coverage import CoverageData

from tests.mutants.draw import PACKAGES, Mutant

ROOT = Path(__file__).parents[2]
MOST_TESTS = 100
"""Number of the tests that run against a mutant alone."""
SECONDS, SECONDS_OF_ALL = 600, 3600
"""Time limits of the tests of one mutant, and of the whole suite. A mutant that hangs is killed."""
OPTIONS = ("-q", "-p", "no:cacheprovider", "-m", "not long", "--hypothesis-profile=short", "--timeout=120")
IN_TWO = ("-n", "2", "--dist", "worksteal")


@dataclass(frozen=True)
class Clone:
    """A clone of this repository with its own environment. One run of tests at a time takes place in it."""

    folder: Path

    def check_out(self, commit: str) -> None:
        """Makes the clone if there is none, and sets it to a commit."""
        if not self.folder.exists():
            subprocess.run(["git", "clone", "--quiet", ROOT, self.folder], check=True)
        self._run("git", "fetch", "--quiet", "origin")
        self.restore()
        self._run("git", "checkout", "--quiet", "--detach", commit)
        self._run("make", "--no-print-directory", ".venv/.dev")
        needed = str(ROOT / "tests/mutants/requirements.txt")
        self._run(".venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", needed)

    def apply(self, mutant: Mutant) -> bool:
        """Changes the code. Returns false if the code around the change is not that of the mutant's commit."""
        command = ["git", "apply", "-C1", "-"]
        return subprocess.run(command, cwd=self.folder, input=mutant.diff.encode(), stderr=subprocess.DEVNULL).returncode == 0

    def restore(self) -> None:
        """Takes back all mutants."""
        self._run("git", "checkout", "--quiet", "--", ".")

    def test(self, *arguments: str, seconds: float = SECONDS) -> dict[str, str]:
        """Runs tests. Returns those that failed, with the error. If none started, the end of the output is the name."""
        # Python compiles a module once, not in each process again.
        place = ["env", f"--chdir={self.folder}", "PYTHONDONTWRITEBYTECODE=", "nice", "-n", "15"]
        outcome, output = run_tests(shlex.join([*place, ".venv/bin/python", "-m", "pytest", *OPTIONS, *arguments]), seconds)
        return {} if outcome == TestOutcome.SURVIVED else failures(output) or {output[-300:]: ""}

    def _run(self, *command: str) -> None:
        subprocess.run(command, cwd=self.folder, check=True)


def failures(output: str) -> dict[str, str]:
    """Returns the failed tests of pytest's summary, with the beginning of the error."""
    return dict(re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - (.*))?$", output, re.MULTILINE))


def measure(clone: Clone, data: Path) -> list[str]:
    """Runs the whole suite once, stores which test reaches which line, and returns the tests that failed."""
    settings = data.with_suffix(".ini")
    settings.write_text("[run]\nrelative_files = true\nsource =\n" + "".join(f"    {package}\n" for package in PACKAGES))
    coverage = ("--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report=")
    failed = clone.test(*IN_TWO, *coverage, seconds=SECONDS_OF_ALL)
    (clone.folder / ".coverage").rename(data)
    return list(failed)


def choose(data: Path, mutants: Iterable[Mutant], first: dict[str, str], unstable: Iterable[str]) -> dict[str, list[str]]:
    """Returns the tests that run against each mutant, by its id: those that reach its lines.

    They begin with the test of `first` and its file, and go on with the tests that reach the least code besides. If the line
    runs only during an import, they are the tests that reach the file.
    """
    covered, chosen = CoverageData(str(data)), {}
    covered.read()
    reached: dict[str, dict[int, set[str]]] = {}
    for path in {mutant.path for mutant in mutants}:
        of_file = [covered.contexts_by_lineno(file) for file in covered.measured_files() if f"/{file}".endswith(f"/{path}")]
        # A context is a test with a phase: `tests/test_x.py::test_y|run`.
        lines = of_file[0].items() if of_file else ()
        reached[path] = {line: {one.rpartition("|")[0] for one in tests} - {"", *unstable} for line, tests in lines}
    sizes = Counter(test for lines in reached.values() for tests in lines.values() for test in tests)
    for mutant in mutants:
        killer, lines_of_file = first.get(mutant.id, ""), reached[mutant.path]
        found = set[str]().union(*(lines_of_file.get(line, ()) for line in mutant.lines))
        found = found or set[str]().union(*lines_of_file.values())
        found |= {killer} & sizes.keys()
        file = f"{killer.partition('::')[0]}::"
        order = {test: (test != killer, not test.startswith(file), sizes[test], test) for test in found}
        chosen[mutant.id] = sorted(found, key=order.__getitem__)[:MOST_TESTS]
    return chosen


def try_all(database: WorkDB, mutants: dict[str, Mutant], clones: Sequence[Clone], tests: dict[str, list[str]]) -> None:
    """Runs the chosen tests against each mutant that has no result, in all clones at once."""
    free = SimpleQueue[Clone]()
    for clone in clones:
        free.put(clone)

    def run(mutant: Mutant) -> tuple[Mutant, WorkResult]:
        clone = free.get()
        try:
            return mutant, _try(clone, mutant, tests[mutant.id])
        finally:
            clone.restore()
            free.put(clone)

    pending = sorted(item.job_id for item in database.pending_work_items)
    with ThreadPoolExecutor(len(clones)) as threads:
        for done in as_completed([threads.submit(run, mutants[name]) for name in pending]):
            _store(database, *done.result())


def _try(clone: Clone, mutant: Mutant, tests: list[str]) -> WorkResult:
    if not clone.apply(mutant):
        return WorkResult(WorkerOutcome.NO_TEST, diff=mutant.diff)
    began = time.monotonic()
    while tests:
        failed = clone.test("-x", *tests)
        if not failed:
            break
        killer, error = next(iter(failed.items()))
        # A test that took too long because the machine is busy has killed nothing.
        if killer not in tests or "Timeout" not in error or clone.test(killer):
            return _result(TestOutcome.KILLED, mutant, killer, began)
        tests = tests[tests.index(killer) + 1 :]
    return _result(TestOutcome.SURVIVED, mutant, "", began)


def try_survivors(database: WorkDB, mutants: dict[str, Mutant], clone: Clone, unstable: Iterable[str]) -> None:
    """Runs all tests against all survivors at once, and each test that fails against each of them, until all tests pass."""
    unexplained = list(unstable)
    while True:
        names = {name for name, result in database.results if result.test_outcome == TestOutcome.SURVIVED}
        began, together = time.monotonic(), [mutants[name] for name in sorted(names) if clone.apply(mutants[name])]
        say(f"{len(together)} of {len(names)} survivors at once")
        left_out = [f"--deselect={test}" for test in unexplained]
        failed = clone.test(*IN_TWO, "--maxfail=30", *left_out, seconds=SECONDS_OF_ALL)
        clone.restore()
        if not failed or not together:
            return
        for test in failed:
            killed = [mutant for mutant in together if _kills(clone, test, mutant)]
            for mutant in killed:
                _store(database, mutant, _result(TestOutcome.KILLED, mutant, test, began))
                together.remove(mutant)
            if not killed:
                say(f"fails with no survivor alone: {test}")
                unexplained.append(test)


def _kills(clone: Clone, test: str, mutant: Mutant) -> bool:
    try:
        return clone.apply(mutant) and test in clone.test(test)
    finally:
        clone.restore()


def _result(outcome: TestOutcome, mutant: Mutant, test: str, began: float) -> WorkResult:
    output = json.dumps({"test": test, "seconds": round(time.monotonic() - began, 1)})
    return WorkResult(WorkerOutcome.NORMAL, output, outcome, mutant.diff)


def _store(database: WorkDB, mutant: Mutant, result: WorkResult) -> None:
    database.set_result(mutant.id, result)
    say(f"{database.num_results} {mutant.id} {mutant.path} {mutant.definition}: {verdict(result)} {result.output or ''}")


def verdict(result: WorkResult | None) -> str:
    """Returns a word for the result of a mutant."""
    if result is None:
        return "not run"
    return result.test_outcome.value if result.test_outcome else "does not apply"


def say(text: str) -> None:
    """Prints a line with the time."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()
