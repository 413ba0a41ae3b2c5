"""The commands of `portico`."""

from __future__ import annotations

from click import Context
from click.testing import CliRunner

from gateway.cli.main import main

COMMANDS = ["acp", "agents", "audit", "doctor", "editor", "key", "node", "open", "run", "serve", "service", "store"]


def test_every_command_has_help() -> None:
    assert main.list_commands(Context(main)) == COMMANDS
    for name in COMMANDS:
        result = CliRunner().invoke(main, [name, "--help"])
        assert result.exit_code == 0
        assert "--config" in result.output or name in ("service", "store")
    listed = CliRunner().invoke(main, ["--help"]).output
    assert [name for name in COMMANDS if f"  {name} " not in listed] == []


def test_an_unknown_command_is_an_error() -> None:
    result = CliRunner().invoke(main, ["sevre"])
    assert result.exit_code == 2 and "No such command 'sevre'" in result.output
