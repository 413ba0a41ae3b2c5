"""MCP servers of an editor with the real gemini: calls need permission, and secrets of the servers are not exposed."""

from __future__ import annotations

import json
import sys

import psutil
from acp import text_block
from acp.schema import EnvVariable, McpServerStdio

from tests.model_server.scenarios import Scenario, Step, ToolUse, text_step
from tests.real.editor import SERVER, editor_of
from tests.real.gemini import SCENARIOS, Gemini
from tests.real.processes import arguments

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
