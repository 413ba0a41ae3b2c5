"""Sessions over a PostgreSQL server that goes away with the answer to a commit: what the commit had is stored once or not at all,
and the session goes on by itself when the server comes back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.http.doubt_limit import DOUBT_TIMEOUT
from gateway.security.authentication import ADMINISTRATOR
from gateway.store import postgresql
from tests.gateway.sessions.test_submit import ANSWER, CALL, WEATHER, suspend
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.postgresql import server
from tests.support.postgresql_proxy import Proxy
from tests.support.requests import create_session, expect_error, get_history, send_turn, session_body, user_message
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.one_store, pytest.mark.parametrize("arrived", [True, False], ids=["arrived", "lost"])]

WriteScenario = Callable[..., str]
KEYED = {"Idempotency-Key": "job-1"}


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    found = Proxy(server().port)
    found.leaves = True
    yield found
    found.close()


@pytest.fixture
async def proxied(
    tmp_path: Path, clock: ManualClock, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RunningGateway]:
    monkeypatch.setattr(postgresql, "RESOLVE_TIMEOUT", 0.05)
    url = server().tcp_url(server().create_database(), port=proxy.port)
    async with run_gateway(gateway_config(tmp_path, store={"url": url}), clock) as found:
        yield found


def go_away(proxy: Proxy, marker: str, *, arrived: bool) -> None:
    """Lose the answer of the next commit with these characters, or the commit itself, and then all connections."""
    proxy.marker = marker.encode()
    proxy.lose = ["answer" if arrived else "request"]


async def stay_away(proxy: Proxy) -> None:
    """Wait until the store has given up to ask for the outcome of the lost commit, and come back."""
    await wait_until(lambda: proxy.lost == 1 and proxy.refused > 5)
    proxy.come_back()


async def stored_events(portico: RunningGateway, session: str) -> list[dict[str, Any]]:
    """Return the events of a session, whose numbers follow each other."""
    rows = await portico.gateway.store.events.read(session, 0)
    numbered = [(seq, json.loads(line)) for first, data in rows for seq, line in enumerate(data.split(b"\n"), first)]
    assert [seq for seq, _ in numbered] == list(range(1, len(numbered) + 1))
    return [event for _, event in numbered]


async def waiting_session(portico: RunningGateway, write_scenario: WriteScenario) -> str:
    """Create a session that waits for the result of the call `sky`."""
    turn = [CALL, {"text": "{results.sky}"}]
    name = write_scenario(*({"when": prompt, "steps": [{"text": prompt}]} for prompt in ("second", "next")), turn)
    answer = await create_session(portico.client, "script", "Go", options={"scenario": name}, tools=[WEATHER])
    assert answer["stopReason"] == "tool_use"
    return str(answer["sessionId"])


async def assert_next_turn(portico: RunningGateway, session: str) -> None:
    assert contents((await send_turn(portico.client, session, "next"))["messages"]) == ["next"]


def contents(messages: list[dict[str, Any]]) -> list[Any]:
    return [message.get("content") for message in messages]


async def keyed(portico: RunningGateway, session: str, message: dict[str, Any]) -> httpx.Response:
    return await portico.client.post(f"/session/{session}", json={"messages": [message]}, headers=KEYED)


async def outcome_of(proxy: Proxy, request: Callable[[], Coroutine[Any, Any, httpx.Response]], how: str, arrived: bool) -> Any:
    """Send a request whose commit gets no answer, and return the result of its turn.

    Its client waits for the response, or (`repeated`) goes away and sends the request again with its key.
    """
    sent = asyncio.create_task(request())
    await stay_away(proxy)
    if how == "repeated":
        sent.cancel()
        await asyncio.wait([sent])
    elif arrived:
        answer = await sent
        assert answer.is_success, answer.text
        assert (await request()).json() == answer.json()
        return answer.json()
    else:
        await expect_error(sent, 503)
    answer = await request()
    assert answer.is_success, answer.text
    return answer.json()


@pytest.mark.parametrize("how", ["repeated", "awaited"])
async def test_start_of_a_turn(
    proxied: RunningGateway, proxy: Proxy, write_scenario: WriteScenario, arrived: bool, how: str
) -> None:
    name = write_scenario([{"text": "{prompt}"}])
    session = (await create_session(proxied.client, "script", "A", options={"scenario": name}))["sessionId"]
    go_away(proxy, "second", arrived=arrived)
    turn = await outcome_of(proxy, lambda: keyed(proxied, session, user_message("second")), how, arrived)
    assert (turn["stopReason"], contents(turn["messages"])) == ("end_turn", ["second"])
    await assert_next_turn(proxied, session)
    assert contents(await get_history(proxied.client, session)) == ["A", "A", "second", "second", "next", "next"]
    events = await stored_events(proxied, session)
    assert [event["kind"] for event in events if "turn" in event["kind"]] == ["turn_start"] * 3


@pytest.mark.parametrize("how", ["repeated", pytest.param("awaited", marks=pytest.mark.long)])
async def test_start_of_a_turn_that_cancels_pending_calls(
    proxied: RunningGateway, proxy: Proxy, write_scenario: WriteScenario, arrived: bool, how: str
) -> None:
    session = await waiting_session(proxied, write_scenario)
    go_away(proxy, "second", arrived=arrived)
    turn = await outcome_of(proxy, lambda: keyed(proxied, session, user_message("second")), how, arrived)
    assert (turn["stopReason"], contents(turn["messages"])) == ("end_turn", ["second"])
    await assert_next_turn(proxied, session)
    kinds = [event["kind"] for event in await stored_events(proxied, session)]
    assert (kinds.count("turn_start"), kinds.count("session_end")) == (3, 3)


@pytest.mark.parametrize("suspended", [True, False], ids=["suspended", "live"])
@pytest.mark.parametrize("how", ["repeated", pytest.param("awaited", marks=pytest.mark.long)])
async def test_answer_to_a_waiting_call(
    proxied: RunningGateway, proxy: Proxy, write_scenario: WriteScenario, arrived: bool, how: str, suspended: bool
) -> None:
    session = await waiting_session(proxied, write_scenario)
    if suspended:
        await suspend(await proxied.gateway.sessions.get(ADMINISTRATOR, session))
    go_away(proxy, '"sun"', arrived=arrived)
    turn = await outcome_of(proxy, lambda: keyed(proxied, session, ANSWER), how, arrived)
    assert (turn["stopReason"], contents(turn["messages"])) == ("end_turn", ["sun"])
    await assert_next_turn(proxied, session)
    roles = [message["role"] for message in await get_history(proxied.client, session)]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    await stored_events(proxied, session)


@pytest.mark.parametrize("marker", ["one", "session_end"], ids=["event", "end"])
async def test_output_of_a_turn(
    proxied: RunningGateway,
    proxy: Proxy,
    write_scenario: WriteScenario,
    tmp_path: Path,
    clock: ManualClock,
    arrived: bool,
    marker: str,
) -> None:
    steps = [{"text": "one"}, {"wait_for_file": "go"}, {"text": " two"}]
    name = write_scenario({"when": "go", "steps": steps}, [{"text": "{prompt}"}])
    session = (await create_session(proxied.client, "script", "A", options={"scenario": name}))["sessionId"]
    go_away(proxy, marker, arrived=arrived)
    turn = asyncio.create_task(keyed(proxied, session, user_message("go")))
    if marker == "session_end":
        (tmp_path / "scenes" / "go").touch()
    await stay_away(proxy)
    (tmp_path / "scenes" / "go").touch()
    answer = await clock.outlast(turn)
    assert (answer.json()["stopReason"], contents(answer.json()["messages"])) == ("end_turn", ["one two"])
    assert (await keyed(proxied, session, user_message("go"))).json() == answer.json()
    await assert_next_turn(proxied, session)
    assert contents(await get_history(proxied.client, session)) == ["A", "A", "go", "one two", "next", "next"]
    text = "".join(event.get("text", "") for event in await stored_events(proxied, session))
    assert text == "Aone twonext"


@pytest.mark.parametrize("how", ["repeated", "awaited"])
async def test_creation_of_a_session(
    proxied: RunningGateway, proxy: Proxy, write_scenario: WriteScenario, arrived: bool, how: str
) -> None:
    options = {"scenario": write_scenario([{"text": "{prompt}"}])}
    body = session_body("script", "first", options=options)
    go_away(proxy, "scenario", arrived=arrived)
    turn = await outcome_of(proxy, lambda: proxied.client.put("/session", json=body, headers=KEYED), how, arrived)
    assert (turn["stopReason"], contents(turn["messages"])) == ("end_turn", ["first"])
    await assert_next_turn(proxied, turn["sessionId"])
    assert len((await proxied.client.get("/sessions")).json()["sessions"]) == 1


async def test_others_are_refused_while_an_outcome_is_unknown(
    proxied: RunningGateway, proxy: Proxy, write_scenario: WriteScenario, arrived: bool
) -> None:
    name = write_scenario([{"text": "{prompt}"}])
    first, second = [
        (await create_session(proxied.client, "script", "A", options={"scenario": name}))["sessionId"] for _ in range(2)
    ]
    go_away(proxy, "second", arrived=arrived)
    turn = asyncio.create_task(keyed(proxied, first, user_message("second")))
    await wait_until(lambda: proxy.lost == 1 and proxy.refused > 5)
    for session in (first, second):
        await expect_error(proxied.client.post(f"/session/{session}", json={"messages": [user_message("third")]}), 503)
    assert not turn.done()
    proxy.come_back()
    assert (await turn).status_code == (200 if arrived else 503)
    await assert_next_turn(proxied, second)


async def test_shutdown_while_an_outcome_is_unknown(
    proxied: RunningGateway, proxy: Proxy, write_scenario: WriteScenario, arrived: bool, clock: ManualClock
) -> None:
    name = write_scenario([{"text": "{prompt}"}])
    session = (await create_session(proxied.client, "script", "A", options={"scenario": name}))["sessionId"]
    go_away(proxy, "second", arrived=arrived)
    turn = asyncio.create_task(keyed(proxied, session, user_message("second")))
    await wait_until(lambda: proxy.lost == 1 and proxy.refused > 5)
    await clock.outlast(proxied.gateway.close())
    await expect_error(turn, 503)


@pytest.mark.parametrize("stream", ["none", "delta"])
async def test_a_request_does_not_wait_for_ever(
    proxied: RunningGateway, proxy: Proxy, write_scenario: WriteScenario, arrived: bool, clock: ManualClock, stream: str
) -> None:
    name = write_scenario([{"text": "{prompt}"}])
    session = (await create_session(proxied.client, "script", "A", options={"scenario": name}))["sessionId"]
    go_away(proxy, "second", arrived=arrived)
    body = {"messages": [user_message("second")], "stream": stream}
    turn = asyncio.create_task(proxied.client.post(f"/session/{session}", json=body, headers=KEYED))
    await wait_until(lambda: proxied.gateway.store.in_doubt)
    await clock.expire(DOUBT_TIMEOUT)
    assert "it is not known whether this request is stored; send it again with the same" in await expect_error(turn, 503)
    # With its key it waits for the request before it, and as long as that did.
    again = asyncio.create_task(proxied.client.post(f"/session/{session}", json=body, headers=KEYED))
    await wait_until(lambda: len(proxied.gateway.unanswered) == 1)
    await clock.expire(DOUBT_TIMEOUT)
    await expect_error(again, 503)
    proxy.come_back()
    answer = await proxied.client.post(f"/session/{session}", json=body, headers=KEYED)
    assert answer.is_success and "second" in answer.text
    await assert_next_turn(proxied, session)
    assert contents(await get_history(proxied.client, session)) == ["A", "A", "second", "second", "next", "next"]
    await stored_events(proxied, session)


async def test_a_refused_request_has_a_client_that_has_disconnected(
    proxied: RunningGateway, proxy: Proxy, write_scenario: WriteScenario, arrived: bool, clock: ManualClock
) -> None:
    """Which cancels its turn, if the request says so: the agent does not get its message."""
    name = write_scenario([{"text": "{prompt}"}])
    session = (await create_session(proxied.client, "script", "A", options={"scenario": name}))["sessionId"]
    go_away(proxy, "second", arrived=arrived)
    body = {"messages": [user_message("second")], "on_disconnect": "cancel"}
    turn = asyncio.create_task(proxied.client.post(f"/session/{session}", json=body, headers=KEYED))
    await wait_until(lambda: proxied.gateway.store.in_doubt)
    await clock.expire(DOUBT_TIMEOUT)
    await expect_error(turn, 503)
    proxy.come_back()
    await wait_until(lambda: not proxied.gateway.store.in_doubt)
    answer = await proxied.client.post(f"/session/{session}", json=body, headers=KEYED)
    assert contents(answer.json()["messages"]) == ([] if arrived else ["second"])
    await assert_next_turn(proxied, session)
    await stored_events(proxied, session)


OUTAGE = 30.0


@pytest.mark.long
@pytest.mark.parametrize("silent", [False, True], ids=["refusing", "silent"])
async def test_outage_of_half_a_minute(
    tmp_path: Path, proxy: Proxy, write_scenario: WriteScenario, arrived: bool, silent: bool
) -> None:
    proxy.silent = silent
    url = server().tcp_url(server().create_database(), port=proxy.port)
    name = write_scenario([{"text": "{prompt}"}])
    async with run_gateway(gateway_config(tmp_path, store={"url": url})) as portico, asyncio.timeout(150):
        session = (await create_session(portico.client, "script", "A", options={"scenario": name}))["sessionId"]
        go_away(proxy, "second", arrived=arrived)
        turn = asyncio.create_task(keyed(portico, session, user_message("second")))
        await wait_until(lambda: proxy.lost == 1)
        # The threads of the store have the clock of the machine.
        ended = asyncio.create_task(asyncio.sleep(OUTAGE))
        assert (await portico.client.get("/readyz")).status_code == 503
        await ended
        proxy.come_back()
        assert (await turn).status_code == (200 if arrived else 503)
        answer = await keyed(portico, session, user_message("second"))
        assert (answer.json()["stopReason"], contents(answer.json()["messages"])) == ("end_turn", ["second"])
        await assert_next_turn(portico, session)
        assert contents(await get_history(portico.client, session)) == ["A", "A", "second", "second", "next", "next"]
        await stored_events(portico, session)


@pytest.mark.long
async def test_shutdown_over_a_server_that_is_silent(
    tmp_path: Path, proxy: Proxy, write_scenario: WriteScenario, arrived: bool
) -> None:
    proxy.silent = True
    url = server().tcp_url(server().create_database(), port=proxy.port)
    name = write_scenario([{"text": "{prompt}"}])
    async with run_gateway(gateway_config(tmp_path, store={"url": url})) as portico:
        session = (await create_session(portico.client, "script", "A", options={"scenario": name}))["sessionId"]
        go_away(proxy, "second", arrived=arrived)
        turn = asyncio.create_task(keyed(portico, session, user_message("second")))
        await wait_until(lambda: proxy.lost == 1)
        async with asyncio.timeout(30):
            await portico.gateway.close()
            await expect_error(turn, 503)
