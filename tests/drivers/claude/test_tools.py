"""The tools of a claude session: the arguments of the CLI, tool names, and results in the form of MCP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drivers.claude.control_messages import call_result
from drivers.claude.driver import ClaudeDriver
from drivers.claude.tools import OWN_TOOLS, Toolset
from drivers.contract.agent_specs import SessionSeed, SessionSpec
from drivers.contract.codec import Launch
from drivers.contract.driver_info import ToolSpec
from drivers.contract.messages import AssistantMessage, ImageBlock, TextBlock, ToolMessage, ToolUseBlock, UserMessage
from tests.drivers.claude.cli import APP, GRANTS


def launch(tmp_path: Path, **more: Any) -> Launch:
    return ClaudeDriver().session(SessionSpec("claude", tmp_path, {"HOME": str(tmp_path)}, **more))


def after(argv: tuple[str, ...], flag: str) -> str:
    assert argv.count(flag) == 1
    return argv[argv.index(flag) + 1]


def test_a_session_without_tools_has_none(tmp_path: Path) -> None:
    argv = launch(tmp_path).command.argv
    assert after(argv, "--tools") == "" and "--strict-mcp-config" in argv
    assert "--settings" not in argv and "--mcp-config" not in argv


def test_exactly_the_listed_tools(tmp_path: Path) -> None:
    argv = launch(tmp_path, tools=GRANTS, app_tools=APP).command.argv
    assert after(argv, "--tools") == "Bash,Read,Agent"
    assert json.loads(after(argv, "--settings")) == {"permissions": {"ask": ["Bash"]}}
    assert after(argv, "--permission-mode") == "default"
    assert json.loads(after(argv, "--mcp-config")) == {"mcpServers": {"app": {"type": "sdk", "name": "app"}}}
    # Every user can read the arguments, so they do not contain the application-side tools.
    assert "weather" not in str(argv)


def test_the_hook_is_registered_in_every_session(tmp_path: Path) -> None:
    request = json.loads(bytes(launch(tmp_path).codec.outbox))["request"]
    [hook] = request["hooks"]["PreToolUse"]
    assert hook["matcher"] is None and hook["timeout"] >= 3600


def test_a_seed_has_the_native_names(tmp_path: Path) -> None:
    call = ToolUseBlock(tool_call_id="c", name="weather", input={})
    history = (UserMessage(content="Hi"), AssistantMessage(content=(call,)), ToolMessage(tool_call_id="c", content="x"))
    [seed] = launch(tmp_path, app_tools=APP, seed=SessionSeed(history=history)).command.files.values()
    assert json.loads(seed.splitlines()[1])["message"]["content"][0]["name"] == "mcp__app__weather"


def test_the_tools_of_info_have_descriptions_and_schemas() -> None:
    info = ClaudeDriver().info()
    assert info.capabilities.app_tools and info.tools == OWN_TOOLS
    assert {"Bash", "Read", "Write", "Edit", "WebFetch", "Agent"} <= {tool.name for tool in info.tools}
    assert all(tool.description and tool.input_schema["type"] == "object" for tool in info.tools)


def test_invalid_tool_names_are_mapped() -> None:
    specs = [ToolSpec(name, "", {}) for name in ("a.b", "a b", "x" * 70, "x" * 80)]
    tools = Toolset(app_tools=specs)
    names = [tool["name"] for tool in tools.mcp_list()]
    assert names[:2] == ["a_b", "a_b_2"] and len(set(names)) == 4 and max(map(len, names)) <= 54
    assert [tools.client_name(f"mcp__app__{name}") for name in names] == [spec.name for spec in specs]
    assert tools.mcp_list()[0]["inputSchema"] == {"type": "object"}


def test_results_in_the_form_of_mcp() -> None:
    content = (
        TextBlock(text="a"),
        TextBlock(text=""),
        ImageBlock(url="data:image/png;base64,AAAA"),
        ImageBlock(url="https://x.org/a.png"),
    )
    assert call_result(content)["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        {"type": "text", "text": "[image: https://x.org/a.png]"},
    ]
    assert call_result("")["content"] == [] and "isError" not in call_result("x")
