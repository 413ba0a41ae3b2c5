"""Additional directories with the real claude: its tools work there, and its system prompt lists them."""

from __future__ import annotations

import json
from typing import Any

from tests.model_server.scenarios import ToolUse
from tests.real.tool_bench import Bench, bash
from tests.support.acp_client import Client, connect
from tests.support.daemon import RunningGateway, run_gateway


async def editor(portico: RunningGateway) -> tuple[Client, Any]:
    client, connection = connect(portico.gateway, "claude")
    can = (await client.initialize())["agentCapabilities"]["sessionCapabilities"]
    assert can["additionalDirectories"] == {}
    return client, connection


async def test_tools_work_in_an_additional_directory(unstarted_bench: Bench) -> None:
    here, there = unstarted_bench.work / "here", unstarted_bench.work / "there, too"
    for folder in (here, there):
        folder.mkdir()
    (there / "a.txt").write_text("hidden words\n")
    calls = (
        ToolUse("Read", {"file_path": f"{there}/a.txt"}),
        ToolUse("Edit", {"file_path": f"{there}/a.txt", "old_string": "hidden", "new_string": "shown"}),
        # Not a read-only command: the CLI runs those of one message in parallel.
        bash(f"cd '{there}' && touch made"),
        bash("pwd"),
    )
    async with run_gateway(unstarted_bench.config()) as portico:
        client, connection = await editor(portico)
        session = await client.new(str(here), additionalDirectories=[str(there)])
        await client.request("session/set_mode", {"sessionId": session, "modeId": "auto"})
        assert (await client.prompt(session, unstarted_bench.model_calls(*calls)))["stopReason"] == "end_turn"
        assert not client.permission_requests.qsize()
        assert (there / "a.txt").read_text() == "shown words\n"
        assert _lists_directory(unstarted_bench, there)
        results = _results(unstarted_bench)
        assert results[-1] == str(there)
        # Without the directory the CLI resets its shell to the working folder after each command.
        await client.request("session/resume", {"sessionId": session, "cwd": str(here), "mcpServers": []})
        await client.prompt(session, unstarted_bench.model_calls(*calls[2:], name="inner"))
        results = _results(unstarted_bench)
        assert results[-2:] == [f"Shell cwd was reset to {here}", str(here)]
        await connection.close()


async def test_untrusted_tools_in_an_additional_directory_need_permission(unstarted_bench: Bench) -> None:
    here, there = unstarted_bench.work / "here", unstarted_bench.work / "there"
    for folder in (here, there):
        folder.mkdir()
    (there / "a.txt").write_text("hidden words\n")
    async with run_gateway(unstarted_bench.config()) as portico:
        client, connection = await editor(portico)
        session = await client.new(str(here), additionalDirectories=[str(there)])
        client.choose = lambda params: "reject_once"
        read = ToolUse("Read", {"file_path": f"{there}/a.txt"})
        await client.prompt(session, unstarted_bench.model_calls(read, bash(f"touch {there}/made")))
        assert sum(m.get("method") == "session/request_permission" for m in client.received) == 2
        assert "hidden words" not in json.dumps(unstarted_bench.sent())
        assert [path.name for path in there.iterdir()] == ["a.txt"]
        await connection.close()


def _lists_directory(bench: Bench, folder: Any) -> bool:
    body = json.dumps(bench.model.bodies()[-1])
    return f"Additional working directories:\\n  - {folder}\\n" in body


def _results(bench: Bench) -> list[str]:
    """The tool results that the model received, in order."""
    found = bench.results_sent().values()
    return [c if isinstance(c, str) else c[0]["text"] for c in (block["content"] for block in found)]
