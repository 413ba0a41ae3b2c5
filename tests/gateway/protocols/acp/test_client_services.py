"""Services of the client: text files and terminals, if the client supports them, and only for its own prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.events import SessionEnd
from gateway.security.authentication import ADMINISTRATOR
from tests.gateway.cli.test_acp import small_agent
from tests.gateway.protocols.acp.conftest import ConnectClient, Scripted, WriteScenario, scripted_session
from tests.support.acp_client import Client, connect, connected, prompt
from tests.support.daemon import RunningGateway, gateway_config, run_gateway

FILES = {"fs": {"readTextFile": True, "writeTextFile": True}}
ALL_SERVICES = {**FILES, "terminal": True}
ENDED = {"exitCode": 0, "signal": None}


def calls(*requests: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """The steps of a scenario: a call for each service request, followed by its result as text."""
    steps = [{"tool_call": {"name": "editor", "id": f"c{n}", "client": one, **more}} for n, one in enumerate(requests)]
    return [step for call in steps for step in (call, {"text": "[{last_result}]"})]


def exists(path: str) -> bool:
    return Path(path).exists()


def reported(client: Client, call: str = "c0") -> list[dict[str, Any]]:
    return [u for u in client.updates() if u.get("toolCallId") == call]


async def test_files_are_read_and_written_by_the_client(scripted: Scripted) -> None:
    # File is read by the client.
    client, session = await scripted(calls({"read_file": {"path": "a.txt", "line": 2, "limit": 3}}), **FILES)
    answer = await client.begin("session/prompt", prompt(session, "go"))
    request = await client.next_service_request("fs/read_text_file")
    folder = str(Path(request["params"]["path"]).parent)
    assert request["params"] == {"sessionId": session, "path": f"{folder}/a.txt", "line": 2, "limit": 3}
    await client.respond(request, content="not saved yet")
    assert (await answer)["stopReason"] == "end_turn"
    assert client.text() == "[not saved yet]"
    assert reported(client)[-1]["content"][0]["content"]["text"] == "not saved yet"
    # File is written by the client.
    client, session = await scripted(calls({"write_file": {"path": "new/a.txt", "text": "for {prompt}"}}), **FILES)
    answer = await client.begin("session/prompt", prompt(session, "me"))
    request = await client.next_service_request("fs/write_text_file")
    assert request["params"]["content"] == "for me"
    await client.respond(request)
    await answer
    assert client.text() == "[done]"
    assert not exists(request["params"]["path"])
    # Permission is requested before the service.
    for granted in (True, False):
        client, session = await scripted(calls({"read_file": "a.txt"}, ask=True), **FILES)
        answer = await client.begin("session/prompt", prompt(session, "go"))
        question = await client.next_permission_request()
        assert client.service_requests.empty(), granted
        await client.answer(question, "allow_once" if granted else "reject_once")
        if granted:
            await client.respond(await client.next_service_request("fs/read_text_file"), content="text")
        await answer
        assert client.text().startswith("[text]" if granted else "[Tool call denied"), granted
    # Errors of the client are passed to the agent.
    client, session = await scripted(calls({"read_file": "a.txt"}, {"read_file": "b.txt"}), **FILES)
    answer = await client.begin("session/prompt", prompt(session, "go"))
    await client.respond_error(await client.next_service_request("fs/read_text_file"), -32002, "no such buffer")
    await client.respond(await client.next_service_request("fs/read_text_file"), text="of another shape")
    await answer
    assert client.text() == "[no such buffer][fs/read_text_file: the client's answer is invalid]"


async def test_commands_run_in_a_terminal_of_the_client(scripted: Scripted) -> None:
    # Command runs in a terminal of the client.
    terminal = {"command": "make", "args": ["-n", "{prompt}"], "env": {"A": "b"}, "output_bytes": 100}
    client, session = await scripted(calls({"terminal": terminal}), terminal=True)
    answer = await client.begin("session/prompt", prompt(session, "all"))
    create = await client.next_service_request("terminal/create")
    asked = dict(create["params"])
    assert exists(asked.pop("cwd"))
    assert asked == {
        "sessionId": session, "command": "make", "args": ["-n", "all"], "env": [{"name": "A", "value": "b"}],
        "outputByteLimit": 100,
    }  # fmt: skip
    await client.respond(create, terminalId="t-1")
    waiting = await client.next_service_request("terminal/wait_for_exit")
    content = {"type": "terminal", "terminalId": "t-1"}
    assert await client.until(lambda _: reported(client)[-1].get("content") == [content])
    await client.respond(waiting, **ENDED)
    await client.respond(await client.next_service_request("terminal/output"), output="made\n", truncated=False, exitStatus=ENDED)
    release = await client.next_service_request("terminal/release")
    assert release["params"] == {"sessionId": session, "terminalId": "t-1"}
    await client.respond(release)
    await answer
    # The terminal stays the content of the call; its output is sent as raw output.
    assert {key: reported(client)[-1].get(key) for key in ("status", "content", "rawOutput")} == {
        "status": "completed", "content": None, "rawOutput": {"output": "made\n"},
    }  # fmt: skip
    # Killed command fails its call.
    client, session = await scripted(calls({"terminal": {"command": "sleep 9", "kill_after": 0}}), terminal=True)
    answer = await client.begin("session/prompt", prompt(session, "go"))
    await client.respond(await client.next_service_request("terminal/create"), terminalId="t-1")
    waiting = await client.next_service_request("terminal/wait_for_exit")
    await client.respond(await client.next_service_request("terminal/kill"))
    await client.respond(waiting, exitCode=None, signal="SIGKILL")
    await client.respond(await client.next_service_request("terminal/output"), output="", truncated=False)
    await client.respond(await client.next_service_request("terminal/release"))
    await answer
    assert reported(client)[-1]["status"] == "failed"


async def test_services_that_are_not_requested(
    scripted: Scripted, acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    # Unsupported services are not requested.
    for capabilities in ({}, {"fs": {"writeTextFile": True}}, {"fs": {"readTextFile": False}}):
        client, session = await scripted(calls({"read_file": "a.txt"}, {"terminal": "ls"}), **capabilities)
        await client.prompt(session)
        assert client.service_requests.empty(), capabilities
        assert client.text().count("the session's client does not support it") == 2, capabilities
    # Paths outside the folder are not requested.
    client = await acp(**ALL_SERVICES)
    outside = [
        {"read_file": "../../secret"},
        {"write_file": {"path": "/etc/x", "text": ""}},
        {"terminal": {"command": "ls", "cwd": "/"}},
    ]
    session = await scripted_session(client, portico.gateway, write_scenario(calls(*outside)))
    await client.prompt(session)
    assert client.service_requests.empty()
    assert client.text().count("is not in the working folder") == 3


async def test_cancelled_prompt_cancels_its_service_request(scripted: Scripted) -> None:
    client, session = await scripted(calls({"read_file": "a.txt"}), **FILES)
    answer = await client.begin("session/prompt", prompt(session, "go"))
    request = await client.next_service_request("fs/read_text_file")
    await client.notify("session/cancel", {"sessionId": session})
    assert (await answer)["stopReason"] == "cancelled"
    # The cancellation is sent before the response of the prompt, which is the last message.
    cancellation = next(n for n, message in enumerate(client.received) if message.get("method") == "$/cancel_request")
    assert client.received[cancellation]["params"] == {"requestId": request["id"]}
    assert "stopReason" in client.received[-1]["result"]
    # The next prompt sends a new request, and a late response to the first request is not used for it.
    answer = await client.begin("session/prompt", prompt(session, "again"))
    again = await client.next_service_request("fs/read_text_file")
    await client.respond(request, content="too late")
    await client.respond(again, content="in time")
    assert (await answer)["stopReason"] == "end_turn"
    assert client.text() == "[in time]"


async def test_terminals_are_released(scripted: Scripted) -> None:
    # Terminal created after the cancel is released.
    client, session = await scripted(calls({"terminal": "sleep 9"}), **ALL_SERVICES)
    answer = await client.begin("session/prompt", prompt(session, "go"))
    create = await client.next_service_request("terminal/create")
    await client.notify("session/cancel", {"sessionId": session})
    assert (await answer)["stopReason"] == "cancelled"
    await client.respond(create, terminalId="t-1")
    release = await client.next_service_request("terminal/release")
    assert release["params"] == {"sessionId": session, "terminalId": "t-1"}
    # Terminal is released after an error.
    client, session = await scripted(calls({"terminal": "ls"}), **ALL_SERVICES)
    answer = await client.begin("session/prompt", prompt(session, "go"))
    await client.respond(await client.next_service_request("terminal/create"), terminalId="t-1")
    await client.respond_error(await client.next_service_request("terminal/wait_for_exit"), -32603, "it broke")
    assert (await client.next_service_request("terminal/release"))["params"]["terminalId"] == "t-1"
    await answer
    assert client.text() == "[it broke]"
    # Terminal of a cancelled command is released.
    client, session = await scripted(calls({"terminal": "sleep 9"}), **ALL_SERVICES)
    answer = await client.begin("session/prompt", prompt(session, "go"))
    await client.respond(await client.next_service_request("terminal/create"), terminalId="t-1")
    await client.next_service_request("terminal/wait_for_exit")
    await client.notify("session/cancel", {"sessionId": session})
    assert (await answer)["stopReason"] == "cancelled"
    assert (await client.next_service_request("terminal/release"))["params"]["terminalId"] == "t-1"
    # Terminal is released when the session is closed.
    steps = [{"tool_call": {"name": "editor", "client": {"terminal": "sleep 9"}}}]
    client, session = await scripted(steps, **ALL_SERVICES)
    answer = await client.begin("session/prompt", prompt(session, "go"))
    await client.respond(await client.next_service_request("terminal/create"), terminalId="t-1")
    waiting = await client.next_service_request("terminal/wait_for_exit")
    await client.request("session/close", {"sessionId": session})
    assert (await answer)["stopReason"] == "cancelled"
    assert (await client.next_service_request("terminal/release"))["params"]["terminalId"] == "t-1"
    # A late response is ignored.
    await client.respond(waiting, **ENDED)
    assert await client.request("session/list")


async def test_run_continues_when_the_client_disconnects_during_a_service_request(
    portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    async with connected(portico.gateway, **ALL_SERVICES) as client:
        session = await scripted_session(client, portico.gateway, write_scenario(calls({"read_file": "a.txt"})))
        await client.begin("session/prompt", prompt(session, "go"))
        await client.next_service_request("fs/read_text_file")
    other, connection = connect(portico.gateway)
    await other.initialize()
    await other.request("session/load", {"sessionId": session, "cwd": ".", "mcpServers": []})
    await other.until(lambda _: "closed the session" in other.text())
    await connection.close()


async def test_services_are_requested_from_the_client_that_prompted(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    one, two = await acp(**FILES), await acp(**FILES)
    session = await scripted_session(one, portico.gateway, write_scenario(calls({"read_file": "a.txt"})))
    await two.request("session/resume", {"sessionId": session, "cwd": ".", "mcpServers": []})
    for client, other in ((one, two), (two, one)):
        answer = await client.begin("session/prompt", prompt(session, "go"))
        await client.respond(await client.next_service_request("fs/read_text_file"), content="mine")
        await answer
        assert other.service_requests.empty()


# -- an agent of the same protocol behind the gateway ------------------------------------------------------------------


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with run_gateway(gateway_config(tmp_path, agents={"small": small_agent(tmp_path)})) as running:
        yield running


@pytest.fixture
async def editor(small: RunningGateway) -> AsyncIterator[Client]:
    async with connected(small.gateway, "small", **ALL_SERVICES) as client:
        yield client


async def test_edit_of_an_acp_agent_is_written_by_the_client(editor: Client, tmp_path: Path) -> None:
    session, file = await editor.new(), tmp_path / "work" / "new.txt"
    answer = await editor.begin("session/prompt", prompt(session, f"write {file}"))
    question = await editor.next_permission_request()
    diff = {"type": "diff", "path": str(file), "oldText": "", "newText": "written"}
    assert question["params"]["toolCall"]["content"] == [diff]
    await editor.answer(question, "allow_once")
    write = await editor.next_service_request("fs/write_text_file")
    assert write["params"] == {"sessionId": session, "path": str(file), "content": "written\n"}
    await editor.respond(write)
    await answer
    assert editor.text() == "written"
    assert not file.exists()


async def test_command_of_an_acp_agent_runs_in_a_terminal_of_the_client(editor: Client) -> None:
    session = await editor.new()
    answer = await editor.begin("session/prompt", prompt(session, "run make all"))
    await editor.answer(await editor.next_permission_request(), "allow_once")
    await editor.respond(await editor.next_service_request("terminal/create"), terminalId="t-1")
    waiting = await editor.next_service_request("terminal/wait_for_exit")
    assert await editor.until(lambda _: reported(editor, "x1")[-1].get("content") == [{"type": "terminal", "terminalId": "t-1"}])
    await editor.respond(waiting, **ENDED)
    await editor.respond(await editor.next_service_request("terminal/output"), output="made\n", truncated=False)
    await editor.respond(await editor.next_service_request("terminal/release"))
    await answer
    assert reported(editor, "x1")[-1]["rawOutput"] == {"output": "made\n"}


async def test_run_over_aap_reads_files_in_the_gateway(editor: Client, small: RunningGateway, tmp_path: Path) -> None:
    """The editor has the session open, but the run belongs to another client."""
    (tmp_path / "work" / "a.txt").write_text("on disk")
    session = await editor.new()
    await editor.request("session/set_mode", {"sessionId": session, "modeId": "auto"})
    answer = await small.client.post(
        f"/session/{session}", json={"messages": [{"role": "user", "content": f"read {tmp_path / 'work' / 'a.txt'}"}]}
    )
    assert "read: on disk" in answer.text
    assert editor.service_requests.empty()


async def test_slow_client_gets_no_service_requests_of_the_next_run(
    editor: Client, small: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of the slow client is over, though the client has not received its end yet."""
    (tmp_path / "work" / "a.txt").write_text("on disk")
    session = await small.gateway.sessions.get(ADMINISTRATOR, await editor.new())
    await editor.request("session/set_mode", {"sessionId": session.id, "modeId": "auto"})
    reading, take = asyncio.Event(), editor.receive

    async def receive_later(message: dict[str, Any]) -> None:
        await reading.wait()
        await take(message)

    monkeypatch.setattr(editor, "receive", receive_later)
    seen = session.log.last
    answer = await editor.begin("session/prompt", prompt(session.id, "say hello"))
    while not isinstance((entries := await session.log.read(seen))[-1].event, SessionEnd):
        seen = entries[-1].seq
    turn = {"messages": [{"role": "user", "content": f"read {tmp_path / 'work' / 'a.txt'}"}]}
    assert "read: on disk" in (await small.client.post(f"/session/{session.id}", json=turn)).text
    reading.set()
    assert (await answer)["stopReason"] == "end_turn"
    assert editor.service_requests.empty()
