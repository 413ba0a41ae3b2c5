"""Turns with the real codex: its limit of a prompt, its settings, its tiers of service, and a compaction."""

from __future__ import annotations

from gateway.security.authentication import ADMINISTRATOR
from tests.model_server.openai import OpenAIServer
from tests.real.aap_client import frames_of, user
from tests.real.codex.aap_client import create_session
from tests.real.codex.conftest import Home
from tests.real.processes import cli_of
from tests.support.daemon import RunningGateway

PLAIN = "Hello from the model, this is plain text."


async def test_a_prompt_of_more_than_a_megabyte_is_refused_by_the_cli(portico: RunningGateway) -> None:
    prompt = ("[[plain]] " + "0123456789abcde\n" * 65536)[: 1024 * 1024 - 1] + "."
    aap = await create_session(portico.client, prompt)
    answer = await aap.send(prompt + "!")
    assert (answer["stopReason"], "exceeds the maximum length" in answer["x-portico"]["error"]) == ("error", True)
    assert await aap.send_turn("[[plain]]") == PLAIN


async def test_the_model_the_effort_and_the_key(home: Home, model: OpenAIServer) -> None:
    config = f'model = "gpt-5.5"\nopenai_base_url = "{model.url}/v1"\n'
    (home.codex / "config.toml").write_text(config)
    async with home.gateway() as running:
        await create_session(running.client, "[[plain]]", model="gpt-5.4-mini", effort="low", api_key="sk-option-0123456789")
    request = model.bodies()[-1]
    assert (request["model"], request["reasoning"]["effort"]) == ("gpt-5.4-mini", "low")
    assert model.keys[-1] == "Bearer sk-option-0123456789"
    assert not [f for f in home.path.rglob("*") if f.is_file() and b"sk-option" in f.read_bytes()]


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


async def test_a_wrong_setting_fails_the_session_creation(home: Home) -> None:
    (home.codex / "config.toml").write_text('model_provider = "nowhere"\n')
    async with home.gateway() as running:
        answer = await running.client.put("/session", json={"agent": {"name": "codex"}, "messages": [user("x")]})
    assert answer.status_code >= 500 and "nowhere" in answer.text
