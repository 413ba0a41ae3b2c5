"""Git is kept to the folders of a worktree: what an agent in a sandbox prepares in a repository, or changes while git is at work,
neither writes elsewhere nor reads what is the gateway's. All of it is done here as such an agent can do it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import pytest

from drivers.runtime.sandbox import unavailable
from gateway.worktrees import confinement
from gateway.worktrees.git import CHECKOUT_SECONDS
from tests.gateway.worktrees.repositories import (
    BASE,
    commit_file,
    folder_of,
    git,
    listed,
    make_repository,
    new_session,
    state_of,
    work,
    worktree_config,
)
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock

pytestmark = [
    pytest.mark.usefixtures("home"),
    pytest.mark.skipif(unavailable() is not None, reason=f"no sandbox here: {unavailable()}"),
]
Result = TypeVar("Result")
SECRET = "token-of-the-gateway-0123456789"
LONG = pytest.mark.long


def some(first: tuple[Any, ...], others: tuple[Any, ...]) -> pytest.MarkDecorator:
    """Give a test `cases`: the first ones in `make test`, the others, which git handles alike, in `make test-long`."""
    return pytest.mark.parametrize("cases", [pytest.param(first, id="some"), pytest.param(others, id="others", marks=LONG)])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the user, which has nothing else of the test in it."""
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return path


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of the user with a file, outside of the repository."""
    path = tmp_path / "elsewhere"
    path.mkdir()
    (path / "mine").write_text("mine\n")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


async def with_endless_git(using: Coroutine[None, None, Result], clock: ManualClock) -> Result:
    """Await what uses commands of git, and let their time pass whenever one of them will not end."""
    task, seen = asyncio.create_task(using), Counter[int]()
    # On a busy machine the dozens of commands take more than a minute: pytest's limit is enough.
    while not task.done():
        endless = [process.pid for process in psutil.Process().children(recursive=True) if is_endless(process)]
        seen = Counter({pid: seen[pid] + 1 for pid in endless})
        # One that waits for a moment only is not seen as often.
        if any(times > 2 for times in seen.values()):
            await clock.advance(CHECKOUT_SECONDS)
        await asyncio.wait([task], timeout=0.1)
    return task.result()


def is_endless(process: psutil.Process) -> bool:
    """Whether a process is a git that waits for nothing that it has started, or has needed more time than any command here."""
    with suppress(psutil.NoSuchProcess):
        used = process.cpu_times()
        waits = process.status() == psutil.STATUS_SLEEPING and not process.children()
        return process.name() == "git" and (waits or used.user + used.system > 0.3)
    return False


async def case_of(client: httpx.AsyncClient, folder: Path) -> tuple[Path, str]:
    """Make a repository in a folder, and a session with a change in a worktree of it."""
    repository = make_repository(folder)
    session = await new_session(client, cwd=str(repository))
    await work(client, session)
    return repository, session


async def use(client: httpx.AsyncClient, session: str, repository: Path) -> list[httpx.Response]:
    """Look at the changes of a session, commit and merge them, fork it and remove its worktree. Some of that may fail."""
    path, agent = f"{BASE}/worktrees/{session}", {"name": "tree", "options": {"cwd": str(repository)}}
    return [
        await client.get(path),
        await client.get(f"{path}/diff", params={"path": "a.txt"}),
        await client.post(f"{path}/commit", json={"message": "c"}),
        await client.post(f"{path}/merge"),
        await client.post(f"{BASE}/sessions/{session}/fork", json={}),
        await client.post(f"{BASE}/sessions", json={"agent": agent}),
        await client.delete(path),
        await client.delete(f"{path}?force=true"),
    ]


def are_sane(answers: list[httpx.Response]) -> bool:
    """Whether no request has failed by a fault of the gateway."""
    return all(answer.status_code < 500 or answer.status_code == 503 for answer in answers)


def of_git_dir(repository: Path, folder: Path, name: str) -> Path:
    """A file of the repository, or of the worktree's own git directory."""
    own = name.removeprefix("own:")
    return repository / ".git" / (own if own == name else f"worktrees/{folder.name}/{own}")


def link(path: Path, target: Path) -> None:
    """Replace a file or folder by a link."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}.before"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


@some(
    ("logs/HEAD", "own:index", "HEAD", "packed-refs", "shallow", "own:commondir"),
    (
        "logs/refs/heads/main", "own:logs/HEAD", "index", "ORIG_HEAD", "own:HEAD", "refs/heads/main", "config", "info/exclude",
        "MERGE_HEAD", "own:ORIG_HEAD", "info/grafts", "objects/info/alternates", "own:gitdir", "info/attributes",
        "own:MERGE_HEAD", "own:locked", "objects/info/commit-graphs/commit-graph-chain", "own:config.worktree",
    ),
)  # fmt: skip
async def test_no_file_behind_a_link_is_written_or_in_an_error(
    client: httpx.AsyncClient, repository: Path, elsewhere: Path, cases: tuple[str, ...]
) -> None:
    """Git quotes lines that it does not understand."""
    (elsewhere / "mine").write_text(f'{{"token": "{SECRET}"}}\n')
    before = contents(elsewhere)
    for n, name in enumerate(cases):
        case, session = await case_of(client, repository / f"case{n}")
        link(of_git_dir(case, await folder_of(client, session), name), elsewhere / "mine")
        answers = await use(client, session, case)
        assert contents(elsewhere) == before, name
        assert SECRET not in "".join(answer.text for answer in answers), name
        assert are_sane(answers), (name, [one.text for one in answers])


@some(
    ("shallow", "own:commondir"),
    ("HEAD", "own:HEAD", "packed-refs", "refs/heads/main", "config", "own:gitdir", "own:index", "own:config.worktree"),
)
async def test_secrets_of_the_gateway_are_not_even_in_its_log(
    running: RunningGateway, repository: Path, cases: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Git cannot read them."""
    file = running.gateway.settings.data_dir / "file"
    file.write_text(f'{{"token": "{SECRET}"}}\n')
    for n, name in enumerate(cases):
        case, session = await case_of(running.client, repository / f"case{n}")
        link(of_git_dir(case, await folder_of(running.client, session), name), file)
        answers = await use(running.client, session, case)
        assert SECRET not in caplog.text and SECRET not in "".join(answer.text for answer in answers), name
        assert are_sane(answers), (name, [one.text for one in answers])


@some(("logs", "objects", "lfs"), ("logs/refs", "objects/pack", "refs", "refs/heads", "refs/heads/portico", "info", "own:logs"))
async def test_no_file_is_written_in_a_folder_behind_a_link(
    client: httpx.AsyncClient, repository: Path, elsewhere: Path, cases: tuple[str, ...]
) -> None:
    for n, name in enumerate(cases):
        case, session = await case_of(client, repository / f"case{n}")
        path, copy = of_git_dir(case, await folder_of(client, session), name), elsewhere / f"copy{n}"
        if path.is_dir():
            shutil.copytree(path, copy)
        before = contents(elsewhere)
        link(path, copy)
        await use(client, session, case)
        assert contents(elsewhere) == before, name


async def test_removal_deletes_nothing_in_a_folder_that_replaces_gits_own(
    client: httpx.AsyncClient, repository: Path, elsewhere: Path
) -> None:
    session = await new_session(client)
    own = repository / ".git" / "worktrees" / (await folder_of(client, session)).name
    shutil.copytree(own, elsewhere / own.name)
    for n in range(50):
        (elsewhere / own.name / f"file{n}").write_text("mine\n")
    before = contents(elsewhere)
    link(own.parent, elsewhere)
    assert (await client.delete(f"{BASE}/worktrees/{session}?force=true")).status_code == 204
    assert contents(elsewhere) == before


async def test_merge_does_not_follow_a_folder_that_becomes_a_link_meanwhile(
    client: httpx.AsyncClient, repository: Path, elsewhere: Path, home: Path
) -> None:
    """Git remembers that it has created a folder, which a filter of the user replaces here."""
    commit_file(repository, ".gitattributes", "sub/b filter=swapping\n")
    session = await new_session(client)
    folder = await folder_of(client, session)
    (folder / "sub").mkdir()
    for name in "abc":
        (folder / "sub" / name).write_text("of the agent\n")
    await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})
    swap = f"test -L sub || (mv sub real && ln -s {elsewhere} sub); cat"
    (home / ".gitconfig").write_text(f'[filter "swapping"]\n\tsmudge = "{swap}"\n')
    answer = await client.post(f"{BASE}/worktrees/{session}/merge")
    assert (repository / "real").is_dir(), answer.text
    assert answer.status_code in (409, 503) and "may not be read or written" in answer.json()["error"], answer.text
    assert contents(elsewhere) == {"mine": b"mine\n"}


async def test_files_behind_a_folder_that_becomes_a_link_meanwhile_are_not_shown(
    running: RunningGateway, repository: Path, home: Path
) -> None:
    """Those of the gateway: git reads what the agent cannot. Filters of the user replace the folder here, and put it back."""
    client, secrets = running.client, running.gateway.settings.data_dir / "transcripts"
    secrets.mkdir(exist_ok=True)
    (secrets / "b").write_text(SECRET)
    for name in ("sub/a", "sub/b", "z"):
        commit_file(repository, name, "one\n")
    commit_file(repository, ".gitattributes", "sub/a filter=swapping\nz filter=restoring\n")
    session = await new_session(client)
    folder = await folder_of(client, session)
    for name in ("sub/a", "sub/b", "z"):
        (folder / name).write_text("three\n")
    swap, restore = f"mv sub {repository}/.git/real; ln -s {secrets} sub; cat", f"rm sub; mv {repository}/.git/real sub; cat"
    (home / ".gitconfig").write_text(f'[filter "swapping"]\n\tclean = "{swap}"\n[filter "restoring"]\n\tclean = "{restore}"\n')
    answer = await client.get(f"{BASE}/worktrees/{session}/diff", params={"path": "sub/b"})
    assert answer.status_code in (200, 404, 409) and SECRET not in answer.text
    assert SECRET not in "".join(answer.text for answer in await use(client, session, repository))


async def test_what_git_says_is_in_the_log(
    client: httpx.AsyncClient, repository: Path, elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = await new_session(client)
    (elsewhere / "file").write_text("a line of a file\n")
    link(repository / ".git" / "shallow", elsewhere / "file")
    answer = await client.get(f"{BASE}/worktrees/{session}")
    assert answer.status_code == 409 and "the gateway's log has what it says" in answer.json()["error"], answer.text
    assert "bad shallow line: a line of a file" in caplog.text


# -- configuration ------------------------------------------------------------------------------------------------------------


async def test_filters_of_the_user_find_no_program_in_the_configuration_of_the_repository(
    client: httpx.AsyncClient, repository: Path, home: Path
) -> None:
    """Here a filter runs a program that it finds in the configuration, as Git LFS does."""
    commit_file(repository, ".gitattributes", "*.txt filter=running\n")
    program, ran = home / "filter", repository / ".git" / "ran"
    program.write_text('#!/bin/sh\nrun=$(git config --get lfs.extension.own.clean) && eval "$run"\ncat\n')
    program.chmod(0o755)
    (home / ".gitconfig").write_text(f'[filter "running"]\n\tclean = {program}\n\tsmudge = {program}\n')
    git(repository, "config", "lfs.extension.own.clean", f"touch {ran}")
    (repository / "a.txt").write_text("two\n")
    git(repository, "diff")
    assert ran.exists(), "git would run it"
    git(repository, "checkout", "-q", "a.txt")
    ran.unlink()
    session = await new_session(client)
    await work(client, session)
    assert [answer.status_code for answer in await use(client, session, repository)][:4] == [200, 200, 201, 200]
    assert not ran.exists()


async def test_configuration_that_changes_meanwhile(client: httpx.AsyncClient, repository: Path, home: Path) -> None:
    """Here by a filter of the user's, at the moment when git has begun to write files."""
    ran, config = repository / ".git" / "ran", repository / ".git" / "config"
    for name in ("b.txt", "c.txt"):
        commit_file(repository, name, "one\n")
    commit_file(repository, ".gitattributes", "a.txt filter=changing\nb.txt filter=own\nc.txt filter=own\n")
    (repository / "change").write_text(f'[filter "own"]\n\tsmudge = "touch {ran}; cat"\n\tclean = "touch {ran}; cat"\n')
    change = f"cat {repository}/change >> {config}; cat"
    (home / ".gitconfig").write_text(f'[filter "changing"]\n\tsmudge = "{change}"\n\tclean = "{change}"\n')
    session = await new_session(client)
    await work(client, session)
    await use(client, session, repository)
    assert "filter" in config.read_text() and not ran.exists()


async def test_settings_about_files_and_authors_of_the_repository_count(client: httpx.AsyncClient, repository: Path) -> None:
    name = 'Ada "the first"; \\ Countess\t# of'
    git(repository, "config", "user.name", name)
    git(repository, "config", "core.autocrlf", "input")
    git(repository, "config", "core.excludesFile", str(repository / "own excludes"))
    (repository / "own excludes").write_text("*.ignored\n")
    config = repository / ".git" / "config"
    config.write_text(f"{config.read_text()}[core]\n\tfileMode\n")
    session = await new_session(client)
    folder = await folder_of(client, session)
    (folder / "new.txt").write_bytes(b"a\r\nb\r\n")
    (folder / "new.ignored").write_text("")
    assert (await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})).status_code == 201
    assert git(folder, "show", "HEAD:new.txt") == "a\nb"
    assert git(folder, "log", "-1", "--format=%an") == name
    assert "new.ignored" not in git(folder, "ls-tree", "-r", "--name-only", "HEAD")


async def test_worktree_of_a_sparse_checkout_is_sparse(client: httpx.AsyncClient, repository: Path) -> None:
    """Git has that in the configuration of one checkout."""
    for name in ("inside", "outside"):
        commit_file(repository, f"{name}/file", name)
    git(repository, "sparse-checkout", "set", "inside")
    session = await new_session(client)
    folder = await folder_of(client, session)
    assert [(folder / name).exists() for name in ("inside", "outside")] == [True, False]
    assert git(folder, "config", "core.sparseCheckout") == "true"
    assert git(folder, "status", "--porcelain") == ""
    assert (await state_of(client, session))["files"] == []


async def test_repository_with_another_format(tmp_path: Path) -> None:
    repository = tmp_path / "sha256"
    git(tmp_path, "init", "-q", "-b", "main", "--object-format=sha256", str(repository))
    git(repository, "config", "user.name", "Ada")
    git(repository, "config", "user.email", "ada@example.org")
    commit_file(repository, "a.txt", "one\n")
    options = {"scenario": str(tmp_path / "turns.json")}
    (tmp_path / "turns.json").write_text('{"turns": [{"steps": [{"text": "hello"}]}]}')
    async with run_gateway(worktree_config(tmp_path, repository, options=options)) as running:
        session = await new_session(running.client)
        (await folder_of(running.client, session) / "a.txt").write_text("two\n")
        answers = await use(running.client, session, repository)
        assert [answer.status_code for answer in answers][:4] == [200, 200, 201, 200]
    assert (repository / "a.txt").read_text() == "two\n"


@pytest.mark.skipif(shutil.which("git-lfs") is None, reason="Git LFS is not installed")
async def test_git_lfs_of_the_user(client: httpx.AsyncClient, repository: Path, home: Path) -> None:
    """It has the files of the worktree, and stores new ones in the repository. It runs no program of the repository's own."""
    git(repository, "lfs", "install", "--skip-repo")
    (repository / "x.bin").write_text("asset\n")
    commit_file(repository, ".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
    assert git(repository, "show", "HEAD:x.bin").startswith("version https://git-lfs")
    ran, program = repository / ".git" / "ran", repository / ".git" / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    program.chmod(0o755)
    for key, value in (
        ("lfs.customtransfer.own.path", str(program)), ("lfs.standalonetransferagent", "own"),
        ("lfs.extension.own.clean", f"{program} %f"), ("lfs.extension.own.smudge", f"{program} %f"),
        ("lfs.extension.own.priority", "0"),
    ):  # fmt: skip
        git(repository, "config", key, value)
    session = await new_session(client)
    folder = await folder_of(client, session)
    assert (folder / "x.bin").read_text() == "asset\n"
    (folder / "new.bin").write_text("another asset\n")
    assert [one["path"] for one in (await state_of(client, session))["files"]] == ["new.bin"]
    assert (await client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})).status_code == 201
    assert git(folder, "show", "HEAD:new.bin").startswith("version https://git-lfs")
    assert (await client.post(f"{BASE}/worktrees/{session}/merge")).status_code == 200
    assert (repository / "new.bin").read_text() == "another asset\n"
    shutil.rmtree(repository / ".git" / "lfs")
    await client.post(f"{BASE}/sessions", json={"agent": {"name": "tree"}})
    assert not ran.exists()


# -- limits -------------------------------------------------------------------------------------------------------------------


@some(("HEAD", "config"), ("own:HEAD", "refs/heads/main", "packed-refs", "own:gitdir", "own:index"))
async def test_fifo_in_the_place_of_a_file(
    client: httpx.AsyncClient, repository: Path, clock: ManualClock, cases: tuple[str, ...]
) -> None:
    """Git waits for who writes to it, up to its time limit. The gateway itself does not."""
    for n, name in enumerate(cases):
        case, session = await case_of(client, repository / f"case{n}")
        path = of_git_dir(case, await folder_of(client, session), name)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        answers = await with_endless_git(use(client, session, case), clock)
        assert are_sane(answers), (name, [one.text for one in answers])


# -- where git cannot be confined ---------------------------------------------------------------------------------------------


def boxed(cwd: Path) -> dict[str, Any]:
    return {"driver": "script", "cwd": str(cwd), "run_in": "docker", "container": {"image": "none"}}


async def test_without_landlock_a_repository_that_a_confined_agent_may_write_has_no_worktrees(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a repository in which, above which, or in whose `.git` that agent works, or that an agent in a container has."""
    monkeypatch.setattr(confinement, "unavailable", lambda: "it needs Landlock, which only Linux has")
    agents: dict[str, Any] = {"elsewhere": boxed(elsewhere)}
    repositories = {name: make_repository(tmp_path / name / "project") for name in ("same", "inside", "above", "free", "own")}
    for name, folder in (("same", "project"), ("inside", "project/.git"), ("above", ".")):
        agents[f"boxed-{name}"] = boxed(tmp_path / name / folder)
    for name, repository in repositories.items():
        agents[f"tree-{name}"] = worktree_config(tmp_path, repository)["agents"]["tree"]
    agents["tree-own"] |= boxed(repositories["own"])
    writers = {"same": "boxed-same", "inside": "boxed-inside", "above": "boxed-above", "own": "tree-own"}
    async with run_gateway(gateway_config(tmp_path / "data", agents=agents)) as running:
        for name, writer in writers.items():
            answer = await running.client.post(f"{BASE}/sessions", json={"agent": {"name": f"tree-{name}"}})
            assert answer.status_code == 409, (name, answer.text)
            error = answer.json()["error"]
            assert f"the agent {writer!r} may write" in error and "only Linux" in error, name
            assert git(repositories[name], "branch", "--list", "portico/*") == ""
        assert await listed(running.client) == []
        answer = await running.client.post(f"{BASE}/sessions", json={"agent": {"name": "tree-free"}})
        assert answer.status_code == 201, answer.text
        path = f"{BASE}/worktrees/{answer.json()['sessionId']}"
        await work(running.client, answer.json()["sessionId"])
        assert (await running.client.post(f"{path}/commit", json={"message": "c"})).status_code == 201
        assert (await running.client.post(f"{path}/merge")).status_code == 200


async def test_without_landlock_a_confined_agent_of_any_folder_leaves_no_repository_worktrees(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confinement, "unavailable", lambda: "it needs Landlock, which only Linux has")
    config = worktree_config(tmp_path / "data", repository)
    config["agents"]["boxed"] = boxed(repository)
    del config["agents"]["boxed"]["cwd"]
    async with run_gateway(config) as running:
        answer = await running.client.post(f"{BASE}/sessions", json={"agent": {"name": "tree"}})
        assert answer.status_code == 409 and "the agent 'boxed' may write" in answer.json()["error"], answer.text


async def test_checkout_that_has_the_data_directory_in_it(tmp_path: Path) -> None:
    """As of a repository in the home folder. Git could be kept to that, but could read and write the secrets of the gateway."""
    repository = make_repository(tmp_path / "home-repository")
    git(repository, "config", "core.excludesFile", str(repository / ".git" / "excluded"))
    (repository / ".git" / "excluded").write_text("data\n")
    config = worktree_config(repository / "data", repository)
    for confined, status in ((False, 200), (True, 409)):
        if confined:
            # A sandbox of the agent that works in the whole checkout is refused when the gateway starts.
            (repository / "sub").mkdir(exist_ok=True)
            sandboxed = {"driver": "script", "cwd": str(repository / "sub"), "sandbox": "workspace-write"}
            config["agents"]["sandboxed"] = {**sandboxed, "env": {"TMPDIR": str(tmp_path / "temporary")}}
        async with run_gateway(config) as running:
            session = await new_session(running.client)
            await work(running.client, session, "new.txt" if confined else "a.txt")
            assert (await running.client.post(f"{BASE}/worktrees/{session}/commit", json={"message": "c"})).status_code == 201
            answer = await running.client.post(f"{BASE}/worktrees/{session}/merge")
            assert answer.status_code == status, answer.text
    assert "contains" in answer.json()["error"] and "'sandboxed'" in answer.json()["error"]
    assert not (repository / "new.txt").exists()


# -- more of what an agent may prepare ----------------------------------------------------------------------------------------


@some(
    (
        ("extensions.partialClone", "origin"), ("core.worktree", "/"), ("include.path", "/dev/zero"),
        ("core.attributesFile", "/dev/zero"), ("remote.origin.url", "ext::sh -c touch% ran"),
    ),
    (
        ("extensions.refStorage", "reftable"), ("extensions.unknown", "true"), ("core.repositoryFormatVersion", "99"),
        ("core.bare", "true"), ("core.excludesFile", "/dev/zero"), ("core.abbrev", "no"),
    ),
)  # fmt: skip
async def test_settings_that_lead_git_astray(
    client: httpx.AsyncClient, repository: Path, clock: ManualClock, cases: tuple[tuple[str, str], ...]
) -> None:
    """They are refused or do not count. A command that would not end is ended."""
    for n, (key, value) in enumerate(cases):
        case, session = await case_of(client, repository / f"case{n}")
        git(case, "config", key, value)
        answers = await with_endless_git(use(client, session, case), clock)
        assert are_sane(answers), (key, [one.text for one in answers])
        assert not (case / "ran").exists()


@some(("{fifo}", "{elsewhere}/note.txt"), ("/dev/zero",))
async def test_attributes_of_the_repository_that_are_no_file_of_it(
    client: httpx.AsyncClient, repository: Path, elsewhere: Path, tmp_path: Path, cases: tuple[str, ...]
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (elsewhere / "note.txt").write_text("*.txt binary\n")
    for n, target in enumerate(cases):
        case, session = await case_of(client, repository / f"case{n}")
        (case / ".git" / "info").mkdir(exist_ok=True)
        attributes = case / ".git" / "info" / "attributes"
        attributes.symlink_to(target.format(fifo=tmp_path / "fifo", elsewhere=elsewhere))
        async with asyncio.timeout(100):
            # Less than the limit of a command.
            answers = await use(client, session, case)
        assert all(answer.status_code < 400 for answer in answers[:4]), (target, [one.text for one in answers])


async def test_attributes_and_excluded_files_of_the_repository_count(client: httpx.AsyncClient, repository: Path) -> None:
    (repository / ".git" / "info").mkdir(exist_ok=True)
    (repository / ".git" / "info" / "attributes").write_text("a.txt binary\n")
    (repository / ".git" / "info" / "exclude").write_text("left.txt\n")
    session = await new_session(client)
    folder = await folder_of(client, session)
    (folder / "left.txt").write_text("")
    (folder / "a.txt").write_text("changed\n")
    answer = (await client.get(f"{BASE}/worktrees/{session}")).json()
    # A binary file has no number of lines.
    assert [(file["path"], "additions" in file) for file in answer["files"]] == [("a.txt", False)]


async def test_attributes_that_git_cannot_follow(client: httpx.AsyncClient, repository: Path) -> None:
    session = await new_session(client)
    folder = await folder_of(client, session)
    lines = ("a.txt working-tree-encoding=no-such-encoding", "*.txt filter=none diff=none merge=none", "* ident eol=crlf text")
    (folder / ".gitattributes").write_text("\n".join(lines))
    await work(client, session)
    answers = await use(client, session, repository)
    assert all(answer.status_code < 500 or answer.status_code == 503 for answer in answers), [one.text for one in answers]
