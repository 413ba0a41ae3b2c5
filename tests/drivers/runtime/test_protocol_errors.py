"""A process whose output cannot be followed any further: the start or the run fails at once, and the process is ended."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from drivers.acp.codec import AcpCodec
from drivers.acp.handshake import SessionRequest
from drivers.acp.permissions import Grants
from drivers.contract.agent import Prompt
from drivers.contract.agent_specs import Limits
from drivers.contract.codec import Command, Launch
from drivers.contract.errors import AgentGone, AgentUnavailable
from drivers.contract.events import Error, OutputEvent, Stderr
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.process import Spawner
from tests.drivers.small_programs import LIMITS, OpenAgent, ask, end_of, gone, python, text_in, to_end, until
from tests.support.manual_clock import ManualClock

MALFORMED_SESSION = """
for result in ({"protocolVersion": 1}, {"sessionId": "s", "modes": {"current": "x"}}):
    print(json.dumps({"jsonrpc": "2.0", "id": read()["id"], "result": result}), flush=True)
time.sleep(600)
"""
MALFORMED_END = """
emit("native_session")
read()
emit("agent_token", text="half")
print(json.dumps({"kind": "session_end", "exit_code": "fine"}), flush=True)
emit("agent_token", text="after it")
time.sleep(600)
"""


HALF_LINE = """
emit("native_session")
read()
print('\\x1b]0;title\\x07{"kind": "session_end", "exit_co', flush=True)
time.sleep(600)
"""
KILLED = """
emit("native_session")
read()
print("the disk is full", file=sys.stderr)
print('{"kind": "session_end", "exit_co', end="", flush=True)
sys.stderr.flush()
os._exit(7)
"""
NO_MESSAGE = """
emit("native_session")
read()
print('{{"kind": "agent_token", "text": "a"}}\\n' + {last!r}, end={end!r}, flush=True)
time.sleep(600)
"""


async def test_half_a_line_ends_the_run_at_once(open_agent: OpenAgent) -> None:
    agent = await open_agent(HALF_LINE)
    began = time.monotonic()
    events = await ask(agent)
    assert time.monotonic() - began < LIMITS.idle / 2
    assert "wrote a line that is not valid JSON: " in text_of_errors(events)
    assert '"session_end", "exit_co' in text_of_errors(events)
    assert end_of(events).stop_reason == "error" and not agent.alive


async def test_half_a_line_of_a_process_that_has_ended_has_its_exit_code_and_its_standard_error(open_agent: OpenAgent) -> None:
    events = await ask(await open_agent(KILLED))
    assert '"session_end", "exit_co' in text_of_errors(events)
    assert (end_of(events).exit_code, [event.line for event in events if isinstance(event, Stderr)]) == (7, ["the disk is full"])


@pytest.mark.parametrize(
    ("last", "end"), [('[debug] sent {"kind": "session_end"}', "\n"), ('{"kind": "session_end", "exit_code": 0', "")]
)
async def test_the_error_of_a_time_limit_quotes_an_object_that_was_not_read(
    open_agent: OpenAgent, clock: ManualClock, last: str, end: str
) -> None:
    agent = await open_agent(NO_MESSAGE.format(last=last, end=end), Limits(idle=20))
    await agent.prompt(Prompt("go"))
    await until(agent, "agent_token")
    reading = asyncio.create_task(to_end(agent))
    await clock.expire(20)
    assert f"its last line has an object that could not be read: {last}" in text_of_errors(await reading)


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
async def test_the_log_has_lines_that_the_driver_does_not_know_at_debug(
    open_agent: OpenAgent, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    caplog.set_level(level, "drivers.runtime.cli_agent")
    lines = ['{"kind": "novelty", "n": 1}', "a banner"]
    code = "emit('native_session'); read()\n" + "".join(f"print({line!r}, flush=True)\n" for line in lines)
    await ask(await open_agent(code + "emit('session_end', exit_code=0)"))
    found = [record.getMessage() for record in caplog.records if "does not know" in record.getMessage()]
    expected = [f"a line that the driver of the agent does not know: {line}" for line in lines]
    assert found == (expected if level == logging.DEBUG else [])


async def test_a_malformed_response_of_the_handshake_fails_the_start_at_once(tmp_path: Path) -> None:
    command = Command(python(MALFORMED_SESSION), tmp_path, {})
    began = time.monotonic()
    with pytest.raises(AgentUnavailable, match=r'wrote a malformed response: .*"modes": {"current": "x"}'):
        await CliAgent.start(Launch(command, AcpCodec(SessionRequest(str(tmp_path)), Grants())), Spawner("test"), LIMITS)
    assert time.monotonic() - began < LIMITS.start / 2


async def test_a_malformed_end_ends_the_run_and_its_process(open_agent: OpenAgent) -> None:
    agent = await open_agent(MALFORMED_END)
    events = await ask(agent)
    end = end_of(events)
    assert (end.exit_code, end.stop_reason) == (1, "error")
    assert 'malformed session_end event: {"kind": "session_end", "exit_code": "fine"}' in text_of_errors(events)
    assert text_in(events) == "half"
    assert not agent.alive and gone(agent.pid)
    with pytest.raises(AgentGone):
        await agent.prompt(Prompt("more"))


def text_of_errors(events: list[OutputEvent]) -> str:
    return "".join(event.message for event in events if isinstance(event, Error))
