"""What several commands share: the options --config and --data-dir, the settings that they give, and errors as exit code 1."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.output import command_error, escape_warnings
from gateway.errors import ConfigError, InvalidSettings

if TYPE_CHECKING:
    from gateway.config import Settings

CONFIG = click.option("--config", type=click.Path(path_type=Path), help="A TOML file; config.example.toml explains every key.")
DATA_DIR = click.option("--data-dir", type=click.Path(path_type=Path), help="Where sessions and the key are kept.")


def load_settings(config: Path | None, data_dir: Path | None, host: str | None = None, port: int | None = None) -> Settings:
    """Return the settings of the configuration file. Options and PORTICO_DATA_DIR replace its values. Raises ConfigError."""
    # pydantic would search the metadata of all packages for plugins, which takes 10 to 30 ms. Agents do not inherit the variable.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    escape_warnings()
    # 0.1 s that `--help` and `--version` do not need.
    from gateway.config import load

    settings = load(config)
    from_env = os.environ.get("PORTICO_DATA_DIR")
    given = {"host": host, "port": port, "data_dir": data_dir or (Path(from_env) if from_env else None)}
    changes = {name: value for name, value in given.items() if value is not None}
    return settings.model_copy(update={"server": settings.server.model_copy(update=changes)})


@contextmanager
def config_errors(invalid_settings: int = 1) -> Iterator[None]:
    """Print a ConfigError, or an error of a file, as an error message of the command, without a traceback, and exit with 1.

    Exit with `invalid_settings` if the settings are wrong.
    """
    try:
        yield
    except InvalidSettings as error:
        command_error(str(error)).show()
        sys.exit(invalid_settings)
    except ConfigError as error:
        raise command_error(str(error)) from None
    except OSError as error:
        if error.filename is None:
            raise
        raise command_error(f"{error.filename} cannot be used: {error.strerror}") from None


@contextmanager
def starting() -> Iterator[None]:
    """Collect no garbage inside, where a command imports what it runs, and never again what is allocated there.

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
