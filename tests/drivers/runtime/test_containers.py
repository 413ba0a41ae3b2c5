"""Processes in bwrap and in containers: what they see, their pipes and exit codes, and that nothing of them is left running."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from drivers.contract.codec import Command
from drivers.contract.errors import AgentUnavailable
from drivers.runtime import containers
from drivers.runtime.containers import Container, Mount, Runtime, installation, names_of, remove_left_behind
from drivers.runtime.launcher import LaunchedCommand
from drivers.runtime.process import Process, Spawner
from drivers.runtime.process_tree import MARKER
from tests.support.container_runtimes import (
    IMAGE,
    SYSTEM_MOUNTS,
    bwrap_problem,
    docker_daemon,
    install_fake_docker,
    require_podman,
)
from tests.support.manual_clock import ManualClock
from tests.support.swapped_folders import swapped
from tests.support.waiting import wait_until

INSTANCE = f"c0ffee{os.getpid():08x}"
_seconds = itertools.count(100_000 + 100 * os.getpid())
"""The times of processes that sleep, each another one, by which they are found."""
EXIT_SECONDS = 60.0
"""podman's first container of a machine that is busy takes longer than an agent may take to exit."""
ENV = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "SECRET_TOKEN": "sesame"}


@dataclass
class Place:
    """A container for commands in `work`; `hidden` has a secret, and `home` is writable."""

    container: Container
    base: Path
    is_stand_in: bool
    spawned: list[Process] = field(default_factory=list)

    @property
    def work(self) -> Path:
        return self.base / "work"

    def spawner(self, **changes: object) -> Spawner:
        return Spawner(INSTANCE).with_launcher(replace(self.container, **changes))  # type: ignore[arg-type]

    async def spawn(self, script: str, **changes: object) -> Process:
        process = await self.spawner(**changes).spawn(Command(("sh", "-c", script), self.work, ENV))
        self.spawned.append(process)
        return process

    async def run(self, script: str, **changes: object) -> tuple[int, list[str]]:
        """Run a shell script; return its exit code and the lines of its output and errors."""
        process = await self.spawn(f"exec 2>&1; {script}", **changes)
        process.end_input()
        lines = []
        while more := await process.read_lines():
            lines += [line.decode().rstrip() for line in more]
        code = await process.exit_code(EXIT_SECONDS)
        await process.close(0.0)
        return code, lines or process.stderr_tail()


@pytest.fixture(scope="module")
def docker() -> Iterator[Mapping[str, str]]:
    """The variables with which docker's client finds a daemon."""
    with docker_daemon() as own:
        yield own


# Of a runtime that works, podman takes two seconds for each container.
@pytest.fixture(
    params=[
        "bwrap",
        pytest.param("podman", marks=pytest.mark.long),
        pytest.param("docker", marks=pytest.mark.long),
        "stand-in for docker",
    ]
)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    runtime: Runtime = request.param.rpartition(" ")[2]
    is_stand_in = runtime != request.param
    for name in ("work", "home", "hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "hidden" / "api-key").write_text("secret")
    environ = {**os.environ, "HOME": str(tmp_path / "hidden")}
    if runtime == "bwrap":
        if problem := bwrap_problem():
            pytest.skip(problem)
    else:
        own = {"podman": require_podman, "docker": lambda: request.getfixturevalue("docker")}
        environ |= install_fake_docker(tmp_path) if is_stand_in else own[runtime]()
    program = shutil.which(runtime, path=environ["PATH"])
    assert program is not None
    mounts = (*(Mount(Path(path), Path(path)) for path in SYSTEM_MOUNTS),)
    image = "" if runtime == "bwrap" else IMAGE
    container = Container(runtime, program, environ, image, mounts, (tmp_path / "home",), (tmp_path / "hidden",))
    found = Place(container, tmp_path, is_stand_in)
    yield found
    # Also of a test that has failed: the tests after it would find its container.
    for process in found.spawned:
        await process.close(0.0)
    if runtime != "bwrap":
        assert await names_of(program, INSTANCE, environ) == []


def sleeping(seconds: int) -> list[psutil.Process]:
    """The processes that run `sleep SECONDS`."""
    return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", str(seconds)]]


async def test_pipes_and_exit_code_are_those_of_the_command(place: Place) -> None:
    process = await place.spawn("echo begun; read line; echo got $line; echo trouble >&2; exit 7")
    assert await process.read_lines() == [b"begun"]
    process.write(b"a line\n")
    assert await process.read_lines() == [b"got a line"]
    assert await process.exit_code(EXIT_SECONDS) == 7
    assert process.stderr_tail() == ["trouble"]
    await process.close(0.0)


async def test_working_folder_and_home_are_writable_and_keep_their_paths(place: Place) -> None:
    code, lines = await place.run(f"pwd; echo new > made; echo new > {place.base}/home/made; id -u")
    assert (code, lines) == (0, [str(place.work), str(os.getuid())])
    for folder in (place.work, place.base / "home"):
        assert (folder / "made").read_text() == "new\n"
        assert (folder / "made").stat().st_uid == os.getuid()


async def test_files_of_the_command_are_there(place: Place) -> None:
    files = {place.base / "state" / "mcp.json": b"{}", place.base / "elsewhere" / "hook.sh": b"echo hook"}
    script = f"cat {place.base}/state/mcp.json; sh {place.base}/elsewhere/hook.sh"
    command = Command(("sh", "-c", script), place.work, ENV, stdin=b"", files=files, state=place.base / "state")
    process = await place.spawner().spawn(command)
    lines = await process.read_lines()
    while more := await process.read_lines():
        lines += more
    assert b"".join(lines) == b"{}hook"
    await process.close(0.0)


async def test_rest_is_hidden_or_read_only(place: Place) -> None:
    """Also to a superuser, to whom bwrap 0.8.0 leaves /proc/sys writable. Only asks: a write would change the machine."""
    if place.is_stand_in:
        pytest.skip("the stand-in for docker runs the command on this machine")
    files = "/usr /proc/sys /proc/sys/kernel/core_pattern /proc/sysrq-trigger /sys/kernel"
    script = (
        f"ls {place.base}/hidden; for path in {files}; do test -w $path && echo $path is writable; done; ls -A /run; echo end"
    )
    _, lines = await place.run(script)
    hidden = ["secrets", "podman-init", ".containerenv", "docker"] if place.container.has_image else []
    assert [line for line in lines if not line.startswith("ls: ") and line not in hidden] == ["end"], lines


async def test_no_capabilities_and_no_other_processes(place: Place) -> None:
    if place.is_stand_in:
        pytest.skip("the stand-in for docker runs the command on this machine")
    _, lines = await place.run(f"grep CapEff /proc/self/status; kill -0 {os.getpid()}; set -- /proc/[0-9]*; echo $#")
    assert lines[0].split() == ["CapEff:", "0000000000000000"]
    assert "No such process" in lines[1]
    assert int(lines[-1]) < 8


async def test_no_secret_is_in_arguments(place: Place) -> None:
    process = await place.spawn('test "$SECRET_TOKEN" = sesame && echo has it; read line')
    assert await process.read_lines() == [b"has it"]
    shown = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
    assert not any("sesame" in line and "test" not in line for line in shown), shown
    assert not any("SECRET_TOKEN=" in line for line in shown)
    await process.close(0.0)


async def test_close_ends_all_that_runs_in_it(place: Place) -> None:
    seconds = next(_seconds)
    process = await place.spawn(f"trap '' TERM; (env -i setsid sleep {seconds} &); sleep {seconds} & echo begun; wait")
    assert await process.read_lines() == [b"begun"]
    await wait_until(lambda: len(sleeping(seconds)) == 2, "both sleep")
    await process.close(0.0)
    assert sleeping(seconds) == []


async def test_what_it_leaves_behind_ends_with_it(place: Place) -> None:
    if place.is_stand_in:
        pytest.skip("the stand-in for docker has no process namespaces")
    seconds = next(_seconds)
    code, _ = await place.run(f"env -i setsid sleep {seconds} >/dev/null 2>&1 & echo begun")
    assert code == 0
    # The system may not have removed the killed process yet.
    await wait_until(lambda: sleeping(seconds) == [])


async def test_killed_client_leaves_nothing_running(place: Place) -> None:
    """As after a kill by the system for lack of memory."""
    seconds = next(_seconds)
    process = await place.spawn(f"sleep {seconds} & echo begun; wait")
    assert await process.read_lines() == [b"begun"]
    psutil.Process(process.pid).kill()
    await process.close(0.0)
    assert sleeping(seconds) == []


async def test_containers_of_an_earlier_daemon_are_removed_and_no_others(place: Place) -> None:
    if not place.container.has_image:
        pytest.skip("bwrap has no containers that outlive it")
    other = Spawner("another1").with_launcher(place.container)
    seconds = next(_seconds)
    script = f"sleep {seconds} & echo begun; wait"
    process = await place.spawn(script)
    kept = await other.spawn(Command(("sh", "-c", script), place.work, ENV))
    assert [await process.read_lines(), await kept.read_lines()] == [[b"begun"]] * 2
    runtime, program, environ = place.container.runtime, place.container.program, place.container.environ
    assert len(await names_of(program, INSTANCE, environ)) == 1
    assert await remove_left_behind(INSTANCE, [runtime], environ) == {}
    assert await names_of(program, INSTANCE, environ) == []
    await wait_until(lambda: len(sleeping(seconds)) == 1, "the other one is left")
    await process.close(0.0)
    await kept.close(0.0)
    assert sleeping(seconds) == []


async def test_use_is_that_of_all_processes_where_it_is_known(place: Place) -> None:
    process = await place.spawn("sleep 60 & echo begun; wait")
    assert await process.read_lines() == [b"begun"]
    use = await process.use()
    if place.container.has_image:
        assert use is None
    else:
        assert use is not None and use.processes >= 3 and use.memory > 1_000_000
    await process.close(0.0)


async def test_program_that_is_not_there(place: Place) -> None:
    process = await place.spawner().spawn(Command(("no-such-program",), place.work, ENV, stdin=b""))
    assert await process.read_lines() == []
    assert await process.exit_code(EXIT_SECONDS) != 0
    await process.close(0.0)


async def test_working_folder_behind_a_link_is_refused(place: Place) -> None:
    (place.base / "link").symlink_to(place.base / "hidden")
    with pytest.raises(AgentUnavailable, match="symbolic link"):
        await place.spawner().spawn(Command(("true",), place.base / "link", ENV))


async def test_folder_that_is_replaced_while_it_is_mounted(place: Place) -> None:
    """Another agent may replace a folder between the check of its path and the mount: nothing starts in what it leads to."""
    if place.is_stand_in:
        pytest.skip("the stand-in for docker mounts nothing: its command looks a path up each time")
    (place.work / "mine").write_text("")
    seen = set[str]()
    with swapped(place.work, place.base / "hidden"):
        for _ in range(40 if place.container.runtime == "bwrap" else 12):
            with suppress(AgentUnavailable):
                process = await place.spawn("exec 2>&1; echo started; ls; cat api-key")
                lines = []
                while more := await process.read_lines():
                    lines += [line.decode().rstrip() for line in more]
                seen |= {*lines, *process.stderr_tail()}
                await process.close(0.0)
    assert "secret" not in seen and "api-key" not in seen, seen


async def test_folder_that_is_replaced_before_the_mount_is_refused(place: Place) -> None:
    """The same, each time: the runtime's program begins with the replacement."""
    work, program = place.work, place.base / "replacing"
    replace_folder = f"mv {work} {work}-before; ln -s {place.base}/hidden {work}"
    program.write_text(f'#!/bin/sh\ncase "$*" in *api-key*) {replace_folder};; esac\nexec {place.container.program} "$@"\n')
    program.chmod(0o755)
    code, lines = await place.run("cat api-key", program=str(program))
    # bwrap finds nothing to mount where the link leads into a folder that it hides.
    assert "secret" not in lines and ((code, "was replaced" in lines[-1]) == (125, True) or "Can't bind mount" in lines[-1]), (
        lines
    )
    work.unlink()
    (place.base / "work-before").rename(work)
    assert await place.run("echo begun; exit 3") == (3, ["begun"])


async def test_image_that_is_not_there(place: Place) -> None:
    if not place.container.has_image:
        pytest.skip("bwrap has no images")
    with pytest.raises(AgentUnavailable, match=f"missing is not here; get it with `{place.container.runtime} pull missing`"):
        await place.spawn("true", image="missing")


async def test_network(place: Place) -> None:
    """That of the machine, on whose loopback the gateway's MCP server is; or none."""
    if place.is_stand_in:
        pytest.skip("the stand-in for docker has no network namespaces")
    own = os.readlink("/proc/self/ns/net")
    assert await place.run("readlink /proc/self/ns/net") == (0, [own])
    code, lines = await place.run("readlink /proc/self/ns/net", network="none")
    assert (code, len(lines)) == (0, 1) and lines != [own]


def container(runtime: Runtime, **changes: object) -> Container:
    made = Container(runtime, f"/usr/bin/{runtime}", {"HOME": "/root", "PATH": "/bin", "TMPDIR": "/tmp/x"}, "image:1")
    return replace(made, **changes)  # type: ignore[arg-type]


def located(where: Container, work: Path, **env: str) -> tuple[list[str], dict[str, str]]:
    found = where.located(LaunchedCommand.of(Command(("claude", "--print"), work, env), "c0ffee.1"))
    return list(found.argv), dict(found.env)


@pytest.mark.parametrize(
    ("runtime", "args", "checked"),
    [
        ("docker", ("--label=folder={work}",), True),
        ("docker", ("--env", "FOLDER={work}"), True),
        ("docker", ("-v", "{work}:/data"), True),
        ("docker", ("--volume={work}/sub:{work}/sub",), True),
        ("docker", ("--mount=type=bind,source={work},target=/data",), True),
        ("docker", ("-v", "/data:{work}"), False),
        ("docker", ("-v/data:{work}:ro",), False),
        ("docker", ("--volume=/data:{work}/",), False),
        ("podman", ("--mount", "type=volume,src=data,dst={work}"), False),
        ("podman", ("--tmpfs={work}:size=1m",), False),
        ("podman", ("--tmpfs", "{parent}"), False),
        ("bwrap", ("--setenv", "FOLDER", "{work}"), True),
        ("bwrap", ("--bind", "{work}", "/data"), True),
        ("bwrap", ("--bind", "/data", "{work}"), False),
        ("bwrap", ("--tmpfs", "{work}"), False),
    ],
)
def test_folder_is_checked_unless_arguments_mount_something_in_its_place(
    runtime: Runtime, args: tuple[str, ...], checked: bool, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    own = tuple(one.format(work=work, parent=tmp_path) for one in args)
    argv, _ = located(container(runtime, args=own, image="" if runtime == "bwrap" else "image:1"), work)
    script = argv[argv.index("-c") + 1]
    # bwrap also mounts the folders of this program that are not below /usr.
    found = re.search(r"%d:%i -- (.*)\) \|\|", script)
    assert (str(work) in shlex.split(found[1] if found else "")) == checked, script


@pytest.mark.parametrize("runtime", ["podman", "docker"])
def test_command_line_of_a_container(runtime: Runtime, tmp_path: Path) -> None:
    folder = tmp_path / "a, b"
    folder.mkdir()
    where = container(
        runtime, mounts=(Mount(folder, Path("/data")),), memory="2g", cpus=1.5, network="agents", args=("--pids-limit=99",)
    )
    argv, env = located(where, tmp_path, ANTHROPIC_API_KEY="key", HOME="/srv/home", PATH="/bin", TMPDIR="/tmp/x")
    assert argv[:6] == [f"/usr/bin/{runtime}", "run", "--rm", "--interactive", "--init", "--pull=never"]
    assert [*argv[-8:-4], *argv[-3:]] == ["--pids-limit=99", "--entrypoint=/bin/sh", "image:1", "-c", "sh", "claude", "--print"]
    expected = {
        f"--name=portico-c0ffee.{runtime}.1", "--label=portico.instance=c0ffee", "--network=agents", "--memory=2g", "--cpus=1.5",
        "--cap-drop=all", "--security-opt=no-new-privileges", "--log-driver=none", f"--workdir={tmp_path}",
        f"--mount=type=bind,source={tmp_path},target={tmp_path}", f'--mount=type=bind,"source={folder}",target=/data,readonly',
        "--env=ANTHROPIC_API_KEY", f"--env={MARKER}", "--env=HOME=/srv/home",
    }  # fmt: skip
    assert expected <= set(argv)
    # What the image has itself, and what is not there.
    assert not any("TMPDIR" in one or "PATH" in one for one in argv)
    # The client has its own home and the agent's key.
    assert (env["HOME"], env["ANTHROPIC_API_KEY"], env["TMPDIR"]) == ("/root", "key", "/tmp/x")


@pytest.mark.parametrize("runtime", ["bwrap", "podman", "docker"])
def test_variables_of_the_loader_do_not_hold_in_the_runtimes_own_process(runtime: Runtime, tmp_path: Path) -> None:
    where = container(runtime, image="" if runtime == "bwrap" else "image:1", environ={"LD_LIBRARY_PATH": "/own"})
    argv, env = located(where, tmp_path, LD_PRELOAD="/work/of-the-agent.so", LD_LIBRARY_PATH="/work", CHOSEN="1")
    given = {name: value for name, value in env.items() if name.startswith("LD_")}
    assert given == {"LD_LIBRARY_PATH": "/own"} and env["CHOSEN"] == "1"
    for name, value in (("LD_PRELOAD", "/work/of-the-agent.so"), ("LD_LIBRARY_PATH", "/work")):
        inside = ["--setenv", name, value] if runtime == "bwrap" else [f"--env={name}={value}"]
        assert " ".join(inside) in " ".join(argv)


def test_variables_of_the_configuration_are_passed_on_whatever_they_name(tmp_path: Path) -> None:
    argv, _ = located(container("docker", own_env=frozenset({"PATH"})), tmp_path, PATH="/bin")
    assert "--env=PATH" in argv


def test_bwrap_mounts_on_what_exists_or_can_be_created(tmp_path: Path) -> None:
    for name in ("work", "cache", "shown", "hidden"):
        (tmp_path / name).mkdir()

    def mount(target: Path, *others: Mount) -> list[str]:
        mounts = (*others, Mount(tmp_path / "cache", target, writable=True))
        argv, _ = located(container("bwrap", mounts=mounts, hidden=(tmp_path / "hidden",)), tmp_path / "work")
        return argv[argv.index(str(tmp_path / "cache")) :][:2]

    shown = Mount(tmp_path / "shown", Path("/opt"))
    for target in ("/tmp/new/pip", "/srv", "/dev/new", tmp_path / "work" / "new", tmp_path / "hidden" / "new"):
        assert mount(Path(target)) == [str(tmp_path / "cache"), str(target)]
    missing = f"{tmp_path}/cache cannot be mounted at /new-folder/pip, which does not exist: .*; create /new-folder/pip, or"
    with pytest.raises(AgentUnavailable, match=missing):
        mount(Path("/new-folder/pip"))
    with pytest.raises(AgentUnavailable, match=f"mounted at /opt/new, .*; create {tmp_path}/shown/new, or"):
        mount(Path("/opt/new"), shown)
    (tmp_path / "shown" / "new").mkdir()
    assert mount(Path("/opt/new"), shown)[1] == "/opt/new"


def test_podman_gets_no_path_with_a_line_feed(tmp_path: Path) -> None:
    """It would take what follows for another mount."""
    (tmp_path / "new\nline").mkdir()
    with pytest.raises(AgentUnavailable, match=r"podman cannot mount '.*/new\\nline', whose path has a line feed"):
        located(container("podman"), tmp_path / "new\nline")


def test_home_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for home in (tmp_path / "file", tmp_path / "file" / "home"):
        with pytest.raises(AgentUnavailable, match=f"{home} cannot be the home of the container: .*; set container.home to"):
            located(container("bwrap", created=(home,)), tmp_path)


async def test_error_names_the_path_that_has_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = Command(("true",), tmp_path, ENV, state=tmp_path / "file")
    with pytest.raises(AgentUnavailable, match=f"{tmp_path}/file cannot be used: File exists"):
        await Spawner().with_launcher(container("bwrap")).spawn(command)


def test_bwrap_shows_the_program_and_python_where_they_are_hidden(tmp_path: Path) -> None:
    program = tmp_path / "home" / ".local" / "bin" / "claude"
    versions = tmp_path / "home" / ".local" / "share" / "claude" / "versions"
    program.parent.mkdir(parents=True)
    versions.mkdir(parents=True)
    (versions / "2.1.329").write_text("")
    program.symlink_to(versions / "2.1.329")
    where = container("bwrap", hidden=(tmp_path / "home",), installed=str(program))
    (tmp_path / "work").mkdir()
    argv, _ = located(where, tmp_path / "work")
    joined = " ".join(argv)
    assert f"--tmpfs {tmp_path}/home" in joined
    assert f"--ro-bind {versions} {versions}" in joined and f"--ro-bind {program.parent} {program.parent}" in joined
    assert joined.index(f"--tmpfs {tmp_path}/home") < joined.index(f"--ro-bind {versions}")
    assert f"--chdir {tmp_path}/work -- /bin/sh -c" in joined and joined.endswith(" sh claude --print")


def test_installation_of_an_npm_package_has_its_prefix(tmp_path: Path) -> None:
    package = tmp_path / "v22" / "lib" / "node_modules" / "@openai" / "codex" / "bin" / "codex.js"
    program = tmp_path / "v22" / "bin" / "codex"
    package.parent.mkdir(parents=True)
    program.parent.mkdir()
    package.write_text("")
    program.symlink_to("../lib/node_modules/@openai/codex/bin/codex.js")
    assert list(installation(str(program))) == [program.parent, tmp_path / "v22"]


async def test_stand_in_of_docker_gets_the_command_line_of_docker(tmp_path: Path) -> None:
    environ = {**os.environ, **install_fake_docker(tmp_path)}
    program = str(tmp_path / "fake-bin" / "docker")
    spawner = Spawner(INSTANCE).with_launcher(Container("docker", program, environ, "image:1"))
    process = await spawner.spawn(Command((sys.executable, "-c", "print(1)"), tmp_path, ENV, stdin=b""))
    assert await process.read_lines() == [b"1"]
    await process.close(0.0)
    calls = [json.loads(line) for line in (tmp_path / "docker" / "calls").read_text().splitlines()]
    name = next(one for one in calls[1] if one.startswith("--name=")).removeprefix("--name=")
    assert name.startswith(f"portico-{INSTANCE}.docker.")
    assert [call[0] for call in calls] == ["image", "run", "rm"]
    assert calls[2] == ["rm", "--force", name]


async def test_container_of_a_runtime_that_does_not_answer_is_removed_later(tmp_path: Path, clock: ManualClock) -> None:
    """The end of the process waits for one answer, and not for three."""
    program, calls, removed = tmp_path / "docker", tmp_path / "calls", tmp_path / "removed"
    program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n[ -e {tmp_path}/works ] || exec sleep 600\ntouch {removed}\n')
    program.chmod(0o755)
    removing = asyncio.create_task(containers.remove("docker", str(program), ["portico-x"], {**os.environ}, clock))
    await wait_until(lambda: calls.exists() and calls.read_text())
    await clock.expire(containers.CALL_SECONDS)
    problem = await removing
    assert problem is not None and "docker has not answered within 20 s" in problem
    assert calls.read_text() == "rm --force portico-x\n"
    (tmp_path / "works").touch()
    await clock.expire(containers.SILENT_RETRIES[0])
    await wait_until(removed.exists, "it is removed")
    await containers.end_removals()
    assert not containers._later


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_command_of_a_runtime_that_is_killed_is_waited_for(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    """The event loop may end right after it, with a process whose end was never reported."""
    program, started = tmp_path / "docker", list[asyncio.subprocess.Process]()
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    start = asyncio.create_subprocess_exec

    async def noted(*arguments: object, **options: object) -> asyncio.subprocess.Process:
        started.append(await start(*arguments, **options))  # type: ignore[arg-type]
        return started[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    calling = asyncio.create_task(containers.call(str(program), "info", environ={**os.environ}, clock=clock))
    await wait_until(lambda: bool(started), "it is started")
    if cancelled:
        calling.cancel()
    else:
        await clock.expire(containers.CALL_SECONDS)
    with pytest.raises(asyncio.CancelledError if cancelled else TimeoutError):
        await calling
    assert started[0].returncode == -9


async def test_removals_end_while_they_start_a_process(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the event loop would wait for them for ever."""
    program, tried = tmp_path / "docker", tmp_path / "tried"
    program.write_text(f"#!/bin/sh\n[ -e {tried} ] || touch {tried} && exec sleep 600\n")
    program.chmod(0o755)
    starting, start = asyncio.Event(), asyncio.create_subprocess_exec

    async def started(*arguments: object, **options: object) -> asyncio.subprocess.Process:
        if tried.exists():
            asyncio.get_running_loop().call_soon(starting.set)
        return await start(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    removing = asyncio.create_task(containers.remove("docker", str(program), ["portico-x"], {**os.environ}, clock))
    await wait_until(tried.exists)
    await clock.expire(containers.CALL_SECONDS)
    assert await removing is not None
    async with asyncio.timeout(60):
        await clock.expire(containers.SILENT_RETRIES[0])
        await starting.wait()
        await containers.end_removals()
    assert not containers._later


@pytest.mark.parametrize("runtime", ["bwrap", "docker"])
def test_a_process_in_a_container_is_confined(runtime: Runtime, tmp_path: Path) -> None:
    """The socket of the editors refuses it then."""
    where = container(runtime, image="" if runtime == "bwrap" else "image:1")
    assert where.located(LaunchedCommand.of(Command(("sh",), tmp_path, {}), f"{INSTANCE}.1")).confined


def test_no_secret_with_a_name_of_the_runtime_is_in_the_arguments(tmp_path: Path) -> None:
    names = ("DOCKER_AUTH_CONFIG", "DOCKER_PASSWORD", "CONTAINER_REGISTRY_TOKEN", "STORAGE_ACCOUNT_KEY", "DBUS_SECRET")
    container = Container("docker", "/usr/bin/docker", {"PATH": "/usr/bin", "DOCKER_HOST": "unix:///run/d.sock"}, "app:1")
    env = {**dict.fromkeys(names, "sesame"), "DOCKER_HOST": "tcp://agent"}
    located = container.located(LaunchedCommand.of(Command(("sh",), tmp_path, env), f"{INSTANCE}.1"))
    assert not [argument for argument in located.argv if "sesame" in argument]
    assert {f"--env={name}" for name in names} <= {*located.argv} and all(located.env[name] == "sesame" for name in names)
    assert "--env=DOCKER_HOST=tcp://agent" in located.argv and located.env["DOCKER_HOST"] == "unix:///run/d.sock"
