"""`make test-all`: runs all steps of tests, also after one that fails, and ends with one table of their results.

A step that has passed is not run again for the same commit and files: a run that was interrupted goes on, and a step that has
failed is repeated. `--fresh` runs all of them. The state and the output of each step are in `.test-all`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.debian import install

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Step:
    """Arguments of make, and the programs that Debian packages have for them."""

    make: tuple[str, ...]
    programs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


STEPS = (
    Step(("check",)),
    Step(("test",)),
    Step(("test-places",)),
    Step(("test-long",)),
    Step(("bench-guard",)),
    Step(("faults", "FAULTS=--quick")),
    Step(("test-console",), ("chromium-headless-shell",), ("chromium-headless-shell",)),
    Step(("test-real",)),
    # Last: codex uses an installed bubblewrap for a sandbox of its own, and the tests above are to run without it too.
    Step(("test-containers",), ("bwrap", "podman"), ("bubblewrap", "podman", "crun", "runc", "catatonit", "uidmap")),
)
"""In an order that tells early."""


@dataclass
class Result:
    """How a step ended. The counts are None if its output has none."""

    ok: bool
    seconds: float
    passed: int | None = None
    failed: int | None = None
    skipped: int | None = None
    failures_before: int = 0
    """How often the step has failed for the same files before."""


def main(argv: Sequence[str] | None = None, root: Path = ROOT, steps: Sequence[Step] = STEPS) -> int:
    """Run the steps that have not passed yet; return 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.all_steps", description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="run all steps, also those that have passed")
    fresh = parser.parse_args(argv).fresh
    folder = root / ".test-all"
    folder.mkdir(exist_ok=True)
    key = state_of_files(root)
    results = {} if fresh else _load(folder, key)
    try:
        for step in steps:
            name, before = step.make[0], results.get(step.make[0])
            if before is not None and before.ok:
                continue
            sys.stdout.write(f"\n== make {' '.join(step.make)}\n")
            sys.stdout.flush()
            install(step.programs, step.packages)
            results[name] = run(step, root, folder / f"{name}.log")
            if before is not None:
                results[name].failures_before = before.failures_before + 1
            _save(folder, key, results)
    except KeyboardInterrupt:
        sys.stdout.write(f"\n{table(results, steps)}\nInterrupted: make test-all goes on here.\n")
        return 130
    sys.stdout.write(f"\n{table(results, steps)}\n")
    return 0 if all(result.ok for result in results.values()) else 1


def run(step: Step, root: Path, log: Path) -> Result:
    """Run a step, show its output and keep it in `log`."""
    began = time.monotonic()
    command = ["make", "--no-print-directory", *step.make]
    with log.open("wb") as kept, subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as made:
        assert made.stdout is not None
        while part := os.read(made.stdout.fileno(), 65536):
            sys.stdout.buffer.write(part)
            sys.stdout.flush()
            kept.write(part)
    return Result(made.returncode == 0, round(time.monotonic() - began, 1), *counts(log.read_text(errors="replace")))


def counts(output: str) -> tuple[int | None, int | None, int | None]:
    """Return how many tests passed, failed and were skipped, by the last line of each pytest, or how many cases of faults."""
    if cases := re.search(r"^\| all \| (\d+) \| (\d+) \|", output, re.MULTILINE):
        return int(cases[1]) - int(cases[2]), int(cases[2]), 0
    lines = re.findall(r"^=* ?\d+ (?:passed|failed|skipped|error).* in [\d.]+s.*$", output, re.MULTILINE)
    if not lines:
        return None, None, None
    found = Counter[str]()
    for count, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", "\n".join(lines)):
        found[kind] += int(count)
    return found["passed"], found["failed"] + found["error"], found["skipped"]


def table(results: dict[str, Result], steps: Sequence[Step]) -> str:
    """Return the results as a table in Markdown."""
    rows = ["| step | result | passed | failed | skipped | seconds |", "|---|---|---:|---:|---:|---:|"]
    for step in steps:
        name = step.make[0]
        if (one := results.get(name)) is None:
            rows.append(f"| {name} | not run | | | | |")
            continue
        verdict = "passed" if one.ok else f"FAILED: .test-all/{name}.log"
        if one.failures_before:
            verdict += f" (failed {one.failures_before} x before)"
        cells = ["" if count is None else str(count) for count in (one.passed, one.failed, one.skipped)]
        rows.append(f"| {name} | {verdict} | {' | '.join(cells)} | {one.seconds:.0f} |")
    return "\n".join(rows)


def state_of_files(root: Path) -> str:
    """Return the commit, and git's hash of all files that it does not ignore as they are now."""

    def git(*arguments: str, **environ: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, env={**os.environ, **environ}, capture_output=True, check=True)
        return done.stdout.decode().strip()

    with tempfile.TemporaryDirectory() as folder:
        # An index and a store of objects of its own: the repository is not changed.
        own = {"GIT_INDEX_FILE": f"{folder}/index", "GIT_OBJECT_DIRECTORY": folder}
        git("add", "--all", **own)
        return f"{git('rev-parse', 'HEAD')} {git('write-tree', **own)}"


def _load(folder: Path, key: str) -> dict[str, Result]:
    try:
        kept = json.loads((folder / "state.json").read_text())
    except FileNotFoundError:
        return {}
    return {name: Result(**result) for name, result in kept["results"].items()} if kept["key"] == key else {}


def _save(folder: Path, key: str, results: dict[str, Result]) -> None:
    file = folder / "state.json"
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"key": key, "results": {name: asdict(result) for name, result in results.items()}}))
    new.replace(file)


if __name__ == "__main__":
    sys.exit(main())
