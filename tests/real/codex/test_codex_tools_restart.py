"""Pending calls of the real codex are answered after its process or the daemon has been killed."""

from __future__ import annotations

from gateway.security.authentication import ADMINISTRATOR
from tests.model_server.openai import OpenAIServer
from tests.real.codex.aap_client import (
    WEATHER,
    calls_of,
    create_session,
    deny,
    grant,
    message_texts,
    outputs,
    result,
    results_of,
    text_of,
)
from tests.real.codex.conftest import Home
from tests.real.processes import cli_of, wait_for_exit
from tests.support.daemon import RunningGateway
from tests.support.waiting import wait_until

ASK = {"shell": False, "apply_patch": False}


async def test_a_result_for_a_cli_that_was_killed(portico: RunningGateway, home: Home, model: OpenAIServer) -> None:
    aap = await create_session(portico.client, "[[weather]]", app=[WEATHER], stop="tool_use")
    session = await portico.gateway.sessions.get(ADMINISTRATOR, aap.id)
    cli_of(home.path).kill()
    await wait_until(lambda: session.run.suspended, "its exit is detected")
    answer = await aap.send(result(calls_of(aap.first["messages"])[0], "18 degrees"))
    assert (answer["stopReason"], text_of(answer["messages"])) == ("end_turn", "It is mild in Tokyo.")
    assert outputs(model.bodies()[-1]) == ["18 degrees"]
    assert message_texts(model.bodies()[-1]) == ["[[weather]]"]


async def test_a_result_after_the_daemon_was_killed(home: Home, model: OpenAIServer) -> None:
    daemon = await home.daemon()
    async with daemon.client() as client:
        aap = await create_session(client, "[[weathers]]", app=[WEATHER], stop="tool_use")
    process = cli_of(home.path)
    await daemon.kill()
    daemon = await home.daemon()
    await wait_for_exit(process.pid)
    async with daemon.client() as client:
        aap = aap.with_client(client)
        calls = calls_of((await aap.history())[-1:])
        answer = await aap.send(*(result(call, call["input"]["location"]) for call in calls))
        assert answer["stopReason"] == "end_turn"
        assert sorted(outputs(model.bodies()[-1])) == ["Oslo", "Paris", "Tokyo"]
        again = await client.post(f"/session/{aap.id}", json={"messages": [result(calls[0], "again")]})
        assert again.status_code == 400


async def test_a_permission_after_the_daemon_was_killed(home: Home) -> None:
    daemon = await home.daemon()
    async with daemon.client() as client:
        granted = await create_session(client, "[[run:touch one.txt]]", own=ASK, stop="tool_use")
        denied = await create_session(client, "[[run:touch two.txt]]", own=ASK, stop="tool_use")
    await daemon.kill()
    daemon = await home.daemon()
    assert not (home.work / "one.txt").exists()
    async with daemon.client() as client:
        answer = await granted.with_client(client).send(grant(calls_of(granted.first["messages"])[0]))
        while answer["stopReason"] == "tool_use":
            answer = await granted.with_client(client).send(*(grant(call) for call in calls_of(answer["messages"])))
        answer = await denied.with_client(client).send(deny(calls_of(denied.first["messages"])[0], "too risky"))
        assert (answer["stopReason"], "too risky" in str(results_of(await denied.with_client(client).history()))) == (
            "end_turn",
            True,
        )
    assert not (home.work / "two.txt").exists()
