"""MCP servers of an editor with the real codex: calls need permission, and secrets of the servers are not exposed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from acp import text_block
from acp.schema import EnvVariable, McpServerStdio

from tests.model_server.openai import OpenAIServer, model_server
from tests.model_server.openai_scenarios import SCENARIOS
from tests.model_server.scenarios import Scenario, Step, ToolUse, text_step
from tests.real.codex.aap_client import outputs
from tests.real.codex.conftest import Home
from tests.real.editor import SERVER, Editor, editor_of
from tests.real.processes import arguments

SECRET = "tok-5up3r-s3cr3t"
MINE = McpServerStdio(
    name="my server", command=sys.executable, args=[str(SERVER)], env=[EnvVariable(name="SECRET", value=SECRET)]
)
CALLS = {
    "server": Scenario((Step((ToolUse("mcp__my_server__secret", {}),)), text_step("Done."))),
    "server2": Scenario((Step((ToolUse("mcp__my_server_2__secret", {}),)), text_step("Done."))),
}
OTHER = """
[mcp_servers.my_server]
url = "http://127.0.0.1:9/"
[mcp_servers.my_server.tools.secret]
approval_mode = "approve"
"""


@pytest.fixture
async def model() -> Any:
    async with model_server({**SCENARIOS, **CALLS}) as server:
        yield server


@pytest.mark.parametrize("mode", ["ask", "auto"])
async def test_a_call_needs_permission(home: Home, model: OpenAIServer, mode: str) -> None:
    async with editor_of("codex", home.base, home.path, home.config()) as (editor, agent, process):
        session = (await agent.new_session(cwd=str(home.work), mcp_servers=[MINE])).session_id
        await agent.set_session_mode(session_id=session, mode_id=mode)
        assert (await agent.prompt(session_id=session, prompt=[text_block("[[server]]")])).stop_reason == "end_turn"
        assert [call.title for call in editor.permission_requests] == ["mcp__my_server__secret"]
        assert f"it has {len(SECRET)} letters" in str(editor.of("tool_call_update")[-1].content)
        assert SECRET not in " ".join(arguments(psutil.Process(process.pid)))
    assert not [file for file in home.base.rglob("*") if file.is_file() and SECRET.encode() in file.read_bytes()]


async def test_trusted_tools_stay_in_the_sandbox(home: Home) -> None:
    async with editor_of("codex", home.base, home.path, home.config()) as (editor, agent, _process):
        session = (await agent.new_session(cwd=str(home.work), mcp_servers=[MINE])).session_id
        await agent.set_session_mode(session_id=session, mode_id="auto")
        for prompt_text in (
            "[[run:touch in.txt; touch /usr/out.txt]]",
            "[[runoutside:touch /usr/out.txt]]",
            "[[patch:made.txt]]",
        ):
            await agent.prompt(session_id=session, prompt=[text_block(prompt_text)])
        assert editor.permission_requests == []
    assert (home.work / "in.txt").exists() and (home.work / "made.txt").exists()
    assert not await asyncio.to_thread(Path("/usr/out.txt").exists)


async def test_a_denied_call_does_not_run(home: Home, model: OpenAIServer) -> None:
    async with editor_of("codex", home.base, home.path, home.config()) as (editor, agent, _process):
        editor.choose = lambda call: "reject_once"
        session = (await agent.new_session(cwd=str(home.work), mcp_servers=[MINE])).session_id
        assert (await agent.prompt(session_id=session, prompt=[text_block("[[server]]")])).stop_reason == "end_turn"
        assert editor.of("tool_call_update")[-1].status == "failed"
    assert "letters" not in json.dumps(outputs(model.bodies()[-1]))


async def test_a_call_that_waits_for_permission_can_be_cancelled(home: Home, model: OpenAIServer) -> None:
    async with editor_of("codex", home.base, home.path, home.config()) as (editor, agent, _process):
        session = (await agent.new_session(cwd=str(home.work), mcp_servers=[MINE])).session_id
        granting, editor.request_permission = editor.request_permission, never(editor)  # type: ignore[method-assign]
        prompt = asyncio.create_task(agent.prompt(session_id=session, prompt=[text_block("[[server]]")]))
        await editor.until(lambda: editor.permission_requests)
        await agent.cancel(session_id=session)
        assert (await asyncio.wait_for(prompt, 30)).stop_reason == "cancelled"
        editor.request_permission = granting  # type: ignore[method-assign]
        assert (await agent.prompt(session_id=session, prompt=[text_block("[[server]]")])).stop_reason == "end_turn"
        assert f"it has {len(SECRET)} letters" in str(editor.of("tool_call_update")[-1].content)


def never(editor: Editor) -> Any:
    """A permission handler that records the request and never answers."""

    async def record_only(session_id: str, tool_call: Any, options: list[Any], **_: Any) -> Any:
        editor.permission_requests.append(tool_call)
        editor.changed.set()
        await asyncio.Event().wait()

    return record_only


async def test_a_server_of_the_same_name_in_the_user_settings_is_not_used(home: Home) -> None:
    config = home.codex / "config.toml"
    config.write_text(config.read_text() + OTHER)
    async with editor_of("codex", home.base, home.path, home.config()) as (editor, agent, _process):
        session = (await agent.new_session(cwd=str(home.work), mcp_servers=[MINE])).session_id
        assert (await agent.prompt(session_id=session, prompt=[text_block("[[server2]]")])).stop_reason == "end_turn"
        assert [call.title for call in editor.permission_requests] == ["mcp__my_server-2__secret"]


async def test_a_loaded_session_has_its_servers(home: Home) -> None:
    async with editor_of("codex", home.base, home.path, home.config()) as (_editor, agent, _process):
        session = (await agent.new_session(cwd=str(home.work), mcp_servers=[])).session_id
        await agent.prompt(session_id=session, prompt=[text_block("[[plain]]")])
    async with editor_of("codex", home.base, home.path, home.config()) as (editor, agent, _process):
        await agent.load_session(session_id=session, cwd=str(home.work), mcp_servers=[MINE])
        editor.choose = lambda call: "allow_always"
        for _ in range(2):
            assert (await agent.prompt(session_id=session, prompt=[text_block("[[server]]")])).stop_reason == "end_turn"
            assert f"it has {len(SECRET)} letters" in str(editor.of("tool_call_update")[-1].content)
        # After `allow_always` the tool is trusted.
        assert len(editor.permission_requests) == 1
