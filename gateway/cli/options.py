"""What several commands share: the options --config and --data-dir, the settings that they give, and errors as exit code 1."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from gateway.config import Settings, load
from gateway.errors import ConfigError

CONFIG = click.option("--config", type=click.Path(path_type=Path), help="A TOML file; config.example.toml explains every key.")
DATA_DIR = click.option("--data-dir", type=click.Path(path_type=Path), help="Where sessions and the key are kept.")


def load_settings(config: Path | None, data_dir: Path | None, host: str | None = None, port: int | None = None) -> Settings:
    """Return the settings of the configuration file. Options and PORTICO_DATA_DIR replace its values. Raises ConfigError."""
    settings = load(config)
    from_env = os.environ.get("PORTICO_DATA_DIR")
    given = {"host": host, "port": port, "data_dir": data_dir or (Path(from_env) if from_env else None)}
    changes = {name: value for name, value in given.items() if value is not None}
    return settings.model_copy(update={"server": settings.server.model_copy(update=changes)})


@contextmanager
def config_errors() -> Iterator[None]:
    """Print a ConfigError, or an error of a file, as an error message of the command, without a traceback, and exit with 1."""
    try:
        yield
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        if error.filename is None:
            raise
        raise click.ClickException(f"{error.filename} cannot be used: {error.strerror}") from None
