"""The slash commands of the real claude and gemini in an editor that connects to `portico acp`."""

from __future__ import annotations

from typing import Any

import pytest
from acp import text_block
from acp.schema import ResourceContentBlock

from tests.model_server.scenarios import text_step
from tests.real.editor import Editor, editor_of
from tests.real.gemini import Gemini
from tests.real.tool_bench import Bench

LINK = ResourceContentBlock(type="resource_link", name="a.txt", uri="file:///a.txt")


def command_lists(editor: Editor) -> list[dict[str, str | None]]:
    """Each list of commands that the editor received, as names with their hints."""
    lists = [update.available_commands for update in editor.of("available_commands_update")]
    return [{command.name: command.input.root.hint if command.input else None for command in found} for found in lists]


async def answer_to(editor: Editor, agent: Any, session: str, *parts: Any) -> str:
    """Send a prompt; return the answer of the agent."""
    editor.updates = [update for update in editor.updates if update.session_update != "agent_message_chunk"]
    prompt = [text_block(part) if isinstance(part, str) else part for part in parts]
    assert (await agent.prompt(session_id=session, prompt=prompt)).stop_reason == "end_turn"
    return editor.text


async def test_claude_commands(unstarted_bench: Bench) -> None:
    go = unstarted_bench.model_replies(text_step("Done."), text_step("Done."))
    folder = unstarted_bench.work / ".claude" / "commands"
    folder.mkdir(parents=True)
    (folder / "greet.md").write_text(f'---\ndescription: Greets.\nargument-hint: "[what]"\n---\nGreet $ARGUMENTS. {go}\n')
    config = unstarted_bench.config()
    async with editor_of("claude", unstarted_bench.base, unstarted_bench.home, config) as (editor, agent, _):
        session = (await agent.new_session(cwd=str(unstarted_bench.work), mcp_servers=[])).session_id
        # Before the first prompt: what the CLI has in every folder; and, once the CLI runs, that of the project too.
        await editor.until(lambda: any("greet" in known for known in command_lists(editor)))
        *before, known = command_lists(editor)
        assert known["compact"] == "<optional custom summarization instructions>" and known["context"] is None
        assert known["greet"] == "[what]" and not any(name.startswith("_") for name in known)
        assert [{**earlier, "greet": "[what]"} for earlier in before] == [known] * len(before)

        assert await answer_to(editor, agent, session, "/greet hello") == "Done."
        assert f"Greet hello. {go}" in str(unstarted_bench.model.bodies()[-1]["messages"])
        assert command_lists(editor) == [*before, known]
        assert "Context Usage" in await answer_to(editor, agent, session, "/context")

        await agent.set_config_option(session_id=session, config_id="slash_commands", value="off")
        assert command_lists(editor)[-1] == {}
        assert await answer_to(editor, agent, session, f"/greet hello {go}") == "Done."
        assert f"/greet hello {go}" in str(unstarted_bench.model.bodies()[-1]["messages"])
        await agent.set_config_option(session_id=session, config_id="slash_commands", value="on")
        assert command_lists(editor)[-1]["greet"] == "[what]"


@pytest.mark.parametrize("slash_commands", ["on", "off"])
@pytest.mark.parametrize("parts", [("/greet hello ", LINK), (LINK, "/greet hello")], ids=["before", "behind"])
async def test_claude_commands_with_an_attached_file(unstarted_bench: Bench, parts: Any, slash_commands: str) -> None:
    go = unstarted_bench.model_replies(text_step("Done."))
    folder = unstarted_bench.work / ".claude" / "commands"
    folder.mkdir(parents=True)
    (folder / "greet.md").write_text(f"Greet $ARGUMENTS. {go}\n")
    config = unstarted_bench.config()
    config["agents"]["claude"]["options"] = {"slash_commands": slash_commands}
    async with editor_of("claude", unstarted_bench.base, unstarted_bench.home, config) as (editor, agent, _):
        session = (await agent.new_session(cwd=str(unstarted_bench.work), mcp_servers=[])).session_id
        answer = await answer_to(editor, agent, session, *parts)
        request = str(unstarted_bench.model.bodies()[-1]["messages"])
        assert "[@a.txt](file:///a.txt)" in request
        assert (answer == "Done.", "Greet hello" in request) == (slash_commands == "on",) * 2


async def test_claude_renames_a_session(unstarted_bench: Bench) -> None:
    config = unstarted_bench.config()
    config["agents"]["claude"]["options"] = {"slash_commands": "on"}
    go = unstarted_bench.model_replies(text_step("Done."))
    async with editor_of("claude", unstarted_bench.base, unstarted_bench.home, config) as (editor, agent, _):
        session = (await agent.new_session(cwd=str(unstarted_bench.work), mcp_servers=[])).session_id
        await answer_to(editor, agent, session, go)
        await answer_to(editor, agent, session, "/rename The tall tower")
        assert editor.of("session_info_update")[-1].title == "The tall tower"
        assert [one.title for one in (await agent.list_sessions()).sessions] == ["The tall tower"]


async def test_gemini_commands(gemini: Gemini) -> None:
    async with editor_of("gemini", gemini.base, gemini.home, gemini.config()) as (editor, agent, _):
        session = (await agent.new_session(cwd=str(gemini.work), mcp_servers=[])).session_id
        await editor.until(lambda: command_lists(editor))
        [known] = command_lists(editor)
        assert set(known) == {"about", "help", "memory", "memory inbox", "memory list", "memory refresh", "memory show"}
        assert "Version: 0.61.0" in await answer_to(editor, agent, session, "/about")
        assert "Version: 0.61.0" in await answer_to(editor, agent, session, "/about", LINK)
        assert "Version: 0.61.0" in await answer_to(editor, agent, session, LINK, "/about")
        assert not [request for request in gemini.model.requests if request.body.get("contents")]
        # The list of the session is the same and is not sent again.
        assert command_lists(editor) == [known]
        await agent.set_config_option(session_id=session, config_id="slash_commands", value="off")
        assert command_lists(editor)[-1] == {}
        assert "Version" not in await answer_to(editor, agent, session, "/about [[plain]]")


@pytest.mark.parametrize("slash_commands", ["on", "off"])
async def test_no_command_of_gemini_writes_or_installs(gemini: Gemini, slash_commands: str) -> None:
    extension = gemini.base / "extension"
    extension.mkdir()
    (extension / "gemini-extension.json").write_text('{"name": "other", "version": "1.0.0"}')
    gemini.agent["options"] = {"slash_commands": slash_commands}
    async with editor_of("gemini", gemini.base, gemini.home, gemini.config()) as (editor, agent, _):
        session = (await agent.new_session(cwd=str(gemini.work), mcp_servers=[])).session_id
        for text in ("/init", "$init", "\ufeff/ init", f"/extensions link {extension}", "/restore list"):
            assert await answer_to(editor, agent, session, f"{text} [[plain]]") == "Hello from the model, this is plain text."
            assert f"{text} [[plain]]" in gemini.last_request()["contents"][-1]["parts"][-1]["text"]
    assert list(gemini.work.iterdir()) == []
