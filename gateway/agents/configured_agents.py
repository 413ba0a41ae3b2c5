"""The configured agents: each entry of `[agents]` with its driver, program, directories, environment and options."""

from __future__ import annotations

import copy
import logging
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import drivers.driver_registry as driver_registry
from drivers.acp.catalogue import catalogue
from drivers.compatibility import too_old
from drivers.contract.agent_specs import AgentSpec
from drivers.contract.driver_info import ASK_MODE, MODE_OPTION, DriverInfo, ModelName, Option, PermissionMode, Probe
from drivers.runtime.cli_driver import Driver
from drivers.runtime.process import Spawner
from gateway.agents.agent_folders import AgentFolders, runtime_program
from gateway.agents.environment import process_environment, same_environment, secret_values
from gateway.agents.installed_version import installed_version
from gateway.config import AgentSettings, Runtime, Settings, parse_mount
from gateway.errors import AgentProblem, BadRequest, Forbidden, InvalidSettings
from gateway.policy.rules import Policy, glob
from gateway.text_limits import MAX_NAME, MAX_TEXT, check_length

log = logging.getLogger(__name__)

CWD = Option("cwd", "Working folder", "The folder to work in; by default the agent's own.")
MAX_ADDITIONAL_DIRECTORIES = 100
"""Limit for one session: some CLIs take them as arguments, and each is resolved in the file system."""
DEFAULT_AGENTS = ("echo", "claude", "codex", "gemini")
"""The drivers that are agents of the same name without an entry in the configuration, if their program is found."""
TEST_DRIVERS = frozenset({"echo", "script"})
"""Drivers of agents for tests. They come last: clients take the first agent unless the user chooses one."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The installed program of an agent.

    Parameters:
        identity: Its path, and the time of its last change in nanoseconds. Empty and 0 for the driver's own program, None for a
            program that is not found.
        problem: Why the agent cannot be used, and what to do.
        version: The version that its files name; for the driver's own program, the driver's version.
        missing_runtime: The program that makes the agent's containers, if it is not installed.
    """

    identity: tuple[str, int] | None = None
    problem: str | None = None
    version: str | None = None
    missing_runtime: Runtime | None = None


class ConfiguredAgent:
    """One entry under `[agents]`."""

    def __init__(
        self,
        name: str,
        settings: AgentSettings,
        driver: Driver,
        workspace: Path,
        environ: Mapping[str, str],
        any_directory: bool,
        key_workspaces: Path | None = None,
        secret_paths: Sequence[Path] = (),
        folders_of_user: bool = False,
    ) -> None:
        self.name, self.settings, self.driver = name, settings, driver
        self.info: DriverInfo = driver.info()
        self.policy = Policy(settings.policy)
        self.has_own_cwd = settings.cwd is not None
        """Whether the configuration has a working directory for it."""
        self._folders = AgentFolders(
            name,
            settings,
            driver,
            workspace,
            by_key=key_workspaces,
            any_directory=any_directory,
            folders_of_user=folders_of_user,
            secret_paths=secret_paths,
            environ=environ,
        )
        self._environ = environ
        general = {option.name for option in self.info.options if option.sets_others}
        self.locked = frozenset((*settings.locked, *(general if set(settings.locked) - {CWD.name} else ())))
        """The options that sessions and tasks may not set."""
        self._probe = Probe()
        self.configured = True
        """Whether the configuration has an entry for it. Agents without one exist if their program is found."""
        self._probed_program: tuple[str, int] | None = None
        self.kept: Installation | None = None
        """The last result of `look`, for callers that must not read the file system. None in a process that looks each time."""

    def apply_probe(self, probe: Probe) -> None:
        """Replace the driver's general information by what the probe of the installed program reports."""
        # Without what an earlier version of the program has reported.
        self._probe, self.info = probe, self.driver.info()
        self._probed_program = self.installed_program()
        if probe.images is False:
            self._set_capabilities(image_http=False, image_data=False)
        if probe.additional_directories is not None and self.info.capabilities.additional_directories is None:
            self._set_capabilities(additional_directories=probe.additional_directories)
        if probe.options:
            own = {option.name: option for option in self.driver.info().options}
            self.info = replace(self.info, options=tuple({**own, **{o.name: o for o in probe.options}}.values()))

    def _set_capabilities(self, **found: bool) -> None:
        self.info = replace(self.info, capabilities=replace(self.info.capabilities, **found))

    @property
    def title(self) -> str:
        """The title for clients: the title in the configuration, or the agent's name. An agent with the name of its driver has
        the driver's title."""
        return self.settings.title or (self.info.title if self.name == self.settings.driver else self.name)

    @property
    def models(self) -> tuple[str, ...]:
        """The values of the option `model` that the program lists. Empty until it is probed, and where it lists none."""
        return self._probe.models

    @property
    def model_names(self) -> Mapping[str, ModelName]:
        """The names of models, by their values, where the program lists them."""
        return {model.value: model for model in self._probe.model_names}

    @property
    def efforts(self) -> tuple[str, ...]:
        """The values of the option `effort` that the program lists."""
        return self._probe.efforts

    @property
    def fast_models(self) -> tuple[str, ...]:
        """The values of the option `model` that have a fast mode, where the program lists them."""
        return self._probe.fast_models

    @property
    def usable(self) -> bool:
        """Whether its program is found, and reported no problem and no missing login when it was probed last."""
        return self.problem() is None and self._probe.problem is None and self._probe.logged_in is not False

    @property
    def options(self) -> tuple[Option, ...]:
        """The driver's options and the option `cwd`, with the defaults of the configuration."""
        defaults = self.settings.options
        options = (replace(option, default=defaults.get(option.name, option.default)) for option in (*self.info.options, CWD))
        if not self.modes:
            return tuple(options)
        permitted = (ASK_MODE, *(mode.id for mode in self.modes))
        return tuple(replace(option, choices=permitted) if option.name == MODE_OPTION else option for option in options)

    @cached_property
    def _permitted_modes(self) -> tuple[PermissionMode, ...]:
        """The modes that the CLI permits here. To build the environment for it takes 0.1 ms."""
        if not self.info.permissions.modes:
            return ()
        return self.driver.permitted_modes(self.environment, confined=self.settings.confines)

    @property
    def modes(self) -> tuple[PermissionMode, ...]:
        """The CLI's own modes that a session may have: only the configured one where the option `mode` is locked."""
        found = self._permitted_modes
        locked = self.settings.options.get(MODE_OPTION, ASK_MODE) if MODE_OPTION in self.locked else None
        return tuple(
            mode for mode in found if (self.settings.allow_bypass or not mode.unrestricted) and locked in (None, mode.id)
        )

    def mode(self, options: Mapping[str, str]) -> str:
        """Return the mode of a session with these options: `ask` if they name no mode, or a mode that is not permitted."""
        given = {**self.settings.options, **self.without_locked(options)}.get(MODE_OPTION, ASK_MODE)
        return given if any(mode.id == given for mode in self.modes) else ASK_MODE

    @property
    def editor_mode(self) -> str:
        """The mode of new sessions of editors: the CLI's own rules, unless the configuration has another."""
        if MODE_OPTION in self.settings.options or MODE_OPTION in self.locked:
            return self.mode({})
        return self.modes[0].id if self.modes else ASK_MODE

    @property
    def settable_options(self) -> tuple[Option, ...]:
        """The options that a session may set: all options that are not locked."""
        return tuple(option for option in self.options if option.name not in self.locked)

    @property
    def environment(self) -> dict[str, str]:
        """The complete environment of the agent's processes."""
        return self._environment_from(self._environ)

    def has_environment(self, environ: Mapping[str, str]) -> bool:
        """Whether the agent's processes would have the same environment if `environ` was the environment of the gateway."""
        return same_environment(self._environment_from(environ), self.environment)

    def _environment_from(self, environ: Mapping[str, str]) -> dict[str, str]:
        home = self.settings.container.home
        own = {"HOME": str(home.expanduser().absolute())} if home else {}
        return process_environment(environ, self.info.program.env, {**self.info.program.set_env, **own, **self.settings.env})

    @property
    def secrets(self) -> list[str]:
        """Values in the configuration and environment that logs and responses must not contain."""
        hidden = {option.name for option in self.info.options if option.secret}
        return [*secret_values(self.environment), *(value for name, value in self.settings.options.items() if name in hidden)]

    @property
    def version(self) -> str | None:
        """The version that the program has reported; before that, the version of its files or of the driver's own program."""
        if (self._probe.version or self._probe.problem) and self._probed_program == self.installed_program():
            return self._probe.version
        return self.installation.version

    @property
    def described(self) -> str:
        """The agent with its version, for errors: `agent 'claude' (2.1.329)`."""
        version = self.version if self.info.program.name is not None else None
        return f"agent {self.name!r} ({version})" if version else f"agent {self.name!r}"

    @property
    def too_old(self) -> str | None:
        """That its program is older than the oldest supported version, and what to do; None for other versions."""
        return self.refusal_of(self.version)

    def refusal_of(self, version: str | None) -> str | None:
        """Say that a version of its program is older than the oldest supported one, and what to do; None for other versions."""
        if (old := too_old(self.settings.driver, version)) is None:
            return None
        command = f" with `{self.info.program.install}`" if self.info.program.install else ""
        return f"agent {self.name!r} cannot be used: {old}; update it{command}"

    def look(self) -> Installation:
        """Look for its program in the file system, which takes 0.1 ms, or as long as a folder on PATH does not answer."""
        runtime = self.settings.runtime
        missing = runtime if runtime is not None and shutil.which(runtime, path=self._environ.get("PATH")) is None else None
        try:
            program = self.program()
        except AgentProblem as problem:
            return Installation(problem=str(problem), missing_runtime=missing)
        if not program or self.settings.container.image is not None:
            return Installation((program, 0), version=None if program else self.info.version, missing_runtime=missing)
        try:
            identity = program, os.stat(program).st_mtime_ns
        except OSError:
            return Installation(missing_runtime=missing)
        kept = self.kept
        version = kept.version if kept is not None and kept.identity == identity else installed_version(program)
        return Installation(identity, None, version, missing)

    @property
    def installation(self) -> Installation:
        """The last result of `look`; a new one in a process that keeps none."""
        return self.kept or self.look()

    @property
    def installed(self) -> bool:
        """Whether its program was found, whatever its version."""
        return self.installation.problem is None

    def installed_program(self) -> tuple[str, int] | None:
        """Return the path of its program and when that was modified, in nanoseconds: empty and 0 for the driver's own program.
        None if it is not found."""
        return self.installation.identity

    def start_error(self, error: object) -> str:
        """Return the text of an error at the start of its program."""
        return f"{self.described} cannot start: {error}"

    def problem(self) -> str | None:
        """Return why the agent cannot be used, and what to do; None if it can be used.

        Its program is missing or too old. Other problems that its probe has found are in the result of the probe (Discovery).
        """
        return self.installation.problem or self.too_old

    def program(self) -> str:
        """Return the path of the agent's program; empty if the driver has a program of its own. The program of an image has the
        name in the configuration. Raises AgentProblem, also for a missing program that makes its containers."""
        name = self.settings.program or self.info.program.name
        if self.settings.runtime is not None:
            runtime_program(self.name, self.settings.runtime, self._environ)
        if name is None:
            return ""
        if self.settings.container.image is not None:
            return name
        found = shutil.which(os.path.expanduser(name), path=self.environment.get("PATH"))
        if found is None:
            raise AgentProblem(f"agent {self.name!r} cannot start: {self._missing(name)}")
        return os.path.abspath(found)

    def _missing(self, program: str) -> str:
        """Return why a program cannot be started, and how to solve that."""
        key, install = f"agents.{self.name}.program", f" with `{self.info.program.install}`" if self.info.program.install else ""
        path = os.path.expanduser(program)
        if not os.path.dirname(path):
            return f"its program {program!r} is not on PATH; install it{install}, or set {key} to its path"
        wrong = "is not an executable file" if os.path.exists(path) else "does not exist"
        return f"its program {program!r} {wrong}; install it{install}, and set {key} to its path, or to its name on PATH"

    @property
    def missing_runtime(self) -> Runtime | None:
        """The program that makes the agent's containers, if it is not installed."""
        return self.installation.missing_runtime

    def login_command(self) -> str | None:
        """Return the command with which a person logs the agent's program in; None if the driver names none."""
        logins, container = self.info.program.logins, self.settings.container
        if not logins:
            return None
        argv = [self.settings.program or self.info.program.name or "", *logins[0].arguments]
        home = str(container.home.expanduser().absolute()) if container.home else None
        if self.settings.runtime is None or container.image is None:
            return shlex.join([*(("env", f"HOME={home}") if home else ()), *argv])
        mounts = [
            f"--volume={source}:{target}:{'rw' if rw else 'ro'}" for source, target, rw in map(parse_mount, container.mounts)
        ]
        mounts += [f"--volume={home}:{home}", f"--env=HOME={home}"] if home else []
        options = ["--rm", "--interactive", "--tty", "--network=host", *mounts, f"--entrypoint={argv[0]}"]
        return shlex.join([self.settings.runtime, "run", *options, container.image, *argv[1:]])

    def check_one_shot(self) -> None:
        """Raise Forbidden if a rule asks or denies: in a one-shot task the CLI decides, and rules have no effect."""
        if self.policy.restricts:
            rules = f"agent {self.name!r} has rules that ask or deny (agents.{self.name}.policy)"
            raise Forbidden(f"{rules}, which a one-shot task cannot enforce; use a session, or an agent without such rules")

    def check_options(self, given: Mapping[str, str], workspace_key: str | None = None, *, any_folder: bool = False) -> None:
        """Raise BadRequest if an option is unknown or has a value that is not allowed, and Forbidden if it is locked.

        `any_folder` is as in `working_directory`.
        """
        self.check_locked(given, workspace_key)
        self.check_values(given)
        self.working_directory(given.get("cwd"), workspace_key, any_folder=any_folder)

    def check_values(self, given: Mapping[str, str]) -> None:
        """Raise BadRequest if an option is unknown or has a value that is not allowed. Folders are not looked at."""
        known = {option.name: option for option in self.options}
        for name, value in given.items():
            check_length("options", name, MAX_NAME)
            check_length(f"options.{name}", value, MAX_TEXT)
            if name not in known:
                raise BadRequest(f"agent {self.name!r} has no option {name!r}; its options are {', '.join(sorted(known))}")
            choices = known[name].choices
            if choices and value not in choices:
                known_ones = ", ".join(choice or "empty" for choice in choices)
                raise BadRequest(f"option {name!r} of agent {self.name!r} cannot be {value!r}; choose one of {known_ones}")
        if problem := self.driver.options_problem(given):
            raise BadRequest(f"agent {self.name!r}: {problem}")

    def check_locked(self, given: Mapping[str, str], workspace_key: str | None = None) -> None:
        """Raise Forbidden if a locked option is given with another value than in the configuration."""
        for name in sorted(self.locked & given.keys()):
            value = next((option.default for option in self.options if option.name == name), "")
            if given[name] != value and not (name == CWD.name and self._is_own_directory(given[name], workspace_key)):
                locked = f"option {name!r} of agent {self.name!r} is locked (agents.{self.name}.locked)"
                raise Forbidden(f"{locked}: a session cannot set it; leave it out")

    def without_locked(self, options: Mapping[str, str]) -> dict[str, str]:
        """Return a session's options without the locked ones. A session may have set an option before it was locked."""
        return {name: value for name, value in options.items() if name not in self.locked}

    def _is_own_directory(self, chosen: str, workspace_key: str | None) -> bool:
        return self.working_directory(chosen, workspace_key) == self.working_directory(None, workspace_key)

    def workspace_key(self, key_name: str | None) -> str | None:
        """Return the name of the key whose own workspace new sessions of this agent use; None where all keys share one.

        `key_name` is the name of the caller's key, None for a default key. An agent with a `cwd` has that one for all keys.
        """
        return key_name if self._folders.by_key is not None else None

    def working_directory(self, chosen: str | None, workspace_key: str | None = None, *, any_folder: bool = False) -> Path:
        """Return the working directory of a session, as a real path.

        Raises BadRequest.

        Parameters:
            chosen: The session's option `cwd`, absolute or relative to the agent's directory.
            workspace_key: The key whose workspace is the agent's directory; None if all keys share one.
            any_folder: Whether the caller has the right to choose any folder of the gateway's user. It counts only with the
                setting `server.folders = "any"` and an agent without `cwd`.
        """
        chosen = chosen or self.settings.options.get("cwd")
        base = self._folders.base(workspace_key)
        try:
            # Of a path that cannot be resolved, such as a link to itself, the start of the agent reports the error.
            if not chosen:
                return Path(os.path.realpath(base))
            return self._folders.resolve(base, chosen, any_folder and workspace_key is None)
        except BadRequest as error:
            raise BadRequest(f"option 'cwd': {error}") from error

    def stored_directory(self, chosen: str | None, workspace_key: str | None) -> Path:
        """Return the working directory of a stored session, whose option `cwd` was checked when its client chose it.

        Raises BadRequest if the session may not use it any more.
        """
        return self.working_directory(chosen, workspace_key, any_folder=True)

    def folder_without_worktree(self, options: Mapping[str, str], workspace_key: str | None) -> Path:
        """Return the working directory that a session with these options has without a worktree. Raises BadRequest."""
        return self.stored_directory(self.without_locked(options).get(CWD.name), workspace_key)

    def folder_of(self, options: Mapping[str, str], workspace_key: str | None) -> str:
        """Return the absolute working folder of a stored session with these options, also if it no longer exists."""
        try:
            return str(self.folder_without_worktree(options, workspace_key))
        except BadRequest:
            return os.path.abspath(options.get(CWD.name) or "")

    def unresolved_folder(self, options: Mapping[str, str], workspace_key: str | None) -> str:
        """Return the absolute working folder of a stored session, with its symbolic links. Reads nothing."""
        chosen = self.without_locked(options).get(CWD.name) or self.settings.options.get(CWD.name) or ""
        return os.path.abspath(os.path.join(self._folders.path(workspace_key), os.path.expanduser(chosen)))

    def additional_directories(
        self, given: Sequence[str], workspace_key: str | None = None, *, any_folder: bool = False
    ) -> tuple[Path, ...]:
        """Return the directories of a session besides its working directory, without duplicates.

        Paths must be absolute; otherwise the rules of `working_directory` hold. With a locked `cwd` they are in the configured
        working directory. Raises BadRequest that names the path.
        """
        if given and self.info.capabilities.additional_directories is False:
            raise BadRequest(f"additionalDirectories: agent {self.name!r} works in one folder a session; give none")
        if len(given) > MAX_ADDITIONAL_DIRECTORIES:
            raise BadRequest(
                f"additionalDirectories: {len(given)} are too many; a session has {MAX_ADDITIONAL_DIRECTORIES} at most"
            )
        base, found = self._folders.base(workspace_key), dict[Path, None]()
        if given and CWD.name in self.locked:
            base, any_folder = self.working_directory(None, workspace_key), False
        for n, path in enumerate(given):
            try:
                if not os.path.isabs(path):
                    raise BadRequest(f"{path[:200]!r} is not an absolute path")
                found[self._folders.resolve(base, path, any_folder and workspace_key is None)] = None
            except BadRequest as error:
                raise BadRequest(f"additionalDirectories[{n}]: {error}") from error
        return tuple(found)

    def sandboxed(self, spawner: Spawner, spec: AgentSpec) -> Spawner:
        """Return the spawner for the processes of a session or task: in a sandbox, if the configuration has one."""
        return self._folders.sandboxed(spawner, spec)

    def may_write(self, folder: Path) -> bool:
        """Whether the agent, which is in a sandbox or a container, may write in a folder or a part of it."""
        return self._folders.may_write(folder, self.environment)

    def check_sandbox(self) -> None:
        """Raise InvalidSettings if the configuration has a sandbox that cannot be had."""
        if self.settings.confines:
            self._folders.check_sandbox(self.environment)

    def spec(self, options: Mapping[str, str], workspace_key: str | None = None) -> AgentSpec:
        """Return the spec for the driver, with a session's options over the defaults. Raises BadRequest, AgentProblem.

        Looks for the program again, which may have been replaced.
        """
        if self.kept is not None:
            self.kept = self.look()
        defaults = {option.name: option.default for option in self.options if option.name != CWD.name}
        merged = defaults | self.without_locked(options)
        chosen = merged.pop("cwd", None)
        if self.info.permissions.modes:
            merged[MODE_OPTION] = self.mode(options)
        folder = self.stored_directory(chosen, workspace_key)
        confined = self.settings.confines
        return AgentSpec(
            self.program(),
            folder,
            self.environment,
            self.settings.args,
            merged,
            confined=confined,
            locked=self.locked,
        )


class Agents:
    """All agents by name: the configured ones, and by default `echo` and every CLI that Portico has a driver for. Agents of the
    catalogue are there only if their program is found.

    They are in the order of `/meta`: those with an entry, as in the configuration, then the others, and last those for tests.

    `workspace` is the working directory of agents without a `cwd`. By default each has one of its own in the data directory for
    the default keys, and one for each named key. With `any_directory` a session of such an agent may choose any directory.
    """

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str] = os.environ,
        workspace: Path | None = None,
        any_directory: bool = False,
    ) -> None:
        self.drivers = drivers = driver_registry.load()
        found = installed_agents(environ) if settings.server.discover_agents else ()
        defaults = {
            name: AgentSettings(driver=name)
            for name in (*DEFAULT_AGENTS, *found)
            if name in drivers and name not in settings.agents
        }
        entries = dict(sorted((settings.agents | defaults).items(), key=lambda entry: entry[1].driver in TEST_DRIVERS))
        self._agents: dict[str, ConfiguredAgent] = {}
        for name, entry in entries.items():
            if entry.driver not in drivers:
                raise InvalidSettings(f"agents.{name}.driver: no driver {entry.driver!r}; there are {', '.join(sorted(drivers))}")
            folder = workspace or settings.data_dir / "workspaces" / name
            by_key = None if workspace else settings.data_dir / "key-workspaces"
            agent = ConfiguredAgent(
                name,
                entry,
                drivers[entry.driver],
                folder,
                environ,
                any_directory,
                by_key,
                settings.secret_paths,
                settings.server.folders == "any",
            )
            agent.configured = name in settings.agents
            _check_locked_names(agent)
            _check_defaults(agent)
            agent.check_sandbox()
            _warn_about_unmatched_rules(agent)
            self._agents[name] = agent

    def __iter__(self) -> Iterator[ConfiguredAgent]:
        return iter(self._agents.values())

    def get(self, name: str) -> ConfiguredAgent:
        """Return the agent with this name. Raises BadRequest, which lists the names of the usable agents."""
        if name not in self._agents:
            known = ", ".join(agent.name for agent in self if agent.usable)
            raise BadRequest(
                f"there is no agent {name!r} here; " + (f"choose from: {known}" if known else "none can be used now")
            )
        return self._agents[name]

    def only(self, name: str) -> Agents:
        """Return a copy that has this agent only. Raises BadRequest."""
        alone = copy.copy(self)
        alone._agents = {name: self.get(name)}
        return alone

    def find(self, name: str) -> ConfiguredAgent | None:
        return self._agents.get(name)

    def confined_writer(self, folder: Path, at_work: str) -> str | None:
        """Return the name of an agent in a sandbox or a container that may write in a folder; None if no agent may.

        The agent `at_work` works there. Reads the file system.
        """
        confined = (agent for agent in self if agent.settings.confines)
        return next((agent.name for agent in confined if agent.name == at_work or agent.may_write(folder)), None)


def installed_agents(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of the agents of the catalogue whose program is on PATH. A program that may be another one of the same name
    is left out: it would be started to find its version."""
    path = environ.get("PATH")
    return (name for name, agent in catalogue().items() if not agent.same_name and shutil.which(agent.program, path=path))


def _warn_about_unmatched_rules(agent: ConfiguredAgent) -> None:
    """Log a warning for a rule that matches none of the agent's tools: it may be misspelt, or be about a tool of a client."""
    names = sorted(tool.name for tool in agent.info.tools)
    for n, rule in enumerate(agent.policy.rules):
        if names and not any(glob(rule.tool, name) for name in names):
            known = ", ".join(names)
            log.warning("agents.%s.policy.%d.tool: %r is no tool of the agent; its tools are %s", agent.name, n, rule.tool, known)


def _check_locked_names(agent: ConfiguredAgent) -> None:
    """Raise InvalidSettings for a locked option that the agent does not have, which may be misspelt."""
    known = {option.name for option in agent.options}
    prefixes = tuple(f"{option.name}." for option in agent.options if option.sets_others)
    for n, name in enumerate(agent.settings.locked):
        if name not in known and not name.startswith(prefixes):
            names = ", ".join(sorted(known))
            raise InvalidSettings(f"agents.{agent.name}.locked.{n}: the agent has no option {name!r}; its options are {names}")


def _check_defaults(agent: ConfiguredAgent) -> None:
    options = agent.settings.options
    try:
        agent.check_values({name: value for name, value in options.items() if name != CWD.name})
        # Without this option nothing is to be checked, and the agent's folder, which that would create, is not needed yet.
        if CWD.name in options:
            agent.working_directory(None)
    except BadRequest as error:
        raise InvalidSettings(f"agents.{agent.name}.options: {error}") from None
