"""The working folder and the additional directories of a session request.

Protocol page: https://agentclientprotocol.com/rfds/additional-directories
"""

from __future__ import annotations

import os.path
from dataclasses import replace
from typing import Any

from gateway.agents.configured_agents import ConfiguredAgent
from gateway.errors import BadRequest
from gateway.protocols.acp.session_requests import (
    AnySessionRequest,
    ForkSessionRequest,
    LoadSessionRequest,
    NewSessionRequest,
    ResumeSessionRequest,
)
from gateway.sessions.settings import SessionSettings
from gateway.text_limits import MAX_DIRECTORIES, check_count
from gateway.worktrees.worktrees import SessionWorktree


def require_string_directories(params: Any) -> None:
    """Raise BadRequest for an additional directory that is not a string, and for too many of them.

    The protocol's schema would ignore the first silently.
    """
    given = params.get("additionalDirectories") if isinstance(params, dict) else None
    paths = given if isinstance(given, list) else []
    check_count("additionalDirectories", len(paths), MAX_DIRECTORIES)
    for n, path in enumerate(paths):
        if not isinstance(path, str):
            raise BadRequest(f"additionalDirectories[{n}]: must be a path, as a string")


def with_directories(
    config: SessionSettings,
    agent: ConfiguredAgent,
    request: NewSessionRequest | ForkSessionRequest,
    *,
    any_folder: bool = False,
) -> SessionSettings:
    """Return the settings with the folders of a request for a new session. Raises BadRequest for a folder that is not allowed.

    `any_folder` is the caller's right to name folders outside of the agent's own.
    """
    key = config.workspace_key
    if request.cwd and os.path.realpath(request.cwd) == worktree_folder(config):
        # Of the session that is forked: the new one has a worktree of its own.
        folder = agent.folder_of(config.options, key)
    else:
        folder = _requested_folder(agent, request, key, any_folder)
    return replace(
        config,
        options={**config.options, "cwd": folder},
        additional_directories=directories(agent, request, config.workspace_key, any_folder),
    )


def with_additional_directories(
    config: SessionSettings,
    agent: ConfiguredAgent,
    request: LoadSessionRequest | ResumeSessionRequest,
    *,
    any_folder: bool = False,
) -> SessionSettings:
    """Return the settings with the additional directories of a request that opens an existing session.

    The request has the complete list: without one, the session has none. Raises BadRequest for a directory that is not allowed,
    and for a `cwd` other than the session's, which cannot be changed.
    """
    key = config.workspace_key
    current = agent.folder_of(config.options, key)
    if request.cwd not in ("", ".") and os.path.realpath(request.cwd) not in (current, worktree_folder(config)):
        requested = _requested_folder(agent, request, key, any_folder)
        if requested != current:
            session = request.session_id
            raise BadRequest(
                f"cwd: session {session!r} works in {current}, not in {requested}; load it with its own folder, or fork it"
            )
    return replace(config, additional_directories=directories(agent, request, key, any_folder))


def worktree_folder(config: SessionSettings) -> str | None:
    """Return the folder in its worktree that a session works in; None if it has none."""
    return None if config.worktree is None else config.worktree.folder


def worktree_meta(worktree: SessionWorktree | None) -> dict[str, Any] | None:
    """Return the `_meta` of a session that works in a worktree instead of its `cwd`; None for others."""
    if worktree is None:
        return None
    return {"portico/worktree": {"cwd": worktree.folder, "path": worktree.path, "branch": worktree.branch}}


def directories(
    agent: ConfiguredAgent, request: AnySessionRequest, workspace_key: str | None, any_folder: bool
) -> tuple[str, ...]:
    """Return the additional directories of a request. Raises BadRequest that names the first one that is not allowed."""
    given = request.additional_directories or ()
    return tuple(map(str, agent.additional_directories(given, workspace_key, any_folder=any_folder)))


def _requested_folder(agent: ConfiguredAgent, request: AnySessionRequest, workspace_key: str | None, any_folder: bool) -> str:
    try:
        chosen = None if request.cwd in ("", ".") else request.cwd
        if chosen is not None:
            agent.check_locked({"cwd": chosen}, workspace_key)
        return str(agent.working_directory(chosen, workspace_key, any_folder=any_folder))
    except BadRequest as error:
        raise BadRequest(str(error).replace("option 'cwd'", "cwd", 1)) from None
