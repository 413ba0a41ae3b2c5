"""The file with the results of probes, by what identifies each program: they are known immediately after a restart."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from drivers.contract.driver_info import ModelName, Option, Probe
from drivers.contract.events import SlashCommand
from gateway.private_files import private_file

CACHE = "discovery.json"
"""The file in the data directory."""
_WRITE = threading.Lock()


def read_cache(file: Path) -> dict[str, Probe]:
    """Return the results; none if the file is missing, damaged, or of another form."""
    try:
        return {key: _probe_of(value) for key, value in json.loads(file.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return {}


def _probe_of(value: dict[str, Any]) -> Probe:
    read: dict[str, Any] = {
        "models": tuple(value["models"]),
        "commands": tuple(SlashCommand.model_validate(command) for command in value["commands"]),
        "options": tuple(Option(**{**option, "choices": tuple(option["choices"])}) for option in value["options"]),
        "model_names": tuple(ModelName(**name) for name in value["model_names"]),
        "efforts": tuple(value["efforts"]),
        "fast_models": tuple(value["fast_models"]),
    }
    return Probe(**{**value, **read})


def write_cache(file: Path, known: dict[str, Probe]) -> None:
    """Write the results without a problem. Raises OSError."""
    temporary = file.with_suffix(".new")
    # Probes that end at the same time write in different threads; the last one must write the results of all.
    with _WRITE:
        # Problems are probed again at the next start, and the output of a failing program may contain a secret.
        probes = dict(known).items()
        well = {key: asdict(probe) for key, probe in probes if probe.problem is None and probe.logged_in is not False}
        with open(private_file(temporary, os.O_WRONLY | os.O_TRUNC), "w") as opened:
            json.dump(well, opened, default=SlashCommand.model_dump)
        temporary.replace(file)
