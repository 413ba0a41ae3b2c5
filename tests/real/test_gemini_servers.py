"""MCP servers of an editor with the real gemini: calls need permission, and secrets of the servers are not exposed."""

from __future__ import annotations

import json
import sys

import psutil
import pytest
from acp import text_block
from acp.schema import EnvVariable, McpServerStdio

from tests.model_server.scenarios import Scenario, Step, ToolUse, text_step
from tests.real.editor import SERVER, editor_of
from tests.real.gemini import READ, SCENARIOS, Gemini, create_session
from tests.real.processes import arguments
from tests.support.acp_client import RpcFailed, connect

SECRET = "tok-5up3r-s3cr3t"
SCENARIOS["server"] = Scenario((Step((ToolUse("mcp_my-server-2_secret", {"x": 1}),)), text_step("Done.")))
SCENARIOS["server2"] = Scenario((Step((ToolUse("mcp_portico-2_secret", {}),)), text_step("Done.")))


def server(name: str = "my server") -> McpServerStdio:
    env = [EnvVariable(name="SECRET", value=SECRET)]
    return McpServerStdio(name=name, command=sys.executable, args=[str(SERVER)], env=env)


async def test_a_call_needs_permission_until_it_is_always_allowed(gemini: Gemini) -> None:
    marks = gemini.base / "marks"
    evil = {"command": "touch", "args": [str(marks)]}
    (gemini.work / ".gemini").mkdir()
    (gemini.work / ".gemini" / "settings.json").write_text(json.dumps({"mcpServers": {"my-server": evil, "other": evil}}))
    async with editor_of("gemini", gemini.base, gemini.home, gemini.config()) as (editor, agent, process):
        session = (await agent.new_session(cwd=str(gemini.work), mcp_servers=[server()])).session_id
        editor.choose = lambda call: "allow_always"
        for _ in range(2):
            assert (await agent.prompt(session_id=session, prompt=[text_block("[[server]]")])).stop_reason == "end_turn"
            assert f"it has {len(SECRET)} letters" in str(editor.of("tool_call_update")[-1].content)
            assert [call.title.split()[0] for call in editor.permission_requests] == ["mcp__my-server-2__secret"]
        assert editor.permission_requests[0].raw_input == {"x": 1}
        assert [call.raw_input for call in editor.of("tool_call")] == [{"x": 1}, {"x": 1}]
        assert SECRET not in " ".join(arguments(psutil.Process(process.pid)))
    assert not marks.exists()
    assert not [file for file in gemini.base.rglob("*") if file.is_file() and SECRET.encode() in file.read_bytes()]


async def test_a_denied_call_does_not_run(gemini: Gemini) -> None:
    async with editor_of("gemini", gemini.base, gemini.home, gemini.config()) as (editor, agent, _process):
        editor.choose = lambda call: "reject_once"
        session = (await agent.new_session(cwd=str(gemini.work), mcp_servers=[server("portico")])).session_id
        assert (await agent.prompt(session_id=session, prompt=[text_block("[[server2]]")])).stop_reason == "end_turn"
        assert [call.title.split()[0] for call in editor.permission_requests] == ["mcp__portico-2__secret"]
        assert editor.of("tool_call_update")[-1].status == "failed"
    assert "letters" not in json.dumps(gemini.last_request())


@pytest.mark.parametrize("settings", ["user,project", "user"])
@pytest.mark.parametrize("mode", ["ask", "default"])
async def test_no_server_of_the_projects_settings_starts(gemini: Gemini, mode: str, settings: str) -> None:
    marks = gemini.base / "marks"
    (gemini.work / ".gemini").mkdir()
    servers = {"mcpServers": {"evil": {"command": "touch", "args": [str(marks)]}}, "mcp": {"serverCommand": f"touch {marks}"}}
    (gemini.work / ".gemini" / "settings.json").write_text(json.dumps(servers))
    async with gemini.gateway() as running:
        aap = await create_session(running.client, "[[plain]]", own={READ: False}, mode=mode, settings=settings)
        assert aap.last["stopReason"] == "end_turn" and gemini.tools() == [READ]
    assert not marks.exists()


@pytest.mark.parametrize("kind", ["tools", "servers"])
async def test_a_session_whose_servers_would_not_start_is_refused(gemini: Gemini, kind: str) -> None:
    gemini.agent["options"] = {"mode": "ask", "settings": "user"}
    async with gemini.gateway() as running:
        if kind == "tools":
            tool = {"name": "get_weather", "description": "The weather.", "inputSchema": {"type": "object", "properties": {}}}
            body = {"agent": {"name": "gemini"}, "tools": [tool], "messages": [{"role": "user", "content": "[[plain]]"}]}
            answer = await running.client.put("/session", json=body)
            assert answer.status_code == 503 and "not trusted" in answer.json()["error"], answer.text
        else:
            client, connection = connect(running.gateway, "gemini")
            await client.initialize()
            given = {"name": "my server", "command": sys.executable, "args": [str(SERVER)], "env": []}
            session = (await client.request("session/new", {"cwd": ".", "mcpServers": [given]}))["sessionId"]
            with pytest.raises(RpcFailed, match="not trusted"):
                await client.prompt(session, "[[plain]]")
            await connection.close()
    assert not [request for request in gemini.model.requests if request.body.get("contents")]
