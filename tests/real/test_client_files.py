"""The real gemini with an editor that serves its files: it edits unsaved content."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.model_server.scenarios import Scenario, Step, ToolUse, text_step
from tests.real.gemini import SCENARIOS, WRITE, Gemini
from tests.real.processes import processes_of
from tests.support.acp_client import Client, connect, prompt
from tests.support.daemon import RunningGateway

NEW = {"file_path": "new.txt", "content": "made\n"}
SCENARIOS["new-file"] = Scenario((Step((ToolUse(WRITE, NEW),)), text_step("Made.")))
for name, old in (("files", "unsaved"), ("saved", "saved")):
    edit = {"file_path": "draft.txt", "old_string": old, "new_string": "edited", "instruction": "edit"}
    SCENARIOS[name] = Scenario((Step((ToolUse("replace", edit),)), text_step("Edited.")))


class Buffers:
    """The files in the editor."""

    def __init__(self, client: Client) -> None:
        self.texts: dict[str, str] = {}
        self.writes: list[str] = []
        self._client = client

    async def serve(self) -> None:
        while True:
            request = await self._client.service_requests.get()
            name = request["params"]["path"].rpartition("/")[2]
            if request["method"] == "fs/write_text_file":
                self.texts[name] = request["params"]["content"]
                self.writes.append(name)
                await self._client.respond(request)
            elif name in self.texts:
                await self._client.respond(request, content=self.texts[name])
            else:
                await self._client.respond_error(request, -32002, f"Resource not found: {name}")


@asynccontextmanager
async def editor_on(running: RunningGateway) -> AsyncIterator[tuple[Client, Buffers]]:
    client, connection = connect(running.gateway, "gemini")
    await client.initialize(fs={"readTextFile": True, "writeTextFile": True})
    client.choose = lambda asked: "allow_once"
    buffers = Buffers(client)
    serving = asyncio.create_task(buffers.serve())
    yield client, buffers
    serving.cancel()
    # The CLI writes files of its calls only, so the editor is not asked about writing.
    assert not [update for update in client.updates() if str(update.get("toolCallId")).startswith("service_")]
    await connection.close()


async def test_gemini_edits_the_files_of_the_editor(gemini: Gemini, running: RunningGateway) -> None:
    draft = gemini.work / "draft.txt"
    draft.write_text("saved\n")
    async with editor_on(running) as (editor, buffers):
        buffers.texts["draft.txt"] = "unsaved\n"
        session = await editor.new()
        await editor.request("session/prompt", prompt(session, "[[files]]"))
        assert (buffers.texts["draft.txt"], buffers.writes) == ("edited\n", ["draft.txt"])
        edits = [u for u in editor.updates() if u["sessionUpdate"] == "tool_call" and u["kind"] == "edit"]
        [diff] = edits[0]["content"]
        assert (diff["path"], diff["oldText"], diff["newText"]) == (str(draft), "unsaved", "edited")
        await editor.request("session/prompt", prompt(session, "[[new-file]]"))
        assert buffers.texts["new.txt"] == "made\n"
    assert draft.read_text() == "saved\n"
    assert not (gemini.work / "new.txt").exists()


async def test_without_the_editor_gemini_edits_the_files_on_disk(gemini: Gemini, running: RunningGateway) -> None:
    draft = gemini.work / "draft.txt"
    draft.write_text("saved\n")
    async with editor_on(running) as (editor, buffers):
        buffers.texts["draft.txt"] = "unsaved\n"
        session = await editor.new()
        await editor.request("session/set_mode", {"sessionId": session, "modeId": "auto"})
        await editor.request("session/prompt", prompt(session, "[[plain]]"))
        [process] = processes_of(gemini.home, "node")
        # The prompt comes over AAP while the editor has the session open.
        message = {"role": "user", "content": "[[saved]]"}
        answer = await running.client.post(f"/session/{session}", json={"messages": [message]})
        assert answer.json()["stopReason"] == "end_turn"
        assert (draft.read_text(), buffers.writes) == ("edited\n", [])
        # The CLI receives the capabilities of the editor at its start, so it was restarted.
        assert process not in processes_of(gemini.home, "node")
        await editor.request("session/prompt", prompt(session, "[[files]]"))
        assert (buffers.texts["draft.txt"], buffers.writes) == ("edited\n", ["draft.txt"])
