"""Runs programs with packages of the model vendors' clients against a gateway: Python in an environment of its own, and Node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.real.acp.programs import node, run_program
from tests.real.clis import CLIS, require
from tests.support.daemon import KEY

FOLDER = CLIS / "model-apis"
HERE = Path(__file__).parent


async def run_python(script: str, case: str, url: str, folder: Path, *arguments: str) -> Any:
    """Run a case of a Python script in this package; return what it prints, which is JSON. Its arguments are CASE URL KEY …."""
    python = require(FOLDER / "python" / "bin" / "python", FOLDER)
    return json.loads(await run_program(python, HERE / script, case, url, KEY, *arguments, folder=folder))


async def run_node(script: str, case: str, url: str, folder: Path, *arguments: str) -> Any:
    """As `run_python`, for a script of Node. Its arguments are FOLDER_OF_PACKAGES CASE URL KEY …."""
    require(FOLDER / "node_modules", FOLDER)
    return json.loads(await run_program(node(), HERE / script, FOLDER, case, url, KEY, *arguments, folder=folder))
