"""What a gateway that was killed while it created or removed a worktree leaves, and what the next start makes of it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from gateway.store import Store
from gateway.store.sqlite import sqlite_url
from tests.conftest import write_config
from tests.gateway.worktrees.repositories import (
    BASE,
    commit_file,
    folder_of,
    git,
    listed,
    new_session,
    state_of,
    turn,
    worktree_config,
)
from tests.support.daemon import Daemon, http_client, run_gateway
from tests.support.waiting import wait_until


def left_in(repository: Path) -> tuple[int, str]:
    """How many worktrees a repository has besides its own folder, and the branches of sessions."""
    return git(repository, "worktree", "list").count("\n"), git(repository, "branch", "--list", "portico/*")


def folder_exists(path: str) -> bool:
    return Path(path).is_dir()


@pytest.mark.parametrize("step", ["row", "partly", "git"])
async def test_worktree_of_a_session_that_was_not_stored(tmp_path: Path, repository: Path, step: str) -> None:
    config = worktree_config(tmp_path, repository)
    async with run_gateway(config) as running:
        session = await new_session(running.client)
        folder = await folder_of(running.client, session)
        data = running.gateway.settings.data_dir
    store = await Store.open(sqlite_url(data))
    await store.sessions.delete(session)
    await store.worktrees.update(session, ready=False)
    if step != "git":
        await store.worktrees.update(session, git_dir="")
    await store.close()
    if step == "row":
        git(repository, "worktree", "remove", str(folder))
        git(repository, "branch", "-D", f"portico/{folder.name[-12:]}")
    if step == "partly":
        # As git leaves it: locked, and without all of its files.
        git(repository, "worktree", "lock", "--reason", "initializing", str(folder))
        (folder / "a.txt").unlink()
    async with run_gateway(config) as running:
        await running.gateway.worktrees.recovered()
        assert await listed(running.client) == []
    assert (folder.exists(), left_in(repository)) == (False, (0, ""))


async def test_session_that_was_stored_keeps_its_worktree(tmp_path: Path, repository: Path) -> None:
    config = worktree_config(tmp_path, repository)
    async with run_gateway(config) as running:
        session = await new_session(running.client)
        await turn(running.client, session, "change")
        await running.gateway.store.worktrees.update(session, ready=False)
    async with run_gateway(config) as running:
        await running.gateway.worktrees.recovered()
        assert [one.ready for one in await running.gateway.store.worktrees.all()] == [True]
        # A later start of its agent works in the same folder.
        await turn(running.client, session, "new")
        assert [one["path"] for one in (await state_of(running.client, session))["files"]] == ["a.txt", "new.txt"]


@pytest.mark.parametrize("step", ["session", "folder", "git"])
async def test_removal_is_completed(tmp_path: Path, repository: Path, step: str) -> None:
    config = worktree_config(tmp_path, repository)
    async with run_gateway(config) as running:
        session = await new_session(running.client)
        folder = await folder_of(running.client, session)
        await running.gateway.store.sessions.delete(session)
    if step != "session":
        shutil.rmtree(folder)
    if step == "git":
        git(repository, "worktree", "prune")
        git(repository, "branch", "-D", f"portico/{folder.name[-12:]}")
    async with run_gateway(config) as running:
        await running.gateway.worktrees.recovered()
        assert await listed(running.client) == []
    assert (folder.exists(), left_in(repository)) == (False, (0, ""))


@pytest.mark.parametrize("work", ["file", "commit", "commit without folder"])
async def test_work_of_a_deleted_session_is_kept(tmp_path: Path, repository: Path, work: str) -> None:
    config = worktree_config(tmp_path, repository)
    async with run_gateway(config) as running:
        session = await new_session(running.client)
        folder = await folder_of(running.client, session)
        await running.gateway.store.sessions.delete(session)
    if work == "file":
        (folder / "a.txt").write_text("work\n")
    else:
        commit_file(folder, "a.txt", "work\n")
    if work == "commit without folder":
        shutil.rmtree(folder)
    async with run_gateway(config) as running:
        await running.gateway.worktrees.recovered()
        assert await listed(running.client) == [session]
    assert git(repository, "branch", "--list", "portico/*") != ""
    assert folder.exists() == (work != "commit without folder")


async def test_gateway_killed_in_the_middle_of_a_checkout(tmp_path: Path, repository: Path) -> None:
    """The user's own filter runs at the checkout; here it writes its process id in the repository, and waits."""
    commit_file(repository, ".gitattributes", "a.txt filter=slow\n")
    pids = repository / ".git" / "pids"
    filter_program = tmp_path / "slow"
    filter_program.write_text(f"#!/bin/sh\necho $$ > {pids}\nexec sleep 600\n")
    filter_program.chmod(0o755)
    (tmp_path / ".gitconfig").write_text(f'[filter "slow"]\n\tsmudge = {filter_program}\n')
    daemon = await Daemon(write_config(tmp_path, worktree_config(tmp_path, repository)), tmp_path).start()
    async with http_client(daemon.url) as client:
        creating = asyncio.create_task(client.post(f"{BASE}/sessions", json={"agent": {"name": "tree"}}))
        pid = await wait_until(lambda: pids.exists() and pids.read_text().strip())
        [path] = [one["path"] for one in (await client.get(f"{BASE}/worktrees")).json()["worktrees"]]
        assert folder_exists(path)
        await daemon.kill()
        await asyncio.wait([creating])
    os.kill(int(pid), signal.SIGKILL)
    filter_program.write_text("#!/bin/sh\ncat\n")
    await daemon.start()
    try:
        async with http_client(daemon.url) as client:

            async def recovered() -> bool:
                return await listed(client) == []

            await wait_until(recovered)
            assert (folder_exists(path), left_in(repository)) == (False, (0, ""))
            session = await new_session(client)
            assert (await folder_of(client, session) / "a.txt").read_text() == "one\n"
    finally:
        await daemon.stop()


async def test_gateway_killed_while_it_reads_the_files(tmp_path: Path, repository: Path) -> None:
    """The copies of files that are not committed do not stay, and neither does anything else go."""
    config = worktree_config(tmp_path, repository)
    async with run_gateway(config) as running:
        session = await new_session(running.client)
        folder = await folder_of(running.client, session)
        async with running.gateway.worktrees.open(await running.gateway.worktrees.get(session)) as checkout:
            temporary = checkout._temporary
            left = shutil.copytree(folder, temporary.with_name(temporary.name + "left"))
        other = folder.parent / "tmp-other"
        other.mkdir()
    async with run_gateway(config) as running:
        await running.gateway.worktrees.recovered()
        assert (left.exists(), folder.exists(), other.exists()) == (False, True, True)
