"""The group of all commands. Each command is in a module of its own, which imports what it runs when it is called."""

from __future__ import annotations

import click

from gateway import __version__
from gateway.cli.acp import acp
from gateway.cli.agents import agents
from gateway.cli.audit import audit
from gateway.cli.doctor import doctor
from gateway.cli.editor import editor
from gateway.cli.key import key
from gateway.cli.run import run
from gateway.cli.serve import serve
from gateway.cli.service import service


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="portico")
def main() -> None:
    """A local gateway that serves agent CLIs as protocol agents."""


for command in (serve, service, key, run, acp, agents, editor, doctor, audit):
    main.add_command(command)
