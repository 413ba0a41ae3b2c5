"""The screen of `portico doctor`: a line a check with a mark and a word, and each command on a line of its own."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from gateway.diagnosis.report import Check, Report, Status
from gateway.terminal_text import lines, one_line

MARKS: dict[Status, tuple[str, str, str]] = {
    "ok": ("✓", "+", "green"),
    "info": ("·", "-", ""),
    "warning": ("!", "!", "yellow"),
    "problem": ("✗", "x", "red"),
}
"""The mark, the one for terminals without Unicode, and the colour."""
STATUS_WIDTH, NAME_WIDTH, MIN_WIDTH = 10, 13, 50
COMMAND_INDENT = " " * 4


def print_report(report: Report, console: Console | None = None) -> None:
    """Print a report to standard output, or to the console."""
    console = console or Console(highlight=False)
    _print_checks(console, report.checks)
    if report.agents:
        whence = f"the daemon at {report.daemon}" if report.daemon else "this process"
        console.print(Text(f"\nAgents, as reported by {whence}:"), soft_wrap=True)
        _print_checks(console, [agent.check for agent in report.agents])
    count = report.problems
    found = "No problem was found." if not count else f"{count} problem{'s' if count > 1 else ''} found."
    console.print(Text(f"\n{found}", style="bold"), soft_wrap=True)


def _print_checks(console: Console, checks: Sequence[Check]) -> None:
    for check in checks:
        mark, plain, style = MARKS[check.status]
        shown = mark if _writes(console, mark) else plain
        head = Text.assemble((f"{shown} {check.status}".ljust(STATUS_WIDTH), style), one_line(check.name).ljust(NAME_WIDTH), " ")
        text = Text("\n".join(lines(part) for part in [check.text, *check.details]))
        for n, line in enumerate(text.wrap(console, max(console.width, MIN_WIDTH) - len(head), overflow="fold")):
            line.rstrip()
            console.print((head if n == 0 else Text(" " * len(head))) + line, soft_wrap=True)
        if check.command and check.status != "ok":
            # Not wrapped, so that it can be copied as it is.
            console.print(Text(COMMAND_INDENT + one_line(check.command), style="bold"), soft_wrap=True)


def _writes(console: Console, text: str) -> bool:
    try:
        text.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
