"""A prompt over the Agent Client Protocol: its updates, permission requests, cancellation and response."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.protocols.acp import permission_requests
from gateway.security.authentication import ADMINISTRATOR
from tests.gateway.protocols.acp.client import RpcFailed, connect, prompt
from tests.gateway.protocols.acp.conftest import ConnectClient, WriteScenario, scripted_session
from tests.support.daemon import RunningGateway, gateway_config, run_gateway


async def test_echo_returns_the_prompt(acp: ConnectClient) -> None:
    client = await acp("echo")
    session = await client.new()
    assert await client.prompt(session, "repeat this") == {"stopReason": "end_turn"}
    assert client.text(session) == "repeat this"


async def test_text_thinking_and_usage_are_sent(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    client = await acp()
    usage = {"input_tokens": 120, "output_tokens": 18, "cache_read": 100, "cache_write": 3}
    session = await scripted_session(
        client, portico.gateway, write_scenario([{"thinking": "let me see"}, {"text": "Hello."}, {"usage": usage}])
    )
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


async def test_context_use_is_sent_as_usage_update(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    client = await acp()
    session = await scripted_session(
        client, portico.gateway, write_scenario([{"line": '{"kind": "context_use", "used": 1200, "size": 200000}'}])
    )
    await client.prompt(session)
    assert client.updates()[0] == {"sessionUpdate": "usage_update", "used": 1200, "size": 200000}


async def test_cost_is_that_of_the_session_and_reasoning_is_in_the_answer(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    client = await acp()
    steps: list[dict[str, Any]] = [
        {"line": '{"kind": "context_use", "used": 12, "size": 200}'},
        {"usage": {"output_tokens": 5, "reasoning_tokens": 3, "cost_usd": 0.25}},
    ]
    session = await scripted_session(client, portico.gateway, write_scenario(steps))
    for number in (1, 2):
        assert (await client.prompt(session))["usage"]["thoughtTokens"] == 3
        costs = [update["cost"] for update in client.updates() if "cost" in update]
        assert costs[-1] == {"amount": 0.25 * number, "currency": "USD"}
    assert len(costs) == 2


async def test_allowed_tool_call_runs(acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario) -> None:
    client = await acp()
    call = {"name": "write_note", "id": "n1", "input": {"path": "a.md", "text": "A"}, "result": "written"}
    session = await scripted_session(client, portico.gateway, write_scenario([{"tool_call": call}, {"text": "{last_result}"}]))
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


@pytest.mark.parametrize("option", ["reject_once", "reject_always", "no such option"])
async def test_rejected_tool_call_fails(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario, option: str
) -> None:
    client = await acp()
    call = {"name": "shell", "input": {"command": "rm x"}, "write_file": {"path": "ran", "text": ""}}
    session = await scripted_session(client, portico.gateway, write_scenario([{"tool_call": call}, {"text": "{last_result}"}]))
    client.choose = lambda params: option
    assert (await client.prompt(session, "go"))["stopReason"] == "end_turn"
    assert [u["status"] for u in client.updates() if u["sessionUpdate"] == "tool_call_update"] == ["failed"]
    assert "denied" in client.text()
    found = await portico.gateway.sessions.get(ADMINISTRATOR, session)
    names = {grant.name for grant in found.config.tools or ()}
    assert ("shell" in names) == (option != "reject_always")


async def test_allow_always_sets_trust_of_the_tool_in_the_session(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    client = await acp()
    steps = [{"tool_call": {"name": "shell", "input": {"command": f"c{n}"}}} for n in range(3)]
    session = await scripted_session(client, portico.gateway, write_scenario([*steps, {"text": "done"}]))
    questions: list[Any] = []
    client.choose = lambda params: questions.append(params) or "allow_always"  # type: ignore[func-returns-value]
    await client.prompt(session, "one")
    await client.prompt(session, "two")
    assert len(questions) == 1
    found = await portico.gateway.sessions.get(ADMINISTRATOR, session)
    assert {grant.name: grant.trust for grant in found.config.tools or ()} == {
        "lookup": False, "write_note": False, "shell": True,
    }  # fmt: skip


async def test_trust_does_not_answer_an_explicit_permission_request(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    """codex asks so about a patch outside of its folders. `allow_always` does not answer the next such request either."""
    client = await acp()
    step = {"tool_call": {"name": "shell", "ask": True, "result": "ran"}}
    session = await scripted_session(client, portico.gateway, write_scenario([step, {"text": "{last_result}"}]))
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
    async with run_gateway(config) as portico:
        client, connection = connect(portico.gateway)
        await client.initialize()
        session = await scripted_session(client, portico.gateway, write_scenario(steps))
        client.choose = lambda params: "allow_always"
        for n in (1, 2):
            await client.prompt(session, "go")
            asked = [m["params"]["toolCall"]["title"] for m in client.received if m.get("method") == "session/request_permission"]
            assert asked == ["rm x", "rm y"] * n
        await connection.close()


async def test_cancel_while_text_is_sent(acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario) -> None:
    client = await acp()
    session = await scripted_session(client, portico.gateway, write_scenario([{"text": "One moment."}, {"hang": True}]))
    answer = await client.begin("session/prompt", prompt(session, "go"))
    await client.until(lambda _: client.text() == "One moment.")
    await client.notify("session/cancel", {"sessionId": session})
    assert (await answer)["stopReason"] == "cancelled"
    assert client.received[-1]["result"]["stopReason"] == "cancelled"
    # The session accepts another prompt, and later updates belong to that prompt.
    before = len(client.received)
    again = await client.begin("session/prompt", prompt(session, "again"))
    await client.until(lambda _: client.text(since=before) == "One moment.")
    await client.notify("session/cancel", {"sessionId": session})
    assert (await again)["stopReason"] == "cancelled"


async def test_cancel_while_a_permission_is_pending(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    client = await acp()
    session = await scripted_session(client, portico.gateway, write_scenario([{"tool_call": {"name": "shell"}}]))
    answer = await client.begin("session/prompt", prompt(session, "go"))
    question = await client.next_permission_request()
    await client.notify("session/cancel", {"sessionId": session})
    await client.answer(question, None)
    assert (await answer)["stopReason"] == "cancelled"
    assert client.received[-1].get("result", {}).get("stopReason") == "cancelled"


async def test_cancel_right_after_the_prompt(acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario) -> None:
    client = await acp()
    session = await scripted_session(client, portico.gateway, write_scenario([{"hang": True}]))
    answer = await client.begin("session/prompt", prompt(session, "go"))
    await client.notify("session/cancel", {"sessionId": session})
    assert (await answer)["stopReason"] == "cancelled"


async def test_cancel_request_notification_cancels_the_prompt(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    client = await acp()
    session = await scripted_session(client, portico.gateway, write_scenario([{"hang": True}]))
    answer = await client.begin("session/prompt", prompt(session, "go"), request_id="the prompt")
    await client.notify("$/cancel_request", {"requestId": "the prompt"})
    assert (await answer)["stopReason"] == "cancelled"


@pytest.mark.parametrize(
    ("step", "reason"), [({"stop": "max_tokens"}, "max_tokens"), ({"stop": "refusal"}, "refusal"), ({"text": "."}, "end_turn")]
)
async def test_stop_reason_of_the_agent_is_returned(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario, step: Any, reason: str
) -> None:
    client = await acp()
    session = await scripted_session(client, portico.gateway, write_scenario([step]))
    assert (await client.prompt(session))["stopReason"] == reason


async def test_failed_turn_is_answered_with_an_error(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    client = await acp()
    steps = [{"stop": {"reason": "error", "message": "429:\nthe model is overloaded"}}]
    session = await scripted_session(client, portico.gateway, write_scenario(steps))
    with pytest.raises(RpcFailed, match="429: the model is overloaded") as failed:
        await client.prompt(session)
    assert failed.value.code == -32603


async def test_session_accepts_prompts_after_a_crash(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    client = await acp()
    turns = ({"when": "crash", "steps": [{"exit": {"signal": "SIGKILL"}}]}, [{"text": "back"}])
    session = await scripted_session(client, portico.gateway, write_scenario(*turns))
    with pytest.raises(RpcFailed, match="ended in the middle"):
        await client.prompt(session, "crash")
    assert (await client.prompt(session, "again"))["stopReason"] == "end_turn"
    assert client.text() == "back"


async def test_call_whose_answer_cannot_be_read_is_denied(
    acp: ConnectClient, portico: RunningGateway, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("outcome")

    monkeypatch.setattr(permission_requests, "answer_of", fail)
    client = await acp()
    client.choose = lambda params: "allow_once"
    call = {"name": "shell", "input": {"command": "rm x"}}
    session = await scripted_session(client, portico.gateway, write_scenario([{"tool_call": call}, {"text": "{last_result}"}]))
    assert (await asyncio.wait_for(client.prompt(session, "go"), 30))["stopReason"] == "end_turn"
    assert "denied" in client.text()
