"""Repositories that an agent has prepared: git, which the gateway runs outside of the agent's sandbox, runs none of its programs
and writes in no other folder.

An agent writes in the `.git` of a repository where that is its working folder, or is mounted writable in its container.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from drivers.runtime.confined_files import make_folder, remove_tree
from tests.gateway.worktrees.repositories import (
    BASE,
    commit_file,
    folder_of,
    git,
    listed,
    make_repository,
    new_session,
    state_of,
    with_author,
    work,
)
from tests.support.swapped_folders import swapped

NOBODY = 65534


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Another repository of the user, which the agent can neither read nor write."""
    return make_repository(tmp_path / "victim", secret_txt="secret\n")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that passes its input on, as a filter does, and leaves `ran`."""
    path = tmp_path / "program"
    path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/ran\ncat\n')
    path.chmod(0o755)
    return path


async def use(client: httpx.AsyncClient) -> list[int]:
    """Change a file in a session, look at the changes, commit and merge them, fork and remove; return the statuses."""
    session = await new_session(client)
    path = f"{BASE}/worktrees/{session}"
    await work(client, session)
    answers = [
        await client.get(path),
        await client.get(f"{path}/diff", params={"path": "a.txt"}),
        await client.post(f"{BASE}/sessions/{session}/fork", json={}),
        await client.post(f"{path}/commit", json={"message": "c"}),
        await client.post(f"{path}/merge"),
        await client.delete(f"{path}?force=true"),
    ]
    return [answer.status_code for answer in answers]


WORKED = [200, 200, 201, 201, 200, 204]


def with_filter(repository: Path, program: Path, file: str) -> Path:
    """Give all files a filter, which a file of the `.git` names."""
    commit_file(repository, ".gitattributes", "* filter=own merge=own diff=own\n")
    path = repository / ".git" / file
    with path.open("a") as config:
        config.write(f'[filter "own"]\n\tclean = {program}\n\tsmudge = {program}\n\trequired = true\n')
        config.write(f'[merge "own"]\n\tdriver = {program}\n[diff "own"]\n\ttextconv = {program}\n\tcommand = {program}\n')
    return path


@pytest.mark.parametrize(
    "condition",
    [
        "onbranch:portico/**",
        "gitdir:**/.git",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("gitdir:**/worktrees/**", "onbranch:main")),
    ],
)
async def test_filter_of_configuration_that_is_included_by_condition(
    client: httpx.AsyncClient, repository: Path, program: Path, tmp_path: Path, condition: str
) -> None:
    """It holds on the branch or in the git directory of one checkout only: that of the worktree, or of the user's folder."""
    included = with_filter(repository, program, "included")
    git(repository, "config", f"includeIf.{condition}.path", str(included))
    assert await use(client) == WORKED
    assert not (tmp_path / "ran").exists()
    assert (repository / "a.txt").read_text() == "changed\n"


async def test_filter_of_the_configuration_of_one_worktree(
    client: httpx.AsyncClient, repository: Path, program: Path, tmp_path: Path
) -> None:
    with_filter(repository, program, "config.worktree")
    git(repository, "config", "extensions.worktreeConfig", "true")
    assert await use(client) == WORKED
    session = await new_session(client)
    folder = await folder_of(client, session)
    await work(client, session)
    (repository / ".git" / "worktrees" / folder.name / "config.worktree").write_text(
        f'[filter "own"]\n\tclean = {program}\n\tsmudge = {program}\n'
    )
    assert (await state_of(client, session))["files"] == []
    assert not (tmp_path / "ran").exists()


async def test_diff_does_not_run_in_a_submodule(
    client: httpx.AsyncClient, repository: Path, program: Path, tmp_path: Path
) -> None:
    """`diff.submodule` lets git run itself there, without the settings of the gateway."""
    nested = make_repository(tmp_path / "nested", _gitattributes="* diff=own\n")
    first = git(nested, "rev-parse", "HEAD")
    commit_file(nested, "a.txt", "two\n")
    (repository / "lib").mkdir()
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{first},lib")
    git(repository, "commit", "-q", "-m", "submodule")
    git(repository, "config", "diff.submodule", "diff")
    session = await new_session(client)
    folder = await folder_of(client, session)
    for found in nested.iterdir():
        found.rename(folder / "lib" / found.name)
    git(folder, "add", "lib")
    git(folder, "commit", "-q", "-m", "second of lib")
    for key in ("diff.external", "diff.own.command", "diff.own.textconv", "core.fsmonitor", "filter.own.clean"):
        git(folder / "lib", "config", key, str(program))
    git(folder, "diff", "main", "HEAD")
    assert (tmp_path / "ran").exists(), "git would run it"
    (tmp_path / "ran").unlink()
    assert [one["path"] for one in (await state_of(client, session))["files"]] == ["lib"]
    answer = await client.get(f"{BASE}/worktrees/{session}/diff", params={"path": "lib"})
    assert f"-Subproject commit {first}" in answer.json()["diff"]
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


async def test_merge_writes_in_no_folder_that_the_repository_names(
    client: httpx.AsyncClient, repository: Path, victim: Path, tmp_path: Path
) -> None:
    """Of a submodule, git lists its git directory, and its configuration names the folder."""
    separate = tmp_path / "separate.git"
    git(repository, "init", "-q", "-b", "main", f"--separate-git-dir={separate}", "separate")
    with_author(repository / "separate")
    git(repository / "separate", "config", "core.worktree", str(repository / "separate"))
    commit_file(repository / "separate", "a.txt", "one\n")
    for folder, options in ((repository, {}), (repository / "separate", {"cwd": "separate"})):
        session = await new_session(client, **options)
        (await folder_of(client, session) / "a.txt").write_text("changed\n")
        await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})
        git(folder, "config", "core.worktree", str(victim))
        answer = await client.post(f"{BASE}/worktrees/{session}/merge")
        assert answer.status_code == (200 if folder == repository else 409), answer.text
    assert str(victim) in answer.json()["error"]
    assert (victim / "a.txt").read_text() == "one\n"
    assert git(victim, "status", "--porcelain") == ""


async def test_merge_writes_in_no_folder_of_a_worktree_that_does_not_say_so(
    client: httpx.AsyncClient, repository: Path, victim: Path
) -> None:
    """A worktree's folder names its git directory, as that names the folder: an agent can write the second only."""
    git(repository, "branch", "other")
    session = await new_session(client)
    await work(client, session)
    await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})
    evil = repository / ".git" / "worktrees" / "evil"
    shutil.copytree(repository / ".git" / "worktrees" / (await folder_of(client, session)).name, evil)
    (evil / "gitdir").write_text(f"{victim}/.git\n")
    (evil / "HEAD").write_text("ref: refs/heads/main\n")
    git(repository, "read-tree", "main", f"--index-output={evil}/index")
    git(repository, "symbolic-ref", "HEAD", "refs/heads/other")
    answer = await client.post(f"{BASE}/worktrees/{session}/merge")
    assert answer.status_code in (200, 409), answer.text
    assert (victim / "a.txt").read_text() == "one\n"
    assert git(victim, "status", "--porcelain") == ""


async def test_merge_changes_no_repository_that_the_git_directory_of_a_worktree_names(
    client: httpx.AsyncClient, repository: Path, victim: Path
) -> None:
    session = await new_session(client)
    await work(client, session)
    folder = await folder_of(client, session)
    own = repository / ".git" / "worktrees" / folder.name
    (own / "commondir").write_text(f"{victim}/.git\n")
    (own / "HEAD").write_text("ref: refs/heads/main\n")
    before = git(victim, "rev-parse", "main"), git(victim, "for-each-ref")
    for path in ("/commit", "/merge"):
        await client.post(f"{BASE}/worktrees/{session}{path}", json={"message": "c"})
    await client.delete(f"{BASE}/worktrees/{session}?force=true")
    assert (git(victim, "rev-parse", "main"), git(victim, "for-each-ref")) == before
    assert (victim / "a.txt").read_text() == "one\n"
    assert git(victim, "cat-file", "--batch-check", "--batch-all-objects").count("\n") == 4


async def test_session_gets_no_files_of_a_repository_that_its_folder_only_names(
    client: httpx.AsyncClient, repository: Path, victim: Path
) -> None:
    """An agent in a sandbox writes what its folder has instead of a `.git`. The other repository does not know that folder."""
    other = victim / ".git"
    folders = {name: repository / name for name in ("file", "link", "common", "parts")}
    for folder in folders.values():
        folder.mkdir()
    (folders["file"] / ".git").write_text(f"gitdir: {other}\n")
    (folders["link"] / ".git").symlink_to(other)
    git(folders["common"], "init", "-q", "-b", "main")
    (folders["common"] / ".git" / "commondir").write_text(f"{other}\n")
    git(folders["parts"], "init", "-q", "-b", "main")
    for name in ("objects", "refs", "packed-refs"):
        shutil.rmtree(folders["parts"] / ".git" / name, ignore_errors=True)
        (folders["parts"] / ".git" / name).symlink_to(other / name)
    for name in folders:
        answer = await client.post(f"{BASE}/sessions", json={"agent": {"name": "tree", "options": {"cwd": name}}})
        assert answer.status_code == 400, (name, answer.text)
        assert "option 'cwd'" in answer.json()["error"] and "secret" not in answer.json()["error"], name
    assert await listed(client) == []
    assert git(victim, "branch", "--list", "portico/*") == ""


async def test_repositories_that_lie_elsewhere_on_purpose(client: httpx.AsyncClient, repository: Path, tmp_path: Path) -> None:
    """By `git init --separate-git-dir`, where the git directory names the folder too if the user sets that."""
    separate = tmp_path / "separate.git"
    git(repository, "init", "-q", f"--separate-git-dir={separate}", "separate")
    with_author(repository / "separate")
    commit_file(repository / "separate", "a.txt", "one\n")
    body = {"agent": {"name": "tree", "options": {"cwd": "separate"}}}
    answer = await client.post(f"{BASE}/sessions", json=body)
    assert answer.status_code == 400 and "config core.worktree" in answer.json()["error"], answer.text
    git(repository / "separate", "config", "core.worktree", str(repository / "separate"))
    session = await new_session(client, cwd="separate")
    (await folder_of(client, session) / "a.txt").write_text("two\n")
    assert (await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})).status_code == 201
    assert (await client.post(f"{BASE}/worktrees/{session}/merge")).json()["outcome"] == "fast_forward"
    assert (repository / "separate" / "a.txt").read_text() == "two\n"


async def test_missing_objects_are_not_fetched(
    client: httpx.AsyncClient, repository: Path, program: Path, tmp_path: Path
) -> None:
    """A partial clone gets them by a program that its configuration names."""
    for key, value in (
        ("extensions.partialClone", "origin"), ("core.repositoryFormatVersion", "1"), ("remote.origin.promisor", "true"),
        ("remote.origin.url", f"ext::{program} %S"), ("remote.origin.uploadpack", str(program)),
        ("remote.origin.vcs", "evil"), ("core.sshCommand", str(program)), ("core.gitProxy", str(program)),
        ("protocol.ext.allow", "always"), ("protocol.allow", "always"), ("core.askPass", str(program)),
    ):  # fmt: skip
        git(repository, "config", key, value)
    session = await new_session(client)
    blob = git(repository, "rev-parse", "HEAD:a.txt")
    (repository / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    await work(client, session)
    assert (await client.get(f"{BASE}/worktrees/{session}/diff", params={"path": "a.txt"})).status_code == 409
    await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})
    await client.post(f"{BASE}/worktrees/{session}/merge")
    assert (await client.post(f"{BASE}/sessions", json={"agent": {"name": "tree"}})).status_code == 409
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


async def test_settings_that_change_what_a_command_does(client: httpx.AsyncClient, repository: Path) -> None:
    for key, value in (
        ("branch.main.mergeOptions", "--squash --no-commit"), ("merge.ff", "false"), ("merge.log", "true"),
        ("color.diff", "always"), ("color.status", "always"), ("diff.noprefix", "true"), ("diff.mnemonicPrefix", "true"),
        ("diff.colorMoved", "zebra"), ("diff.wsErrorHighlight", "all"), ("diff.orderFile", "/etc/passwd"),
        ("status.branch", "true"), ("status.submoduleSummary", "true"), ("diff.renames", "false"), ("core.splitIndex", "true"),
    ):  # fmt: skip
        git(repository, "config", key, value)
    session = await new_session(client)
    await work(client, session)
    diff = (await client.get(f"{BASE}/worktrees/{session}/diff", params={"path": "a.txt"})).json()["diff"]
    assert diff.startswith("diff --git a/a.txt b/a.txt\n") and diff.endswith("@@ -1 +1 @@\n-one\n+changed\n")
    commit = (await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})).json()["commit"]
    merged = (await client.post(f"{BASE}/worktrees/{session}/merge")).json()
    assert merged == {"outcome": "fast_forward", "branch": "main", "commit": commit}
    assert git(repository, "rev-parse", "HEAD") == commit
    assert (repository / "a.txt").read_text() == "changed\n"


async def test_folder_of_a_session_is_not_made_behind_a_link(client: httpx.AsyncClient, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (repository / "apps").symlink_to(tmp_path / "elsewhere")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "link")
    (repository / "apps").unlink()
    (repository / "apps" / "new").mkdir(parents=True)
    answer = await client.post(f"{BASE}/sessions", json={"agent": {"name": "tree", "options": {"cwd": "apps/new"}}})
    assert answer.status_code == 409 and "symbolic link" in answer.json()["error"], answer.text
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert await listed(client) == []


def test_removal_follows_no_link_that_appears_meanwhile(tmp_path: Path) -> None:
    """Of a folder without write permission, in the moment before it gets that."""
    tree, other = tmp_path / "tree", tmp_path / "other"
    (other / "deep").mkdir(parents=True)
    (other / "deep" / "kept").write_text("")
    other.chmod(0o500)
    (tree / "closed" / "deep").mkdir(parents=True)
    (tree / "closed" / "deep" / "file").write_text("")
    (tree / "closed").chmod(0o500)
    with swapped(tree / "closed", other):
        for _ in range(200):
            with suppress(OSError):
                remove_tree(tree / "closed")
            with suppress(OSError):
                make_folder(tree, "closed/made")
        seen = other.stat().st_mode & 0o777, sorted(path.name for path in other.iterdir())
    assert seen == (0o500, ["deep"])


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach. Not pytest's: each run of pytest that starts closes all of them to other users."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def test_removal_of_folders_without_permissions(open_folder: Path) -> None:
    """As another user than root, who needs none."""
    tree = open_folder / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "file").write_text("")
    script = f"""
import os, sys
from pathlib import Path
from drivers.runtime.confined_files import remove_tree
if os.getuid() == 0:
    os.setuid({NOBODY})
for name in ("a/b", "a"):
    os.chmod(Path({str(tree)!r}, name), 0)
remove_tree(Path({str(tree)!r}))
"""
    if os.getuid() == 0:
        for path in (open_folder, *open_folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        for path in open_folder.parents[:-2]:
            path.chmod(path.stat().st_mode | 0o011)
    subprocess.run([sys.executable, "-c", script], check=True)
    assert not tree.exists()
