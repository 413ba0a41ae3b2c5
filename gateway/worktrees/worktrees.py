"""Worktrees: creates, finds and removes the worktrees of sessions.

A row in the store comes before anything in the repository, and goes after it: whatever a killed gateway has left is found again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import shlex
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.runtime.confined_files import ConfinedFolders, OutsideFolders, make_folder, remove_tree
from gateway.agents.folder_access import FOLDER_OF_SESSION, in_time
from gateway.errors import AgentProblem, Conflict, GatewayError, NotFound
from gateway.private_files import private_directory
from gateway.store import Store, WorktreeRecord
from gateway.worktrees.checkout import Checkout, operation_in, own_commits
from gateway.worktrees.confinement import TEMPORARY, ConfinedWriter, Confinements
from gateway.worktrees.git import CHECKOUT_SECONDS, Git, GitFailed, conflict
from gateway.worktrees.own_config import Setting, config_text, with_allowed_config
from gateway.worktrees.source import Source, problem_of_repository, small_file, source_of

log = logging.getLogger(__name__)

BRANCHES = "portico/"
"""What the names of the branches begin with."""
ID_LENGTH = 12
"""Characters of a session's id in the names of its branch and folder."""
MAX_NAME = 40


@dataclass(frozen=True, slots=True)
class SessionWorktree:
    """What a session knows of its worktree: the folder `path` with the `branch`, and the working `folder` in it.

    `base` is the checkout that it was made from: the same files are there under the same names.
    """

    path: str
    folder: str
    branch: str
    base: str

    def to_json(self) -> dict[str, str]:
        """As JSON data."""
        return {"path": self.path, "folder": self.folder, "branch": self.branch, "base": self.base}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> SessionWorktree | None:
        """Return what `to_json` gave; None for None."""
        return None if data is None else cls(**data)


class Worktrees:
    """All worktrees of the gateway, in `folder`. `data_dir` is the gateway's data directory.

    Commands that change what the worktrees of a repository share run one after the other for each repository. Git can read
    nothing `hidden`, the data directory included; `confined_writer` says where agents in a sandbox may write.

    On a node of a cluster, whose id is `node`, the store also has the worktrees of other machines. They have the same paths where
    the data directories have; so the id of the node is in the path.
    """

    def __init__(
        self,
        store: Store,
        data_dir: Path,
        hidden: Sequence[Path],
        confined_writer: ConfinedWriter,
        node: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self._store, self._data_dir, self._node = store, Path(os.path.realpath(data_dir)), node
        self.folder = self._data_dir / "worktrees" / (node or "")
        self._confinements = Confinements(self.folder, hidden, confined_writer, clock)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._recovery: asyncio.Task[None] | None = None
        self._changes: set[asyncio.Task[Any]] = set()

    # -- creation ---------------------------------------------------------------------------------------------------------

    async def create(
        self, session_id: str, owner: str | None, agent: str, folder: Path, origin: SessionWorktree | None = None
    ) -> SessionWorktree:
        """Create the worktree of a new session, whose folder is `folder`. Call `created` once the session is stored.

        With `origin`, the worktree of the session that it is a fork of, it has the commits and the uncommitted changes of that.
        Raises BadRequest for a folder that cannot have one, Conflict and AgentProblem; then nothing is left of it.
        """
        source = await self._source_of(folder, owner, agent)
        before = await self._of_path(origin.path) if origin is not None else None
        found = self._place(session_id, source)
        record = WorktreeRecord(
            session_id,
            owner,
            agent,
            str(source.repository),
            "",
            found.path,
            found.branch,
            source.branch,
            source.commit,
            self._clock.time(),
        )
        tree: str | None = None
        commit = source.commit
        if before is not None and before.repository == record.repository:
            record = replace(record, base_branch=before.base_branch, base_commit=before.base_commit)
            async with self.open(before) as checkout:
                commit, tree = await checkout.snapshot()
        await self._store.worktrees.add(record)
        try:
            record = await self._add(record, commit)
            if tree is not None:
                async with self.open(record) as checkout:
                    await checkout.restore(tree)
            await asyncio.to_thread(_make_folder, found)
        except BaseException as error:
            await asyncio.shield(self.discard(session_id))
            if isinstance(error, GitFailed):
                raise conflict(f"git cannot create a worktree of {source.top}", error) from error
            if isinstance(error, OSError):
                raise AgentProblem(f"the worktree {found.path} cannot be created: {error.strerror}") from error
            raise
        return found

    async def created(self, session_id: str) -> None:
        """The session of a worktree is stored."""
        await self._store.worktrees.update(session_id, ready=True)

    async def ensure(
        self, session_id: str, owner: str | None, agent: str, found: SessionWorktree, folder: Callable[[], Path]
    ) -> None:
        """Create the folder of a session's worktree again if it is gone: on its branch, or on a new one if that is gone too.

        `folder` returns the folder of the session without a worktree. By then that may be in another repository than the worktree
        was of, such as when the configuration was changed: then its branch is used if it is still there. Raises GatewayError.
        """
        if await asyncio.to_thread(_is_there, found):
            return
        record = await self._store.worktrees.get(session_id)
        # Not the branch of that time: the user may have merged and removed the worktree, and the session goes on from there.
        commit = record.base_commit if record is not None else ""
        if record is None or not await self._has_branch(record):
            source = await self._source_of(await in_time(folder, FOLDER_OF_SESSION), owner, agent)
            if str(source.top) != found.base:
                # Rules about files name those of the repository that it began with.
                raise Conflict(
                    f"the worktree {found.path} is gone, and the folder of the session is in {source.top} now, which is not its "
                    f"repository {found.base}; fork the session, which gives it a worktree of that, or create another one"
                )
            commit = source.commit
            if record is None:
                record = WorktreeRecord(
                    session_id, owner, agent, str(source.repository), "", found.path, found.branch, source.branch, commit,
                    self._clock.time(), ready=True,
                )  # fmt: skip
                await self._store.worktrees.add(record)
            else:
                # The branch is made anew, perhaps in another repository at the same path.
                record = replace(record, repository=str(source.repository), base_branch=source.branch, base_commit=commit)
                await self._store.worktrees.update(
                    session_id, repository=record.repository, base_branch=record.base_branch, base_commit=commit
                )
        try:
            await self._require_head_elsewhere(record)
            log.warning("session %s: its worktree %s is gone and is created again", session_id, found.path)
            await self._add(record, commit)
        except GitFailed as error:
            raise conflict(f"git cannot create the worktree {found.path} again", error) from error
        await asyncio.to_thread(_make_folder, found)

    def _place(self, session_id: str, source: Source) -> SessionWorktree:
        short = session_id.removeprefix("sess_")[:ID_LENGTH]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", source.top.name).strip("-.")[:MAX_NAME] or "repository"
        path = self.folder / f"{name}-{short}"
        return SessionWorktree(str(path), str(path / source.subfolder), BRANCHES + short, str(source.top))

    async def _add(self, record: WorktreeRecord, commit: str) -> WorktreeRecord:
        """Create the folder of a worktree, on its branch or on a new one at a commit. Raises GitFailed and GatewayError."""
        path, repository = Path(record.path), Path(record.repository)
        async with self._lock(record.repository):
            await asyncio.to_thread(_make_empty, path)
            try:
                async with self._confinements.open(record.owner, record.agent, path, repository) as confinement:
                    await asyncio.to_thread(make_folder, repository, "worktrees")
                    git, settings = await with_allowed_config(Git(confinement, repository, repository, common_dir=repository))
                    await _add_worktree(git, record, commit)
                    # Read before an agent can change it.
                    git_dir = await asyncio.to_thread(_git_dir_of, path, repository, settings)
                    await _check_out(git, record, git_dir)
            except BaseException:
                await asyncio.shield(asyncio.to_thread(remove_tree, path))
                raise
        await self._store.worktrees.update(record.session_id, git_dir=str(git_dir))
        return replace(record, git_dir=str(git_dir))

    async def _source_of(self, folder: Path, owner: str | None, agent: str) -> Source:
        """Return what a folder is in its repository. Raises BadRequest, Conflict and AgentProblem."""
        async with self._confinements.open(owner, agent, readable=self._readable(folder)) as confinement:
            return await source_of(folder, self._data_dir, confinement)

    def _readable(self, folder: Path) -> tuple[Path, ...]:
        """The part of the data directory that a folder in it belongs to: an agent's own folder, or another worktree."""
        for base, depth in ((self.folder, 1), (self._data_dir / "workspaces", 1), (self._data_dir / "key-workspaces", 2)):
            if folder.is_relative_to(base):
                return (base.joinpath(*folder.relative_to(base).parts[:depth]),)
        return ()

    @asynccontextmanager
    async def _shared_git(self, record: WorktreeRecord) -> AsyncIterator[Git]:
        """Give git in what the worktrees of a repository share. Raises GitFailed and Conflict."""
        repository = Path(record.repository)
        async with self._confinements.open(record.owner, record.agent, repository) as confinement:
            git, _ = await with_allowed_config(Git(confinement, repository, repository, common_dir=repository))
            yield git

    async def _has_branch(self, record: WorktreeRecord) -> bool:
        """Whether the repository of a worktree is there and has its branch."""
        if not await asyncio.to_thread(os.path.isdir, record.repository):
            return False
        try:
            async with self._shared_git(record) as git:
                return await git.succeeds("rev-parse", "--verify", "--quiet", f"refs/heads/{record.branch}")
        except GitFailed:
            return False

    async def _require_head_elsewhere(self, record: WorktreeRecord) -> None:
        """Raise Conflict if a worktree that is created again had a commit checked out that is on no branch. Raises GitFailed."""
        async with self._shared_git(record) as git:
            head = await _head_left(git, record)
            if head is None:
                return
            count = int((await git("rev-list", "--count", head, "--not", "--branches", "--remotes", "--tags")).text)
        if count:
            command = f"git -C {shlex.quote(record.repository)}"
            raise Conflict(
                f"the folder {record.path} of the worktree is gone, and the commit {head}, which was checked out there, is on no "
                f"branch. Keep it by `{command} branch NAME {head}`, or drop it by `{command} worktree prune`; then send this "
                "again"
            )

    async def _work_left(self, record: WorktreeRecord) -> str | None:
        """What would be lost with a worktree whose folder is gone, in words: its branch, and what git had checked out."""
        if not await asyncio.to_thread(os.path.isdir, record.repository):
            raise Conflict(
                f"the repository {record.repository} and the folder {record.path} of the worktree are gone; put the repository "
                "back, or remove the worktree with `force`"
            )
        try:
            async with self._shared_git(record) as git:
                head = await _head_left(git, record)
                branch = (await git("rev-parse", "--verify", "--quiet", f"refs/heads/{record.branch}", ok=(0, 1))).text
                commits = [one for one in (branch, head) if one]
                others = ("--not", record.base_commit, f"--exclude={record.branch}", "--branches", "--remotes", "--tags")
                count = int((await git("rev-list", "--count", *commits, *others)).text) if commits else 0
        except GitFailed as error:
            raise conflict(f"git cannot tell what the branch {record.branch!r} has", error) from error
        found = [own_commits(count)] if count else []
        if record.git_dir and (operation := operation_in(Path(record.git_dir))):
            found.append(f"a {operation} under way")
        return ", ".join(found) or None

    # -- finding ----------------------------------------------------------------------------------------------------------

    async def all(self) -> list[WorktreeRecord]:
        """All worktrees, the newest first, those of deleted sessions included."""
        return await self._store.worktrees.all()

    async def get(self, session_id: str) -> WorktreeRecord:
        """The worktree of a session, which may have been deleted. Raises NotFound."""
        found = await self._store.worktrees.get(session_id)
        if found is None:
            raise no_worktree(session_id)
        return found

    async def _of_path(self, path: str) -> WorktreeRecord | None:
        return next((one for one in await self._store.worktrees.all() if one.path == path), None)

    def open(self, record: WorktreeRecord) -> AbstractAsyncContextManager[Checkout]:
        """Give the files and the branch of a worktree. Raises Conflict if they are gone, or git cannot be confined there."""
        return Checkout.opened(record, self._confinements)

    @asynccontextmanager
    async def changing(self, record: WorktreeRecord) -> AsyncIterator[None]:
        """Nobody else changes the repository of a worktree inside. `end_changes` cancels the task."""
        task = asyncio.current_task()
        assert task is not None
        self._changes.add(task)
        try:
            async with self._lock(record.repository):
                yield
        finally:
            self._changes.discard(task)

    async def end_changes(self, seconds: float) -> None:
        """Wait for commits and merges, and cancel them after so many seconds: git can remove its lock files then."""
        if not self._changes:
            return
        _, late = await self._clock.wait(self._changes, seconds)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    def _lock(self, repository: str) -> asyncio.Lock:
        return self._locks.setdefault(repository, asyncio.Lock())

    def is_here(self, record: WorktreeRecord) -> bool:
        """Whether the files of a worktree are, or were, on this machine. It reads the file system."""
        # A session that was taken over has it here under the path that it had there.
        return self._is_own(record) or os.path.lexists(record.path)

    def _is_own(self, record: WorktreeRecord) -> bool:
        """Whether this daemon has created a worktree. It reads the file system."""
        if self._node is None:
            return True
        folder = Path(record.path).parent
        # The second one is of the time before this daemon was a node, or that of another machine has the same path.
        return folder == self.folder or (folder == self.folder.parent and os.path.lexists(record.path))

    # -- removal ----------------------------------------------------------------------------------------------------------

    async def remove(self, record: WorktreeRecord, *, force: bool = False) -> None:
        """Remove a worktree with its files and its branch.

        Raises Conflict if work would be lost with it, or that cannot be known, unless `force` is set, and if it is
        another node's; then it is as it was.
        """
        async with self._lock(record.repository):
            await self._require_removable(record, force)
            await self._remove(record)

    async def require_removable(self, record: WorktreeRecord, *, force: bool = False) -> None:
        """Raise Conflict where `remove` would."""
        async with self._lock(record.repository):
            await self._require_removable(record, force)

    async def _require_removable(self, record: WorktreeRecord, force: bool) -> None:
        if not await asyncio.to_thread(self.is_here, record):
            raise Conflict(f"the files of the worktree {record.path} are on another node of the cluster, and stay there")
        if force:
            return
        if await asyncio.to_thread(os.path.lexists, record.path):
            async with self.open(record) as checkout:
                work = (await checkout.state()).unmerged_work
        else:
            work = await self._work_left(record)
        if work is not None:
            raise Conflict(f"the worktree {record.path} has {work}; {_FORCE}")

    async def _remove(self, record: WorktreeRecord) -> None:
        """Remove what there is of a worktree, and its row last. Each step does nothing where it was done before."""
        async with AsyncExitStack() as stack:
            git: Git | None = None
            if await asyncio.to_thread(os.path.isdir, record.repository):
                # Before anything is removed: git may be missing.
                try:
                    git = await stack.enter_async_context(self._shared_git(record))
                except GitFailed:
                    # It has nothing to remove there.
                    pass
                except Conflict as error:
                    log.warning("the branch %s of the worktree %s stays: %s", record.branch, record.path, error)
            try:
                await asyncio.to_thread(remove_tree, Path(record.path))
            except OSError as error:
                raise Conflict(
                    f"{error.filename or record.path} cannot be removed: {error.strerror}; remove it, then try again"
                ) from error
            if git is not None:
                # Git knows no worktree there if it was not created, or was removed before.
                with suppress(GitFailed):
                    await git("worktree", "remove", "--force", "--force", "--", record.path)
                # It stays where the user has it checked out elsewhere.
                with suppress(GitFailed):
                    await git("branch", "--quiet", "-D", "--", record.branch)
        await self._store.worktrees.remove(record.session_id, record.path)

    async def discard(self, session_id: str) -> None:
        """Remove the worktree of a session that was not created. It raises nothing: what is left is removed at the next start."""
        record = await self._store.worktrees.get(session_id)
        if record is None:
            return
        try:
            await self.remove(record, force=True)
        except Exception as error:
            log.warning("the worktree %s of a session that was not created is removed at the next start: %s", record.path, error)

    async def release(self, session_id: str) -> None:
        """The session was deleted: remove its worktree if no work is lost with it. It raises nothing: otherwise it is kept."""
        record = await self._store.worktrees.get(session_id)
        if record is None:
            return
        try:
            await self.remove(record)
        except GatewayError as error:
            log.info("the worktree of session %s is kept: %s", session_id, error)
        except Exception as error:
            log.warning("the worktree of session %s is kept", session_id, exc_info=error)

    # -- recovery ---------------------------------------------------------------------------------------------------------

    async def start_recovery(self) -> None:
        """Begin to remove, in the background, what a killed gateway has left: worktrees of sessions that were not created, and
        those of deleted sessions that lose no work, and temporary folders. Call it before sessions are created. Those of other
        nodes stay."""
        found = await self._store.worktrees.without_session()
        left = [record for record in found if await asyncio.to_thread(self._is_own, record)]
        temporary = await asyncio.to_thread(list, self.folder.glob(f"{TEMPORARY}*"))
        if left or temporary:
            self._recovery = asyncio.create_task(self._recover(left, temporary))

    async def _recover(self, left: list[WorktreeRecord], temporary: list[Path]) -> None:
        for folder in temporary:
            try:
                await asyncio.to_thread(remove_tree, folder)
            except OSError as error:
                log.warning("the temporary folder %s cannot be removed: %s", folder, error.strerror)
        stored = {record.id for record in await self._store.sessions.some([one.session_id for one in left])}
        for record in left:
            if record.session_id in stored:
                await self.created(record.session_id)
            elif record.ready:
                await self.release(record.session_id)
            else:
                await self.discard(record.session_id)

    async def recovered(self) -> None:
        """Wait until the recovery has ended."""
        if self._recovery is not None:
            await asyncio.wait([self._recovery])

    async def close(self) -> None:
        """End the recovery; the next start begins it again."""
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.wait([self._recovery])


_FORCE = "merge it, or remove it with `force`, and that is lost"


def node_in(path: str) -> str:
    """The id of the node that has created a worktree with this path; no node has it where that was no node of a cluster."""
    return Path(path).parent.name


def no_worktree(session_id: str) -> NotFound:
    """Return the error for a session without a worktree, or another's."""
    return NotFound(f"there is no worktree of session {session_id[:80]!r}; GET the list of worktrees for those that exist")


def _make_empty(path: Path) -> None:
    """Create the folder of a worktree, in which git may write then. Raises OSError."""
    private_directory(path.parent)
    path.mkdir()


async def _add_worktree(git: Git, record: WorktreeRecord, commit: str) -> None:
    """Let git know a new worktree, without its files. Raises GitFailed."""
    known = await git.succeeds("rev-parse", "--verify", "--quiet", f"refs/heads/{record.branch}")
    if known and (used := await _folder_with(git, record)) not in (None, record.path):
        raise GitFailed(f"its branch {record.branch!r} is checked out in {used}; check out another one there", 128)
    on = ["--", record.path, record.branch] if known else ["--no-track", "-b", record.branch, "--", record.path, commit]
    try:
        # With the force, git takes the path of a worktree that it knows and that is gone.
        await git("worktree", "add", "--force", "--quiet", "--no-checkout", *on)
    except GitFailed as error:
        raise await _explained(git, record, error) from error


def _git_dir_of(path: Path, repository: Path, settings: Sequence[Setting]) -> Path:
    """Return the git directory of a new worktree, and name it in the folder. It gets settings that hold for one checkout.

    Raises OSError, and Conflict if it is not in the repository.
    """
    named = small_file(path / ".git")
    git_dir = Path(os.path.realpath(path / (named or "").removeprefix("gitdir: ").rstrip("\r\n")))
    # Git has named it by the folder that it takes for the repository (own_config.py).
    try:
        _write(path, path / ".git", os.O_TRUNC, os.fsencode(f"gitdir: {git_dir}\n"))
        if settings:
            _write(repository, git_dir / "config.worktree", os.O_CREAT | os.O_EXCL, config_text(settings))
    except OutsideFolders as error:
        raise Conflict(f"{path} has a git directory that is not in its repository: {error}") from error
    return git_dir


def _write(inside: Path, file: Path, flags: int, content: bytes) -> None:
    """Write a file in a folder with a real path. Raises OSError, OutsideFolders."""
    with open(ConfinedFolders((inside,)).open(str(file), os.O_WRONLY | flags), "wb") as opened:
        opened.write(content)


async def _check_out(git: Git, record: WorktreeRecord, git_dir: Path) -> None:
    """Write the files of a new worktree. Raises GitFailed, and Conflict if its git directory is not in the repository.

    Apart from `git worktree add`, since parts of the configuration may hold for this git directory only.
    """
    path, repository = Path(record.path), Path(record.repository)
    if problem := await problem_of_repository(git, path, git_dir, repository):
        raise Conflict(f"{path} {problem}")
    own, _ = await with_allowed_config(Git(git.confinement, path, git_dir, path, repository))
    await own("reset", "--hard", "--quiet", seconds=CHECKOUT_SECONDS)


async def _explained(git: Git, record: WorktreeRecord, error: GitFailed) -> GitFailed:
    """Return why git has created no worktree, with what to do where git does not say that."""
    command, prefix = f"git -C {shlex.quote(record.repository)}", BRANCHES.rstrip("/")
    if "missing but locked" in error.said:
        command = f"{command} worktree unlock {shlex.quote(record.path)}"
        return GitFailed(f"git keeps a lock on it, and its folder is gone; put the folder back, or run `{command}`", error.status)
    if await git.succeeds("rev-parse", "--verify", "--quiet", f"refs/heads/{prefix}"):
        command = f"{command} branch -m {prefix} NAME"
        return GitFailed(f"its branch {prefix!r} leaves no room for {record.branch!r}; rename it by `{command}`", error.status)
    return error


async def _head_left(git: Git, record: WorktreeRecord) -> str | None:
    """The commit that was checked out in a worktree whose folder is gone; None where git has forgotten it. Raises GitFailed."""
    if not record.git_dir or not await asyncio.to_thread(os.path.isdir, record.git_dir):
        return None
    own = replace(git, git_dir=Path(record.git_dir))
    return (await own("rev-parse", "--verify", "--quiet", "HEAD^{commit}", ok=(0, 1))).text or None


async def _folder_with(git: Git, record: WorktreeRecord) -> str | None:
    """The folder in which the branch of a worktree is checked out."""
    folder: str | None = None
    # Git takes the folder of the repository itself from the path of what is shared.
    listing = replace(git, common_dir=Path(record.repository))
    for line in (await listing("worktree", "list", "--porcelain", "-z")).fields:
        if line.startswith("worktree "):
            folder = line.removeprefix("worktree ")
        elif line == f"branch refs/heads/{record.branch}":
            return folder
    return None


def _is_there(worktree: SessionWorktree) -> bool:
    """Whether the folder of a worktree is there; its working folder is then, too. Raises Conflict for another folder."""
    if os.path.exists(os.path.join(worktree.path, ".git")):
        _make_folder(worktree)
        return True
    if os.path.lexists(worktree.path):
        found = "its .git is gone" if os.path.isdir(worktree.path) else "there is no folder"
        raise Conflict(f"{worktree.path} is no git worktree any more, {found}; move it away, and send this again")
    return False


def _make_folder(worktree: SessionWorktree) -> None:
    """Create the working folder in a worktree. Raises Conflict where a link is in the way, as in the commit or by an agent."""
    try:
        make_folder(Path(worktree.path), os.path.relpath(worktree.folder, worktree.path))
    except OSError as error:
        reason = "its path has a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise Conflict(f"the working folder {worktree.folder} cannot be created: {reason}") from error
