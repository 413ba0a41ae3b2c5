"""`make mutants`: changes the product in 100 places, one at a time, and prints which changes the tests of a commit detect.

All results are kept in `.mutants`: an interrupted run goes on. docs/testing.md describes the options.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from contextlib import ExitStack

from cosmic_ray.work_db import WorkDB, use_db

from tests.mutants.draw import Mutant, draw, mutant
from tests.mutants.run import ROOT, Clone, choose, measure, try_all, try_survivors, verdict
from tests.support import run_folder


def main() -> None:
    """Draws mutants if there are none, runs those that have no result, and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--of", default="HEAD", help="commit whose code is mutated")
    parser.add_argument("--suite", default="HEAD", help="commit whose tests run, against its own code with the same mutations")
    parser.add_argument("--before", help="commit of an earlier suite: the test that killed a mutant there runs first")
    parser.add_argument("--count", type=int, default=100, help="number of mutants")
    parser.add_argument("--seed", type=int, default=1, help="number that chooses them")
    given = parser.parse_args()
    of, suite = commit(given.of), commit(given.suite)
    folder = ROOT / ".mutants"
    folder.mkdir(exist_ok=True)
    clones = [Clone(folder / f"clone-{number}") for number in (1, 2)]

    clones[0].check_out(of)
    drawn = folder / f"{of}-{given.seed}-{given.count}.sqlite"
    if not drawn.exists():
        unfinished = drawn.with_suffix(".unfinished")
        with use_db(unfinished) as database:
            draw(clones[0].folder, database, given.count, given.seed)
        unfinished.rename(drawn)
    with use_db(drawn) as database:
        mutants = {item.job_id: mutant(clones[0].folder, item.mutations[0]) for item in database.work_items}

    for clone in clones:
        clone.check_out(suite)
    data, failed = folder / f"{suite}.coverage", folder / f"{suite}.failed.json"
    if not failed.exists():
        failed.write_text(json.dumps(measure(clones[0], data)))
    unstable = json.loads(failed.read_text())
    if not (own := folder / f"{drawn.stem}-of-{suite}.sqlite").exists():
        shutil.copy(drawn, own)
    with ExitStack() as stack:
        files = sorted(folder.glob(f"{drawn.stem}-of-*.sqlite"), key=lambda file: (file == own, file.stat().st_mtime))
        databases = {file.stem.rpartition("-")[2]: stack.enter_context(use_db(file)) for file in files}
        earlier = databases[commit(given.before)].results if given.before else ()
        first = {name: str(json.loads(result.output or "{}").get("test", "")) for name, result in earlier}
        try_all(databases[suite], mutants, clones, choose(data, mutants.values(), first, unstable))
        try_survivors(databases[suite], mutants, clones[0], unstable)
        # Ends the processes of runs that were killed, and removes their folders.
        run_folder.begin()
        sys.stdout.write(f"{table(databases, mutants)}\n")


def table(databases: dict[str, WorkDB], mutants: dict[str, Mutant]) -> str:
    """Returns the results of all suites as a table in Markdown."""
    results = {suite[:8]: dict(database.results) for suite, database in databases.items()}
    rows = [f"| mutant | file, function | change | {' | '.join(results)} |", "|---|---|---|" + "---|" * len(results)]
    for name, one in sorted(mutants.items(), key=lambda item: (item[1].path, item[1].lines.start)):
        change = one.change.replace("|", "\\|")
        verdicts = " | ".join(verdict(found.get(name)) for found in results.values())
        rows.append(f"| {name} | {one.path} {one.definition} | `{change}` | {verdicts} |")
    return "\n".join(rows)


def commit(name: str) -> str:
    """Returns the full name of a commit."""
    found = subprocess.run(["git", "rev-parse", f"{name}^{{commit}}"], cwd=ROOT, capture_output=True, check=True)
    return found.stdout.decode().strip()


if __name__ == "__main__":
    main()
