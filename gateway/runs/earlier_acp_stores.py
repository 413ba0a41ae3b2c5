"""Moves the sessions of earlier releases, where each `portico acp` had a data directory `acp/N`, to the data directory itself."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from gateway.private_files import private_directory, private_file
from gateway.runs.recovery import end_left_behind
from gateway.security.encryption import SecretEncryption, SecretsUnreadable
from gateway.store import Cursor, SessionRecord, Store
from gateway.store.sqlite import sqlite_url

log = logging.getLogger(__name__)

IMPORTED = "imported-"
"""The beginning of the name that a directory has when its sessions have been moved."""


async def import_earlier_acp_stores(store: Store, data_dir: Path) -> int:
    """Copy the sessions of each directory `acp/N` that no process uses to the store, and rename it. Returns how many were copied.

    A directory that cannot be read stays as it is, with a warning in the log. What was copied is not copied again, so that an
    interrupted import goes on at the next start.
    """
    copied = 0
    for folder in sorted((data_dir / "acp").glob("[0-9]*")):
        if not (folder / "portico.db").is_file():
            continue
        try:
            with os.fdopen(private_file(folder / "lock", os.O_WRONLY), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                copied += await _import(store, data_dir, folder)
                folder.rename(_free_name(folder))
        except BlockingIOError:
            log.warning(
                "the sessions in %s are imported when the portico acp of an earlier release that uses it has ended", folder
            )
        except Exception as error:
            log.warning("the sessions in %s are not imported: %s", folder, error)
    return copied


async def _import(store: Store, data_dir: Path, folder: Path) -> int:
    source = await Store.open(sqlite_url(folder))
    copied = 0
    try:
        await end_left_behind(source)
        before, after = SecretEncryption(folder), SecretEncryption(data_dir)
        last: Cursor | None = None
        while page := await source.sessions.page(100, last):
            for record in page:
                copied += await store.copy_session(source, record.id, _encrypted_again(record, before, after))
                _move_files(data_dir, folder, record.id)
            last = (page[-1].created_at, page[-1].id)
    finally:
        await source.close()
    return copied


def _encrypted_again(record: SessionRecord, before: SecretEncryption, after: SecretEncryption) -> bytes | None:
    """Return the session's secrets, encrypted with the other key. Those that cannot be read stay as they are."""
    try:
        return after.encrypt(before.decrypt(record.secrets))
    except SecretsUnreadable as error:
        log.warning("session %s: %s", record.id, error)
        return record.secrets


def _move_files(data_dir: Path, folder: Path, session_id: str) -> None:
    """Move the files of the session's CLI and its transcripts. Files that are missing were moved before, or never made.

    What is in the data directory already stays as it is.
    """
    for kind, name in (("state", session_id), ("transcripts", f"{session_id}.jsonl")):
        source, target = folder / kind / name, data_dir / kind / name
        if source.exists() and not target.exists():
            private_directory(target.parent)
            source.rename(target)


def _free_name(folder: Path) -> Path:
    name, number = folder.with_name(f"{IMPORTED}{folder.name}"), 1
    while name.exists():
        number += 1
        name = folder.with_name(f"{IMPORTED}{folder.name}-{number}")
    return name
