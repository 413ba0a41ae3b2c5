"""One worktree: its state, its changes, a commit of them, and the merge of its branch. All by git; nothing is stored here."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from drivers.runtime.confined_files import ConfinedFolders, NotRegularFile, OutsideFolders, regular_file
from gateway.errors import AgentProblem, BadRequest, Conflict, NotFound
from gateway.store import WorktreeRecord
from gateway.worktrees.confinement import Confinements
from gateway.worktrees.git import CHECKOUT_SECONDS, MERGE_SECONDS, Git, GitFailed, conflict
from gateway.worktrees.own_config import with_allowed_config
from gateway.worktrees.source import problem_of_repository, small_file

log = logging.getLogger(__name__)

SHOWN_NAMES = 20
"""Files that an error names."""
MAX_FILES = 2000
"""Changed files of a state. There may be more."""
MAX_DIFF = 1024 * 1024
"""Bytes of one file's diff."""
_ATTEMPTS = 5
"""How often files are read that change, appear or go meanwhile."""
_OPERATIONS = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
}
"""What is in the git directory of a worktree while such an operation is under way."""
_MOVING = {
    "rebase-merge/head-name": "rebase",
    "rebase-merge/update-refs": "rebase",
    "rebase-apply/head-name": "rebase",
    "BISECT_START": "bisection",
}
"""Where the branches are named that such an operation moves, or checks out again, at its end."""
_IN_THE_WAY = re.compile(r"would be overwritten by merge|would lose untracked files in them")
_STATUS: dict[str, Literal["added", "modified", "deleted", "renamed"]] = {"A": "added", "D": "deleted", "R": "renamed"}


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file that differs from the base. Lines are None for a file that is not text. `old_path` is that of a renamed one."""

    path: str
    status: Literal["added", "modified", "deleted", "renamed"]
    old_path: str | None = None
    additions: int | None = None
    deletions: int | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """What differs between the base and the files of the worktree, those that are not committed and not ignored included."""

    files: Sequence[ChangedFile]
    truncated: bool


@dataclass(frozen=True, slots=True)
class State:
    """The state of a worktree.

    `head` is its commit, `branch` what is checked out (None without a branch). `ahead` and `behind` count commits against the
    base branch, or against the commit that it began with where that branch is gone (`base_exists`). `own_commits` are those that
    no other branch, remote branch or tag has. `uncommitted` are the paths of changed and new files, `overlooked` those of changed
    ones that git does not look at, which are in no commit. `operation` names what git has under way. `submodules`: it has
    submodules with repositories of their own.
    """

    head: str
    branch: str | None
    base_exists: bool
    ahead: int
    behind: int
    own_commits: int
    uncommitted: Sequence[str]
    overlooked: Sequence[str]
    operation: str | None
    submodules: bool

    @property
    def unmerged_work(self) -> str | None:
        """What would be lost with the worktree and its branch, in words; None if nothing would."""
        found = []
        if self.uncommitted:
            found.append(f"changes that are not committed ({names(self.uncommitted)})")
        if self.overlooked:
            found.append(f"changes in files that git does not look at ({names(self.overlooked)})")
        if self.own_commits:
            found.append(own_commits(self.own_commits))
        if self.operation:
            found.append(f"a {self.operation} under way")
        if self.submodules:
            found.append("submodules with repositories of their own")
        return ", ".join(found) or None


@dataclass(frozen=True, slots=True)
class Merge:
    """What a merge has done; `commit` is that of the base branch now."""

    outcome: Literal["up_to_date", "fast_forward", "merge_commit"]
    branch: str
    commit: str


class Checkout:
    """The files and the branch of a worktree. Make it with `opened`."""

    def __init__(self, record: WorktreeRecord, git: Git, confinements: Confinements) -> None:
        self._record, self._git, self._confinements = record, git, confinements
        self._temporary = git.confinement.temporary
        self._heads: tuple[str, str | None] | None = None
        """The commit and that of the base, which the state has. The changes are of the same."""

    @classmethod
    @asynccontextmanager
    async def opened(cls, record: WorktreeRecord, confinements: Confinements) -> AsyncIterator[Checkout]:
        """Give the checkout of a worktree.

        Raises Conflict if the repository or the folder is gone, or git cannot be confined there.
        """
        path, repository = Path(record.path), Path(record.repository)
        await asyncio.to_thread(_require_folders, record)
        async with confinements.open(record.owner, record.agent, path, repository) as confinement:
            # All are named, since an agent can change what is in the folder.
            git = Git(confinement, path, Path(record.git_dir), path, repository)
            try:
                git, _ = await with_allowed_config(git)
            except GitFailed as error:
                raise conflict(f"git cannot read the worktree {path}", error) from error
            yield cls(record, git, confinements)

    # -- reading ----------------------------------------------------------------------------------------------------------

    async def state(self) -> State:
        """Return the state. Raises Conflict if the branch is gone, or git cannot read the worktree."""
        record, git = self._record, self._git
        try:
            head = await self._head()
            branch = await self._branch()
            base = await self._base()
            self._heads = head, base
            ahead, behind = (
                (await git("rev-list", "--left-right", "--count", f"{head}...{base or record.base_commit}")).text.split()
            )  # fmt: skip
            own = [head, *([found] if (found := await self._commit_of(record.branch)) else [])]
            others = ("--not", record.base_commit, f"--exclude={record.branch}", "--branches", "--remotes", "--tags")
            count = int((await git("rev-list", "--count", *own, *others)).text)
            entries = await self._entries()
            links = _links(entries)
            uncommitted = [*await self._uncommitted(), *await asyncio.to_thread(self._filled, links)]
            overlooked = sorted(set(await self._overlooked(head, entries)) - set(uncommitted))
        except GitFailed as error:
            raise conflict(f"git cannot read the worktree {record.path}", error) from error
        git_dir = Path(record.git_dir)
        nested = await asyncio.to_thread(self._have_repositories, links)
        operation, submodules = operation_in(git_dir), (git_dir / "modules").is_dir() or nested
        return State(
            head, branch, base is not None, int(ahead), int(behind), count, uncommitted, overlooked, operation, submodules
        )  # fmt: skip

    async def changes(self) -> Changes:
        """Return the changed files. Raises Conflict."""
        try:
            base, tree, extra = await self._tree()
            output = await self._diff("--raw", "--numstat", "-M", "-z", base, tree, extra=extra)
        except GitFailed as error:
            raise conflict("git cannot compare the worktree with its base", error) from error
        kinds, rest = _kinds(output)
        lines = _numbers(rest)
        files = [_changed(one, lines) for one in kinds]
        return Changes(files[:MAX_FILES], len(files) > MAX_FILES)

    async def diff(self, path: str) -> tuple[str, bool]:
        """Return the diff of a changed file, in git's format, and whether it is cut. Raises NotFound and Conflict."""
        try:
            base, tree, extra = await self._tree()
            kinds, _ = _kinds(await self._diff("--raw", "-M", "-z", base, tree, extra=extra))
            found = next((one for one in kinds if printable(one[2]) == path), None)
            if found is None:
                raise NotFound(f"path: {path[:200]!r} does not differ from the base; GET the worktree for the files that do")
            paths = [one for one in found[1:] if one]
            output = await self._git(
                "diff", "--no-ext-diff", "--no-textconv", "-M", base, tree, "--", *paths, limit=MAX_DIFF, extra=extra
            )
        except GitFailed as error:
            raise conflict("git cannot compare the worktree with its base", error) from error
        return output.data.decode(errors="replace"), output.truncated

    async def _diff(self, *arguments: str, extra: dict[str, str]) -> list[str]:
        output = await self._git("diff", "--no-ext-diff", "--no-textconv", *arguments, extra=extra, seconds=CHECKOUT_SECONDS)
        return output.fields

    async def _tree(self) -> tuple[str, str, dict[str, str]]:
        """Return the base's commit, and the tree of the files as they are, with the variables to read it. The repository gets
        nothing: the objects are in a temporary folder."""
        objects = Path(self._record.repository) / "objects"
        new = self._temporary / "objects"
        new.mkdir(exist_ok=True)
        extra = {"GIT_OBJECT_DIRECTORY": str(new), "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(objects)}
        head, base = self._heads or (await self._head(), await self._base())
        compared = self._record.base_commit
        if base is not None:
            found = await self._git("merge-base", head, base, ok=(0, 1))
            compared = found.text or compared
        tree, _ = await self._written_tree(extra, reading=True)
        return compared, tree, extra

    async def _written_tree(self, extra: dict[str, str], *, reading: bool) -> tuple[str, list[str]]:
        """Write the files, new ones included and ignored ones not, as a tree, with a temporary index.

        Return the tree, and the repositories inside of the worktree that are not in it, since they have no commit. Where the tree
        is for `reading`, it also lacks new files that cannot be read, and line ends may be of any kind. Raises GitFailed.
        """
        index = self._temporary / "index"
        extra = {**extra, "GIT_INDEX_FILE": str(index)}
        git = self._git
        if reading:
            git = replace(git, config={**git.config, "core.safecrlf": "false"})
        for attempt in range(_ATTEMPTS):
            try:
                left_out = await self._write_index(git, index, extra, reading=reading)
                break
            except GitFailed:
                if attempt == _ATTEMPTS - 1:
                    raise
        return (await git("write-tree", extra=extra)).text, left_out

    async def _write_index(self, git: Git, index: Path, extra: Mapping[str, str], *, reading: bool) -> list[str]:
        """Write the files as they are to a temporary index, and return the repositories without a commit."""
        await asyncio.to_thread(self._copy_index, index)
        # Of those in the index, git runs `git status` in their folders, with the filters of their own configuration. New ones are
        # read by this process.
        links = _links(await self._entries(extra))
        if links:
            await git("update-index", "--force-remove", "-z", "--stdin", entered=_joined(links), extra=extra)
        lenient = ("--ignore-errors",) if reading else ()
        ok = (0, 1) if reading else (0,)
        await git("add", "--update", "--sparse", *lenient, "--", ".", ok=ok, extra=extra, seconds=CHECKOUT_SECONDS)
        found = await git("ls-files", "--others", "--exclude-standard", "-z", extra=extra, seconds=CHECKOUT_SECONDS)
        new = [path for path in found.fields if not path.endswith("/")]
        if reading:
            new = await asyncio.to_thread(self._readable, new)
        # A new file that goes meanwhile would end `git add`, even with --ignore-errors.
        await git(
            "update-index", "--add", "--remove", "--replace", "-z", "--stdin",
            entered=_joined(new), extra=extra, seconds=CHECKOUT_SECONDS,
        )  # fmt: skip
        empty = [f"160000 {commit} 0\t{path}" for path, commit in links.items() if self._is_empty(path)]
        if empty:
            await git("update-index", "-z", "--index-info", entered=_joined(empty), extra=extra)
        # Last, so that they are not in the index while git looks at the files.
        repositories = [path for path in found.fields if path.endswith("/")]
        return await self._add_repositories(git, repositories, extra) if repositories else []

    def _copy_index(self, index: Path) -> None:
        index.unlink(missing_ok=True)
        current = Path(self._record.git_dir) / "index"
        problem = f"the index of the worktree, {current}, is no file any more; remove it, and run `git reset` there"
        if current.is_symlink():
            raise Conflict(problem)
        repository = ConfinedFolders((Path(self._record.repository),))
        try:
            file = regular_file(repository.open(str(current), os.O_RDONLY | os.O_NONBLOCK), "rb")
        except FileNotFoundError:
            # There is none before the first file.
            return
        except (OutsideFolders, NotRegularFile) as error:
            raise Conflict(problem) from error
        with file, index.open("wb") as copy:
            shutil.copyfileobj(file, copy)
            found = os.fstat(file.fileno())
        # With its time: git compares the contents of files that were written in the second of the index, or later.
        os.utime(index, ns=(found.st_atime_ns, found.st_mtime_ns))

    async def _add_repositories(self, git: Git, paths: Sequence[str], extra: Mapping[str, str]) -> list[str]:
        """Add the commits of repositories to a temporary index, and return those that have none."""
        # One without a commit is an error, after which git goes on with the others.
        await git(
            "add", "--sparse", "--ignore-errors", "--pathspec-from-file=-", "--pathspec-file-nul",
            ok=(0, 1), entered=_joined(paths), extra=extra, seconds=CHECKOUT_SECONDS,
        )  # fmt: skip
        added = _links(await self._entries(extra))
        return [path for one in paths if (path := one.removesuffix("/")) not in added]

    def _is_empty(self, path: str) -> bool:
        folder = Path(self._record.path) / path
        return folder.is_dir() and not any(folder.iterdir())

    def _readable(self, paths: Sequence[str]) -> list[str]:
        folder = Path(self._record.path)
        return [path for path in paths if (folder / path).is_symlink() or os.access(folder / path, os.R_OK)]

    async def _entries(self, extra: Mapping[str, str] | None = None) -> list[_Entry]:
        """The entries of the index."""
        fields = (await self._git("ls-files", "--stage", "-v", "-z", extra=extra, seconds=CHECKOUT_SECONDS)).fields
        found = list[_Entry]()
        for field in fields:
            words, _, path = field.partition("\t")
            mark, mode, commit, _ = words.split(" ")
            found.append((mark, mode, commit, path))
        return found

    def _have_repositories(self, links: Iterable[str]) -> bool:
        return any(os.path.lexists(Path(self._record.path) / path / ".git") for path in links)

    def _filled(self, links: Iterable[str]) -> list[str]:
        """The submodules without a repository whose folders have files nevertheless. Git does not list those."""
        folders = {path: Path(self._record.path) / path for path in links}
        return [
            f"{printable(path)}/"
            for path, folder in folders.items()
            if folder.is_dir() and not os.path.lexists(folder / ".git") and any(folder.iterdir())
        ]

    async def snapshot(self) -> tuple[str, str]:
        """Return the commit, and the tree of the files as they are, which is in the repository from then on. Raises Conflict."""
        try:
            return await self._head(), (await self._written_tree({}, reading=True))[0]
        except GitFailed as error:
            raise conflict("git cannot copy the files of the worktree", error) from error

    async def restore(self, tree: str) -> None:
        """Give the files the contents of a tree, uncommitted. Raises GitFailed."""
        if tree == await self._tree_of("HEAD"):
            # Where both are empty, git finds no file to restore.
            return
        await self._git("restore", f"--source={tree}", "--worktree", "--no-overlay", "--", ".", seconds=CHECKOUT_SECONDS)

    # -- changing ---------------------------------------------------------------------------------------------------------

    async def commit(self, message: str) -> str:
        """Commit all changes, new files included, and return the commit. Raises Conflict; then nothing has changed."""
        try:
            head, state = await self._head(), await self.state()
            if state.operation:
                raise Conflict(f"a {state.operation} is under way in the worktree; end it there, or let the agent end it")
            tree, left_out = await self._written_tree({}, reading=False)
            await self._require_own_files(head, tree, left_out)
            if tree == await self._tree_of(head):
                if state.uncommitted:
                    # The index alone differs, as where a commit was interrupted before it was written.
                    await self._reset()
                    if not await self._uncommitted():
                        return head
                marked = names(state.overlooked)
                why = f", but for files that git is told not to look at ({marked})" if state.overlooked else ""
                raise Conflict(f"the worktree has no changes to commit{why}")
            if problem := _problem_of_lock(Path(self._record.git_dir)):
                raise Conflict(f"the worktree {problem}")
            commit = (await self._git("commit-tree", tree, "-p", head, "-m", message)).text
            await self._git("update-ref", "-m", "commit by portico", "HEAD", commit, head)
        except GitFailed as error:
            raise conflict("git does not commit", error) from error
        try:
            await self._reset()
        except (GitFailed, AgentProblem) as error:
            log.warning(
                "the index of the worktree %s is as before its commit; the next one writes it: %s", self._record.path, error
            )
        return commit

    async def _reset(self) -> None:
        """Give the index what the commit has. Raises GitFailed."""
        await self._git("reset", "--quiet", "--mixed", seconds=CHECKOUT_SECONDS)

    async def _require_own_files(self, head: str, tree: str, left_out: Sequence[str]) -> None:
        """Raise Conflict for a new repository that is no submodule: its commit would be in the tree, and its files nowhere."""
        fields = (await self._git("diff-tree", "-r", "-z", "--no-renames", head, tree, seconds=CHECKOUT_SECONDS)).fields
        new = [
            path
            for modes, path in zip(fields[::2], fields[1::2], strict=True)
            if modes.split()[1] == "160000" and modes.split()[0] != ":160000"
        ]
        if new:
            with suppress(GitFailed):
                # A file that is not there, or is not in git's format, names none.
                named = ("--blob", f"{tree}:.gitmodules", "-z", "--get-regexp", r"^submodule\..*\.path$")
                lines = (await self._git("config", *named, ok=(0, 1))).fields
                known = {line.partition("\n")[2] for line in lines}
                new = [path for path in new if path not in known]
        if found := sorted({*new, *left_out}):
            listed = names([printable(path) for path in found])
            raise Conflict(
                f"the files of repositories of their own would not be in the commit ({listed}); let git ignore them, remove "
                "their .git, or add them by `git submodule add`. Nothing has changed"
            )

    async def merge(self) -> Merge:
        """Merge the branch of the worktree into its base branch: as a fast-forward, or with a merge commit.

        Raises Conflict, with the names of the files that conflict or are in the way; then nothing has changed.
        """
        record = self._record
        state = await self.state()
        if record.base_branch is None:
            raise Conflict("the folder had no branch checked out when the session began; merge by hand, into the branch you want")
        if not state.base_exists:
            raise Conflict(f"the base branch {record.base_branch!r} is gone; merge by hand, into the branch you want")
        if state.branch != record.branch:
            now = f"branch {state.branch!r}" if state.branch else "a commit without a branch"
            raise Conflict(f"the worktree has {now} checked out; check out {record.branch!r} there first")
        if state.operation:
            raise Conflict(f"a {state.operation} is under way in the worktree; end it there, or let the agent end it")
        if state.uncommitted:
            raise Conflict(f"changes are not committed ({names(state.uncommitted)}); commit them first, or let the agent do it")
        try:
            return await self._merge(state.head, await self._base_name() or record.base_branch)
        except GitFailed as error:
            raise conflict(f"git does not merge into {record.base_branch!r}", error) from error

    async def _merge(self, head: str, branch: str) -> Merge:
        git, base, target = self._git, await self._base(), printable(branch)
        assert base is not None
        if await git.succeeds("merge-base", "--is-ancestor", head, base):
            return Merge("up_to_date", target, base)
        forward = await git.succeeds("merge-base", "--is-ancestor", base, head)
        tree = head if forward else await self._merged_tree(base, head, target)
        async with self._checked_out(branch) as checkout:
            if checkout is not None:
                await _require_clean(checkout, target, tree)
            commit = head
            if not forward:
                text = f"Merge branch '{self._record.branch}' into {target}"
                commit = (await git("commit-tree", tree, "-p", base, "-p", head, "-m", text)).text
            await self._advance(checkout, branch, commit, base)
        return Merge("fast_forward" if forward else "merge_commit", target, commit)

    async def _merged_tree(self, base: str, head: str, target: str) -> str:
        """Return the tree of a merge, which no checkout gets yet. Raises Conflict with the files that conflict."""
        try:
            output = await self._git(
                "merge-tree",
                "--write-tree",
                "--name-only",
                "--no-messages",
                "-z",
                base,
                head,
                ok=(0, 1),
                seconds=CHECKOUT_SECONDS,
            )
        except GitFailed as error:
            if error.status == 129:
                raise Conflict(f"{target!r} has other commits since; to merge them, git 2.38 or newer is needed") from error
            raise
        fields = output.fields
        if output.status == 1:
            raise Conflict(
                f"{target!r} and {self._record.branch!r} conflict in {names(sorted(set(filter(None, fields[1:]))))}; let the "
                f"agent merge {target!r} into its branch, or merge by hand. Nothing has changed"
            )
        return fields[0]

    @asynccontextmanager
    async def _checked_out(self, branch: str) -> AsyncIterator[Git | None]:
        """Give git in the folder in which a branch is checked out; None if none is, or it is gone.

        Raises Conflict if the branch cannot be moved, if that folder does not name the repository itself (an agent that may write
        in the repository's `.git` can name any folder there), and if git cannot be confined there.
        """
        folder = await self._folder_with(branch)
        if folder is None:
            yield None
            return
        record, repository = self._record, Path(self._record.repository)
        git_dir = await asyncio.to_thread(_git_dir_of, repository, folder)
        if problem := await problem_of_repository(self._git, folder, git_dir, repository):
            raise Conflict(f"the base branch is checked out in {folder}, which {problem}. Nothing has changed")
        async with self._confinements.open(record.owner, record.agent, folder, repository) as confinement:
            git, _ = await with_allowed_config(Git(confinement, folder, git_dir, folder, repository))
            yield git

    async def _folder_with(self, branch: str) -> Path | None:
        """The folder in which a branch is checked out; None if none is, or it is gone.

        Raises Conflict if the branch is checked out twice, or a rebase or a bisection goes back to it.
        """
        folders, main = list[Path](), None
        repository = Path(self._record.repository)
        # Not with another folder that is shared: git takes the folder of the repository itself from its path.
        git = replace(self._git, common_dir=repository)
        for line in (await git("worktree", "list", "--porcelain", "-z")).fields:
            if line.startswith("worktree "):
                folder = Path(line.removeprefix("worktree "))
                if folder == repository:
                    # Of a submodule, git 2.39 lists its git directory instead of its folder.
                    file = str(repository / "config")
                    found = (await git("config", "--file", file, "core.worktree", ok=(0, 1))).text
                    folder = await asyncio.to_thread((repository / found).resolve)
                main = main or folder
            elif line == f"branch refs/heads/{branch}" and folder.is_dir():
                folders.append(folder)
        await asyncio.to_thread(_require_free, repository, main or repository, branch)
        if len(folders) > 1:
            raise Conflict(
                f"{printable(branch)!r} is checked out in {' and in '.join(map(str, folders))}, and the files of only one folder "
                "can follow a merge; check out another branch in the others. Nothing has changed"
            )
        return folders[0] if folders else None

    async def _advance(self, checkout: Git | None, branch: str, commit: str, base: str) -> None:
        """Move a branch forward, with the folder in which it is checked out. Git changes nothing where it refuses that.

        Raises AgentProblem where git was stopped in the middle.
        """
        if checkout is None:
            await self._git("update-ref", "-m", "merge by portico", f"refs/heads/{branch}", commit, base)
            return
        names_of = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", "--diff-filter=A", base, commit)
        added = (await self._git(*names_of, seconds=CHECKOUT_SECONDS)).fields
        before = await asyncio.to_thread(_existing, checkout.folder, added)
        # The configuration of the branch may have other options. Without the last one, git overwrites files that the commit has
        # and that are ignored in the folder.
        options = ("--quiet", "--ff-only", "--commit", "--no-squash", "--no-autostash", "--no-overwrite-ignore")
        try:
            await checkout("merge", *options, commit, seconds=MERGE_SECONDS)
        except (GitFailed, AgentProblem, asyncio.CancelledError) as error:
            # It is cancelled when the gateway shuts down.
            changed = await _changed_paths(checkout, "--untracked-files=no")
            new = sorted(await asyncio.to_thread(_existing, checkout.folder, added) - before)
            if not changed and not new:
                if isinstance(error, GitFailed) and _IN_THE_WAY.search(error.said):
                    files = await asyncio.to_thread(_in_the_way, checkout.folder, added)
                    raise Conflict(
                        f"files in {checkout.folder}, which the branch {printable(branch)!r} does not have, would be overwritten "
                        f"({names(files)}); move them away. Nothing has changed"
                    ) from error
                raise
            why = str(error) or "the gateway shuts down"
            problem = AgentProblem(_half_merged(checkout, printable(branch), changed, new, why))
            log.error("%s", problem)
            raise problem from error

    # -- parts ------------------------------------------------------------------------------------------------------------

    async def _head(self) -> str:
        output = await self._git("rev-parse", "--verify", "--quiet", "HEAD^{commit}", ok=(0, 1))
        if output.status:
            raise Conflict(f"the branch of the worktree {self._record.path} was deleted; its files are there. Create it again")
        return output.text

    async def _branch(self) -> str | None:
        return (await self._git("symbolic-ref", "--quiet", "HEAD", ok=(0, 1))).text.removeprefix("refs/heads/") or None

    async def _base(self) -> str | None:
        """The commit of the base branch; None if there is none."""
        name = await self._base_name()
        return await self._commit_of(name) if name is not None else None

    async def _base_name(self) -> str | None:
        """The name of the base branch as git has it. As text, which is stored, bytes are replaced that are not UTF-8."""
        name = self._record.base_branch
        if name is None or "\ufffd" not in name:
            return name
        fields = (await self._git("for-each-ref", "--format=%(refname:lstrip=2)%00", "refs/heads/")).fields
        found = [one for one in (field.removeprefix("\n") for field in fields) if printable(one) == name]
        return found[0] if len(found) == 1 else name

    async def _commit_of(self, branch: str) -> str | None:
        return (await self._git("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}^{{commit}}", ok=(0, 1))).text or None

    async def _tree_of(self, commit: str) -> str:
        return (await self._git("rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}")).text

    async def _uncommitted(self) -> list[str]:
        return list(map(printable, await _changed_paths(self._git, "--untracked-files=all")))

    async def _overlooked(self, head: str, entries: Sequence[_Entry]) -> list[str]:
        """Files that differ from the commit and that git does not look at: with skip-worktree, or assume-unchanged."""
        marked = [path for mark, _, _, path in entries if mark == "S" or mark.islower()]
        # Those outside of a sparse checkout are not there.
        there = await asyncio.to_thread(_existing, Path(self._record.path), marked)
        if not there:
            return []
        # An index without such marks.
        extra = {"GIT_INDEX_FILE": str(self._temporary / "unmarked")}
        await self._git("read-tree", head, extra=extra, seconds=CHECKOUT_SECONDS)
        changed = await _changed_paths(self._git, "--untracked-files=no", extra)
        return list(map(printable, there.intersection(changed)))


def _require_folders(record: WorktreeRecord) -> None:
    if not os.path.isdir(record.repository):
        raise Conflict(f"the repository {record.repository} is gone; the files of the worktree are in {record.path}")
    if not os.path.isdir(record.path):
        if os.path.lexists(record.path):
            raise Conflict(
                f"{record.path} is no folder any more; move it away, then the next turn of its session creates the worktree"
            )
        raise Conflict(f"the folder {record.path} of the worktree is gone; the next turn of its session creates it again")
    if not os.path.isdir(record.git_dir):
        raise Conflict(f"the repository does not know the worktree {record.path} any more; its files are there")
    for path in (record.repository, record.git_dir):
        if os.path.realpath(path) != path:
            raise Conflict(f"{path} was replaced by a symbolic link; git does not follow it")


async def _changed_paths(git: Git, untracked: str, extra: Mapping[str, str] | None = None) -> list[str]:
    # Not the files in submodules: git would run there, with the filters of their own configuration.
    output = await git(
        "status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=dirty", untracked,
        extra={"GIT_OPTIONAL_LOCKS": "0", **(extra or {})}, seconds=CHECKOUT_SECONDS,
    )  # fmt: skip
    return [line[3:] for line in output.fields]


async def _require_clean(checkout: Git, branch: str, tree: str) -> None:
    """Raise Conflict for a folder with changes. `tree` is what it is to have: a merge that was stopped has left some of that."""
    assert checkout.git_dir is not None
    if problem := _problem_of_lock(checkout.git_dir):
        raise Conflict(f"{checkout.folder}, where {branch!r} is checked out, {problem}. Nothing has changed")
    changed = await _changed_paths(checkout, "--untracked-files=no")
    if not changed:
        return
    shown = names(list(map(printable, changed)))
    where = f"{checkout.folder}, where {branch!r} is checked out, has changes that are not committed ({shown})"
    git, advice = f"git -C {shlex.quote(str(checkout.folder))}", "commit or stash them there first"
    if operation := operation_in(checkout.git_dir):
        advice = f"a {operation} is under way there; end it first"
    elif len(changed) <= MAX_FILES and await _are_submodules(checkout, changed):
        advice = (
            f"they are submodules at other commits than in the branch; update them by `{git} submodule update`, or commit them"
        )
    elif len(changed) <= MAX_FILES and await _have(checkout, tree, changed):
        advice = f"they are the same as in this merge. If it was stopped, undo them by `{git} reset --hard`; otherwise {advice}"
    raise Conflict(f"{where}; {advice}. Nothing has changed")


async def _are_submodules(checkout: Git, paths: Sequence[str]) -> bool:
    staged = (await checkout("ls-files", "--stage", "-z", "--", *paths)).fields
    return len(staged) == len(paths) and all(one.startswith("160000 ") for one in staged)


async def _have(checkout: Git, tree: str, paths: Sequence[str]) -> bool:
    """Whether the files are those of a tree, or not there, and nothing else is staged."""
    compare = ("diff", "--quiet", "--no-ext-diff", "--no-textconv")
    # Git removes a file before it writes it.
    if not await checkout.succeeds(*compare, "--diff-filter=d", tree, "--", *paths):
        return False
    staged = [await checkout.succeeds(*compare, "--cached", one, "--", *paths) for one in ("HEAD", tree)]
    return any(staged)


def _half_merged(checkout: Git, branch: str, changed: Sequence[str], new: Sequence[str], why: str) -> str:
    """Return the error of a merge that has written some of the files."""
    assert checkout.git_dir is not None
    lock = checkout.git_dir / "index.lock"
    steps = [f"`git -C {shlex.quote(str(checkout.folder))} reset --hard`"]
    if lock.exists():
        steps.insert(0, f"remove {lock} if no git is at work there")
    if new:
        steps.append(f"remove the new files {names(list(map(printable, new)))}")
    shown = names(list(map(printable, [*changed, *new])))
    return (
        f"git was stopped in the middle of the merge into {branch!r} ({why}): {checkout.folder} has some of its files "
        f"({shown}), and the branch is as it was. To undo that: {', then '.join(steps)}; then merge again"
    )


def _problem_of_lock(git_dir: Path) -> str | None:
    """Return what is wrong where the index of a git directory is locked."""
    lock = git_dir / "index.lock"
    if not lock.exists():
        return None
    return (
        f"is locked by {lock}: another git is at work there, or was killed; wait for its end, or remove the file if there is none"
    )


def _require_free(repository: Path, main: Path, branch: str) -> None:
    """Raise Conflict if a rebase or a bisection of a branch is under way. Git lets nobody else move such a branch, either: at the
    end, it would not find it where it was. `main` is the folder of the repository itself."""
    for git_dir in (repository, *_linked(repository)):
        folder = main if git_dir == repository else _folder_of(git_dir)
        if folder is None or not folder.is_dir():
            continue
        for file, operation in _MOVING.items():
            if {branch, f"refs/heads/{branch}"} & set((small_file(git_dir / file) or "").split("\n")):
                raise Conflict(
                    f"a {operation} of {printable(branch)!r} is under way in {folder}; end it there first. Nothing has changed"
                )


def _linked(repository: Path) -> list[Path]:
    """The git directories of the worktrees of a repository."""
    linked = repository / "worktrees"
    return list(linked.iterdir()) if linked.is_dir() else []


def _git_dir_of(repository: Path, folder: Path) -> Path:
    """The git directory of a checkout, as the repository names it."""
    return next((linked for linked in _linked(repository) if _folder_of(linked) == folder), repository)


def _folder_of(git_dir: Path) -> Path | None:
    """The folder of the worktree with a git directory, as that names it."""
    text = small_file(git_dir / "gitdir")
    return None if text is None else Path(git_dir, text.rstrip("\r\n")).parent


def _in_the_way(folder: Path, paths: Sequence[str]) -> list[str]:
    """The files in a folder, or folders, that are where files of these paths are to be written."""
    found = set[str]()
    for path in paths:
        for part in (path, *map(str, Path(path).parents)):
            there = folder / part
            if os.path.lexists(there) and (part == path or there.is_symlink() or not there.is_dir()):
                found.add(printable(part))
    return sorted(found)


def _existing(folder: Path, paths: Sequence[str]) -> set[str]:
    return {path for path in paths if os.path.lexists(folder / path)}


def operation_in(git_dir: Path) -> str | None:
    """Return what git has under way in a git directory."""
    return next((name for file, name in _OPERATIONS.items() if (git_dir / file).exists()), None)


def own_commits(count: int) -> str:
    """Return, in words, how many commits would be lost."""
    return ("one commit" if count == 1 else f"{count} commits") + " that no other branch has"


def names(paths: Sequence[str]) -> str:
    """Return paths for an error: the first of them, and how many others there are."""
    shown = ", ".join(paths[:SHOWN_NAMES])
    return shown if len(paths) <= SHOWN_NAMES else f"{shown} and {len(paths) - SHOWN_NAMES} others"


def printable(path: str) -> str:
    """Return a path as text: bytes that are not UTF-8 are replaced."""
    return os.fsencode(path).decode(errors="replace")


def message_of(text: str) -> str:
    """Return the message of a commit. Raises BadRequest for one without text."""
    found = "\n".join(line.rstrip() for line in text.strip().splitlines())
    if not found or "\0" in found:
        raise BadRequest("message: a commit needs a message, without null characters")
    return found


def _joined(fields: Iterable[str]) -> bytes:
    """Return the input of a command whose fields each end with a null character."""
    return "".join(f"{one}\0" for one in fields).encode(errors="surrogateescape")


def _links(entries: Iterable[_Entry]) -> dict[str, str]:
    """Return the paths of the submodules in an index, with their commits."""
    return {path: commit for _, mode, commit, path in entries if mode == "160000"}


_Entry = tuple[str, str, str, str]
"""A mark (in lower case if it is assumed to be unchanged, S with skip-worktree), the mode, the object and the path."""
_Kind = tuple[str, str | None, str]
"""The letter of a change, the old path of a renamed file, and the path."""


def _kinds(fields: Sequence[str]) -> tuple[list[_Kind], list[str]]:
    """Return the changes of a diff's raw output, and the fields that follow it."""
    found, rest = list[_Kind](), list(reversed(fields))
    while rest and rest[-1].startswith(":"):
        letter, first = rest.pop().rpartition(" ")[2][0], rest.pop()
        found.append((letter, first, rest.pop()) if letter in "RC" else (letter, None, first))
    return found, rest[::-1]


def _numbers(fields: Sequence[str]) -> dict[str, tuple[int | None, int | None]]:
    """Added and deleted lines by path."""
    found, rest = dict[str, tuple[int | None, int | None]](), iter(fields)
    for line in rest:
        added, deleted, path = line.split("\t", 2)
        if not path:
            next(rest)
            path = next(rest)
        found[path] = (None, None) if added == "-" else (int(added), int(deleted))
    return found


def _changed(kind: _Kind, lines: dict[str, tuple[int | None, int | None]]) -> ChangedFile:
    letter, old, path = kind
    added, deleted = lines.get(path, (None, None))
    return ChangedFile(printable(path), _STATUS.get(letter, "modified"), None if old is None else printable(old), added, deleted)


def _quoted(path: Path) -> str:
    """Return a path for a list that colons separate."""
    text = str(path)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' if set(text) & set(':"\n') else text
