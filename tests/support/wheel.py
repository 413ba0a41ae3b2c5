"""Builds the wheel of the project, without the network."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from gateway.installation import NAME

ROOT = Path(__file__).parents[2]
SOURCES = ("gateway", "drivers", "pyproject.toml", "README.md", "LICENSE")
"""The files and folders that it is built from."""


def copy_source(folder: Path) -> Path:
    """Copy what the wheel is built from into a new folder, and return it."""
    folder.mkdir(parents=True)
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder)
    return folder


def build_wheel(folder: Path, name: str = NAME) -> Path:
    """Build the wheel in an empty folder, of a distribution with that name, and return its path."""
    # From a copy: setuptools writes into the folder of the project, and adds what an earlier build has left there.
    source = copy_source(folder / "source")
    project = source / "pyproject.toml"
    project.write_text(project.read_text().replace(f'name = "{NAME}"', f'name = "{name}"'))
    build = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    command = [sys.executable, "-c", build, str(folder)]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True)
    if built.returncode != 0:
        raise RuntimeError(f"the wheel cannot be built: {built.stdout[-2000:]}{built.stderr[-2000:]}")
    return folder / built.stdout.splitlines()[-1]
