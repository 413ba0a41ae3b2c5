"""The sandbox of processes: what they read and write, and what they do not."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import shlex
import shutil
import signal
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from drivers.contract.codec import Command
from drivers.contract.errors import AgentUnavailable
from drivers.runtime import sandbox as sandbox_module
from drivers.runtime.process import Spawner
from drivers.runtime.sandbox import Sandbox, unavailable
from drivers.runtime.sandbox_exec import limits_filter

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=f"no sandbox here: {unavailable()}")
INSTANCE = "sandboxtest"
TERMINALS = (os.path.realpath("/dev/ptmx"), "/dev/pts")
ENV = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with `data` (hidden, with `data/workspace` in it), `work` and `other`. Not pytest's, which has many entries."""
    path = Path(tempfile.mkdtemp(prefix="portico-sandbox-"))
    for name in ("data/workspace", "work", "other"):
        (path / name).mkdir(parents=True)
    (path / "data" / "api-key").write_text("secret")
    (path / "other" / "file").write_text("public")
    yield path
    shutil.rmtree(path)


async def run(folder: Path, script: str, *, pid: int = 0, places: tuple[str, ...] = ()) -> list[str]:
    """Run a shell script in the sandbox, in `work`. Return the lines of its output; errors of commands are part of it."""
    writable, hidden = (folder / "work", folder / "data" / "workspace"), (folder / "data", folder / "missing")
    spawner = Spawner(INSTANCE).with_launcher(Sandbox(writable, hidden, folders=tuple(map(Path, places))))
    command = Command(("sh", "-c", f"exec 2>&1; {script}"), folder / "work", {**ENV, "F": str(folder), "P": str(pid)}, stdin=b"")
    process = await spawner.spawn(command)
    lines = []
    while more := await process.read_lines():
        lines += [line.decode().strip() for line in more]
    await process.exit_code()
    await process.close(0.0)
    return lines


async def test_hidden_files_are_not_read(folder: Path) -> None:
    (folder / "work" / "link").symlink_to(folder / "data" / "api-key")
    script = """
        cat $F/data/api-key; cat link; cat $F/work/../data/api-key; cat /proc/self/root$F/data/api-key
        cp $F/data/api-key copy; ln $F/data/api-key hard; mv $F/data moved; head -c 6 < $F/data/api-key
    """
    lines = await run(folder, script)
    assert not any("secret" in line for line in lines)
    assert len(lines) == 8
    assert (folder / "data" / "api-key").read_text() == "secret"


async def test_files_are_written_in_writable_folders_only(folder: Path) -> None:
    script = """
        echo 1 > new; mkdir sub; mv new sub/new; echo 2 > $F/data/workspace/new; cat sub/new $F/data/workspace/new
        echo x > $F/other/new; echo x > $F/other/file; true > $F/other/file; rm $F/other/file; mkdir $F/other/sub
        ln -s x $F/other/l; mv $F/other/file stolen; echo x > $F/data/new; echo x > $F/data/api-key; cat $F/other/file
    """
    lines = await run(folder, script)
    assert lines[:2] == ["1", "2"]
    assert lines[-1] == "public"
    assert len(lines) == 2 + 9 + 1, lines
    assert sorted(path.name for path in (folder / "other").iterdir()) == ["file"]
    assert sorted(path.name for path in (folder / "data").iterdir()) == ["api-key", "workspace"]


async def test_programs_find_what_they_need(folder: Path) -> None:
    """Programs and libraries, /proc and devices of their own, names of folders, and the network."""
    script = f"""
        ls / >/dev/null && head -c 4 /dev/urandom >/dev/null && cat /proc/self/status >/dev/null && cat /etc/passwd >/dev/null
        {shlex.quote(sys.executable)} -c 'import ssl, socket, tempfile; socket.create_server(("127.0.0.1", 0)); print("python")'
        echo x >/dev/stderr; sleep 9 & kill $! && wait $! 2>/dev/null; ulimit -n >/dev/null; echo end
    """
    assert await run(folder, script) == ["python", "x", "end"]


async def test_processes_outside_are_not_inspected(folder: Path) -> None:
    """Also by a superuser."""
    outside = await asyncio.create_subprocess_exec("sleep", "60", env={**ENV, "KEY": "secret"})
    try:
        lines = await run(folder, "cat /proc/$P/environ; cat /proc/$P/root$F/data/api-key; echo end", pid=outside.pid)
    finally:
        outside.kill()
        await outside.wait()
    assert not any("secret" in line for line in lines)
    assert lines[-1] == "end"


@pytest.mark.skipif(
    sandbox_module.landlock_version() < sandbox_module.SCOPES_ABI, reason="Landlock before version 6 does not restrict signals"
)
async def test_processes_outside_get_no_signals(folder: Path) -> None:
    outside = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        lines = await run(folder, "kill -TERM $P", pid=outside.pid)
        assert "Operation not permitted" in lines[0]
    finally:
        outside.kill()
        assert await outside.wait() == -signal.SIGKILL


SETS_LIMITS = """
import ctypes, mmap, os, platform, resource, struct, sys
pid, limit, unlimited = int(sys.argv[1]), resource.RLIMIT_CPU, (resource.RLIM_INFINITY,) * 2
def tried(name, call, *arguments):
    ctypes.set_errno(0)
    try:
        result = call(*arguments)
        number = ctypes.get_errno() or (-result if isinstance(result, int) and result < 0 else 0)
        print(name, os.strerror(number) if number else "done", flush=True)
    except OSError as error:
        print(name, error.strerror, flush=True)
tried("another's", resource.prlimit, pid, limit, (1, 1))
tried("read", resource.prlimit, pid, limit)
tried("parent's", resource.prlimit, os.getppid(), limit, (1, 1))
tried("own", resource.setrlimit, resource.RLIMIT_CORE, (0, 0))
if platform.machine() == "x86_64":
    new = struct.pack("QQ", 1, 1)
    tried("x32", ctypes.CDLL(None, use_errno=True).syscall, ctypes.c_long(302 | 1 << 30), pid, 0, new, None)
    # A call of a 32-bit program: its pointers have 32 bits, too. Without such calls in the kernel a signal ends this process.
    memory = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    memory[2048:2064] = new
    code = b"\\x53\\xbb" + struct.pack("i", pid) + b"\\x31\\xc9\\xba" + struct.pack("I", address + 2048) + b"\\x31\\xf6"
    code += b"\\xb8" + struct.pack("I", 340) + b"\\xcd\\x80\\x5b\\xc3"
    memory[: len(code)] = code
    tried("i386", ctypes.CFUNCTYPE(ctypes.c_int)(address))
"""


async def test_limits_of_other_processes_are_not_set(folder: Path) -> None:
    """Such as that of the processor time, which ends a process."""
    outside = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        before = resource.prlimit(outside.pid, resource.RLIMIT_CPU)
        (folder / "work" / "sets.py").write_text(SETS_LIMITS)
        lines = await run(folder, f"{shlex.quote(sys.executable)} sets.py $P", pid=outside.pid)
        assert resource.prlimit(outside.pid, resource.RLIMIT_CPU) == before
    finally:
        outside.kill()
        await outside.wait()
    refused = "Operation not permitted"
    assert lines[:4] == [f"another's {refused}", "read done", f"parent's {refused}", "own done"], lines
    # A kernel may lack one of the two.
    assert set(lines[4:]) <= {f"x32 {refused}", f"i386 {refused}", "Segmentation fault"}, lines


async def test_terminals_outside_are_neither_read_nor_written(folder: Path) -> None:
    """Their user's keys are typed there, and what is written there can look like another program's question."""
    terminal, end = os.openpty()
    try:
        os.write(terminal, b"typed\n")
        lines = await run(folder, f"echo written > {os.ttyname(end)}; head -n 1 < {os.ttyname(end)}; echo end")
        assert [line.partition(": ")[2].rpartition(": ")[2] for line in lines] == ["Permission denied", "Permission denied", ""]
        assert os.read(end, 100) == b"typed\n"
    finally:
        os.close(terminal)
        os.close(end)


async def test_programs_have_terminals_of_their_own_if_the_configuration_opens_them(folder: Path) -> None:
    script = f'{shlex.quote(sys.executable)} -c \'import pty; pty.spawn(["sh", "-c", "test -t 1 && echo terminal > /dev/tty"])\''
    assert "terminal" not in await run(folder, script)
    assert "terminal" in await run(folder, script, places=TERMINALS)


@pytest.mark.parametrize(
    ("architecture", "number"),
    [(0xC000003E, 302), (0xC000003E, 302 | 1 << 30), (0x40000003, 340), (0xC00000B7, 261), (0x40000028, 369)],
)
def test_the_filter_knows_the_call_of_each_architecture(architecture: int, number: int) -> None:
    limit, high = 0x7FFF1234, 0x7FFF << 32
    assert [filtered(architecture, number, 7, new_limit) for new_limit in (limit, high, 0)] == [REFUSED, REFUSED, ALLOWED]
    assert [filtered(architecture, number, pid, limit) for pid in (0, 1 << 32, 1, -1 & 0xFFFFFFFF)] == [ALLOWED] * 2 + [
        REFUSED
    ] * 2
    others = {302, 340, 261, 369, 0, 0xFFFFFFFF} - {number & 0xBFFFFFFF}
    assert {filtered(architecture, other, 7, limit) for other in others} == {ALLOWED}


ALLOWED, REFUSED = 0x7FFF0000, 0x00050000 | errno.EPERM


def filtered(architecture: int, number: int, pid: int, new_limit: int) -> int:
    """Run the filter as a little-endian kernel does. Return what it says about a call of prlimit64."""
    data = struct.pack("<iIQQQQQQQ", number - (number >> 31 << 32), architecture, 0, pid, 0, new_limit, 0, 0, 0)
    program, at, value = [*struct.iter_unpack("=HBBI", limits_filter())], 0, 0
    while True:
        code, if_equal, otherwise, k = program[at]
        at += 1
        if code == 0x20:
            [value] = struct.unpack_from("<I", data, k)
        elif code == 0x54:
            value &= k
        elif code == 0x15:
            at += if_equal if value == k else otherwise
        else:
            assert code == 0x06
            return int(k)


async def test_daemon_ends_processes_in_the_sandbox(folder: Path) -> None:
    spawner = Spawner(INSTANCE).with_launcher(Sandbox((folder / "work",), (folder / "data",)))
    process = await spawner.spawn(Command(("sh", "-c", "setsid sleep 60 & echo $!; exec sleep 60"), folder / "work", ENV))
    [child] = await process.read_lines()
    assert (await process.exit_code(0.0)) < 0
    assert not psutil.pid_exists(int(child)) or psutil.Process(int(child)).status() == psutil.STATUS_ZOMBIE


async def test_exit_code_and_missing_program(folder: Path) -> None:
    assert await run(folder, "exit 3") == []
    spawner = Spawner(INSTANCE).with_launcher(Sandbox((folder / "work",), (folder / "data",)))
    # Not the PATH of the tests: a folder on it that may not be entered gives another reason.
    process = await spawner.spawn(Command(("no-such-program",), folder / "work", {**ENV, "PATH": "/usr/bin:/bin"}))
    assert (await process.read_lines(), await process.exit_code()) == ([], 1)
    await process.close(0.0)
    assert process.stderr_tail() == ["cannot start 'no-such-program' in the sandbox: No such file or directory"]


@pytest.mark.parametrize("writable", ["", "data", "data/.."])
async def test_writable_folder_that_contains_a_hidden_file_is_refused(folder: Path, writable: str) -> None:
    spawner = Spawner(INSTANCE).with_launcher(Sandbox((folder / writable,), (folder / "data" / "api-key",)))
    with pytest.raises(AgentUnavailable, match=r"which contains .*/data/api-key"):
        await spawner.spawn(Command(("true",), folder / "work", ENV))


@pytest.mark.parametrize("link", ["work/link", "data/workspace/link"])
def test_link_to_hidden_files_makes_nothing_writable(folder: Path, link: str) -> None:
    (folder / "data" / "keys").mkdir()
    (folder / link).symlink_to(folder / "data" / "keys")
    with pytest.raises(AgentUnavailable, match="symbolic link"):
        os.close(Sandbox((folder / link,), (folder / "data",)).ruleset())


@pytest.mark.parametrize("place", ["work/folder", "work/folder/below", "work/file"])
async def test_a_place_that_an_agent_has_replaced_by_a_link_is_refused(folder: Path, place: str) -> None:
    (folder / "other" / "below").mkdir()
    for name, target in (("folder", "other"), ("file", "other/file")):
        (folder / "work" / name).symlink_to(folder / target)
    with pytest.raises(AgentUnavailable, match="has become a symbolic link, or is behind one"):
        await run(folder, "true", places=(f"{folder}/{place}",))


@pytest.mark.parametrize("hidden", ["data", "link"])
def test_folder_below_a_hidden_one_is_writable_however_that_is_named(folder: Path, hidden: str) -> None:
    (folder / "link").symlink_to(folder / "data")
    (folder / "other-link").symlink_to(folder / "other")
    writable = (folder / hidden / "workspace", folder / "data" / "workspace", folder / "other-link", folder / "other" / "file")
    os.close(Sandbox(writable, (folder / hidden,)).ruleset())


@pytest.mark.parametrize(("abi", "reason"), [(0, "this kernel has none"), (2, "this kernel has version 2")])
async def test_sandbox_is_refused_without_landlock(folder: Path, abi: int, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "landlock_version", lambda: abi)
    with pytest.raises(AgentUnavailable, match=reason):
        await Spawner(INSTANCE).with_launcher(Sandbox((folder,), ())).spawn(Command(("true",), folder, ENV))


async def test_no_variable_of_a_command_holds_before_it_is_in_the_sandbox(folder: Path) -> None:
    """An agent chooses those of its terminals. The dynamic loader of a program outside of the sandbox would write this file."""
    spawner = Spawner(INSTANCE).with_launcher(Sandbox((folder / "work",), ()))
    outside = folder / "outside"
    outside.mkdir()
    chosen = {
        "LD_DEBUG": "files",
        "LD_DEBUG_OUTPUT": f"{outside}/file",
        "PYTHONHOME": "/nowhere",
        "CHOSEN": "by the agent \udcff",
    }
    code = "import json, os; json.dump(dict(os.environ), open('found', 'w'))"
    command = Command((sys.executable, "-I", "-S", "-c", code), folder / "work", {**ENV, **chosen})
    process = await spawner.spawn(command)
    assert await process.exit_code() == 0, process.stderr_tail()
    await process.close(0.0)
    found = json.loads((folder / "work" / "found").read_text())
    assert found.items() >= chosen.items() and not [name for name in found if name.startswith("_PORTICO_S")]
    assert list(outside.iterdir()) == []
