"""Encrypts the secret options of sessions at rest, with a key in the data directory (mode 0600)."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.fernet import Fernet


class SecretEncryption:
    """Seals and opens mappings of secrets. The key file is made at the first use."""

    def __init__(self, data_dir: Path) -> None:
        self._file = data_dir / "vault-key"
        self._fernet: Fernet | None = None

    def seal(self, secrets: Mapping[str, str]) -> bytes | None:
        """Ciphertext of the secrets; None if there are none."""
        return self._cipher().encrypt(json.dumps(dict(secrets)).encode()) if secrets else None

    def open(self, sealed: bytes | None) -> dict[str, str]:
        """The secrets again; {} where the key has been lost, so that the session can still be used."""
        from cryptography.fernet import InvalidToken

        if not sealed:
            return {}
        try:
            return dict(json.loads(self._cipher().decrypt(sealed)))
        except InvalidToken:
            return {}

    def _cipher(self) -> Fernet:
        if self._fernet is None:
            # Imported late: 7 MB and 10 ms that a gateway without secret options never needs.
            from cryptography.fernet import Fernet

            self._fernet = Fernet(read_or_create(self._file, lambda: Fernet.generate_key().decode()).encode())
        return self._fernet


def read_or_create(file: Path, make: Callable[[], str]) -> str:
    """A secret file's text; made on the first call, readable by its owner only."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    left = file.read_text().strip() if file.exists() else None
    if not left:
        # Whole or not at all: of a file that a full disk left empty, an empty key would be read.
        descriptor, fresh = tempfile.mkstemp(dir=file.parent)
        with open(descriptor, "w") as handle:
            handle.write(make() + "\n")
        if left is None:
            with suppress(FileExistsError):
                os.link(fresh, file)
            os.unlink(fresh)
        else:
            os.replace(fresh, file)
    return file.read_text().strip()
