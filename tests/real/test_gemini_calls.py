"""The tool calls of the real gemini as an ACP client sees them: titles, hunks, output of a command."""

from __future__ import annotations

from tests.model_server.scenarios import Scenario, Step, ToolUse, text_step
from tests.real.gemini import READ, SCENARIOS, SHELL, WRITE, Gemini
from tests.support.acp_client import connect, prompt
from tests.support.daemon import RunningGateway

EDIT = {"file_path": "a.txt", "old_string": "line 20\n", "new_string": "twenty\n", "instruction": "edit"}
SHELL_INPUT = {"command": "echo out", "description": "Print it"}
SCENARIOS["render"] = Scenario(
    (
        Step((ToolUse(READ, {"file_path": "a.txt"}),)),
        Step((ToolUse("replace", EDIT),)),
        Step((ToolUse(SHELL, SHELL_INPUT),)),
        Step((ToolUse(WRITE, {"file_path": "a.txt", "content": "line 1\n"}),)),
        text_step("Done."),
    )
)


async def test_titles_hunks_and_output(gemini: Gemini, running: RunningGateway) -> None:
    path = gemini.work / "a.txt"
    path.write_text("".join(f"line {n}\n" for n in range(1, 31)))
    client, connection = connect(running.gateway, "gemini")
    client.choose = lambda params: "allow_once"
    await client.initialize(_meta={"terminal_output": True})
    await client.request("session/prompt", prompt(await client.new(), "[[render]]"))
    await connection.close()
    asked = [found["params"]["toolCall"] for found in client.received if found.get("method") == "session/request_permission"]
    assert [call["title"] for call in asked] == ["read_file a.txt", "replace a.txt", "echo out", "write_file a.txt"]
    edit = asked[1]
    assert edit["locations"] == [{"path": str(path), "line": 17}]
    assert edit["content"][0]["oldText"].splitlines()[3] == "line 20"
    assert (asked[3]["content"][0]["oldText"] or "").startswith("line 1\nline 2")
    updates = [update for update in client.updates() if update.get("toolCallId") == asked[2]["toolCallId"]]
    assert updates[0]["_meta"] == {"terminal_info": {"terminal_id": asked[2]["toolCallId"], "cwd": str(gemini.work)}}
    output, ended = updates[-2:]
    assert output["_meta"]["terminal_output"]["data"] == "out"
    assert ended["_meta"]["terminal_exit"]["exit_code"] is None
