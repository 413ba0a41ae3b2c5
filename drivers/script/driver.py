"""The script driver: plays a scenario file as an agent, so that clients can be tested without a model."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from drivers.codecs.output_event_lines import EventLineCodec, open_request, request
from drivers.contract.agent_specs import AgentSpec, SessionSpec, TaskSpec
from drivers.contract.codec import Command, Launch
from drivers.contract.driver_info import (
    Capabilities,
    Display,
    DriverInfo,
    Mcp,
    Option,
    Permissions,
    PlanChange,
    ToolKind,
    ToolSpec,
)
from drivers.contract.errors import AgentUnavailable
from drivers.runtime.cli_driver import CliDriver

if TYPE_CHECKING:
    from drivers.script.schema import Scenario

PROGRAM = Path(__file__).parent / "program" / "main.py"


def _tool(name: str, kind: ToolKind, description: str, **fields: str) -> ToolSpec:
    properties = {field: {"type": "string", "description": meaning} for field, meaning in fields.items()}
    schema = {"type": "object", "properties": properties, "required": [*fields], "additionalProperties": False}
    return ToolSpec(name, f"{description} A call does only what the scenario defines.", schema, kind=kind)


TOOLS = (
    _tool("lookup", "search", "Looks something up.", query="What to look for."),
    _tool("write_note", "edit", "Writes a note.", path="Where to write it, in the working folder.", text="What to write."),
    _tool("shell", "execute", "Runs a command.", command="The command line."),
)
# A scenario may call tools by the names that claude, codex and gemini give theirs; clients then display them in the same way.
KINDS_OF_KNOWN_TOOLS: Mapping[str, ToolKind] = {
    "Read": "read", "Edit": "edit", "MultiEdit": "edit", "Write": "edit", "NotebookEdit": "edit", "Glob": "search",
    "Grep": "search", "Bash": "execute", "WebFetch": "fetch", "WebSearch": "fetch", "Agent": "think", "Task": "think",
    "TodoWrite": "think", "TaskCreate": "think", "TaskUpdate": "think", "TaskGet": "think", "TaskList": "think",
    "apply_patch": "edit", "view_image": "read", "web_search": "fetch", "update_plan": "think",
    "list_directory": "search", "read_file": "read", "grep_search": "search", "glob": "search", "replace": "edit",
    "write_file": "edit", "run_shell_command": "execute", "web_fetch": "fetch", "google_web_search": "fetch",
}  # fmt: skip
PLAN_TOOLS: Mapping[str, PlanChange] = {
    "TodoWrite": "replace", "TaskCreate": "add", "TaskUpdate": "update", "update_plan": "replace", "write_todos": "replace",
}  # fmt: skip
QUESTION_TOOLS = frozenset({"AskUserQuestion", "request_user_input"})
OPTIONS = (
    Option("scenario", "Scenario", "A JSON file in the agent's working folder, or its content; empty plays the built-in one."),
    Option("pace", "Pace", "Whether texts and calls take their time.", default="recorded", choices=("recorded", "fast")),
    Option("token", "Token", "A secret that is used for nothing; shows that secrets stay hidden.", secret=True),
)


class ScriptDriver(CliDriver):
    """Plays a scenario; see docs/script-driver.md."""

    name = "script"

    def info(self) -> DriverInfo:
        return DriverInfo(
            title="Script",
            description="Plays a scenario file as an agent, without a model; for tests of clients and pipelines.",
            version="1.0.0",
            tools=TOOLS,
            options=OPTIONS,
            capabilities=Capabilities(
                seeds=True,
                system=True,
                image_http=True,
                image_data=True,
                app_tools=True,
                steers=True,
                compaction=True,
                additional_directories=True,
            ),
            permissions=Permissions(question_tools=QUESTION_TOOLS),
            mcp=Mcp(tool_prefix="mcp__"),
            display=Display(tool_kinds=KINDS_OF_KNOWN_TOOLS, plan_tools=PLAN_TOOLS),
        )

    def options_problem(self, options: Mapping[str, str]) -> str | None:
        try:
            if _is_content(scenario := options.get("scenario", "")):
                _checked(Path(), scenario)
        except AgentUnavailable as error:
            return str(error)
        return None

    def session(self, spec: SessionSpec) -> Launch:
        command = Command((*_python(), *spec.args), spec.cwd, spec.env)
        return Launch(command, EventLineCodec(greeting(spec)))

    def task(self, spec: TaskSpec) -> Launch:
        # A task has no client that could grant permission, so its own tools are all trusted.
        tools = [{"name": tool.name, "trust": True} for tool in TOOLS]
        stdin = request("open", options=_options(spec), model=spec.model, tools=tools, scenario=_scenario(spec))
        stdin += request("prompt", content=spec.task)
        command = Command((*_python(), "--task", *spec.args), spec.cwd, spec.env, stdin=stdin)
        return Launch(command, EventLineCodec(once=True))


def greeting(spec: SessionSpec) -> bytes:
    """Return the program's `open` request, with the checked scenario. Raises ScenarioError."""
    return open_request(replace(spec, options=_options(spec)), scenario=_scenario(spec))


def _options(spec: AgentSpec) -> dict[str, str]:
    """Return the options of the program. What a client may have written does not get the secret of the configuration."""
    hidden = {"token"} if _is_content(spec.options.get("scenario", "")) else set[str]()
    return {name: value for name, value in spec.options.items() if name not in hidden}


def _scenario(spec: AgentSpec) -> Scenario | None:
    """Return the checked scenario; None is the program's own. Raises ScenarioError."""
    scenario = spec.options.get("scenario")
    return _checked(spec.cwd, scenario) if scenario else None


def _checked(cwd: Path, scenario: str) -> Scenario:
    # The schema takes 30 to 50 ms, and a daemon without such scenarios does not need it.
    from drivers.script.scenario_file import load, read

    return read(scenario) if _is_content(scenario) else load(cwd, scenario)


def _is_content(scenario: str) -> bool:
    """Whether the option is the content of a scenario, and not the name of a file."""
    return scenario.lstrip().startswith("{")


def _python() -> tuple[str, ...]:
    # -I and -S: no site-packages and nothing of the user's; starts in 15 ms instead of 40.
    return sys.executable, "-I", "-S", str(PROGRAM)
