"""Merges into a branch that the user works on: nothing of the user is lost, and what is in the way is said."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import httpx
import pytest

from gateway.worktrees.git import MERGE_SECONDS
from tests.gateway.worktrees.repositories import (
    BASE,
    commit_file,
    folder_of,
    git,
    make_repository,
    new_session,
    state_of,
    work,
)
from tests.support.daemon import RunningGateway
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("home")


async def commit(client: httpx.AsyncClient, session: str) -> str:
    answer = await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["commit"])


async def refusal(client: httpx.AsyncClient, session: str, status: int = 409) -> str:
    answer = await client.post(f"{BASE}/worktrees/{session}/merge")
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"])


async def merged(client: httpx.AsyncClient, session: str) -> dict[str, str]:
    answer = await client.post(f"{BASE}/worktrees/{session}/merge")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("forward", [True, False])
async def test_ignored_file_in_the_way_of_a_merge_stays(client: httpx.AsyncClient, repository: Path, forward: bool) -> None:
    commit_file(repository, ".gitignore", ".env\nbuild\n")
    session = await new_session(client)
    folder = await folder_of(client, session)
    (folder / ".gitignore").write_text("")
    (folder / ".env").write_text("of the agent\n")
    (folder / "build").write_text("of the agent\n")
    await commit(client, session)
    if not forward:
        commit_file(repository, "other.txt", "other\n")
    (repository / ".env").write_text("of the user\n")
    (repository / "build").mkdir()
    (repository / "build" / "result").write_text("of the user\n")
    head = git(repository, "rev-parse", "main")
    error = await refusal(client, session)
    assert ".env" in error or "build" in error
    (repository / ".env").rename(repository / "kept")
    assert "build" in await refusal(client, session)
    assert (repository / "build" / "result").read_text() == "of the user\n"
    assert (git(repository, "rev-parse", "main"), git(repository, "status", "--porcelain")) == (head, "?? kept")
    (repository / "build").rename(repository / "kept too")
    await merged(client, session)
    assert (repository / ".env").read_text() == "of the agent\n"


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("operation", ["rebase", *(pytest.param(name, marks=pytest.mark.long) for name in ("am", "bisect"))])
async def test_branch_that_is_moved_by_the_user_at_this_moment(
    client: httpx.AsyncClient, repository: Path, operation: str, linked: bool
) -> None:
    first = git(repository, "rev-parse", "HEAD")
    git(repository, "branch", "side")
    commit_file(repository, "a.txt", "main\n")
    commit_file(repository, "b.txt", "main\n")
    session = await new_session(client)
    await work(client, session, "new.txt", "new\n")
    await commit(client, session)
    folder = repository
    if linked:
        git(repository, "checkout", "-q", "-b", "elsewhere")
        git(repository, "worktree", "add", "-q", "../linked", "main")
        folder = repository.parent / "linked"
    if operation == "bisect":
        git(folder, "bisect", "start", "HEAD", first)
        end = ("bisect", "reset")
    else:
        git(repository, "worktree", "add", "-q", "../side", "side")
        commit_file(repository.parent / "side", "a.txt", "side\n")
        with pytest.raises(subprocess.CalledProcessError):
            git(folder, "rebase", *(["--apply"] if operation == "am" else []), "side")
        end = ("-c", "core.editor=true", "rebase", "--continue")
    head = git(repository, "rev-parse", "main")
    error = await refusal(client, session)
    assert f"of 'main' is under way in {folder};" in error
    assert git(repository, "rev-parse", "main") == head
    if operation != "bisect":
        (folder / "a.txt").write_text("both\n")
        git(folder, "add", "a.txt")
    git(folder, *end)
    assert git(folder, "symbolic-ref", "--short", "HEAD") == "main"
    if operation == "bisect":
        await merged(client, session)


async def test_branch_that_is_checked_out_twice(client: httpx.AsyncClient, repository: Path) -> None:
    session = await new_session(client)
    await work(client, session)
    await commit(client, session)
    git(repository, "worktree", "add", "-q", "--force", "../second", "main")
    second = repository.parent / "second"
    head = git(repository, "rev-parse", "main")
    error = await refusal(client, session)
    assert f"is checked out in {repository} and in {second}" in error
    assert git(repository, "rev-parse", "main") == head
    git(second, "checkout", "-q", "--detach")
    await merged(client, session)
    assert [git(one, "status", "--porcelain") for one in (repository, second)] == ["", ""]


@pytest.mark.parametrize(
    ("how", "said"), [("kill -KILL $PPID", "status -9"), ("touch {begun}; exec sleep 600", "not ended within 3600 s")]
)
async def test_merge_that_is_stopped_in_the_middle(
    client: httpx.AsyncClient, repository: Path, tmp_path: Path, clock: ManualClock, how: str, said: str
) -> None:
    """By a filter of the user, for the last file of the merge."""
    commit_file(repository, ".gitattributes", "z.txt filter=stopping\n")
    session = await new_session(client)
    folder = await folder_of(client, session)
    for name in ("a.txt", "b.txt", "z.txt"):
        (folder / name).write_text("changed\n")
    await commit(client, session)
    (repository / "own.txt").write_text("of the user\n")
    head = git(repository, "rev-parse", "main")
    begun = repository / ".git" / "begun"
    (tmp_path / ".gitconfig").write_text(f'[filter "stopping"]\n\tsmudge = "{how.format(begun=begun)}"\n')
    refused = asyncio.create_task(refusal(client, session, 503))
    if "KILL" not in how:
        await wait_until(begun.exists)
        await clock.expire(MERGE_SECONDS)
    error = await refused
    assert said in error and "in the middle of the merge into 'main'" in error and "a.txt, b.txt" in error
    assert (git(repository, "rev-parse", "main"), (repository / "a.txt").read_text()) == (head, "changed\n")
    lock = repository / ".git" / "index.lock"
    # Git removes it where it is ended, and not where it is killed.
    assert (lock.exists(), str(lock) in error) == ((True, True) if "KILL" in how else (False, False))
    (tmp_path / ".gitconfig").write_text("")
    if lock.exists():
        assert f"is locked by {lock}" in await refusal(client, session)
        lock.unlink()
    command = f"git -C {repository} reset --hard"
    assert command in error
    error = await refusal(client, session)
    assert "(a.txt)" in error and "the same as in this merge. If it was stopped, undo them by" in error and command in error
    # What the errors say is enough.
    git(repository, "reset", "-q", "--hard")
    (repository / "b.txt").unlink()
    assert (await merged(client, session))["outcome"] == "fast_forward"
    assert git(repository, "status", "--porcelain") == "?? own.txt"


async def test_merge_that_the_shutdown_stops(
    running: RunningGateway, repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Git removes its lock, and the error is in the log too: the client may be gone."""
    client = running.client
    commit_file(repository, ".gitattributes", "z.txt filter=waiting\n")
    session = await new_session(client)
    folder = await folder_of(client, session)
    for name in ("a.txt", "z.txt"):
        (folder / name).write_text("changed\n")
    await commit(client, session)
    head, begun = git(repository, "rev-parse", "main"), repository / "begun"
    (tmp_path / ".gitconfig").write_text(f'[filter "waiting"]\n\tsmudge = "touch {begun}; exec sleep 600"\n')
    merging = asyncio.create_task(refusal(client, session, 503))
    await wait_until(begun.exists)
    await running.gateway.worktrees.end_changes(0.0)
    error = await asyncio.wait_for(merging, 30)
    assert "in the middle of the merge into 'main' (the gateway shuts down)" in error and error in caplog.text
    assert git(repository, "rev-parse", "main") == head and not (repository / ".git" / "index.lock").exists()
    (tmp_path / ".gitconfig").write_text("")
    git(repository, "reset", "-q", "--hard")
    assert (await merged(client, session))["outcome"] == "fast_forward"


async def test_operation_of_the_user_in_the_way_of_a_merge_is_said(client: httpx.AsyncClient, repository: Path) -> None:
    """Its files may be those of the merge, which was not stopped."""
    session = await new_session(client)
    await work(client, session)
    await commit(client, session)
    branch = (await state_of(client, session))["branch"]
    git(repository, "merge", "--quiet", "--no-commit", "--no-ff", branch)
    error = await refusal(client, session)
    assert "a merge is under way there; end it first. Nothing has changed" in error and "reset" not in error


async def test_submodule_that_a_merge_has_moved(client: httpx.AsyncClient, repository: Path, tmp_path: Path) -> None:
    library = make_repository(tmp_path / "library")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
    git(repository, "commit", "-q", "-m", "submodule")
    session = await new_session(client)
    folder = await folder_of(client, session)
    git(folder, "-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init")
    commit_file(folder / "lib", "new.txt", "new\n")
    await commit(client, session)
    await merged(client, session)
    (folder / "a.txt").write_text("changed\n")
    await commit(client, session)
    error = await refusal(client, session)
    assert "(lib); they are submodules at other commits" in error and f"`git -C {repository} submodule update`" in error


async def test_own_changes_are_not_taken_for_a_merge_that_was_stopped(client: httpx.AsyncClient, repository: Path) -> None:
    session = await new_session(client)
    await work(client, session)
    await commit(client, session)
    (repository / "a.txt").write_text("staged\n")
    git(repository, "add", "a.txt")
    (repository / "a.txt").write_text("changed\n")
    assert "stash them there first" in await refusal(client, session)
    (repository / "a.txt").write_text("mine\n")
    git(repository, "add", "a.txt")
    assert "stash them there first" in await refusal(client, session)


async def test_base_branch_whose_name_is_not_utf_8(client: httpx.AsyncClient, repository: Path) -> None:
    name = os.fsdecode(b"b\xff")
    try:
        git(repository, "checkout", "-q", "-b", name)
    except subprocess.CalledProcessError:
        pytest.skip("the file system has no such names")
    session = await new_session(client)
    await work(client, session)
    state = await state_of(client, session)
    assert (state["baseBranch"], state["baseExists"]) == ("b\ufffd", True)
    commit_file(repository, "other.txt", "x")
    await commit(client, session)
    assert (await merged(client, session))["branch"] == "b\ufffd"
    assert ((repository / "a.txt").read_text(), git(repository, "status", "--porcelain")) == ("changed\n", "")
