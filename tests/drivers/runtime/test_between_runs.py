"""What a process does between two runs: its output belongs to no answer, its requests get responses, and its end is noticed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from drivers.contract.agent import Prompt
from drivers.contract.client_services import ClientRequest, ClientResponse, ClientServices
from drivers.contract.errors import AgentGone
from drivers.contract.events import Stdout
from drivers.runtime import cli_agent
from drivers.runtime.cli_agent import UNREPORTED_BYTES
from drivers.runtime.pipes import DRAIN_SECONDS
from tests.drivers.small_programs import OpenAgent, ask, gone, shown, text_in
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until

LATE = """
emit("native_session", native_id="n")
for n in range(3):
    text = read()["content"]
    emit("agent_token", text=text)
    emit("session_end", exit_code=0)
    emit("agent_token", text="late ")
    emit("title", text=f"title {n}")
    emit("session_end", exit_code=0)
    open(f"written {n}", "w").close()
"""
REQUEST = """
emit("native_session")
read(); emit("session_end", exit_code=0)
emit("client_request", id=1, method="fs/read_text_file", params={"path": "/x"})
response = read()
open("responded", "w").write(response["result"]["content"])
read()
"""
FLOOD = """
emit("native_session")
read(); emit("session_end", exit_code=0)
for n in range(40_000): print(f"{n:099d}")
sys.stdout.flush()
open("written", "w").close()
read(); emit("session_end", exit_code=0)
"""


async def written(path: Path, text: str = "") -> None:
    """Wait until a program has created this file, with this text in it."""
    await wait_until(lambda: path.exists() and path.read_text() == text, f"{path} is written")


async def test_late_output_is_no_part_of_the_next_answer(open_agent: OpenAgent, tmp_path: Path) -> None:
    agent = await open_agent(LATE)
    for n, text in enumerate(("one", "two", "three")):
        events = await ask(agent, text)
        assert text_in(events) == text
        assert [event.kind for event in events if event.kind != "native_session"] == [
            *(["title", "stdout"] if n else []),
            "agent_token",
            "session_end",
        ]
        await written(tmp_path / f"written {n}")


async def test_a_request_between_two_runs_gets_its_response_at_once(open_agent: OpenAgent, tmp_path: Path) -> None:
    class Client(ClientServices):
        def supports(self, request: ClientRequest) -> bool:
            return True

        def supported_methods(self) -> frozenset[str]:
            return frozenset({"fs/read_text_file"})

        async def serve(self, request: ClientRequest) -> ClientResponse:
            return ClientResponse({"content": "the file"})

        def release_terminals(self) -> None:
            pass

    agent = await open_agent(REQUEST.replace('"/x"', repr(str(tmp_path / "x"))), services=Client())
    await ask(agent)
    await written(tmp_path / "responded", "the file")


async def test_the_end_between_two_runs_is_noticed_with_what_it_left_running(open_agent: OpenAgent, clock: ManualClock) -> None:
    agent = await open_agent(
        'emit("native_session"); read(); emit("agent_token", text=str(child("import time; time.sleep(600)").pid)); '
        'emit("session_end", exit_code=0)'
    )
    pid = int(text_in(await ask(agent)))
    receiving = asyncio.create_task(agent.receive())
    await clock.expire(DRAIN_SECONDS)
    with pytest.raises(AgentGone):
        await asyncio.wait_for(receiving, 30)
    assert not agent.alive and gone(pid)
    with pytest.raises(AgentGone):
        await agent.prompt(Prompt("more"))


async def test_an_agent_that_was_closed_between_two_runs_has_no_events(open_agent: OpenAgent) -> None:
    agent = await open_agent(LATE)
    await ask(agent)
    receiving = asyncio.create_task(agent.receive())
    await asyncio.sleep(0)
    await agent.close()
    for receive in (receiving, agent.receive()):
        with pytest.raises(AgentGone):
            await asyncio.wait_for(receive, 30)


async def test_raw_lines_between_two_runs_are_limited(open_agent: OpenAgent, tmp_path: Path) -> None:
    agent = await open_agent(FLOOD)
    await ask(agent)
    await written(tmp_path / "written")
    lines = [event.line for event in await ask(agent) if isinstance(event, Stdout)]
    assert sum(map(len, lines)) <= UNREPORTED_BYTES
    assert lines[-1] == f"{39_999:099d}"


async def test_a_process_that_writes_too_much_between_two_runs_is_ended(
    open_agent: OpenAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_agent, "MAX_BETWEEN_RUNS", 100_000)
    agent = await open_agent("emit('native_session'); read(); emit('session_end', exit_code=0)\nwhile True: print('x' * 99)")
    await ask(agent)
    with pytest.raises(AgentGone):
        await asyncio.wait_for(agent.receive(), 30)
    assert not agent.alive and gone(agent.pid)


async def test_output_before_the_first_prompt_is_no_answer(open_agent: OpenAgent) -> None:
    agent = await open_agent(
        'print(\'{"kind": "native_session"}\', \'{"kind": "agent_token", "text": "hello?"}\', sep="\\n", flush=True); '
        'emit("agent_token", text=read()["content"]); emit("session_end", exit_code=0)'
    )
    events = await ask(agent, "one")
    assert text_in(events) == "one"
    assert [event["kind"] for event in shown(events)].count("session_end") == 1
