"""The tool calls of the real codex as an ACP client sees them: titles, hunks, output while a command runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model_server.openai import OpenAIServer, model_server
from tests.model_server.openai_scenarios import SCENARIOS
from tests.model_server.scenarios import Scenario, Step, ToolUse, text_step
from tests.real.codex.conftest import Home
from tests.support.acp_client import Client, connect, prompt

PATCH = """*** Begin Patch
*** Update File: a.txt
@@
 line 19
-line 20
+twenty
 line 21
*** End Patch
"""
CALLS = {"update": Scenario((Step((ToolUse("apply_patch", {"input": PATCH}),)), text_step("Done.")))}


@pytest.fixture
async def model() -> Any:
    async with model_server({**SCENARIOS, **CALLS}) as server:
        yield server


def calls(client: Client) -> list[dict[str, Any]]:
    return [update for update in client.updates() if update.get("toolCallId")]


async def test_a_patch_is_hunks_with_line_numbers(home: Home, model: OpenAIServer) -> None:
    path = home.work / "a.txt"
    path.write_text("".join(f"line {n}\n" for n in range(1, 31)))
    async with home.gateway() as running:
        client, connection = connect(running.gateway, "codex")
        client.choose = lambda params: "allow_once"
        await client.initialize()
        await client.request("session/prompt", prompt(await client.new(), "[[update]]"))
        await connection.close()
    assert "twenty" in path.read_text()
    [asked] = [found["params"]["toolCall"] for found in client.received if found.get("method") == "session/request_permission"]
    for shown in (calls(client)[0], asked):
        assert shown["title"] == "Edit files a.txt"
        assert shown["locations"] == [{"path": str(path), "line": 19}]
        [diff] = shown["content"]
        assert (diff["oldText"], diff["newText"]) == ("line 19\nline 20\nline 21", "line 19\ntwenty\nline 21")


async def test_output_of_a_command_is_sent_while_it_runs(home: Home) -> None:
    done = home.work / "done"
    # The CLI does not report what a command puts out in its first milliseconds.
    line = f"sleep 0.5; echo one; until test -e {done}; do sleep 0.05; done; echo two"
    async with home.gateway() as running:
        client, connection = connect(running.gateway, "codex")
        client.choose = lambda params: "allow_once"
        await client.initialize(_meta={"terminal_output": True})
        prompting = await client.begin("session/prompt", prompt(await client.new(), f"[[run:{line}]]"))
        await client.until(lambda _: any("terminal_output" in (update.get("_meta") or {}) for update in calls(client)))
        done.touch()
        await prompting
        await connection.close()
    updates = calls(client)
    assert (updates[0]["title"], updates[0]["content"][-1]["type"]) == (line, "terminal")
    output = [meta["terminal_output"]["data"] for update in updates if "terminal_output" in (meta := update.get("_meta") or {})]
    assert "".join(output).splitlines() == ["one", "two"]
    assert updates[-1]["_meta"]["terminal_exit"] == {"terminal_id": updates[0]["toolCallId"], "exit_code": 0, "signal": None}
