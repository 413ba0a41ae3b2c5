"""A prompt over the Agent Client Protocol: its updates, permission requests, cancellation and response."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.protocols.acp import permission_requests
from gateway.security.authentication import ADMINISTRATOR
from tests.gateway.protocols.acp.conftest import ConnectClient, Scripted, WriteScenario, scripted_session
from tests.support.acp_client import RpcFailed, connected, prompt
from tests.support.daemon import RunningGateway, gateway_config, run_gateway


async def test_updates_and_response_of_a_prompt(acp: ConnectClient, scripted: Scripted) -> None:
    # Echo returns the prompt.
    client = await acp("echo")
    session = await client.new()
    assert await client.prompt(session, "repeat this") == {"stopReason": "end_turn"}
    assert client.text(session) == "repeat this"
    # Text thinking and usage are sent.
    usage = {"input_tokens": 120, "output_tokens": 18, "cache_read": 100, "cache_write": 3}
    client, session = await scripted([{"thinking": "let me see"}, {"text": "Hello."}, {"usage": usage}])
    answer = await client.prompt(session, "hi")
    assert answer == {
        "stopReason": "end_turn",
        "usage": {
            "inputTokens": 120, "outputTokens": 18, "cachedReadTokens": 100, "cachedWriteTokens": 3, "totalTokens": 241,
        },
    }  # fmt: skip
    assert client.text(kind="agent_thought_chunk") == "let me see"
    assert client.text() == "Hello."
    ids = {u["sessionUpdate"]: u["messageId"] for u in client.updates() if "messageId" in u}
    assert len(set(ids.values())) == 2
    assert client.updates()[-1]["sessionUpdate"] == "session_info_update"
    assert client.updates()[-1]["title"] == "hi"
    # Context use is sent as usage update.
    client, session = await scripted([{"line": '{"kind": "context_use", "used": 1200, "size": 200000}'}])
    await client.prompt(session)
    assert client.updates()[0] == {"sessionUpdate": "usage_update", "used": 1200, "size": 200000}
    # Cost is that of the session and reasoning is in the answer.
    steps: list[dict[str, Any]] = [
        {"line": '{"kind": "context_use", "used": 12, "size": 200}'},
        {"usage": {"output_tokens": 5, "reasoning_tokens": 3, "cost_usd": 0.25}},
    ]
    client, session = await scripted(steps)
    for number in (1, 2):
        assert (await client.prompt(session))["usage"]["thoughtTokens"] == 3
        costs = [update["cost"] for update in client.updates() if "cost" in update]
        assert costs[-1] == {"amount": 0.25 * number, "currency": "USD"}
    assert len(costs) == 2
    # Stop reason of the agent is returned.
    for step, reason in (({"stop": "max_tokens"}, "max_tokens"), ({"stop": "refusal"}, "refusal"), ({"text": "."}, "end_turn")):
        client, session = await scripted([step])
        assert (await client.prompt(session))["stopReason"] == reason, (step, reason)


async def test_allowed_and_rejected_tool_calls(scripted: Scripted, portico: RunningGateway) -> None:
    # Allowed tool call runs.
    call = {"name": "write_note", "id": "n1", "input": {"path": "a.md", "text": "A"}, "result": "written"}
    client, session = await scripted([{"tool_call": call}, {"text": "{last_result}"}])
    answer = await client.begin("session/prompt", prompt(session, "go"))
    question = await client.next_permission_request()
    asked = question["params"]
    assert [option["kind"] for option in asked["options"]] == ["allow_once", "allow_always", "reject_once", "reject_always"]
    assert asked["toolCall"]["toolCallId"] == "n1"
    assert asked["toolCall"]["kind"] == "edit"
    assert asked["toolCall"]["rawInput"] == {"path": "a.md", "text": "A"}
    assert asked["toolCall"]["locations"][0]["path"].endswith("/scenes/a.md")
    await client.answer(question, "allow_once")
    assert (await answer)["stopReason"] == "end_turn"
    states = [(u["sessionUpdate"], u["status"]) for u in client.updates() if "toolCallId" in u]
    assert states == [("tool_call", "pending"), ("tool_call_update", "completed")]
    assert client.text() == "written"
    # Rejected tool call fails.
    for option in ("reject_once", "reject_always", "no such option"):
        call = {"name": "shell", "input": {"command": "rm x"}, "write_file": {"path": "ran", "text": ""}}
        client, session = await scripted([{"tool_call": call}, {"text": "{last_result}"}])
        client.choose = lambda params, option=option: option  # type: ignore[misc]
        assert (await client.prompt(session, "go"))["stopReason"] == "end_turn", option
        assert [u["status"] for u in client.updates() if u["sessionUpdate"] == "tool_call_update"] == ["failed"], option
        assert "denied" in client.text(), option
        found = await portico.gateway.sessions.get(ADMINISTRATOR, session)
        names = {grant.name for grant in found.config.tools or ()}
        assert ("shell" in names) == (option != "reject_always"), option
    # Allow always sets trust of the tool in the session.
    steps = [{"tool_call": {"name": "shell", "input": {"command": f"c{n}"}}} for n in range(3)]
    client, session = await scripted([*steps, {"text": "done"}])
    questions: list[Any] = []
    client.choose = lambda params: questions.append(params) or "allow_always"  # type: ignore[func-returns-value]
    await client.prompt(session, "one")
    await client.prompt(session, "two")
    assert len(questions) == 1
    found = await portico.gateway.sessions.get(ADMINISTRATOR, session)
    assert {grant.name: grant.trust for grant in found.config.tools or ()} == {
        "lookup": False, "write_note": False, "shell": True,
    }  # fmt: skip


async def test_trust_does_not_answer_an_explicit_permission_request(scripted: Scripted) -> None:
    """codex asks so about a patch outside of its folders. `allow_always` does not answer the next such request either."""
    step = {"tool_call": {"name": "shell", "ask": True, "result": "ran"}}
    client, session = await scripted([step, {"text": "{last_result}"}])
    await client.request("session/set_mode", {"sessionId": session, "modeId": "auto"})
    for choice, n in (("allow_always", 1), ("reject_once", 2)):
        client.choose = lambda params, choice=choice: choice  # type: ignore[misc]
        await client.prompt(session, "go")
        assert sum(m.get("method") == "session/request_permission" for m in client.received) == n
    assert client.text().startswith("ran") and "denied" in client.text()


async def test_trust_does_not_override_a_policy_rule_that_asks(tmp_path: Path, write_scenario: WriteScenario) -> None:
    config = gateway_config(tmp_path)
    config["agents"]["script"]["policy"] = [{"tool": "shell", "when": {"command": "rm *"}, "decide": "ask"}]
    steps = [{"tool_call": {"name": "shell", "input": {"command": command}}} for command in ("rm x", "ls", "rm y")]
    async with run_gateway(config) as portico, connected(portico.gateway) as client:
        session = await scripted_session(client, portico.gateway, write_scenario(steps))
        client.choose = lambda params: "allow_always"
        for n in (1, 2):
            await client.prompt(session, "go")
            asked = [m["params"]["toolCall"]["title"] for m in client.received if m.get("method") == "session/request_permission"]
            assert asked == ["rm x", "rm y"] * n


async def test_prompts_that_are_cancelled_while_a_permission_is_pending_or_by_their_id(scripted: Scripted) -> None:
    # Cancel while a permission is pending.
    client, session = await scripted([{"tool_call": {"name": "shell"}}])
    answer = await client.begin("session/prompt", prompt(session, "go"))
    question = await client.next_permission_request()
    await client.notify("session/cancel", {"sessionId": session})
    await client.answer(question, None)
    assert (await answer)["stopReason"] == "cancelled"
    assert client.received[-1].get("result", {}).get("stopReason") == "cancelled"
    # Cancel request notification cancels the prompt.
    client, session = await scripted([{"hang": True}])
    answer = await client.begin("session/prompt", prompt(session, "go"), request_id="the prompt")
    await client.notify("$/cancel_request", {"requestId": "the prompt"})
    assert (await answer)["stopReason"] == "cancelled"


async def test_failed_turns_are_answered_with_an_error(scripted: Scripted) -> None:
    # Failed turn is answered with an error.
    steps = [{"stop": {"reason": "error", "message": "429:\nthe model is overloaded"}}]
    client, session = await scripted(steps)
    with pytest.raises(RpcFailed, match="429: the model is overloaded") as failed:
        await client.prompt(session)
    assert failed.value.code == -32603
    # Session accepts prompts after a crash.
    turns = ({"when": "crash", "steps": [{"exit": {"signal": "SIGKILL"}}]}, [{"text": "back"}])
    client, session = await scripted(*turns)
    with pytest.raises(RpcFailed, match="ended in the middle"):
        await client.prompt(session, "crash")
    assert (await client.prompt(session, "again"))["stopReason"] == "end_turn"
    assert client.text() == "back"


async def test_call_whose_answer_cannot_be_read_is_denied(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("outcome")

    monkeypatch.setattr(permission_requests, "answer_of", fail)
    call = {"name": "shell", "input": {"command": "rm x"}}
    client, session = await scripted([{"tool_call": call}, {"text": "{last_result}"}])
    client.choose = lambda params: "allow_once"
    assert (await asyncio.wait_for(client.prompt(session, "go"), 30))["stopReason"] == "end_turn"
    assert "denied" in client.text()
