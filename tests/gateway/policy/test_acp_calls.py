"""What an ACP agent asks about, what the rules and the client decide about, and what runs then.

Most tests play the agent line by line to the codec, with PolicyEnforcer between the codec and the client."""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from drivers.acp.agent_profile import AgentProfile
from drivers.acp.app_tool_calls import names_of
from drivers.acp.permissions import Grants
from drivers.contract.agent import PermissionReply, Prompt
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import Awaiting, OutputEvent, SessionEnd, ToolCall, ToolResult
from drivers.contract.tool_server import ToolRequest
from drivers.gemini.acp_profile import agent_profile
from gateway.policy.enforcement import PolicyEnforcer
from gateway.policy.rules import Policy, Rule
from tests.drivers.acp.small_agent import Agent
from tests.gateway.cli.test_acp import small_agent
from tests.support.daemon import gateway_config, run_gateway
from tests.support.requests import create_session, send_turn
from tests.support.waiting import wait_until

Json = dict[str, Any]

RULES = Policy(
    [
        Rule(tool="*", when={"command": "rm *"}, decide="deny", reason="never"),
        Rule(tool="execute", when={"command": "git status *"}, decide="allow"),
    ]
)
STATUS, REMOVE = {"command": "git status"}, {"command": "rm -rf /work/x"}
OPTIONS = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


class Session:
    """A session between an agent, which the test plays, and a client. `seen` are the events that the client gets."""

    def __init__(
        self,
        *grants: ToolGrant,
        policy: Policy | None = None,
        tools: tuple[str, ...] = (),
        profile: AgentProfile | None = None,
        asks: bool = False,
        terminals: bool = True,
    ) -> None:
        policy = policy or Policy()
        profile = profile or AgentProfile(app_tools=names_of(tools))
        allowed = Grants(policy.effective_grants(grants), agent_asks=asks)
        self.agent = Agent(profile, grants=allowed, terminals=terminals)
        self.agent.open()
        self.enforcer = PolicyEnforcer(policy, grants)
        self.seen: list[OutputEvent] = []
        self.pending: tuple[str, ...] = ()
        self.agent.codec.prompt(Prompt("go"))
        self.prompt_id = json.loads(bytes(self.agent.codec.outbox).splitlines()[-1])["id"]
        self.agent.codec.outbox.clear()
        self.pass_on([])

    def update(self, call_id: str, **fields: Any) -> None:
        self._send_update({"sessionUpdate": "tool_call_update", "toolCallId": call_id, **fields})

    def call(self, call_id: str, **fields: Any) -> None:
        self._send_update({"sessionUpdate": "tool_call", "toolCallId": call_id, "title": "Call", **fields})

    def ask(self, request_id: int, call_id: str, **fields: Any) -> Json | None:
        """A permission request. Returns the response, if there is one yet."""
        params = {"sessionId": "s", "toolCall": {"toolCallId": call_id, **fields}, "options": OPTIONS}
        return self.request(request_id, "session/request_permission", params)

    def request(self, request_id: int, method: str, params: Json) -> Json | None:
        self.pass_on(self.agent.send({"id": request_id, "method": method, "params": {"sessionId": "s", **params}}))
        return self.response(request_id)

    def end(self) -> None:
        self.pass_on(self.agent.send({"id": self.prompt_id, "result": {"stopReason": "end_turn"}}))

    def requested(self, request: ToolRequest) -> None:
        self.agent.codec.tool_requested(request)
        self.pass_on([])

    def answer(self, granted: bool) -> None:
        """The client answers the pending calls."""
        replies = [PermissionReply(call_id, "allow" if granted else "deny") for call_id in self.pending]
        assert replies
        self.pending = ()
        self.enforcer.answered(replies, "client")
        for reply in [*self.enforcer.release(replies), *replies]:
            self.agent.codec.reply(reply)
        self.pass_on([])

    def response(self, request_id: int) -> Json | None:
        lines = [json.loads(line) for line in bytes(self.agent.codec.outbox).splitlines()]
        found = [line for line in lines if line.get("id") == request_id and "method" not in line]
        assert len(found) < 2
        return found[0] if found else None

    def granted(self, request_id: int) -> bool | None:
        """Whether a permission request was granted; None if it was not answered."""
        response = self.response(request_id)
        return None if response is None else response["result"]["outcome"].get("optionId") == "yes"

    @property
    def served(self) -> list[int | str]:
        """The ids of the client methods that are carried out."""
        return [request.id for request in self.agent.codec.client_requests]

    @property
    def question(self) -> tuple[str, Any]:
        """The tool and the input of the call that the client is asked about, as the client has seen it."""
        (question,) = self.questions
        return question

    @property
    def questions(self) -> list[tuple[str, Any]]:
        """The same of all calls that the client is asked about together."""
        started = {e.id: (e.name, e.input) for e in self.seen if isinstance(e, ToolCall) and e.status == "started"}
        return [started[call_id] for call_id in self.pending]

    @property
    def audit(self) -> list[tuple[str, str, Any]]:
        return [(d.outcome, d.by, (d.arguments or {}).get("command")) for d in self.enforcer.decisions]

    @property
    def cancelled(self) -> bool:
        return b'"session/cancel"' in bytes(self.agent.codec.outbox)

    def pass_on(self, events: list[OutputEvent]) -> None:
        """Pass events of the codec on to the client, as a run does."""
        events = [*events, *self._pending()]
        while events:
            enforced = self.enforcer.apply(events)
            self.seen += enforced.events
            for event in enforced.events:
                if isinstance(event, Awaiting):
                    self.pending = tuple(call.id for call in event.calls)
            for reply in enforced.replies:
                self.agent.codec.reply(reply)
            events = self._pending()
        starts = [event.id for event in self.seen if isinstance(event, ToolCall) and event.status == "started"]
        assert len(set(starts)) == len(starts), "each id starts once"

    def _send_update(self, update: Json) -> None:
        self.pass_on(self.agent.send({"method": "session/update", "params": {"sessionId": "s", "update": update}}))

    def _pending(self) -> list[OutputEvent]:
        events, self.agent.codec.pending = self.agent.codec.pending, []
        return events


def executing(trust: bool = False, policy: Policy | None = None, **more: Any) -> Session:
    return Session(ToolGrant("execute", trust), ToolGrant("edit"), ToolGrant("read"), policy=policy, **more)


# -- the input that is decided about ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["pending", "in_progress"])
def test_rules_decide_about_the_input_of_the_permission_request(status: str) -> None:
    session = executing(trust=True, policy=RULES)
    session.call("c1", kind="execute", status=status, rawInput=STATUS)
    session.update("c1", rawInput=REMOVE)
    session.ask(1, "c1", rawInput=REMOVE)
    assert session.granted(1) is False
    assert session.audit[-1] == ("denied", "policy[0]", REMOVE["command"])
    assert ("allowed", "policy[1]", "git status") not in session.audit


@pytest.mark.parametrize("status", ["pending", "in_progress"])
@pytest.mark.parametrize("updated", [True, False])
def test_client_is_asked_about_the_input_of_the_permission_request(status: str, updated: bool) -> None:
    session = executing()
    session.call("c1", kind="execute", status=status, rawInput=STATUS)
    if updated:
        session.update("c1", rawInput=REMOVE)
    session.ask(1, "c1", rawInput=REMOVE)
    assert session.question == ("execute", REMOVE)
    assert session.audit[-1] == ("asked", "default", REMOVE["command"])
    session.answer(True)
    assert session.granted(1) is True
    assert session.audit[-1] == ("granted", "client", REMOVE["command"])


def test_rules_of_the_kind_in_the_permission_request_decide() -> None:
    session = Session(ToolGrant("think", True), ToolGrant("execute", True), policy=RULES)
    session.call("c1", kind="think", status="in_progress", rawInput=STATUS)
    session.ask(1, "c1", kind="execute", rawInput=REMOVE)
    assert (session.granted(1), session.audit[-1][0]) == (False, "denied")


def test_empty_input_in_a_permission_request_is_no_input() -> None:
    """opencode requests permission for a command with an empty input, and for an edit with the path under another name."""
    session = executing(policy=RULES)
    session.call("c1", kind="execute", title="bash", status="pending", rawInput={})
    session.update("c1", status="in_progress", title="bash", rawInput=REMOVE)
    session.ask(1, "c1", status="pending", title="bash", rawInput={})
    assert (session.granted(1), session.audit[-1]) == (False, ("denied", "policy[0]", REMOVE["command"]))
    session.call("e1", kind="edit", title="edit", status="in_progress", rawInput={"filePath": "/work/a.txt", "newString": "b"})
    session.ask(2, "e1", title="edit", kind="edit", rawInput={"filepath": "/work/a.txt", "diff": "+b"})
    assert session.question == ("edit", {"filepath": "/work/a.txt", "diff": "+b"})
    session.answer(True)
    session.request(3, "fs/write_text_file", {"path": "/work/a.txt", "content": "b"})
    session.update("e1", status="in_progress", rawInput={"filePath": "/work/a.txt", "newString": "b"})
    assert (session.served, session.pending) == ([3], ())


def test_streamed_input_is_one_call() -> None:
    session = executing()
    for text in ("g", "git sta", "git status"):
        session.call("c1", kind="execute", status="pending", rawInput={"command": text})
    assert not any(isinstance(event, ToolCall) for event in session.seen)
    session.ask(1, "c1")
    assert session.question == ("execute", STATUS)
    assert [event.id for event in session.seen if isinstance(event, ToolCall)] == ["c1"]


def test_pending_call_is_reported_when_the_agent_goes_on_or_is_silent() -> None:
    for silent in (True, False):
        session = executing()
        session.call("c1", kind="execute", status="pending", rawInput=STATUS)
        if silent:
            assert session.agent.codec.debounce_seconds()
            session.pass_on(session.agent.codec.debounced_events())
        else:
            session.pass_on(session.agent.update("agent_message_chunk", content={"type": "text", "text": "So."}))
        kinds = [event.kind for event in session.seen if event.kind != "native_session"]
        assert kinds == ["tool_call"] if silent else ["tool_call", "agent_token"]
        assert session.agent.codec.debounce_seconds() is None


def test_pending_call_of_an_ended_run_is_reported() -> None:
    session = executing()
    session.call("c1", kind="execute", status="pending", rawInput=STATUS)
    session.end()
    assert [type(event) for event in session.seen[-2:]] == [ToolCall, SessionEnd]


def test_call_that_changes_before_the_answer_is_asked_about_anew() -> None:
    session = executing()
    session.ask(1, "c1", kind="execute", title="Run", rawInput=STATUS)
    session.update("c1", rawInput=REMOVE)
    session.answer(True)
    assert session.granted(1) is None
    assert session.question == ("execute", REMOVE)
    session.answer(False)
    assert session.granted(1) is False


def test_two_requests_about_one_call_are_not_mixed_up() -> None:
    session = executing()
    session.ask(1, "c1", kind="execute", title="Run", rawInput=STATUS)
    session.ask(2, "c1", rawInput=REMOVE)
    assert session.granted(1) is False
    assert session.granted(2) is None
    # The answer to the first question is none to the second.
    (call,) = session.pending
    session.agent.codec.reply(PermissionReply(call, "allow"))
    session.pass_on([])
    assert (session.granted(2), session.question) == (None, ("execute", REMOVE))
    session.answer(True)
    assert (session.granted(1), session.granted(2)) == (False, True)


def test_request_after_an_answer_asks_again() -> None:
    session = executing()
    session.ask(1, "c1", kind="execute", title="Run", rawInput=STATUS)
    session.answer(True)
    session.ask(2, "c1", rawInput=REMOVE)
    assert (session.granted(2), session.question) == (None, ("execute", REMOVE))
    session.answer(False)
    session.ask(3, "c1", rawInput=REMOVE)
    assert (session.granted(2), session.granted(3), session.question) == (False, None, ("execute", REMOVE))


@pytest.mark.parametrize("granted", [True, False])
def test_change_after_an_answer_asks_again_and_a_denial_cancels_the_run(granted: bool) -> None:
    session = executing()
    session.ask(1, "c1", kind="execute", title="Run", rawInput=STATUS)
    session.answer(True)
    session.update("c1", status="in_progress", rawInput={**STATUS, "description": "the same command"})
    assert not session.pending
    session.update("c1", status="in_progress", rawInput=REMOVE)
    assert session.question == ("execute", REMOVE)
    session.answer(granted)
    assert session.cancelled is not granted


@pytest.mark.parametrize("how", ["grant", "deny", "interrupt"])
def test_run_ends_after_the_answer_about_a_change(how: str) -> None:
    session = executing()
    session.ask(1, "c1", kind="execute", title="Run", rawInput=STATUS)
    session.answer(True)
    session.update("c1", rawInput=REMOVE)
    session.end()
    assert session.question == ("execute", REMOVE)
    assert not isinstance(session.seen[-1], SessionEnd)
    if how == "interrupt":
        session.agent.codec.interrupt()
        session.pass_on([])
    else:
        session.answer(how == "grant")
    assert [type(event) for event in session.seen].count(SessionEnd) == 1
    assert isinstance(session.seen[-1], SessionEnd)
    assert session.agent.codec.phase == "ready"


def test_rule_that_denies_a_change_after_an_answer_cancels_the_run() -> None:
    session = executing(trust=True, policy=RULES)
    session.ask(1, "c1", kind="execute", title="Run", rawInput=STATUS)
    assert session.granted(1) is True
    session.update("c1", rawInput=REMOVE)
    assert session.cancelled
    assert session.audit[-1] == ("denied", "policy[0]", REMOVE["command"])


def test_call_that_ends_with_another_input_is_reported_with_it() -> None:
    session = executing(trust=True)
    session.call("c1", kind="execute", status="in_progress", rawInput=STATUS)
    session.update("c1", status="completed", rawInput=REMOVE, rawOutput="ran")
    started = [(event.id, event.input) for event in session.seen if isinstance(event, ToolCall) and event.status == "started"]
    assert started == [("c1", STATUS), ("c1_2", REMOVE)]
    assert [e.output for e in session.seen if isinstance(e, ToolResult) and e.tool_call_id == "c1_2"] == ["ran"]
    assert [row[2] for row in session.audit] == [STATUS["command"], REMOVE["command"]]


def test_arguments_and_environment_beside_a_command_are_part_of_it() -> None:
    for given in (
        {"command": "rm", "args": ["-rf", "x y", 5]},
        {"command": "rm", "args": "-rf x"},
        {"command": "rm -rf 'x y'", "env": {"A": "b"}},
        {"command": "rm -rf x", "env": "A=b"},
    ):
        session = executing(trust=True, policy=RULES)
        session.ask(1, "c1", kind="execute", title="Run", rawInput=given)
        assert session.granted(1) is False
    session = executing(policy=RULES)
    session.ask(1, "c1", kind="execute", title="Run", rawInput={"command": "git", "args": ["status"], "env": {"PATH": "./evil"}})
    assert session.question[1]["command"] == "export PATH=./evil; git status"


# -- application-side tools ------------------------------------------------------------------------------------------------

LABEL = {"server": "portico", "tool": "lookup"}


@pytest.mark.parametrize("policy", [RULES, None], ids=["rules", "no rules"])
@pytest.mark.parametrize(
    ("kind", "title", "given"),
    [
        ("execute", "Run", {**REMOVE, **LABEL}),
        ("execute", "Run", {**REMOVE, **LABEL, "arguments": {}}),
        ("other", "Run", {**REMOVE, **LABEL, "arguments": {}}),
        ("other", "mcp__portico__lookup", REMOVE),
        ("execute", "portico/lookup", REMOVE),
    ],
)
@pytest.mark.parametrize("reported", [True, False])
def test_name_of_an_application_tool_grants_nothing(
    kind: str, title: str, given: Json, policy: Policy | None, reported: bool
) -> None:
    session = Session(ToolGrant("execute"), ToolGrant("other"), policy=policy, tools=("lookup",))
    if reported:
        session.call("c1", kind=kind, title=title, rawInput=given, status="in_progress")
    session.ask(1, "c1", kind=kind, title=title, rawInput=given)
    if policy is not None:
        assert (session.granted(1), session.audit[-1]) == (False, ("denied", "policy[0]", REMOVE["command"]))
        return
    assert (session.granted(1), session.question) == (None, (kind, given))
    session.answer(False)
    assert session.granted(1) is False
    assert [row[0] for row in session.audit] == ["asked", "refused"]


@pytest.mark.parametrize("call_id", [None, "c1"])
def test_pending_mcp_request_permits_no_call_of_the_agents_own(call_id: str | None) -> None:
    session = Session(ToolGrant("other"), tools=("lookup",))
    session.requested(ToolRequest("r1", "lookup", {"a": 1}, call_id))
    session.ask(1, "c1", kind="other", title="mcp__portico__lookup", rawInput={"a": 1})
    assert session.granted(1) is None
    assert [name for name, _ in session.questions] == ["other", "lookup"]


def test_application_tool_that_the_agents_program_names_is_permitted() -> None:
    session = executing(tools=("lookup",))
    session.ask(1, "c1", title="Looking it up", rawInput={"a": 1}, _meta={"toolName": "mcp__portico__lookup"})
    assert session.granted(1) is True
    session.requested(ToolRequest("r1", "lookup", {"a": 1}))
    session.pass_on(session.agent.codec.debounced_events())
    assert (session.pending, session.question) == (("c1",), ("lookup", {"a": 1}))


def test_application_tool_that_the_client_has_permitted_is_requested_after_that() -> None:
    session = Session(ToolGrant("other"), tools=("lookup",))
    session.call("c1", kind="other", title="mcp__portico__lookup", rawInput={"a": 1}, status="pending")
    session.ask(1, "c1", kind="other", title="mcp__portico__lookup", rawInput={"a": 1})
    session.answer(True)
    assert session.granted(1) is True
    session.requested(ToolRequest("r1", "lookup", {"a": 1}, "c1"))
    session.pass_on(session.agent.codec.debounced_events())
    assert session.question == ("lookup", {"a": 1})


@pytest.mark.parametrize("asks", [True, False])
def test_reports_that_name_their_tool_are_one_question_with_their_requests(asks: bool) -> None:
    """claude-agent-acp 0.101 asks, codex-acp 2.6.0 does not. Their MCP requests have the ids of the calls."""
    session = executing(tools=("lookup",))
    for n in (1, 2):
        given, nested = {"a": n}, {"server": "portico", "tool": "lookup", "arguments": {"a": n}}
        if asks:
            meta = {"claudeCode": {"toolName": "mcp__portico__lookup"}}
            session.call(f"c{n}", kind="other", title="mcp__portico__lookup", status="pending", rawInput={}, _meta=meta)
            session.update(f"c{n}", rawInput=given, _meta=meta)
            session.ask(n, f"c{n}", kind="other", title="mcp__portico__lookup", status="pending", rawInput=given, _meta=meta)
            assert session.granted(n) is True
        else:
            meta = {"is_mcp_tool_call": True}
            session.call(f"c{n}", kind="execute", title="mcp.portico.lookup", status="in_progress", rawInput=nested, _meta=meta)
    for n in (1, 2):
        session.requested(ToolRequest(f"r{n}", "lookup", {"a": n}, f"c{n}"))
    session.pass_on(session.agent.codec.debounced_events())
    assert (session.pending, session.questions) == (("c1", "c2"), [("lookup", {"a": 1}), ("lookup", {"a": 2})])


# -- client methods --------------------------------------------------------------------------------------------------------


def granted_call(given: Json, kind: str = "execute", **more: Any) -> Session:
    session = executing()
    session.ask(1, "c1", kind=kind, title="Call", rawInput=given, **more)
    session.answer(True)
    assert session.granted(1) is True
    return session


@pytest.mark.parametrize(
    ("given", "params"),
    [
        (STATUS, {"command": "git status"}),
        (STATUS, {"command": "git", "args": ["status"]}),
        (STATUS, {"command": "/bin/bash", "args": ["-lc", "git status"], "cwd": "/work"}),
        ({"command": ["bash", "-lc", "git status"]}, {"command": "git status"}),
        (
            {"command": "git", "args": ["status"], "env": {"A": "b"}},
            {"command": "git status", "env": [{"name": "A", "value": "b"}]},
        ),
        ({"command": "make", "cwd": "/work/sub"}, {"command": "make", "cwd": "/work/sub"}),
    ],
)
def test_granted_call_runs_its_command_once(given: Json, params: Json) -> None:
    session = granted_call(given)
    session.request(2, "terminal/create", params)
    assert session.served == [2]
    session.request(3, "terminal/create", params)
    assert (session.served, len(session.pending)) == ([2], 1)


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"command": "rm -rf X; id"}, "rm -rf X; id"),
        ({"command": "git status; id"}, "git status; id"),
        ({"command": "git", "args": ["status", "; id"]}, "git status '; id'"),
        ({"command": "git status", "args": ["x"]}, "'git status' x"),
        ({"command": "./bash", "args": ["-c", "git status"]}, "./bash -c 'git status'"),
        ({"command": "git status", "cwd": "/work/sub"}, "cd /work/sub && git status"),
        ({"command": "git status", "cwd": "/work/../etc"}, "cd /work/../etc && git status"),
        ({"command": "git status", "env": [{"name": "PATH", "value": "./evil bin"}]}, "export PATH='./evil bin'; git status"),
        ({"command": "git status", "env": [{"name": "f%%", "value": "() { id; }"}]}, "export 'f%%=() { id; }'; git status"),
    ],
)
def test_granted_command_permits_no_other_command(params: Json, line: str) -> None:
    session = granted_call(STATUS)
    session.request(2, "terminal/create", params)
    assert not session.served
    assert session.question == ("execute", {**params, "command": line})
    assert session.audit[-1] == ("asked", "default", line)
    session.answer(True)
    assert session.served == [2]


@pytest.mark.parametrize(("granted", "kind"), [("edit", "edit"), ("read", "edit"), ("edit", "read")])
def test_granted_file_permits_no_other_file(granted: str, kind: str) -> None:
    method = "fs/write_text_file" if kind == "edit" else "fs/read_text_file"
    for path, served in (("/work/a.txt", True), ("/work/b.txt", False), ("/work/x/../a.txt", False)):
        session = granted_call({"file_path": "a.txt"}, granted, locations=[{"path": "/work/b.txt"}])
        session.request(2, method, {"path": path, "content": "new"})
        assert (session.served == [2]) is (served and (granted, kind) != ("read", "edit"))
        if not session.served:
            name, given = session.question
            assert (name, given["path"]) == (kind, path)


def test_granted_edit_without_raw_input_permits_the_file_of_its_diff() -> None:
    session = executing()
    diff = {"type": "diff", "path": "/work/a.txt", "oldText": "", "newText": "new"}
    session.ask(1, "c1", kind="edit", title="Edit", content=[diff])
    session.answer(True)
    for n, path in ((2, "/work/a.txt"), (3, "/work/b.txt")):
        session.request(n, "fs/write_text_file", {"path": path, "content": "new"})
    assert session.served == [2]


@pytest.mark.parametrize(
    ("params", "outcome"),
    [
        ({"command": "rm", "args": ["-rf", "x"]}, "denied"),
        ({"command": "/bin/sh", "args": ["-c", "rm -rf x"]}, "denied"),
        ({"command": "rm", "args": ["-rf", "x"], "env": [{"name": "A", "value": "b"}]}, "denied"),
        ({"command": "rm", "args": ["-rf", "x"], "cwd": "/work/sub"}, "denied"),
        ({"command": "git", "args": ["status", "-s"]}, "allowed"),
        ({"command": "git", "args": ["status", "-s"], "cwd": "/work"}, "allowed"),
        ({"command": "git status", "env": [{"name": "PATH", "value": "./evilbin"}]}, "asked"),
        ({"command": "git status", "cwd": "/work/sub"}, "asked"),
    ],
)
def test_rules_decide_about_the_whole_command_line_of_a_terminal(params: Json, outcome: str) -> None:
    session = executing(policy=RULES)
    session.request(2, "terminal/create", params)
    assert [row[0] for row in session.audit] == [outcome]
    assert session.served == ([2] if outcome == "allowed" else [])
    assert (session.response(2) is not None) is (outcome == "denied")


def test_client_method_that_nothing_permits_is_denied_and_audited() -> None:
    session = Session(ToolGrant("read"))
    session.request(2, "terminal/create", {"command": "id"})
    session.request(3, "fs/write_text_file", {"path": "/work/a.txt", "content": ""})
    assert not session.served
    assert session.audit == [("denied", "default", "id"), ("denied", "default", None)]
    assert [type(event) for event in session.seen if isinstance(event, ToolResult)] == [ToolResult, ToolResult]


def test_permission_request_of_a_kind_that_is_not_listed_is_denied_and_audited() -> None:
    session = Session(ToolGrant("read"))
    session.ask(1, "c1", kind="execute", title="Run", rawInput=STATUS)
    assert (session.granted(1), session.audit) == (False, [("denied", "default", "git status")])


def test_client_method_of_a_trusted_kind_is_reported_and_audited() -> None:
    session = executing(trust=True)
    session.request(2, "terminal/create", {"command": "make", "args": ["all"]})
    assert (session.served, session.audit) == ([2], [("trusted", "trust", "make all")])
    # A call that has the command is reported already.
    session.call("c1", kind="execute", status="in_progress", rawInput=STATUS)
    session.request(3, "terminal/create", {"command": "git status"})
    assert session.served == [2, 3]
    assert [event.id for event in session.seen if isinstance(event, ToolCall)] == ["service_1", "c1"]


def test_report_of_a_trusted_kind_permits_no_other_kind() -> None:
    session = Session(ToolGrant("edit"), ToolGrant("delete", True))
    session.call("d1", kind="delete", status="in_progress", rawInput={"path": "/work/a.txt"})
    session.update("d1", kind="edit")
    session.request(2, "fs/write_text_file", {"path": "/work/a.txt", "content": ""})
    assert (session.served, session.pending) == ([], ("service_1",))


def test_undeclared_method_is_rejected() -> None:
    session = executing(asks=True, terminals=False)
    session.ask(1, "c1", kind="execute", title="Run", rawInput=STATUS)
    session.answer(True)
    for n, (method, params) in enumerate([("terminal/create", STATUS), ("terminal/output", {"terminalId": "t"})], 2):
        response = session.request(n, method, params)
        assert response is not None and "error" in response
    assert not session.served
    assert session.audit[-1] == ("denied", "default", "git status")


@pytest.mark.parametrize("trust", [True, False])
def test_client_method_between_two_runs_is_denied(trust: bool) -> None:
    session = executing(trust=trust)
    session.end()
    response = session.request(2, "terminal/create", {"command": "make", "args": ["all"]})
    assert response is not None and "no run is active" in response["error"]["message"]
    assert session.served == []
    assert session.audit == [("denied", "default", "make all")]


def gemini(trust: bool) -> Session:
    return Session(ToolGrant("write_file", trust), profile=agent_profile(verbatim=True), asks=True, terminals=False)


@pytest.mark.parametrize("trust", [True, False])
def test_gemini_writes_the_files_of_its_calls_only(trust: bool) -> None:
    session, call_id = gemini(trust), "write_file__write_file_1_0"
    # It reads a file before it asks about the change.
    session.request(1, "fs/read_text_file", {"path": "/work/a.txt"})
    edit = {"kind": "edit", "title": "Writing to a.txt", "locations": [{"path": "/work/a.txt"}]}
    if trust:
        session.call(call_id, status="in_progress", **edit)
    else:
        session.request(2, "fs/write_text_file", {"path": "/work/a.txt", "content": "early"})
        assert session.question[1]["content"] == "early"
        session.answer(False)
        session.ask(3, call_id, **edit, content=[{"type": "diff", "path": "/work/a.txt", "oldText": "", "newText": "new"}])
        session.answer(True)
    session.request(4, "fs/write_text_file", {"path": "/work/a.txt", "content": "new"})
    session.request(5, "fs/write_text_file", {"path": "/work/b.txt", "content": "new"})
    assert session.served == [1, 4]
    assert session.question[1]["path"] == "/work/b.txt"
    session.answer(False)
    session.update(call_id, status="completed")
    session.request(6, "fs/write_text_file", {"path": "/work/a.txt", "content": "late"})
    assert session.question[1]["content"] == "late"


@pytest.mark.parametrize("status", ["pending", "in_progress"])
def test_gemini_is_permitted_the_command_of_its_question(status: str) -> None:
    rules = Policy([Rule(tool="run_shell_command", when={"command": "rm *"}, decide="deny")])
    session = Session(ToolGrant("run_shell_command", True), policy=rules, profile=agent_profile(verbatim=True), asks=True)
    call_id = "run_shell_command__run_shell_command_1_0"
    session.call(call_id, kind="execute", status=status, title="git status")
    session.ask(1, call_id, kind="execute", title="rm -rf x")
    assert (session.granted(1), session.audit[-1]) == (False, ("denied", "policy[0]", "rm -rf x"))


@pytest.mark.parametrize("params", [{"command": 7}, {"command": "id", "args": "-a"}, {"command": "id", "env": [{"name": "A"}]}])
def test_malformed_terminal_is_an_error(params: Json) -> None:
    session = granted_call(STATUS)
    response = session.request(2, "terminal/create", params)
    assert response is not None and "bad parameters" in response["error"]["message"]
    assert not session.served


def test_agent_cannot_use_the_id_of_a_client_method() -> None:
    session = executing()
    session.request(2, "terminal/create", {"command": "id"})
    session.call("service_1", kind="execute", status="in_progress", rawInput=STATUS)
    session.update("service_1", status="completed")
    session.answer(True)
    assert session.served == [2]
    names = [(event.id, event.status) for event in session.seen if isinstance(event, ToolCall)]
    assert ("service_1_2", "completed") in names and ("service_1", "completed") not in names


# -- any sequence of messages ----------------------------------------------------------------------------------------------


class AnyAgent:
    """Sends random messages about a few calls, with inputs that never repeat unless it repeats them on purpose."""

    def __init__(self, seed: int, session: Session) -> None:
        self.random, self.session, self.inputs, self.requests = random.Random(seed), session, [STATUS], 0
        self.raw: dict[str, Json] = {}
        self.asked: dict[int, str] = {}
        self.terminals: dict[int, Json] = {}

    def step(self) -> None:
        actions = [self.report, self.report, self.ask, self.ask, self.create, self.request_tool, self.answer, self.answer]
        self.random.choice(actions)()

    def some_input(self) -> Json:
        if self.random.random() < 0.5:
            program = self.random.choice(["make", "rm", "git status"])
            self.inputs.append({"command": f"{program} {len(self.inputs)}", **self.random.choice([{}, {}, LABEL])})
        return self.random.choice(self.inputs[-4:])

    def some_fields(self, call_id: str) -> Json:
        given = self.some_input() if self.random.random() < 0.7 else None
        if given is not None:
            self.raw[call_id] = given
        fields = {"kind": self.random.choice(["execute", "other", "think", None]), "rawInput": given}
        fields["title"] = self.random.choice(["Run", "git status", "mcp__portico__lookup"])
        return {name: value for name, value in fields.items() if value is not None}

    def some_call(self) -> str:
        return self.random.choice(["c1", "c2", "c1_2", "service_1"])

    def report(self) -> None:
        call_id, status = self.some_call(), self.random.choice(["pending", "in_progress", "in_progress", "completed"])
        self.session.call(call_id, status=status, **self.some_fields(call_id))

    def ask(self) -> None:
        call_id = self.some_call()
        self.requests += 1
        self.asked[self.requests] = call_id
        self.session.ask(self.requests, call_id, **self.some_fields(call_id))

    def create(self) -> None:
        self.requests += 1
        self.terminals[self.requests] = params = {"command": self.some_input()["command"]}
        self.session.request(self.requests, "terminal/create", params)

    def request_tool(self) -> None:
        self.requests += 1
        self.session.requested(ToolRequest(f"r{self.requests}", "lookup", {"n": self.requests}))

    def answer(self) -> None:
        if self.session.pending:
            self.session.answer(self.random.random() < 0.6)


@pytest.mark.parametrize("trust", [True, False])
@pytest.mark.parametrize("policy", [RULES, None], ids=["rules", "no rules"])
@pytest.mark.parametrize("seed", range(12))
def test_only_what_was_decided_about_runs(seed: int, policy: Policy | None, trust: bool) -> None:
    session = Session(ToolGrant("execute", trust), ToolGrant("other"), policy=policy, tools=("lookup",))
    agent = AnyAgent(seed, session)
    granted: dict[int, Json | None] = {}
    for _ in range(40):
        agent.step()
        for request_id in [one for one in agent.asked if one not in granted and session.granted(one)]:
            granted[request_id] = agent.raw.get(agent.asked[request_id])
    while session.pending:
        session.answer(False)
    allowed = [d.arguments for d in session.enforcer.decisions if d.outcome in ("allowed", "granted", "trusted")]
    assert [given for given in granted.values() if given is not None and given not in allowed] == []
    lines = [given.get("command", given.get("title")) for given in allowed if given]
    assert {agent.terminals[int(one)]["command"] for one in session.served} <= set(lines)
    assert policy is None or not [line for line in lines if line and line.startswith("rm")]


# -- with an agent's process -----------------------------------------------------------------------------------------------


def created_files(folder: str) -> list[str]:
    return [path.name for path in Path(folder).glob("*.txt")]


async def test_agent_runs_what_the_client_and_the_rules_have_seen(tmp_path: Path) -> None:
    agent = {**small_agent(tmp_path), "policy": [{"tool": "*", "when": {"command": "rm *"}, "decide": "deny"}]}
    async with run_gateway(gateway_config(tmp_path, agents={"small": agent})) as running:
        grants = [{"name": "execute"}]
        made = await create_session(running.client, "small", "switch touch asked.txt", grants=grants)
        answers = []
        for granted in (True, False):
            call = made["messages"][-1]["content"][-1]
            answers.append((call["name"], call["input"]["command"]))
            permission = {"role": "tool_permission", "toolCallId": call["toolCallId"], "granted": granted}
            made |= await send_turn(running.client, made["sessionId"], permission)
        assert answers == [("execute", "touch asked.txt"), ("execute", "touch besides.txt")]
        assert made["messages"][-1]["content"].startswith("refused")
        last = await send_turn(running.client, made["sessionId"], {"role": "user", "content": "switch rm -rf asked.txt"})
        assert last["messages"][-1]["content"] == "not run"
        assert created_files(agent["cwd"]) == ["asked.txt"]
    with closing(sqlite3.connect(tmp_path / "data" / "portico.db")) as store:
        rows = store.execute("SELECT outcome, by, arguments FROM audit ORDER BY id").fetchall()
    found = [(outcome, by, json.loads(arguments)["command"]) for outcome, by, arguments in rows]
    assert found == [
        ("asked", "default", "touch asked.txt"), ("granted", "client", "touch asked.txt"),
        ("asked", "default", "touch besides.txt"), ("refused", "client", "touch besides.txt"),
        ("denied", "policy[0]", "rm -rf asked.txt"),
    ]  # fmt: skip


async def test_call_between_two_runs_is_denied_and_audited_although_its_tool_is_trusted(tmp_path: Path) -> None:
    async with run_gateway(gateway_config(tmp_path, agents={"small": small_agent(tmp_path)})) as running:
        work = Path(small_agent(tmp_path)["cwd"])
        grants = [{"name": "edit", "trust": True}]
        made = await create_session(running.client, "small", f"linger {work / 'unseen.txt'}", grants=grants)
        assert made["stopReason"] == "end_turn"
        audit = running.gateway.store.audit

        async def audited() -> bool:
            return bool(await audit.newest(10, made["sessionId"]))

        await wait_until(audited)
        (row,) = await audit.newest(10, made["sessionId"])
        assert (row.outcome, row.by, row.tool, row.run_id) == ("denied", "default", "edit", "")
        assert "unseen.txt" in row.arguments and "no run is active" in str(row.reason)
        assert not (work / "unseen.txt").exists()
        # The session goes on.
        again = await send_turn(running.client, made["sessionId"], {"role": "user", "content": "say more"})
        assert again["stopReason"] == "end_turn"


@pytest.mark.parametrize(
    "fields",
    [{"kind": "execute", "rawInput": STATUS}, {"kind": "edit", "rawInput": {"path": "/work/b.txt", "content": "c"}}],
)
@pytest.mark.parametrize("by", ["client", "rule"])
def test_what_an_agent_asks_after_a_refused_change_is_cancelled(by: str, fields: Json) -> None:
    session = executing(policy=RULES if by == "rule" else None)
    session.call("c1", kind="execute", status="pending", rawInput={"command": "ls"})
    session.ask(1, "c1")
    session.answer(True)
    # It runs another command than the one that was granted.
    session.update("c1", status="in_progress", rawInput=REMOVE)
    if by == "client":
        assert session.question == ("execute", REMOVE)
        session.answer(False)
    assert session.cancelled
    session.call("c2", status="pending", **fields)
    assert session.ask(2, "c2", **fields) is not None
    response = session.response(2)
    assert response is not None and response["result"]["outcome"] == {"outcome": "cancelled"}
    assert session.pending == () or by == "rule"
    session.pass_on(session.agent.send({"id": session.prompt_id, "result": {"stopReason": "cancelled"}}))
    assert isinstance(session.seen[-1], SessionEnd) and session.seen[-1].stop_reason == "cancelled"
