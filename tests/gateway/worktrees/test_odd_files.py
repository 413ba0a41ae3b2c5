"""Files in a worktree that git does not take like others: its state, diffs, commits and forks have all that can be had."""

from __future__ import annotations

import subprocess
from pathlib import Path

import httpx
import pytest

from tests.gateway.worktrees.repositories import (
    BASE,
    commit_file,
    folder_of,
    git,
    make_repository,
    new_session,
    state_of,
    work,
    worktree_config,
)
from tests.support.daemon import run_gateway

pytestmark = pytest.mark.usefixtures("home")


async def commit(client: httpx.AsyncClient, session: str) -> httpx.Response:
    return await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})


async def fork(client: httpx.AsyncClient, session: str) -> Path:
    answer = await client.post(f"{BASE}/sessions/{session}/fork", json={})
    assert answer.status_code == 201, answer.text
    return await folder_of(client, answer.json()["sessionId"])


async def changed(client: httpx.AsyncClient, session: str) -> list[str]:
    return [one["path"] for one in (await state_of(client, session))["files"]]


@pytest.mark.parametrize("with_commit", [False, True])
async def test_repository_inside(client: httpx.AsyncClient, repository: Path, with_commit: bool) -> None:
    session = await new_session(client)
    folder = await folder_of(client, session)
    await work(client, session)
    await work(client, session, "new.txt", "new\n")
    make_repository(folder / "vendor") if with_commit else git(folder, "init", "-q", "vendor")
    assert await changed(client, session) == ["a.txt", "new.txt", *(["vendor"] if with_commit else [])]
    answer = await client.get(f"{BASE}/worktrees/{session}/diff", params={"path": "new.txt"})
    assert "+new" in answer.json()["diff"]
    assert (await fork(client, session) / "new.txt").exists()
    head, status = git(folder, "rev-parse", "HEAD"), git(folder, "status", "--porcelain")
    answer = await commit(client, session)
    assert (
        answer.status_code == 409 and "repositories of their own would not be in the commit (vendor)" in answer.json()["error"]
    ), answer.text
    assert (git(folder, "rev-parse", "HEAD"), git(folder, "status", "--porcelain")) == (head, status)
    # Also where the agent has added it.
    if with_commit:
        git(folder, "add", "vendor")
        assert (await commit(client, session)).status_code == 409
        git(folder, "rm", "-q", "--cached", "-f", "vendor")
    (folder / ".gitignore").write_text("vendor/\n")
    assert (await commit(client, session)).status_code == 201
    assert git(folder, "ls-tree", "--name-only", "HEAD").split() == [".gitignore", "a.txt", "new.txt", "turns.json"]


async def test_submodule_that_the_agent_has_added_is_committed(client: httpx.AsyncClient, tmp_path: Path) -> None:
    library = make_repository(tmp_path / "library")
    session = await new_session(client)
    folder = await folder_of(client, session)
    git(folder, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
    assert (await commit(client, session)).status_code == 201
    assert git(folder, "ls-tree", "--name-only", "HEAD").split() == [".gitmodules", "a.txt", "lib", "turns.json"]


@pytest.mark.parametrize("name", ["b.new", "b.tracked"])
async def test_file_that_goes_while_it_is_read(client: httpx.AsyncClient, repository: Path, tmp_path: Path, name: str) -> None:
    """Here by a filter of the user, for a file that git reads before it."""
    kind = name.partition(".")[2]
    if kind == "tracked":
        (repository / "a.tracked").write_text("one\n")
        (repository / "b.tracked").write_text("one\n")
    commit_file(repository, ".gitattributes", f"a.{kind} filter=removing\n")
    session = await new_session(client)
    folder = await folder_of(client, session)
    (tmp_path / ".gitconfig").write_text(f'[filter "removing"]\n\tclean = "rm -f {name}; cat"\n')
    # Twice: what was read before is not in the index of the worktree.
    for _ in range(2):
        (folder / f"a.{kind}").write_text("three\n")
        (folder / f"b.{kind}").write_text("three\n")
        found = await changed(client, session)
        assert f"a.{kind}" in found and (name in found) == (kind == "tracked")
    (folder / f"b.{kind}").write_text("three\n")
    assert (await commit(client, session)).status_code == 201


async def test_new_file_outside_of_a_sparse_checkout(client: httpx.AsyncClient, repository: Path) -> None:
    for name in ("inside", "outside"):
        commit_file(repository, f"{name}/file", name)
    session = await new_session(client)
    folder = await folder_of(client, session)
    git(folder, "sparse-checkout", "set", "inside")
    assert not (folder / "outside").exists()
    assert await changed(client, session) == []
    (folder / "outside").mkdir()
    (folder / "outside" / "new").write_text("new\n")
    (folder / "outside" / "file").write_text("changed\n")
    assert await changed(client, session) == ["outside/file", "outside/new"]
    copy = await fork(client, session)
    assert [(copy / "outside" / one).read_text() for one in ("file", "new")] == ["changed\n", "new\n"]
    assert (await commit(client, session)).status_code == 201
    assert (await state_of(client, session))["uncommitted"] == []
    assert git(folder, "show", "HEAD:inside/file") == "inside"


async def test_line_ends_that_the_user_does_not_commit(client: httpx.AsyncClient, repository: Path, tmp_path: Path) -> None:
    commit_file(repository, ".gitattributes", "*.txt text=auto\n")
    session = await new_session(client)
    (tmp_path / ".gitconfig").write_text("[core]\n\tsafecrlf = true\n\tautocrlf = input\n")
    (await folder_of(client, session) / "new.txt").write_bytes(b"one\r\ntwo\r\n")
    assert await changed(client, session) == ["new.txt"]
    assert (await fork(client, session) / "new.txt").read_text() == "one\ntwo\n"
    answer = await commit(client, session)
    assert answer.status_code == 409 and "the line ends of new.txt would change" in answer.json()["error"]


async def test_name_that_is_not_utf_8(client: httpx.AsyncClient) -> None:
    session = await new_session(client)
    folder = await folder_of(client, session)
    try:
        (folder / "bad\udcff.txt").write_text("new\n")
    except OSError:
        pytest.skip("the file system has no such names")
    [path] = await changed(client, session)
    answer = await client.get(f"{BASE}/worktrees/{session}/diff", params={"path": path})
    assert answer.status_code == 200 and answer.json()["diff"].endswith("+new\n"), answer.text


async def test_repository_whose_commit_has_no_files(tmp_path: Path) -> None:
    repository = tmp_path / "empty"
    git(tmp_path, "init", "-q", "-b", "main", "empty")
    git(repository, "commit", "-q", "--allow-empty", "-m", "first")
    async with run_gateway(worktree_config(tmp_path, repository, options={"scenario": str(tmp_path / "none")})) as running:
        session = await new_session(running.client)
        assert list((await fork(running.client, session)).iterdir()) == [await last_folder(running.client) / ".git"]
        (await folder_of(running.client, session) / "new").write_text("new\n")
        assert (await fork(running.client, session) / "new").read_text() == "new\n"


async def last_folder(client: httpx.AsyncClient) -> Path:
    return Path((await client.get(f"{BASE}/worktrees")).json()["worktrees"][0]["path"])


def test_git_ends_at_a_file_that_goes(tmp_path: Path) -> None:
    """The reason for `git update-index`: if this changes, `git add` is enough."""
    folder = make_repository(tmp_path / "project", _gitattributes="a filter=removing\n")
    git(folder, "config", "filter.removing.clean", "rm -f b; cat")
    for name in ("a", "b"):
        (folder / name).write_text("")
    with pytest.raises(subprocess.CalledProcessError) as raised:
        git(folder, "add", "--all", "--ignore-errors")
    assert "unable to stat 'b'" in raised.value.stderr
