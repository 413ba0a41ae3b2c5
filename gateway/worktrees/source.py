"""Where a worktree begins: the repository of a folder, its commit and its branch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gateway.errors import BadRequest
from gateway.worktrees.git import Git, GitFailed


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


async def source_of(folder: Path, ceiling: Path) -> Source:
    """Return what a folder, a real path, is in its repository. Raises BadRequest where no worktree can begin there.

    A folder in `ceiling` is in no repository that begins above that: it is the gateway's data directory.
    """
    git = Git(folder, ceiling=ceiling)
    if not str(folder).isprintable():
        # It is in responses and in the store, and in files of git that have one path a line.
        raise _refused(folder, "has a name with control characters, or one that is not UTF-8", "rename it")
    try:
        bare, inside, repository = (
            await git("rev-parse", "--path-format=absolute", "--is-bare-repository", "--is-inside-work-tree", "--git-common-dir")
        ).text.split("\n", 2)
    except GitFailed as error:
        hint = "choose a folder of a repository, or run `git init` and commit there"
        problem = "is in no git repository" if "not a git repository" in str(error) else f"cannot be used by git ({error})"
        raise _refused(folder, problem, hint) from error
    if bare == "true":
        raise _refused(folder, "is a bare repository, which has no files", "choose a folder with a checkout of it")
    if inside != "true":
        raise _refused(folder, "is the inside of a repository's .git", "choose the folder with its files")
    try:
        top = Path((await git("rev-parse", "--path-format=absolute", "--show-toplevel")).text)
        commit = (await git("rev-parse", "--verify", "--quiet", "HEAD^{commit}")).text
    except GitFailed as error:
        raise _refused(folder, "is in a repository without a commit", "commit something first") from error
    branch = (await git("symbolic-ref", "--quiet", "HEAD", ok=(0, 1))).text.removeprefix("refs/heads/")
    if not folder.is_relative_to(top):
        raise _refused(folder, f"is not in {str(top)!r}, where git has the files of its repository", "choose a folder there")
    subfolder = "" if folder == top else str(folder.relative_to(top))
    return Source(Path(repository), top, subfolder, commit, branch or None)


def _refused(folder: Path, problem: str, hint: str) -> BadRequest:
    return BadRequest(
        f"option 'cwd': {str(folder)!r} {problem}; sessions of this agent work in a git worktree of their folder: {hint}"
    )
