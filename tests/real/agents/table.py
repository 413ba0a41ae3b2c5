"""The table of the agents that are tested, on docs/drivers/acp.md: what each does, by row."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "drivers" / "acp.md"
SECTION = "## Agents that are tested\n"
ROWS = (
    "version",
    "text, thinking",
    "a command, a file: asks before",
    "after a refusal",
    "application-side tools",
    "cancel",
    "resumed in another process",
    "history of another session",
    "images",
    "additional directories",
    "models",
    "slash commands",
    "tokens used",
)


def columns() -> dict[str, dict[str, str]]:
    """The cells of each agent, by its name and the row."""
    section = PAGE.read_text().split(SECTION)[1].split("\n## ")[0]
    table = (line for line in section.splitlines() if line.startswith("|"))
    [head, _, *lines] = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    return {name.strip("`"): {line[0]: line[n] for line in lines} for n, name in enumerate(head[1:], start=1)}
