"""The command line: `portico serve`, `portico key`, `portico run`, `portico acp`, `portico audit`."""

from __future__ import annotations

import gc
import os
import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway import __version__
from gateway.config import AGENT_NAME, Settings, load
from gateway.errors import ConfigError

if TYPE_CHECKING:
    from gateway.security.api_keys import NamedKeys

CONFIG = click.option("--config", type=click.Path(path_type=Path), help="A TOML file; config.example.toml explains every key.")
DATA_DIR = click.option("--data-dir", type=click.Path(path_type=Path), help="Where sessions and the key are kept.")

_Given = tuple[Path | None, Path | None]
"""--config and --data-dir, which may stand before a command of `portico key` or behind it."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="portico")
def main() -> None:
    """One front door for every agent CLI."""


@main.command()
@CONFIG
@DATA_DIR
@click.option("--host", help="The address to listen on; 127.0.0.1 unless the config says otherwise.")
@click.option("--port", type=click.IntRange(0, 65535), help="The port to listen on; 0 takes a free one.")
@click.option("--no-auth", is_flag=True, help="Ask nobody for a key. On a loopback address only.")
@click.option("--hints", is_flag=True, help="Say on standard error how to get the key, and a first request.")
def serve(config: Path | None, data_dir: Path | None, host: str | None, port: int | None, no_auth: bool, hints: bool) -> None:
    """Start the daemon."""

    def start() -> None:
        # What is imported stays for good: looking through it for garbage is a fifth of the start. `serve` turns it on again.
        gc.disable()
        from gateway.server.daemon import serve as start_daemon

        settings = _settings(config, data_dir, host, port)
        start_daemon(settings, no_auth=no_auth, hints=_hints(config, data_dir, no_auth) if hints else None)

    _or_refuse(start)


@main.group(invoke_without_command=True)
@CONFIG
@DATA_DIR
@click.pass_context
def key(context: click.Context, config: Path | None, data_dir: Path | None) -> None:
    """Print the API key; make one at the first call. The commands are about further keys, one for each client."""
    context.obj = (config, data_dir)
    if context.invoked_subcommand is None:

        def show() -> None:
            from gateway.security.api_keys import default_api_keys

            click.echo(default_api_keys(_settings(config, data_dir))[0])

        _or_refuse(show)


@key.command()
@CONFIG
@DATA_DIR
@click.argument("name")
@click.pass_obj
def add(given: _Given, name: str, config: Path | None, data_dir: Path | None) -> None:
    """Make a key for the client NAME and print it, this once. It is in force at once."""

    def make() -> None:
        if not re.fullmatch(AGENT_NAME, name):
            raise ConfigError("a key's name is letters, digits, '.', '_' and '-', 64 at most, and starts with a letter or digit")
        click.echo(_named_keys(given, config, data_dir).add(name))
        click.echo(f"Only its hash is kept: write it down now. `portico key remove {name}` takes it back.", err=True)

    _or_refuse(make)


@key.command("list")
@CONFIG
@DATA_DIR
@click.pass_obj
def list_keys(given: _Given, config: Path | None, data_dir: Path | None) -> None:
    """Show the keys of clients: name, day of making, last use."""

    def show() -> None:
        for known in _named_keys(given, config, data_dir).listed():
            used = f"last used {_when(known.used_at)}" if known.used_at else "never used"
            click.echo(f"{known.name}\tmade {_when(known.created_at)}\t{used}")

    _or_refuse(show)


@key.command()
@CONFIG
@DATA_DIR
@click.argument("name")
@click.pass_obj
def remove(given: _Given, name: str, config: Path | None, data_dir: Path | None) -> None:
    """Take the key of the client NAME back: its next request is refused. Its sessions stay."""
    _or_refuse(lambda: _named_keys(given, config, data_dir).remove(name))


def _named_keys(given: _Given, config: Path | None, data_dir: Path | None) -> NamedKeys:
    from gateway.security.api_keys import NamedKeys

    return NamedKeys(_settings(config or given[0], data_dir or given[1]).data_dir)


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


@main.command()
@CONFIG
@DATA_DIR
@click.option("--model", help="The model, for agents that have the option.")
@click.argument("agent")
@click.argument("prompt")
def run(config: Path | None, data_dir: Path | None, model: str | None, agent: str, prompt: str) -> None:
    """One turn with AGENT in the terminal; Ctrl-C interrupts it. PROMPT `-` reads standard input."""

    def one_turn() -> None:
        from gateway.cli.run import run_in_terminal

        text = sys.stdin.read() if prompt == "-" else prompt
        sys.exit(run_in_terminal(_settings(config, data_dir), agent, text, model))

    _or_refuse(one_turn)


@main.command()
@CONFIG
@DATA_DIR
@click.option("--connect", metavar="URL", help="Be a thin client of the daemon at this address, such as http://127.0.0.1:7700.")
@click.option("--key-file", type=click.Path(path_type=Path), help="A file with the daemon's key; or set PORTICO_API_KEY.")
@click.argument("agent")
def acp(config: Path | None, data_dir: Path | None, connect: str | None, key_file: Path | None, agent: str) -> None:
    """AGENT over the Agent Client Protocol on standard input and output, for editors that start an agent."""

    def start() -> None:
        from gateway.cli.acp import run_alone, run_connected

        settings = _settings(config, data_dir)
        if connect is None:
            run_alone(settings, agent)
        else:
            run_connected(settings, agent, connect, key_file)

    _or_refuse(start)


@main.command()
@CONFIG
@DATA_DIR
@click.option("--session", help="Only those of this session.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many, the newest.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def audit(config: Path | None, data_dir: Path | None, session: str | None, limit: int, as_json: bool) -> None:
    """Print what was decided about tool calls: when, which, by whom and why."""

    def show() -> None:
        from gateway.cli.audit import audit_lines

        for line in audit_lines(_settings(config, data_dir), session, limit, as_json=as_json):
            click.echo(line)

    _or_refuse(show)


def _settings(config: Path | None, data_dir: Path | None, host: str | None = None, port: int | None = None) -> Settings:
    settings = load(config)
    from_env = os.environ.get("PORTICO_DATA_DIR")
    given = {"host": host, "port": port, "data_dir": data_dir or (Path(from_env) if from_env else None)}
    changes = {name: value for name, value in given.items() if value is not None}
    return settings.model_copy(update={"server": settings.server.model_copy(update=changes)})


def _hints(config: Path | None, data_dir: Path | None, no_auth: bool) -> Callable[[str], str]:
    given = [f"--config {shlex.quote(str(config))}"] if config else []
    given += [f"--data-dir {shlex.quote(str(data_dir))}"] if data_dir else []
    show_key = " ".join([shlex.quote(sys.argv[0]), "key", *given])
    header = "" if no_auth else f' -H "Authorization: Bearer $({show_key})"'
    body = """-H 'Content-Type: application/json' -d '{"driver": "echo", "task": "hello"}'"""

    def text(url: str) -> str:
        key_line = "" if no_auth else f"The API key:    {show_key}\n"
        base_line = f"AAP base URLs:  {url}/aap/v3, {url}/aap/v2, {url} (version 1)\n"
        return f"{key_line}{base_line}A first request:\n  curl -N {url}/v1/execute{header} {body}\nStop it with Ctrl-C.\n"

    return text


def _or_refuse(action: Callable[[], Any]) -> None:
    try:
        action()
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
