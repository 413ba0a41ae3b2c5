"""The tool calls of the real claude as an ACP client sees them: titles, hunks, output."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.model_server.scenarios import Step, ToolUse, text_step
from tests.real.tool_bench import Bench, bash
from tests.support.acp_client import Client, connect, prompt
from tests.support.daemon import run_gateway


@asynccontextmanager
async def client_on(bench: Bench, **capabilities: Any) -> AsyncIterator[tuple[Client, str]]:
    """A client that allows every call, and its session."""
    async with run_gateway(bench.config()) as running:
        client, connection = connect(running.gateway, "claude")
        client.choose = lambda params: "allow_once"
        await client.initialize(**capabilities)
        yield client, await client.new()
        await connection.close()


def calls(client: Client, kind: str = "tool_call") -> list[dict[str, Any]]:
    return [update for update in client.updates() if update["sessionUpdate"] == kind]


async def test_the_approval_shows_the_command(unstarted_bench: Bench) -> None:
    script = "cd .\necho two"
    go = unstarted_bench.model_calls(ToolUse("Bash", {"command": script, "description": "Print two"}))
    async with client_on(unstarted_bench) as (client, session):
        await client.request("session/prompt", prompt(session, go))
        [asked] = [
            message["params"]["toolCall"] for message in client.received if message.get("method") == "session/request_permission"
        ]
        assert asked["title"] == "cd . …"
        assert [part["content"]["text"] for part in asked["content"]] == [f"```sh\n{script}\n```", "Print two"]
        assert calls(client, "tool_call_update")[-1]["content"][0]["content"]["text"] == "two"


async def test_edits_are_hunks_with_line_numbers(unstarted_bench: Bench) -> None:
    path = unstarted_bench.work / "a.txt"
    path.write_text("".join(f"line {n}\n" for n in range(1, 31)))
    read = ToolUse("Read", {"file_path": str(path), "offset": 20, "limit": 3})
    edit = ToolUse("Edit", {"file_path": str(path), "old_string": "line 20\n", "new_string": "twenty\n"})
    async with client_on(unstarted_bench) as (client, session):
        await client.request("session/prompt", prompt(session, unstarted_bench.model_calls(read)))
        await client.request("session/prompt", prompt(session, unstarted_bench.model_calls(edit, name="inner")))
    titles = [update["title"] for update in client.updates() if "title" in update and update.get("kind")]
    assert {"Read a.txt (20-22)", "Edit a.txt"} <= set(titles)
    ended = calls(client, "tool_call_update")[-1]
    before, after = "line 17\nline 18\nline 19\n", "\nline 21\nline 22\nline 23"
    assert ended["content"] == [
        {"type": "diff", "path": str(path), "oldText": f"{before}line 20{after}", "newText": f"{before}twenty{after}"}
    ]
    assert ended["locations"] == [{"path": str(path), "line": 17}]


async def test_output_of_a_command_is_that_of_a_terminal(unstarted_bench: Bench) -> None:
    go = unstarted_bench.model_calls(bash("echo one; exit 3"))
    async with client_on(unstarted_bench, _meta={"terminal_output": True}) as (client, session):
        await client.request("session/prompt", prompt(session, go))
    [announced] = calls(client)
    call_id, work = announced["toolCallId"], str(unstarted_bench.work)
    assert announced["_meta"] == {"terminal_info": {"terminal_id": call_id, "cwd": work}}
    output, ended = calls(client, "tool_call_update")[-2:]
    assert output["_meta"]["terminal_output"]["data"].startswith("Exit code 3\none")
    assert ended["_meta"]["terminal_exit"] == {"terminal_id": call_id, "exit_code": 3, "signal": None}
    assert ended["status"] == "failed"


async def test_a_call_is_announced_while_its_input_is_written(unstarted_bench: Bench) -> None:
    text = "".join(f"line {n}\n" for n in range(200))
    write = ToolUse("Write", {"file_path": str(unstarted_bench.work / "a.txt"), "content": text})
    go = unstarted_bench.model_replies(Step((write,), chunk=100, delay=0.001), text_step("Done."))
    async with client_on(unstarted_bench) as (client, session):
        await client.request("session/prompt", prompt(session, go))
    about = [update for update in client.updates() if update.get("toolCallId")]
    assert [(update["sessionUpdate"], update.get("title")) for update in about[:3]] == [
        ("tool_call", "Preparing Write …"), ("tool_call_update", "Write a.txt"), ("tool_call_update", "Write a.txt"),
    ]  # fmt: skip
    assert [len(update["rawInput"]) for update in about[:3]] == [0, 1, 2]
    first = next(n for n, message in enumerate(client.received) if "Write a.txt" in str(message))
    [asked] = [n for n, message in enumerate(client.received) if message.get("method") == "session/request_permission"]
    assert first < asked


async def test_a_command_in_the_background(unstarted_bench: Bench) -> None:
    unstarted_bench.env["CLAUDE_CODE_DISABLE_BACKGROUND_TASKS"] = "0"
    start = ToolUse("Bash", {"command": "sleep 97", "description": "Wait", "run_in_background": True})
    go = unstarted_bench.model_calls(start)
    async with client_on(unstarted_bench, _meta={"terminal_output": True}) as (client, session):
        await client.request("session/prompt", prompt(session, go))
    updates = [update for update in client.updates() if update.get("toolCallId")]
    assert [update["title"] for update in updates if "title" in update][-1] == "sleep 97 (in the background)"
    output, ended = updates[-2:]
    assert "background" in output["_meta"]["terminal_output"]["data"]
    assert (ended["status"], ended["_meta"]["terminal_exit"]["exit_code"]) == ("completed", None)
