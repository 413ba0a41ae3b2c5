"""Paths of the pinned CLIs and packages that `make test-real` installs, and the check that one of them is installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.debian import IN_CI

ROOT = Path(__file__).parents[2]
CLIS = Path(os.environ.get("PORTICO_TEST_CLIS", ROOT / ".clis"))
"""Where npm has installed the CLIs; another folder has other versions of them."""
BIN = CLIS / "node_modules" / ".bin"


def require(path: Path, folder: Path = CLIS) -> Path:
    """Return `path`. If it does not exist, skip the test; in CI, and if `make test-real` has installed `folder`, fail it."""
    if not path.exists():
        if IN_CI or (folder / ".installed").exists():
            pytest.fail(f"{path} is missing although it should be installed; try make clean test-real")
        pytest.skip(f"{path.name} is not installed; make test-real installs it")
    return path
