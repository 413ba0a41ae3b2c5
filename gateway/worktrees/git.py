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
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gateway.errors import AgentProblem, Conflict

QUICK_SECONDS = 30.0
"""How long a command may take that reads, or changes references only."""
CHECKOUT_SECONDS = 300.0
"""How long a command may take that reads or writes all files of a checkout."""
MERGE_SECONDS = 3600.0
"""How long the command may take that writes the files of a merge. One that is ended leaves them half merged."""
TERMINATION_SECONDS = 5.0
"""How long a command that is ended has to remove its lock files."""
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
        entered: bytes | None = None,
    ) -> Output:
        """Run a command. Raises GitFailed for an exit status that is not `ok`, and AgentProblem if git cannot run, is too slow or
        writes too much.

        With `limit`, the output is cut after so many bytes. `extra` are variables of the environment, `entered` is the input.
        """
        environment = self._environment() | dict(extra or {})
        program, most = await _program(), limit or MAX_OUTPUT
        starting = asyncio.get_running_loop().subprocess_exec(
            lambda: _Process(most),
            program,
            *arguments,
            cwd=folder or self.folder,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL if entered is None else asyncio.subprocess.PIPE,
            process_group=0,
        )
        try:
            transport, process = await _started(starting)
        except FileNotFoundError as error:
            raise GitFailed(f"the folder {folder or self.folder} does not exist", 128) from error
        except OSError as error:
            raise AgentProblem(f"git cannot be started in {folder or self.folder}: {error.strerror}") from error
        try:
            async with asyncio.timeout(seconds):
                if entered is not None:
                    process.enter(entered)
                await process.read.wait()
        except TimeoutError as error:
            raise AgentProblem(f"`git {arguments[0]}` has not ended within {seconds:g} s; try again later") from error
        finally:
            await asyncio.shield(_end(transport, process))
        if process.truncated:
            if limit is None:
                raise AgentProblem(f"`git {arguments[0]}` has more than {MAX_OUTPUT} bytes of output")
            return Output(bytes(process.output), 0, truncated=True)
        status = transport.get_returncode()
        assert status is not None
        if status not in ok:
            raise GitFailed(_message(process.errors) or f"`git {arguments[0]}` has ended with status {status}", status)
        return Output(bytes(process.output), status)

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
        if problem := problem_of_version(text):
            raise AgentProblem(f"worktrees: {program} {problem}; update it")
        _supported.add(program)
    return program


def problem_of_version(version: str) -> str | None:
    """Return what is wrong with a git that says this about its version; None if it can be used."""
    found = re.search(r"(\d+)\.(\d+)", version)
    if found is not None and (int(found[1]), int(found[2])) >= MIN_VERSION:
        return None
    return f"is {version or 'another program'!r}, and {'.'.join(map(str, MIN_VERSION))} or newer is needed"


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
        text += " (another git is at work there, or was killed; wait for its end, or remove the file if there is none)"
    if "tell me who you are" in text:
        text = "it has no author; set one with `git config --global user.name NAME` and `git config --global user.email ADDRESS`"
    return Conflict(f"{problem}: {text}")


class _Process(asyncio.SubprocessProtocol):
    """A process whose output is read up to a limit. `read` is set when it has ended, with all of its output, or is over that."""

    def __init__(self, limit: int) -> None:
        self.output, self.errors, self.truncated = bytearray(), bytearray(), False
        self.ended, self.read = asyncio.Event(), asyncio.Event()
        self._limit = limit
        self._transport: asyncio.SubprocessTransport | None = None

    def enter(self, data: bytes) -> None:
        """Write the input, and end it."""
        assert self._transport is not None
        pipe = self._transport.get_pipe_transport(0)
        assert isinstance(pipe, asyncio.WriteTransport)
        pipe.write(data)
        pipe.write_eof()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        # What is over a limit is read too: otherwise the process would wait for somebody who reads it, and never end.
        kept, most = (self.errors, _MAX_ERROR) if fd == 2 else (self.output, self._limit)
        room = most - len(kept)
        kept += data[:room]
        if fd == 1 and len(data) > room:
            self.truncated = True
            self.read.set()

    def process_exited(self) -> None:
        self.ended.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.read.set()


async def _started(
    starting: Coroutine[Any, Any, tuple[asyncio.SubprocessTransport, _Process]],
) -> tuple[asyncio.SubprocessTransport, _Process]:
    """Start a process. It is ended if the caller is cancelled meanwhile.

    asyncio would kill that process only, before it can remove its lock files; and until 3.12 it waits for those that this one has
    started and that keep its pipes open.
    """
    task = asyncio.ensure_future(starting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            await asyncio.shield(_end(*task.result()))
        raise


async def _end(transport: asyncio.SubprocessTransport, process: _Process) -> None:
    """End a process, if it has not ended, with those that it has started, such as filters."""
    try:
        if not process.ended.is_set():
            # Git removes its lock files.
            _signal(transport.get_pid(), signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(TERMINATION_SECONDS):
                    await process.ended.wait()
            _signal(transport.get_pid(), signal.SIGKILL)
            await process.ended.wait()
    finally:
        # A process that has left the group may keep the pipes open for as long as it likes.
        transport.close()


def _signal(group: int, number: signal.Signals) -> None:
    # macOS does not permit it for a group whose processes have all ended.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _message(errors: bytearray) -> str:
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines()]
    found = [line.removeprefix("fatal: ").removeprefix("error: ") for line in lines if line and not line.startswith("hint:")]
    shown = [line for line in found if not line.startswith(("Preparing worktree", "HEAD is now at"))]
    return "; ".join(shown)[:500]
