"""Replaces a file of the user's settings."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_file(file: Path, text: str, mode: int) -> None:
    """Replace the file as a whole, and keep the mode of one that is there; `mode` is that of a new one."""
    # Settings are often links into a folder of dotfiles, which a replacement of the link would cut off.
    file = file.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=file.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as handle:
            handle.write(text)
        os.chmod(temporary, file.stat().st_mode & 0o777 if file.exists() else mode)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
