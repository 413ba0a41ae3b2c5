"""The acp driver against a small agent made with the protocol's official package, under the real process runner."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from drivers.acp import AcpDriver
from drivers.agent import CliAgent
from drivers.base import (
    AgentSpec,
    AgentUnavailable,
    DriverError,
    Limits,
    PermissionReply,
    Prompt,
    ResumeFailed,
    SessionSpec,
    TaskSpec,
    ToolGrant,
)
from drivers.events import Awaiting, OutputEvent, SessionEnd, ToolCall, ToolResult
from drivers.messages import ImageBlock, TextBlock, UserMessage
from drivers.process import Spawner
from drivers.process_tree import living, marked

ROOT = Path(__file__).parents[2]
LIMITS = Limits(start=60, idle=60, total=120, grace=5)
ARGS = ("-m", "tests.acp_agent")
MARK = f"acptest{os.getpid()}"
PIXEL = "data:image/png;base64,iVBORw0KGgo="

Open = Callable[..., Awaitable[CliAgent]]


def environment(tmp_path: Path, flags: str = "") -> dict[str, str]:
    sessions = tmp_path / "sessions"
    sessions.mkdir(exist_ok=True)
    (tmp_path / "work").mkdir(exist_ok=True)
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "ACP_AGENT_SESSIONS": str(sessions),
        "ACP_AGENT_FLAGS": flags,
    }


@pytest.fixture
async def open_agent(tmp_path: Path) -> AsyncIterator[Open]:
    """Opens agents with the given options and grants ("execute!" is a trusted one); closes them after the test."""
    opened: list[CliAgent] = []

    async def start(*grants: str, flags: str = "", resume: str | None = None, **fields: Any) -> CliAgent:
        tools = tuple(ToolGrant(grant.rstrip("!"), grant.endswith("!")) for grant in grants)
        env = environment(tmp_path, flags)
        options = fields.pop("options", {})
        spec = SessionSpec(sys.executable, tmp_path / "work", env, ARGS, options, tools=tools, resume=resume, **fields)
        agent = await AcpDriver().open(spec, Spawner(MARK), LIMITS)
        assert isinstance(agent, CliAgent)
        opened.append(agent)
        return agent

    yield start
    for agent in opened:
        await agent.close()
    assert not living(marked(MARK))


async def heard(agent: CliAgent, prompt: str | Prompt | None = None) -> list[OutputEvent]:
    """What comes of a prompt, until the client has to act or the run is over."""
    if prompt is not None:
        await agent.prompt(prompt if isinstance(prompt, Prompt) else Prompt(prompt))
    events: list[OutputEvent] = []
    while not events or not isinstance(events[-1], Awaiting | SessionEnd):
        events += await asyncio.wait_for(agent.receive(), 60)
    return events


def sleepers() -> list[psutil.Process]:
    return [process for process in living(marked(MARK)) if process.name() == "sleep"]


def said(events: list[OutputEvent]) -> str:
    return "".join(event.text for event in events if event.kind == "agent_token")


def end(events: list[OutputEvent]) -> tuple[int, str]:
    assert [isinstance(event, SessionEnd) for event in events].count(True) == 1
    last = events[-1]
    assert isinstance(last, SessionEnd)
    return last.exit_code, last.stop_reason


def result(events: list[OutputEvent]) -> ToolResult:
    (found,) = (event for event in events if isinstance(event, ToolResult))
    return found


async def test_text_thinking_and_usage(open_agent: Open) -> None:
    events = await heard(await open_agent(), "say hello")
    assert [event.kind for event in events] == ["native_session", "thinking", "agent_token", "usage", "session_end"]
    assert said(events) == "hello"
    assert events[3].model_dump() == {"kind": "usage", "input_tokens": 10, "output_tokens": 5, "cache_read": 2, "cache_write": 0}


async def test_settings_are_the_agents_own_modes_and_options(open_agent: Open) -> None:
    agent = await open_agent(options={"mode": "wild", "model": "large", "config": "loud=true"})
    assert said(await heard(agent, "settings")) == "wild large True"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mode": "odd"}, "it has no mode 'odd'; there are calm, wild"),
        ({"model": "odd"}, "it has no model 'odd'; there are small, large"),
        ({"config": "odd=1"}, "it has no config option 'odd'; there are model, loud"),
        ({"config": "loud=1"}, "it has no value of loud '1'; there are true, false"),
        ({"config": "loud"}, "write ID=VALUE"),
    ],
)
async def test_a_setting_that_is_not_offered_is_refused(open_agent: Open, options: dict[str, str], told: str) -> None:
    with pytest.raises(AgentUnavailable, match=told):
        await open_agent(options=options)


async def test_a_session_goes_on_in_another_process(open_agent: Open) -> None:
    for flags in ("", "noresume"):
        first = await open_agent(flags=flags)
        await heard(first, "say one")
        await first.close()
        second = await open_agent(flags=flags, resume=first.native_id)
        events = await heard(second, "recall")
        assert said(events) == "say one | recall"
        assert not any("replay" in event.encode().decode() for event in events)


async def test_a_session_that_cannot_go_on_is_told_apart(open_agent: Open) -> None:
    with pytest.raises(ResumeFailed, match="Resource not found"):
        await open_agent(resume="nothing")
    with pytest.raises(ResumeFailed, match="cannot resume"):
        await open_agent(flags="noresume noload", resume="nothing")
    with pytest.raises(AgentUnavailable, match="start a new session"):
        await open_agent(history=(UserMessage(content="hello"),))


async def test_the_agent_is_told_when_its_session_ends(open_agent: Open, tmp_path: Path) -> None:
    agent = await open_agent()
    await heard(agent, "say one")
    await agent.close()
    assert (tmp_path / "sessions" / f"{agent.native_id}.closed").exists()


async def test_a_log_in_is_asked_for_once(open_agent: Open) -> None:
    with pytest.raises(AgentUnavailable, match=r"not logged in.*auth_method to one of password"):
        await open_agent(flags="login")
    with pytest.raises(AgentUnavailable, match="did not log in by 'password': wrong password"):
        await open_agent(flags="nologin", options={"auth_method": "password"})
    assert said(await heard(await open_agent(flags="login", options={"auth_method": "password"}), "say in")) == "in"


async def test_files_are_read_in_the_folder_only(open_agent: Open, tmp_path: Path) -> None:
    agent = await open_agent("read!")
    (tmp_path / "work" / "file.txt").write_text("content")
    events = await heard(agent, f"read {tmp_path / 'work' / 'file.txt'}")
    assert (result(events).output, result(events).is_error) == ("content", False)
    events = await heard(agent, "read /etc/passwd")
    assert result(events).is_error
    assert "not in the working folder" in said(events)


@pytest.mark.parametrize("granted", [True, False])
async def test_an_edit_waits_for_the_client(open_agent: Open, tmp_path: Path, granted: bool) -> None:
    agent, file = await open_agent("edit"), tmp_path / "work" / "new.txt"
    events = await heard(agent, f"write {file}")
    call = next(event for event in events if isinstance(event, ToolCall))
    assert (call.name, call.status) == ("edit", "started")
    assert "+written" in call.input["content"]  # type: ignore[index]
    assert not file.exists()
    await agent.reply(PermissionReply("w1", granted, "not today"))
    events = await heard(agent)
    assert said(events) == ("written" if granted else "not written")
    assert file.exists() is granted
    assert result(events).is_error is not granted
    if not granted:
        assert result(events).output == "not today"


@pytest.mark.parametrize(("grants", "told"), [(("edit!",), "written"), ((), "refused: This tool is not enabled")])
async def test_what_is_not_asked_for_goes_by_the_grants(
    open_agent: Open, tmp_path: Path, grants: tuple[str, ...], told: str
) -> None:
    agent, file = await open_agent(*grants), tmp_path / "work" / "new.txt"
    events = await heard(agent, f"sneak {file}")
    assert file.exists() is bool(grants)
    assert said(events).startswith(told)


@pytest.mark.parametrize("granted", [True, False])
async def test_a_service_that_was_not_asked_for_waits_for_the_client(open_agent: Open, tmp_path: Path, granted: bool) -> None:
    agent, file = await open_agent("edit"), tmp_path / "work" / "new.txt"
    events = await heard(agent, f"sneak {file}")
    waiting = events[-1]
    assert isinstance(waiting, Awaiting)
    assert not file.exists()
    await agent.reply(PermissionReply(waiting.calls[0].id, granted))
    events = await heard(agent)
    assert file.exists() is granted
    assert result(events).is_error is not granted


async def test_a_command_in_a_terminal(open_agent: Open, tmp_path: Path) -> None:
    agent = await open_agent("execute!")
    events = await heard(agent, "run echo hi; pwd; exit 2")
    assert (result(events).output, result(events).is_error) == (f"hi\n{tmp_path / 'work'}\n", True)
    assert said(events) == "exit code 2"


async def test_a_denied_command_does_not_run(open_agent: Open, tmp_path: Path) -> None:
    agent = await open_agent("execute")
    events = await heard(agent, "run touch made.txt")
    await agent.reply(PermissionReply("x1", False))
    events = await heard(agent)
    assert said(events) == "not run"
    assert not (tmp_path / "work" / "made.txt").exists()


async def test_a_tool_that_is_not_listed_does_not_run(open_agent: Open, tmp_path: Path) -> None:
    events = await heard(await open_agent("read"), "run touch made.txt")
    assert [event.status for event in events if isinstance(event, ToolCall)] == ["started", "failed"]
    assert "not enabled" in result(events).output
    assert not (tmp_path / "work" / "made.txt").exists()


async def test_two_permissions_at_once_are_asked_one_by_one(open_agent: Open) -> None:
    agent = await open_agent("execute")
    events = await heard(agent, "both")
    for call_id, granted in (("b1", True), ("b2", False)):
        waiting = events[-1]
        assert isinstance(waiting, Awaiting)
        assert [call.id for call in waiting.calls] == [call_id]
        await agent.reply(PermissionReply(call_id, granted))
        events = await heard(agent)
    assert said(events) == "both: [True, False]"
    assert [(event.id, event.status) for event in events if isinstance(event, ToolCall)] == [
        ("b2", "failed"),
        ("b1", "completed"),
    ]


async def test_an_interrupt_in_text_and_while_asking(open_agent: Open) -> None:
    agent = await open_agent("execute")
    await agent.prompt(Prompt("wait here"))
    while not said(list(await agent.receive())):
        pass
    await agent.interrupt()
    assert end(await heard(agent)) == (130, "cancelled")
    await heard(agent, "run sleep 300")
    await agent.interrupt()
    assert end(await heard(agent)) == (130, "cancelled")
    assert said(await heard(agent, "say still here")) == "still here"


async def test_an_interrupt_ends_a_command(open_agent: Open) -> None:
    agent = await open_agent("execute!")
    running = asyncio.create_task(heard(agent, "run echo $$ > pid; exec sleep 300"))
    for _ in range(3000):
        if sleepers():
            break
        await asyncio.sleep(0.01)
    await agent.interrupt()
    assert end(await running) == (130, "cancelled")
    assert not sleepers()


async def test_what_has_no_event_of_its_own_is_shown(open_agent: Open) -> None:
    events = await heard(await open_agent(), "plan")
    assert [event.kind for event in events] == ["native_session", "stdout", "agent_token", "usage", "session_end"]
    assert '"sessionUpdate":"plan"' in events[1].line  # type: ignore[union-attr]
    assert said(events) == "planned"


@pytest.mark.parametrize(
    ("prompt", "ending", "told"),
    [
        ("stop max_tokens", (1, "max_tokens"), ""),
        ("stop refusal", (1, "refusal"), ""),
        ("stop max_turn_requests", (1, "error"), "stopped at its limit of model requests"),
        ("fail no model", (1, "error"), "Internal error: no model (code -32603)"),
        ("exit", (7, "error"), "ended in the middle of the run, with exit code 7"),
    ],
)
async def test_how_runs_end(open_agent: Open, prompt: str, ending: tuple[int, str], told: str) -> None:
    events = await heard(await open_agent(), prompt)
    assert end(events) == ending
    assert told in "".join(event.message for event in events if event.kind == "error")


async def test_a_request_that_is_not_known_is_answered(open_agent: Open) -> None:
    assert said(await heard(await open_agent(), "elicit")) == "answered: -32601"


async def test_an_image(open_agent: Open) -> None:
    prompt = Prompt((TextBlock(text="say seen"), ImageBlock(url=PIXEL)))
    assert said(await heard(await open_agent(), prompt)) == "saw 1 image of 12 charactersseen"
    agent = await open_agent(flags="noimage")
    events = await heard(agent, prompt)
    assert end(events) == (1, "error")
    assert said(await heard(agent, "say fine")) == "fine"


async def test_a_task(tmp_path: Path) -> None:
    for allow in (False, True):
        options = {"task_permissions": "allow" if allow else "reject"}
        spec = TaskSpec(sys.executable, tmp_path / "work", environment(tmp_path), ARGS, options, task="run touch made.txt")
        agent = await AcpDriver().execute(spec, Spawner(MARK), LIMITS)
        assert isinstance(agent, CliAgent)
        events = await heard(agent)
        await agent.close()
        assert end(events) == (0, "end_turn")
        assert (tmp_path / "work" / "made.txt").exists() is allow


async def test_the_probe(tmp_path: Path) -> None:
    def spec(flags: str = "", program: str = sys.executable) -> AgentSpec:
        return AgentSpec(program, tmp_path / "work", environment(tmp_path, flags), ARGS)

    found = await AcpDriver().probe(spec(), Spawner(MARK))
    assert (found.version, found.problem, found.logged_in, found.models) == ("1.2.3", None, True, ("small", "large"))
    found = await AcpDriver().probe(spec("login"), Spawner(MARK))
    assert (found.version, found.logged_in) == ("1.2.3", False)
    assert "not logged in" in (found.problem or "")
    found = await AcpDriver().probe(spec(program="/bin/false"), Spawner(MARK))
    assert (found.version, found.logged_in) == (None, None)
    assert "ended before it took a prompt" in (found.problem or "")


@pytest.mark.parametrize(
    ("program", "told"), [("/bin/cat", "refused to start"), ("/bin/sleep", "not ready 1 s after"), ("/bin/true", "ended before")]
)
async def test_a_program_that_does_not_speak_it(tmp_path: Path, program: str, told: str) -> None:
    args = ("60",) if program == "/bin/sleep" else ()
    with pytest.raises(DriverError, match=told):
        await AcpDriver().open(SessionSpec(program, tmp_path, environment(tmp_path), args), Spawner(MARK), Limits(start=1.0))


def test_the_protocol_is_imported_when_it_is_needed() -> None:
    code = "import sys, gateway.app, gateway.cli; from drivers import registry; registry.load(); sys.exit('acp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
