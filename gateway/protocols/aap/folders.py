"""Files and folders: completion of paths, and the files that a pending call would change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Query
from pydantic import ConfigDict

from gateway.agents.folder_access import in_time
from gateway.agents.folder_completion import complete_folders
from gateway.agents.folder_files import FolderFiles
from gateway.app import Gateway
from gateway.errors import BadRequest, NotFound
from gateway.protocols.aap.common_routes import version_routers
from gateway.protocols.aap.schema import OmitIfNone, WireModel, iso_time
from gateway.protocols.authenticated_routes import CurrentCaller
from gateway.protocols.route_metadata import errors
from gateway.sessions.call_files import FileOnDisk, paths_of, read_files

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

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "files": [{"path": "src/main.py", "type": "file"}, {"path": "src/main", "type": "folder"}],
                    "truncated": False,
                }
            ]
        }
    )

    files: list[FileInfo]
    truncated: bool


class CallFileInfo(WireModel):
    """A file of a pending call. `path` is the path in its input.

    `exists` is absent where it is not known. `text` is absent for a file that is not text or is too large. `problem` is the
    reason for either.
    """

    path: str
    exists: OmitIfNone[bool] = None
    text: OmitIfNone[str] = None
    size: OmitIfNone[int] = None
    modified: OmitIfNone[str] = None
    problem: OmitIfNone[str] = None

    @classmethod
    def of(cls, file: FileOnDisk, clean: Callable[[str], str]) -> CallFileInfo:
        """Return a file as a client gets it. `clean` hides the secrets of its text."""
        return cls(
            path=file.path,
            exists=file.exists,
            text=None if file.text is None else clean(file.text),
            size=file.size,
            modified=None if file.modified is None else iso_time(file.modified),
            problem=file.problem,
        )


class CallFilesResponse(WireModel):
    """The files in the order in which the call names them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "files": [
                        {
                            "path": "/home/ada/project/notes.md",
                            "exists": True,
                            "text": "# Notes\n",
                            "size": 8,
                            "modified": "2026-11-20T09:30:04.125Z",
                        },
                        {"path": "/etc/hosts", "problem": "it is outside of the session's folders"},
                    ]
                }
            ]
        }
    )

    files: list[CallFileInfo]


class FoldersResponse(WireModel):
    """Absolute paths of folders."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"folders": ["/home/ada/project", "/home/ada/project-2"]}]})

    folders: list[str]


def router(gateway: Gateway, base: str, tag: str, session_path: str) -> APIRouter:
    """The routes at a base URL, with this tag; that of a session under its path."""
    _, routes = version_routers(gateway, base, tag)
    folder_files = FolderFiles()

    @routes.get(session_path + "/files", responses=errors(404))
    async def files(caller: CurrentCaller, session_id: str, q: PathQuery = "", limit: LimitQuery = 50) -> FilesResponse:
        """Files and folders of a session's working folder that match, without those that a `.gitignore` excludes."""
        session = await gateway.sessions.get(caller, session_id)

        def find() -> FilesResponse:
            found, more = folder_files.find(session.working_directory(), q, limit)
            return FilesResponse(files=[FileInfo(path=one.path, type=one.type) for one in found], truncated=more)

        return await _in_time(find)

    @routes.get(session_path + "/calls/{call_id:path}/files", responses=errors(404))
    async def call_files(caller: CurrentCaller, session_id: str, call_id: str) -> CallFilesResponse:
        """The files that a call which waits for permission would change, as they are on the disk now.

        Only files in the session's folders are read. Secrets that the gateway knows are hidden, as in the call's input.
        """
        session = await gateway.sessions.get(caller, session_id)
        call = next((one for one in session.pending_calls if one.id == call_id and one.wants == "permission"), None)
        if call is None:
            raise NotFound(f"session {session_id!r} has no call {call_id!r} that waits for permission")
        found = await _in_time(lambda: read_files(paths_of(call.input), *session.folders()))
        return CallFilesResponse(files=[CallFileInfo.of(file, session.redactor.clean) for file in found])

    @routes.get("/folders")
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
        return await in_time(access)
    except OSError as error:
        raise BadRequest(f"the folder cannot be read: {error.strerror or error}") from error
