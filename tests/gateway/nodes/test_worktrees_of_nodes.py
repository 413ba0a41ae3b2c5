"""Worktrees are files of one machine: the other nodes leave them alone, and know where they are."""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.cluster.node_directory import NodeAway
from gateway.errors import Conflict, SessionElsewhere
from gateway.protocols.aap import worktrees as routes
from gateway.security.authentication import ADMINISTRATOR
from gateway.sessions.session import Session
from gateway.store import WorktreeRecord
from tests.gateway.nodes.three_nodes import ClusterNode, run_node, run_nodes, say
from tests.gateway.store.expiry import silence
from tests.gateway.worktrees.repositories import git, make_repository


def agents(repository: Path) -> dict[str, object]:
    return {"tree": {"driver": "echo", "cwd": str(repository), "worktree": True}}


async def create(node: ClusterNode) -> tuple[Session, WorktreeRecord]:
    session = await node.create("tree")
    return session, await node.gateway.worktrees.get(session.id)


async def move_to_other_machine(node: ClusterNode, record: WorktreeRecord, folder: Path) -> None:
    """Have the files of a worktree where the other nodes, which are on this machine, do not see them."""
    await asyncio.to_thread(shutil.move, record.path, folder)


async def test_a_start_removes_what_its_node_has_left_and_leaves_what_another_one_creates(tmp_path: Path) -> None:
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


async def test_a_session_goes_on_at_the_node_that_has_its_worktree(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "project")
    async with run_nodes(tmp_path, "b", agents=agents(repository)) as (b,):
        async with run_node(tmp_path, "a", agents=agents(repository)) as a:
            session, record = await create(a)
            await say(session)
            await silence(b.gateway.store, a.id)
            assert await b.look(0.0, 2.0, 2.0) == 1
            a.clock.now += 15.0
            await a.node.beat()
            # What is on the machine of `a` is for `b` as if it were not there.
            at_a, b.gateway.worktrees.is_here = b.gateway.worktrees.is_here, lambda _: False  # type: ignore[method-assign]
            for get in (b.get, b.get_forwarded):
                with pytest.raises(SessionElsewhere) as found:
                    await get(session.id)
                assert found.value.node_id == a.id
            again = await a.get(session.id)
            assert again is not session and again.config.worktree is not None and again.config.worktree.path == record.path
            async with again.lock:
                await again.sleep()
            await b.gateway.store.nodes.drain(a.id)
            await a.node.beat()
            await a.tidy()
            await b.node.beat()
            with pytest.raises(NodeAway, match=f"{a.id}.*drained"):
                await b.get(session.id)
        await b.node.beat()
        with pytest.raises(NodeAway, match=f"the worktree of .* is on the node '{a.id}', which does not run"):
            await b.get(session.id)
        assert (await b.get(session.id, reading=True)).log.last
        b.gateway.worktrees.is_here = at_a  # type: ignore[method-assign]
        assert await b.get(session.id), "it is on a file system that the nodes share"


async def test_a_session_whose_node_is_away_can_be_deleted(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "project")
    async with run_nodes(tmp_path, "b", agents=agents(repository)) as (b,):
        async with run_node(tmp_path, "a", agents=agents(repository)) as a:
            session, record = await create(a)
        b.gateway.worktrees.is_here = lambda _: False  # type: ignore[method-assign]
        await b.node.beat()
        await b.gateway.sessions.delete(ADMINISTRATOR, session.id)
        assert await asyncio.to_thread(Path(record.path).is_dir)
        async with run_node(tmp_path, "a", agents=agents(repository)) as a:
            await a.gateway.worktrees.recovered()
            assert await a.gateway.worktrees.all() == []


async def test_a_node_removes_what_sessions_that_are_elsewhere_have_left(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        here, moved, lately, deleted = [await a.create() for _ in range(4)]
        states = a.gateway.sessions._shared.states
        for session in (here, moved, lately, deleted):
            (states / session.id).mkdir()
            (states / session.id / "history").touch()
        for session in (here, moved):
            os.utime(states / session.id, (1.0, 1.0))
        await a.tidy(6.0)
        assert await a.get_forwarded(here.id)
        for session in (moved, lately, deleted):
            await b.get_forwarded(session.id)
        await a.gateway.sessions.remove_left()
        assert {one.name for one in states.iterdir()} == {here.id, lately.id, deleted.id}
        (transcripts := a.gateway.settings.data_dir / "transcripts").mkdir(exist_ok=True)
        for session in (here, moved, deleted):
            (transcripts / f"{session.id}.jsonl").touch()
        await b.gateway.sessions.delete(ADMINISTRATOR, deleted.id)
        await a.gateway.sessions.remove_left()
        assert {one.name for one in states.iterdir()} == {here.id, lately.id}
        assert {one.stem for one in transcripts.iterdir()} == {here.id, moved.id}
