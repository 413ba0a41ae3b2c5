"""The requirements of the official kit for session capabilities: settings, folders, load, list, close and delete."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.gateway.protocols.acp.requirements import REQUIREMENTS, STOP_REASONS, load, refused, requirement
from tests.support.acp_client import Client, prompt


@requirement("CONFIG-001/002/003 setting an option returns the complete list; no booleans unless the client supports them")
async def options(client: Client) -> None:
    answer = await client.request("session/new", {"cwd": ".", "mcpServers": []})
    offered = {option["id"]: option for option in answer.get("configOptions", [])}
    for name in list(offered):
        # Another value of the model may remove an option: not every model of claude has a fast mode.
        if name not in offered:
            continue
        option = offered[name]
        assert option["type"] == "select"
        values = [choice["value"] for choice in option["options"]]
        assert option["currentValue"] in values
        change = {"sessionId": answer["sessionId"], "configId": name, "value": values[-1]}
        complete = (await client.request("session/set_config_option", change))["configOptions"]
        assert [o["id"] for o in complete] == [one for one in offered if one in {o["id"] for o in complete}]
        assert set(offered) - {o["id"] for o in complete} <= ({"fast"} if name == "model" else set())
        offered = {option["id"]: option for option in complete}
        assert offered[name]["currentValue"] == values[-1]
        await refused(client, "session/set_config_option", {**change, "value": "no such value"}, -32602)
    wrong = {"sessionId": answer["sessionId"], "configId": "none", "value": "x"}
    await refused(client, "session/set_config_option", wrong, -32602)


@requirement("ADDDIRS-001 absolute additional directories are accepted where declared, else refused")
async def additional_directories(client: Client) -> None:
    can = (await client.initialize())["agentCapabilities"]["sessionCapabilities"]
    session = await client.new()
    here = next(s["cwd"] for s in (await client.request("session/list"))["sessions"] if s["sessionId"] == session)
    more = Path(here) / "more"
    more.mkdir(exist_ok=True)
    params = {"cwd": here, "mcpServers": [], "additionalDirectories": [str(more)]}
    if "additionalDirectories" not in can:
        await refused(client, "session/new", params, -32602)
        return
    session = (await client.request("session/new", params))["sessionId"]
    found = {s["sessionId"]: s for s in (await client.request("session/list"))["sessions"]}
    assert (found[session]["cwd"], found[session]["additionalDirectories"]) == (here, [str(more)])
    assert (await client.prompt(session, "hello"))["stopReason"] in STOP_REASONS
    await refused(client, "session/new", {**params, "additionalDirectories": ["more"]}, -32602)


@requirement("MODES-001/002 the current mode is an available mode and can be set")
async def modes(client: Client) -> None:
    answer = await client.request("session/new", {"cwd": ".", "mcpServers": []})
    state = answer.get("modes")
    if state is None:
        return
    known = [mode["id"] for mode in state["availableModes"]]
    assert state["currentModeId"] in known
    for mode in known:
        assert await client.request("session/set_mode", {"sessionId": answer["sessionId"], "modeId": mode}) == {}
        again = await client.request("session/resume", load(answer["sessionId"]))
        assert again["modes"]["currentModeId"] == mode
    await refused(client, "session/set_mode", {"sessionId": answer["sessionId"], "modeId": "no such mode"}, -32602)


@requirement("LOAD-001/002/003 load replays the history before its response")
async def load_session(client: Client) -> None:
    session = await client.new()
    await client.prompt(session, "remember this")
    text, before = client.text(session), len(client.received)
    answer = await client.request("session/load", load(session))
    assert isinstance(answer, dict)
    results = [message.get("result") for message in client.received]
    # The list of slash commands may follow the answer, and nothing else.
    after = client.received[results.index(answer, before) + 1 :]
    assert all("availableCommands" in message["params"]["update"] for message in after)
    assert client.text(session, since=before) == text
    assert client.text(session, "user_message_chunk", since=before) == "remember this"
    await refused(client, "session/load", load("no such session"), -32002)


@requirement("RESUME-001/002 resume replays nothing")
async def resume(client: Client) -> None:
    session = await client.new()
    await client.prompt(session, "hello")
    before = len(client.received)
    await client.request("session/resume", {"sessionId": session, "cwd": "."})
    replayed = [update for update in client.updates(session, since=before) if "availableCommands" not in update]
    assert replayed == []
    assert (await client.prompt(session, "again"))["stopReason"] == "end_turn"
    await refused(client, "session/resume", load("no such session"), -32002)


@requirement("LIST-001/002 a new session is listed; for a folder without sessions the list is empty")
async def list_sessions(client: Client) -> None:
    session = await client.new()
    found = (await client.request("session/list"))["sessions"]
    assert session in [s["sessionId"] for s in found]
    assert (await client.request("session/list", {"cwd": "/no/such/folder"}))["sessions"] == []


@requirement("DELETE-001/002 a deleted session is not listed; deleting an unknown session is no error")
async def delete(client: Client) -> None:
    session = await client.new()
    assert await client.request("session/delete", {"sessionId": session}) == {}
    assert session not in [s["sessionId"] for s in (await client.request("session/list"))["sessions"]]
    assert await client.request("session/delete", {"sessionId": session}) == {}


@requirement("CLOSE-001/002 close succeeds and cancels a running prompt")
async def close(client: Client) -> None:
    session = await client.new()
    assert await client.request("session/close", {"sessionId": session}) == {}
    session = await client.new()
    answer = await client.begin("session/prompt", prompt(session, "slow"))
    await client.until(lambda _: client.text(session))
    await client.request("session/close", {"sessionId": session})
    found = await asyncio.wait_for(answer, 60)
    assert found["stopReason"] in (("cancelled", "end_turn") if "slow" in client.text(session) else ("cancelled",))


KIT = REQUIREMENTS
"""All requirements of the kit."""
