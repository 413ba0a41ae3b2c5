"""What differs between the CLIs: their packages, settings and model servers, and the names of tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from tests.model_server import anthropic, gemini, openai
from tests.model_server.scenarios import Scenario, Step, ToolUse, text_step
from tests.model_server.serving import ModelServer
from tests.real import conftest as claude_settings
from tests.real import gemini as gemini_settings
from tests.real.codex import conftest as codex_settings

ANSWER = "Both are known."
"""What the model replies when it has the results of the application's tools."""


@dataclass(frozen=True)
class Cli:
    """A CLI. `prepare(home, url)` writes its settings for a model server at that URL and returns its environment."""

    name: str
    model_server: Callable[[Mapping[str, Scenario]], AbstractAsyncContextManager[ModelServer]]
    prepare: Callable[[Path, str], dict[str, str]]
    app_prefix: str
    """What precedes the name of an application's tool in the model's calls."""
    ask: dict[str, bool] = field(default_factory=dict)
    """Its tools that run a command, with their trust."""

    def scenarios(self) -> dict[str, Scenario]:
        """The model's calls of the application's tool, in one message. They are sticky: a CLI may add a prompt of its own."""
        calls = tuple(ToolUse(f"{self.app_prefix}get_weather", {"location": city}) for city in ("Tokyo", "Oslo"))
        return {"cities": Scenario((Step(calls, chunk=5000), text_step(ANSWER)), sticky=True)}


def _prepare_claude(home: Path, url: str) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": claude_settings.DUMMY_KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def _prepare_codex(home: Path, url: str) -> dict[str, str]:
    folder = home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(codex_settings.CONFIG.format(url=url))
    return {"CODEX_HOME": str(folder), "SCRIPTED_KEY": codex_settings.DUMMY_KEY}


def _prepare_gemini(home: Path, url: str) -> dict[str, str]:
    return {"GEMINI_API_KEY": gemini_settings.KEY, "GOOGLE_GEMINI_BASE_URL": url}


CLIS = {
    cli.name: cli
    for cli in (
        Cli("claude", anthropic.model_server, _prepare_claude, "mcp__app__", {"Bash": False}),
        Cli("codex", openai.model_server, _prepare_codex, "", {"shell": False, "apply_patch": False}),
        Cli("gemini", gemini.model_server, _prepare_gemini, "mcp_portico_", {"run_shell_command": False}),
    )
}
