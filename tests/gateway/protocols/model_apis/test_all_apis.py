"""What OpenAI's Chat Completions and Responses and Anthropic's Messages have in common, each whole and as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from drivers.contract.driver_info import EFFORT_OPTION, Option, Probe
from tests.gateway.protocols.model_apis.vendor_apis import (
    APIS,
    CHAT,
    MESSAGES,
    PATHS,
    PIXEL,
    RESPONSES,
    ask,
    body,
    image,
    messages,
    post,
    results,
    tools,
)
from tests.support.daemon import KEY, RunningGateway, gateway_config, http_client, run_gateway
from tests.support.faulty_store import DISK_FULL, run_faulty_gateway
from tests.support.manual_clock import ManualClock
from tests.support.requests import get_history, session_of
from tests.support.waiting import wait_until

Play = Callable[..., None]
WAYS = [(api, stream) for api in APIS for stream in (False, True)]
REMEMBER = {"remember": True}
DOWN = {"stop": {"reason": "error", "message": "the model is down"}}


def error_of(api: str, answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer, which must have the shape of the API."""
    found: dict[str, Any] = answer.json()
    if api == MESSAGES:
        assert found["type"] == "error"
    else:
        assert found["error"].keys() == {"message", "type", "param", "code"}
    return dict(found["error"])


async def test_a_conversation_goes_on_in_its_session(portico: RunningGateway, play: Play) -> None:
    play([REMEMBER])
    for api, stream in WAYS:
        system: dict[str, Any] = {"system": "Be brief."} if api == MESSAGES else {}
        said = [] if api == MESSAGES else [{"role": "developer", "content": "Be brief."}]
        first = await ask(portico.client, api, *said, "one", stream=stream, **system)
        second = await ask(portico.client, api, *said, "one", first, "two", stream=not stream, **system)
        assert (second.text, second.end, second.session) == ('["one"]', "stop", first.session), api
        # By the id of its session only, and with another system message.
        named = await portico.client.post(PATHS[api], json=body(api, "three"), headers={"X-Portico-Session": second.session})
        assert named.headers["x-portico-session"] == first.session and "two" in named.text, api
        other = await ask(portico.client, api, "one", first, "two", stream=stream)
        assert other.session != first.session, api
        unknown = await portico.client.post(PATHS[api], json=body(api), headers={"X-Portico-Session": "sess_none"})
        assert unknown.status_code == 404 and "sess_none" in error_of(api, unknown)["message"], api


async def test_results_of_the_clients_tools_resume_the_run(portico: RunningGateway, play: Play) -> None:
    calls = {"parallel": [{"app_tool": {"id": name, "name": "weather", "input": {"in": name}}} for name in ("rome", "oslo")]}
    play([{"text": "Looking."}, calls, {"text": "{results.rome}, {results.oslo}"}])
    for api, stream in WAYS:
        fields = {**tools(api, "weather"), "stream": stream}
        first = await ask(portico.client, api, "Weather?", **fields)
        assert (first.text, first.end) == ("Looking.", "calls"), api
        assert first.calls == [(name, "weather", {"in": name}) for name in ("rome", "oslo")], api
        session = await session_of(portico.gateway, first.session)
        run = session.run
        second = await ask(portico.client, api, "Weather?", first, *results(api, rome="sun", oslo="rain"), **fields)
        assert (second.text, second.end, second.session) == ("sun, rain", "stop", first.session), api
        assert session.run is run, api


async def test_a_call_of_the_agents_own_is_none_of_the_clients_tool_with_its_name(portico: RunningGateway, play: Play) -> None:
    """An answer that is over has no call that waits for its result."""
    for asks in (False, True):
        play([{"tool_call": {"id": "own", "name": "weather", "ask": asks}}, {"text": "done"}])
        for api, stream in WAYS:
            reply = await ask(portico.client, api, stream=stream, **tools(api, "weather"))
            assert (reply.end, reply.text, reply.calls) == ("stop", "done", []), (api, asks)


async def test_no_tool_is_called_with_tool_choice_none(portico: RunningGateway, play: Play) -> None:
    play([{"app_tool": {"id": "sky", "name": "weather"}}, {"text": "no"}])
    for api, stream in WAYS:
        first = await ask(portico.client, api, stream=stream, **tools(api, "weather", choice="none"))
        assert (first.text, first.end, first.calls) == ("no", "stop", []), api
        session = await session_of(portico.gateway, first.session)
        agent = session.live
        second = await ask(portico.client, api, "hello", first, "again", **tools(api, "weather", choice="auto"))
        assert (second.end, second.session) == ("calls", first.session), api
        assert session.live is agent, api


async def test_reasons_of_the_end(portico: RunningGateway, play: Play) -> None:
    for reason, end in (("end_turn", "stop"), ("max_tokens", "length"), ("refusal", "refusal")):
        play([{"text": "so far"}, {"stop": reason}])
        for api, stream in WAYS:
            reply = await ask(portico.client, api, stream=stream)
            assert (reply.text + reply.refusal, reply.end) == ("so far", end), api


async def test_images_are_given_to_the_agent(portico: RunningGateway, play: Play) -> None:
    play([{"text": "{images}: {prompt}"}])
    for api in APIS:
        first = await ask(portico.client, api, image(api))
        assert first.text == "1: What is it?", api
        content = (await get_history(portico.client, first.session))[0]["content"]
        shown = {"type": "image", "url": f"data:image/png;base64,{PIXEL}"}
        assert content == [{"type": "text", "text": "What is it?"}, shown], api
        assert (await ask(portico.client, api, image(api), first, "and?")).session == first.session, api
        refused = await post(portico.client, api, image(api), model="echo")
        assert refused.status_code == 400, api


async def test_the_effort_is_the_agents_option_where_it_lists_that_value(portico: RunningGateway) -> None:
    # It waits for the probes of the start, whose results would replace this one.
    await portico.client.get("/v1/drivers")
    probe = Probe(efforts=("low", "high"), options=(Option(EFFORT_OPTION, "Effort", "How much it thinks."),))
    portico.gateway.agents.get("script").apply_probe(probe)
    fields: dict[str, tuple[str, Callable[[str], Any]]] = {
        CHAT: ("reasoning_effort", lambda level: {"reasoning_effort": level}),
        RESPONSES: ("reasoning.effort", lambda level: {"reasoning": {"effort": level}}),
        MESSAGES: ("output_config.effort", lambda level: {"output_config": {"effort": level}}),
    }
    for api, (name, field) in fields.items():
        for level, taken in (("high", True), ("xhigh", False)):
            reply = await ask(portico.client, api, **field(level))
            assert (name in reply.ignored) is not taken, (api, level)
            options = (await session_of(portico.gateway, reply.session)).config.options
            assert options == ({EFFORT_OPTION: level} if taken else {}), (api, level)


# -- errors -----------------------------------------------------------------------------------------------------------------


async def test_errors_have_the_shape_of_each_api(tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, str], bytes, int]] = [
        ("POST", {"host": "elsewhere.example"}, b"{}", 403),
        ("POST", {"origin": "https://elsewhere.example"}, b"{}", 403),
        ("POST", {"content-type": "text/plain"}, b"{}", 415),
        ("POST", {"content-type": "application/json"}, b"{", 400),
        ("POST", {"content-type": "application/json"}, b" " * 3000, 413),
        ("PUT", {}, b"", 405),
        ("POST", {"authorization": "Bearer wrong"}, b"{}", 401),
        ("POST", {"authorization": ""}, b"{}", 401),
        ("POST", {"authorization": "", "x-api-key": "wrong"}, b"{}", 401),
        ("POST", {"authorization": "Bearer wrong", "x-api-key": KEY}, b"{}", 401),
    ]
    kinds = {401: "authentication_error", 403: "permission_error"}
    async with run_gateway(gateway_config(tmp_path, server={"max_body": 2000})) as portico:
        for api in APIS:
            for method, headers, content, status in cases:
                answer = await portico.client.request(method, PATHS[api], content=content, headers=headers)
                error = error_of(api, answer)
                assert answer.status_code == status, (api, method, headers)
                assert error["type"] == kinds.get(status, error["type"]), (api, method, headers)
            for model in ("gpt-4o", "nobody"):
                unknown = await post(portico.client, api, model=model)
                assert unknown.status_code == 404 and "echo" in error_of(api, unknown)["message"], api
            async with http_client(portico.url) as client:
                del client.headers["authorization"]
                key = await client.post(PATHS[api], json=body(api, model="echo"), headers={"x-api-key": KEY})
                assert key.status_code == 200, api


async def test_a_run_that_fails(portico: RunningGateway, play: Play) -> None:
    """At once, it is an error response; once a stream has begun, it is its last event."""
    play([DOWN])
    for api, stream in WAYS:
        answer = await post(portico.client, api, stream=stream)
        assert (answer.status_code, error_of(api, answer)["message"]) == (502, "the model is down"), api
        assert answer.headers["x-should-retry"] == "false", api
        assert answer.headers["x-portico-session"].startswith("sess_"), api
    play([{"text": "half"}, DOWN])
    for api in APIS:
        answer = await post(portico.client, api, stream=True)
        assert answer.status_code == 200 and "half" in answer.text, api
        assert "the model is down" in [part for part in answer.text.split("\n\n") if "data: {" in part][-1], api
        whole = await post(portico.client, api)
        assert whole.status_code == (200 if api == RESPONSES else 502) and "the model is down" in whole.text, api


async def test_a_client_that_disconnects_ends_the_run_and_continues_from_what_it_has(portico: RunningGateway, play: Play) -> None:
    play({"when": "slow", "steps": [{"text": "half"}, {"hang": True}]}, [REMEMBER])

    async def begun(body: dict[str, Any], path: str) -> AsyncIterator[str]:
        async with portico.client.stream("POST", path, json=body) as answer:
            async for line in answer.aiter_lines():
                if "half" in line:
                    yield answer.headers["x-portico-session"]
                    return

    for api in APIS:
        session_id = await anext(begun(body(api, "slow", stream=True), PATHS[api]))
        session = await session_of(portico.gateway, session_id)
        await wait_until(lambda session=session: session.state == "idle")
        half = {"role": "assistant", "content": "half"}
        second = await ask(portico.client, api, "slow", half, "go on")
        assert (second.text, second.session) == ('["slow"]', session_id), api
        known = {held.id for held in portico.gateway.sessions.held}
        asking = asyncio.create_task(post(portico.client, api, "slow"))
        [waiting] = await wait_until(
            lambda known=known: [one for one in portico.gateway.sessions.held if one.id not in known and one.state == "running"]
        )
        asking.cancel()
        await wait_until(lambda waiting=waiting: waiting.state == "idle")


async def test_a_stream_whose_agent_is_silent_is_kept_open(
    tmp_path: Path, write_scenario: Callable[..., str], clock: ManualClock
) -> None:
    scenario = write_scenario([{"wait_for_file": "go"}, {"text": "done"}])
    agents = {"script": {"driver": "script", "cwd": str(tmp_path / "scenes"), "options": {"scenario": scenario}}}
    async with run_gateway(gateway_config(tmp_path, agents=agents, server={"keep_alive": 0.7}), clock) as portico:
        asking = [asyncio.create_task(post(portico.client, api, stream=True)) for api in APIS]
        # The responses begin, that of Anthropic with a ping; two more times pass.
        for _ in range(3):
            await clock.expire(0.7, by=3)
        (tmp_path / "scenes" / "go").touch()
        texts = dict(zip(APIS, [(await one).text for one in asking], strict=True))
    assert {api: text.count(": keep-alive\n\n") for api, text in texts.items()} == {CHAT: 2, RESPONSES: 2, MESSAGES: 0}
    events = [line.removeprefix("event: ") for line in texts[MESSAGES].split("\n") if line.startswith("event: ")]
    assert events == [
        "message_start", "ping", "ping", "ping", "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert all("done" in text for text in texts.values())


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_a_write_of_the_store_that_fails_once(tmp_path: Path, stream: bool) -> None:
    """The request is refused or answered, and the next one works."""
    async with run_faulty_gateway(gateway_config(tmp_path)) as (portico, faults):
        for api in APIS:
            request = {**body(api, model="echo", stream=stream), **({"store": True} if api == RESPONSES else {})}
            for operation in ("sessions.create", "runs.start"):
                faults.fail(operation, times=1)
                answer = await portico.client.post(PATHS[api], json=request)
                assert (answer.status_code, DISK_FULL in answer.json()["error"]["message"]) == (503, True), (api, operation)
            for operation in ("events.append", "runs.stop", "responses.add", "responses.set_over"):
                before = faults.operations[operation]
                faults.fail(operation, times=1)
                answer = await portico.client.post(PATHS[api], json=request)
                assert answer.status_code == 200 and "hello" in answer.text, (api, operation)
                assert ("error" in answer.text) == ('"error":null' in answer.text), (api, operation)
                assert operation.startswith("responses.") or faults.operations[operation] > before, (api, operation)
                faults.clear()


async def test_a_conversation_that_ends_with_a_system_message_is_answered(portico: RunningGateway) -> None:
    for api in APIS:
        for role in ("system", "developer") if api != MESSAGES else ("system",):
            talk = ["one", {"role": "assistant", "content": "1"}, {"role": role, "content": "two"}]
            assert (await ask(portico.client, api, *messages(api, *talk), model="echo")).text == "two", (api, role)
    first = await portico.client.post(PATHS[RESPONSES], json={"model": "echo", "input": "one"})
    after = {"previous_response_id": first.json()["id"], "input": [{"role": "system", "content": "three"}]}
    answer = await portico.client.post(PATHS[RESPONSES], json={"model": "echo", **after})
    assert answer.json()["output"][0]["content"][0]["text"] == "three"
