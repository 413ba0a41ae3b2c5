"""The commands of `portico`."""

from __future__ import annotations

from click.testing import CliRunner

from gateway.cli.main import main

COMMANDS = ["acp", "agents", "audit", "doctor", "editor", "key", "run", "serve", "service"]


def test_every_command_has_help() -> None:
    assert sorted(main.commands) == COMMANDS
    for name in COMMANDS:
        result = CliRunner().invoke(main, [name, "--help"])
        assert result.exit_code == 0
        assert "--config" in result.output or name == "service"
