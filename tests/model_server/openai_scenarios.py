"""The stock scenarios of the OpenAI-style server.

Adds to the shared ones those that call tools by the names the codex CLI gives them.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.model_server.scenarios import COMMON, Scenario, Step, Text, Thinking, ToolUse, text_step

CUSTOM_TOOLS = frozenset({"apply_patch", "exec"})
"""Tools whose input is free text, under the key `input` of a ToolUse."""


def _run(command: str, **more: object) -> ToolUse:
    return ToolUse("exec_command", {"cmd": command, **more})


def _outside(command: str) -> ToolUse:
    return _run(command, sandbox_permissions="require_escalated", justification="it needs to")


def _patch(path: str, text: str = "written by the model") -> ToolUse:
    return ToolUse("apply_patch", {"input": f"*** Begin Patch\n*** Add File: {path}\n+{text}\n*** End Patch\n"})


def _weather(city: str) -> ToolUse:
    return ToolUse("get_weather", {"location": city})


def _calls(*blocks: Text | Thinking | ToolUse, after: str) -> Scenario:
    return Scenario((Step(blocks, chunk=40), text_step(after)))


_LONG = "python3 -c 'import time; time.sleep(97)'"

SCENARIOS: Mapping[str, Scenario] = {
    **COMMON,
    "shell": _calls(Thinking("I should list files."), Text("Listing. "), _run("ls -a; echo hi"), after="The files are listed."),
    "twice": Scenario((Step((_run("echo one"),)), Step((_run("echo two"),)), text_step("Both ran."))),
    "run": _calls(_run("{arg}"), after="The command ran."),
    "runoutside": _calls(_outside("{arg}"), after="The command ran."),
    "longshell": _calls(_run(_LONG, yield_time_ms=90000), after="It ended."),
    "bgshell": _calls(_run(_LONG, yield_time_ms=250), after="It runs on."),
    "patch": _calls(Text("Writing. "), _patch("{arg}"), after="Written."),
    "parallel": _calls(
        Text("Three at once. "),
        _run("sleep 1; echo one"),
        _run("sleep 1; echo two"),
        _run("echo three"),
        after="All three done.",
    ),
    "toolfail": _calls(_run("ls /nonexistent-dir; exit 3"), after="It failed as expected."),
    "bigshell": _calls(_run("head -c 1000000 /dev/zero | tr '\\0' A", max_output_tokens=1000000), after="The output was big."),
    "badtool": _calls(ToolUse("no_such_tool", {"a": 1}), after="There is no such tool."),
    "plan": _calls(
        ToolUse("update_plan", {"plan": [{"step": "one", "status": "in_progress"}, {"step": "two", "status": "pending"}]}),
        after="Planned.",
    ),
    "view": _calls(ToolUse("view_image", {"path": "{arg}"}), after="Seen."),
    "weather": _calls(Text("Asking. "), _weather("Tokyo"), after="It is mild in Tokyo."),
    "conformance": _calls(ToolUse("portico_check", {}), after="Checked."),
    "weathers": _calls(_weather("Tokyo"), _weather("Paris"), _weather("Oslo"), after="All three are mild."),
    "twenty": _calls(*(_weather(f"city {n}") for n in range(20)), after="All twenty."),
    "mixed": _calls(
        Text("Four at once. "), _weather("Tokyo"), _weather("Paris"), _run("echo own"), _patch("{arg}"), after="All four done."
    ),
    "code": _calls(
        ToolUse("exec", {"input": "const r = await tools.exec_command({cmd:'echo from-code'}); text(r.output);\n"}),
        after="The code ran.",
    ),
    "coderun": _calls(
        ToolUse("exec", {"input": "const r = await tools.exec_command({cmd:'{arg}'}); text(r.output);\n"}), after="The code ran."
    ),
}
