"""Runs `git` for the gateway: confined, bounded in time, output and number, without hooks, network or prompts.

A repository is data that an agent may have written. So git works in the sandbox of agents (drivers/runtime/confined_program.py),
and of a repository's own configuration only some keys count (gateway/worktrees/own_config.py). Filters and merge drivers of the
user's own and the system's configuration run (Git LFS needs them), since an agent in a sandbox cannot change those.

What git says about a failure may have contents of files, to which a repository may have led it. It is in the log; errors for
clients have the words of this module.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drivers.runtime.confined_program import Ended, NoPlace, OverTime, Program, run
from gateway.errors import AgentProblem, Conflict, TooMany
from gateway.worktrees.confinement import EACH, TOTAL, Confinement

log = logging.getLogger(__name__)

QUICK_SECONDS = 30.0
"""How long a command may take that reads, or changes references only."""
CHECKOUT_SECONDS = 300.0
"""How long a command may take that reads or writes all files of a checkout."""
MERGE_SECONDS = 3600.0
"""How long the command may take that writes the files of a merge. One that is ended leaves them half merged."""
MAX_OUTPUT = 32 * 1024 * 1024
"""Bytes of a command's output. More is an error, unless the caller takes a part."""
MIN_VERSION = (2, 36)
"""Of April 2022. Versions before 2.31 ignore configuration in the environment."""
_PASSED = ("PATH", "HOME", "XDG_CONFIG_HOME", "USER", "LOGNAME")
_FIXED = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_EDITOR": "false",
    "GIT_SEQUENCE_EDITOR": "false",
    "GIT_ASKPASS": "false",
    "GIT_PAGER": "cat",
    "GIT_ADVICE": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    # A part of the memory that a command has at once. Some files are read as a whole, and an agent can make one of terabytes.
    "GIT_ALLOC_LIMIT": "1g",
}
_CONFIG = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.sshCommand": "false",
    "core.alternateRefsCommand": "",
    "core.quotePath": "false",
    "credential.helper": "",
    "commit.gpgSign": "false",
    "merge.verifySignatures": "false",
    "merge.autoStash": "false",
    "gc.auto": "0",
    # Otherwise git makes up an author from the names of the account and of the machine.
    "user.useConfigOnly": "true",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    # Otherwise git runs itself in the folders of submodules, without these settings.
    "diff.submodule": "short",
    "status.submoduleSummary": "false",
    "color.ui": "false",
    "color.diff": "false",
    "color.status": "false",
    "diff.noprefix": "false",
    "diff.mnemonicPrefix": "false",
    "diff.orderFile": os.devnull,
    "core.splitIndex": "false",
    "advice.detachedHead": "false",
    # Otherwise git would note that in the configuration of the repository, of which it has another here.
    "worktree.useRelativePaths": "false",
}
_LOCK = re.compile(r"Unable to create '([^'\n]{1,4096}\.lock)': File exists")
_LINE_ENDS = re.compile(r"(?:LF would be replaced by CRLF|CRLF would be replaced by LF) in ([^\n]{1,4096})")
_WORDS = {
    "tell me who you are": (
        "it has no author; set one with `git config --global user.name NAME` and `git config --global user.email ADDRESS`"
    ),
    "No space left on device": "the disk is full",
    "Permission denied": "something there may not be read or written by git, which is kept to the folders of the worktree",
    "Too many levels of symbolic links": "something there is behind a symbolic link",
    "not a git repository": "there is no git repository that it can read",
    "dubious ownership": "the repository belongs to another user; if you trust it, add it to git's safe.directory",
    "external filter": "a filter of the files has failed, such as that of Git LFS; the gateway's log has what it says",
    "smudge filter": "a filter of the files has failed, such as that of Git LFS; the gateway's log has what it says",
    "clean filter": "a filter of the files has failed, such as that of Git LFS; the gateway's log has what it says",
}
"""What git says, and how an error says it."""
_DAMAGED = re.compile(
    r"bad object|bad tree object|unable to read|could not read|missing blob|missing tree|corrupt|invalid object"
)


class GitFailed(Exception):
    """A command of git has failed. The text is for clients; `said` is what git says, which is not."""

    def __init__(self, text: str, status: int, said: str = "") -> None:
        super().__init__(text)
        self.status, self.said = status, said


@dataclass(frozen=True, slots=True)
class Output:
    """What a command has written. `truncated`: there was more."""

    data: bytes
    status: int
    truncated: bool = False

    @property
    def text(self) -> str:
        """As text, without the last line end."""
        return self.data.decode(errors="replace").removesuffix("\n")

    @property
    def fields(self) -> list[str]:
        """The fields of an output in which each ends with a null character. Bytes that are not UTF-8 are surrogates."""
        return self.data.decode(errors="surrogateescape").split("\0")[:-1]


@dataclass(frozen=True)
class Git:
    """Where git runs: in `folder`, or in a known repository with `git_dir` and `work_tree`, which it does not search for then.

    `common_dir` is what the worktrees of the repository share: `git_dir` itself, or that in which it is. `config` is set beside
    the fixed values. `ceiling` is a folder above which no repository is searched for.
    """

    confinement: Confinement
    folder: Path
    git_dir: Path | None = None
    work_tree: Path | None = None
    common_dir: Path | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    ceiling: Path | None = None

    async def __call__(
        self,
        *arguments: str,
        seconds: float = QUICK_SECONDS,
        ok: Sequence[int] = (0,),
        limit: int | None = None,
        extra: Mapping[str, str] | None = None,
        entered: bytes | None = None,
    ) -> Output:
        """Run a command. Raises GitFailed for an exit status that is not `ok`; AgentProblem if git cannot run, is too slow or
        writes too much; TooMany if too many commands of the owner run.

        With `limit`, the output is cut after so many bytes. `extra` are variables of the environment, `entered` is the input.
        """
        argv = (await _program(self.confinement), *arguments)
        program = Program(argv, self.folder, self._environment() | dict(extra or {}), seconds, limit or MAX_OUTPUT, entered)
        try:
            ended = await _run(program, self.confinement)
        except FileNotFoundError as error:
            raise GitFailed(f"the folder {self.folder} does not exist", 128) from error
        if ended.truncated:
            if limit is None:
                raise AgentProblem(f"`git {arguments[0]}` has more than {MAX_OUTPUT} bytes of output")
            return Output(ended.output, 0, truncated=True)
        if ended.status not in ok:
            raise self._failure(arguments[0], ended)
        return Output(ended.output, ended.status)

    def _failure(self, command: str, ended: Ended) -> GitFailed:
        said = ended.errors.decode(errors="replace").strip()
        if said:
            log.warning("git %s in %s has ended with status %d and says %r", command, self.folder, ended.status, said)
        return GitFailed(_words(command, ended.status, said, self.work_tree), ended.status, said)

    async def succeeds(self, *arguments: str) -> bool:
        """Whether a command ends with status 0."""
        try:
            await self(*arguments)
        except GitFailed:
            return False
        return True

    def _environment(self) -> dict[str, str]:
        found = {name: os.environ[name] for name in _PASSED if name in os.environ} | _FIXED
        found["TMPDIR"] = str(self.confinement.temporary)
        if self.git_dir is not None:
            found["GIT_DIR"] = str(self.git_dir)
            if self.work_tree is not None:
                found["GIT_WORK_TREE"] = str(self.work_tree)
            if self.common_dir is not None:
                # A file in the git directory could name that of another repository.
                found["GIT_COMMON_DIR"] = str(self.common_dir)
        if self.ceiling is not None:
            found["GIT_CEILING_DIRECTORIES"] = str(self.ceiling)
        config = {**_CONFIG, **self.config}
        found["GIT_CONFIG_COUNT"] = str(len(config))
        for n, (key, value) in enumerate(config.items()):
            found[f"GIT_CONFIG_KEY_{n}"], found[f"GIT_CONFIG_VALUE_{n}"] = key, value
        return found


async def _run(program: Program, confinement: Confinement) -> Ended:
    """Run a command, once it has a place. Raises FileNotFoundError for a missing folder, AgentProblem and TooMany."""
    name = f"git {program.argv[1]}"
    try:
        async with confinement.places.place(confinement.owner):
            return await run(program, confinement.ruleset, confinement.clock)
    except NoPlace as error:
        if error.of_owner:
            raise TooMany(
                f"{EACH} commands of git of this key are at work, and others wait; try again in some seconds"
            ) from error
        raise AgentProblem(f"{TOTAL} commands of git are at work, and others wait; try again in some seconds") from error
    except OverTime as error:
        raise AgentProblem(f"`{name}` has not ended within {program.seconds:g} s; try again later") from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise AgentProblem(f"git cannot be started in {program.folder}: {error.strerror}") from error


_supported: set[str] = set()
"""The paths of programs whose version is known to be supported."""


async def _program(confinement: Confinement) -> str:
    """Return the path of git. Raises AgentProblem if it is missing or too old, and TooMany."""
    program = shutil.which("git")
    if program is None:
        raise AgentProblem("git is not on the gateway's PATH; install it, or set `worktree = false`")
    if program not in _supported:
        environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
        asked = Program((program, "version"), confinement.temporary, environment, QUICK_SECONDS, 1000)
        text = (await _run(asked, confinement)).output.decode(errors="replace").strip()
        if problem := problem_of_version(text):
            raise AgentProblem(f"worktrees: {program} {problem}; update it")
        _supported.add(program)
    return program


def problem_of_version(version: str) -> str | None:
    """Return what is wrong with a git that says this about its version; None if it can be used."""
    found = re.search(r"(?<!\d)(\d+)\.(\d+)", version)
    if found is not None and (int(found[1]), int(found[2])) >= MIN_VERSION:
        return None
    return f"is {version or 'another program'!r}, and {'.'.join(map(str, MIN_VERSION))} or newer is needed"


def conflict(problem: str, error: GitFailed) -> Conflict:
    """Return the error of a request that git has refused."""
    return Conflict(f"{problem}: {error}")


def _words(command: str, status: int, said: str, work_tree: Path | None) -> str:
    """Return why a command has failed, without anything of what git says but names of files that are there."""
    if (lock := _LOCK.search(said)) and os.path.lexists(lock[1]):
        return f"it is locked by {lock[1]}: another git is at work there, or was killed; wait for its end, or remove the file"
    if (ends := _LINE_ENDS.search(said)) and work_tree is not None and os.path.lexists(work_tree / ends[1]):
        return f"the line ends of {ends[1]} would change, which core.safecrlf forbids"
    known = next((words for text, words in _WORDS.items() if text in said), None)
    if known is not None:
        return known
    if _DAMAGED.search(said):
        return "objects or files of the repository are missing or damaged; run `git fsck` there"
    return f"`git {command}` has ended with status {status}" + ("; the gateway's log has what it says" if said else "")
