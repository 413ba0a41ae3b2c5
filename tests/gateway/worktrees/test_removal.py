"""What a removal without `force` refuses, and what one that is refused leaves as it was."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from tests.gateway.worktrees.repositories import (
    BASE,
    commit_file,
    folder_of,
    git,
    listed,
    make_repository,
    new_session,
    state_of,
    turn,
    work,
)


async def refusal(client: httpx.AsyncClient, session: str, status: int = 409, force: bool = False) -> str:
    answer = await client.delete(f"{BASE}/worktrees/{session}{'?force=true' if force else ''}")
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"])


async def removed(client: httpx.AsyncClient, session: str) -> None:
    answer = await client.delete(f"{BASE}/worktrees/{session}")
    assert answer.status_code == 204, answer.text


def locked(folder: Path) -> Path:
    """Lock the index of a worktree, as a git does that is at work, or was killed; return the lock file."""
    lock = Path(git(folder, "rev-parse", "--absolute-git-dir"), "index.lock")
    lock.write_text("")
    return lock


async def test_changes_that_git_does_not_look_at(client: httpx.AsyncClient) -> None:
    session = await new_session(client)
    folder = await folder_of(client, session)
    git(folder, "update-index", "--skip-worktree", "a.txt")
    git(folder, "update-index", "--assume-unchanged", "turns.json")
    assert "loses" not in await state_of(client, session)
    (folder / "a.txt").write_text("work\n")
    (folder / "turns.json").write_text("{}")
    state = await state_of(client, session)
    assert state["loses"] == "changes in files that git does not look at (a.txt, turns.json)"
    assert state["uncommitted"] == []
    assert "does not look at (a.txt, turns.json)" in await refusal(client, session)
    answer = await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})
    assert answer.status_code == 409 and "told not to look at (a.txt, turns.json)" in answer.text
    # Other work is committed and merged without it.
    await work(client, session, "new.txt", "new\n")
    assert (await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})).status_code == 201
    assert (await client.post(f"{BASE}/worktrees/{session}/merge")).status_code == 200
    assert (await client.delete(f"{BASE}/sessions/{session}")).status_code == 204
    assert (await listed(client), (folder / "a.txt").read_text()) == ([session], "work\n")
    git(folder, "update-index", "--no-skip-worktree", "a.txt")
    git(folder, "update-index", "--no-assume-unchanged", "turns.json")
    assert (await state_of(client, session))["uncommitted"] == ["a.txt", "turns.json"]


async def test_files_outside_of_a_sparse_checkout_are_no_work(client: httpx.AsyncClient, repository: Path) -> None:
    commit_file(repository, "inside/file", "x")
    commit_file(repository, "outside/file", "x")
    session = await new_session(client)
    git(await folder_of(client, session), "sparse-checkout", "set", "inside")
    await removed(client, session)


async def test_refused_removal_does_not_end_the_agent(client: httpx.AsyncClient) -> None:
    session = await new_session(client)
    await turn(client, session, "change")
    [before] = (await client.get("/v1/live-agents")).json()["agents"]
    await refusal(client, session)
    [after] = (await client.get("/v1/live-agents")).json()["agents"]
    assert after["sessionId"] == session
    # The moment is what the monotonic clock says, by the present time: a millisecond may be another one.
    passed = datetime.fromisoformat(after["idleSince"]) - datetime.fromisoformat(before["idleSince"])
    assert abs(passed.total_seconds()) < 0.02
    assert (await client.delete(f"{BASE}/worktrees/{session}?force=true")).status_code == 204
    assert (await client.get("/v1/live-agents")).json()["agents"] == []


async def test_removal_without_git_removes_nothing(
    client: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await new_session(client)
    folder = await folder_of(client, session)
    with monkeypatch.context() as changed:
        changed.setenv("PATH", str(tmp_path / "none"))
        assert "not on the gateway's PATH" in await refusal(client, session, 503, force=True)
    assert (folder / "a.txt").exists()
    await removed(client, session)


async def test_folder_that_is_gone_with_a_commit_that_is_on_no_branch(client: httpx.AsyncClient, repository: Path) -> None:
    session = await new_session(client)
    folder = await folder_of(client, session)
    git(folder, "checkout", "-q", "--detach")
    commit = commit_file(folder, "a.txt", "work\n")
    assert "one commit" in await refusal(client, session)
    shutil.rmtree(folder)
    assert "one commit that no other branch has" in await refusal(client, session)
    # Nor does a turn drop it, which creates the folder again.
    body = {"messages": [{"role": "user", "content": "hello"}]}
    answer = await client.post(f"{BASE}/sessions/{session}/turns", json=body)
    assert answer.status_code == 409, answer.text
    error, command = answer.json()["error"], f"git -C {repository}/.git branch NAME {commit}"
    assert command in error
    git(repository, *command.replace("NAME", "kept").split()[1:])
    await turn(client, session, "hello")
    assert (folder / "a.txt").read_text() == "one\n"
    await removed(client, session)
    assert git(repository, "rev-parse", "kept") == commit


async def test_folder_that_is_gone_in_the_middle_of_a_rebase(client: httpx.AsyncClient, repository: Path) -> None:
    session = await new_session(client)
    folder = await folder_of(client, session)
    branch = git(folder, "symbolic-ref", "--short", "HEAD")
    commit_file(folder, "a.txt", "work\n")
    commit_file(repository, "a.txt", "other\n")
    with pytest.raises(subprocess.CalledProcessError):
        git(folder, "rebase", "main")
    git(repository, "branch", "-f", "kept", branch)
    shutil.rmtree(folder)
    assert "a rebase under way" in await refusal(client, session)
    assert (await client.delete(f"{BASE}/worktrees/{session}?force=true")).status_code == 204


async def test_commit_with_a_locked_index_changes_nothing(client: httpx.AsyncClient) -> None:
    session = await new_session(client)
    folder = await folder_of(client, session)
    await work(client, session)
    lock = locked(folder)
    before = await state_of(client, session)
    answer = await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})
    assert answer.status_code == 409 and f"locked by {lock}" in answer.json()["error"], answer.text
    assert await state_of(client, session) == before
    lock.unlink()
    assert (await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})).status_code == 201


async def test_commit_whose_index_was_not_written(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a git of the agent at that moment, or a daemon that was killed: the next commit makes up for it."""
    session = await new_session(client)
    folder = await folder_of(client, session)
    await work(client, session)
    await work(client, session, "new.txt", "new\n")
    lock = locked(folder)
    path = f"{BASE}/worktrees/{session}"
    with monkeypatch.context() as changed:
        changed.setattr("gateway.worktrees.checkout._problem_of_lock", lambda git_dir: None)
        answer = await client.post(f"{path}/commit", json={"message": "c"})
    assert answer.status_code == 201, answer.text
    lock.unlink()
    assert (await client.post(f"{path}/merge")).status_code == 409
    again = await client.post(f"{path}/commit", json={"message": "c"})
    assert (again.status_code, again.json()) == (201, answer.json())
    assert (await state_of(client, session))["uncommitted"] == []
    assert "no changes" in (await client.post(f"{path}/commit", json={"message": "c"})).json()["error"]
    assert (await client.post(f"{path}/merge")).status_code == 200


async def test_files_in_the_folder_of_a_submodule(client: httpx.AsyncClient, repository: Path, tmp_path: Path) -> None:
    """Git does not list them."""
    library = make_repository(tmp_path / "library")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
    git(repository, "commit", "-q", "-m", "submodule")
    session = await new_session(client)
    folder = await folder_of(client, session)
    assert "loses" not in await state_of(client, session)
    (folder / "lib" / "work.txt").write_text("work\n")
    assert (await state_of(client, session))["uncommitted"] == ["lib/"]
    assert "changes that are not committed (lib/)" in await refusal(client, session)
    answer = await client.post(f"{BASE}/worktrees/{session}/merge")
    assert answer.status_code == 409 and "not committed (lib/)" in answer.text


async def test_worktree_whose_repository_is_gone_too(client: httpx.AsyncClient, repository: Path) -> None:
    session = await new_session(client)
    shutil.rmtree(await folder_of(client, session))
    await asyncio.to_thread(repository.rename, repository.with_name("moved"))
    assert "put the repository back, or remove the worktree with `force`" in await refusal(client, session)
    assert (await client.delete(f"{BASE}/worktrees/{session}?force=true")).status_code == 204
    assert await listed(client) == []


async def test_index_that_is_no_file(client: httpx.AsyncClient) -> None:
    session = await new_session(client)
    folder = await folder_of(client, session)
    index = Path(git(folder, "rev-parse", "--absolute-git-dir"), "index")
    await asyncio.to_thread(index.unlink)
    await asyncio.to_thread(index.symlink_to, "/dev/zero")
    answer = await client.get(f"{BASE}/worktrees/{session}/diff?path=a.txt")
    assert answer.status_code == 409 and f"{index}, is no file any more" in answer.text
