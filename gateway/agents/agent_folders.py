"""The folders of a configured agent: where its sessions work, what a client may choose, and what a sandbox lets be written."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from drivers.contract.agent_specs import AgentSpec, SessionSpec
from drivers.runtime.cli_driver import Driver
from drivers.runtime.clock import Clock
from drivers.runtime.containers import Container, Mount
from drivers.runtime.install_commands import install_command
from drivers.runtime.process import Spawner
from drivers.runtime.sandbox import Sandbox, unavailable
from drivers.runtime.temporary_folder import AgentTemporary
from gateway.agents.user_folders import problem_of_folder
from gateway.config import AgentSettings, Runtime, parse_mount
from gateway.errors import AgentProblem, BadRequest, InvalidSettings
from gateway.private_files import private_directory

TEMPORARY_VARIABLES = ("TMPDIR", "TMP", "TEMP")


class AgentFolders:
    """The folders of one agent.

    Parameters:
        workspace: The agent's folder if the configuration names none.
        by_key: The parent folder of the workspaces of named keys. None if all keys share the agent's folder.
        any_directory: Whether sessions may choose any directory.
        folders_of_user: Whether callers with the right to name any folder may choose each directory of the gateway's user.
        secret_paths: Paths that no agent in a sandbox can read. The first one is the data directory of the gateway.
    """

    def __init__(
        self,
        name: str,
        settings: AgentSettings,
        driver: Driver,
        workspace: Path,
        *,
        by_key: Path | None,
        any_directory: bool,
        folders_of_user: bool,
        secret_paths: Sequence[Path],
        environ: Mapping[str, str],
    ) -> None:
        self._name, self._settings, self._driver = name, settings, driver
        self._configured = settings.cwd is not None
        self._own = settings.cwd.expanduser().absolute() if settings.cwd else workspace
        self.by_key = None if self._configured else by_key
        self._any_directory = any_directory and not self._configured
        self._folders_of_user = folders_of_user and not self._configured
        self._secret_paths, self._environ = tuple(secret_paths), environ

    def path(self, workspace_key: str | None) -> Path:
        """Return the path of the agent's own directory, or of a key's directory. It need not exist. Reads nothing."""
        return self._own if workspace_key is None or self.by_key is None else self.by_key / workspace_key / self._name

    def base(self, workspace_key: str | None) -> Path:
        """Return the agent's own directory, or a key's directory. A directory in the data directory is created."""
        base = self.path(workspace_key)
        if not self._configured and not base.is_dir():
            private_directory(base)
        return base

    def sandboxed(self, spawner: Spawner, spec: AgentSpec) -> Spawner:
        """Return the spawner for the processes of a session or task: in a sandbox or a container, if the configuration has one.

        Raises AgentProblem if the program that makes the container is not installed.
        """
        others = spec.additional_directories if isinstance(spec, SessionSpec) else ()
        if self._settings.runtime is not None:
            return spawner.with_launcher(self._container(self._settings.runtime, spec, others, spawner.clock))
        if self._settings.sandbox == "off":
            return spawner
        writable = (*((spec.state,) if spec.state else ()), *self._driver.home_folders(spec), *self._driver.home_files(spec))
        # The real paths of folders that an agent may have replaced since they were checked, or configured.
        folders = (spec.cwd, *others, *self._configured_writable())
        temporary = tuple(name for name in _temporary_variables(spec.env) if name not in self._settings.env)
        created = self._driver.home_folders(spec)
        sandboxed = spawner.with_launcher(Sandbox(writable, self._secret_paths, created, folders))
        return sandboxed.with_launcher(AgentTemporary(spawner.temporary, temporary)) if temporary else sandboxed

    def _container(self, runtime: Runtime, spec: AgentSpec, others: Sequence[Path], clock: Clock) -> Container:
        """Where the processes of a session or task run."""
        given = self._settings.container
        own = (*((given.home.expanduser().absolute(),) if given.home else ()), *self._driver.home_folders(spec))
        mounts = [Mount(_in_real_home(source), target, writable) for source, target, writable in map(parse_mount, given.mounts)]
        mounts += [Mount(path.resolve(), path, True) for path in self._driver.home_files(spec)]
        mounts += [Mount(path, path, True) for path in others]
        return Container(
            runtime,
            runtime_program(self._name, runtime, self._environ),
            self._environ,
            given.image or "",
            tuple(mounts),
            own,
            (*self._secret_paths, *_homes(self._environ)),
            given.network,
            given.memory,
            given.cpus,
            given.args,
            frozenset(self._settings.env),
            spec.program,
            clock,
        )

    def check_sandbox(self, environment: Mapping[str, str]) -> None:
        """Raise InvalidSettings if the sandbox of the configuration cannot be had in this environment of the agent."""
        spec = self._general_spec(environment)
        own = (self._own,) if self._configured else ()
        if self._settings.runtime is not None:
            given = self._settings.container
            mounts = [source for source, _, _ in map(parse_mount, given.mounts)]
            home = (given.home.expanduser().absolute(),) if given.home else ()
            if problem := self._sandbox_problem((*own, *mounts, *home, *self._driver.home_folders(spec))):
                raise InvalidSettings(f"agents.{self._name}.run_in: {problem}")
        elif problem := unavailable() or self._sandbox_problem((*own, *self._shared_writable(spec))):
            raise InvalidSettings(f"agents.{self._name}.sandbox: {problem}")

    def _general_spec(self, environment: Mapping[str, str]) -> AgentSpec:
        """Return a spec for what holds in every session. The program need not be installed: its folders are named like it."""
        return AgentSpec(self._settings.program or self._driver.info().program.name or "", self._own, environment)

    def _shared_writable(self, spec: AgentSpec) -> tuple[Path, ...]:
        """Return what every session of the agent may write in a sandbox: the CLI's folders and files, and what is configured."""
        return (*self._driver.home_folders(spec), *self._driver.home_files(spec), *self._configured_writable())

    def _configured_writable(self) -> tuple[Path, ...]:
        own = self._settings.env
        temporary = (Path(own[name]) for name in _temporary_variables(own) if own.get(name))
        return tuple(map(_in_real_home, (*self._settings.sandbox_writable, *temporary)))

    def may_write(self, folder: Path, environment: Mapping[str, str]) -> bool:
        """Whether processes of the agent, which has this environment, may write in a folder or a part of it, in some session.

        For an agent in a sandbox or a container. It reads the file system.
        """
        if self._any_directory or self._folders_of_user:
            # A client names the folder of its session.
            return True
        given = self._settings.container
        mounted = (source for source, _, writable in map(parse_mount, given.mounts) if writable)
        home = (given.home.expanduser().absolute(),) if given.home else ()
        shared = self._shared_writable(self._general_spec(environment)) if self._settings.runtime is None else ()
        places = (self._own, *((self.by_key,) if self.by_key else ()), *mounted, *home, *shared)
        return any(_overlap(place.resolve(), folder) for place in places)

    def _sandbox_problem(self, folders: Sequence[Path]) -> str | None:
        """Return why agents in a sandbox cannot write in folders, if they contain secrets or are in the data directory."""
        for folder in folders:
            for secret in self._secret_paths:
                inside = secret / "workspaces", secret / "key-workspaces", secret / "worktrees"
                if folder.resolve().is_relative_to(secret.resolve()) and not any(map(folder.resolve().is_relative_to, inside)):
                    return f"agents could write in {folder}, which is in {secret}"
        return Sandbox(tuple(folders), self._secret_paths).conflict()

    def resolve(self, base: Path, chosen: str, any_folder: bool) -> Path:
        """Return the real path of a folder that a session has chosen, absolute or relative to `base`.

        `any_folder` is whether the caller may name any folder of the gateway's user. Raises BadRequest unless it is an existing
        directory that the session may use.
        """
        may_leave = self._any_directory or (any_folder and self._folders_of_user)
        try:
            given = base / Path(chosen).expanduser()
            # Resolved, so that neither `..` nor a symbolic link leads out of the base. The process runtime does not follow a link
            # that has been created in the path since.
            path = given.resolve()
            exists = path.is_dir()
        except (OSError, ValueError, RuntimeError) as error:
            if not may_leave and (chosen.startswith("~") or not _is_named_below(base, base / chosen)):
                # The reason would contain whether the path, or the user, exists.
                raise BadRequest(
                    f"{chosen[:200]!r} is not below the folder of agent {self._name!r}; {self._allowed(base)}"
                ) from error
            raise BadRequest(f"{chosen[:200]!r} cannot be a folder: {error}") from error
        elsewhere = not self._any_directory and not path.is_relative_to(base.resolve())
        # An agent can replace a folder below its own by a link. A client that may name any folder names the link's target.
        if elsewhere and (not may_leave or _is_named_below(base, given)):
            raise BadRequest(f"{chosen!r} is not below the folder of agent {self._name!r}; {self._allowed(base)}")
        if not exists:
            where = "" if os.path.isabs(chosen) else f" in {base}"
            raise BadRequest(f"there is no folder {chosen!r}{where}; create it first")
        if elsewhere:
            self._require_own(chosen, given, path)
        if self._settings.confines and (problem := self._sandbox_problem([path])):
            raise BadRequest(f"{chosen!r} cannot be used in a sandbox: {problem}")
        return path

    def _allowed(self, base: Path) -> str:
        """Return what a client may choose, and the setting that allows more."""
        local = (
            "a program on this machine with a default key may name any folder of its user; others "
            if self._folders_of_user
            else ""
        )
        return f"{local}choose {base} or one below it. agents.{self._name}.cwd sets another folder for all"

    def _require_own(self, chosen: str, given: Path, path: Path) -> None:
        """Raise BadRequest unless a folder outside of the agent's own is one of the gateway's user."""
        try:
            problem = problem_of_folder(given, path, next(iter(self._secret_paths), None))
        except OSError as error:
            problem = str(error)
        if problem:
            raise BadRequest(f"{chosen!r} cannot be the folder of a session: {problem}; set agents.{self._name}.cwd to use it")


def _temporary_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that name the folder for temporary files: the standard variables, and a program's own."""
    return (*TEMPORARY_VARIABLES, *(name for name in environment if name.endswith("_TMPDIR")))


def _in_real_home(path: Path) -> Path:
    """Return an absolute path. The user's home may be behind a link, which no agent has made; no other link is followed."""
    absolute, home = path.expanduser().absolute(), Path.home()
    return home.resolve() / absolute.relative_to(home) if absolute.is_relative_to(home) else absolute


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def runtime_program(agent: str, runtime: Runtime, environ: Mapping[str, str]) -> str:
    """Return the path of the program of a runtime. Raises AgentProblem."""
    found = shutil.which(runtime, path=environ.get("PATH"))
    if found is None:
        install = install_command(runtime)
        how = f" with `{install}`" if install else ""
        raise AgentProblem(
            f'agent {agent!r} cannot start: {runtime} is not on PATH; install it{how}, or set agents.{agent}.run_in = "node"'
        )
    return os.path.abspath(found)


def _homes(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The folders with the files of users, which an agent in bwrap does not see."""
    homes = (Path("/home"), Path("/root"), Path(environ.get("HOME") or "/root"), Path(pwd.getpwuid(os.getuid()).pw_dir))
    return tuple(path for path in dict.fromkeys(homes) if path != Path("/"))


def _is_named_below(base: Path, path: Path) -> bool:
    """Whether a path is in a folder by its text: symbolic links in it are not resolved."""
    named = Path(os.path.normpath(path))
    return named.is_relative_to(os.path.normpath(base)) or named.is_relative_to(os.path.realpath(base))
