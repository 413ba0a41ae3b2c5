"""`portico run`: one turn with an agent in the terminal, without a daemon."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gateway.cli.options import CONFIG, DATA_DIR, config_errors, load_settings
from gateway.cli.output import command_error
from gateway.cli.terminal_turn import run_turn
from gateway.security.process_inspection import deny_process_inspection


@click.command()
@CONFIG
@DATA_DIR
@click.option("--model", help="The model, for agents that have the option.")
@click.argument("agent")
@click.argument("prompt")
def run(config: Path | None, data_dir: Path | None, model: str | None, agent: str, prompt: str) -> None:
    """Run one turn with AGENT in the terminal; Ctrl-C interrupts it. PROMPT `-` reads standard input."""
    with config_errors():
        deny_process_inspection()
        sys.exit(run_turn(load_settings(config, data_dir), agent, _text(prompt), model))


def _text(prompt: str) -> str:
    """Return the prompt, `-` from standard input. Raises ClickException if it is not text in the encoding of this terminal."""
    try:
        text = sys.stdin.read() if prompt == "-" else prompt
        # Python keeps bytes that are no text as single surrogates.
        text.encode()
    except UnicodeError:
        raise command_error(
            f"the prompt is not text in the encoding of this terminal, {sys.stdin.encoding}; use that encoding, or set LC_ALL"
        ) from None
    return text
