"""`portico doctor --try` with the real codex."""

from __future__ import annotations

import json

from tests.conftest import write_config
from tests.real.codex.conftest import DUMMY_KEY, Home
from tests.real.processes import processes_of
from tests.support.doctor_report import doctor_command


async def test_a_task_of_codex(home: Home) -> None:
    write_config(home.base, home.config())
    report = await doctor_command(home.base, "--try")
    assert report.is_well
    [found] = [agent for agent in report["agents"] if agent["driver"] == "codex"]
    assert found["state"]["version"] and "gpt-5.5" in found["state"]["models"]
    assert found["trial"]["answer"] and found["trial"]["error"] is None
    assert DUMMY_KEY not in json.dumps(report)
    assert not processes_of(home.path)


async def test_codex_without_a_login(home: Home) -> None:
    (home.codex / "config.toml").write_text("")
    write_config(home.base, home.config())
    report = await doctor_command(home.base)
    found = report.check("codex")
    assert (report.code, found["status"], found["command"]) == (1, "problem", "codex login")
