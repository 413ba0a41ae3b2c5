"""Failed starts, interrupts, and closing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from drivers.codecs.output_event_lines import EventLineCodec
from drivers.contract.agent import Prompt
from drivers.contract.agent_specs import Limits
from drivers.contract.errors import AgentUnavailable, ResumeFailed
from drivers.contract.events import Error, OutputEvent, Stdout
from tests.drivers.small_programs import OpenAgent, ask, end_of, gone, shown, text_in, to_end, until
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until

OBEYS = """
emit("native_session")
while True:
    asked = read()
    if asked["type"] == "prompt":
        emit("agent_token", text=asked["content"])
        if asked["content"] == "short": emit("session_end", exit_code=0)
    else:
        emit("session_end", exit_code=130, stop_reason="cancelled")
"""


async def test_an_interrupt_that_the_program_supports(open_agent: OpenAgent) -> None:
    agent = await open_agent(OBEYS)
    await agent.prompt(Prompt("long"))
    await until(agent, "agent_token")
    await agent.interrupt()
    end = end_of(await to_end(agent))
    assert (end.exit_code, end.stop_reason) == (130, "cancelled")
    assert agent.alive
    assert text_in(await ask(agent, "short")) == "short"


async def test_an_interrupt_twice_is_one(open_agent: OpenAgent) -> None:
    agent = await open_agent(OBEYS)
    await agent.prompt(Prompt("long"))
    await until(agent, "agent_token")
    await agent.interrupt()
    await agent.interrupt()
    end_of(await to_end(agent))
    # A second request would end this run at once.
    await agent.prompt(Prompt("long"))
    assert [event.kind for event in await until(agent, "agent_token")] == ["agent_token"]
    await agent.interrupt()
    assert end_of(await to_end(agent)).stop_reason == "cancelled"


@pytest.mark.parametrize("reading", [False, True], ids=["before the read", "while a read is under way"])
async def test_an_interrupt_that_is_not_obeyed(open_agent: OpenAgent, clock: ManualClock, reading: bool) -> None:
    code = "signal.signal(15, signal.SIG_IGN); emit('native_session'); read(); stray(); time.sleep(600)"
    agent = await open_agent(code, Limits(grace=30))
    await agent.prompt(Prompt("go"))
    (stray,) = [event.line for event in await until(agent, "stdout") if isinstance(event, Stdout)]
    read = asyncio.create_task(to_end(agent)) if reading else None
    await clock.advance(0)
    await agent.interrupt()
    read = read or asyncio.create_task(to_end(agent))
    await clock.advance(29)
    assert not read.done()
    await clock.expire(1)
    events = await read
    assert shown(events) == [{"kind": "session_end", "exit_code": 130, "stop_reason": "cancelled"}]
    assert gone(agent.pid) and gone(int(stray)) and not agent.alive


async def test_a_program_without_an_interrupt_is_ended(open_agent: OpenAgent) -> None:
    agent = await open_agent("emit('agent_token', text='a'); stray(); print('oh', file=sys.stderr); time.sleep(600)", task="do")
    (stray,) = [event.line for event in await until(agent, "stdout") if isinstance(event, Stdout)]
    await agent.interrupt()
    events = await to_end(agent)
    assert not any(isinstance(event, Error) for event in events)
    assert end_of(events).stop_reason == "cancelled"
    assert end_of(events).exit_code != 0
    assert gone(agent.pid) and gone(int(stray))


class HasNoInterrupt(EventLineCodec):
    def interrupt(self) -> bool:
        return False


@pytest.mark.parametrize("codec", [EventLineCodec, HasNoInterrupt])
@pytest.mark.parametrize("output_ends", [False, True])
async def test_a_second_interrupt_shortens_the_time(
    open_agent: OpenAgent, clock: ManualClock, codec: type[EventLineCodec], output_ends: bool
) -> None:
    end = "os.close(1); " if output_ends else ""
    code = f"emit('native_session'); read(); emit('agent_token', text='a'); {end}time.sleep(600)"
    agent = await open_agent(code, Limits(grace=60), codec=codec())
    await agent.prompt(Prompt("go"))
    await until(agent, "agent_token")
    reading = asyncio.create_task(to_end(agent))
    await wait_until(lambda: agent._process.output_ended == output_ends)
    await agent.interrupt()
    await clock.advance(1)
    await agent.interrupt(5)
    await clock.expire(5)
    assert end_of(await reading).stop_reason == "cancelled"
    assert gone(agent.pid)


async def test_output_that_ends_after_an_interrupt_does_not_lengthen_its_time(open_agent: OpenAgent, clock: ManualClock) -> None:
    code = "emit('native_session'); read(); emit('agent_token', text='a'); read(); os.close(1); time.sleep(600)"
    agent = await open_agent(code, Limits(grace=60))
    await agent.prompt(Prompt("go"))
    await until(agent, "agent_token")
    await agent.interrupt(5)
    reading = asyncio.create_task(to_end(agent))
    await wait_until(lambda: agent._process.output_ended)
    await clock.expire(5)
    assert end_of(await reading).stop_reason == "cancelled"
    assert gone(agent.pid)


async def test_an_interrupt_while_the_run_waits_for_the_client(open_agent: OpenAgent, clock: ManualClock) -> None:
    code = "emit('native_session'); read(); emit('awaiting', calls=[{'id': 'a', 'wants': 'result'}]); read(); time.sleep(600)"
    agent = await open_agent(code, Limits(grace=30))
    await agent.prompt(Prompt("go"))
    await until(agent, "awaiting")
    reading = asyncio.create_task(to_end(agent))
    await clock.advance(0)
    await agent.interrupt()
    await clock.expire(30)
    assert end_of(await asyncio.wait_for(reading, 60)).stop_reason == "cancelled"


async def test_a_program_that_exits_by_itself_when_it_is_interrupted(open_agent: OpenAgent) -> None:
    agent = await open_agent("emit('native_session'); read(); emit('agent_token', text='a'); read(); sys.exit(2)")
    await agent.prompt(Prompt("go"))
    await until(agent, "agent_token")
    await agent.interrupt()
    assert shown(await to_end(agent)) == [{"kind": "session_end", "exit_code": 130, "stop_reason": "cancelled"}]


async def test_closing_ends_a_run_that_is_under_way(open_agent: OpenAgent, clock: ManualClock) -> None:
    agent = await open_agent("emit('native_session'); read(); emit('agent_token', text='a'); time.sleep(600)", Limits(grace=30))
    await agent.prompt(Prompt("go"))
    await until(agent, "agent_token")
    reading = asyncio.create_task(to_end(agent))
    closing = asyncio.create_task(agent.close())
    await clock.expire(30)
    await closing
    assert end_of(await asyncio.wait_for(reading, 60)).stop_reason == "error"
    assert gone(agent.pid) and not agent.alive
    await agent.close()


async def test_an_idle_agent_ends_on_the_end_of_its_input(open_agent: OpenAgent) -> None:
    agent = await open_agent("emit('native_session'); stray(); read()", Limits(grace=60))
    await asyncio.wait_for(agent.close(), 60)
    assert gone(agent.pid)


# Starting


async def start_error(open_agent: OpenAgent, code: str) -> str:
    with pytest.raises(AgentUnavailable) as caught:
        await open_agent(code)
    return str(caught.value)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print('no login:\\nrun login first', file=sys.stderr); sys.exit(1)", "no login: run login first"),
        ("print('usage', file=sys.stderr); emit('error', message='the key is wrong'); sys.exit(1)", "the key is wrong"),
        ("sys.exit(1)", "it wrote no message"),
        ("sys.exit(0)", "it wrote no message"),
        ("print('warning', file=sys.stderr); sys.exit(0)", "warning"),
    ],
)
async def test_a_program_that_ends_before_it_takes_a_prompt(open_agent: OpenAgent, code: str, message: str) -> None:
    assert await start_error(open_agent, code) == f"the agent ended before it took a prompt: {message}"


async def test_the_error_includes_the_output_up_to_a_length(open_agent: OpenAgent) -> None:
    message = await start_error(open_agent, "sys.stderr.write('x' * 100_000 + 'the reason'); sys.exit(1)")
    assert len(message) < 3000 and message.endswith("the reason")


async def test_processes_that_a_failed_start_leaves_behind_are_ended(open_agent: OpenAgent) -> None:
    message = await start_error(open_agent, "os.dup2(2, 1); stray(); sys.exit(1)")
    assert gone(int(message.rpartition(" ")[2]))


class RejectsByExitCode(EventLineCodec):
    """Rejects the session by an exit code."""

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        if exit_code == 44:
            self.start_error = ResumeFailed(" ".join(stderr))
        return super().exited(exit_code, stderr)


async def test_a_codec_can_give_the_reason_of_a_failed_start(open_agent: OpenAgent) -> None:
    with pytest.raises(ResumeFailed, match=r"^gone since May$"):
        await open_agent("print('gone since May', file=sys.stderr); sys.exit(44)", codec=RejectsByExitCode())


async def test_a_start_that_is_cancelled_leaves_nothing(open_agent: OpenAgent, tmp_path: Path) -> None:
    starting = asyncio.create_task(
        open_agent("open('made', 'w').write(str(os.getpid())); os.rename('made', 'pid'); time.sleep(600)")
    )
    await wait_until((tmp_path / "pid").exists)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert gone(int((tmp_path / "pid").read_text()))
