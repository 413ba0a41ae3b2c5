"""`portico run`: one turn with an agent in the terminal, without a daemon."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gateway.cli.options import CONFIG, DATA_DIR, config_errors, load_settings
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
        text = sys.stdin.read() if prompt == "-" else prompt
        sys.exit(run_turn(load_settings(config, data_dir), agent, text, model))
