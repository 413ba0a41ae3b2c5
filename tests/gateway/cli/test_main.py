"""The commands of `portico`."""

from __future__ import annotations

import subprocess
import sys

from click.testing import CliRunner

from gateway.cli.main import main

COMMANDS = ["acp", "audit", "key", "run", "serve"]
HEAVY = ["acp", "aiosqlite", "cryptography", "fastapi", "prometheus_client", "rich", "sqlalchemy", "uvicorn"]
"""Packages that commands import when they run, which would make `portico --help` slow."""


def test_every_command_has_help() -> None:
    assert sorted(main.commands) == COMMANDS
    for name in COMMANDS:
        result = CliRunner().invoke(main, [name, "--help"])
        assert result.exit_code == 0
        assert "--config" in result.output


def test_help_imports_no_heavy_package() -> None:
    code = f"import gateway.cli.main, sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
