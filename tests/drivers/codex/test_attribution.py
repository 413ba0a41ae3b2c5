"""Which turn of a thread a line of `codex app-server` belongs to, and approvals that come before their items."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from drivers.codex.app_server import CodexAppCodec
from drivers.codex.grants import Grants
from drivers.codex.handshake import SessionRequest
from drivers.contract.agent import PermissionReply, Prompt
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import (
    AgentToken,
    AwaitedCall,
    Awaiting,
    DeniedResult,
    MessageEnd,
    NativeSession,
    OutputEvent,
    Plan,
    PlanEntry,
    SessionEnd,
    ToolCall,
    ToolResult,
)

Json = dict[str, Any]
RUN = {"type": "commandExecution", "id": "c1", "command": "/bin/bash -lc 'ls'", "cwd": "/work", "status": "inProgress"}
PATCH = {"type": "fileChange", "id": "p1", "changes": [{"path": "/work/a", "kind": {"type": "add"}, "diff": "x"}]}


class Server:
    """The CLI's side of a codec."""

    def __init__(self, *grants: str, trusted: Sequence[str] = (), confined: bool = False, folder: str = "/work") -> None:
        tools = [*(ToolGrant(name) for name in grants), *(ToolGrant(name, trust=True) for name in trusted)]
        granted = Grants.of(tools, "", (folder,), confined=confined)
        self.codec = CodexAppCodec(SessionRequest(granted, {"cwd": folder, "config": {}}))
        for result in ({}, {"config": {}}, {"thread": {"id": "t"}}):
            self.respond(**result)

    def respond(self, **result: Any) -> None:
        """Respond to the codec's latest request."""
        assert self.send({"id": self.written()[-1]["id"], "result": result}) == []

    def written(self) -> list[Json]:
        lines = [json.loads(line) for line in bytes(self.codec.outbox).splitlines()]
        self.codec.outbox.clear()
        return [line for line in lines if line.get("method") != "initialized"]

    def send(self, message: Json) -> list[OutputEvent]:
        events = self.codec.receive(json.dumps(message).encode())
        return [event for event in events if not isinstance(event, NativeSession)]

    def notify(self, method: str, turn: str, **params: Any) -> list[OutputEvent]:
        return self.send({"method": method, "params": {"threadId": "t", "turnId": turn, **params}})

    def begin(self, turn: str) -> None:
        self.codec.prompt(Prompt("go"))
        self.respond(turn={"id": turn})
        self.send({"method": "turn/started", "params": {"threadId": "t", "turn": {"id": turn}}})

    def complete(self, turn: str) -> list[OutputEvent]:
        return self.send({"method": "turn/completed", "params": {"threadId": "t", "turn": {"id": turn, "status": "completed"}}})

    def delta(self, turn: str, text: str) -> list[OutputEvent]:
        return self.notify("item/agentMessage/delta", turn, itemId=f"m-{turn}", delta=text)

    def request(self, method: str, turn: str, item: str, **params: Any) -> list[OutputEvent]:
        return self.send({"id": 70, "method": method, "params": {"threadId": "t", "turnId": turn, "itemId": item, **params}})


def test_lines_of_the_turn_before_are_no_part_of_the_next() -> None:
    server = Server("shell")
    server.begin("one")
    assert server.delta("one", "first") == [AgentToken(text="first")]
    assert server.complete("one")[-1] == SessionEnd(exit_code=0)
    assert server.delta("one", "between") == []
    server.codec.prompt(Prompt("go"))
    # Before and after the response that has the id of the turn.
    assert server.delta("one", "late") == [] and server.complete("one") == []
    server.respond(turn={"id": "two"})
    server.send({"method": "turn/started", "params": {"threadId": "t", "turn": {"id": "one"}}})
    server.send({"method": "turn/started", "params": {"threadId": "t", "turn": {"id": "two"}}})
    assert server.delta("one", "late") == [] and server.complete("one") == []
    assert server.notify("item/started", "one", item=RUN) == []
    assert server.notify("item/completed", "one", item={"type": "agentMessage", "id": "x", "text": "late"}) == []
    server.request("item/commandExecution/requestApproval", "one", "c1", command="ls")
    assert server.written()[-1] == {"id": 70, "result": {"decision": "decline"}}
    assert server.delta("two", "second") == [AgentToken(text="second")]
    assert server.complete("two") == [MessageEnd(), SessionEnd(exit_code=0)]


def test_a_turn_of_the_clis_own_is_interrupted_and_its_calls_are_denied() -> None:
    server = Server(trusted=["shell"])
    assert server.send({"method": "turn/started", "params": {"threadId": "t", "turn": {"id": "own"}}}) == []
    (interrupt,) = server.written()
    assert (interrupt["method"], interrupt["params"]) == ("turn/interrupt", {"threadId": "t", "turnId": "own"})
    started, denied, ended = server.request("item/commandExecution/requestApproval", "own", "c1", command="ls")
    assert isinstance(started, ToolCall) and isinstance(denied, DeniedResult) and isinstance(ended, ToolCall)
    assert (started.name, started.input, ended.status) == ("shell", {"command": "ls"}, "failed")
    assert server.written() == [{"id": 70, "result": {"decision": "decline"}}]
    assert server.send({"method": "turn/started", "params": {"threadId": "other", "turn": {"id": "x"}}}) == []
    assert server.written() == []


def test_an_approval_before_its_item_waits_for_it() -> None:
    server = Server("apply_patch")
    server.begin("one")
    assert server.request("item/fileChange/requestApproval", "one", "p1", reason="why") == []
    assert server.written() == []
    (started,) = server.notify("item/started", "one", item=PATCH)
    assert isinstance(started, ToolCall) and started.input["changes"][0]["path"] == "/work/a"
    assert server.codec.debounced_events() == [Awaiting(calls=(AwaitedCall(id="p1", wants="permission", decided_by="client"),))]
    server.codec.reply(PermissionReply("p1", "allow"))
    assert server.written() == [{"id": 70, "result": {"decision": "accept"}}]


def test_an_approval_without_an_item_asks_with_what_it_has() -> None:
    server = Server("shell")
    server.begin("one")
    command = "item/commandExecution/requestApproval"
    assert server.request(command, "one", "c1", command="/bin/bash -lc 'ls'", cwd="/work", reason="why") == []
    assert server.codec.debounce_seconds() is not None
    started, asked = server.codec.debounced_events()
    assert isinstance(started, ToolCall)
    assert (started.name, started.input) == ("shell", {"command": "ls", "cwd": "/work", "reason": "why"})
    assert asked == Awaiting(calls=(AwaitedCall(id="c1", wants="permission"),))
    # The item is the same call.
    assert server.notify("item/started", "one", item=RUN) == []
    server.codec.reply(PermissionReply("c1", "allow"))
    assert server.written() == [{"id": 70, "result": {"decision": "accept"}}]


def test_an_approval_of_a_tool_that_is_not_granted_is_declined_without_an_item() -> None:
    server = Server("shell")
    server.begin("one")
    server.request("item/fileChange/requestApproval", "one", "p1")
    (started,) = server.codec.debounced_events()
    assert isinstance(started, ToolCall) and started.name == "apply_patch"
    assert server.written() == [{"id": 70, "result": {"decision": "decline"}}]


def test_plan_of_the_turn_is_reported() -> None:
    server = Server("shell")
    server.begin("u1")
    native = ("pending", "inProgress", "completed", "new")
    plan = [{"step": f"step {n}", "status": status} for n, status in enumerate(native)]
    statuses = ("pending", "in_progress", "completed", "pending")
    entries = tuple(PlanEntry(content=f"step {n}", status=status) for n, status in enumerate(statuses))
    assert server.notify("turn/plan/updated", "u1", explanation=None, plan=plan) == [Plan(entries=entries)]
    assert server.notify("turn/plan/updated", "u0", plan=plan) == []
    assert server.notify("turn/plan/updated", "u1", plan=plan, threadId="sub-agent") == []


MODEL_CALL = {"type": "function_call", "call_id": "c1", "name": "exec_command", "arguments": '{"cmd": "ls", "workdir": "sub"}'}
MODEL_OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "Process exited with code 1\nOutput:\nread-only"}


def test_a_command_that_only_the_models_api_has_is_reported_with_its_output() -> None:
    server = Server(trusted=["shell"])
    server.begin("1")
    assert server.notify("rawResponseItem/completed", "1", item=MODEL_CALL) == []
    started, result, ended = server.notify("rawResponseItem/completed", "1", item=MODEL_OUTPUT)
    command = {"command": "ls", "cwd": "/work/sub"}
    assert started == ToolCall(id="c1", name="shell", status="started", input=command, detail="ls")
    assert result == ToolResult(tool_call_id="c1", output="read-only\n[exit code 1]", is_error=True, exit_code=1)
    assert ended == ToolCall(id="c1", name="shell", status="failed")
    # An item that comes late is of the same call.
    assert server.notify("item/started", "1", item=RUN) == []
    assert server.notify("item/completed", "1", item={**RUN, "status": "failed", "exitCode": 1}) == []


def test_the_models_api_adds_nothing_to_a_command_that_has_an_item() -> None:
    server = Server(trusted=["shell"])
    server.begin("1")
    assert server.notify("rawResponseItem/completed", "1", item=MODEL_CALL) == []
    assert len(server.notify("item/started", "1", item=RUN)) == 1
    assert len(server.notify("item/completed", "1", item={**RUN, "status": "completed", "exitCode": 0})) == 2
    assert server.notify("rawResponseItem/completed", "1", item=MODEL_OUTPUT) == []


def test_calls_of_another_turn_or_thread_and_of_a_seeded_history_are_not_reported() -> None:
    server = Server(trusted=["shell"])
    assert server.notify("rawResponseItem/completed", "auto-compact-0", item=MODEL_CALL) == []
    server.begin("1")
    other = {"threadId": "other", "item": MODEL_CALL}
    assert server.send({"method": "rawResponseItem/completed", "params": other}) == []
    assert server.notify("rawResponseItem/completed", "0", item=MODEL_CALL) == []
    assert server.notify("rawResponseItem/completed", "1", item=MODEL_OUTPUT) == []


@pytest.mark.parametrize(("asked", "trusted", "reports"), [((), ("shell",), True), (("shell",), (), False), ((), (), False)])
def test_items_of_the_models_api_are_reported_where_commands_run_unasked(
    asked: Sequence[str], trusted: Sequence[str], reports: bool
) -> None:
    tools = [*(ToolGrant(name) for name in asked), *(ToolGrant(name, trust=True) for name in (*trusted, "apply_patch"))]
    session = SessionRequest(Grants.of(tools, "", ("/work",)), {"cwd": "/work", "config": {}})
    method, params = session.thread_request({})
    assert (method, params.get("experimentalRawEvents", False)) == ("thread/start", reports)
