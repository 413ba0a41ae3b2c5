"""The system message, model, key, settings and images of a session reach the CLI; the key is not exposed."""

from __future__ import annotations

import json
from pathlib import Path

from tests.real.aap_client import create_session, execute, user
from tests.real.conftest import DUMMY_KEY, Home
from tests.real.models import Model, message_texts
from tests.real.processes import arguments, cli_of
from tests.support.daemon import RunningGateway

SECRET = "sk-ant-secret-of-this-session-987654"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def test_a_secret_key_is_sent_to_the_vendor_only(home: Home, model: Model) -> None:
    home.env["CLAUDE_CODE_MAX_RETRIES"] = "0"
    daemon = await home.daemon(server={"log_level": "debug"})
    async with daemon.client() as client:
        aap = await create_session(client, "[[plain]] hello", api_key=SECRET)
        assert set(model.keys) == {SECRET}
        assert SECRET not in " ".join(arguments(cli_of(home.path)))
        assert (await aap.info())["agent"]["options"] == {"api_key": "***"}
        responses = [(await client.get(path)).text for path in (f"/session/{aap.id}", "/meta", "/sessions")]
        assert SECRET not in "".join(responses)
        failed = await client.post(f"/session/{aap.id}", json={"messages": [user("[[e401]]")]})
        assert failed.json()["stopReason"] == "error" and SECRET not in failed.text
        # The masked value is sent back: the key is kept.
        await aap.send_turn("[[plain]] again", agent={"options": {"api_key": "***"}})
    assert await daemon.stop() == 0
    assert SECRET not in daemon.stderr.decode()
    assert _files_with(SECRET, home.base) == []
    await daemon.start()
    async with daemon.client() as client:
        await aap.with_client(client).send_turn("[[plain]] after the restart")
    assert set(model.keys) == {SECRET}


async def test_the_key_of_the_agents_environment_is_used_without_one(portico: RunningGateway, model: Model) -> None:
    await create_session(portico.client, "[[plain]] hello")
    assert model.keys == [DUMMY_KEY]


def _files_with(text: str, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


async def test_images_pass_through(portico: RunningGateway, model: Model) -> None:
    content = [
        {"type": "text", "text": "[[plain]] What is this?"},
        {"type": "image", "url": f"data:image/png;base64,{PIXEL}"},
        {"type": "image", "url": "https://example.invalid/cat.png?size=1&x=%20"},
    ]
    aap = await create_session(portico.client, user(content))
    images = [block["source"] for block in model.last_request()["messages"][0]["content"] if block["type"] == "image"]
    assert images == [
        {"type": "base64", "media_type": "image/png", "data": PIXEL},
        {"type": "url", "url": "https://example.invalid/cat.png?size=1&x=%20"},
    ]
    # The CLI also stores the image as a file and adds its path for the model.
    assert message_texts(model.last_request(), "user")[0] == "[[plain]] What is this?"
    assert (await aap.history())[0] == user(content)


async def test_a_session_has_no_tools_by_default(portico: RunningGateway, home: Home, model: Model) -> None:
    started = home.base / "mcp-server-was-started"
    server = {"type": "stdio", "command": "touch", "args": [str(started)]}
    (home.path / ".claude.json").write_text(json.dumps({"mcpServers": {"app": server}}))
    aap = await create_session(portico.client, "[[bash]] hello")
    assert model.last_request().get("tools", []) == []
    assert not started.exists(), "no MCP server is started"
    # A model that calls one nevertheless gets an error for a result, and the turn goes on.
    history = await aap.history()
    assert [message["role"] for message in history] == ["user", "assistant", "tool", "assistant"]
    assert "hi" not in str(history[2]["content"]).split()
    assert history[3]["content"] == "The files are listed."


async def test_the_settings_option_selects_the_settings_of_the_home(portico: RunningGateway, home: Home, model: Model) -> None:
    folder = home.path / ".claude"
    folder.mkdir()
    (folder / "CLAUDE.md").write_text("Remember the word Quicksilver.")
    await create_session(portico.client, "[[plain]] hello")
    assert "Quicksilver" in json.dumps(model.last_request())
    await create_session(portico.client, "[[plain]] hello", settings="none")
    assert "Quicksilver" not in json.dumps(model.last_request())


async def test_the_fast_mode_is_a_session_option_and_can_be_changed(portico: RunningGateway, model: Model) -> None:
    aap = await create_session(portico.client, "[[plain]] hello", fast="on")
    assert model.last_request()["speed"] == "fast"
    # With the settings by which a tool asks.
    await aap.send_turn("[[plain]] again", agent={"tools": [{"name": "Bash"}]})
    assert model.last_request()["speed"] == "fast"
    await aap.send_turn("[[plain]] once more", agent={"options": {"fast": "off"}})
    assert "speed" not in model.last_request()


async def test_the_fast_mode_is_not_requested_from_a_model_without_it(portico: RunningGateway, model: Model) -> None:
    await create_session(portico.client, "[[plain]] hello", fast="on", model="haiku")
    assert "speed" not in model.last_request()


async def test_the_configured_fast_mode_applies_to_tasks(home: Home, model: Model) -> None:
    home.agent["options"] = {"fast": "on"}
    async with home.gateway() as portico:
        await execute(portico.client, "[[plain]] hello")
    assert model.last_request()["speed"] == "fast"
