"""The driver `acp` behind a gateway, with the small ACP agent of tests/support/acp_agent.py."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.acp_client import RpcFailed, on_websocket
from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway
from tests.support.fork_server import forked_command

ROOT = Path(__file__).parents[3]
GRANT = {"name": "execute", "trust": False}


def small_agent(folder: Path, **more: Any) -> dict[str, Any]:
    """Return the configuration of the small ACP agent, with the given keys added."""
    for name in ("work", "sessions"):
        (folder / name).mkdir(exist_ok=True)
    env = {"PYTHONPATH": str(ROOT), "ACP_AGENT_SESSIONS": str(folder / "sessions")}
    program, *arguments = forked_command("tests.support.acp_agent")
    agent = {"driver": "acp", "program": program, "args": arguments, "env": env}
    return {**agent, "cwd": str(folder / "work"), **more}


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway in this process with the small ACP agent, named `small`."""
    async with run_gateway(gateway_config(tmp_path, agents={"small": small_agent(tmp_path)})) as running:
        yield running


async def put_session(client: httpx.AsyncClient, *messages: dict[str, Any], **agent: Any) -> httpx.Response:
    return await client.put("/session", json={"agent": {"name": "small", **agent}, "messages": list(messages)})


def user_message(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


async def test_session_with_two_turns(small: RunningGateway) -> None:
    answer = await put_session(small.client, user_message("say hello"))
    assert answer.status_code == 201, answer.text
    content = answer.json()["messages"][0]["content"]
    assert [block["type"] for block in content] == ["thinking", "text"]
    session = answer.json()["sessionId"]
    answer = await small.client.post(f"/session/{session}", json={"messages": [user_message("recall")]})
    assert answer.json()["messages"] == [{"role": "assistant", "content": "say hello | recall"}]


async def test_history_and_system_message_are_rejected(small: RunningGateway) -> None:
    history = [user_message("one"), {"role": "assistant", "content": "two"}, user_message("three")]
    answer = await put_session(small.client, *history)
    assert (answer.status_code, "cannot be given a history" in answer.text) == (400, True)
    answer = await put_session(small.client, {"role": "system", "content": "be kind"}, user_message("one"))
    assert (answer.status_code, "takes no system message" in answer.text) == (400, True)


@pytest.mark.parametrize("granted", [True, False])
async def test_permission_is_answered_in_a_second_request(small: RunningGateway, tmp_path: Path, granted: bool) -> None:
    answer = await put_session(small.client, user_message("run touch made.txt"), tools=[GRANT])
    assert answer.json()["stopReason"] == "tool_use", answer.text
    session, (message,) = answer.json()["sessionId"], answer.json()["messages"]
    (call,) = message["content"]
    assert (call["name"], call["input"]) == ("execute", {"command": "touch made.txt"})
    assert not (tmp_path / "work" / "made.txt").exists()
    reply = {"role": "tool_permission", "toolCallId": call["toolCallId"], "granted": granted}
    answer = await small.client.post(f"/session/{session}", json={"messages": [reply]})
    assert answer.json()["stopReason"] == "end_turn"
    assert answer.json()["messages"][-1]["content"] == ("exit code 0" if granted else "not run")
    assert (tmp_path / "work" / "made.txt").exists() is granted


async def test_two_permission_requests_take_two_turns(small: RunningGateway) -> None:
    answer = await put_session(small.client, user_message("both"), tools=[GRANT])
    session = answer.json()["sessionId"]
    for _ in range(2):
        assert answer.json()["stopReason"] == "tool_use", answer.text
        call = answer.json()["messages"][-1]["content"][-1]
        reply = {"role": "tool_permission", "toolCallId": call["toolCallId"], "granted": True}
        answer = await small.client.post(f"/session/{session}", json={"messages": [reply]})
    assert answer.json()["messages"][-1]["content"] == "both: [True, True]"
    history = (await small.client.get(f"/session/{session}")).json()["history"]["full"]
    assert [message["role"] for message in history].count("tool") == 2


async def test_execute_runs_a_task(small: RunningGateway) -> None:
    answer = await small.client.post("/v1/execute", json={"driver": "small", "task": "say -hello"})
    assert '"kind":"agent_token","text":"-hello"' in answer.text
    assert '"kind":"session_end","exit_code":0' in answer.text


@pytest.mark.parametrize("flags", ["", "noimage"])
async def test_image_support_follows_the_capabilities_of_the_agent(tmp_path: Path, flags: str) -> None:
    agent = small_agent(tmp_path)
    agent["env"]["ACP_AGENT_FLAGS"] = flags
    image = {"type": "image", "url": "data:image/png;base64,iVBORw0KGgo="}
    message: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "look"}, image]}
    for _ in range(2):
        async with run_gateway(gateway_config(tmp_path, agents={"small": agent})) as running:
            (listed,) = [a for a in (await running.client.get("/meta")).json()["agents"] if a["name"] == "small"]
            assert listed["capabilities"].get("image") == (None if flags else {"data": {}})
            answer = await put_session(running.client, message)
            assert answer.status_code == (400 if flags else 201)
            if flags:
                assert answer.json() == {"error": "agent 'small' takes no images by data: address; /meta lists what it takes"}
            else:
                assert "saw 1 image" in answer.text


async def test_a_program_that_is_installed_after_a_refusal_is_used(tmp_path: Path) -> None:
    agent, program = small_agent(tmp_path), tmp_path / "late-agent"
    installed, agent["program"] = shutil.which(agent["program"]), str(program)
    assert installed is not None
    opened = {"cwd": str(tmp_path / "work"), "mcpServers": []}
    async with (
        run_gateway(gateway_config(tmp_path, agents={"small": agent})) as running,
        on_websocket(running.url, "small", KEY) as client,
    ):
        await client.initialize()
        with pytest.raises(RpcFailed, match="late-agent"):
            await client.request("session/new", opened)
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(installed)} "$@"\n')
        program.chmod(0o700)
        assert (await client.request("session/new", opened))["sessionId"]
