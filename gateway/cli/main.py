"""The group of all commands. Each command is in a module of its own, which imports what it runs when it is called."""

from __future__ import annotations

from importlib import import_module

import click

from gateway import __version__

COMMANDS = ("acp", "agents", "audit", "doctor", "editor", "key", "node", "open", "run", "serve", "service", "store")
"""Each is a function of a module of the same name."""


class _Commands(click.Group):
    """Imports the module of a command when the command is called, or listed with its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"gateway.cli.{cmd_name}"), cmd_name)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="portico")
def main() -> None:
    """A local gateway that serves agent CLIs as protocol agents."""
