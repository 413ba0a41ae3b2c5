"""Files in the data directory that hold one secret or id, created at first use with mode 0600."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gateway.private_files import FILE_MODE, private_directory


def read_or_create(file: Path, make: Callable[[], str]) -> str:
    """Return the file's text without surrounding whitespace.

    If the file is missing or empty, it is created with the text that `make` returns. Processes that call this at the same time
    get the same text.
    """
    private_directory(file.parent)
    existing = file.read_text().strip() if file.exists() else None
    if not existing:
        # Written to a temporary file first: a write that fails on a full disk must not leave an empty key behind.
        descriptor, temporary = tempfile.mkstemp(dir=file.parent)
        # The umask may have removed permissions of the owner.
        os.fchmod(descriptor, FILE_MODE)
        with open(descriptor, "w") as handle:
            handle.write(make() + "\n")
        if existing is None:
            with suppress(FileExistsError):
                os.link(temporary, file)
            os.unlink(temporary)
        else:
            os.replace(temporary, file)
    return file.read_text().strip()
