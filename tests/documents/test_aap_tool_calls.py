"""AAP version 1, "Tool Call Flow": each flow step by step, how both sides resolve calls, and how a client resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.documents.documents import Json, WriteScenario, agent, plain, read_stream, sections, user
from tests.support.daemon import RunningGateway, gateway_config, run_gateway

FLOWS = sections("aap_tool_calls")
AGENT_TOOLS = {"server_tool_trusted": "lookup", "server_tool_untrusted": "shell"}
"""The tools of the script agent that stand for those of the document."""
INPUTS = {"lookup": {"query": "x"}, "shell": {"command": "x"}}
GRANTS = [{"name": "lookup", "trust": True}, {"name": "shell"}]
APPLICATION_TOOLS = [
    {"name": name, "description": "A tool of the client.", "inputSchema": {"type": "object"}}
    for name in ("client_tool_1", "client_tool_2")
]


def call_of(name: str, call_id: str) -> Json:
    """Return the step of a scenario that calls a tool of the document."""
    if name not in AGENT_TOOLS:
        return {"app_tool": {"id": call_id, "name": name, "input": {"n": 1}}}
    own = AGENT_TOOLS[name]
    return {"tool_call": {"id": call_id, "name": own, "input": INPUTS[own], "result": f"result of {call_id}"}}


def steps_of(title: str) -> list[Json]:
    """Return the scenario of a flow: its calls, then the answer with what the model was told."""
    names = {
        "Application-side tool": ["client_tool_1"],
        "Server-side tool (trusted, inline)": ["server_tool_trusted"],
        "Server-side tool (permission required)": ["server_tool_untrusted"],
        "Parallel tool calls": ["client_tool_1", "client_tool_2", "server_tool_trusted", "server_tool_untrusted"],
    }[title]
    calls = [call_of(name, f"call_00{n}") for n, name in enumerate(names, 1)]
    told = " ".join(f"{{results.call_00{n}}}" for n in range(1, len(calls) + 1))
    return [{"parallel": calls}, {"text": {"text": told, "chunk": 10_000}}]


def answer_to(message: Json, granted: bool) -> Json:
    """Complete a message of a client in a flow. The calls of the other flows are all `call_001`."""
    if message["role"] == "user":
        return user()
    call = {"toolCallId": message.get("toolCallId", "call_001")}
    if message["role"] == "tool_permission":
        return {"role": "tool_permission", **call, "granted": granted, **({} if granted else {"reason": "not today"})}
    return {"role": "tool", **call, "content": f"result of {call['toolCallId']}"}


def line_of(event: tuple[str, Any], like: str) -> str:
    """Return an event as a flow names it, with as many words as `like` has."""
    name, data = event
    tools = {own: named for named, own in AGENT_TOOLS.items()}
    words = {
        "tool_call": lambda: [data["toolCallId"], tools.get(data["name"], data["name"])],
        "tool_result": lambda: [data["toolCallId"]],
        "turn_stop": lambda: [data["stopReason"]],
    }
    return " ".join([name, *words.get(name, list)()][: len(like.split())])


@pytest.mark.parametrize("granted", [True, False], ids=["granted", "denied"])
@pytest.mark.parametrize("title", FLOWS)
async def test_flow(portico: RunningGateway, write_scenario: WriteScenario, title: str, granted: bool) -> None:
    path, session = "/session", None
    found: list[tuple[str, Any]] = []
    for step in FLOWS[title]:
        if "client" in step:
            body: Json = {"messages": [answer_to(message, granted) for message in step["client"]], "stream": "delta"}
            if session is None:
                body |= {"agent": agent(write_scenario(steps_of(title)), tools=GRANTS), "tools": APPLICATION_TOOLS}
            found = read_stream(await portico.client.request("POST" if session else "PUT", path, json=body))
            if session is None:
                session = found.pop(0)[1]["sessionId"]
                path = f"/session/{session}"
        else:
            assert found.pop(0) == ("turn_start", {})
            assert [line_of(*pair) for pair in zip(found, step["server"], strict=True)] == step["server"]
    told = dict(found)["text_delta"]["delta"]
    denied = "denied" in told and "not today" in told
    asks = any(message["role"] == "tool_permission" for step in FLOWS[title] for message in step.get("client", []))
    assert denied == (asks and not granted)
    full = plain((await portico.client.get(path)).json())["history"]["full"]
    assert [message["role"] for message in full if message["role"] == "tool_permission"] == []
    results = {message["toolCallId"]: message["content"] for message in full if message["role"] == "tool"}
    assert told == " ".join(results[call] for call in sorted(results))


async def test_parallel_calls_are_answered_in_one_request(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    body = {"agent": agent(write_scenario(steps_of("Parallel tool calls")), tools=GRANTS), "tools": APPLICATION_TOOLS}
    made = (await portico.client.put("/session", json={**body, "messages": [user()]})).json()
    answers = [answer_to(message, True) for message in FLOWS["Parallel tool calls"][2]["client"]]
    path = f"/session/{made['sessionId']}"
    partly = await portico.client.post(path, json={"messages": answers[:2]})
    assert partly.status_code == 400 and "call_004" in partly.text
    whole = await portico.client.post(path, json={"messages": answers})
    assert (whole.status_code, whole.json()["stopReason"]) == (200, "end_turn")


def unresolved(session: Json) -> list[Json]:
    """Return the calls that a client has to answer, found as the document says: "Tool call resumption"."""
    full = session["history"]["full"]
    last = max(n for n, message in enumerate(full) if message["role"] == "assistant")
    done = {message["toolCallId"] for message in full[last + 1 :] if message["role"] == "tool"}
    return [block for block in full[last]["content"] if block["type"] == "tool_use" and block["toolCallId"] not in done]


async def test_client_without_memory_resumes_after_a_restart(tmp_path: Path, write_scenario: WriteScenario) -> None:
    body = {"agent": agent(write_scenario(steps_of("Parallel tool calls")), tools=GRANTS), "tools": APPLICATION_TOOLS}
    async with run_gateway(gateway_config(tmp_path)) as portico:
        made = (await portico.client.put("/session", json={**body, "messages": [user()]})).json()
        assert made["stopReason"] == "tool_use"
    async with run_gateway(gateway_config(tmp_path)) as portico:
        [session] = plain((await portico.client.get("/sessions")).json())["sessions"]
        found = plain((await portico.client.get(f"/session/{session}")).json())
        calls = unresolved(found)
        assert [call["toolCallId"] for call in calls] == ["call_001", "call_002", "call_004"]
        application = {tool["name"] for tool in found["tools"]}
        answers = [
            {"role": "tool", "toolCallId": call["toolCallId"], "content": "from before"}
            if call["name"] in application
            else {"role": "tool_permission", "toolCallId": call["toolCallId"], "granted": False}
            for call in calls
        ]
        answer = await portico.client.post(f"/session/{session}", json={"messages": answers})
    assert answer.status_code == 200, answer.text
    assert answer.json()["stopReason"] == "end_turn"
    assert "from before" in json.dumps(answer.json()["messages"])


async def test_names_of_tools_are_unique_in_a_request(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    tools = [{**APPLICATION_TOOLS[0], "name": "lookup"}]
    body = {"agent": agent(write_scenario([{"text": "x"}]), tools=GRANTS), "messages": [user()], "tools": tools}
    answer = await portico.client.put("/session", json=body)
    assert answer.status_code == 400 and "lookup" in answer.json()["error"]
