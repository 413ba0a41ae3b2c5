"""The slash commands of the real codex in an editor that connects to `portico acp`."""

from __future__ import annotations

import json

from tests.model_server.openai import OpenAIServer
from tests.real.codex.conftest import Home
from tests.real.codex.test_codex_modes import editor
from tests.real.editor import editor_of
from tests.real.test_commands import answer_to, command_lists

SKILL = "---\nname: greet\ndescription: Greets.\n---\nGreet the user. [[run:touch made]]\n"
COMMANDS = {"compact", "$greet", "$review-agent"}


async def test_codex_commands(home: Home, model: OpenAIServer) -> None:
    skill = home.codex / "skills" / "greet" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text(SKILL)
    async with editor_of("codex", home.base, home.path, home.config()) as (editor, agent, _):
        session = (await agent.new_session(cwd=str(home.work), mcp_servers=[])).session_id
        await editor.until(lambda: command_lists(editor))
        # Before the first prompt, and the same as those of the session.
        [known] = command_lists(editor)
        assert set(known) >= COMMANDS

        # The call of a skill's turn is asked about like any other.
        editor.choose = lambda call: "reject_once"
        assert await answer_to(editor, agent, session, "/$greet me") == "The command ran."
        assert "Greet the user." in str(model.requests[-1].body)
        assert len(editor.permission_requests) == 1
        assert not (home.work / "made").exists()
        assert len(model.requests) == 2
        await answer_to(editor, agent, session, "/compact")
        assert len(model.requests) == 3
        assert await answer_to(editor, agent, session, "[[echo:still here]]") == "still here"
        await answer_to(editor, agent, session, "/$review-agent only a.py")
        request = str(model.requests[-1].body)
        assert "$review-agent only a.py" in request and "<name>review-agent</name>" in request
        assert command_lists(editor) == [known]


async def test_no_skill_of_a_project_brings_an_mcp_server(home: Home, model: OpenAIServer) -> None:
    mark = home.base / "started"
    skill = home.work / ".agents" / "skills" / "greet"
    (skill / "agents").mkdir(parents=True)
    (skill / "SKILL.md").write_text(SKILL.replace("[[run:touch made]]", "[[plain]]"))
    server = {"type": "mcp", "value": "evil", "description": "x", "transport": "stdio", "command": f"touch {mark}"}
    (skill / "agents" / "openai.yaml").write_text(json.dumps({"dependencies": {"tools": [server]}}))
    settings = (home.codex / "config.toml").read_text()
    async with editor(home, allow_bypass=True, options={"slash_commands": "on"}) as bot:
        await bot.new()
        await bot.set_mode("full-access")
        assert await bot.prompt("/$greet") == []
        assert "Greet the user." in json.dumps(model.bodies()[-1]["input"])
    assert not mark.exists() and (home.codex / "config.toml").read_text() == settings
