"""The wheel: it has every file of the packages, and needs no compiler."""

from __future__ import annotations

import re
import zipfile
from email import message_from_bytes
from pathlib import Path

from tests.support.wheel import ROOT, build_wheel


def files_of_packages() -> set[str]:
    found = (path for package in ("gateway", "drivers") for path in (ROOT / package).rglob("*") if path.is_file())
    names = {str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts}
    # Beside the package `gateway`, and not in it.
    return {name.removeprefix("gateway/") if name.startswith("gateway/portico_testing/") else name for name in names}


def test_wheel_has_every_file_of_the_packages(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    # For any Python and any platform: it has no compiled code.
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as opened:
        packed = {name for name in opened.namelist() if ".dist-info/" not in name}
        [entry_points] = [name for name in opened.namelist() if name.endswith(".dist-info/entry_points.txt")]
        declared = opened.read(entry_points).decode()
        metadata = message_from_bytes(opened.read(entry_points.replace("entry_points.txt", "METADATA")))
    assert packed == files_of_packages() >= {"portico_testing/__init__.py", "portico_testing/py.typed"}
    assert "portico = gateway.cli.main:main" in declared and "claude = drivers.claude:ClaudeDriver" in declared
    # `uvx portico-gateway` runs the command of this name.
    assert metadata["Name"] == "portico-gateway" and "portico-gateway = gateway.cli.main:main" in declared
    assert "[pytest11]\nportico = portico_testing\n" in declared
    assert set(metadata.get_all("Provides-Extra", [])) >= {"nodes", "postgresql", "testing"}
    required = [re.split(r"[^\w-]", requirement)[0] for requirement in metadata.get_all("Requires-Dist", [])]
    assert "psycopg" in required and "portico" not in required
