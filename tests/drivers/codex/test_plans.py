"""The approval of a plan of codex's plan mode, and changes of the mode of an open thread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drivers.codex.app_server import CodexAppCodec
from drivers.codex.handshake import SessionRequest
from drivers.contract.agent import PermissionReply, Prompt, Reply, ToolReply
from drivers.contract.agent_specs import SessionPermissions, SessionSpec
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import Awaiting, ModeChanged, NativeSession, OutputEvent, SessionEnd, ToolCall, ToolResult

Json = dict[str, Any]
PERMITTED = frozenset({"workspace", "read-only", "plan"})
READ_ONLY = {"type": "readOnly", "networkAccess": False}
WORKSPACE = {
    "type": "workspaceWrite",
    "writableRoots": ["/more"],
    "networkAccess": True,
    "excludeTmpdirEnvVar": False,
    "excludeSlashTmp": True,
}
USERS = {"writable_roots": ["/more"], "network_access": True, "exclude_slash_tmp": True}


class Thread:
    """The CLI's side of a session in a mode, whose thread is open."""

    def __init__(self, mode: str, *tools: str, modes: frozenset[str] = PERMITTED, option: str = "default") -> None:
        names = tools or ("shell", "apply_patch", "implement_plan")
        spec = SessionSpec(
            "codex",
            Path("/work"),
            {},
            options={"mode": mode, "sandbox": option},
            tools=tuple(ToolGrant(name) for name in names),
            permissions=SessionPermissions(modes),
        )
        self.codec = CodexAppCodec(SessionRequest.of(spec))
        for result in ({}, {"config": {"sandbox_workspace_write": USERS}}, {"thread": {"id": "t"}, "model": "m"}):
            self.send({"id": self.written()[-1]["id"], "result": result})

    def written(self) -> list[Json]:
        lines = [json.loads(line) for line in bytes(self.codec.outbox).splitlines()]
        self.codec.outbox.clear()
        return [line for line in lines if line.get("method") != "initialized"]

    def send(self, message: Json) -> list[OutputEvent]:
        events = self.codec.receive(json.dumps(message).encode())
        return [event for event in events if not isinstance(event, NativeSession)]

    def started(self, turn: str) -> Json:
        """The parameters of the turn that the codec has begun last."""
        request = self.written()[-1]
        assert request["method"] == "turn/start"
        self.send({"id": request["id"], "result": {"turn": {"id": turn}}})
        self.send({"method": "turn/started", "params": {"threadId": "t", "turn": {"id": turn}}})
        params: Json = request["params"]
        return params

    def prompt(self, turn: str = "one") -> Json:
        self.codec.prompt(Prompt("go"))
        return self.started(turn)

    def complete(self, turn: str, plan: str = "", **status: Any) -> list[OutputEvent]:
        if plan:
            item = {"type": "plan", "id": f"{turn}-plan", "text": plan}
            self.send({"method": "item/completed", "params": {"threadId": "t", "turnId": turn, "item": item}})
        params = {"threadId": "t", "turn": {"id": turn, "status": "completed"}}
        return self.send({"method": "turn/completed", "params": params})

    def ask(self) -> Awaiting:
        """End a turn with a plan, and return the question about it."""
        self.prompt()
        *_, started, awaiting = self.complete("one", "# P")
        assert started == ToolCall(id="plan-one", name="implement_plan", status="started", input={"plan": "# P"})
        assert isinstance(awaiting, Awaiting) and self.codec.phase == "waiting"
        return awaiting

    def answer(self, reply: Reply) -> list[OutputEvent]:
        self.codec.reply(reply)
        events, self.codec.pending = self.codec.pending, []
        return events


def test_a_plan_is_approved_with_the_mode_in_which_it_is_carried_out() -> None:
    thread = Thread("plan")
    [call] = thread.ask().calls
    assert [(choice.id, choice.kind) for choice in call.choices] == [
        ("mode:workspace", "allow_once"),
        ("mode:read-only", "allow_once"),
        ("keep_planning", "reject_once"),
    ]
    events = thread.answer(PermissionReply("plan-one", "allow", choice="mode:workspace"))
    assert [type(event) for event in events] == [ToolResult, ToolCall, ModeChanged]
    assert events[-1] == ModeChanged(mode="workspace") and thread.codec.phase == "running"
    params = thread.started("two")
    assert params["input"][0]["text"] == "Implement the plan."
    assert (params["approvalPolicy"], params["sandboxPolicy"]) == ("on-request", WORKSPACE)
    assert params["collaborationMode"]["mode"] == "default"
    # Only a turn of the plan mode is asked about.
    assert thread.complete("two", "# Q")[-1] == SessionEnd(exit_code=0)


@pytest.mark.parametrize(
    ("choice", "permitted", "mode"),
    [
        (None, PERMITTED, "workspace"),
        ("mode:read-only", PERMITTED, "read-only"),
        ("mode:full-access", PERMITTED, "workspace"),
        ("mode:full-access", PERMITTED | {"full-access"}, "full-access"),
        ("mode:plan", PERMITTED, "workspace"),
        (None, frozenset({"plan", "read-only"}), "read-only"),
    ],
)
def test_the_mode_after_a_plan_is_one_that_the_session_may_have(choice: str | None, permitted: frozenset[str], mode: str) -> None:
    thread = Thread("plan", modes=permitted)
    [call] = thread.ask().calls
    assert ("mode:full-access" in [one.id for one in call.choices]) == ("full-access" in permitted)
    assert ModeChanged(mode=mode) in thread.answer(PermissionReply("plan-one", "allow", choice=choice))


def test_a_plan_that_is_not_approved_ends_the_run() -> None:
    thread = Thread("plan")
    thread.ask()
    result, call, end = thread.answer(PermissionReply("plan-one", "deny", choice="keep_planning"))
    assert isinstance(result, ToolResult) and result.is_error and "go on planning" in str(result.output)
    assert (call, end) == (ToolCall(id="plan-one", name="implement_plan", status="failed"), SessionEnd(exit_code=0))
    assert thread.written() == []
    assert thread.prompt("two")["collaborationMode"]["mode"] == "plan"


def test_the_reason_of_a_rejection_is_the_next_message_in_plan_mode() -> None:
    thread = Thread("plan")
    thread.ask()
    events = thread.answer(PermissionReply("plan-one", "deny", "Use Rust."))
    assert SessionEnd(exit_code=0) not in events
    params = thread.started("two")
    assert "Use Rust." in params["input"][0]["text"] and params["collaborationMode"]["mode"] == "plan"
    assert [event.kind for event in thread.complete("two", "# Q")][-2:] == ["tool_call", "awaiting"]


def test_a_result_of_the_client_approves_no_plan() -> None:
    thread = Thread("plan")
    thread.ask()
    assert thread.answer(ToolReply("plan-one", "done"))[-1] == SessionEnd(exit_code=0)


@pytest.mark.parametrize("announced", [True, False])
def test_an_interrupt_ends_a_run_that_waits_for_the_approval(announced: bool) -> None:
    thread = Thread("plan")
    if announced:
        thread.ask()
    else:
        thread.prompt()
        thread.complete("one", "# P")
    assert thread.codec.interrupt()
    assert thread.codec.pending[-1] == SessionEnd(exit_code=130, stop_reason="cancelled")
    assert thread.codec.phase == "ready" and thread.written() == []


@pytest.mark.parametrize(
    ("mode", "tools", "modes"),
    [("workspace", (), PERMITTED), ("plan", ("shell", "apply_patch"), PERMITTED), ("plan", (), frozenset({"plan"}))],
    ids=["another mode", "no tool", "locked plan mode"],
)
def test_a_plan_is_text_elsewhere(mode: str, tools: tuple[str, ...], modes: frozenset[str]) -> None:
    thread = Thread(mode, *tools, modes=modes)
    thread.prompt()
    assert thread.complete("one", "# P")[-1] == SessionEnd(exit_code=0)


def test_a_mode_changes_with_the_next_turn_of_the_thread() -> None:
    thread = Thread("workspace")
    assert "sandboxPolicy" not in thread.prompt("one")
    assert thread.codec.set_mode("read-only")
    assert thread.written() == []
    thread.complete("one")
    params = thread.prompt("two")
    assert (params["approvalPolicy"], params["sandboxPolicy"]) == ("on-request", READ_ONLY)
    assert "collaborationMode" not in params
    thread.complete("two")
    # The thread keeps them.
    assert "sandboxPolicy" not in thread.prompt("three")
    thread.complete("three")
    assert thread.codec.set_mode("plan") and thread.prompt("four")["collaborationMode"]["mode"] == "plan"
    thread.complete("four")
    assert thread.codec.set_mode("workspace") and thread.prompt("five")["sandboxPolicy"] == WORKSPACE


def test_a_turn_that_is_refused_has_not_changed_the_settings() -> None:
    thread = Thread("workspace")
    thread.codec.set_mode("read-only")
    thread.codec.prompt(Prompt("go"))
    [request] = thread.written()
    thread.send({"id": request["id"], "error": {"code": -32600, "message": "not now"}})
    assert thread.prompt()["sandboxPolicy"] == READ_ONLY


def test_the_option_narrows_the_sandbox_of_another_mode() -> None:
    thread = Thread("read-only", option="read-only")
    assert thread.codec.set_mode("workspace")
    assert thread.prompt()["sandboxPolicy"] == READ_ONLY


@pytest.mark.parametrize(("mode", "to"), [("ask", "workspace"), ("workspace", "ask"), ("workspace", "other")])
def test_a_mode_of_the_gateway_needs_another_process(mode: str, to: str) -> None:
    assert not Thread(mode).codec.set_mode(to)


@pytest.mark.parametrize(("sandbox", "refused"), [("readOnly", False), ("workspaceWrite", True), ("dangerFullAccess", True)])
def test_a_sandbox_that_the_cli_replaces_by_a_wider_one_ends_the_process(sandbox: str, refused: bool) -> None:
    thread = Thread("workspace")
    thread.codec.set_mode("read-only")
    thread.prompt()
    settings = {"approvalPolicy": "on-request", "sandboxPolicy": {"type": sandbox}}
    thread.send({"method": "thread/settings/updated", "params": {"threadId": "t", "threadSettings": settings}})
    assert (thread.codec.protocol_error is not None) == refused
