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
from drivers.contract.events import OutputEvent
from drivers.runtime.cli_agent import TIMED_OUT
from tests.drivers.small_programs import OpenAgent, ask, end_of, gone, shown, text_in, to_end, until

AWAIT = "emit('awaiting', calls=[{'id': 'a', 'wants': 'result'}])"


async def test_a_silent_run_ends_at_the_idle_limit(open_agent: OpenAgent) -> None:
    agent = await open_agent(
        "emit('native_session'); read(); emit('agent_token', text='a'); stray(); time.sleep(600)",
        Limits(idle=0.5, grace=30),
    )
    events = await ask(agent)
    assert shown(events)[-2:] == [
        {"kind": "error", "message": "the agent was stopped: it was silent for 0.5 s (limits.idle)"},
        {"kind": "session_end", "exit_code": 124, "stop_reason": "error"},
    ]
    assert 500 <= end_of(events).duration_ms < 20_000
    assert gone(agent.pid) and not agent.alive
    (stray,) = [event["line"] for event in shown(events) if event["kind"] == "stdout"]
    assert gone(int(stray))


async def test_a_run_that_takes_too_long(open_agent: OpenAgent) -> None:
    code = "emit('native_session'); read()\nwhile True: emit('agent_token', text='.'); time.sleep(0.05)"
    agent = await open_agent(code, Limits(idle=30, total=0.7, grace=30))
    events = await ask(agent)
    assert shown(events)[-2:] == [
        {"kind": "error", "message": "the agent was stopped: the run took more than 0.7 s (limits.total)"},
        {"kind": "session_end", "exit_code": TIMED_OUT, "stop_reason": "error"},
    ]
    assert len(text_in(events)) > 2


async def test_a_start_that_takes_too_long(open_agent: OpenAgent) -> None:
    with pytest.raises(AgentUnavailable) as caught:
        await open_agent("print('not yet', flush=True); print(os.getpid(), file=sys.stderr); time.sleep(600)", Limits(start=0.7))
    assert str(caught.value) == "it was not ready 0.7 s after its start (limits.start)"


async def test_a_task_has_the_limits_of_a_run(open_agent: OpenAgent) -> None:
    events = await to_end(await open_agent("time.sleep(600)", Limits(idle=0.5, grace=30), task="do"))
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


async def test_an_agent_that_waits_for_its_clients_file_may_be_silent(open_agent: OpenAgent) -> None:
    slow = Slow()
    agent = await open_agent(REQUESTS_A_FILE, Limits(idle=2, total=60), services=slow)
    await agent.prompt(Prompt("go"))
    reading = asyncio.create_task(to_end(agent))
    await slow.asked.wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(reading), 3)
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


async def test_every_line_resets_the_idle_limit(open_agent: OpenAgent) -> None:
    lines = "for _ in range(15): print('.', flush=True); time.sleep(0.2)"
    code = f"emit('native_session'); read()\n{lines}\nemit('session_end', exit_code=0)"
    agent = await open_agent(code, Limits(idle=2, total=60))
    assert end_of(await ask(agent)).exit_code == 0


async def test_the_total_limit_applies_to_each_run(open_agent: OpenAgent) -> None:
    code = "emit('native_session')\nwhile True: read(); time.sleep(0.6); emit('session_end', exit_code=0)"
    agent = await open_agent(code, Limits(idle=30, total=2.5))
    for _ in range(5):
        assert end_of(await ask(agent)).exit_code == 0


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("emit('agent_token', text='a'); emit('session_end', exit_code=0)", ["agent_token", "session_end"]),
        ("emit('agent_token', text='a'); sys.exit(3)", ["agent_token", "error", "session_end"]),
    ],
    ids=["end", "exit"],
)
async def test_output_of_the_time_in_which_the_gateway_was_suspended_counts(
    open_agent: OpenAgent, tmp_path: Path, output: str, expected: list[str]
) -> None:
    suspended, written = tmp_path / "suspended", tmp_path / "written"
    code = f"""
import atexit; emit('native_session'); read(); atexit.register(open, {str(written)!r}, 'w')
while not os.path.exists({str(suspended)!r}): time.sleep(0.005)
{output}"""
    agent = await open_agent(code, Limits(idle=0.3, total=0.4, grace=30))
    await agent.prompt(Prompt("go"))
    await until(agent, "native_session")
    reading = asyncio.create_task(to_end(agent))
    asyncio.get_running_loop().call_later(0.01, _suspend, suspended, written)
    events = await reading
    assert [event.kind for event in events] == expected
    assert not any("was stopped" in event["message"] for event in shown(events) if event["kind"] == "error")


def _suspend(suspended: Path, written: Path) -> None:
    """Run nothing else in this process until the agent has written its output and its time limits are over."""
    suspended.touch()
    while not written.exists():
        time.sleep(0.01)
    time.sleep(0.5)


async def test_no_limits(open_agent: OpenAgent) -> None:
    code = "emit('native_session'); read(); time.sleep(0.3); emit('session_end', exit_code=0)"
    assert end_of(await ask(await open_agent(code, Limits(start=0, idle=0, total=0)))).exit_code == 0


async def test_limits_pause_while_the_run_waits_for_the_client(open_agent: OpenAgent) -> None:
    limits = Limits(idle=1.5, total=2.0)
    turn = f"read(); {AWAIT}; emit('agent_token', text=read()['content']); emit('session_end', exit_code=0)"
    agent = await open_agent(f"emit('native_session')\nwhile True: {turn}", limits)
    for _ in range(2):
        await agent.prompt(Prompt("go"))
        await until(agent, "awaiting")
        waiting = asyncio.create_task(agent.receive())
        await asyncio.sleep(2.5)
        assert not waiting.done()
        await agent.reply(ToolReply("a", "18 C"))
        events = [*await waiting]
        if events[-1].kind != "session_end":
            events += await to_end(agent)
        assert text_in(events) == "18 C"
        assert end_of(events).exit_code == 0


@pytest.mark.parametrize("limits", [Limits(idle=0.5, total=60), Limits(idle=60, total=0.5)], ids=["idle", "total"])
async def test_limits_apply_again_after_the_reply(open_agent: OpenAgent, limits: Limits, request: pytest.FixtureRequest) -> None:
    agent = await open_agent("emit('native_session'); read(); AWAIT; read(); time.sleep(600)".replace("AWAIT", AWAIT), limits)
    await agent.prompt(Prompt("go"))
    await until(agent, "awaiting")
    # This read started before the reply, and no line completes it.
    reading = asyncio.create_task(to_end(agent))
    await asyncio.sleep(0.1)
    await agent.reply(ToolReply("a", "18 C"))
    events = await asyncio.wait_for(reading, 60)
    assert f"limits.{request.node.callspec.id}" in shown(events)[0]["message"]
    assert end_of(events).exit_code == TIMED_OUT


async def test_a_limit_that_passes_between_reads_is_reported_to_the_next_read(open_agent: OpenAgent) -> None:
    agent = await open_agent("emit('native_session'); read(); time.sleep(600)", Limits(idle=0.4))
    await agent.prompt(Prompt("go"))
    events: list[OutputEvent] = []
    for _ in range(10_000):
        try:
            events += await asyncio.wait_for(agent.receive(), 0.01)
        except TimeoutError:
            continue
        if events[-1].kind == "session_end":
            break
    assert end_of(events).exit_code == TIMED_OUT
