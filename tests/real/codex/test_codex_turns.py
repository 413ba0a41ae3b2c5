"""Turns with the real codex: the three stream modes, a warm process, prompts as they were written, images and system prompts."""

from __future__ import annotations

import pytest

from gateway.security.authentication import ADMINISTRATOR
from tests.model_server.openai import OpenAIServer
from tests.real.aap_client import frames_of, joined, text_of, user
from tests.real.codex.aap_client import create_session, message_texts
from tests.real.codex.conftest import Home
from tests.real.processes import arguments, cli_of
from tests.support.daemon import RunningGateway
from tests.support.waiting import wait_until

PLAIN = "Hello from the model, this is plain text."
THOUGHT, ANSWER = "Let me think about this carefully.", "The answer is 42."
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

STOP = {
    "stopReason": "end_turn",
    "x-portico": {
        "usage": {"inputTokens": 100, "outputTokens": 42, "cacheReadTokens": 7, "cacheWriteTokens": 0, "reasoningTokens": 5},
        "context": {"used": 149, "size": 258400},
    },
}


async def test_a_session_is_created_by_a_delta_stream(portico: RunningGateway) -> None:
    body = {"agent": {"name": "codex"}, "messages": [user("[[think]] hello")], "stream": "delta"}
    async with frames_of(portico.client, "PUT", "/session", body) as source:
        frames = [frame async for frame in source]
    names = [name for name, _ in frames]
    thinking, text = names.count("thinking_delta"), names.count("text_delta")
    assert names == ["session_start", "turn_start", *["thinking_delta"] * thinking, *["text_delta"] * text, "turn_stop"]
    assert thinking > 1 and text > 1
    assert joined(frames, "thinking_delta", "delta") == THOUGHT
    assert joined(frames, "text_delta", "delta") == ANSWER
    assert frames[-1] == ("turn_stop", STOP)


async def test_whole_messages_by_message_mode_and_in_the_history(portico: RunningGateway) -> None:
    aap = await create_session(portico.client, "[[plain]] hello")
    assert await aap.stream_turn("[[think]] again", "message") == [
        ("turn_start", {}),
        ("thinking", {"thinking": THOUGHT}),
        ("text", {"text": ANSWER}),
        ("turn_stop", STOP),
    ]
    answer = {"role": "assistant", "content": [{"type": "thinking", "thinking": THOUGHT}, {"type": "text", "text": ANSWER}]}
    assert (await aap.history())[-1] == answer


async def test_three_turns_in_one_warm_process_keep_the_context(portico: RunningGateway, home: Home, model: OpenAIServer) -> None:
    aap = await create_session(portico.client, "[[plain]] one")
    first = cli_of(home.path)
    await aap.send_turn("[[think]] two")
    assert await aap.send_turn("[[recall]] three") == "I see 3 user texts. Before this one: [[plain]] one | [[think]] two"
    assert cli_of(home.path) == first
    assert message_texts(model.bodies()[-1], "assistant") == [PLAIN, ANSWER]
    assert [message["role"] for message in await aap.history()] == ["user", "assistant"] * 3


async def test_an_answer_of_more_than_a_megabyte_is_complete(portico: RunningGateway) -> None:
    aap = await create_session(portico.client, "[[bigtext]]")
    assert text_of(aap.first["messages"]) == "X" * 1_200_000


async def test_a_prompt_of_a_megabyte(portico: RunningGateway, model: OpenAIServer) -> None:
    prompt = ("[[plain]] " + "0123456789abcde\n" * 65536)[: 1024 * 1024 - 1] + "."
    aap = await create_session(portico.client, prompt)
    assert message_texts(model.bodies()[-1]) == [prompt]
    answer = await aap.send(prompt + "!")
    assert (answer["stopReason"], "exceeds the maximum length" in answer["x-portico"]["error"]) == ("error", True)
    assert await aap.send_turn("[[plain]]") == PLAIN


PROMPTS = ["-p [[plain]]", "/review [[plain]]", "@/etc/hostname [[plain]]", "! ls [[plain]]", "$skill \u2028 [[plain]]"]


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_a_prompt_reaches_the_model_as_it_was_written(portico: RunningGateway, model: OpenAIServer, prompt: str) -> None:
    await create_session(portico.client, prompt)
    assert message_texts(model.bodies()[-1]) == [prompt]


async def test_an_image(portico: RunningGateway, model: OpenAIServer) -> None:
    await create_session(portico.client, user([{"type": "text", "text": "[[plain]] look"}, {"type": "image", "url": PIXEL}]))
    parts = [part for item in model.bodies()[-1]["input"] for part in item.get("content") or []]
    assert [part["image_url"] for part in parts if "image_url" in part] == [PIXEL]
    body = {"agent": {"name": "codex"}, "messages": [user([{"type": "image", "url": "https://example.com/x.png"}])]}
    assert (await portico.client.put("/session", json=body)).status_code == 400


@pytest.mark.parametrize("how", ["append", "replace"])
async def test_a_system_prompt(portico: RunningGateway, model: OpenAIServer, how: str) -> None:
    messages = [{"role": "system", "content": "You are Portia."}, user("[[plain]]")]
    await create_session(portico.client, *messages, system_prompt=how)
    request = "\n".join([str(model.bodies()[-1].get("instructions")), *message_texts(model.bodies()[-1], "developer")])
    assert "You are Portia." in request
    assert ("You are Codex" in request) == (how == "append")


async def test_the_model_the_effort_and_the_key(home: Home, model: OpenAIServer) -> None:
    config = f'model = "gpt-5.5"\nopenai_base_url = "{model.url}/v1"\n'
    (home.codex / "config.toml").write_text(config)
    async with home.gateway() as running:
        await create_session(running.client, "[[plain]]", model="gpt-5.4-mini", effort="low", api_key="sk-option-0123456789")
    request = model.bodies()[-1]
    assert (request["model"], request["reasoning"]["effort"]) == ("gpt-5.4-mini", "low")
    assert model.keys[-1] == "Bearer sk-option-0123456789"
    assert not [f for f in home.path.rglob("*") if f.is_file() and b"sk-option" in f.read_bytes()]


async def test_usage_is_of_each_turn_alone(portico: RunningGateway) -> None:
    aap = await create_session(portico.client, "[[plain]] one")
    await aap.send_turn("[[usage]] two")
    session = await portico.gateway.sessions.get(ADMINISTRATOR, aap.id)
    used = [e.event for e in await session.log.read(0) if e.event.kind == "usage"]
    assert [(u.input_tokens, u.cache_read, u.output_tokens) for u in used] == [(100, 7, 42), (1000, 200, 40)]


async def test_ps_shows_neither_the_prompt_nor_a_key(portico: RunningGateway, home: Home, model: OpenAIServer) -> None:
    system = {"role": "system", "content": "secret-system"}
    aap = await create_session(portico.client, system, user("[[plain]]"), api_key="sk-option-0123456789")
    async with aap.open_stream("[[slowtext]] secret-prompt"):
        await wait_until(lambda: len(model.bodies()) == 2, "the model has a request")
        visible = list(arguments(cli_of(home.path)))
    assert any("app-server" in a for a in visible) and not any("secret" in a or "sk-" in a for a in visible)


async def test_the_native_binary_is_spawned(portico: RunningGateway, home: Home) -> None:
    await create_session(portico.client, "[[plain]]")
    assert "/vendor/" in cli_of(home.path).exe()


async def test_meta_lists_codex(portico: RunningGateway) -> None:
    (agent,) = [a for a in (await portico.client.get("/meta")).json()["agents"] if a["name"] == "codex"]
    assert agent["version"] == "0.171.0"
    assert [tool["name"] for tool in agent["tools"]] == [
        "shell", "apply_patch", "view_image", "web_search", "request_user_input", "implement_plan"
    ]  # fmt: skip
    assert agent["capabilities"]["image"] == {"data": {}} and "tools" in agent["capabilities"]["application"]


async def test_a_compaction_is_reported_without_a_compacted_history(home: Home, model: OpenAIServer) -> None:
    settings = home.codex / "config.toml"
    settings.write_text("model_auto_compact_token_limit = 100\n" + settings.read_text())
    async with home.gateway() as portico:
        aap = await create_session(portico.client, "[[plain]] one")
        assert await aap.send_turn("[[recall]] two") != PLAIN
        kinds = [entry.event.kind for entry in await (await portico.gateway.sessions.get(ADMINISTRATOR, aap.id)).log.read(0)]
        assert kinds.count("compacted") == 1
        assert len(await aap.history()) == 4
        answer = await portico.client.get(f"/session/{aap.id}", params={"history": "compacted"})
        assert answer.status_code == 404 and "declares no compacted history" in answer.json()["error"]


async def test_the_fast_mode_is_a_session_option_and_can_be_changed(portico: RunningGateway, model: OpenAIServer) -> None:
    aap = await create_session(portico.client, "[[plain]]", fast="on")
    assert model.bodies()[-1]["service_tier"] == "priority"
    for value, tier in (("off", None), ("on", "priority"), ("default", None)):
        body = {"messages": [user("[[plain]]")], "agent": {"options": {"fast": value}}}
        answer = await portico.client.post(f"/session/{aap.id}", json=body)
        assert answer.json()["stopReason"] == "end_turn", answer.text
        assert model.bodies()[-1].get("service_tier") == tier


async def test_the_users_own_service_tier_is_the_default(home: Home, model: OpenAIServer) -> None:
    config = home.codex / "config.toml"
    config.write_text('service_tier = "fast"\n' + config.read_text())
    async with home.gateway() as running:
        await create_session(running.client, "[[plain]]")
        assert model.bodies()[-1]["service_tier"] == "priority"
        await create_session(running.client, "[[plain]]", fast="off")
        assert "service_tier" not in model.bodies()[-1]


async def test_the_usage_is_reported_while_the_turn_goes(portico: RunningGateway) -> None:
    aap = await create_session(portico.client, "[[plain]] hello", own={"shell": True})
    body = {"messages": [user("[[twice]]")], "stream": "delta"}
    async with frames_of(portico.client, "POST", f"/session/{aap.id}", body) as source:
        frames = [frame async for frame in source]
    # The CLI reports the tokens of a response when its calls are over, so the result of a later call has them.
    results = [data.get("x-portico", {}).get("usage", {}).get("inputTokens") for name, data in frames if name == "tool_result"]
    assert results == [None, 100]
    assert frames[-1][1]["x-portico"]["usage"]["inputTokens"] == 300


async def test_the_model_and_the_effort_of_the_users_settings_apply_again(home: Home, model: OpenAIServer) -> None:
    config = home.codex / "config.toml"
    config.write_text('model_reasoning_effort = "high"\n' + config.read_text())
    async with home.gateway() as running:
        aap = await create_session(running.client, "[[plain]]", model="gpt-5.4-mini", effort="low")
        first = model.bodies()[-1]
        body = {"messages": [user("[[plain]]")], "agent": {"options": {"model": "", "effort": ""}}}
        answer = await running.client.post(f"/session/{aap.id}", json=body)
    assert answer.json()["stopReason"] == "end_turn", answer.text
    used = [(request["model"], request["reasoning"]["effort"]) for request in (first, model.bodies()[-1])]
    assert used == [("gpt-5.4-mini", "low"), ("gpt-5.5", "high")]
