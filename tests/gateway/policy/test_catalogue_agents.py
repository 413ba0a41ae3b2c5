"""What the profiles of agents of the catalogue change in what a client is asked: the messages are those of the real programs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drivers.acp.agent_profile import AgentProfile
from drivers.acp.app_tool_calls import names_of
from drivers.acp.catalogue_profiles import profile_of
from drivers.contract.agent import PermissionReply
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import ToolCall
from drivers.contract.tool_server import ToolRequest
from tests.gateway.policy.test_acp_calls import Session

EXECUTE, EDIT = ToolGrant("execute"), ToolGrant("edit")
TOKYO = {"location": "Tokyo"}


def session(agent: str, *grants: ToolGrant) -> Session:
    return Session(*grants, profile=profile_of(agent, AgentProfile(agent, app_tools=names_of(["get_weather"]))))


def shown(play: Session) -> list[tuple[str, str, Any]]:
    """The calls that the client has seen start."""
    return [
        (event.id, event.name, event.input) for event in play.seen if isinstance(event, ToolCall) and event.status == "started"
    ]


WHOLE = {"command": "touch a", "description": "run it", "cwd": "/work"}


@pytest.mark.parametrize("late", [False, True])
def test_opencode_asks_about_a_command_with_a_part_of_its_input(late: bool) -> None:
    play = session("opencode", EXECUTE)
    play.call("c1", title="bash", kind="execute", status="pending", rawInput={"cwd": "/work"})
    if not late:
        play.update("c1", title="touch a", kind="execute", status="in_progress", rawInput=WHOLE)
    play.ask(7, "c1", title="touch a", kind="execute", status="pending", rawInput={"command": "touch a"})
    if late:
        play.update("c1", title="touch a", kind="execute", status="in_progress", rawInput=WHOLE)
    play.answer(True)
    assert play.granted(7) is True
    assert shown(play) == [("c1", "execute", {"command": "touch a", "cwd": "/work"} if late else WHOLE)]


def test_opencode_asks_about_a_file_with_another_form_of_its_input() -> None:
    play = session("opencode", EDIT)
    written = {"filePath": "/work/a", "content": "text"}
    play.call("c1", title="write", kind="edit", status="in_progress", rawInput=written)
    play.ask(7, "c1", title="/work/a", kind="edit", rawInput={"filepath": "/work/a", "diff": "+text"})
    play.answer(True)
    assert play.granted(7) is True
    assert shown(play) == [("c1", "edit", written)]


@pytest.mark.parametrize(
    ("kind", "before", "asked"),
    [
        ("execute", {"command": "touch a"}, {"command": "rm -r b"}),
        ("edit", {"filePath": "/work/a", "content": "text"}, {"filepath": "/work/b", "diff": "+text"}),
        ("execute", {"command": "touch a"}, {"command": "touch a", "cwd": "/elsewhere"}),
    ],
)
def test_another_command_or_file_is_another_call_for_opencode_too(kind: str, before: Any, asked: Any) -> None:
    play = session("opencode", ToolGrant(kind))
    play.call("c1", title="it", kind=kind, status="in_progress", rawInput=before)
    play.ask(7, "c1", title="it", kind=kind, rawInput=asked)
    assert [call_id for call_id, _, _ in shown(play)] == ["c1", "c1_2"]
    assert play.pending == ("c1_2",)


def test_the_folder_that_opencode_has_reported_stays_in_its_question() -> None:
    play = session("opencode", EXECUTE)
    play.call("c1", title="bash", kind="execute", status="pending", rawInput={"command": "touch a", "cwd": "/elsewhere"})
    play.ask(7, "c1", title="touch a", kind="execute", rawInput={"command": "touch a"})
    assert shown(play) == [("c1", "execute", {"command": "touch a", "cwd": "/elsewhere"})]


def test_kimi_asks_before_it_reports_the_input() -> None:
    play = session("kimi", EXECUTE)
    text = {"type": "content", "content": {"type": "text", "text": '{"command": "touch a"}'}}
    play.call("1:c1", title="Bash", kind="execute", status="pending", content=[text])
    asked = {"type": "content", "content": {"type": "text", "text": "Requesting approval to Running: touch a"}}
    play.ask(7, "1:c1", title="Bash", content=[asked])
    # It comes while the client is asked.
    play.update(
        "1:c1", title="Running: touch a", kind="execute", status="in_progress", rawInput={"command": "touch a"}, content=[text]
    )
    play.answer(True)
    assert play.granted(7) is True
    assert shown(play) == [("1:c1", "execute", {"command": "touch a"})]


@pytest.mark.parametrize("asks", [True, False])
def test_a_file_of_kimi_is_asked_about_once(asks: bool) -> None:
    """It asks about a file, except in a git work tree, and then writes it by the client."""
    play = session("kimi", EDIT)
    written = {"path": "/work/a", "content": "text"}
    text = {"type": "content", "content": {"type": "text", "text": json.dumps(written)}}
    play.call("1:c1", title="Write", kind="edit", status="pending", content=[text])
    if asks:
        play.ask(7, "1:c1", title="Write", content=[{"type": "content", "content": {"type": "text", "text": "Writing /work/a"}}])
        play.answer(True)
    play.update("1:c1", title="Writing /work/a", kind="edit", status="in_progress", rawInput=written)
    assert play.request(8, "fs/write_text_file", written) is None
    if asks:
        assert (play.pending, play.served) == ((), [8])
    else:
        assert (play.question, play.served) == (("edit", written), [])
        play.answer(True)
        assert play.served == [8]


def test_a_file_of_kimi_is_refused_in_a_session_that_does_not_list_it() -> None:
    play = session("kimi", EXECUTE)
    written = {"path": "/work/a", "content": "text"}
    play.call("1:c1", title="Writing /work/a", kind="edit", status="in_progress", rawInput=written)
    refused = play.request(8, "fs/write_text_file", written)
    assert refused is not None and "not enabled" in refused["error"]["message"]
    assert play.served == []


def test_a_text_of_kimi_that_is_no_json_is_a_text() -> None:
    play = session("kimi", EXECUTE)
    text = {"type": "content", "content": {"type": "text", "text": '{"command": "tou'}}
    play.call("1:c1", title="Bash", kind="execute", status="pending", content=[text])
    play.ask(7, "1:c1", title="Bash", content=[{"type": "content", "content": {"type": "text", "text": "Running: touch a"}}])
    assert shown(play) == [("1:c1", "execute", {"title": "Bash", "content": "Running: touch a"})]


APP_CALLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen": (
        {
            "title": "get_weather (portico MCP Server)", "kind": "read", "status": "pending", "rawInput": {},
            "_meta": {"toolName": "mcp__portico__get_weather", "provenance": "mcp"},
        },
        {
            "title": '{"location":"Tokyo"}', "kind": "read", "status": "pending", "rawInput": TOKYO,
            "_meta": {"toolName": "mcp__portico__get_weather"},
        },
    ),
    "kimi": (
        {"title": "mcp__portico__get_weather", "kind": "other", "status": "pending"},
        {"title": "mcp__portico__get_weather"},
    ),
    "vibe": (
        {
            "title": "mcp_portico.get_weather", "kind": "other", "status": "in_progress", "rawInput": TOKYO,
            "_meta": {"tool_name": "mcp_portico.get_weather", "effect_kind": "tool"},
        },
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("agent", APP_CALLS)
def test_an_application_side_tool_needs_no_permission(agent: str) -> None:
    """These agents ask before they request the call."""
    play = session(agent)
    reported, asked = APP_CALLS[agent]
    play.call("c1", **reported)
    play.ask(7, "c1", **asked)
    assert play.granted(7) is True
    play.requested(ToolRequest("r1", "get_weather", TOKYO, None))
    assert shown(play) == [("c1", "get_weather", TOKYO)]


@pytest.mark.parametrize("agent", APP_CALLS)
def test_the_words_of_a_model_are_no_application_side_tool(agent: str) -> None:
    play = session(agent, EXECUTE)
    meta = {"toolName": "run_shell_command", "tool_name": "bash"}
    title = "mcp__portico__get_weather"
    play.call("c1", title="Bash" if agent == "kimi" else title, kind="execute", status="pending", _meta=meta)
    play.update("c1", title=title, kind="execute", status="in_progress", rawInput={"command": title}, _meta=meta)
    play.ask(7, "c1", **({"title": "Bash"} if agent == "kimi" else {"_meta": meta}))
    assert play.granted(7) is None
    assert play.pending


def test_a_tool_that_only_another_server_has_is_asked_about() -> None:
    play = session("qwen", ToolGrant("read"))
    meta = {"toolName": "mcp__other__get_weather"}
    play.call("c1", title="get_weather (portico MCP Server)", kind="read", status="pending", rawInput=TOKYO, _meta=meta)
    play.ask(7, "c1", title="get_weather (portico MCP Server)", kind="read", rawInput=TOKYO, _meta=meta)
    assert play.pending == ("c1",)


def test_the_title_of_a_new_call_names_the_tool_of_opencode() -> None:
    play = session("opencode", EXECUTE)
    title = "portico_get_weather"
    play.call("c1", title=title, kind="other", status="pending", rawInput={})
    play.update("c1", title=title, kind="other", status="in_progress", rawInput=TOKYO)
    play.call("c2", title="bash", kind="execute", status="pending", rawInput={})
    play.update("c2", title=title, kind="execute", status="in_progress", rawInput={"command": title})
    assert [(call_id, name) for call_id, name, _ in shown(play)] == [("c1", "get_weather"), ("c2", "execute")]
    play.ask(7, "c2", title=title, kind="execute", status="pending", rawInput={"command": title})
    assert (play.granted(7), play.questions[0]) == (None, ("execute", {"command": title}))


def test_the_title_of_a_call_that_reads_no_file_names_the_tool_of_copilot() -> None:
    play = session("copilot", ToolGrant("read"), EXECUTE)
    title = "portico-get_weather"
    play.call("c1", title=title, kind="read", status="pending", rawInput=TOKYO)
    play.call("c2", title=title, kind="read", status="pending", rawInput={"path": "/work/a"}, locations=[{"path": "/work/a"}])
    play.call("c3", title=title, kind="execute", status="in_progress", rawInput={"command": title})
    assert [(call_id, name) for call_id, name, _ in shown(play)] == [("c1", "get_weather"), ("c2", "read"), ("c3", "execute")]


@pytest.mark.parametrize("status", ["pending", "in_progress"])
def test_what_copilot_asks_about_is_none_of_the_applications_calls(status: str) -> None:
    play = session("copilot", ToolGrant("read"))
    title = "portico-get_weather"
    play.call("c1", title=title, kind="read", status=status, rawInput=TOKYO)
    play.ask(7, "c1", title=title, kind="read", status="pending", rawInput=TOKYO)
    assert (play.granted(7), play.questions[0]) == (None, ("read", TOKYO))
    play.agent.codec.reply(PermissionReply(play.pending[0], True))
    assert play.granted(7) is True


def test_the_profile_of_an_agent_that_nothing_is_known_of_is_the_general_one() -> None:
    general = AgentProfile("any")
    assert profile_of("goose", general) is general
