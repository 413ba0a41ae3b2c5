"""The stock scenarios of the Gemini-style server: the shared ones, and those that call tools by the gemini CLI's names."""

from __future__ import annotations

from collections.abc import Mapping

from tests.model_server.scenarios import COMMON, Scenario, Step, Text, Thinking, ToolUse, text_step


def _shell(command: str) -> ToolUse:
    return ToolUse("run_shell_command", {"command": command, "description": "run"})


def _calls(*blocks: Text | Thinking | ToolUse, after: str) -> Scenario:
    return Scenario((Step(blocks, chunk=40), text_step(after)))


SCENARIOS: Mapping[str, Scenario] = {
    **COMMON,
    "shell": _calls(
        Thinking("**Listing** I should list files."),
        Text("Listing files. "),
        _shell("ls -a; echo hi"),
        after="The files are listed.",
    ),
    "run": _calls(_shell("{arg}"), after="The command ran."),
    "longshell": _calls(_shell("python3 -c 'import time; time.sleep(97)'"), after="It ended."),
    "fileread": _calls(ToolUse("read_file", {"file_path": "{arg}"}), after="Read it."),
    "filewrite": _calls(ToolUse("write_file", {"file_path": "{arg}", "content": "written by the model\n"}), after="Wrote it."),
    "parallel": _calls(
        Text("Three at once. "),
        _shell("echo one > one.txt; echo one"),
        _shell("echo two > two.txt; echo two"),
        ToolUse("read_file", {"file_path": "{arg}"}),
        after="All three done.",
    ),
    "toolfail": _calls(ToolUse("read_file", {"file_path": "no-such-file.txt"}), after="It failed as expected."),
    "badtool": _calls(ToolUse("no_such_tool", {"a": 1}), after="There is no such tool."),
}
