"""The worktrees of sessions: lists them, shows what has changed, commits, merges into the base branch, and removes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from gateway.app import Gateway
from gateway.errors import AgentProblem, Conflict, NotFound
from gateway.protocols.aap.common_routes import version_routers
from gateway.protocols.aap.schema import SESSION_ID, OmitIfNone, WireModel, iso_time
from gateway.protocols.authenticated_routes import CurrentCaller
from gateway.protocols.route_metadata import BODY, errors
from gateway.runs.cancellation import completed
from gateway.security.authentication import Caller
from gateway.sessions.session import Session
from gateway.store import WorktreeRecord
from gateway.worktrees.checkout import Changes, State, message_of, printable
from gateway.worktrees.worktrees import no_worktree

WORKTREE = "/worktrees/{session_id}"
MAX_MESSAGE = 10_000
MAX_NAMES = 500
"""Paths of a response that are not committed. `uncommittedCount` is how many there are."""
PathQuery = Annotated[str, Query(min_length=1, max_length=4096, description="The path of a changed file, as in `files`.")]
ForceQuery = Annotated[bool, Query(description="Remove it also if work is lost with it.")]
COMMIT = "3f2a9d0c5b7e4a1f8c6d2e9b0a7f5c3d1e8b6a49"
EXAMPLE: JsonDict = {
    "sessionId": SESSION_ID,
    "session": True,
    "agent": "claude",
    "repository": "/home/ada/project/.git",
    "path": "/home/ada/.local/share/portico/worktrees/project-0f4c1c9e2a7b",
    "branch": "portico/0f4c1c9e2a7b",
    "baseBranch": "main",
    "baseCommit": COMMIT,
    "createdAt": "2026-11-20T09:30:03.310Z",
}


class WorktreeInfo(WireModel):
    """A worktree. `session` is whether its session exists; without one it was kept. `baseBranch` is absent if there was none."""

    session_id: str = Field(alias="sessionId")
    session: bool
    agent: str
    repository: str
    path: str
    branch: str
    base_branch: OmitIfNone[str] = Field(default=None, alias="baseBranch")
    base_commit: str = Field(alias="baseCommit")
    created_at: str = Field(alias="createdAt")


class WorktreeList(WireModel):
    """All worktrees of the caller, the newest first."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"worktrees": [EXAMPLE]}]})

    worktrees: list[WorktreeInfo]


class ChangedFileInfo(WireModel):
    """A file that differs from the base. The numbers of lines are absent for a file that is not text."""

    path: str
    old_path: OmitIfNone[str] = Field(default=None, alias="oldPath")
    status: Literal["added", "modified", "deleted", "renamed"]
    additions: OmitIfNone[int] = None
    deletions: OmitIfNone[int] = None


class WorktreeState(WorktreeInfo):
    """A worktree with its state and its changes.

    `head` is its commit, `checkedOut` its branch at this moment. `ahead` and `behind` count commits against the base branch, or
    the base commit if `baseExists` is false. `files` differ from the last commit that it has in common with the base;
    `truncated`: there are more. `uncommitted` are paths that are not committed. `operation` is what git has under way, such as a
    `rebase`. `loses` is what would be lost if it were removed, in words; absent if nothing would. `atWork`: a turn of the session
    runs.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    **EXAMPLE,
                    "head": COMMIT,
                    "checkedOut": "portico/0f4c1c9e2a7b",
                    "baseExists": True,
                    "ahead": 0,
                    "behind": 0,
                    "files": [{"path": "src/main.py", "status": "modified", "additions": 3, "deletions": 1}],
                    "truncated": False,
                    "uncommitted": ["src/main.py"],
                    "uncommittedCount": 1,
                    "loses": "changes that are not committed (src/main.py)",
                    "atWork": False,
                }
            ]
        }
    )

    head: str
    checked_out: OmitIfNone[str] = Field(default=None, alias="checkedOut")
    base_exists: bool = Field(alias="baseExists")
    ahead: int
    behind: int
    files: list[ChangedFileInfo]
    truncated: bool
    uncommitted: list[str]
    uncommitted_count: int = Field(alias="uncommittedCount")
    operation: OmitIfNone[str] = None
    loses: OmitIfNone[str] = None
    at_work: bool = Field(alias="atWork")


class FileDiff(WireModel):
    """The diff of a changed file in git's format, against the base. `truncated`: it is cut after 1 MiB."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "path": "src/main.py",
                    "diff": "diff --git a/src/main.py b/src/main.py\n--- a/src/main.py\n+++ b/src/main.py\n@@ -1 +1 @@\n-1\n+2\n",
                    "truncated": False,
                }
            ]
        }
    )

    path: str
    diff: str
    truncated: bool


class CommitRequest(WireModel):
    """`POST /worktrees/:id/commit`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"message": "Add the sum"}]})

    message: Annotated[str, Field(min_length=1, max_length=MAX_MESSAGE)]


class CommitResponse(WireModel):
    """The new commit."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"commit": COMMIT}]})

    commit: str


class MergeResponse(WireModel):
    """What a merge has done: nothing was to be merged, the base branch was moved forward, or it has a merge commit now.

    `commit` is that of the base branch `branch`.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [{"outcome": "fast_forward", "branch": "main", "commit": COMMIT}]})

    outcome: Literal["up_to_date", "fast_forward", "merge_commit"]
    branch: str
    commit: str


def router(gateway: Gateway, base: str, tag: str) -> APIRouter:
    """The routes at a base URL, with this tag."""
    _, routes = version_routers(gateway, base, tag)

    @routes.get("/worktrees")
    async def list_worktrees(caller: CurrentCaller) -> WorktreeList:
        """The worktrees of sessions, and those that were kept when their session was deleted."""
        records = [one for one in await gateway.worktrees.all() if caller.sees(one.owner)]
        known = {one.id for one in await gateway.store.sessions.some([record.session_id for record in records])}
        return WorktreeList(worktrees=[WorktreeInfo.model_validate(_info(one, one.session_id in known)) for one in records])

    @routes.get(WORKTREE, responses=errors(404, 409))
    async def get_worktree(caller: CurrentCaller, session_id: str) -> WorktreeState:
        """A worktree with its state, and the files that differ from its base."""
        record, session = await _found(gateway, caller, session_id)
        async with gateway.worktrees.open(record) as checkout:
            state, changes = await checkout.state(), await checkout.changes()
        return _state(record, session, state, changes)

    @routes.get(WORKTREE + "/diff", responses=errors(404, 409))
    async def get_worktree_diff(caller: CurrentCaller, session_id: str, path: PathQuery) -> FileDiff:
        """The diff of a file of a worktree against its base."""
        record, _ = await _found(gateway, caller, session_id)
        async with gateway.worktrees.open(record) as checkout:
            diff, truncated = await checkout.diff(path)
        return FileDiff(path=path, diff=diff, truncated=truncated)

    @routes.post(WORKTREE + "/commit", status_code=201, responses=errors(404, *BODY))
    async def commit_worktree(caller: CurrentCaller, session_id: str, request: CommitRequest) -> CommitResponse:
        """Commit everything that is not committed in a worktree."""
        message = message_of(request.message)

        async def commit() -> str:
            async with (
                _resting(gateway, caller, session_id) as (record, _),
                gateway.worktrees.changing(record),
                gateway.worktrees.open(record) as checkout,
            ):
                return await checkout.commit(message)

        return CommitResponse(commit=await completed(commit()))

    @routes.post(WORKTREE + "/merge", responses=errors(404, 409))
    async def merge_worktree(caller: CurrentCaller, session_id: str) -> MergeResponse:
        """Merge the branch of a worktree into its base branch, in the folder too where that is checked out."""

        async def merge() -> MergeResponse:
            async with (
                _resting(gateway, caller, session_id) as (record, _),
                gateway.worktrees.changing(record),
                gateway.worktrees.open(record) as checkout,
            ):
                done = await checkout.merge()
            return MergeResponse(outcome=done.outcome, branch=done.branch, commit=done.commit)

        return await completed(merge())

    @routes.delete(WORKTREE, status_code=204, responses=errors(404, 409))
    async def remove_worktree(caller: CurrentCaller, session_id: str, force: ForceQuery = False) -> Response:
        """Remove a worktree, with its files and its branch. The next turn of its session begins a new one."""
        await completed(_remove(gateway, caller, session_id, force))
        return Response(status_code=204)

    return routes


async def _found(gateway: Gateway, caller: Caller, session_id: str) -> tuple[WorktreeRecord, Session | None]:
    """The worktree of a session, and the session if it exists. Raises NotFound, also for another's, and SessionElsewhere."""
    record = await gateway.worktrees.get(session_id)
    if not caller.sees(record.owner):
        raise no_worktree(session_id)
    try:
        return record, await gateway.sessions.get(caller, session_id)
    except (NotFound, AgentProblem):
        # It was deleted, or its agent is not in the configuration any more: nothing works in the worktree.
        await gateway.sessions.require_worktree_here(record)
        return record, None


@asynccontextmanager
async def _resting(gateway: Gateway, caller: Caller, session_id: str) -> AsyncIterator[tuple[WorktreeRecord, Session | None]]:
    """The worktree, in which no turn of its session begins meanwhile. Raises NotFound, and Conflict while one is at work."""
    record, session = await _found(gateway, caller, session_id)
    if session is None:
        yield record, None
        return
    _require_resting(session)
    async with session.lock:
        _require_resting(session)
        # It may have been removed meanwhile.
        yield await gateway.worktrees.get(session_id), session


async def _remove(gateway: Gateway, caller: Caller, session_id: str, force: bool) -> None:
    async with _resting(gateway, caller, session_id) as (record, session):
        if session is not None:
            # Where it is refused, the agent lives on. What it changes until its end is work, too.
            await gateway.worktrees.require_removable(record, force=force)
            await session.sleep(session.state)
        await gateway.worktrees.remove(record, force=force)


def _require_resting(session: Session) -> None:
    if session.busy:
        raise Conflict("the session is at work on a turn in this worktree; wait for its end or cancel it, then send this again")


def _info(record: WorktreeRecord, session: bool) -> dict[str, object]:
    return {
        "session_id": record.session_id,
        "session": session,
        "agent": record.agent,
        "repository": printable(record.repository),
        "path": printable(record.path),
        "branch": record.branch,
        "base_branch": record.base_branch,
        "base_commit": record.base_commit,
        "created_at": iso_time(record.created_at),
    }


def _state(record: WorktreeRecord, session: Session | None, state: State, changes: Changes) -> WorktreeState:
    files = [
        ChangedFileInfo(path=one.path, old_path=one.old_path, status=one.status, additions=one.additions, deletions=one.deletions)
        for one in changes.files
    ]
    return WorktreeState.model_validate(
        {
            **_info(record, session is not None),
            "head": state.head,
            "checked_out": state.branch,
            "base_exists": state.base_exists,
            "ahead": state.ahead,
            "behind": state.behind,
            "files": files,
            "truncated": changes.truncated,
            "uncommitted": list(state.uncommitted[:MAX_NAMES]),
            "uncommitted_count": len(state.uncommitted),
            "operation": state.operation,
            "loses": state.unmerged_work,
            "at_work": session is not None and session.busy,
        }
    )
