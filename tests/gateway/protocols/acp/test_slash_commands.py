"""Slash commands over the Agent Client Protocol: on by default, announced before the first prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.errors import BadRequest
from gateway.security.authentication import ADMINISTRATOR
from tests.support.acp_client import Client, connect
from tests.support.cluster import placement
from tests.support.daemon import RunningGateway, gateway_config, run_gateway

HELP = """#!/bin/sh
exit 0
"""


async def options_of(portico: RunningGateway, session: str) -> dict[str, str]:
    return dict((await portico.gateway.sessions.get(ADMINISTRATOR, session)).config.options)


async def new_session(portico: RunningGateway, flag: str | None = None, agent: str = "claude") -> tuple[Client, dict[str, str]]:
    """Create a session over a connection with this flag; return the client and the session's options."""
    client, connection = connect(portico.gateway, agent, slash_commands=flag)
    await client.initialize()
    session = await client.new()
    options = await options_of(portico, session)
    await connection.close()
    return client, options


async def test_option_of_a_new_session(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str | None, str | None]] = [
        ({}, None, "on"),
        ({}, "off", "off"),
        ({"options": {"slash_commands": "off"}}, None, None),
        ({"options": {"slash_commands": "off"}}, "on", "on"),
        ({"locked": ["slash_commands"]}, None, None),
        ({"locked": ["slash_commands"]}, "on", None),
        # A command of the CLI may change what is locked.
        ({"locked": ["model"]}, None, None),
        ({"locked": ["cwd"]}, None, "on"),
    ]
    program = tmp_path / "claude"
    program.write_text(HELP)
    program.chmod(0o755)
    agents = {f"claude-{n}": {"driver": "claude", "program": str(program), **agent} for n, (agent, _, _) in enumerate(cases)}
    async with run_gateway(gateway_config(tmp_path, agents=agents)) as portico:
        for name, (agent, flag, expected) in zip(agents, cases, strict=True):
            _, options = await new_session(portico, flag, name)
            assert options.get("slash_commands") == expected, (agent, flag)


async def test_invalid_flag_of_a_connection_is_refused(portico: RunningGateway) -> None:
    # Agent without the option gets none.
    _, options = await new_session(portico, "on", "echo")
    assert "slash_commands" not in options
    # Invalid flag of a connection is refused.
    if not placement():
        with pytest.raises(BadRequest, match="slash_commands: cannot be 'maybe'"):
            connect(portico.gateway, "echo", slash_commands="maybe")
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    answer = await portico.client.post("/acp/echo?slash_commands=maybe", json=message)
    assert answer.status_code == 400 and "slash_commands" in answer.json()["error"]
