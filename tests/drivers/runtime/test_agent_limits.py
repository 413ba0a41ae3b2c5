"""The time limits of an agent: each ends the run with its own error, and all pause while the run waits for the client."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from drivers.contract.agent import Prompt, ToolReply
from drivers.contract.agent_specs import Limits
from drivers.contract.client_services import ClientRequest, ClientResponse, ClientServices
from drivers.contract.errors import AgentUnavailable
from drivers.runtime.cli_agent import TIMED_OUT
from tests.drivers.small_programs import OpenAgent, end_of, gone, shown, text_in, to_end, until
from tests.support.manual_clock import ManualClock

AWAIT = "emit('awaiting', calls=[{'id': 'a', 'wants': 'result'}])"


async def test_a_silent_run_ends_at_the_idle_limit(open_agent: OpenAgent, clock: ManualClock) -> None:
    agent = await open_agent(
        "emit('native_session'); read(); emit('agent_token', text='a'); stray(); time.sleep(600)",
        Limits(idle=20, grace=30),
    )
    await agent.prompt(Prompt("go"))
    events = await until(agent, "stdout")
    reading = asyncio.create_task(to_end(agent))
    await clock.expire(20)
    events += await reading
    assert shown(events)[-2:] == [
        {"kind": "error", "message": "the agent was stopped: it was silent for 20 s (limits.idle)"},
        {"kind": "session_end", "exit_code": 124, "stop_reason": "error"},
    ]
    assert end_of(events).duration_ms == 20_000
    assert gone(agent.pid) and not agent.alive
    (stray,) = [event["line"] for event in shown(events) if event["kind"] == "stdout"]
    assert gone(int(stray))


async def test_a_run_that_takes_too_long(open_agent: OpenAgent, clock: ManualClock) -> None:
    code = "emit('native_session'); read()\nwhile True: emit('agent_token', text='.'); time.sleep(0.05)"
    agent = await open_agent(code, Limits(idle=90, total=60, grace=30))
    await agent.prompt(Prompt("go"))
    await until(agent, "agent_token")
    reading = asyncio.create_task(to_end(agent))
    await clock.expire(60)
    assert shown(await reading)[-2:] == [
        {"kind": "error", "message": "the agent was stopped: the run took more than 60 s (limits.total)"},
        {"kind": "session_end", "exit_code": TIMED_OUT, "stop_reason": "error"},
    ]


async def test_a_start_that_takes_too_long(open_agent: OpenAgent, clock: ManualClock) -> None:
    starting = asyncio.create_task(open_agent("print('not yet', flush=True); time.sleep(600)", Limits(start=0.7)))
    await clock.expire(0.7)
    with pytest.raises(AgentUnavailable) as caught:
        await starting
    assert str(caught.value) == "it was not ready 0.7 s after its start (limits.start)"


async def test_a_task_has_the_limits_of_a_run(open_agent: OpenAgent, clock: ManualClock) -> None:
    reading = asyncio.create_task(to_end(await open_agent("time.sleep(600)", Limits(idle=20, grace=30), task="do")))
    await clock.expire(20)
    events = await reading
    assert "limits.idle" in shown(events)[0]["message"]
    assert end_of(events).exit_code == TIMED_OUT


class Slow(ClientServices):
    """A client that supports every method and answers when `go` is set."""

    def __init__(self) -> None:
        self.go, self.asked, self.left = asyncio.Event(), asyncio.Event(), False

    def supported_methods(self) -> frozenset[str]:
        return frozenset({"fs/read_text_file"})

    def supports(self, request: ClientRequest) -> bool:
        return True

    async def serve(self, request: ClientRequest) -> ClientResponse:
        self.asked.set()
        await self.go.wait()
        return ClientResponse({"content": "text"})

    def release_terminals(self) -> None:
        self.left = True


REQUESTS_A_FILE = """
emit('native_session'); read()
emit('client_request', id=1, method='fs/read_text_file', params={'path': os.getcwd() + '/a'})
emit('agent_token', text=read()['result']['content']); emit('session_end', exit_code=0)
read()
"""


async def test_an_agent_that_waits_for_its_clients_file_may_be_silent(open_agent: OpenAgent, clock: ManualClock) -> None:
    slow = Slow()
    agent = await open_agent(REQUESTS_A_FILE, Limits(idle=20, total=60), services=slow)
    await agent.prompt(Prompt("go"))
    reading = asyncio.create_task(to_end(agent))
    await slow.asked.wait()
    await clock.advance(50)
    slow.go.set()
    events = await reading
    assert (text_in(events), end_of(events).exit_code) == ("text", 0)


async def test_closing_an_agent_cancels_its_client_requests(open_agent: OpenAgent) -> None:
    slow = Slow()
    agent = await open_agent(REQUESTS_A_FILE, services=slow)
    await agent.prompt(Prompt("go"))
    reading = asyncio.create_task(to_end(agent))
    await slow.asked.wait()
    await agent.close(0.0)
    assert end_of(await reading).exit_code
    assert slow.left


SAYS_WHAT_IT_READS = """
emit('native_session')
while True:
    text = read()["content"]
    emit('session_end', exit_code=0) if text == "end" else emit('agent_token', text=text)
"""


async def test_every_line_resets_the_idle_limit(open_agent: OpenAgent, clock: ManualClock) -> None:
    agent = await open_agent(SAYS_WHAT_IT_READS, Limits(idle=20, total=600))
    await agent.prompt(Prompt("0"))
    for text in ("1", "2", "3"):
        await until(agent, "agent_token")
        reading = asyncio.create_task(until(agent, "agent_token"))
        await clock.advance(15)
        await agent.steer(Prompt(text))
        assert text_in(await reading) == text
        await agent.steer(Prompt("go on"))
    await agent.steer(Prompt("end"))
    assert end_of(await to_end(agent)).exit_code == 0


async def test_the_total_limit_applies_to_each_run(open_agent: OpenAgent, clock: ManualClock) -> None:
    agent = await open_agent(SAYS_WHAT_IT_READS, Limits(idle=90, total=60))
    for _ in range(3):
        await agent.prompt(Prompt("go"))
        reading = asyncio.create_task(to_end(agent))
        await clock.advance(40)
        await agent.steer(Prompt("end"))
        assert end_of(await reading).exit_code == 0


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("emit('agent_token', text='a'); emit('session_end', exit_code=0)", ["agent_token", "session_end"]),
        ("emit('agent_token', text='a'); sys.exit(3)", ["agent_token", "error", "session_end"]),
    ],
    ids=["end", "exit"],
)
async def test_output_of_the_time_in_which_the_gateway_was_suspended_counts(
    open_agent: OpenAgent, clock: ManualClock, tmp_path: Path, output: str, expected: list[str]
) -> None:
    suspended = tmp_path / "suspended"
    code = f"""
emit('native_session'); read()
while not os.path.exists({str(suspended)!r}): time.sleep(0.005)
{output}"""
    agent = await open_agent(code, Limits(idle=20, total=30, grace=30))
    await agent.prompt(Prompt("go"))
    await until(agent, "native_session")
    reading = asyncio.create_task(to_end(agent))
    await clock.waited_for(20)
    suspended.touch()
    # Nothing else runs in this process until the agent has written its output and has ended.
    while not gone(agent.pid):
        time.sleep(0.01)  # noqa: ASYNC251
    await clock.leap(40)
    events = await reading
    assert [event.kind for event in events] == expected
    assert not any("was stopped" in event["message"] for event in shown(events) if event["kind"] == "error")


async def test_no_limits(open_agent: OpenAgent, clock: ManualClock) -> None:
    agent = await open_agent(SAYS_WHAT_IT_READS, Limits(start=0, idle=0, total=0))
    await agent.prompt(Prompt("go"))
    await until(agent, "agent_token")
    reading = asyncio.create_task(to_end(agent))
    await clock.advance(1e6)
    await agent.steer(Prompt("end"))
    assert end_of(await reading).exit_code == 0


async def test_limits_pause_while_the_run_waits_for_the_client(open_agent: OpenAgent, clock: ManualClock) -> None:
    turn = f"read(); {AWAIT}; emit('agent_token', text=read()['content']); emit('session_end', exit_code=0)"
    agent = await open_agent(f"emit('native_session')\nwhile True: {turn}", Limits(idle=20, total=60))
    for _ in range(2):
        await agent.prompt(Prompt("go"))
        await until(agent, "awaiting")
        reading = asyncio.create_task(to_end(agent))
        await clock.advance(1000)
        assert not reading.done()
        await agent.reply(ToolReply("a", "18 C"))
        events = await reading
        assert text_in(events) == "18 C"
        assert end_of(events).exit_code == 0


@pytest.mark.parametrize("limits", [Limits(idle=20, total=60), Limits(idle=60, total=20)], ids=["idle", "total"])
async def test_limits_apply_again_after_the_reply(
    open_agent: OpenAgent, clock: ManualClock, limits: Limits, request: pytest.FixtureRequest
) -> None:
    agent = await open_agent("emit('native_session'); read(); AWAIT; read(); time.sleep(600)".replace("AWAIT", AWAIT), limits)
    await agent.prompt(Prompt("go"))
    await until(agent, "awaiting")
    # This read started before the reply, and no line completes it.
    reading = asyncio.create_task(to_end(agent))
    await clock.advance(100)
    await agent.reply(ToolReply("a", "18 C"))
    await clock.expire(20)
    events = await asyncio.wait_for(reading, 60)
    assert f"limits.{request.node.callspec.id}" in shown(events)[0]["message"]
    assert end_of(events).exit_code == TIMED_OUT


async def test_a_limit_that_passes_between_reads_is_reported_to_the_next_read(open_agent: OpenAgent, clock: ManualClock) -> None:
    agent = await open_agent("emit('native_session'); read(); time.sleep(600)", Limits(idle=20))
    await agent.prompt(Prompt("go"))
    await until(agent, "native_session")
    for _ in range(3):
        reading = asyncio.create_task(agent.receive())
        await clock.advance(6)
        assert reading.cancel()
        await asyncio.wait([reading])
    await clock.advance(6)
    assert end_of(await to_end(agent)).exit_code == TIMED_OUT
