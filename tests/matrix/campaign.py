"""Runs the checks of a release by pytest; one that fails is repeated before it counts."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.matrix.checks import CHECKS, Check
from tests.matrix.results import PASSED, ROOT

CHECK_SECONDS = 60
"""A check that takes longer has failed."""
WHY_CHARACTERS = 300


@dataclass
class Outcome:
    """The outcome of all checks of a release, by their names.

    `results` are "passed" or "failed: WHY", `behaviour` the words that checks report. `repeated` says why a check failed the
    first time.
    """

    results: dict[str, str] = field(default_factory=dict)
    behaviour: dict[str, str] = field(default_factory=dict)
    repeated: dict[str, str] = field(default_factory=dict)


Run = Callable[[str, Path, Mapping[str, Check]], Awaitable[Outcome]]


async def run_checks(cli: str, installation: Path, run: Run | None = None) -> Outcome:
    """Run all checks with the release in this folder. Those that fail are repeated with another gateway and a new home."""
    run = run or run_pytest
    outcome = await run(cli, installation, CHECKS)
    failed = {name: why for name, why in outcome.results.items() if why != PASSED}
    if failed:
        again = await run(cli, installation, {name: CHECKS[name] for name in failed})
        outcome = Outcome({**outcome.results, **again.results}, {**outcome.behaviour, **again.behaviour}, failed)
    return outcome


async def run_pytest(cli: str, installation: Path, checks: Mapping[str, Check]) -> Outcome:
    """Run the tests of these checks in a process of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        tests = [check.node_id(cli) for check in checks.values()]
        settings = (
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "-o",
            f"timeout={CHECK_SECONDS}",
            "-o",
            "junit_family=xunit1",
            f"--junitxml={report}",
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pytest", *settings, *tests),
            cwd=ROOT,
            env={**os.environ, "PORTICO_TEST_CLIS": str(installation)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        if not report.exists():
            raise RuntimeError(f"pytest exited with {process.returncode}: {output.decode(errors='replace')[-2000:]}")
        return read_report(report.read_text(), cli, checks)


def read_report(report: str, cli: str, checks: Mapping[str, Check]) -> Outcome:
    """The outcome of the checks in a report of pytest, which has one or more entries for each test."""
    entries: dict[str, list[xml.Element]] = {}
    for case in xml.fromstring(report).iter("testcase"):
        entries.setdefault(case.attrib["name"], []).append(case)
    outcome = Outcome()
    for name, check in checks.items():
        cases = entries.get(check.node_id(cli).rpartition("::")[2], [])
        outcome.results[name] = _result(cases)
        for found in (found for case in cases for found in case.iter("property")):
            outcome.behaviour[name] = found.attrib["value"]
    return outcome


def _result(cases: Iterable[xml.Element]) -> str:
    """What the entries of a test say. It has not passed if it was skipped, or did not run."""
    problems = [problem for case in cases for problem in case if problem.tag in ("failure", "error", "skipped")]
    if problems:
        return f"failed: {one_line(problems[0].attrib.get('message') or problems[0].text or problems[0].tag)}"
    return PASSED if cases else "failed: it did not run"


def one_line(text: str) -> str:
    """A message in one line of limited length, without folders and ports of this machine."""
    text = re.sub(r"/\S*portico-\w+-\w+", "…", re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:9", " ".join(text.split())))
    return text if len(text) <= WHY_CHARACTERS else text[: WHY_CHARACTERS - 1] + "…"
