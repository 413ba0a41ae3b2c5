"""Where a session works: its folder and the additional directories, as a client names them and as they are kept."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from acp.schema import ForkSessionRequest, LoadSessionRequest, NewSessionRequest, ResumeSessionRequest

from gateway.agents.configured import ConfiguredAgent
from gateway.errors import BadRequest
from gateway.sessions.settings import SessionSettings

Request = NewSessionRequest | ForkSessionRequest | LoadSessionRequest | ResumeSessionRequest


def refuse_other_than_texts(params: Any) -> None:
    """Raises BadRequest for a directory that is no text: the protocol's own package would pass over it without a word."""
    given = params.get("additionalDirectories") if isinstance(params, dict) else None
    for n, path in enumerate(given if isinstance(given, list) else ()):
        if not isinstance(path, str):
            raise BadRequest(f"additionalDirectories[{n}]: a path as text")


def placed(config: SessionSettings, agent: ConfiguredAgent, request: Request) -> SessionSettings:
    """The settings with the folders that a request for a new session names. Raises BadRequest."""
    return replace(
        config,
        options={**config.options, "cwd": _asked_folder(agent, request)},
        additional_directories=directories(agent, request),
    )


def replaced(
    config: SessionSettings, agent: ConfiguredAgent, request: LoadSessionRequest | ResumeSessionRequest
) -> SessionSettings:
    """The settings with the directories that a client opens the session with: the complete list, so none if it names none.

    A session stays in its folder: a client that names another one would see wrong files. Raises BadRequest.
    """
    own, asked = folder_of(agent, config.options), _asked_folder(agent, request)
    if asked != own and request.cwd not in ("", "."):
        session = request.session_id
        raise BadRequest(f"cwd: session {session!r} works in {own}, not in {asked}; load it with its own folder, or fork it")
    return replace(config, additional_directories=directories(agent, request))


def folder_of(agent: ConfiguredAgent, options: Mapping[str, Any]) -> str:
    """The working folder of a session with these options, also where it is not there any more."""
    try:
        return str(agent.working_directory(options.get("cwd")).resolve())
    except BadRequest:
        return os.path.abspath(options.get("cwd") or "")


def directories(agent: ConfiguredAgent, request: Request) -> tuple[str, ...]:
    """The additional directories of a request. Raises BadRequest that names the one that is wrong."""
    return tuple(map(str, agent.additional_directories(request.additional_directories or ())))


def _asked_folder(agent: ConfiguredAgent, request: Request) -> str:
    try:
        return str(agent.working_directory(None if request.cwd in ("", ".") else request.cwd).resolve())
    except BadRequest as error:
        raise BadRequest(str(error).replace("option 'cwd'", "cwd", 1)) from None
