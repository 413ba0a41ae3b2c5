"""Runs commands in a container of podman or docker, or in namespaces made by bubblewrap (bwrap), by the program's command line.

A `Container` is where an agent's commands run: it launches each by a command of the runtime, which has the same pipes.
A container of podman or docker has the name `portico-MARKER` and the label `portico.instance=INSTANCE`, by which it is removed;
others are never touched. What drivers write for their CLI has the same path inside.
"""

from __future__ import annotations

import asyncio
import csv
import fnmatch
import functools
import io
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from drivers.contract.errors import AgentUnavailable
from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.runtime.confined_files import identity
from drivers.runtime.file_threads import in_thread
from drivers.runtime.install_commands import pull_command
from drivers.runtime.launcher import LaunchedCommand, Launcher
from drivers.runtime.process_tree import MARKER

log = logging.getLogger(__name__)

Runtime = Literal["podman", "docker", "bwrap"]

LABEL = "portico.instance"
"""The label of a container, with the id of the data directory whose gateway has started it."""
CALL_SECONDS = 20.0
"""Seconds that a short command of the runtime may take, such as the removal of a container."""
SILENT_SECONDS = 10.0
"""Seconds after such a command was too slow in which others of the same program fail at once. The daemon of docker does not
answer, and what needs several commands, or is tried again, would wait for each."""
REMOVAL_RETRIES = (0.2, 1.0)
"""Seconds before each repetition of a failed removal: a container may be starting, or be removed by its own `--rm`."""
SILENT_RETRIES = (1.0, 10.0, 60.0, 600.0)
"""Seconds before each repetition of a removal for which the runtime was too slow, in the background."""

OF_RUNTIME = (
    "HOME", "PATH", "USER", "LOGNAME", "TMPDIR", "XDG_*", "DBUS_SESSION_BUS_ADDRESS", "STORAGE_DRIVER", "STORAGE_OPTS",
    "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_API_VERSION", "DOCKER_TLS*", "DOCKER_CERT_PATH",
    "CONTAINER_HOST", "CONTAINER_CONNECTION", "CONTAINER_SSHKEY", "CONTAINERS_*CONF*",
)  # fmt: skip
"""Variables that the runtime's own process needs with the gateway's values, as patterns of fnmatch. None is of a secret, as
DOCKER_AUTH_CONFIG is: an agent's own value of one of them is in the arguments."""
OF_LOADER = ("LD_*", "DYLD_*", "GCONV_PATH", "GLIBC_TUNABLES", "LOCPATH", "MALLOC_*", "NLSPATH", "TZDIR")
"""Variables with which libraries load or write files in whatever program is started. An agent may choose those of its terminals,
and may have made the files: the runtime's own process, which is in no container, does not get them."""
OF_HOST = ("TMPDIR", "XDG_*")
"""Variables whose values of the gateway's environment name what no container has."""
OF_HOST_FILES = ("PATH", "SHELL", "SSL_CERT_*", "NODE_EXTRA_CA_CERTS")
"""Those that name files of the machine, which an image does not have."""
OWN_FOLDERS = (Path("/tmp"), Path("/var/tmp"), Path("/run"))
"""Folders that are empty at the start of each bwrap: sockets of other programs are in them."""
OF_KERNEL = ("/proc/sys", "/proc/sysrq-trigger", "/proc/fs", "/proc/acpi", "/proc/scsi")
"""What a superuser could change the machine by, without any capability: in bwrap 0.8.0 /proc/sys is writable to one."""
OF_RESOLVER = (Path("/run/systemd/resolve"), Path("/run/NetworkManager"), Path("/run/resolvconf"), Path("/run/current-system"))
"""What programs need of /run: the files of name resolution, and the programs of NixOS."""


_CHECK = """\
stat=/usr/bin/stat
[ -x "$stat" ] || stat=/bin/stat
found=$("$stat" -c %d:%i -- {targets}) || exit 125
if [ "$found" != {expected} ]; then
    echo "portico: a folder was replaced while it was mounted, and the agent was not started; try again" >&2
    exit 125
fi
unset stat found
exec "$@"
"""
"""A shell script that compares the device and the inode of each mounted folder, and then runs its arguments."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the machine, and where it is inside."""

    source: Path
    target: Path
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Container(Launcher):
    """Where commands run, each in a container of its own.

    `program` is the path of the runtime's program and `environ` the gateway's own environment, which that program gets. `mounts`
    are there in addition to the folders and files of a command; those that are missing are left out, but the folders `created`
    are created. `hidden` are files and folders that bwrap, which shows the whole system read-only, does not show. `own_env` are
    names of variables that the configuration sets, and which are passed on whatever they name. `installed` is the agent's
    program. `clock` is the clock of the runtime's time limits.
    """

    runtime: Runtime
    program: str
    environ: Mapping[str, str]
    image: str = ""
    mounts: tuple[Mount, ...] = ()
    created: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    network: str = "host"
    memory: str | None = None
    cpus: float | None = None
    args: tuple[str, ...] = ()
    own_env: frozenset[str] = frozenset()
    installed: str = ""
    clock: Clock = SYSTEM_CLOCK

    @property
    def has_image(self) -> bool:
        """Whether it is a container of an image, which has programs of its own."""
        return self.runtime != "bwrap"

    @property
    def has_programs(self) -> bool:
        return self.has_image

    @property
    def untrusted(self) -> tuple[Path, ...]:
        return (*self.created, *(mount.source for mount in self.mounts if mount.writable))

    async def launch(self, command: LaunchedCommand) -> LaunchedCommand:
        if self.has_image and (removed := _removals.get(command.marker.partition(".")[0])):
            # Its container would have the label of those that are removed.
            await removed.wait()
        await check_image(self, self.clock)
        return await in_thread(self.located, command)

    def located(self, command: LaunchedCommand) -> LaunchedCommand:
        """Return the runtime's command that runs `command`. Creates the folders `created` and the state folder. Blocks.

        Raises OSError, AgentUnavailable.
        """
        return self._in_image(command) if self.has_image else self._in_bwrap(command)

    def _in_bwrap(self, command: LaunchedCommand) -> LaunchedCommand:
        env = self._environment(command.env)
        mounts, check = self._checked_mounts(command)
        inside = [part for key in env if _is_any(key, OF_LOADER) for part in ("--setenv", key, env[key])]
        given = {key: value for key, value in env.items() if not _is_any(key, OF_LOADER)}
        argv = (self.program, *self._of_bwrap(mounts, command.cwd), *inside, "--", *check, *command.argv)
        return replace(command, argv=argv, env={**given, **self._of_loader()}, confined=True)

    def _in_image(self, command: LaunchedCommand) -> LaunchedCommand:
        marker = _with_runtime(command.marker, self.runtime)
        env = {**self._environment(command.env), MARKER: marker}
        mounts, check = self._checked_mounts(command)
        passed, given = list[str](), dict[str, str]()
        own = {key: value for key, value in self.environ.items() if _is_any(key, OF_RUNTIME)} | self._of_loader()
        for key, value in env.items():
            if _is_any(key, (*OF_RUNTIME, *OF_LOADER)) and own.get(key) != value:
                # The runtime's program has another value.
                passed.append(f"--env={key}={value}")
            else:
                # Without a value, so that no secret is in the arguments, which every user can read.
                passed.append(f"--env={key}")
                given[key] = value
        argv = (
            self.program, "run", *self._of_image(marker, mounts), f"--workdir={command.cwd}", *passed, *self.args,
            f"--entrypoint={check[0]}", self.image, *check[1:], *command.argv,
        )  # fmt: skip
        names = [container_name(marker)]
        removal = functools.partial(remove, self.runtime, self.program, names, self.environ, self.clock)
        # It descends from docker's daemon, or from podman's conmon, an orphan without the marker.
        return replace(
            command, argv=argv, env={**given, **own}, marker=marker, confined=True, descends=False,
            ended=(*command.ended, removal),
        )  # fmt: skip

    def _checked_mounts(self, command: LaunchedCommand) -> tuple[list[Mount], tuple[str, ...]]:
        """Return the mounts of a command, and the command inside that checks them and then runs its arguments."""
        mounts = _ordered(self._mounts(command))
        # What the administrator's own arguments mount instead is not known here.
        replaced = tuple(_targets_of_image(self.args) if self.has_image else _targets_of_bwrap(self.args))
        check = _check_of([mount for mount in mounts if not any(mount.target.is_relative_to(target) for target in replaced)])
        return mounts, check

    def _of_loader(self) -> dict[str, str]:
        """The gateway's own variables of the loader, with which its programs are started."""
        return {key: value for key, value in self.environ.items() if _is_any(key, OF_LOADER)}

    def _environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment inside: without variables of the gateway's own that name what is not there."""
        names = (*OF_HOST, *(OF_HOST_FILES if self.has_image else ()))
        return {
            key: value
            for key, value in env.items()
            if key in self.own_env or self.environ.get(key) != value or not _is_any(key, names)
        }

    def _mounts(self, command: LaunchedCommand) -> Iterator[Mount]:
        for path in self.created:
            try:
                path.mkdir(parents=True, exist_ok=True, mode=0o700)
            except (FileExistsError, NotADirectoryError):
                raise AgentUnavailable(
                    f"{path} cannot be the home of the container: it is a file, or is in one; set container.home to a folder"
                ) from None
        if command.state:
            command.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Before the writable ones: the program may be installed in one of those.
        if not self.has_image:
            yield from (Mount(path, path) for path in self._installation() if path.exists())
        yield from (mount for mount in self.mounts if mount.source.exists())
        for path in (command.cwd, *self.created, *((command.state,) if command.state else ()), *command.writable):
            yield Mount(path, path, writable=True)
        for path in command.files:
            yield Mount(path, path, writable=True)

    def _installation(self) -> Iterator[Path]:
        """The files of the agent's program and of Python that bwrap hides."""
        package = Path(__file__).parents[2]
        for path in (*installation(self.installed), Path(sys.prefix), Path(sys.base_prefix), package / "drivers"):
            if any(path.is_relative_to(folder) for folder in (*self.hidden, *OWN_FOLDERS)):
                yield path

    def _of_bwrap(self, mounts: Sequence[Mount], cwd: Path) -> Iterator[str]:
        # --cap-drop: a superuser keeps all capabilities otherwise, and could mount.
        yield from ("--unshare-pid", "--unshare-ipc", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
        if self.network == "none":
            yield "--unshare-net"
        yield from ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")
        for kernel in OF_KERNEL:
            yield from ("--ro-bind-try", kernel, kernel)
        steps = dict[Path, tuple[str, ...]]()
        for path in (*OWN_FOLDERS, *self.hidden):
            # A path with a link in it cannot be mounted on.
            real = Path(os.path.realpath(path))
            if real.is_dir():
                steps[real] = ("--tmpfs", str(real))
            elif real.exists():
                steps[real] = ("--ro-bind", "/dev/null", str(real))
        for path in OF_RESOLVER:
            steps[path] = ("--ro-bind-try", str(path), str(path))
        for mount in mounts:
            _check_target(mount, steps)
            steps[mount.target] = ("--bind" if mount.writable else "--ro-bind", str(mount.source), str(mount.target))
        for path in sorted(steps, key=lambda path: len(path.parts)):
            yield from steps[path]
        yield from ("--chdir", str(cwd), *self.args)

    def _of_image(self, name: str, mounts: Sequence[Mount]) -> Iterator[str]:
        yield from ("--rm", "--interactive", "--init", "--pull=never", f"--name={container_name(name)}")
        yield from (f"--label={LABEL}={name.partition('.')[0]}", f"--network={self.network}")
        # The runtime would store the conversation in its log otherwise.
        yield "--log-driver=none"
        yield from ("--cap-drop=all", "--security-opt=no-new-privileges")
        if self.runtime == "podman":
            # Proxies are in the agent's environment, where it has any.
            yield "--http-proxy=false"
        if self.runtime == "podman" and os.geteuid() != 0:
            yield "--userns=keep-id"
        else:
            yield f"--user={os.getuid()}:{os.getgid()}"
        if self.memory:
            yield f"--memory={self.memory}"
        if self.cpus:
            yield f"--cpus={self.cpus:g}"
        for mount in mounts:
            if self.runtime == "podman" and "\n" in f"{mount.source}{mount.target}":
                # It takes the rest for another mount (podman 4.3.1).
                path = mount.source if "\n" in str(mount.source) else mount.target
                raise AgentUnavailable(f"podman cannot mount {str(path)!r}, whose path has a line feed; choose another folder")
            fields = ["type=bind", f"source={mount.source}", f"target={mount.target}", *(() if mount.writable else ("readonly",))]
            yield f"--mount={_csv(fields)}"


def installation(program: str) -> Iterator[Path]:
    """Yield folders that have the files of an installed program: those of each link up to its file, the npm prefix of a package,
    and the environment of a program in `bin`."""
    path = Path(program)
    for _ in range(8):
        if not path.is_absolute():
            return
        parent = path.parent
        if "node_modules" in path.parts:
            folder = Path(*path.parts[: path.parts.index("node_modules")])
            # `lib/node_modules` is beside the `bin` with node.
            yield folder.parent if folder.name == "lib" else folder / "node_modules"
        elif parent.name == "bin" and (parent.parent / "pyvenv.cfg").exists():
            yield parent.parent
        else:
            yield parent
        if not path.is_symlink():
            return
        path = Path(os.path.normpath(parent / os.readlink(path)))


def container_name(marker: str) -> str:
    """The name of the container of a process with this marker."""
    return f"portico-{marker}"


def _with_runtime(marker: str, runtime: Runtime) -> str:
    """Return the marker of a process whose container a runtime has: a later daemon finds there where to look."""
    instance, _, own = marker.rpartition(".")
    return f"{instance}.{runtime}.{own}"


def runtime_of(marker: str) -> Runtime | None:
    """The runtime that has a container for the process with this marker; None without one."""
    kind = marker.split(".")[1:2]
    return next((runtime for runtime in ("podman", "docker") if kind == [runtime]), None)


KILLED_SECONDS = 1.0
"""Seconds for the end of a command of a runtime that was killed."""
_silent_until = dict[str, float]()
"""The time until which a runtime is taken for one that does not answer, by its program."""


async def call(
    program: str, *arguments: str, environ: Mapping[str, str], always: bool = False, clock: Clock = SYSTEM_CLOCK
) -> tuple[int, str]:
    """Run a short command of a runtime. Return its exit code, and its output or else its errors.

    Raises OSError; TimeoutError if it does not answer, or has not answered a moment ago and this is not `always` tried.
    """
    if not always and _is_silent(program, clock):
        raise TimeoutError(_silence(program))
    process = await asyncio.create_subprocess_exec(
        program, *arguments, env=dict(environ), process_group=0,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with clock.timeout(CALL_SECONDS):
            output, errors = await process.communicate()
    except TimeoutError:
        _silent_until[program] = clock.monotonic() + SILENT_SECONDS
        raise TimeoutError(_silence(program)) from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            # Its end is reported to the event loop, which may end after this.
            with suppress(TimeoutError):
                async with clock.timeout(KILLED_SECONDS):
                    await process.wait()
    return process.returncode or 0, (output.strip() or errors.strip()).decode(errors="replace")


def _is_silent(program: str, clock: Clock) -> bool:
    return clock.monotonic() < _silent_until.get(program, 0.0)


def _silence(program: str) -> str:
    name = os.path.basename(program)
    return f"{program} has not answered within {CALL_SECONDS:g} s; see what `{name} info` does, and restart {name}"


_present = set[tuple[str, str]]()
"""The images that have been found, by the program of the runtime."""


async def check_image(container: Container, clock: Clock = SYSTEM_CLOCK) -> None:
    """Raise AgentUnavailable if the container's image is not there, or the runtime does not work.

    Once for each image. `podman` starts a process that all containers of a user share; here it does not inherit the mark of an
    agent, with which it would be ended.
    """
    key = container.program, container.image
    if not container.has_image or key in _present:
        return
    problem = await image_problem(container.runtime, container.program, container.image, container.environ, clock)
    if problem:
        raise AgentUnavailable(problem)
    _present.add(key)


async def image_problem(
    runtime: Runtime, program: str, image: str, environ: Mapping[str, str], clock: Clock = SYSTEM_CLOCK
) -> str | None:
    """Return why an image cannot be used, and what to do; None if it can."""
    try:
        code, output = await call(program, "image", "inspect", "--format={{.Id}}", image, environ=environ, clock=clock)
    except (OSError, TimeoutError) as error:
        return str(error)
    if code == 0:
        return None
    if any(words in output.lower() for words in ("no such image", "image not known", "failed to find image")):
        return f"the image {image} is not here; get it with `{pull_command(runtime, image)}`"
    return f"{runtime} does not work: {output[-500:]}"


async def working_version(runtime: Runtime, program: str, environ: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the version that the runtime prints, and why it does not work; None if it does. Raises OSError, TimeoutError."""
    _, version = await call(program, "--version", environ=environ)
    tries: Mapping[Runtime, tuple[str, ...]] = {
        "podman": ("info", "--format={{.Host.OCIRuntime.Name}}"),
        "docker": ("version", "--format={{.Server.Version}}"),
        "bwrap": ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid", "--cap-drop", "ALL", "--", "true"),
    }
    code, output = await call(program, *tries[runtime], environ=environ)
    return version, output[-500:] or f"exit code {code}" if code else None


async def remove(
    runtime: Runtime, program: str, names: Sequence[str], environ: Mapping[str, str], clock: Clock = SYSTEM_CLOCK
) -> str | None:
    """Remove containers with all that runs in them; those that do not exist are ignored. Return why that failed, if it did."""
    arguments = ("rm", "--force", *(("--time=0", "--ignore") if runtime == "podman" else ()), *names)
    for delay in (*REMOVAL_RETRIES, None):
        problem = await _removal_problem(program, arguments, environ, clock)
        if problem is None:
            return None
        if _is_silent(program, clock):
            # The caller does not wait for several time limits.
            later = asyncio.create_task(_remove_later(program, arguments, environ, clock))
            _later.add(later)
            later.add_done_callback(_later.discard)
            break
        if delay is not None:
            await clock.sleep(delay)
    return problem


_later = set[asyncio.Task[None]]()
"""The removals that are tried again in the background."""


async def end_removals() -> None:
    """End the removals that are tried again in the background.

    Await it before the event loop ends. That cancels the tasks of asyncio too, and a removal that starts a process at that moment
    then waits for ever for pipes that nothing connects (Python 3.11.7).
    """
    removals = list(_later)
    for removal in removals:
        removal.cancel()
    await asyncio.gather(*removals, return_exceptions=True)


async def _remove_later(program: str, arguments: Sequence[str], environ: Mapping[str, str], clock: Clock) -> None:
    for delay in SILENT_RETRIES:
        await clock.sleep(delay)
        if await _removal_problem(program, arguments, environ, clock) is None:
            return


async def _removal_problem(program: str, arguments: Sequence[str], environ: Mapping[str, str], clock: Clock) -> str | None:
    try:
        code, output = await call(program, *arguments, environ=environ, always=True, clock=clock)
    except (OSError, TimeoutError) as error:
        return str(error)
    return None if code == 0 or all("no such container" in line.lower() for line in output.splitlines()) else output


async def names_of(program: str, instance: str, environ: Mapping[str, str], clock: Clock = SYSTEM_CLOCK) -> list[str]:
    """The names of all containers of an instance, running or not. Raises OSError, TimeoutError."""
    arguments = ("ps", "--all", f"--filter=label={LABEL}={instance}", "--format={{.Names}}")
    code, output = await call(program, *arguments, environ=environ, clock=clock)
    if code:
        raise OSError(output[-500:])
    return [name for name in output.split() if name.startswith(container_name(f"{instance}."))]


_removals = dict[str, asyncio.Event]()
"""By instance: set once the containers of an earlier daemon are removed, or cannot be removed."""


async def remove_left_behind(
    instance: str, runtimes: Iterable[Runtime], environ: Mapping[str, str], clock: Clock = SYSTEM_CLOCK
) -> dict[Runtime, str]:
    """Remove the containers that an earlier daemon with this data directory left behind. Return why that failed, by runtime.

    New containers of the instance start afterwards.
    """
    removed = _removals[instance] = asyncio.Event()
    try:
        return await _remove_left_behind(instance, runtimes, environ, clock)
    finally:
        _removals.pop(instance, None)
        removed.set()


async def _remove_left_behind(
    instance: str, runtimes: Iterable[Runtime], environ: Mapping[str, str], clock: Clock
) -> dict[Runtime, str]:
    problems = dict[Runtime, str]()
    for runtime in sorted(set(runtimes)):
        program = shutil.which(runtime, path=environ.get("PATH"))
        try:
            names = await names_of(program, instance, environ, clock) if program else []
            problem = await remove(runtime, program, names, environ, clock) if program and names else None
        except (OSError, TimeoutError) as error:
            problem = str(error)
        if problem or program is None:
            problems[runtime] = problem or f"{runtime} is not on PATH"
        elif names:
            log.warning("removed %d containers that an earlier daemon left behind", len(names))
    return problems


def _check_of(mounts: Iterable[Mount]) -> tuple[str, ...]:
    """Return a command that runs its arguments as a command if each mounted folder is what its source is at this moment.

    The runtime finds the sources by their paths, and follows links that have replaced folders by then. Device and inode are the
    same inside. Raises AgentUnavailable for a source with a link in its path.
    """
    targets, expected = list[str](), list[str]()
    for mount in mounts:
        # Files are not compared: programs replace theirs at any time, such as `~/.claude.json`.
        if not mount.source.is_dir():
            continue
        try:
            device, inode = identity(mount.source)
        except OSError as error:
            raise AgentUnavailable(f"{mount.source} cannot be mounted: {error.strerror or error}") from error
        targets.append(str(mount.target))
        expected.append(f"{device}:{inode}")
    # The path of `stat` is fixed: a program of that name may be in a folder that agents write.
    return "/bin/sh", "-c", _CHECK.format(targets=shlex.join(targets), expected=shlex.quote("\n".join(expected))), "sh"


def _check_target(mount: Mount, steps: Mapping[Path, tuple[str, ...]]) -> None:
    """Raise AgentUnavailable if bwrap would have to create a target in a file system that is read-only inside.

    `steps` are its arguments for the folders before this one, by their targets.
    """
    target = mount.target
    if os.path.realpath(target) != str(target) or target.is_relative_to("/dev"):
        # What a link leads to inside is not known here; /dev is writable.
        return
    above = next((path for path in target.parents if path in steps), None)
    option, *paths = steps[above] if above is not None else ("--ro-bind", "/", "/")
    if option in ("--tmpfs", "--bind"):
        return
    needed = Path(paths[0]) / target.relative_to(paths[-1])
    if not os.path.lexists(needed):
        raise AgentUnavailable(
            f"{mount.source} cannot be mounted at {target}, which does not exist: what is above it is read-only in bwrap; "
            f"create {needed}, or choose a target below /tmp"
        )


def _ordered(mounts: Iterable[Mount]) -> list[Mount]:
    """One for each target, the last; the folders before what is in them, and nothing that is in its folder anyway."""
    by_target = {mount.target: mount for mount in mounts}
    found = list[Mount]()
    for mount in sorted(by_target.values(), key=lambda mount: len(mount.target.parts)):
        above = next((one for one in reversed(found) if mount.target.is_relative_to(one.target)), None)
        same = above is not None and mount.source == above.source / mount.target.relative_to(above.target)
        if not (same and above is not None and above.writable is mount.writable):
            found.append(mount)
    return found


def _targets_of_image(args: Sequence[str]) -> Iterator[Path]:
    """Yield where arguments of podman and docker mount something: `-v`, `--volume`, `--mount` and `--tmpfs`."""
    following = ""
    for one in args:
        option, _, value = one.partition("=") if one.startswith("--") else (one[:2], "", one[2:].removeprefix("="))
        if following:
            option, value, following = following, one, ""
        elif not value:
            following = option if option in ("-v", "--volume", "--mount", "--tmpfs") else ""
            continue
        if option == "--tmpfs":
            yield _target(value.partition(":")[0])
        elif option in ("-v", "--volume"):
            # A volume without a name has its target only.
            yield _target(value.split(":")[1] if ":" in value else value)
        elif option == "--mount":
            fields = dict(field.partition("=")[::2] for row in csv.reader([value]) for field in row)
            yield from (_target(fields[name]) for name in ("target", "destination", "dst") if name in fields)


OPERANDS = {
    **dict.fromkeys(("tmpfs", "dev", "proc", "mqueue", "tmp-overlay", "ro-overlay"), 1),
    **dict.fromkeys(("bind", "ro-bind", "dev-bind", "bind-fd", "ro-bind-fd", "bind-data", "ro-bind-data", "file"), 2),
    **dict.fromkeys(("bind-try", "ro-bind-try", "dev-bind-try"), 2),
    "overlay": 3,
}
"""The options of bwrap that mount something, with the number of their operands. The last one is the target."""


def _targets_of_bwrap(args: Sequence[str]) -> Iterator[Path]:
    """Yield where arguments of bwrap mount something."""
    for n, one in enumerate(args):
        operands = args[n + 1 : n + 1 + OPERANDS.get(one.removeprefix("--"), 0)] if one.startswith("--") else ()
        if operands:
            yield _target(operands[-1])


def _target(path: str) -> Path:
    return Path(os.path.normpath(path))


def _csv(fields: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()


def _is_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
