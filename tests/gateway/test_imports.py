"""What a command has imported when it has started: the rest is imported on first use, because it takes time and memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.conftest import write_config
from tests.daemon import gateway_config

SHORT_COMMANDS = """
import json, sys
from gateway.cli.main import main

def imported(arguments):
    main(arguments, standalone_mode=False)
    return sorted({name.partition(".")[0] for name in sys.modules})

print(json.dumps([imported(arguments) for arguments in json.loads(sys.argv[1])]))
"""
HEAVY = ["acp", "aiosqlite", "alembic", "cryptography", "fastapi", "jsonschema", "mcp", "prometheus_client", "rich", "sqlalchemy",
         "starlette", "uvicorn", "websockets"]  # fmt: skip


def test_short_commands_import_no_heavy_package(tmp_path: Path) -> None:
    config = write_config(tmp_path, gateway_config(tmp_path))
    key = ["key", "list", "--config", str(config)]
    command = [sys.executable, "-c", SHORT_COMMANDS, json.dumps([["--version"], ["--help"], key])]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after_version, after_help, after_key = json.loads(printed.splitlines()[-1])
    unused = [*HEAVY, "asyncio", "drivers", "psutil", "pydantic"]
    assert [name for name in unused if name in after_version or name in after_help] == []
    assert [name for name in [*HEAVY, "psutil"] if name in after_key] == []
