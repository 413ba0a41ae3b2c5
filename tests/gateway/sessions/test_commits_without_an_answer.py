"""Sessions over a PostgreSQL server that goes away with the answer to a commit: what the commit had is stored once or not at all,
and the session goes on by itself when the server comes back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.http.doubt_limit import DOUBT_TIMEOUT
from gateway.security.authentication import ADMINISTRATOR
from gateway.store.times import StoreTimes
from tests.gateway.sessions.test_submit import ANSWER, CALL, WEATHER, suspend
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.postgresql import server
from tests.support.postgresql_proxy import Proxy
from tests.support.requests import create_session, expect_error, get_history, send_turn, session_body, user_message
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.one_store, pytest.mark.parametrize("arrived", [True, False], ids=["arrived", "lost"])]

WriteScenario = Callable[..., str]
TIMES = StoreTimes(resolve=0.03, resolve_pause=0.01)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    found = Proxy(server().port)
    found.leaves = True
    yield found
    found.close()


@dataclass
class Proxied:
    """A gateway whose store is behind a proxy. If `arrived`, the commits that get no answer are stored."""

    portico: RunningGateway
    proxy: Proxy
    write_scenario: WriteScenario
    clock: ManualClock
    scenes: Path
    arrived: bool

    @property
    def client(self) -> httpx.AsyncClient:
        return self.portico.client

    def go_away(self, marker: str) -> None:
        """Lose the answer of the next commit with these characters, or the commit itself, and then all connections."""
        self.proxy.lost = self.proxy.refused = 0
        self.proxy.marker = marker.encode()
        self.proxy.lose = ["answer" if self.arrived else "request"]

    async def gone(self) -> None:
        """Wait until the store has given up to ask for the outcome of the lost commit."""
        await wait_until(lambda: self.proxy.lost == 1 and self.proxy.refused > 5)

    async def create(self) -> str:
        """Create a session whose agent repeats its prompts, with a first turn."""
        options = {"scenario": self.write_scenario([{"text": "{prompt}"}], name="repeats.json")}
        return str((await create_session(self.client, "script", "A", options=options))["sessionId"])

    async def create_waiting(self) -> str:
        """Create a session that waits for the result of the call `sky`."""
        turns = [{"when": prompt, "steps": [{"text": prompt}]} for prompt in ("second", "next")]
        name = self.write_scenario(*turns, [CALL, {"text": "{results.sky}"}], name="waits.json")
        answer = await create_session(self.client, "script", "Go", options={"scenario": name}, tools=[WEATHER])
        assert answer["stopReason"] == "tool_use"
        return str(answer["sessionId"])

    def post(self, session: str, message: dict[str, Any], **fields: Any) -> Coroutine[Any, Any, httpx.Response]:
        """Send a turn under a key."""
        body = {"messages": [message], **fields}
        return self.client.post(f"/session/{session}", json=body, headers={"Idempotency-Key": "job-1"})

    async def outcome_of(self, request: Callable[[], Coroutine[Any, Any, httpx.Response]], how: str) -> Any:
        """Send a request whose commit gets no answer, and return the result of its turn.

        Its client waits for the response, or (`repeated`) goes away and sends the request again with its key.
        """
        sent = asyncio.create_task(request())
        await self.gone()
        self.proxy.come_back()
        if how == "repeated":
            sent.cancel()
            await asyncio.wait([sent])
        elif self.arrived:
            answer = await sent
            assert answer.is_success, answer.text
            assert (await request()).json() == answer.json()
            return answer.json()
        else:
            await expect_error(sent, 503)
        answer = await request()
        assert answer.is_success, answer.text
        return answer.json()

    async def assert_next_turn(self, session: str) -> None:
        assert contents((await send_turn(self.client, session, "next"))["messages"]) == ["next"]

    async def history(self, session: str) -> list[Any]:
        return contents(await get_history(self.client, session))

    async def stored_events(self, session: str) -> list[dict[str, Any]]:
        """Return the events of a session, whose numbers follow each other."""
        rows = await self.portico.gateway.store.events.read(session, 0)
        numbered = [(seq, json.loads(line)) for first, data in rows for seq, line in enumerate(data.split(b"\n"), first)]
        assert [seq for seq, _ in numbered] == list(range(1, len(numbered) + 1))
        return [event for _, event in numbered]


def contents(messages: list[dict[str, Any]]) -> list[Any]:
    return [message.get("content") for message in messages]


@pytest.fixture
async def proxied(
    tmp_path: Path, clock: ManualClock, proxy: Proxy, write_scenario: WriteScenario, arrived: bool
) -> AsyncIterator[Proxied]:
    url = server().tcp_url(server().create_database(), port=proxy.port)
    async with run_gateway(gateway_config(tmp_path, store={"url": url}), clock, TIMES) as portico:
        yield Proxied(portico, proxy, write_scenario, clock, tmp_path / "scenes", arrived)


async def start_of_a_turn(proxied: Proxied, how: str) -> None:
    session = await proxied.create()
    proxied.go_away("second")
    turn = await proxied.outcome_of(lambda: proxied.post(session, user_message("second")), how)
    assert (turn["stopReason"], contents(turn["messages"])) == ("end_turn", ["second"])
    await proxied.assert_next_turn(session)
    assert await proxied.history(session) == ["A", "A", "second", "second", "next", "next"]
    events = await proxied.stored_events(session)
    assert [event["kind"] for event in events if "turn" in event["kind"]] == ["turn_start"] * 3


async def start_of_a_turn_that_cancels_pending_calls(proxied: Proxied, how: str) -> None:
    session = await proxied.create_waiting()
    proxied.go_away("second")
    turn = await proxied.outcome_of(lambda: proxied.post(session, user_message("second")), how)
    assert (turn["stopReason"], contents(turn["messages"])) == ("end_turn", ["second"])
    await proxied.assert_next_turn(session)
    kinds = [event["kind"] for event in await proxied.stored_events(session)]
    assert (kinds.count("turn_start"), kinds.count("session_end")) == (3, 3)


async def answer_to_a_waiting_call(proxied: Proxied, how: str) -> None:
    session = await proxied.create_waiting()
    if how == "repeated":
        await suspend(await proxied.portico.gateway.sessions.get(ADMINISTRATOR, session))
    proxied.go_away('"sun"')
    turn = await proxied.outcome_of(lambda: proxied.post(session, ANSWER), how)
    assert (turn["stopReason"], contents(turn["messages"])) == ("end_turn", ["sun"])
    await proxied.assert_next_turn(session)
    roles = [message["role"] for message in await get_history(proxied.client, session)]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    await proxied.stored_events(session)


async def creation_of_a_session(proxied: Proxied, how: str) -> None:
    name = proxied.write_scenario([{"text": "{prompt}"}], name=f"created-{how}.json")
    body = session_body("script", f"first {how}", options={"scenario": name})
    before = len((await proxied.client.get("/sessions")).json()["sessions"])
    proxied.go_away(name)
    headers = {"Idempotency-Key": how}
    turn = await proxied.outcome_of(lambda: proxied.client.put("/session", json=body, headers=headers), how)
    assert (turn["stopReason"], contents(turn["messages"])) == ("end_turn", [f"first {how}"])
    await proxied.assert_next_turn(turn["sessionId"])
    assert len((await proxied.client.get("/sessions")).json()["sessions"]) == before + 1


@pytest.mark.parametrize("how", ["repeated", "awaited"])
async def test_what_a_commit_without_an_answer_has_is_stored_once(proxied: Proxied, how: str) -> None:
    stories: list[Callable[[Proxied, str], Awaitable[None]]] = [
        start_of_a_turn,
        start_of_a_turn_that_cancels_pending_calls,
        answer_to_a_waiting_call,
        creation_of_a_session,
    ]
    for story in stories:
        await story(proxied, how)


async def test_output_of_a_turn(proxied: Proxied) -> None:
    """The commit of an event, and that of the end of the turn."""
    for marker in ("one", "session_end"):
        go = proxied.scenes / f"go-{marker}"
        steps = [{"text": "one"}, {"wait_for_file": go.name}, {"text": " two"}]
        name = proxied.write_scenario({"when": "go", "steps": steps}, [{"text": "{prompt}"}], name=f"{marker}.json")
        session = (await create_session(proxied.client, "script", "A", options={"scenario": name}))["sessionId"]
        proxied.go_away(marker)
        turn = asyncio.create_task(proxied.post(session, user_message("go")))
        if marker == "session_end":
            go.touch()
        await proxied.gone()
        proxied.proxy.come_back()
        go.touch()
        answer = await proxied.clock.outlast(turn)
        assert (answer.json()["stopReason"], contents(answer.json()["messages"])) == ("end_turn", ["one two"]), marker
        assert (await proxied.post(session, user_message("go"))).json() == answer.json()
        await proxied.assert_next_turn(session)
        assert await proxied.history(session) == ["A", "A", "go", "one two", "next", "next"]
        text = "".join(event.get("text", "") for event in await proxied.stored_events(session))
        assert text == "Aone twonext"


async def test_others_are_refused_while_an_outcome_is_unknown_and_a_shutdown_does_not_wait_for_it(proxied: Proxied) -> None:
    first, second = await proxied.create(), await proxied.create()
    proxied.go_away("second")
    turn = asyncio.create_task(proxied.post(first, user_message("second")))
    await proxied.gone()
    for session in (first, second):
        await expect_error(proxied.client.post(f"/session/{session}", json={"messages": [user_message("third")]}), 503)
    assert not turn.done()
    proxied.proxy.come_back()
    assert (await turn).status_code == (200 if proxied.arrived else 503)
    await proxied.assert_next_turn(second)
    proxied.go_away("fourth")
    turn = asyncio.create_task(proxied.post(second, user_message("fourth")))
    await proxied.gone()
    await proxied.clock.outlast(proxied.portico.gateway.close())
    await expect_error(turn, 503)


async def test_a_request_does_not_wait_for_ever(proxied: Proxied) -> None:
    session = await proxied.create()
    proxied.go_away("second")

    def post() -> Coroutine[Any, Any, httpx.Response]:
        return proxied.post(session, user_message("second"), stream="delta")

    turn = asyncio.create_task(post())
    await wait_until(lambda: proxied.portico.gateway.store.in_doubt)
    await proxied.clock.expire(DOUBT_TIMEOUT)
    assert "it is not known whether this request is stored; send it again with the same" in await expect_error(turn, 503)
    # With its key it waits for the request before it, and as long as that did.
    again = asyncio.create_task(post())
    await wait_until(lambda: len(proxied.portico.gateway.unanswered) == 1)
    await proxied.clock.expire(DOUBT_TIMEOUT)
    await expect_error(again, 503)
    proxied.proxy.come_back()
    answer = await post()
    assert answer.is_success and "second" in answer.text
    await proxied.assert_next_turn(session)
    assert await proxied.history(session) == ["A", "A", "second", "second", "next", "next"]
    await proxied.stored_events(session)


async def test_a_refused_request_has_a_client_that_has_disconnected(proxied: Proxied) -> None:
    """Which cancels its turn, if the request says so: the agent does not get its message."""
    session = await proxied.create()
    proxied.go_away("second")

    def post() -> Coroutine[Any, Any, httpx.Response]:
        return proxied.post(session, user_message("second"), on_disconnect="cancel")

    turn = asyncio.create_task(post())
    await wait_until(lambda: proxied.portico.gateway.store.in_doubt)
    await proxied.clock.expire(DOUBT_TIMEOUT)
    await expect_error(turn, 503)
    proxied.proxy.come_back()
    await wait_until(lambda: not proxied.portico.gateway.store.in_doubt)
    assert contents((await post()).json()["messages"]) == ([] if proxied.arrived else ["second"])
    await proxied.assert_next_turn(session)
    await proxied.stored_events(session)


OUTAGE = 30.0


@pytest.mark.long
@pytest.mark.parametrize("silent", [False, True], ids=["refusing", "silent"])
async def test_outage_of_half_a_minute_and_shutdown_in_the_next_one(
    tmp_path: Path, clock: ManualClock, proxy: Proxy, write_scenario: WriteScenario, arrived: bool, silent: bool
) -> None:
    """With the times of the product. The threads of the store have the clock of the machine."""
    proxy.silent = silent
    url = server().tcp_url(server().create_database(), port=proxy.port)
    async with run_gateway(gateway_config(tmp_path, store={"url": url})) as portico, asyncio.timeout(200):
        proxied = Proxied(portico, proxy, write_scenario, clock, tmp_path / "scenes", arrived)
        session = await proxied.create()
        proxied.go_away("second")
        turn = asyncio.create_task(proxied.post(session, user_message("second")))
        await wait_until(lambda: proxy.lost == 1)
        ended = asyncio.create_task(asyncio.sleep(OUTAGE))
        assert (await portico.client.get("/readyz")).status_code == 503
        await ended
        proxy.come_back()
        assert (await turn).status_code == (200 if arrived else 503)
        answer = await proxied.post(session, user_message("second"))
        assert (answer.json()["stopReason"], contents(answer.json()["messages"])) == ("end_turn", ["second"])
        await proxied.assert_next_turn(session)
        assert await proxied.history(session) == ["A", "A", "second", "second", "next", "next"]
        await proxied.stored_events(session)
        proxied.go_away("third")
        turn = asyncio.create_task(proxied.client.post(f"/session/{session}", json={"messages": [user_message("third")]}))
        await wait_until(lambda: proxy.lost == 1)
        async with asyncio.timeout(30):
            await portico.gateway.close()
            await expect_error(turn, 503)
