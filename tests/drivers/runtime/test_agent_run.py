"""A run of an agent over a real process: its events, its end, and what remains after it."""

from __future__ import annotations

import asyncio

import pytest

from drivers.contract.agent import PermissionReply, Prompt, ToolReply
from drivers.contract.errors import AgentGone
from drivers.contract.events import AgentToken, OutputEvent, SessionEnd, Stdout
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.pipes import DRAIN_SECONDS
from tests.drivers.small_programs import OpenAgent, ask, end_of, gone, shown, text_in, to_end, until
from tests.support.manual_clock import ManualClock

ECHOES = """
session_open = emit("native_session", native_id="n-1", model="m")
while True:
    asked = read()
    emit("agent_token", text=asked["content"])
    emit("session_end", exit_code=0)
"""


async def test_a_run_after_the_other_in_one_process(open_agent: OpenAgent) -> None:
    agent = await open_agent(ECHOES)
    assert agent.native_id == "n-1" and agent.alive
    pid = agent.pid
    assert shown(await ask(agent, "one")) == [
        {"kind": "native_session", "native_id": "n-1", "model": "m"},
        {"kind": "agent_token", "text": "one"},
        {"kind": "session_end", "exit_code": 0, "stop_reason": "end_turn"},
    ]
    assert text_in(await ask(agent, "two")) == "two"
    assert agent.pid == pid and not gone(pid)


async def test_the_duration_counts_from_the_prompt(open_agent: OpenAgent, clock: ManualClock) -> None:
    agent = await open_agent("emit('native_session'); read(); read(); emit('session_end', exit_code=0, duration_ms=99_999_999)")
    await clock.advance(50)
    await agent.prompt(Prompt("go"))
    await clock.advance(3)
    await agent.steer(Prompt("end"))
    assert end_of(await to_end(agent)).duration_ms == 3000


async def test_lines_that_are_no_events_are_stdout(open_agent: OpenAgent) -> None:
    agent = await open_agent(
        "print('hello'); emit('native_session'); read(); print('a\\n\\n{}'); emit('session_end', exit_code=0)"
    )
    events = await ask(agent)
    assert [event.line for event in events if isinstance(event, Stdout)] == ["hello", "a", "{}"]


async def test_after_its_end_a_run_has_no_more_events(open_agent: OpenAgent) -> None:
    agent = await open_agent(
        """
emit("native_session")
for n in range(2):
    read()
    print(json.dumps({"kind": "session_end", "exit_code": 0}), "a raw line", json.dumps({"kind": "agent_token", "text": "late"}),
          json.dumps({"kind": "session_end", "exit_code": 9}), sep="\\n", flush=True)
"""
    )
    await ask(agent)
    # A late line becomes stdout; a late event does not count to the next run.
    assert shown(await ask(agent)) == [
        {"kind": "stdout", "line": "a raw line"},
        {"kind": "stdout", "line": '{"kind": "session_end", "exit_code": 9}'},
        {"kind": "session_end", "exit_code": 0, "stop_reason": "end_turn"},
    ]


@pytest.mark.parametrize(("crash", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9), ("sys.exit(0)", 1)])
async def test_a_crash_in_the_middle_of_a_run(open_agent: OpenAgent, crash: str, code: int) -> None:
    agent = await open_agent(
        "emit('native_session'); read(); emit('agent_token', text='half'); "
        f"print('oh\\nno', file=sys.stderr, flush=True); {crash}"
    )
    events = await ask(agent)
    stderr = [] if crash == "sys.exit(0)" else [{"kind": "stderr", "line": "oh"}, {"kind": "stderr", "line": "no"}]
    exit_code = 0 if crash == "sys.exit(0)" else code
    assert shown(events)[1:] == [
        {"kind": "agent_token", "text": "half"},
        *stderr,
        {"kind": "error", "message": f"the agent ended in the middle of the run, with exit code {exit_code}"},
        {"kind": "session_end", "exit_code": code, "stop_reason": "error"},
    ]
    assert not agent.alive
    with pytest.raises(AgentGone):
        await agent.receive()
    with pytest.raises(AgentGone):
        await agent.prompt(Prompt("again"))


async def test_a_process_that_ends_between_runs_is_gone(open_agent: OpenAgent) -> None:
    agent = await open_agent("emit('native_session'); read(); emit('session_end', exit_code=0); sys.exit(1)")
    end_of(await ask(agent))
    with pytest.raises(AgentGone):
        while True:
            await asyncio.wait_for(agent.receive(), 60)
    assert not agent.alive


async def test_a_line_that_is_too_long_ends_the_run(open_agent: OpenAgent) -> None:
    agent = await open_agent(
        "emit('native_session'); read(); sys.stdout.write('x' * 70_000_000); sys.stdout.flush(); time.sleep(600)"
    )
    assert shown(await ask(agent))[1:] == [
        {"kind": "error", "message": "the agent wrote a line of more than 64 MiB; the run was stopped"},
        {"kind": "session_end", "exit_code": 1, "stop_reason": "error"},
    ]
    assert gone(agent.pid)


async def test_receiving_may_be_cancelled(open_agent: OpenAgent) -> None:
    agent = await open_agent(
        """
emit("native_session")
read()
for n in range(200): emit("agent_token", text=f"{n} "); time.sleep(0.002)
sys.exit(5)
"""
    )
    await agent.prompt(Prompt("go"))
    events: list[OutputEvent] = []
    waits = 0
    while not (events and events[-1].kind == "session_end"):
        try:
            events += await asyncio.wait_for(agent.receive(), 0.001)
        except TimeoutError:
            waits += 1
    assert waits > 20
    assert text_in(events) == "".join(f"{n} " for n in range(200))
    assert end_of(events).exit_code == 5


async def test_replies_reach_the_process(open_agent: OpenAgent) -> None:
    agent = await open_agent(
        """
emit("native_session")
read()
emit("tool_call", id="a", name="weather", status="started", input={})
emit("tool_call", id="b", name="shell", status="started", input={})
emit("awaiting", calls=[{"id": "a", "wants": "result"}, {"id": "b", "wants": "permission"}])
for n in range(2): emit("agent_token", text=json.dumps(read()) + "\\n")
emit("session_end", exit_code=0)
"""
    )
    await agent.prompt(Prompt("go"))
    await until(agent, "awaiting")
    await agent.reply(PermissionReply("b", "deny", reason="no"))
    await agent.reply(ToolReply("a", "18 C"))
    assert text_in(await to_end(agent)).splitlines() == [
        '{"type": "reply", "id": "b", "granted": false, "reason": "no"}',
        '{"type": "reply", "id": "a", "content": "18 C"}',
    ]


# A task: the run starts with the process and ends with it.


async def finish(agent: CliAgent) -> SessionEnd:
    return end_of(await to_end(agent))


@pytest.mark.parametrize(
    ("code", "exit_code", "stop_reason"),
    [
        ("sys.exit(0)", 0, "end_turn"),
        ("emit('session_end', exit_code=0, stop_reason='refusal')", 0, "refusal"),
        ("emit('session_end', exit_code=0); sys.exit(6)", 6, "end_turn"),
        ("emit('session_end', exit_code=4, stop_reason='error')", 4, "error"),
        ("sys.exit(6)", 6, "error"),
    ],
)
async def test_a_task_ends_as_its_process_does(open_agent: OpenAgent, code: str, exit_code: int, stop_reason: str) -> None:
    end = await finish(await open_agent(code, task="do"))
    assert (end.exit_code, end.stop_reason) == (exit_code, stop_reason)


async def test_a_task_is_on_standard_input_which_ends(open_agent: OpenAgent) -> None:
    agent = await open_agent("emit('agent_token', text=sys.stdin.read())", task="-x\n\u00e9\u0000")
    assert shown(await to_end(agent))[0] == {"kind": "agent_token", "text": "-x\n\u00e9\u0000"}


async def test_processes_that_a_task_leaves_behind_end_with_it(open_agent: OpenAgent) -> None:
    agent = await open_agent("stray()", task="do")
    events = await to_end(agent)
    (pid,) = [int(event.line) for event in events if isinstance(event, Stdout)]
    assert gone(pid)


async def test_a_task_does_not_wait_for_processes_that_it_leaves_behind(open_agent: OpenAgent, clock: ManualClock) -> None:
    agent = await open_agent("child('import time; time.sleep(600)'); emit('agent_token', text='done')", task="do")
    await clock.expire(DRAIN_SECONDS)
    events = await to_end(agent)
    assert isinstance(events[0], AgentToken)
    assert end_of(events).exit_code == 0
