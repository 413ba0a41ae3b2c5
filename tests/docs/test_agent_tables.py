"""The tables of agents on docs/drivers/acp.md: they have the agents of the catalogue, and the versions that tests/real pins."""

from __future__ import annotations

import json
from pathlib import Path

from drivers.acp.catalogue import CatalogueAgent, catalogue
from tests.real.agents.programs import AGENTS
from tests.real.agents.table import PAGE, ROWS, columns

PINNED = Path(__file__).parents[1] / "real" / "agents"
SECTION = "## The catalogue\n"


def line_of(agent: CatalogueAgent) -> str:
    needs = f" ({agent.needs})" if agent.needs else ""
    install = f"`{agent.install}`{needs}" if agent.install else f"<{agent.website}>{needs}"
    notes = agent.notes or (f"Needs an entry: it has the name of {agent.same_name}." if agent.same_name else "")
    command, tested = " ".join([agent.program, *agent.args]), "yes" if agent.tested else "no"
    return f"| `{agent.agent}` | {agent.title} | {tested} | `{command}` | {install} | {agent.key} | {notes} |"


def test_the_catalogue_is_on_the_page() -> None:
    section = PAGE.read_text().split(SECTION)[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    assert lines == list(map(line_of, catalogue().values()))


def test_each_tested_agent_has_a_column_and_a_test() -> None:
    tested = [name for name, agent in catalogue().items() if agent.tested]
    assert list(columns()) == tested and set(AGENTS) == set(tested)
    assert all(list(cells) == list(ROWS) for cells in columns().values())


def test_the_versions_are_those_that_are_tested() -> None:
    npm = json.loads((PINNED / "package.json").read_text())["dependencies"]
    pypi = dict(line.split("==") for line in (PINNED / "requirements.txt").read_text().splitlines())
    for name, cells in columns().items():
        agent = catalogue()[name]
        pinned = {**npm, **pypi}[agent.install.split()[-1]]
        assert cells["version"] == agent.version == pinned
