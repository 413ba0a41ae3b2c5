"""Worktrees of sessions over HTTP, with real git: creation, changes, commit, merge, removal, forks."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from unittest.mock import AsyncMock

import httpx
import pytest

from drivers.runtime.sandbox import unavailable
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
    with_author,
    work,
    worktree_config,
)
from tests.support.daemon import RunningGateway, run_gateway
from tests.support.named_keys import add_key
from tests.support.programs import write_script
from tests.support.waiting import wait_until


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "project", _gitignore="ignored\n")


async def refused(client: httpx.AsyncClient, method: str, path: str, status: int, **fields: object) -> str:
    answer = await client.request(method, f"{BASE}{path}", json=fields or None)
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"])


async def test_session_works_on_a_branch_of_its_own(running: RunningGateway, repository: Path) -> None:
    client = running.client
    session = await new_session(client)
    info = (await client.get(f"{BASE}/sessions/{session}")).json()["x-portico"]
    short = session.removeprefix("sess_")[:12]
    folder = running.gateway.settings.data_dir / "worktrees" / f"project-{short}"
    assert info["worktree"] == {"path": str(folder), "branch": f"portico/{short}", "base": str(repository)}
    assert info["cwd"] == str(folder)
    assert folder.parent.stat().st_mode & 0o077 == 0
    assert git(folder, "symbolic-ref", "--short", "HEAD") == f"portico/{short}"
    await turn(client, session, "change")
    assert ((folder / "a.txt").read_text(), (repository / "a.txt").read_text()) == ("changed\n", "one\n")
    assert git(repository, "status", "--porcelain") == ""
    files = (await client.get(f"{BASE}/sessions/{session}/files?q=a.txt")).json()["files"]
    assert {"path": "a.txt", "type": "file"} in files
    for asked in (repository, folder):
        found = (await client.get(f"{BASE}/sessions", params={"cwd": str(asked)})).json()["sessions"]
        assert [one["sessionId"] for one in found] == [session]


async def test_a_key_that_has_all_its_sessions_gets_no_worktree(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_gateway({**worktree_config(tmp_path, repository), "limits": {"sessions_per_key": 1}}) as running:
        await new_session(running.client)
        created = AsyncMock()
        monkeypatch.setattr(running.gateway.worktrees, "create", created)
        error = await refused(running.client, "POST", "/sessions", 429, agent={"name": "tree"})
        assert "limits.sessions_per_key" in error and not created.called


async def test_state_has_what_changed(client: httpx.AsyncClient, repository: Path) -> None:
    session = await new_session(client)
    before = await state_of(client, session)
    assert (before["files"], before["uncommitted"], before["ahead"], "loses" in before) == ([], [], 0, False)
    await work(client, session)
    await work(client, session, "new.txt", "new\n")
    folder = await folder_of(client, session)
    (folder / "ignored").write_text("x")
    (folder / "bytes").write_bytes(b"\0\1")
    git(folder, "mv", "turns.json", "moved.json")
    after = await state_of(client, session)
    assert after["files"] == [
        {"path": "a.txt", "status": "modified", "additions": 1, "deletions": 1},
        {"path": "bytes", "status": "added"},
        {"path": "moved.json", "oldPath": "turns.json", "status": "renamed", "additions": 0, "deletions": 0},
        {"path": "new.txt", "status": "added", "additions": 1, "deletions": 0},
    ]
    assert after["uncommitted"] == ["a.txt", "moved.json", "turns.json", "bytes", "new.txt"]
    assert "not committed" in after["loses"]
    diff = (await client.get(f"{BASE}/worktrees/{session}/diff", params={"path": "a.txt"})).json()
    assert diff["diff"].endswith("@@ -1 +1 @@\n-one\n+changed\n") and not diff["truncated"]
    renamed = (await client.get(f"{BASE}/worktrees/{session}/diff", params={"path": "moved.json"})).json()
    assert "rename from turns.json" in renamed["diff"]
    assert "does not differ" in await refused(client, "GET", f"/worktrees/{session}/diff?path=none", 404)
    # The repository has no object of the uncommitted files.
    assert git(repository, "cat-file", "--batch-check", "--batch-all-objects").count("\n") == 4


async def test_diff_of_a_large_file_is_cut(running: RunningGateway) -> None:
    client, session = running.client, await new_session(running.client)
    (await folder_of(client, session) / "large.txt").write_text("a line of text\n" * 200_000)
    async with asyncio.timeout(60):
        diff = (await client.get(f"{BASE}/worktrees/{session}/diff", params={"path": "large.txt"})).json()
    assert (len(diff["diff"]), diff["truncated"]) == (1024 * 1024, True)
    assert [path.name for path in running.gateway.worktrees.folder.iterdir()] == [(await folder_of(client, session)).name]


async def test_too_many_files_of_a_session_are_its_own_problem(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.worktrees.git.MAX_OUTPUT", 100_000)
    many, other = await new_session(client), await new_session(client)
    folder = await folder_of(client, many)
    for n in range(2500):
        (folder / f"{n:0200}").write_text("")
    async with asyncio.timeout(60):
        for method, path in (("GET", ""), ("POST", "/merge"), ("DELETE", "")):
            assert "bytes of output" in await refused(client, method, f"/worktrees/{many}{path}", 503)
        await work(client, other)
        assert (await client.post(f"{BASE}/worktrees/{other}/commit", json={"message": "c"})).status_code == 201
        assert (await client.delete(f"{BASE}/worktrees/{other}?force=true")).status_code == 204
        assert (await client.delete(f"{BASE}/worktrees/{many}?force=true")).status_code == 204


async def test_commit_and_fast_forward(client: httpx.AsyncClient, repository: Path) -> None:
    session = await new_session(client)
    assert "no changes" in await refused(client, "POST", f"/worktrees/{session}/commit", 409, message="x")
    assert (await client.post(f"{BASE}/worktrees/{session}/merge")).json()["outcome"] == "up_to_date"
    await work(client, session)
    await work(client, session, "new.txt", "new\n")
    assert "a.txt, new.txt" in await refused(client, "POST", f"/worktrees/{session}/merge", 409)
    assert "message" in await refused(client, "POST", f"/worktrees/{session}/commit", 400, message=" \n")
    commit = (await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "Both\n\nfiles"})).json()["commit"]
    state = await state_of(client, session)
    assert (state["head"], state["ahead"], state["uncommitted"], len(state["files"])) == (commit, 1, [], 2)
    assert state["loses"] == "one commit that no other branch has"
    assert git(await folder_of(client, session), "log", "-1", "--format=%an %B").strip() == "Ada Both\n\nfiles"
    merged = (await client.post(f"{BASE}/worktrees/{session}/merge")).json()
    assert merged == {"outcome": "fast_forward", "branch": "main", "commit": commit}
    assert (repository / "new.txt").read_text() == "new\n"
    assert git(repository, "status", "--porcelain") == ""
    assert (await state_of(client, session))["files"] == []


async def test_change_within_the_second_of_the_checkout_is_seen(client: httpx.AsyncClient, repository: Path) -> None:
    """Of the same size: git knows by the time of the index that such a file may have changed since."""
    git(repository, "config", "core.trustctime", "false")
    session = await new_session(client)
    folder, past = await folder_of(client, session), (1_600_000_000, 1_600_000_000)
    os.utime(folder / "a.txt", past)
    git(folder, "status")
    (folder / "a.txt").write_text("two\n")
    os.utime(folder / "a.txt", past)
    os.utime(git(folder, "rev-parse", "--absolute-git-dir") + "/index", past)
    state = await state_of(client, session)
    assert ([one["path"] for one in state["files"]], state["uncommitted"]) == (["a.txt"], ["a.txt"])
    assert (await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})).status_code == 201


async def test_commit_needs_an_author(
    client: httpx.AsyncClient, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(repository, "config", "--unset", "user.name")
    git(repository, "config", "--unset", "user.email")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    session = await new_session(client)
    await work(client, session)
    before = await state_of(client, session)
    error = await refused(client, "POST", f"/worktrees/{session}/commit", 409, message="x")
    assert "git config --global user.name" in error
    assert await state_of(client, session) == before


async def test_merge_commit(client: httpx.AsyncClient, repository: Path) -> None:
    session = await new_session(client)
    await work(client, session)
    await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "change"})
    commit_file(repository, "other.txt", "other\n")
    assert (await state_of(client, session))["behind"] == 1
    # What is not committed and not touched by the merge stays; a new file in the way refuses it.
    (repository / "untracked").write_text("mine")
    merged = (await client.post(f"{BASE}/worktrees/{session}/merge")).json()
    assert merged["outcome"] == "merge_commit"
    assert len(git(repository, "log", "-1", "--format=%P").split()) == 2
    assert ((repository / "a.txt").read_text(), (repository / "other.txt").exists()) == ("changed\n", True)
    assert git(repository, "status", "--porcelain") == "?? untracked"


async def test_merge_that_is_refused_changes_nothing(client: httpx.AsyncClient, repository: Path) -> None:
    """For changes of the user that are not committed, for a new file of the user in the way, and for a conflict."""
    session = await new_session(client)
    await work(client, session)
    await work(client, session, "new.txt", "new\n")
    await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "change"})
    head = git(repository, "rev-parse", "main")
    (repository / "turns.json").write_text("{}")
    assert "not committed (turns.json)" in await refused(client, "POST", f"/worktrees/{session}/merge", 409)
    git(repository, "checkout", "-q", "turns.json")
    (repository / "new.txt").write_text("mine")
    assert "new.txt" in await refused(client, "POST", f"/worktrees/{session}/merge", 409)
    assert ((repository / "new.txt").read_text(), (repository / "a.txt").read_text()) == ("mine", "one\n")
    assert git(repository, "rev-parse", "main") == head
    (repository / "new.txt").unlink()
    head = commit_file(repository, "a.txt", "other\n")
    assert "conflict in a.txt;" in await refused(client, "POST", f"/worktrees/{session}/merge", 409)
    assert (git(repository, "rev-parse", "main"), git(repository, "status", "--porcelain")) == (head, "")
    assert (await state_of(client, session))["uncommitted"] == []


async def test_merge_into_a_branch_that_is_checked_out_nowhere(client: httpx.AsyncClient, repository: Path) -> None:
    session = await new_session(client)
    await work(client, session)
    commit = (await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})).json()["commit"]
    git(repository, "checkout", "-q", "-b", "elsewhere")
    assert (await client.post(f"{BASE}/worktrees/{session}/merge")).json()["outcome"] == "fast_forward"
    assert (git(repository, "rev-parse", "main"), (repository / "a.txt").read_text()) == (commit, "one\n")
    git(repository, "branch", "-D", "main")
    assert "'main' is gone" in await refused(client, "POST", f"/worktrees/{session}/merge", 409)
    assert (await state_of(client, session))["baseExists"] is False


async def test_nothing_changes_a_worktree_while_a_turn_is_at_work(client: httpx.AsyncClient, repository: Path) -> None:
    session = await new_session(client)
    folder = await folder_of(client, session)
    running = asyncio.create_task(turn(client, session, "wait"))

    async def at_work() -> bool:
        return bool((await state_of(client, session))["atWork"])

    await wait_until(at_work)
    for method, path in (("POST", "/merge"), ("DELETE", "?force=true")):
        assert "at work" in await refused(client, method, f"/worktrees/{session}{path}", 409)
    assert "at work" in await refused(client, "POST", f"/worktrees/{session}/commit", 409, message="x")
    (folder / "go").write_text("")
    await running


async def test_removal_needs_the_word_where_work_is_lost(client: httpx.AsyncClient, repository: Path) -> None:
    session = await new_session(client)
    folder = await folder_of(client, session)
    await turn(client, session, "change")
    error = await refused(client, "DELETE", f"/worktrees/{session}", 409)
    assert "changes that are not committed (a.txt)" in error and "force" in error
    assert (folder / "a.txt").read_text() == "changed\n"
    assert (await client.delete(f"{BASE}/worktrees/{session}?force=true")).status_code == 204
    assert (folder.exists(), git(repository, "branch", "--list", "portico/*"), await listed(client)) == (False, "", [])
    assert git(repository, "worktree", "list").count("\n") == 0
    assert "no worktree" in await refused(client, "GET", f"/worktrees/{session}", 404)
    # The session goes on in a new one, from the commit that its folder has by then.
    commit_file(repository, "later.txt", "later\n")
    await turn(client, session, "new")
    assert ((folder / "later.txt").exists(), (folder / "a.txt").read_text(), (folder / "new.txt").exists()) == (
        True,
        "one\n",
        True,
    )
    assert await listed(client) == [session]


async def test_deleted_session_keeps_its_worktree_only_with_work(client: httpx.AsyncClient, repository: Path) -> None:
    plain, changed, committed, merged = [await new_session(client) for _ in range(4)]
    for session in (changed, committed, merged):
        await work(client, session)
    for session in (committed, merged):
        await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": session})
    assert (await client.post(f"{BASE}/worktrees/{merged}/merge")).status_code == 200
    folders = {session: await folder_of(client, session) for session in (plain, changed, committed, merged)}
    # The commit of `merged` is the same change, and another commit.
    for session in folders:
        assert (await client.delete(f"{BASE}/sessions/{session}")).status_code == 204
    assert {session: folder.exists() for session, folder in folders.items()} == {
        plain: False, changed: True, committed: True, merged: False,
    }  # fmt: skip
    assert sorted(await listed(client)) == sorted([changed, committed])
    assert all(not one["session"] for one in (await client.get(f"{BASE}/worktrees")).json()["worktrees"])
    # What was kept can be merged and removed.
    await client.post(f"{BASE}/worktrees/{changed}/commit", json={"message": "kept"})
    assert (await state_of(client, changed))["ahead"] == 1
    assert (await client.delete(f"{BASE}/worktrees/{changed}?force=true")).status_code == 204
    assert await listed(client) == [committed]


async def test_fork_has_the_commits_and_the_uncommitted_changes(client: httpx.AsyncClient, repository: Path) -> None:
    session = await new_session(client)
    await work(client, session)
    await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "change"})
    await work(client, session, "new.txt", "new\n")
    folder = await folder_of(client, session)
    (folder / "turns.json").unlink()
    (folder / "ignored").write_text("x")
    fork = (await client.post(f"{BASE}/sessions/{session}/fork", json={})).json()["sessionId"]
    copy = await folder_of(client, fork)
    assert copy != folder and not (copy / "ignored").exists()
    assert ((copy / "a.txt").read_text(), (copy / "new.txt").read_text()) == ("changed\n", "new\n")
    first, second = await state_of(client, session), await state_of(client, fork)
    same = ("head", "baseBranch", "baseCommit", "ahead", "files", "uncommitted")
    assert {key: first[key] for key in same} == {key: second[key] for key in same}
    # Both have the commit: one of the two can go without loss, once its files are committed nowhere else.
    (copy / "turns.json").write_text(git(copy, "show", "HEAD:turns.json"))
    (copy / "new.txt").unlink()
    assert (copy / "a.txt").read_text() == "changed\n"
    assert (folder / "new.txt").exists()


async def test_session_stays_in_its_worktree_which_has_no_uncommitted_changes_of_the_folder(
    client: httpx.AsyncClient, repository: Path
) -> None:
    (repository / "other").mkdir()
    (repository / "a.txt").write_text("mine\n")
    session = await new_session(client)
    assert (await folder_of(client, session) / "a.txt").read_text() == "one\n"
    assert (repository / "a.txt").read_text() == "mine\n"
    body = {"messages": [{"role": "user", "content": "hello"}], "agent": {"options": {"cwd": "other"}}}
    assert "works in its worktree" in await refused(client, "POST", f"/sessions/{session}/turns", 400, **body)


async def test_sessions_from_before_the_setting_keep_their_folder(tmp_path: Path, repository: Path) -> None:
    async with run_gateway(worktree_config(tmp_path, repository, worktree=False)) as running:
        session = await new_session(running.client)
    async with run_gateway(worktree_config(tmp_path, repository)) as running:
        await turn(running.client, session, "new")
        assert (repository / "new.txt").exists()
        other = await new_session(running.client)
    # And one that has a worktree keeps it without the setting; so does a fork of it.
    async with run_gateway(worktree_config(tmp_path, repository, worktree=False)) as running:
        await turn(running.client, other, "change")
        fork = (await running.client.post(f"{BASE}/sessions/{other}/fork", json={})).json()["sessionId"]
        for one in (other, fork):
            assert (await folder_of(running.client, one) / "a.txt").read_text() == "changed\n"
    assert (repository / "a.txt").read_text() == "one\n"


async def test_subfolder_of_a_repository(client: httpx.AsyncClient, repository: Path) -> None:
    commit_file(repository, "app/main.txt", "x")
    shutil.copy(repository / "turns.json", repository / "app" / "turns.json")
    commit_file(repository, "app/other.txt", "x")
    (repository / "empty").mkdir()
    session = await new_session(client, cwd="app")
    folder = await folder_of(client, session)
    info = (await client.get(f"{BASE}/sessions/{session}")).json()["x-portico"]
    assert info["cwd"] == str(folder / "app")
    await turn(client, session, "new")
    assert (folder / "app" / "new.txt").exists()
    hidden = commit_file(repository, ".hidden/turns.json", (repository / "turns.json").read_text())
    third = await new_session(client, cwd=".hidden")
    assert (await client.get(f"{BASE}/sessions/{third}")).json()["x-portico"]["cwd"].endswith("/.hidden")
    assert (await state_of(client, third))["baseCommit"] == hidden
    # A folder without committed files is there too.
    other = await new_session(client, cwd="empty")
    assert (await folder_of(client, other) / "empty").is_dir()


async def test_folders_that_cannot_have_a_worktree(client: httpx.AsyncClient, repository: Path) -> None:
    git(repository, "init", "-q", "empty")
    git(repository, "init", "-q", "--bare", "bare.git")
    for cwd, problem in (
        ("empty", "without a commit"),
        ("bare.git", "bare repository"),
        (".git", "inside of a repository's .git"),
    ):
        error = await refused(client, "POST", "/sessions", 400, agent={"name": "tree", "options": {"cwd": cwd}})
        assert problem in error and "option 'cwd'" in error
    assert await listed(client) == []
    assert (await client.get(f"{BASE}/sessions")).json()["sessions"] == []


async def test_git_that_cannot_be_used(client: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    assert "not on the gateway's PATH" in await refused(client, "POST", "/sessions", 503, agent={"name": "tree"})
    write_script(programs / "git", "echo git version 2.30.9\n")
    assert "update it" in await refused(client, "POST", "/sessions", 503, agent={"name": "tree"})
    assert (await client.get(f"{BASE}/sessions")).json()["sessions"] == []


async def test_agent_in_a_sandbox_writes_in_its_worktree(tmp_path: Path, repository: Path) -> None:
    if problem := unavailable():
        pytest.skip(problem)
    # Agents in a sandbox write in the temporary folder, and the data directory of this test is in that.
    (tmp_path / "temporary").mkdir()
    entry = {"sandbox": "workspace-write", "env": {"TMPDIR": str(tmp_path / "temporary")}}
    async with run_gateway(worktree_config(tmp_path, repository, **entry)) as running:
        session = await new_session(running.client)
        await turn(running.client, session, "change")
        assert [one["path"] for one in (await state_of(running.client, session))["files"]] == ["a.txt"]
        assert (await running.client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})).status_code == 201


async def test_folder_without_a_repository(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    async with run_gateway(worktree_config(tmp_path, tmp_path / "plain")) as running:
        error = await refused(running.client, "POST", "/sessions", 400, agent={"name": "tree"})
        assert "no git repository" in error and "git init" in error
        body = {"agent": {"name": "tree"}, "messages": [{"role": "user", "content": "hello"}]}
        assert (await running.client.put("/session", json=body)).status_code == 400
        assert (await running.client.get(f"{BASE}/sessions")).json()["sessions"] == []


async def test_agents_own_folder_in_the_data_directory_is_of_no_repository_above(tmp_path: Path) -> None:
    make_repository(tmp_path / "home")
    config = worktree_config(tmp_path / "home", tmp_path)
    del config["agents"]["tree"]["cwd"]
    async with run_gateway(config) as running:
        assert "no git repository" in await refused(running.client, "POST", "/sessions", 400, agent={"name": "tree"})


async def test_submodules(client: httpx.AsyncClient, repository: Path, tmp_path: Path) -> None:
    """A session in a submodule has a worktree of that; one of the repository above has an empty folder for it."""
    library = make_repository(tmp_path / "library")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
    git(repository, "commit", "-q", "-m", "submodule")
    with_author(repository / "lib")
    inside = await new_session(client, cwd="lib")
    await work(client, inside)
    assert (await state_of(client, inside))["files"][0]["path"] == "a.txt"
    commit = (await client.post(f"{BASE}/worktrees/{inside}/commit", json={"message": "c"})).json()["commit"]
    assert (await client.post(f"{BASE}/worktrees/{inside}/merge")).json()["outcome"] == "fast_forward"
    assert git(repository / "lib", "rev-parse", "main") == commit
    assert (repository / "lib" / "a.txt").read_text() == "changed\n"
    above = await new_session(client)
    folder = await folder_of(client, above)
    assert list((folder / "lib").iterdir()) == []
    assert "loses" not in await state_of(client, above)
    # With a repository of its own there it is not removed without the word: that may have commits which nothing else has.
    git(folder, "-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init")
    assert "submodules" in await refused(client, "DELETE", f"/worktrees/{above}", 409)
    assert (await client.delete(f"{BASE}/worktrees/{above}?force=true")).status_code == 204


async def test_folder_in_another_worktree(client: httpx.AsyncClient, repository: Path) -> None:
    git(repository, "worktree", "add", "-q", "-b", "feature", "nested")
    commit_file(repository / "nested", "feature.txt", "x")
    session = await new_session(client, cwd="nested")
    assert (await state_of(client, session))["baseBranch"] == "feature"
    await work(client, session)
    await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})
    assert (await client.post(f"{BASE}/worktrees/{session}/merge")).json()["outcome"] == "fast_forward"
    assert (repository / "nested" / "a.txt").read_text() == "changed\n"
    assert git(repository / "nested", "status", "--porcelain") == ""
    assert (repository / "a.txt").read_text() == "one\n"


async def test_worktree_of_a_bare_repository(client: httpx.AsyncClient, repository: Path) -> None:
    """A layout in which every branch has a worktree, and the repository itself no files."""
    git(repository, "clone", "-q", "--bare", ".", "all.git")
    with_author(repository / "all.git")
    git(repository / "all.git", "worktree", "add", "-q", "../checkout", "main")
    session = await new_session(client, cwd="checkout")
    await work(client, session)
    await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})
    assert (await client.post(f"{BASE}/worktrees/{session}/merge")).json()["outcome"] == "fast_forward"
    assert (repository / "checkout" / "a.txt").read_text() == "changed\n"
    assert git(repository / "checkout", "status", "--porcelain") == ""


async def test_folder_without_a_branch(client: httpx.AsyncClient, repository: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    session = await new_session(client)
    await work(client, session)
    await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})
    assert "baseBranch" not in await state_of(client, session)
    assert "no branch" in await refused(client, "POST", f"/worktrees/{session}/merge", 409)


async def test_repository_that_is_removed(client: httpx.AsyncClient, repository: Path, tmp_path: Path) -> None:
    session, named = await new_session(client), await new_session(client, cwd=str(repository))
    folder = await folder_of(client, session)
    await turn(client, session, "change")
    shutil.move(repository, tmp_path / "moved")
    for method, path in (("GET", ""), ("POST", "/merge"), ("DELETE", "")):
        error = await refused(client, method, f"/worktrees/{session}{path}", 409)
        assert "is gone" in error and str(folder) in error
    await client.delete(f"/v1/live-agents/{session}")
    body = {"messages": [{"role": "user", "content": "hello"}]}
    # In the agent's own folder, which is not checked, it works on with the files.
    assert (await client.post(f"{BASE}/sessions/{session}/turns", json=body)).status_code == 200
    assert "there is no folder" in await refused(client, "POST", f"/sessions/{named}/turns", 400, **body)
    assert (await client.delete(f"{BASE}/sessions/{session}")).status_code == 204
    assert (folder / "a.txt").read_text() == "changed\n"
    assert await listed(client) == [named, session]
    assert (await client.delete(f"{BASE}/worktrees/{session}?force=true")).status_code == 204
    assert (folder.exists(), await listed(client)) == (False, [named])


async def test_branch_that_is_deleted_or_not_checked_out(client: httpx.AsyncClient, repository: Path) -> None:
    session = await new_session(client)
    folder = await folder_of(client, session)
    await work(client, session)
    branch = git(folder, "symbolic-ref", "--short", "HEAD")
    git(folder, "checkout", "-q", "-b", "mine")
    assert "has branch 'mine' checked out" in await refused(client, "POST", f"/worktrees/{session}/merge", 409)
    git(folder, "checkout", "-q", branch)
    git(repository, "update-ref", "-d", f"refs/heads/{branch}")
    for method, path in (("GET", ""), ("POST", "/merge"), ("DELETE", "")):
        assert "was deleted" in await refused(client, method, f"/worktrees/{session}{path}", 409)
    # The agent works on: its files are there.
    await work(client, session, "new.txt", "new\n")
    assert (folder / "new.txt").exists()
    await client.delete(f"{BASE}/sessions/{session}")
    assert (folder / "a.txt").exists() and await listed(client) == [session]


async def test_folder_that_is_removed_is_created_again_on_its_branch(client: httpx.AsyncClient, repository: Path) -> None:
    session = await new_session(client)
    folder = await folder_of(client, session)
    await turn(client, session, "change")
    await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})
    shutil.rmtree(folder)
    assert "the next turn" in await refused(client, "GET", f"/worktrees/{session}", 409)
    assert "one commit that no other branch has" in await refused(client, "DELETE", f"/worktrees/{session}", 409)
    # While the user has the branch checked out, it cannot be.
    await client.delete(f"/v1/live-agents/{session}")
    git(repository, "worktree", "prune")
    git(repository, "checkout", "-q", f"portico/{folder.name[-12:]}")
    body = {"messages": [{"role": "user", "content": "hello"}]}
    error = await refused(client, "POST", f"/sessions/{session}/turns", 409, **body)
    assert f"is checked out in {repository}" in error
    git(repository, "checkout", "-q", "main")
    await turn(client, session, "new")
    assert ((folder / "a.txt").read_text(), (folder / "new.txt").exists()) == ("changed\n", True)
    assert (await state_of(client, session))["ahead"] == 1


@pytest.mark.parametrize("listed_by_then", [True, False])
async def test_folder_of_a_session_that_is_in_another_repository_by_then(
    tmp_path: Path, repository: Path, listed_by_then: bool
) -> None:
    """By another `cwd` in the configuration: its commit is not looked for in the repository of before, and no file is mixed."""
    async with run_gateway(worktree_config(tmp_path, repository)) as running:
        kept, gone = await new_session(running.client), await new_session(running.client)
        await work(running.client, kept, "new.txt", "new\n")
        for session in (kept, gone):
            await running.client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})
        folders = {session: await folder_of(running.client, session) for session in (kept, gone)}
        if not listed_by_then:
            assert (await running.client.delete(f"{BASE}/worktrees/{gone}?force=true")).status_code == 204
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
    git(repository, "worktree", "prune")
    if listed_by_then:
        git(repository, "branch", "-D", f"portico/{gone.removeprefix('sess_')[:12]}")
    other = make_repository(tmp_path / "other", b_txt="b\n")
    async with run_gateway(worktree_config(tmp_path, other)) as running:
        # Its work is on its branch, in the repository of before.
        await turn(running.client, kept, "hello")
        assert (folders[kept] / "new.txt").exists() and not (folders[kept] / "b.txt").exists()
        body = {"messages": [{"role": "user", "content": "hello"}]}
        error = await refused(running.client, "POST", f"/sessions/{gone}/turns", 409, **body)
        assert f"is in {other} now" in error and "fork the session" in error
        assert not folders[gone].exists()
        assert git(other, "branch", "--list", "portico/*") == ""
        fork = (await running.client.post(f"{BASE}/sessions/{gone}/fork", json={})).json()["sessionId"]
        await work(running.client, fork)
        assert (await folder_of(running.client, fork) / "b.txt").exists()
        assert (await state_of(running.client, fork))["baseCommit"] == git(other, "rev-parse", "main")


async def test_repository_that_another_one_replaces(client: httpx.AsyncClient, repository: Path, tmp_path: Path) -> None:
    """At the same path, such as a new clone: the worktree is made of that one, and merged into it."""
    session = await new_session(client)
    folder = await folder_of(client, session)
    await client.delete(f"/v1/live-agents/{session}")
    shutil.rmtree(folder)
    shutil.rmtree(repository)
    commit = commit_file(make_repository(repository, b_txt="b\n"), "c.txt", "c\n")
    await turn(client, session, "change")
    assert (folder / "c.txt").exists()
    assert (await state_of(client, session))["baseCommit"] == commit


async def test_folder_that_has_lost_its_git_file_is_not_touched(client: httpx.AsyncClient) -> None:
    session = await new_session(client)
    folder = await folder_of(client, session)
    (folder / ".git").unlink()
    body = {"messages": [{"role": "user", "content": "hello"}]}
    assert "move it away" in await refused(client, "POST", f"/sessions/{session}/turns", 409, **body)
    assert (folder / "a.txt").exists()


async def test_file_in_the_place_of_the_folder(client: httpx.AsyncClient) -> None:
    session = await new_session(client)
    folder = await folder_of(client, session)
    shutil.rmtree(folder)
    body = {"messages": [{"role": "user", "content": "hello"}]}
    for make in (folder.touch, lambda: folder.symlink_to("nowhere")):
        make()
        for method, path in (("GET", f"/worktrees/{session}"), ("POST", f"/sessions/{session}/turns")):
            assert "move it away" in await refused(client, method, path, 409, **(body if method == "POST" else {}))
        assert "move it away" in await refused(client, "DELETE", f"/worktrees/{session}", 409)
        folder.unlink()
    await turn(client, session, "change")
    assert (folder / "a.txt").read_text() == "changed\n"


async def test_locked_worktree_whose_folder_is_gone(client: httpx.AsyncClient, repository: Path) -> None:
    session = await new_session(client)
    folder = await folder_of(client, session)
    git(repository, "worktree", "lock", str(folder))
    shutil.rmtree(folder)
    body = {"messages": [{"role": "user", "content": "hello"}]}
    command = f"git -C {repository}/.git worktree unlock {folder}"
    assert command in await refused(client, "POST", f"/sessions/{session}/turns", 409, **body)
    git(repository, *command.split()[1:])
    await turn(client, session, "change")


async def test_branch_that_leaves_no_room_for_those_of_sessions(client: httpx.AsyncClient, repository: Path) -> None:
    git(repository, "branch", "portico")
    error = await refused(client, "POST", "/sessions", 409, agent={"name": "tree"})
    command = f"git -C {repository}/.git branch -m portico NAME"
    assert command in error
    assert await listed(client) == []
    git(repository, *command.replace("NAME", "mine").split()[1:])
    await new_session(client)


@pytest.mark.parametrize(
    "name", ["資料\u3000二\u3000", *(pytest.param(name, marks=pytest.mark.long) for name in ("de\u00a0l'été\u00a0", "a b "))]
)
async def test_folder_with_spaces_of_any_kind_in_its_name(tmp_path: Path, name: str) -> None:
    repository = make_repository(tmp_path / name)
    git(repository, "worktree", "add", "-q", "-b", "feature", f"../linked {name}")
    for folder in (repository, tmp_path / f"linked {name}"):
        async with run_gateway(worktree_config(tmp_path, folder)) as running:
            session = await new_session(running.client)
            await work(running.client, session, "new.txt", "new\n")
            assert (await running.client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})).status_code == 201
            assert (await running.client.post(f"{BASE}/worktrees/{session}/merge")).json()["outcome"] == "fast_forward"
            assert (folder / "new.txt").exists()


async def test_folder_with_control_characters_in_its_name(client: httpx.AsyncClient, repository: Path) -> None:
    for number, name in enumerate(("a\nb", "a\x1bb", "a\x85b", "a\u2028b", "a\udcffb")):
        try:
            (repository / name / "inside").mkdir(parents=True)
        except OSError:
            continue  # The file system has no such names.
        (repository / f"link{number}").symlink_to(repository / name / "inside")
        agent = {"name": "tree", "options": {"cwd": f"link{number}"}}
        assert "rename it" in await refused(client, "POST", "/sessions", 400, agent=agent), repr(name)


async def test_keys_see_their_own_worktrees(running: RunningGateway) -> None:
    key = await add_key(running.gateway, "phone")
    headers = {"Authorization": f"Bearer {key}"}
    session = await new_session(running.client)
    async with httpx.AsyncClient(base_url=running.url, headers=headers) as phone:
        assert await listed(phone) == []
        for method, path in (("GET", ""), ("GET", "/diff?path=a.txt"), ("POST", "/merge"), ("DELETE", "?force=true")):
            assert "no worktree" in await refused(phone, method, f"/worktrees/{session}{path}", 404)
        assert "no worktree" in await refused(phone, "POST", f"/worktrees/{session}/commit", 404, message="x")
        own = await new_session(phone)
        assert await listed(phone) == [own]
    assert sorted(await listed(running.client)) == sorted([session, own])


async def test_rules_about_files_of_the_folder_hold_in_the_worktree(tmp_path: Path, repository: Path) -> None:
    rule = {"tool": "write_note", "decide": "deny", "when": {"path": f"{repository}/secret/**"}}
    async with run_gateway(worktree_config(tmp_path, repository, policy=[rule])) as running:
        client = running.client
        body = {"agent": {"name": "tree", "tools": [{"name": "write_note", "trust": True}]}}
        session = (await client.post(f"{BASE}/sessions", json=body)).json()["sessionId"]
        await turn(client, session, "ask")
        rows = (await client.get("/v1/audit", params={"session": session})).json()
        assert [(row["outcome"], row["tool"]) for row in rows["entries"]] == [("denied", "write_note")]


async def test_many_sessions_of_one_repository_at_once(client: httpx.AsyncClient, repository: Path) -> None:
    sessions = await asyncio.gather(*(new_session(client) for _ in range(6)))
    await asyncio.gather(*(turn(client, session, "new") for session in sessions))
    answers = await asyncio.gather(
        *(client.post(f"{BASE}/worktrees/{session}/commit", json={"message": session}) for session in sessions)
    )
    assert {answer.status_code for answer in answers} == {201}
    merges = await asyncio.gather(*(client.post(f"{BASE}/worktrees/{session}/merge") for session in sessions))
    # All add the same file with the same text: the first is a fast-forward, the others are merges without a conflict.
    assert sorted(one.json()["outcome"] for one in merges) == ["fast_forward"] + ["merge_commit"] * 5
    assert git(repository, "status", "--porcelain") == ""
    assert len(git(repository, "log", "--format=%s", "--no-merges", "main").splitlines()) == 7
    await asyncio.gather(*(client.delete(f"{BASE}/sessions/{session}") for session in sessions))
    assert await listed(client) == []
    assert git(repository, "worktree", "list").count("\n") == 0
    assert git(repository, "branch", "--list", "portico/*") == ""


async def test_no_program_of_the_repository_runs(client: httpx.AsyncClient, repository: Path, tmp_path: Path) -> None:
    """Hooks, a file system monitor, filters, merge drivers and external diffs of the repository's configuration."""
    trace = tmp_path / "trace"
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$0 $@" >> {trace}\ncat\n')
    program.chmod(0o755)
    for hook in (
        "post-checkout",
        "pre-commit",
        "commit-msg",
        "post-commit",
        "post-merge",
        "reference-transaction",
        "post-index-change",
    ):
        shutil.copy(program, repository / ".git" / "hooks" / hook)
    commit_file(repository, ".gitattributes", "*.txt filter=own diff=own merge=own\n")
    for key in ("core.fsmonitor", "filter.own.clean", "filter.own.smudge", "diff.own.textconv", "diff.own.command"):
        git(repository, "config", key, str(program))
    for key in ("diff.external", "merge.own.driver", "gpg.program"):
        git(repository, "config", key, str(program))
    git(repository, "config", "filter.own.required", "true")
    git(repository, "config", "commit.gpgSign", "true")
    trace.unlink(missing_ok=True)
    session = await new_session(client)
    await work(client, session)
    await work(client, session, "new.txt", "new\n")
    assert len((await state_of(client, session))["files"]) == 2
    assert "+changed" in (await client.get(f"{BASE}/worktrees/{session}/diff", params={"path": "a.txt"})).json()["diff"]
    assert (await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})).status_code == 201
    assert (await client.post(f"{BASE}/worktrees/{session}/merge")).json()["outcome"] == "fast_forward"
    assert not trace.exists(), trace.read_text()
    other = await new_session(client)
    folder = await folder_of(client, other)
    (folder / "a.txt").write_text("other\n")
    await client.post(f"{BASE}/worktrees/{other}/commit", json={"message": "c"})
    (repository / "a.txt").write_text("third\n")
    git(repository, "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "commit.gpgSign=false", "-c",
        "filter.own.clean=cat", "commit", "-q", "-a", "-m", "third")  # fmt: skip
    trace.unlink(missing_ok=True)
    # A merge driver that may not run is a conflict, not one of the sides.
    assert "conflict in a.txt" in await refused(client, "POST", f"/worktrees/{other}/merge", 409)
    assert (await client.delete(f"{BASE}/worktrees/{other}?force=true")).status_code == 204
    assert not trace.exists(), trace.read_text()


async def test_folder_cannot_make_git_read_another_repository(
    client: httpx.AsyncClient, repository: Path, tmp_path: Path
) -> None:
    """An agent in a sandbox can write the file `.git` of its worktree: git is not led by it."""
    session = await new_session(client)
    folder = await folder_of(client, session)
    other = make_repository(tmp_path / "other")
    git(other, "config", "core.fsmonitor", f"touch {tmp_path}/ran; true")
    (folder / ".git").write_text(f"gitdir: {other}/.git\n")
    await work(client, session)
    assert (await state_of(client, session))["files"][0]["path"] == "a.txt"
    await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})
    assert git(other, "log", "--format=%s") == "first"
    assert (await client.delete(f"{BASE}/worktrees/{session}?force=true")).status_code == 204
    assert git(repository, "worktree", "list").count("\n") == 0
    assert not (tmp_path / "ran").exists()


async def test_no_filter_of_a_repository_in_a_submodules_folder_runs(
    client: httpx.AsyncClient, repository: Path, tmp_path: Path
) -> None:
    """An agent in a sandbox may write such a repository, and its configuration, in its worktree."""
    for name, commit in (("lib", "1" * 40), ("empty", "2" * 40)):
        (repository / name).mkdir()
        git(repository, "update-index", "--add", "--cacheinfo", f"160000,{commit},{name}")
    git(repository, "commit", "-q", "-m", "submodule")
    session = await new_session(client)
    folder, ran = await folder_of(client, session), tmp_path / "ran"
    nested = make_repository(tmp_path / "nested", _gitattributes="* filter=evil\n")
    for found in nested.iterdir():
        found.rename(folder / "lib" / found.name)
    git(folder / "lib", "config", "filter.evil.clean", f"touch {ran}; cat")
    (folder / "lib" / "a.txt").write_text("two\n")
    state = await state_of(client, session)
    assert not await asyncio.to_thread(ran.exists)
    assert [one["path"] for one in state["files"]] == ["lib"] and state["uncommitted"] == ["lib"]
    assert "submodules" in state["loses"]
    body = {"message": "with lib"}
    assert (await client.post(f"{BASE}/worktrees/{session}/commit", json=body)).status_code == 201
    assert (await state_of(client, session))["uncommitted"] == []
    assert git(folder, "ls-tree", "--name-only", "HEAD").split().count("empty") == 1
    (folder / "lib" / "a.txt").write_text("three\n")
    assert (await client.post(f"{BASE}/worktrees/{session}/merge")).status_code == 200
    assert "submodules" in (await client.delete(f"{BASE}/worktrees/{session}")).text
    assert not await asyncio.to_thread(ran.exists)
