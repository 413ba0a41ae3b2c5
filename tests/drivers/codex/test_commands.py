"""The slash commands of a session of codex. The lines of the CLI are those of codex 0.169.0."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from drivers.codex.commands import commands_of
from drivers.codex.driver import CodexDriver
from drivers.contract.agent import Prompt
from drivers.contract.agent_specs import SessionPermissions, SessionSpec
from drivers.contract.codec import Codec
from drivers.contract.driver_info import SLASH_OPTION, ToolGrant
from drivers.contract.events import (
    AgentToken,
    Commands,
    Compacted,
    Error,
    MessageEnd,
    ModeChanged,
    OutputEvent,
    SessionEnd,
    Title,
)
from drivers.contract.messages import TextBlock
from tests.drivers.codex.test_driver import SPEC, opened, written

SKILLS = {
    "data": [
        {
            "cwd": "/nowhere/work",
            "errors": [],
            "skills": [
                {"name": "greet", "description": "Greets.", "enabled": True, "path": "/s/SKILL.md", "scope": "user"},
                {"name": "off", "description": "Is off.", "enabled": False, "path": "/o/SKILL.md", "scope": "user"},
                {
                    "name": "review-agent",
                    "description": "Perform a read-only, defect-first review of a specified code change.",
                    "interface": {"shortDescription": "Find actionable bugs in code changes"},
                    "enabled": True,
                    "path": "/r/SKILL.md",
                    "scope": "system",
                },
            ],
        }
    ]
}
ON = replace(SPEC, options={"slash_commands": "on"})


def receive(codec: Codec, **message: Any) -> list[OutputEvent]:
    events = codec.receive(json.dumps(message).encode())
    events += codec.pending
    codec.pending.clear()
    return events


def ready(spec: SessionSpec | None = None, *, on: bool = True) -> Codec:
    """A codec whose thread is open."""
    codec, asked = opened(spec or (ON if on else SPEC))
    receive(codec, id=asked["id"], result={"thread": {"id": "T"}, "model": "m"})
    assert codec.phase == "ready"
    return codec


def prompted(*content: str, on: bool = True) -> tuple[Codec, dict[str, Any]]:
    """A codec that has taken a prompt, and the request that it has sent for it."""
    codec = ready(on=on)
    written(codec)
    blocks = tuple(TextBlock(text=text) for text in content)
    codec.prompt(Prompt(content[0] if len(content) == 1 else blocks))
    (request,) = written(codec)
    return codec, request


def test_commands_of_a_session_are_reported_when_they_change() -> None:
    codec = ready()
    (asked,) = written(codec)
    assert (asked["method"], asked["params"]) == ("skills/list", {"cwds": ["/nowhere/work"]})
    [reported] = receive(codec, id=asked["id"], result=SKILLS)
    assert isinstance(reported, Commands)
    names = [command.name for command in reported.commands]
    own = ["compact", "plan", "review", "review-branch", "review-commit", "status", "mcp", "skills", "rename"]
    assert names == [*own, "$greet", "$review-agent"]
    assert reported.commands[-1].description == "Find actionable bugs in code changes"
    assert receive(codec, method="skills/changed", params={}) == []
    (again,) = written(codec)
    assert receive(codec, id=again["id"], result=SKILLS) == []


def test_no_commands_are_listed_where_a_slash_is_text() -> None:
    codec = ready(on=False)
    assert written(codec) == []
    assert receive(codec, method="skills/changed", params={}) == [] and written(codec) == []


@pytest.mark.parametrize("result", [None, {}, {"data": None}, {"data": [None, {"skills": [None, {"name": 1}]}]}])
def test_commands_without_skills(result: Any) -> None:
    assert [command.name for command in commands_of(result)] == ["compact", "plan", "status", "mcp", "skills", "rename"]


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("/review", "$review-agent Review the current changes: staged, unstaged and untracked files."),
        ("/review  only a.py ", "$review-agent only a.py"),
        ("/review-branch main", "$review-agent Review the changes of the current branch since it left the branch main."),
        ("/review-commit abc", "$review-agent Review the changes of the commit abc."),
        ("/$greet me", "$greet me"),
        ("/$greet", "$greet"),
        # no commands
        ("/", "/"),
        ("/$", "/$"),
        ("/init", "/init"),
        ("/compacted", "/compacted"),
        (" /compact", " /compact"),
        ("compact", "compact"),
    ],
)
def test_text_for_the_model(prompt: str, text: str) -> None:
    _, request = prompted(prompt)
    assert (request["method"], request["params"]["input"][0]["text"]) == ("turn/start", text)
    _, request = prompted(prompt, on=False)
    assert request["params"]["input"][0]["text"] == prompt


def test_content_behind_a_command_is_kept() -> None:
    _, request = prompted("/$greet", "a file")
    assert [part["text"] for part in request["params"]["input"]] == ["$greet", "a file"]


def test_compact() -> None:
    codec, request = prompted("/compact")
    assert (request["method"], request["params"]) == ("thread/compact/start", {"threadId": "T"})
    assert receive(codec, id=request["id"], result={}) == []
    receive(codec, method="turn/started", params={"threadId": "T", "turn": {"id": "t1"}})
    item = {"type": "contextCompaction", "id": "i"}
    events = receive(codec, method="item/started", params={"threadId": "T", "turnId": "t1", "item": item})
    events += receive(codec, method="item/completed", params={"threadId": "T", "turnId": "t1", "item": item})
    events += receive(codec, method="turn/completed", params={"threadId": "T", "turn": {"id": "t1", "status": "completed"}})
    assert events == [Compacted(), SessionEnd(exit_code=0)]
    assert codec.phase == "ready"


@pytest.mark.parametrize("command", ["/compact", "/rename a", "/mcp", "/skills"])
def test_refused_command_ends_the_run_with_the_reason(command: str) -> None:
    codec, request = prompted(command)
    events = receive(codec, id=request["id"], error={"code": -32600, "message": "not now"})
    assert events == [Error(message="codex: not now"), SessionEnd(exit_code=1, stop_reason="error")]


def test_rename() -> None:
    codec, request = prompted("/rename  the new\ntitle ")
    assert (request["method"], request["params"]) == ("thread/name/set", {"threadId": "T", "name": "the new title"})
    assert receive(codec, id=request["id"], result={}) == [Title(text="the new title"), SessionEnd(exit_code=0)]
    assert codec.phase == "ready"


@pytest.mark.parametrize("command", ["/rename", "/review-branch", "/review-commit "])
def test_missing_argument_is_named(command: str) -> None:
    codec = ready()
    written(codec)
    codec.prompt(Prompt(command))
    assert written(codec) == []
    error, end = codec.pending
    assert isinstance(error, Error) and f"{command.strip()} needs a" in error.message
    assert end == SessionEnd(exit_code=1, stop_reason="error")
    assert codec.phase == "ready"


def said(text: str) -> list[OutputEvent]:
    return [AgentToken(text=text), MessageEnd(), SessionEnd(exit_code=0)]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (SKILLS, "- `$greet`: Greets.\n- `$review-agent`: Find actionable bugs in code changes"),
        ({"data": []}, "There are no skills."),
        ({"data": [{"skills": [{"name": "bare"}]}]}, "- `$bare`"),
    ],
)
def test_skills(result: Any, text: str) -> None:
    codec, request = prompted("/skills")
    assert (request["method"], request["params"]) == ("skills/list", {"cwds": ["/nowhere/work"]})
    assert receive(codec, id=request["id"], result=result) == said(text)
    assert codec.phase == "ready"


def test_mcp() -> None:
    codec, request = prompted("/mcp")
    assert (request["method"], request["params"]["threadId"]) == ("mcpServerStatus/list", "T")
    servers = [
        {"name": "small", "tools": {"secret": {}, "other": {}}, "toolsError": None, "runtimeStatus": "connected"},
        {"name": "broken", "tools": {}, "toolsError": "cannot start"},
        {"name": "users", "tools": {}, "toolsError": None, "runtimeStatus": "disabled"},
    ]
    assert receive(codec, id=request["id"], result={"data": servers}) == said("- small: other, secret\n- broken: cannot start")
    codec, request = prompted("/mcp")
    assert receive(codec, id=request["id"], result={"data": []}) == said("There are no MCP servers.")


@pytest.mark.parametrize("account", [{"type": "chatgpt", "email": "a@example.org", "planType": "plus"}, {"type": "apiKey"}, None])
def test_status_names_the_settings_and_no_address(account: Any) -> None:
    codec, request = prompted("/status")
    assert request["method"] == "account/read"
    token, _, end = receive(codec, id=request["id"], result={"account": account})
    assert isinstance(token, AgentToken) and end == SessionEnd(exit_code=0)
    assert "**Model:** m" in token.text and "**Folder:** /nowhere/work" in token.text and "**Sandbox:** " in token.text
    assert "**Account:** " in token.text and "example.org" not in token.text


def test_plan_switches_to_plan_mode_and_back() -> None:
    options = {"slash_commands": "on", "mode": "workspace"}
    codec = ready(
        replace(
            ON,
            options=options,
            tools=(ToolGrant("apply_patch"),),
            permissions=SessionPermissions(frozenset({"workspace", "plan"})),
        )
    )
    written(codec)
    for mode in ("plan", "workspace"):
        codec.prompt(Prompt("/plan"))
        assert codec.pending == [ModeChanged(mode=mode), SessionEnd(exit_code=0)] and written(codec) == []
        codec.pending.clear()
    codec.prompt(Prompt("/plan a tower"))
    [request] = written(codec)
    assert codec.pending == [ModeChanged(mode="plan")]
    assert request["params"]["collaborationMode"]["mode"] == "plan" and request["params"]["input"][0]["text"] == "a tower"


@pytest.mark.parametrize("locked", ["workspace", "plan", "read-only"])
def test_plan_sets_no_mode_that_the_session_may_not_have(locked: str) -> None:
    codec = ready(
        replace(ON, options={"slash_commands": "on", "mode": locked}, permissions=SessionPermissions(frozenset({locked})))
    )
    written(codec)
    codec.prompt(Prompt("/plan"))
    assert isinstance(codec.pending[0], Error) and written(codec) == []


def test_plan_needs_a_mode_of_the_clis_own() -> None:
    codec = ready()
    written(codec)
    codec.prompt(Prompt("/plan"))
    error, end = codec.pending
    assert isinstance(error, Error) and "option mode" in error.message and end == SessionEnd(exit_code=1, stop_reason="error")


def test_slash_commands_are_an_option_of_the_driver() -> None:
    [option] = [option for option in CodexDriver().info().options if option.name == SLASH_OPTION]
    assert option.default == "off" and "on" in option.choices


@pytest.mark.parametrize("command", ["/status", "/mcp", "/skills", "/rename A title"])
def test_an_interrupt_ends_a_command_that_the_cli_does_not_answer(command: str) -> None:
    codec, asked = prompted(command)
    assert codec.interrupt()
    assert (codec.pending, codec.phase) == ([SessionEnd(exit_code=130, stop_reason="cancelled")], "ready")
    codec.pending.clear()
    assert written(codec) == []
    # An answer that comes late is none of the next run.
    codec.prompt(Prompt(command))
    (again,) = written(codec)
    result: dict[str, Any] = {"account": None, "data": []}
    assert receive(codec, id=asked["id"], result=result) == []
    assert codec.phase == "running"
    assert receive(codec, id=again["id"], result=result)[-1] == SessionEnd(exit_code=0)
