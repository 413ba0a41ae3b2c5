"""Parts of several commands: options, the settings that --config and --data-dir give, and errors as exit code 1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from gateway.cli.output import command_error, escape_warnings
from gateway.config import ServerSettings, Settings, load
from gateway.errors import ConfigError, InvalidSettings

INVALID_SETTINGS = 78
"""The exit code of the daemon for settings that are wrong, EX_CONFIG of sysexits.h: a service manager does not start it again."""
CONFIG = click.option("--config", type=click.Path(path_type=Path), help="A TOML file; config.example.toml explains every key.")
DATA_DIR = click.option("--data-dir", type=click.Path(path_type=Path), help="Where sessions and the key are kept.")
HOST = click.option("--host", help="The address of the daemon; server.host of the configuration by default.")
PORT = click.option(
    "--port", type=click.IntRange(0, 65535), help="The port of the daemon; server.port of the configuration by default."
)


def load_settings(config: Path | None, data_dir: Path | None, host: str | None = None, port: int | None = None) -> Settings:
    """Return the settings of the configuration file and the environment. Options replace their values. Raises ConfigError."""
    escape_warnings()
    settings = load(config)
    given = {"host": host, "port": port, "data_dir": data_dir}
    changes = {name: value for name, value in given.items() if value is not None}
    server = ServerSettings.model_validate({**settings.server.model_dump(), **changes})
    return settings.model_copy(update={"server": server})


@contextmanager
def config_errors(invalid_settings: int = 1) -> Iterator[None]:
    """Print a ConfigError, or an error of a file, as an error message of the command, without a traceback, and exit with 1.

    Exit with `invalid_settings` if the settings are wrong.
    """
    try:
        yield
    except ConfigError as error:
        shown = command_error(str(error))
        if isinstance(error, InvalidSettings):
            shown.exit_code = invalid_settings  # type: ignore[misc]  # click reads it from the instance.
        raise shown from None
    except OSError as error:
        if error.filename is None:
            raise
        raise command_error(f"{error.filename} cannot be used: {error.strerror}") from None
