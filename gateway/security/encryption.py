"""Encrypts the secret options of sessions at rest, with a key in the data directory (mode 0600), or that of a cluster."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from gateway.config import Settings
from gateway.errors import AgentProblem, ConfigError, InvalidSettings
from gateway.security.secret_files import read_or_create

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

log = logging.getLogger(__name__)


KEY_FILE = "vault-key"
"""The file in the data directory."""
SHARED_KEY = "PORTICO_ENCRYPTION_KEY"
HOW_TO_MAKE_A_KEY = "make one with `openssl rand -base64 32`, or take the file vault-key of a gateway whose store was copied"
_CHECKED = {"checked": "portico"}


class SecretsUnreadable(Exception):
    """The ciphertext cannot be decrypted. The text names the key file."""


def encryption_key(settings: Settings, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the key that a node of a cluster is configured with, as the other nodes; None for a daemon that is no node.

    Raises InvalidSettings without one: each node would make its own, and could not read the secrets that another one has stored.
    """
    if not settings.node.address:
        return None
    if given := environ.get(SHARED_KEY, "").strip():
        return given
    file = Path(settings.node.encryption_key_file or settings.data_dir / KEY_FILE)
    try:
        return file.expanduser().read_text().strip()
    except FileNotFoundError:
        raise InvalidSettings(
            f"a node needs the key that all nodes encrypt the secrets of sessions with: set {SHARED_KEY} or "
            f"node.encryption_key_file on each of them; {HOW_TO_MAKE_A_KEY}"
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"the encryption key in {file} cannot be read: {error}") from error


class SecretEncryption:
    """Encrypts and decrypts mappings of secrets. The key file is created at the first encryption, unless a key is given."""

    def __init__(self, data_dir: Path, given: str | None = None) -> None:
        self._file, self._given = data_dir / KEY_FILE, given
        self._name = str(self._file) if given is None else f"the encryption key of this node ({SHARED_KEY} or its file)"
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
        cipher = self._cipher(create=False)
        try:
            return dict(json.loads(cipher.decrypt(ciphertext)))
        except _fernet().InvalidToken:
            raise SecretsUnreadable(f"{self._name} is not the key that they were encrypted with") from None

    def checked_value(self) -> str:
        """Return a text by which `check` compares this key with that of another node. Raises ConfigError if it is no key."""
        try:
            return self._cipher(create=False).encrypt(json.dumps(_CHECKED).encode()).decode()
        except SecretsUnreadable as error:
            raise ConfigError(f"{error}; {HOW_TO_MAKE_A_KEY}") from error

    def check(self, ciphertext: bytes) -> None:
        """Raise ConfigError unless this was encrypted with the same key: by another node, or a daemon whose store this was."""
        try:
            self.decrypt(ciphertext)
        except SecretsUnreadable:
            raise ConfigError(
                "the secrets of sessions in this store are encrypted with another key than this node has: give it the "
                f"{SHARED_KEY} or node.encryption_key_file of the others, or the vault-key of the daemon whose store this was"
            ) from None

    def _cipher(self, *, create: bool) -> Fernet:
        if self._fernet is None:
            cipher = _fernet().Fernet
            try:
                key = self._given
                if key is None:
                    made = (
                        read_or_create(self._file, lambda: cipher.generate_key().decode()) if create else self._file.read_text()
                    )
                    key = made.strip()
                self._fernet = cipher(key.encode())
            except ValueError:
                raise SecretsUnreadable(f"{self._name} is not a key") from None
            except OSError as error:
                raise SecretsUnreadable(f"{self._file} cannot be read: {error.strerror}") from None
        return self._fernet


def _fernet() -> ModuleType:
    # 7 MB and 20 ms that a gateway without secret options does not need.
    from cryptography import fernet

    return fernet
