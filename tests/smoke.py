"""`make smoke`: a few tests with a browser, the real CLIs, a client of others and a container, and a few faults, in minutes.

A test with a browser or a CLI that fails is run once more. If it passes then, the run has passed, and the last lines name the
test as unstable. In CI a test that is skipped has failed: what it needs is missing.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from tests.real.browser import find_browser
from tests.support.debian import IN_CI, install

FOREIGN = (
    "tests/real/behaviours/test_tools.py::test_a_permission",
    "tests/real/behaviours/test_processes.py::test_a_cancelled_text",
    "tests/real/acp/test_stdio_examples.py::test_typescript_client",
    "tests/console/test_sign_in.py::test_a_key_signs_in_and_sign_out_ends_it_in_all_windows",
    "tests/console/test_composer_settings.py::test_a_new_session_without_a_message",
    "tests/console/test_approvals.py::test_an_answer_by_mouse[Allow-Result: ran]",
    "tests/console/test_restart.py::test_a_daemon_that_was_killed_in_mid_stream",
)
"""Tests with a browser, a CLI or a client of others."""
CONTAINER = ("tests/gateway/agents/test_run_in.py::test_agent_in_bwrap_reads_no_secret_and_writes_in_its_folders",)
FAULTS = ("kills", "trees")
"""Campaigns of tests.faults, of which the quick part is run."""
WORKERS = 2
SECONDS = 180.0
"""What all of it may take on two cores, without the installations. Whoever adds to the lists above takes something out."""


@dataclass
class Outcomes:
    """A plugin of pytest that collects the failed tests, and why others were skipped."""

    failed: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)
        elif report.skipped:
            self.skipped[report.nodeid] = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


@dataclass
class Smoke:
    """One run: its problems, the tests that passed only when they were repeated, and the seconds of all tests."""

    problems: list[str] = field(default_factory=list)
    unstable: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def test(self, tests: Sequence[str], *, repeat: bool = False) -> None:
        """Run tests, and with `repeat` those that fail once more."""
        outcomes = self._pytest(tests)
        failed = outcomes.failed
        if failed and repeat:
            sys.stdout.write(f"Once more: {', '.join(failed)}\n")
            again = self._pytest(failed)
            self.unstable += [test for test in failed if test not in again.failed]
            failed = again.failed
        self.problems += [f"failed: {test}" for test in failed]
        if IN_CI:
            self.problems += [f"skipped: {test}: {why}" for test, why in outcomes.skipped.items()]

    def _pytest(self, tests: Sequence[str]) -> Outcomes:
        outcomes, began = Outcomes(), time.monotonic()
        code = pytest.main(["-q", f"--numprocesses={WORKERS}", "--dist=loadfile", *tests], plugins=[outcomes])
        self.seconds += time.monotonic() - began
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            sys.exit(code)
        return outcomes

    def faults(self, names: Sequence[str]) -> None:
        """Run the quick part of fault campaigns."""
        began = time.monotonic()
        if subprocess.run([sys.executable, "-m", "tests.faults", "--quick", *names]).returncode:
            self.problems.append(f"failed: faults {' '.join(names)}")
        self.seconds += time.monotonic() - began

    def report(self) -> str:
        """Return the last lines of the run."""
        lines = [*self.problems, *(f"unstable: {test} failed, and passed when it was repeated" for test in self.unstable)]
        took = f"{self.seconds:.0f} s of tests, of {SECONDS:g}"
        lines.append(f"smoke: {'FAILED' if self.problems else 'passed'} ({took})")
        if self.seconds > SECONDS:
            lines.append("TOO SLOW: take something out of tests/smoke.py, unless this machine did something else as well.")
        return "\n".join(lines) + "\n"


def main() -> int:
    """Run all of it; return 1 if something has failed."""
    smoke = Smoke()
    if find_browser() is None:
        install(["chromium-headless-shell"], ["chromium-headless-shell"])
    smoke.test(FOREIGN, repeat=True)
    smoke.faults(FAULTS)
    # After the tests of codex, which uses an installed bubblewrap for a sandbox of its own.
    install(["bwrap"], ["bubblewrap"])
    smoke.test(CONTAINER)
    sys.stdout.write(smoke.report())
    return 1 if smoke.problems else 0


if __name__ == "__main__":
    sys.exit(main())
