"""The real claude in the gateway's sandbox: its tools work in its folders, and do not read the gateway's files."""

from __future__ import annotations

import json

import pytest

from drivers.runtime.sandbox import unavailable
from tests.model_server.scenarios import ToolUse
from tests.real.tool_bench import Bench, bash
from tests.support.acp_client import connect
from tests.support.daemon import run_gateway

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=f"no sandbox here: {unavailable()}")


async def test_tools_work_in_the_sandbox(unstarted_bench: Bench) -> None:
    config = unstarted_bench.config()
    data = config["server"]["data_dir"]
    config["agents"]["claude"]["sandbox"] = "workspace-write"
    calls = (
        ToolUse("Write", {"file_path": f"{unstarted_bench.work}/a.txt", "content": "written\n"}),
        bash("cat a.txt && mkdir made && cat /etc/hostname >/dev/null && echo x > $TMPDIR/f && echo worked"),
        bash(f"cat {data}/portico.db {data}/instance-id; echo x > {data}/new; echo x > /dev/shm/portico-claude; echo ended"),
    )
    async with run_gateway(config) as portico:
        client, connection = connect(portico.gateway, "claude")
        await client.initialize()
        session = await client.new(str(unstarted_bench.work))
        await client.request("session/set_mode", {"sessionId": session, "modeId": "auto"})
        assert (await client.prompt(session, unstarted_bench.model_calls(*calls)))["stopReason"] == "end_turn"
        results = json.dumps([update for update in client.updates(session) if update["sessionUpdate"] == "tool_call_update"])
        await connection.close()
    assert "written\\\\nworked" in results or "written\\nworked" in results
    assert (results.count("ermission denied") >= 4, "SQLite format" in results) == (True, False)
    assert (unstarted_bench.work / "made").is_dir()
