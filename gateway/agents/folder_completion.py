"""Completes the folders that a caller may name for the sessions of an agent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gateway.agents.configured_agents import CWD, ConfiguredAgent
from gateway.errors import BadRequest

MAX_ENTRIES = 5000
"""Entries of one folder that are looked at."""


def complete_folders(
    agent: ConfiguredAgent, prefix: str, limit: int, workspace_key: str | None, *, any_folder: bool
) -> list[str]:
    """Return absolute folders that begin with a prefix and that a session may work in, in order. It blocks: call it in a thread.

    They are in the folder that the prefix names up to its last slash; `~` is the home folder. With an empty prefix it is the
    agent's own folder. `any_folder` is the caller's right to name folders outside of that. Folders whose name begins with a dot
    are left out unless the prefix has the dot.
    """
    own = agent.working_directory(None, workspace_key)
    if CWD.name in agent.locked:
        return [str(own)] if str(own).startswith(prefix) else []
    found = [str(own)] if str(own).startswith(prefix) else []
    if prefix:
        found += (folder for folder in _allowed(agent, prefix, workspace_key, any_folder) if folder != str(own))
    return list(dict.fromkeys(islice(found, limit)))


def _allowed(agent: ConfiguredAgent, prefix: str, workspace_key: str | None, any_folder: bool) -> Iterator[str]:
    parent, name = os.path.split(os.path.expanduser(prefix) if any_folder else prefix)

    def may(path: str) -> bool:
        try:
            agent.working_directory(path, workspace_key, any_folder=any_folder)
        except BadRequest:
            return False
        return True

    # A caller who may name folders below the agent's own only must not learn what others contain.
    if not os.path.isabs(parent) or not (any_folder or may(parent)):
        return
    for entry in _folders(parent, name):
        path = os.path.join(parent, entry)
        if may(path):
            yield path


def _folders(parent: str, beginning: str) -> list[str]:
    """The names of the folders in a folder, links included; empty if it cannot be read."""
    try:
        with os.scandir(Path(parent)) as entries:
            return sorted(
                entry.name
                for entry in islice(entries, MAX_ENTRIES)
                if entry.name.casefold().startswith(beginning.casefold())
                and (beginning.startswith(".") or not entry.name.startswith("."))
                and _is_folder(entry)
            )
    except (OSError, ValueError):
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        entry.name.encode()
        return entry.is_dir()
    except (OSError, UnicodeEncodeError):
        return False
