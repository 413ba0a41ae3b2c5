"""Encrypts the secret options of sessions at rest, with a key in the data directory (mode 0600)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.security.secret_files import read_or_create

if TYPE_CHECKING:
    from cryptography.fernet import Fernet


class SecretEncryption:
    """Encrypts and decrypts mappings of secrets. The key file is created at first use."""

    def __init__(self, data_dir: Path) -> None:
        self._file = data_dir / "vault-key"
        self._fernet: Fernet | None = None

    def encrypt(self, secrets: Mapping[str, str]) -> bytes | None:
        """Return the ciphertext of the secrets, or None if there are no secrets."""
        return self._cipher().encrypt(json.dumps(dict(secrets)).encode()) if secrets else None

    def decrypt(self, ciphertext: bytes | None) -> dict[str, str]:
        """Return the secrets, or {} where the key is lost, so that the session stays usable."""
        from cryptography.fernet import InvalidToken

        if not ciphertext:
            return {}
        try:
            return dict(json.loads(self._cipher().decrypt(ciphertext)))
        except InvalidToken:
            return {}

    def _cipher(self) -> Fernet:
        if self._fernet is None:
            # Imported at first use: 7 MB and 10 ms that a gateway without secret options does not need.
            from cryptography.fernet import Fernet

            self._fernet = Fernet(read_or_create(self._file, lambda: Fernet.generate_key().decode()).encode())
        return self._fernet
