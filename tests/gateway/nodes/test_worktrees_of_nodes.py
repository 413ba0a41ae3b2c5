"""Worktrees are files of one machine: the other nodes leave them alone, and know where they are."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.errors import Conflict, SessionElsewhere
from gateway.protocols.aap import worktrees as routes
from gateway.security.authentication import ADMINISTRATOR
from gateway.sessions.session import Session
from gateway.store import WorktreeRecord
from tests.gateway.nodes.three_nodes import ClusterNode, run_node, run_nodes
from tests.gateway.worktrees.repositories import git, make_repository


def agents(repository: Path) -> dict[str, object]:
    return {"tree": {"driver": "echo", "cwd": str(repository), "worktree": True}}


async def create(node: ClusterNode) -> tuple[Session, WorktreeRecord]:
    session = await node.create("tree")
    return session, await node.gateway.worktrees.get(session.id)


async def move_to_other_machine(node: ClusterNode, record: WorktreeRecord, folder: Path) -> None:
    """Have the files of a worktree where the other nodes, which are on this machine, do not see them."""
    await asyncio.to_thread(shutil.move, record.path, folder)


async def test_a_start_leaves_a_worktree_that_another_node_creates(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "project")
    async with run_node(tmp_path, "a", agents=agents(repository)) as a:
        session, record = await create(a)
        # As while the session is created: neither is stored yet.
        await a.gateway.store.sessions.delete(session.id)
        await a.gateway.store.worktrees.update(session.id, ready=False)
        async with run_node(tmp_path, "b", agents=agents(repository)) as b:
            await b.gateway.worktrees.recovered()
            assert [one.session_id for one in await b.gateway.worktrees.all()] == [session.id]
        assert await asyncio.to_thread(Path(record.path).is_dir)
        assert git(repository, "branch", "--list", record.branch)


async def test_its_own_start_removes_what_a_node_has_left(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "project")
    async with run_node(tmp_path, "a", agents=agents(repository)) as a:
        session, record = await create(a)
        await a.gateway.store.sessions.delete(session.id)
    async with run_node(tmp_path, "a", agents=agents(repository)) as a:
        await a.gateway.worktrees.recovered()
        assert await a.gateway.worktrees.all() == []
        assert not await asyncio.to_thread(Path(record.path).exists)


async def test_a_node_that_has_the_session_now_does_not_remove_the_worktree_of_the_other_one(tmp_path: Path) -> None:
    # A repository of this name and place is on both machines, without the branch.
    repository = make_repository(tmp_path / "project")
    async with run_nodes(tmp_path, "a", "b", agents=agents(repository)) as (a, b):
        session, record = await create(a)
        await move_to_other_machine(a, record, tmp_path / "of-a")
        git(repository, "worktree", "prune")
        git(repository, "branch", "-D", record.branch)
        for force in (False, True):
            with pytest.raises(Conflict, match="another node"):
                await b.gateway.worktrees.remove(record, force=force)
        await b.gateway.worktrees.release(session.id)
        assert [one.session_id for one in await a.gateway.worktrees.all()] == [session.id]


async def test_the_kept_worktree_of_a_deleted_session_is_found_at_its_node(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "project")
    async with run_nodes(tmp_path, "a", "b", agents=agents(repository)) as (a, b):
        session, record = await create(a)
        (Path(record.path) / "new.txt").write_text("work\n")
        await a.gateway.sessions.delete(ADMINISTRATOR, session.id)
        assert (await routes._found(a.gateway, ADMINISTRATOR, session.id)) == (record, None)
        await move_to_other_machine(a, record, tmp_path / "of-a")
        with pytest.raises(SessionElsewhere) as found:
            await routes._found(b.gateway, ADMINISTRATOR, session.id)
        assert found.value.node_id == a.id


async def test_a_worktree_of_the_time_before_a_daemon_was_a_node_is_its_own(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "project")
    async with run_nodes(tmp_path, "a", "b", agents=agents(repository)) as (a, b):
        session, record = await create(a)
        path = a.gateway.worktrees.folder.parent / "project-before"
        git(repository, "worktree", "move", record.path, str(path))
        await a.gateway.store.worktrees.update(session.id, path=str(path))
        before = replace(record, path=str(path))
        assert a.gateway.worktrees._is_own(before) and not b.gateway.worktrees._is_own(before)
        await a.gateway.worktrees.remove(before)
        assert await a.gateway.worktrees.all() == []
