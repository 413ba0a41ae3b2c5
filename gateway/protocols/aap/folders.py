"""Completion of paths: the files of a session's working folder, and the folders that a session may work in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Query

from drivers.runtime.file_threads import in_thread
from gateway.agents.folder_completion import complete_folders
from gateway.agents.folder_files import FolderFiles
from gateway.errors import AgentProblem, BadRequest
from gateway.gateway import Gateway
from gateway.protocols.aap import sessions_examples as examples
from gateway.protocols.aap.common_routes import version_routers
from gateway.protocols.aap.schema import WireModel
from gateway.protocols.authenticated_routes import CurrentCaller

TIMEOUT = 5.0
"""Seconds for the file system."""
LimitQuery = Annotated[int, Query(ge=1, le=500, description="The most paths of the response.")]
PathQuery = Annotated[str, Query(max_length=200, description="Characters that a path has in this order; without any all paths.")]
PrefixQuery = Annotated[str, Query(max_length=4096, description="How the absolute path of a folder begins.")]
AgentQuery = Annotated[str, Query(max_length=64, description="The agent that the session would be of.")]
Result = TypeVar("Result")


class FileInfo(WireModel):
    """A path relative to the working folder, with `/` between its names."""

    path: str
    type: Literal["file", "folder"]


class FilesResponse(WireModel):
    """The best matches first. `truncated`: there are more, or the folder has more than was looked at."""

    files: list[FileInfo]
    truncated: bool


class FoldersResponse(WireModel):
    """Absolute paths of folders."""

    folders: list[str]


def router(gateway: Gateway, base: str, tag: str, session_path: str) -> APIRouter:
    """The routes at a base URL, with this tag; that of a session under its path."""
    _, routes = version_routers(gateway, base, tag)
    folder_files = FolderFiles()

    @routes.get(session_path + "/files", openapi_extra=examples.FILES)
    async def files(caller: CurrentCaller, session_id: str, q: PathQuery = "", limit: LimitQuery = 50) -> FilesResponse:
        """Files and folders of a session's working folder that match, without those that a `.gitignore` excludes."""
        session = await gateway.sessions.get(caller, session_id)

        def find() -> FilesResponse:
            found, more = folder_files.find(session.working_directory(), q, limit)
            return FilesResponse(files=[FileInfo(path=one.path, type=one.type) for one in found], truncated=more)

        return await _in_time(find)

    @routes.get("/folders", openapi_extra=examples.FOLDERS)
    async def folders(
        caller: CurrentCaller, agent: AgentQuery, prefix: PrefixQuery = "", limit: LimitQuery = 50
    ) -> FoldersResponse:
        """Folders that this caller may name for a session of an agent, and that begin with a prefix."""
        configured, any_folder = gateway.agents.get(agent), caller.any_folder
        if "\0" in prefix:
            raise BadRequest("prefix: a path cannot have a null character")
        key = configured.workspace_key(caller.name)
        return FoldersResponse(
            folders=await _in_time(lambda: complete_folders(configured, prefix, limit, key, any_folder=any_folder))
        )

    return routes


async def _in_time(access: Callable[[], Result]) -> Result:
    try:
        async with asyncio.timeout(TIMEOUT):
            return await in_thread(access, daemon=True)
    except TimeoutError as error:
        raise AgentProblem(f"the file system has not answered within {TIMEOUT:g} s; try again later") from error
    except OSError as error:
        raise BadRequest(f"the folder cannot be read: {error.strerror or error}") from error
