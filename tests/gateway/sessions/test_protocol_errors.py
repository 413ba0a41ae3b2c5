"""Agents that do not keep to their protocol: the request or the turn fails at once, with the line, and no process remains."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway
from tests.support.requests import create_session, expect_error, send_turn, session_body
from tests.support.waiting import wait_until

AGENT = """
import json, sys
for result in RESULTS:
    request = json.loads(sys.stdin.readline())
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **result}), flush=True)
sys.stdin.read()
"""
OPEN = [{"result": {"protocolVersion": 1}}, {"result": {"sessionId": "s"}}]
END = {"result": {"stopReason": "end_turn"}}


@asynccontextmanager
async def gateway(folder: Path, *results: dict[str, Any]) -> AsyncIterator[RunningGateway]:
    """A gateway with an ACP agent that gives these responses, in order. The limits are longer than a test may take."""
    code = AGENT.replace("RESULTS", repr(list(results)))
    agent = {"driver": "acp", "program": sys.executable, "args": ["-IS", "-c", code], "cwd": str(folder)}
    async with run_gateway(gateway_config(folder, agents={"odd": agent}, limits={"start": 200, "idle": 200})) as portico:
        yield portico


async def expect_no_process(portico: RunningGateway) -> None:
    async def ended() -> bool:
        return not await portico.gateway.store.processes.all()

    await wait_until(ended)


async def test_a_malformed_handshake_is_a_503_with_the_line_redacted(tmp_path: Path) -> None:
    modes = {"result": {"sessionId": "s", "modes": {"current": "x"}, "_meta": {"note": KEY}}}
    async with gateway(tmp_path, OPEN[0], modes) as portico:
        text = await expect_error(portico.client.put("/session", json=session_body("odd", "hi")), 503)
        assert "wrote a malformed response" in text and json.dumps({"current": "x"}) in text
        assert KEY not in text and "***" in text
        await expect_no_process(portico)


async def test_a_malformed_end_of_a_turn_ends_it_with_the_line(tmp_path: Path) -> None:
    async with gateway(tmp_path, *OPEN, {**END, "id": None}) as portico:
        answer = await create_session(portico.client, "odd", "hi")
        assert answer["stopReason"] == "error"
        reason = answer["x-portico"]["error"]
        assert "wrote a malformed response" in reason and '"stopReason": "end_turn"' in reason
        await expect_no_process(portico)


async def test_an_unknown_stop_reason_ends_the_turn_and_not_the_agent(tmp_path: Path) -> None:
    async with gateway(tmp_path, *OPEN, {"result": {"stopReason": "lunch"}}, END) as portico:
        answer = await create_session(portico.client, "odd", "hi")
        assert (answer["stopReason"], "a reason that is not known: lunch" in answer["x-portico"]["error"]) == ("error", True)
        assert (await send_turn(portico.client, answer["sessionId"], "again"))["stopReason"] == "end_turn"
