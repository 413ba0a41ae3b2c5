"""The group of all commands. Each is in a module of its own, which is imported when the command is called."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import click

from gateway import __version__
from gateway.cli.output import command_error

COMMANDS = {
    "acp": "Serve an agent to an editor over the Agent Client Protocol.",
    "agents": "List the agents that Portico knows; add or remove one.",
    "audit": "Print the decisions about tool calls.",
    "doctor": "Check Portico, its data, the daemon and the agents.",
    "editor": "Print or write what an editor needs to start agents.",
    "key": "Print the API key; add, list or remove keys of clients.",
    "node": "List the nodes of the cluster, or drain one.",
    "open": "Open the web console in the browser, signed in.",
    "run": "Run one turn with an agent in the terminal.",
    "serve": "Start the daemon.",
    "service": "Run the daemon as a service of the user.",
    "store": "Copy or export the database of a gateway.",
}
"""What `portico --help` says of each command, which is a function of a module of the same name."""


@contextmanager
def starting() -> Iterator[None]:
    """Collect no garbage inside, where modules are imported, and never again what is allocated there.

    Imported modules stay for good; collecting garbage among them is a fifth of the start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        # As in the daemon (gateway/server/daemon.py), which this does not import: it takes long.
        gc.set_threshold(10_000)
        gc.enable()


class _Commands(click.Group):
    """Imports the module of a command when the command is called, and none for the list of commands."""

    def main(self, *args: Any, **settings: Any) -> Any:
        if isinstance(sys.stdout, TextIOWrapper):
            # What the encoding of the terminal lacks is written as an escape sequence, as Python does on standard error.
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return super().main(*args, **settings)
        except OSError:
            problem = _output_problem()
            if problem is None:
                raise
            command_error(f"the output cannot be written: {problem}").show()
            sys.exit(1)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        # pydantic would search the metadata of all packages for plugins, which takes 10 to 30 ms. Agents do not inherit it.
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
        with starting():
            # Only the module of this command: it imports at its top what the command runs.
            command: click.Command = getattr(import_module(f"gateway.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _output_problem() -> str | None:
    """Return why standard output takes no more, such as a full disk, and None if it does."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python would try again when it exits, and print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error.strerror
    return None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="portico")
def main() -> None:
    """A local gateway that serves agent CLIs as protocol agents."""
