"""Client methods of an ACP session: files and terminals in the folders of the session, and permission requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drivers.acp.permissions import Grants
from drivers.contract.agent import PermissionReply, Prompt
from drivers.contract.client_services import ClientResponse
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import Awaiting, DeniedResult, ToolCall
from drivers.contract.tool_server import ToolRequest
from tests.drivers.acp.small_agent import Agent, Open, agent_text, result, run_events

DENIED_UNSEEN = ["tool_call", "tool_result", "tool_call"]
"""The events of a call outside of a run."""


async def test_files_are_read_in_the_folder_only(open_agent: Open, tmp_path: Path) -> None:
    agent = await open_agent("read!")
    (tmp_path / "work" / "file.txt").write_text("content")
    events = await run_events(agent, f"read {tmp_path / 'work' / 'file.txt'}")
    assert (result(events).output, result(events).is_error) == ("content", False)
    events = await run_events(agent, "read /etc/passwd")
    assert result(events).is_error
    assert "not in the working folder" in agent_text(events)


async def test_files_are_read_in_the_additional_directories_too(open_agent: Open, tmp_path: Path) -> None:
    file = tmp_path / "more" / "file.txt"
    file.parent.mkdir()
    file.write_text("content")
    without = await open_agent("read!", flags="folders")
    assert "not in the working folder" in agent_text(await run_events(without, f"read {file}"))
    agent = await open_agent("read!", flags="folders", additional_directories=(file.parent,))
    assert result(await run_events(agent, f"read {file}")).output == "content"
    assert result(await run_events(agent, "read /etc/passwd")).is_error


@pytest.mark.parametrize("granted", [True, False])
async def test_an_edit_waits_for_the_client(open_agent: Open, tmp_path: Path, granted: bool) -> None:
    agent, file = await open_agent("edit"), tmp_path / "work" / "new.txt"
    events = await run_events(agent, f"write {file}")
    call = next(event for event in events if isinstance(event, ToolCall))
    assert (call.name, call.status) == ("edit", "started")
    assert "+written" in call.input["changes"][0]["diff"]  # type: ignore[index]
    assert not file.exists()
    await agent.reply(PermissionReply("w1", "allow" if granted else "deny", "not today"))
    events = await run_events(agent)
    assert agent_text(events) == ("written" if granted else "not written")
    assert file.exists() is granted
    assert result(events).is_error is not granted
    if not granted:
        assert result(events).output == "not today"


@pytest.mark.parametrize(("grants", "expected"), [(("edit!",), "written"), ((), "refused: This tool is not enabled")])
async def test_a_method_without_a_permission_request_is_decided_by_the_grants(
    open_agent: Open, tmp_path: Path, grants: tuple[str, ...], expected: str
) -> None:
    agent, file = await open_agent(*grants), tmp_path / "work" / "new.txt"
    events = await run_events(agent, f"sneak {file}")
    assert file.exists() is bool(grants)
    assert agent_text(events).startswith(expected)


@pytest.mark.parametrize("granted", [True, False])
async def test_a_method_without_a_permission_request_waits_for_the_client(
    open_agent: Open, tmp_path: Path, granted: bool
) -> None:
    agent, file = await open_agent("edit"), tmp_path / "work" / "new.txt"
    events = await run_events(agent, f"sneak {file}")
    waiting = events[-1]
    assert isinstance(waiting, Awaiting)
    assert not file.exists()
    await agent.reply(PermissionReply(waiting.calls[0].id, "allow" if granted else "deny"))
    events = await run_events(agent)
    assert file.exists() is granted
    assert result(events).is_error is not granted


async def test_a_command_in_a_terminal(open_agent: Open, tmp_path: Path) -> None:
    agent = await open_agent("execute!")
    events = await run_events(agent, "run echo hi; pwd; exit 2")
    assert (result(events).output, result(events).is_error) == (f"hi\n{tmp_path / 'work'}\n", True)
    assert agent_text(events) == "exit code 2"


async def test_a_denied_command_does_not_run(open_agent: Open, tmp_path: Path) -> None:
    agent = await open_agent("execute")
    events = await run_events(agent, "run touch made.txt")
    await agent.reply(PermissionReply("x1", "deny"))
    events = await run_events(agent)
    assert agent_text(events) == "not run"
    assert not (tmp_path / "work" / "made.txt").exists()


async def test_a_tool_that_is_not_listed_does_not_run(open_agent: Open, tmp_path: Path) -> None:
    events = await run_events(await open_agent("read"), "run touch made.txt")
    assert [event.status for event in events if isinstance(event, ToolCall)] == ["started", "failed"]
    assert "not enabled" in result(events).output
    assert not (tmp_path / "work" / "made.txt").exists()


async def test_two_permissions_at_once_are_requested_one_by_one(open_agent: Open) -> None:
    agent = await open_agent("execute")
    events = await run_events(agent, "both")
    for call_id, granted in (("b1", True), ("b2", False)):
        waiting = events[-1]
        assert isinstance(waiting, Awaiting)
        assert [call.id for call in waiting.calls] == [call_id]
        await agent.reply(PermissionReply(call_id, "allow" if granted else "deny"))
        events = await run_events(agent)
    assert agent_text(events) == "both: [True, False]"
    assert [(event.id, event.status) for event in events if isinstance(event, ToolCall)] == [
        ("b2", "failed"),
        ("b1", "completed"),
    ]


# -- line by line ------------------------------------------------------------------------------------------------------


def write(request_id: int) -> dict[str, Any]:
    params = {"sessionId": "s", "path": "/work/a.txt", "content": ""}
    return {"id": request_id, "method": "fs/write_text_file", "params": params}


def error_to(agent: Agent, request_id: int) -> str:
    lines = [json.loads(line) for line in bytes(agent.codec.outbox).splitlines()]
    return str(next(line for line in lines if line.get("id") == request_id and "error" in line)["error"]["message"])


def test_requests_before_the_session_is_open_are_errors() -> None:
    agent = Agent(grants=Grants([ToolGrant("edit", trust=True)]))
    assert [event.kind for event in agent.send(write(7))] == DENIED_UNSEEN
    assert (agent.codec.phase, "no run is active" in error_to(agent, 7)) == ("starting", True)


def test_requests_between_two_runs_are_errors() -> None:
    """A grant for an unfinished call is valid only in its run; the next run requests permission again."""
    agent = Agent(grants=Grants([ToolGrant("edit")]))
    agent.open()
    agent.codec.prompt(Prompt("go"))
    asked = json.loads(bytes(agent.codec.outbox).splitlines()[-1])
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    call = {"toolCallId": "e1", "title": "Edit", "kind": "edit", "status": "pending"}
    question = {"sessionId": "s", "toolCall": call, "options": options}
    assert isinstance(agent.send({"id": 1, "method": "session/request_permission", "params": question})[-1], Awaiting)
    agent.codec.reply(PermissionReply("e1", "allow"))
    agent.send({"id": asked["id"], "result": {"stopReason": "end_turn"}})
    assert [event.kind for event in agent.send(write(2))] == DENIED_UNSEEN
    assert not agent.codec.client_requests
    assert (agent.codec.phase, "no run is active" in error_to(agent, 2)) == ("ready", True)
    agent.codec.prompt(Prompt("go on"))
    assert isinstance(agent.send(write(3))[-1], Awaiting)


def test_calls_of_trusted_tools_between_two_runs_are_denied() -> None:
    agent = Agent(grants=Grants([ToolGrant("edit", trust=True)]))
    agent.open()
    started, denied, ended = agent.send(write(2))
    assert isinstance(started, ToolCall) and isinstance(denied, DeniedResult) and isinstance(ended, ToolCall)
    assert (started.name, started.input, ended.status) == ("edit", {"path": "/work/a.txt", "content": ""}, "failed")
    assert not agent.codec.client_requests and "no run is active" in error_to(agent, 2)
    call = {"toolCallId": "e1", "title": "Edit", "kind": "edit", "status": "pending", "rawInput": {"path": "/work/b"}}
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    asked = {"sessionId": "s", "toolCall": call, "options": options}
    events = agent.send({"id": 3, "method": "session/request_permission", "params": asked})
    assert [event.kind for event in events] == DENIED_UNSEEN and isinstance(events[1], DeniedResult)
    answer = json.loads(bytes(agent.codec.outbox).splitlines()[-1])
    assert answer["result"] == {"outcome": {"outcome": "cancelled"}}
    agent.codec.tool_requested(ToolRequest("m1", "get_time", {"zone": "UTC"}))
    assert [event.kind for event in agent.codec.pending] == DENIED_UNSEEN
    (response,) = agent.codec.tool_responses
    assert response.is_error and "no run is active" in str(response.content)


def test_the_response_to_a_request_of_an_earlier_run_is_not_reported_in_the_next() -> None:
    agent = Agent(grants=Grants([ToolGrant("edit")]))
    agent.open()
    agent.codec.prompt(Prompt("go"))
    asked = json.loads(bytes(agent.codec.outbox).splitlines()[-1])
    assert isinstance(agent.send(write(7))[-1], Awaiting)
    agent.codec.reply(PermissionReply("service_1", "allow"))
    (request,) = agent.codec.client_requests
    agent.send({"id": asked["id"], "result": {"stopReason": "end_turn"}})
    agent.codec.prompt(Prompt("go on"))
    agent.codec.pending.clear()
    agent.codec.client_responded(request, ClientResponse({}))
    assert agent.codec.pending == []


@pytest.mark.parametrize(("granted", "chosen"), [(True, "yes"), (False, "no")])
def test_permission_options_of_unknown_kinds_are_ignored(granted: bool, chosen: str) -> None:
    agent = Agent(grants=Grants([ToolGrant("execute")]))
    agent.open()
    agent.codec.prompt(Prompt("go"))
    agent.codec.outbox.clear()
    kinds = {"later": "ask_again_later", "odd": ["allow_once"], "yes": "allow_once", "no": "reject_once"}
    options = [{"optionId": option, "name": option, "kind": kind} for option, kind in kinds.items()]
    question = {"sessionId": "s", "toolCall": {"toolCallId": "c", "kind": "execute", "title": "ls"}, "options": options}
    assert isinstance(agent.send({"id": 1, "method": "session/request_permission", "params": question})[-1], Awaiting)
    agent.codec.reply(PermissionReply("c", "allow" if granted else "deny"))
    assert json.loads(agent.codec.outbox)["result"] == {"outcome": {"outcome": "selected", "optionId": chosen}}
