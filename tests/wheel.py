"""Builds the wheel of the project, without the network."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("gateway", "drivers", "pyproject.toml", "README.md", "LICENSE")
"""The files and folders that it is built from."""


def build_wheel(folder: Path) -> Path:
    """Build the wheel in an empty folder, and return its path."""
    # From a copy: setuptools writes into the folder of the project, and adds what an earlier build has left there.
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    build = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    command = [sys.executable, "-c", build, str(folder)]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True)
    if built.returncode != 0:
        raise RuntimeError(f"the wheel cannot be built: {built.stdout[-2000:]}{built.stderr[-2000:]}")
    return folder / built.stdout.splitlines()[-1]
