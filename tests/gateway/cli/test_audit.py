"""`portico audit`, while a gateway runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.daemon import RunningGateway
from tests.gateway.portico_command import PorticoCommand
from tests.gateway.requests import create_session

WriteScenario = Callable[..., str]


async def test_audit_prints_the_decisions_of_sessions(
    portico: RunningGateway, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    call = {"id": "c", "name": "shell", "input": {"command": "two\nlines"}}
    options = {"scenario": write_scenario([{"tool_call": call}, {"text": "done"}])}
    sessions = [
        (await create_session(portico.client, options=options, grants=[{"name": "shell", "trust": True}]))["sessionId"]
        for _ in range(2)
    ]
    code, out, err = await PorticoCommand(tmp_path, "audit").run()
    assert (code, err, len(out.splitlines())) == (0, "", 2)
    line = out.splitlines()[1]
    assert line.endswith(f'{sessions[1]} script shell c trusted by trust {{"command": "two\\nlines"}}')
    _, out, _ = await PorticoCommand(tmp_path, "audit", "--session", sessions[0], "--json").run()
    [record] = [json.loads(line) for line in out.splitlines()]
    assert (record["session_id"], record["outcome"], record["by"]) == (sessions[0], "trusted", "trust")
    _, out, _ = await PorticoCommand(tmp_path, "audit", "--limit", "1").run()
    assert out.splitlines() == [line]


async def test_audit_without_data_prints_nothing_and_creates_no_data(tmp_path: Path) -> None:
    assert await PorticoCommand(tmp_path, "audit").run() == (0, "", "")
    assert not (tmp_path / "data").exists()
