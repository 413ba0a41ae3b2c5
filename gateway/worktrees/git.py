"""Runs `git` for the gateway: bounded in time and output, without hooks, network, prompts or programs of a repository.

A repository is data that an agent may have written. Its own configuration can name programs that git runs: hooks, a file system
monitor, filters, merge and diff drivers. None of them runs here. Filters and merge drivers of the user's own and the system's
configuration do (Git LFS needs them), since an agent in a sandbox cannot change those.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway.errors import AgentProblem, Conflict

QUICK_SECONDS = 30.0
"""How long a command may take that reads, or changes references only."""
CHECKOUT_SECONDS = 300.0
"""How long a command may take that reads or writes all files of a checkout."""
MAX_OUTPUT = 32 * 1024 * 1024
"""Bytes of a command's output. More is an error, unless the caller takes a part."""
MIN_VERSION = (2, 36)
"""Of April 2022. Versions before 2.31 ignore configuration in the environment, with which programs of a repository are kept from
running."""
_MAX_ERROR = 2000
_PASSED = ("PATH", "HOME", "XDG_CONFIG_HOME", "USER", "LOGNAME", "TMPDIR")
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
}
_OWN_SCOPES = frozenset({"local", "worktree"})
"""The scopes of configuration that belong to a repository."""


class GitFailed(Exception):
    """A command of git has failed; the text is what git says."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


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
        folder: Path | None = None,
    ) -> Output:
        """Run a command. Raises GitFailed for an exit status that is not `ok`, and AgentProblem if git cannot run or is too slow.

        With `limit`, the output is cut after so many bytes. `extra` are variables of the environment.
        """
        environment = self._environment() | dict(extra or {})
        try:
            process = await asyncio.create_subprocess_exec(
                await _program(),
                *arguments,
                cwd=folder or self.folder,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise GitFailed(f"the folder {folder or self.folder} does not exist", 128) from error
        except OSError as error:
            raise AgentProblem(f"git cannot be started in {folder or self.folder}: {error.strerror}") from error
        try:
            async with asyncio.timeout(seconds):
                data, errors = await asyncio.gather(
                    _read(process.stdout, (limit or MAX_OUTPUT) + 1), _read(process.stderr, _MAX_ERROR, drain=True)
                )
                truncated = len(data) > (limit or MAX_OUTPUT)
                if truncated:
                    _kill(process)
                status = await process.wait()
        except TimeoutError as error:
            raise AgentProblem(f"`git {arguments[0]}` has not ended within {seconds:g} s; try again later") from error
        finally:
            if process.returncode is None:
                _kill(process)
                await asyncio.shield(process.wait())
        if truncated:
            if limit is None:
                raise AgentProblem(f"`git {arguments[0]}` has more than {MAX_OUTPUT} bytes of output")
            return Output(data[:limit], 0, truncated=True)
        if status not in ok:
            raise GitFailed(_message(errors) or f"`git {arguments[0]}` has ended with status {status}", status)
        return Output(data, status)

    async def succeeds(self, *arguments: str) -> bool:
        """Whether a command ends with status 0."""
        try:
            await self(*arguments)
        except GitFailed:
            return False
        return True

    def _environment(self) -> dict[str, str]:
        found = {name: os.environ[name] for name in _PASSED if name in os.environ} | _FIXED
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


_supported: set[str] = set()
"""The paths of programs whose version is known to be supported."""


async def _program() -> str:
    """Return the path of git. Raises AgentProblem if it is missing or too old."""
    program = shutil.which("git")
    if program is None:
        raise AgentProblem("git is not on the gateway's PATH; install it, or set `worktree = false`")
    if program not in _supported:
        process = await asyncio.create_subprocess_exec(program, "version", stdout=asyncio.subprocess.PIPE)
        text = (await process.communicate())[0].decode(errors="replace").strip()
        found = re.search(r"(\d+)\.(\d+)", text)
        if found is None or (int(found[1]), int(found[2])) < MIN_VERSION:
            needed = ".".join(map(str, MIN_VERSION))
            raise AgentProblem(f"worktrees need git {needed} or newer, and {program} is {text or 'another program'!r}; update it")
        _supported.add(program)
    return program


async def own_programs_off(git: Git) -> Git:
    """Return git with configuration with which no filter and no merge driver of the repository's own configuration runs.

    Parts of that hold for one git directory or one branch only. Raises GitFailed.
    """
    return replace(git, config={**git.config, **await _without_own_programs(git)})


async def _without_own_programs(git: Git) -> dict[str, str]:
    output = await git("config", "--list", "--includes", "--show-scope", "--name-only", "-z")
    fields = output.fields
    found: dict[str, str] = {}
    for scope, key in zip(fields[::2], fields[1::2], strict=False):
        section, _, name = key.partition(".")
        name, _, variable = name.rpartition(".")
        if scope not in _OWN_SCOPES or not name:
            continue
        if section.lower() == "filter":
            found |= {f"filter.{name}.{one}": "" for one in ("clean", "smudge", "process")}
            found[f"filter.{name}.required"] = "false"
        elif section.lower() == "merge" and variable.lower() == "driver":
            # An empty command would succeed, and leave out one side. This one fails: the file is a conflict.
            found[key] = "false"
        elif section.lower() == "hook":
            # Versions of git since 2.54 have hooks in the configuration.
            found[f"hook.{name}.enabled"] = "false"
    return found


def conflict(problem: str, error: GitFailed) -> Conflict:
    """Return the error of a request that git has refused."""
    text = str(error)
    if ".lock': File exists" in text or ("Unable to create" in text and ".lock" in text):
        text += " (another git process is at work in the repository; try again when it has ended)"
    if "tell me who you are" in text:
        text = "it has no author; set one with `git config --global user.name NAME` and `git config --global user.email ADDRESS`"
    return Conflict(f"{problem}: {text}")


async def _read(stream: asyncio.StreamReader | None, limit: int, *, drain: bool = False) -> bytes:
    parts, size = list[bytes](), 0
    while stream is not None and (size < limit or drain) and (chunk := await stream.read(65536)):
        if size < limit:
            parts.append(chunk[: limit - size])
            size += len(parts[-1])
    return b"".join(parts)


def _kill(process: asyncio.subprocess.Process) -> None:
    # Also what git has started, such as a filter.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _message(errors: bytes) -> str:
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines()]
    found = [line.removeprefix("fatal: ").removeprefix("error: ") for line in lines if line and not line.startswith("hint:")]
    shown = [line for line in found if not line.startswith(("Preparing worktree", "HEAD is now at"))]
    return "; ".join(shown)[:500]
