"""An agent that does not read its input: what waits for it is limited, and it is refused more or ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from drivers.contract.agent import Prompt
from drivers.contract.agent_specs import Limits
from drivers.contract.client_services import ClientRequest, ClientResponse, ClientServices
from drivers.contract.errors import InputFull
from drivers.runtime import pipes
from drivers.runtime.local_client_services import MAX_AT_ONCE
from tests.drivers.small_programs import OpenAgent, StartProcess, ask, first_line, shown, text_in, to_end, until
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until

KB = 1024
BEGIN = "emit('native_session'); read(); emit('agent_token', text='begin')\n"


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "INPUT_HIGH_WATER", 512 * KB)
    monkeypatch.setattr(pipes, "MAX_INPUT", 1024 * KB)


class Files(ClientServices):
    """A client whose every file has 256 KiB."""

    def __init__(self) -> None:
        self.served = 0
        self.enough = asyncio.Event()

    def supported_methods(self) -> frozenset[str]:
        return frozenset({"fs/read_text_file"})

    def supports(self, request: ClientRequest) -> bool:
        return True

    async def serve(self, request: ClientRequest) -> ClientResponse:
        self.served += 1
        # Three exceed INPUT_HIGH_WATER. How many more are handled depends on how many requests one read returns.
        if self.served == 3:
            self.enough.set()
        return ClientResponse({"content": "x" * 256 * KB})

    def release_terminals(self) -> None:
        pass


READS = "for n in range(40): emit('client_request', id=n, method='fs/read_text_file', params={'path': os.getcwd() + '/a'})\n"


async def test_steering_is_refused_until_the_agent_has_read_earlier_messages(open_agent: OpenAgent, tmp_path: Path) -> None:
    go = tmp_path / "go"
    agent = await open_agent(
        f"{BEGIN}\nwhile not os.path.exists({str(go)!r}): time.sleep(0.005)\nread(); emit('agent_token', text='read')\n"
        "emit('agent_token', text=read()['content']); emit('session_end', exit_code=0)"
    )
    await agent.prompt(Prompt("go"))
    await until(agent, "agent_token")
    # A single message may be larger than the limit.
    assert await agent.steer(Prompt("x" * 800 * KB))
    with pytest.raises(InputFull, match="has not read more than 16 MiB of earlier messages"):
        await agent.steer(Prompt("again"))
    go.touch()
    await until(agent, "agent_token")
    assert await agent.steer(Prompt("later"))
    assert text_in(await to_end(agent)) == "later"


async def test_responses_wait_until_the_agent_has_read_those_before(open_agent: OpenAgent, tmp_path: Path) -> None:
    go, files = tmp_path / "go", Files()
    code = f"""{BEGIN}{READS}
while not os.path.exists({str(go)!r}): time.sleep(0.005)
emit('agent_token', text=' '.join(str(len(read()['result']['content'])) for _ in range(40))); emit('session_end', exit_code=0)
"""
    agent = await open_agent(code, services=files)
    await agent.prompt(Prompt("go"))
    reading = asyncio.create_task(to_end(agent))
    await asyncio.wait_for(files.enough.wait(), 60)
    await asyncio.sleep(0.1)
    # The limit, the response that exceeds it, and those that are handled at the same time.
    assert files.served <= 2 + 1 + MAX_AT_ONCE
    go.touch()
    assert text_in(await reading) == "begin" + " ".join([str(256 * KB)] * 40)


async def test_an_agent_that_does_not_read_responses_is_silent(open_agent: OpenAgent, clock: ManualClock) -> None:
    files = Files()
    agent = await open_agent(BEGIN + READS + "time.sleep(600)", Limits(idle=20, grace=30), services=files)
    await agent.prompt(Prompt("go"))
    reading = asyncio.create_task(to_end(agent))
    await wait_until(lambda: not agent._process.writable)
    # Requests that are handled at the same time begin the limit anew.
    await clock.expire_until(reading, 20)
    assert "limits.idle" in shown(await reading)[-2]["message"]


async def test_an_agent_that_never_reads_its_input_is_ended(open_agent: OpenAgent) -> None:
    """It gets an error for each request, which is short; there is no limit to their number."""
    code = "while True: emit('client_request', id='x' * 1000, method='unknown', params={})"
    events = shown(await ask(await open_agent(BEGIN + code)))
    assert events[-2:] == [
        {
            "kind": "error",
            "message": "the agent does not read its input, of which more than 1 MiB are unread; the run was stopped",
        },
        {"kind": "session_end", "exit_code": 1, "stop_reason": "error"},
    ]


async def test_unread_input_is_limited(start: StartProcess) -> None:
    process = await start("print('ready', flush=True); time.sleep(600)")
    assert await first_line(process) == b"ready"
    process.write(b"x" * 900 * KB)
    assert process.writable is False and process.failure is None
    for _ in range(3):
        process.write(b"x" * 100 * KB)
    assert "does not read its input" in (process.failure or "")
    assert await process.read_lines() == []
