"""A process whose output cannot be followed any further: the start or the run fails at once, and the process is ended."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from drivers.acp.codec import AcpCodec
from drivers.acp.handshake import SessionRequest
from drivers.acp.permissions import Grants
from drivers.contract.agent import Prompt
from drivers.contract.codec import Command, Launch
from drivers.contract.errors import AgentGone, AgentUnavailable
from drivers.contract.events import Error, OutputEvent
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.process import Spawner
from tests.drivers.small_programs import LIMITS, OpenAgent, ask, end_of, gone, python, text_in

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
