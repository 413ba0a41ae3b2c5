"""The page docs/compatibility.md, which is written from the results: `python -m tests.matrix.page` writes it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.matrix.checks import CHECKS
from tests.matrix.results import FILES, PASSED, Files, load

HEAD = """# Releases of the CLIs that were tested

`make matrix` writes this page and [compatibility.json](compatibility.json). It installs releases from npm, each in an empty
folder, and runs the checks below with the real CLI behind a gateway, against a model server on loopback. *Supported* is the
oldest release that the driver is made for. *Tested* are the releases from the first to the last that pass every check, where none
in between fails.

    make matrix [CLI=claude|codex|gemini] [SINCE=6m] [N=7]     # N releases of the last six months
    make matrix CLI=claude VERSION=2.1.330                     # one release
    make matrix N=1                                            # the newest of each, and what changed in its output

A check that fails is repeated alone before it counts. Between two releases of which one fails, those in between are tested until
the first that differs is known. `N=1` also records transcripts (`tests/transcripts`) with that release in a throw-away folder,
and prints how their events differ from the golden ones. The exit code is 1 if a check fails that is not recorded here as failed.

*Released* is the date of npm; of a release that npm has published again, the latest day on which it can have appeared first.
*Checked* is the day of the last run with the release.
"""


def page(results: Mapping[str, Mapping[str, Any]], runs: Mapping[str, Mapping[str, Any]]) -> str:
    """The page for these results and their runs, in Markdown."""
    sections = [HEAD, "## The checks\n", *(f"* **{name}**: {check.sentence}" for name, check in CHECKS.items())]
    for name, cli in results.items():
        sections += ["", *_section(name, cli, runs.get(name, {}))]
    return "\n".join(sections) + "\n"


def write(files: Files = FILES) -> None:
    """Write the page for the results on disk."""
    files.page.write_text(page(load(files.results), load(files.runs)))


def _section(name: str, cli: Mapping[str, Any], runs: Mapping[str, Any]) -> list[str]:
    span = cli["tested"]
    tested = f"Tested: {span['from']} to {span['to']}." if span else "No release passes every check."
    lines = [f"## {name}", "", f"Package `{cli['package']}`. Supported: {cli['oldest']} and newer. {tested}", ""]
    lines += [f"* {_note(note)}" for note in cli["notes"]] + [""] * bool(cli["notes"])
    columns = list(CHECKS)
    lines += [f"| {name} | released | checked | {' | '.join(columns)} |", f"|---|---|---|{'---|' * len(columns)}"]
    failed = []
    for found in reversed(cli["releases"]):
        run = runs.get(found["version"], {"date": "", "behaviour": {}})
        cells = [_cell(found["checks"].get(column), run["behaviour"].get(column, "ok")) for column in columns]
        lines.append(f"| {found['version']} | {found['date']} | {run['date']} | {' | '.join(cells)} |")
        failed += [f"* {found['version']}, {check}: {why}" for check, why in found["checks"].items() if why != PASSED]
    return [*lines, *([""] if failed else []), *failed]


def _note(note: Mapping[str, Any]) -> str:
    return f"Before {note['before']}: {note['text']}" if note["before"] else str(note["text"])


def _cell(result: str | None, word: str) -> str:
    if result is None:
        return "not run"
    return word if result == PASSED else "**failed**"


if __name__ == "__main__":
    write()
