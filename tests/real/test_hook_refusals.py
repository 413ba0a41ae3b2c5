"""Hooks of the user's settings refuse a prompt or stop a turn of the real claude and codex: the client is told why."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.model_server.openai import OpenAIServer
from tests.real.aap_client import create_session
from tests.real.clis import BIN, require
from tests.real.codex.conftest import Home as CodexHome
from tests.real.codex.conftest import make_home as codex_home
from tests.real.codex.conftest import model as openai_model
from tests.real.conftest import Home
from tests.real.processes import tear_down

__all__ = ["openai_model"]

BLOCKS = """if grep -q blockme; then echo '{"decision": "block", "reason": "Tickets only"}'; fi"""
STOPS = """if grep -q stopme; then echo '{"continue": false, "stopReason": "Closed today"}'; fi"""
ENOUGH = """cat > /dev/null; echo '{"continue": false, "stopReason": "Enough"}'"""


def hooks(event: str, *commands: str) -> str:
    return json.dumps({"hooks": {event: [{"hooks": [{"type": "command", "command": command} for command in commands]}]}})


@pytest.mark.parametrize(
    ("prompt", "reason", "kept"),
    [
        ("[[plain]] blockme", "The prompt was refused by a hook: Tickets only", False),
        ("[[plain]] stopme", "A hook has stopped the turn: Closed today", True),
    ],
)
async def test_claude_refuses_a_prompt(home: Home, prompt: str, reason: str, kept: bool) -> None:
    (home.path / ".claude").mkdir()
    (home.path / ".claude" / "settings.json").write_text(hooks("UserPromptSubmit", BLOCKS, STOPS))
    async with home.gateway() as portico:
        aap = await create_session(portico.client, "[[plain]] before")
        assert await aap.send_turn(prompt, stop="refusal") == reason
        assert (prompt in json.dumps(await aap.history())) is kept
        assert (prompt in await aap.send_turn("[[recall]] after")) is kept
        task = {"driver": "claude", "task": prompt}
        assert reason in (await portico.client.post("/v1/execute", json=task)).text


async def test_claude_is_stopped_after_a_call(home: Home) -> None:
    (home.path / ".claude").mkdir()
    (home.path / ".claude" / "settings.json").write_text(hooks("PostToolUse", ENOUGH))
    async with home.gateway() as portico:
        agent = {"name": "claude", "tools": [{"name": "Bash", "trust": True}]}
        body = {"agent": agent, "messages": [{"role": "user", "content": "[[bash]] go"}]}
        answer = (await portico.client.put("/session", json=body)).json()
        assert (answer["stopReason"], answer["messages"][-1]["content"]) == ("end_turn", "A hook has stopped the turn: Enough")


@pytest.fixture
async def codex(tmp_path: Path, openai_model: OpenAIServer) -> Any:
    home = codex_home(tmp_path, require(BIN / "codex"), openai_model.url)
    yield home
    await tear_down(home.path, home.daemons)


async def trust_hooks(home: CodexHome) -> None:
    """Trust the hooks of the user, as the CLI does when its user says so."""
    pipe = asyncio.subprocess.PIPE
    env = home.agent["env"]
    server = await asyncio.create_subprocess_exec(
        str(BIN / "codex"), "app-server", stdin=pipe, stdout=pipe, env=env, cwd=home.work
    )
    assert server.stdin is not None and server.stdout is not None
    client = {"clientInfo": {"name": "x", "version": "1"}, "capabilities": {"experimentalApi": True}}
    for number, (method, params) in enumerate([("initialize", client), ("hooks/list", {"cwds": [str(home.work)]})]):
        server.stdin.write(json.dumps({"id": number, "method": method, "params": params}).encode() + b"\n")
        while (answer := json.loads(await server.stdout.readline())).get("id") != number:
            pass
    # It ends by itself: a killed wrapper would leave the binary behind, which keeps the pipe open.
    server.stdin.close()
    await server.wait()
    with (home.codex / "config.toml").open("a") as config:
        for hook in answer["result"]["data"][0]["hooks"]:
            config.write(f'\n[hooks.state."{hook["key"]}"]\ntrusted_hash = "{hook["currentHash"]}"\n')


@pytest.mark.parametrize(("prompt", "reason"), [("blockme", "Tickets only"), ("stopme", "Closed today")])
async def test_codex_refuses_a_prompt(codex: CodexHome, prompt: str, reason: str) -> None:
    (codex.codex / "hooks.json").write_text(hooks("UserPromptSubmit", BLOCKS, STOPS))
    await trust_hooks(codex)
    async with codex.gateway() as portico:
        body = {"agent": {"name": "codex"}, "messages": [{"role": "user", "content": "[[plain]] before"}]}
        session = (await portico.client.put("/session", json=body)).json()["sessionId"]

        async def send(text: str) -> Any:
            message = {"role": "user", "content": text}
            return (await portico.client.post(f"/session/{session}", json={"messages": [message]})).json()

        answer = await send(f"[[plain]] {prompt}")
        told = f"The prompt was refused by a hook: {reason}"
        assert (answer["stopReason"], answer["messages"][-1]["content"]) == ("refusal", told)
        assert prompt not in json.dumps((await send("[[recall]] after"))["messages"])
        history = (await portico.client.get(f"/session/{session}", params={"history": "full"})).text
        assert prompt not in history and "[[recall]] after" in history
        task = {"driver": "codex", "task": f"[[plain]] {prompt}"}
        assert (
            "The prompt was refused by a hook, or codex has ended it"
            in (await portico.client.post("/v1/execute", json=task)).text
        )
