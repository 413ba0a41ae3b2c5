"""`portico editor`: prints what an editor's settings need to start agents by `portico acp`, or writes it into them."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gateway.agents.configured_agents import Agents
from gateway.cli.file_replacement import replace_file
from gateway.cli.jsonc import JSONDecodeError, parse, with_member
from gateway.cli.options import CONFIG, DATA_DIR, config_errors, load_settings
from gateway.cli.output import say
from gateway.cli.own_program import own_program
from gateway.config import Settings
from gateway.errors import ConfigError


@dataclass(frozen=True)
class Command:
    """What starts one agent: `portico acp` with its arguments."""

    agent: str
    program: str
    args: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"Portico: {self.agent}"

    @property
    def line(self) -> str:
        return shlex.join([self.program, *self.args])


@click.command()
@CONFIG
@DATA_DIR
@click.option("--connect", metavar="URL", help="Use the daemon at this address, such as http://127.0.0.1:7700.")
@click.option("--write", is_flag=True, help="Write it to the editor's settings: Zed, JetBrains, and a start script for Toad.")
@click.argument("editor", type=click.Choice(["zed", "jetbrains", "toad", "codecompanion", "agent-shell"]))
@click.argument("agents", nargs=-1, metavar="[AGENT]...")
def editor(
    config: Path | None, data_dir: Path | None, connect: str | None, write: bool, editor: str, agents: tuple[str, ...]
) -> None:
    """Print what EDITOR needs in its settings to start each AGENT; without one, those whose program is installed.

    With --write, everything else in the settings stays as it is, comments included.
    """
    with config_errors():
        settings = load_settings(config, data_dir)
        options = (("--config", config), ("--data-dir", data_dir))
        shared = [text for name, path in options if path is not None for text in (name, str(path.expanduser().absolute()))]
        shared += ["--connect", connect] if connect else []
        commands = [Command(name, own_program(), ("acp", *shared, name)) for name in _agents(settings, agents)]
        if write:
            _write(editor, commands)
        else:
            say(_PRINTED[editor](commands), nl=False)


def _agents(settings: Settings, given: Sequence[str]) -> list[str]:
    """Return the names given, or of all agents that can start. Raises ConfigError if there is no such agent."""
    known = {agent.name: agent for agent in Agents(settings)}
    for name in given:
        if name not in known:
            raise ConfigError(f"there is no agent {name!r}; choose from: {', '.join(sorted(known))}")
    # `echo` repeats its prompt: of use in an editor only for a test.
    usable = list(given) or [name for name, agent in known.items() if agent.settings.driver != "echo" and agent.problem() is None]
    if not usable:
        problems = [problem for agent in known.values() if (problem := agent.problem())]
        raise ConfigError("no agent's program is installed; install one, or name an agent:\n  " + "\n  ".join(problems))
    return list(dict.fromkeys(usable))


def _write(editor: str, commands: Sequence[Command]) -> None:
    """Write the entries into the editor's settings. Raises ConfigError if it has none that can be written."""
    if editor == "toad":
        for command in commands:
            file = Path.home() / ".local/bin" / f"toad-{command.agent}"
            replace_file(file, f'#!/bin/sh\nexec {_toad(command)} "$@"\n', 0o755)
            say(f"wrote {file}: start Toad with it, in the folder of a project")
        return
    if editor not in _SETTINGS:
        raise ConfigError(f"--write does not know where the settings of {editor} are, which are a program; add this to them:\n\n"
                          + _PRINTED[editor](commands))  # fmt: skip
    file = _SETTINGS[editor](os.environ)
    try:
        text = file.read_text("utf-8") if file.exists() else ""
        changed = text
        for command in commands:
            path = ["agent_servers", command.title]
            if _member(parse(changed), path) != _entry(editor, command):
                changed = with_member(changed, path, _entry(editor, command))
    except (JSONDecodeError, UnicodeDecodeError, TypeError) as error:
        raise ConfigError(f"{file} is left as it is, because it cannot be read: {error}") from None
    if changed == text:
        say(f"{file} has it already")
        return
    replace_file(file, changed, 0o600)
    say(f"wrote {', '.join(command.title for command in commands)} to {file}")


def _member(value: Any, path: Sequence[str]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _entry(editor: str, command: Command) -> dict[str, Any]:
    kind = {"type": "custom"} if editor == "zed" else {}
    return {**kind, "command": command.program, "args": list(command.args), "env": {}}


def _zed_settings(environ: Mapping[str, str]) -> Path:
    if sys.platform == "win32":
        return Path(environ["APPDATA"]) / "Zed/settings.json"
    base = environ.get("XDG_CONFIG_HOME") if sys.platform != "darwin" else None
    return Path(base or Path.home() / ".config") / "zed/settings.json"


_SETTINGS: dict[str, Callable[[Mapping[str, str]], Path]] = {
    "zed": _zed_settings,
    # https://www.jetbrains.com/help/ai-assistant/acp.html
    "jetbrains": lambda environ: Path.home() / ".jetbrains/acp.json",
}


def _json_settings(editor: str) -> Callable[[Sequence[Command]], str]:
    def printed(commands: Sequence[Command]) -> str:
        entries = {command.title: _entry(editor, command) for command in commands}
        return json.dumps({"agent_servers": entries}, indent=2, ensure_ascii=False) + "\n"

    return printed


def _toad(command: Command) -> str:
    return shlex.join(["toad", "acp", command.line, "--title", command.title])


def _toad_lines(commands: Sequence[Command]) -> str:
    return "".join(f"{_toad(command)}\n" for command in commands)


def _codecompanion(commands: Sequence[Command]) -> str:
    """Return Lua. The adapter `goose` is extended because it has no login of its own."""
    adapters = "".join(
        f"      {_identifier(command)} = function()\n"
        f'        return require("codecompanion.adapters").extend("goose", {{\n'
        f"          name = {_quoted(_identifier(command))},\n"
        f"          formatted_name = {_quoted(command.title)},\n"
        f"          commands = {{ default = {{ {', '.join(map(_quoted, [command.program, *command.args]))} }} }},\n"
        f"        }})\n"
        f"      end,\n"
        for command in commands
    )
    return f'require("codecompanion").setup({{\n  adapters = {{\n    acp = {{\n{adapters}    }},\n  }},\n}})\n'


def _agent_shell(commands: Sequence[Command]) -> str:
    """Return Emacs Lisp."""
    return "(with-eval-after-load 'agent-shell\n" + "\n".join(
        f"  (add-to-list 'agent-shell-agent-configs\n"
        f"    (agent-shell-make-agent-config\n"
        f"      :identifier '{_identifier(command).replace('_', '-')}\n"
        f"      :mode-line-name {_quoted(command.title)}\n"
        f"      :buffer-name {_quoted(command.title)}\n"
        f"      :shell-prompt {_quoted(f'{command.agent}> ')}\n"
        f"      :shell-prompt-regexp {_quoted(f'{command.agent}> ')}\n"
        f"      :client-maker\n"
        f"      (lambda (buffer)\n"
        f"        (acp-make-client :command {_quoted(command.program)}\n"
        f"                         :command-params '({' '.join(map(_quoted, command.args))})\n"
        f"                         :context-buffer buffer))))"
        for command in commands
    ) + ")\n"  # fmt: skip


def _identifier(command: Command) -> str:
    return "portico_" + "".join(char if char.isascii() and char.isalnum() else "_" for char in command.agent)


def _quoted(text: str) -> str:
    """Return a string of Lua or of Emacs Lisp."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_PRINTED: dict[str, Callable[[Sequence[Command]], str]] = {
    "zed": _json_settings("zed"),
    "jetbrains": _json_settings("jetbrains"),
    "toad": _toad_lines,
    "codecompanion": _codecompanion,
    "agent-shell": _agent_shell,
}
