"""The parameters of a list of sessions that AAP does not have: its order, and which sessions it has."""

from __future__ import annotations

import os.path
from functools import partial
from typing import Annotated, Literal

from fastapi import Depends, Query

from gateway.agents.folder_access import in_time
from gateway.app import Gateway
from gateway.errors import BadRequest
from gateway.protocols.aap.schema import SessionState
from gateway.protocols.aap.sessions import page
from gateway.protocols.cursors import decode_cursor, encode_cursor
from gateway.security.authentication import Caller
from gateway.sessions.settings import SessionFilter
from gateway.store import SessionRecord

Order = Annotated[
    Literal["created", "activity"], Query(description="The newest session first, or that in which a turn began or ended last.")
]
AgentQuery = Annotated[str | None, Query(max_length=64, description="Sessions of this agent only.")]
StateQuery = Annotated[SessionState | None, Query(description="Sessions in this state only.")]
FolderQuery = Annotated[str | None, Query(max_length=4096, description="Sessions in this absolute working folder only.")]
ALL = SessionFilter()


async def _wanted(
    order: Order = "created", agent: AgentQuery = None, state: StateQuery = None, cwd: FolderQuery = None
) -> SessionFilter:
    if cwd is not None and (not os.path.isabs(cwd) or "\0" in cwd):
        raise BadRequest(f"cwd: {cwd[:200]!r} is not an absolute path")
    # Folders are compared without symbolic links, as those of sessions are stored.
    folder = None if cwd is None else await in_time(partial(os.path.realpath, cwd), "the folder `cwd`")
    return SessionFilter(agent, state, folder, by_activity=order == "activity")


Wanted = Annotated[SessionFilter, Depends(_wanted)]


async def filtered(
    gateway: Gateway, caller: Caller, after: str | None, limit: int, wanted: SessionFilter
) -> tuple[list[SessionRecord], str | None]:
    """Sessions that a filter wants, in its order, and the cursor of the page after them, if there is one."""
    if wanted == ALL:
        return await page(gateway, caller, after, limit)
    cursor = decode_cursor(after, parameter="after", source="`next`")
    found = await gateway.sessions.filtered(caller, limit + 1, cursor, wanted)
    records = [record for record, _ in found[:limit]]
    return records, encode_cursor(*found[limit - 1][1]) if len(found) > limit else None
