"""Starting a process, and the errors of a failed start."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from drivers.contract.codec import Command
from drivers.contract.errors import AgentUnavailable
from drivers.runtime import process as runtime_process
from drivers.runtime.confined_files import open_folder
from drivers.runtime.file_threads import wait_for_threads
from drivers.runtime.process import Spawner
from drivers.runtime.process_tree import MARKER
from drivers.runtime.sandbox import Sandbox, unavailable
from tests.drivers.small_programs import StartProcess, lines_of, python
from tests.support.waiting import wait_until

ENV = {"GREETING": "ahoy", "LC_ALL": "C.UTF-8"}


async def test_the_environment_is_the_given_one_and_the_marker(start: StartProcess) -> None:
    process = await start("print(json.dumps(dict(os.environ)))", **ENV)
    (line,) = await lines_of(process)
    seen = json.loads(line)
    instance, _, own = seen.pop(MARKER).partition(".")
    assert (instance, len(own)) == ("test", 32)
    assert seen == ENV


async def test_every_process_has_a_marker_of_its_own(start: StartProcess) -> None:
    code = f"print(os.environ[{MARKER!r}])"
    assert await lines_of(await start(code)) != await lines_of(await start(code))


async def test_a_process_runs_in_its_folder_and_in_its_own_session(start: StartProcess, tmp_path: Path) -> None:
    process = await start(f"print(os.path.samefile('.', {str(tmp_path)!r})); print(os.getsid(0) == os.getpid())")
    assert await lines_of(process) == [b"True", b"True"]


async def test_only_the_three_pipes_are_open(start: StartProcess) -> None:
    theirs = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(theirs, True)
    process = await start(f"print([os.path.exists(f'/proc/self/fd/{{fd}}') for fd in (0, 1, 2, {theirs})])")
    os.close(theirs)
    assert await lines_of(process) == [b"[True, True, True, False]"]


async def test_files_are_written_first_and_are_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "secret.txt"
    code = f"print(open({str(path)!r}).read(), oct(os.stat({str(path)!r}).st_mode & 0o777))"
    process = await Spawner().spawn(Command(python(code), tmp_path, {}, files={path: b"key"}))
    assert await lines_of(process) == [b"key 0o600"]
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await process.close(0.0)


async def start_error(command: Command) -> str:
    """The error of a failed start; no process remains."""
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(AgentUnavailable) as caught:
        await Spawner().spawn(command)
    assert {child.pid for child in psutil.Process().children()} <= before
    return str(caught.value)


async def test_a_missing_program_is_an_error(tmp_path: Path) -> None:
    message = await start_error(Command(("no-such-program", "--version"), tmp_path, {}))
    assert message == f"cannot start 'no-such-program' in {tmp_path}: [Errno 2] No such file or directory: 'no-such-program'"


async def test_a_script_whose_interpreter_is_missing_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "script"
    for first, reason in (
        ("#!/no/such/python3 -u\n", "its first line names the interpreter '/no/such/python3', which does not exist"),
        (
            "#!/bin/sh\r\n",
            "its first line names the interpreter '/bin/sh\\r', which does not exist; its lines end as on Windows: convert it, "
            "for instance with dos2unix",
        ),
    ):
        script.write_text(first)
        script.chmod(0o700)
        assert await start_error(Command((str(script),), tmp_path, {})) == f"cannot start '{script}' in {tmp_path}: {reason}"


async def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    message = await start_error(Command(python(""), tmp_path / "gone", {}))
    assert message == f"the working folder {tmp_path}/gone does not exist; create it, or set the agent's cwd to one that does"


async def test_a_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "does not exist" in await start_error(Command(python(""), tmp_path / "file", {}))


async def test_a_folder_behind_a_symbolic_link_is_an_error(tmp_path: Path) -> None:
    """A working folder is a real path when it is checked: a link in it has been created since."""
    (tmp_path / "outside" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to("outside")
    for folder in (tmp_path / "link", tmp_path / "link" / "sub"):
        message = await start_error(Command(python("open('created', 'w')"), folder, {}))
        assert message == f"the working folder {folder} cannot be opened: its path contains a symbolic link"
    assert not list((tmp_path / "outside").rglob("created"))


@pytest.mark.parametrize("descriptor_paths", [True, False])
async def test_a_folder_replaced_by_a_link_during_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, descriptor_paths: bool
) -> None:
    """Also where an open folder has no path, as on macOS."""
    if not descriptor_paths:
        monkeypatch.setattr(runtime_process, "has_descriptor_paths", lambda: False)
    work = tmp_path / "work"
    for folder in (work, tmp_path / "outside"):
        folder.mkdir()

    def open_and_replace(path: Path) -> int:
        descriptor = open_folder(path)
        work.rename(tmp_path / "moved")
        work.symlink_to("outside")
        return descriptor

    monkeypatch.setattr(runtime_process, "open_folder", open_and_replace)
    process = await Spawner().spawn(Command(python("import os; print(os.getcwd())"), work, {}))
    assert await lines_of(process) == [str(tmp_path / "moved").encode()]
    await process.close(0.0)


async def test_no_descriptor_of_a_working_folder_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    for command in (Command(("no-such-program",), tmp_path, {}), Command(python(""), tmp_path, {}, files={tmp_path: b""})):
        await start_error(command)
    cancelled = asyncio.create_task(Spawner().spawn(Command(python(""), tmp_path, {})))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    # The thread that opens the folder may not have begun.
    await asyncio.to_thread(wait_for_threads)
    await wait_until(lambda: len(os.listdir("/dev/fd")) == before)


async def test_a_program_that_is_not_executable_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    message = await start_error(Command((str(program),), tmp_path, {}))
    assert message == f"cannot start '{program}' in {tmp_path}: [Errno 13] Permission denied: '{program}'"


async def test_a_program_of_an_unknown_format_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x00\x01\x02")
    program.chmod(0o700)
    assert "Exec format error" in await start_error(Command((str(program),), tmp_path, {}))


async def test_an_invalid_argument_is_an_error(tmp_path: Path) -> None:
    assert "null byte" in await start_error(Command((*python(""), "a\0b"), tmp_path, {}))


async def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "secret.txt"
    assert await start_error(Command(python(""), tmp_path, {}, files={path: b"key"})) == f"cannot write {path}: File exists"


@pytest.mark.parametrize(
    ("link", "target", "error"),
    [
        ("settings.json", "../secret", "leads out of"),
        ("settings.json", "../new", "leads out of"),
        ("own", "../outside", "leads out of"),
        ("own", "inner", None),
        ("settings.json", "inner/file", None),
    ],
)
async def test_files_are_not_written_where_a_link_leads_out_of_the_state(
    tmp_path: Path, link: str, target: str, error: str | None
) -> None:
    """The CLI of an earlier start can have created it."""
    state = tmp_path / "state"
    for folder in (state / "inner", tmp_path / "outside"):
        folder.mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (state / link).symlink_to(target)
    files = {state / "settings.json": b"1", state / "own" / "new" / "file": b"2"}
    command = Command(python(""), tmp_path, {}, files=files, state=state)
    if error is None:
        await (await Spawner().spawn(command)).close(0.0)
        assert {path.read_bytes(): stat.S_IMODE(path.stat().st_mode) for path in files} == {b"1": 0o600, b"2": 0o600}
        assert stat.S_IMODE((state / "own" / "new").stat().st_mode) == 0o700
    else:
        assert error in await start_error(command)
    assert (tmp_path / "secret").read_text() == "secret"
    assert not list((tmp_path / "outside").iterdir()) and not (tmp_path / "new").exists()


async def test_a_fifo_in_the_state_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    message = await start_error(Command(python(""), tmp_path, {}, files={tmp_path / "fifo": b"key"}, state=tmp_path))
    assert message.startswith(f"cannot write {tmp_path}/fifo: ")


async def test_the_program_is_searched_on_the_path_of_its_environment(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "hello-of-the-test"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o700)
    process = await Spawner().spawn(Command((program.name,), tmp_path, {"PATH": f"{program.parent}:/usr/bin:/bin"}))
    assert await lines_of(process) == [b"hello"]
    await process.close(0.0)


async def test_starts_that_a_file_system_blocks_do_not_delay_others(tmp_path: Path, start: StartProcess) -> None:
    os.mkfifo(tmp_path / "blocked")
    command = Command(python("pass"), tmp_path, {}, files={tmp_path / "blocked": b""})
    # More than the default threads of the event loop.
    blocked = [asyncio.create_task(Spawner("test").spawn(command)) for _ in range(33)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(30):
            assert await lines_of(await start("print('begun')")) == [b"begun"]
        assert not any(task.done() for task in blocked)
    finally:
        for task in blocked:
            task.cancel()
        await asyncio.wait(blocked)
        reader = os.open(tmp_path / "blocked", os.O_RDONLY | os.O_NONBLOCK)
        await asyncio.to_thread(wait_for_threads)
        os.close(reader)


@pytest.mark.skipif(unavailable() is not None, reason="needs Landlock")
@pytest.mark.parametrize("kind", ["writable", "created"])
async def test_a_file_of_a_sandboxed_agent_is_written_through_no_link_out_of_its_folders(tmp_path: Path, kind: str) -> None:
    """claude's history is a file of its own folder, which its tools can write."""
    home, other, data, work = tmp_path / "home", tmp_path / "other", tmp_path / "data", tmp_path / "work"
    for folder in (home / "projects", other, data, work):
        folder.mkdir(parents=True)
    (home / "projects" / "work").symlink_to(other)
    command = Command(("/bin/true",), work, {}, files={home / "projects" / "work" / "session.jsonl": b"seed"})
    confined = Spawner().with_launcher(replace(Sandbox((), (data,)), **{kind: (home,)}))
    with pytest.raises(AgentUnavailable, match=f"a symbolic link leads out of {home}"):
        await confined.spawn(command)
    assert not list(other.iterdir())
    (home / "projects" / "work").unlink()
    await (await confined.spawn(command)).close(0.0)
    assert (home / "projects" / "work" / "session.jsonl").read_bytes() == b"seed"
