"""Output of commands. Control characters in the text of agents, clients, files and servers are replaced by escape sequences."""

from __future__ import annotations

import logging

import click

from gateway.terminal_text import lines


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text to standard output, or to standard error, with control characters as escape sequences."""
    click.echo(lines(text), err=err, nl=nl)


def command_error(text: str) -> click.ClickException:
    """Return the error with which a command ends: it prints the text, likewise."""
    return click.ClickException(lines(text))


def escape_warnings() -> None:
    """Print warnings without control characters too, in commands that set up no log."""

    class Escaped(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return lines(super().format(record))

    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Escaped())
