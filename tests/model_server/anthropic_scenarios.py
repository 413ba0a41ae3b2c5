"""The stock scenarios of the Anthropic-style server.

Adds to the shared ones those that call tools by the names the claude CLI gives them.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.model_server.scenarios import (
    COMMON,
    Scenario,
    Step,
    Text,
    Thinking,
    ToolUse,
    text_step,
)


def _bash(command: str, description: str = "run") -> ToolUse:
    return ToolUse("Bash", {"command": command, "description": description})


def _agent(**extra: object) -> ToolUse:
    call = {
        "description": "sub",
        "prompt": "[[subbash]] do it",
        "subagent_type": "general-purpose",
    }
    return ToolUse("Agent", call | extra)


def _calls(*blocks: Text | Thinking | ToolUse, after: str) -> Scenario:
    return Scenario((Step(blocks, chunk=40), text_step(after)))


SCENARIOS: Mapping[str, Scenario] = {
    **COMMON,
    "bash": _calls(
        Thinking("I should list files."),
        Text("Listing files. "),
        _bash("ls -a; echo hi"),
        after="The files are listed.",
    ),
    "run": _calls(_bash("{arg}"), after="The command ran."),
    "structured": _calls(Text("Let me see."), ToolUse("StructuredOutput", {"n": 2}), after="Done."),
    "longbash": _calls(_bash("python3 -c 'import time; time.sleep(97)'"), after="It ended."),
    "fileread": _calls(ToolUse("Read", {"file_path": "{arg}"}), after="Read it."),
    "filewrite": _calls(
        ToolUse("Write", {"file_path": "{arg}", "content": "written by the model\n"}),
        after="Wrote it.",
    ),
    "parallel": _calls(
        Text("Three at once. "),
        _bash("sleep 1; echo one"),
        _bash("sleep 1; echo two"),
        ToolUse("Read", {"file_path": "{arg}"}),
        after="All three done.",
    ),
    "toolfail": _calls(_bash("ls /nonexistent-dir; exit 3"), after="It failed as expected."),
    "badtool": _calls(ToolUse("NoSuchTool", {"a": 1}), after="There is no such tool."),
    "weather": _calls(
        Text("Asking. "),
        ToolUse("mcp__app__get_weather", {"location": "Tokyo"}),
        after="It is mild in Tokyo.",
    ),
    "conformance": _calls(ToolUse("mcp__app__portico_check", {}), after="Checked."),
    "agent": _calls(
        Text("Delegating. "),
        _agent(run_in_background=False),
        after="The sub-agent reported.",
    ),
    "agentdefault": _calls(Text("Delegating. "), _agent(), after="The sub-agent was started."),
    "subbash": _calls(Text("sub: running. "), _bash("echo from-sub"), after="sub: finished."),
}
