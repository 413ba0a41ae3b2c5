"""Both official clients over both transports, with the requests of an editor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.security.authentication import ADMINISTRATOR
from tests.real.acp.clients import Editor, RequestFailed, editor_on
from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway

WriteScenario = Callable[..., str]
Connect = Callable[..., AbstractAsyncContextManager[Editor]]
STEPS = [
    {"thinking": "Let me see."},
    {"text": "I write it. "},
    {"tool_call": {"name": "write_note", "input": {"path": "a.md", "text": "A"}, "result": "written"}},
    {"text": "Done: {last_result}"},
]


@pytest.fixture
async def portico(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with run_gateway(gateway_config(tmp_path)) as running:
        yield running


@pytest.fixture(params=["python", "typescript"])
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["ws", "http"])
def connect(request: pytest.FixtureRequest, language: str, portico: RunningGateway) -> Connect:
    """Makes a connection to an agent."""
    return lambda agent="echo": editor_on(language, request.param, portico.url, agent, KEY)


async def play(portico: RunningGateway, session_id: str, scenario: str) -> None:
    """Set the scenario of the agent `script` in this session."""
    session = await portico.gateway.sessions.get(ADMINISTRATOR, session_id)
    async with session.lock:
        await session.configure(replace(session.config, options={**session.config.options, "scenario": scenario}))


async def test_new_prompt_list_and_a_second_session(connect: Connect) -> None:
    async with connect() as editor:
        one, two = await editor.new(), await editor.new()
        assert await editor.prompt(one, "first") == "end_turn"
        assert editor.received_text() == "first"
        answers = await asyncio.gather(editor.prompt(one, "left"), editor.prompt(two, "right"))
        assert answers == ["end_turn", "end_turn"]
        texts_by_session = {n["sessionId"]: n["update"]["content"]["text"] for n in editor.updates if "content" in n["update"]}
        assert texts_by_session == {one: "left", two: "right"}
        assert set(await editor.list_ids()) == {one, two}


async def test_reconnect_load_and_prompt(connect: Connect) -> None:
    texts = [f"number {n}" for n in range(20)]
    async with connect() as editor:
        session = await editor.new()
        for text in texts:
            await editor.prompt(session, text)
    async with connect() as editor:
        assert await editor.list_ids() == [session]
        await editor.load(session)
        # The history arrives before the response, in order.
        assert (editor.received_text("user_message_chunk"), editor.received_text()) == ("".join(texts), "".join(texts))
        for text in ("after", "again"):
            editor.updates.clear()
            assert await editor.prompt(session, text) == "end_turn"
            assert editor.received_text() == text
        # Load it again on the connection where it is open.
        editor.updates.clear()
        await editor.load(session)
        assert editor.received_text() == "".join([*texts, "after", "again"])
        assert await editor.prompt(session, "and more") == "end_turn"


async def test_resume_and_prompt(connect: Connect) -> None:
    async with connect() as editor:
        session = await editor.new()
        await editor.prompt(session, "before")
    async with connect() as editor:
        await editor.resume(session)
        assert await editor.prompt(session, "after") == "end_turn"
        assert editor.received_text() == "after"


async def test_close_and_load_again(connect: Connect) -> None:
    async with connect() as editor:
        session = await editor.new()
        await editor.prompt(session, "before")
        await editor.call("session/close", {"sessionId": session})
        with pytest.raises(RequestFailed, match="not open") as failed:
            await editor.prompt(session, "closed")
        assert failed.value.code == -32002
        editor.updates.clear()
        await editor.load(session)
        assert editor.received_text() == "before"
        assert await editor.prompt(session, "after") == "end_turn"


async def test_the_clients_files_and_terminals(connect: Connect, portico: RunningGateway, write_scenario: WriteScenario) -> None:
    requests = [
        {"read_file": "a.txt"},
        {"write_file": {"path": "b.txt", "text": "B"}},
        {"terminal": {"command": "make", "kill_after": 0}},
    ]
    steps = [{"tool_call": {"name": "editor", "id": f"c{n}", "client": one}} for n, one in enumerate(requests)]
    async with connect("script") as editor:
        session = await editor.new()
        await play(portico, session, write_scenario([*steps, {"text": "{results.c0}, {results.c1}, {results.c2}"}]))
        assert await editor.prompt(session, "go") == "end_turn"
        assert editor.received_text() == "text of a.txt, done, made\n"
        assert editor.served[:3] == ["fs/read_text_file", "fs/write_text_file", "terminal/create"]
        assert sorted(editor.served[3:]) == ["terminal/kill", "terminal/output", "terminal/release", "terminal/wait_for_exit"]
        contents = [n["update"].get("content") for n in editor.updates if n["update"].get("toolCallId") == "c2"]
        assert [{"type": "terminal", "terminalId": "terminal-1"}] in [
            [{key: part[key] for key in ("type", "terminalId")} for part in content]
            for content in contents
            if content and content[0]["type"] == "terminal"
        ]


async def test_an_unknown_session_fails_its_request_only(connect: Connect) -> None:
    async with connect() as editor:
        session = await editor.new()
        for request in (editor.load, editor.resume, lambda unknown: editor.prompt(unknown, "hello")):
            with pytest.raises(RequestFailed) as failed:
                await request("no-such-session")
            assert failed.value.code == -32002
        assert await editor.prompt(session, "still here") == "end_turn"


async def test_permission_is_requested_and_obeyed(
    connect: Connect, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    async with connect("script") as editor:
        session = await editor.new()
        await play(portico, session, write_scenario(STEPS))
        assert await editor.prompt(session, "go") == "end_turn"
        assert len(editor.permission_requests) == 1
        assert editor.received_text() == "I write it. Done: written"
        assert editor.received_text("agent_thought_chunk") == "Let me see."
        await editor.choose("reject_once")
        assert await editor.prompt(session, "go") == "end_turn"
        ends = [n["update"]["status"] for n in editor.updates if n["update"]["sessionUpdate"] == "tool_call_update"]
        assert ends == ["completed", "failed"]


async def test_cancel_during_text_and_during_a_permission_request(
    connect: Connect, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    async with connect("script") as editor:
        session = await editor.new()
        await play(portico, session, write_scenario([{"text": "at work"}, {"hang": True}], name="hang.json"))
        prompting = asyncio.create_task(editor.prompt(session, "go"))
        await editor.until(lambda: editor.received_text() == "at work")
        await editor.notify("session/cancel", {"sessionId": session})
        assert await asyncio.wait_for(prompting, 30) == "cancelled"

        other = await editor.new()
        await play(portico, other, write_scenario(STEPS))
        await editor.choose("nothing")
        prompting = asyncio.create_task(editor.prompt(other, "go"))
        await editor.until(lambda: editor.permission_requests)
        await editor.notify("session/cancel", {"sessionId": other})
        assert await asyncio.wait_for(prompting, 30) == "cancelled"


async def test_a_pending_permission_request_is_sent_to_the_next_connection(
    connect: Connect, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    async with connect("script") as editor:
        session = await editor.new()
        await play(portico, session, write_scenario(STEPS))
        await editor.choose("nothing")
        prompting = asyncio.create_task(editor.prompt(session, "go"))
        await editor.until(lambda: editor.permission_requests)
        prompting.cancel()
    async with connect("script") as editor:
        await editor.load(session)
        await editor.until(lambda: editor.received_text().endswith("Done: written"))
        assert len(editor.permission_requests) == 1


async def test_each_client_receives_the_messages_of_the_other(portico: RunningGateway) -> None:
    """A Python client and a TypeScript one in one session, over different transports."""
    python = editor_on("python", "http", portico.url, "echo", KEY)
    typescript = editor_on("typescript", "ws", portico.url, "echo", KEY)
    async with python as one, typescript as two:
        session = await one.new()
        await two.load(session)
        await one.prompt(session, "from python")
        await two.until(lambda: two.received_text() == "from python")
        assert two.received_text("user_message_chunk") == "from python"
        await two.prompt(session, "from typescript")
        await one.until(lambda: one.received_text() == "from pythonfrom typescript")


async def test_a_hundred_sessions_over_one_connection(portico: RunningGateway) -> None:
    """Over HTTP, where each session has a stream of its own."""
    async with editor_on("typescript", "http", portico.url, "echo", KEY) as editor:
        sessions = [await editor.new() for _ in range(100)]
        for some in (sessions[n : n + 10] for n in range(0, 100, 10)):
            assert set(await asyncio.gather(*(editor.prompt(session, session) for session in some))) == {"end_turn"}
        assert all(session in editor.received_text() for session in sessions)
