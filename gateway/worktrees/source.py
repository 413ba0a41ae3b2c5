"""Where a worktree begins: the repository of a folder, its commit and its branch."""

from __future__ import annotations

import asyncio
import os
import shlex
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from drivers.runtime.confined_files import NotRegularFile, regular_file
from gateway.errors import BadRequest
from gateway.worktrees.confinement import Confinement
from gateway.worktrees.git import Git, GitFailed

_REFUSED = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""The categories of control characters, of bytes that are not UTF-8, and of separators of lines."""
MAX_SMALL_FILE = 64 * 1024
"""Bytes of a file of git with a few lines."""


@dataclass(frozen=True, slots=True)
class Source:
    """A folder in a checkout of a repository.

    `repository` is the git directory that all worktrees share, `top` the first folder of the checkout, and `subfolder` the way
    from there to the folder, empty for `top` itself. `branch` is None where a commit is checked out without a branch.
    """

    repository: Path
    top: Path
    subfolder: str
    commit: str
    branch: str | None


async def source_of(folder: Path, ceiling: Path, confinement: Confinement) -> Source:
    """Return what a folder, a real path, is in its repository. Raises BadRequest where no worktree can begin there.

    A folder in `ceiling` is in no repository that begins above that: it is the gateway's data directory.
    """
    git = Git(confinement, folder, ceiling=ceiling)
    if any(unicodedata.category(letter) in _REFUSED for letter in str(folder)):
        # It is in responses and in the store, and in files of git that have one path a line.
        raise _refused(folder, "has a name with control characters, or one that is not UTF-8", "rename it")
    try:
        asked = ("--is-bare-repository", "--is-inside-work-tree", "--git-dir", "--git-common-dir")
        bare, inside, git_dir, repository = (await git("rev-parse", "--path-format=absolute", *asked)).text.split("\n", 3)
    except GitFailed as error:
        hint = "choose a folder of a repository, or run `git init` and commit there"
        problem = "is in no git repository" if "not a git repository" in error.said else f"cannot be used by git ({error})"
        raise _refused(folder, problem, hint) from error
    if bare == "true":
        raise _refused(folder, "is a bare repository, which has no files", "choose a folder with a checkout of it")
    if inside != "true":
        raise _refused(folder, "is the inside of a repository's .git", "choose the folder with its files")
    try:
        top = Path((await git("rev-parse", "--path-format=absolute", "--show-toplevel")).text)
        if unsafe := await problem_of_repository(git, top, Path(git_dir), Path(repository)):
            raise _refused(folder, unsafe, "choose a folder of another repository")
        git = Git(confinement, folder, Path(git_dir), top, Path(repository))
        commit = (await git("rev-parse", "--verify", "--quiet", "HEAD^{commit}")).text
    except GitFailed as error:
        raise _refused(folder, "is in a repository without a commit", "commit something first") from error
    branch = (await git("symbolic-ref", "--quiet", "HEAD", ok=(0, 1))).text.removeprefix("refs/heads/")
    if not folder.is_relative_to(top):
        raise _refused(folder, f"is not in {str(top)!r}, where git has the files of its repository", "choose a folder there")
    subfolder = "" if folder == top else str(folder.relative_to(top))
    return Source(Path(repository), top, subfolder, commit, branch or None)


async def problem_of_repository(git: Git, top: Path, git_dir: Path, common_dir: Path) -> str | None:
    """Return why git is not to work in a folder with this git directory; None if the two name each other.

    Git may write in both. An agent that writes in `top` can name any git directory there, and one that writes in a git directory
    any folder. What it can neither read nor write does not name its folder.
    """
    found = await asyncio.to_thread(_problem_of_links, top, git_dir, common_dir)
    if found is None and git_dir != top / ".git" and git_dir == common_dir:
        # Of a submodule, or by --separate-git-dir.
        file = str(git_dir / "config")
        named = (await git("config", "--file", file, "core.worktree", ok=(0, 1))).text
        if not named or await asyncio.to_thread(os.path.realpath, git_dir / named) != str(top):
            found = (
                f"has its repository in {git_dir}, which does not name that folder; if it is yours, run "
                f"`git -C {shlex.quote(str(top))} config core.worktree {shlex.quote(str(top))}`"
            )
    return found


_PARTS = ("HEAD", "config", "config.worktree", "index", "info", "logs", "objects", "packed-refs", "refs", "reftable", "worktrees")
"""What a repository has in its git directory."""


def _problem_of_links(top: Path, git_dir: Path, common_dir: Path) -> str | None:
    """Return the problem of a git directory that is named by links, or by files of one line."""
    for path in (common_dir, git_dir):
        if os.path.realpath(path) != str(path):
            return f"has its repository behind a symbolic link, in {os.path.realpath(path)}"
        for part in _PARTS:
            if (path / part).is_symlink():
                return f"has a repository with a part elsewhere: {path / part} is a symbolic link"
    if git_dir == top / ".git":
        return None if common_dir == git_dir else f"has a repository with parts in {common_dir}"
    if _line_of(top / ".git", "gitdir: ") != str(git_dir):
        return f"is in {top}, whose .git does not name the repository {git_dir}"
    if git_dir == common_dir:
        return None
    if git_dir.parent != common_dir / "worktrees" or _line_of(git_dir / "gitdir", "") != str(top / ".git"):
        return f"is in {top}, which the repository {common_dir} does not know as a worktree; run `git worktree repair` there"
    return None


def small_file(path: Path) -> str | None:
    """Return the text of a file of git with a few lines; None if there is none, or another kind of file in its place."""
    try:
        # Another process may put a link or a FIFO there.
        with regular_file(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            data = file.read(MAX_SMALL_FILE + 1)
    except (OSError, NotRegularFile):
        return None
    return data.decode(errors="surrogateescape") if len(data) <= MAX_SMALL_FILE else None


def _line_of(file: Path, prefix: str) -> str | None:
    """Return the path that a file of git names, with links resolved; None if it names none."""
    text = small_file(file)
    if text is None or not text.startswith(prefix) or "\0" in text:
        return None
    return os.path.realpath(file.parent / text.removeprefix(prefix).rstrip("\r\n"))


def _refused(folder: Path, problem: str, hint: str) -> BadRequest:
    return BadRequest(
        f"option 'cwd': {str(folder)!r} {problem}; sessions of this agent work in a git worktree of their folder: {hint}"
    )
