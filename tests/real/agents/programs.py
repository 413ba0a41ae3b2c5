"""The programs of the agents that are tested: how each is told its model server, and what it calls its tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.model_server.scenarios import Scenario, Step, Text, ToolUse, text_step
from tests.real.clis import CLIS, IN_CI, require

FOLDER = CLIS / "agents"
BIN = FOLDER / "node_modules" / ".bin"
"""Has the Node that some of them need, too."""
VIBE = FOLDER / "vibe" / "bin"
KEY = "dummy-key-0123456789"
NOWHERE = "http://127.0.0.1:9"
"""A proxy that is not there: nothing reaches another machine."""


WEATHER = {"location": "Tokyo"}


@dataclass(frozen=True)
class RealAgent:
    """One agent.

    prepare: writes its configuration into an empty home folder, for a model server at this base URL, and returns its variables.
    shell, write: its tools that run a command and write a file, with their input; `{arg}` is the command, or the file's path.
    app_tool: the call of the application-side tool `get_weather`, as its model makes it.
    """

    name: str
    prepare: Callable[[Path, str], dict[str, str]]
    shell: ToolUse
    write: ToolUse
    app_tool: ToolUse

    def scenarios(self) -> Mapping[str, Scenario]:
        """Replies of the model that call its tools."""
        return {
            "run": _call(self.shell, "The command ran."),
            "write": _call(self.write, "It is written."),
            "weather": _call(self.app_tool, "It is mild in Tokyo."),
            # Different words: some agents stop a repeated word as a loop.
            "slowcount": Scenario((Step((Text(" ".join(map(str, range(2000)))),), chunk=8, delay=0.05),)),
        }


def _call(tool: ToolUse, after: str) -> Scenario:
    return Scenario((Step((Text("Calling. "), tool), chunk=40), text_step(after)))


def program(name: str) -> Path:
    """The program of an agent. Skips the test if it is not installed."""
    if name != "vibe":
        return require(BIN / name, FOLDER)
    if not IN_CI and (FOLDER / ".installed").exists() and not VIBE.exists():
        pytest.skip("vibe needs Python 3.12, which `make test-real` has not found")
    return require(VIBE / "vibe-acp", FOLDER)


def _opencode(home: Path, url: str) -> dict[str, str]:
    folder = home / ".config" / "opencode"
    folder.mkdir(parents=True)
    model = {"name": "Scripted", "reasoning": True, "tool_call": True}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": url, "apiKey": KEY},
        "models": {"scripted": model},
    }
    config = {"model": "local/scripted", "small_model": "local/scripted", "provider": {"local": provider}, "autoupdate": False}
    (folder / "opencode.json").write_text(json.dumps(config))
    return {}


def _copilot(home: Path, url: str) -> dict[str, str]:
    provider = {"COPILOT_PROVIDER_BASE_URL": url, "COPILOT_PROVIDER_API_KEY": KEY, "COPILOT_MODEL": "scripted"}
    return {"COPILOT_OFFLINE": "true", "COPILOT_AUTO_UPDATE": "false", **provider}


def _qwen(home: Path, url: str) -> dict[str, str]:
    (home / ".qwen").mkdir()
    # Without the requests that it makes to its model on its own, after each turn.
    own = {"enableManagedAutoMemory": False, "enableManagedAutoDream": False}
    settings = {"privacy": {"usageStatisticsEnabled": False}, "memory": own, "ui": {"enableFollowupSuggestions": False}}
    (home / ".qwen" / "settings.json").write_text(json.dumps(settings))
    return {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY, "OPENAI_MODEL": "scripted"}


def _kimi(home: Path, url: str) -> dict[str, str]:
    (home / ".kimi-code").mkdir()
    (home / ".kimi-code" / "config.toml").write_text(
        f'default_model = "scripted"\ntelemetry = false\n'
        f'[providers.local]\ntype = "openai"\nbase_url = "{url}"\napi_key = "{KEY}"\n'
        f'[models.scripted]\nprovider = "local"\nmodel = "scripted"\nmax_context_size = 100000\ncapabilities = ["thinking"]\n'
    )
    return {}


def _vibe(home: Path, url: str) -> dict[str, str]:
    (home / ".vibe").mkdir()
    (home / ".vibe" / "config.toml").write_text(
        f'active_model = "scripted"\nenable_telemetry = false\nenable_update_checks = false\n'
        f'[[providers]]\nname = "local"\napi_base = "{url}"\napi_key_env_var = "MISTRAL_API_KEY"\nbackend = "generic"\n'
        f'[[models]]\nname = "scripted"\nprovider = "local"\nalias = "scripted"\n'
    )
    return {"MISTRAL_API_KEY": KEY}


AGENTS = {
    agent.name: agent
    for agent in (
        RealAgent(
            "opencode",
            _opencode,
            ToolUse("bash", {"command": "{arg}", "description": "run it"}),
            ToolUse("write", {"filePath": "{arg}", "content": "written"}),
            ToolUse("portico_get_weather", WEATHER),
        ),
        RealAgent(
            "copilot",
            _copilot,
            ToolUse("bash", {"command": "{arg}", "description": "run it"}),
            ToolUse("create", {"path": "{arg}", "file_text": "written"}),
            ToolUse("portico-get_weather", WEATHER),
        ),
        RealAgent(
            "qwen",
            _qwen,
            ToolUse("run_shell_command", {"command": "{arg}", "is_background": False}),
            ToolUse("write_file", {"file_path": "{arg}", "content": "written"}),
            ToolUse("mcp__portico__get_weather", WEATHER),
        ),
        RealAgent(
            "kimi",
            _kimi,
            ToolUse("Bash", {"command": "{arg}"}),
            ToolUse("Write", {"path": "{arg}", "content": "written"}),
            ToolUse("mcp__portico__get_weather", WEATHER),
        ),
        RealAgent(
            "vibe",
            _vibe,
            ToolUse("bash", {"command": "{arg}"}),
            ToolUse("write_file", {"path": "{arg}", "content": "written"}),
            # Its model calls MCP tools in a program.
            ToolUse(
                "run_typescript",
                {"code": 'async function main() { return await tools.mcp_portico.get_weather({location: "Tokyo"}); }'},
            ),
        ),
    )
}
