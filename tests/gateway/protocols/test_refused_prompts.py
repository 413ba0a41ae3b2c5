"""A prompt that a hook of the agent's CLI refuses: each protocol says why, and the history is what the CLI has kept."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_client import on_websocket
from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway

PROGRAM = Path(__file__).with_name("refusing_claude.py")
REFUSALS = {
    "blockme please": "The prompt was refused by a hook: Tickets only",
    "stopme please": "A hook has stopped the turn: Closed today",
}


@pytest.fixture
async def portico(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    program = tmp_path / "claude"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {PROGRAM} "$@"\n')
    program.chmod(0o755)
    agent = {"driver": "claude", "program": str(program), "cwd": str(tmp_path), "options": {"mode": "ask"}}
    async with run_gateway(gateway_config(tmp_path, agents={"claude": agent})) as running:
        yield running


def message(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def history(portico: RunningGateway, session: str) -> list[dict[str, Any]]:
    found = (await portico.client.get(f"/session/{session}", params={"history": "full"})).json()
    return list(found["history"]["full"])


async def test_a_refused_prompt_over_aap(portico: RunningGateway) -> None:
    for prompt, reason in REFUSALS.items():
        body = {"agent": {"name": "claude"}, "messages": [message("before")]}
        session = (await portico.client.put("/session", json=body)).json()["sessionId"]
        before = await history(portico, session)
        answer = (await portico.client.post(f"/session/{session}", json={"messages": [message(prompt)]})).json()
        assert (answer["stopReason"], [found["content"] for found in answer["messages"]]) == ("refusal", [reason]), (
            prompt,
            reason,
        )
        kept = [*before, message(prompt), {"role": "assistant", "content": reason}] if "stop" in prompt else before
        assert await history(portico, session) == kept, (prompt, reason)
        after = (await portico.client.post(f"/session/{session}", json={"messages": [message("after")]})).json()
        assert (after["stopReason"], after["messages"][0]["content"]) == ("end_turn", "You said: after"), (prompt, reason)
        assert [found["content"] for found in await history(portico, session)][len(kept) :] == ["after", "You said: after"], (
            prompt,
            reason,
        )
    # AAP as a stream.
    for prompt, reason in REFUSALS.items():
        body = {"agent": {"name": "claude"}, "messages": [message(prompt)], "stream": "delta"}
        text = (await portico.client.put("/session", json=body)).text
        assert json.dumps({"delta": reason}, separators=(",", ":")) in text and '"stopReason":"refusal"' in text, (prompt, reason)
    # A fork and a search have what was kept.
    body = {"agent": {"name": "claude"}, "messages": [message("blockme please")]}
    session = (await portico.client.put("/session", json=body)).json()["sessionId"]
    await portico.client.post(f"/session/{session}", json={"messages": [message("after")]})
    fork = (await portico.client.post(f"/aap/v3/sessions/{session}/fork", json={})).json()
    assert "blockme" not in json.dumps(await history(portico, fork["sessionId"]))
    found = (await portico.client.get(f"/aap/v3/sessions/{session}/log")).text
    assert "blockme" in found and '"prompt_kept":false' in found


async def test_a_refused_prompt_over_the_other_protocols(portico: RunningGateway) -> None:
    for prompt, reason in REFUSALS.items():
        async with on_websocket(portico.url, "claude", KEY) as client:
            await client.initialize()
            session = await client.new()
            assert (await client.prompt(session, prompt))["stopReason"] == "refusal", (prompt, reason)
            assert client.text(session) == reason, (prompt, reason)
            assert (await client.prompt(session, "after"))["stopReason"] == "end_turn", (prompt, reason)
        text = (await portico.client.post("/v1/execute", json={"driver": "claude", "task": prompt})).text
        events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
        assert [event["text"] for event in events if event["kind"] == "agent_token"] == [reason], (prompt, reason)
        assert (events[-1]["kind"], events[-1]["exit_code"]) == ("session_end", 1), (prompt, reason)
        assert "prompt_kept" not in events[-1], (prompt, reason)
        chat = {"model": "claude", "messages": [message(prompt)]}
        [choice] = (await portico.client.post("/v1/chat/completions", json=chat)).json()["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("content_filter", reason), (prompt, reason)
        again = [*chat["messages"], {"role": "assistant", "content": reason}, message("after")]  # type: ignore[misc]
        after = {"model": "claude", "messages": again}
        [choice] = (await portico.client.post("/v1/chat/completions", json=after)).json()["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "You said: after"), (prompt, reason)
        messages = {"model": "claude", "max_tokens": 100, "messages": [message(prompt)]}
        found = (await portico.client.post("/v1/messages", json=messages)).json()
        assert (found["stop_reason"], found["content"][0]["text"]) == ("refusal", reason), (prompt, reason)
        found = (await portico.client.post("/v1/responses", json={"model": "claude", "input": prompt})).json()
        assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "content_filter"}), (prompt, reason)
        assert reason in json.dumps(found["output"]), (prompt, reason)


async def test_a_notice_is_no_part_of_the_answer(portico: RunningGateway) -> None:
    for declared in (True, False):
        async with on_websocket(portico.url, "claude", KEY) as client:
            capabilities = {"session": {"notices": {}}} if declared else {}
            await client.request("initialize", {"protocolVersion": 1, "clientCapabilities": capabilities})
            session = await client.new()
            assert (await client.prompt(session, "noticeme"))["stopReason"] == "end_turn", declared
            assert client.text(session) == "You said: noticeme", declared
            notices = [update for update in client.updates(session) if update["sessionUpdate"] == "notice"]
            expected = {"sessionUpdate": "notice", "severity": "warning", "title": "Careful", "description": "The limit is near."}
            assert notices == ([expected] if declared else []), declared
    # A notice in the other protocols.
    chat = {"model": "claude", "messages": [message("noticeme")]}
    [choice] = (await portico.client.post("/v1/chat/completions", json=chat)).json()["choices"]
    assert choice["message"]["content"] == "You said: noticeme"
    text = (await portico.client.post("/v1/execute", json={"driver": "claude", "task": "noticeme"})).text
    assert '{"kind":"x-portico.notice","severity":"warning","text":"Careful\\nThe limit is near."}' in text
