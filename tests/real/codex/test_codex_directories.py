"""Additional directories with the real codex: the sandbox allows writing, and trusted patches need no permission."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.model_server.openai import OpenAIServer
from tests.real.codex.conftest import Home, needs_sandbox
from tests.support.acp_client import Client, connect
from tests.support.daemon import RunningGateway

SETTINGS = """
[sandbox_workspace_write]
exclude_slash_tmp = true
exclude_tmpdir_env_var = true
writable_roots = ["{users}"]
"""
"""Without these settings a sandboxed command can write below /tmp, where these tests are."""


@pytest.fixture
def folders(home: Home) -> tuple[Path, Path, Path]:
    """The folder of the session, the additional one, and one of the user settings."""
    here, there, users = (home.work / name for name in ("here", "there, too", "users"))
    for folder in (here, there, users):
        folder.mkdir()
    with (home.codex / "config.toml").open("a") as file:
        file.write(SETTINGS.format(users=users))
    return here, there, users


async def in_mode(client: Client, mode: str, here: Path, *directories: Path) -> str:
    session = await client.new(str(here), additionalDirectories=[str(folder) for folder in directories])
    await client.request("session/set_mode", {"sessionId": session, "modeId": mode})
    return session


def session_body(session: str, here: Path, *directories: Path) -> dict[str, Any]:
    given = {"additionalDirectories": [str(folder) for folder in directories]}
    return {"sessionId": session, "cwd": str(here), "mcpServers": [], **given}


@needs_sandbox
async def test_a_trusted_patch_in_an_additional_directory_needs_no_permission(
    home: Home, folders: tuple[Path, Path, Path], model: OpenAIServer
) -> None:
    here, there, _ = folders
    home.use_sandbox()
    async with home.gateway() as running:
        client, connection = connect(running.gateway, "codex")
        assert (await client.initialize())["agentCapabilities"]["sessionCapabilities"]["additionalDirectories"] == {}
        client.choose = lambda params: "reject_once"
        session = await in_mode(client, "edit", here, there)
        await client.prompt(session, f"[[patch:{there}/a.txt]]")
        assert (there / "a.txt").exists()
        assert permission_requests(client) == 0
        assert f"<root>{there}</root>" in str(model.bodies()[-1]["input"])
        # Patches elsewhere need permission, and so do patches there when the session is resumed without the directory.
        await client.prompt(session, f"[[patch:{there.parent}/b.txt]]")
        assert permission_requests(client) == 1
        await client.request("session/resume", session_body(session, here))
        await client.prompt(session, f"[[patch:{there}/c.txt]]")
        assert permission_requests(client) == 2
        assert [path.name for path in there.iterdir()] == ["a.txt"]
        await connection.close()


async def test_sandboxed_commands_write_in_an_additional_directory(
    portico: RunningGateway, folders: tuple[Path, Path, Path]
) -> None:
    here, there, users = folders
    client, connection = connect(portico.gateway, "codex")
    await client.initialize()
    session = await in_mode(client, "auto", here, there)
    await client.prompt(session, f"[[run:touch '{there}/a' {users}/a ./a {there.parent}/a]]")
    assert [(folder / "a").exists() for folder in (there, users, here, there.parent)] == [True, True, True, False]
    # A resumed thread keeps its folders unless the request has others.
    await client.request("session/resume", session_body(session, here))
    await client.prompt(session, f"[[run:touch '{there}/b' {users}/b ./b]]")
    assert [(folder / "b").exists() for folder in (there, users, here)] == [False, True, True]
    await client.request("session/load", session_body(session, here, there))
    await client.prompt(session, f"[[run:touch '{there}/c' {users}/c ./c]]")
    assert [(folder / "c").exists() for folder in (there, users, here)] == [True, True, True]
    assert permission_requests(client) == 0
    await connection.close()


async def test_rules_files_in_an_additional_directory_allow_nothing(
    portico: RunningGateway, home: Home, folders: tuple[Path, Path, Path]
) -> None:
    here, there, _ = folders
    (there / ".codex" / "rules").mkdir(parents=True)
    (there / ".codex" / "rules" / "mine.rules").write_text('prefix_rule(pattern=["touch"], decision="allow")\n')
    with (home.codex / "config.toml").open("a") as file:
        file.write(f'\n[projects."{there}"]\ntrust_level = "trusted"\n[projects."{here}"]\ntrust_level = "trusted"\n')
    client, connection = connect(portico.gateway, "codex")
    await client.initialize()
    client.choose = lambda params: "reject_once"
    session = await in_mode(client, "ask", here, there)
    await client.prompt(session, f"[[run:touch '{there}/a']]")
    assert (permission_requests(client), (there / "a").exists()) == (1, False)
    await connection.close()


def permission_requests(client: Client) -> int:
    return sum(m.get("method") == "session/request_permission" for m in client.received)
