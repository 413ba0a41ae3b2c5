"""Runs the tests of AAP, execute and ACP against two nodes behind a proxy, and prints the results as tables in Markdown.

    python -m tests.cluster_table [ARGUMENTS OF PYTEST]
    python -m tests.cluster_table --reports FOLDER      # tables of the reports of an earlier run

The reports of pytest (JUnit XML) of each part are written to the folder `.pytest_cache/cluster`, or to $PORTICO_CLUSTER_REPORTS.
The exit code is 1 if a test has failed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.support.cluster import PLACEMENTS, Placement

PROTOCOLS = Path("tests/gateway/protocols")
OUTCOMES = ("passed", "failed", "left out")
SUBJECTS = {
    "root": "AAP v1, at the root",
    "/aap/v1": "AAP v1",
    "/aap/v2": "AAP v2",
    "/aap/v3": "AAP v3",
    "aap": "AAP, one version each",
    "execute": "`POST /v1/execute`",
    "acp": "ACP",
    "all": "authentication, sign-ins, metrics, all protocols",
}
_VERSION = re.compile(r"(?:[\[-])(root|/aap/v[123])(?=[]/-])")
_INSIDE = re.compile(r"uses [\w.`]+ of an? \w+")


@dataclass(frozen=True)
class Outcome:
    """What became of a test; `reason` says why it was left out."""

    placement: Placement
    subject: str
    outcome: str
    reason: str = ""


def paths() -> list[str]:
    """What is run."""
    return [str(PROTOCOLS / "aap"), *map(str, sorted(PROTOCOLS.glob("test_*.py"))), str(PROTOCOLS / "acp")]


def subject_of(module: str, name: str) -> str:
    """The key in SUBJECTS of a test, by the dotted name of its module and its own with its parameters."""
    parts = module.split(".")
    if "acp" in parts:
        return "acp"
    if "aap" in parts:
        version = _VERSION.search(name)
        return version[1] if version else "aap"
    return "execute" if parts[-1].startswith("test_execute") else "all"


def outcomes(placement: Placement, folder: Path) -> Iterable[Outcome]:
    """What the reports of a placement have. A test that was run again counts as in the last report by name."""
    found: dict[tuple[str, str], Outcome] = {}
    for report in sorted(folder.glob(f"{placement}*.xml"), key=lambda file: file.stem):
        for case in ElementTree.parse(report).iter("testcase"):
            module, name = case.get("classname", ""), case.get("name", "")
            found[module, name] = _outcome(placement, subject_of(module, name), case)
    return found.values()


def _outcome(placement: Placement, subject: str, case: ElementTree.Element) -> Outcome:
    skipped = case.find("skipped")
    if skipped is not None:
        return Outcome(placement, subject, "left out", reason_of(skipped.get("message", "")))
    failed = case.find("failure") is not None or case.find("error") is not None
    return Outcome(placement, subject, "failed" if failed else "passed")


def reason_of(message: str) -> str:
    """Why a test is left out, without what differs between tests with one reason."""
    text = message.removeprefix("cluster: ")
    return "looks inside of one process" if _INSIDE.match(text) else text


def tables(found: Sequence[Outcome]) -> str:
    """The results by protocol, and the reasons of tests that were left out."""
    counts: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for one in found:
        counts[one.subject][one.placement, one.outcome] += 1
    columns = [(placement, outcome) for placement in PLACEMENTS for outcome in OUTCOMES]
    lines = [
        _row(["protocol", *(f"{placement}: {outcome}" for placement, outcome in columns)]),
        _row(["---"] * (len(columns) + 1)),
    ]
    lines += [_row([title, *(counts[key][column] for column in columns)]) for key, title in SUBJECTS.items() if key in counts]
    lines.append(_row(["all", *(sum(count[column] for count in counts.values()) for column in columns)]))
    reasons = Counter(one.reason for one in found if one.reason)
    lines += ["", _row(["left out, because the test", "tests"]), _row(["---"] * 2)]
    lines += [_row(row) for row in reasons.most_common()]
    return "\n".join(lines)


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def run(placement: Placement, report: Path, arguments: Sequence[str]) -> None:
    """Run the tests with one placement, and write the report."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "worksteal", f"--junitxml={report}", *arguments]
    subprocess.run([*command, *paths()], env={**os.environ, "PORTICO_TEST_CLUSTER": placement}, check=False)


def main(arguments: Sequence[str]) -> int:
    """Run both parts, and print the tables."""
    folder = Path(os.environ.get("PORTICO_CLUSTER_REPORTS", ".pytest_cache/cluster"))
    if arguments[:1] == ["--reports"]:
        folder = Path(arguments[1])
    else:
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        for placement in PLACEMENTS:
            for earlier in folder.glob(f"{placement}*.xml"):
                earlier.unlink()
            run(placement, folder / f"{placement}.xml", arguments)
        print(f"{time.strftime('%Y-%m-%d')}, {time.monotonic() - began:.0f} s")  # noqa: T201
    found = [one for placement in PLACEMENTS for one in outcomes(placement, folder)]
    print(tables(found))  # noqa: T201
    return int(any(one.outcome == "failed" for one in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
