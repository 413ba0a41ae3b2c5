"""Encrypts the secret options of sessions at rest, with a key in the data directory (mode 0600)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.errors import AgentProblem
from gateway.security.secret_files import read_or_create

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

log = logging.getLogger(__name__)


class SecretsUnreadable(Exception):
    """The ciphertext cannot be decrypted. The text names the key file."""


class SecretEncryption:
    """Encrypts and decrypts mappings of secrets. The key file is created at the first encryption."""

    def __init__(self, data_dir: Path) -> None:
        self._file = data_dir / "vault-key"
        self._fernet: Fernet | None = None

    def encrypt(self, secrets: Mapping[str, str]) -> bytes | None:
        """Return the ciphertext of the secrets, or None if there are none. Raises AgentProblem if the key cannot be used."""
        if not secrets:
            return None
        try:
            return self._cipher(create=True).encrypt(json.dumps(dict(secrets)).encode())
        except SecretsUnreadable as error:
            log.error("secrets cannot be encrypted: %s", error)
            raise AgentProblem(
                "the gateway's encryption key cannot be used, so that no secret can be stored; see its log"
            ) from error

    def decrypt(self, ciphertext: bytes | None) -> dict[str, str]:
        """Return the secrets; {} for None. Raises SecretsUnreadable if the key is missing, damaged or another one."""
        if not ciphertext:
            return {}
        from cryptography.fernet import InvalidToken

        try:
            return dict(json.loads(self._cipher(create=False).decrypt(ciphertext)))
        except InvalidToken:
            raise SecretsUnreadable(f"{self._file} is not the key that they were encrypted with") from None

    def _cipher(self, *, create: bool) -> Fernet:
        if self._fernet is None:
            # Imported at first use: 7 MB and 20 ms that a gateway without secret options does not need.
            from cryptography.fernet import Fernet

            try:
                key = read_or_create(self._file, lambda: Fernet.generate_key().decode()) if create else self._file.read_text()
                self._fernet = Fernet(key.strip().encode())
            except ValueError:
                raise SecretsUnreadable(f"{self._file} is not a key") from None
            except OSError as error:
                raise SecretsUnreadable(f"{self._file} cannot be read: {error.strerror}") from None
        return self._fernet
