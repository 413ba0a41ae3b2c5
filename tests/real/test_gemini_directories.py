"""Additional directories with the real gemini, whose file tools refuse every path outside of its workspace."""

from __future__ import annotations

import json

from tests.real.gemini import Gemini
from tests.support.acp_client import connect


async def test_file_tools_work_in_an_additional_directory(gemini: Gemini) -> None:
    here, there = gemini.work / "here", gemini.work / "there, too"
    for folder in (here, there):
        folder.mkdir()
    (there / "a.txt").write_text("hidden words\n")
    async with gemini.gateway() as portico:
        client, connection = connect(portico.gateway, "gemini")
        assert (await client.initialize())["agentCapabilities"]["sessionCapabilities"]["additionalDirectories"] == {}
        session = await client.new(str(here), additionalDirectories=[str(there)])
        await client.request("session/set_mode", {"sessionId": session, "modeId": "edit"})
        await client.prompt(session, f"[[fileread:{there}/a.txt]]")
        assert "hidden words" in json.dumps(gemini.last_request())
        await client.prompt(session, f"[[filewrite:{there}/b.txt]]")
        assert (there / "b.txt").exists()
        # Without the directory its tools are limited to the working folder.
        await client.request("session/resume", {"sessionId": session, "cwd": str(here), "mcpServers": []})
        await client.prompt(session, f"[[filewrite:{there}/c.txt]]")
        assert "Path not in workspace" in json.dumps(gemini.last_request())
        assert not (there / "c.txt").exists()
        await client.request(
            "session/load",
            {"sessionId": session, "cwd": str(here), "mcpServers": [], "additionalDirectories": [str(there)]},
        )
        await client.prompt(session, f"[[filewrite:{there}/d.txt]]")
        assert (there / "d.txt").exists()
        assert not any(m.get("method") == "session/request_permission" for m in client.received)
        await connection.close()


async def test_untrusted_tools_in_an_additional_directory_need_permission(gemini: Gemini) -> None:
    here, there = gemini.work / "here", gemini.work / "there"
    for folder in (here, there):
        folder.mkdir()
    async with gemini.gateway() as portico:
        client, connection = connect(portico.gateway, "gemini")
        await client.initialize()
        client.choose = lambda params: "reject_once"
        session = await client.new(str(here), additionalDirectories=[str(there)])
        await client.prompt(session, f"[[filewrite:{there}/a.txt]]")
        kinds = [m["params"]["toolCall"]["kind"] for m in client.received if m.get("method") == "session/request_permission"]
        assert kinds == ["edit"]
        assert not list(there.iterdir())
        await connection.close()
