"""The real claude behind `portico acp claude`, driven by the protocol's official Python client over standard input and output."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psutil
import pytest
from acp import RequestError, text_block
from acp.schema import EnvVariable, McpServerStdio

from tests.model_server.scenarios import Failure, Step, Text, Thinking, ToolUse, text_step
from tests.real.editor import SERVER, Editor, editor_of
from tests.real.processes import arguments
from tests.real.tool_bench import Bench, bash


@asynccontextmanager
async def editor_on(bench: Bench) -> AsyncIterator[tuple[Editor, Any, Any]]:
    """An editor with its connection to `portico acp claude` and that process."""
    async with editor_of("claude", bench.base, bench.home, bench.config()) as found:
        yield found


async def test_text_and_thinking(unstarted_bench: Bench) -> None:
    go = unstarted_bench.model_replies(Step((Thinking("Let me think."), Text("Hello from the model."))), text_step("And again."))
    async with editor_on(unstarted_bench) as (editor, agent, process):
        session = await agent.new_session(cwd=str(unstarted_bench.work), mcp_servers=[])
        answer = await agent.prompt(session_id=session.session_id, prompt=[text_block(go)])
        assert answer.stop_reason == "end_turn"
        assert answer.usage.output_tokens > 0
        assert editor.text == "Hello from the model."
        contexts = editor.of("usage_update")
        assert contexts and all(0 < context.used < context.size for context in contexts)
        assert "".join(u.content.text for u in editor.of("agent_thought_chunk")) == "Let me think."
        children = psutil.Process(process.pid).children(recursive=True)
        assert any("claude" in argument for argument in arguments(psutil.Process(process.pid)))
    # The process and the CLI end when its input is closed.
    _, alive = await asyncio.to_thread(psutil.wait_procs, children, 20)
    assert not alive


async def test_a_command_and_an_edit_need_permission(unstarted_bench: Bench) -> None:
    made = unstarted_bench.work / "made.txt"
    write = ToolUse("Write", {"file_path": str(made), "content": "one\n"})
    go = unstarted_bench.model_calls(Text("I write. "), write, after="Written.")
    async with editor_on(unstarted_bench) as (editor, agent, _):
        session = (await agent.new_session(cwd=str(unstarted_bench.work), mcp_servers=[])).session_id
        assert (await agent.prompt(session_id=session, prompt=[text_block(go)])).stop_reason == "end_turn"
        assert made.read_text() == "one\n"
        [call] = editor.permission_requests
        assert call.kind == "edit"
        assert (call.content[0].path, call.content[0].new_text) == (str(made), "one\n")
        assert call.locations[0].path == str(made)
        # The call was announced while the model wrote it.
        assert [u.status for u in editor.of("tool_call_update")] == ["pending", "completed"]

        editor.choose = lambda call: "reject_once"
        go = unstarted_bench.model_calls(bash(f"rm {made}"), after="I could not.", name="inner")
        assert (await agent.prompt(session_id=session, prompt=[text_block(go)])).stop_reason == "end_turn"
        assert made.exists()
        assert editor.of("tool_call_update")[-1].status == "failed"

        # `allow_always` applies to the running CLI process and to the next one.
        editor.choose = lambda call: "allow_always"
        for n in range(2):
            go = unstarted_bench.model_calls(bash(f"echo {n} >> {made}"), after="Done.", name="inner")
            assert (await agent.prompt(session_id=session, prompt=[text_block(go)])).stop_reason == "end_turn"
        assert made.read_text() == "one\n0\n1\n"
        assert len(editor.permission_requests) == 3


async def test_cancel_a_command(unstarted_bench: Bench) -> None:
    go = unstarted_bench.model_calls(Text("It takes long. "), bash("sleep 97"), after="never")
    async with editor_on(unstarted_bench) as (editor, agent, process):
        session = (await agent.new_session(cwd=str(unstarted_bench.work), mcp_servers=[])).session_id
        prompting = asyncio.create_task(agent.prompt(session_id=session, prompt=[text_block(go)]))
        await editor.until(lambda: editor.permission_requests)
        await asyncio.to_thread(_wait_for, process.pid, "sleep 97")
        await agent.cancel(session_id=session)
        assert (await asyncio.wait_for(prompting, 60)).stop_reason == "cancelled"
        go = unstarted_bench.model_replies(text_step("Still here."), name="inner")
        assert (await agent.prompt(session_id=session, prompt=[text_block(go)])).stop_reason == "end_turn"
        assert editor.text.endswith("Still here.")


async def test_prompts_and_steering_while_a_command_runs(unstarted_bench: Bench) -> None:
    released = unstarted_bench.work / "released"
    waits = f"until [ -e {released} ]; do sleep 0.1; done; echo over"
    go = unstarted_bench.model_calls(bash(waits), after="First.")
    again = unstarted_bench.model_replies(text_step("Second."), name="inner")
    async with editor_on(unstarted_bench) as (editor, agent, process):
        session = (await agent.new_session(cwd=str(unstarted_bench.work), mcp_servers=[])).session_id
        first = asyncio.create_task(agent.prompt(session_id=session, prompt=[text_block(go)]))
        await editor.until(lambda: editor.permission_requests)
        await asyncio.to_thread(_wait_for, process.pid, "sleep 0.1")
        held = asyncio.create_task(agent.prompt(session_id=session, prompt=[text_block(again)]))
        steered = {"sessionId": session, "prompt": [{"type": "text", "text": "turn left"}]}
        assert await agent.ext_method("session/steering", steered) == {"outcome": "injected"}
        await asyncio.to_thread(released.touch)
        assert (await asyncio.wait_for(first, 60)).stop_reason == "end_turn"
        assert "Second." not in editor.text
        assert (await asyncio.wait_for(held, 60)).stop_reason == "end_turn"
        assert editor.text.endswith("Second.")
        assert not editor.of("user_message_chunk")
    assert "turn left" in str(unstarted_bench.model.bodies()[-1]["messages"])


def _wait_for(pid: int, command: str) -> None:
    """Wait until a descendant of the process has this command line."""
    for _ in range(600):
        with suppress(psutil.NoSuchProcess):
            lines = [" ".join(child.cmdline()) for child in psutil.Process(pid).children(recursive=True)]
            if any(line.endswith(command) for line in lines):
                return
        time.sleep(0.05)
    raise AssertionError(f"{command} does not run")


async def test_a_session_without_a_login_is_refused(unstarted_bench: Bench) -> None:
    config = unstarted_bench.config()
    del config["agents"]["claude"]["env"]["ANTHROPIC_API_KEY"]
    async with editor_of("claude", unstarted_bench.base, unstarted_bench.home, config) as (_, agent, _process):
        with pytest.raises(RequestError, match="auth login --claudeai` in a terminal") as refused:
            await agent.new_session(cwd=str(unstarted_bench.work), mcp_servers=[])
    assert refused.value.code == -32000
    assert refused.value.data == {"details": str(refused.value)}


async def test_load_in_another_process(unstarted_bench: Bench) -> None:
    go = unstarted_bench.model_replies(text_step("I remember."))
    async with editor_on(unstarted_bench) as (_, agent, _process):
        session = (await agent.new_session(cwd=str(unstarted_bench.work), mcp_servers=[])).session_id
        await agent.prompt(session_id=session, prompt=[text_block(go)])
    async with editor_on(unstarted_bench) as (editor, agent, _process):
        listed = await agent.list_sessions()
        assert [(s.session_id, s.title) for s in listed.sessions] == [(session, go)]
        await agent.load_session(session_id=session, cwd=str(unstarted_bench.work), mcp_servers=[])
        assert editor.text == "I remember."
        assert [u.content.text for u in editor.of("user_message_chunk")] == [go]
        again = unstarted_bench.model_replies(text_step("And more."), name="inner")
        assert (await agent.prompt(session_id=session, prompt=[text_block(again)])).stop_reason == "end_turn"
        # The native session of the CLI was resumed: the model receives the earlier conversation.
        assert "I remember." in str(unstarted_bench.model.bodies()[-1]["messages"])


async def test_an_mcp_server_of_the_editor(unstarted_bench: Bench) -> None:
    secret = "tok-5up3r-s3cr3t"
    server = McpServerStdio(
        name="my server", command=sys.executable, args=[str(SERVER)], env=[EnvVariable(name="SECRET", value=secret)]
    )
    go = unstarted_bench.model_calls(ToolUse("mcp__my_server__secret", {}), after="Done.")
    async with editor_on(unstarted_bench) as (editor, agent, process):
        session = (await agent.new_session(cwd=str(unstarted_bench.work), mcp_servers=[server])).session_id
        assert (await agent.prompt(session_id=session, prompt=[text_block(go)])).stop_reason == "end_turn"
        assert [call.title for call in editor.permission_requests] == ["mcp__my_server__secret"]
        assert editor.of("tool_call_update")[-1].content[0].content.text == f"it has {len(secret)} letters"
        assert secret not in " ".join(arguments(psutil.Process(process.pid)))
    # Only the file that the CLI reads contains it.
    files = [
        file for file in (unstarted_bench.base / "data").rglob("*") if file.is_file() and secret.encode() in file.read_bytes()
    ]
    assert [file.name for file in files] == ["mcp-servers.json"]
    assert files[0].stat().st_mode & 0o077 == 0


async def test_a_model_error_is_an_error(unstarted_bench: Bench) -> None:
    go = unstarted_bench.model_replies(Step(failure=Failure(401, "authentication_error", "invalid x-api-key")))
    async with editor_on(unstarted_bench) as (_editor, agent, _process):
        session = (await agent.new_session(cwd=str(unstarted_bench.work), mcp_servers=[])).session_id
        with pytest.raises(RequestError, match=r"(?i)api key|authenticat"):
            await agent.prompt(session_id=session, prompt=[text_block(go)])
